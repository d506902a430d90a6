"""naviscope-ingest: runs messages that depend on each other, and knows when a batch of them is done.

The layers, from the top: runtime and intake are what callers hold; `_kernel` has the trio tasks and calls the
contracts; `_core` decides, and neither waits nor touches anything; stores, buses and sinks are adapters, one file for
each real system; `naviscope_spi` has the contracts. Imports go down only.
"""

from naviscope_ingest._core.explain import EpochExplanation, MessageExplanation, Reason
from naviscope_ingest._kernel import Statistics
from naviscope_ingest.buses import MemoryBus
from naviscope_ingest.config import RuntimeComponents, RuntimeConfig
from naviscope_ingest.errors import (
    BadOutcome,
    BarrierPassed,
    ContractViolation,
    EpochFailed,
    EpochTimeout,
    IngestError,
    InternalError,
    RuntimeFailed,
    RuntimeStopped,
    SinkMisbehaved,
    UnknownMessage,
)
from naviscope_ingest.intake import Epoch, IntakeHandle
from naviscope_ingest.reports import EpochReport, Failure, SubmitReceipt
from naviscope_ingest.runtime import IngestRuntime
from naviscope_ingest.sinks import MemorySink
from naviscope_ingest.stores import MemoryStore
from naviscope_spi import (
    Clock,
    CommitBatch,
    CommitSink,
    Deferred,
    DeferredStore,
    Delivery,
    Dependency,
    Entry,
    EpochExists,
    EpochSealed,
    Executed,
    Executor,
    Fatal,
    InvalidMessage,
    Message,
    Outcome,
    Permanent,
    PipelineBus,
    Resource,
    RuntimeMetrics,
    SessionLost,
    SinkRejected,
    Skipped,
    StoreRefused,
    SupportsBatch,
    SystemFailure,
    Transient,
    UnknownEpoch,
    task_key,
)

__all__ = [
    "BadOutcome",
    "BarrierPassed",
    "Clock",
    "CommitBatch",
    "CommitSink",
    "ContractViolation",
    "Deferred",
    "DeferredStore",
    "Delivery",
    "Dependency",
    "Entry",
    "Epoch",
    "EpochExists",
    "EpochExplanation",
    "EpochFailed",
    "EpochReport",
    "EpochSealed",
    "EpochTimeout",
    "Executed",
    "Executor",
    "Failure",
    "Fatal",
    "IngestError",
    "IngestRuntime",
    "IntakeHandle",
    "InternalError",
    "InvalidMessage",
    "MemoryBus",
    "MemorySink",
    "MemoryStore",
    "Message",
    "MessageExplanation",
    "Outcome",
    "Permanent",
    "PipelineBus",
    "Reason",
    "Resource",
    "RuntimeComponents",
    "RuntimeConfig",
    "RuntimeFailed",
    "RuntimeMetrics",
    "RuntimeStopped",
    "SessionLost",
    "SinkMisbehaved",
    "SinkRejected",
    "Skipped",
    "Statistics",
    "StoreRefused",
    "SubmitReceipt",
    "SupportsBatch",
    "SystemFailure",
    "Transient",
    "UnknownEpoch",
    "UnknownMessage",
    "task_key",
]
