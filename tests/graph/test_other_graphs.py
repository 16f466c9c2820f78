"""Graphs that are made of others by their methods, and options that cannot be meant."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, RunStatus, workflow
from perdure.graph import END, Graph, interrupt, node, route
from tests.graph.running import run


@node
def double(x: int, by: int = 2) -> int:
    return x * by


@interrupt(answer=int)
def approve(double: int) -> int:
    return double


@node
def last(double: int, approve: int) -> int:
    return double + approve


DOUBLES = Graph([double], name="doubles", output=double)
ASKS = Graph([double, approve, last], name="asks", output=last)


# --- copies ---------------------------------------------------------------------------------------------------------


async def test_batches_of_a_graph_are_those_of_the_graph_that_was_bound_not_of_the_one_before() -> None:
    DOUBLES.batch()
    by_ten = DOUBLES.bind(by=10).with_name("tens")
    async with Engine("memory://", [DOUBLES, by_ten]) as engine:
        handle = await engine.start_batch(by_ten, [{"x": 1}, {"x": 2}], id="b")
        assert list(await handle.result()) == [10, 20]


def test_a_copy_has_batches_and_a_structure_of_its_own() -> None:
    before = DOUBLES.batch(), DOUBLES.structure
    copies = DOUBLES.with_name("other"), DOUBLES.rename_inputs(x="y"), DOUBLES.rename_outputs(double="it")
    for copy in copies:
        assert copy.batch() is not before[0]
        assert copy.structure != before[1]


# --- bind, takes, rename --------------------------------------------------------------------------------------------


async def test_a_bound_value_comes_before_the_default_of_a_signature_and_behind_what_is_given() -> None:
    def signature(x: int, by: int = 3) -> None: ...

    bound = DOUBLES.bind(by=10).takes(signature)
    assert (await run(bound, x=1)).output == 10
    assert (await run(bound, x=1, by=4)).output == 4
    assert (await run(DOUBLES.takes(signature).bind(by=10), x=1)).output == 10
    assert (await run(DOUBLES.takes(signature), x=1)).output == 3
    renamed = DOUBLES.bind(by=10).rename_inputs(by="times")

    def other(x: int, times: int = 3) -> None: ...

    assert (await run(renamed.takes(other), x=1)).output == 10


def test_a_renamed_input_that_is_bound_is_listed_under_its_name() -> None:
    found = DOUBLES.bind(by=10).rename_inputs(by="times").inputs
    assert found.bound == {"times": 10}
    assert set(found.required) == {"x"}
    assert found.optional == {}


async def test_an_answer_can_be_given_under_another_name() -> None:
    renamed = ASKS.rename_inputs(approve="ok", x="value")
    assert (await run(renamed, value=1, ok=5)).output == 7
    assert (await run(renamed, value=1)).result.interrupted
    outer = Graph([node(renamed, name="inner", inputs={"ok": "given"})], name="outer", output="inner")
    assert (await run(outer, value=1, given=5)).output == 7


async def test_a_signature_is_renamed_away_with_its_inputs() -> None:
    def signature(x: int, by: int = 3) -> None: ...

    renamed = DOUBLES.takes(signature).rename_inputs(x="y")
    assert (await run(renamed, y=2)).output == 4


async def test_inputs_with_other_names_are_not_checked_again_by_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = ASKS.rename_inputs(x="value")
    checked = list[object]()
    check = Graph.check_input

    def counted(self: Any, input: Any, codec: Any) -> object:
        checked.append(bytes(input))
        return check(self, input, codec)

    monkeypatch.setattr(Graph, "check_input", counted)
    url = f"sqlite:///{tmp_path / 'g.db'}"
    async with Engine(url, [renamed]) as engine:
        assert (await engine.run(renamed(value=1), id="r")).interrupted
        with pytest.raises(TypeError, match="no input 'x'"):
            _ = renamed(x=1)
    assert set(checked) == {b'{"value":1}'}
    checked.clear()
    async with Engine(url, [renamed]) as engine:
        assert (await engine.run(renamed, id="r", answers={"approve": 1})).output == 3
    assert checked == []


# --- maps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "count"), [(0.29, 100), (0.57, 100), (0.58, 100), (0.07, 100), (0.1, 30)])
async def test_a_share_of_failures_is_tolerated_as_it_is_written(share: float, count: int) -> None:
    most = round(share * count)

    def fails(i: int, many: int) -> int:
        if i < many:
            raise ValueError("no")
        return i

    mapped = node(fails, name="fails", inputs={"i": "items"}).map_over("i", on_error="skip", tolerate=share)
    graph = Graph([mapped], name="g", output="fails")
    assert len((await run(graph, items=list(range(count)), many=most)).output) == count - most
    assert (await run(graph, items=list(range(count)), many=most + 1)).result.status is RunStatus.FAILED


# --- what cannot be meant -------------------------------------------------------------------------------------------


@workflow
async def code(x: int) -> int:
    return x + 1


class Way(Enum):
    """Names that nodes have, too."""

    double = 1


@dataclass
class Named:
    """An object with the name of a node."""

    name: str


@pytest.mark.parametrize("given", [code, DOUBLES, DOUBLES.as_node(), approve])
def test_a_version_is_refused_where_nothing_would_use_it(given: Any) -> None:
    with pytest.raises(TypeError, match="no such option"):
        node(given, version="2")


@pytest.mark.parametrize("output", [code, DOUBLES])
async def test_the_output_may_be_a_program(output: Any) -> None:
    assert (await run(Graph([output], name="g", output=output), x=1)).output == 2


@pytest.mark.parametrize("returned", [Way.double, Named("double")])
async def test_a_gate_chooses_nodes_and_no_objects_that_are_called_so(returned: Any) -> None:
    gate = route(targets=[double, END], name="gate", inputs={"x": "x"})(lambda x: returned)
    result = (await run(Graph([gate, double], name="g"), x=1)).result
    assert result.status is RunStatus.FAILED
    assert "must return one of 'double', END" in str(result.error)


@pytest.mark.parametrize("chosen", [code, DOUBLES])
async def test_a_gate_may_return_the_program_that_it_chooses(chosen: Any) -> None:
    gate = route(targets=[chosen, END], name="gate", inputs={"x": "x"})(lambda x: chosen)
    assert (await run(Graph([gate, chosen], name="g", output=chosen), x=1)).output == 2


# --- costs ----------------------------------------------------------------------------------------------------------


def gates(count: int) -> tuple[list[Any], list[str]]:
    """Gates in a row, and behind them two nodes that make one value."""
    nodes: list[Any] = []
    for i in range(count):
        gate = route(targets=[f"a{i}", END], name=f"g{i}", inputs={"v": f"a{i - 1}" if i else "x"})(lambda v: END)
        nodes += [gate, node(lambda v: v, name=f"a{i}", inputs={"v": f"a{i - 1}" if i else "x"})]
    value = {"v": f"a{count - 1}"}
    nodes.append(route(targets=["p", "q"], name="way", inputs=value)(lambda v: "p"))
    nodes += [node(lambda v: v, name=name, outputs="z", inputs=value) for name in "pq"]
    return nodes, []


def loops(count: int) -> tuple[list[Any], list[str]]:
    """Loops in a row."""
    nodes: list[Any] = []
    for i in range(count):
        before = {"v": f"c{i - 1}" if i else "x", "c": f"c{i}"}
        nodes.append(node(lambda v, c=0: c + 1, name=f"b{i}", inputs=before))
        nodes.append(node(lambda b: b, name=f"n{i}", outputs=f"c{i}", inputs={"b": f"b{i}"}))
        nodes.append(route(targets=[f"b{i}", END], name=f"r{i}", inputs={"c": f"c{i}"})(lambda c: END))
    return nodes, [f"b{i}" for i in range(count)]


def cost(build: Callable[[], object]) -> tuple[int, int]:
    """How many operations of the interpreter building takes, and how much memory."""
    count = 0

    def traced(frame: Any, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        build()
    finally:
        sys.settrace(before)
    tracemalloc.start()
    try:
        build()
        return count, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [gates, loops])
def test_gates_and_loops_in_a_row_are_built_in_linear_time(shape: Any) -> None:
    costs = list[tuple[int, int]]()
    for count in (100, 200, 400):
        nodes, begin = shape(count)
        costs.append(cost(partial(Graph, nodes, name="g", loops=begin)))
    assert all(
        now < 2.3 * then for before, after in pairwise(costs) for then, now in zip(before, after, strict=True)
    ), costs
