"""Spans for OpenTelemetry: of starts, stretches of work, attempts and whole runs. A run that is not sampled costs none.

Imports opentelemetry, so it is itself imported only where spans are on. The SDK, its sampler and its exporters are
those of the application.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context
from functools import partial
from traceback import format_exception
from typing import TYPE_CHECKING, Any, cast

import msgspec
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.span import TraceState

from perdure import __version__
from perdure.engine.executor_call import RemoteError
from perdure.engine.probe import Probe
from perdure.errors import StepBailed
from perdure.kernel.events import (
    AttemptFailed,
    Batch,
    RunClaimed,
    RunStarted,
    RunStatus,
    StepFailed,
    StepSkipped,
    started_in,
)
from perdure.kernel.ids import BUILT_IN, check_trace, step_key
from perdure.kernel.plan import Start
from perdure.kernel.values.failures import Failure, type_name
from perdure.kernel.values.raised import contained
from perdure.kernel.values.redact import taken_of_call
from perdure.kernel.values.redaction import Redaction
from perdure.logs import log
from perdure.ports.clock import Clock
from perdure.ports.journal import Append
from perdure.telemetry.metrics import Metrics
from perdure.telemetry.span_queue import SpanQueue
from perdure.telemetry.trail import (
    EndedAttempt,
    Fact,
    LostAttempt,
    Place,
    RemoteAttempt,
    Stretch,
    Summary,
    Trail,
    attempt_span,
    first_trace,
    is_sampled,
    place_of,
    summary_span,
)

if TYPE_CHECKING:
    from perdure.engine.driver import Driver
    from perdure.engine.steps import Attempt

_NO_CONTEXT = otel_context.Context()
SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class Ids:
    """Gives the SDK the ids of the next span: derived ones, or random ones."""

    def __init__(self, random: Any) -> None:
        self._random = random
        self._next = threading.local()

    def use(self, place: Place | None) -> None:
        """The ids of the next span that this thread makes."""
        self._next.place = place

    def generate_span_id(self) -> int:
        """For the SDK."""
        place: Place | None = getattr(self._next, "place", None)
        return int(self._random.generate_span_id()) if place is None else place.span

    def generate_trace_id(self) -> int:
        """For the SDK."""
        place: Place | None = getattr(self._next, "place", None)
        return int(self._random.generate_trace_id()) if place is None else place.trace

    def is_trace_id_random(self) -> bool:
        """For the SDK."""
        return False


class Tracer:
    """Makes spans with given ids through the application's SDK, which decides once per run whether it is sampled."""

    def __init__(self) -> None:
        self._tracer: Any = None
        self._ids = Ids(None)
        self._provider: Any = None
        self._told = False

    @property
    def ready(self) -> bool:
        """Whether there is an SDK. The application may set it up after the engine was opened."""
        provider = trace.get_tracer_provider()
        if provider is self._provider:
            return self._tracer is not None
        self._provider, self._tracer = provider, None
        given = provider.get_tracer("perdure", __version__)
        if not all(hasattr(given, name) for name in ("sampler", "id_generator")):
            if not self._told:
                self._told = True
                log.warning(
                    "telemetry: spans are on, and no OpenTelemetry SDK is set up; there are none until "
                    "opentelemetry.trace.set_tracer_provider(TracerProvider(...)) is called"
                )
            return False
        # A copy, so that the changes apply to the spans of perdure only.
        tracer: Any = copy.copy(given)
        self._sampler, self._ids = tracer.sampler, Ids(tracer.id_generator)
        tracer.id_generator, tracer.sampler = self._ids, _always(tracer.sampler)
        self._tracer = tracer
        return True

    def samples(self, run_id: str, name: str) -> bool:
        """Whether a run without a caller's trace is recorded. Follows from its trace id, so all processes agree."""
        decided = self._sampler.should_sample(_NO_CONTEXT, first_trace(run_id), name, SpanKind.CONSUMER, {}, ())
        return bool(decided.decision.is_sampled())

    def span(
        self,
        name: str,
        place: Place | None,
        parent: Place | Context | Any,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        at: float | None,
        links: Sequence[Place] = (),
    ) -> Span:
        """Begin a span. Without a place it gets random ids, and the caller's context may be its parent."""
        self._ids.use(place)
        try:
            within = _context(parent) if parent is None or isinstance(parent, Place) else parent
            span: Span = self._tracer.start_span(
                name,
                within,
                kind,
                {key: value for key, value in attributes.items() if value is not None},
                [Link(context_of(one)) for one in links],
                _nanoseconds(at),
            )
            return span
        finally:
            self._ids.use(None)


