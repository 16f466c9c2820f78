"""Find runs that lost their owner and bring them back. Lease before load: only a likely owner pays for replay."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from perdure.errors import StoreUnavailable
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import BUILT_IN, REMOTE
from perdure.orchestrator.membership import Membership, follows
from perdure.orchestrator.orchestrator import Orchestrator
from perdure.orchestrator.residency import PARKED_HERE, EntryRequest
from perdure.ports.runs import RunFilter

log = logging.getLogger("perdure")

# How many programs that an engine was not given, and orchestrators beside it, are named one by one when it starts.
WARNINGS = 10


async def recover_at_start(orchestrator: Orchestrator, ownership: Membership) -> None:
    """Bring back what can be, and park what no engine can go on with. What goes wrong with a run stops no engine.

    Raises StoreUnavailable: without its store an engine cannot begin.
    """
    unknown: Sequence[str] = ()
    with _logged("naming the programs that this engine was not given"):
        unknown = await warn_of_unknown(orchestrator)
    with _logged("taking over runs of orchestrators that are gone"):
        await recover(orchestrator, ownership, startup=True)
    with _logged("parking runs of programs that no engine has"):
        await park_unknown(orchestrator, ownership, unknown)


def tell_who_is_waited_for(ownership: Membership, owners: Sequence[str]) -> None:
    """Say which orchestrators have runs that could be taken over only when their lease has ended."""
    others = [owner for owner in owners if owner in ownership.others]
    for owner in others[:WARNINGS]:
        left = ownership.wait_for(owner)
        if left is not None:
            log.info(
                "orchestrator %s has unfinished runs. Should it be gone, this one waits for the lease of %s, at most "
                "%.0f s, and takes them over",
                owner,
                owner,
                left,
            )


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("%s failed; the engine starts all the same, and looks again later", what)


async def recover(orchestrator: Orchestrator, ownership: Membership, *, startup: bool) -> int:
    """Claim the runs of orchestrators that are not alive, batch by batch. Says how many were loaded.

    Runs that wait are left where they are: whoever finds them due claims them then. At start-up, runs that were parked
    are tried again too, since the code may have been mended meanwhile.
    """
    runs, settings = orchestrator.store.runs, orchestrator.recovery
    programs = list(orchestrator.programs)
    owners = await runs.owners()
    if not owners and not startup:
        return await _retry_parked(orchestrator, startup)
    if startup or any(owner != orchestrator.name for owner in owners):
        await ownership.look_around()
    if startup:
        tell_who_is_waited_for(ownership, owners)
    # Our own name too: at start-up it belongs to a process that is gone, and later there may be runs of ours that we
    # do not know of, because the store took their start and its answer was lost.
    dead = [owner for owner in owners if owner not in ownership.others]
    limit = settings.max_startup if startup else settings.max_claims
    loaded = 0
    seen: set[str] = set()
    while dead and orchestrator.at_work:
        # Claims are on their way to the store while the next batch is read, so ask for more than was seen.
        wanted = limit + len(seen) + len(orchestrator.active)
        found = await runs.owned(dead, RunStatus.RUNNING, programs, wanted, orchestrator.serves)
        fresh = [run_id for run_id in found if run_id not in seen and run_id not in orchestrator.active][:limit]
        if not fresh:
            break
        seen.update(fresh)
        loaded += (await orchestrator.enter(EntryRequest(fresh, dead))).count
        await asyncio.sleep(0 if startup else 0.01)
        # One of the dead may have been started again meanwhile, and be at its own runs.
        await ownership.look_around()
        dead = [owner for owner in dead if owner not in ownership.others]
    return loaded + await _retry_parked(orchestrator, startup)


async def _retry_parked(orchestrator: Orchestrator, startup: bool) -> int:
    """Load parked runs of programs we have, whoever parked them, each once; those that do not fit stay parked.

    Not at start-up only: what an engine with other code has parked since may fit ours. But then one page at a time,
    each from where the last one ended: after a bad deploy there may be thousands, and nearly all were tried.
    """
    parking, limit, loaded = orchestrator.parking, orchestrator.recovery.max_startup, 0
    cursor = None if startup else parking.searched_to
    while True:
        filter = RunFilter(status=[RunStatus.PARKED], limit=limit, cursor=cursor)
        page = [row for row, _ in await orchestrator.store.runs.list(filter)]
        cursor = page[-1].run_id if len(page) == limit else None
        known = [r.run_id for r in page if r.program in orchestrator.programs and not r.root]
        ours = [run_id for run_id in known if orchestrator.runs.state(run_id) is not PARKED_HERE]
        if ours:
            loaded += (await orchestrator.enter(EntryRequest(ours))).count
        if cursor is None or not startup:
            parking.searched_to = cursor
            return loaded


async def park_unknown(orchestrator: Orchestrator, ownership: Membership, programs: Sequence[str]) -> None:
    """Park runs of these programs that should go on now, where this process follows the one that had them.

    A program that was renamed or removed shows by that. A run of any other owner is left alone: its engine may come
    back, and meanwhile nothing is wrong with it. So is one that waits, until it is its time, and all while another
    engine lives that could have its program. An engine without programs of its own has no say in it.
    """
    if not programs or ownership.others or all(name.startswith(BUILT_IN) for name in orchestrator.programs):
        return
    store = orchestrator.store
    dead = [owner for owner in await store.runs.owners() if owner not in ownership.others]
    ours = [owner for owner in dead if follows(orchestrator.name, owner)]
    seen: set[str] = set()
    while orchestrator.at_work:
        # Twice as many each time: those that have not begun, and those of others, stay due, and there may be thousands.
        limit, now = orchestrator.recovery.max_startup + 2 * len(seen), orchestrator.clock.now()
        due = await store.timers.due(now, limit, programs, ownership.others)
        left = await store.runs.owned(ours, RunStatus.RUNNING, programs, limit) if ours else []
        fresh = [run_id for run_id in dict.fromkeys([*left, *(one.run_id for one in due)]) if run_id not in seen]
        if not fresh:
            return
        seen.update(fresh)
        await orchestrator.enter(EntryRequest(fresh, dead))
        await asyncio.sleep(0)


async def warn_of_unknown(orchestrator: Orchestrator) -> Sequence[str]:
    """Say which programs have open runs and are not registered here, and return their names."""
    if orchestrator.serves is not None:
        return ()  # it is there for some queues, and others are there for the rest
    found = await orchestrator.store.runs.programs()
    unknown = [name for name in found if name not in orchestrator.programs and not name.startswith(REMOTE)]
    for program in unknown[:WARNINGS]:
        log.warning(
            "the store has unfinished runs of the program %r, which this engine was not given; they are kept and "
            "wait for an engine that has it: Engine(store, [..., %s])",
            program,
            program,
        )
    if len(unknown) > WARNINGS:
        log.warning("and of %d other programs which this engine was not given", len(unknown) - WARNINGS)
    return [name for name in unknown if not name.startswith(BUILT_IN)]
