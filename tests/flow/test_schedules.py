"""Schedules in the file of a flow: they are checked with it, deployed with it, and gone when it no longer has them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure import Client, Engine, UsageError, connect, workflow
from perdure.flow import Flow
from perdure.kernel.events import SignalReceived
from perdure.testing.simulation import Simulation
from tests.flow.writing import flow_of, problems_of

BODY = """
inputs: {date: {type: string, format: date}, shop: {type: string, default: all}}
steps: [{id: a, use: value, with: "${{ input.date }} ${{ input.shop }}"}]
output: ${{ steps.a }}
"""
ONE = """
schedules:
  - {cron: "30 0 * * *", timezone: Europe/Berlin, input: {date: "${{ schedule.date }}"}}
"""
TWO = """
schedules:
  - id: early
    cron: "30 0 * * *"
    timezone: Europe/Berlin
    input: {date: "${{ schedule.date | add_days(-1) }}", shop: "${{ schedule.id }} at ${{ schedule.at }}"}
  - {id: often, every: 6h, input: {date: "2026-01-01"}, overlap: allow, catch_up: skip, jitter: 1s, pause: true}
"""


def test_runs_of_a_deployed_flow_are_started_with_what_the_tick_says(tmp_path: Path) -> None:
    flow, sim = flow_of(tmp_path, BODY + TWO), Simulation(5, start=datetime(2026, 3, 28, tzinfo=UTC).timestamp())

    async def scenario() -> dict[str, Any]:
        async with sim.client() as client:
            done = await client.deploy_flow(flow)
            assert (done.name, done.version, done.deleted) == ("test", flow.version, ())
            assert [(view.id, view.paused) for view in done.schedules] == [("test.early", False), ("test.often", True)]
        # An engine that has no file fires them, and runs the stored definition.
        async with sim.engine() as engine:
            await sim.advance(days=2)
            handle = await engine.schedule("test.early")
            triggered = await handle.trigger()
            await handle.backfill(datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC))
            await sim.advance(minutes=1)
            assert await engine.handle(triggered).result()
            return {view.id: view.output for view in await engine.list(program="test")}

    found = sim.play(scenario())
    by_hand = next(id for id in found if "!" in id)
    assert found.pop(by_hand) == "2026-03-29 test.early at 2026-03-30T02:00:00+02:00"
    # The clock was put forward on the 29th.
    assert found == {
        "test.early@2026-03-28T23:30:00Z": "2026-03-28 test.early at 2026-03-29T00:30:00+01:00",
        "test.early@2026-03-29T22:30:00Z": "2026-03-29 test.early at 2026-03-30T00:30:00+02:00",
        "test.early@2026-01-02T23:30:00Z": "2026-01-02 test.early at 2026-01-03T00:30:00+01:00",
    }


async def deployed(client: Client, flow: Flow) -> list[str]:
    await client.deploy_flow(flow)
    return [view.id for view in await client.schedules()]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_what_is_no_longer_in_the_file_is_deleted_and_nothing_else(tmp_path: Path, store: str) -> None:
    one, two, none = (flow_of(tmp_path, BODY + more, f"{len(more)}.yaml") for more in (ONE, TWO, ""))
    assert one.version == two.version == none.version, "schedules are no part of what a run does"
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/flows.db"
    async with Engine(url, [one]) as engine:
        await engine.schedule("by-hand", one(date="2026-01-01"), every=3600)
        client: Client = engine
        assert await deployed(client, one) == ["by-hand", "test"]
        assert await deployed(client, one) == ["by-hand", "test"]
        said = [entry for entry in await engine.journal("schedule:test") if isinstance(entry.event, SignalReceived)]
        assert said == [], "the same again changes nothing"
        assert await deployed(client, two) == ["by-hand", "test.early", "test.often"]
        assert await deployed(client, one) == ["by-hand", "test"]
        assert await deployed(client, none) == ["by-hand"]


async def test_a_schedule_of_another_program_is_left_alone(tmp_path: Path) -> None:
    @workflow(name="other")
    async def other() -> None: ...

    flow = flow_of(tmp_path, BODY + ONE)
    async with Engine("memory://", [other]) as engine:
        await engine.schedule("test", other(), every=60)
        with pytest.raises(UsageError, match="there is a schedule 'test' of other already"):
            await engine.deploy_flow(flow)
        assert [view.program for view in await engine.schedules()] == ["other"]
        with pytest.raises(Exception, match="there is no flow 'test' in this store"):
            await engine.get_flow("test")


def test_an_input_that_has_no_value_fails_its_tick_and_says_why(tmp_path: Path) -> None:
    text = BODY + ONE.replace(
        "schedule.date }}", "schedule.date if schedule.date < '2026-02-01' else schedule.at[3] }}"
    )
    flow, sim = flow_of(tmp_path, text), Simulation(5)

    async def scenario() -> tuple[int, str | None]:
        async with sim.engine([flow]) as engine:
            await engine.deploy_flow(flow)
            await sim.advance(days=1)
            view = await (await engine.schedule("test")).view()
            return view.failed, view.trouble

    failed, trouble = sim.play(scenario())
    assert failed == 1
    assert trouble is not None
    assert "schedule test:1:" in trouble


def test_what_is_wrong_with_schedules_is_told_with_its_place(tmp_path: Path) -> None:
    text = """
inputs: {d: {type: string, format: date}, n: integer}
steps: [{id: a, use: value, with: "${{ input.d }} ${{ schedule.date }}"}]
schedules:
  - {cron: "0 3 * *", input: {d: "x${{ schedule.date }}", m: 1}}
  - {id: a, every: 5m, timezone: Europe/Berlin, input: {d: "${{ input.d }}", n: "${{ schedule.dat }}"}}
  - {id: a, every: 5m, overlap: skp, input: {d: "${{ secrets.X }}", n: x}, evry: 1}
  - {id: b, every: 5m, input: [1]}
  - {id: c, input: {d: "2026-01-01", n: 1}}
  - 7
"""
    places = [(line.partition(" ")[0], line.split(" ")[2]) for line in problems_of(tmp_path, text)]
    assert places == [
        ("4:55", "F011"),
        ("6:5", "F006"),
        ("6:5", "F002"),
        ("6:30", "F006"),
        ("6:34", "F030"),
        ("6:59", "F013"),
        ("7:5", "F002"),
        ("7:65", "F011"),
        ("7:86", "F013"),
        ("8:5", "F002"),
        ("8:10", "F003"),
        ("8:54", "F014"),
        ("8:76", "F005"),
        ("9:31", "F002"),
        ("10:5", "F002"),
        ("11:5", "F002"),
    ]


async def test_another_process_without_the_code_deploys_too(tmp_path: Path) -> None:
    url, flow = f"sqlite:///{tmp_path}/flows.db", flow_of(tmp_path, BODY + ONE)
    async with Engine(url), connect(url) as client:
        assert (await client.deploy_flow(flow)).version == flow.version
        assert (await client.get_flow("test")).version == flow.version
