"""Streams under every crash: the journal never holds a gap, and what is valid in it is what the step returns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from perdure import Engine, HeartbeatTimeout, Retry, batched, step, step_context, workflow
from perdure.kernel.streams import Numbered, Reading
from perdure.testing.simulation import STORMY, Crash, Faults, Pause, Report, Simulation, every_crash
from perdure.testing.simulation.faults import Side
from tests.amounts import some

N = 12


@step
async def careful(n: int) -> AsyncIterator[int]:
    """Goes on from what was shown."""
    for i in range(len(step_context().chunks), n):
        yield i
        await asyncio.sleep(0.01 if i % 3 else 0)


@step(stream=batched(3, 0.02))
async def careless(n: int) -> AsyncIterator[int]:
    """Begins again every time."""
    for i in range(n):
        yield i
        if i % 2:
            await asyncio.sleep(0.01)


@step(retry=Retry(attempts=3, initial=0.01))
def threaded(n: int) -> Iterator[int]:
    """A plain generator, which fails half-way."""
    yield from range(n)
    if step_context().attempt < 2:
        raise ConnectionError


@step(stream="on_complete")
async def at_the_end(n: int) -> int:
    """Emits, reports its progress and returns something else."""
    done = step_context().progress or 0
    for i in range(done, n):
        step_context().emit(i)
        await asyncio.sleep(0.4)
        step_context().heartbeat(i + 1)
    return n


@workflow
async def streaming() -> list[object]:
    """All of them at once, and one after the others."""
    found = await asyncio.gather(careful(N), careless(N), threaded(N), at_the_end(4))
    return [*found, await careful(3)]


def stream(report: Report, path: str | None, start: int = 0) -> list[Numbered]:
    (batches,) = report.journals.values()
    return list(Reading(path, start).feed(batches))


def valid(chunks: list[Numbered]) -> list[object]:
    found: list[object] = []
    for chunk in chunks:
        if chunk.restart:
            found.clear()
        else:
            found.append(msgspec.json.decode(chunk.value))
    return found


def check(report: Report) -> None:
    (result,) = report.results.values()
    numbers = list(range(N))
    assert result.output == [numbers, numbers, numbers, 4, [0, 1, 2]]
    for path in ("careful:0", "careless:0", "threaded:0"):
        assert valid(stream(report, path)) == numbers
    assert not any(chunk.restart for chunk in stream(report, "careful:0"))
    whole = stream(report, None)
    assert [chunk.index for chunk in whole] == list(range(len(whole)))
    for start in (0, 1, len(whole) // 2, len(whole)):
        assert stream(report, None, start) == whole[start:]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_streams_survive_every_crash(durability: str) -> None:
    faults = Faults(durations=(0.0, 0.01))
    reports = list(every_crash(streaming(), seed=1, faults=faults, limit=600, durability=durability))
    assert len(reports) > 20
    for report in reports:
        check(report)


@pytest.mark.parametrize("seed", some(range(30), 5))
def test_streams_survive_a_slow_store_with_others_who_write_to_it(seed: int) -> None:
    faults = Faults(delays=(0.0, 0.002, 0.3), interference=0.3, lost_replies=0.1, durations=(0.0, 0.01))
    durability = ["sync", "async", "exit"][seed % 3]
    check(Simulation(seed, faults=faults).run(streaming(), limit=600, durability=durability))


@pytest.mark.parametrize("seed", some(range(20), 5))
def test_streams_survive_storms(seed: int) -> None:
    faults = Faults(
        delays=STORMY.delays,
        lost_replies=STORMY.lost_replies,
        refusals=STORMY.refusals,
        interference=STORMY.interference,
        clock_jumps=STORMY.clock_jumps,
        crashes=0.1 if seed % 2 else 0.0,
    )
    check(Simulation(seed, faults=faults).run(streaming(), engines=1 + seed % 2, limit=20_000))


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_machine_that_stood_still_while_another_took_over_shows_nothing_more(side: Side) -> None:
    # Whoever writes without owning the run is found by the monitor, at that very append.
    appends = Simulation(3, faults=Faults(durations=(0.0,))).run(streaming(), engines=2, limit=600).appends
    for number in range(1, appends):
        pauses = [Pause(number, 60.0, side)]
        report = Simulation(3, faults=Faults(durations=(0.0,))).run(streaming(), engines=2, pauses=pauses, limit=600)
        check(report)


def test_the_same_seed_gives_the_same_stream() -> None:
    one, two = (Simulation(7).run(streaming(), crashes=[Crash(4)], limit=600).text for _ in range(2))
    assert one == two


def test_a_reader_in_virtual_time_sees_chunks_as_they_come() -> None:
    @step(heartbeat=60)
    async def hourly() -> AsyncIterator[int]:
        for i in range(5):
            yield i
            await asyncio.sleep(50)
        await asyncio.sleep(3600)

    @workflow
    async def flow() -> list[int]:
        return await hourly()

    sim = Simulation()

    async def scenario() -> list[tuple[int, int]]:
        async with sim.engine([flow]) as engine:
            assert isinstance(engine, Engine)
            handle = await engine.start(flow())
            seen = [(chunk.value, round(sim.world.time)) async for chunk in handle.stream("hourly")]
            assert isinstance((await handle.outcome()).error, HeartbeatTimeout)
            return seen

    assert sim.play(scenario()) == [(0, 0), (1, 50), (2, 100), (3, 150), (4, 200)]
