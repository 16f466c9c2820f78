"""Calls of handlers at points of the life of runs, attempts and commits, under fixed names. Changes no run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure.engine.probe import Probe
from perdure.errors import UsageError
from perdure.kernel.events import (
    AttemptFailed,
    Batch,
    RunFinished,
    RunStarted,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
)
from perdure.ports.journal import Append

if TYPE_CHECKING:
    from perdure.engine.driver import Driver

PREFIX = "perdure.runner."
NAMES = (
    "workflow.start",
    "workflow.stop",
    "runnable.start",
    "runnable.stop",
    "runnable.exception",
    "store.start",
    "store.stop",
)

# Gets the name of the event, its measurements (times in seconds), and its metadata.
Handler: TypeAlias = Callable[[str, Mapping[str, Any], Mapping[str, Any]], object]


def event_names() -> tuple[str, ...]:
    """All events, by their full names."""
    return tuple(PREFIX + name for name in NAMES)


def wanted_names(events: Iterable[str] | None) -> frozenset[str]:
    """The events to call a handler for, by their short names. None: all."""
    if events is None:
        return frozenset(NAMES)
    if isinstance(events, str) or not isinstance(events, Iterable):
        raise UsageError(f"attach(events={events!r:.80}) takes a list of names: {', '.join(event_names())}")
    found = set()
    for name in events:
        short = name.removeprefix(PREFIX) if isinstance(name, str) else name
        if short not in NAMES:
            raise UsageError(f"there is no event {name!r:.80}; there are: {', '.join(event_names())}")
        found.add(short)
    return frozenset(found)


class Events(Probe):
    """Calls one handler. A handler that raises repeatedly is detached, as every probe is."""

    def __init__(self, handler: Handler, wanted: frozenset[str]) -> None:
        self._handler, self._wanted = handler, wanted
        self._known: set[str] = set()
        # When the open attempts began, by run and op.
        self._began: dict[str, dict[str, tuple[float, int]]] = {}

    @property
    def name(self) -> str:
        """The handler, as the log calls it."""
        return f"the handler {getattr(self._handler, '__qualname__', None) or type(self._handler).__name__}"

    def _tell(self, name: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        if name in self._wanted:
            self._handler(PREFIX + name, measurements, metadata)

    # --- runs and attempts ----------------------------------------------------------------------------------------

    def entered(self, driver: Driver, batches: Sequence[Batch]) -> None:
        """A stored run came into memory."""
        if driver.run_id not in self._known:
            self._enter(driver, driver.services.clock.now(), resumed=True)

    def _enter(self, driver: Driver, at: float, *, resumed: bool) -> None:
        self._known.add(driver.run_id)
        self._tell("workflow.start", {"system_time": at}, {**_of_run(driver), "resumed": resumed})

    def committed(self, driver: Driver, append: Append) -> None:
        """Events of a run are durable."""
        if driver.run_id not in self._known:
            self._enter(driver, append.batches[0].at, resumed=False)
        for batch in append.batches:
            for event in batch.events:
                if isinstance(event, StepStarted):
                    self._begin(driver, event, batch.at)
                elif isinstance(event, StepSucceeded | AttemptFailed | StepFailed | StepSkipped):
                    self._end(driver, event, batch.at)
                elif isinstance(event, RunFinished):
                    took = {"duration": batch.at - driver.state.created_at}
                    self._tell("workflow.stop", took, {**_of_run(driver), "status": str(event.status)})

    def _begin(self, driver: Driver, event: StepStarted, at: float) -> None:
        self._began.setdefault(driver.run_id, {})[event.op] = at, event.attempt
        metadata = {**_of_run(driver), **_of_step(event.op, event.attempt)}
        self._tell("runnable.start", {"system_time": at}, metadata)

    def _end(self, driver: Driver, event: StepSucceeded | AttemptFailed | StepFailed | StepSkipped, at: float) -> None:
        began, attempt = self._began.get(driver.run_id, {}).pop(event.op, (at, event.attempt))
        if isinstance(event, AttemptFailed):
            return  # it is tried again
        measurements = {"duration": at - began}
        metadata = {**_of_run(driver), **_of_step(event.op, attempt)}
        if isinstance(event, StepSucceeded):
            self._tell("runnable.stop", measurements, metadata)
            return
        error = {"kind": event.error.type, "reason": event.error.message}
        self._tell("runnable.exception", measurements, metadata | error)

    def left(self, run_id: str) -> None:
        """A run was evicted."""
        self._known.discard(run_id)
        self._began.pop(run_id, None)

    # --- commits --------------------------------------------------------------------------------------------------

    def writes(self, appends: int) -> None:
        """A commit begins."""
        self._tell("store.start", {"appends": appends}, {"operation": "append"})

    def wrote(self, seconds: float, events: int, appends: int) -> None:
        """A commit is done."""
        measurements = {"duration": seconds, "events": events, "appends": appends}
        self._tell("store.stop", measurements, {"operation": "append", "written": True})

    def not_written(self) -> None:
        """The store refused a commit, or could not be reached."""
        self._tell("store.stop", {}, {"operation": "append", "written": False})


def _of_run(driver: Driver) -> dict[str, Any]:
    started: RunStarted | None = driver.state.started
    assert started is not None
    return {
        "id": driver.id,
        "run_id": driver.run_id,
        "program": started.program,
        "version": started.version,
        "incarnation": started.incarnation,
    }


def _of_step(op: str, attempt: int) -> dict[str, Any]:
    return {"op": op, "step": op[op.rfind("/") + 1 : op.rfind(":")], "attempt": attempt}
