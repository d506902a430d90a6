"""A SQLite sink without a path writes inside a transaction of somebody else."""

import apsw
import pytest

from naviscope_ingest.sinks import Delete, Execute, Insert, SqliteSink, Upsert
from naviscope_ingest.sinks._sqlite_apply import TransactionLost
from naviscope_spi import AppliesInside, CommitBatch, Entry, EpochKey, Permanent, SinkRejected, SystemFailure, task_key

SCHEMA = """
create table account (name text primary key, balance integer not null default 0 check (balance >= 0));
create table booking (id integer primary key, account text not null, amount any) strict;
create index booking_account on booking (account);
create view total as select account, sum(amount) as amount from booking group by account;
"""


def entry(name, *ops):
    return Entry(task_key("store", 1, name), EpochKey(1, "nightly"), name, "message", ops)


@pytest.fixture
def store():
    """A connection as a store has it: in a transaction, with tables of its own."""
    connection = apsw.Connection(":memory:")
    connection.execute("create table naviscope_message (id integer primary key, end text)")
    connection.execute("begin immediate; insert into naviscope_message values (1, 'committed')")
    yield connection
    connection.close()


@pytest.fixture
def sink():
    return SqliteSink(schema=SCHEMA)


def bookings(store):
    return store.execute("select account, amount from booking order by id").fetchall()


def book(account, amount=1):
    return Insert("booking", {"account": account, "amount": amount})


def rejected(sink, store, *entries):
    with pytest.raises(SinkRejected) as caught:
        sink.apply(store, CommitBatch(entries))
    return {key.rpartition(":")[2]: error for key, error in caught.value.rejected.items()}


def test_it_says_so(tmp_path):
    assert isinstance(SqliteSink(), AppliesInside)
    assert SqliteSink().colocation == "sqlite"
    assert not isinstance(SqliteSink(tmp_path / "a.db"), AppliesInside)


async def test_without_a_store_that_takes_it_in_the_error_is_clear():
    with pytest.raises(SystemFailure, match=r"without a path .* this store has none .* give the sink a file"):
        await SqliteSink().commit(CommitBatch([]))
    assert await SqliteSink().prune_ledger(5, store_id="store") == 0


def test_every_op_is_applied_in_order(sink, store):
    ops = [
        Insert("account", {"name": "ada"}),
        Insert("account", {"name": "bob", "balance": 5}),
        Upsert("account", {"name": "ada", "balance": 7}, "name"),
        Upsert("account", {"name": "cyd", "balance": 1}, ["name"]),
        Upsert("account", {"name": "cyd"}, "name"),
        Delete("account", {"name": "bob"}),
        Delete("account", {"name": "nobody"}),
        Execute("update account set balance = balance + ? where name = ?", (1, "cyd")),
        Execute("update account set balance = balance * :factor", {"factor": 10}),
        Execute("select name from account"),
    ]
    sink.apply(store, CommitBatch([entry("a", *ops)]))
    assert store.execute("select * from account order by name").fetchall() == [("ada", 70), ("cyd", 20)]
    assert store.in_transaction


def test_neighbours_that_are_equal_keep_their_order(sink, store):
    sink.apply(store, CommitBatch([entry(f"m{number}", book("a", number), book("b", number)) for number in range(50)]))
    assert bookings(store) == [pair for number in range(50) for pair in (("a", number), ("b", number))]


def test_one_row_can_be_removed_and_written_again_by_each_entry(sink, store):
    again = [Delete("account", {"name": "ada"}), Insert("account", {"name": "ada", "balance": 1})]
    sink.apply(store, CommitBatch([entry("a", *again), entry("b", *again)]))
    assert store.execute("select * from account").fetchall() == [("ada", 1)]


def test_nothing_to_do_is_fine(sink, store):
    sink.apply(store, CommitBatch([]))
    sink.apply(store, CommitBatch([entry("a")]))
    assert bookings(store) == []


