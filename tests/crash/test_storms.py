"""Storms on servers: three orchestrators, killed at random again and again, half of them replaced under their name.

Every run must end, once; every journal must be whole; and every execution of a step beyond the first must be explained
by a kill that hit it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.amounts import some
from tests.crash.harness import Children, Effect, Journal
from tests.crash.storms import LEASE, Storm, queue
from tests.patience import PATIENCE


@pytest.mark.parametrize(
    ("kind", "runs", "kills", "limit"),
    some(
        [
            ("postgres", 100, 6, PATIENCE),
            ("redis", 100, 6, PATIENCE),
            ("postgres", 5_000, 200, 300.0),
            ("redis", 1_000, 40, 200.0),
            ("etcd", 1_000, 40, 200.0),
        ],
        2,
    ),
)
def test_no_run_is_lost_or_ends_twice_when_orchestrators_are_killed_at_random(
    children: Children, tmp_path: Path, request: pytest.FixtureRequest, kind: str, runs: int, kills: int, limit: float
) -> None:
    """All is done within `limit` seconds. Redis flushes its file before each answer."""
    url = request.getfixturevalue("redis_url" if kind == "redis" else "postgres_url")
    leases = request.getfixturevalue("etcd_url") if kind == "etcd" else None
    asyncio.run(queue(url, runs, 0.1))
    # In etcd, only the time of a lease says that its owner is dead.
    with Storm(children, url, tmp_path, runs, lease=5.0 if leases else LEASE, leases=leases) as storm:
        for _ in range(3):
            storm.start()
        for kill in range(kills):
            # Spread over the whole of the work: the log grows by one line a step.
            storm.reach((kill + storm.chance.random()) / (kills + 1), f"for the work before kill {kill}")
            storm.kill_one(same_name=kill % 2 == 0)
        storm.finish(limit)
        cost = storm.check()
    assert len(storm.killed) == kills
    assert cost >= kills // 2, "the kills hit nothing"


def test_an_execution_that_no_kill_explains_is_found(children: Children, tmp_path: Path) -> None:
    """The storm's own judgement: again in one process, by two at once, and after a kill."""
    storm = Storm(children, "memory://", tmp_path, runs=1, killed={7: (20.0, 21.0)})
    journal = Journal("r1", "run-0")

    def executed(*times: tuple[float, int]) -> list[Effect]:
        return [Effect(at, "r1", "add_slowly:0", n + 1, "begin", pid) for n, (at, pid) in enumerate(times)]

    assert storm.explain(journal, executed((10.0, 8))) == 0
    assert storm.explain(journal, executed((10.0, 7), (22.0, 8))) == 1
    for wrong in ([(10.0, 8), (22.0, 8)], [(10.0, 8), (22.0, 7)], [(10.0, 7), (15.0, 8)], [(10.0, 7), (15.0, 7)]):
        with pytest.raises(AssertionError):
            storm.explain(journal, executed(*wrong))
