"""Find runs that lost their owner and bring them back. Lease before load: only a likely owner pays for replay."""

from __future__ import annotations

import asyncio
import logging

from perdure.kernel.events import RunStatus
from perdure.kernel.ids import REMOTE
from perdure.orchestrator.orchestrator import Orchestrator
from perdure.orchestrator.ownership import Ownership
from perdure.ports.runs import RunFilter

log = logging.getLogger("perdure")


async def recover(orchestrator: Orchestrator, ownership: Ownership, *, startup: bool) -> int:
    """Claim the runs of orchestrators that are not alive, batch by batch. Says how many were loaded.

    Runs that wait are left where they are: whoever finds them due claims them then. At start-up, runs that were parked
    are tried again too, since the code may have been mended meanwhile.
    """
    runs, settings = orchestrator.store.runs, orchestrator.recovery
    programs = list(orchestrator.programs)
    owners = await runs.owners()
    if not owners and not startup:
        return 0
    if startup or any(owner != orchestrator.name for owner in owners):
        await ownership.look_around()
    # Our own name too: at start-up it belongs to a process that is gone, and later there may be runs of ours that we
    # do not know of, because the store took their start and its answer was lost.
    dead = [owner for owner in owners if owner not in ownership.others]
    limit = settings.max_startup if startup else settings.max_claims
    loaded = 0
    seen: set[str] = set()
    while dead and not orchestrator.closing:
        # Claims are on their way to the store while the next batch is read, so ask for more than was seen.
        wanted = limit + len(seen) + len(orchestrator.active)
        found = await runs.owned(dead, RunStatus.RUNNING, programs, wanted, orchestrator.serves)
        fresh = [run_id for run_id in found if run_id not in seen and run_id not in orchestrator.active][:limit]
        if not fresh:
            break
        seen.update(fresh)
        loaded += await orchestrator.load(fresh, dead)
        await asyncio.sleep(0 if startup else 0.01)
    return loaded + (await _retry_parked(orchestrator, ownership) if startup else 0)


async def _retry_parked(orchestrator: Orchestrator, ownership: Ownership) -> int:
    """Load parked runs of programs we have, whoever parked them; those that still do not fit stay parked."""
    cursor, loaded = None, 0
    while True:
        filter = RunFilter(status=[RunStatus.PARKED], limit=orchestrator.recovery.max_startup, cursor=cursor)
        page = [row for row, _ in await orchestrator.store.runs.list(filter)]
        if not page:
            return loaded
        cursor = page[-1].run_id
        ours = [r for r in page if r.program in orchestrator.programs and r.owner not in ownership.others]
        loaded += await orchestrator.load([row.run_id for row in ours], {row.owner for row in ours})


async def warn_of_unknown(orchestrator: Orchestrator) -> None:
    """Say which programs have open runs and are not registered here: those runs stay where they are."""
    if orchestrator.serves is not None:
        return  # it is there for some queues, and others are there for the rest
    for program in await orchestrator.store.runs.programs():
        if program not in orchestrator.programs and not program.startswith(REMOTE):
            log.warning(
                "the store has unfinished runs of the program %r, which this engine was not given; they are kept and "
                "wait for an engine that has it: Engine(store, [..., %s])",
                program,
                program,
            )
