"""Bugs that are put into the runtime on purpose, to show that the simulator finds them.

Each is a name and what it replaces. Some have a twin: two defences guard the same promise, and a bug in one of them is
masked by the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from unittest.mock import patch

import trio
from attrs import evolve

from naviscope_ingest._core.core import Core
from naviscope_ingest._core.fold import Fold
from naviscope_ingest._core.graph import Graph
from naviscope_ingest._core.lanes import Lane, Lanes
from naviscope_ingest._core.transitions import Transitions
from naviscope_ingest._kernel.workers import Workers
from naviscope_ingest.intake import IntakeHandle
from naviscope_ingest.reports import SubmitReceipt
from naviscope_ingest.sinks._sqlite_file import SqliteFile
from naviscope_ingest.stores.sqlite import settlement, steps
from naviscope_ingest.stores.sqlite.database import Database
from naviscope_ingest.stores.sqlite.ledger import Ledger
from naviscope_ingest.stores.sqlite.store import SqliteStore
from naviscope_ingest.stores.sqlite.transaction import Transaction
from naviscope_spi import SessionEnded

_submit = IntakeHandle._submit
_run = Transaction.run
_open = Database.open
_take = Core.take
_committed = Graph.committed
_settle = SqliteStore.settle
_look_at_epochs = Transitions._look_at_epochs
_wait = Fold._wait
_tell = Fold.__call__


async def acknowledge_first(self, epoch, messages, strict, unique_for, *, may_wait):
    sent = list(messages)

    async def store():
        with suppress(Exception):
            await _submit(self, epoch, sent, strict, unique_for, may_wait=may_wait)

    trio.lowlevel.spawn_system_task(store)
    return SubmitReceipt(accepted=len(sent))


def settle_apart(self, apply, authorizer):
    self._connection.execute("commit; begin immediate")
    _run(self, apply, authorizer)


def open_without_index(self):
    _open(self)
    self.connection.execute("drop index messages_by_id; create index messages_by_id on messages (epoch, id)")


def know_nothing(*given):
    return None


def release_when_started(self, limit):
    seqs = _take(self, limit)
    for seq in seqs:
        node = self._nodes.get(seq)
        if node is not None:
            child, node.first = node.first, None
            if child is not None:
                child.missing -= 1
                if not child.missing:
                    self._graph.freed.append(child)
            waiters, node.waiters = node.waiters, []
            if waiters:
                _committed(self._graph, waiters)
    self._transitions.settle()
    return seqs


def forget_a_waiter(self, waiters):
    _committed(self, waiters[:-1])


async def put_derived_first(self, session, given):
    homes = {lease.seq: lease.epoch for lease in given.committed}
    for each in given.derived:
        with suppress(Exception):
            await self.put(homes[each.parent], each.messages)
    return await _settle(self, session, given)


def add_backwards(self, node):
    self._by_seq.insert(0, (node.seq, node))
    self._by_priority.append((-node.message.priority, node.seq, node))


def hold_nothing(self, node):
    assert node.message.key is not None


def complete_by_count(self):
    for epoch in self.touched.values():
        if epoch.is_sealed and epoch.unfinished == 1 and not epoch.waiting and epoch.state == "sealed":
            self._complete(epoch)
    _look_at_epochs(self)


def complete_whatever(epoch, state):
    return epoch.state != state


def wait_for_ever(self, fact):
    _wait(self, fact if fact.not_before is None else evolve(fact, not_before=1e12))


def write_ledger_first(self, connection, entries):
    fresh = self._ledger.claim(connection, entries)
    connection.execute("commit")
    connection.execute("begin immediate")
    try:
        self._writer.write(connection, fresh)
    except Exception as error:
        self._blame(connection, entries, error)


def open_laxly(self):
    _open(self)
    self.connection.execute("pragma synchronous = normal")


def keep_leases(self, fact):
    if not isinstance(fact, SessionEnded):
        _tell(self, fact)


async def settle_twice(self, session, given):
    settled = await _settle(self, session, given)
    await _settle(self, session, given)
    return settled


def end_no_lease(self, leases):
    pass


def run_again(self, leases, recorder):
    return [evolve(lease, prepared=None) for lease in leases]


def open_when_sealed(self, epoch, barrier):
    if epoch.is_sealed and not barrier.is_open:
        self.graph.opened(barrier)


BUGS = {
    "acknowledges before it stores": [(IntakeHandle, "_submit", acknowledge_first)],
    "settles in two transactions": [(Transaction, "run", settle_apart)],
    "does not look for duplicates": [
        (Database, "open", open_without_index),
        (steps, "known_content", know_nothing),
    ],
    "releases dependents before the commit": [(Core, "take", release_when_started)],
    "loses a wake-up": [(Graph, "committed", forget_a_waiter)],
    "stores derived messages before the commit": [(SqliteStore, "settle", put_derived_first)],
    "turns lanes round": [(Lane, "add", add_backwards)],
    "lets a lane run two at once": [(Lanes, "hold", hold_nothing)],
    "completes epochs by a count": [(Transitions, "_look_at_epochs", complete_by_count)],
    "loses retry timers on restart": [(Fold, "_wait", wait_for_ever)],
    "writes the ledger outside the transaction": [(SqliteFile, "_apply", write_ledger_first)],
    "does not sync the log": [(Database, "open", open_laxly)],
    "never gives leases back": [(Fold, "__call__", keep_leases)],
    "ignores recorded outcomes": [(Workers, "_recall", run_again)],
    "opens barriers early": [(Transitions, "_open_if_clear", open_when_sealed)],
}

PAIRS = {
    "settles twice, and leases do not end": [
        (SqliteStore, "settle", settle_twice),
        (Ledger, "end_leases", end_no_lease),
    ],
    "completes by a count, and the store does not check": [
        (settlement, "_may_become", complete_whatever),
        (Transitions, "_look_at_epochs", complete_by_count),
    ],
}
"""Two bugs each. The first of them is masked by what the second breaks."""


@contextmanager
def planted(*replaced) -> Iterator[None]:
    """Have the bugs in for as long as the block lasts."""
    with ExitStack() as stack:
        for owner, name, wrong in replaced:
            stack.enter_context(patch.object(owner, name, wrong))
        yield
