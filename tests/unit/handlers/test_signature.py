"""What a function says about itself when it is declared."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from naviscope_ingest import Delivery, HandlerError, Ingest, InvalidMessage


@dataclass
class Order:
    amount: int


def declare(function, **options):
    app = Ingest()
    assert app.handler("order", **options)(function) is function
    return app.handlers["order"].signature


async def of_payload(order: Order): ...
async def of_delivery(message: Delivery[Order]): ...
async def of_both(order: Order, message: Delivery[Order]): ...
async def of_both_turned(message: Delivery, order: Order): ...
def plain(order: Order): ...
def with_extras(order: Order, retries: int = 3, *, verbose: bool = False): ...


class Loader:
    async def load(self, order: Order): ...
    async def __call__(self, message: Delivery[Order]): ...


@pytest.mark.parametrize(
    ("function", "takes", "run_in"),
    [
        (of_payload, ("payload",), "task"),
        (of_delivery, ("delivery",), "task"),
        (of_both, ("payload", "delivery"), "task"),
        (of_both_turned, ("delivery", "payload"), "task"),
        (plain, ("payload",), "thread"),
        (with_extras, ("payload",), "thread"),
        (partial(with_extras, verbose=True), ("payload",), "thread"),
        (Loader().load, ("payload",), "task"),
        (Loader(), ("delivery",), "task"),
    ],
)
def test_annotations_say_what_a_handler_takes_and_where_it_runs(function, takes, run_in):
    signature = declare(function)
    assert (signature.payload, signature.takes, signature.run_in) == (Order, takes, run_in)


def test_object_takes_anything():
    def handle(payload: object): ...

    assert declare(handle).payload is Any


def test_a_process_is_asked_for():
    assert declare(plain, run_in="process").run_in == "process"


def test_the_payload_can_be_given_instead_of_annotated():
    async def handle(order): ...

    assert declare(handle, payload=Order).payload is Order


def no_annotation(order): ...
def bare_delivery(message: Delivery): ...
def no_parameter(): ...
def three(a: int, b: int, c: int): ...
def two_payloads(a: int, b: int): ...
def needs_more(order: Order, *, database): ...
def unknown_type(order: "Nothing"): ...  # noqa: F821 - this is the mistake
def not_a_payload(order: complex | Order): ...


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (no_annotation, {}, "its parameter 'order' has no type"),
        (bare_delivery, {}, "a bare Delivery does not say what its payload is"),
        (no_parameter, {}, "it has 0 parameters to fill"),
        (three, {}, "it has 3 parameters to fill"),
        (two_payloads, {}, "2 parameters of one sort"),
        (needs_more, {}, "nobody can fill its parameter 'database'"),
        (unknown_type, {}, "name 'Nothing' is not defined.*say payload="),
        (not_a_payload, {}, "cannot be the type of a payload"),
        (plain, {"run_in": "somewhere"}, "run_in='somewhere': it is one of 'task', 'thread', 'process'"),
        (plain, {"run_in": "task"}, "does not fit a plain function"),
        (of_payload, {"run_in": "process"}, "does not fit an async function"),
        ("plain", {}, "'plain' is no function"),
    ],
)
def test_what_cannot_be_a_handler_is_refused_where_it_is_declared(function, options, text):
    with pytest.raises(HandlerError, match=f"(?s)of kind 'order'.*{text}"):
        declare(function, **options)


def test_a_function_inside_another_cannot_run_in_a_process():
    def inner(order: Order): ...

    with pytest.raises(HandlerError, match="finds a function by its name"):
        declare(inner, run_in="process")


def test_a_kind_has_one_handler():
    app = Ingest()
    app.handler("order")(plain)
    with pytest.raises(HandlerError, match="has one already, handler 'plain'"):
        app.handler("order")(of_payload)


def test_a_kind_is_a_name():
    with pytest.raises(InvalidMessage, match="kind"):
        Ingest().handler("")


@pytest.mark.parametrize("derives", ["line", [1]])
def test_derives_is_a_list_of_kinds(derives):
    with pytest.raises(HandlerError, match="give a list of kinds"):
        Ingest().handler("order", derives=derives)


@pytest.mark.parametrize("options", [{"threads": 0}, {"processes": 0}, {"threads": True}])
def test_numbers_are_checked(options):
    with pytest.raises(ValueError, match="whole number of at least 1"):
        Ingest(**options)
