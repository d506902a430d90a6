"""What each dependency says to its waiting message, and what follows from all of them together.

A dependency first *comes to* something: satisfied, open, or a bad end. Its policy makes a word of a bad end. The words
of all dependencies make the verdict. The order of the words matters more than the order in which they are said: a
message that was told to skip keeps waiting as long as another dependency could still tell it to fail, otherwise its end
would depend on timing.
"""

from __future__ import annotations

from collections.abc import Iterator

from naviscope_spi import AnyOf, Dependency, OnBarrier, OnEpoch, OnMessage, OnResource
from tests.model.facts import BAD, Entry, Facts, Wait

SATISFIED = "satisfied"
OPEN = "open"


def unresolved_word(facts: Facts, x: Entry, dependency: Dependency) -> str:
    """Tell what happens if nothing alive can release this top-level dependency."""
    return dependency.on_unresolved or facts.epochs[x.epoch].on_unresolved or facts.on_unresolved


def comes_to(facts: Facts, x: Entry, wait: Wait, part: Dependency) -> str:
    """Tell what a dependency or a member of a group has come to: satisfied, open, or a bad end."""
    if type(part) is OnMessage:
        return _message(facts, x, part)
    if type(part) is OnEpoch:
        return _epoch(facts, x, part)
    if type(part) is AnyOf:
        return _group(facts, x, wait, part)
    # Resources and barriers are latched: a replay may close the barrier again, but not for those it has let through.
    if id(part) in wait.latched:
        if type(part) is OnBarrier and part.kind not in facts.epochs[x.epoch].opened:
            facts.seen["latched barrier"] += 1
        return SATISFIED
    if type(part) is OnResource:
        there = facts.is_provided(x, part)
    else:
        there = part.kind in facts.epochs[x.epoch].opened
    if there:
        wait.latched.add(id(part))
    return SATISFIED if there else OPEN


def _message(facts: Facts, x: Entry, part: OnMessage) -> str:
    """Tell the present end of the message; an unknown id of a completed epoch counts as dead."""
    parent = facts.target(x, part)
    if parent is None:
        epoch = facts.target_epoch(x, part)
        return "dead" if epoch is not None and epoch.state == "completed" else OPEN
    if parent.state == "committed":
        return SATISFIED
    return parent.state if parent.state in BAD else OPEN


def _epoch(facts: Facts, x: Entry, part: OnEpoch) -> str:
    """Tell the present outcome of the epoch; one under repair is open again."""
    epoch = facts.target_epoch(x, part)
    if epoch is None or epoch.state != "completed":
        return OPEN
    if facts.has_succeeded(epoch):
        return SATISFIED
    return "cancelled" if epoch.is_cancelled else "dead"


def _group(facts: Facts, x: Entry, wait: Wait, part: AnyOf) -> str:
    """Count the members; a group that can no longer be reached waits until its own end is certain."""
    parts = [comes_to(facts, x, wait, member) for member in part.members]
    satisfied, still_open = parts.count(SATISFIED), parts.count(OPEN)
    if satisfied >= part.at_least:
        return SATISFIED
    if satisfied + still_open >= part.at_least:
        return OPEN
    if "dead" in parts or "expired" in parts:
        return "dead"
    # Dead is the worst end of a group. While a member may still bring it, "skipped" would be a guess.
    if _could_die(facts, x, wait, part) and not facts.rules.first_bad_parent_decides:
        facts.seen["group waited for worse"] += 1
        return OPEN
    return "cancelled" if "cancelled" in parts else "skipped"


def _could_die(facts: Facts, x: Entry, wait: Wait, group: AnyOf) -> bool:
    """Say whether an open member of the group could still end dead; resources and barriers cannot."""
    return any(
        type(member) in (OnMessage, OnEpoch) or (type(member) is AnyOf and _could_die(facts, x, wait, member))
        for member in group.members
        if comes_to(facts, x, wait, member) == OPEN
    )


def messages_in(facts: Facts, x: Entry, part: Dependency) -> Iterator[Entry]:
    """Yield the accepted messages that a dependency or any member of it names."""
    if type(part) is AnyOf:
        for member in part.members:
            yield from messages_in(facts, x, member)
    elif type(part) is OnMessage and (parent := facts.target(x, part)) is not None:
        yield parent


def _is_given_up(facts: Facts, x: Entry, part: Dependency) -> bool:
    """Say whether nothing this dependency is held for can come back: it was discarded, or never existed."""
    ended = [parent for parent in messages_in(facts, x, part) if parent.state in BAD]
    lost = [parent for parent in ended if parent.state in ("dead", "expired")]
    if not lost:
        return not ended and not any(_failed_epochs(facts, x, part))
    return all(parent.discarded for parent in lost)


