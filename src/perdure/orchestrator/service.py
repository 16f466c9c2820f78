"""The only loops of an orchestrator: signs of life, due runs, orphans. Idle means idle.

Due runs are known ahead, and what other processes write shows in the store's version, which costs no statement; so
an engine with nothing to do sends one statement every few seconds, and most of those are signs of life.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from perdure.engine.outbox import extend
from perdure.errors import PerdureError
from perdure.kernel.events import RunReleased
from perdure.kernel.policies.queues import Queue
from perdure.kernel.state import fold
from perdure.orchestrator.admission import Admission
from perdure.orchestrator.deadlines import Deadlines
from perdure.orchestrator.heartbeat import Ownership, Superseded
from perdure.orchestrator.orchestrator import Orchestrator
from perdure.orchestrator.recovery import recover
from perdure.ports.journal import Append, append_all
from perdure.ports.leases import ORCHESTRATOR, Leases, orchestrator_name
from perdure.ports.queues import Waiting

log = logging.getLogger("perdure")

# How often the store's version is looked at, and how often at most its runs are asked for.
WATCH_SECONDS = 0.05
LOOK_SECONDS = 0.1
# The longest pause after a look that found something due and nothing to take.
VAIN_SECONDS = 0.5
# And where what is due cannot be read.
DAMAGED_SECONDS = 5.0
# How many due runs are taken at a time.
DUE_LIMIT = 1_000
# After how many of them their garbage is collected, however many wait.
COLLECT_AFTER = 10_000
# How far the looks for orphans are apart from their interval, at most, as a part of it.
JITTER = 0.25
# How long those who hear of the end of an orchestrator wait at most before they look: one of them will do.
HUSH_SECONDS = 0.2
# How many looks for orphans in a row may be short ones, where nothing seems to have changed: only who lives is asked.
QUIET_LOOKS = 4
# How long a service that an error has ended is left alone before it begins again.
AGAIN_SECONDS = 1.0
# How long an engine that is opened waits at most until its registration is in the store.
REGISTER_SECONDS = 0.5
# How long leases that cannot be watched are left alone before the next try.
WATCH_AGAIN_SECONDS = 5.0
# Libraries lose a cancellation now and then: what goes on for so long after one gets another.
CANCEL_AGAIN_SECONDS = 3.0


class Service:
    """Runs in the background of an orchestrator."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        ownership: Ownership,
        leases: Leases,
        queues: Mapping[str, Queue] | None = None,
        capacity: int = DUE_LIMIT,
        chance: Random | None = None,
    ) -> None:
        self._orchestrator, self._ownership, self._leases = orchestrator, ownership, leases
        # By its name, unless told otherwise: orchestrators that were started together look at different times, and a
        # test sees the same each time.
        self._chance = chance or Random(orchestrator.name)
        self._stir = asyncio.Event()
        self.admission = Admission(orchestrator, queues or {}, capacity, self._stir.set)
        self.deadlines = Deadlines(orchestrator, ownership)
        self._version: object = object()
        # The store's version when orphans were looked for last and none was found; and how many short looks came since.
        self._searched: object = object()
        self._quiet = 0
        # The next moment by the last answer of the store, and the next one of runs that left memory since.
        self._next_due: float | None = None
        self._noted: float | None = None
        # How many looks in a row found something due and nothing to take: another orchestrator is at it.
        self._vain = 0
        # The queues that have queued runs, as of the last look.
        self._waiting: Sequence[Waiting] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._beating: asyncio.Task[None] | None = None
        # Set when what we have has been said, or could not be.
        self._registered = asyncio.Event()
        self._stopping = False
        # What else is to be done now and then: how soon first, how often, and what.
        self.chores: list[tuple[float, float, Callable[[], Awaitable[object]]]] = []
        # How each kind of work went wrong the last time, unless it went well.
        self._failing: dict[str, str] = {}
        # Whether the last heartbeat succeeded.
        self._shown = True
        orchestrator.on_due = self.note

    def show_life(self) -> None:
        """Begin with signs of life, before anything that may take longer than a lease lasts."""
        self._beating = asyncio.get_running_loop().create_task(self._for_ever(self._beat))
        self.register()

    def register(self) -> None:
        """Have said in the background what we have."""
        self._orchestrator.spawn(self._register())

    async def _register(self) -> None:
        try:
            await self._guarded(self._ownership.register)
        finally:
            self._registered.set()

    async def registered(self) -> None:
        """Give a store that is quick the time to hear it: a client that comes next then knows what programs take."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REGISTER_SECONDS):
                await self._registered.wait()

    def start(self, *, look: bool = True) -> None:
        """Begin with the rest. The first look happens at once; without `look` there are only signs of life."""
        loop = asyncio.get_running_loop()
        services: list[Callable[[], Coroutine[Any, Any, None]]] = [self._due_runs] if look else []
        if look and self._orchestrator.recovery.enabled:
            services += [self._look_for_orphans, self._hear_of_orphans]
        services += [partial(self._every, first, interval, chore) for first, interval, chore in self.chores]
        self._tasks += [loop.create_task(self._for_ever(service)) for service in services]

    async def _for_ever(self, service: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin a service again that an error has ended: without it, runs would stand still for no visible reason."""
        while not await self._guarded(service):
            await asyncio.sleep(AGAIN_SECONDS)

    async def stop_looking(self) -> None:
        """Take up nothing more. Signs of life go on, for as long as steps do."""
        await self._end(set(self._tasks))

    async def hand_over_due(self) -> None:
        """While the engine is being left: what happens to its runs that wait is for others to see to, at once."""
        await self._guarded(self._hand_over_due)

    async def _hand_over_due(self) -> None:
        orchestrator = self._orchestrator
        await orchestrator.tails.look()
        programs, skip = list(orchestrator.programs), self._ownership.others
        due = await orchestrator.store.timers.due(
            orchestrator.clock.now(), DUE_LIMIT, programs, skip, orchestrator.serves
        )
        ours = [one.run_id for one in due if one.owner == orchestrator.name and one.run_id not in orchestrator.active]
        appends: list[Append] = []
        for run_id, batches in (await orchestrator.snapshots.read_many(ours)).items() if ours else ():
            if isinstance(batches, Exception):
                continue  # the next owner parks it
            state = fold(run_id, batches)
            if state.owner == orchestrator.name and state.finished is None:
                appends.append(extend(state, [RunReleased(orchestrator.name)], orchestrator.clock.now()))
        if appends:
            await append_all(orchestrator.store.journal, appends)

    async def stop(self) -> None:
        """End, and wait until nothing is under way."""
        self._stopping = True
        await self._end({*self._tasks, *([self._beating] if self._beating is not None else [])})

    async def _end(self, pending: set[asyncio.Task[None]]) -> None:
        while pending:
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_SECONDS)

    def note(self, at: float) -> None:
        """A run that left memory is due at `at`."""
        upcoming = self._upcoming()
        if self._noted is None or at < self._noted:
            self._noted = at
        if upcoming is None or at < upcoming:
            self._stir.set()

    def _upcoming(self) -> float | None:
        """The next moment at which a run is due."""
        moments = (self._next_due, self._noted, self.deadlines.next_look)
        return min((at for at in moments if at is not None), default=None)

    async def _every(self, first: float, interval: float, work: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(max(0.01, first))
        while True:
            if self._orchestrator.at_work:
                await self._guarded(work)
            await asyncio.sleep(interval)

    async def _guarded(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Do some work, whatever comes of it; says whether it was done."""
        what = getattr(getattr(work, "func", work), "__qualname__", "")
        try:
            await work()
            self._failing.pop(what, None)
            return True
        except PerdureError as error:
            if self._is_new(what, error):
                log.warning("%s", error)
        except Exception as error:
            if self._is_new(what, error):
                log.exception(
                    "orchestrator %s: an unexpected error in the background; it goes on", self._ownership.name
                )
        return False

    def _is_new(self, what: str, error: Exception) -> bool:
        """Whether this work fails in another way than the last time: what goes wrong at every look is logged once."""
        reason = f"{type(error).__name__}: {error}"
        known = self._failing.get(what)
        self._failing[what] = reason
        return known != reason

    async def _beat(self) -> None:
        """Show that we live, again and again, until somebody else has our name."""
        try:
            await self._beat_on()
        except asyncio.CancelledError:
            if not self._stopping and not self._orchestrator.closing:
                # The loop ends without having closed the engine, and cancels every task: no outcome of any step.
                self._orchestrator.abort()
            raise

    async def _beat_on(self) -> None:
        shown = True
        doubt = asyncio.Event()
        self._orchestrator.on_namesake = doubt.set
        while not self._orchestrator.retired.is_set():
            await self._next_beat(doubt, shown)
            doubt.clear()
            self._shown = False
            await self._guarded(self._show_life)
            shown = self._shown

    async def _next_beat(self, doubt: asyncio.Event, shown: bool) -> None:
        """Wait until the next heartbeat is due, or the name is in doubt."""
        orchestrator, recovery = self._orchestrator, self._orchestrator.recovery
        # Sooner where it failed: there is time for several tries before work has to stop.
        pause = recovery.heartbeat if shown else min(1.0, recovery.ttl / 12)
        spare = recovery.idle_heartbeat - pause
        if await _happens(doubt, pause) or not shown or spare <= 0 or not orchestrator.idle:
            return
        # The first run that comes into memory finds a lease that lasts: its first step may block the loop.
        orchestrator.on_busy = doubt.set
        try:
            await _happens(doubt, spare)
        finally:
            orchestrator.on_busy = lambda: None

    async def _show_life(self) -> None:
        orchestrator = self._orchestrator
        try:
            self._shown = await self._ownership.renew()
        except Superseded:
            orchestrator.retire()
            return
        if not self._shown:
            return
        await self._guarded(self._ownership.register)
        if orchestrator.go_on():
            self._version = object()
            orchestrator.spawn(self._guarded(lambda: recover(orchestrator, self._ownership, startup=True)))

    async def _look_for_orphans(self) -> None:
        """Look for runs that have lost their owner, now and then. Those who began together soon look one by one."""
        interval = self._orchestrator.recovery.check_interval
        while True:
            await asyncio.sleep(max(0.01, interval * (1 + JITTER * self._chance.uniform(-1, 1))))
            if self._orchestrator.at_work:
                await self._guarded(self._orphans_if_any)

    async def _outlast_leases(self) -> None:
        """Look again when the leases have ended of those who lived when we began: they may have been dead already."""
        ends = max(self._ownership.expires.values(), default=None)
        if ends is not None:
            await asyncio.sleep(max(0.0, ends - self._orchestrator.clock.now()) + HUSH_SECONDS)
            await self._guarded(self._orphans)
            self._look_at_due()

    async def _hear_of_orphans(self) -> None:
        """Look for them as soon as a lease ends, where the backend can tell."""
        while True:
            await self._guarded(self._hear)
            await asyncio.sleep(WATCH_AGAIN_SECONDS)

    async def _hear(self) -> None:
        async for key in self._leases.watch(ORCHESTRATOR):
            if orchestrator_name(key) != self._orchestrator.name:
                await asyncio.sleep(self._chance.uniform(0, HUSH_SECONDS))
                await self._guarded(self._orphans)
                self._look_at_due()

    async def _orphans_if_any(self) -> None:
        """Where nothing was told since there were none, there can only be some when somebody is gone."""
        if self._quiet < QUIET_LOOKS and self._orchestrator.store.version() == self._searched:
            known = set(self._ownership.others)
            await self._ownership.look_around()
            if known.issubset(self._ownership.others):
                self._quiet += 1
                return
            self._look_at_due()
        await self._orphans()

    async def _orphans(self) -> None:
        if not self._orchestrator.at_work:
            return
        known, version = set(self._ownership.others), self._orchestrator.store.version()
        found = await recover(self._orchestrator, self._ownership, startup=False)
        self._searched, self._quiet = version if not found else object(), 0
        if not known.issubset(self._ownership.others):
            self._look_at_due()

    def _look_at_due(self) -> None:
        """Somebody is gone: what it left asleep may be due."""
        self._version = object()
        self._stir.set()

    async def _due_runs(self) -> None:
        """Wake runs when they are due, whoever made them so."""
        store, clock = self._orchestrator.store, self._orchestrator.clock
        loop = asyncio.get_running_loop()
        looked = -LOOK_SECONDS
        while True:
            if not self._orchestrator.at_work:
                await asyncio.sleep(WATCH_SECONDS)
                continue
            now, current = clock.now(), store.version()
            upcoming = self._upcoming()
            due = upcoming is not None and upcoming <= now
            changed = current != self._version and loop.time() - looked >= LOOK_SECONDS
            stale = loop.time() - looked >= self._orchestrator.recovery.check_interval
            if changed or stale:
                # Only here: a change that is noticed while something is due is news to the runs in memory as well.
                self._version, looked = current, loop.time()
                if self._orchestrator.active and not await self._guarded(self._orchestrator.tails.look):
                    self._version = object()  # what could not be read is still news
            if due or changed or stale:
                # Where nothing was told, nobody has left: those who look for orphans know who is alive.
                around = changed or not self._orchestrator.recovery.enabled
                if not await self._guarded(partial(self._look, around)):
                    self._version = object()
                await self._guarded(lambda: self.admission.look(waiting=self._waiting))
                continue
            if self.admission.due(now):
                await self._guarded(self.admission.look)
                continue
            moments = [at for at in (self._upcoming(), self.admission.next_look) if at is not None]
            wait = min(WATCH_SECONDS, max(0.001, min(moments, default=now + WATCH_SECONDS) - now))
            self._stir.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._stir.wait()
            except TimeoutError:
                pass

    async def _look(self, around: bool) -> None:
        """Ask for the next due moment, and load what is due already."""
        orchestrator = self._orchestrator
        if around and self._ownership.others:
            # One of them may have left, and its runs are anyone's then.
            await self._ownership.look_around()
        skip = self._ownership.others
        programs, queues = list(orchestrator.programs), orchestrator.serves
        self._waiting = None
        with Crowd() as crowd:
            await self._load_due(programs, queues, skip, crowd)
        await self.deadlines.look(changed=around)

    async def _load_due(
        self, programs: list[str], queues: Sequence[str] | None, skip: Sequence[str], crowd: Crowd
    ) -> None:
        orchestrator = self._orchestrator
        while orchestrator.at_work:
            # What is noted from now on may be missing in the answer.
            self._next_due = self._noted = None
            ahead = await orchestrator.store.timers.ahead(programs, skip, queues)
            self._next_due, self._waiting = ahead.next_due, ahead.waiting
            now = orchestrator.clock.now()
            if self._next_due is None or self._next_due > now:
                return
            # Runs that are known here may be due as well, and are not to crowd out the others.
            limit = DUE_LIMIT + len(self._known())
            found = await orchestrator.store.timers.due(now, limit, programs, skip, queues)
            if any(due.owner not in (None, orchestrator.name, *skip) for due in found):
                # Somebody new, or somebody dead: find out before taking a run from an owner that looks after it.
                await self._ownership.look_around()
                known_before, skip = skip, self._ownership.others
                if any(due.owner in skip and due.owner not in known_before for due in found):
                    # What is due belongs to a live orchestrator: what is due first besides that?
                    continue
            ours = [due.run_id for due in found if due.owner not in skip]
            dead = {due.owner for due in found if due.owner not in skip}
            known = self._known()
            asleep = [run_id for run_id in ours if run_id not in known][:DUE_LIMIT]
            if not asleep:
                # All of it is in memory and has its own alarm, or another orchestrator is about to take it. Look again
                # when those have had their turn: what is due later was not asked for.
                busy = any(run_id not in orchestrator.unreadable for run_id in ours)
                self._vain = 0 if busy else min(self._vain + 1, 10)
                longest = DAMAGED_SECONDS if ours and not busy else VAIN_SECONDS
                self._next_due = now + min(LOOK_SECONDS * 2**self._vain, longest)
                return
            self._vain = 0
            crowd.came(len(asleep))
            await orchestrator.loading.load(asleep, dead)
            await asyncio.sleep(0)

    def _known(self) -> set[str]:
        """Runs that are in memory, on their way there, or cannot be brought there."""
        orchestrator = self._orchestrator
        known = {*orchestrator.active, *orchestrator.unreadable, *orchestrator.locks.regaining}
        known.update(orchestrator.quarantine.waiting, orchestrator.loading.under_way)
        return known


async def _happens(event: asyncio.Event, within: float) -> bool:
    """Whether it happens within so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()
    return event.is_set()


class Crowd:
    """Thousands of runs that are due at once. The garbage collector waits while they pass.

    Each of them is in memory for an instant only, but is alive when the collector comes by. It would take them for
    something that lasts, walk over everything in the process again and again, and take longer than the runs do.
    """

    def __init__(self) -> None:
        self._enabled = gc.isenabled()
        self._seen = 0

    def came(self, count: int) -> None:
        """So many runs are about to be loaded."""
        self._seen += count
        if self._enabled and count == DUE_LIMIT:
            gc.disable()
        if self._seen > COLLECT_AFTER:
            self._seen = 0
            gc.collect(0)  # only what has come since: all of it is still young

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *error: object) -> None:
        if self._enabled:
            gc.enable()
