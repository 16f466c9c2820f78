"""Locks and kill -9: a dead holder blocks nobody for longer than its ttl, and its run has the lock again first."""

from __future__ import annotations

import asyncio
import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perdure import RunStatus, connect
from perdure.kernel.invocation import Invocation
from tests.crash import programs
from tests.crash.harness import Child, Children, Effect, create, read_effects, until
from tests.patience import PATIENCE


class World:
    """Workers on one file."""

    def __init__(self, children: Children, folder: Path) -> None:
        self._children, self._folder = children, folder
        self.db, self.log = folder / "runs.db", folder / "effects"
        self.url = f"sqlite:///{self.db}"
        asyncio.run(create(self.url))

    def worker(self) -> Child:
        """One more worker."""
        return self._children.start("work", self._folder, db=str(self.db), effects=str(self.log), check_interval=0.2)

    def queue(self, invocations: dict[str, Invocation[Any]]) -> None:
        """Put runs into the store for any worker."""

        async def start() -> None:
            async with connect(self.url) as client:
                for id, invocation in invocations.items():
                    _ = await client.start(invocation, id=id)

        asyncio.run(start())

    def drain(self, *workers: Child) -> dict[str, Any]:
        """Wait until everything is done, and return the outputs by run_id."""
        (self._folder / "drained").touch()
        for worker in workers:
            assert worker.result() == "drained"

        async def outputs() -> dict[str, Any]:
            async with connect(self.url) as client:
                runs = await client.list()
                assert {run.status for run in runs} == {RunStatus.COMPLETED}
                return {run.run_id: run.output for run in runs}

        return asyncio.run(outputs())

    def effects(self, what: str = "") -> list[Effect]:
        """What steps did inside."""
        return [effect for effect in read_effects(self.log) if effect.what.startswith(what)]


@pytest.fixture
def world(children: Children, tmp_path: Path) -> World:
    """A store of its own."""
    return World(children, tmp_path)


def visits(effects: list[Effect]) -> list[tuple[float, float, str, int]]:
    """From when to when which run was inside, under which token; visits that were killed are left out."""
    open_: dict[tuple[str, int, int], Effect] = {}
    found = []
    for effect in effects:
        kind, token = effect.what.split()
        key = (effect.run_id, effect.attempt, effect.pid)
        if kind == "in":
            open_[key] = effect
        else:
            found.append((open_.pop(key).at, effect.at, effect.run_id, int(token)))
    return sorted(found)


def check_alone(effects: list[Effect]) -> None:
    """No two runs were inside at once, and no token was given to two."""
    inside = visits(effects)
    for (_, left, one, _), (came, _, other, _) in pairwise(inside):
        assert one == other or left <= came
    owners: dict[str, set[str]] = {}
    for effect in effects:
        owners.setdefault(effect.what.split()[1], set()).add(effect.run_id)
    assert all(len(runs) == 1 for runs in owners.values())


def test_a_killed_holder_blocks_others_for_its_ttl_at_most(world: World) -> None:
    world.queue({"holder": programs.locked(36_000.0, 2.0)})
    holder = world.worker()
    until(lambda: world.effects("in"))
    holder.kill()

    async def next_one() -> int:
        async with connect(world.url) as client, client.locks.hold("crash", timeout=PATIENCE) as held:
            return held.token

    assert asyncio.run(next_one()) == 2


@pytest.mark.parametrize("program", [programs.locked, programs.locked_in_step])
def test_the_run_of_a_killed_holder_has_the_lock_again_before_those_who_wait(world: World, program: Any) -> None:
    world.queue({"holder": program(36_000.0, 30.0)})
    first = world.worker()
    until(lambda: world.effects("in"))
    world.queue({f"waiter-{n}": program(0.01, 30.0) for n in range(3)})
    second = world.worker()
    first.kill()
    outputs = world.drain(second)
    entered = [effect.run_id for effect in world.effects("in")]
    # Killed, back at once although the ttl is far away, and then the others.
    assert entered[0] == entered[1]
    assert len(set(entered)) == 4
    assert entered[0] not in entered[2:]
    # A run keeps its token. A step's next attempt takes over from the last one, under a new one.
    assert outputs[entered[0]] == (1 if program is programs.locked else 2)
    check_alone(world.effects())


def test_nobody_meets_anybody_inside_while_workers_are_killed_at_random(world: World) -> None:
    chance = random.Random(7)
    world.queue({f"run-{n}": (programs.locked if n % 3 else programs.locked_in_step)(0.15, 10.0) for n in range(24)})
    workers = [world.worker(), world.worker()]
    for _ in range(6):
        time.sleep(chance.uniform(0.1, 0.5))
        workers.pop(chance.randrange(2)).kill()
        workers.append(world.worker())
    outputs = world.drain(*workers)
    assert len(outputs) == 24
    check_alone(world.effects())
    assert len(set(outputs.values())) == 24
