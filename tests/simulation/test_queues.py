"""Queues in virtual time: limits, rates, turns, and what becomes of them when machines die."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from perdure import AlreadyFinished, Cancelled, Engine, Queue, Rate, RunHandle, RunStatus, continue_as, step, workflow
from perdure.testing.simulation import STORMY, Simulation
from tests.amounts import some

# What runs at this moment, by key; and when each began.
under_way: Counter[str] = Counter()
most: Counter[str] = Counter()
began: list[tuple[float, str]] = []


@step
async def work(key: str, seconds: float) -> str:
    began.append((asyncio.get_running_loop().time(), key))
    for name in ("", key):
        under_way[name] += 1
        most[name] = max(most[name], under_way[name])
    try:
        await asyncio.sleep(seconds)
    finally:
        for name in ("", key):
            under_way[name] -= 1
    return key


@workflow
async def job(key: str = "x", seconds: float = 1.0) -> str:
    return await work(key, seconds)


@workflow
async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


@pytest.fixture(autouse=True)
def fresh() -> None:
    for seen in (under_way, most, began):
        seen.clear()


async def put(engine: Engine, count: int, key: str = "x", seconds: float = 1.0) -> list[RunHandle[str]]:
    return [await engine.start(job(key, seconds), queue="q", key=key) for _ in range(count)]


async def all_of(handles: list[RunHandle[str]]) -> None:
    for handle in handles:
        assert await handle.result()


def test_a_queue_runs_as_many_at_once_as_it_allows_and_no_more() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([job], queues=[Queue("q", concurrency=5)]) as engine:
            handles = await put(engine, 23)
            await sim.advance(0.5)
            assert under_way[""] == 5
            assert Counter([await h.status() for h in handles]) == {RunStatus.RUNNING: 5, RunStatus.QUEUED: 18}
            await all_of(handles)

    sim.play(scenario())
    assert most[""] == 5
    assert sim.world.time == pytest.approx(5.0, abs=0.5)


def test_a_queue_that_nobody_declared_has_no_limits() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([job]) as engine:
            await all_of(await put(engine, 200))

    sim.play(scenario())
    assert most[""] == 200


def test_an_engine_takes_no_more_than_it_has_room_for() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([job], max_concurrency=7) as engine:
            handles = await put(engine, 50)
            await sim.advance(0.5)
            statuses = Counter([await h.status() for h in handles])
            assert statuses == {RunStatus.RUNNING: 7, RunStatus.QUEUED: 43}
            await all_of(handles)

    sim.play(scenario())
    assert most[""] == 7


def test_limits_hold_over_all_engines_together() -> None:
    sim = Simulation(seed=3)
    queues = [Queue("q", concurrency=4)]

    async def scenario() -> None:
        async with sim.engine([job], queues=queues) as one, sim.engine([job], queues=queues) as two:
            await all_of([*await put(one, 10), *await put(two, 10)])

    sim.play(scenario())
    assert most[""] == 4


def test_a_key_has_a_limit_of_its_own_and_does_not_hold_up_others() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([job], queues=[Queue("q", concurrency=10, per_key=2)]) as engine:
            handles = [*await put(engine, 12, "a"), *await put(engine, 3, "b")]
            await sim.advance(0.5)
            assert (under_way["a"], under_way["b"]) == (2, 2)
            await all_of(handles)

    sim.play(scenario())
    assert (most["a"], most["b"]) == (2, 2)


@pytest.mark.parametrize("engines", [1, 3])
def test_a_rate_is_kept_in_every_window(engines: int) -> None:
    sim = Simulation(seed=engines)
    limits = [Queue("q", rate=Rate(100, per=timedelta(seconds=1)))]

    async def scenario() -> None:
        opened = [await sim.engine([job], queues=limits).open() for _ in range(engines)]
        handles = [h for engine in opened for h in await put(engine, 1050 // engines, seconds=0.01)]
        await all_of(handles)
        for engine in opened:
            await engine.close()

    sim.play(scenario())
    rows = sim.store.journal.rows.values()
    times = sorted(row.began_at for row in rows if row.began_at is not None)
    assert len(times) == 1050
    assert all(late - early >= 1.0 for early, late in zip(times, times[100:], strict=False))
    # And it is used: ten and a half windows take eleven, not twenty.
    assert times[-1] - times[0] < 12.5


def test_a_tenant_with_many_queued_runs_delays_another_by_one_turn_at_most() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([job], queues=[Queue("q", concurrency=1)]) as engine:
            many = await put(engine, 1000, "big", seconds=1.0)
            await sim.advance(2.5)
            (single,) = await put(engine, 1, "small")
            before = len(began)
            assert await single.result() == "small"
            assert [key for _, key in began[before:]] == ["small"]
            assert all([await h.status() is not RunStatus.CANCELLED for h in many[:3]])

    sim.play(scenario())


def test_keys_take_turns() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.client() as client:
            for key, count in (("a", 6), ("b", 2), ("c", 3)):
                for _ in range(count):
                    _ = await client.start(job(key), queue="q", key=key)
        async with sim.engine([job], queues=[Queue("q", concurrency=1)]) as engine:
            await sim.advance(20)
            assert [view.queued for view in await engine.queues()] == [0]

    sim.play(scenario())
    assert [key for _, key in began] == list("abcabcacaaa")


def test_a_higher_priority_begins_first() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.client() as client:
            for number, priority in enumerate((0, 3, -1, 3, 7)):
                _ = await client.start(job(f"{priority}/{number}"), queue="q", priority=priority)
        async with sim.engine([job], queues=[Queue("q", concurrency=1)]):
            await sim.advance(10)

    sim.play(scenario())
    assert [key for _, key in began] == ["7/4", "3/1", "3/3", "0/0", "-1/2"]


def test_a_delayed_run_takes_its_place_when_its_moment_has_come() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([job], queues=[Queue("q", concurrency=1)]) as engine:
            late = await engine.start(job("late"), queue="q", delay=timedelta(hours=1))
            soon = await engine.start(job("soon"), queue="q", delay=60)
            await sim.advance(59)
            assert began == []
            await sim.advance(2)
            assert await soon.result() == "soon"
            await sim.advance(hours=1)
            assert await late.result() == "late"

    sim.play(scenario())
    assert [round(at) for at, _ in began] == [60, 3600]


def test_a_run_that_waits_keeps_its_place_in_the_queue_and_needs_no_memory() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([job, nap], queues=[Queue("q", concurrency=1)]) as engine:
            sleeper = await engine.start(nap(3600.0), queue="q")
            behind = await engine.start(job("behind"), queue="q")
            await sim.advance(minutes=30)
            assert engine._orchestrator is not None
            assert not engine._orchestrator.active
            assert await behind.status() is RunStatus.QUEUED
            await sim.advance(minutes=30)
            assert await sleeper.status() is RunStatus.COMPLETED
            assert await behind.result() == "behind"

    sim.play(scenario())


def test_a_queued_run_can_be_cancelled_paused_and_resumed() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([job], queues=[Queue("q", concurrency=1)]) as engine:
            first, second, third, fourth = await put(engine, 4, seconds=10.0)
            await sim.advance(1)
            assert await second.cancel("not needed") == Cancelled()
            assert (await second.outcome()).status is RunStatus.CANCELLED
            assert await second.cancel() == AlreadyFinished(RunStatus.CANCELLED)
            await engine.pause(third.run_id)
            assert [view.id for view in await engine.list(status="queued")] == [fourth.id]
            await all_of([first, fourth])
            assert await third.status() is RunStatus.PAUSED
            await engine.resume(third.run_id)
            assert await third.result() == "x"
            assert len(began) == 3

    sim.play(scenario())


def test_the_place_of_a_run_whose_engine_died_is_free_when_it_has_ended_elsewhere() -> None:
    sim = Simulation(seed=1)
    queues = [Queue("q", concurrency=1)]

    async def crash() -> None:
        engine = await sim.engine([job], name="a", queues=queues).open()
        _ = await put(engine, 3, seconds=5.0)
        await sim.advance(1)

    async def another() -> None:
        async with sim.engine([job], name="b", queues=queues) as engine:
            await sim.advance(hours=2)
            assert [view.status for view in await engine.list()] == [RunStatus.COMPLETED] * 3

    sim.play(crash())
    under_way.clear()  # what was under way died with its machine
    sim.play(another())
    assert most[""] == 1
    assert len(began) == 4


def test_a_queue_that_is_full_is_not_asked_about_while_nothing_happens() -> None:
    sim = Simulation(seed=1)
    looks: list[float] = []
    waiting = sim.store.queues.waiting

    async def counted(names: Any) -> Any:
        looks.append(sim.world.time)
        return await waiting(names)

    sim.store.queues.waiting = counted  # type: ignore[method-assign]

    async def scenario() -> None:
        async with sim.engine([job, nap], queues=[Queue("q", concurrency=1)]) as engine:
            _ = await engine.start(nap(7200.0), queue="q")
            behind = [await engine.start(job("b"), queue="q", key=f"{n}") for n in range(50)]
            await sim.advance(60)
            before = len(looks)
            await sim.advance(hours=1)
            # Signs of life are news to nobody; a look or two may come of what was written last.
            assert len(looks) - before <= 3
            assert await behind[0].status() is RunStatus.QUEUED

    sim.play(scenario())


@workflow
async def rounds(key: str, left: int) -> str:
    await work(f"{key}{left}", 1.0)
    if left:
        continue_as(key, left - 1)
    return key


def test_a_run_that_continues_waits_for_its_turn_again() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([rounds], queues=[Queue("q", concurrency=1)]) as engine:
            first = await engine.start(rounds("a", 2), id="a", queue="q", key="a")
            second = await engine.start(rounds("b", 1), id="b", queue="q", key="b")
            assert [await first.result(), await second.result()] == ["a", "b"]

    sim.play(scenario())
    assert most[""] == 1
    assert [key for _, key in began] == ["a2", "b1", "a1", "b0", "a0"]


# --- debounce -------------------------------------------------------------------------------------------------------


def test_starts_that_come_within_the_quiet_period_make_one_run_with_the_last_input() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([job]) as engine:
            handles = []
            for number in range(5):
                handles.append(await engine.start(job(f"{number}"), queue="q", key="doc-7", debounce=10))
                await sim.advance(8)
            assert began == []
            assert await handles[0].status() is RunStatus.QUEUED
            assert {await handle.result() for handle in handles} == {"4"}
            assert len(await engine.list()) == 1

    sim.play(scenario())
    assert [(round(at), key) for at, key in began] == [(42, "4")]


def test_a_debounced_start_after_the_run_began_makes_the_next_run() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([job]) as engine:
            first = await engine.start(job("1", 60.0), id="doc-7", debounce=timedelta(seconds=5))
            await sim.advance(20)
            assert await first.status() is RunStatus.RUNNING
            second = await engine.start(job("2"), id="doc-7", debounce=5)
            third = await engine.start(job("3"), id="doc-7", debounce=5)
            assert second.run_id == third.run_id != first.run_id
            assert await second.result() == "3"
            assert await first.result() == "1"
            fourth = await engine.start(job("4"), id="doc-7", debounce=0)
            assert await fourth.result() == "4"

    sim.play(scenario())


def test_a_client_debounces_too_and_an_engine_that_waits_for_the_old_moment_waits_on() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([job]) as engine, sim.client() as client:
            first = await engine.start(job("1"), id="doc-7", debounce=10)
            await sim.advance(9)
            second = await client.start(job("2"), id="doc-7", debounce=10)
            await sim.advance(9)
            assert began == []
            assert await first.result() == await second.result() == "2"

    sim.play(scenario())


# --- storms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", some(range(12), 6))
def test_limits_hold_when_machines_die_and_messages_are_lost(seed: int) -> None:
    """In storms, the rows say what ran at once: begun and not finished, at every moment."""
    sim = Simulation(seed=seed, faults=replace(STORMY, crashes=0.04))
    limits = [Queue("q", concurrency=2)]
    report = sim.run(*(job(f"{n}", 2.0) for n in range(8)), engines=3, queues=limits, start={"queue": "q"})
    assert {result.output for result in report.results.values()} == {f"{n}" for n in range(8)}
    assert all(result.status is RunStatus.COMPLETED for result in report.results.values())
    assert report.most_under_way["q"] <= 2
