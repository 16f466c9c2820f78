"""The figures of one process: counters, gauges and histograms, as plain numbers. Counts nothing itself."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from perdure.telemetry.catalogue import BOUNDS, BY_NAME, CATALOGUE, OTHER, Metric

Labels = tuple[str, ...]


class Histogram:
    """One series of a histogram: how many values are in each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        # Without infinity, the bucket of values above all bounds.
        self.bounds = bounds[:-1]
        self.counts = [0] * len(bounds)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values there are."""
        return sum(self.counts)


# A figure that is read on demand.
Reader = Callable[[], Iterable[tuple[Labels, float]]]


class Metrics:
    """The metrics of one process. Series are made when something is counted, and their number is bounded."""

    def __init__(self) -> None:
        self.counters: dict[str, dict[Labels, float]] = {m.name: {} for m in CATALOGUE if m.kind == "counter"}
        self.histograms: dict[str, dict[Labels, Histogram]] = {m.name: {} for m in CATALOGUE if m.kind == "histogram"}
        self.readers: dict[str, Reader] = {}
        self._names: dict[tuple[str, ...], dict[str, None]] = {}

    def bounded(self, kind: str, name: str, of: str = "") -> str:
        """The label for the name of a program, queue or step: the name, or the label of all others once there are too
        many.

        `of`: the program of a step; each program has its own bound.
        """
        known = self._names.setdefault((kind, of), {})
        if name in known:
            return name
        if len(known) >= BOUNDS[kind]:
            return OTHER
        known[name] = None
        return name

    def count(self, name: str, labels: Labels = (), by: float = 1) -> None:
        """Add to a counter."""
        series = self.counters[name]
        series[labels] = series.get(labels, 0) + by

    def histogram(self, name: str, labels: Labels = ()) -> Histogram:
        """A series of a histogram. Callers that count often keep it."""
        series = self.histograms[name]
        found = series.get(labels)
        if found is None:
            found = series[labels] = Histogram(BY_NAME[name].buckets)
        return found

    def read_from(self, name: str, reader: Reader) -> None:
        """Have a gauge read on demand."""
        self.readers[name] = reader

    def figures(self, metric: Metric) -> Iterator[tuple[Labels, float | Histogram]]:
        """The series of a metric, now."""
        if metric.name in self.readers:
            yield from self.readers[metric.name]()
        # Copied, because they may be read in another thread.
        yield from [*self.counters.get(metric.name, {}).items()]
        yield from [*self.histograms.get(metric.name, {}).items()]

    @property
    def series(self) -> int:
        """How many series there are, with each bucket as one."""
        plain = sum(len(series) for series in self.counters.values())
        return plain + sum(len(one.counts) + 2 for series in self.histograms.values() for one in series.values())