def status(facts: Facts, x: Entry, wait: Wait) -> str:
    """Tell what a top-level dependency says now: satisfied, open, or fail, cancel, skip, hold."""
    if wait.resolved is not None:
        return SATISFIED if wait.resolved == "run" else wait.resolved
    dependency = wait.dependency
    now = comes_to(facts, x, wait, dependency)
    if now == SATISFIED:
        return SATISFIED
    if type(dependency) is OnMessage and now != OPEN and facts.target(x, dependency) is None:
        word = unresolved_word(facts, x, dependency)
        facts.seen["unknown id in a completed epoch"] += 1
        now = OPEN if word == "wait" else now
    elif now != OPEN:
        word = getattr(dependency.otherwise, now)
    if now == OPEN:
        return _after_timeout(facts, wait) if wait.fired else OPEN
    if word == "hold" and _is_given_up(facts, x, dependency):
        return "fail"
    return SATISFIED if word == "run" else word


def _after_timeout(facts: Facts, wait: Wait) -> str:
    """Tell what an open dependency says whose time is over: final, unless it holds, which a late parent may mend."""
    word = wait.dependency.otherwise.expired
    facts.seen[f"timeout {word}"] += 1
    if word == "hold":
        return "hold"
    wait.resolved = word
    return SATISFIED if word == "run" else word


def could_say(facts: Facts, x: Entry, wait: Wait) -> set[str]:
    """Collect the words that an open dependency may still say."""
    dependency = wait.dependency
    words = dependency.otherwise
    said = {words.expired} if wait.has_timer else set()
    if type(dependency) is OnBarrier:
        return said
    if type(dependency) is OnMessage:
        said |= set(words)
    elif type(dependency) is AnyOf:
        said |= {words.dead, words.cancelled, words.skipped}
    elif type(dependency) is OnEpoch:
        said |= {words.dead, words.cancelled}
    if not (type(dependency) is OnResource and dependency.external):
        said.add(unresolved_word(facts, x, dependency))
    return said


def verdict(facts: Facts, x: Entry) -> str:
    """Weigh all dependencies: fail acts at once, the milder words only when nothing worse can come, hold last."""
    said: set[str] = set()
    possible: set[str] = set()
    is_open = False
    for wait in x.waits:
        word = status(facts, x, wait)
        if word == OPEN:
            is_open = True
            possible |= could_say(facts, x, wait)
        else:
            said.add(word)
    if facts.rules.first_bad_parent_decides:
        possible.clear()
    if "fail" in said:
        return "dead"
    if "cancel" in said and "fail" not in possible:
        return "cancelled"
    if "skip" in said and "fail" not in possible and "cancel" not in possible:
        return "skipped"
    if "cancel" in said or "skip" in said:
        facts.seen["waited for a worse word"] += 1
    if is_open or (facts.rules.strict_lanes and _is_behind_in_lane(facts, x)):
        return "waiting"
    if "hold" in said:
        return "held"
    not_before = x.message.not_before
    return "delayed" if not_before is not None and not_before > facts.now else "ready"


def _is_behind_in_lane(facts: Facts, x: Entry) -> bool:
    """Say whether an earlier message of the same key is unfinished (a wrong rule: lanes are no edges)."""
    key = x.message.key
    return key is not None and any(
        y.message.key == key and y.seq < x.seq and y.state not in BAD and y.state != "committed"
        for y in facts.entries.values()
    )


def causes(facts: Facts, x: Entry) -> tuple[frozenset[int], frozenset[int]]:
    """Collect the messages and epochs whose present ends keep dependencies of `x` from saying go.

    What was decided by a timeout or by the stuck analysis blames nobody: a replay of the parent would not help.
    """
    messages: set[int] = set()
    epochs: set[int] = set()
    for wait in x.waits:
        if wait.resolved is not None or status(facts, x, wait) in (SATISFIED, OPEN):
            continue
        # A timeout that holds is open underneath, and open parents are not to blame.
        if comes_to(facts, x, wait, wait.dependency) != OPEN:
            messages |= {y.seq for y in messages_in(facts, x, wait.dependency) if y.state in BAD}
            epochs |= set(_failed_epochs(facts, x, wait.dependency))
    return frozenset(messages), frozenset(epochs)


def _failed_epochs(facts: Facts, x: Entry, part: Dependency) -> Iterator[int]:
    """Yield the numbers of the failed epochs that a dependency or any member of it names."""
    if type(part) is AnyOf:
        for member in part.members:
            yield from _failed_epochs(facts, x, member)
    elif type(part) is OnEpoch and _epoch(facts, x, part) in BAD:
        yield facts.names[part.name].number
