"""Values in blobs are handed from node to node by reference, and loaded where they are needed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from perdure import Engine, Limits, RunStatus, step, workflow
from perdure.graph import Graph, ifelse, interrupt, node
from perdure.kernel.events import RunFinished, StepSucceeded
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, left_by_a_crash

LIMITS = Limits(blob=500)
BIG = "x" * 1000


class Reads:
    """Counts the blobs that are read from a store, without the sources of programs."""

    def __init__(self, store: MemoryStore) -> None:
        self.count = 0
        self._get = store.blobs.get
        store.blobs.get = self._read  # type: ignore[method-assign, assignment]

    async def _read(self, blob_id: str) -> bytes | None:
        data = await self._get(blob_id)
        self.count += data is not None and not data.startswith((b'{"parts":', b'{"nodes":', b'{"program":'))
        return data


def producer(number: int) -> Any:
    @node(name=f"make{number}", outputs=f"big{number}")
    def make() -> str:
        return f"{number}{BIG}"

    return make


def measure(number: int) -> Any:
    @node(name=f"measure{number}", inputs={"text": f"big{number}"}, outputs=f"size{number}")
    def size(text: str) -> int:
        return len(text)

    return size


@interrupt(answer=int)
def go() -> str:
    return "go on?"


async def rested(graph: Graph[..., Any], store: MemoryStore | None = None, **inputs: Any) -> MemoryStore:
    """What a crash leaves of a run that waits for an answer."""
    store = store or MemoryStore()
    async with Engine(store, [graph], limits=LIMITS, recovery=AT_ONCE) as engine:
        result = await engine.run(graph(**inputs), id="r")
        assert result.interrupted, result
        return left_by_a_crash(store)


async def answered(graph: Graph[..., Any], store: MemoryStore, more: Iterable[Any] = ()) -> tuple[Any, int]:
    """The result of the run once it is answered, and how many blobs were read for it."""
    reads = Reads(store)
    async with Engine(store, [graph, *more], limits=LIMITS, recovery=AT_ONCE) as engine:
        await engine.approve("r", "go", 1)
        result = await engine.run(graph, id="r")
        assert result.status is RunStatus.COMPLETED, result
        return result.output, reads.count


async def test_of_many_blobs_the_one_that_a_node_takes_is_read() -> None:
    @node(inputs={"text": "big7"})
    def last(text: str, go: int) -> int:
        return len(text) + go

    numbers = range(60)
    graph = Graph([*map(producer, numbers), *map(measure, numbers), go, last], name="g", output=last)
    assert await answered(graph, await rested(graph)) == (1002, 1)


async def test_a_blob_that_many_nodes_take_at_once_is_read_once() -> None:
    takers = [node(measured, name=f"take{number}", outputs=f"taken{number}") for number in range(10)]
    graph = Graph([text, go, *takers], name="g").select(*(f"taken{number}" for number in range(10)))
    output, reads = await answered(graph, await rested(graph))
    assert (set(output.values()), reads) == ({1001}, 1)


async def test_a_result_that_is_in_a_blob_is_that_blob() -> None:
    @node
    def check(go: int) -> None: ...

    graph = Graph([producer(0), go, check], name="g", output=producer(0))
    store = await rested(graph)
    output, reads = await answered(graph, store)
    assert (len(output), reads) == (1001, 1)  # the caller reads it
    [run_id] = store.journal.batches
    events = [event for batch in await store.journal.read(run_id) for event in batch.events]
    [made] = [event for event in events if isinstance(event, StepSucceeded) and event.blob]
    [end] = [event for event in events if isinstance(event, RunFinished)]
    assert made.blob == end.blob
    assert made.digest


# --- what needs the value itself ------------------------------------------------------------------------------------


@node(outputs=("one", "two"))
def pair() -> tuple[str, str]:
    return "1" * 400, "2" * 400


@node
def numbers() -> list[int]:
    return list(range(300))


@node
def text() -> str:
    return BIG


@step
def doubled(number: int) -> int:
    return 2 * number


@node
def both(pieces: list[str], go: int) -> int:
    return sum(map(len, pieces))


@node
def long(text: str) -> str:
    return "long"


@node
def short(text: str) -> str:
    return "short"


@ifelse("long", "short")
def is_long(text: str, go: int) -> bool:
    return len(text) > 10


@workflow
async def inside(text: str) -> str:
    return text + "!"


def graphs() -> dict[str, tuple[Graph[..., Any], Any]]:
    @node
    def total(doubled: list[int]) -> int:
        return sum(doubled)

    @node(inputs={"text": "two"})
    def second(text: str, go: int) -> str:
        return text[:go]

    @node(when=lambda text, go: len(text) > go)
    def perhaps(text: str) -> int:
        return len(text)

    @node(inputs={"text": "text"})
    def shouted(text: str, go: int) -> int:
        return len(text) + go

    @node(inputs={"text": "inside"})
    def ended(text: str, go: int) -> str:
        return text[-go:]

    sub = Graph([shouted], name="sub", output=shouted)
    mapped = node(doubled, inputs={"number": "numbers"}).map_over("number")
    return {
        "part": (Graph([pair, go, second], name="part", output=second), "2"),
        "map": (Graph([numbers, mapped, go, total], name="map"), {"go": 1, "total": 89700}),
        "map after": (
            Graph(
                [numbers, go, node(doubled, inputs={"number": "numbers"}, after=["go"]).map_over("number"), total],
                name="after",
                output=total,
            ),
            89700,
        ),
        "join": (
            Graph(
                [producer(0), producer(1), go, node(both, inputs={"pieces": ["big0", "big1"]})],
                name="join",
                output=both,
            ),
            2002,
        ),
        "gate": (Graph([text, go, is_long, long, short], name="gate").select("long"), {"long": "long"}),
        "when": (Graph([text, go, perhaps], name="when", output=perhaps), 1000),
        "graph": (Graph([text, go, sub.as_node()], name="graph").select("sub"), {"sub": 1001}),
        "workflow": (Graph([text, node(inside), go, ended], name="wf", output=ended), "!"),
        "all": (Graph([text, go], name="all"), {"text": BIG, "go": 1}),
    }


@pytest.mark.parametrize("name", list(graphs()))
async def test_what_looks_into_a_value_gets_it(name: str) -> None:
    graph, expected = graphs()[name]
    output, _ = await answered(graph, await rested(graph), [inside])
    assert output == expected


# --- other ways to the same place -----------------------------------------------------------------------------------


@step(queue="far")
def measured_far(text: str, go: int) -> int:
    return len(text) + go


@step(record_inputs=True)
def measured_openly(text: str, go: int) -> int:
    return len(text) + go


@step
def measured(text: str, go: int) -> int:
    return len(text) + go


@pytest.mark.parametrize("called", [measured_far, measured_openly])
async def test_a_step_that_stores_its_arguments_stores_what_the_blob_holds(called: Any) -> None:
    graph = Graph([text, go, node(called)], name="g", output=called.name)
    store = await rested(graph)
    async with Engine(store, [graph], steps=[measured_far], limits=LIMITS, recovery=AT_ONCE) as engine:
        await engine.approve("r", "go", 1)
        assert (await engine.run(graph, id="r")).output == 1001
        [row] = [one for one in await engine.steps("r") if one.path == f"{called.name}:0"]
        assert called is measured_far or row.inputs == {"text": BIG, "go": 1}


async def test_the_smallest_values_may_be_in_blobs() -> None:
    @node(outputs=("few", "none"))
    def tiny() -> tuple[int, None]:
        return 7, None

    @node
    def nothing() -> None: ...

    @node
    def last(few: int, none: None, nothing: None, text: str, go: int) -> list[Any]:
        return [few, none, nothing, len(text), go]

    graph = Graph([tiny, nothing, text, go, last], name="g", output=last)
    smallest, store = Limits(blob=1), MemoryStore()
    async with Engine(store, [graph], limits=smallest, recovery=AT_ONCE) as engine:
        assert (await engine.run(graph(), id="r")).interrupted
    async with Engine(left_by_a_crash(store), [graph], limits=smallest, recovery=AT_ONCE) as engine:
        await engine.approve("r", "go", 1)
        assert (await engine.run(graph, id="r")).output == [7, None, None, 1000, 1]


async def test_a_blob_that_is_missing_parks_the_run_that_needs_it() -> None:
    graph = Graph([text, go, node(measured, name="last")], name="g", output="last")
    store = await rested(graph)
    [blob] = [id for id, data in store.blobs.blobs.items() if data.startswith(b'"xxx')]
    kept = store.blobs.blobs.pop(blob)
    async with Engine(store, [graph], limits=LIMITS, recovery=AT_ONCE) as engine:
        await engine.approve("r", "go", 1)
        result = await engine.run(graph, id="r")
        assert result.status is RunStatus.PARKED
        assert blob in str(result.error)
        store.blobs.blobs[blob] = kept
        _ = await engine.resolve("r")
        assert (await engine.run(graph, id="r")).output == 1001


async def test_what_a_run_keeps_of_the_one_before_is_handed_on_by_reference() -> None:
    numbers = range(30)
    last = node(measured, name="last", inputs={"text": "big7"})
    graph = Graph([*map(producer, numbers), *map(measure, numbers), go, last], name="g", output="last")
    store = await rested(graph)
    await answered(graph, store)
    reads = Reads(store)
    async with Engine(store, [graph], limits=LIMITS, recovery=AT_ONCE) as engine:
        _ = await engine.update_state("r", {"go": 5})
        before = reads.count
        assert (await engine.run(graph, id="r")).output == 1006
        assert reads.count == before + 1
        # Its own journal refers to them all, and has their digests.
        events = [entry.event for entry in await engine.journal("r")]
        assert len({one.blob for one in events if isinstance(one, StepSucceeded) and one.blob and one.digest}) == 30
