"""A store of one's own, on sqlitedict: every step that changes something is written down, and read again at the start.

The rules of a store are those of `MemoryStore`; what is added here is that they survive the process. A step (its name,
its arguments and the time) is in the file before it is carried out, so what was answered is never lost, and a store
that is opened again carries out the same steps again. It is an example of a small durable store, not a fast one: each
step is a commit of its own, and the file only grows.

What has to be known of sqlitedict:

- It pickles unless it is told otherwise. Here values are JSON, and only classes of the contract are made from it.
- Keys are strings to it, so 1 and "1" are one key. Here they are numbers of a fixed width.
- It writes on a thread of its own. `commit()` waits for that by default; with `blocking=False` a killed process loses
  what was thought safe. And it waits, so it is called in a thread: a loop must not.
- It does not sync. What it has committed survives the process and not a power cut, and `durability` says so.

Run it twice: the second time everything is known already.
"""

import base64
import json
import secrets
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import attrs
import trio
from sqlitedict import SqliteDict

import naviscope_spi
from naviscope_ingest import Executed, IngestRuntime, MemorySink, MemoryStore, Message, RuntimeComponents, StoreRefused
from naviscope_spi import Session, SessionLost, StoreInfo

KNOWN = {name: thing for name, thing in vars(naviscope_spi).items() if isinstance(thing, type) and attrs.has(thing)} | {
    "Words": type(naviscope_spi.Dependency.message("x").otherwise)
}
"""The classes that a journal may name."""


def plain(value):
    """Return a value as JSON can hold it. What is no plain data gets the name of its class."""
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if type(value).__name__ in KNOWN:
        if isinstance(value, tuple):
            return {"class": type(value).__name__, "with": [plain(each) for each in value]}
        fields = {each.name: plain(getattr(value, each.name)) for each in attrs.fields(type(value)) if each.init}
        return {"class": type(value).__name__, "with": fields}
    if isinstance(value, dict) or hasattr(value, "items"):
        return {"dict": [[plain(key), plain(child)] for key, child in value.items()]}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r:.80} is no plain data: this store takes what JSON can hold, and bytes")


def made(value):
    """Return what `plain` was given."""
    if isinstance(value, list):
        return [made(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "bytes" in value:
        return base64.b64decode(value["bytes"])
    if "dict" in value:
        return {made(key): made(child) for key, child in value["dict"]}
    arguments, found = value["with"], KNOWN[value["class"]]
    if isinstance(arguments, list):
        return found(*map(made, arguments))
    return found(**{name.removeprefix("_"): made(child) for name, child in arguments.items()})


class StepClock:
    """Tells the time of the step that is carried out: again the same when it is carried out again."""

    def __init__(self):
        self.now = 0.0

    def wall(self):
        return self.now

    def monotonic(self):
        return self.now


class SqliteDictStore:
    """A store in memory whose steps are kept. Open one with `async with SqliteDictStore.open(path)`."""

    def __init__(self, journal, inner, clock, length):
        self._journal = journal
        self._inner = inner
        self._clock = clock
        self._length = length
        self._lock = trio.Lock()
        self._sessions = AsyncExitStack()
        self._joined = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, path):
        """Open a file for as long as a block lasts."""
        open_journal = partial(
            SqliteDict, str(path), tablename="steps", encode=json.dumps, decode=json.loads, outer_stack=False
        )
        journal = await trio.to_thread.run_sync(open_journal)
        try:
            kept = await trio.to_thread.run_sync(lambda: sorted(journal.items()))
            store_id = kept[0][1] if kept else secrets.token_hex(8)
            clock = StepClock()
            store = cls(journal, MemoryStore(store_id=store_id, clock=clock), clock, len(kept))
            if not kept:
                await store._write(store_id)
            for _, (name, when, arguments) in kept[1:]:
                clock.now = when
                # What was refused the first time is refused again.
                with suppress(StoreRefused, SessionLost, ValueError):
                    await store._carry_out(name, made(arguments))
            async with store._sessions:
                yield store
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(journal.close)

    @property
    def info(self):
        return StoreInfo(self._inner.info.store_id, "process", finishes_calls=True)

    async def _write(self, entry):
        def write():
            self._journal[f"{self._length:012}"] = entry
            self._journal.commit(blocking=True)

        await trio.to_thread.run_sync(write)
        self._length += 1

    async def _step(self, name, *arguments):
        """Write a step down, then carry it out. Cancelled before, it did not happen; after, it happens whole."""
        entry = plain(arguments)
        await trio.lowlevel.checkpoint()
        async with self._lock:
            with trio.CancelScope(shield=True):
                when = time.time()
                await self._write([name, when, entry])
                self._clock.now = when
                # The very arguments that another process would read.
                return await self._carry_out(name, made(entry))

    async def _carry_out(self, name, arguments):
        if name == "join":
            who, lead = arguments
            block = AsyncExitStack()
            session = await block.enter_async_context(self._inner.join(who, lead=lead))
            self._joined[session.token] = block
            self._sessions.push_async_callback(self._leave, session.token)
            return session
        if name == "leave":
            return await self._leave(*arguments)
        if name == "put":
            epoch, messages, parent = arguments
            return await self._inner.put(epoch, messages, staged_by=parent)
        return await getattr(self._inner, name)(*arguments)

    async def _leave(self, token):
        block = self._joined.pop(token, None)
        if block is not None:
            await block.aclose()

    @asynccontextmanager
    async def join(self, who, *, lead=True):
        session: Session = await self._step("join", who, lead)
        try:
            yield session
        finally:
            with trio.CancelScope(shield=True):
                await self._step("leave", session.token)

    async def open_epoch(self, name, options):
        return await self._step("open_epoch", name, options)

    async def mark_epoch(self, epoch, mark):
        return await self._step("mark_epoch", epoch, mark)

    async def put(self, epoch, messages, *, staged_by=None):
        return await self._step("put", epoch, list(messages), staged_by)

    async def pop_ready(self, session, seqs):
        return await self._step("pop_ready", session, list(seqs))

    async def settle(self, session, settlement):
        return await self._step("settle", session, settlement)

    async def notify_ready(self, resources):
        return await self._step("notify_ready", list(resources))

    async def forget_ready(self, names):
        return await self._step("forget_ready", list(names))

    def facts(self, after=None):
        return self._inner.facts(after)


class Doubles:
    """The work: twice the payload."""

    async def execute(self, message):
        return Executed(ops=[2 * message.payload])


async def main(path):
    async with SqliteDictStore.open(path) as store:
        sink = MemorySink()
        components = RuntimeComponents(executor=Doubles(), commit_sink=sink, store=store)
        async with IngestRuntime(components).running() as intake:
            # Left open: as in memory, ids are known for as long as their epoch has not completed.
            epoch = await intake.new_epoch("numbers")
            receipt = await epoch.submit([Message("one", 1), Message("two", 2, depends_on=["one"])])
            await intake.wait_idle()
    print(f"{receipt.accepted} new, {epoch.report.committed} committed, in this run {sink.ops}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "numbers.sqlite")
