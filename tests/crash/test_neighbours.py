"""User code that opens the store's file in the engine's process costs no acknowledged run.

A second SQLite library in one process does not see the locks of the first, and any `close()` of the file drops them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import neighbours
from tests.crash.harness import Children, audit
from tests.crash.test_power_cuts import check_acknowledged

ENGINE = "tests.crash.neighbours:engine_with_neighbour"
REMOVED = "tests.crash.neighbours:engine_whose_log_is_removed"


@pytest.mark.parametrize("kind", neighbours.KINDS)
def test_nothing_acknowledged_is_lost_beside_other_code_on_the_same_file(
    children: Children, tmp_path: Path, kind: str
) -> None:
    db, effects, acks = (str(tmp_path / name) for name in ("runs.db", "effects", "acks"))
    child = children.start(ENGINE, tmp_path, db=db, effects=effects, acks=acks, kinds=[kind], threads=0, runs=24)
    assert child.killed(), child.log
    check_acknowledged(audit(Path(db)), Path(acks), "sync")


def test_nothing_acknowledged_is_lost_beside_threads_that_use_the_same_file(children: Children, tmp_path: Path) -> None:
    db, effects, acks = (str(tmp_path / name) for name in ("runs.db", "effects", "acks"))
    child = children.start(
        ENGINE, tmp_path, db=db, effects=effects, acks=acks, kinds=list(neighbours.KINDS), threads=3, runs=60
    )
    assert child.killed(), child.log
    check_acknowledged(audit(Path(db)), Path(acks), "sync")


@pytest.mark.parametrize("every", [1, 2, 5])
def test_nothing_acknowledged_is_lost_when_the_log_is_deleted_under_an_engine(
    children: Children, tmp_path: Path, every: int
) -> None:
    db, effects, acks = (str(tmp_path / name) for name in ("runs.db", "effects", "acks"))
    child = children.start(REMOVED, tmp_path, db=db, effects=effects, acks=acks, runs=20, every=every)
    assert child.killed(), child.log
    assert "its write-ahead log was removed or replaced" in child.log
    check_acknowledged(audit(Path(db)), Path(acks), "sync")
