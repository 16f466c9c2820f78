"""Chunks and progress that attempts emit before their outcome. Decides when they are recorded.

An attempt writes into its channel from any thread. The run's driver records the contents like every other fact, in
callbacks of the loop, and readers see them once they are durable. While an append of the run is pending, the channel
collects: everything goes into the next append together. An attempt that is faster than the store has to wait, if it
can: a generator on the loop can, and so can code in a thread.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any, get_args

from msgspec import Raw

from perdure.errors import HistoryTooLarge, PayloadTooLarge, StepCancelled
from perdure.kernel.events import ChunkAppended, StepProgressed
from perdure.kernel.values.raised import contained

if TYPE_CHECKING:
    from perdure.engine.step_context import AttemptOwner, StepContext
    from perdure.kernel.plan import Call

# How much of a stream may be unwritten before its step has to wait.
MOST_CHUNKS = 1024
MOST_BYTES = 1024 * 1024
# Progress is recorded about so often; the latest wins.
PROGRESS_SECONDS = 1.0
# A generator that never waits for anything yields to other tasks this often.
TURN_SECONDS = 0.005

Report = ChunkAppended | StepProgressed


class Channel:
    """The chunks and progress of one attempt."""

    def __init__(self, owner: AttemptOwner, context: StepContext, call: Call) -> None:
        self._owner, self._services, self._call = owner, owner.services, call
        # A weak reference: the context owns its channel.
        self._context = weakref.ref(context)
        self._op = call.command.op
        self._mode = call.command.spec.stream or owner.services.stream
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waiting: list[asyncio.Future[None]] = []
        # As of the launch: the run may have cancelled the step since, and replay may undo that.
        emitted = context.emitted
        # Valid chunks of earlier attempts, until this attempt continues from them or restarts.
        self._before: list[Raw] = list(emitted.chunks) if emitted is not None else []
        self._looked = not self._before
        self._next = emitted.count if emitted is not None else 0
        self._valid = len(self._before)
        self.last_progress = emitted.progress if emitted is not None else None
        # `_own`: valid chunks of this attempt. `_pending`: not recorded yet. `_sent`: recorded, not durable yet.
        self._own: list[Raw] = []
        self._pending: list[Raw] = []
        self._mark = False
        self._sent: list[tuple[int, Report]] = []
        self._unsaved = self._bytes = 0
        self._progress: Raw | None = None
        self._progress_at = -PROGRESS_SECONDS
        self._scheduled = self._due = self._settled = self._cancelled = False
        self._timer: asyncio.TimerHandle | None = None
        self._flush_at = 0.0
        # Whether `_sent` went to an earlier driver, whose numbers this one does not know.
        self.handed_over = False

    # --- for the step, in any thread ------------------------------------------------------------------------------

    def emit(self, value: Any) -> None:
        """Emit a chunk. In a thread, wait while too much is unwritten."""
        services, op = self._services, self._op
        data = self._encoded(value, f"a chunk of {op}")
        limits = services.payloads.limits
        if len(data) > limits.payload:
            raise PayloadTooLarge(f"a chunk of {op}", len(data), limits.payload)
        mode = self._mode
        now = self.beat()
        with self._lock:
            self._check_open()
            if not self._looked:
                self._begin_again()
            driver = self._owner
            size = driver.size + self._bytes + len(data)
            if size > limits.history:
                raise HistoryTooLarge(driver.id, size, limits.history)
            chunk = Raw(data)
            if not self._pending:
                self._flush_at = now + mode.seconds
            self._pending.append(chunk)
            self._own.append(chunk)
            self._unsaved += 1
            self._bytes += len(data)
            if self.full or 0 < mode.count <= len(self._pending):
                self._due = True
            if mode.count and not self._scheduled and (self._due or len(self._pending) == 1):
                self._schedule()
            if self.full and threading.get_ident() != services.thread:
                while self.full and not self._closed:
                    self._room.wait()
                self._check_open()

    def restart(self) -> None:
        """Declare earlier chunks void."""
        with self._lock:
            self._check_open()
            self._begin_again()
            if self._mark and self._mode.count:
                self._due = True
                self._schedule()

    def chunks(self) -> list[Any]:
        """The valid chunks of earlier attempts; an attempt that reads them continues from there."""
        with self._lock:
            self._looked = True
            before = list(self._before)
        return self._decoded(before)

    def result(self) -> list[Any]:
        """All valid chunks, for a step that is a generator."""
        with self._lock:
            if not self._looked:
                self._begin_again()
            valid = self._before + self._own
        return self._decoded(valid)

    def beat(self) -> float:
        """Record a heartbeat, and return its time on the loop's clock."""
        now = self._services.loop.time()
        if (context := self._context()) is not None:
            context.last_heartbeat = now
        return now

    def progress(self, value: Any) -> None:
        """Report progress."""
        data = self._encoded(value, f"the progress of {self._op}")
        if len(data) > self._services.payloads.limits.blob:
            raise PayloadTooLarge(f"the progress of {self._op}", len(data), self._services.payloads.limits.blob)
        with self._lock:
            if self._closed:
                return  # the attempt was cancelled, or has ended
            first, self._progress = self._progress is None, Raw(data)
            self.last_progress = self._progress
            if first and not self._scheduled:
                self._schedule()

    def _encoded(self, value: Any, what: str) -> bytes:
        data = self._services.codec.encode(value, what)
        return self._services.runner.secrets.mask(data) if self._call.command.spec.secrets else data

    @property
    def full(self) -> bool:
        """Whether too much is unwritten. Chunks that wait for the step's end are bounded by the journal's limit."""
        if not self._mode.count:
            return False
        return self._unsaved >= MOST_CHUNKS or self._bytes >= MOST_BYTES

    async def room(self) -> None:
        """Wait on the loop until some of it is written."""
        with self._lock:
            if not self.full or self._closed:
                return
            waiter: asyncio.Future[None] = self._services.loop.create_future()
            self._waiting.append(waiter)
        await waiter

    def cancel(self) -> None:
        """The outcome of the attempt no longer counts."""
        with self._lock:
            self._cancelled = True
            self._wake()

    @property
    def _closed(self) -> bool:
        return self._cancelled or self._settled

    def _check_open(self) -> None:
        if self._closed:
            raise StepCancelled(self._op, "this attempt no longer counts")

    def _begin_again(self) -> None:
        # Unrecorded chunks were never visible, and need no restart.
        self._bytes -= sum(map(len, self._pending))
        self._unsaved -= len(self._pending)
        self._pending.clear()
        self._own.clear()
        self._before.clear()
        self._looked = True
        self._mark |= self._valid > 0

    def _decoded(self, chunks: list[Raw]) -> list[Any]:
        spec = self._call.command.spec
        of = get_args(spec.returns)[0] if spec.generator and get_args(spec.returns) else Any
        data = b"[" + b",".join(map(bytes, chunks)) + b"]"
        found: list[Any] = self._services.codec.decode(data, list[of], f"the chunks of {self._op}")  # type: ignore[valid-type]
        return found

    # --- on the loop ----------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        self._scheduled = True
        loop = self._services.loop
        if threading.get_ident() == self._services.thread:
            loop.call_soon(self.record_due)
            return
        try:
            loop.call_soon_threadsafe(self.record_due)
        except RuntimeError:  # the loop is closed: the engine is gone
            self._cancelled = True

    def record_due(self) -> None:
        """Record what is due, and schedule the rest."""
        with self._lock:
            self._scheduled = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        driver = self._owner
        try:
            if self.handed_over or not driver.accepts_reports(self._call):
                return  # called again when the append is durable, the run has caught up, or another driver took over
            self._record(self._due_events(everything=False))
            self._set_timer()
        except BaseException as error:
            driver.broke(contained(error))

    def _set_timer(self) -> None:
        moments = []
        with self._lock:
            if self._pending and self._mode.count:
                moments.append(self._flush_at)
            if self._progress is not None:
                moments.append(self._progress_at + PROGRESS_SECONDS)
            if moments and self._timer is None and not self._closed:
                self._timer = self._services.loop.call_at(min(moments), self.record_due)

    def _due_events(self, everything: bool) -> list[Report]:
        """The events to record now."""
        # A timer may fire slightly early.
        now = self._services.loop.time() + 0.001
        events: list[Report] = []
        op, attempt = self._op, self._call.attempt
        with self._lock:
            by_time = bool(self._mode.count) and now >= self._flush_at
            if (self._due or by_time or everything) and (self._pending or self._mark):
                chunk = ChunkAppended(op, attempt, self._next, tuple(self._pending), self._mark)
                self._valid = len(self._pending) + (0 if self._mark else self._valid)
                self._next = chunk.end
                self._pending.clear()
                self._mark = False
                events.append(chunk)
            self._due = False
            if self._progress is not None and (everything or now >= self._progress_at + PROGRESS_SECONDS):
                events.append(StepProgressed(op, attempt, self._progress))
                self._progress, self._progress_at = None, now
        return events

    def _record(self, events: list[Report]) -> None:
        if events:
            size = sum(_size(event) for event in events)
            next_seq = self._owner.report(events, size)
            with self._lock:
                self._sent += [(next_seq, event) for event in events]

    def flush(self) -> None:
        """Record everything that is pending."""
        self._due |= self._mode.count > 0
        self._progress_at = -PROGRESS_SECONDS
        if not self.handed_over and self._owner.expects(self._call):
            self._record(self._due_events(everything=False))

    def finish(self, succeeded: bool) -> None:
        """The attempt has ended: record what is left, before its outcome."""
        if self._settled:
            return
        with self._lock:
            self._settled = True
            if not succeeded and not self._mode.count:
                self._begin_again()
                self._mark = False
            if self._timer is not None:
                self._timer.cancel()
            self._wake()
        self._record(self._due_events(everything=True))

    def hand_over(self, owner: AttemptOwner) -> None:
        """Another driver takes over: hold back until it has the attempt."""
        self._owner = owner
        self.handed_over = True

    def record_again(self) -> None:
        """The attempt continues under another driver, which records again what is not in its journal."""
        with self._lock:
            sent, self._sent = self._sent, []
            self.handed_over = False
        open_op = self._owner.state.ops.get(self._op)
        count = open_op.emitted.count if open_op is not None and open_op.emitted is not None else 0
        lost: list[Report] = []
        with self._lock:
            for _, event in sent:
                if isinstance(event, ChunkAppended) and event.start < count:
                    self._saved(event)
                else:
                    lost.append(event)
        self._record(lost)
        if self._pending or self._progress is not None or self._mark:
            self._due = True
            self._services.loop.call_soon(self.record_due)

    def committed(self, next_seq: int) -> None:
        """The journal is durable up to this number."""
        if self.handed_over:
            return
        with self._lock:
            while self._sent and self._sent[0][0] <= next_seq:
                self._saved(self._sent.pop(0)[1])
            if not self.full:
                self._wake()
            more = not self._closed and (self._mark or bool(self._pending) or self._progress is not None)
        if more:
            # Everything that came during the last append goes into one.
            self.record_due()

    @property
    def empty(self) -> bool:
        """Whether the stream has ended, and everything is in the store."""
        return self._closed and not self._sent

    def _saved(self, event: Report) -> None:
        if isinstance(event, ChunkAppended):
            self._unsaved -= len(event.chunks)
            self._bytes -= _size(event)

    def _wake(self) -> None:
        self._room.notify_all()
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)


def _size(event: Report) -> int:
    return sum(map(len, event.chunks)) if isinstance(event, ChunkAppended) else len(event.progress)


# --- steps that are generators --------------------------------------------------------------------------------------


async def drain(
    fn: Callable[..., AsyncGenerator[Any, Any]], args: list[Any], kwargs: dict[str, Any], context: StepContext
) -> list[Any]:
    """Run an async generator to its end, emit each value, and return all valid chunks."""
    channel = context.channel()
    loop = asyncio.get_running_loop()
    turn = loop.time()
    async with aclosing(fn(*args, **kwargs)) as items:
        async for item in items:
            channel.emit(item)
            if channel.full:
                await channel.room()
            elif loop.time() - turn > TURN_SECONDS:
                await asyncio.sleep(0)
            else:
                continue
            turn = loop.time()
    return channel.result()


def drain_in_thread(
    fn: Callable[..., Generator[Any, Any, Any]], args: list[Any], kwargs: dict[str, Any], context: StepContext
) -> list[Any]:
    """As `drain`, for a plain generator in a thread."""
    channel = context.channel()
    with closing(fn(*args, **kwargs)) as items:
        for item in items:
            channel.emit(item)
    return channel.result()
