"""Everything a caller can do with a store, except execute."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar, cast, overload

import msgspec
from msgspec import Raw

from perdure.client.asking import Asking
from perdure.client.compacting import Compacting
from perdure.client.connection import checked_tags
from perdure.client.handle import RunHandle
from perdure.client.places import Place, debounced_id, placed, seconds
from perdure.client.pruning import Pruning
from perdure.client.rebuilding import Rebuilding
from perdure.client.resolving import Resolving
from perdure.client.schedules import Scheduling
from perdure.client.views import RunResult
from perdure.engine.outbox import extend
from perdure.errors import AlreadyExists, UsageError
from perdure.kernel import inbound
from perdure.kernel.commands import Program
from perdure.kernel.durability import Durability
from perdure.kernel.durability import durability as durability_of
from perdure.kernel.durations import Duration
from perdure.kernel.events import AnyEvent, CancelRequested, RunFinished, RunStarted, RunStatus
from perdure.kernel.ids import check_id
from perdure.kernel.ids import run_id as make_run_id
from perdure.kernel.inbound import Accepted
from perdure.kernel.invocation import Invocation, Recorded
from perdure.kernel.projection import RunRow, row
from perdure.kernel.reach import run_rules
from perdure.kernel.reuse import Reuse, decide
from perdure.kernel.rules import RulesLike
from perdure.kernel.state import RunState, fold

R = TypeVar("R")


class Client(Scheduling, Resolving, Pruning, Compacting, Rebuilding, Asking):
    """A connection to a store: starts runs for engines elsewhere to execute, tells them things, and reads."""

    async def start(
        self,
        invocation: Invocation[R],
        *,
        id: str | None = None,
        reuse: Reuse = "return_existing",
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
        if not isinstance(invocation, Invocation):
            raise UsageError(f"start() needs an invocation such as fulfil(order), not {invocation!r}")
        program = self._program(invocation)
        decide(reuse, None)
        if id is not None:
            check_id(id)
        now = self.clock.now()
        place = placed(queue, key, priority)
        if debounce is not None:
            id = debounced_id(invocation.name, place, id, reuse, delay)
            delay = seconds(debounce, "debounce")
        started, recorded = await self._prepare(
            invocation, program, now, delay, deadline, max_concurrency, durability, rules, tags, place
        )
        while True:
            found = await self.store.runs.find(id) if id is not None else None
            # A child of another run may bear the id as well; it is no obstacle.
            existing = found[0] if found is not None and not found[0].root else None
            decision = decide(reuse, existing.status if existing is not None else None)
            if existing is not None and debounce is not None:
                if existing.program != invocation.name:
                    raise AlreadyExists(existing.id, existing.status, reuse, existing.program)
                if await self._replace_input(existing.run_id, recorded):
                    return RunHandle(self, existing.id, existing.run_id, program)
            elif existing is not None:
                if decision == "return":
                    if existing.program != invocation.name:
                        raise AlreadyExists(existing.id, existing.status, reuse, existing.program)
                    return RunHandle(self, existing.id, existing.run_id, program)
                if decision == "reject":
                    raise AlreadyExists(existing.id, existing.status, reuse)
                if decision == "replace":
                    await self._terminate(existing, "another run was started under its id")
            # Never before the last one: runs started in one millisecond are listed in their order.
            run_id = self._last_run_id = make_run_id(now, secrets.randbits(36), self._last_run_id)
            incarnation = existing.incarnation + 1 if existing is not None else 1
            identity = {"id": id or run_id, "incarnation": incarnation}
            if await self._submit(run_id, _with(started, **identity), _with(recorded, **identity)):
                return RunHandle(self, id or run_id, run_id, program)

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
        if program is not None and (not hasattr(program, "name") or not hasattr(program, "open")):
            raise UsageError(
                f"handle({id!r}, ...) takes the workflow that was started, such as fulfil, not {program!r}"
            )
        return RunHandle(self, check_id(id), "", cast("Program | None", program))

    async def run(self, invocation: Invocation[R], **options: Any) -> RunResult[R]:
        """Start a run and wait for its end, whatever that is. Takes the options of `start`."""
        return await (await self.start(invocation, **options)).outcome()

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
            max_concurrency=_at_least_one(max_concurrency),
            rules=run_rules(rules, program),
            queue=place.queue,
            queue_key=place.key,
            priority=place.priority,
            schedule=invocation.schedule if isinstance(invocation, Recorded) else "",
            scheduled_at=invocation.scheduled_at if isinstance(invocation, Recorded) else None,
        )
        if inline:
            return started, started
        blob = await self.payloads.offload(data, what)
        return started, _with(started, input=Raw(b"null"), input_blob=blob)

    async def _submit(self, run_id: str, started: RunStarted, recorded: RunStarted) -> bool:
        """Put a run into the store for any engine to take up; False when its id is not free."""
        return await self._append(extend(RunState(run_id), [recorded], self.clock.now()))

    async def _replace_input(self, run_id: str, recorded: RunStarted) -> bool:
        """Let a run that has not begun wait anew, and begin with this input; False when it has begun."""
        while True:
            verdict = await self._try_to_tell(run_id, lambda state: inbound.replace_input(state, recorded))
            if verdict is not None:
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
                self.watch.resolve(row(state))
                return


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


def _at_least_one(value: int | None) -> int | None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise UsageError(f"max_concurrency={value!r} must be at least 1")
    return value
