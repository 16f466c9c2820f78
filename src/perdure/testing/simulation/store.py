"""The store as one machine sees it: slow, sometimes unreachable, with lost replies. Its content is always right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, cast

from perdure.errors import StoreUnavailable
from perdure.kernel.events import SignalReceived
from perdure.kernel.ids import generated_id
from perdure.kernel.policies.durability import Durability
from perdure.kernel.state import fold
from perdure.ports.appends import extend
from perdure.ports.blobs import Blobs
from perdure.ports.journal import Append, Journal, Outcome
from perdure.ports.leases import Leases
from perdure.ports.queues import Queues
from perdure.ports.runs import Runs
from perdure.ports.store import Survives
from perdure.ports.timers import Timers
from perdure.ports.upkeep import Upkeep
from perdure.stores.memory.store import MemoryStore
from perdure.testing.simulation.faults import Crash, Faults, Pause
from perdure.testing.simulation.monitor import Monitor
from perdure.testing.simulation.world import Machine

JUMPS = (-3600.0, -5.0, -0.2, 0.2, 5.0, 3600.0)
LATE = (0.0, 0.01, 0.5, 5.0)
# How long after an append another client may write to the same run.
LATER = (0.0, 0.001, 0.01, 0.1, 0.5)


class FaultPlan:
    """Which append meets which fault: given ones, and random ones."""

    def __init__(self, faults: Faults, crashes: Sequence[Crash] = (), pauses: Sequence[Pause] = ()) -> None:
        self.faults = faults
        self.appends = 0
        self.crashed = 0
        self._crashes = {crash.at: crash for crash in crashes}
        self._pauses = {pause.at: pause for pause in pauses}

    def next(self, machine: Machine) -> Crash | Pause | None:
        """What happens to the machine at this append. Each append is counted."""
        number = self.appends
        self.appends += 1
        fault: Crash | Pause | None = self._crashes.get(number) or self._pauses.get(number)
        chance = machine.world.chance
        if fault is None and self.faults.crashes and chance.random() < self.faults.crashes:
            fault = Crash(number, chance.choice(("before", "after", "during")))
        if isinstance(fault, Crash):
            self.crashed += 1
        return fault


class SimulatedStore:
    """One machine's connection to the store that all machines share."""

    survives: Survives = "power_loss"

    def __init__(self, base: MemoryStore, machine: Machine, plan: FaultPlan, monitor: Monitor) -> None:
        self.url = base.url
        self._base = base
        self.journal = cast(Journal, SimulatedJournal(base, machine, plan, monitor))
        self.runs = cast(Runs, _Slow(base.runs, machine, plan.faults))
        self.timers = cast(Timers, _Slow(base.timers, machine, plan.faults))
        self.queues = cast(Queues, _Slow(base.queues, machine, plan.faults))
        self.leases = cast(Leases, _SlowLeases(base.leases, machine, plan.faults))
        self.blobs = cast(Blobs, _Slow(base.blobs, machine, plan.faults))
        self.upkeep = cast(Upkeep, _Slow(base.upkeep, machine, plan.faults))

    async def open(self, *, migrate: bool) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Everything stays for as long as the simulation does."""

    def check_durability(self, durability: Durability) -> None:
        """The faults decide what the simulated disk loses."""

    def version(self) -> object:
        """Changes with every append."""
        return self._base.version()

    def trace(self, callback: Callable[[str], None] | None) -> None:
        """Report each call that reads or writes."""
        self._base.trace(callback)


class _Slow:
    """A port whose methods take time, and sometimes fail."""

    def __init__(self, port: object, machine: Machine, faults: Faults) -> None:
        self._port, self._machine, self._faults = port, machine, faults

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._port, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._fate()
            result = await method(*args, **kwargs)
            await self._delay()
            return result

        setattr(self, name, call)
        return call

    async def _fate(self) -> None:
        if self._machine.in_function:
            return
        await self._delay()
        if self._faults.refusals and self._machine.world.chance.random() < self._faults.refusals:
            raise StoreUnavailable("memory://", "the simulation says so")

    async def _delay(self) -> None:
        if not self._machine.in_function and (len(self._faults.delays) > 1 or self._faults.delays[0]):
            delay = self._machine.world.chance.choice(self._faults.delays)
            if delay:
                await asyncio.sleep(delay)


class _SlowLeases(_Slow):
    """Leases without notifications, on which correctness must not depend."""

    async def watch(self, prefix: str) -> AsyncIterator[str]:
        """Nothing, and wait."""
        await self._machine.loop.create_future()
        yield prefix


class SimulatedJournal(_Slow):
    """The journals, with every fault an append can meet."""

    def __init__(self, base: MemoryStore, machine: Machine, plan: FaultPlan, monitor: Monitor) -> None:
        super().__init__(base.journal, machine, plan.faults)
        self._base, self._plan, self._monitor = base, plan, monitor

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome] | Awaitable[Sequence[Outcome]]:
        """Write an append, and reply at once, later, wrongly or never."""
        machine, faults = self._machine, self._plan.faults
        world, chance = machine.world, machine.world.chance
        number = self._plan.appends
        fault = self._plan.next(machine)
        if faults.clock_jumps and chance.random() < faults.clock_jumps:
            machine.clock.skew += chance.choice(JUMPS)
            self._monitor.note(machine.name, f"clock {machine.clock.skew:+}")
        if isinstance(fault, Crash) and fault.side != "after":
            self._monitor.note(machine.name, f"crash {fault.side} append {number}")
            machine.crash()
            if fault.side == "during":
                world.after(chance.choice(LATE), lambda: self._apply(appends))
            return machine.loop.create_future()
        refused = StoreUnavailable("memory://", f"the simulation says so at append {number}")
        if faults.refusals and chance.random() < faults.refusals:
            self._monitor.note(machine.name, f"append {number} refused")
            raise refused
        lost = bool(faults.lost_replies) and chance.random() < faults.lost_replies
        there, back = chance.choice(faults.delays), chance.choice(faults.delays)
        if isinstance(fault, Pause):
            self._monitor.note(machine.name, f"pause {fault.side} append {number}")
            machine.pause(fault.seconds)
            there, back = (fault.seconds, back) if fault.side == "before" else (there, fault.seconds)
        if there == 0 and back == 0:
            outcomes = self._apply(appends)
            if isinstance(fault, Crash):
                self._crash_after(number)
                return machine.loop.create_future()
            if lost:
                self._monitor.note(machine.name, f"reply {number} lost")
                raise refused
            return outcomes
        reply: asyncio.Future[Sequence[Outcome]] = machine.loop.create_future()

        def arrive() -> None:
            outcomes = self._apply(appends)
            if isinstance(fault, Crash):
                self._crash_after(number)
            else:
                world.after(back, lambda: answer(outcomes))

        def answer(outcomes: Sequence[Outcome]) -> None:
            if machine.dead or reply.done():
                return
            if lost:
                self._monitor.note(machine.name, f"reply {number} lost")
                reply.set_exception(refused)
            else:
                reply.set_result(outcomes)

        if there == 0:
            arrive()
        else:
            world.after(there, arrive)
        return reply

    def _crash_after(self, number: int) -> None:
        if not self._machine.dead:
            self._monitor.note(self._machine.name, f"crash after append {number}")
            self._machine.crash()

    def _apply(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        machine, journal = self._machine, self._base.journal
        faults, chance = self._plan.faults, machine.world.chance
        if faults.interference and chance.random() < faults.interference:
            self._interfere(chance.choice(appends).run_id)
        outcomes = journal.append(appends)
        self._monitor.answered(machine, appends, outcomes, journal.rows)
        if faults.interference and chance.random() < faults.interference:
            # Also while the owner has nothing to write: then it finds the event by polling, not by a conflict.
            run_id = chance.choice(appends).run_id
            machine.world.after(chance.choice(LATER), lambda: self._interfere(run_id))
        return outcomes

    def _interfere(self, run_id: str) -> None:
        """Send a signal that the run does not wait for."""
        watched = self._monitor.runs.get(run_id)
        if watched is None or watched.state.finished is not None or watched.state.parked is not None:
            return
        journal, seq = self._base.journal, watched.state.next_seq
        state = fold(run_id, watched.batches)
        append = extend(state, [SignalReceived("interference", signal_id=generated_id(str(seq)))], state.at)
        outcomes = journal.append([append])
        self._monitor.note("another sender", f"interferes with {run_id}")
        self._monitor.answered(self._machine, [append], outcomes, journal.rows)
