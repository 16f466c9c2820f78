"""One process under the name of an orchestrator: what its parts share.

That is what it has (the store, the table of runs), who it is as an owner in journals, whether it works, and its tasks.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from perdure.config import Recovery
from perdure.engine.driver import Driver
from perdure.errors import StoreUnavailable, UsageError
from perdure.kernel.events import RunClaimed
from perdure.kernel.policies.versions import Programs
from perdure.kernel.state import RunState
from perdure.kernel.values.raised import contained
from perdure.logs import log
from perdure.orchestrator.observer import Observer, Wakeups
from perdure.orchestrator.residency import RunTable
from perdure.orchestrator.sources import ProgramSources
from perdure.ports.clock import Clock
from perdure.ports.store import Store

T = TypeVar("T")

SUSPENDED = "no heartbeat of this engine succeeded in time, and it starts nothing until one does; try again"
_CLOSED = "this engine was closed before the run was in the store; start it again, with the same id"


@dataclass(frozen=True, slots=True)
class OrchestratorConfig:
    """Durations are in seconds."""

    store_retry: float = 1.0
    """How long a store that is out of reach is left alone before the next try."""
    idle: float = 1.0
    """A run that waits for longer than this is evicted."""
    warm: float = 1.0
    """How long an idle run that may get a message is kept in memory."""
    trial: float = 1.0
    """How long an owner has to live with the steps of a suspect before it clears it."""
    trial_poll: float = 0.1
    """How often it is checked whether suspects on trial make progress."""
    close_log: float = 1.0
    """How long closing may take before the log says what it waits for."""
    close_poll: float = 0.5
    """How often, while closing, due runs are handed over that are owned and not in memory."""
    unparked_log: float = 1.0
    """For how long runs that continue after having been parked are counted before their number is logged."""
    drain: float = 5.0
    """How long the store may take for the last events."""


class Session:
    """Shared by the parts of an orchestrator."""

    def __init__(
        self,
        name: str,
        store: Store,
        programs: Programs,
        clock: Clock,
        recovery: Recovery,
        serves: Sequence[str] | None,
        observer: Observer,
        config: OrchestratorConfig,
    ) -> None:
        self.name, self.id = name, secrets.token_hex(4)
        self.store, self.programs, self.clock, self.recovery, self.config = store, programs, clock, recovery, config
        # The queues whose runs it takes; None: all of them, and runs that are in none.
        self.serves = serves
        self.observer, self.wakeups = observer, Wakeups()
        self.loop = asyncio.get_running_loop()
        self.runs = RunTable(self.loop, self.not_accepted)
        self.sources = ProgramSources(store, programs, self.spawn, clock.now())
        # No heartbeat succeeded in time: nothing is advanced until one does.
        self.suspended = False
        # It is closing, and starts nothing; and it has abandoned its running steps.
        self.closing = self.leaving = False
        # Another process was started under the same name: this one has stopped permanently.
        self.retired = asyncio.Event()
        # In a sweep, where nothing else advances runs here: set when a run has started another. Idle runs are evicted
        # at once then, and the runs that they start are left to the sweep.
        self.sweep_began: asyncio.Event | None = None
        # In any sweep: the runs that were claimed since it began.
        self.claimed: set[str] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # --- as journals name it --------------------------------------------------------------------------------------

    def owns(self, state: RunState) -> bool:
        """Whether a run was claimed by this process last."""
        return state.owner == self.name and state.session == self.id

    def claim(
        self,
        state: RunState,
        version: str = "",
        *,
        early: bool = False,
        tried: int = 0,
        names: tuple[str, ...] = (),
    ) -> RunClaimed:
        """The event by which this process becomes the owner of a run, or shows that it survived it."""
        code = self.sources.changed(state)
        return RunClaimed(self.name, state.epoch + 1, self.id, version, early, tried, names, code, counts=True)

    def acknowledge(self, driver: Driver) -> None:
        """Record that external events were processed, if no other pending event shows it."""
        state = driver.state
        if state.has_external_event and state.finished is None:
            driver.record(self.claim(state))

    # --- whether it works -----------------------------------------------------------------------------------------

    @property
    def at_work(self) -> bool:
        """Whether runs are advanced here."""
        return not self.closing and not self.suspended

    def not_accepted(self) -> Exception:
        """Why a start was not accepted."""
        return StoreUnavailable(self.store.url, SUSPENDED if self.suspended else _CLOSED)

    # --- in the background ----------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something in the background. An error is logged, and cancels nothing else."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log_fault(error, "orchestrator %s: unexpected error in a background task; others continue", self.name)

    def cancel_tasks(self) -> None:
        """End everything in the background."""
        for task in list(self._tasks):
            task.cancel()

    async def in_callback(self, function: Callable[[], T]) -> T:
        """Call a function that drives bodies, which must not happen inside a task. Returns and raises as it does."""
        done: asyncio.Future[T] = self.loop.create_future()

        def call() -> None:
            try:
                result = function()
            except BaseException as error:
                if not done.done():
                    done.set_exception(contained(error))
            else:
                if not done.done():
                    done.set_result(result)

        self.loop.call_soon(call)
        return await done

    async def in_turns(self, parts: Generator[None, None, T]) -> T:
        """Do work that drives bodies a part at a time; everything else on the loop has its turn in between."""
        try:
            while (done := await self.in_callback(lambda: _next(parts))) is None:
                await asyncio.sleep(0)
            return done.value
        finally:
            self.loop.call_soon(parts.close)  # a body must not be closed inside a task

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call a function that reads or compiles code, which takes long, and touches neither bodies nor the loop."""
        try:
            done = self.loop.run_in_executor(None, function)
        except UsageError:  # a simulation, which has no threads
            return function()
        return await done


class _Done(Generic[T]):
    """The result of work in parts."""

    def __init__(self, value: T) -> None:
        self.value = value


def _next(parts: Generator[None, None, T]) -> _Done[T] | None:
    try:
        next(parts)
    except StopIteration as done:
        return _Done(done.value)
    return None


def log_fault(error: BaseException, message: str, *args: object) -> None:
    """Log an error of the engine's own. A loop that has a handler for errors in callbacks is notified as well."""
    log.error(message, *args, exc_info=error)
    loop = asyncio.get_running_loop()
    if loop.get_exception_handler() is not None:
        loop.call_exception_handler({"message": message % args, "exception": error, "fault": True})
