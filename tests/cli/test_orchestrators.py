"""`perdure orchestrators ls`."""

from __future__ import annotations

import asyncio

from perdure import Engine, connect
from perdure.ports.leases import ORCHESTRATOR, holder
from tests.cli.conftest import Cli


def test_orchestrators_are_listed_with_what_they_own(cli: Cli) -> None:
    async def make() -> None:
        async with Engine(cli.url, []):
            pass

    async def live() -> None:
        async with connect(cli.url) as client:
            await client.store.leases.acquire(ORCHESTRATOR + "node-a", holder("node-a", "s1"), 600, client.clock.now())

    asyncio.run(make())
    ended = cli("orchestrators", "ls", "--store", cli.url)
    assert (ended.code, ended.err.strip()) == (0, "perdure: no orchestrator is alive, and none owns a run")
    asyncio.run(live())
    heading, row = cli("orchestrators", "ls", "--store", cli.url).out.splitlines()
    assert heading.split() == ["NAME", "STATE", "RUNNING", "WAITING", "LEASE", "ENDS"]
    assert row.split()[:4] == ["node-a", "alive", "0", "0"]
    [one] = cli("orchestrators", "ls", "--store", cli.url, "--json").json["orchestrators"]
    assert (one["name"], one["alive"], one["session"], one["running"]) == ("node-a", True, "s1", 0)
    assert one["expires_at"]
