"""Every metric. The table in docs/telemetry.md and `# HELP` come from here, and tests check deploy/ against it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

# From 1 ms to 30 days.
SECONDS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 21_600.0, 86_400.0, 2_592_000.0)
COUNTS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0)

# The label of all names beyond the first so many of their kind.
OTHER = "_other"
MOST_PROGRAMS, MOST_STEPS, MOST_QUEUES = 200, 50, 200
BOUNDS = {"program": MOST_PROGRAMS, "step": MOST_STEPS, "queue": MOST_QUEUES}

# How long a run may be due before it counts as overdue.
OVERDUE_SECONDS = 60.0

STATUSES = ("completed", "failed", "cancelled", "bailed")
OUTCOMES = ("succeeded", "failed", "timed_out", "cancelled", "unknown")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, by its OpenTelemetry name. If `stored`, it is read from the store and not counted in this process."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    stored: bool = False

    @property
    def exposed(self) -> str:
        """The name for Prometheus: underscores, the unit, and `_total` for a counter."""
        name = self.name.replace(".", "_")
        unit = {"s": "_seconds", "By": "_bytes"}.get(self.unit, "")
        name = name if name.endswith(unit) else name + unit
        return f"{name}_total" if self.kind == "counter" else name

    @property
    def buckets(self) -> tuple[float, ...]:
        """The upper bounds of the buckets of a histogram; the last is infinity."""
        return (*(SECONDS if self.unit == "s" else COUNTS), math.inf)


def _of_store(name: str, unit: str, labels: tuple[str, ...], help: str) -> Metric:
    return Metric(name, "gauge", unit, labels, help, stored=True)


CATALOGUE = (
    Metric("perdure.runs.started", "counter", "{run}", ("program",), "Runs that began here."),
    Metric("perdure.runs.ended", "counter", "{run}", ("program", "status"), "Runs that ended here."),
    Metric(
        "perdure.run.duration", "histogram", "s", ("program", "status"), "The time from the start of a run to its end."
    ),
    Metric("perdure.run.wait", "histogram", "s", ("queue",), "The time from the start of a run until it began."),
    Metric(
        "perdure.step.attempts", "counter", "{attempt}", ("program", "step", "outcome"), "Attempts of steps that ended."
    ),
    Metric(
        "perdure.step.duration",
        "histogram",
        "s",
        ("program", "step"),
        "The time of an attempt, from the record of its start to that of its outcome.",
    ),
    Metric("perdure.runs.parked", "counter", "{run}", ("program", "kind"), "Runs that were parked here."),
    Metric(
        "perdure.runs.claimed",
        "counter",
        "{run}",
        ("reason",),
        "Runs that came into memory: for the first time (start), because something was due (wake), or after the death "
        "of their owner (takeover).",
    ),
    Metric("perdure.leases.lost", "counter", "{lease}", (), "How often no heartbeat succeeded in time."),
    Metric("perdure.timer.lateness", "histogram", "s", (), "How late timers fired."),
    Metric("perdure.schedule.ticks", "counter", "{tick}", ("outcome",), "Ticks of schedules: fired, skipped, missed."),
    Metric("perdure.replay.events", "counter", "{event}", (), "Events that were replayed."),
    Metric("perdure.replay.duration", "histogram", "s", (), "The time of a replay."),
    Metric("perdure.commit.duration", "histogram", "s", ("store",), "The time of a commit of the writer."),
    Metric("perdure.commit.events", "histogram", "{event}", ("store",), "The events of a commit."),
    Metric("perdure.commit.failures", "counter", "{commit}", ("store",), "Commits that the store refused or missed."),
    Metric("perdure.steps.in_flight", "gauge", "{step}", (), "Steps that run now."),
    Metric("perdure.steps.limit", "gauge", "{step}", (), "How many steps may run at once."),
    Metric("perdure.runs.in_memory", "gauge", "{run}", (), "Runs in memory."),
    Metric("perdure.loop.lag", "histogram", "s", (), "How late the event loop is for a timer that is set each second."),
    Metric("perdure.spans.dropped", "counter", "{span}", (), "Spans that no exporter took in time."),
    Metric(
        "perdure.telemetry.failures", "counter", "{failure}", ("part",), "How often a part of the telemetry has failed."
    ),
    Metric("perdure.telemetry.off", "gauge", "1", ("part",), "1 for a part that failed too often and counts no more."),
    _of_store("perdure.queue.depth", "{run}", ("queue", "state"), "Runs of a queue that are queued, and under way."),
    _of_store("perdure.queue.oldest_age", "s", ("queue",), "How long the first run of a queue has been queued."),
    _of_store("perdure.runs.open", "{run}", ("program", "status"), "Runs that have not ended."),
    _of_store("perdure.runs.overdue", "{run}", ("program",), "Runs that have been due for more than 60 s."),
    _of_store("perdure.runs.oldest_age", "s", ("program",), "The age of the oldest run that has not ended."),
    _of_store("perdure.approvals.open", "{approval}", (), "Approvals that wait for an answer."),
    _of_store("perdure.approvals.oldest_age", "s", (), "The age of the oldest run with an open approval."),
    _of_store("perdure.orchestrators", "{orchestrator}", ("state",), "Orchestrators that are alive; gone with runs."),
    _of_store("perdure.store.bytes", "By", (), "The size of the store, where it is a file."),
    Metric("perdure.build.info", "gauge", "1", ("version", "store", "python"), "Always 1."),
)

# Attributes of spans. Names of spans have few values; attributes identify the run.
SPAN_ATTRIBUTES = (
    "perdure.run.id",
    "perdure.run.run_id",
    "perdure.run.incarnation",
    "perdure.run.status",
    "perdure.run.steps",
    "perdure.run.attempts",
    "perdure.run.stretches",
    "perdure.run.worked",
    "perdure.run.waited",
    "perdure.run.queued",
    "perdure.program.name",
    "perdure.program.version",
    "perdure.op.path",
    "perdure.step.name",
    "perdure.step.attempt",
    "perdure.step.key",
    "perdure.queue.name",
    "perdure.orchestrator.name",
    "perdure.orchestrator.epoch",
    "code.file.path",
    "code.line.number",
    "error.type",
)

BY_NAME = {metric.name: metric for metric in CATALOGUE}


def table() -> str:
    """The table of docs/telemetry.md."""
    lines = ["| metric | for Prometheus | kind, unit | attributes | what it is |", "| --- | --- | --- | --- | --- |"]
    for metric in CATALOGUE:
        labels = ", ".join(metric.labels) or "–"
        lines.append(
            f"| `{metric.name}` | `{metric.exposed}` | {metric.kind}, {metric.unit} | {labels} | {metric.help} |"
        )
    return "\n".join(lines) + "\n"
