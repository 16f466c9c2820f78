"""How an engine reaches runs: those in its memory through its orchestrator, all others through the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from perdure.authoring.code.frames import arguments
from perdure.client.base import StoreClient
from perdure.client.forking import refused
from perdure.client.gateway import NewRun, StoreGateway
from perdure.engine.definitions import DefinedPrograms
from perdure.errors import NotDecodable, UsageError
from perdure.kernel.events import Batch, RunStarted, RunStatus
from perdure.kernel.inbound import Accepted, Decide, Decided, Undecided
from perdure.kernel.invocation import EncodedInvocation, Invocation
from perdure.kernel.program import Program
from perdure.kernel.projection import RunRow
from perdure.kernel.step_records import Missed
from perdure.orchestrator.orchestrator import Orchestrator, Taken
from perdure.orchestrator.residency import EntryRequest
from perdure.orchestrator.sweep import Counts

V = TypeVar("V")


class LocalGateway(StoreGateway):
    """Reaches runs through the orchestrator of this process, while there is one, and falls back to the store."""

    def __init__(
        self,
        base: StoreClient,
        definitions: DefinedPrograms,
        serves: Sequence[str] | None,
        ended: Callable[[RunRow], None],
    ) -> None:
        super().__init__(base, ended)
        self.programs, self._definitions, self._serves = definitions.programs, definitions, serves
        self.orchestrator: Orchestrator | None = None
        # Whether the engine is being closed, and waits for steps under way.
        self.leaving = False
        # What a sweep that has this engine for itself may still begin.
        self.counts: Counts | None = None

    # --- programs -------------------------------------------------------------------------------------------------

    def program(self, invocation: Invocation[Any]) -> Program | None:
        """The program that an invocation starts, in its latest definition."""
        if isinstance(invocation, EncodedInvocation):
            return self.programs.get(invocation.name)
        own = invocation.program
        if own is not None:
            self.programs.renew(own)
        return self.programs.find(invocation.name, own.version if own is not None else "")

    async def load_program(self, name: str, version: str = "") -> None:
        """Make a program of its stored definition, if that is not here."""
        await self._definitions.load_version(name, version)

    def find_program(self, name: str, version: str = "") -> Program | None:
        """The program of runs of this version, or the newest of its name."""
        try:
            return self.programs.find(name, version)
        except UsageError:
            return None  # it is not here, not in that version, or cannot be imported

    # --- new runs -------------------------------------------------------------------------------------------------

    def begins_here(self, started: RunStarted) -> bool:
        """Whether a new run begins in this engine at once; else it waits in the store for its turn."""
        waits = started.queue or started.not_before is not None or self._serves is not None
        # The run of a tick belongs to the tick; a sweep begins any other when it polls again, and counts it.
        counted = self.counts is not None and not started.schedule
        return not waits and not counted and started.program in self.programs

    async def start(self, new: NewRun) -> bool:
        """Begin a run here, or put it into the store for its turn to come."""
        if self.leaving:
            # A step that may still end must not fail for this: the run it starts waits for another engine.
            return await super().start(new)
        orchestrator = self._accepting()
        if not self.begins_here(new.started):
            accepted = await super().start(new)
            self._wait_for_turn(orchestrator, new.started)
            return accepted
        try:
            await orchestrator.start(new.run_id, new.started, new.recorded)
        except Taken:
            return False
        except NotDecodable:
            if not new.started.schedule:
                raise
            # The schedule was made for other code: the run of its tick is parked, and continues when its input fits.
            accepted = await super().start(new)
            orchestrator.enter_soon(new.run_id)
            return accepted
        return True

    async def start_many(self, new: Sequence[NewRun]) -> Sequence[bool | Exception]:
        """As `start`, for many runs in few commits."""
        if self.leaving:
            return await super().start_many(new)
        orchestrator = self._accepting()
        here = [one for one in new if self.begins_here(one.started)]
        apart = [one for one in new if not self.begins_here(one.started)]
        # Begun in one turn of the loop, they share a commit.
        begun = await asyncio.gather(
            *(orchestrator.start(one.run_id, one.started, one.recorded) for one in here), return_exceptions=True
        )
        outcomes: dict[str, bool | Exception] = {}
        for one, outcome in zip(here, begun, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                raise outcome
            outcomes[one.run_id] = not isinstance(outcome, Taken) and (outcome is None or outcome)
        for one, accepted in zip(apart, await super().start_many(apart), strict=True):
            outcomes[one.run_id] = accepted
            self._wait_for_turn(orchestrator, one.started)
        return [outcomes[one.run_id] for one in new]

    def _accepting(self) -> Orchestrator:
        orchestrator = self.orchestrator
        if self._base.forked:
            self._base.check_process()
        if orchestrator is None or orchestrator.session.closing:
            raise UsageError("this Engine is not open; use it as `async with Engine(...) as engine`")
        if orchestrator.session.retired.is_set():
            raise UsageError(
                f"another process was started under the name {orchestrator.name!r}, and has taken over the runs of "
                "this Engine; give each process a name of its own: Engine(name=...)"
            )
        return orchestrator

    def _wait_for_turn(self, orchestrator: Orchestrator, started: RunStarted) -> None:
        """A run was put into the store to wait: have the orchestrator poll when its turn comes."""
        if started.queue:
            orchestrator.wakeups.queued()
        elif started.not_before is not None:
            orchestrator.wakeups.due(started.not_before)
        if started.deadline is not None:
            orchestrator.wakeups.due(started.deadline)
        if self.counts is not None:
            self.counts.begun.set()

    def created(self, run_id: str, started: RunStarted) -> None:
        """Load a run with a past, if its program is here."""
        if self.orchestrator is not None and started.program in self.programs:
            self.orchestrator.enter_soon(run_id)

    # --- messages -------------------------------------------------------------------------------------------------

    async def find_warm(self, id: str) -> str | None:
        """The run_id of a run of this id that waits here; it is loaded if it was evicted."""
        orchestrator = self.orchestrator
        run_id = orchestrator.warm.find(id) if orchestrator is not None and isinstance(id, str) else None
        if orchestrator is None or run_id is None:
            return None
        if run_id not in orchestrator.active:
            await orchestrator.enter(EntryRequest((run_id,)))
        driver = orchestrator.active.get(run_id)
        if driver is not None and driver.state.finished is None:
            return run_id
        orchestrator.warm.forget(id)
        return None

    async def load(self, run: RunRow) -> None:
        """Load a run that waits here: it is read once, and continues in the commit that accepts the message."""
        orchestrator = self.orchestrator
        if orchestrator is None or self.counts is not None:
            return
        if run.owner == orchestrator.name and run.status is RunStatus.WAITING:
            await orchestrator.enter(EntryRequest((run.run_id,)))

    async def tell(self, run_id: str, decide: Decide[V], caller: str = "") -> Decided[V | Accepted] | Undecided:
        """Append through the driver of a run that is in memory, and through the store otherwise."""
        orchestrator = self.orchestrator
        if orchestrator is None:
            return await super().tell(run_id, decide, caller)
        if run_id in orchestrator.active:
            return await orchestrator.inbox.deliver(run_id, decide)
        outcome = await super().tell(run_id, decide, caller)
        if isinstance(outcome, Decided) and isinstance(outcome.value, Accepted):
            # The run was evicted, and may be ours: it need not wait for the next poll. In the background, since what
            # was accepted stays accepted whether or not the run can be read.
            if self.counts is None:
                orchestrator.enter_soon(run_id)
            else:
                self.counts.begun.set()
        return outcome

    async def flush(self, run: RunRow) -> int | None:
        """Write what is only in memory, then a snapshot."""
        orchestrator, run_id = self.orchestrator, run.run_id
        if orchestrator is None or run.status.finished or run.status is RunStatus.PARKED:
            return None
        if run_id not in orchestrator.active and run.owner == orchestrator.name:
            await orchestrator.enter(EntryRequest((run_id,)))
        written = await self._written(orchestrator, run_id)
        driver = orchestrator.active.get(run_id)
        if driver is None:
            return written
        await orchestrator.snapshot_taker.take(driver)
        return await self._written(orchestrator, run_id) or written

    async def _written(self, orchestrator: Orchestrator, run_id: str) -> int | None:
        """The number before which the events of a run in memory are durable, as soon as they are."""
        while run_id in orchestrator.active:
            outcome = await orchestrator.inbox.deliver(run_id, lambda state: state.next_seq)
            if isinstance(outcome, Decided) and isinstance(outcome.value, int):
                return outcome.value
        return None

    # --- replay ---------------------------------------------------------------------------------------------------

    async def check_replay(self, id: str, run_id: str, past: Sequence[Batch], origin: Sequence[Batch] = ()) -> bool:
        """Replay a journal that is not in the store yet."""
        started = past[0].events[0]
        assert isinstance(started, RunStarted)
        if self.orchestrator is None or started.program not in self.programs:
            return False
        try:
            await self.orchestrator.loader.check_replay(run_id, past, origin)
        except Exception as error:
            raise refused(id, error) from error
        return True

    async def step_arguments(self, run: RunRow, batches: Sequence[Batch], missed: Missed) -> dict[str, dict[str, Any]]:
        """Replay a run, and read the arguments of its steps, and which nodes of it did not run."""
        orchestrator = self.orchestrator
        found: dict[str, dict[str, Any]] = {}
        started = await self._base.payloads.with_input(batches)
        if orchestrator is None or not self.programs.serves(started.program, started.version):
            return {}
        whole = await self._base.payloads.inflate(batches)

        def replay() -> None:
            run_id = run.root or run.run_id
            found.update(arguments(self.programs, self._base.codec, run_id, started, whole, missed))

        await orchestrator.in_callback(replay)
        return found
