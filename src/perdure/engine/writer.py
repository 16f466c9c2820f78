"""Group commit: everything that is ready goes into one commit. Decides nothing about runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from perdure.engine.large_values import FIRST_RETRY, LAST_RETRY
from perdure.engine.lease_deadline import LeaseDeadline
from perdure.engine.probe import Probe, Probes
from perdure.errors import StoreUnavailable
from perdure.kernel.values.raised import contained
from perdure.logs import log
from perdure.ports.journal import Append, Appended, Conflict, Full, Journal, Outcome, PendingOutcomes


class Source(Protocol):
    """A source of appends: a driver."""

    run_id: str

    def next_append(self) -> Append | None: ...

    def meanwhile(self) -> None: ...

    def committed(self) -> None: ...


class Writer:
    """Collects appends of one tick of the loop and commits them together, one commit at a time."""

    def __init__(
        self,
        journal: Journal,
        on_conflict: Callable[[Source, Conflict | Full], None],
        on_refused: Callable[[Source, Exception], bool],
        on_broken: Callable[[Source, Exception], None],
        deadline: LeaseDeadline,
        probes: Probes | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._journal = journal
        self._on_conflict = on_conflict
        self._on_refused = on_refused
        # Called when a source raises: it is dropped, and the other sources continue.
        self._on_broken = on_broken
        self._deadline = deadline
        self._probes = Probes() if probes is None else probes
        # For the probes: when the pending commit began, and what is in it.
        self._began = 0.0
        self._pending: Sequence[Append] = ()
        self._dirty: dict[Source, None] = {}
        self._alone: deque[Source] = deque()
        self._scheduled: asyncio.Handle | None = None
        self._busy = False
        # Whether what is touched is written at `resume`.
        self.held = False
        self._retry = FIRST_RETRY
        self._drained: list[asyncio.Future[None]] = []

    def touch(self, source: Source) -> None:
        """Queue a source whose events are to be written."""
        self._dirty[source] = None
        if self._scheduled is None and not self._busy and not self.held:
            self._scheduled = self._loop.call_soon(self._flush)

    def hold(self) -> None:
        """Let `resume`, at the end of this callback, decide when to write."""
        self.held = True

    def resume(self, *, now: bool) -> None:
        """Write in the next turn of the loop, or at once. Must be the last call in a callback."""
        self.held = False
        if not self._dirty or self._busy:
            return
        if not now:
            if self._scheduled is None:
                self._scheduled = self._loop.call_soon(self._flush)
            return
        if self._scheduled is not None:
            self._scheduled.cancel()
        self._flush()

    async def drained(self) -> None:
        """Wait until nothing is left to write."""
        if self._dirty or self._alone or self._busy or self._scheduled is not None:
            self._drained.append(self._loop.create_future())
            await self._drained[-1]

    def _flush(self) -> None:
        self._scheduled = None
        if self._alone:
            dirty: dict[Source, None] = {self._alone.popleft(): None}
        else:
            dirty, self._dirty = self._dirty, {}
        try:
            self._deadline.enforce()  # evicts every run if it has passed: then none of them has anything to write
        except BaseException as error:
            contained(error)
            log.exception("runs could not be stopped at the end of the lease; writing continues")
        sources: list[Source] = []
        appends: list[Append] = []
        for source in dirty:
            try:
                append = source.next_append()
            except BaseException as error:
                self._on_broken(source, contained(error))
                continue
            if append is not None:
                sources.append(source)
                appends.append(append)
        if not appends:
            self._next()
            return
        self._busy = True
        if self._probes:
            self._began, self._pending = self._loop.time(), appends
            self._probes.tell(Probe.writes, len(appends))
        try:
            outcomes = self._journal.append(appends)
        except BaseException as error:
            self._refused(sources, contained(error))
            return
        if isinstance(outcomes, PendingOutcomes):
            outcomes.on_result(lambda result: self._resolved(sources, result))
            for source in sources:
                try:
                    source.meanwhile()
                except BaseException as error:
                    self._on_broken(source, contained(error))
        elif isinstance(outcomes, list) or not isinstance(outcomes, Awaitable):
            self._handle(sources, outcomes)
        else:
            future = asyncio.ensure_future(outcomes)
            future.add_done_callback(lambda done: self._answered(sources, done))

    def _resolved(self, sources: list[Source], said: Sequence[Outcome] | Exception) -> None:
        if isinstance(said, Exception):
            self._refused(sources, said)
        else:
            self._handle(sources, said)

    def _answered(self, sources: list[Source], done: asyncio.Future[Sequence[Outcome]]) -> None:
        error = done.exception() if not done.cancelled() else StoreUnavailable("the store", "the write was cancelled")
        if error is not None and not isinstance(error, Exception):
            error = StoreUnavailable("the store", f"the write ended with {type(error).__name__}")
        self._resolved(sources, error or done.result())

    def _handle(self, sources: list[Source], outcomes: Sequence[Outcome]) -> None:
        self._busy = False
        self._retry = FIRST_RETRY
        if self._pending:
            self._tell_written()
        for source, outcome in zip(sources, outcomes, strict=False):
            try:
                if type(outcome) is Appended:
                    source.committed()
                else:
                    assert isinstance(outcome, Conflict | Full)
                    self._on_conflict(source, outcome)
            except BaseException as error:
                self._on_broken(source, contained(error))
        for source in sources[len(outcomes) :]:
            self._on_broken(source, IndexError("the store gave no outcome for what was appended"))
        if self._dirty or self._alone or self._drained:
            self._next()

    def _tell_written(self) -> None:
        pending, self._pending = self._pending, ()
        events = sum(len(batch.events) for append in pending for batch in append.batches)
        self._probes.tell(Probe.wrote, self._loop.time() - self._began, events, len(pending))

    def _refused(self, sources: list[Source], error: Exception) -> None:
        """Nothing was written. New runs are refused; the other sources keep their appends and retry."""
        self._busy = False
        if self._pending:
            self._pending = ()
            self._probes.tell(Probe.not_written)
        if not isinstance(error, StoreUnavailable) and len(sources) > 1:
            # One of them cannot be written, and must not block the others: find out which.
            self._alone.extend(sources)
            self._next()
            return
        for source in sources:
            try:
                if self._on_refused(source, error):
                    self._dirty[source] = None
            except BaseException as broken:
                self._on_broken(source, contained(broken))
        if not self._dirty:
            self._next()
            return
        if self._retry == FIRST_RETRY:
            log.warning("%s; open runs wait, and continue when the store is available", error)
        self._busy = True
        self._loop.call_later(self._retry, self._try_again)
        self._retry = min(self._retry * 2, LAST_RETRY)

    def _try_again(self) -> None:
        self._busy = False
        self._next()

    def _next(self) -> None:
        if self._dirty or self._alone:
            if self._scheduled is None:
                self._scheduled = self._loop.call_soon(self._flush)
        elif self._drained:
            for waiter in self._drained:
                if not waiter.done():
                    waiter.set_result(None)
            self._drained.clear()
