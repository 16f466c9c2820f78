"""Run old code up to a point, and other code from there.

The old code runs once for each scenario; what its store and its ledger hold after each commit is kept, which is what a
SIGKILL at that moment leaves behind. Every change is then tried on copies.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perdure import Engine, Invocation, PerdureError, Recovery, RunStatus, RunView, blocking, call
from perdure.cli.targets import Target, load
from perdure.cli.upgrade import upgrade_check
from perdure.graph import Graph
from perdure.kernel.events import SignalReceived
from perdure.kernel.ids import step_key
from tests.changes.ledger import WATCHES, effects
from tests.changes.model import Change, Family, Scenario, deployed

RUN = "run-1"
SCHEDULE = "tick"
# How long a run that goes on needs at most.
PATIENCE = 60.0
OUTCOMES = ("StepSucceeded", "StepFailed", "StepSkipped", "WaitResolved", "ChildFinished")


class Clock:
    """The machine's clock, set forward to where a sleep ends."""

    def __init__(self, start: float = 0.0) -> None:
        self.ahead = max(0.0, start - time.time())

    def now(self) -> float:
        """The time."""
        return time.time() + self.ahead

    def pass_by(self, moment: float) -> None:
        """Let this moment be past."""
        self.ahead = max(self.ahead, moment - time.time() + 0.001)


@dataclass(frozen=True)
class Point:
    """What a kill leaves behind: a store, a ledger, and what the journal of the run holds."""

    number: int
    store: Path
    ledger: str
    clock: float
    run: str
    run_id: str = ""
    # Whether it is not the first incarnation.
    continued: bool = False
    marks: frozenset[str] = frozenset()


@dataclass
class Ended:
    """How a session with some code ended, and all that it did."""

    status: str
    ledger: str
    view: RunView | None = None
    trouble: str = ""

    @property
    def effects(self) -> list[str]:
        """What was done, sorted."""
        return effects(self.ledger)


@dataclass
class Recording:
    """A scenario under the old code, and where it can be interrupted."""

    folder: Path
    reference: Ended
    points: list[Point] = field(default_factory=list)