def test_a_delete_by_none_finds_null(sink, store):
    store.execute("create table loose (a, b); insert into loose values (null, 1), (2, 2)")
    sink.apply(store, CommitBatch([entry("a", Delete("loose", {"a": None}))]))
    assert store.execute("select b from loose").fetchall() == [(2,)]


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (Insert("account", {"name": "taken"}), "UNIQUE constraint failed: account.name"),
        (Insert("account", {"name": "x", "balance": -1}), "CHECK constraint failed"),
        (Insert("booking", {"account": None}), "NOT NULL constraint failed: booking.account"),
        (Insert("booking", {"account": "x", "id": "seven"}), "datatype mismatch|cannot store TEXT"),
        (Insert("booking", {"account": b"x"}), "cannot store BLOB value in TEXT column"),
        (Insert("booking", {"account": object()}), "Bad binding argument type.*object"),
        (Insert("booking", {"account": "x", "amount": 2**63}), "too big"),
        (Insert("booking", {"account": "\ud800"}), "surrogates not allowed"),
        (Insert("nowhere", {"a": 1}), "no such table: nowhere"),
        (Insert("booking", {"colour": 1}), "no column named colour"),
        (Upsert("booking", {"account": "x"}, "account"), "ON CONFLICT clause does not match"),
        (Delete("nowhere", {"a": 1}), "no such table: nowhere"),
        (Delete("account", {"colour": "colour"}), "no such column: account.colour"),
        (Execute("selec 1"), 'near "selec": syntax error'),
        (Execute("select ?, ?", (1,)), "Incorrect number of bindings"),
        ("insert into account", "SqliteSink takes Insert, Upsert, Delete and Execute"),
    ],
)
def test_a_bad_record_costs_one_record(sink, store, op, text):
    sink.apply(store, CommitBatch([entry("first", Insert("account", {"name": "taken"}))]))
    errors = rejected(sink, store, entry("a", book("a")), entry("bad", book("b"), op), entry("c", book("c")))
    assert list(errors) == ["bad"]
    assert isinstance(errors["bad"], Permanent)
    with pytest.raises(Permanent, match=text):
        raise errors["bad"]
    assert bookings(store) == []
    sink.apply(store, CommitBatch([entry("a", book("a")), entry("c", book("c"))]))
    assert bookings(store) == [("a", 1), ("c", 1)]
    assert store.in_transaction


def test_exactly_the_culprits_are_named(sink, store):
    bad = [f"m{number}" for number in (0, 7, 8, 19)]
    entries = [entry(f"m{n}", Insert("booking", {"account": None if f"m{n}" in bad else "x"})) for n in range(20)]
    assert sorted(rejected(sink, store, *entries)) == sorted(bad)


def test_of_two_that_exclude_each_other_the_second_is_to_blame(sink, store):
    op = Insert("account", {"name": "ada"})
    assert list(rejected(sink, store, entry("a", op), entry("b", op))) == ["b"]


def test_ops_that_cannot_be_read_are_a_bad_record(sink, store):
    def torn():
        yield book("x")
        raise RuntimeError("torn")

    class Ops:
        def __iter__(self):
            return torn()

    bad = Entry(task_key("store", 1, "bad"), EpochKey(1, "nightly"), "bad", "message", Ops())
    assert list(rejected(sink, store, entry("a", book("a")), bad)) == ["bad"]
    assert bookings(store) == []


@pytest.mark.parametrize(
    "sql",
    [
        "commit",
        "rollback",
        "begin",
        "savepoint x",
        "release naviscope_sink",
        "attach ':memory:' as other",
        "detach main",
        "pragma synchronous = off",
        "pragma journal_mode",
        "create table t (a)",
        "create temp table t (a)",
        "drop table booking",
        "alter table booking add column z",
        "reindex",
        "analyze",
        "delete from naviscope_message",
        "update NAVISCOPE_message set end = 'dead'",
        "insert into booking (account) select end from naviscope_message",
        "insert into naviscope_message values (2, 'dead')",
        "select count(*) from naviscope_message",
        "select 1; delete from naviscope_message",
        "with x as (select * from naviscope_message) select 1 from x",
    ],
)
def test_sql_of_users_cannot_touch_what_is_not_theirs(sink, store, sql):
    for _ in range(2):  # What was refused once is not known as good.
        errors = rejected(sink, store, entry("a", book("a")), entry("bad", Execute(sql)))
        assert list(errors) == ["bad"]
        assert "Execute may only read and change rows of your tables" in str(errors["bad"])
    assert store.execute("select * from naviscope_message").fetchall() == [(1, "committed")]
    assert store.in_transaction
    assert store.authorizer is None


