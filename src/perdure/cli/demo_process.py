"""The process that `perdure demo` starts, kills and starts again.

`python -m perdure.cli.demo_process order|flow URL [hold]`

With `hold` it stops once the sleep between two steps is in the journal, says so, and waits for its end. So the kill
falls between the same two steps on a fast machine and on a slow one.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from perdure import Engine
from perdure.client.observing import OnCommit
from perdure.kernel.events import WaitOpened
from perdure.kernel.invocation import Invocation
from perdure.ports.journal import Append

IDS = {"order": "order-42", "flow": "nightly-2026-11-15"}
HELD = "held"


async def hold(id: str, append: Append) -> None:
    """Called on the loop after each commit: blocks the process once the sleep is durable."""
    events = (event for batch in append.batches for event in batch.events)
    if any(isinstance(event, WaitOpened) and event.kind == "timer" for event in events):
        print(HELD, flush=True)
        sys.stdin.read()


def invocation(what: str, store: str) -> Invocation[Any]:
    """What is run."""
    if what == "order":
        from perdure.cli.demo_order import Order, fulfil

        return fulfil(Order("order-42", "espresso machine", 389.0))
    from perdure.cli.demo_jobs import DATE, nightly

    return nightly(os.path.dirname(store.removeprefix("sqlite:///")))(date=DATE)


async def main(what: str, store: str, on_commit: OnCommit | None) -> None:
    wanted = invocation(what, store)
    assert wanted.program is not None
    async with Engine(store, [wanted.program], on_commit=on_commit) as engine:
        run = await engine.start(wanted, id=IDS[what])
        await run.result()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], hold if sys.argv[3:] == ["hold"] else None))
