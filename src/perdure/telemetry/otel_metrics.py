"""The metrics of an engine as observable instruments of OpenTelemetry. Counts nothing itself.

Imports opentelemetry, so it is itself imported only when an application asks for it. There is no observable histogram:
a histogram is three counters, as Prometheus has it, of which `.bucket` has the bound as `le`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from opentelemetry import metrics as otel
from opentelemetry.metrics import CallbackOptions, Observation

from perdure import __version__
from perdure.telemetry.catalogue import CATALOGUE, Metric
from perdure.telemetry.engine import EngineTelemetry
from perdure.telemetry.metrics import Histogram, Labels

Callback = Callable[[CallbackOptions], Iterable[Observation]]


def register(telemetry: EngineTelemetry, provider: Any = None) -> None:
    """Make an instrument for each metric. The SDK reads them when it exports."""
    _ = telemetry.count()
    meter = (provider or otel.get_meter_provider()).get_meter("perdure", __version__)
    for metric in CATALOGUE:
        if metric.kind == "histogram":
            for part, read in (("count", _counts), ("sum", _sums), ("bucket", _buckets)):
                unit = metric.unit if part == "sum" else "{event}" if metric.unit == "{event}" else "1"
                callback = _callback(telemetry, metric, read)
                meter.create_observable_counter(f"{metric.name}.{part}", [callback], unit, metric.help)
            continue
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        make(metric.name, [_callback(telemetry, metric, _values)], metric.unit, metric.help)


def _callback(
    telemetry: EngineTelemetry, metric: Metric, read: Callable[[Metric, Labels, Any], Iterator[Observation]]
) -> Callback:
    def observe(options: CallbackOptions) -> Iterator[Observation]:
        """Called in the thread of the SDK."""
        for labels, value in telemetry.figures(metric):
            yield from read(metric, labels, value)

    return observe


def _named(metric: Metric, labels: Labels, **more: str) -> dict[str, str]:
    return {**dict(zip(metric.labels, labels, strict=True)), **more}


def _values(metric: Metric, labels: Labels, value: float) -> Iterator[Observation]:
    yield Observation(value, _named(metric, labels))


def _counts(metric: Metric, labels: Labels, value: Histogram) -> Iterator[Observation]:
    yield Observation(value.count, _named(metric, labels))


def _sums(metric: Metric, labels: Labels, value: Histogram) -> Iterator[Observation]:
    yield Observation(value.sum, _named(metric, labels))


def _buckets(metric: Metric, labels: Labels, value: Histogram) -> Iterator[Observation]:
    total = 0
    for bound, count in zip((*value.bounds, math.inf), [*value.counts], strict=True):
        total += count
        yield Observation(total, _named(metric, labels, le="+Inf" if bound == math.inf else f"{bound:g}"))
