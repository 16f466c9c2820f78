"""What runs in the children. Each function is one command: run it again after a crash, and it goes on."""

from __future__ import annotations

import asyncio
from typing import Any

from perdure import Engine
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
