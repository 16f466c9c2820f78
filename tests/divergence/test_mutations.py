"""Workflows of many shapes, changed by rule: every change is found, and told with the right kind and lines."""

from __future__ import annotations

import asyncio
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from perdure.kernel.divergence.compare import compared
from perdure.kernel.divergence.model import Divergence
from perdure.kernel.divergence.source import Source
from perdure.kernel.events import Batch
from tests.divergence import shop
from tests.divergence.corpus import HEADER, ORDER
from tests.divergence.harness import Code, cuts, journal, recorded, replay
from tests.divergence.mutations import MUTATIONS, SHAPES, Mutation

ABOVE = (HEADER + ORDER).count("\n")
_NUMBERS = count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutations")


@cache
def points(folder: Path, shape: str) -> tuple[str, list[list[Batch]], Source]:
    """The journal of a shape, as a crash leaves it early, halfway and late, and its source. Recorded once."""
    code = Code(folder / f"shape-{next(_NUMBERS)}", SHAPES[shape].lstrip("\n"))
    store, run_id = recorded(code)
    found = cuts(asyncio.run(journal(store, run_id)))
    return run_id, [found[len(found) // 3], found[2 * len(found) // 3], found[-1]], code.programs["order"].source()


def verdicts(folder: Path, mutation: Mutation) -> tuple[list[Divergence | None], list[Divergence | None]]:
    """What the changed code makes of the journal, without the source of before and with it."""
    run_id, found, before = points(folder, mutation.shape)
    code = Code(folder / f"change-{next(_NUMBERS)}", mutation.after)
    alone = [replay(code, batches, run_id) for batches in found]
    source = code.programs["order"].source()
    return alone, [why and compared(why, before, source) for why in alone]


def is_right(mutation: Mutation, found: Divergence) -> bool:
    lines = [found.recorded.source, found.current.source if found.current is not None else ""]
    was, now = (int(line.rpartition(":")[2]) - ABOVE if line else 0 for line in lines)
    return found.change == mutation.kind and mutation.recorded in (0, was) and mutation.now in (0, now)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_change_is_found_and_nearly_every_one_is_told_right(shape: str, folder: Path) -> None:
    points(folder, shape)
    shop.executed.clear()
    of_shape = [(mutation, *verdicts(folder, mutation)) for mutation in MUTATIONS if mutation.shape == shape]
    assert shop.executed == []
    assert [mutation.name for mutation, alone, _ in of_shape if alone[-1] is None] == []
    # Without the source of before, some changes look the same where the run has come no further than the change.
    for least, number in ((0.95 if shape not in AMBIGUOUS else 0.85, 0), (0.98, 1)):
        told = [(one, why) for one, *both in of_shape for why in both[number] if why is not None]
        wrong = [f"{one.name}: {why.change}, not {one.kind}" for one, why in told if not is_right(one, why)]
        assert 1 - len(wrong) / len(told) >= least, "\n".join(wrong)


# Several lines call the same step, or nearly nothing follows a change.
AMBIGUOUS = {"one step again and again", "children", "sleeps", "signals", "a race"}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_fits_its_own_journal(shape: str, folder: Path) -> None:
    run_id, found, _ = points(folder, shape)
    code = Code(folder / f"same-{next(_NUMBERS)}", "# Moved by a line.\n" + SHAPES[shape].lstrip("\n"))
    assert [replay(code, batches, run_id) for batches in found] == [None, None, None]


def test_the_table_is_broad() -> None:
    assert len(MUTATIONS) >= 900
    assert {mutation.kind for mutation in MUTATIONS} == {
        *("inserted", "removed", "renamed", "reordered", "inputs", "type", "fewer", "more", "branch")
    }
