"""Virtual time and the machines that live in it. Knows nothing of workflows, stores or faults.

Every machine has an event loop of its own; the world runs their callbacks one after another, in an order drawn from its
seed. Time stops while anything is ready, and jumps to the next timer when nothing is.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from perdure.testing.simulation.loop import VirtualLoop


class MachineClock:
    """The wall clock of one machine: the world's time, and how far off this clock is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.skew = 0.0

    def now(self) -> float:
        """Seconds since the epoch, by this machine's clock."""
        return self._world.start + self._world.time + self.skew


class Machine:
    """A process with its own event loop and clock. It can be paused, and it can die."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.clock = MachineClock(world)
        self.loop = VirtualLoop(lambda: world.time)
        self.dead = False
        self.paused_until = 0.0
        # Whether it is in a plain function, which nothing can interrupt: the store replies at once.
        self.in_function = False
        # Its purpose.
        self.task: asyncio.Task[Any] | None = None
        # Called when it dies by a fault, and when the simulation discards it.
        self.on_crash: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None

    def pause(self, seconds: float) -> None:
        """Pause, as in a long garbage collection; then continue as if nothing had happened."""
        self.paused_until = self.world.time + seconds
        self.loop.halted = True

    def crash(self) -> None:
        """Die at once: no callback, no `finally`, nothing of this machine runs any more."""
        self.off()
        self.on_crash()

    def off(self) -> None:
        """Stop for good, without a word."""
        self.dead = True
        self.loop.halted = True

    @property
    def runnable(self) -> bool:
        """Whether a callback of this machine could run now."""
        return not self.dead and self.paused_until <= self.world.time and bool(self.loop.ready)


class World:
    """All machines, and their shared virtual time."""

    def __init__(self, seed: int | str, start: float) -> None:
        self.chance = random.Random(seed)
        self.start = start
        self.time = 0.0
        self.machines: list[Machine] = []
        self._dead: list[Machine] = []
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = 0
        self._stopped = False
        # Called between bursts of callbacks.
        self.on_tick: Callable[[], None] = lambda: None

    def machine(self, name: str) -> Machine:
        """A new machine, alive."""
        machine = Machine(self, name)
        self.machines.append(machine)
        return machine

    @property
    def everyone(self) -> list[Machine]:
        """All machines, dead ones included."""
        return self._dead + self.machines

    def after(self, delay: float, callback: Callable[[], object]) -> None:
        """Call back later, outside of any machine: a message in transit, a machine that is started."""
        self._numbers += 1
        heapq.heappush(self._events, (self.time + delay, self._numbers, callback))

    def stop(self) -> None:
        """Make `run` return as soon as the current callback has ended."""
        self._stopped = True
        for machine in self.machines:
            machine.loop.halted = True

    def run(self, limit: float) -> bool:
        """Let the machines live until `stop` is called; False when time reached `limit` or nothing is left."""
        self._stopped = False
        chance = self.chance
        while not self._stopped:
            if any(machine.dead for machine in self.machines):
                # Kept until the end: were they collected now, their coroutines would run their `finally` blocks.
                self._dead += [machine for machine in self.machines if machine.dead]
                self.machines = [machine for machine in self.machines if not machine.dead]
            runnable = [machine for machine in self.machines if machine.runnable]
            if len(runnable) == 1:
                # In bursts, because other machines may become ready by what it does.
                runnable[0].loop.run_ready(64)
            elif runnable:
                chance.choice(runnable).loop.run_ready(chance.choice((1, 2, 8, 64)))
            elif not self._jump(limit):
                return False
            self.on_tick()
        return True

    def _jump(self, limit: float) -> bool:
        """Advance time to the next timer, and make its callbacks ready."""
        moments = [self._events[0][0]] if self._events else []
        for machine in self.machines:
            timer = self.time if machine.loop.ready else machine.loop.next_timer()
            if timer is not None:
                moments.append(max(timer, machine.paused_until))
        if not moments or min(moments) > limit:
            return False
        self.time = max(self.time, min(moments))
        while self._events and self._events[0][0] <= self.time:
            heapq.heappop(self._events)[2]()
        for machine in self.machines:
            if machine.paused_until <= self.time:
                machine.loop.ring(self.time)
        return True

    def discard(self, machine: Machine) -> None:
        """Switch a machine off permanently."""
        machine.off()
        if machine in self.machines:
            self.machines.remove(machine)
            self._dead.append(machine)

    def end(self) -> None:
        """Discard every machine. Coroutines that never ended get their GeneratorExit here, after everything."""
        for machine in self.machines:
            machine.off()
        for machine in self.everyone:
            machine.on_end()
            machine.loop.dispose()
        self.machines, self._dead, self._events = [], [], []


@contextmanager
def seeded_entropy(source: random.Random) -> Iterator[None]:
    """Replace the system's random bytes by a source: for `secrets`, `uuid4`, `random`."""
    module: Any = random
    state, system, imported = random.getstate(), os.urandom, module._urandom
    os.urandom = module._urandom = source.randbytes
    random.seed(source.getrandbits(64))
    try:
        yield
    finally:
        os.urandom, module._urandom = system, imported
        random.setstate(state)
