"""Ops check themselves when they are made."""

import pytest

from naviscope_ingest.sinks import Delete, Execute, Insert, InvalidOp, Upsert
from naviscope_spi import Permanent


def test_names_are_quoted_and_values_are_bound():
    sql, values = Insert("orders", {"id": 1, "select": "x'); drop table orders"}).statement()
    assert sql == 'INSERT INTO "orders" ("id", "select") VALUES (?, ?)'
    assert values == (1, "x'); drop table orders")


def test_an_upsert_changes_what_is_not_the_key():
    sql, values = Upsert("orders", {"id": 1, "total": 2}, key="id").statement()
    assert sql.endswith('ON CONFLICT ("id") DO UPDATE SET "total" = excluded."total"')
    assert values == (1, 2)


def test_an_upsert_of_the_key_alone_changes_nothing():
    assert Upsert("tags", {"a": 1, "b": 2}, key=["a", "b"]).statement()[0].endswith('("a", "b") DO NOTHING')


def test_a_delete_names_the_table_of_every_column():
    assert Delete("t", {"a": 1, "b": None}).statement() == (
        'DELETE FROM "t" WHERE "t"."a" IS ? AND "t"."b" IS ?',
        (1, None),
    )


def test_names_may_be_of_any_language():
    assert '"größe"' in Insert("möbel", {"größe": 1}).statement()[0]


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "a;b", "1a", "main.t", "a\0", "a\n", "x" * 129, None, 7, "$a"])
def test_a_bad_name_is_refused(name):
    with pytest.raises(InvalidOp, match="is no name of a table"):
        Insert(name, {"a": 1})
    with pytest.raises(InvalidOp, match="is no name of a column"):
        Insert("t", {name: 1})
    with pytest.raises(InvalidOp, match="is no name of a column"):
        Delete("t", {name: 1})


@pytest.mark.parametrize("name", ["naviscope_messages", "NaviScope_x", "sqlite_schema", "SQLITE_sequence"])
def test_a_reserved_table_is_refused(name):
    with pytest.raises(InvalidOp, match="are reserved"):
        Upsert(name, {"a": 1}, "a")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Insert(["t"], {"a": 1}), "is no name of a table"),
        (lambda: Insert("t", {}), r"Insert\(row=\{\}\): name at least one column"),
        (lambda: Insert("t", [("a", 1)]), "give a mapping from column to value"),
        (lambda: Upsert("t", {}, "a"), r"Upsert\(row=\{\}\)"),
        (lambda: Upsert("t", {"a": 1}, ""), "column '' is not in the row"),
        (lambda: Upsert("t", {"a": 1}, []), "give the name of a column, or a list of names"),
        (lambda: Upsert("t", {"a": 1}, None), "give the name of a column, or a list of names"),
        (lambda: Upsert("t", {"a": 1}, "b"), "column 'b' is not in the row"),
        (lambda: Upsert("t", {"a": 1}, ["a", "a"]), "a column is named twice"),
        (lambda: Upsert("t", {"a": 1}, [["a"]]), "give the name of a column, or a list of names"),
        (lambda: Delete("t", {}), r"Delete\(key=\{\}\): name at least one column"),
        (lambda: Delete("t", "id"), "give a mapping from column to value"),
        (lambda: Execute(""), "give an SQL statement"),
        (lambda: Execute("  \n"), "give an SQL statement"),
        (lambda: Execute(None), "give an SQL statement"),
        (lambda: Execute("select " + "1," * 500_000 + "1"), "longer than 1,000,000"),
        (lambda: Execute("insert OR  rollback into t values (1)"), "use OR ABORT"),
        (lambda: Execute("insert or/* x */rollback into t values (1)"), "use OR ABORT"),
        (lambda: Execute("select ?", "x"), "give a list of values, or a mapping by name"),
        (lambda: Execute("select ?", 7), "give a list of values, or a mapping by name"),
    ],
)
def test_a_malformed_op_is_refused(make, text):
    with pytest.raises(InvalidOp, match=text):
        make()


def test_a_malformed_op_ends_its_message():
    assert issubclass(InvalidOp, Permanent)
    assert issubclass(InvalidOp, ValueError)


def test_an_op_cannot_be_changed():
    with pytest.raises(AttributeError):
        Insert("t", {"a": 1}).table = "u"
