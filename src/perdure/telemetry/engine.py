"""The telemetry of one engine: its probes, and their figures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure import __version__
from perdure.config import Telemetry
from perdure.engine.probe import Probes
from perdure.errors import UsageError
from perdure.kernel.values.redaction import Redaction
from perdure.ports.clock import Clock
from perdure.ports.leases import Leases
from perdure.ports.store import Store
from perdure.telemetry.catalogue import Metric
from perdure.telemetry.counting import Counting, build
from perdure.telemetry.metrics import Histogram, Labels, Metrics
from perdure.telemetry.prometheus import Stored, exposition
from perdure.telemetry.store_figures import StoreFigures

if TYPE_CHECKING:
    from perdure.telemetry.spans import Spans

LAG_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Gauges:
    """The gauges of an open engine."""

    in_flight: Callable[[], int]
    limit: int
    in_memory: Callable[[], int]


class EngineTelemetry:
    """Turns telemetry on and off with its engine. When off there is no probe, and the engine only checks for that."""

    def __init__(
        self, config: Telemetry, store: Callable[[], Store], leases: Callable[[], Leases], clock: Clock
    ) -> None:
        self._config, self._store, self._leases, self._clock = config, store, leases, clock
        self.probes = Probes()
        self.metrics: Metrics | None = None
        self._figures: StoreFigures | None = None
        self._gauges: Gauges | None = None
        self._lag: asyncio.TimerHandle | None = None
        # For readers in other threads: the loop of the open engine, and the store reading in progress.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading: asyncio.Task[Stored] | None = None
        self.spans: Spans | None = None
        if config.metrics:
            self.count()

    def trace(self, redaction: Redaction, name: Callable[[], str]) -> Spans | None:
        """Make spans from now on, if they are enabled. `name` is the orchestrator's name."""
        if self._config.spans:
            try:
                from perdure.telemetry.spans import Spans
            except ModuleNotFoundError as error:
                raise UsageError(
                    f"Telemetry(spans=True) needs {error.name}: pip install 'perdure[otel]' opentelemetry-sdk"
                ) from None
            self.spans = Spans(self._config.trace_gap, self._clock, redaction, name)
            self.probes.append(self.spans)
        return self.spans

    # --- with the engine ------------------------------------------------------------------------------------------

    def opened(self, gauges: Gauges) -> None:
        """The engine is open."""
        self._gauges, self._loop = gauges, asyncio.get_running_loop()
        self._watch_loop()
        if self.spans is not None:
            self.spans.queue.open()

    async def closed(self) -> None:
        """The engine is closed: its figures stay as they are, and spans get a moment to be exported."""
        self._gauges = self._loop = None
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._lag is not None:
            self._lag.cancel()
            self._lag = None
        if self.spans is not None:
            self.spans.closed()
            await self.spans.queue.close()

    # --- metrics --------------------------------------------------------------------------------------------------

    def count(self) -> Metrics:
        """Count from now on."""
        if self.metrics is None:
            kind = self._store().url.partition(":")[0]
            metrics = self.metrics = Metrics()
            self.probes.append(Counting(metrics, kind))
            metrics.read_from("perdure.build.info", lambda: [(build(__version__, kind), 1.0)])
            metrics.read_from("perdure.steps.in_flight", lambda: self._gauge(lambda one: one.in_flight()))
            metrics.read_from("perdure.steps.limit", lambda: self._gauge(lambda one: one.limit))
            metrics.read_from("perdure.runs.in_memory", lambda: self._gauge(lambda one: one.in_memory()))
            metrics.read_from("perdure.telemetry.failures", self._failures)
            metrics.read_from("perdure.telemetry.off", lambda: [((name,), 1.0) for name in self.probes.removed])
            metrics.read_from("perdure.spans.dropped", lambda: [((), float(self._dropped))])
            if self._gauges is not None:
                self._watch_loop()
        return self.metrics

    @property
    def _dropped(self) -> int:
        return 0 if self.spans is None else self.spans.queue.dropped

    def _failures(self) -> Iterable[tuple[Labels, float]]:
        failures = dict(self.probes.failures)
        if self.spans is not None and (failed := self.spans.queue.failed):
            failures["Spans"] = failures.get("Spans", 0) + failed
        return [((name,), float(count)) for name, count in failures.items()]

    def _gauge(self, read: Callable[[Gauges], int]) -> Iterable[tuple[Labels, float]]:
        return [] if self._gauges is None else [((), float(read(self._gauges)))]

    def _watch_loop(self) -> None:
        """Set a timer each second, and see how late it is."""
        if self.metrics is None or self._lag is not None:
            return
        loop, lag = asyncio.get_running_loop(), self.metrics.histogram("perdure.loop.lag")

        def tick(due: float) -> None:
            lag.add(max(0.0, loop.time() - due))
            self._lag = loop.call_at(loop.time() + LAG_SECONDS, tick, loop.time() + LAG_SECONDS)

        self._lag = loop.call_at(loop.time() + LAG_SECONDS, tick, loop.time() + LAG_SECONDS)

    def figures(self, metric: Metric) -> Iterable[tuple[Labels, float | Histogram]]:
        """The series of a metric, from any thread. Figures of the store are from its last reading; the next begins."""
        if not metric.stored:
            return [*self.count().figures(metric)]
        loop, figures = self._loop, self._figures
        if loop is not None and not loop.is_closed():
            with suppress(RuntimeError):  # the engine was closed meanwhile
                loop.call_soon_threadsafe(self._read_soon)
        return [] if figures is None else [*figures.last.get(metric.name, [])]

    def _read_soon(self) -> None:
        if self._loop is not None and self._config.store_metrics and (self._reading is None or self._reading.done()):
            self._reading = self._loop.create_task(self.stored())

    async def stored(self) -> Stored:
        """The figures that are read from the store; empty if that is off."""
        if not self._config.store_metrics:
            return {}
        if self._figures is None:
            self._figures = StoreFigures(self._store, self._leases, self._clock)
        return await self._figures.read()

    async def exposition(self) -> str:
        """All metrics as the text that Prometheus reads."""
        return exposition(self.count(), await self.stored())
