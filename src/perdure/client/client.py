"""Everything a caller can do with a store, except execute."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, get_args, overload

import msgspec
from msgspec import Raw

from perdure.client.bulk import BulkItem, BulkReport, InBulk, Start
from perdure.client.compacting import Compacting
from perdure.client.handle import RunHandle
from perdure.client.pruning import Pruning
from perdure.client.queries import Asking
from perdure.client.rebuilding import Rebuilding
from perdure.client.resolving import Resolving
from perdure.client.resting import Answers, Until
from perdure.client.schedules import Scheduling
from perdure.client.views import RunResult
from perdure.engine.outbox import extend
from perdure.errors import AlreadyExists, PerdureError, UsageError
from perdure.kernel import inbound
from perdure.kernel.events import AnyEvent, CancelRequested, RunFinished, RunStarted, RunStatus
from perdure.kernel.ids import check_id
from perdure.kernel.ids import run_id as make_run_id
from perdure.kernel.inbound import Accepted
from perdure.kernel.invocation import EncodedInvocation, Invocation, check_invocation
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.durability import durability as durability_of
from perdure.kernel.policies.durations import Duration
from perdure.kernel.policies.reuse import Reuse, decide
from perdure.kernel.policies.rule_names import run_rules
from perdure.kernel.policies.rules import RulesLike
from perdure.kernel.policies.start_options import Place, at_least_one, debounced_id, placed, seconds
from perdure.kernel.policies.tags import checked_tags
from perdure.kernel.program import Program
from perdure.kernel.projection import RunRow, row
from perdure.kernel.state import RunState, fold
from perdure.ports.journal import Appended, append_all

# How many runs are prepared and put into the store at a time.
STARTS_AT_ONCE = 1000

R = TypeVar("R")


class Client(Scheduling, InBulk, Resolving, Pruning, Compacting, Rebuilding, Asking):
    """A connection to a store: starts runs for engines elsewhere to execute, tells them things, and reads."""

    async def start(
        self,
        invocation: Invocation[R],
        *,
        id: str | None = None,
        reuse: Reuse | None = None,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
        debounce: Duration | None = None,
        delay: Duration | None = None,
        deadline: Duration | datetime | None = None,
        max_concurrency: int | None = None,
        durability: str | Durability | None = None,
        rules: RulesLike = (),
        tags: dict[str, str] | None = None,
    ) -> RunHandle[R]:
        """Start a run, durably, and return a handle to it; with an id that is in use, do what `reuse` says.

        In a `queue` it begins when the limits of the queue let it: higher `priority` first, and keys take turns. With
        `debounce` it begins when no other start under its id, or its queue and key, has come for so long; those that
        came before it began have one run with it, and the last input counts.
        """
        self._check_open()
        check_invocation(invocation, "start")
        request = Start(
            invocation,
            id=id,
            reuse=reuse,
            queue=queue,
            key=key,
            priority=priority,
            debounce=debounce,
            delay=delay,
            deadline=deadline,
            max_concurrency=max_concurrency,
            durability=durability,
            rules=rules,
            tags=tags,
        )
        starting = await self._starting(request)
        while True:
            handle = await self._existing(starting)
            if handle is not None:
                return handle
            if await self._submit(*self._identified(starting)):
                return starting.handle(self)

    async def start_many(self, starts: Iterable[Invocation[R] | Start[R]]) -> BulkReport[RunHandle[R]]:
        """Start many runs in few commits: invocations, or `Start(invocation, id=..., ...)` with options of its own.

        The report has what became of each, in their order: its handle, or why it could not be started. One that fails
        keeps no other from being started. Of several under one id `reuse` decides, as it does for one that exists.
        """
        self._check_open()
        if not isinstance(starts, Iterable):
            one = "; for one use start()" if isinstance(starts, Invocation) else ""
            raise UsageError(f"start_many([...]) takes a list of invocations, and {starts!r:.80} is none{one}")
        requests = [one if isinstance(one, Start) else Start(one) for one in starts]
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
                    continue  # the one before it comes first, and is there in the next round
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
            outcomes = await self._submit_many([self._identified(starting) for starting in round.values()])
            for (index, starting), outcome in zip(round.items(), outcomes, strict=True):
                if isinstance(outcome, Exception):
                    items[index] = BulkItem(index, starting.id or "", error=outcome)
                elif outcome:
                    handle = starting.handle(self)
                    items[index] = BulkItem(index, handle.id, handle)
                else:
                    continue
                del pending[index]

    async def _starting(self, request: Start[R]) -> _Starting[R]:
        """What one start asks for, checked; nothing of it is in the store but its offloaded values."""
        invocation, id = request.invocation, request.id
        program = self._program(invocation)
        reuse: Reuse = request.reuse or self._reuse
        decide(reuse, None)
        if id is not None:
            check_id(id)
        now, delay = self.clock.now(), request.delay
        place = placed(request.queue, request.key, request.priority)
        if request.debounce is not None:
            reuse = request.reuse or "return_existing"
            id = debounced_id(invocation.name, place, id, reuse, delay)
            delay = seconds(request.debounce, "debounce")
        started, recorded = await self._prepare(
            invocation,
            program,
            now,
            delay,
            request.deadline,
            request.max_concurrency,
            request.durability,
            request.rules,
            request.tags,
            place,
        )
        return _Starting(invocation, program, reuse, request.debounce is not None, now, id, started, recorded)

    async def _existing(self, starting: _Starting[R]) -> RunHandle[R] | None:
        """The run that exists under the id, if the start is content with it; AlreadyExists if the id must be free."""
        id, reuse, program = starting.id, starting.reuse, starting.program
        found = await self.store.runs.find(id) if id is not None else None
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
                return RunHandle(self, existing.id, existing.run_id, program)
        elif decision == "return":
            if existing.program != starting.invocation.name:
                raise AlreadyExists(existing.id, existing.status, reuse, existing.program)
            return RunHandle(self, existing.id, existing.run_id, program)
        elif decision == "reject":
            raise AlreadyExists(existing.id, existing.status, reuse)
        else:
            await self._check_arguments(starting)
        if decision == "replace":
            await self._terminate(existing, "another run was started under its id")
        return None

    async def _check_arguments(self, starting: _Starting[Any]) -> None:
        """Refuse arguments that no worker takes, where the program is not at hand, before anything is written for them.

        Not earlier: a run that exists is given out whatever the arguments are. Large ones were checked before they were
        put apart.
        """
        if starting.program is None and starting.recorded is starting.started:
            if not isinstance(starting.invocation, EncodedInvocation):
                await self._signatures.check(starting.invocation.name, bytes(starting.started.input))

    def _identified(self, starting: _Starting[Any]) -> tuple[str, RunStarted, RunStarted]:
        """A start with the run_id of a new run."""
        # Never before the last one: runs started in one millisecond are listed in their order.
        run_id = self._last_run_id = make_run_id(starting.now, secrets.randbits(36), self._last_run_id)
        starting.run_id = run_id
        identity = {"id": starting.id or run_id, "incarnation": starting.incarnation}
        if starting.recorded is starting.started:
            started = recorded = _with(starting.started, **identity)
        else:
            started, recorded = _with(starting.started, **identity), _with(starting.recorded, **identity)
        return run_id, started, recorded

    @overload
    def handle(self, id: str) -> RunHandle[Any]: ...
    @overload
    def handle(self, id: str, program: Callable[..., Invocation[R]]) -> RunHandle[R]: ...
    def handle(self, id: str, program: Callable[..., Invocation[Any]] | None = None) -> RunHandle[Any]:
        """A handle of the run under an id, without starting anything: `engine.handle("order-123", fulfil)`.

        It means the latest run under the id, also when that goes on as another one. With the workflow the result is
        typed, and decoded as that workflow returns it. Nothing is read here: what is asked of a run that does not exist
        raises NoSuchRun.
        """
        if program is not None and not isinstance(program, Program):
            raise UsageError(
                f"handle({id!r}, ...) takes the workflow that was started, such as fulfil, not {program!r}"
            )
        return RunHandle(self, check_id(id), "", program)

    async def run(
        self,
        invocation: Invocation[R],
        *,
        until: Until = "end",
        answers: Answers | None = None,
        by: str | None = None,
        **options: Any,
    ) -> RunResult[R]:
        """Start a run and wait for its end, whatever that is. Takes the options of `start`.

        With `until="rest"` it comes back as soon as nothing can go on without a person, and `.interrupts` tells what is
        asked. Called again with the same id and `answers={name: answer}`, it answers, as `by`, and waits again.
        """
        if until not in get_args(Until):
            raise UsageError(f"until={until!r} is neither 'end' nor 'rest'")
        return await (await self.start(invocation, **options)).outcome(until=until, answers=answers, by=by)

    async def checkpoint(self, id: str) -> int:
        """Make everything durable that a run has done so far, and say before which number its events are in the store.

        For the lazy durability modes; in the others everything is. An engine that owns the run stores a snapshot as
        well, so that the next owner does not replay what is over. A client cannot reach into the memory of
        another process: UsageError says which one owns the run.
        """
        run, head = await self._require(id)
        run_id = run.root or run.run_id
        if run.root:
            run = await self.store.runs.get(run_id) or run
        flushed = await self._flush(run)
        if flushed is not None:
            return flushed
        began = fold(run_id, await self.store.journal.read(run_id, 0, 1)).started
        lazy = began is not None and not durability_of(began.durability).waits
        if lazy and run.status is RunStatus.RUNNING:
            owner = f"{run.owner!r} owns it" if run.owner else "no engine has it at the moment"
            raise UsageError(
                f"run {run.id!r} is under way in another process ({owner}), whose memory cannot be written from here; "
                "call checkpoint() there, or `await checkpoint()` in the workflow"
            )
        return head.next_seq

    async def _flush(self, run: RunRow) -> int | None:
        """Have written what is only in memory here; None where the run is not here."""
        return None

    def _program(self, invocation: Invocation[Any]) -> Program | None:
        return invocation.program

    async def _prepare(
        self,
        invocation: Invocation[Any],
        program: Program | None,
        now: float,
        delay: Duration | None,
        deadline: Duration | datetime | None,
        max_concurrency: int | None,
        durability: str | Durability | None,
        rules: RulesLike,
        tags: dict[str, str] | None,
        place: Place,
    ) -> tuple[RunStarted, RunStarted]:
        """The first event: as the program sees it, and as the journal keeps it when the input is large."""
        data = invocation.encode(program, self.codec)
        what = f"the input of {invocation.name}"
        inline = self.payloads.fits_inline(len(data), what)
        if durability is not None:
            self.store.promise(durability_of(durability))
        started = RunStarted(
            id="",
            program=invocation.name,
            version=program.version if program is not None else "",
            input=Raw(data),
            tags=checked_tags(tags),
            durability=str(durability_of(durability) if durability is not None else self._durability),
            not_before=None if delay is None else now + seconds(delay, "delay"),
            deadline=moment_of(deadline, now, "deadline"),
            max_concurrency=at_least_one(max_concurrency),
            rules=invocation.rules if isinstance(invocation, EncodedInvocation) else run_rules(rules, program),
            queue=place.queue,
            queue_key=place.key,
            priority=place.priority,
            schedule=invocation.schedule if isinstance(invocation, EncodedInvocation) else "",
            scheduled_at=invocation.scheduled_at if isinstance(invocation, EncodedInvocation) else None,
        )
        if program is not None and not isinstance(invocation, EncodedInvocation) and not self._begins_here(started):
            # It is read elsewhere, and later, where the caller hears of nothing: what does not fit is refused here.
            program.check_input(started.input, self.codec)
        if inline:
            return started, started
        if program is None and not isinstance(invocation, EncodedInvocation):
            await self._signatures.check(invocation.name, data)
        blob = await self.payloads.offload(data, what)
        return started, _with(started, input=Raw(b"null"), input_blob=blob)

    def _begins_here(self, started: RunStarted) -> bool:
        """Whether a run begins in this process at once."""
        return False

    async def _submit(self, run_id: str, started: RunStarted, recorded: RunStarted) -> bool:
        """Put a run into the store for any engine to take up; False when its id is not free."""
        return await self._append(extend(RunState(run_id), [recorded], self.clock.now()))

    async def _submit_many(self, starts: Sequence[tuple[str, RunStarted, RunStarted]]) -> Sequence[bool | Exception]:
        """As `_submit`, for many runs in one commit; an exception says why one could not be put there."""
        now = self.clock.now()
        appends = [extend(RunState(run_id), [recorded], now) for run_id, _, recorded in starts]
        try:
            outcomes = await append_all(self.store.journal, appends) if appends else ()
        except PerdureError as error:
            return [error] * len(starts)
        return [isinstance(outcome, Appended) for outcome in outcomes]

    async def _replace_input(self, run_id: str, recorded: RunStarted) -> bool:
        """Let a run that has not begun wait anew, and begin with this input; False when it has begun."""
        verdict = await self._tell_in_turn(run_id, lambda state: inbound.replace_input(state, recorded))
        return isinstance(verdict, Accepted)

    async def _terminate(self, existing: RunRow, reason: str) -> None:
        """End a run by an event of its own, whoever owns it. Of this and its completion one wins."""
        while True:
            batches = await self.store.journal.read(existing.run_id)
            state = fold(existing.run_id, batches)
            if state.finished is not None:
                return
            events: list[AnyEvent] = [CancelRequested(reason), RunFinished(RunStatus.CANCELLED, reason=reason)]
            if await self._append(extend(state, events, self.clock.now())):
                self._ended_here(row(state))
                return


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

    def handle(self, client: Client) -> RunHandle[R]:
        return RunHandle(client, self.id or self.run_id, self.run_id, self.program)


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
            raise UsageError(f"{what}={value!r} has no timezone; write datetime.now(UTC) + timedelta(...)")
        return value.astimezone(UTC).timestamp()
    return now + seconds(value, what)
