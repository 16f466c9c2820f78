"""What runs in the children. Each function is one command: run it again after a crash, and it goes on."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from perdure import Engine, Recovery
from perdure.orchestrator import orchestrator
from tests.crash import programs
from tests.crash.failpoints import Failpoint, store_with

ALL = [programs.voyage, programs.five, programs.ticks]


def voyage(db: str, effects: str, ending: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """Run the voyage to its end, unless the failpoint comes first."""
    programs.log_effects(effects)
    orchestrator.MOMENT = 0.1  # so that the run leaves memory during its longer sleep
    failpoint = Failpoint(at, after)

    async def main() -> dict[str, Any]:
        async with Engine(store_with(failpoint, db), [programs.voyage]) as engine:
            result = await engine.run(programs.voyage(1, ending), id="voyage")
        output = result.output if result.error is None else str(result.error)
        return {"status": result.status, "output": output, "commits": failpoint.commits}

    return asyncio.run(main())


def work(
    db: str,
    effects: str,
    max_concurrency: int = 1000,
    check_interval: float = 0.3,
    name: str | None = None,
    lease: float = 30.0,
) -> str:
    """Work off what is queued, until nothing is left and a file `drained` beside the database says no more will come."""
    programs.log_effects(effects)
    drained = os.path.join(os.path.dirname(db), "drained")

    async def main() -> str:
        recovery = Recovery(check_interval=check_interval, lease=lease)
        url = f"sqlite:///{db}"
        async with Engine(url, ALL, recovery=recovery, max_concurrency=max_concurrency, name=name) as engine:
            while not (os.path.exists(drained) and not await engine.store.runs.programs()):
                await asyncio.sleep(0.05)
        return "drained"

    return asyncio.run(main())
