"""Metrics in the text format of Prometheus. Changes no figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from perdure.telemetry.catalogue import CATALOGUE, Metric
from perdure.telemetry.metrics import Histogram, Labels, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Series of gauges that were read from the store, by the name of the metric.
Stored = dict[str, list[tuple[Labels, float]]]


def exposition(metrics: Metrics | None, stored: Stored | None = None) -> str:
    """The text for `/metrics`: all metrics of a process, those that were read from the store, or both."""
    lines: list[str] = []
    for metric in CATALOGUE:
        found: list[tuple[Labels, float | Histogram]] = []
        if metrics is not None:
            found += metrics.figures(metric)
        found += (stored or {}).get(metric.name, [])
        lines += _lines(metric, found)
    return "\n".join(lines) + "\n"


def _lines(metric: Metric, found: Iterable[tuple[Labels, float | Histogram]]) -> Iterator[str]:
    name = metric.exposed
    series = sorted(found, key=lambda one: one[0])
    if not series and metric.labels:
        return  # without series, the help of a metric would only be noise
    yield f"# HELP {name} {metric.help}"
    yield f"# TYPE {name} {metric.kind}"
    if not series and metric.kind == "counter":
        yield f"{name} 0"
    for labels, value in series:
        pairs = [*zip(metric.labels, labels, strict=True)]
        if not isinstance(value, Histogram):
            yield f"{name}{_labels(pairs)} {_number(value)}"
            continue
        total = 0
        for bound, count in zip((*value.bounds, math.inf), [*value.counts], strict=True):
            total += count
            yield f"{name}_bucket{_labels([*pairs, ('le', _number(bound))])} {total}"
        yield f"{name}_sum{_labels(pairs)} {_number(value.sum)}"
        yield f"{name}_count{_labels(pairs)} {total}"


def _labels(pairs: Sequence[tuple[str, str]]) -> str:
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))
