"""The app: a store, a sink, and a function for each kind of message."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import evolve, fields

from naviscope_ingest.config import RuntimeComponents, RuntimeConfig
from naviscope_ingest.errors import HandlerError, RuntimeStopped
from naviscope_ingest.handlers.processes import Processes
from naviscope_ingest.handlers.signature import RunIn, read_signature
from naviscope_ingest.handlers.table import Handler, HandlerTable, codec_for
from naviscope_ingest.intake import Epoch, IntakeHandle, Messages
from naviscope_ingest.interop import AsyncioIntake, BlockingIntake, running_for_asyncio, running_in_thread
from naviscope_ingest.policies import KindPolicy
from naviscope_ingest.reports import SubmitReceipt
from naviscope_ingest.runtime import IngestRuntime
from naviscope_ingest.sinks import MemorySink
from naviscope_ingest.stores import open_store
from naviscope_ingest.tracing import Tracing
from naviscope_spi import CommitSink, EncodesPayloads, PayloadCodec, RuntimeMetrics, check_name

if TYPE_CHECKING:
    from naviscope_ingest.settings import Settings

__all__ = ["Ingest"]

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=CommitSink[Any])


_NO_STORE = "memory://"
"""The store of an app that names none; a configuration may name another."""


class Ingest:
    """Handlers, a sink and the URL of a store; `running()` makes a runtime of them.

    Making one opens nothing and starts nothing, so it may stand at the top of a module. It can run any number of times,
    one after the other.

    Args:
        url: of the store: "sqlite:///ingest.db", "memory://", or a scheme that another package brings.
        config: how the runtime behaves. What handlers declare is added to it.
        metrics: hooks for measurement.
        tracing: makes spans of what handlers and sink do.
        threads: how many plain functions run at a time, each in a thread.
        processes: how many functions declared with `run_in="process"` run at a time; None for one on each core.
        **options: passed on to the store; for SQLite those of `SqliteStore.open`, such as `retain`.

    Attributes:
        url: as given, or as a configuration has it.
        settings: what `configure` read last; None if it was never called.
    """

    def __init__(
        self,
        url: str = _NO_STORE,
        *,
        config: RuntimeConfig | None = None,
        metrics: RuntimeMetrics | None = None,
        tracing: Tracing | None = None,
        threads: int = 16,
        processes: int | None = None,
        **options: Any,  # noqa: ANN401 - of the store
    ) -> None:
        for name, count in (("threads", threads), ("processes", processes)):
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise ValueError(f"Ingest({name}={count!r}): give a whole number of at least 1")
        if "codec" in options:
            raise ValueError("Ingest(codec=...): an app makes its own codec, from the annotations of its handlers")
        self.url = url
        self.settings: Settings | None = None
        self._config = config or RuntimeConfig()
        self._metrics = metrics
        self._tracing = tracing
        self._threads = threads
        self._processes = processes
        self._options = options
        self._handlers: dict[str, Handler] = {}
        self._policies: dict[str, dict[str, Any]] = {}
        self._sink: CommitSink[Any] | None = None
        self._intake: IntakeHandle[Any] | None = None

    def __repr__(self) -> str:
        return f"<Ingest {self.url!r}: {', '.join(self._handlers) or 'no handlers'}>"

    # Declaring

    def handler(
        self,
        kind: str,
        *,
        derives: Collection[str] | None = None,
        run_in: RunIn | None = None,
        payload: Any = None,  # noqa: ANN401 - a type
        **policy: Any,  # noqa: ANN401 - as of KindPolicy
    ) -> Callable[[F], F]:
        """Declare the function that does the work of messages of one kind. The function stays as it is.

        It takes the payload, a `Delivery`, or both; which is which is told by the annotations, and payloads are checked
        against theirs. It may return None, an op, derived messages, resources, a list of these, or an outcome. It may
        raise `Transient`, `Permanent` or `SystemFailure`.

        Args:
            kind: the kind of message.
            derives: the kinds of message it returns; barriers open earlier for knowing it. [] for none.
            run_in: "process" for a function that computes; else an async function runs as a task, a plain one in a
                thread.
            payload: the type of the payload, for functions whose annotations do not say it.
            **policy: how messages of this kind are run, where it differs from the rest: the attributes of `KindPolicy`,
                such as `retry=RetryPolicy(max_attempts=5)` and `timeout=30`.

        Raises:
            HandlerError: the kind has one already, the function cannot be a handler, or an option is unknown.
            ValueError: an option of the policy is wrong.
        """
        check_name("kind", kind)
        if policy:
            self._check_policy(kind, policy)
            self._policies[kind] = policy
        if derives is not None:
            self._check_derives(kind, derives)

        def declare(function: F) -> F:
            name = f"handler {getattr(function, '__qualname__', repr(function))!r} of kind {kind!r}"
            known = self._handlers.get(kind)
            if known is not None:
                raise HandlerError(f"{name}: this kind has one already, {known.name}: one function for each kind")
            if self._intake is not None:
                raise HandlerError(f"{name}: the app is running: declare handlers before it starts")
            signature = read_signature(function, name, payload, run_in)
            self._handlers[kind] = Handler(kind, function, signature, None if derives is None else frozenset(derives))
            return function

        return declare

    def _check_policy(self, kind: str, options: dict[str, Any]) -> None:
        known = [each.name for each in fields(KindPolicy)]
        for name in options:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known)}"
                raise HandlerError(f"handler({kind!r}, {name}=...): there is no such option: {hint}")
        self._policy(kind, options)

    def _policy(self, kind: str, options: dict[str, Any]) -> KindPolicy:
        return evolve(self._config.kinds.get(kind, self._config.other_kinds), **options)

    @staticmethod
    def _check_derives(kind: str, derives: Collection[str]) -> None:
        if isinstance(derives, str | bytes) or not all(isinstance(each, str) for each in derives):
            raise HandlerError(f"handler({kind!r}, derives={derives!r:.80}): give a list of kinds")

    def sink(self, sink: S) -> S:
        """Say where ops go, and return the sink.

        Raises:
            HandlerError: there is one already.
        """
        if self._sink is not None:
            raise HandlerError(f"the app has a sink already, {self._sink!r:.80}: several go into one SinkSet")
        self._sink = sink
        return sink

    def configure(
        self, file: str | os.PathLike[str] | None = None, *, environ: Mapping[str, str] | None = None
    ) -> Settings:
        """Read the configuration for everything that the program does not say itself, and return what it comes to.

        What it says goes first: the URL of the store, `config=`, and what handlers declare; then environment variables,
        then the file. Call it when the handlers are declared; nothing is read otherwise.

        Args:
            file: in TOML or YAML; unless it is given, the one that `NAVISCOPE_CONFIG` names, if any.
            environ: the environment variables; those of the process unless they are given.

        Raises:
            ConfigurationError: something in it is wrong. It names everything that is.
        """
        from naviscope_ingest.settings import load_settings

        keywords = {} if self.url == _NO_STORE else {"store": self.url}
        settings = load_settings(file, environ=environ, config=self.config, keywords=keywords)
        self.url, self._config = settings.store, settings.runtime
        self._options = {**settings.store_options.arguments(), **self._options}
        self.settings = settings
        if settings.endpoint.port is not None and settings.endpoint.metrics and self._metrics is None:
            from naviscope_ingest.metrics import PrometheusMetrics

            self._metrics = PrometheusMetrics()
        return settings

    @asynccontextmanager
    async def _served(self, runtime: IngestRuntime[Any, Any]) -> AsyncIterator[None]:
        """Serve the endpoint for a block, if the configuration names a port."""
        options = None if self.settings is None else self.settings.endpoint
        if options is None or options.port is None:
            yield
            return
        from naviscope_ingest.endpoint import Exposes, serve_endpoint

        metrics = self._metrics if isinstance(self._metrics, Exposes) else None
        async with serve_endpoint(
            runtime, metrics=metrics, host=options.host, port=options.port, stall_after=options.stall_after
        ):
            yield

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """What was declared, by kind."""
        return MappingProxyType(self._handlers)

    @property
    def config(self) -> RuntimeConfig:
        """How the runtime behaves, with what handlers declare."""
        kinds = {kind: self._policy(kind, options) for kind, options in self._policies.items()}
        declared = {kind: each.derives for kind, each in self._handlers.items() if each.derives is not None}
        return evolve(
            self._config,
            kinds={**self._config.kinds, **kinds},
            derives={**(self._config.derives or {}), **declared} or None,
        )

    def inline_components(self) -> RuntimeComponents[Any, Any]:
        """Return handlers and sink for a runtime that a test makes: in virtual time, or in a simulation.

        Plain functions, and those for processes, are called where they are: virtual time does not wait for threads. A
        sink that is an async context manager is not entered. Handlers cannot call `app.submit`.

        Raises:
            HandlerError: there is no handler, or one derives a kind that has none.
        """
        self._check_complete()
        table = HandlerTable(
            self._handlers,
            codec_for(self._handlers),
            encodes=False,
            has_sink=self._sink is not None,
            threads=1,
            processes=Processes(1),
            is_inline=True,
        )
        return RuntimeComponents(executor=table, commit_sink=self._sink or MemorySink())

    # Running

    @asynccontextmanager
    async def running(self) -> AsyncIterator[IntakeHandle[Any]]:
        """Run for as long as a block lasts, then stop. What an earlier process left unfinished goes on at once.

        An exception of the block is raised as it is. An error that ends the runtime cancels the block and is raised as
        `RuntimeFailed`.

        Raises:
            HandlerError: there is no handler, or one derives a kind that has none.
        """
        self._check_complete()
        codec = codec_for(self._handlers)
        if self._intake is not None:
            raise RuntimeError("the app is running already")
        async with AsyncExitStack() as stack:
            store = await stack.enter_async_context(open_store(self.url, **self._store_options(codec)))
            processes = Processes(self._processes)
            stack.push_async_callback(processes.aclose)
            table = self._table(codec, processes, encodes=isinstance(store, EncodesPayloads))
            if isinstance(self._sink, AbstractAsyncContextManager):
                await stack.enter_async_context(self._sink)
            components: RuntimeComponents[Any, Any] = RuntimeComponents(
                executor=table,
                commit_sink=self._sink or MemorySink(),
                store=store,
                metrics=self._metrics,
                tracing=self._tracing,
            )
            runtime = IngestRuntime(components, self._running_config())
            intake = await stack.enter_async_context(runtime.running())
            await stack.enter_async_context(self._served(runtime))
            self._intake = intake
            try:
                yield intake
            finally:
                self._intake = None

    def _table(self, codec: PayloadCodec, processes: Processes, *, encodes: bool) -> HandlerTable:
        return HandlerTable(
            self._handlers,
            codec,
            encodes=encodes,
            has_sink=self._sink is not None,
            threads=self._threads,
            processes=processes,
        )

    @asynccontextmanager
    async def at_rest(self, *, read_only: bool = False) -> AsyncIterator[IntakeHandle[Any]]:
        """Open the app's store without running anything: to ask, to submit, to repair.

        Messages are checked as they are when the app runs. See `IngestRuntime.at_rest`.

        Args:
            read_only: only ask.

        Raises:
            HandlerError: there is no handler, or one derives a kind that has none.
        """
        self._check_complete()
        codec = codec_for(self._handlers)
        table = self._table(codec, Processes(self._processes), encodes=True)
        async with IngestRuntime.at_rest(
            self.url,
            read_only=read_only,
            executor=table,
            config=self._running_config(),
            **self._store_options(codec),
        ) as intake:
            yield intake

    def running_in_thread(self) -> AbstractContextManager[BlockingIntake[Any]]:
        """Run in a thread for as long as a block of blocking code lasts; see `interop.running_in_thread`."""
        return running_in_thread(self.running())

    def running_for_asyncio(self) -> AbstractAsyncContextManager[AsyncioIntake[Any]]:
        """Run in a thread for as long as a block of an asyncio program lasts; see `interop.running_for_asyncio`."""
        return running_for_asyncio(self.running())

    async def submit(self, epoch: Epoch[Any] | str, messages: Messages[Any], *, strict: bool = False) -> SubmitReceipt:
        """Submit to the app while it runs; see `IntakeHandle.submit`. Handlers may do so too.

        Raises:
            RuntimeStopped: it does not run.
        """
        if self._intake is None:
            raise RuntimeStopped("the app is not running: submit inside `async with app.running()`")
        return await self._intake.submit(epoch, messages, strict=strict)

    def _check_complete(self) -> None:
        if not self._handlers:
            raise HandlerError("the app has no handlers: declare some with @app.handler(kind)")
        for handler in self._handlers.values():
            missing = sorted(set(handler.derives or ()) - self._handlers.keys())
            if missing:
                raise HandlerError(f"{handler.name} derives kind {missing[0]!r}, and there is no handler for it")

    def _store_options(self, codec: object) -> dict[str, Any]:
        # A store in memory keeps payloads as they are: handlers get them converted all the same.
        return self._options if self.url.startswith("memory:") else {"codec": codec, **self._options}

    def _running_config(self) -> RuntimeConfig:
        # Every kind that has a handler is known: it can be paused before its first message.
        config = self.config
        return evolve(config, kinds={**{kind: config.policy(kind) for kind in self._handlers}, **config.kinds})
