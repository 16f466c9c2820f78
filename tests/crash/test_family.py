"""Kill -9 at every commit of a run with children, a detached run and several incarnations."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.kernel.events import ChildFinished, ChildStarted
from tests.crash.harness import Children, at_once, audit, audit_copy, check_executions, read_effects

# Each commit is met on one side, by turns; `make soak` meets all on both.
PARTS = [
    (False, 0),
    (True, 1),
    pytest.param(False, 1, marks=pytest.mark.soak),
    pytest.param(True, 0, marks=pytest.mark.soak),
]
MOST = 44
OUTPUT = [201, 416, 204, 420]


def live(children: Children, folder: Path, *kills: tuple[int, bool]) -> int:
    """Run the family, dying at each of `kills` in turn and starting again; check everything. Says how often it died."""
    folder.mkdir()
    db, effects = folder / "runs.db", folder / "effects"
    command = {"db": str(db), "effects": str(effects)}
    deaths = 0
    for at, after in kills:
        if not children.start("family", folder, **command, at=at, after=after).killed():
            break
        deaths += 1
        if db.exists():
            audit_copy(db)
    ended = children.start("family", folder, **command).result()
    assert (ended["output"], ended["loner"]) == (OUTPUT, 8)
    journals = audit(db)
    assert set(journals) == {"family", "loner"}
    last = journals["family"].events
    started = [event.op for event in last if isinstance(event, ChildStarted)]
    ended_ones = [event.op for event in last if isinstance(event, ChildFinished)]
    assert sorted(started) == sorted(ended_ones), "every child begins once and ends once"
    assert len(set(started)) == len(started) == 5
    for journal in journals.values():
        check_executions(journal, read_effects(effects))
    return deaths


def counted(children: Children, folder: Path) -> int:
    """How many commits the family has."""
    folder.mkdir()
    db, effects = folder / "runs.db", folder / "effects"
    commits: int = children.start("family", folder, db=str(db), effects=str(effects)).result()["commits"]
    assert 20 <= commits <= MOST, "commits enough to die at"
    return commits


@pytest.mark.parametrize(("after", "share"), PARTS)
def test_a_family_killed_at_any_commit_goes_on_where_it_was(
    children: Children, tmp_path: Path, after: bool, share: int
) -> None:
    points = range(1 + share, counted(children, tmp_path / "counted") + 2, 2)
    deaths = at_once(lambda n: live(children, tmp_path / str(n), (n, after)), points, 4)
    assert sum(deaths) >= len(points) * 2 // 3
