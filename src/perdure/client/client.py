"""Everything a caller can do with a store, except execute."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Raw

from perdure.client.handle import RunHandle
from perdure.client.states import States, check_answer
from perdure.client.views import Loaded, RunPage, RunResult, RunView, StepView, run_view, step_view
from perdure.client.watch import WATCH_SECONDS, Watch
from perdure.config import Limits
from perdure.engine.payloads import Payloads
from perdure.errors import AlreadyExists, Corrupt, NoSuchRun, UsageError
from perdure.kernel import inbound
from perdure.kernel.codec import Codec, TypeCodec
from perdure.kernel.commands import Program
from perdure.kernel.durability import Durability
from perdure.kernel.durability import durability as durability_of
from perdure.kernel.events import AnyEvent, Batch, CancelRequested, Entry, RunFinished, RunStarted, RunStatus, entries
from perdure.kernel.ids import check_id, check_name
from perdure.kernel.ids import run_id as make_run_id
from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate, Finished, NotFound
from perdure.kernel.invocation import Invocation
from perdure.kernel.projection import RunRow, row
from perdure.kernel.reuse import Reuse, decide
from perdure.kernel.state import RunState, fold
from perdure.kernel.steps import steps as steps_of
from perdure.ports.blobs import Blobs
from perdure.ports.clock import Clock, SystemClock
from perdure.ports.journal import Append, Appended, Head, Outcome
from perdure.ports.runs import RunFilter
from perdure.ports.store import Store

R = TypeVar("R")
Duration = float | timedelta


class Client:
    """A connection to a store: starts runs for engines elsewhere to execute, and reads."""

    def __init__(
        self,
        store: Store,
        *,
        limits: Limits | None = None,
        codecs: Iterable[TypeCodec[Any]] = (),
        clock: Clock | None = None,
        durability: str | Durability = "sync",
    ) -> None:
        self.store = store
        self.codec = Codec(codecs)
        self.clock: Clock = clock or SystemClock()
        self.payloads = Payloads(store.blobs, limits or Limits())
        self._durability = durability_of(durability)
        self._watch: Watch | None = None
        self._last_run_id = ""
        self._states = States()

    # --- connecting -----------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Connect. `async with` and `await` do this too."""
        await self.store.open(migrate=False)
        self._watch = Watch(self.store)
        return self

    async def close(self) -> None:
        """Disconnect."""
        if self._watch is not None:
            await self._watch.close()
            self._watch = None
            await self.store.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    @property
    def watch(self) -> Watch:
        """Who waits for which run."""
        self._check_open()
        assert self._watch is not None
        return self._watch

    def _check_open(self) -> None:
        if self._watch is None:
            kind = type(self).__name__
            raise UsageError(f"this {kind} is not open; use it as `async with {kind}(...)`")

    @property
    def blobs(self) -> Blobs:
        """The blob store: `put(bytes) -> id`, `get(id) -> bytes | None`."""
        return self.store.blobs

    # --- starting -------------------------------------------------------------------------------------------------

    async def start(
        self,
        invocation: Invocation[R],
        *,
        id: str | None = None,
        reuse: Reuse = "return_existing",
        delay: Duration | None = None,
        deadline: Duration | datetime | None = None,
        max_concurrency: int | None = None,
        durability: str | Durability | None = None,
        tags: dict[str, str] | None = None,
    ) -> RunHandle[R]:
        """Start a run, durably, and return a handle to it; with an id that is in use, do what `reuse` says."""
        self._check_open()
        if not isinstance(invocation, Invocation):
            raise UsageError(f"start() needs an invocation such as fulfil(order), not {invocation!r}")
        program = self._program(invocation)
        decide(reuse, None)
        if id is not None:
            check_id(id)
        now = self.clock.now()
        started, recorded = await self._prepare(
            invocation, program, now, delay, deadline, max_concurrency, durability, tags
        )
        while True:
            found = await self.store.runs.find(id) if id is not None else None
            existing = found[0] if found is not None else None
            decision = decide(reuse, existing.status if existing is not None else None)
            if existing is not None:
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
        tags: dict[str, str] | None,
    ) -> tuple[RunStarted, RunStarted]:
        """The first event: as the program sees it, and as the journal keeps it when the input is large."""
        data = invocation.encode(program, self.codec)
        what = f"the input of {invocation.name}"
        inline = self.payloads.fits_inline(len(data), what)
        started = RunStarted(
            id="",
            program=invocation.name,
            version=program.version if program is not None else "",
            input=Raw(data),
            tags=_tags(tags),
            durability=str(durability_of(durability) if durability is not None else self._durability),
            not_before=None if delay is None else now + _seconds(delay, "delay"),
            deadline=_deadline(deadline, now),
            max_concurrency=_at_least_one(max_concurrency),
        )
        if inline:
            return started, started
        blob = await self.payloads.offload(data, what)
        return started, _with(started, input=Raw(b"null"), input_blob=blob)

    async def _submit(self, run_id: str, started: RunStarted, recorded: RunStarted) -> bool:
        """Put a run into the store for any engine to take up; False when its id is not free."""
        state = RunState(run_id)
        now = self.clock.now()
        state.fold(recorded, now)
        return await self._append(Append(run_id, 0, [Batch(0, now, [recorded])], row(state)))

    async def _append(self, append: Append) -> bool:
        outcomes = self.store.journal.append([append])
        done: Sequence[Outcome] = outcomes if isinstance(outcomes, Sequence) else await outcomes
        return isinstance(done[0], Appended)

    async def _terminate(self, existing: RunRow, reason: str) -> None:
        """End a run by an event of its own, whoever owns it. Of this and its completion one wins."""
        while True:
            batches = await self.store.journal.read(existing.run_id)
            state = fold(existing.run_id, batches)
            if state.finished is not None:
                return
            seq, now = state.next_seq, max(self.clock.now(), state.at)
            events: list[AnyEvent] = [CancelRequested(reason), RunFinished(RunStatus.CANCELLED, reason=reason)]
            for event in events:
                state.fold(event, now)
            if await self._append(Append(existing.run_id, seq, [Batch(seq, now, events)], row(state))):
                self.watch.resolve(row(state))
                return

    # --- telling --------------------------------------------------------------------------------------------------

    async def signal(
        self, id: str, name: str, payload: Any = None, signal_id: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run a signal, durably. It is kept until the run waits for it; a `signal_id` makes it arrive once."""
        check_name(name, "the name of a signal")
        data = self.codec.encode(payload, f"the payload of the signal {name!r}")
        self.payloads.fits_inline(len(data), f"the payload of the signal {name!r}")
        # With an id of its own even if the caller has none: a write whose reply is lost is tried again.
        key = signal_id or f"~{secrets.token_hex(8)}"
        verdict: Accepted | Duplicate | NotFound | Finished
        verdict = await self._tell(id, lambda state: inbound.signal(state, name, Raw(data), key))
        return verdict

    async def approve(
        self, id: str, name: str, payload: Any, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Answer an open approval of a run. Raises AnswerRejected when the answer does not fit what was asked."""
        data = self.codec.encode(payload, f"the answer to {name!r}")
        key = approval_id or f"~{secrets.token_hex(8)}"

        def decide(state: RunState) -> Any:
            now = self.clock.now()
            return inbound.answer(state, name, Raw(data), key, by or "", now, lambda asked: check_answer(asked, data))

        verdict: Accepted | Duplicate | NotFound | Finished = await self._tell(id, decide)
        return verdict

    async def cancel(self, id: str, reason: str | None = None) -> Cancelled | AlreadyFinished:
        """Ask a run to end. Its body gets a CancelledError and may clean up. Of this and its completion one wins."""
        verdict: Accepted | AlreadyFinished | NotFound
        verdict = await self._tell(id, lambda state: inbound.cancel(state, reason or ""))
        if isinstance(verdict, NotFound):
            raise NoSuchRun(id)
        return Cancelled() if isinstance(verdict, Accepted) else verdict

    async def pause(self, id: str, reason: str | None = None) -> Accepted | Finished:
        """Let no new step of a run begin. Steps under way go on, and their outcomes are kept."""
        verdict: Accepted | NotFound | Finished
        verdict = await self._tell(id, lambda state: inbound.pause(state, reason or ""))
        if isinstance(verdict, NotFound):
            raise NoSuchRun(id)
        return verdict

    async def resume(self, id: str) -> Accepted | Finished:
        """Let a paused run go on."""
        verdict: Accepted | NotFound | Finished = await self._tell(id, inbound.resume)
        if isinstance(verdict, NotFound):
            raise NoSuchRun(id)
        return verdict

    async def _tell(self, id: str, decide: Callable[[RunState], Any]) -> Any:
        """Append what `decide` makes of the run's journal, and say Accepted; or say why nothing was appended."""
        found = await self._find(id)
        if found is None:
            return NotFound()
        while True:
            verdict = await self._try_to_tell(found[0].run_id, decide)
            if verdict is not None:
                return verdict

    async def _try_to_tell(self, run_id: str, decide: Callable[[RunState], Any]) -> Any:
        """As `_tell`; None when another event came first."""
        state = await self._states.read(self.store.journal, run_id)
        verdict = decide(state)
        if not isinstance(verdict, Sequence) or not verdict:
            self._states.remember(state)
            return verdict if not isinstance(verdict, Sequence) else Accepted()
        seq, now = state.next_seq, max(self.clock.now(), state.at)
        for event in verdict:
            state.fold(event, now)
        # What is in memory is ahead of the store until this is accepted.
        self._states.forget(run_id)
        if not await self._append(Append(run_id, seq, [Batch(seq, now, verdict)], row(state))):
            return None
        self._states.remember(state)
        if state.finished is not None:
            self.watch.resolve(row(state))
        return Accepted()

    # --- asking ---------------------------------------------------------------------------------------------------

    async def get(self, id: str) -> RunView | None:
        """The latest run under an id, or None."""
        found = await self._find(id)
        if found is None:
            return None
        run, head = found
        state = fold(run.run_id, await self.store.journal.read(run.run_id))
        return run_view(await self._load(run), head, state)

    async def list(
        self,
        *,
        status: RunStatus | str | Sequence[RunStatus | str] | None = None,
        program: str | None = None,
        tags: dict[str, str] | None = None,
        since: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """Runs, newest first, a page at a time."""
        self._check_open()
        wanted = [status] if isinstance(status, str) else list(status or ())
        if limit < 1:
            raise UsageError(f"list(limit={limit}): ask for at least one run")
        filter = RunFilter(
            status=[_status(s) for s in wanted],
            program=program,
            tags=_tags(tags),
            since=since.timestamp() if since is not None else None,
            limit=limit + 1,  # one more than asked for tells whether there is another page
            cursor=cursor,
        )
        found = await self.store.runs.list(filter)
        page = RunPage([run_view(await self._load_or_say(run), head) for run, head in found[:limit]])
        page.cursor = page[-1].run_id if len(found) > limit else None
        return page

    async def steps(self, id: str) -> Sequence[StepView]:
        """The steps of a run with their attempts, in the order they began."""
        run, _ = await self._require(id)
        lives = run.status.finished or await self._lives(run.owner)
        records = steps_of(await self.store.journal.read(run.run_id))
        return [step_view(r, await self.payloads.load(r.output_blob, r.output), lives) for r in records]

    async def _lives(self, owner: str | None) -> bool:
        if owner is None:
            return False
        return await self.store.leases.get(f"orchestrator:{owner}", self.clock.now()) is not None

    async def journal(self, id: str, start: int = 0) -> Sequence[Entry]:
        """The events of a run from number `start` on."""
        run, _ = await self._require(id)
        return entries(run.run_id, await self.store.journal.read(run.run_id, start), start)

    async def follow(self, id: str, start: int = 0) -> AsyncIterator[Entry]:
        """The events of a run from number `start` on, as they come, until it ends."""
        run, _ = await self._require(id)
        version: object = object()
        while True:
            current = self.store.version()
            if current != version:
                version = current
                for entry in entries(run.run_id, await self.store.journal.read(run.run_id, start), start):
                    yield entry
                    start = entry.seq + 1
                    if isinstance(entry.event, RunFinished):
                        return
                head = await self.store.journal.head(run.run_id)
                found = await self.store.runs.get(run.run_id)
                if found is None or head is None or (found.status.finished and head.next_seq <= start):
                    return
            await asyncio.sleep(WATCH_SECONDS)

    async def _find(self, id: str) -> tuple[RunRow, Head] | None:
        self._check_open()
        found = await self.store.runs.find(id)
        if found is not None:
            return found
        # A run_id names one incarnation.
        run, head = await self.store.runs.get(id), await self.store.journal.head(id)
        return (run, head) if run is not None and head is not None else None

    async def _require(self, id: str) -> tuple[RunRow, Head]:
        found = await self._find(id)
        if found is None:
            raise NoSuchRun(id)
        return found

    async def _load_or_say(self, run: RunRow) -> Loaded:
        """As `_load`; a run whose values cannot be read is listed without them, and with the reason."""
        try:
            return await self._load(run)
        except Corrupt as damage:
            return Loaded(msgspec.structs.replace(run, reason=str(damage)))

    async def _load(self, run: RunRow) -> Loaded:
        return Loaded(
            run,
            await self.payloads.load(run.input_blob, run.input),
            await self.payloads.load(run.output_blob, run.output),
        )


def _with(started: RunStarted, **changes: Any) -> RunStarted:
    return msgspec.structs.replace(started, **changes)


def _seconds(value: Duration, what: str) -> float:
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e11:
        raise UsageError(f"{what}={value!r} must be a number of seconds or a timedelta, and not negative")
    return float(number)


def _deadline(value: Duration | datetime | None, now: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UsageError(f"deadline={value!r} has no timezone; write datetime.now(UTC) + timedelta(...)")
        return value.astimezone(UTC).timestamp()
    return now + _seconds(value, "deadline")


def _tags(tags: dict[str, str] | None) -> dict[str, str] | None:
    if not tags:
        return None
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in tags.items()):
        raise UsageError(f"tags={tags!r}: names and values of tags are strings")
    return dict(tags)


def _at_least_one(value: int | None) -> int | None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise UsageError(f"max_concurrency={value!r} must be at least 1")
    return value


def _status(value: RunStatus | str) -> RunStatus:
    try:
        return RunStatus(value)
    except ValueError:
        raise UsageError(f"{value!r} is no status; there are {', '.join(RunStatus)}") from None
