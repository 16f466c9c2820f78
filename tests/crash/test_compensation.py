"""A saga whose process is killed: while it books, and in the middle of undoing what was booked."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from perdure.kernel.events import StepFailed, StepSucceeded
from tests.crash.harness import Children, at_once, audit, check_executions, ending, read_effects, through_kills, until

UNDONE = [f"compensate:0/unbook:{n}" for n in range(3)]
ERROR = "CompensationFailed: 1 of 3 compensations failed (unbook raised Broken: car-1) after Broken: as it should"
# More than a trip has; the last one ends without a death.
COMMITS = 11


def check_end(folder: Path, ended: dict[str, Any]) -> Counter[str]:
    """All three are undone, in reverse and once, and the error tells of the one that could not be."""
    assert ended["status"] == "failed"
    assert ended["error"].startswith(ERROR)
    journal = audit(folder / "runs.db")["trip"]
    ends = [e.op for e in journal.events if isinstance(e, StepSucceeded | StepFailed)]
    assert ends == ["book:0", "book:1", "book:2", "broken:0", *UNDONE]
    assert [e.op for e in journal.events if isinstance(e, StepFailed)] == ["broken:0", UNDONE[1]]
    return check_executions(journal, read_effects(folder / "effects"))


def begun(folder: Path, op: str) -> bool:
    return any(effect.op == op for effect in read_effects(folder / "effects"))


def test_a_saga_killed_at_any_commit_is_undone_once_and_in_reverse(children: Children, tmp_path: Path) -> None:
    def die_at(point: tuple[int, bool]) -> bool:
        folder = tmp_path / f"{point}"
        ended, left = through_kills(children, "end", folder, [point], **ending(folder, "trip", 0.0))
        under_way = {op for journals in left if "trip" in journals for op, _ in journals["trip"].under_way}
        executed = check_end(folder, ended)
        assert {op for op, times in executed.items() if times > 1} <= under_way
        return bool(left)

    points = [(at, after) for at in range(1, COMMITS + 1) for after in (False, True)]
    assert sum(at_once(die_at, points, 4)) >= 14


def test_a_saga_killed_while_it_compensates_goes_on_with_the_rest(children: Children, tmp_path: Path) -> None:
    run = ending(tmp_path, "trip", 0.3)
    # Killed in the first compensation, and again in the second.
    for op in UNDONE[:2]:
        child = children.start("end", tmp_path, **run)
        until(partial(begun, tmp_path, op))
        child.kill()
    executed = check_end(tmp_path, children.start("end", tmp_path, **run).result())
    assert [executed[op] for op in UNDONE] == [2, 2, 1]
    assert all(executed[f"book:{n}"] == 1 for n in range(3)), "what is being undone is not done again"
