"""How a client reaches the runs: through their journals in the store, or through the engine that it is part of.

A client decides on the folded journal of a run what to append (`kernel/inbound`), and the append is written unless
another event came first; then it decides again, on the new state. `StoreGateway` appends from outside. An engine has
another implementation of the same protocol, which reaches the runs that are in its memory and leaves all others to the
`StoreGateway`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec

from perdure.client.base import StoreClient
from perdure.engine.turns import EXTERNAL_EVENTS, wait_for_turn
from perdure.errors import PerdureError
from perdure.kernel.events import Batch, RunStarted
from perdure.kernel.inbound import UNDECIDED, Accepted, Decide, Decided, Succession, Undecided, events_of
from perdure.kernel.projection import RunRow, row
from perdure.kernel.state import RunState
from perdure.kernel.step_records import Missed
from perdure.ports.appends import extend
from perdure.ports.journal import Appended, append_all

if TYPE_CHECKING:
    from perdure.kernel.invocation import Invocation
    from perdure.kernel.program import Program

T = TypeVar("T")
V = TypeVar("V")


async def decided(attempt: Callable[[], Awaitable[Decided[T] | Undecided]]) -> T:
    """Try until it is decided: the one loop in which a client retries after losing a race."""
    while True:
        outcome = await attempt()
        if isinstance(outcome, Decided):
            return outcome.value


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that is not in the store yet. Its first event: as its program sees it, and as its journal keeps it."""

    run_id: str
    started: RunStarted
    recorded: RunStarted


class RunGateway(Protocol):
    """How a client reaches the runs and the programs of this process. By default it has none of them."""

    def program(self, invocation: Invocation[Any]) -> Program | None:
        """The program that an invocation of a caller starts; None where this process does not have it."""
        ...

    async def load_program(self, name: str, version: str = "") -> None:
        """Load a program from its stored definition, in an engine that may."""
        return

    def find_program(self, name: str, version: str = "") -> Program | None:
        """The program of runs of this version, or the newest of its name; None where this process does not have it."""
        return None

    def begins_here(self, started: RunStarted) -> bool:
        """Whether a new run begins in this process at once; else it waits in the store for an engine."""
        return False

    async def start(self, new: NewRun) -> bool:
        """Accept a new run, durably; False when its id is not free."""
        ...

    async def start_many(self, new: Sequence[NewRun]) -> Sequence[bool | Exception]:
        """As `start`, for many runs in few commits; an exception says why one could not be accepted."""
        ...

    async def find_warm(self, id: str) -> str | None:
        """The run_id of a run of this id that is in memory here, if that is known without a query."""
        return None

    async def load(self, run: RunRow) -> None:
        """Load a run that is about to receive a message, if it waits here."""
        return

    async def tell(self, run_id: str, decide: Decide[V], caller: str = "") -> Decided[V | Accepted] | Undecided:
        """Append what `decide` makes of a run, once. `caller` names a writer that may have asked for its turn."""
        ...

    async def flush(self, run: RunRow) -> int | None:
        """Write what is only in memory here, with a snapshot, and say before which number; None if it is not here."""
        return None

    async def check_replay(self, id: str, run_id: str, past: Sequence[Batch], origin: Sequence[Batch] = ()) -> bool:
        """Raise ForkRefused if the code does not fit a journal. False if the code is not here.

        `origin`: the whole journal of the run that it retries, of which it has the outcomes.
        """
        return False

    def created(self, run_id: str, started: RunStarted) -> None:
        """A run with a past was put into the store: an engine may load it."""
        return

    async def step_arguments(self, run: RunRow, batches: Sequence[Batch], missed: Missed) -> dict[str, dict[str, Any]]:
        """The arguments of steps by op path, if the code is here; `missed` gets the nodes that did not run."""
        return {}


class StoreGateway(RunGateway):
    """Reaches runs through their journals in the store. Executes nothing, and has no programs.

    `ended` is called with the row of each run that ends by what is appended here.
    """

    def __init__(self, base: StoreClient, ended: Callable[[RunRow], None]) -> None:
        self._base, self._ended = base, ended

    def program(self, invocation: Invocation[Any]) -> Program | None:
        """The program of the invocation itself."""
        return invocation.program

    async def start(self, new: NewRun) -> bool:
        """Put a run into the store for any engine to begin; False when its id is not free."""
        return await self._base.append(extend(RunState(new.run_id), [new.recorded], self._base.clock.now()))

    async def start_many(self, new: Sequence[NewRun]) -> Sequence[bool | Exception]:
        """As `start`, for many runs in one commit."""
        now = self._base.clock.now()
        appends = [extend(RunState(one.run_id), [one.recorded], now) for one in new]
        try:
            outcomes = await append_all(self._base.store.journal, appends) if appends else ()
        except PerdureError as error:
            return [error] * len(new)
        return [isinstance(outcome, Appended) for outcome in outcomes]

    async def tell(self, run_id: str, decide: Decide[V], caller: str = "") -> Decided[V | Accepted] | Undecided:
        """Append what `decide` makes of a run's journal, once."""
        base, states = self._base, self._base.states
        state = await states.read(base.store.journal, run_id)
        # The owner may be about to write, and have come too late each time.
        while state.external >= EXTERNAL_EVENTS and await wait_for_turn(base.leases, base.clock, run_id, caller):
            states.remember(state)
            state = await states.read(base.store.journal, run_id)
        verdict = decide(state)
        events = events_of(verdict)
        if not events:
            states.remember(state)
            return Decided(Accepted() if events is not None else cast("V", verdict))
        # What is in memory is ahead of the store until this is accepted.
        states.forget(run_id)
        append = extend(state, events, base.clock.now())
        if isinstance(verdict, Succession):
            begun = extend(RunState(verdict.next.run_id), verdict.next.events, state.at)
            append = msgspec.structs.replace(append, starts=[begun])
        if not await base.append(append):
            return UNDECIDED
        states.remember(state)
        if state.finished is not None:
            self._ended(row(state))
        return Decided(Accepted())
