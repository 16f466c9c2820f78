"""SIGTERM: an orchestrator stops in good order, and others go on with its runs before its lease would have ended."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from perdure import OrchestratorView, connect
from perdure.kernel.events import RunReleased, RunStatus
from tests.crash.fleet import Fleet
from tests.crash.harness import Children, until

# Longer than any wait of this test: whoever waited for it would be noticed.
LEASE = 300.0


def test_one_that_is_told_to_stop_hands_over_at_once_and_ends_well(children: Children, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"

    async def orchestrators() -> dict[str, OrchestratorView]:
        async with connect(url) as client:
            return {one.name: one for one in await client.orchestrators()}

    async def released() -> int:
        async with connect(url) as client:
            entries = [entry for n in range(5) for entry in await client.journal(f"long-{n}")]
            return sum(isinstance(entry.event, RunReleased) for entry in entries)

    with Fleet(children, url, tmp_path, LEASE) as fleet:
        first = fleet.start("first")
        fleet.put("held", 2, ids=[f"long-{n}" for n in range(5)])
        until(lambda: len(fleet.did("steps")) == 5)
        second = fleet.start("second")
        assert asyncio.run(orchestrators())["first"].running == 5
        first.signal(signal.SIGTERM)
        assert first.wait() == 0, fleet.log
        until(lambda: sum(one.pid == second.pid for one in fleet.did("steps")) >= 5)
        seen = asyncio.run(orchestrators())
        assert "first" not in seen, "it lives no more, and owns nothing"
        assert seen["second"].alive
        assert asyncio.run(released()) == 5
        fleet.mend()
        until(lambda: {view.status for view in fleet.views().values()} == {RunStatus.COMPLETED}, every=0.1)
        assert fleet.stale_writes() == []
