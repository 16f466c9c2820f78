"""Random workflows, forked at random points, in every store, killed at any moment: what is kept is not done again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from perdure import connect
from perdure.kernel.events import Batch, RunForked, StepFailed, StepStarted, StepSucceeded
from tests.amounts import some
from tests.crash.harness import Children, read_effects

STORES = ("sqlite", "file", "postgres", "redis")
FORKS = 4
KILLS = 4


def outcomes(batches: list[Batch], before: int | None = None) -> dict[str, Any]:
    found = {}
    for batch in batches:
        for seq, event in enumerate(batch.events, batch.seq):
            if isinstance(event, StepSucceeded | StepFailed) and (before is None or seq < before):
                found[event.op] = event
    return found


def live(children: Children, folder: Path, url: str, seed: int) -> int:
    """Walk and fork, killed at moments that the seed names. Says how often it was killed."""
    folder.mkdir()
    command: dict[str, Any] = {"url": url, "effects": str(folder / "effects"), "seed": seed, "forks": FORKS}
    chance, kills = random.Random(seed), 0
    for _ in range(KILLS):
        child = children.start("strolling", folder, **command)
        try:
            child.result(timeout=chance.uniform(0.15, 0.9))
            break
        except AssertionError:
            kills += 1  # it had not ended, and was killed
    results = children.start("strolling", folder, **command).result()
    assert set(results.values()) == {results["original"]}
    return kills


async def check(folder: Path, url: str) -> None:
    """What a fork keeps is what the original had, and is not executed in the fork; all that is executed is recorded."""
    effects = list(read_effects(folder / "effects"))
    async with connect(url) as client:
        origin = await client.get("original")
        assert origin is not None
        theirs = await client.store.journal.read(origin.run_id)
        for number in range(FORKS):
            view = await client.get(f"fork-{number}")
            assert view is not None
            assert view.forked_from == origin.run_id
            mine = await client.store.journal.read(view.run_id)
            events = [event for batch in mine for event in batch.events]
            [point] = [event for event in events if isinstance(event, RunForked)]
            end = events.index(point)
            kept = outcomes(mine, end)
            had = outcomes(theirs, point.seq)
            assert {op: had[op] for op in kept} == kept
            executed = [(e.op, e.attempt) for e in effects if e.run_id == view.run_id]
            assert {op for op, _ in executed}.isdisjoint(kept)
            begun = {(event.op, event.attempt) for event in events[end:] if isinstance(event, StepStarted)}
            assert set(executed) <= begun


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of that kind."""
    kind = request.param
    if kind in ("sqlite", "file"):
        return f"{kind}:///{tmp_path}/runs{'.db' if kind == 'sqlite' else ''}"
    return str(request.getfixturevalue(f"{kind}_url"))


@pytest.mark.parametrize("seed", some([11, *range(100)], 1))
@pytest.mark.parametrize("url", STORES, indirect=True)
async def test_forks_of_a_workflow_survive_kills(url: str, seed: int, children: Children, tmp_path: Path) -> None:
    _ = live(children, tmp_path / "one", url, seed)
    await check(tmp_path / "one", url)
