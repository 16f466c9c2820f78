"""Kill -9 at every commit of a run with children, a detached run and several incarnations."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.kernel.events import ChildFinished, ChildStarted
from tests.crash.harness import PARTS, Children, at_once, audit, check_executions, read_effects, through_kills

MOST = 44
OUTPUT = [201, 416, 204, 420]


def live(children: Children, folder: Path, *kills: tuple[int, bool]) -> tuple[int, int]:
    """Run the family through deaths and check everything. Says how often it died, and how many commits it had."""
    ended, left = through_kills(children, "family", folder, kills)
    assert (ended["output"], ended["loner"]) == (OUTPUT, 8)
    journals = audit(folder / "runs.db")
    assert set(journals) == {"family", "loner"}
    last = journals["family"].events
    started = [event.op for event in last if isinstance(event, ChildStarted)]
    ended_ones = [event.op for event in last if isinstance(event, ChildFinished)]
    assert sorted(started) == sorted(ended_ones), "every child begins once and ends once"
    assert len(set(started)) == len(started) == 5
    for journal in journals.values():
        check_executions(journal, read_effects(folder / "effects"))
    return len(left), ended["commits"]


@pytest.mark.parametrize(("after", "share"), PARTS)
def test_a_family_killed_at_any_commit_goes_on_where_it_was(
    children: Children, tmp_path: Path, after: bool, share: int
) -> None:
    _, commits = live(children, tmp_path / "calm")
    assert 20 <= commits <= MOST, "commits enough to die at"
    points = range(1 + share, commits + 2, 2)
    lives = at_once(lambda n: live(children, tmp_path / str(n), (n, after)), points, 4)
    assert sum(deaths for deaths, _ in lives) >= len(points) * 2 // 3
