"""Run real engines in a simulation where time, randomness and faults come from one seed."""

from __future__ import annotations

import asyncio
import random
from asyncio import events
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from perdure.assembly import Engine
from perdure.client.client import Client
from perdure.client.views import RunResult
from perdure.config import Recovery
from perdure.engine.change_feed import ChangeFeed, ChangeFeedConfig, change_feed
from perdure.errors import StoreUnavailable, UsageError
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import STORED
from perdure.kernel.invocation import Invocation
from perdure.kernel.program import Program
from perdure.stores.memory.store import MemoryStore
from perdure.testing.simulation.checks import check_journal, unfinished
from perdure.testing.simulation.executor import VirtualExecutor
from perdure.testing.simulation.faults import Crash, Faults, Pause
from perdure.testing.simulation.messages import Sender, Sending
from perdure.testing.simulation.messages import judge as judge_senders
from perdure.testing.simulation.monitor import Monitor
from perdure.testing.simulation.report import Lost, PromiseBroken, Report
from perdure.testing.simulation.store import FaultPlan, SimulatedStore
from perdure.testing.simulation.world import Machine, World, seeded_entropy

T = TypeVar("T")
Programs = Iterable[Program] | Callable[[], Iterable[Program]]

START = datetime(2030, 1, 1, tzinfo=UTC).timestamp()
# Heartbeats are rare where no other orchestrator waits for them, so that a month goes by in a second.
CALM = Recovery(lease=3600.0, check_interval=3600.0)
# No quarantine: machines die so often here that no run is to blame.
BRISK = Recovery(lease=6.0, check_interval=4.0, quarantine=0)
# How often an engine polls for what other engines wrote. In a scenario it is notified.
CALM_POLL, BRISK_POLL = 600.0, 0.5
DOWNTIMES = (0.0, 0.1, 2.0, 10.0)


