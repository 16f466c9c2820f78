"""Count what an engine does. Every figure comes from what is durable; nothing is asked of the store."""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.engine.probe import Probe
from perdure.errors import HeartbeatTimeout, StepTimeout
from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    RunClaimed,
    RunFinished,
    RunParked,
    RunReleased,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    events_in,
)
from perdure.kernel.schedules.schedule import PROGRAM as SCHEDULE
from perdure.kernel.values.failures import Failure, type_name
from perdure.ports.journal import Append
from perdure.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from perdure.engine.driver import Driver

_TIMEOUTS = frozenset({type_name(StepTimeout), type_name(HeartbeatTimeout)})


class StepSeries:
    """The series of one step of one program."""

    __slots__ = ("duration", "labels", "succeeded")

    def __init__(self, metrics: Metrics, program: str, step: str) -> None:
        self.labels = (program, metrics.bounded("step", step, program))
        self.duration = metrics.histogram("perdure.step.duration", self.labels)
        self.succeeded = (*self.labels, "succeeded")


class CountedRun:
    """The data kept for a run in memory: its program, and when its open attempts began."""

    __slots__ = ("began", "program", "schedule", "steps")

    def __init__(self, program: str, steps: dict[str, StepSeries], schedule: bool) -> None:
        self.program, self.steps, self.schedule = program, steps, schedule
        self.began: dict[str, float] = {}


