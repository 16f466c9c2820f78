"""Takeover: find runs whose owner is gone, and enter them. Leases first: only a likely owner pays for replay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from perdure.errors import StoreUnavailable
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import BUILT_IN, REMOTE
from perdure.kernel.program import Program
from perdure.logs import log
from perdure.orchestrator.membership import Membership
from perdure.orchestrator.orchestrator import Orchestrator
from perdure.orchestrator.residency import PARKED_HERE, EntryRequest
from perdure.ports.runs import RunFilter

# How many programs that an engine was not given, and orchestrators beside it, are named one by one when it starts.
WARNINGS = 10
# How many parked runs are replayed before everything else on the event loop has its turn.
TRIED_AT_ONCE = 10


async def recover_at_start(orchestrator: Orchestrator, membership: Membership) -> None:
    """Take over what can be continued. An error in a run stops no engine.

    Raises StoreUnavailable: without its store an engine cannot start. Parked runs, and those of programs that no engine
    has, are seen to in the background (`fit_check`).
    """
    orchestrator.parking.retrying = True
    with _logged("naming the programs that this engine was not given"):
        await warn_of_unknown(orchestrator)
    with _logged("taking over runs of orchestrators that are gone"):
        await recover(orchestrator, membership, startup=True)


def _await_leases(membership: Membership, owners: Sequence[str]) -> None:
    """Await and log the leases of live orchestrators that have runs: one that is gone has its lease until it ends."""
    others = [owner for owner in owners if owner in membership.others]
    for owner in others:
        membership.await_end(owner)
    for owner in others[:WARNINGS]:
        left = membership.lease_left(owner)
        if left is not None:
            log.info(
                "orchestrator %s has unfinished runs. If it is gone, this one waits for the lease of %s, at most %.0f "
                "s, and takes them over",
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
        log.exception("%s failed; the engine starts, and will try again", what)


async def recover(orchestrator: Orchestrator, membership: Membership, *, startup: bool) -> int:
    """Take over the runs of orchestrators that are not alive, batch by batch. Returns how many were loaded.

    Idle runs are not claimed: the orchestrator that finds one due takes it over then. Parked runs are tried again: the
    code may have been mended meanwhile.
    """
    runs, settings = orchestrator.store.runs, orchestrator.recovery
    programs = orchestrator.programs.taken()
    owners = await runs.owners()
    if not owners and not startup:
        return await retry_parked(orchestrator, page=True)
    if startup or any(owner != orchestrator.name for owner in owners):
        await membership.refresh()
    if startup:
        _await_leases(membership, owners)
    # This orchestrator's own name too: at start-up its runs are those of a process that is gone, and later the store
    # may have a run whose start was stored although the answer was lost.
    dead = [owner for owner in owners if owner not in membership.others]
    limit = settings.max_startup if startup else settings.max_claims
    loaded = 0
    seen: set[str] = set()
    while dead and orchestrator.session.at_work:
        # Claims are on their way to the store while the next batch is read, so ask for more than was seen.
        wanted = limit + len(seen) + len(orchestrator.active)
        found = await runs.owned(dead, RunStatus.RUNNING, programs, wanted, orchestrator.serves)
        fresh = [run_id for run_id in found if run_id not in seen and run_id not in orchestrator.active][:limit]
        if not fresh:
            break
        seen.update(fresh)
        loaded += (await orchestrator.enter(EntryRequest(fresh, dead))).count
        await asyncio.sleep(0 if startup else 0.01)
        # One of the dead may have been started again meanwhile, and take up its own runs.
        await membership.refresh()
        dead = [owner for owner in dead if owner not in membership.others]
    # At start-up all of them are tried, in the background.
    return loaded if startup else loaded + await retry_parked(orchestrator, page=True)


async def retry_parked(orchestrator: Orchestrator, *, page: bool = False, again: bool = False) -> int:
    """Load parked runs of programs and versions that this engine has, each once; those that do not fit stay parked.

    This is not done at start-up only: a run that an engine with other code has parked since may fit this one. Later it
    is done one `page` at a time: after a bad deploy there may be thousands, and nearly all were tried. `again`: also
    the runs that did not fit before.
    """
    parking, limit, loaded = orchestrator.parking, orchestrator.recovery.max_startup, 0
    cursor = parking.searched_to if page else None
    while orchestrator.session.at_work:
        filter = RunFilter(status=[RunStatus.PARKED], limit=limit, cursor=cursor)
        found = [row for row, _ in await orchestrator.store.runs.list(filter)]
        cursor = found[-1].run_id if len(found) == limit else None
        untried = [r for r in found if not r.root and (again or orchestrator.runs.state(r.run_id) is not PARKED_HERE)]
        ours = [row.run_id for row in untried if orchestrator.programs.missing(row.program, row.version) is None]
        for start in range(0, len(ours), TRIED_AT_ONCE):
            some = ours[start : start + TRIED_AT_ONCE]
            loaded += (await orchestrator.enter(EntryRequest(some))).count
            await asyncio.sleep(0)
        for row in untried:
            if row.run_id not in ours:
                orchestrator.runs.mark_parked(row.run_id)
        if page:
            parking.searched_to = cursor
        if cursor is None or page:
            break
    return loaded


def parks_unknown(orchestrator: Orchestrator) -> bool:
    """Whether an engine may park runs of what it lacks: it takes all runs, and has programs of its own."""
    return orchestrator.serves is None and not all(name.startswith(BUILT_IN) for name in orchestrator.programs)


def _names_inside(programs: Iterable[Program]) -> set[str]:
    """The names of the programs that run as parts of graphs and flows, at any depth."""
    found, work = set[str](), list(programs)
    while work:
        program = work.pop()
        inner = [one for one in program.children() if one.name not in found] if program.decides else []
        found.update(one.name for one in inner)
        work += inner
    return found


async def warn_of_unknown(orchestrator: Orchestrator) -> None:
    """Log which programs have unfinished runs and were not given to this engine."""
    if orchestrator.serves is not None:
        return  # it serves some queues, and other engines serve the rest
    found = await orchestrator.store.runs.programs()
    programs = orchestrator.programs
    known = {*programs, *programs.defined}
    unknown = [name for name in found if name not in known and not name.startswith(REMOTE)]
    inside = _names_inside(programs.values()) if unknown else ()
    unknown = [name for name in unknown if name not in inside]
    if unknown:
        more = f" and {len(unknown) - WARNINGS} more" if len(unknown) > WARNINGS else ""
        log.warning(
            "the store has unfinished runs of programs that this engine does not have: %s%s; they wait for an engine "
            "that has them: Engine(store, [..., %s])",
            ", ".join(unknown[:WARNINGS]),
            more,
            unknown[0],
        )
