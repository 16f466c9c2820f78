"""A recorded run is replayed event by event, with the frames of the body at each."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Diverged, Engine, UnknownProgram, UsageError, connect, now, sleep, step, workflow
from perdure.kernel.program import Program
from perdure.stores.memory.store import MemoryStore
from perdure.testing import replay
from tests.flow.writing import flow_of

CALLS: list[str] = []


@step
async def charge(cents: int) -> str:
    CALLS.append("charge")
    return f"paid {cents}"


@workflow
async def ship(name: str) -> str:
    label = name.upper()
    return await charge(len(label))


@workflow
async def fulfil(cents: int) -> str:
    first = await charge(cents)
    doubled = cents * 2
    second, shipped = await asyncio.gather(charge(doubled), inner(doubled))
    return f"{first}, {second}, {shipped}"


async def inner(cents: int) -> str:
    half = cents // 2
    await now_and_then()
    return await ship("x" * half)


async def now_and_then() -> None:
    _ = now()
    await sleep(0.001)


def recorded(invocation: Any, *programs: Program) -> bytes:
    async def record() -> bytes:
        store = MemoryStore()
        async with Engine(store, programs) as engine:
            await engine.run(invocation, id="r1")
        async with connect(store) as client:
            return await client.export("r1")

    return asyncio.run(record())


@pytest.fixture(scope="module")
def data() -> bytes:
    return recorded(fulfil(3), fulfil, ship)


def test_a_replay_stops_at_an_op_and_shows_the_local_variables(data: bytes) -> None:
    CALLS.clear()
    with replay(data, fulfil, ship, until="charge:1") as replaying:
        assert replaying.stop is not None
        assert replaying.stop.locals == {"cents": 3, "first": "paid 3", "doubled": 6}
        assert "test_replaying.py:" in replaying.stop.line
        assert replaying.state.steps == 1
    assert CALLS == []


def test_a_replay_shows_the_branch_and_the_child_that_an_op_belongs_to(data: bytes) -> None:
    seen = {stop.op: stop for stop in replay(data, fulfil, ship)}
    child = next(op for op in seen if op.endswith("ship:0"))
    charged = [s for s in replay(data, fulfil, ship) if s.op == f"{child}/charge:0" and s.frames]
    assert charged[0].locals == {"name": "xxx", "label": "XXX"}
    assert charged[0].frames[0].function == "ship"
    began = [s for s in replay(data, fulfil, ship) if s.op == child and s.frames]
    assert began[0].locals == {"cents": 6, "half": 3}


def test_every_event_is_a_stop(data: bytes) -> None:
    stops = list(replay(data, fulfil, ship))
    assert [stop.seq for stop in stops] == list(range(len(stops)))
    assert stops[-1].frames == ()
    assert stops[-1].line == ""


def test_a_replay_of_a_file_to_its_end_checks_the_result(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "r1.capsule").write_bytes(data)
    replay(tmp_path / "r1.capsule", fulfil, ship).check()

    @workflow(name="fulfil")
    async def another(cents: int) -> str:
        return await fulfil.fn(cents) + "!"

    with pytest.raises(AssertionError, match="returned"):
        replay(data, another, ship).check()


def test_code_that_does_not_fit_is_said_to_diverge(data: bytes) -> None:
    @workflow(name="fulfil")
    async def changed(cents: int) -> str:
        await sleep(5)
        return await charge(cents)

    with pytest.raises(Diverged, match="charge:0"):
        replay(data, changed, ship).check()


def test_a_missing_op_and_a_missing_program_are_named(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"no op 'refund:0'.*charge:0"):
        replay(data, fulfil, ship, until="refund:0")
    with pytest.raises(UnknownProgram, match="replay"):
        replay(data, ship)


async def test_a_replay_inside_an_event_loop_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="plain function"):
        replay(data, fulfil, ship)


def test_a_breakpoint_in_the_body_stops_there(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: seen.append(dict(sys._getframe(1).f_locals)))

    @workflow(name="fulfil")
    async def watched(cents: int) -> str:
        first = await charge(cents)
        breakpoint()
        doubled = cents * 2
        second, shipped = await asyncio.gather(charge(doubled), inner(doubled))
        return f"{first}, {second}, {shipped}"

    replay(data, watched, ship).check()
    assert seen == [{"cents": 3, "first": "paid 3"}]


ETL = """
perdure: 1
name: etl
inputs: {rows: integer}
jobs:
  - id: pull
    steps:
      - {id: numbers, use: value, with: "${{ range(input.rows) | list }}"}
      - {id: doubled, map: {over: "${{ steps.numbers }}"}, use: value, with: "${{ item * 2 }}"}
      - {id: ask, use: approval, with: {request: "${{ steps.doubled | sum }}"}}
  - id: load
    steps: [{id: loaded, use: value, with: "${{ jobs.pull.doubled | sum }}"}]
"""


def test_a_flow_stops_at_its_steps_and_shows_values_and_arguments(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, ETL)

    async def record() -> bytes:
        async with Engine("memory://", [flow]) as engine:
            await engine.run(flow(rows=3), id="r1")
            await engine.run(flow, answers={"ask": True}, id="r1")
            return await engine.export("r1")

    data = asyncio.run(record())
    with replay(data, flow, until="pull:0/ask:0") as replaying:
        assert replaying.stop is not None
        values, asked = replaying.stop.frames
        doubled = {f"doubled[{number}]": 2 * number for number in range(3)}
        assert values.locals == {"input.rows": 3, "numbers": [0, 1, 2], **doubled}
        assert (asked.function, asked.locals) == ("ask", {"request": 6})
        assert replaying.stop.line.endswith("flow.yaml:9:14")
    stops = list(replay(data, flow))
    assert [stop.seq for stop in stops] == list(range(len(stops)))
    started = next(stop for stop in stops if stop.op == "load:0/loaded:0")
    assert started.locals == {"value": 6}
    assert stops[-1].frames == ()
    replay(data, flow).check()
    with pytest.raises(Diverged, match="value: was 2, now 3"):
        replay(data, flow_of(tmp_path, ETL.replace("item * 2", "item * 3"))).check()
