"""Everything a caller can do with a store, except execute: one method for each, of the part that does it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack, get_args, overload

from perdure.client.base import StoreClient
from perdure.client.bulk import UNFINISHED, Bulk, BulkReport
from perdure.client.capsules import Capsules
from perdure.client.compacting import CompactReport, compact
from perdure.client.forking import Forks
from perdure.client.gateway import RunGateway
from perdure.client.handle import Handles, RunHandle
from perdure.client.messages import Messages
from perdure.client.pruning import GRACE, Pruner, PruneReport, Statuses
from perdure.client.queries import RunFilters
from perdure.client.reader import Reader
from perdure.client.rebuilding import Rebuilder, RebuildReport
from perdure.client.resolving import Resolver
from perdure.client.resting import Answers, Until
from perdure.client.schedules import Schedule, ScheduleHandle, Schedules, ScheduleView
from perdure.client.starts import Start, Starts
from perdure.client.views import (
    RunResult,
    RunView,
)
from perdure.errors import UsageError
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import INPUT, check_id
from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate, Finished, NotFound
from perdure.kernel.invocation import Invocation
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.durations import Duration
from perdure.kernel.policies.reuse import Reuse
from perdure.kernel.policies.rules import RulesLike
from perdure.kernel.program import Program
from perdure.kernel.schedules.schedule import CatchUp, Overlap

R = TypeVar("R")


class Client(Reader):
    """A connection to a store: starts runs for engines elsewhere to execute, tells them things, and reads."""

    def _assemble(self, base: StoreClient, gateway: RunGateway) -> None:
        super()._assemble(base, gateway)
        queries = self._queries
        self._messages = messages = Messages(base, gateway)
        self._handles = Handles(base, gateway, queries, messages)
        self._starts = Starts(base, gateway, messages, self._handles)
        self._forks = Forks(base, gateway, self._handles)
        self._resolver = Resolver(base, gateway, messages, self._forks)
        self._bulk = Bulk(base, queries)
        self._schedules = Schedules(base, gateway, messages, self._starts)
        self._capsules = Capsules(base, gateway, queries)
        self._pruner = Pruner(base, self._capsules)
        self._rebuilder = Rebuilder(base)

    # --- starting -----------------------------------------------------------------------------------------------------

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
        return await self._starts.start(
            Start(
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
        )

    async def start_many(self, starts: Iterable[Invocation[R] | Start[R]]) -> BulkReport[RunHandle[R]]:
        """Start many runs in few commits: invocations, or `Start(invocation, id=..., ...)` with options of its own.

        The report has what became of each, in their order: its handle, or why it could not be started. One that fails
        keeps no other from being started. Of several under one id `reuse` decides, as it does for one that exists.
        """
        return await self._starts.start_many(starts)

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
        return self._handles.of(check_id(id), "", program)

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

    # --- messages -----------------------------------------------------------------------------------------------------

    async def signal(
        self, id: str, name: str, payload: Any = None, signal_id: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run a signal, durably. It is kept until the run waits for it; a `signal_id` makes it arrive once.

        Raises SignalRejected when the run waits for a signal of this name and this one is not of the type it waits for.
        """
        return await self._messages.signal(id, name, payload, signal_id)

    async def feed(
        self, id: str, input: Any, input_id: str | None = None, name: str = INPUT
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Give a run its next input, durably: what `async for input in inputs()` in its body takes, in order.

        An `input_id` makes it count once. Raises SignalRejected when the run waits for an input of another type.
        """
        return await self._messages.signal(id, name, input, input_id)

    async def approve(
        self, id: str, name: str, payload: Any, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Answer an open approval of a run, by its name or its path; of several of one name, the oldest.

        Raises AnswerRejected when the answer does not fit what was asked, or `by` is not among those who may answer.
        """
        return await self._messages.approve(id, name, payload, approval_id, by)

    async def reject(
        self, id: str, name: str, reason: str | None = None, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Say no to an open approval of a run: its body gets an ApprovalRejected. The rules are those of `approve`."""
        return await self._messages.reject(id, name, reason, approval_id, by)

    async def cancel(self, id: str, reason: str | None = None) -> Cancelled | AlreadyFinished:
        """Ask a run to end. Its body gets a CancelledError and may clean up. Of this and its completion one wins."""
        return await self._messages.cancel(id, reason)

    async def pause(self, id: str, reason: str | None = None) -> Accepted | Finished:
        """Let no new step of a run begin. Steps under way go on, and their outcomes are kept."""
        return await self._messages.pause(id, reason)

    async def resume(self, id: str) -> Accepted | Finished:
        """Let a paused run go on."""
        return await self._messages.resume(id)

    async def checkpoint(self, id: str) -> int:
        """Make everything durable that a run has done so far, and say before which number its events are in the store.

        For the lazy durability modes; in the others everything is. An engine that owns the run stores a snapshot as
        well, so that the next owner does not replay what is over. A client cannot reach into the memory of
        another process: UsageError says which one owns the run.
        """
        return await self._messages.checkpoint(id)

    async def resolve(
        self, id: str, *, version: str | None = None, fail: str | None = None, before: str | None = None
    ) -> Accepted | Finished:
        """Let a parked run go on: any engine tries it again at once, whichever has code that fits.

        `version` pins it to that version of its program from now on; `fail` ends it as failed, for that reason.
        `before` lets it go on from right before an op, as a new incarnation under its id, and says which steps it no
        longer knows of: they are done again. Raises NotParked when the run does not stand still.
        """
        return await self._resolver.resolve(id, version=version, fail=fail, before=before)

    # --- forks and retries --------------------------------------------------------------------------------------------

    async def fork(
        self,
        id: str,
        at: str | int | None = None,
        values: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        new_id: str | None = None,
        *,
        state: Mapping[str, Any] | None = None,
        set: Mapping[str, Any] | None = None,
    ) -> RunHandle[Any]:
        """Start a run that has the past of another up to a point, and goes on by itself from there.

        `at` is an op path, for the point right before that op, or the number of the first event to leave out; without
        it: right after the last op that is edited, the beginning when `inputs` are given, or else where the run stands.
        `values` gives ops another outcome, by op path; `inputs` the workflow other arguments, by name; `state`
        publishes other values than set_state() did. Raises ForkRefused when the code would not have done what is kept.
        `set` is the former name of `values`, and deprecated.
        """
        if set is not None and values is not None:
            raise UsageError("fork(set=...) is the former name of values=...; give one of them")
        return await self._forks.fork(id, at, values if set is None else set, inputs, new_id, state=state)

    async def time_travel(
        self, id: str, step: str, inputs: Mapping[str, Any] | None = None, new_id: str | None = None
    ) -> RunHandle[Any]:
        """Start a run that goes on right before a step of another, with other arguments for that step.

        `step` is an op path such as `process:2` or `rag:1/generate:0`; `inputs` are arguments by name, and those that
        are not given stay as they were. A child takes them too.
        """
        return await self._forks.time_travel(id, step, inputs, new_id)

    async def retry(self, id: str) -> RunHandle[Any]:
        """Let a run that failed go on from what failed, or one that was cancelled from there, with all that succeeded.

        It goes on under the same id as a new incarnation. What failed is tried again under its whole policy, and under
        the same idempotency key. Raises CannotRetry, before anything is run, where it would get no further.
        """
        return await self._forks.retry(id)

    # --- many runs at once --------------------------------------------------------------------------------------------

    async def retry_many(
        self, *, limit: int = 1000, cursor: str | None = None, dry_run: bool = False, **filters: Unpack[RunFilters]
    ) -> BulkReport[RunHandle[Any]]:
        """Retry the runs that match, those that failed unless `status` says otherwise: at most `limit`, newest first.

        Of several runs under one id the latest counts.
        """
        return await self._bulk.each(
            "retry_many", filters, (RunStatus.FAILED,), self.retry, limit, cursor, dry_run, latest=True
        )

    async def cancel_many(
        self,
        reason: str | None = None,
        *,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[Cancelled | AlreadyFinished]:
        """Ask the unfinished runs that match to end."""
        return await self._bulk.each(
            "cancel_many", filters, UNFINISHED, lambda id: self.cancel(id, reason), limit, cursor, dry_run
        )

    async def pause_many(
        self,
        reason: str | None = None,
        *,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[Accepted | Finished]:
        """Let no new step begin of the runs that match, of those that could go on unless `status` says otherwise."""
        going = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING)
        return await self._bulk.each(
            "pause_many", filters, going, lambda id: self.pause(id, reason), limit, cursor, dry_run
        )

    async def resume_many(
        self, *, limit: int = 1000, cursor: str | None = None, dry_run: bool = False, **filters: Unpack[RunFilters]
    ) -> BulkReport[Accepted | Finished]:
        """Let the paused runs that match go on."""
        return await self._bulk.each("resume_many", filters, (RunStatus.PAUSED,), self.resume, limit, cursor, dry_run)

    async def signal_many(
        self,
        name: str,
        payload: Any = None,
        signal_id: str | None = None,
        *,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[Accepted | Duplicate | NotFound | Finished]:
        """Send the unfinished runs that match a signal; with a `signal_id` it arrives once at each of them."""
        return await self._bulk.each(
            "signal_many",
            filters,
            UNFINISHED,
            lambda id: self.signal(id, name, payload, signal_id),
            limit,
            cursor,
            dry_run,
        )

    # --- schedules ----------------------------------------------------------------------------------------------------

    async def schedule(
        self,
        id: str,
        invocation: Invocation[Any] | None = None,
        *,
        every: float | timedelta | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        overlap: Overlap = "skip",
        catch_up: str | CatchUp = "one",
        jitter: float | timedelta | None = None,
        pause: bool = False,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
        tags: dict[str, str] | None = None,
        deadline: float | timedelta | None = None,
        max_concurrency: int | None = None,
        durability: str | Durability | None = None,
        rules: RulesLike = (),
    ) -> ScheduleHandle:
        """Start a run at every tick, durably. A schedule that exists under this id becomes what is asked for now.

        Its runs are started with the options of `start`: they wait in `queue`, if there is one, bear `tags` beside
        those of the schedule, and each has `deadline` seconds. Without an invocation: the schedule as it is.
        """
        self._base.check_open()
        if invocation is None:
            if every is not None or cron is not None:
                raise UsageError(f"schedule({id!r}, ...) needs an invocation such as report(day='today')")
            return await self._schedules.get(id)
        return await self._schedules.declare(
            Schedule(
                id,
                invocation,
                every=every,
                cron=cron,
                timezone=timezone,
                overlap=overlap,
                catch_up=catch_up,
                jitter=jitter,
                pause=pause,
                queue=queue,
                key=key,
                priority=priority,
                tags=tags,
                deadline=deadline,
                max_concurrency=max_concurrency,
                durability=durability,
                rules=rules,
            )
        )

    async def schedules(self) -> Sequence[ScheduleView]:
        """All schedules, by their ids."""
        return await self._schedules.list()

    # --- upkeep -------------------------------------------------------------------------------------------------------

    async def prune(
        self,
        older_than: Duration,
        statuses: Statuses = RunStatus.COMPLETED,
        dry_run: bool = False,
        *,
        archive: str | os.PathLike[str] | None = None,
        grace: Duration = GRACE,
    ) -> PruneReport:
        """Remove the runs of these statuses that ended longer ago than that, their children, and their large values.

        Runs that have not ended are never removed. The id of a run that is gone is free for another one. With
        `archive` each run is first written into a capsule in that directory; one for which that fails is kept. Values
        that went to the blob store go when no run refers to them and they were not put again for `grace`; what was put
        with `blobs.put` stays. Works in small commits beside engines that are at work; when it is broken off, what is
        left is pruned next time.
        """
        return await self._pruner.prune(older_than, statuses, dry_run, archive=archive, grace=grace)

    async def compact(self, id: str, *, dry_run: bool = False) -> CompactReport:
        """Leave out of a finished run's journal what its steps showed before they ended: chunks and progress.

        Results, attempts and their errors, owners, signals and answers stay, and so do replay and audit. Events are
        numbered anew. A run that is not finished needs none of it: its owner takes snapshots.
        """
        return await compact(self._base, id, dry_run=dry_run)

    async def rebuild(self, *, dry_run: bool = False) -> RebuildReport:
        """Compute the row of every run from its journal, tell where it differs from the stored one, and mend it.

        Safe beside engines that are at work: rows are replaced only while the journal is still what they were computed
        from. A journal that is damaged is told, and the others are rebuilt all the same.
        """
        return await self._rebuilder.rebuild(dry_run=dry_run)

    async def export(self, id: str, *, redact: Sequence[str] = ()) -> bytes:
        """A run as one file: its journal with its children, its large values, and which program wrote it.

        `redact` takes values out: `$.card.number` of every value, `charge:0.$.pan` of an op, `$..pan` at any depth.
        """
        return await self._capsules.export(id, redact=redact)

    async def import_run(self, data: bytes) -> RunView:
        """Bring a run from a file into this store, to be read and replayed; nothing executes it.

        A finished run is as it was, one that was not is parked here. A run that is here already is left as it is.
        Raises InvalidCapsule, and changes nothing, when the file is not as it was written; AlreadyExists when its id
        belongs to another run.
        """
        return await self._capsules.import_run(data)
