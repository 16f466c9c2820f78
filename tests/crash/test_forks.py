"""Kill -9 at every commit around a fork and a retry: each is there wholly or not at all, and keeps what it kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from perdure.kernel.events import OutcomeKept, RunForked, RunStarted, StepFailed, StepSucceeded
from tests.crash.harness import PARTS, Children, at_once, audit, audit_copy, check_executions, read_effects

LEAST, MOST = 8, 24
# The value that the fork has in place of the recorded one is longer by one, and its length counts twice.
MORE = 2


def prepare(children: Children, folder: Path) -> dict[str, str]:
    """A voyage that failed at its very end, with all of its steps done."""
    folder.mkdir()
    command = {"db": str(folder / "runs.db"), "effects": str(folder / "effects")}
    ended = children.start("voyage", folder, **command, ending="raise").result()
    assert ended["status"] == "failed"
    return command


def live(children: Children, voyage: Path, folder: Path, *kills: tuple[int, bool]) -> int:
    """Fork and retry, dying at each of `kills` in turn and starting again; check everything. Says how often it died."""
    shutil.copytree(voyage, folder)
    db = folder / "runs.db"
    command = {"db": str(db), "effects": str(folder / "effects")}
    original = audit(db)["voyage"]
    deaths = 0
    for at, after in kills:
        child = children.start("forking", folder, **command, at=at, after=after)
        if not child.killed():
            # How many commits there are depends on how many fall together.
            assert child.result()["commits"] < at
            break
        deaths += 1
        audit_copy(db)
        for journal in audit(db).values():
            started = journal.events[0]
            assert isinstance(started, RunStarted)
            # No fork without the mark where its past ends, and with all that stands before it.
            assert bool(started.forked_from) == any(isinstance(event, RunForked) for event in journal.events)
    ended = children.start("forking", folder, **command).result()["outcomes"]
    assert json.loads(ended["fork"])["total"] == json.loads(ended["voyage"])["total"] + MORE
    journals = audit(db)
    effects = list(read_effects(folder / "effects"))
    fork, again = journals["fork"], journals["voyage"]
    assert (fork.events[0].forked_from, again.events[0].forked_from) == (original.run_id, original.run_id)  # type: ignore[union-attr]
    for journal in (fork, again):
        point = next(n for n, event in enumerate(journal.events) if isinstance(event, RunForked))
        past = StepSucceeded | StepFailed | OutcomeKept
        kept = {event.op for event in journal.events[:point] if isinstance(event, past)}
        executed = check_executions(journal, effects)
        assert kept
        assert kept.isdisjoint(executed)
    # The voyage had done everything before it failed of itself.
    assert not check_executions(again, effects)
    return deaths


def test_a_fork_and_a_retry_have_commits_enough_to_die_at(children: Children, tmp_path: Path) -> None:
    command = prepare(children, tmp_path / "one")
    ended = children.start("forking", tmp_path / "one", **command).result()
    assert LEAST <= ended["commits"] <= MOST


@pytest.mark.parametrize(("after", "share"), PARTS)
def test_a_fork_killed_at_any_commit_is_there_wholly_or_not_at_all(
    children: Children, tmp_path: Path, after: bool, share: int
) -> None:
    prepare(children, tmp_path / "voyage")
    shutil.copytree(tmp_path / "voyage", tmp_path / "counted")
    command = {"db": str(tmp_path / "counted" / "runs.db"), "effects": str(tmp_path / "counted" / "effects")}
    commits = children.start("forking", tmp_path / "counted", **command).result()["commits"]
    points = range(1 + share, commits + 2, 2)
    deaths = at_once(lambda n: live(children, tmp_path / "voyage", tmp_path / str(n), (n, after)), points, 4)
    assert [n for n, died in zip(points, deaths, strict=True) if n <= LEAST and not died] == []
