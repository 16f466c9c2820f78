"""Kill -9 at every commit of a flow with jobs, a map, an approval, locks and flows in it; and of a batch of flows."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from perdure import connect
from perdure.kernel.events import ChildStarted, ValueRecorded, WaitOpened
from tests.amounts import some
from tests.crash.flows import CHUNK, LINES, OUTPUT, RESULTS, UNLUCKY
from tests.crash.harness import PARTS, Children, Journal, at_once, audit, check_executions, read_effects, through_kills
from tests.crash.test_graphs import journal_of

MOST = 60
# In PostgreSQL, a share takes each twelfth commit, on one side of it.
SHARES = 12
FEW = some([(bool((share + turn) % 2), share) for turn in range(2) for share in range(SHARES)], 2)
JOBS = ["extract:0", "nothing:0", "transform:0", "load:0", "finally:0"]
PAGES = [f"transform:0/{page}" for page in ("page:0", "pages:0[0]", "pages:0[1]", "pages:0[2]")]


def check(journal: Journal, effects: Path, under_way: list[str]) -> None:
    """Steps are executed once, and once more for each death in the midst of one; jobs, flows and waits begin once."""
    executed = check_executions(journal, read_effects(effects))
    own = {op for op in journal.started if op.rpartition("/")[2].partition(":")[0] not in OWN}
    for op, times in journal.started.items():
        assert times == 1 + under_way.count(op), op
        assert op not in own or 1 <= executed[op] <= times, op
    began = [event.op for event in journal.events if isinstance(event, ChildStarted)]
    assert sorted(began) == sorted([*JOBS, *PAGES, *(f"{page}/finally:0" for page in PAGES)])
    locks = [event.op for event in journal.events if isinstance(event, WaitOpened) and event.kind == "lock"]
    assert sorted(locks) == sorted(
        ["lock.transform:0", "load:0/lock.copy:0", *(f"{page}/lock.double:0" for page in PAGES)]
    )
    freed = [event.op for event in journal.events if isinstance(event, ValueRecorded) and event.kind == "unlock"]
    assert sorted(freed) == sorted(f"{op}/unlock" for op in locks)
    assert not [op for op in journal.started if op.startswith(("blocked:0", "nothing:0/never"))]


# Steps that leave no line in the log: those of flows themselves, and fixed values.
OWN = ("vars", "workspace.make", "workspace.remove", "home")


def live(children: Children, folder: Path, *kills: tuple[int, bool]) -> tuple[int, int]:
    """Run the flow through deaths and check everything. Says how often it died, and how many commits it had."""
    ended, left = through_kills(children, "flow", folder, kills)
    assert ended["output"] == OUTPUT
    under_way = [op for journals in left if "flow" in journals for op, _ in journals["flow"].under_way]
    check(audit(folder / "runs.db")["flow"], folder / "effects", under_way)
    assert list((folder / "work").iterdir()) == []
    return len(left), ended["commits"]


@pytest.mark.parametrize(("after", "share"), PARTS)
def test_a_flow_killed_at_any_commit_goes_on_where_it_was(
    children: Children, tmp_path: Path, after: bool, share: int
) -> None:
    _, commits = live(children, tmp_path / "calm")
    assert 30 <= commits <= MOST, "commits enough to die at"
    points = range(1 + share, commits + 2, 2)
    lives = at_once(lambda n: live(children, tmp_path / str(n), (n, after)), points, 4)
    assert sum(deaths for deaths, _ in lives) >= len(points) * 2 // 3


@pytest.mark.parametrize(("after", "share"), FEW)
async def test_a_flow_in_postgresql_killed_at_any_commit_goes_on_where_it_was(
    children: Children, tmp_path: Path, postgres_url: str, after: bool, share: int
) -> None:
    deaths = 0
    # One after the other: engines that share a database take over what another one has released.
    for at in range(1 + share, MOST, SHARES):
        id, folder = f"flow-{at}", tmp_path / str(at)
        folder.mkdir()
        arguments = {"url": postgres_url, "effects": str(folder / "effects"), "id": id}
        child = children.start("flow_in", folder, **arguments, at=at, after=after)
        killed = await asyncio.to_thread(child.killed)
        assert killed or child.result()["commits"] < at
        under_way = [op for op, _ in (await journal_of(postgres_url, id)).under_way] if killed else []
        ended = await asyncio.to_thread(children.start("flow_in", folder, **arguments).result)
        assert ended["output"] == OUTPUT
        check(await journal_of(postgres_url, id), folder / "effects", under_way)
        assert list((folder / "work").iterdir()) == []
        async with connect(postgres_url) as client:
            assert await client.locks.list() == []
        deaths += killed
    assert deaths >= 30 // SHARES


def live_in_rows(children: Children, folder: Path, *kills: tuple[int, bool]) -> tuple[int, int]:
    """Run the batch through deaths: results in order, and only what was under way at a death is executed once more."""
    ended, left = through_kills(children, "batch", folder, kills)
    failed = ended["results"].pop(UNLUCKY)
    assert failed["error"]["message"] == "as it should"
    assert ended["results"] == [found for number, found in enumerate(RESULTS) if number != UNLUCKY]
    assert ended["counts"] == {"rows": LINES, "completed": LINES - 1, "failed": 1}
    journals = audit(folder / "runs.db")
    assert sum(not id.startswith("perdure.flow:") for id in journals) == 1 + -(-LINES // CHUNK)
    assert all(journal.finished for journal in journals.values())
    under_way = [op for found in left for journal in found.values() for op, _ in journal.under_way]
    executed = Counter(effect.op for effect in read_effects(folder / "effects"))
    rows = {f"row:0[{number}]/squared:0" for number in range(LINES)}
    assert {op for op in executed if op.endswith("squared:0")} == rows
    for op, times in executed.items():
        assert times <= 1 + under_way.count(op), op
    return len(left), ended["commits"]


def test_a_batch_of_a_flow_killed_in_any_chunk_gives_each_row_its_result(children: Children, tmp_path: Path) -> None:
    _, commits = live_in_rows(children, tmp_path / "calm")
    points = range(2, commits, max(1, commits // 8))
    lives = at_once(lambda n: live_in_rows(children, tmp_path / str(n), (n, n % 2 == 0)), points, 4)
    assert sum(deaths for deaths, _ in lives) >= len(points) // 2
