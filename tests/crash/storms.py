"""Orchestrators that work on what is queued, and what happened to them: for storms on stores named by a URL."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from perdure import Engine, Recovery, RunStatus, StoreUnavailable, connect
from tests.crash import programs
from tests.crash.harness import (
    PATIENCE,
    Child,
    Children,
    Effect,
    Journal,
    check_executions,
    create,
    effects_by_run,
    until,
)
from tests.crash.network import audit

STEPS = 5
CONCURRENCY = 24
# Longer than a busy machine lets a process wait for its turn: who stops work in time does so without a kill. That a
# process is dead is known to the machine it was on, whatever is left of its lease.
LEASE = 30.0
CHECK_INTERVAL = 0.6


def orchestrate(url: str, place: str, name: str, lease: float, leases: str | None) -> str:
    """Work off what is queued, until nothing is left and the file `drained` says that no more will come.

    While there is no server to begin with, it tries again. The file `open-PID` says that it has begun.
    """
    programs.log_effects(os.path.join(place, "effects"))
    drained = os.path.join(place, "drained")
    # Kills come at random: no run is to blame.
    recovery = Recovery(check_interval=min(lease / 8, CHECK_INTERVAL), lease=lease, grace=0.1, quarantine=0)

    async def work() -> str:
        engine = Engine(url, [programs.five], recovery=recovery, name=name, max_concurrency=CONCURRENCY, leases=leases)
        async with engine:
            Path(place, f"open-{os.getpid()}").touch()
            while not engine.superseded.is_set():
                with suppress(StoreUnavailable):
                    if os.path.exists(drained) and not await engine.store.runs.programs():
                        return "drained"
                await asyncio.sleep(0.1)
        return "superseded"

    while True:
        try:
            return asyncio.run(work())
        except StoreUnavailable:
            time.sleep(0.05)


async def queue(url: str, runs: int, seconds: float) -> None:
    """Create the store and queue runs in it, as a client does that executes nothing itself."""
    await create(url)
    async with connect(url) as client:
        ids = iter(range(runs))

        async def some() -> None:
            for n in ids:
                _ = await client.start(programs.five(n, seconds), id=f"run-{n}")

        await asyncio.gather(*(some() for _ in range(16)))


@dataclass
class Storm:
    """Orchestrators on one store, and when each of them was killed. Leave it, and none is left."""

    children: Children
    url: str
    folder: Path
    runs: int
    seed: int = 1
    lease: float = LEASE
    leases: str | None = None
    # By process: before the signal was sent, and when it was gone.
    killed: dict[int, tuple[float, float]] = field(default_factory=dict)
    killed_names: set[str] = field(default_factory=set)
    working: dict[str, Child] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.log = self.folder / "effects"
        self._names = 0

    def __enter__(self) -> Storm:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self.working.values():
            child.kill()

    def start(self, name: str | None = None, *, leases: str | None = None) -> Child:
        """Start an orchestrator, under a new name unless it is told one."""
        if name is None:
            self._names += 1
            name = f"node-{self._names}"
        child = self.working[name] = self.children.start(
            "tests.crash.storms:orchestrate",
            self.folder,
            url=self.url,
            place=str(self.folder),
            name=name,
            lease=self.lease,
            leases=leases or self.leases,
        )
        return child

    def kill_one(self, *, same_name: bool) -> int:
        """Kill one of them at random, and start another in its place. Says which process that is."""
        name = self.chance.choice(sorted(self.working))
        child = self.working.pop(name)
        assert child.alive, child.log
        before = time.time()
        child.kill()
        self.killed[child.pid] = before, time.time()
        self.killed_names.add(name)
        return self.start(name if same_name else None).pid

    @property
    def begun(self) -> int:
        """How many executions of steps have begun."""
        return self.log.read_bytes().count(b"\n") if self.log.exists() else 0

    def reach(self, share: float, what: str) -> None:
        """Wait until so much of the work has been begun."""
        until(partial(self._reached, share), every=0.01, what=what)

    def _reached(self, share: float) -> bool:
        return self.begun >= share * self.runs * STEPS

    def all_open(self) -> None:
        """Wait until all that work now have begun."""
        pids = [child.pid for child in self.working.values()]
        until(lambda: all(map(self.is_open, pids)), what="for all to begin")

    def is_open(self, pid: int) -> bool:
        """Whether this process has begun, and has what it found to recover."""
        return (self.folder / f"open-{pid}").exists()

    def finish(self, timeout: float = PATIENCE) -> None:
        """Wait until everything is done and they have ended."""
        (self.folder / "drained").touch()
        deadline = time.monotonic() + timeout
        for child in self.working.values():
            assert child.result(max(0.1, deadline - time.monotonic())) == "drained"

    def check(self, *, explained: bool = True) -> int:
        """Nothing lost, nothing recorded twice, all executions known. Says how many the kills have cost.

        Whether kills explain every execution is not asked where others have a reason too: who cannot show that it lives
        stops in time, and begins again.
        """
        by_run = effects_by_run(self.log)
        journals = asyncio.run(audit(self.url))
        assert set(journals) == {f"run-{n}" for n in range(self.runs)}, "a run was lost"
        cost = 0
        for id, journal in journals.items():
            effects = by_run[journal.run_id]
            assert [end.status for end in journal.finished] == [RunStatus.COMPLETED]
            assert bytes(journal.finished[0].value) == str(int(id[4:]) + sum(range(STEPS))).encode()
            assert journal.outcomes == [f"add_slowly:{i}" for i in range(STEPS)]
            check_executions(journal, effects)
            if explained:
                cost += self.explain(journal, effects)
        return cost

    def explain(self, journal: Journal, effects: list[Effect]) -> int:
        """Each execution but the last of a step was in a process that was killed before the next one began."""
        executions: dict[str, list[Effect]] = defaultdict(list)
        for effect in sorted(effects, key=lambda effect: effect.at):
            executions[effect.op].append(effect)
        for op, several in executions.items():
            for one, following in pairwise(several):
                assert one.pid in self.killed, f"{op} of {journal.id} was executed again without a kill: {several}"
                before, gone = self.killed[one.pid]
                assert one.at <= gone
                assert following.at >= before, f"{op} of {journal.id} was executed by two at once: {several}"
        return len(effects) - len(executions)
