"""PostgreSQL is restarted and killed while orchestrators work, and while they recover: nothing is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest

from perdure.orchestrator.fit_cache import FITS
from perdure.ports.leases import REGISTRATION, SIGNATURES
from tests.amounts import some
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


WAYS = [restart, lose_power, kill_postmaster, restart]


@pytest.mark.parametrize(("ways", "runs", "least"), some([(WAYS, 200, 0), ([*WAYS, restart] * 10, 2_000, 15)], 1))
def test_a_server_that_is_restarted_or_killed_loses_nothing(
    children: Children,
    servers: Servers,
    tmp_path: Path,
    ways: Sequence[Callable[[Postgres], None]],
    runs: int,
    least: int,
) -> None:
    """It ends in these ways, one after another; `least` times while somebody recovers."""
    met = 0
    with servers.postgres() as server:
        asyncio.run(queue(server.url, runs, 0.1))
        with Storm(children, server.url, tmp_path, runs, lease=2.0) as storm:
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
    assert met >= least


async def left(url: str, killed: Collection[str]) -> tuple[int, list[str]]:
    """How many connections of perdure there are, and which leases are in force.

    What an orchestrator says of itself, and which journals fit its code, is not what it holds: it outlives those that
    were killed.
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
        held = [key for key in keys if not key.startswith(FITS)]
        return connected, [key for key in held if ":".join(key.split(":")[:2]) not in outlives]
    finally:
        await connection.close()
