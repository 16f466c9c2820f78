"""Kill -9 at every commit of a schedule that fires."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.kernel.events import RunStatus
from tests.crash.harness import Children, at_once, audit, audit_copy, check_executions, read_effects

# Each commit is met on one side, by turns; `make soak` meets all on both.
PARTS = [
    (False, 0),
    (True, 1),
    pytest.param(False, 1, marks=pytest.mark.soak),
    pytest.param(True, 0, marks=pytest.mark.soak),
]
MOST = 50
TICKS = [f"s@2025-01-0{day}T03:00:00Z" for day in (1, 2, 3, 4)]


def live(children: Children, folder: Path, overlap: str, *kills: tuple[int, bool]) -> tuple[int, dict[str, Any]]:
    """Fire four ticks, dying at each of `kills` in turn and starting again; check everything."""
    folder.mkdir(exist_ok=True)
    db, effects = folder / "runs.db", folder / "effects"
    command = {"db": str(db), "effects": str(effects), "overlap": overlap}
    deaths = 0
    for at, after in kills:
        if not children.start("scheduled", folder, **command, at=at, after=after).killed():
            break
        deaths += 1
        if db.exists():
            audit_copy(db)
    ended = children.start("scheduled", folder, **command).result()
    assert ended["runs"] == TICKS
    assert ended["failed"] == 0
    journals = audit(db)
    assert set(journals) == {"schedule:s", *TICKS}
    for id in TICKS:
        assert [event.status for event in journals[id].finished] == [RunStatus.COMPLETED]
        check_executions(journals[id], read_effects(effects))
    return deaths, ended


@pytest.mark.parametrize("overlap", ["skip", "allow"])
@pytest.mark.parametrize(("after", "share"), PARTS)
def test_a_schedule_killed_at_any_commit_fires_each_tick_once(
    children: Children, tmp_path: Path, after: bool, overlap: str, share: int
) -> None:
    _, calm = live(children, tmp_path / "calm", overlap)
    assert calm["fired"] == 4
    assert 10 <= calm["commits"] <= MOST
    points = range(1 + share, calm["commits"] + 2, 2)
    lives = at_once(lambda n: live(children, tmp_path / str(n), overlap, (n, after)), points, 4)
    assert sum(deaths for deaths, _ in lives) >= len(points) // 2
