"""The process that `perdure demo` starts, kills and starts again: `python -m perdure.cli.demo_process URL [hold]`.

With `hold` it stops once the sleep between two steps is in the journal, says so, and waits for its end. So the kill
falls between the same two steps on a fast machine and on a slow one.
"""

from __future__ import annotations

import asyncio
import sys

from perdure import Engine
from perdure.cli.demo_flow import Order, fulfil
from perdure.client.observing import OnCommit
from perdure.kernel.events import WaitOpened
from perdure.ports.journal import Append

ID = "order-42"
HELD = "held"


async def hold(id: str, append: Append) -> None:
    """Called on the loop after each commit: blocks the process once the sleep is durable."""
    if any(isinstance(event, WaitOpened) for batch in append.batches for event in batch.events):
        print(HELD, flush=True)
        sys.stdin.read()


async def main(store: str, on_commit: OnCommit | None) -> None:
    async with Engine(store, [fulfil], on_commit=on_commit) as engine:
        run = await engine.start(fulfil(Order("order-42", "espresso machine", 389.0)), id=ID)
        await run.result()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], hold if sys.argv[2:] == ["hold"] else None))
