"""Park runs: stop advancing them, and say why in their journals. A parked run keeps everything it has."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest

import msgspec

from perdure.engine.large_values import FIRST_RETRY, LAST_RETRY
from perdure.engine.probe import Probe
from perdure.engine.turns import Turns
from perdure.errors import Corrupt, NotDecodable, StoreUnavailable
from perdure.kernel.divergence.parked import parked_for
from perdure.kernel.events import AnyEvent, Batch, RunParked, RunResumed, RunStatus
from perdure.kernel.inbound import unpark
from perdure.kernel.projection import RunRow, row
from perdure.kernel.state import RunState, fold
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.failures import describe
from perdure.kernel.values.raised import contained
from perdure.logs import log
from perdure.orchestrator.residency import LOADING, PARKED_HERE, REGAINING_LOCKS
from perdure.orchestrator.session import Session
from perdure.ports.appends import extend
from perdure.ports.journal import Append, Appended, Outcome, append_all

_INTERNAL = (
    "an error inside perdure stopped it: {}{}\n\n"
    "Nothing that was recorded is lost. It is tried again when an engine opens the store, and at once by\n"
    "`perdure resolve ID`. The log of the process has the traceback: please report it."
)
_PLAIN = Codec()
# How many reasons are remembered, to log each of them once.
_REASONS = 1000


class Parking:
    """Parks runs that cannot continue, and marks those that nothing can be appended to."""

    def __init__(self, session: Session, turns: Turns) -> None:
        self._turns = turns
        self._runs, self._store, self._clock = session.runs, session.store, session.clock
        self._on_parked, self._log_after = session.observer.finished, session.config.unparked_log
        self._probes = session.observer.probes
        # Up to where parked runs were searched, newest first, since the last search began.
        self.searched_to: str | None = None
        self._waiting: list[tuple[Append, asyncio.Future[bool | None]]] = []
        # How many runs were parked, by the reason.
        self._logged: dict[str, int] = {}
        # Whether parked runs are being tried that this process has not tried yet: their callers are not answered.
        self.retrying = False
        self.on_tried: Callable[[], None] = lambda: None
        # Parked runs that were about to continue when another append came first: they are entered again.
        self.entered_again: set[str] = set()
        # How many parked runs have continued since the last log line, by program and reason; and when the next is due.
        self._unparked: Counter[tuple[str, str]] = Counter()
        self._log_unparked_at: asyncio.TimerHandle | None = None

    async def park(self, state: RunState, error: Exception) -> bool | None:
        """Park a run that the code of this process cannot continue; one that is parked gets the reason of now."""
        return await self.park_as(state, parked_for(error))

    async def park_as(self, state: RunState, parked: RunParked) -> bool | None:
        """Park a run for a known reason: False if another append came first, None if the store is out of reach."""
        if state.parked is not None and state.parked.reason == parked.reason:
            self._on_parked(row(state))
            return True
        written = await self._append(extend(state, [parked], self._clock.now()))
        if not written:
            return written
        self._log(state.started.id if state.started else state.run_id, parked)
        self._on_parked(row(state))
        return True

    def is_tried(self, run_id: str) -> bool:
        """Whether a parked run may be about to continue here."""
        residency = self._runs.state(run_id)
        if residency in (LOADING, REGAINING_LOCKS) or run_id in self.entered_again:
            return True
        return self.retrying and residency is not PARKED_HERE

    def tried(self) -> None:
        """All parked runs were tried: callers of those that stay parked are answered."""
        self.retrying = False
        self.log_unparked()
        self.on_tried()

    def unpark(self, state: RunState) -> Sequence[AnyEvent]:
        """The events by which a parked run continues, now that it fits again; none for any other run."""
        if state.parked is None:
            return ()
        events = unpark(state)
        assert isinstance(events[0], RunResumed)
        self._unparked[state.started.program if state.started else "", events[0].reason] += 1
        if self._log_unparked_at is None and not self.retrying:
            self._log_unparked_at = asyncio.get_running_loop().call_later(self._log_after, self.log_unparked)
        return events

    def log_unparked(self) -> None:
        """Log how many parked runs continue, and why, in a line for each program."""
        if self._log_unparked_at is not None:
            self._log_unparked_at.cancel()
            self._log_unparked_at = None
        for (program, reason), count in self._unparked.items():
            runs = (
                "1 parked run of `%s` continues (%s)" if count == 1 else f"{count:,} parked runs of `%s` continue (%s)"
            )
            log.warning(runs, program, reason)
        self._unparked.clear()

    def _log(self, id: str, parked: RunParked) -> None:
        """Log a parked run; one bad deploy parks many runs for one reason, which is logged in full once."""
        count = self._logged.get(parked.reason, 0) + 1
        if len(self._logged) > _REASONS:
            self._logged.clear()
        self._logged[parked.reason] = count
        if count == 1:
            log.error("run %r is parked: %s", id, parked.reason)
        elif str(count).strip("0") == "1":
            log.error("%s runs are parked for the same reason, the last of them %r", f"{count:,}", id)

    async def resume(self, state: RunState) -> None:
        """Let a run that was parked before it began wait for its turn again."""
        await self._append(extend(state, self.unpark(state), self._clock.now()))

    async def park_unread(self, run_id: str, reason: str) -> None:
        """Park a run whose journal cannot be read; its row and its head can."""
        written: bool | None = False
        while written is False:
            await self._turns.reserve(run_id)
            try:
                found, head = await self._store.runs.get(run_id), await self._store.journal.head(run_id)
            except Corrupt:
                found = head = None
            if found is None or head is None:
                log.error(
                    "run_id %s cannot be read: %s. This process leaves it alone; restore it from a backup and restart",
                    run_id,
                    reason,
                )
                self.mark_unreadable(run_id, Corrupt(f"what the store holds of run_id {run_id}", reason, run_id))
                break
            if found.status.finished or found.status is RunStatus.PARKED:
                break
            parked = msgspec.structs.replace(found, status=RunStatus.PARKED, wake_at=None, reason=reason)
            event = RunParked(reason, "damaged")
            batch = Batch(head.next_seq, self._clock.now(), [event])
            written = await self._append(Append(run_id, head.next_seq, [batch], parked))
            if written:
                self._log(found.id, event)
                self._on_parked(parked)
        await self._turns.end(run_id)

    def mark_unreadable(self, run_id: str, damage: Corrupt) -> None:
        """Leave a run alone for the life of this process: nothing can be appended to it. Callers get the error."""
        self._runs.mark_unreadable(run_id, damage)
        self._on_parked(damage)

    async def park_broken(
        self, run_id: str, error: Exception, owner: str, at_work: Callable[[], bool]
    ) -> RunRow | None:
        """Park a run of ours that an error inside the engine stopped; None when it is not in the store.

        A pending append of it is written first. A run that has ended or has another owner is left alone.
        """
        parked = parked_for(error)
        if parked.kind == "damaged":
            parked = RunParked(_INTERNAL.format(describe(error, _PLAIN), _where(error)), "internal")
        try:
            return await self._park_broken(run_id, error, parked, owner, at_work)
        finally:
            await self._turns.end(run_id)

    async def _park_broken(
        self, run_id: str, error: Exception, parked: RunParked, owner: str, at_work: Callable[[], bool]
    ) -> RunRow | None:
        wait = FIRST_RETRY
        while at_work():
            try:
                await self._turns.reserve(run_id)
                found = await self._store.runs.get(run_id)
                if found is None:
                    return None
                if found.status.finished or found.status is RunStatus.PARKED:
                    self._on_parked(found)
                    return found
                if found.owner not in (None, owner):
                    return found
                append = await self._parking(found, parked)
                if append is None or await self._append(append):
                    row = append.row if append is not None and append.row is not None else found
                    if isinstance(error, NotDecodable):
                        self._log(found.id, parked)
                    self._on_parked(row)
                    return row
            except StoreUnavailable as unavailable:
                log.warning("%s; run_id %s will be parked once the store can be reached", unavailable, run_id)
            # The store is out of reach, or another append came first: perhaps the pending one of this run.
            await asyncio.sleep(wait)
            wait = min(wait * 2, LAST_RETRY)
        return None

    async def _parking(self, found: RunRow, parked: RunParked) -> Append | None:
        """The append that parks a run; None where nothing can be appended to it."""
        try:
            batches: Sequence[Batch] = await self._store.journal.read(found.run_id)
        except StoreUnavailable:
            raise
        except Exception:
            batches = ()
        if batches:
            try:
                return extend(fold(found.run_id, batches), [parked], self._clock.now())
            except BaseException as error:
                contained(error)  # Ctrl-C; what cannot be folded may be what is wrong
        # Its row and its head are enough.
        head = await self._store.journal.head(found.run_id)
        if head is None:
            return None
        batch = Batch(head.next_seq, self._clock.now(), [parked])
        row = msgspec.structs.replace(found, status=RunStatus.PARKED, wake_at=None, reason=parked.reason)
        return Append(found.run_id, head.next_seq, [batch], row)

    async def _append(self, append: Append) -> bool | None:
        """Whether an append was accepted; None if the store is out of reach.

        One bad deploy parks many runs: those of one moment share a commit.
        """
        taken: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((append, taken))
        if len(self._waiting) == 1:
            # Let those that were loaded together come together.
            await asyncio.sleep(0)
            waiting, self._waiting = self._waiting, []
            done: Sequence[Outcome] = ()
            try:
                done = await append_all(self._store.journal, [one for one, _ in waiting])
            except StoreUnavailable as error:
                log.warning("%s; %d runs could not be parked yet; retrying", error, len(waiting))
            finally:
                for (_, other), outcome in zip_longest(waiting, done):
                    if not other.done():
                        other.set_result(None if outcome is None else isinstance(outcome, Appended))
        written = await taken
        if written:
            if self._probes:
                self._probes.tell(Probe.appended, append)
            await self._turns.end(append.run_id)
        elif written is False:
            self._turns.lose(append.run_id)
        return written


def _where(error: Exception) -> str:
    """The place in the code that raised."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return ""
    return f" ({os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno})"
