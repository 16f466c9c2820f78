"""Fallbacks and skipped steps over the death of their process."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from perdure.kernel.events import AttemptFailed, StepFailed, StepSkipped, StepSucceeded
from tests.crash.harness import Children, Journal, at_once, audit, ending, read_effects, through_kills, until

# More than such a run has; the last ones end without a death.
COMMITS = 14
RESULT = ["small", "archive", None, 3]


def check(folder: Path, ended: dict[str, Any]) -> Journal:
    """Each step has its own tries, then its fallback; each outcome is recorded once."""
    assert (ended["status"], ended["output"]) == ("completed", RESULT)
    journal = audit(folder / "runs.db")["asking"]
    assert journal.outcomes == ["ask:0", "consult:0", "unimportant:0", "add:0"]
    events = journal.events
    assert not [e for e in events if isinstance(e, StepFailed)]
    assert [e.op for e in events if isinstance(e, StepSkipped)] == ["unimportant:0"]
    assert [e.op for e in events if isinstance(e, StepSucceeded) and e.fallback] == ["ask:0", "consult:0"]
    # Attempts that died are not held against the step: as many failures as the rules allow, and no more.
    failures = Counter((e.op, e.fallback) for e in events if isinstance(e, AttemptFailed))
    assert failures == {("ask:0", False): 1, ("ask:0", True): 1, ("consult:0", True): 1, ("unimportant:0", False): 1}
    for effect in read_effects(folder / "effects"):
        if effect.what.startswith("fallback"):
            assert effect.what == "fallback after Broken('large')", "the same error after a crash"
            last = max(e.attempt for e in events if isinstance(e, AttemptFailed) and e.op == effect.op)
            assert effect.attempt > last
    return journal


def test_a_run_with_fallbacks_killed_at_any_commit_comes_to_the_same_end(children: Children, tmp_path: Path) -> None:
    def die_at(point: tuple[int, bool]) -> bool:
        folder = tmp_path / f"{point}"
        ended, left = through_kills(children, "end", folder, [point], **ending(folder, "asking", ""))
        under_way = [one for journals in left if "asking" in journals for one in journals["asking"].under_way]
        journal = check(folder, ended)
        for op, times in journal.started.items():
            failures = sum(isinstance(e, AttemptFailed) and e.op == op for e in journal.events)
            assert times == 1 + failures + sum(op == name for name, _ in under_way)
        return bool(left)

    points = [(at, after) for at in range(1, COMMITS + 1) for after in (False, True)]
    assert sum(at_once(die_at, points, 4)) >= 16


def fallbacks(folder: Path, op: str, count: int) -> bool:
    told = [e for e in read_effects(folder / "effects") if e.op == op and e.what.startswith("fallback")]
    return len(told) >= count


def test_a_fallback_killed_in_the_middle_is_made_again_as_a_fallback(children: Children, tmp_path: Path) -> None:
    still = tmp_path / "still"
    run = ending(tmp_path, "asking", str(still))
    # Twice in the first fallback, once in the second: neither ends before the kill.
    for place, op, count in ((0, "ask:0", 1), (0, "ask:0", 2), (1, "consult:0", 1)):
        still.write_text(str(place))
        child = children.start("end", tmp_path, **run)
        until(partial(fallbacks, tmp_path, op, count))
        child.kill()
    still.unlink()
    journal = check(tmp_path, children.start("end", tmp_path, **run).result())
    effects = read_effects(tmp_path / "effects")
    told = [(e.op, e.attempt) for e in effects if e.what.startswith("fallback")]
    assert told == [("ask:0", 3), ("ask:0", 4), ("ask:0", 5), ("consult:0", 2), ("consult:0", 3)]
    own = Counter(e.op for e in effects if e.what == "begin" and (e.op, e.attempt) not in told)
    assert (own["ask:0"], own["consult:0"]) == (2, 1), "its own tries are not made again"
    assert journal.claims >= 4
