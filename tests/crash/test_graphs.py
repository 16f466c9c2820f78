"""Kill -9 at every commit of a graph with branches, retries, a loop, a nested graph, a map and a question."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from perdure import connect
from perdure.kernel.events import AttemptFailed, ChildFinished, ChildStarted, WaitOpened
from tests.amounts import some
from tests.crash.graphs import ITEMS
from tests.crash.harness import PARTS, Children, Journal, at_once, audit, check_executions, read_effects, through_kills

MOST = 60
OUTPUT = [650, 5, 15, -1]


def check(journal: Journal, effects: Path, under_way: list[str]) -> None:
    """Every op is executed once, and once more for each death in the midst of it; children and questions begin once."""
    executed = check_executions(journal, read_effects(effects))
    for op, times in journal.started.items():
        failures = sum(isinstance(event, AttemptFailed) and event.op == op for event in journal.events)
        assert times == 1 + failures + under_way.count(op), op
        assert 1 <= executed[op] <= times, op
    for kind, ops in ((ChildStarted, ["pages:0"]), (ChildFinished, ["pages:0"]), (WaitOpened, ["approve:0"])):
        assert [event.op for event in journal.events if isinstance(event, kind)] == ops


def live(children: Children, folder: Path, *kills: tuple[int, bool]) -> tuple[int, int]:
    """Run the graph through deaths and check everything. Says how often it died, and how many commits it had."""
    ended, left = through_kills(children, "graph", folder, kills)
    assert ended["output"] == OUTPUT
    under_way = [op for journals in left if "graph" in journals for op, _ in journals["graph"].under_way]
    journal = audit(folder / "runs.db")["graph"]
    check(journal, folder / "effects", under_way)
    return len(left), ended["commits"]


@pytest.mark.parametrize(("after", "share"), PARTS)
def test_a_graph_killed_at_any_commit_goes_on_where_it_was(
    children: Children, tmp_path: Path, after: bool, share: int
) -> None:
    _, commits = live(children, tmp_path / "calm")
    assert 30 <= commits <= MOST, "commits enough to die at"
    points = range(1 + share, commits + 2, 2)
    lives = at_once(lambda n: live(children, tmp_path / str(n), (n, after)), points, 4)
    assert sum(deaths for deaths, _ in lives) >= len(points) * 2 // 3


def live_in_chunks(children: Children, folder: Path, *kills: tuple[int, bool]) -> tuple[int, int]:
    """As `live`, for a map whose chunks are runs: only what was under way at a death is executed once more."""
    ended, left = through_kills(children, "long_map", folder, kills)
    assert ended["output"] == sum(number * number for number in range(ITEMS))
    assert ended["items"] == list(range(ITEMS))
    journals = audit(folder / "runs.db")
    assert len(journals) == 1 + -(-ITEMS // 3)
    assert all(journal.finished for journal in journals.values())
    under_way = [op for found in left for journal in found.values() for op, _ in journal.under_way]
    executed = Counter(effect.op for effect in read_effects(folder / "effects"))
    assert {f"squared:0[{number}]" for number in range(ITEMS)} < set(executed)
    for op, times in executed.items():
        assert times <= 1 + under_way.count(op), op
    return len(left), ended["commits"]


@pytest.mark.parametrize(("after", "share"), PARTS)
def test_a_map_in_chunks_killed_at_any_commit_loses_only_what_was_under_way(
    children: Children, tmp_path: Path, after: bool, share: int
) -> None:
    _, commits = live_in_chunks(children, tmp_path / "calm")
    points = range(1 + share, commits + 2, 2)
    lives = at_once(lambda n: live_in_chunks(children, tmp_path / str(n), (n, after)), points, 4)
    assert sum(deaths for deaths, _ in lives) >= len(points) // 2


# A share takes each twelfth commit.
SHARES = 12
ALL = [(bool((share + turn) % 2), share) for turn in range(2) for share in range(SHARES)]
FEW, ONE = some(ALL, 2), some(ALL, 1)


@pytest.mark.parametrize(("after", "share"), FEW)
async def test_a_graph_in_postgresql_killed_at_any_commit_goes_on_where_it_was(
    children: Children, tmp_path: Path, postgres_url: str, after: bool, share: int
) -> None:
    arguments = {"url": postgres_url, "effects": str(tmp_path / "effects")}
    deaths = 0
    # One after the other: engines that share a database take over what another one has released.
    for at in range(1 + share, MOST, SHARES):
        id = f"graph-{at}"
        killed = await asyncio.to_thread(
            children.start("graph_in", tmp_path, **arguments, id=id, at=at, after=after).killed
        )
        under_way = [op for op, _ in (await journal_of(postgres_url, id)).under_way] if killed else []
        ended = await asyncio.to_thread(children.start("graph_in", tmp_path, **arguments, id=id).result)
        assert ended["output"] == OUTPUT
        check(await journal_of(postgres_url, id), tmp_path / "effects", under_way)
        deaths += killed
    assert deaths >= 2


@pytest.mark.parametrize(("after", "share"), ONE)
async def test_a_map_in_chunks_in_postgresql_killed_at_any_commit_loses_only_what_was_under_way(
    children: Children, tmp_path: Path, postgres_url: str, after: bool, share: int
) -> None:
    deaths = 0
    for at in range(3 + share, MOST, 2 * SHARES):
        id, effects = f"long-{at}", tmp_path / f"effects-{at}"
        arguments = {"url": postgres_url, "effects": str(effects), "id": id}
        deaths += await asyncio.to_thread(
            children.start("long_map_in", tmp_path, **arguments, at=at, after=after).killed
        )
        ended = await asyncio.to_thread(children.start("long_map_in", tmp_path, **arguments).result)
        assert ended["output"] == sum(number * number for number in range(ITEMS))
        assert ended["items"] == list(range(ITEMS))
        executed = Counter(effect.op for effect in read_effects(effects))
        assert {f"squared:0[{number}]" for number in range(ITEMS)} < set(executed)
        assert set(executed.values()) <= {1, 2}
    assert deaths


async def journal_of(url: str, id: str) -> Journal:
    """A run as its journal in any store tells it; without events if it was never accepted."""
    async with connect(url) as client:
        found = await client.get(id)
        if found is None:
            return Journal("", id)
        return Journal(found.run_id, id, list(await client.store.journal.read(found.run_id)))