class Counting(Probe):
    """Feeds the metrics of an engine."""

    def __init__(self, metrics: Metrics, store: str) -> None:
        self._metrics, self._store = metrics, store
        self._runs: dict[str, CountedRun] = {}
        # The series of steps, by program and name.
        self._steps: dict[str, dict[str, StepSeries]] = {}
        self._attempts = metrics.counters["perdure.step.attempts"]
        self._commit_duration = metrics.histogram("perdure.commit.duration", (store,))
        self._commit_events = metrics.histogram("perdure.commit.events", (store,))
        self._replay_duration = metrics.histogram("perdure.replay.duration")
        self._lateness = metrics.histogram("perdure.timer.lateness")
        self._others: dict[type, Callable[[Driver, CountedRun, float, AnyEvent], None]] = {
            AttemptFailed: self._failed,
            StepFailed: self._failed,
            StepSkipped: self._failed,
            RunClaimed: self._claimed,
            RunFinished: self._finished,
            RunParked: self._parked,
        }

    # --- runs and steps -------------------------------------------------------------------------------------------

    def committed(self, driver: Driver, append: Append) -> None:
        """Count recorded events. Every step passes through here, so it makes no unnecessary call."""
        run = self._runs.get(append.run_id)
        if run is None:
            run = self._begin(driver)
        began, others = run.began, self._others
        for batch in append.batches:
            at = batch.at
            events: Sequence[Any] = batch.events
            for event in events:
                kind = type(event)
                if kind is StepStarted:
                    if not event.queue:
                        began[event.op] = at
                elif kind is StepSucceeded:
                    op = event.op
                    since = began.pop(op, None)
                    if since is not None:
                        name = op[op.rfind("/") + 1 : op.rfind(":")]
                        steps = run.steps.get(name)
                        if steps is None:
                            steps = self._step(run, name)
                        succeeded, duration = steps.succeeded, steps.duration
                        self._attempts[succeeded] = self._attempts.get(succeeded, 0) + 1
                        took = at - since
                        duration.counts[bisect_left(duration.bounds, took)] += 1
                        duration.sum += took
                        if run.schedule:
                            self._ticked(name, event)
                elif kind in others:
                    others[kind](driver, run, at, event)

    def _begin(self, driver: Driver) -> CountedRun:
        started = driver.state.started
        assert started is not None
        name = self._metrics.bounded("program", started.program)
        run = CountedRun(name, self._steps.setdefault(name, {}), started.program == SCHEDULE)
        self._runs[driver.run_id] = run
        return run

    def _step(self, run: CountedRun, name: str) -> StepSeries:
        found = StepSeries(self._metrics, run.program, name)
        if found.labels[1] == name:  # not for names beyond the bound, whose number is unlimited
            run.steps[name] = found
        return found

    def _failed(self, driver: Driver, run: CountedRun, at: float, event: AnyEvent) -> None:
        assert isinstance(event, AttemptFailed | StepFailed | StepSkipped)
        since = run.began.pop(event.op, None)
        if since is None:
            return
        steps = self._step(run, event.op[event.op.rfind("/") + 1 : event.op.rfind(":")])
        steps.duration.add(at - since)
        self._metrics.count("perdure.step.attempts", (*steps.labels, _outcome(event)))

    def _claimed(self, driver: Driver, run: CountedRun, at: float, event: AnyEvent) -> None:
        assert isinstance(event, RunClaimed)
        started = driver.state.started
        if event.epoch == 1 and started is not None:
            self._start(run.program, started.queue, at - max(driver.state.created_at, started.not_before or 0.0))

    def _start(self, program: str, queue: str, waited: float) -> None:
        self._metrics.count("perdure.runs.claimed", ("start",))
        self._metrics.count("perdure.runs.started", (program,))
        label = self._metrics.bounded("queue", queue) if queue else ""
        self._metrics.histogram("perdure.run.wait", (label,)).add(max(0.0, waited))

    def _finished(self, driver: Driver, run: CountedRun, at: float, event: AnyEvent) -> None:
        assert isinstance(event, RunFinished)
        self._end(run.program, event.status, at - driver.state.created_at)

    def _end(self, program: str, status: str, seconds: float) -> None:
        self._metrics.count("perdure.runs.ended", (program, status))
        self._metrics.histogram("perdure.run.duration", (program, status)).add(max(0.0, seconds))

    def _parked(self, driver: Driver, run: CountedRun, at: float, event: AnyEvent) -> None:
        assert isinstance(event, RunParked)
        self._metrics.count("perdure.runs.parked", (run.program, event.kind))

    def appended(self, append: Append) -> None:
        """Count events of runs that are not in memory."""
        row, at = append.row, append.batches[-1].at
        if row is None:
            return
        program = self._metrics.bounded("program", row.program)
        for event in events_in(append.batches):
            if isinstance(event, RunParked):
                self._metrics.count("perdure.runs.parked", (program, event.kind))
            elif isinstance(event, RunFinished):
                self._end(program, event.status, at - row.created_at)
            elif isinstance(event, RunClaimed) and event.epoch == 1:
                self._start(program, row.queue, at - max(row.created_at, row.not_before or 0.0))

    def entered(self, driver: Driver, batches: Sequence[Batch]) -> None:
        """Count why a run came into memory."""
        if driver.run_id in self._runs:
            return  # a second read of its journal
        self._begin(driver)
        reason = entered_for(batches, driver.state.session)
        if reason != "start":  # counted when the claim is durable
            self._metrics.count("perdure.runs.claimed", (reason,))

    def left(self, run_id: str) -> None:
        """Forget a run that was evicted."""
        self._runs.pop(run_id, None)

    def _ticked(self, step: str, event: StepSucceeded) -> None:
        """Count a tick, from the results of a schedule's steps."""
        value = {} if event.blob else msgspec.json.decode(event.value)
        if step == "fire" and value.get("outcome") in ("started", "skipped"):
            outcome = "fired" if value["outcome"] == "started" else "skipped"
            self._metrics.count("perdure.schedule.ticks", (outcome,))
        elif step == "survey" and value.get("skipped"):
            self._metrics.count("perdure.schedule.ticks", ("missed",), value["skipped"])

    # --- the engine -----------------------------------------------------------------------------------------------

    def replayed(self, events: int, seconds: float) -> None:
        """Count a replay."""
        self._metrics.count("perdure.replay.events", by=events)
        self._replay_duration.add(seconds)

    def wrote(self, seconds: float, events: int, appends: int) -> None:
        """Count a commit."""
        self._commit_duration.add(seconds)
        self._commit_events.add(events)

    def not_written(self) -> None:
        """Count a commit that failed."""
        self._metrics.count("perdure.commit.failures", (self._store,))

    def fired(self, late: float) -> None:
        """Count how late a timer fired."""
        self._lateness.add(max(0.0, late))

    def lease_lost(self) -> None:
        """Count the loss of the lease."""
        self._metrics.count("perdure.leases.lost")


def entered_for(batches: Sequence[Batch], session: str) -> str:
    """Why a run with this journal came into memory: `start`, `wake` or `takeover`.

    A claim of this session may be its last event already: it is written before a journal without an owner is replayed.
    """
    last, released = True, False
    for event in (event for batch in reversed(batches) for event in reversed(batch.events)):
        if isinstance(event, RunClaimed) and not (last and event.early and event.session == session):
            return "wake" if released or event.session == session else "takeover"
        last = False
        released = released or isinstance(event, RunReleased)
    return "start"


def _outcome(event: AttemptFailed | StepFailed | StepSkipped) -> str:
    if isinstance(event, StepFailed):
        if event.unknown:
            return "unknown"
        if event.cancelled:
            return "cancelled"
    return "timed_out" if _timed_out(event.error) else "failed"


def _timed_out(failure: Failure) -> bool:
    return failure.type in _TIMEOUTS


def build(version: str, store: str) -> tuple[str, str, str]:
    """The labels of `perdure.build.info`."""
    return version, store, platform.python_version()
