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
    """A connection to a store: starts runs for engines elsewhere to execute, sends them messages, and reads them."""

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
        """Start a run durably and return a handle to it. If the id is in use, do what `reuse` says.

        A run in a `queue` begins when the limits of the queue allow it: higher `priority` first, and keys take turns.
        With `debounce` it begins once no other start under its id, or its queue and key, has come for that long; the
        starts that came before share one run, which begins with the last input.
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
        """Start many runs in few commits: invocations, or `Start(invocation, id=..., ...)` with their own options.

        The report has one item for each, in order: a handle, or why the run could not be started. A start that fails
        does not stop the others. Where several have the same id, `reuse` decides, as it does for a run that exists.
        """
        return await self._starts.start_many(starts)

    @overload
    def handle(self, id: str) -> RunHandle[Any]: ...
    @overload
    def handle(self, id: str, program: Callable[..., Invocation[R]]) -> RunHandle[R]: ...
    def handle(self, id: str, program: Callable[..., Invocation[Any]] | None = None) -> RunHandle[Any]:
        """A handle of the run under an id, without starting anything: `engine.handle("order-123", fulfil)`.

        It follows the latest run under the id, also when that continues as another run. With the workflow, the result
        is typed, and decoded as the workflow returns it. Nothing is read here: methods of a handle whose run does not
        exist raise NoSuchRun.
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
        """Start a run and wait until it ends, however it ends. Takes the options of `start`.

        With `until="rest"` it returns as soon as the run cannot continue without a person, and `.interrupts` lists what
        the run asks for. Called again with the same id and `answers={name: answer}`, it answers, as `by`, and waits
        again.
        """
        if until not in get_args(Until):
            raise UsageError(f"until={until!r} is neither 'end' nor 'rest'")
        return await (await self.start(invocation, **options)).outcome(until=until, answers=answers, by=by)

    # --- messages -----------------------------------------------------------------------------------------------------

    async def signal(
        self, id: str, name: str, payload: Any = None, signal_id: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run a signal, durably. It is kept until the run waits for it; a `signal_id` deduplicates it.

        Raises SignalRejected when the run waits for a signal of this name and of another type.
        """
        return await self._messages.signal(id, name, payload, signal_id)

    async def feed(
        self, id: str, input: Any, input_id: str | None = None, name: str = INPUT
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run its next input, durably: `async for input in inputs()` in its body receives inputs in order.

        An `input_id` deduplicates it. Raises SignalRejected when the run waits for an input of another type.
        """
        return await self._messages.signal(id, name, input, input_id)

    async def approve(
        self, id: str, name: str, payload: Any, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Answer an open approval of a run, by its name or its path; of several with one name, the oldest.

        Raises AnswerRejected when the answer does not fit the schema, or `by` is not one of the approvers.
        """
        return await self._messages.approve(id, name, payload, approval_id, by)

    async def reject(
        self, id: str, name: str, reason: str | None = None, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Reject an open approval of a run: its body gets an ApprovalRejected. The rules are those of `approve`."""
        return await self._messages.reject(id, name, reason, approval_id, by)

    async def cancel(self, id: str, reason: str | None = None) -> Cancelled | AlreadyFinished:
        """Ask a run to end. Its body gets a CancelledError and may clean up. Either it or the completion wins."""
        return await self._messages.cancel(id, reason)

    async def pause(self, id: str, reason: str | None = None) -> Accepted | Finished:
        """Begin no new step of a run. Steps under way finish, and their outcomes are kept."""
        return await self._messages.pause(id, reason)

    async def resume(self, id: str) -> Accepted | Finished:
        """Let a paused run continue."""
        return await self._messages.resume(id)

    async def checkpoint(self, id: str) -> int:
        """Make everything durable that a run has done so far, and return the number of the next event.

        This is for the lazy durability modes; in the others everything is durable already. An engine that owns the run
        also stores a snapshot, so that the next owner replays less. A client cannot write the memory of another
        process: the UsageError names the owner.
        """
        return await self._messages.checkpoint(id)

    async def resolve(
        self, id: str, *, version: str | None = None, fail: str | None = None, before: str | None = None
    ) -> Accepted | Finished:
        """Let a parked run continue: engines try it again at once.

        `version` pins the run to that version of its program; `fail` ends it as failed, for that reason. `before` lets
        it continue from right before an op, as a new incarnation under its id; the answer lists the steps that may be
        executed again. Raises NotParked when the run is not parked.
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
        """Start a run that has the past of another up to a point, and continues independently from there.

        `at` is an op path, for the point right before that op, or the number of the first event to leave out. Without
        it the fork begins right after the last op that is edited, at the beginning when `inputs` are given, or else
        where the run is now. `values` gives ops another outcome, by op path; `inputs` gives the workflow other
        arguments, by name; `state` replaces values of set_state(). Raises ForkRefused when the code does not fit the
        past that is kept. `set` is the former name of `values`, and deprecated.
        """
        if set is not None and values is not None:
            raise UsageError("fork(set=...) is the former name of values=...; give one of them")
        return await self._forks.fork(id, at, values if set is None else set, inputs, new_id, state=state)

    async def time_travel(
        self, id: str, step: str, inputs: Mapping[str, Any] | None = None, new_id: str | None = None
    ) -> RunHandle[Any]:
        """Start a run that continues right before a step of another, with other arguments for that step.

        `step` is an op path such as `process:2` or `rag:1/generate:0`. `inputs` are arguments by name; the others stay
        as they were. A child takes them too.
        """
        return await self._forks.time_travel(id, step, inputs, new_id)

    async def retry(self, id: str) -> RunHandle[Any]:
        """Continue a failed or cancelled run from where it failed, and keep all that succeeded.

        It continues under the same id as a new incarnation. What failed is tried again with its whole retry policy and
        the same idempotency key. Raises CannotRetry, before anything is executed, when the run would get no further.
        """
        return await self._forks.retry(id)

    # --- many runs at once --------------------------------------------------------------------------------------------

    async def retry_many(
        self, *, limit: int = 1000, cursor: str | None = None, dry_run: bool = False, **filters: Unpack[RunFilters]
    ) -> BulkReport[RunHandle[Any]]:
        """Retry the runs that match, by default those that failed: at most `limit`, newest first.

        Of several runs under one id only the latest counts.
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
        """Begin no new step of the runs that match, by default of all that are queued, running or waiting."""
        going = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING)
        return await self._bulk.each(
            "pause_many", filters, going, lambda id: self.pause(id, reason), limit, cursor, dry_run
        )

    async def resume_many(
        self, *, limit: int = 1000, cursor: str | None = None, dry_run: bool = False, **filters: Unpack[RunFilters]
    ) -> BulkReport[Accepted | Finished]:
        """Let the paused runs that match continue."""
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
        """Send a signal to the unfinished runs that match; a `signal_id` deduplicates it for each of them."""
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
        """Start a run at every tick, durably. A schedule that exists under this id is changed to this definition.

        Its runs are started with these options of `start`; `tags` are added to those of the schedule, and each run has
        `deadline` seconds. Without an invocation: a handle of the schedule as it is.
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
        """All schedules, by id."""
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
        """Remove runs of these statuses that ended longer ago than that, with their children and large values.

        Runs that have not ended are never removed. The id of a pruned run is free again. With `archive` each run is
        first written into a capsule in that directory, and kept if that fails. A blob is collected when no run refers
        to it and it was not put again for `grace`; what was put with `blobs.put` stays. Works in small commits beside
        running engines; if it is interrupted, the rest is pruned next time.
        """
        return await self._pruner.prune(older_than, statuses, dry_run, archive=archive, grace=grace)

    async def compact(self, id: str, *, dry_run: bool = False) -> CompactReport:
        """Remove from a finished run's journal what its steps emitted before they ended: chunks and progress.

        Results, attempts with their errors, owners, signals and answers stay, so replay and audit still work. Events
        are renumbered. An unfinished run does not need this: its owner takes snapshots.
        """
        return await compact(self._base, id, dry_run=dry_run)

    async def rebuild(self, *, dry_run: bool = False) -> RebuildReport:
        """Recompute the row of every run from its journal, report where the stored row differs, and replace it.

        Safe beside running engines: a row is replaced only if its journal has not changed meanwhile. A damaged journal
        is reported, and the others are rebuilt.
        """
        return await self._rebuilder.rebuild(dry_run=dry_run)

    async def export(self, id: str, *, redact: Sequence[str] = ()) -> bytes:
        """A run as one file, a capsule: its journal with its children, its large values, and which program wrote it.

        `redact` removes values: `$.card.number` from every value, `charge:0.$.pan` from an op, `$..pan` at any depth.
        """
        return await self._capsules.export(id, redact=redact)

    async def import_run(self, data: bytes) -> RunView:
        """Import a run from a capsule into this store, to be read and replayed; nothing executes it.

        A run that had not ended is parked here. A run that is already in this store is left as it is. Raises
        InvalidCapsule, and changes nothing, when the file was altered; AlreadyExists when its id belongs to another
        run.
        """
        return await self._capsules.import_run(data)
