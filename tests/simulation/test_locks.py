"""Locks under faults: never two holders inside at once, tokens that only grow, nobody blocked longer than a ttl."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import LockTimeout, RunStatus, lock, sleep, step, workflow
from perdure.ports.leases import Leases
from perdure.testing.simulation import STORMY, Crash, Faults, Pause, Simulation, every_crash
from tests.amounts import some

TTL = 5.0


@dataclass
class Visit:
    """One attempt of a step inside a block."""

    who: str
    token: int
    began: float
    ended: float = float("inf")


visits: list[Visit] = []


def clock() -> float:
    return asyncio.get_running_loop().time()


@step
async def visit(who: str, token: int) -> int:
    here = Visit(who, token, clock())
    visits.append(here)
    await asyncio.sleep(1.0)
    here.ended = clock()
    return token


@workflow
async def guest(who: str) -> list[int]:
    tokens = []
    for _ in range(2):
        async with lock("room", ttl=TTL) as held:
            tokens.append(await visit(who, held.token))
            tokens.append(await visit(who, held.token))
    return tokens


@step
async def visit_with_lock(who: str) -> int:
    async with lock("room", ttl=TTL) as held:
        here = Visit(who, held.token, clock())
        visits.append(here)
        await asyncio.sleep(1.0)
        here.ended = clock()
        return held.token


@workflow
async def stepper(who: str) -> int:
    return await visit_with_lock(who)


@pytest.fixture(autouse=True)
def nobody() -> None:
    visits.clear()


def overlaps(of: list[Visit]) -> list[tuple[Visit, Visit]]:
    """Visits of different runs that were inside at the same time."""
    return [(a, b) for a in of for b in of if a.who < b.who and a.began < b.ended and b.began < a.ended]


def shared_tokens() -> list[int]:
    """Tokens under which more than one run was inside."""
    return [v.token for v in visits if any(w.token == v.token and w.who != v.who for w in visits)]


def test_guests_never_meet_in_a_calm_world() -> None:
    Simulation(seed=1).run(*(guest(str(i)) for i in range(4)), engines=2)
    assert overlaps(visits) == []
    assert [v.token for v in visits] == sorted(v.token for v in visits)


@pytest.mark.parametrize("seed", some(range(25), 6))
def test_guests_never_meet_when_machines_die(seed: int) -> None:
    faults = Faults(durations=(0.0, 0.1), delays=(0.0, 0.001, 0.05), crashes=0.08)
    report = Simulation(seed=f"lock {seed}", faults=faults).run(*(guest(str(i)) for i in range(3)), engines=2)
    assert {r.status for r in report.results.values()} == {RunStatus.COMPLETED}
    # What a machine that died had begun does not go on; what is left are attempts that ended.
    alive = [v for v in visits if v.ended != float("inf")]
    assert overlaps(alive) == []
    assert shared_tokens() == []


@pytest.mark.parametrize("seed", some(range(15), 6))
def test_steps_never_share_a_token_when_machines_die_and_halt(seed: int) -> None:
    faults = Faults(durations=(0.0, 0.1), delays=(0.0, 0.001, 0.05), crashes=0.05)
    pauses = [Pause(at, 20.0) for at in (6, 17)]
    sim = Simulation(seed=f"step lock {seed}", faults=faults)
    report = sim.run(*(stepper(str(i)) for i in range(4)), engines=2, pauses=pauses)
    assert {r.status for r in report.results.values()} <= {RunStatus.COMPLETED, RunStatus.FAILED}
    assert len({v.token for v in visits}) == len(visits)


@pytest.mark.parametrize("seed", some(range(15), 6))
def test_no_token_is_shared_by_two_runs_in_a_storm(seed: int) -> None:
    sim = Simulation(seed=f"storm {seed}", faults=STORMY)
    report = sim.run(*(guest(str(i)) for i in range(3)), engines=2, pauses=[Pause(9, 20.0), Pause(25, 20.0, "after")])
    assert {r.status for r in report.results.values()} == {RunStatus.COMPLETED}
    assert shared_tokens() == []


@pytest.mark.parametrize("side", ["before", "after", "during"])
def test_a_crash_at_any_append_lets_nobody_else_in_under_the_same_token(side: Any) -> None:
    calm = Simulation(seed=3).run(guest("a"), guest("b"))
    for at in range(calm.appends):
        visits.clear()
        sim = Simulation(seed=3)
        report = sim.run(guest("a"), guest("b"), crashes=[Crash(at, side)])
        assert {r.status for r in report.results.values()} == {RunStatus.COMPLETED}
        assert shared_tokens() == []


def test_a_run_that_crashes_anywhere_has_its_lock_again_under_the_same_token() -> None:
    for report in every_crash(guest("a"), seed=5):
        assert report.results["run-0"].output == [1, 1, 2, 2]


@workflow
async def family(who: str) -> list[int]:
    tokens = await guest(who)
    async with lock("room", ttl=TTL) as held:
        tokens.append(await visit(who, held.token))
    return tokens


@pytest.mark.parametrize("seed", some(range(10), 5))
def test_children_never_meet_when_machines_die(seed: int) -> None:
    faults = Faults(durations=(0.0, 0.1), delays=(0.0, 0.001, 0.05), crashes=0.06)
    sim = Simulation(seed=f"family {seed}", faults=faults)
    report = sim.run(*(family(str(i)) for i in range(3)), programs=[family, guest], engines=2)
    assert {r.status for r in report.results.values()} == {RunStatus.COMPLETED}
    assert overlaps([v for v in visits if v.ended != float("inf")]) == []
    assert shared_tokens() == []


@pytest.mark.parametrize("seed", some(range(30, 60), 7))
def test_no_lock_is_held_for_ever_or_by_two_whatever_breaks(seed: int) -> None:
    chance = random.Random(seed)
    faults = Faults(
        durations=(0.0, 0.1),
        delays=(0.0, 0.001, 0.05, 0.4),
        crashes=chance.choice((0.0, 0.03, 0.08)),
        lost_replies=chance.choice((0.0, 0.1)),
        refusals=chance.choice((0.0, 0.1)),
        interference=chance.choice((0.0, 0.2)),
    )
    sides: list[Any] = ["before", "after"]
    pauses = [
        Pause(chance.randrange(60), chance.choice((5.0, 20.0, 60.0)), chance.choice(sides))
        for _ in range(chance.randrange(4))
    ]
    runs = [chance.choice((guest, family))(str(i)) for i in range(chance.randrange(2, 5))]
    sim = Simulation(seed=f"s{seed}", faults=faults)
    report = sim.run(*runs, programs=[guest, family], engines=chance.choice((1, 2, 3)), pauses=pauses)
    assert {r.status for r in report.results.values()} == {RunStatus.COMPLETED}
    assert shared_tokens() == []
    if not pauses:
        assert overlaps([v for v in visits if v.ended != float("inf")]) == []


# --- scenarios --------------------------------------------------------------------------------------------------------


@workflow
async def holder(seconds: float) -> int:
    async with lock("room", ttl=TTL) as held:
        await sleep(seconds)
        return held.token


@workflow
async def brief() -> int:
    async with lock("room", ttl=TTL) as held:
        return held.token


def test_a_holder_that_sleeps_for_a_day_keeps_its_lock() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([holder, brief]) as engine:
            long = await engine.start(holder(86_400.0))
            short = await engine.start(brief())
            await sim.advance(hours=23)
            assert [view.owner for view in await engine.locks.list()] == [f"{long.run_id}/lock:0"]
            assert await short.status() is RunStatus.RUNNING
            assert (await long.result(), await short.result()) == (1, 2)

    sim.play(scenario())


def test_a_crashed_holder_blocks_others_for_its_ttl_at_most() -> None:
    sim = Simulation(seed=1)

    async def after() -> None:
        # An engine that does not have the program of the dead one's run.
        async with sim.engine([brief]) as engine:
            began = sim.now()
            assert await (await engine.start(brief())).result() == 2
            assert (sim.now() - began).total_seconds() <= TTL

    async def play_crash() -> None:
        engine = sim.engine([holder])
        _ = await engine.open()
        _ = await engine.start(holder(86_400.0))
        await sim.advance(60)

    sim.play(play_crash())
    sim.play(after())


def test_a_lock_that_is_given_back_elsewhere_is_taken_at_once() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([holder]) as one, sim.engine([brief]) as other:
            _ = await one.start(holder(600.0))
            await sim.advance(10)
            waiting = await other.start(brief())
            await sim.advance(580)
            assert await waiting.status() is RunStatus.RUNNING
            await sim.advance(11)
            assert await waiting.status() is RunStatus.COMPLETED

    sim.play(scenario())


def test_somebody_who_waits_no_longer_takes_nobody_elses_place() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([holder]) as one, sim.engine([brief]) as other:
            _ = await one.start(holder(600.0))
            await sim.advance(10)
            waiting = await other.start(brief())
            await sim.advance(10)
            with pytest.raises(LockTimeout):
                async with other.locks.hold("room", timeout=20):
                    pass
            assert await waiting.status() is RunStatus.RUNNING
            await sim.advance(561)
            assert await waiting.status() is RunStatus.COMPLETED

    sim.play(scenario())


@workflow
async def moody(patience: float, mood: str) -> str:
    try:
        async with lock("room", ttl=TTL, timeout=patience), lock("cellar", ttl=TTL):
            await sleep(2.0)
            if mood == "fail":
                raise ValueError("no")
            return mood
    except LockTimeout:
        return "late"


@pytest.mark.parametrize("seed", some(range(20), 5))
def test_nothing_is_left_locked_whatever_became_of_those_who_wanted_it(seed: int) -> None:
    sim = Simulation(seed=f"moods {seed}", faults=Faults(durations=(0.0,), delays=(0.0, 0.01, 0.1), interference=0.1))
    chance = random.Random(seed)

    async def scenario() -> None:
        async with sim.engine([moody]) as one, sim.engine([moody]) as other:
            runs = []
            for n in range(12):
                engine = chance.choice((one, other))
                mood = chance.choice(("calm", "fail", "cancel"))
                runs.append(await engine.start(moody(chance.choice((0.5, 2.0, 30.0)), mood), id=f"r{n}"))
                await sim.advance(chance.choice((0.0, 0.5, 2.0)))
                if mood == "cancel":
                    _ = await chance.choice((one, other)).cancel(f"r{n}")
            for run in runs:
                assert (await run.outcome()).status.finished
            await sim.advance(1)
            assert await one.locks.list() == []

    sim.play(scenario())


class Counting:
    """Leases that count what they are asked."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._leases, name)
        if name == "watch":
            return method

        async def call(*args: Any) -> Any:
            self.calls.append(name)
            return await method(*args)

        return call


def test_many_locks_are_renewed_by_one_statement_and_waiting_for_one_is_idle() -> None:
    @workflow
    async def keeper(number: int) -> None:
        async with lock(f"room {number}", ttl=30):
            await sleep(3600)

    @workflow
    async def waiter(number: int) -> None:
        async with lock(f"room {number}", ttl=30):
            pass

    sim = Simulation(seed=1)

    async def scenario() -> None:
        leases = Counting(sim.store.leases)
        async with sim.engine([keeper, waiter], leases=leases) as engine:
            for number in range(50):
                _ = await engine.start(keeper(number))
            for number in range(5):
                _ = await engine.start(waiter(number))
            await sim.advance(60)
            leases.calls.clear()
            await sim.advance(600)
            assert set(leases.calls) == {"renew_all"}
            assert len(leases.calls) <= 61

    sim.play(scenario())