def test_sql_that_the_store_has_prepared_is_no_way_in(sink, store):
    store.execute("delete from naviscope_message where id = 7")
    assert rejected(sink, store, entry("bad", Execute("delete from naviscope_message where id = 7")))


def test_the_stores_own_authorizer_is_put_back(sink, store):
    def permits(*details):
        return apsw.SQLITE_OK

    store.authorizer = permits
    sink.apply(store, CommitBatch([entry("a", Execute("select 1"))]))
    assert store.authorizer is permits


def test_known_sql_is_vetted_once(sink, store):
    calls = []
    op = Execute("update booking set amount = ?", (1,))
    sink.apply(store, CommitBatch([entry("a", op)]))
    store.authorizer = lambda *details: calls.append(details) or apsw.SQLITE_OK
    sink.apply(store, CommitBatch([entry("b", op)]))
    calls.clear()
    sink.apply(store, CommitBatch([entry(f"m{number}", op) for number in range(10)]))
    assert len(calls) < 50
    assert not [details for details in calls if details[1] == "naviscope_message"]


def test_full_text_search_works_in_ops(store):
    sink = SqliteSink(schema="create virtual table page using fts5 (body)")
    add = Execute("insert into page (body) values (?)", ("some words",))
    sink.apply(store, CommitBatch([entry("a", Insert("page", {"body": "a word"})), entry("b", add)]))
    assert store.execute("select count(*) from page('words')").get == 1
    SqliteSink(schema="create virtual table page using fts5 (body)").apply(store, CommitBatch([]))


def test_a_schema_that_was_rolled_back_is_created_again(sink, store):
    sink.apply(store, CommitBatch([entry("a", book("a"))]))
    store.execute("rollback; begin immediate")
    sink.apply(store, CommitBatch([entry("a", book("a"))]))
    store.execute("commit")
    assert bookings(store) == [("a", 1)]


def test_the_sink_moves_to_another_connection(sink, store):
    sink.apply(store, CommitBatch([entry("a", book("a"))]))
    other = apsw.Connection(":memory:")
    other.execute("begin")
    sink.apply(other, CommitBatch([entry("b", book("b"))]))
    assert bookings(other) == [("b", 1)]
    other.close()


def test_errors_of_the_disk_are_the_stores_own(sink, store):
    sink.apply(store, CommitBatch([]))
    store.pragma("max_page_count", 1)
    with pytest.raises(apsw.FullError):
        sink.apply(store, CommitBatch([entry("a", book("x" * 1_000_000))]))


def test_an_op_that_rolls_everything_back_is_noticed(sink, store):
    sink.apply(store, CommitBatch([]))
    store.execute(
        "create trigger harsh before insert on account begin select raise(rollback, 'no'); end; commit; begin"
    )
    bad = entry("bad", Insert("account", {"name": "ada"}))
    with pytest.raises(TransactionLost):
        sink.apply(store, CommitBatch([entry("b", book("b")), bad]))
    assert not store.in_transaction
    store.execute("begin")
    assert list(rejected(sink, store, bad)) == ["bad"]
    assert bookings(store) == []


class Guarded:
    """A transaction of which a store shows little: no savepoints, no settings."""

    def __init__(self, connection):
        self.connection = connection
        connection.authorizer = self.permits

    def permits(self, action, first, *more):
        is_refused = action in (apsw.SQLITE_SAVEPOINT, apsw.SQLITE_PRAGMA, apsw.SQLITE_TRANSACTION)
        return apsw.SQLITE_DENY if is_refused or first == "naviscope_message" else apsw.SQLITE_OK

    def execute(self, sql, bindings=()):
        return self.connection.execute(sql, bindings).fetchall()

    def executemany(self, sql, bindings):
        self.connection.executemany(sql, bindings).fetchall()


