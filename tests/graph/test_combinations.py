"""What works on workflows works on graphs, in combinations: each test is a run of one small graph."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Client, Diverged, Engine, Queue, RunStatus, call, child, connect, continue_as, step, workflow
from perdure.authoring.code.frames import inspect
from perdure.client.upgrade import upgrade_check
from perdure.graph import END, Graph, interrupt, node, route
from perdure.kernel.events import RunStarted
from perdure.kernel.history.diff import diff
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.policies.versions import Programs
from perdure.testing import crash_everywhere, replay
from perdure.testing.simulation import Simulation
from tests.graph.test_structure import told

FAILS: list[str] = []


def plus(name: str, value: str = "x", **options: Any) -> Any:
    """A node that adds one, and fails while it is told to."""

    def add(x: int) -> int:
        if name in FAILS:
            raise ValueError(name)
        return x + 1

    return node(add, name=name, inputs={"x": value}, **options)


@interrupt(answer=int)
def ask(x: int) -> int:
    """A question."""
    return x


@route(targets=["a", "b", END])
def gate(x: int) -> str:
    """Never chooses `b`."""
    return "a"


INNER = Graph([gate, plus("a"), plus("b"), plus("behind", "b"), plus("c", "a")], name="inner", output="c")
OUTER = Graph([INNER.as_node("n"), plus("last", "n")], name="outer")
ASKS = Graph([INNER.as_node("n"), ask, plus("last", "ask")], name="asks")
SKIPPED = ["n:0/b:0", "n:0/behind:0"]


@asynccontextmanager
async def two(path: Path, *programs: Any, **options: Any) -> AsyncIterator[tuple[Engine, Client]]:
    """An engine with graphs, and a client without them."""
    url = f"sqlite:///{path / 'g.db'}"
    async with Engine(url, [OUTER, ASKS, *programs], **options) as engine, connect(url) as client:
        yield engine, client


async def shown(client: Client, id: str) -> list[str]:
    """The paths of what did not run."""
    return [path for path, *_ in told(await client.steps(id))]


@pytest.mark.parametrize("redact", [(), ("$.last",)])
def test_a_capsule_takes_the_structure_along(redact: tuple[str, ...], tmp_path: Path) -> None:
    async def moved() -> bytes:
        async with two(tmp_path) as (engine, _):
            await engine.run(OUTER(x=1), id="r")
            data, known = await engine.export("r", redact=redact), told(await engine.steps("r"))
            drawn = await engine.diagram("r")
        async with Engine(f"sqlite:///{tmp_path / 'other.db'}", []) as other:
            await other.import_run(data)
            assert told(await other.steps("r")) == known
            assert [path for path, *_ in known] == SKIPPED
            assert await other.diagram("r") == drawn
            assert await other.values("r") == {"x": 1, "n": 3, "last": 4}
            stored = await other.blobs.get(OUTER.structure)
            await other.prune(older_than=0)
            assert await other.blobs.get(OUTER.structure) == stored is not None
        return data

    data = asyncio.run(moved())
    changed = Graph([plus("n"), plus("last", "n")], name="outer")
    with pytest.raises(Diverged, match="n:0"):
        replay(data, changed).check()
    replay(data, OUTER).check()


async def test_forks_by_value_and_by_path_without_the_code(tmp_path: Path) -> None:
    async with two(tmp_path) as (engine, client):
        await engine.run(OUTER(x=1), id="r")
        for number, values in enumerate(({"n": 10}, {"n:0/c:0": 10})):
            for by in (engine, client):
                fork = await by.fork("r", values=values, new_id=f"{type(by).__name__}-{number}")
                assert (await engine.handle(fork.id, OUTER).result())["last"] == 11
                assert await shown(client, fork.id) == SKIPPED


async def test_time_travel_at_depth_runs_again_what_depends_on_it(tmp_path: Path) -> None:
    async with two(tmp_path) as (engine, client):
        await engine.run(OUTER(x=1), id="r")
        for by in (engine, client):
            run = await by.time_travel("r", "n:0/c:0", {"x": 5}, new_id=type(by).__name__)
            assert (await engine.handle(run.id, OUTER).result())["last"] == 7
            assert await shown(client, run.id) == SKIPPED


async def test_update_state_by_a_process_without_the_code(tmp_path: Path) -> None:
    async with two(tmp_path) as (engine, client):
        await engine.run(OUTER(x=1), id="r")
        assert await client.update_state("r", {"n": 7}, dry_run=True) == await engine.update_state(
            "r", {"n": 7}, dry_run=True
        )
        _ = await client.update_state("r", {"n": 7})
        assert (await engine.handle("r", OUTER).result())["last"] == 8
        assert await shown(client, "r") == SKIPPED


async def test_cancelling_pausing_and_resuming(tmp_path: Path) -> None:
    async with two(tmp_path) as (engine, client):
        await engine.run(ASKS(x=1), id="r")
        await client.pause("r")
        await client.approve("r", "ask", 1)
        assert await engine.handle("r").status() == RunStatus.PAUSED
        await client.resume("r")
        assert (await engine.handle("r", ASKS).result())["last"] == 2
        await engine.run(ASKS(x=1), id="c")
        await client.cancel("c", "no longer wanted")
        assert (await engine.handle("c").outcome()).status is RunStatus.CANCELLED
        assert await shown(client, "c") == SKIPPED
        view = await client.get("c")
        assert view is not None
        assert view.waits == ()


def test_the_deadline_of_a_graph_and_its_schedule() -> None:
    sim = Simulation(3)

    async def scenario() -> None:
        async with sim.engine([ASKS, OUTER]) as engine:
            late = await engine.start(ASKS(x=1), id="r", deadline=timedelta(hours=1))
            later = await engine.start(OUTER(x=1), id="later", delay=timedelta(hours=1))
            await engine.schedule("daily", OUTER(x=1), every=timedelta(days=1))
            await sim.advance(hours=2)
            result = await late.outcome()
            assert (result.status, type(result.error).__name__) == (RunStatus.FAILED, "DeadlineExceeded")
            assert (await later.result())["last"] == 4
            await sim.advance(days=2)
            scheduled = [run for run in await engine.list(program="outer") if run.id != "later"]
            assert len(scheduled) >= 1
            assert all(run.status is RunStatus.COMPLETED for run in scheduled)
            assert await shown(engine, scheduled[0].id) == SKIPPED

    sim.play(scenario())


@workflow
async def rounds(x: int) -> int:
    """Code that runs a graph, and goes on as itself."""
    found = await OUTER(x=x)
    return found["last"] if x > 2 else await continue_as(x + 1)  # type: ignore[return-value]


@workflow
async def detaches(x: int) -> str:
    """Code that starts a graph of its own."""
    run = await child(OUTER(x=x), id="own", detached=True)
    return str(run)


async def test_code_that_continues_as_another_incarnation_and_code_that_starts_one(tmp_path: Path) -> None:
    async with two(tmp_path, rounds, detaches) as (engine, client):
        assert (await engine.run(rounds(1), id="r")).output == 6
        assert await shown(client, "r") == [f"outer:0/{path}" for path in SKIPPED]
        await engine.run(detaches(1), id="d")
        await engine.handle("own").result()
        started = (await client.journal("own"))[0].event
        assert isinstance(started, RunStarted)
        assert started.structure == OUTER.structure
        assert await shown(client, "own") == SKIPPED


async def test_queues_priorities_tags_and_many_at_once(tmp_path: Path) -> None:
    async with two(tmp_path, queues=[Queue("q", concurrency=1)]) as (engine, client):
        many = [await engine.start(OUTER(x=n), queue="q", priority=n, tags={"n": str(n)}) for n in range(3)]
        assert [(await run.result())["last"] for run in many] == [3, 4, 5]
        [found] = await client.list(tags={"n": "1"}, program="outer")
        assert await shown(client, found.id) == SKIPPED
        started = await engine.start_many([OUTER(x=1), OUTER(x=2)])
        assert [(await run.result())["last"] for run in started.done] == [4, 5]


async def test_a_failed_graph_is_retried_from_what_failed_inside(tmp_path: Path) -> None:
    async with two(tmp_path) as (engine, client):
        FAILS.append("c")
        try:
            assert (await engine.run(OUTER(x=1), id="r")).status is RunStatus.FAILED
            blocked = [(path, status) for path, status, *_ in told(await client.steps("r"))]
            assert ("last:0", "blocked") in blocked
            assert told(await engine.steps("r")) == told(await client.steps("r"))
        finally:
            FAILS.remove("c")
        assert (await (await client.retry("r")).result())["last"] == 4
        assert told(await engine.steps("r")) == told(await client.steps("r"))


async def test_lazy_durability_one_step_at_a_time_snapshots_and_compaction(tmp_path: Path) -> None:
    async with two(tmp_path) as (engine, client):
        run = await engine.start(ASKS(x=1), id="r", durability="async", max_concurrency=1)
        assert (await engine.run(ASKS, id="r")).interrupted
        await engine.checkpoint("r")
        assert await shown(client, "r") == SKIPPED
        await engine.approve("r", "ask", 1)
        assert (await run.result())["last"] == 2
        known = told(await engine.steps("r"))
        await engine.compact("r")
        assert told(await client.steps("r")) == known
        await engine.rebuild()
        assert told(await client.steps("r")) == known


async def test_by_name_from_a_process_that_has_nothing(tmp_path: Path) -> None:
    async with two(tmp_path) as (_, client):
        run = await client.start(call("outer", x=1), id="r", reuse="reject_duplicate")
        assert (await run.result())["last"] == 4
        assert await shown(client, "r") == SKIPPED
        assert "n0" in await client.diagram("r")


@step(queue="far")
async def far(x: int) -> int:
    """A step of a queue."""
    return x


async def test_a_node_in_a_queue_and_rules_of_a_run(tmp_path: Path) -> None:
    graph = Graph([node(far, name="f"), gate, plus("a", "f"), plus("b", "f")], name="g", output="a")
    async with two(tmp_path, graph, steps=[far], queues=[Queue("far")]) as (engine, client):
        assert (await engine.run(graph(x=1), id="r", rules=[])).output == 2
        assert await shown(client, "r") == ["b:0"]


async def test_checks_differences_and_what_is_under_way(tmp_path: Path) -> None:
    async with two(tmp_path) as (engine, client):
        await engine.run(ASKS(x=1), id="r")
        await engine.run(ASKS(x=2), id="s")
        assert {one.fit async for one in upgrade_check(client, Programs([ASKS]))} == {Fit.SAFE}
        other = Graph([INNER.as_node("n"), ask, plus("last", "ask"), plus("leaf", "n")], name="asks")
        assert {one.fit async for one in upgrade_check(client, Programs([other]))} == {Fit.SAFE}
        batches = {id: await client.store.journal.read((await client.get(id)).run_id) for id in "rs"}  # type: ignore[union-attr]
        found = diff(batches["r"], batches["s"])
        assert found.first is not None
        assert found.first.path == "input"
        waiting: list[Any] = []
        started = await client.payloads.with_input(batches["r"])

        def look() -> None:
            waiting.extend(inspect(Programs([ASKS]), client.codec, "r", started, batches["r"]))

        loop = asyncio.get_running_loop()
        loop.call_soon(look)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [task.waits_for for task in waiting] == ["", "ask:0"]


async def test_a_parked_graph_goes_on_from_before_what_does_not_fit(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    async with Engine(url, [ASKS]) as engine:
        await engine.run(ASKS(x=1), id="r")
    changed = Graph([plus("new"), node(INNER, name="n", inputs={"x": "new"}), ask, plus("last", "ask")], name="asks")
    async with Engine(url, [changed]) as engine:
        result = await engine.run(changed, id="r", answers={"ask": 1})
        assert result.status is RunStatus.PARKED
        assert "'n' takes 'x' from 'new' now" in str(result.error)
        await engine.resolve("r", before="n:0")
        result = await engine.run(changed, id="r", answers={"ask": 1})
        assert result.output == {"n": 4, "last": 2}


def test_nested_graphs_with_gates_survive_a_crash_at_every_commit() -> None:
    survived = crash_everywhere(OUTER(x=1))
    assert dict(survived.result.output or {}) == {"last": 4}
    assert set(survived.executions.values()) <= {1, 2}