class Simulation:
    """A world with one store. The same seed gives the same trace, byte for byte.

    To test a workflow over time, play a scenario in it; time goes by only where the scenario waits for it:

        sim = Simulation(seed=1)

        async def scenario() -> None:
            async with sim.engine([remind]) as engine:
                run = await engine.start(remind("ada"), id="r1")
                await sim.advance(days=2)
                assert await run.status() == "completed"

        sim.play(scenario())

    To test that it survives, run it under faults. Every promise that perdure makes is checked on the way, and
    `PromiseBroken` raised when one does not hold:

        report = Simulation(seed=7, faults=STORMY).run(fulfil(order), crashes=[Crash(3), Crash(5, "after")])
        assert report.results["run-0"].output == ...

    Steps run on virtual time, in no thread and no process. Their code must take time and chance from what is simulated
    too: `asyncio.sleep`, `loop.time()`, `random`, `secrets` and `uuid` are; `time.time()` and the network are not.
    """

    def __init__(self, seed: int | str = 0, *, faults: Faults | None = None, start: float = START) -> None:
        self.seed = seed
        self.faults = faults or Faults(durations=(0.0,))
        self.world = World(seed, start)
        self._entropy = random.Random(f"entropy {seed}")
        self.store = MemoryStore()
        self.monitor = Monitor(self.world)
        self._plan = FaultPlan(self.faults)
        self._playing: Machine | None = None
        self._engines = 0
        self._notified: object = None
        self._poll_interval = CALM_POLL
        self._feeds: list[tuple[Machine, ChangeFeed]] = []

    # --- scenarios ------------------------------------------------------------------------------------------------

    def play(self, scenario: Coroutine[Any, Any, T], *, limit: float = 1e9, poll: float = CALM_POLL) -> T:
        """Run a coroutine in virtual time and return its result.

        What is still open when it ends is lost, as in a crash; another `play` continues with the same store and time.
        `poll`: how often engines poll the store, in virtual seconds. A change in the store makes them poll at once.
        """
        with self._world_in_force(poll):
            machine = self.world.machine("scenario")
            self._playing, self._feeds = machine, []
            self.world.on_tick = self._notify
            task = machine.loop.create_task(scenario)
            task.add_done_callback(lambda _: self.world.stop())
            try:
                ended = self.world.run(self.world.time + limit)
                problems = machine.loop.unasked() if not task.done() or task.exception() is None else []
                if self.monitor.violations or problems:
                    raise PromiseBroken(self.seed, [*self.monitor.violations, *problems], self.monitor.trace)
                if not ended:
                    raise UsageError("the scenario waits for something that will never happen")
                return task.result()  # type: ignore[no-any-return]
            finally:
                self._playing = None
                self.world.discard(machine)
                self.world.end()

    def engine(self, programs: Iterable[Program] = (), **options: Any) -> Engine:
        """An engine on the store of this simulation, for use in a scenario. Takes the options of `Engine`."""
        if self._playing is None:
            raise UsageError("sim.engine() works inside a scenario: sim.play(scenario())")
        self._engines += 1
        options.setdefault("name", f"engine-{self._engines}")
        options.setdefault("recovery", CALM)
        return self._engine(self._playing, programs, options)

    def client(self) -> Client:
        """A client of the store of this simulation, for use in a scenario: `async with sim.client() as client`."""
        if self._playing is None:
            raise UsageError("sim.client() works inside a scenario: sim.play(scenario())")
        return self._client(self._playing)

    def _client(self, machine: Machine) -> Client:
        client = Client(SimulatedStore(self.store, machine, self._plan, self.monitor), clock=machine.clock)
        self._set_polling(machine, client)
        return client

    def _set_polling(self, machine: Machine, client: Client) -> None:
        """Have an engine or client poll its store as often as this world wants."""
        config = ChangeFeedConfig(poll_interval=self._poll_interval)
        self._feeds.append((machine, change_feed(client.store, machine.loop, config)))

    def _notify(self) -> None:
        """Have engines and clients poll at once when the store has changed: they poll so rarely here."""
        version = self.store.version()
        if version == self._notified or self._playing is None:
            return
        self._notified = version
        for machine, feed in self._feeds:
            machine.loop.call_soon(feed.poll)

    async def advance(self, duration: float | timedelta = 0.0, /, **parts: float) -> None:
        """Let time pass: `await sim.advance(90)`, `await sim.advance(hours=2)`, with the names of `timedelta`."""
        seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
        await asyncio.sleep(seconds + timedelta(**parts).total_seconds())
        # Callbacks due at that time run before the caller continues.
        for _ in range(50):
            await asyncio.sleep(0)

    def now(self) -> datetime:
        """The time in the scenario."""
        clock = self._playing.clock.now() if self._playing else self.world.start + self.world.time
        return datetime.fromtimestamp(clock, UTC)

    # --- runs under faults ----------------------------------------------------------------------------------------

    def run(
        self,
        *invocations: Invocation[Any],
        programs: Programs | None = None,
        crashes: Sequence[Crash] = (),
        pauses: Sequence[Pause] = (),
        senders: Sequence[Sender] = (),
        engines: int = 1,
        limit: float = 36_000.0,
        recovery: Recovery = BRISK,
        watch: float = BRISK_POLL,
        start: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Report:
        """Run workflows to their ends under faults, and check every promise on the way.

        The runs get the ids `run-0`, `run-1` and so on. A machine that dies is replaced after a while, under its own
        name or another. `engines` machines work on the store at once. `senders` tell the runs something meanwhile, each
        from a machine of its own, and every answer they get is held against the journal. `programs` may be a function
        that makes them anew for each machine. `start` are options for `Engine.start`, others go to `Engine`. `watch`
        is how often engines look for what others wrote. PromiseBroken is raised when not all is well after `limit`
        virtual seconds.
        """
        if self._engines:
            raise UsageError("a Simulation runs once: make another one with the next seed")
        known = programs if programs is not None else [i.program for i in invocations if i.program is not None]
        storm = Storm(self, invocations, known, senders, {**options, "recovery": recovery}, start or {})
        self._plan = FaultPlan(self.faults, crashes, pauses)
        with self._world_in_force(watch):
            try:
                for number in range(engines):
                    storm.boot(f"m{number}", serves=number == 0)
                for sending in storm.senders:
                    storm.connect(sending)
                self._engines = engines
                if not self.world.run(limit):
                    stand = unfinished(watched.state for watched in self.monitor.runs.values())
                    self.monitor.accuse(f"not every run has ended after {limit:,.0f} seconds: {stand}")
                elif not self.monitor.violations:
                    self.world.after(0.0, storm.leave)
                    if not self.world.run(self.world.time + 300.0):
                        self.monitor.accuse("an engine cannot be closed")
                storm.judge()
                if self.monitor.violations:
                    raise PromiseBroken(self.seed, self.monitor.violations, self.monitor.trace)
                return storm.report()
            finally:
                self.world.end()

    # --- making the world -----------------------------------------------------------------------------------------

    @contextmanager
    def _world_in_force(self, poll_interval: float) -> Iterator[None]:
        if events._get_running_loop() is not None:
            raise UsageError("a simulation has event loops of its own: call it from a plain function")
        self._poll_interval = poll_interval
        with seeded_entropy(self._entropy):
            yield

    def _engine(self, machine: Machine, programs: Iterable[Program], options: dict[str, Any]) -> Engine:
        engine = Engine(
            SimulatedStore(self.store, machine, self._plan, self.monitor),
            programs,
            clock=machine.clock,
            executor=VirtualExecutor(machine, self.faults, self.monitor),
            **options,
        )
        self._set_polling(machine, engine)
        # Bodies are closed by their own loops: if the garbage collector closed them, they would run as plain functions.
        before = machine.on_end

        def end() -> None:
            before()
            if engine._orchestrator is not None:
                for driver in engine._orchestrator.active.values():
                    driver.replay.close()

        machine.on_end = end
        return engine


class Storm:
    """The state of one `Simulation.run`: its runs, and the machines that execute them."""

    def __init__(
        self,
        sim: Simulation,
        invocations: Sequence[Invocation[Any]],
        programs: Programs,
        senders: Sequence[Sender],
        options: dict[str, Any],
        start: Mapping[str, Any],
    ) -> None:
        self._sim, self._programs, self._options, self._start = sim, programs, options, start
        self.senders = [Sending(number, sender, sim.monitor) for number, sender in enumerate(senders)]
        self._served = False
        self._wanted = {f"run-{number}": invocation for number, invocation in enumerate(invocations)}
        self._engines: dict[Machine, Engine] = {}
        self._open: list[Machine] = []
        self._leaving = False
        self._names = 0
        self.accepted: set[str] = set()
        self.results: dict[str, RunResult[Any]] = {}
        self.lost: list[Lost] = []

    def boot(self, name: str, *, serves: bool) -> None:
        """Switch a machine on. The serving machine starts the runs and waits for them."""
        if self._leaving:
            return
        sim = self._sim
        machine = sim.world.machine(name)
        sim.monitor.note(name, "boot")
        programs = self._programs() if callable(self._programs) else self._programs
        engine = self._engines[machine] = sim._engine(machine, programs, {**self._options, "name": name})
        machine.on_crash = lambda: self._crashed(machine, serves)
        machine.task = machine.loop.create_task(self._live(machine, engine, serves))

    def _crashed(self, machine: Machine, serves: bool) -> None:
        sim = self._sim
        del self._engines[machine]
        if self._leaving:
            self._left()
            return
        for (run_id, op), at in sim.monitor.unsaved(machine).items():
            self.lost.append(Lost(run_id, op, at, sim.world.time))
        chance = sim.world.chance
        self._names += 1
        name = machine.name if chance.random() < 0.5 else f"{machine.name.partition('.')[0]}.{self._names}"
        sim.world.after(chance.choice(DOWNTIMES), lambda: self.boot(name, serves=serves))

    async def _live(self, machine: Machine, engine: Engine, serves: bool) -> None:
        try:
            try:
                engine = await engine.open()
            except StoreUnavailable:
                self._sim.monitor.note(machine.name, "could not open")
                machine.crash()  # a supervisor would start the process again
                return
            self._open.append(machine)
            if serves:
                async with asyncio.TaskGroup() as group:
                    for id, invocation in self._wanted.items():
                        group.create_task(self._request(engine, id, invocation))
                    for sending in self.senders:
                        if sending.sender.local:
                            group.create_task(sending.go_on(engine))
                self._served = True
                self._stop_when_done()
        except Exception as error:
            self._sim.monitor.accuse(f"{machine.name}: {error!r}")

    def connect(self, sending: Sending) -> None:
        """Switch on the machine of a sender, if it has its own. It is restarted when it dies."""
        if sending.sender.local or sending.done or self._leaving:
            return
        sim = self._sim
        machine = sim.world.machine(f"sender-{sending.number}")
        machine.on_crash = lambda: sim.world.after(sim.world.chance.choice(DOWNTIMES), lambda: self.connect(sending))
        machine.task = machine.loop.create_task(self._send(machine, sending))

    async def _send(self, machine: Machine, sending: Sending) -> None:
        sim = self._sim
        try:
            await sending.go_on(await sim._client(machine).open())
            self._stop_when_done()
        except Exception as error:
            sim.monitor.accuse(f"{machine.name}: {error!r}")

    def _stop_when_done(self) -> None:
        if self._served and all(sending.done for sending in self.senders):
            self._sim.world.stop()

    async def _request(self, engine: Engine, id: str, invocation: Invocation[Any]) -> None:
        while True:
            try:
                handle = await engine.start(invocation, id=id, **self._start)
                self.accepted.add(handle.run_id)
                self.results[id] = await handle.outcome()
                return
            except StoreUnavailable:
                await asyncio.sleep(0.2)

    def leave(self) -> None:
        """Close every engine in good order."""
        self._leaving = True
        for machine, engine in list(self._engines.items()):
            if machine not in self._open:
                self._sim.world.discard(machine)
                continue
            # A paused machine closes when it continues.
            machine.task = machine.loop.create_task(engine.close())
            machine.task.add_done_callback(lambda _: self._left())
        self._left()

    def _left(self) -> None:
        live = [machine for machine in self._open if not machine.dead]
        if self._leaving and all(machine.task is None or machine.task.done() for machine in live):
            self._sim.world.stop()

    def judge(self) -> None:
        """Check what can be checked only at the end."""
        sim = self._sim
        monitor, journal = sim.monitor, sim.store.journal
        for machine in sim.world.everyone:
            # Errors that the tasks of a dead machine raised at its end could not be handled any more.
            for problem in machine.loop.problems if machine.dead else machine.loop.unasked():
                monitor.accuse(f"{machine.name}: {problem}")
        judge_senders(self.senders, monitor)
        for run_id in sorted(self.accepted - set(monitor.runs)):
            monitor.accuse(f"the run {run_id} was accepted and is not in the store")
        for engine in self._engines.values():
            for run_id, watched in monitor.runs.items():
                started = watched.state.started
                assert started is not None
                if started.program == STORED:
                    continue  # a definition, which no program has written
                known, blobs = engine._programs, sim.store.blobs.blobs
                for problem in check_journal(known, run_id, watched.batches, engine.codec, blobs):
                    monitor.accuse(problem)
                row = journal.rows[run_id]
                if row.status is RunStatus.PARKED:
                    monitor.accuse(f"{row.id} is parked: {row.reason}")
                result = self.results.get(row.id)
                if result is not None and result.status is not row.status and not row.continued_as:
                    monitor.accuse(f"{row.id} was said to be {result.status}, and is {row.status}")
            break

    def report(self) -> Report:
        """The report of the simulation."""
        sim, runs = self._sim, self._sim.monitor.runs
        return Report(
            seed=sim.seed,
            trace=tuple(sim.monitor.trace),
            results=self.results,
            journals={w.state.started.id: tuple(w.batches) for w in runs.values() if w.state.started is not None},
            executions=tuple(sim.monitor.executions),
            appends=sim._plan.appends,
            elapsed=sim.world.time,
            crashes=sim._plan.crashed,
            lost=tuple(self.lost),
            replies=tuple(reply for sending in self.senders for reply in sending.replies),
            most_under_way=sim.monitor.most_under_way,
        )


def every_crash(
    *invocations: Invocation[Any], seed: int | str = 0, faults: Faults | None = None, **options: Any
) -> Iterator[Report]:
    """Run workflows once without a crash, and then once for every append and each way to die at it.

    Takes the options of `Simulation.run`.
    """
    calm = Simulation(seed, faults=faults).run(*invocations, **options)
    yield calm
    for number in range(calm.appends):
        for side in ("before", "after", "during"):
            crash = Crash(number, side)
            yield Simulation(seed, faults=faults).run(*invocations, crashes=[crash], **options)
