"""Metrics, spans, events and log context of engines: see docs/telemetry.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from perdure.errors import UsageError
from perdure.telemetry.events import Events, Handler, event_names, wanted_names
from perdure.telemetry.log_context import LogContext

__all__ = ["LogContext", "attach", "event_names", "exposition", "register_metrics"]


async def exposition(engine: Any) -> str:
    """The metrics of an open engine as the text that Prometheus reads. Counting begins with the first call."""
    text: str = await engine._telemetry.exposition()
    return text


def attach(engine: Any, handler: Handler, events: Iterable[str] | None = None) -> Callable[[], None]:
    """Call `handler(name, measurements, metadata)` at these events of an engine, or at all of `event_names()`.

    It is called on the event loop, and must be quick. Returns a function that detaches it.
    """
    if not callable(handler):
        raise UsageError(f"attach(engine, {handler!r:.80}): give a function of a name, measurements and metadata")
    probe = Events(handler, wanted_names(events))
    probes = engine._telemetry.probes
    probes.append(probe)

    def detach() -> None:
        if probe in probes:
            probes.remove(probe)

    return detach


def register_metrics(engine: Any, provider: Any = None) -> None:
    """Let OpenTelemetry read the metrics of an engine, through this meter provider or the global one.

    The engine counts from this call on. Needs `perdure[otel]`.
    """
    try:
        from perdure.telemetry.otel_metrics import register
    except ModuleNotFoundError as error:
        raise UsageError(f"register_metrics() needs {error.name}: pip install 'perdure[otel]'") from None
    register(engine._telemetry, provider)
