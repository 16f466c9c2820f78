"""Batches: a program, once for each row."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from perdure import (
    CannotRetry,
    Engine,
    ItemView,
    RunStatus,
    UsageError,
    approval,
    bail,
    connect,
    step,
    workflow,
)
from perdure.authoring.dataflow import batch as batches
from perdure.graph import Graph, node
from tests.flow.writing import flow_of

LINES = """
perdure: 1
name: line
inputs: {x: {type: integer}}
steps:
  - {id: double, use: value, with: "${{ input.x * 2 }}"}
  - {id: big, when: "${{ steps.double > 4 }}", use: value, with: big}
output: "${{ steps.big }}"
"""

broken: set[int] = set()
calls: list[tuple[str, int]] = []


@step
async def check(x: int) -> int:
    calls.append(("check", x))
    if x == 2:
        raise LookupError("handled")
    return x


@step
async def square(x: int) -> int:
    calls.append(("square", x))
    if x in broken:
        raise ValueError(f"no {x}")
    return x * x


@workflow
async def item(x: int, y: int = 0) -> int:
    try:
        await check(x)
    except LookupError:
        pass
    if x == 5:
        bail("five", output=55)
    return await square(x) + y


@node
def double(x: int) -> int:
    if x == 1:
        bail(reason="one", outputs="bailed")
    return 2 * x


doubled = Graph([double], name="doubled", output=double)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    broken.clear()
    calls.clear()
    # Two rows make a chunk: a batch of five is a long one.
    monkeypatch.setattr(batches, "_MAPPED", msgspec.structs.replace(batches._MAPPED, chunk=2))
    for program in (item, doubled):
        vars(program).pop("_batches", None)


def _shown(item: ItemView) -> tuple[Any, ...]:
    return item.index, item.status, item.output, str(item.error)


async def test_rows_give_results_in_order_and_a_failed_one_an_error() -> None:
    broken.add(3)
    rows = [{"x": 0}, {"x": 1, "y": 7}, [2, 1], 3, item(4), {"x": 5}, {"z": 1}, {"x": "a"}]
    async with Engine("memory://", [item]) as engine:
        handle = await engine.start_batch(item, rows, limit=3, id="b", tags={"of": "me"})
        found = list(await handle.result())
        assert found[:6] == [0, 8, 5, {"error": {"type": "builtins.ValueError", "message": "no 3"}}, 16, 55]
        assert "missing its argument 'x'" in found[6]["error"]["message"]
        assert "Expected `int`" in found[7]["error"]["message"]
        view = await engine.batch("b")
        assert (view.program, view.status, view.rows, view.completed, view.failed) == ("item", "completed", 8, 5, 3)
        assert (view.running, view.waiting, view.queued, view.unstarted) == (0, 0, 0, 0)
        assert [one.index for one in await engine.items("b", status="failed")] == [3, 6, 7]
        assert [one.output for one in await engine.items("b", start=4, limit=2)] == [16, 55]
        before = [_shown(one) for one in await engine.items("b")]
        assert (await engine.prune(0, items=True, grace=0)).runs
        assert [_shown(one) for one in await engine.items("b")] == before
        (run,) = await engine.list(tags={"of": "me"})
        assert (run.id, run.program) == ("b", "item[]")
        assert list(await (await engine.start_batch("item", (row for row in range(7, 10)))).result()) == [49, 64, 81]
        assert list(await (await engine.start_batch(item, [])).result()) == []


async def test_graphs_and_flows_have_batches(tmp_path: Any) -> None:
    flow = flow_of(tmp_path, LINES)
    async with Engine("memory://", [doubled, flow]) as engine:
        # What bails in a row ends the row, and not the batch.
        handle = await engine.start_batch(doubled, [{"x": 0}, {"x": 1}, {"x": 2}])
        assert list(await handle.result()) == [0, "bailed", 4]
        handle = await engine.start_batch(flow, [{"x": 1}, {"x": 3}, {"x": "no"}], id="f")
        found = list(await handle.result())
        assert found[:2] == [None, "big"]
        assert "its schema" in found[2]["error"]["message"]
        statuses = [(one.index, one.status.value) for one in await engine.items("f")]
        assert statuses == [(0, "skipped"), (1, "succeeded"), (2, "failed")]
        assert (await engine.batch("f")).completed == 2


@pytest.mark.parametrize("tolerate", [None, 2, 0, "20%"])
async def test_a_retry_runs_the_rows_that_failed_and_no_others(tolerate: Any) -> None:
    broken.update((3, 6))
    async with Engine("memory://", [item]) as engine:
        handle = await engine.start_batch(item, range(10), tolerate=tolerate, id="b", limit=1)
        wanted = RunStatus.FAILED if tolerate == 0 else RunStatus.COMPLETED
        assert (await handle.outcome()).status is wanted
        before = await engine.batch("b")
        assert before.failed + before.unstarted == 10 - before.completed
        done = {one.index for one in await engine.items("b", status="succeeded")}
        broken.remove(3)
        calls.clear()
        again = await engine.retry("b")
        assert (await again.outcome()).status is wanted
        # Row 2 handled a failure, and 3 had made its check.
        assert not [x for _, x in calls if x in done]
        assert ("check", 3) not in calls
        assert ("square", 3) in calls
        broken.clear()
        again = await engine.retry("b")
        assert list(await again.result()) == [0, 1, 4, 9, 16, 55, 36, 49, 64, 81]
        assert (await engine.batch("b")).completed == 10
        with pytest.raises(CannotRetry):
            _ = await engine.retry("b")


async def test_counts_while_it_runs_and_when_it_was_cancelled() -> None:
    gate = asyncio.Event()

    @step
    async def hold(x: int) -> int:
        await gate.wait()
        return x

    @workflow
    async def mixed(x: int) -> int:
        if x in (2, 6):
            await approval("ok", schema=int)
        return await hold(x)

    async with Engine("memory://", [mixed]) as engine:
        _ = await engine.start_batch(mixed, range(7), limit=4, id="b")
        while (await engine.batch("b")).running < 2 or len(await engine.approvals()) < 2:
            await asyncio.sleep(0)
        view = await engine.batch("b")
        assert (view.completed, view.running, view.waiting, view.queued, view.unstarted) == (0, 2, 2, 3, 0)
        assert [one.index for one in await engine.items("b", status="waiting")] == [2, 6]
        await engine.approve("b", "row:0[2]/ok:0", 1)
        gate.set()
        await engine.cancel("b")
        await engine.handle("b").outcome()
        view = await engine.batch("b")
        assert view.status is RunStatus.CANCELLED
        assert (view.running, view.waiting, view.queued) == (0, 0, 0)
        assert view.completed + view.failed + view.unstarted == 7


async def test_a_batch_that_was_started_by_a_client_goes_on_in_an_engine(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/b.db"
    async with Engine(url, []):
        pass
    async with connect(url) as client:
        handle = await client.start_batch("item", ([x] for x in range(5)), id="b")
        assert (await client.batch("b")).queued == 5
        async with Engine(url, [item]):
            assert list(await handle.result()) == [0, 1, 4, 9, 16]
        typed = await client.start_batch(item, range(3))
    async with Engine(url, [item]) as engine:
        assert list(await engine.handle(typed.id).result()) == [0, 1, 4]


async def test_what_is_no_batch_is_refused() -> None:
    async with Engine("memory://", [item]) as engine:
        for rows, options, says in (
            ({"x": 1}, {}, "takes rows in an iterable"),
            ([[1, 2, 3]], {}, "row 0: item"),
            ([1, object()], {}, "row 1: "),
            ([double], {}, "row 0: "),
            ([1], {"limit": 0}, "limit=0 must be at least 1"),
            ([1], {"tolerate": 1.5}, "tolerate=1.5"),
            ([1], {"tolerate": "many"}, "tolerate='many'"),
            ([1], {"tolerate": True}, "tolerate=True"),
        ):
            with pytest.raises(UsageError, match=says):
                _ = await engine.start_batch(item, rows, **options)
        with pytest.raises(UsageError, match="takes a program"):
            _ = await engine.start_batch(square, [1])  # type: ignore[arg-type]
        await engine.run(item(1), id="r")
        for asked in (engine.batch("r"), engine.items("r")):
            with pytest.raises(UsageError, match="not a batch"):
                await asked
        assert await engine.list(program="item[]") == []
