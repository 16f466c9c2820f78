"""Kill -9 at every commit of a schedule that fires."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.kernel.events import RunStatus
from tests.amounts import some
from tests.crash.harness import Children, at_once, audit, check_executions, read_effects, through_kills

MOST = 50
OVERLAPS = ["skip", "allow"]
TICKS = [f"s@2025-01-0{day}T03:00:00Z" for day in (1, 2, 3, 4)]


def live(children: Children, folder: Path, overlap: str, *kills: tuple[int, bool]) -> tuple[int, dict[str, Any]]:
    """Fire four ticks through deaths, and check everything. Says how often it died, and what it told in the end."""
    ended, left = through_kills(children, "scheduled", folder, kills, overlap=overlap)
    assert ended["runs"] == TICKS
    assert ended["failed"] == 0
    journals = audit(folder / "runs.db")
    assert set(journals) == {"schedule:s", *TICKS}
    for id in TICKS:
        assert [event.status for event in journals[id].finished] == [RunStatus.COMPLETED]
        check_executions(journals[id], read_effects(folder / "effects"))
    return len(left), ended


SIDES = [(False, 0), (True, 1), (False, 1), (True, 0)]
# Each commit is met on one side, by turns; `make soak` meets all on both, in both kinds of schedule.
PARTS = some([(*side, OVERLAPS[(n + other) % 2]) for other in (0, 1) for n, side in enumerate(SIDES)], 2)


@pytest.mark.parametrize(("after", "share", "overlap"), PARTS)
def test_a_schedule_killed_at_any_commit_fires_each_tick_once(
    children: Children, tmp_path: Path, after: bool, share: int, overlap: str
) -> None:
    _, calm = live(children, tmp_path / "calm", overlap)
    assert calm["fired"] == 4
    assert 10 <= calm["commits"] <= MOST
    points = range(1 + share, calm["commits"] + 2, 2)
    lives = at_once(lambda n: live(children, tmp_path / str(n), overlap, (n, after)), points, 4)
    assert sum(deaths for deaths, _ in lives) >= len(points) // 2
