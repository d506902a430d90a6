# pyright: reportUnnecessaryTypeIgnoreComment=true
"""Payload types flow from a message to its delivery, and dependencies are typed where they are written."""

from __future__ import annotations

from typing import assert_type

from naviscope_spi import (
    AnyOf,
    Deferred,
    Delivery,
    Dependency,
    EpochKey,
    EpochOptions,
    Executed,
    Lease,
    Message,
    OnBarrier,
    OnEpoch,
    OnMessage,
    OnResource,
    Resource,
    Settlement,
    Words,
)


class Animal:
    pass


class Cat(Animal):
    def meow(self) -> str:
        return "meow"


def a_payload_reaches_the_executor(lease: Lease[int]) -> None:
    assert_type(lease.message, Message[int])
    delivery = Delivery(lease, "store")
    assert_type(delivery, Delivery[int])
    assert_type(delivery.payload, int)
    assert_type(delivery.message, Message[int])
    assert_type(delivery.epoch, EpochKey)
    assert_type(delivery.values["a"], bytes)


def a_message_knows_its_payload() -> None:
    assert_type(Message("a", 1), Message[int])
    assert_type(Message("a", {"rows": [1]}).payload, dict[str, list[int]])
    number: Message[int] = Message("a", "text")  # type: ignore[arg-type]
    Message(7, None)  # type: ignore[arg-type]
    Message("a", None, priority="high")  # type: ignore[arg-type]
    Message("a", None, headers={"n": 1})  # type: ignore[dict-item]
    Message("a", None, depends_on=7)  # type: ignore[arg-type]
    Message("a", None, depends_on=[7])  # type: ignore[list-item]
    number.payload = 2  # type: ignore[misc]


def a_message_of_a_cat_is_one_of_an_animal(cat: Message[Cat], animal: Message[Animal]) -> None:
    takes_an_animal(cat)
    takes_a_cat(animal)  # type: ignore[arg-type]


def takes_an_animal(message: Message[Animal]) -> None:
    message.payload.meow()  # type: ignore[attr-defined]


def takes_a_cat(message: Message[Cat]) -> None:
    message.payload.meow()


def dependencies_are_of_their_own_kinds() -> None:
    assert_type(Dependency.message("a"), OnMessage)
    assert_type(Dependency.message("a").otherwise, Words)
    assert_type(Dependency.resource("a", 1, external=True), OnResource)
    assert_type(Dependency.barrier("a"), OnBarrier)
    assert_type(Dependency.epoch("a"), OnEpoch)
    assert_type(Dependency.any_of("a", Dependency.epoch("e"), at_least=2), AnyOf)


def policies_are_words_that_exist() -> None:
    Dependency.message("a", otherwise="skip")
    Dependency.message("a", otherwise={"dead": "hold", "skipped": "run"})
    Dependency.message("a", otherwise="skipp")  # type: ignore[arg-type]
    Dependency.message("a", otherwise={"ded": "run"})  # type: ignore[dict-item]
    Dependency.message("a", on_unresolved="hold")  # type: ignore[arg-type]
    Dependency.message("a", timeout="5")  # type: ignore[arg-type]
    Dependency.resource("r", "1")  # type: ignore[arg-type]
    Dependency.any_of(1)  # type: ignore[arg-type]
    EpochOptions(if_exists="join")  # type: ignore[arg-type]


def outcomes_carry_ops_of_one_type(cat: Message[Cat]) -> None:
    assert_type(Executed(ops=["insert"], derived=[cat]), Executed[Cat, str])
    outcome: Executed[Cat, int] = Executed(ops=["insert"])  # type: ignore[list-item]
    outcome = Executed(ops=[1], derived=[Message("a", "no cat")])  # type: ignore[arg-type]
    outcome = Executed(ops=[1], ready=[Resource("r", add=1)], value=b"1")
    Resource("r", version="1")  # type: ignore[arg-type]
    Resource("r", 1, 2)  # type: ignore[call-arg]
    Resource("r", value="text")  # type: ignore[arg-type]
    assert_type(outcome.ops[0], int)
    assert_type(Deferred(["a", Dependency.epoch("e")]).depends_on, tuple[str | Dependency, ...])


def settlements_hold_leases_of_one_payload(cat: Lease[Cat], number: Lease[int]) -> None:
    assert_type(Settlement(committed=[cat]), Settlement[Cat])
    wrong: Settlement[Cat] = Settlement(committed=[number])  # type: ignore[list-item]
    wrong.committed[0].message.payload.meow()
