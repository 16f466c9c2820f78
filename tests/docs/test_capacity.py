"""The figures that the guide to capacity computes with are those of its table, and what is measured now."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from bench.capacity import stored
from tests.docs.markdown import ROOT, blocks, table
from tests.services.shared import Shared, empty_postgres, empty_redis

GUIDE = (ROOT / "docs" / "capacity.md").read_text(encoding="utf-8")
COLUMNS = ("sqlite", "postgres", "redis")
# Pages are whole, and a busy machine shares fewer commits: a figure has to be far off to be wrong.
NEAR = 0.4
MEASURED = ("bytes per step", "bytes per run, without its steps", "commits per step, one run alone")
RUNS = 300


def figures() -> dict[tuple[str, str], float]:
    """The table of unit costs, by unit and store."""
    return {
        (unit, store): float(cell.replace(",", ""))
        for unit, *cells in table(GUIDE, "unit")
        for store, cell in zip(COLUMNS, cells, strict=True)
        if cell
    }


def numbers(name: str) -> list[float]:
    """The figures that the guide computes with."""
    code = "\n".join(block.text for block in blocks(GUIDE) if block.language == "python")
    found = re.search(rf"^{name} = \{{(.*)\}}$", code, flags=re.MULTILINE)
    assert found is not None
    return [float(number) for number in re.findall(r": ([0-9.]+)", found[1])]


def test_the_guide_computes_with_the_figures_of_its_table() -> None:
    shown = figures()
    assert numbers("bytes_per_step") == [shown["bytes per step", store] for store in COLUMNS]
    assert numbers("bytes_per_run") == [shown["bytes per run, without its steps", store] for store in COLUMNS]
    code = "\n".join(block.text for block in blocks(GUIDE) if block.language == "python")
    for unit in (
        "write-ahead log per step, bytes",
        "write-ahead log per run, without its steps, bytes",
        "statements a minute, idle",
        "statements per run recovered, same name",
        "statements per run recovered, by another",
        "commits per step, 100 runs at a time",
        "commits per step, one run alone",
    ):
        figure = f"{shown[unit, 'postgres']:g}"
        assert re.search(rf"\b{re.escape(figure)}\b", code), unit


@pytest.fixture
def alone() -> Iterator[Shared]:
    """Servers that nobody else uses: memory and transactions are counted over all of a server."""
    shared = Shared.make()
    yield shared
    shared.end()


@pytest.mark.parametrize("store", COLUMNS)
async def test_what_a_run_and_a_step_cost_is_what_the_guide_says(store: str, tmp_path: Path, alone: Shared) -> None:
    made = iter(range(100))

    @contextmanager
    def sqlite() -> Iterator[str]:
        yield f"sqlite:///{tmp_path}/{next(made)}.db"

    make: dict[str, Callable[[], AbstractContextManager[str]]] = {
        "sqlite": sqlite,
        "postgres": partial(empty_postgres, alone),
        "redis": partial(empty_redis, alone),
    }
    found = await stored(make[store], RUNS)
    shown = figures()
    assert {unit: found[unit] for unit in MEASURED} == {
        unit: pytest.approx(shown[unit, store], rel=NEAR) for unit in MEASURED
    }
    # Commits and round trips are shared by those who are ready at the same moment.
    assert found["commits per step, 100 runs at a time"] < 0.1
    if store != "sqlite":
        assert found["statements per step, 100 runs at a time"] < 0.1
