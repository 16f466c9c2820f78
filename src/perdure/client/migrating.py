"""Move runs of flows to another version of their flow: after a trial replay, in one commit. Executes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from perdure.client.base import StoreClient
from perdure.client.definitions import Definitions
from perdure.client.forking import Forks, create_with_past
from perdure.client.gateway import RunGateway, decided
from perdure.client.handle import Handles, RunHandle
from perdure.client.messages import Messages
from perdure.client.queries import pages
from perdure.errors import (
    AlreadyExists,
    CannotMigrate,
    Diverged,
    NoSuchRun,
    NotDecodable,
    PerdureError,
    StoreUnavailable,
    UsageError,
)
from perdure.kernel.divergence.recorder import explained, follow
from perdure.kernel.divergence.repair import Repairs
from perdure.kernel.events import Batch, ChildStarted, RunClaimed, RunFinished, RunStarted, RunStatus
from perdure.kernel.history import fork as forks
from perdure.kernel.history.ops import ops
from perdure.kernel.history.retry_points import check_retry, retried, withdrawals
from perdure.kernel.ids import BATCH, check_text, step_key
from perdure.kernel.inbound import UNDECIDED, Decided, Undecided, refuse_redacted
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Program, is_program
from perdure.kernel.projection import RunRow, row
from perdure.kernel.replay import Replay, open_replay
from perdure.kernel.state import fold
from perdure.kernel.values.raised import contained
from perdure.ports.appends import create, extend
from perdure.ports.blobs import sources_of
from perdure.ports.runs import RunFilter

T = TypeVar("T")
_PAGE = 500
_REASON = "it continues with another version of its flow"
_FIX = (
    "The run stays as it is. To run {op} again with the other version: perdure flow migrate ID --to FILE --before {op}"
)


class TriedRun(msgspec.Struct, frozen=True):
    """An open run of another version. It fits unless there is a `reason`."""

    id: str
    run_id: str
    version: str
    status: RunStatus
    reason: str = ""


class Migrations:
    """Moves runs to other versions of their flows."""

    def __init__(
        self,
        base: StoreClient,
        gateway: RunGateway,
        messages: Messages,
        forks: Forks,
        handles: Handles,
        definitions: Definitions,
    ) -> None:
        self._base, self._gateway, self._messages = base, gateway, messages
        self._forks, self._handles, self._definitions = forks, handles, definitions

    async def migrate(
        self, id: str, flow: Program, *, before: str | None = None, by: str | None = None, dry_run: bool = False
    ) -> RunHandle[Any] | Sequence[str]:
        """See `Client.migrate_flow`."""
        self._base.check_open()
        if not is_program(flow) or not flow.definition:
            raise UsageError(f"migrate_flow() takes a flow, as load_flow() gives it, not {flow!r:.80}")
        op, person = None if before is None else check_text(before, "before"), check_text(by, "by")
        run, batches = await self._forks.origin(id)
        self._check(run, flow)
        if run.status in (RunStatus.FAILED, RunStatus.CANCELLED) and op is None:
            return await self._retried(run, batches, flow, person, dry_run)
        if run.status.finished:
            raise CannotMigrate(run.id, f"it has {run.status}; fork it, or start another one")
        if dry_run:
            _, past = await self._tried(run, batches, flow, op)
            return _again(batches, past)
        await self._definitions.keep(flow, for_one_run=True)
        return await self._moved(run.id, flow, op, person)

    async def try_runs(self, flow: Program) -> Sequence[TriedRun]:
        """See `Client.try_runs`."""
        found: list[TriedRun] = []
        open_ = [status for status in RunStatus if not status.finished]
        async for page in pages(self._base.store, RunFilter(open_, flow.name, limit=_PAGE)):
            for run in page:
                if run.root or run.version == flow.version:
                    continue
                reason = ""
                try:
                    await self._tried(run, await self._base.store.journal.read(run.run_id), flow, None)
                except CannotMigrate as error:
                    reason = error.reason
                found.append(TriedRun(run.id, run.run_id, run.version, run.status, reason))
        return found

    def _check(self, run: RunRow, flow: Program) -> None:
        if run.program.endswith(BATCH):
            raise CannotMigrate(run.id, "it is a batch, whose rows have begun; cancel it, and start another one")
        if run.program != flow.name:
            raise CannotMigrate(run.id, f"it is a run of {run.program!r}, and this is {flow.name!r}")
        if run.version == flow.version:
            raise CannotMigrate(run.id, f"it has version {flow.version} already")

    # --- open runs --------------------------------------------------------------------------------------------------

    async def _moved(self, id: str, flow: Program, op: str | None, by: str) -> RunHandle[Any]:
        """End a run, and continue it in a new journal, in one commit."""

        async def attempt() -> Decided[RunHandle[Any]] | Undecided:
            run, batches = await self._forks.origin(id)
            if run.status.finished:
                raise CannotMigrate(run.id, f"it has {run.status} meanwhile")
            run_id, past = await self._tried(run, batches, flow, op)
            state = fold(run.run_id, batches)
            refuse_redacted(state)
            now = self._base.clock.now()
            remote = [path for path, open_op in state.ops.items() if open_op.kind == "remote"]
            self._base.states.forget(run.run_id)
            end = extend(state, [RunFinished(RunStatus.CANCELLED, reason=_REASON, continued_as=run_id)], now)
            begin = create(run_id, forks.asked_by(past, by))
            if not await self._base.append(msgspec.structs.replace(end, starts=[begin])):
                return UNDECIDED
            self._gateway.created(run_id, _started(past))
            self._base.watch.resolve(row(state))
            for path in remote:
                with suppress(NoSuchRun):
                    await self._messages.cancel(step_key(run.run_id, path), _REASON)
            return Decided(self._handles.of(run.id, run_id, flow))

        return await decided(attempt)

    async def _tried(
        self, run: RunRow, batches: Sequence[Batch], flow: Program, op: str | None
    ) -> tuple[str, list[Batch]]:
        """The journal of a run under another version, and its new run_id. Raises CannotMigrate if it does not fit."""
        now, state = self._base.clock.now(), fold(run.run_id, batches)
        if state.cancel_requested is not None:
            raise CannotMigrate(run.id, "it is being cancelled")
        before, run_id = forks.started_of(batches), self._base.new_run_id(now)
        place = ("queue", "queue_key", "priority", "not_before") if state.epoch == 0 else ()
        started = forks.beginning(
            batches,
            run.run_id,
            now,
            incarnation=run.incarnation + 1,
            parent=before.parent,
            continued_from=run.run_id,
            version=flow.version,
            structure=flow.structure,
            deadline=before.deadline,
            # Open attempts begin again, as after a crash; before an op, it is another call.
            keys=(before.keys or run.run_id) if op is None else "",
            **{name: getattr(before, name) for name in place},
        )
        point = forks.at_end(batches) if op is None else forks.before(batches, op)
        past = forks.fork(batches, point, started, now, moved=0.0)
        if state.paused is not None:
            last = past[-1]
            past[-1] = Batch(last.seq, last.at, [*last.events, state.paused])
        error = await self._misfit(run_id, batches, past, flow)
        if error is not None:
            raise CannotMigrate(run.id, error)
        return run_id, past

    # --- failed runs ------------------------------------------------------------------------------------------------

    async def _retried(
        self, run: RunRow, batches: Sequence[Batch], flow: Program, by: str, dry_run: bool
    ) -> RunHandle[Any] | Sequence[str]:
        """Retry a run with another version."""
        now = self._base.clock.now()
        before, run_id = forks.started_of(batches), self._base.new_run_id(now)
        started = forks.beginning(
            batches,
            run.run_id,
            now,
            incarnation=run.incarnation + 1,
            keys=before.keys or run.run_id,
            max_rounds=before.max_rounds,
            version=flow.version,
            structure=flow.structure,
        )
        wrong: str | None = None
        for without in withdrawals(batches):
            past = retried(batches, without, started, now)
            error = await self._misfit(run_id, batches, past, flow)
            if error is None:
                break
            wrong = wrong or error
        else:
            raise CannotMigrate(run.id, wrong or "nothing of it can be tried again")
        if dry_run:
            return sorted(without.ops)
        await self._definitions.keep(flow, for_one_run=True)
        if not await create_with_past(self._base, run_id, forks.asked_by(past, by)):
            raise AlreadyExists(run.id, run.status, "migrate_flow")
        self._gateway.created(run_id, started)
        return self._handles.of(run.id, run_id, flow)

    # --- whether it fits --------------------------------------------------------------------------------------------

    async def _misfit(self, run_id: str, batches: Sequence[Batch], past: Sequence[Batch], flow: Program) -> str | None:
        """Why a journal does not fit a flow; None if it does. Nothing is executed."""
        payloads, programs = self._base.payloads, Programs([flow])
        for name, version in _children(past):
            child = self._gateway.find_program(name, version) or await self._definitions.defined(name, version)
            if child is not None and name != flow.name:
                programs.put(child, newest=False)
        started, whole = await payloads.with_input(past), await payloads.inflate(past)
        try:
            flow.check_input(started.input, self._base.codec)
        except NotDecodable as error:
            return str(error)
        sources = await sources_of(self._base.store.blobs, batches)
        opened: Callable[[type[Replay]], Replay] = partial(_opened, programs, run_id, started, self._base.codec, whole)

        def tried() -> None:
            replay = follow(opened, whole, programs, other_code=True)
            try:
                if replay.state.epoch == 0:
                    try:
                        replay.fold(RunClaimed("", 1), whole[-1].at)
                    except NotDecodable as error:
                        raise explained(error, opened, whole, programs) from None
                for _ in replay.check_ahead(failing=True):
                    pass
                if replay.state.kept is not None:
                    check_retry(replay, started.id, "failed", whole[-1].at)
                    _check_kept(replay)
            finally:
                replay.close()

        try:
            await _in_callback(tried)
        except StoreUnavailable:
            raise
        except (Diverged, NotDecodable) as error:
            told = Repairs(programs).repaired(error, whole, sources, lambda others: False)
            divergence = getattr(told, "divergence", None)
            if divergence is None:
                return str(told)
            return str(msgspec.structs.replace(divergence, fix=_FIX.format(op=divergence.op), patch="", changed=""))
        except PerdureError as error:
            return str(error)
        return None


def _opened(
    programs: Programs, run_id: str, started: RunStarted, codec: Any, whole: Sequence[Batch], kind: type[Replay]
) -> Replay:
    return open_replay(programs, run_id, started, codec, whole, kind=kind)


def _started(past: Sequence[Batch]) -> RunStarted:
    started = past[0].events[0]
    assert isinstance(started, RunStarted)
    return started


def _children(past: Sequence[Batch]) -> Iterable[tuple[str, str]]:
    """The programs of children that are not part of the flow, with their versions."""
    events = (event for batch in past for event in batch.events if isinstance(event, ChildStarted))
    return dict.fromkeys((event.program, event.version) for event in events if event.structure or event.version)


def _check_kept(replay: Replay) -> None:
    """Refuse to run finished ops again with other arguments: check the ops with which the retried run begins."""
    kept = replay.state.kept
    for op in replay.open_steps:
        if kept is not None and op in kept.entries and kept.entries[op].kind == "succeeded":
            raise UsageError(f"{op} has run, and now has other arguments")


def _again(batches: Sequence[Batch], past: Sequence[Batch]) -> list[str]:
    """The ops of a run that are not in its next journal, so that they run again."""
    kept = ops(past)
    return [path for path, op in ops(batches).items() if op.kind in ("step", "remote") and path not in kept]


async def _in_callback(work: Callable[[], T]) -> T:
    """Call a function outside of any task, because bodies must not be driven inside one."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def call() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(contained(error))

    loop.call_soon(call)
    return await done