def test_a_guarded_transaction_is_enough(sink, store):
    guarded = Guarded(store)
    ops = [book("a"), Execute("update booking set amount = ?", (2,)), Upsert("account", {"name": "a"}, "name")]
    sink.apply(guarded, CommitBatch([entry("a", *ops), *(entry(f"m{number}", book("b")) for number in range(5))]))
    sink.apply(guarded, CommitBatch([entry("z", book("c"))]))
    assert bookings(store) == [("a", 2), *[("b", 1)] * 5, ("c", 1)]


@pytest.mark.parametrize(
    "op",
    [
        Insert("booking", {"account": None, "amount": 1}),
        Insert("booking", {"account": object(), "amount": 1}),
        Insert("nowhere", {"a": 1}),
        Execute("delete from naviscope_message"),
        Execute("commit"),
        "not an op",
    ],
)
@pytest.mark.parametrize("at", [0, 3, 9])
def test_a_guarded_transaction_names_the_first_culprit(sink, store, op, at):
    entries = [entry(f"m{number}", book("a"), op if number == at else book("b")) for number in range(10)]
    guarded = Guarded(store)
    assert list(rejected(sink, guarded, *entries)) == [f"m{at}"]


def test_a_table_of_the_store_is_no_table_of_the_sink(store):
    store.execute("create table messages (id)")
    guarded = Guarded(store)
    guarded.permits = None
    store.authorizer = lambda action, first, *more: apsw.SQLITE_DENY if first == "messages" else apsw.SQLITE_OK
    with pytest.raises(SystemFailure, match="'messages', but that is one of the store's own"):
        SqliteSink(schema="create table messages (id)").apply(guarded, CommitBatch([]))
    store.authorizer = None


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("create table (", "syntax error"),
        ("create table naviscope_mine (a)", "are reserved"),
        ("create table t (a); create index Naviscope_i on t (a)", "are reserved"),
        ("create temp table t (a)", "for permanent tables only"),
        ("create table t (a); insert into t values (1)", "it puts rows into 't'"),
        ("begin; create table t (a); commit", "CREATE statements"),
        ("pragma journal_mode = off", "CREATE statements"),
        ("attach ':memory:' as x", "CREATE statements"),
        (b"create table t (a)", "as a string"),
        (None, "as a string"),
        ("create table t (a unique on conflict rollback)", "use ABORT"),
    ],
)
def test_a_bad_schema_is_refused_when_the_sink_is_made(schema, text):
    with pytest.raises(ValueError, match=text):
        SqliteSink(schema=schema)


def test_a_table_that_lacks_a_column_stops_the_runtime(store):
    store.execute("create table account (name)")
    with pytest.raises(SystemFailure, match=r"'account' is in the file without a column that the schema has .*balance"):
        SqliteSink(schema=SCHEMA).apply(store, CommitBatch([]))


def test_a_table_with_more_columns_is_fine(store):
    store.execute("create table T (A, b, c)")
    SqliteSink(schema="create table t (a, b)").apply(store, CommitBatch([entry("a", Insert("t", {"a": 1}))]))
    assert store.execute("select a from t").fetchall() == [(1,)]


def test_a_view_in_place_of_a_table_stops_the_runtime(store):
    store.execute("create view account as select 1 as name, 2 as balance")
    with pytest.raises(SystemFailure, match="the schema has a table 'account', the file has a view of that name"):
        SqliteSink(schema=SCHEMA).apply(store, CommitBatch([]))


def test_a_trigger_may_have_the_name_of_a_table(store):
    schema = "create table t (a, n default 0); create trigger t after insert on t begin update t set n = n + 1; end"
    sink = SqliteSink(schema=schema)
    sink.apply(store, CommitBatch([entry("a", Insert("t", {"a": 1}))]))
    sink.apply(store, CommitBatch([entry("b", Insert("t", {"a": 2}))]))
    assert store.execute("select n from t").fetchall() == [(2,), (1,)]
