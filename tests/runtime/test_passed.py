"""What a message passed although it was not there is told to the executor also after a crash."""

import pytest
import trio

from naviscope_ingest import Deferred, Dependency, Executed, Message, Permanent, Resource, Skipped, Transient
from tests.runtime.test_recovery import killed, opened
from tests.runtime.worlds import started

REPORT = [
    Dependency.message("absent", on_unresolved="run"),
    Dependency.message("bad", otherwise="run"),
    Dependency.message("skipped", otherwise={"skipped": "run"}),
    Dependency.resource("late", timeout=5, otherwise="run"),
    Dependency.any_of("bad", "skipped", otherwise="run"),
    "good",
    Dependency.resource("here"),
    Dependency.barrier("other"),
]
UNMET = REPORT[:5]


def work_of(seen, reached, how):
    """Hang in the message "report" when it was begun, perhaps for the second time."""

    async def work(delivery):
        if delivery.id == "bad":
            raise Permanent("bad")
        if delivery.id == "skipped":
            return Skipped("nothing to do")
        if delivery.id == "good":
            return Executed([delivery.id], ready=[Resource("here")])
        if delivery.id == "report":
            seen.append(list(delivery.unmet))
            if how == "retried" and len(seen) == 1:
                raise Transient("not yet")
            if how == "deferred" and len(seen) == 1:
                return Deferred(["good"])
            if not reached.is_set():
                reached.set()
                await trio.sleep_forever()
        return Executed([delivery.id])

    return work


@pytest.mark.parametrize("how", ["began", "retried", "deferred"])
async def test_what_ran_without_a_dependency_is_told_so_again_after_a_crash(tmp_path, autojump_clock, how):
    reached, seen = trio.Event(), []
    work = work_of(seen, reached, how)
    messages = [
        Message("report", None, depends_on=REPORT),
        Message("bad", None),
        Message("good", None),
        Message("skipped", None),
        Message("of other", None, kind="other"),
    ]
    file = await killed(tmp_path, work, *messages, until=reached, seals=True)
    assert seen
    assert seen[-1] == UNMET
    seen.clear()
    async with opened(file) as store, started(work, store=store) as world:
        await (await world.intake.get_epoch("job")).wait()
    assert seen
    assert all(unmet == UNMET for unmet in seen)
