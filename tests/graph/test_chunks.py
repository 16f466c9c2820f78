"""Maps with many items: chunks that are runs of their own. `chunk=2` makes a map of five items a long one."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from perdure import (
    Accepted,
    AlreadyFinished,
    AnswerRejected,
    Cancelled,
    Duplicate,
    Engine,
    Finished,
    NoSuchOp,
    NotFound,
    Recovery,
    RunStatus,
    SignalRejected,
    bail,
    connect,
    rule,
    step_context,
    wait_signal,
    workflow,
)
from perdure.client.forking import Forks
from perdure.engine.remote import ChunkRun
from perdure.graph import Graph, Items, interrupt, node
from perdure.kernel.events import RunStarted
from perdure.ports.runs import RunFilter
from tests.engine.harness import FakeClock
from tests.graph.running import run
from tests.patience import PATIENCE
from tests.services.plugin import on_two_stores


@node
def urls(n: int) -> list[int]:
    return list(range(n))


def fetch(url: int) -> int:
    if url in (3, 17):
        raise ValueError(f"no {url}")
    return url * url


def pages(fn: Any = fetch, **options: Any) -> Graph[..., Any]:
    options = {"chunk": 2, **options}
    return Graph([urls, node(fn, name="fetch", inputs={"url": "urls"}).map_over("url", **options)], name="pages")


async def chunks_ended(engine: Engine, run_id: str) -> None:
    """Wait until the runs of the chunks have ended, which report their outcomes before."""
    for row, _ in await engine._base.store.runs.list(RunFilter(parent=run_id)):
        await engine._base.watch.wait_for_end(row.run_id)


@pytest.mark.parametrize(
    ("options", "n", "wanted"),
    [
        ({}, 3, [0, 1, 4]),
        ({"on_error": "none"}, 5, [0, 1, 4, None, 16]),
        ({"on_error": "none", "chunk": 1}, 5, [0, 1, 4, None, 16]),
        ({"on_error": "skip"}, 7, [0, 1, 4, 16, 25, 36]),
        ({"on_error": "none", "tolerate": 0.2}, 5, [0, 1, 4, None, 16]),
        ({"on_error": "none", "tolerate": 0.1}, 5, None),
        ({"on_error": "none", "tolerate": 1}, 5, [0, 1, 4, None, 16]),
        ({"on_error": "none", "tolerate": 1}, 20, None),
        ({"on_error": "skip", "tolerate": 2}, 20, [i * i for i in range(20) if i not in (3, 17)]),
        ({}, 5, None),
        ({"until": lambda page: page >= 9, "on_error": "skip"}, 12, [0, 1, 4, 16]),
        ({"until": lambda page: page >= 4}, 12, [0, 1, 4]),
        ({"until": lambda page: page == 1}, 12, [0, 1]),
        ({"until": lambda page: page / 0}, 12, None),
    ],
)
async def test_a_map_in_chunks_gives_what_one_map_gives(options: Any, n: int, wanted: list[Any] | None) -> None:
    for chunk in ({}, {"chunk": 500}):
        result = (await run(pages(limit=1, **{**options, **chunk}), n=n)).result
        assert result.status is (RunStatus.FAILED if wanted is None else RunStatus.COMPLETED), result
        if wanted is not None:
            assert result.output == {"fetch": wanted}


async def test_the_journal_of_the_map_has_two_events_for_each_chunk() -> None:
    graph = pages(on_error="none")
    async with Engine("memory://", [graph]) as engine:
        await engine.run(graph(n=20), id="r")
        ops = [getattr(entry.event, "op", "") for entry in await engine.journal("r")]
        assert ops.count("fetch:0[18-19]") == 2
        assert not [op for op in ops if op == "fetch:0[18]"]
        assert [run.id for run in await engine.list()] == ["r"]
        assert [step.path for step in await engine.steps("r")][:3] == ["urls:0", "fetch:0[0-1]", "fetch:0[2-3]"]
        failed = await engine.items("r", "fetch:0", status="failed")
        assert [(item.path, item.index) for item in failed] == [("fetch:0[3]", 3), ("fetch:0[17]", 17)]
        assert failed[0].error is not None
        found = await engine.items("r", "fetch", start=5, limit=4)
        assert [(item.path, item.output) for item in found] == [(f"fetch:0[{i}]", i * i) for i in range(5, 9)]
        assert len(await engine.items("r", "fetch:0", limit=1000, status="succeeded")) == 18
        assert (await engine.values("r"))["n"] == 20


@pytest.mark.parametrize("limit", [1, 3, 8, 11])
async def test_a_limit_counts_the_items_that_run_in_all_chunks(limit: int) -> None:
    running, most = 0, 0

    async def fetch(url: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return url

    graph = pages(fetch, limit=limit, chunk=3)
    assert dict((await run(graph, n=50)).output) == {"fetch": list(range(50))}
    assert most <= limit


async def test_the_concurrency_of_the_run_bounds_the_items_of_its_chunks() -> None:
    running, most = 0, 0

    async def fetch(url: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return url

    graph = pages(fetch)
    async with Engine("memory://", [graph]) as engine:
        handle = await engine.start(graph(n=30), max_concurrency=2)
        assert dict(await handle) == {"fetch": list(range(30))}
    assert most <= 2


async def test_paths_and_keys_of_items_do_not_depend_on_chunks() -> None:
    keys: dict[int, set[str]] = {}

    def fetch(url: int) -> int:
        context = step_context()
        keys.setdefault(url, set()).add(context.id.removeprefix(context.run.run_id.partition("/")[0]))
        return url

    inner = Graph([node(fetch).map_over("url", chunk=2)], name="inner")
    inline = Graph([node(fetch).map_over("url")], name="inner")
    for graph in (inner, inline):
        outer = Graph([graph.as_node(name="part")], name="outer")
        result = (await run(outer, url=list(range(7)))).result
        assert result.status is RunStatus.COMPLETED, result
    assert keys == {i: {f"/part:0/fetch:0[{i}]"} for i in range(7)}


async def test_a_retry_runs_only_the_items_that_failed_or_are_missing() -> None:
    broken, calls = True, list[int]()

    def fetch(url: int) -> int:
        calls.append(url)
        if url == 5 and broken:
            raise ValueError("no")
        return url

    graph = pages(fetch, limit=1, chunk=3)
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(n=10), id="r")).status is RunStatus.FAILED
        assert calls == [0, 1, 2, 3, 4, 5]
        assert [item.status for item in await engine.items("r", "fetch:0", start=4)] == ["succeeded", "failed"]
        again = await (await engine.retry("r")).outcome()
        assert again.status is RunStatus.FAILED
        assert calls == [0, 1, 2, 3, 4, 5, 5]
        broken = False
        result = await (await engine.retry("r")).outcome()
        assert result.output == {"fetch": list(range(10))}
        assert calls == [0, 1, 2, 3, 4, 5, 5, 5, 6, 7, 8, 9]
        assert [item.index for item in await engine.items("r", "fetch:0")] == list(range(10))


async def test_a_retry_finds_results_of_a_chunk_that_the_retry_before_cancelled_before_it_had_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken, held, calls = True, 0, list[int]()
    others, keep_chunk = asyncio.Event(), Forks.keep_chunk

    async def fetch(url: int) -> int:
        calls.append(url)
        if len(calls) == 7:
            others.set()
        await others.wait()
        if url in (0, 5) and broken:
            raise ValueError("no")
        return url

    async def keep(self: Forks, run_id: str, started: RunStarted, flow: Any) -> int:
        nonlocal held
        if broken and started.remote is not None and started.remote.op == "fetch:0[3-5]":
            held += 1
            await asyncio.Event().wait()
        return await keep_chunk(self, run_id, started, flow)

    monkeypatch.setattr(Forks, "keep_chunk", keep)
    graph = pages(fetch, limit=9, chunk=3)
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(n=7), id="r")).status is RunStatus.FAILED
        for n in (1, 2):
            calls.clear()
            assert (await (await engine.retry("r")).outcome()).status is RunStatus.FAILED
            assert (held, calls) == (n, [0])
        broken = False
        calls.clear()
        result = await (await engine.retry("r")).outcome()
        assert result.output == {"fetch": list(range(7))}
        assert sorted(calls) == [0, 5]


async def test_too_many_failures_in_several_chunks_can_be_tried_again() -> None:
    broken, calls = True, list[int]()

    def fetch(url: int) -> int:
        calls.append(url)
        if url in (1, 6) and broken:
            raise ValueError("no")
        return url

    graph = pages(fetch, limit=1, chunk=2, on_error="none", tolerate=1)
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(n=10), id="r")).status is RunStatus.FAILED
        broken = False
        calls.clear()
        result = await (await engine.retry("r")).outcome()
        assert result.output == {"fetch": list(range(10))}
        assert calls == [1, 6, 8, 9]


async def test_a_cancelled_map_goes_on_where_it_was() -> None:
    calls, stop = list[int](), asyncio.Event()

    async def fetch(url: int) -> int:
        calls.append(url)
        if url == 5:
            stop.set()
            await asyncio.Event().wait() if len(calls) < 10 else None
        return url

    graph = pages(fetch, limit=1, chunk=4)
    async with Engine("memory://", [graph]) as engine:
        handle = await engine.start(graph(n=10), id="r")
        await stop.wait()
        await engine.cancel("r")
        assert (await handle.outcome()).status is RunStatus.CANCELLED
        calls += [0] * 10
        result = await (await engine.retry("r")).outcome()
        assert result.output == {"fetch": list(range(10))}
        assert calls[16:] == [5, 6, 7, 8, 9]


async def test_a_paused_map_begins_no_item_in_any_chunk() -> None:
    calls, reached, go = list[int](), asyncio.Event(), asyncio.Event()

    async def fetch(url: int) -> int:
        calls.append(url)
        if len(calls) == 3:
            reached.set()
            await go.wait()
        return url

    graph = pages(fetch, limit=3, chunk=4)
    async with Engine("memory://", [graph]) as engine:
        handle = await engine.start(graph(n=20), id="r")
        await reached.wait()
        await engine.pause("r")
        before = list(calls)
        go.set()
        async for entry in engine.follow("r"):
            if type(entry.event).__name__ == "RunPaused":
                break
        assert calls == before
        await engine.resume("r")
        assert dict(await handle) == {"fetch": list(range(20))}


async def test_a_bail_in_an_item_ends_the_whole() -> None:
    def fetch(url: int) -> int:
        if url == 3:
            bail(reason="enough", outputs={"status": "left"})
        return url

    result = (await run(pages(fetch), n=9)).result
    assert (result.status, result.output, result.error) == (RunStatus.BAILED, {"status": "left"}, None)


async def test_items_that_are_graphs_and_take_two_lists() -> None:
    @node
    def left(a: int) -> int:
        return a + 1

    @node
    def both(left: int, b: int, c: int) -> tuple[int, str]:
        return left * b, str(c)

    inner = Graph([left, node(both, outputs=("product", "text"))], name="inner")

    @node
    def seen(inner: list[Any]) -> int:
        return len(inner)

    @node
    def products(product: list[int]) -> int:
        return sum(product)

    graph = Graph([inner.map_over("a", "b", chunk=2), seen, products], name="outer")
    ran = await run(graph, a=list(range(9)), b=list(range(9)), c=7)
    assert dict(ran.output) == {"seen": 9, "products": sum((i + 1) * i for i in range(9)), "text": ["7"] * 9}


async def test_rules_and_retries_hold_for_items_of_chunks() -> None:
    tries: dict[int, int] = {}

    def fetch(url: int) -> int:
        tries[url] = tries.get(url, 0) + 1
        if tries[url] < 3:
            raise ConnectionError
        return url

    graph = Graph(
        [urls, node(fetch, inputs={"url": "urls"}).map_over("url", chunk=2)],
        name="g",
        rules=[rule("fetch", attempts=3, initial=0.001)],
    )
    assert dict((await run(graph, n=7)).output) == {"fetch": list(range(7))}
    assert set(tries.values()) == {3}


async def test_time_travel_to_an_item_of_a_chunk_runs_that_item_and_what_depends_on_it() -> None:
    calls: list[str] = []

    def fetch(url: int) -> int:
        calls.append(f"fetch {url}")
        return url

    @node
    def total(fetch: list[int]) -> int:
        calls.append("total")
        return sum(fetch)

    graph = Graph(
        [urls, node(fetch, inputs={"url": "urls"}).map_over("url", chunk=2, limit=1), total], name="g", output=total
    )
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(n=7), id="r")).output == 21
        calls.clear()
        result = await (await engine.time_travel("r", "fetch:0[3]", {"url": 100})).outcome()
        assert (result.output, calls) == (118, ["fetch 100", "total"])
        calls.clear()
        result = await (await engine.time_travel("r", "fetch:0")).outcome()
        assert (result.output, calls) == (21, [*(f"fetch {i}" for i in range(7)), "total"])
        calls.clear()
        handle = await engine.update_state("r", {"n": 5})
        assert (await handle.outcome()).output == 10
        assert calls == [*(f"fetch {i}" for i in range(5)), "total"]


async def test_a_memo_is_by_chunk_and_then_by_item() -> None:
    calls: list[int] = []

    def fetch(url: int) -> int:
        calls.append(url)
        return url

    graph = Graph([node(fetch).map_over("url", chunk=3, limit=1)], name="g", output="fetch")
    async with Engine("memory://", [graph]) as engine:
        await engine.run(graph(url=list(range(9))), id="r")
        calls.clear()
        await (await engine.start(graph(url=[0, 1, 2, 3, 40, 5, 6, 7, 8]), id="r", memo=True)).outcome()
        assert calls == [40]


async def test_a_deadline_ends_the_chunks_too() -> None:
    clock, began = FakeClock(), asyncio.Event()

    async def fetch(url: int) -> int:
        began.set()
        await asyncio.Event().wait()
        return url

    graph = pages(fetch)
    async with Engine("memory://", [graph], clock=clock) as engine:
        handle = await engine.start(graph(n=7), id="r", deadline=60)
        await began.wait()
        clock.advance(61)
        assert (await handle.outcome()).status is RunStatus.FAILED
        chunk = await engine.get(f"{handle.run_id}/fetch:0[0-1]")
        assert chunk is not None
        await engine._base.watch.wait_for_end(chunk.run_id)


async def test_each_item_of_a_chunk_asks_for_itself_and_is_answered_through_the_run() -> None:
    @interrupt(answer=int)
    def really(x: int) -> str:
        return f"{x}?"

    @node
    def doubled(x: int, really: int) -> int:
        return x * really

    review = Graph([really, doubled], name="review", output=doubled).map_over("x", chunk=2, limit=4)
    inner = Graph([review], name="inner", output="review")
    graph = Graph([inner], name="g", output="inner")
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=[5, 6, 7, 8, 9]), id="r")
        assert [asked.path for asked in result.interrupts] == [f"inner:0/review:0[{i}]/really:0" for i in (0, 1, 2, 4)]
        assert result.resume_schema is int
        assert sorted((one.id, one.path) for one in await engine.approvals()) == [
            ("r", asked.path) for asked in result.interrupts
        ]
        with pytest.raises(AnswerRejected, match="more than once"):
            await engine.approve("r", "really", 1)
        await engine.approve("r", "inner:0/review:0[2]/really:0", 2)
        await engine.reject("r", "inner:0/review:0[4]/really:0", "no")
        result = await engine.run(graph, id="r", answers={"inner:0/review:0[0]/really:0": 3})
        assert result.status is RunStatus.FAILED


@pytest.mark.parametrize("chunk", [500, 2])
async def test_an_item_that_is_a_workflow_is_reached_by_its_id(any_url: str, chunk: int) -> None:
    @workflow
    async def waits(url: int) -> int:
        return url * 10 + await wait_signal("go", type=int)

    mapped = node(waits, name="each").map_over("url", chunk=chunk, on_error="none")
    inner = Graph([mapped], name="inner", output="each")
    graph = Graph([inner.as_node("within")], name="g", output="within")
    async with Engine(any_url, [graph]) as engine:
        run = await engine.start(graph(url=[0, 1, 2, 3, 4]), id="r")
        items = [f"r/within:0/each:0[{i}]" for i in range(5)]
        for item in items:
            await _waits(engine, item)
        assert isinstance(await engine.cancel(items[4]), Cancelled)
        with pytest.raises(SignalRejected):
            await engine.signal(items[0], "go", "text")
        waiting = asyncio.create_task(engine.handle(items[1]).result(PATIENCE))
        for number, item in enumerate(items[:4]):
            assert await engine.signal(item, "go", number, signal_id="once") == Accepted()
        assert await run.result() == [0, 11, 22, 33, None]
        assert await engine.get("r/within:0/each:0[5]") is None
        ended = {item: await engine.get(item) for item in items}
        assert [view is not None and (view.id, view.status.value) for view in ended.values()] == [
            *((item, "completed") for item in items[:4]),
            (items[4], "cancelled"),
        ]
        assert await engine.signal(items[0], "go", 9, signal_id="other") == Finished(RunStatus.COMPLETED)
        assert await engine.cancel(items[4]) == AlreadyFinished(RunStatus.CANCELLED)
        assert await waiting == await engine.handle(items[1]).result(PATIENCE) == 11


async def _waits(engine: Engine, id: str) -> None:
    """Wait until the run under an id waits for something."""
    async with asyncio.timeout(PATIENCE):
        while not ((view := await engine.get(id)) is not None and view.id == id and view.waits):
            await asyncio.sleep(0)


async def test_an_answer_that_is_given_again_is_known_after_its_chunk_has_ended() -> None:
    inner = Graph([interrupt(answer=int, name="ask")(lambda url: url)], name="inner", output="ask")
    graph = Graph([node(inner, inputs={"url": "urls"}).map_over("url", chunk=1)], name="g", output="inner")
    async with Engine("memory://", [graph]) as engine:
        await engine.run(graph(urls=[1, 2, 3]), id="r")
        question = "inner:0[1]/ask:0"
        assert isinstance(await engine.approve("r", question, 5, approval_id="once"), Accepted)
        assert isinstance(await engine.approve("r", question, 5, approval_id="once"), Duplicate)
        late = await engine.approve("r", question, 5)
        assert isinstance(late, NotFound)
        assert " was answered at " in late.reason
        result = await engine.run(graph, id="r", answers={"inner:0[0]/ask:0": 4, "inner:0[2]/ask:0": 6})
        assert result.output == [4, 5, 6]
        assert isinstance(await engine.approve("r", question, 5, approval_id="once"), Duplicate)
        assert isinstance(await engine.approve("r", question, 7, approval_id="other"), Finished)


async def test_items_with_large_results_go_on_in_the_next_engine(tmp_path: Any) -> None:
    calls, reached = list[int](), asyncio.Event()

    async def fetch(url: int) -> str:
        calls.append(url)
        if url == 3 and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return str(url) * 300_000

    graph = pages(fetch, limit=1, chunk=2)
    store = f"sqlite:///{tmp_path}/x.db"
    async with Engine(store, [graph], name="e", recovery=Recovery(grace=0)) as engine:
        _ = await engine.start(graph(n=6), id="r")
        await reached.wait()
    async with Engine(store, [graph], name="e") as engine:
        result = await engine.run(graph, id="r")
        assert result.status is RunStatus.COMPLETED
        found: Any = (await engine.values("r"))["fetch"]
        assert [one[0] async for one in found] == list("012345")
    assert calls == [0, 1, 2, 3, 3, 4, 5]


async def test_the_run_of_a_chunk_is_not_kept_in_memory_when_it_has_ended() -> None:
    graph = pages(chunk=1)
    async with Engine("memory://", [graph]) as engine:
        handle = await engine.start(graph(n=3), id="r")
        await handle
        await chunks_ended(engine, handle.run_id)
        assert "fetch:0[2-2]" in {step.path for step in await engine.steps("r")}

        def in_memory() -> bool:
            gc.collect()
            return any(isinstance(one, ChunkRun) for one in gc.get_objects())

        async with asyncio.timeout(PATIENCE):
            while in_memory():  # the engine drops a run after its end is in the store
                await asyncio.sleep(0)


@on_two_stores
async def test_the_journals_of_items_are_pruned_by_themselves(any_url: str) -> None:
    calls: list[int] = []

    def fetch(url: int) -> int:
        calls.append(url)
        if url in (3, 4):
            raise ValueError("no")
        return url

    graph = pages(fetch, on_error="none")
    async with Engine(any_url, [graph]) as engine:
        handle = await engine.start(graph(n=7), id="r")
        assert dict(await handle) == {"fetch": [0, 1, 2, None, None, 5, 6]}
        await chunks_ended(engine, handle.run_id)
        before = await engine.items("r", "fetch:0")
        assert (await engine.prune(3600, items=True)).runs == 0
        assert (await engine.prune(0, "failed", items=True)).runs == 0
        assert (await engine.prune(0, dry_run=True, items=True)).runs == 4
        assert (await engine.prune(0, dry_run=True)).runs == 5
        report = await engine.prune(0, items=True, grace=0)
        assert (report.runs, report.bytes > 1000, report.kept) == (4, True, [])
        assert await engine.get(f"{handle.run_id}/fetch:0[0-1]") is None
        assert (await engine.run(graph, id="r")).output == {"fetch": [0, 1, 2, None, None, 5, 6]}
        shown = await engine.items("r", "fetch:0")
        assert [(one.path, one.status, one.output) for one in shown] == [
            (one.path, one.status, one.output) for one in before
        ]
        assert [one.index for one in await engine.items("r", "fetch:0", status="failed")] == [3, 4]
        calls.clear()
        again = await (await engine.time_travel("r", "fetch:0[5]", {"url": 50}, new_id="s")).outcome()
        assert again.output == {"fetch": [0, 1, 2, None, None, 50, 6]}
        assert sorted(calls) == [4, 50]


async def test_the_journals_of_items_stay_with_their_run() -> None:
    broken = True

    def fetch(url: int) -> int:
        if url == 5 and broken:
            raise ValueError("no")
        return url

    graph = pages(fetch, limit=1, on_error="skip", tolerate=0)
    stopped = Graph([urls, node(fetch, inputs={"url": "urls"}).map_over("url", chunk=2, until=lambda page: page == 1)],
                    name="stopped")  # fmt: skip
    async with Engine("memory://", [graph, stopped]) as engine:
        handle = await engine.start(graph(n=8), id="r")
        assert (await handle.outcome()).status is RunStatus.FAILED
        assert [one.index for one in await engine.items("r", "fetch:0")] == list(range(6))
        # What a retry needs stays: the chunks that completed, also if only the items are pruned.
        for items in (False, True):
            assert (await engine.prune(0, items=items)).runs == 0
        broken = False
        assert (await (await engine.retry("r")).outcome()).output == {"fetch": list(range(8))}
        handle = await engine.start(stopped(n=9), id="s")
        assert dict(await handle) == {"fetch": [0, 1]}
        await chunks_ended(engine, handle.run_id)
        # Chunks go with their run, however they have ended.
        await engine.prune(0, ["completed", "failed"])
        assert not await engine._base.store.runs.list(RunFilter())


# --- items in blobs ---------------------------------------------------------------------------------------------------


@node
def many(n: int) -> Iterator[int]:
    yield from range(n)


@node
async def many_async(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


@node
def total(fetch: Items[int]) -> int:
    assert fetch[1] == 2
    assert list(fetch[498:503]) == [2 * i for i in range(498, 503)]
    assert fetch[-1] == 2 * (len(fetch) - 1)
    with pytest.raises(IndexError):
        fetch[len(fetch)]
    return sum(fetch)


@node
async def total_async(fetch: Items[int]) -> int:
    found = [one async for one in fetch]
    assert found == list(fetch)
    return sum(found)


def doubled(url: int) -> int:
    return url * 2


@pytest.mark.parametrize("source", [many, many_async])
@pytest.mark.parametrize("store", ["memory://", "sqlite:///{}/x.db"])
async def test_a_generator_feeds_a_map_and_its_results_are_read_item_by_item(
    source: Any, store: str, tmp_path: Any
) -> None:
    mapped = node(doubled, name="fetch", inputs={"url": source.name}).map_over("url", chunk=300)
    graph = Graph([source, mapped, total, total_async], name="g")
    async with Engine(store.format(tmp_path), [graph]) as engine:
        result = await engine.run(graph(n=1200), id="r")
        assert result.output == {"total": 1199 * 1200, "total_async": 1199 * 1200}
        assert not (await engine.prune(3600, grace=0)).blobs
        made = next(step.output for step in await engine.steps("r") if step.path.startswith("many"))
        assert [part["n"] for part in made["$items"]] == [500, 500, 200]


async def test_a_client_starts_a_graph_with_items_of_an_iterable(tmp_path: Any) -> None:
    graph = Graph([node(doubled, name="fetch").map_over("url"), total], name="g", output=total)
    store = f"sqlite:///{tmp_path}/x.db"
    async with Engine(store, [graph]) as engine, connect(store) as client:
        assert (await engine.run(graph(url=Items.of(iter(range(1500)))))).output == 1499 * 1500
        handle = await client.start(graph(url=Items.of(iter(range(1500)))))
        assert await handle == 1499 * 1500


async def test_a_list_above_the_limit_asks_for_items() -> None:
    @node
    def rows(n: int) -> Iterator[str]:
        for _ in range(n):
            yield "x" * 1000

    @node
    def whole(rows: list[str]) -> int:
        return len(rows)

    @node
    def parts(rows: Items[str]) -> int:
        return len(rows)

    graph = Graph([rows, whole, parts], name="g")
    assert dict((await run(graph, n=1000)).output) == {"whole": 1000, "parts": 1000}
    result = (await run(graph, n=3000)).result
    assert result.status is RunStatus.FAILED
    assert "annotate `rows: Items[...]`" in str(result.error)


async def test_what_a_map_of_many_gives_is_a_list_or_items() -> None:
    graph = Graph([node(lambda x: "y" * x, name="fetch", inputs={"x": "n"}).map_over("x", chunk=10)], name="g",
                  output="fetch")  # fmt: skip
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(n=[3] * 30), id="a")).output == ["yyy"] * 30
        long: Any = (await engine.run(graph(n=[100_000] * 30), id="b")).output
        assert len(long) == 30
        assert [len(one) async for one in long] == [100_000] * 30
        values = await engine.values("b")
        assert values["fetch"] == long


@pytest.mark.parametrize("any_url", ["sqlite", "postgres"], indirect=True)
async def test_an_async_node_may_iterate_without_await(any_url: str) -> None:
    @node
    async def summed(fetch: Items[int]) -> int:
        return sum(fetch)

    mapped = node(doubled, name="fetch", inputs={"url": "many"}).map_over("url", chunk=600)
    graph = Graph([many, mapped, summed], name="g", output=summed)
    async with Engine(any_url, [graph]) as engine:
        assert (await engine.run(graph(n=700), id="r")).output == 699 * 700
        assert not (await engine.prune(3600, grace=0)).blobs


@pytest.mark.parametrize("chunk", [1, 500])
@pytest.mark.parametrize("around", [False, True])
async def test_the_items_of_a_map_in_an_item_are_listed(chunk: int, around: bool) -> None:
    async def leaf(y: int) -> int:
        if y == 13:
            raise ValueError(y)
        return y

    inner = Graph([node(leaf, inputs={"y": "ys"}).map_over("y", on_error="none")], name="inner", output="leaf")
    graph: Any = Graph([node(inner, inputs={"ys": "lists"}).map_over("ys", chunk=chunk)], name="long", output="inner")
    path = "inner:0[1]/leaf:0"
    if around:
        graph, path = Graph([graph], name="around", output="long"), f"long:0/{path}"
    async with Engine("memory://", [graph]) as engine:
        await engine.run(graph(lists=[[start + n for n in range(5)] for start in (0, 10, 20)]), id="r")
        found = await engine.items("r", path)
        assert [(one.path, one.output) for one in found[2:4]] == [(f"{path}[2]", 12), (f"{path}[3]", None)]
        assert [one.index for one in await engine.items("r", path, status="failed")] == [3]
        assert [one.index for one in await engine.items("r", path, start=1, limit=2)] == [1, 2]
        for missing in ("inner:0[7]/leaf:0", "inner:0[1]/other:0"):
            with pytest.raises(NoSuchOp):
                await engine.items("r", path.replace("inner:0[1]/leaf:0", missing))


async def test_an_item_of_a_long_map_may_have_a_long_map() -> None:
    broken = {13}

    async def leaf(y: int) -> int:
        if y in broken:
            raise ValueError(y)
        return y

    async def total(leaf: list[int]) -> int:
        return sum(leaf)

    inner = Graph(
        [node(leaf, inputs={"y": "ys"}).map_over("y", chunk=2), node(total)],
        name="inner",
        output="total",
    )
    long: Any = Graph([node(inner, inputs={"ys": "lists"}).map_over("ys", chunk=1)], name="long")
    graph: Any = Graph([long], name="around", output="long")
    async with Engine("memory://", [graph]) as engine:
        lists = [[start + n for n in range(5)] for start in (0, 10, 20)]
        assert (await engine.run(graph(lists=lists), id="r")).status is RunStatus.FAILED
        broken.clear()
        assert (await (await engine.retry("r")).outcome()).output == {"inner": [10, 60, 110]}
