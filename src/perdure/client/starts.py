"""Start runs: check the call, find out whether the id is free, and store each run once."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Raw

from perdure.client.base import StoreClient
from perdure.client.bulk import BulkItem, BulkReport
from perdure.client.definitions import Definitions
from perdure.client.forking import create_with_past
from perdure.client.gateway import NewRun, RunGateway, decided
from perdure.client.handle import Handles, RunHandle
from perdure.client.messages import Messages
from perdure.engine.items import stored
from perdure.errors import AlreadyExists, UsageError
from perdure.kernel import inbound
from perdure.kernel.events import RunStarted
from perdure.kernel.history.retry_points import memoized
from perdure.kernel.ids import check_id, check_trace
from perdure.kernel.inbound import UNDECIDED, Accepted, Decided, Undecided
from perdure.kernel.invocation import EncodedInvocation, Invocation, check_invocation
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.durability import durability as durability_of
from perdure.kernel.policies.durations import Duration
from perdure.kernel.policies.rules import RulesLike, run_rules
from perdure.kernel.policies.start_options import (
    Place,
    Reuse,
    at_least_one,
    checked_tags,
    debounced_id,
    decide,
    placed,
    seconds,
)
from perdure.kernel.program import Program
from perdure.kernel.values.items import has_references

# How many runs are prepared and put into the store at a time.
STARTS_AT_ONCE = 1000

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Start(Generic[R_co]):
    """One run of many to be started: an invocation, with the options of `start`."""

    invocation: Invocation[R_co]
    _: KW_ONLY
    id: str | None = None
    reuse: Reuse | None = None
    queue: str | None = None
    key: str | None = None
    priority: int = 0
    debounce: Duration | None = None
    delay: Duration | None = None
    deadline: Duration | datetime | None = None
    max_concurrency: int | None = None
    durability: str | Durability | None = None
    rules: RulesLike = ()
    tags: dict[str, str] | None = None
    memo: bool = False
    trace: str | None = None


class StartTracing(Protocol):
    """Makes spans of starts."""

    def start(self, program: str, given: str | None) -> AbstractContextManager[str] | None:
        """A span around the start of a run, which gives the trace that the run continues. None if there is none."""

    def trace_of_caller(self) -> str | None:
        """The trace that the caller is in."""


class Starts:
    """Starts runs."""

    def __init__(
        self,
        base: StoreClient,
        gateway: RunGateway,
        messages: Messages,
        handles: Handles,
        definitions: Definitions,
    ) -> None:
        self._base, self._gateway, self._messages, self._handles = base, gateway, messages, handles
        self._definitions = definitions
        # Makes spans; None unless that is on.
        self.tracing: StartTracing | None = None

    async def start(self, request: Start[R], *, traced: bool = False) -> RunHandle[R]:
        """Start a run, durably; with an id that is in use, do what `reuse` says. `traced`: its span has begun."""
        self._base.check_open()
        check_invocation(request.invocation, "start")
        if self.tracing is not None and not traced:
            span = self.tracing.start(request.invocation.name, request.trace)
            if span is not None:
                with span as trace:
                    return await self.start(replace(request, trace=trace), traced=True)
        if request.memo:
            return await self._start_with_memo(request)
        starting = await self._starting(request)
        if starting.id is None:
            # A new id is not in use.
            await self._check_arguments(starting)
            if await self._gateway.start(self._new_run(starting)):
                return self._handle(starting)

        async def attempt() -> Decided[RunHandle[R]] | Undecided:
            handle = await self._existing(starting)
            if handle is not None:
                return Decided(handle)
            return Decided(self._handle(starting)) if await self._gateway.start(self._new_run(starting)) else UNDECIDED

        return await decided(attempt)

    async def start_many(self, starts: Iterable[Invocation[R] | Start[R]]) -> BulkReport[RunHandle[R]]:
        """As Client.start_many."""
        self._base.check_open()
        if not isinstance(starts, Iterable):
            one = "; for one use start()" if isinstance(starts, Invocation) else ""
            raise UsageError(f"start_many([...]) takes a list of invocations, and {starts!r:.80} is not a list{one}")
        requests = [one if isinstance(one, Start) else Start(one) for one in starts]
        if self.tracing is not None and (trace := self.tracing.trace_of_caller()) is not None:
            requests = [one if one.trace is not None else replace(one, trace=trace) for one in requests]
        for request in requests:
            if not isinstance(request.invocation, Invocation):
                raise UsageError(
                    f"start_many([...]) takes invocations such as fulfil(order), or Start(fulfil(order), id=...), "
                    f"not {request.invocation!r}"
                )
        items: dict[int, BulkItem[RunHandle[R]]] = {}
        for first in range(0, len(requests), STARTS_AT_ONCE):
            await self._start_some(dict(enumerate(requests[first : first + STARTS_AT_ONCE], first)), items)
        return BulkReport([items[index] for index in range(len(requests))])

    async def _start_some(self, requests: dict[int, Start[R]], items: dict[int, BulkItem[RunHandle[R]]]) -> None:
        """Start some runs; each round all those whose ids are free at once."""
        pending: dict[int, _Starting[R]] = {}
        for index, request in requests.items():
            try:
                pending[index] = await self._starting(request)
            except Exception as error:
                items[index] = BulkItem(index, _id_in(request), error=error)
        while pending:
            round: dict[int, _Starting[R]] = {}
            taken: set[str] = set()
            for index, starting in list(pending.items()):
                if starting.id in taken:
                    continue  # an earlier start has the same id: it exists in the next round
                try:
                    handle = await self._existing(starting)
                except Exception as error:
                    items[index] = BulkItem(index, starting.id or "", error=error)
                    del pending[index]
                    continue
                if handle is not None:
                    items[index] = BulkItem(index, handle.id, handle)
                    del pending[index]
                    continue
                round[index] = starting
                if starting.id is not None:
                    taken.add(starting.id)
            outcomes = await self._gateway.start_many([self._new_run(starting) for starting in round.values()])
            for (index, starting), outcome in zip(round.items(), outcomes, strict=True):
                if isinstance(outcome, Exception):
                    items[index] = BulkItem(index, starting.id or "", error=outcome)
                elif outcome:
                    handle = self._handle(starting)
                    items[index] = BulkItem(index, handle.id, handle)
                else:
                    continue
                del pending[index]

    async def _start_with_memo(self, request: Start[R]) -> RunHandle[R]:
        """Start a graph again under its id; steps that had the same arguments in the run before keep their results."""
        program = self._gateway.program(request.invocation)
        if program is None or program.dataflow is None:
            raise UsageError("start(memo=True) is for graphs that are known here; a workflow in code may be retried")
        if request.id is None or request.queue or request.debounce or request.delay:
            raise UsageError("start(memo=True) takes the id of the run before, and no queue, debounce or delay")
        found = await self._base.store.runs.find(check_id(request.id))
        before = found[0] if found is not None and not found[0].root else None
        refused = before is not None and request.reuse and decide(request.reuse, before.status) != "create"
        if before is None or refused or not before.status.finished or before.program != program.name:
            return await self.start(replace(request, memo=False), traced=True)
        starting = await self._starting(request)
        starting.incarnation = before.incarnation + 1
        new = self._new_run(starting)
        started = _with(new.recorded, memo=before.run_id)
        past = memoized(await self._base.store.journal.read(before.run_id), started, starting.now)
        if not await create_with_past(self._base, new.run_id, past):
            raise AlreadyExists(request.id, before.status, "memo")
        self._gateway.created(new.run_id, started)
        return self._handle(starting)

    async def _starting(self, request: Start[R]) -> _Starting[R]:
        """A request, checked. Nothing of it is in the store yet, except for offloaded values."""
        invocation, id = request.invocation, request.id
        if invocation.program is None:
            await self._gateway.load_program(invocation.name)
        program = self._gateway.program(invocation)
        if program is not None and program.definition:
            await self._definitions.keep(program)
        reuse: Reuse = request.reuse or self._base.reuse
        decide(reuse, None)
        if id is not None:
            id = check_id(id)
        now, delay = self._base.clock.now(), request.delay
        place = placed(request.queue, request.key, request.priority)
        if request.debounce is not None:
            reuse = request.reuse or "return_existing"
            id = debounced_id(invocation.name, place, id, reuse, delay)
            delay = seconds(request.debounce, "debounce")
        started, recorded = await self._prepare(request, program, now, delay, place)
        return _Starting(invocation, program, reuse, request.debounce is not None, now, id, started, recorded)

    async def keep(self, program: Program) -> None:
        """Store the definition of a program that has one, before a run of it begins."""
        if program.definition:
            await self._definitions.keep(program)

    async def _existing(self, starting: _Starting[R]) -> RunHandle[R] | None:
        """The run that exists under the id, if `reuse` accepts it. Raises AlreadyExists if the id must be free."""
        id, reuse, program = starting.id, starting.reuse, starting.program
        found = await self._base.store.runs.find(id) if id is not None else None
        # A child of another run may bear the id as well; it is no obstacle.
        existing = found[0] if found is not None and not found[0].root else None
        starting.incarnation = existing.incarnation + 1 if existing is not None else 1
        if existing is None:
            await self._check_arguments(starting)
            return None
        decision = decide(reuse, existing.status)
        if starting.debounced:
            if existing.program != starting.invocation.name:
                raise AlreadyExists(existing.id, existing.status, reuse, existing.program)
            await self._check_arguments(starting)
            if await self._replace_input(existing.run_id, starting.recorded):
                return self._handles.of(existing.id, existing.run_id, program)
        elif decision == "return":
            if existing.program != starting.invocation.name:
                raise AlreadyExists(existing.id, existing.status, reuse, existing.program)
            return self._handles.of(existing.id, existing.run_id, program)
        elif decision == "reject":
            raise AlreadyExists(existing.id, existing.status, reuse)
        else:
            await self._check_arguments(starting)
        if decision == "replace":
            await self._messages.terminate(existing.run_id, "another run was started under its id")
        return None

    async def _check_arguments(self, starting: _Starting[Any]) -> None:
        """If the program is not here, refuse arguments that no worker takes, before anything is written.

        Not earlier: a run that exists is returned regardless of the arguments. Large ones were checked before they were
        offloaded.
        """
        if starting.program is None and starting.recorded is starting.started:
            if not isinstance(starting.invocation, EncodedInvocation):
                input = await self._base.signatures.check(starting.invocation.name, bytes(starting.started.input))
                starting.started = starting.recorded = _with(starting.started, input=Raw(input))

    def _new_run(self, starting: _Starting[Any]) -> NewRun:
        """A start with the run_id of a new run."""
        starting.run_id = run_id = self._base.new_run_id(starting.now)
        identity = {"id": starting.id or run_id, "incarnation": starting.incarnation}
        started = recorded = _with(starting.started, **identity)
        if starting.recorded is not starting.started:
            recorded = _with(starting.recorded, **identity)
        return NewRun(run_id, started, recorded)

    def _handle(self, starting: _Starting[R]) -> RunHandle[R]:
        return self._handles.of(starting.id or starting.run_id, starting.run_id, starting.program)

    async def _prepare(
        self, request: Start[Any], program: Program | None, now: float, delay: Duration | None, place: Place
    ) -> tuple[RunStarted, RunStarted]:
        """The first event: as the program sees it, and as the journal keeps it when the input is large."""
        invocation, durability = request.invocation, request.durability
        encoded = invocation if isinstance(invocation, EncodedInvocation) else None
        if program is None or program.dataflow is not None:
            for given in (*invocation.args, *invocation.kwargs.values()):
                await stored(given, self._base.items, self._base.codec, f"the input of {invocation.name}")
        data = invocation.encode(program, self._base.codec)
        what = f"the input of {invocation.name}"
        inline = self._base.payloads.fits_inline(len(data), what) or has_references(data)
        if durability is not None:
            self._base.store.check_durability(durability_of(durability))
        started = RunStarted(
            id="",
            program=invocation.name,
            version=program.version if program is not None else "",
            input=Raw(data),
            tags=checked_tags(request.tags),
            durability=str(durability_of(durability) if durability is not None else self._base.durability),
            not_before=None if delay is None else now + seconds(delay, "delay"),
            deadline=moment_of(request.deadline, now, "deadline"),
            max_concurrency=at_least_one(request.max_concurrency),
            rules=encoded.rules if encoded is not None else run_rules(request.rules, program),
            queue=place.queue,
            queue_key=place.key,
            priority=place.priority,
            schedule=encoded.schedule if encoded is not None else "",
            scheduled_at=encoded.scheduled_at if encoded is not None else None,
            exact=1 if program is None or encoded is not None else 2,
            structure="" if program is None else program.structure,
            trace="" if request.trace is None else check_trace(request.trace),
        )
        if program is not None and encoded is None and not self._gateway.begins_here(started):
            # It is decoded elsewhere, and later, where the caller gets no error: refuse here what does not fit.
            program.check_input(started.input, self._base.codec)
        if inline:
            return started, started
        if program is None and encoded is None:
            data = await self._base.signatures.check(invocation.name, data)
            started = _with(started, input=Raw(data))
        blob = await self._base.payloads.offload(data, what)
        return started, _with(started, input=Raw(b"null"), input_blob=blob)

    async def _replace_input(self, run_id: str, recorded: RunStarted) -> bool:
        """Restart the delay of a run that has not begun, with this input; False if it has begun."""
        verdict = await self._messages.send_decided(run_id, lambda state: inbound.replace_input(state, recorded))
        return isinstance(verdict, Accepted)


@dataclass(slots=True)
class _Starting(Generic[R]):
    """A start that has been checked, on its way into the store."""

    invocation: Invocation[R]
    program: Program | None
    reuse: Reuse
    debounced: bool
    now: float
    id: str | None
    # The first event: as the program sees it, and as the journal keeps it.
    started: RunStarted
    recorded: RunStarted
    incarnation: int = 1
    run_id: str = ""


def _id_in(request: Start[Any]) -> str:
    return request.id if isinstance(request.id, str) else ""


def _with(started: RunStarted, **changes: Any) -> RunStarted:
    return msgspec.structs.replace(started, **changes)


def moment_of(value: Duration | datetime | None, now: float, what: str) -> float | None:
    """A moment, given as such or as a number of seconds from `now`."""
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UsageError(f"{what}={value!r} has no time zone; write datetime.now(UTC) + timedelta(...)")
        return value.astimezone(UTC).timestamp()
    return now + seconds(value, what)