def _always(sampler: Any) -> Any:
    """The SDK's sampler that samples everything: whether a run is recorded was decided before."""
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    return ALWAYS_ON


def context_of(place: Place) -> SpanContext:
    """A place as a context of OpenTelemetry."""
    state = TraceState.from_header([place.state]) if place.state else None
    return SpanContext(place.trace, place.span, is_remote=place.remote, trace_flags=SAMPLED, trace_state=state)


def _context(parent: Place | None) -> Any:
    empty = otel_context.Context()
    return empty if parent is None else trace.set_span_in_context(NonRecordingSpan(context_of(parent)), empty)


def _nanoseconds(at: float | None) -> int | None:
    return None if at is None else int(at * 1_000_000_000)


def current_trace() -> str:
    """The trace that the caller is in, as a traceparent; empty if it is in none."""
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return ""
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags & 1:02x}{_state(found)}"


def _state(found: SpanContext) -> str:
    header = found.trace_state.to_header() if found.trace_state else ""
    return f" {header}" if header and len(header) <= 512 else ""


class TracedRun:
    """A sampled run in memory."""

    __slots__ = ("attributes", "program", "summary", "trail")

    def __init__(self, trail: Trail, program: str, attributes: dict[str, Any]) -> None:
        self.trail, self.program, self.attributes = trail, program, attributes
        # The event of its end, until that is durable.
        self.summary: Summary | None = None


