"""PostgreSQL is restarted and killed while orchestrators work, and while they recover: nothing is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest

from perdure.ports.leases import REGISTRATION, SIGNATURES
from tests.crash.harness import Children, until
from tests.crash.storms import Storm, queue
from tests.services.plugin import Servers
from tests.services.servers import Postgres


def restart(server: Postgres) -> None:
    """As an upgrade does: connections are ended in order."""
    server.restart()


def lose_power(server: Postgres) -> None:
    """All of its processes are gone at once."""
    server.kill()
    server.start()


def kill_postmaster(server: Postgres) -> None:
    """Its first process is killed alone, as by a system that is out of memory."""
    server.kill_first()
    server.start()


def restarts(
    children: Children,
    servers: Servers,
    folder: Path,
    *,
    ways: Sequence[Callable[[Postgres], None]],
    runs: int,
    seconds: float,
) -> int:
    """End the server in these ways, one after another. Says how often somebody was recovering at that moment."""
    met = 0
    with servers.postgres() as server:
        asyncio.run(queue(server.url, runs, seconds))
        with Storm(children, server.url, folder, runs, lease=2.0) as storm:
            for _ in range(3):
                storm.start()
            storm.all_open()
            for number, way in enumerate(ways):
                storm.reach((number + storm.chance.random()) / (len(ways) + 1), f"for the work before end {number}")
                if number % 2:
                    storm.all_open()
                    pid = storm.kill_one(same_name=number % 4 == 1)
                    # It finds what its predecessor had, or what nobody has, and the server goes away meanwhile.
                    time.sleep(storm.chance.uniform(0.0, 0.1))
                    way(server)
                    met += not storm.is_open(pid)
                else:
                    way(server)
            storm.finish()
            storm.check(explained=False)
        # The killed ones have left when their leases have ended.
        names = storm.killed_names
        until(lambda: asyncio.run(left(server.url, names)) == (0, []), every=0.1, what="for all to be gone")
    return met


async def left(url: str, killed: Collection[str]) -> tuple[int, list[str]]:
    """How many connections of perdure there are, and which leases are in force.

    What an orchestrator says of itself is not what it holds: it outlives those that were killed.
    """
    connection = await asyncpg.connect(url)
    try:
        connected = await connection.fetchval(
            "select count(*) from pg_stat_activity where application_name = 'perdure'"
        )
        leases = await connection.fetch(
            "select key from perdure_leases where owner <> '' and expires > extract(epoch from now())"
        )
        outlives = {prefix + name for prefix in (REGISTRATION, SIGNATURES) for name in killed}
        keys = [lease["key"] for lease in leases]
        return connected, [key for key in keys if ":".join(key.split(":")[:2]) not in outlives]
    finally:
        await connection.close()


def test_a_server_that_is_restarted_or_killed_loses_nothing(
    children: Children, servers: Servers, tmp_path: Path
) -> None:
    ways = [restart, lose_power, kill_postmaster, restart]
    restarts(children, servers, tmp_path, ways=ways, runs=200, seconds=0.1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_server_that_is_restarted_fifty_times_loses_nothing(
    children: Children, servers: Servers, tmp_path: Path
) -> None:
    ways = [restart, lose_power, kill_postmaster, restart, restart] * 10
    assert restarts(children, servers, tmp_path, ways=ways, runs=2_000, seconds=0.1) >= 15
