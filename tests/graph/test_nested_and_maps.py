"""Graphs in graphs, workflows in graphs, and nodes that are mapped over lists."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from perdure import Engine, Finished, NoSuchRun, RunStatus, bail, rule, step, wait_signal, workflow
from perdure.errors import NotDecodable
from perdure.graph import Graph, interrupt, node
from tests.graph.running import run


@node
def embed(query: str) -> list[int]:
    return [len(query)]


@node
def retrieve(embed: list[int], k: int = 2) -> list[str]:
    return ["doc"] * k


@node
def answer(query: str, retrieve: list[str]) -> str:
    return f"{query}: {len(retrieve)}"


RAG = Graph([embed, retrieve, answer], name="rag", output=answer)


@node
def preprocess(text: str) -> str:
    return text.strip()


@node
def postprocess(reply: str) -> str:
    return f"<{reply}>"


async def test_a_graph_in_a_graph_has_paths_of_its_own_in_the_same_journal() -> None:
    inner = RAG.rename_inputs(query="preprocess").as_node(name="reply")
    ran = await run(Graph([preprocess, inner, postprocess], name="outer", output=postprocess), text=" hello ", k=3)
    assert ran.output == "<hello: 3>"
    assert ran.paths() == [
        "postprocess:0", "preprocess:0", "reply:0/answer:0", "reply:0/embed:0", "reply:0/retrieve:0",
    ]  # fmt: skip


async def test_a_graph_without_as_node_is_a_node() -> None:
    @node
    def shout(rag: str) -> str:
        return rag.upper()

    assert (await run(Graph([RAG, shout], name="outer", output=shout), query="q")).output == "Q: 2"


async def test_a_workflow_in_code_is_a_node() -> None:
    @step
    def charge(order: str) -> int:
        return len(order)

    @workflow
    async def fulfil(order: str) -> int:
        return await charge(order) + 1

    @node
    def told(fulfil: int) -> str:
        return f"told {fulfil}"

    ran = await run(Graph([node(fulfil), told], name="outer", output=told), order="abc")
    assert ran.output == "told 4"
    assert ran.paths() == ["fulfil:0/charge:0", "told:0"]


async def test_graphs_at_any_depth() -> None:
    graph: Graph[..., Any] = Graph([node(_add, name="leaf")], name="g0", output="leaf")
    for depth in range(1, 6):
        graph = Graph([graph.as_node(name="leaf")], name=f"g{depth}", output="leaf")
    ran = await run(graph, x=1)
    assert ran.output == 2
    assert ran.paths() == ["leaf:0/" * 5 + "leaf:0"]


def _add(x: int) -> int:
    return x + 1


async def test_a_failure_in_a_nested_graph_fails_its_node() -> None:
    @node
    def breaks(x: int) -> int:
        raise ValueError("broken")

    inner = Graph([breaks], name="inner", output=breaks)

    @node
    def needs(inner: int) -> int:
        return inner

    ran = await run(Graph([inner, needs], name="g"), x=1)
    assert ran.result.status is RunStatus.FAILED
    assert "broken" in str(ran.result.error)
    assert "needs:0" in ran.paths("blocked")


# --- maps -------------------------------------------------------------------------------------------------------------


@node
def urls(n: int) -> list[int]:
    return list(range(n))


def fetch(url: int) -> int:
    if url in (3, 17):
        raise ValueError(f"no {url}")
    return url * url


@node
def total(fetch: list[int]) -> int:
    return sum(value or 0 for value in fetch)


def pages(**options: Any) -> Graph[..., Any]:
    return Graph(
        [urls, node(fetch, inputs={"url": "urls"}).map_over("url", **options), total], name="pages", output=total
    )


@pytest.mark.parametrize("n", [0, 1, 3])
async def test_a_mapped_node_gives_a_list_in_order(n: int) -> None:
    ran = await run(pages(), n=n)
    assert ran.output == sum(i * i for i in range(n))
    assert ran.paths() == sorted([*(f"fetch:0[{i}]" for i in range(n)), "total:0", "urls:0"])


async def test_the_first_failure_ends_a_map() -> None:
    ran = await run(pages(), n=5)
    assert ran.result.status is RunStatus.FAILED
    assert "no 3" in str(ran.result.error)
    assert "total:0" not in ran.paths()


async def test_a_retry_of_a_map_runs_what_failed_and_what_is_missing() -> None:
    broken, calls = True, list[int]()

    def fetch(url: int) -> int:
        calls.append(url)
        if url == 3 and broken:
            raise ValueError("no")
        return url

    graph = Graph([urls, node(fetch, inputs={"url": "urls"}).map_over("url", limit=1)], name="g")
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(n=6), id="r")).status is RunStatus.FAILED
        assert calls == [0, 1, 2, 3]
        broken = False
        result = await (await engine.retry("r")).outcome()
        assert result.output == {"fetch": [0, 1, 2, 3, 4, 5]}
    assert calls == [0, 1, 2, 3, 3, 4, 5]


@pytest.mark.parametrize(
    ("options", "n", "wanted"),
    [
        ({"on_error": "none"}, 5, [0, 1, 4, None, 16]),
        ({"on_error": "skip"}, 5, [0, 1, 4, 16]),
        ({"on_error": "none", "tolerate": 0.2}, 5, [0, 1, 4, None, 16]),
        ({"on_error": "none", "tolerate": 0.1}, 5, None),
        ({"on_error": "none", "tolerate": 1}, 5, [0, 1, 4, None, 16]),
        ({"on_error": "none", "tolerate": 1}, 20, None),
    ],
)
async def test_a_map_goes_on_without_what_failed(options: dict[str, Any], n: int, wanted: list[Any] | None) -> None:
    graph = Graph([urls, node(fetch, inputs={"url": "urls"}).map_over("url", **options)], name="g")
    result = (await run(graph, n=n)).result
    assert result.status is (RunStatus.FAILED if wanted is None else RunStatus.COMPLETED), result
    if wanted is not None:
        assert result.output == {"fetch": wanted}


async def test_a_limit_counts_what_runs() -> None:
    running, most = 0, 0

    async def fetch(url: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return url

    graph = Graph([urls, node(fetch, inputs={"url": "urls"}).map_over("url", limit=3)], name="g")
    assert dict((await run(graph, n=20)).output) == {"fetch": list(range(20))}
    assert most == 3


async def test_a_graph_is_mapped_over_two_lists_side_by_side() -> None:
    graph = Graph([RAG.as_node().map_over("query", "k")], name="g")
    ran = await run(graph, query=["a", "b"], k=[1, 2])
    assert dict(ran.output) == {"rag": ["a: 1", "b: 2"]}
    assert "rag:0[1]/answer:0" in ran.paths()
    result = (await run(graph, query=["a", "b"], k=[1])).result
    assert result.status is RunStatus.FAILED
    assert all(word in str(result.error) for word in ("2", "1"))


@pytest.mark.parametrize("value", [3, "text", {"a": 1}, None])
async def test_a_map_over_no_list_fails_clearly(value: Any) -> None:
    @node
    def urls(n: Any) -> Any:
        return n

    result = (await run(Graph([urls, node(fetch, inputs={"url": "urls"}).map_over("url")], name="g"), n=value)).result
    assert result.status is RunStatus.FAILED
    assert all(word in str(result.error) for word in ("list", "fetch"))


async def test_each_item_asks_for_itself() -> None:
    @interrupt(answer=int)
    def really(x: int) -> str:
        return f"{x}?"

    @node
    def doubled(x: int, really: int) -> int:
        return x * really

    graph = Graph([Graph([really, doubled], name="review", output=doubled).map_over("x")], name="g")
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=[5, 6, 7]), id="r")
        assert [asked.path for asked in result.interrupts] == [f"review:0[{i}]/really:0" for i in range(3)]
        for i in range(3):
            await engine.approve("r", f"review:0[{i}]/really:0", i)
        assert (await engine.run(graph, id="r")).output == {"review": [0, 6, 14]}


async def test_items_that_are_children_have_no_rows_and_are_found_and_signalled_all_the_same() -> None:
    @workflow
    async def later(x: int) -> int:
        added = await wait_signal("go", type=int)
        if not added:
            raise ValueError("nothing to add")
        return x + added

    graph = Graph([node(later).map_over("x", on_error="none")], name="g")
    async with Engine("memory://", [graph, later]) as engine:
        # The id of another run is the beginning of this one's.
        await engine.run(graph(x=[]), id="a")
        run = await engine.start(graph(x=[5, 6, 7]), id="a/b")
        for i in (2, 0, 1):
            await engine.signal(f"a/b/later:0[{i}]", "go", i)
        assert (await run.result()) == {"later": [None, 7, 9]}
        assert [found.id for found in await engine.list()] == ["a/b", "a"]
        found = [await engine.get(f"a/b/later:0[{i}]") for i in (0, 1, 3)]
        assert [None if one is None else (one.status.value, one.output) for one in found] == [
            ("failed", None),
            ("completed", 7),
            None,
        ]
        assert [await engine.signal(f"a/b/later:0[{i}]", "go", 1) for i in (0, 1)] == [
            Finished(RunStatus.FAILED),
            Finished(RunStatus.COMPLETED),
        ]
        with pytest.raises(NoSuchRun):
            await engine.cancel("a/c/later:0[0]")


async def test_items_can_be_asked_for_in_order_and_by_status() -> None:
    graph = Graph([urls, node(fetch, inputs={"url": "urls"}).map_over("url", on_error="none")], name="g")
    async with Engine("memory://", [graph]) as engine:
        await engine.run(graph(n=20), id="r")
        assert [item.path for item in await engine.items("r", "fetch:0", status="failed")] == [
            "fetch:0[3]",
            "fetch:0[17]",
        ]
        assert [item.path for item in await engine.items("r", "fetch:0", start=5, limit=2)] == [
            "fetch:0[5]",
            "fetch:0[6]",
        ]


@pytest.mark.parametrize("kind", ["graph", "twice", "item", "workflow"])
async def test_the_rules_of_a_graph_hold_for_the_programs_in_it_behind_their_own(kind: str) -> None:
    tries: Counter[str] = Counter()

    def fail(name: str) -> None:
        tries[name] += 1
        raise ConnectionError

    @step
    def flaky(x: int) -> int:
        fail("flaky")
        return x

    @step
    def own(x: int) -> int:
        fail("own")
        return x

    @workflow(rules=[rule("own", attempts=2, initial=0.001, on_failure="skip")])
    async def in_code(x: int) -> None:
        await flaky(x)
        await own(x)

    inner: Any = Graph([flaky, own], name="inner", rules=[rule("own", attempts=2, initial=0.001, on_failure="skip")])
    if kind == "twice":
        inner = Graph([inner], name="middle")
    elif kind == "item":
        inner = inner.map_over("x")
    elif kind == "workflow":
        inner = node(in_code)
    rules = [rule("flaky", attempts=3, initial=0.001, on_failure="skip"), rule("own", attempts=5, initial=0.001)]
    outer = Graph([inner], name="outer", rules=rules)
    async with Engine("memory://", [outer]) as engine:
        assert (await engine.run(outer(x=[1] if kind == "item" else 1))).status is RunStatus.COMPLETED
    assert tries == {"flaky": 3, "own": 2}


@pytest.mark.parametrize("chunk", [1, 500])
@pytest.mark.parametrize("output", [None, "text"])
async def test_a_workflow_inside_that_bails_gives_a_value_of_its_type_or_fails_its_node(
    output: Any, chunk: int
) -> None:
    @workflow
    async def leaves(x: int) -> int:
        bail(reason="enough", output=output if x == 2 else x)

    alone = Graph([node(leaves)], name="alone")
    mapped = Graph([node(leaves, inputs={"x": "xs"}).map_over("x", chunk=chunk, on_error="none")], name="mapped")
    async with Engine("memory://", [alone, mapped]) as engine:
        assert (await engine.run(alone(x=1))).output == {"leaves": 1}
        result = await engine.run(alone(x=2))
        assert isinstance(result.error, NotDecodable)
        assert "the output of bail() in leaves:0" in str(result.error)
        assert (await engine.run(mapped(xs=[1, 2, 3]))).output == {"leaves": [1, None, 3]}


@pytest.mark.parametrize("kind", ["graph", "twice", "item", "workflow"])
async def test_a_bail_in_a_graph_inside_ends_the_whole(kind: str) -> None:
    @node
    def leave(x: int) -> int:
        bail(reason="enough", outputs={"status": "left"})

    @workflow
    async def in_code(x: int) -> Any:
        bail(reason="enough", output={"status": "left"})

    @node
    def after(inner: Any) -> Any:
        return inner

    inner: Any = Graph([leave], name="inner", output=leave)
    if kind == "twice":
        inner = Graph([inner], name="middle", output="inner").as_node(name="inner")
    elif kind == "item":
        inner = inner.map_over("x")
    elif kind == "workflow":  # has a result of its own, and the graph goes on with it
        inner = node(in_code, name="inner")
    outer = Graph([inner, after], name="outer")
    async with Engine("memory://", [outer]) as engine:
        result = await engine.run(outer(x=[1] if kind == "item" else 1), id="r")
        ran = [step.path for step in await engine.steps("r") if step.path == "after:0"]
    output: Any = result.output
    if kind == "workflow":
        assert output == {"after": {"status": "left"}}
    else:
        assert (result.status, output, ran) == (RunStatus.BAILED, {"status": "left"}, [])
