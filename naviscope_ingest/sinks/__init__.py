"""Sinks: where results become visible."""

from naviscope_ingest.sinks.ledger import Ledger
from naviscope_ingest.sinks.memory import MemorySink
from naviscope_ingest.sinks.sink_set import SinkSet, To
from naviscope_ingest.sinks.sql_ops import Delete, Execute, Insert, InvalidOp, SqlOp, Upsert
from naviscope_ingest.sinks.sqlite import SqliteSink

__all__ = [
    "Delete",
    "Execute",
    "Insert",
    "InvalidOp",
    "Ledger",
    "MemorySink",
    "SinkSet",
    "SqlOp",
    "SqliteSink",
    "To",
    "Upsert",
]