@contextlib.contextmanager
def module(folder: Path, name: str, source: str) -> Iterator[Target]:
    """A module with this source, as a worker loads it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(source)
    with imported():
        yield load(str(file))


@contextlib.contextmanager
def imported() -> Iterator[None]:
    """Forget what is imported meanwhile: the next module has the same name."""
    modules, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if not name.startswith(("perdure", "tests")):
                del sys.modules[name]


class Session:
    """An engine with some code, on one store, for as long as the run goes on by itself or with its answers."""

    def __init__(self, store: Path, ledger: Path, target: Target, scenario: Scenario, clock: Clock) -> None:
        self.store, self.ledger, self.target = store, ledger, target
        self.scenario, self.clock = scenario, clock
        self.parked: asyncio.Event
        self.watch: Callable[[], None] | None = None
        self.run = RUN
        self.positional, self.existing = False, False

    def committed(self, id: str, append: Any) -> None:
        for batch in append.batches:
            for event in batch.events:
                self._note(id, event)
        if self.watch is not None:
            self.watch()

    def _note(self, id: str, event: Any) -> None:
        name, op = type(event).__name__, getattr(event, "op", "")
        if id.startswith(f"{SCHEDULE}@"):
            self.run = id
        if name == "RunParked":
            self.parked.set()
        if id != self.run:
            return
        if name == "WaitOpened" and event.deadline:
            passes = op in self.scenario.expire or "sleep:" in op
            if passes and op not in self.scenario.held:
                self.clock.pass_by(event.deadline)

    def engine(self) -> Engine:
        """An engine with the code, under the name that every session has: it follows on the one that was killed."""
        os.environ["LEDGER"] = str(self.ledger)
        self.parked = asyncio.Event()
        return Engine(
            f"sqlite:///{self.store}",
            self.target.programs.values(),
            steps=self.target.steps,
            queues=self.target.queues,
            codecs=self.target.codecs,
            name="worker",
            clock=self.clock,
            recovery=Recovery(grace=0),
            on_commit=self.committed,
        )

    async def schedule(self) -> None:
        """Create a schedule that fires when it is triggered, and leave."""
        async with self.engine() as engine:
            await engine.schedule(SCHEDULE, self._invocation(), cron="0 0 1 1 *", pause=True)

    async def go(self, begin: bool = False) -> Ended:
        """Open an engine, and answer what is asked until the run has ended or is parked."""
        trouble = ""
        async with self.engine() as engine:
            if begin:
                await self._begin(engine)
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._drive(engine)
            except TimeoutError:
                trouble = "it neither ends nor is parked"
            except PerdureError as error:
                trouble = f"{type(error).__name__}: {error}"
            view = await engine.get(self.run)
            assert view is not None
            status = "parked" if self.parked.is_set() else view.status.value
            if status == "parked" and view.status is not RunStatus.PARKED:
                view = await self._other_parked(engine) or view
        return Ended(status, self.ledger.read_text(), view, trouble)

    def _invocation(self) -> Invocation[Any]:
        inputs = self.scenario.inputs
        if self.positional and not isinstance(self.target.programs[self.scenario.program], Graph):
            return call(self.scenario.program, *inputs.values())
        return call(self.scenario.program, **inputs)

    async def _begin(self, engine: Engine) -> None:
        # It is stored when a version first runs, a moment later than the run begins; other runs came before this one.
        for program in self.target.programs.values():
            await engine.store.blobs.put(program.source().encode())
        if self.scenario.scheduled:
            if not self.existing:
                await engine.schedule(SCHEDULE, self._invocation(), cron="0 0 1 1 *", pause=True)
            self.run = await (await engine.schedule(SCHEDULE)).trigger()
            while await engine.get(self.run) is None:
                await asyncio.sleep(0.001)
        else:
            _ = await engine.start(self._invocation(), id=RUN)

    async def _drive(self, engine: Engine) -> None:
        while True:
            resting = asyncio.ensure_future(engine.handle(self.run).outcome(until="rest"))
            parking = asyncio.ensure_future(self.parked.wait())
            # A run rests only when no timer can end its wait.
            racing = 0.005 if self.scenario.held else 0.2
            try:
                await asyncio.wait({resting, parking}, return_when=asyncio.FIRST_COMPLETED, timeout=racing)
                if not resting.done() and not parking.done():
                    if self.scenario.held:
                        await self._answer_race(engine)
                    continue
                if not resting.done() or resting.result().status is RunStatus.PARKED:
                    return
            finally:
                resting.cancel(), parking.cancel()
            if resting.result().status.finished:
                break
            for asked in resting.result().interrupts:
                if asked.path not in self.scenario.expire:
                    await self._answer(engine, asked)
            await asyncio.sleep(0.001)
        while any(not run.status.finished for run in await engine.list()) and not self.parked.is_set():
            await asyncio.sleep(0.005)

    async def _answer_race(self, engine: Engine) -> None:
        view = await engine.get(self.run)
        for wait in view.waits if view is not None else ():
            if wait.kind == "signal":
                await engine.signal(self.run, wait.name, self._payload(wait.name, 0), signal_id=wait.name)

    async def _answer(self, engine: Engine, asked: Any) -> None:
        if asked.kind == "approval":
            await engine.approve(asked.id, asked.path, self._payload(asked.name, 0), by=self.scenario.by)
        else:
            events = [entry.event for entry in await engine.journal(asked.id)]
            sent = sum(isinstance(event, SignalReceived) and event.name == asked.name for event in events)
            payload = self._payload(asked.name, sent)
            await engine.signal(asked.id, asked.name, payload, signal_id=f"{asked.name}-{sent}")

    def _payload(self, name: str, sent: int) -> Any:
        answers = self.scenario.answers.get(name, [None])
        return answers[min(sent, len(answers) - 1)]

    async def _other_parked(self, engine: Engine) -> RunView | None:
        for program in (None, *(f"perdure.step.{step.name}" for step in self.target.steps)):
            for run in await engine.list(status="parked", program=program):
                return await engine.get(run.id)
        return None


def record(folder: Path, family: Family, scenario: Scenario) -> Recording:
    """Run the old code to its end, and keep what each commit leaves behind."""
    folder.mkdir(parents=True)
    store, ledger = folder / "store.db", folder / "ledger"
    ledger.touch()
    points: list[Point] = []
    keeping = threading.Lock()

    def keep(session: Session) -> None:
        with keeping:
            copied = folder / f"{len(points)}.db"
            # The log has checksums: what is being written to it right now is not there for the copy's reader.
            for suffix in ("", "-wal"):
                shutil.copy(f"{store}{suffix}", f"{copied}{suffix}")
            points.append(Point(len(points), copied, ledger.read_text(), session.clock.now(), session.run))

    with module(folder / "old", family.name, family.source) as target:
        session = Session(store, ledger, target, scenario, Clock())
        session.watch, session.positional = lambda: keep(session), True
        WATCHES.append(session.watch)
        try:
            ended = asyncio.run(session.go(begin=True))
        finally:
            WATCHES.clear()
    assert ended.status in ("completed", "failed"), ended
    recording = Recording(folder, ended)
    for point in points:
        run_id, found = marks(point.store, session.run)
        continued = bool(recording.points) and recording.points[0].run_id != run_id
        named = replace(point, run=session.run, run_id=run_id, continued=continued, marks=found)
        if recording.points and recording.points[-1].marks == named.marks:
            recording.points.pop()
        if named.marks:
            recording.points.append(replace(named, number=len(recording.points)))
    return recording


def marks(store: Path, run: str) -> tuple[str, frozenset[str]]:
    """The run_id, and what the journal holds; nothing when there is no such run yet, or when it has ended."""
    with blocking.connect(f"sqlite:///{store}") as client:
        view = client.get(run)
        if view is None or view.status.finished:
            return "", frozenset()
        found = {"start"}
        for event in (entry.event for entry in client.journal(run)):
            if op := getattr(event, "op", ""):
                found |= {op, f"{op}!"} if type(event).__name__ in OUTCOMES else {op}
            if getattr(event, "queue", "") and type(event).__name__ == "StepStarted":
                # The run that executes a remote step has its outcome before it reports it.
                own = [type(entry.event).__name__ for entry in client.journal(step_key(view.run_id, op))]
                found |= {f"{op}!"} if "StepSucceeded" in own else set()
        return view.run_id, frozenset(found)


class Case:
    """One change at one point."""

    def __init__(self, folder: Path, family: Family, scenario: Scenario, recording: Recording, point: Point) -> None:
        self.folder, self.family, self.scenario = folder, family, scenario
        self.recording, self.point = recording, point
        folder.mkdir(parents=True)
        self.store, self.ledger = folder / "store.db", folder / "ledger"
        self.clock = Clock(point.clock)
        for suffix in ("", "-wal"):
            if Path(f"{point.store}{suffix}").exists():
                shutil.copy(f"{point.store}{suffix}", f"{self.store}{suffix}")
        self.ledger.write_text(point.ledger)

    def fork(self, name: str) -> Case:
        """Another one, that stands where this one stands."""
        store = Point(self.point.number, self.store, self.ledger.read_text(), self.clock.now(), self.point.run)
        return Case(self.folder / name, self.family, self.scenario, self.recording, store)

    def check(self, source: str, name: str) -> tuple[str, str]:
        """What `upgrade-check` makes of this code: its verdict on the run, and why."""
        file = self.folder / name / f"{self.family.name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
        os.environ["LEDGER"] = str(self.ledger)
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
        with imported(), contextlib.redirect_stdout(out):
            upgrade_check(str(file), store=f"sqlite:///{self.store}", json=True)
        out.seek(0)
        runs = json.load(out)["runs"]
        return (runs[0]["fit"], runs[0]["reason"]) if runs else ("safe", "")

    def go(self, source: str, name: str) -> Ended:
        """Continue with this code."""
        with module(self.folder / name, self.family.name, source) as target:
            session = Session(self.store, self.ledger, target, self.scenario, self.clock)
            session.run = self.point.run
            return asyncio.run(session.go())


def fresh(folder: Path, family: Family, scenario: Scenario, source: str) -> Ended:
    """A run of this code from its beginning."""
    folder.mkdir(parents=True)
    ledger = folder / "ledger"
    ledger.touch()
    with module(folder / "new", family.name, source) as target:
        return asyncio.run(Session(folder / "store.db", ledger, target, scenario, Clock()).go(begin=True))


def chosen(change: Change, points: list[Point]) -> list[Point]:
    """Points that tell: around the one from which on the change matters, and the ends."""
    turn = next((n for n, point in enumerate(points) if bites(change, point) or change.keeps in point.marks), None)
    last = len(points) - 1
    if turn is None:
        numbers = {0, last // 3, 2 * last // 3, last}
    else:
        numbers = {max(turn - 1, 0), turn, (turn + last) // 2, last}
    return [points[number] for number in sorted(numbers)]


def bites(change: Change, point: Point) -> bool:
    """Whether the change is unsafe at this point."""
    return any(mark in point.marks for mark in change.bites.split("+"))


def edited(family: Family, change: Change) -> tuple[str, frozenset[int]]:
    """The changed source as it is deployed, and the lines that an explanation may name."""
    return deployed(change.source(family.source))
