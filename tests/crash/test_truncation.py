"""Kill -9 at every commit of a run that continues from before an op: the old one ends when the new one begins."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import RunStatus, connect
from perdure.kernel.events import RunFinished, RunForked, RunStarted
from tests.crash.harness import Children, at_once, audit, audit_copy, check_executions, read_effects

# One commit to go on, one for each op, the end, and what an engine writes when it opens and closes.
MOST = 12


def prepare(children: Children, folder: Path) -> tuple[dict[str, str], str]:
    """A run that is parked; and its run_id."""
    folder.mkdir()
    command = {"db": str(folder / "runs.db"), "effects": str(folder / "effects")}
    children.start("changing", folder, **command).result()
    return command, audit(folder / "runs.db")["it"].run_id


async def stands(db: Path, run_id: str) -> None:
    """Either nothing has happened, or the run has ended and goes on as another."""
    async with connect(f"sqlite:///{db}") as client:
        view, latest = await client.get(run_id), await client.get("it")
        assert view is not None
        assert latest is not None
        if latest.run_id == run_id:
            assert view.status is RunStatus.PARKED
            return
        assert view.status is RunStatus.CANCELLED
        end = (await client.journal(run_id))[-1].event
        assert isinstance(end, RunFinished)
        assert (end.continued_as, latest.forked_from) == (latest.run_id, run_id)
        events = [entry.event for entry in await client.journal("it")]
        assert isinstance(events[0], RunStarted)
        assert sum(isinstance(event, RunForked) for event in events) == 1


def live(children: Children, folder: Path, at: int, after: bool) -> bool:
    """Let it go on, dying at a commit and starting again; check everything. Says whether it died."""
    command, run_id = prepare(children, folder)
    db = folder / "runs.db"
    died = children.start("truncating", folder, **command, at=at, after=after).killed()
    if died:
        audit_copy(db)
        asyncio.run(stands(db, run_id))
    assert children.start("truncating", folder, **command).result()["output"] == [8, "of it"]
    journal = audit(db)["it"]
    assert journal.run_id != run_id
    executed = check_executions(journal, list(read_effects(folder / "effects")))
    # What lies before the point is done; what the code asks for after it is done here, once more if it died meanwhile.
    assert set(executed) == {"add_in_thread:0", "add:1"}
    assert sum(executed.values()) <= 2 + died
    asyncio.run(stands(db, run_id))
    return died


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_truncation_killed_at_any_commit_has_happened_wholly_or_not_at_all(
    children: Children, tmp_path: Path, after: bool
) -> None:
    command, _ = prepare(children, tmp_path / "counted")
    commits = children.start("truncating", tmp_path / "counted", **command).result()["commits"]
    assert 4 <= commits <= MOST
    points = range(1, commits + 2)
    died = at_once(lambda at: live(children, tmp_path / str(at), at, after), points, 4)
    assert all(died[:4])
