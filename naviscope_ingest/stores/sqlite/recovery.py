"""What is known, as facts: a recovery, read in chunks from a connection that sees one moment of the file.

It tells what the store in memory tells: epochs, then every message of an epoch that has not completed or has dead
letters, then what became of them, then resources. Messages of other epochs are told if an unfinished message names
them. Payloads are left out: nobody who decides looks at them, and they would be most of what is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import apsw

from naviscope_ingest._encoding import Scribe, decode_depends_on
from naviscope_ingest.stores.sqlite.entries import EPOCH_COLUMNS, EpochRow
from naviscope_ingest.stores.sqlite.queries import fetch
from naviscope_ingest.stores.sqlite.rows import COMMITTED, ended_of, messages_named
from naviscope_ingest.stores.sqlite.stages import ALIVE, Stages
from naviscope_ingest.stores.sqlite.steps import GLOBAL
from naviscope_spi import (
    Accepted,
    Committed,
    EpochKey,
    EpochOpened,
    FactBody,
    Leased,
    Prepared,
    Provided,
    RecoveryBegun,
    Resource,
    Seq,
    Waits,
)

__all__ = ["recovery"]

# How many rows one chunk has. The writer does nothing else while it reads one.
_CHUNK = 1_000
_EPOCHS = f"select {', '.join(EPOCH_COLUMNS)}, mark from epochs where number > ? order by number limit ?"  # noqa: S608
_MESSAGES = (
    "select m.seq, m.epoch, m.at, m.id, m.head, m.rest, e.seq is null, p.added from messages m"
    " join epochs on epochs.number = m.epoch and not epochs.freed"
    " left join ends e on e.seq = m.seq left join progress p on p.seq = m.seq"
    " where m.seq > ? order by m.seq limit ?"
)
_ENDS = (
    "select e.seq, e.end, e.value, e.causes, e.letter from ends e"
    " join epochs on epochs.number = e.epoch and not epochs.freed where e.seq > ? order by e.seq limit ?"
)
_PROGRESS = (
    "select p.seq, p.run, p.attempt, p.not_before, p.added, p.prepared is not null, e.seq is null from progress p"
    " join messages m on m.seq = p.seq join epochs on epochs.number = m.epoch and not epochs.freed"
    " left join ends e on e.seq = p.seq where p.seq > ? order by p.seq limit ?"
)
_AMOUNT = "select count(*) from epochs join messages m on m.epoch = epochs.number where not epochs.freed"
_NAMED = (
    "select m.seq, m.epoch, epochs.name, m.at, m.id, m.head, m.rest, e.end, e.value, e.causes, e.letter from epochs"
    " join messages m on m.epoch = epochs.number join ends e on e.seq = m.seq"
    " where epochs.freed and epochs.name = ? and m.id = ?"
)


def recovery(connection: apsw.Connection, scribe: Scribe, leases: Mapping[Seq, int]) -> Iterator[Sequence[FactBody]]:
    """Yield everything that is known, chunk by chunk.

    Args:
        connection: sees one moment of the file.
        scribe: reads messages.
        leases: the token of the session that has each message leased, as of that moment.
    """
    ((amount,),) = fetch(connection, _AMOUNT)
    yield [RecoveryBegun(amount)]
    keys: dict[int, EpochKey] = {}
    for rows in _chunks(connection, _EPOCHS):
        epochs = [EpochRow(*row) for row in rows]
        keys.update({epoch.number: epoch.key for epoch in epochs if not epoch.freed})
        yield [EpochOpened(epoch.record) for epoch in epochs]
    named: dict[tuple[str, str], None] = {}
    first = fetch(connection, "select min(first_seq) from epochs where not freed")[0][0]
    stages = Stages.load(connection, with_alive=True)
    for rows in _chunks(connection, _MESSAGES, (first or 1) - 1):
        yield list(_accepted(_alive(rows, stages), keys, scribe, named))
    yield from _elsewhere(connection, scribe, named)
    yield from _fates(connection, leases)
    yield from _resources(connection)


def _chunks(connection: apsw.Connection, statement: str, after: int = 0) -> Iterator[Sequence[tuple[Any, ...]]]:
    while rows := fetch(connection, statement, (after, _CHUNK)):
        yield rows
        after = rows[-1][0]


def _alive(rows: Sequence[tuple[Any, ...]], stages: Stages) -> Sequence[tuple[Any, ...]]:
    """Return the messages that are alive; those that were staged with the time at which they came alive."""
    if not stages:
        return rows
    alive = []
    for row in rows:
        stage = stages.at(row[0])
        if stage is None:
            alive.append(row)
        elif stage.state == ALIVE:
            alive.append((*row[:2], stage.at, *row[3:]))
    return alive


def _accepted(
    rows: Sequence[tuple[Any, ...]], keys: Mapping[int, EpochKey], scribe: Scribe, named: dict[tuple[str, str], None]
) -> Iterator[Accepted[Any]]:
    for (epoch, at), together in groupby(rows, key=lambda row: (row[1], row[2])):
        seqs, messages = [], []
        for seq, _, _, name, head, rest, is_unfinished, added in together:
            message = scribe.outline(name, head, rest)
            seqs.append(seq)
            messages.append(message)
            if is_unfinished and message.depends_on:
                named.update(dict.fromkeys(messages_named(message.depends_on)))
            if is_unfinished and added is not None:
                named.update(dict.fromkeys(messages_named(decode_depends_on(added))))
        yield Accepted(keys[epoch], seqs, messages, at)


def _elsewhere(
    connection: apsw.Connection, scribe: Scribe, named: Mapping[tuple[str, str], None]
) -> Iterator[Sequence[FactBody]]:
    """Yield messages of completed epochs that unfinished messages name, with their ends."""
    for name in named:
        for seq, number, epoch, at, message_id, head, rest, *end in fetch(connection, _NAMED, name):
            message = scribe.outline(message_id, head, rest)
            yield [Accepted(EpochKey(number, epoch), [seq], [message], at), *_ends([(seq, *end)])]


def _fates(connection: apsw.Connection, leases: Mapping[Seq, int]) -> Iterator[Sequence[FactBody]]:
    """Yield what became of the messages.

    Waits come before ends and leases: they tell the run that ended, and a replay has to name the next one; and news of
    waits mean that the lease is over. What is prepared is no longer a matter of the lease.
    """
    prepared: list[Seq] = []
    for rows in _chunks(connection, _PROGRESS):
        waits = [_waits(row) for row in rows]
        told = [each for each in waits if each is not None]
        if told:
            yield told
        prepared += [row[0] for row in rows if row[5] and row[6]]
    for token, held in groupby(leases.items(), key=lambda item: item[1]):
        yield [Leased([seq for seq, _ in held], token)]
    if prepared:
        yield [Prepared(prepared)]
    for rows in _chunks(connection, _ENDS):
        yield _ends(rows)


def _waits(row: tuple[Any, ...]) -> Waits | None:
    seq, run, attempt, not_before, added, is_prepared, _ = row
    if (run, attempt, not_before, added, is_prepared) == (0, 0, None, None, False):
        return None
    return Waits(seq, None if added is None else decode_depends_on(added), not_before, attempt, run)


def _ends(rows: Sequence[tuple[Any, ...]]) -> list[FactBody]:
    committed = [row[0] for row in rows if row[1] == COMMITTED]
    values = {row[0]: row[2] for row in rows if row[1] == COMMITTED and row[2] is not None}
    told: list[FactBody] = [Committed(committed, values)] if committed else []
    told += [ended_of(seq, end, causes, letter) for seq, end, _, causes, letter in rows if end != COMMITTED]
    return told


def _resources(connection: apsw.Connection) -> Iterator[Sequence[FactBody]]:
    after = (-1, "")
    statement = (
        "select scope, name, version, value from resources where (scope, name) > (?, ?) order by scope, name limit ?"
    )
    while rows := fetch(connection, statement, (*after, _CHUNK)):
        yield [
            Provided(Resource(name, version, value=value), None if scope == GLOBAL else scope)
            for scope, name, version, value in rows
        ]
        after = (rows[-1][0], rows[-1][1])
