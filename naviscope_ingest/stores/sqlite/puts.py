"""Puts of a message or a few, which come from many tasks at once: those of one group go into the file together.

A thousand tasks that put one message each are a thousand requests of one group. Done one by one, each would cost a
savepoint, a statement and a step of its own, which takes longer than its row does. So neighbours are stored with the
statements of one put, as one step that readers see whole. If one of them needs a closer look (a known id, an epoch that
is not open), nothing of it was done, and each is done by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from naviscope_ingest._encoding import Content
from naviscope_ingest.stores.sqlite.ledger import Ledger
from naviscope_ingest.stores.sqlite.steps import insert_messages, put
from naviscope_spi import EpochKey, Message, PutReceipt, Seq

__all__ = ["Put", "put_together", "together"]

# A put of more messages than this is well off by itself.
_FEW = 50


class Put:
    """A put that waits for its turn.

    Attributes:
        key: the epoch.
        messages: the messages.
        contents: the same, as columns.
    """

    __slots__ = ("contents", "key", "messages")

    def __init__(self, key: EpochKey, messages: Sequence[Message[Any]], contents: Sequence[Content]) -> None:
        self.key = key
        self.messages = messages
        self.contents = contents

    def __call__(self, ledger: Ledger) -> PutReceipt:
        """Do it by itself."""
        return put(ledger, self.key, self.messages, self.contents)


def together(works: Sequence[object]) -> list[int]:
    """Return how many neighbours are done together each time, in their order; most are 1."""
    sizes: list[int] = []
    for number, same in groupby(works, key=_epoch_of_few):
        size = sum(1 for _ in same)
        sizes += [1] * size if number is None else [size]
    return sizes


def _epoch_of_few(work: object) -> int | None:
    return work.key.number if isinstance(work, Put) and len(work.contents) <= _FEW else None


def put_together(ledger: Ledger, puts: Sequence[Put]) -> list[PutReceipt] | None:
    """Accept what several put into one epoch, in one step; None, with nothing done, if that is not as simple."""
    epoch = ledger.epoch(puts[0].key.number)
    if epoch is None or epoch.state != "open":
        return None
    contents = [content for each in puts for content in each.contents]
    if len({content[0] for content in contents}) < len(contents):
        return None
    first = ledger.state.last_seq + 1
    messages = [message for each in puts for message in each.messages]
    if not insert_messages(ledger, epoch, messages, contents):
        return None
    receipts: list[PutReceipt] = []
    for each in puts:
        count = len(each.contents)
        receipts.append(PutReceipt([Seq(seq) for seq in range(first, first + count)], range(count)))
        first += count
    return receipts
