"""Long lists that are decoded one element at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from perdure import Engine, RunStatus
from perdure.graph import Graph, Items, node


@dataclass(frozen=True)
class Row:
    number: int


@node
def rows(n: int) -> list[Row]:
    return [Row(i) for i in range(n)]


@node
def doubled(row: Row) -> Row:
    return Row(row.number * 2)


@node
def total(doubled: Items[Row]) -> int:
    assert doubled[0] == Row(0)
    assert list(doubled[1:3]) == [Row(2), Row(4)]
    assert len(doubled) == 5
    return sum(row.number for row in doubled)


async def test_a_node_takes_a_list_as_items() -> None:
    graph = Graph([rows, node(doubled, inputs={"row": "rows"}).map_over("row"), total], name="g", output=total)
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph(n=5))).output == 20


async def test_a_graph_starts_with_items_and_maps_over_them() -> None:
    graph = Graph([node(doubled).map_over("row")], name="g", output="doubled")
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(row=Items.of(Row(i) for i in range(3))))
        assert result.output == [Row(0), Row(2), Row(4)]


@pytest.mark.parametrize("value", ["text", {"a": 1}, [{"numbr": 1}]])
async def test_what_is_no_list_of_these_elements_fails_the_node(value: Any) -> None:
    @node
    def anything() -> Any:
        return value

    @node
    def count(anything: Items[Row]) -> int:
        return sum(row.number for row in anything)

    graph = Graph([anything, count], name="g", output=count)
    async with Engine("memory://", [graph]) as engine:
        assert (await engine.run(graph())).status is RunStatus.FAILED
