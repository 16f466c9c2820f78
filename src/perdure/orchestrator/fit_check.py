"""Replay waiting runs with the code of this engine, in the background: a misfit shows at the deploy, not when due.

Nothing is claimed, and nothing is written but the parking of a run that does not fit, by compare-and-swap. Replay takes
turns with everything else on the event loop: a few milliseconds, then a pause of the same length. What fits is
remembered by the code and the head of its journal, so that neither this process nor the next one with the same code
reads it again.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from perdure.errors import PerdureError, StoreUnavailable, UnknownProgram, UnknownVersion
from perdure.kernel.events import Batch, RunStarted, RunStatus
from perdure.kernel.projection import RunRow
from perdure.kernel.state import fold
from perdure.kernel.values.raised import contained
from perdure.logs import log
from perdure.orchestrator.fit_cache import FEWEST, FitCache, code_hash, digest
from perdure.orchestrator.loader import Ready
from perdure.orchestrator.membership import Membership
from perdure.orchestrator.orchestrator import Orchestrator
from perdure.orchestrator.residency import ABSENT, LEFT
from perdure.orchestrator.takeover import Takeover
from perdure.ports.leases import REGISTRATION, Registration, registrations, some_of, versions_at
from perdure.ports.runs import RunFilter

# Where nothing is under way: runs that were running are loaded, replayed and parked by the duties that advance them,
# unless they lack something here.
STATUSES = (RunStatus.WAITING, RunStatus.QUEUED, RunStatus.PAUSED, RunStatus.RUNNING)


# How far the clocks of processes that append to a journal may be apart, in seconds.
SKEW = 300.0


@dataclass(frozen=True, slots=True)
class FitCheckConfig:
    """Durations are in seconds."""

    page: int = 100
    """How many runs are listed at a time."""
    batch: int = 10
    """How many journals are read at a time."""
    turn: float = 0.003
    """How long runs are replayed before everything else on the event loop has its turn."""
    share: float = 0.5
    """The largest part of the time that is spent on it."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """The report of a pass."""

    checked: int = 0
    """How many runs were replayed."""
    parked: int = 0
    """How many of them were parked."""
    left: int = 0
    """How many do not fit, and were left to another live orchestrator that has their program, too."""
    turns: int = 0
    """In how many turns of the event loop they were replayed."""


@dataclass(slots=True)
class Checked:
    """A run that is being replayed, and what keeps it from continuing here, if anything does."""

    row: RunRow
    started: RunStarted
    batches: Sequence[Batch]
    parts: Generator[None, None, None] | None = None
    error: Exception | None = None
    # Whether it would go on at once: its code has changed, and asks for something that it did not ask for before.
    goes_on: bool = False

    @property
    def digest(self) -> bytes:
        """Its journal as it was replayed."""
        return digest(self.row.run_id, self.batches[-1].seq + len(self.batches[-1].events))


@contextmanager
def short_collections() -> Iterator[None]:
    """Leave what is in memory now out of garbage collections: replay makes garbage, and a full one takes long."""
    if gc.get_freeze_count():  # the process does so itself
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class FitCheck:
    """Checks waiting runs when an engine starts, and when orchestrators have gone or a program was defined again.

    `on_missing` is called with the programs of runs that need a version of them which this engine lacks.
    """

    name = "checking waiting runs against the code"

    def __init__(
        self,
        orchestrator: Orchestrator,
        membership: Membership,
        takeover: Takeover,
        config: FitCheckConfig,
        on_missing: Callable[[frozenset[str]], None] = lambda programs: None,
    ) -> None:
        self._orchestrator, self._membership, self._config = orchestrator, membership, config
        self._takeover, self._on_missing = takeover, on_missing
        orchestrator.loader.others_may_take, orchestrator.loader.on_missing = self._others_may_take_now, self.request
        self.time = orchestrator.loop.time
        self._wanted = asyncio.Event()
        self._wanted.set()
        # The digests of journals that fit, of journals of other engines' programs, and of journals that do not fit and
        # were left to other orchestrators.
        self._fits: set[bytes] = set()
        self._foreign: set[bytes] = set()
        self._left: set[bytes] = set()
        # All journals fit that have no event of this moment or later: they are not listed again.
        self._fit_until: float | None = None
        self._cache = FitCache(orchestrator.store, orchestrator.clock)
        # The hash of the code, for the cache: None before it is known, empty if there is none.
        self._code: str | None = None
        # The other live orchestrators, by name, with their registrations if those are known.
        self._others: Mapping[str, Registration | None] = {}
        self._others_changed = False
        self._code_changed = False
        self._turns = 0
        # The report of the last pass, once there was one.
        self.last: FitReport | None = None

    def request(self) -> None:
        """Check again: an orchestrator is gone, or a run lacks something here."""
        self._wanted.set()

    def code_changed(self) -> None:
        """Check everything again, and try parked runs again: a program was defined again."""
        for known in (self._fits, self._foreign, self._left):
            known.clear()
        self._fit_until = None
        # What was defined again in one process is of no use to the next.
        self._code, self._code_changed = "", True
        self._wanted.set()

    async def wait(self) -> None:
        """Wait until the next pass is due."""
        while not self._wanted.is_set():
            # What was left to other orchestrators concerns this one if they register without the program.
            with suppress(TimeoutError):
                left = self._left or self._orchestrator.runs.of(LEFT)
                async with asyncio.timeout(self._orchestrator.recovery.check_interval if left else None):
                    await self._wanted.wait()
            if not self._wanted.is_set():
                await self._read_others()

    async def run_once(self, now: float) -> FitReport:
        """Try parked runs again, and park waiting ones that do not fit."""
        orchestrator = self._orchestrator
        self._wanted.clear()
        again, self._code_changed = self._code_changed, False
        try:
            _ = await self._takeover.retry_parked(again=again)
        finally:
            orchestrator.parking.tried()
        await self._read_others()
        if again or self._others_changed:
            self._wanted.clear()
            self._others_changed = False
            self._left.clear()
            if orchestrator.runs.forget_left():
                orchestrator.wakeups.due(orchestrator.clock.now())
        with ExitStack() as until_the_end:
            return await self._check_all(until_the_end)

    async def _check_all(self, until_the_end: ExitStack) -> FitReport:
        orchestrator, began = self._orchestrator, self._orchestrator.clock.now()
        # The digests of journals that fit, and of those that a later pass lists again although all fit.
        fits: set[bytes] = set()
        recent: set[bytes] = set()
        self._turns = checked = parked = new = 0
        left: Counter[str] = Counter()
        missing: set[str] = set()
        # Whether each run that could be checked was: later passes need not list what has not changed since.
        whole = orchestrator.serves is None
        cursor: str | None = None
        while orchestrator.session.at_work:
            filter = RunFilter(
                status=STATUSES,
                limit=self._config.page,
                cursor=cursor,
                built_in=False,
                values=False,
                changed_since=self._fit_until,
            )
            page = await orchestrator.store.runs.list(filter)
            if self._code is None and len(page) >= FEWEST:
                self._code = await code_hash(orchestrator.programs)
                if self._code:
                    self._fit_until, known = await self._cache.load(self._code)
                    self._fits |= known
                    if self._fit_until is not None:
                        continue
            if cursor is None and len(page) >= FEWEST:
                # Not for a few: in a process that has frozen much, even to find that out takes milliseconds.
                until_the_end.enter_context(short_collections())
            heads = [(row, digest(row.run_id, head.next_seq)) for row, head in page]
            fits.update(one for _, one in heads if one in self._fits)
            listed_again = {one for (_, one), (_, head) in zip(heads, page, strict=True) if head.at >= began - SKEW}
            todo = [row for row, one in heads if self._is_unchecked(row, one)]
            whole = whole and not any(self._is_left_out(row) for row, _ in page)
            missing.update(row.program for row, _ in page if isinstance(self._missing(row), UnknownVersion))
            for start in range(0, len(todo), self._config.batch):
                for one in await self._check(todo[start : start + self._config.batch]):
                    checked += 1
                    if one.error is None and self._missing(one.row) is not None:
                        self._foreign.add(one.digest)
                    elif one.error is None:
                        fits.add(one.digest)
                        new += 1
                        if one.goes_on and one.row.status is RunStatus.WAITING:
                            orchestrator.enter_soon(one.row.run_id)
                    elif self._others_may_take(one.started, one.error):
                        self._left.add(one.digest)
                        left[one.row.program] += 1
                    elif await self._park(one, one.error):
                        parked += 1
            recent |= fits & listed_again
            if len(page) < self._config.page:
                break
            cursor = page[-1][0].run_id
            await asyncio.sleep(0)
        else:
            return FitReport()
        self._on_missing(frozenset(missing))
        whole = whole and not (missing or self._left or self._foreign or orchestrator.runs.of(LEFT))
        if whole:
            self._fit_until, fits = began - SKEW, recent
        if self._code and new:
            await self._cache.save(self._code, self._fit_until, fits)
        self._fits = fits
        for program, count in left.items():
            log.warning(
                "%d waiting run%s of `%s` %s not fit the code of orchestrator %s, and %s left to live orchestrators "
                "that may have code that does (%s)",
                count,
                "" if count == 1 else "s",
                program,
                "does" if count == 1 else "do",
                orchestrator.name,
                "is" if count == 1 else "are",
                some_of(sorted(self._others)),
            )
        self.last = FitReport(checked, parked, left.total(), self._turns)
        return self.last

    async def _park(self, one: Checked, error: Exception) -> bool:
        """Park a run, unless it is about to be loaded here, or another append came first."""
        orchestrator, run_id = self._orchestrator, one.row.run_id
        if orchestrator.runs.state(run_id) not in (ABSENT, LEFT) or not orchestrator.session.at_work:
            return False
        if isinstance(error, UnknownVersion) and (others := versions_at(self._others, error.name, one.row.queue)):
            error = error.beside(others)
        ready = Ready(run_id, one.started, one.batches)
        state = fold(run_id, one.batches)
        written = await orchestrator.loader.park_explained(state, error, ready, explained=False)
        if not written:
            if written is False:
                self.request()  # it is checked as it is now
            return False
        orchestrator.runs.mark_parked(run_id)
        return True

    def _is_unchecked(self, row: RunRow, journal: bytes) -> bool:
        """Whether to replay a run: no other live orchestrator owns it, and it was not checked in its present state."""
        orchestrator = self._orchestrator
        if row.root or row.owner in self._others or orchestrator.runs.state(row.run_id) not in (ABSENT, LEFT):
            return False
        if orchestrator.serves is not None and row.queue not in orchestrator.serves:
            return False
        if any(journal in known for known in (self._fits, self._foreign, self._left)):
            return False
        if self._missing(row) is not None:
            # Only an engine that has its code can say what it makes of a run that has not begun.
            return self._takeover.parks_unknown and row.status is not RunStatus.QUEUED
        return row.status is not RunStatus.RUNNING and orchestrator.programs.is_loaded(row.program)

    def _is_left_out(self, row: RunRow) -> bool:
        """Whether a run is to be checked later: another orchestrator has it now, or its code is not loaded."""
        if row.root:
            return False
        programs = self._orchestrator.programs
        return row.owner in self._others or (self._missing(row) is None and not programs.is_loaded(row.program))

    def _missing(self, row: RunRow) -> UnknownProgram | UnknownVersion | None:
        return self._orchestrator.programs.missing(row.program, row.version)

    # --- replay, turn by turn -------------------------------------------------------------------------------------

    async def _check(self, rows: Sequence[RunRow]) -> list[Checked]:
        """Replay runs. What cannot be read is left out: the orchestrator that loads it parks it."""
        orchestrator = self._orchestrator
        journals = await orchestrator.snapshots.read_many([row.run_id for row in rows])
        found: list[Checked] = []
        for row in rows:
            batches = journals.get(row.run_id)
            if not batches or isinstance(batches, Exception):
                continue
            try:
                started = await orchestrator.payloads.with_input(batches)
                await orchestrator.definitions.load(started, batches)
                await orchestrator.session.sources.read(batches)
                found.append(Checked(row, started, await orchestrator.loader.inflate(row.run_id, started, batches)))
            except StoreUnavailable:
                raise
            except PerdureError:
                continue
        left = deque(found)
        try:
            while left:
                began = self.time()
                self._turns += 1
                await orchestrator.in_callback(lambda: self._replay_some(left))
                await asyncio.sleep((self.time() - began) * (1 / self._config.share - 1))
        finally:
            if left and left[0].parts is not None:
                # In a callback: a body must not be closed inside a task.
                orchestrator.loop.call_soon(left[0].parts.close)
        return found

    def _replay_some(self, left: deque[Checked]) -> None:
        """Replay as many runs, or parts of a long one, as there is time for in a turn."""
        end = self.time() + self._config.turn
        while left:
            one = left[0]
            try:
                if one.parts is None:
                    one.parts = self._parts(one)
                for _ in one.parts:
                    if self.time() >= end:
                        return
            except BaseException as error:
                one.error = contained(error)
            left.popleft()
            if self.time() >= end:
                return

    def _parts(self, one: Checked) -> Generator[None, None, None]:
        loader, missing = self._orchestrator.loader, self._missing(one.row)
        if missing is None:
            one.goes_on = yield from loader.check_in_parts(one.row.run_id, one.started, one.batches)
        elif loader.follows_its_owner(one.batches, missing):
            # The code of this process had it before. Any other missing program belongs to another engine.
            raise missing

    # --- other orchestrators --------------------------------------------------------------------------------------

    async def _read_others(self) -> None:
        """Read which other orchestrators are alive and what they have. If that has changed, check again."""
        membership, leases, now = self._membership, self._orchestrator.store.leases, self._orchestrator.clock.now()
        await membership.refresh()
        found = registrations(await leases.live(REGISTRATION, now)) if membership.others else {}
        before, self._others = self._others, {name: found.get(name) for name in membership.others}
        if before != self._others:
            self._others_changed = True
            self._wanted.set()

    def _others_may_take(self, started: RunStarted, error: Exception) -> bool:
        """Whether another live orchestrator may continue a run: it has what is missing, or did not register it."""
        needs = {(started.program, started.version)}
        if isinstance(error, UnknownProgram | UnknownVersion):  # of the run, or of a child
            needs.add((error.name, error.version if isinstance(error, UnknownVersion) else ""))
        others = self._others.values()
        return any(known is None or all(known.may_take(*one, started.queue) for one in needs) for known in others)

    async def _others_may_take_now(self, started: RunStarted, error: Exception) -> bool:
        await self._read_others()
        return self._others_may_take(started, error)
