"""Takeover: find runs whose owner is gone, and enter them. Leases first: only a likely owner pays for replay."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from perdure.errors import StoreUnavailable
from perdure.kernel.chunks import MAP
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import BATCH, BUILT_IN, REMOTE
from perdure.kernel.program import Program
from perdure.logs import log
from perdure.orchestrator.membership import Membership
from perdure.orchestrator.parking import Parking
from perdure.orchestrator.residency import PARKED_HERE, Entered, EntryRequest
from perdure.orchestrator.session import Session
from perdure.ports.runs import RunFilter

# How many programs that an engine was not given, and orchestrators beside it, are named one by one when it starts.
WARNINGS = 10
# How many parked runs are replayed before everything else on the event loop has its turn.
TRIED_AT_ONCE = 10


class Takeover:
    """Searches for orphans, and for parked runs that have not been tried with this code, and enters them."""

    def __init__(
        self,
        session: Session,
        membership: Membership,
        parking: Parking,
        enter: Callable[[EntryRequest], Awaitable[Entered]],
    ) -> None:
        self._session, self._membership, self._parking, self._enter = session, membership, parking, enter

    async def at_start(self) -> None:
        """Take over what can be continued. An error in a run stops no engine.

        Raises StoreUnavailable: without its store an engine cannot start. Parked runs, and those of programs that no
        engine has, are seen to in the background (`fit_check`).
        """
        self._parking.retrying = True
        with _logged("naming the programs that this engine was not given"):
            await self.warn_of_unknown()
        with _logged("taking over runs of orchestrators that are gone"):
            _ = await self.search(startup=True)

    async def search(self, *, startup: bool) -> int:
        """Take over the runs of orchestrators that are not alive, batch by batch. Returns how many were loaded.

        Idle runs are not claimed: the orchestrator that finds one due takes it over then. Parked runs are tried again:
        the code may have been mended meanwhile.
        """
        session = self._session
        runs, settings = session.store.runs, session.recovery
        programs = session.programs.taken()
        owners = await runs.owners()
        if not owners and not startup:
            return await self.retry_parked(page=True)
        if startup or any(owner != session.name for owner in owners):
            await self._membership.refresh()
        if startup:
            self._await_leases(owners)
        # This orchestrator's own name too: at start-up its runs are those of a process that is gone, and later the
        # store may have a run whose start was stored although the answer was lost.
        dead = [owner for owner in owners if owner not in self._membership.others]
        limit = settings.max_startup if startup else settings.max_claims
        loaded = 0
        seen: set[str] = set()
        while dead and session.at_work:
            # Claims are on their way to the store while the next batch is read, so ask for more than was seen.
            wanted = limit + len(seen) + len(session.runs.drivers)
            found = await runs.owned(dead, RunStatus.RUNNING, programs, wanted, session.serves)
            fresh = [run_id for run_id in found if run_id not in seen and run_id not in session.runs.drivers][:limit]
            if not fresh:
                break
            seen.update(fresh)
            loaded += (await self._enter(EntryRequest(fresh, dead))).count
            await asyncio.sleep(0 if startup else 0.01)
            # One of the dead may have been started again meanwhile, and take up its own runs.
            await self._membership.refresh()
            dead = [owner for owner in dead if owner not in self._membership.others]
        # At start-up all of them are tried, in the background.
        return loaded if startup else loaded + await self.retry_parked(page=True)

    def _await_leases(self, owners: Sequence[str]) -> None:
        """Await and log the leases of live orchestrators that have runs: one that is gone has its lease for a while."""
        others = [owner for owner in owners if owner in self._membership.others]
        for owner in others:
            self._membership.await_end(owner)
        for owner in others[:WARNINGS]:
            left = self._membership.lease_left(owner)
            if left is not None:
                log.info(
                    "orchestrator %s has unfinished runs. If it is gone, this one waits for the lease of %s, at most "
                    "%.0f s, and takes them over",
                    owner,
                    owner,
                    left,
                )

    async def retry_parked(self, *, page: bool = False, again: bool = False) -> int:
        """Load parked runs of programs and versions that this engine has, each once; those that do not fit stay parked.

        This is not done at start-up only: a run that an engine with other code has parked since may fit this one. Later
        it is done one `page` at a time: after a bad deploy there may be thousands, and nearly all were tried. `again`:
        also the runs that did not fit before.
        """
        session, parking = self._session, self._parking
        limit, loaded = session.recovery.max_startup, 0
        cursor = parking.searched_to if page else None
        while session.at_work:
            filter = RunFilter(status=[RunStatus.PARKED], limit=limit, cursor=cursor)
            found = [row for row, _ in await session.store.runs.list(filter)]
            cursor = found[-1].run_id if len(found) == limit else None
            untried = [r for r in found if not r.root and (again or session.runs.state(r.run_id) is not PARKED_HERE)]
            ours = [row.run_id for row in untried if session.programs.missing(row.program, row.version) is None]
            for start in range(0, len(ours), TRIED_AT_ONCE):
                some = ours[start : start + TRIED_AT_ONCE]
                loaded += (await self._enter(EntryRequest(some))).count
                await asyncio.sleep(0)
            for row in untried:
                if row.run_id not in ours:
                    session.runs.mark_parked(row.run_id)
            if page:
                parking.searched_to = cursor
            if cursor is None or page:
                break
        return loaded

    @property
    def parks_unknown(self) -> bool:
        """Whether an engine may park runs of what it lacks: it takes all runs, and has programs of its own."""
        session = self._session
        return session.serves is None and not all(name.startswith(BUILT_IN) for name in session.programs)

    async def warn_of_unknown(self) -> None:
        """Log which programs have unfinished runs and were not given to this engine."""
        session = self._session
        if session.serves is not None:
            return  # it serves some queues, and other engines serve the rest
        found = await session.store.runs.programs()
        programs = session.programs
        known = {*programs, *programs.defined}
        # A batch of a program comes with it, and so do the runs of its items.
        names = dict.fromkeys(name.removesuffix(BATCH) for name in found if not name.startswith((REMOTE, MAP)))
        unknown = [name for name in names if name not in known]
        inside = _names_inside(programs.values()) if unknown else ()
        unknown = [name for name in unknown if name not in inside]
        if unknown:
            more = f" and {len(unknown) - WARNINGS} more" if len(unknown) > WARNINGS else ""
            log.warning(
                "the store has unfinished runs of programs that this engine does not have: %s%s; they wait until "
                "an engine has them: Engine(store, [..., %s])",
                ", ".join(unknown[:WARNINGS]),
                more,
                unknown[0],
            )


@contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except StoreUnavailable:
        raise
    except Exception:
        log.exception("%s failed; the engine starts, and will try again", what)


def _names_inside(programs: Iterable[Program]) -> set[str]:
    """The names of the programs that run as parts of graphs and flows, at any depth."""
    found, work = set[str](), list(programs)
    while work:
        program = work.pop()
        inner = [one for one in program.children() if one.name not in found] if program.decides else []
        found.update(one.name for one in inner)
        work += inner
    return found