class Spans(Probe):
    """The spans of one engine. It never raises: an error costs spans."""

    def __init__(self, gap: float, clock: Clock, redaction: Redaction, name: Callable[[], str]) -> None:
        self._gap, self._clock, self._redaction, self._name = gap, clock, redaction, name
        self._tracer = Tracer()
        self.queue = SpanQueue()
        # Bounds the names of programs and steps as metrics do.
        self._names = Metrics()
        # Runs in memory; None for those that are not sampled.
        self._runs: dict[str, TracedRun | None] = {}
        self._attempts: dict[Attempt, Span] = {}
        self._told = False

    # --- starts ---------------------------------------------------------------------------------------------------

    def start(self, program: str, given: str | None) -> AbstractContextManager[str] | None:
        """A span around the start of a run. None if the caller is in no trace, as most are."""
        if not given and trace.get_current_span() is INVALID_SPAN:
            return None
        text = check_trace(given) if given else self._safely(current_trace)
        if not text:
            return None
        span = self._safely(self._begin_start, program, given) if is_sampled(text) else None
        return nullcontext(text) if span is None else self._around(span)

    @contextmanager
    def _around(self, span: Span) -> Iterator[str]:
        found = span.get_span_context()
        try:
            yield f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags & 1:02x}{_state(found)}"
        except BaseException as error:
            self._safely(span.set_attribute, "error.type", type_name(type(error)))
            self._safely(span.set_status, Status(StatusCode.ERROR))
            raise
        finally:
            self.queue.put(partial(span.end, _nanoseconds(self._clock.now())))

    def _begin_start(self, program: str, given: str | None) -> Span | None:
        if not self._tracer.ready:
            return None
        name = self._names.bounded("program", program)
        parent = _context(place_of(given)) if given else otel_context.get_current()
        attributes = self._redacted({"perdure.program.name": program})
        return self._tracer.span(f"start {name}", None, parent, SpanKind.PRODUCER, attributes, self._clock.now())

    def trace_of_caller(self) -> str | None:
        """The trace that the sender of a signal is in."""
        return None if trace.get_current_span() is INVALID_SPAN else self._safely(current_trace) or None

    def traced(self, driver: Driver, starts: Sequence[Start]) -> Sequence[Start]:
        """The events of runs that this run is about to start, with the trace that they continue or link to."""
        return self._safely(self._traced, driver, starts) or starts

    def _traced(self, driver: Driver, starts: Sequence[Start]) -> Sequence[Start]:
        run = self._run_of(driver)
        if run is None:
            # A remote step is part of this run, which is not recorded.
            mark = f"00-{first_trace(driver.run_id):032x}-{summary_span(driver.run_id):016x}-00"
            return [_with_trace(one, mark) if _remote(one) and self._tracer.ready else one for one in starts]
        stretch = self._stretch(driver, run)
        found = []
        for one in starts:
            begun = one.events[0]
            assert isinstance(begun, RunStarted)
            place = run.trail.summary_place() if begun.continued_from else stretch.place if stretch else None
            found.append(one if place is None else _with_trace(one, str(place)))
        return found

    # --- runs -----------------------------------------------------------------------------------------------------

    def entered(self, driver: Driver, batches: Sequence[Batch]) -> None:
        """A stored run came into memory. Spans that its dead owner did not export are made again."""
        self._safely(self._enter, driver, batches)

    def _enter(self, driver: Driver, batches: Sequence[Batch]) -> None:
        again = self._runs.pop(driver.run_id, None)
        run = self._run_of(driver, started_in(batches))
        if run is None:
            return
        claimed = batches and any(
            isinstance(event, RunClaimed) and event.early and event.session == driver.state.session
            for event in batches[-1].events
        )
        run.trail.fold(batches[:-1])
        facts = run.trail.fold(batches[-1:])
        if claimed and again is None:
            self._export(run, [fact for fact in facts if not isinstance(fact, RemoteAttempt)])
        self._export(run, run.trail.from_afar)

    def writing(self, driver: Driver, append: Append) -> None:
        """Make the spans of ended work before the append is durable: afterwards, no process would make them again.

        A run is over only when its end is durable: `committed` makes its summary.
        """
        if self._runs.get(driver.run_id, ...) is not None:
            self._safely(self._fold, driver, append.batches)

    def committed(self, driver: Driver, append: Append) -> None:
        """Make the summary span of a run that has ended."""
        run = self._runs.get(driver.run_id)
        if run is not None and run.summary is not None:
            self._export(run, [run.summary])
            run.summary = None

    def caught_up(self, driver: Driver, batches: Sequence[Batch]) -> None:
        """Events of other processes were read."""
        if self._runs.get(driver.run_id) is not None:
            self._safely(self._fold, driver, batches)

    def _fold(self, driver: Driver, batches: Sequence[Batch]) -> None:
        run = self._run_of(driver)
        if run is not None:
            facts = run.trail.fold(batches)
            run.summary = next((fact for fact in facts if isinstance(fact, Summary)), run.summary)
            self._export(run, [fact for fact in facts if not isinstance(fact, Summary)])

    def left(self, run_id: str) -> None:
        """A run was evicted: end its stretch."""
        run = self._runs.pop(run_id, None)
        if run is not None and run.trail.current is not None:
            self._safely(self._leave, run)

    def _leave(self, run: TracedRun) -> None:
        stretch = run.trail.end_now(self._clock.now())
        if stretch is not None:
            self._export(run, [stretch])

    def closed(self) -> None:
        """The engine is closed: end all stretches."""
        for attempt in [*self._attempts]:
            self.ended(attempt, TimeoutError("the engine was closed"))
        for run_id in [*self._runs]:
            self.left(run_id)

    def _run_of(self, driver: Driver, started: RunStarted | None = None) -> TracedRun | None:
        """The run of a driver, if it is sampled. Decided once, while it is in memory."""
        found = self._runs.get(driver.run_id, ...)
        if found is not ...:
            return found
        run: TracedRun | None = None
        started = started or driver.state.started
        own = started is None or (started.program.startswith(BUILT_IN) and started.remote is None)
        if started is not None and not own and self._tracer.ready:
            run = self._sampled(driver, started)
        self._runs[driver.run_id] = run
        return run

    def _sampled(self, driver: Driver, started: RunStarted) -> TracedRun | None:
        program = self._names.bounded("program", started.program)
        if not (is_sampled(started.trace) if started.trace else self._tracer.samples(driver.run_id, f"run {program}")):
            return None
        attributes: dict[str, Any] = {
            "perdure.run.id": started.id,
            "perdure.run.run_id": driver.run_id,
            "perdure.run.incarnation": started.incarnation,
            "perdure.program.name": started.program,
            "perdure.program.version": started.version or None,
            "perdure.queue.name": started.queue or None,
        }
        trail = Trail(driver.run_id, self._gap)
        trail.begin(started, driver.state.created_at)
        return TracedRun(trail, program, self._redacted(attributes))

    # --- attempts -------------------------------------------------------------------------------------------------

    def launched(self, attempt: Attempt, context: Context) -> None:
        """Begin the span of an attempt, and make it the current one of its function."""
        if self._runs.get(attempt.context.run_id, ...) is not None:
            self._safely(self._launch, attempt, context)

    def _launch(self, attempt: Attempt, context: Context) -> None:
        driver = cast("Driver", attempt.context.owner)
        run = self._run_of(driver)
        if run is None:
            return
        command, number = attempt.call.command, attempt.call.attempt
        stretch = self._stretch(driver, run)
        parent = stretch.place if stretch is not None else run.trail.parent
        epoch = stretch.epoch if stretch is not None else driver.state.epoch
        trace_id = parent.trace if parent is not None else first_trace(driver.run_id)
        place = Place(trace_id, attempt_span(driver.run_id, epoch, command.op, number))
        attributes = self._of_attempt(run, command.op, number, command.source, epoch, self._name())
        attributes |= self._redacted({"perdure.step.key": attempt.context.id})
        name = self._step_name(run, command.op)
        span = self._tracer.span(name, place, parent, SpanKind.INTERNAL, attributes, self._clock.now())
        self._attempts[attempt] = span
        context.run(_make_current, span)

    def _stretch(self, driver: Driver, run: TracedRun) -> Stretch | None:
        """The present stretch, or the one that the events begin that are not in the store yet."""
        return run.trail.preview(driver.outbox.unsaved_batches())

    def ended(self, attempt: Attempt, error: BaseException | None) -> None:
        """End the span of an attempt."""
        span = self._attempts.pop(attempt, None)
        if span is not None:
            self.queue.put(partial(self._end, span, attempt, error, self._clock.now()))

    def _end(self, span: Span, attempt: Attempt, error: BaseException | None, at: float) -> None:
        try:
            if error is not None and not isinstance(error, StepBailed):
                self._fail(span, attempt, error, at)
        finally:
            span.end(_nanoseconds(at))

    def _fail(self, span: Span, attempt: Attempt, error: BaseException, at: float) -> None:
        message, stack = str(error), "".join(format_exception(error))
        kind = type_name(type(error))
        if isinstance(error, RemoteError):
            kind, message, stack = error.failure.type, error.failure.message, error.failure.traceback
        span.set_attribute("error.type", kind)
        span.set_status(Status(StatusCode.ERROR, kind))
        event = {"exception.type": kind}
        if not attempt.call.command.spec.secrets:  # else the message may hold one
            command, driver = attempt.call.command, cast("Driver", attempt.context.owner)
            removed = taken_of_call(command, driver.state.started, self._redaction)
            # Redacted before they are cut off: a part of a value is not found.
            event["exception.message"] = self._redaction.text(message, removed)[:2000]
            event["exception.stacktrace"] = self._redaction.text(stack, removed)[-16_000:]
        span.add_event("exception", event, _nanoseconds(at))

    def _of_attempt(self, run: TracedRun, op: str, attempt: int, source: str, epoch: int, owner: str) -> dict[str, Any]:
        file, _, line = source.rpartition(":")
        return {
            **run.attributes,
            "perdure.op.path": op,
            "perdure.step.name": _name_in(op),
            "perdure.step.attempt": attempt,
            "perdure.orchestrator.name": owner or None,
            "perdure.orchestrator.epoch": epoch,
            "code.file.path": file or None,
            "code.line.number": int(line) if line.isdecimal() else None,
        }

    def _step_name(self, run: TracedRun, op: str) -> str:
        return f"step {self._names.bounded('step', _name_in(op), run.program)}"

    # --- finished work --------------------------------------------------------------------------------------------

    def _export(self, run: TracedRun, facts: Sequence[Fact]) -> None:
        for fact in facts:
            self.queue.put(partial(self._make, run, fact))

    def _make(self, run: TracedRun, fact: Fact) -> None:
        """Make the span of a record. Called in the thread of the queue."""
        span: Span
        match fact:
            case Stretch():
                attributes = {
                    **run.attributes,
                    "perdure.orchestrator.name": fact.owner or None,
                    "perdure.orchestrator.epoch": fact.epoch,
                }
                name, kind = f"run {run.program}", SpanKind.CONSUMER
                span = self._tracer.span(name, fact.place, fact.parent, kind, attributes, fact.began, fact.links)
                if fact.lost:
                    _lost(span)
            case RemoteAttempt():
                span = self._requested(run, fact)
            case LostAttempt() | EndedAttempt():
                stretch = fact.stretch
                number = attempt_span(run.trail.run_id, stretch.epoch, fact.op, fact.attempt)
                attributes = self._of_attempt(run, fact.op, fact.attempt, fact.source, stretch.epoch, stretch.owner)
                place, name = Place(stretch.place.trace, number), self._step_name(run, fact.op)
                span = self._tracer.span(name, place, stretch.place, SpanKind.INTERNAL, attributes, fact.began)
                if isinstance(fact, LostAttempt):
                    _lost(span)
                elif isinstance(fact.outcome, AttemptFailed | StepFailed | StepSkipped):
                    _failed(span, fact.outcome.error)
            case Summary():
                span = self._summary(run, fact)
        span.end(_nanoseconds(fact.ended))

    def _requested(self, run: TracedRun, fact: RemoteAttempt) -> Span:
        stretch, run_id = fact.stretch, run.trail.run_id
        place = Place(stretch.place.trace, attempt_span(run_id, stretch.epoch, fact.op, fact.attempt))
        attributes = self._of_attempt(run, fact.op, fact.attempt, "", stretch.epoch, stretch.owner)
        attributes["perdure.step.key"] = step_key(run_id, fact.op)
        name = self._step_name(run, fact.op)
        span = self._tracer.span(name, place, stretch.place, SpanKind.CLIENT, attributes, fact.began)
        outcome = fact.outcome
        if isinstance(outcome, AttemptFailed | StepFailed | StepSkipped):
            _failed(span, outcome.error)
        return span

    def _summary(self, run: TracedRun, fact: Summary) -> Span:
        attributes = {
            **run.attributes,
            "perdure.run.status": str(fact.finished.status),
            "perdure.run.stretches": fact.stretches,
            "perdure.run.steps": fact.steps,
            "perdure.run.attempts": fact.attempts,
            "perdure.run.worked": round(fact.worked, 6),
            "perdure.run.waited": round(fact.waited, 6),
            "perdure.run.queued": round(fact.queued, 6),
        }
        name = f"run {run.program}"
        span = self._tracer.span(name, fact.place, fact.parent, SpanKind.INTERNAL, attributes, fact.began, fact.links)
        if fact.finished.status is RunStatus.FAILED and fact.finished.error is not None:
            _failed(span, fact.finished.error)
        return span

    # --- help -----------------------------------------------------------------------------------------------------

    def _redacted(self, attributes: dict[str, Any]) -> dict[str, Any]:
        return self._redaction.named(attributes) if self._redaction else attributes

    def _safely(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a call; None if it raises, which is logged once."""
        try:
            return work(*arguments)
        except BaseException as error:
            error = contained(error)
            if not self._told:
                self._told = True
                log.warning(
                    "telemetry: a span could not be made; this is logged once. Runs are not affected", exc_info=error
                )
            return None


def _with_trace(start: Start, text: str) -> Start:
    begun = start.events[0]
    assert isinstance(begun, RunStarted)
    return Start(start.run_id, [msgspec.structs.replace(begun, trace=text), *start.events[1:]])


def _remote(start: Start) -> bool:
    begun = start.events[0]
    return isinstance(begun, RunStarted) and begun.remote is not None


def _name_in(op: str) -> str:
    return op[op.rfind("/") + 1 : op.rfind(":")]


def _make_current(span: Span) -> None:
    # The context belongs to this attempt alone: nothing has to be restored.
    _ = otel_context.attach(trace.set_span_in_context(span))


def _lost(span: Span) -> None:
    span.set_attribute("error.type", "process_died")
    span.set_status(Status(StatusCode.ERROR, "the process died"))


def _failed(span: Span, failure: Failure) -> None:
    span.set_attribute("error.type", failure.type)
    span.set_status(Status(StatusCode.ERROR, failure.type))
