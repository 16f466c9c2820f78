"""A run as the fold of its journal: what has happened, never what happens next.

Theory of operation
===================

A RunState sees every event of one journal, in order, and nothing else: no clock, no store, no program. The same events
give the same state in every process, so an owner that has died leaves nothing behind that its successor could miss.
Each event has a method here (`_FOLD`); what a journal means is what these methods do.

Four machines are folded side by side.

1. **The run.** `status` is derived, in this order of precedence: finished, parked, paused, queued, running, waiting.

        RunStarted
            |
            v       RunClaimed, epoch 1            nothing is under way
         queued ---------------------------> running <----------------> waiting
            |                                   |   an outcome, a signal   |
            +-----------------+-----------------+--------------------------+
                              |
                              +-- RunPaused ----> paused -- RunResumed, CancelRequested --> as before
                              +-- RunParked ----> parked -- RunResumed -------------------> as before
                              +-- RunFinished --> completed, failed, cancelled or bailed: final

   A pause and a parking are kept apart (`paused`, `parked`): a run may be both. `advancing` decides between running and
   waiting: a step runs or is held back by a concurrency limit (`running`, `held`), a lock is held or waited for, or the
   body is between two ops.

2. **The owner.** RunClaimed sets `owner`, `epoch` and `session`, in any status; RunReleased clears the owner. The epoch
   grows with every claim and fences the previous owner. Epoch 0: the run has not begun.

3. **Each open op** (`ops`), until it has an outcome; then it is forgotten, for the program has had it.

        StepStarted --> running --AttemptFailed--> backing off (`due`) --StepStarted--> running
                           +-- StepSucceeded, StepFailed, StepSkipped --> closed
        WaitOpened ---> open, perhaps until `due` --WaitResolved--> closed
        ChildStarted -> open, perhaps until `due` --ChildFinished-> closed, with every op inside it

   A step that another process executes (kind `remote`) is open and not running here.

4. **Messages.** SignalReceived goes into `inbox`, WaitOpened into `waits`; WaitResolved takes the oldest of both.

What couples them:

- `has_external_event`: a client, or the process that executes a remote step, has appended something that the owner has
  not answered; the owner's next event clears it. While it is set the run is due at once (`wake_at`), so that an
  orchestrator loads it.
- `wake_at`: when an orchestrator must look at the run even if nothing else happens: its deadline, the earliest `due` of
  an open op, or now.
- `changed`: the children whose rows are out of date. The writer of the rows clears it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw

from perdure.kernel.events import (
    FROM_OUTSIDE,
    NULL,
    AnyEvent,
    AttemptFailed,
    Batch,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    ChunkAppended,
    InputReplaced,
    OutcomeKept,
    RunClaimed,
    RunFinished,
    RunForked,
    RunParked,
    RunPaused,
    RunReleased,
    RunResumed,
    RunStarted,
    RunStatus,
    SignalReceived,
    SnapshotTaken,
    StateSet,
    StepFailed,
    StepProgressed,
    StepsHeld,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.history.kept_outcomes import KeptOutcomes
from perdure.kernel.ids import SignalKey, address, enclosing
from perdure.kernel.policies.lock_keys import HeldLock, unlocked
from perdure.kernel.values.failures import Failure

# Kinds of parking: the run was imported from another store, whole or with values redacted; or it crashed its
# orchestrators.
IMPORTED, REDACTED = "imported", "redacted"
POISONED = "poisoned"


class Emitted:
    """The chunks that the attempts of a step have emitted before its outcome."""

    __slots__ = ("chunks", "count", "progress")

    def __init__(self) -> None:
        # The valid chunks, and how many numbers chunks and restarts have used.
        self.chunks: list[Raw] = []
        self.count = 0
        self.progress: Raw | None = None

    def copy(self) -> Emitted:
        """A copy."""
        copied = Emitted()
        copied.chunks, copied.count, copied.progress = list(self.chunks), self.count, self.progress
        return copied


class OpenOp(msgspec.Struct, eq=False, gc=False):
    """An op that has begun and has no outcome yet."""

    kind: str
    source: str
    attempt: int = 0
    failures: int = 0
    # The error of the last attempt, and the limit of attempts, if recorded.
    error: Failure | None = None
    allowed: int = 0
    # The failure of the last own attempt, once only the fallback is left.
    failed: Failure | None = None
    running: bool = False
    due: float | None = None
    name: str = ""
    emitted: Emitted | None = None
    # For an approval, and a signal of a given type: the WaitOpened, and its time.
    opened: WaitOpened | None = None
    opened_at: float = 0.0
    # For a wait: the session of the process that opened it.
    session: str = ""
    # In an engine that has the run: how its code decodes what this wait gets. If the code has another type than the
    # journal, `opened` has the schema of the code's type, and `recorded` that of the journal.
    reads: Callable[[Raw], Any] | None = None
    recorded: Raw | None = None
    # How many of its events a snapshot leaves out once it has ended.
    spent: int = 0


class Child:
    """An open child in this journal."""

    __slots__ = (
        "created_at",
        "finished",
        "finished_at",
        "incarnation",
        "ops",
        "parent",
        "path",
        "running",
        "started",
        "waiting",
    )

    def __init__(self, started: ChildStarted, parent: str, incarnation: int, at: float) -> None:
        self.path, self.started, self.incarnation, self.created_at = started.op, started, incarnation, at
        # The op path of its parent; empty: the root.
        self.parent = parent
        # The open ops in it, in order; those of the children in it are theirs.
        self.ops: dict[str, None] = {}
        self.finished: ChildFinished | None = None
        self.finished_at: float | None = None
        # How many ops in it, and in the children in it, are under way, and how many wait for something. A lock counts
        # as under way from its request to its release, because the owner has to acquire and renew it.
        self.running = self.waiting = 0

    @property
    def waits(self) -> bool:
        """Whether it is idle until something arrives or is due."""
        return self.waiting > 0 and not self.running

    @property
    def listed(self) -> bool:
        """Whether it has a row. An item of a map has none, nor has what runs in one: there may be 100,000 of them."""
        return "]" not in self.path


class RunState:
    """The state of a run. Ops with an outcome are dropped: the program has received it."""

    __slots__ = (
        "_alarms",
        "_due",
        "answers",
        "approvals",
        "at",
        "began_at",
        "cancel_requested",
        "changed",
        "child_ids",
        "child_values",
        "children",
        "code",
        "counted_from",
        "created_at",
        "ended",
        "epoch",
        "finished",
        "finished_at",
        "freed",
        "has_external_event",
        "held",
        "inbox",
        "inherited",
        "kept",
        "lock_waits",
        "locks",
        "next_seq",
        "ops",
        "owner",
        "parked",
        "paused",
        "row_moved",
        "run_id",
        "running",
        "session",
        "signal_ids",
        "snapshot",
        "spent",
        "started",
        "steps",
        "uses_locks",
        "values",
        "waits",
    )

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.next_seq = 0
        self.at = 0.0
        self.started: RunStarted | None = None
        self.created_at = 0.0
        self.began_at: float | None = None
        self.owner: str | None = None
        self.epoch = 0
        self.session = ""
        # The id of the source, or of the structure, that its owner executes it with.
        self.code = ""
        self.ops: dict[str, OpenOp] = {}
        self.running = 0
        # How many commands are held back (StepsHeld), at least: the run is not only waiting.
        self.held = 0
        # The number of the claim since which every owner counts them; -1 if this one does not.
        self.counted_from = -1
        self.steps = 0
        self.parked: RunParked | None = None
        self.paused: RunPaused | None = None
        self.cancel_requested: CancelRequested | None = None
        # Children that have not ended, by op path; those whose rows are out of date; how often an id was given; how
        # those ended that did not complete.
        self.children: dict[str, Child] = {}
        self.changed: dict[str, Child] = {}
        self.child_ids: dict[str, int] = {}
        self.ended: dict[str, RunStatus] = {}
        self.child_values: dict[str, dict[str, Raw]] = {}
        # Unconsumed signals, and waits without a signal, by `address` and in order.
        self.inbox: dict[str, deque[SignalReceived]] = {}
        self.waits: dict[str, deque[str]] = {}
        # How many of the signals were there before the process that has the run claimed it, by `address`.
        self.inherited: dict[str, int] = {}
        self.signal_ids: dict[SignalKey, None] = {}
        self.answers: dict[str, str] = {}
        self.approvals = 0
        # Locks that the run holds and waits for, by the op that acquires them, in order.
        self.locks: dict[str, HeldLock] = {}
        self.lock_waits: dict[str, HeldLock] = {}
        self.uses_locks = False
        # By key: the op that released a lock last, and the epoch of its owner, which may have died before it did so.
        self.freed: dict[str, tuple[str, int]] | None = None
        # Whether a client has appended an event that the owner has not processed yet.
        self.has_external_event = False
        self.values: dict[str, Raw] = {}
        # For a retried run: kept outcomes that the program has not asked for again.
        self.kept: KeptOutcomes | None = None
        self.finished: RunFinished | None = None
        self.finished_at: float | None = None
        # Whether the row of the run may have changed since its writer cleared this, by more than by steps that began or
        # succeeded while others were under way.
        self.row_moved = True
        # How many events the next snapshot would drop, and where the last one was taken.
        self.spent = 0
        self.snapshot = 0
        # The times at which something is due, by op; and as a heap, in which some are out of date.
        self._due: dict[str, float] = {}
        self._alarms: list[tuple[float, str]] = []

    def fold(self, event: AnyEvent, at: float) -> None:
        """Fold one event."""
        self.next_seq += 1
        self.at = at
        kind = type(event)
        if self.has_external_event or kind not in _QUIET:
            self.row_moved = True
            if self.has_external_event and kind not in FROM_OUTSIDE:
                # An early claim precedes reading the journal, and a release processes nothing.
                self.has_external_event = kind is RunReleased or (kind is RunClaimed and event.early)  # type: ignore[union-attr]
        _FOLD[kind](self, event, at)

    def fold_batches(self, batches: Iterable[Batch]) -> None:
        """Fold whole batches."""
        for batch in batches:
            # Not always the next number: a snapshot drops events.
            self.next_seq = batch.seq
            for event in batch.events:
                self.fold(event, batch.at)

    @property
    def keys(self) -> str:
        """The run_id in the idempotency keys of its steps."""
        return (self.started.keys if self.started is not None else "") or self.run_id

    @property
    def status(self) -> RunStatus:
        """The status of the run."""
        if self.finished is not None:
            return self.finished.status
        if self.parked is not None:
            return RunStatus.PARKED
        if self.paused is not None:
            return RunStatus.PAUSED
        if self.epoch == 0:
            return RunStatus.QUEUED
        return RunStatus.RUNNING if self.advancing else RunStatus.WAITING

    @property
    def advancing(self) -> bool:
        """Whether the run needs its owner now, not only when something arrives or is due."""
        # No open op but children: a body is between two ops, and the owner is about to record the next. A lock must be
        # acquired and renewed also while the run waits for something else.
        return bool(self.running or self.held or len(self.ops) == len(self.children) or self.locks or self.lock_waits)

    @property
    def imported(self) -> bool:
        """Whether the run was imported, and has not been resumed."""
        return self.parked is not None and self.parked.kind in (IMPORTED, REDACTED)

    def child_of(self, op: str) -> str:
        """The op path of the child that this op belongs to; empty for the root."""
        return enclosing(op, self.children) if self.children else ""

    def deadline_of(self, op: str) -> float | None:
        """The deadline of an op: that of the run, or of a child around it."""
        assert self.started is not None
        found = [self.started.deadline]
        while op := self.child_of(op):
            found.append(self.ops[op].due)
        return min((deadline for deadline in found if deadline is not None), default=None)

    @property
    def wake_at(self) -> float | None:
        """When the run is due even if no event arrives."""
        if self.finished is not None:
            return None
        assert self.started is not None
        deadline = self.started.deadline
        if self.parked is not None:
            return None if self.imported else deadline
        if self.epoch == 0:
            # A queued run is started by admission.
            if self.paused is not None or self.started.queue:
                return deadline
            begins = self.started.not_before or self.created_at
            return begins if deadline is None else min(begins, deadline)
        if self.has_external_event:
            return self.at
        if self.paused is not None:
            # Paused: only the deadline counts.
            ends = [at for op in self.children if (at := self._due.get(op)) is not None]
            return min(ends if deadline is None else [deadline, *ends], default=None)
        if self.owner is None and self.advancing:
            return self.at
        if not self._due:
            return deadline
        alarms = self._alarms
        while self._due.get(alarms[0][1]) != alarms[0][0]:
            heappop(alarms)
        earliest = alarms[0][0]
        return earliest if deadline is None else min(earliest, deadline)

    def snapshot_due(self, every: int) -> bool:
        """Whether a snapshot would save the next load enough, or the last one is about to be too old; 0: never."""
        if not every:
            return False
        return self.spent >= every or bool(self.snapshot and self.next_seq > self.snapshot + 2 * every)

    def due(self, now: float) -> list[str]:
        """The ops that are due, earliest first."""
        found: dict[str, float] = {}
        while self._alarms and self._alarms[0][0] <= now:
            at, op = heappop(self._alarms)
            if self._due.get(op) == at:
                found[op] = at
        for op, at in found.items():
            heappush(self._alarms, (at, op))
        return list(found)

    def open_within(self, path: str) -> list[str]:
        """The open ops in a child and in the children in it, the innermost first."""
        found: list[str] = []
        around = [path]
        for child in around:
            ops = self.children[child].ops
            found += ops
            around += [op for op in ops if op in self.children]
        return sorted(found, key=lambda op: -op.count("/"))

    def _set_due(self, op: str, at: float) -> None:
        self.row_moved = True
        self._due[op] = at
        heappush(self._alarms, (at, op))
        if len(self._alarms) > 64 + 2 * len(self._due):
            self._alarms = [(at, op) for op, at in self._due.items()]
            heapify(self._alarms)

    def _clear_due(self, op: str) -> None:
        self.row_moved = True
        self._due.pop(op, None)

    def _run_started(self, event: RunStarted, at: float) -> None:
        self.started = event
        self.code = event.structure
        self.signal_ids.update((SignalKey("", id), None) for id in event.seen)
        self.created_at = at

    def _input_replaced(self, event: InputReplaced, at: float) -> None:
        assert self.started is not None
        self.started = event.of(self.started)

    def _run_claimed(self, event: RunClaimed, at: float) -> None:
        if self.inbox and event.session != self.session:
            self.inherited = {name: len(signals) for name, signals in self.inbox.items() if signals}
        self.owner, self.epoch, self.session = event.owner, event.epoch, event.session
        self._pin(event.version)
        if not event.counts:
            self.counted_from = -1
        elif self.counted_from < 0:
            self.counted_from = self.next_seq
        if event.code:
            self.code = event.code
        if event.epoch == 1:
            self.began_at = at
        self.spent += event.epoch > 1

    def _run_released(self, event: RunReleased, at: float) -> None:
        self.owner = None

    def _step_started(self, event: StepStarted, at: float) -> None:
        op = self.ops.get(event.op)
        if op is None:
            op = self.ops[event.op] = OpenOp("remote" if event.queue else "step", event.source)
            op.name = event.queue
            if self.children and event.queue:
                self._moved(event.op, 0, 1)
        if self.held and self.counted_from < 0:
            self.held = 0
        elif self.held and event.attempt == 1 and not event.queue:
            self.held -= 1
        if self.kept is not None and event.attempt == 1:
            self.kept.consume(event)
        if not op.running and op.kind == "step":
            op.running = True
            self.running += 1
            if self.children:
                # A retry: the op was waiting for this attempt.
                self._moved(event.op, 1, -1 if op.failures else 0)
        op.attempt = event.attempt
        op.spent += event.attempt > 1
        if op.due is not None:
            op.due = None
            self._clear_due(event.op)

    def _steps_held(self, event: StepsHeld, at: float) -> None:
        self.held = event.count

    def _step_ended(self, event: StepSucceeded | StepFailed | StepSkipped, at: float) -> None:
        op = self.ops.pop(event.op, None)
        if op is None:
            return
        self.steps += 1
        self.spent += op.spent
        # A remote step is reported by the process that executed it; its cancellation is the owner's own event.
        if op.kind == "remote" and not getattr(event, "cancelled", False):
            self.has_external_event = self.row_moved = True
        if self.children:
            self._moved(event.op, *((-1, 0) if op.running else (0, -1)))
        if op.running:
            self.running -= 1
        if op.due is not None:
            self._clear_due(event.op)

    def _attempt_failed(self, event: AttemptFailed, at: float) -> None:
        op = self.ops[event.op]
        op.failures += 1
        op.spent += 1
        op.error, op.allowed = event.error, event.of
        if event.fallback:
            op.failed = event.error
        if op.running:
            op.running = False
            self.running -= 1
            if self.children:
                self._moved(event.op, -1, 1)
        op.due = event.retry_at
        self._set_due(event.op, event.retry_at)

    def _wait_opened(self, event: WaitOpened, at: float) -> None:
        op = self.ops[event.op] = OpenOp(event.kind, event.source)
        op.name, op.due, op.session = event.name, event.deadline, self.session
        if self.kept is not None:
            self.kept.consume(event)
        if event.kind == "signal":
            op.name = address(self.child_of(event.op), event.name)
            self.waits.setdefault(op.name, deque()).append(event.op)
            if event.schema != NULL:
                op.opened, op.opened_at = event, at
        elif event.kind == "approval":
            op.opened, op.opened_at = event, at
            self.approvals += 1
        elif event.kind == "lock":
            self.uses_locks = True
            self.lock_waits[event.op] = HeldLock(event.name, event.ttl)
        if self.children:
            self._moved(event.op, *((1, 0) if event.kind == "lock" else (0, 1)))
        if event.deadline is not None:
            self._set_due(event.op, event.deadline)

    def _wait_resolved(self, event: WaitResolved, at: float) -> None:
        op = self.ops.pop(event.op, None)
        self._clear_due(event.op)
        if op is not None and op.kind == "approval":
            self.approvals -= 1
        if op is not None and op.kind == "signal":
            waits = self.waits[op.name]
            waits.remove(event.op)
            if not waits:
                del self.waits[op.name]
            if event.by == "signal":
                signals = self.inbox[op.name]
                signals.popleft()
                if not signals:
                    del self.inbox[op.name]
                if self.inherited.get(op.name):
                    self.inherited[op.name] -= 1
        if op is not None and op.kind == "lock":
            asked = self.lock_waits.pop(event.op)
            if event.by == "lock":
                self.locks[event.op] = HeldLock(asked.key, asked.ttl, msgspec.json.decode(event.value))
        if op is not None and self.children:
            # A lock that was acquired is under way until it is released.
            self._moved(event.op, *((-(event.by != "lock"), 0) if op.kind == "lock" else (0, -1)))
        if event.answer_id:
            self.answers[event.answer_id] = event.op
        self.has_external_event = event.is_answer or event.is_rejection

    def deliverable(self) -> Iterator[str]:
        """The waits with a received signal, in the order of the waits."""
        for name, signals in self.inbox.items():
            yield from islice(self.waits.get(name, ()), len(signals))

    @property
    def next_delivery(self) -> str | None:
        """The wait that gets a signal next; None if no signal can be delivered."""
        return next(self.deliverable(), None) if self.inbox else None

    def next_signal(self, op: str) -> SignalReceived | None:
        """The signal that an open wait would consume."""
        wait = self.ops.get(op)
        return self.inbox[wait.name][0] if wait is not None and wait.kind == "signal" else None

    def is_inherited(self, wait: OpenOp) -> bool:
        """Whether a wait for a signal, or the signal it would consume, is older than the process that has the run."""
        return wait.session != self.session or bool(self.inherited.get(wait.name))

    def _signal_received(self, event: SignalReceived, at: float) -> None:
        if event.signal_id:
            self.signal_ids[SignalKey(event.child, event.signal_id)] = None
        name = address(event.child, event.name)
        self.inbox.setdefault(name, deque()).append(event)
        # A signal without an open wait does not wake the run.
        if self.waits.get(name):
            self.has_external_event = True

    def _child_started(self, event: ChildStarted, at: float) -> None:
        if event.detached:
            if self.kept is not None:
                self.kept.consume(event)
            return
        incarnation = 1
        if event.id:
            incarnation = self.child_ids[event.id] = self.child_ids.get(event.id, 0) + 1
        parent = self.child_of(event.op)
        if parent:
            self.children[parent].ops[event.op] = None
        self.children[event.op] = self.changed[event.op] = Child(event, parent, incarnation, at)
        op = self.ops[event.op] = OpenOp("child", event.source)
        op.name, op.due = event.program, event.deadline
        if event.deadline is not None:
            self._set_due(event.op, event.deadline)

    def _child_finished(self, event: ChildFinished, at: float) -> None:
        self.ops.pop(event.op, None)
        self._clear_due(event.op)
        child = self.children.pop(event.op)
        child.finished, child.finished_at = event, at
        self.changed[event.op] = child
        if event.status is not RunStatus.COMPLETED:
            self.ended[event.op] = event.status
        if child.parent in self.children:
            self.children[child.parent].ops.pop(event.op, None)
        for op in [op for op in self.locks if op.startswith(f"{event.op}/")]:
            self._free(op, self.locks.pop(op))
            self._moved(op, -1, 0)

    def _free(self, op: str, lock: HeldLock) -> None:
        if self.freed is None:
            self.freed = {}
        self.freed[lock.key] = op, self.epoch

    def _moved(self, op: str, running: int, waiting: int) -> None:
        """Count what is under way and what waits in the children that an op is in; some begin or cease to wait.

        To be called whenever an op in a child has begun or ended.
        """
        path = self.child_of(op)
        if path:
            within = self.children[path].ops
            if op in self.ops:
                within[op] = None
            else:
                within.pop(op, None)
        while path:
            child = self.children[path]
            waited = child.waits
            child.running += running
            child.waiting += waiting
            if child.waits is not waited:
                self.changed[path] = child
            path = self.child_of(path)

    def _state_set(self, event: StateSet, at: float) -> None:
        child = self.child_of(event.op)
        values = self.child_values.setdefault(child, {}) if child else self.values
        values[event.key] = event.value

    def _chunk_appended(self, event: ChunkAppended, at: float) -> None:
        emitted = self._emitted(event.op)
        if event.restart:
            emitted.chunks.clear()
        emitted.chunks += event.chunks
        emitted.count = event.end

    def _step_progressed(self, event: StepProgressed, at: float) -> None:
        self._emitted(event.op).progress = event.progress

    def _emitted(self, op: str) -> Emitted:
        open_op = self.ops[op]
        open_op.spent += 1
        if open_op.emitted is None:
            open_op.emitted = Emitted()
        return open_op.emitted

    def _run_paused(self, event: RunPaused, at: float) -> None:
        self.paused = event
        self.changed.update(self.children)

    def _value_recorded(self, event: ValueRecorded, at: float) -> None:
        if event.kind == "unlock":
            op = unlocked(event.op)
            lock = self.locks.pop(op, None)
            if lock is not None:
                self._free(op, lock)
                if self.children:
                    self._moved(event.op, -1, 0)
        elif event.kind == "lock" and event.op in self.locks:
            token: int = msgspec.json.decode(event.value)
            self.locks[event.op] = msgspec.structs.replace(self.locks[event.op], token=token)

    def _cancel_requested(self, event: CancelRequested, at: float) -> None:
        if not event.child:
            self.cancel_requested = event
            if self.paused is not None:
                self.paused = None
                self.changed.update(self.children)
        # The cancellation of a child by its parent is recorded by the owner.
        self.has_external_event |= not event.given_up

    def _run_parked(self, event: RunParked, at: float) -> None:
        self.parked = event
        self.changed.update(self.children)

    def _snapshot_taken(self, event: SnapshotTaken, at: float) -> None:
        self.spent, self.snapshot = 0, self.next_seq - 1

    def _run_resumed(self, event: RunResumed, at: float) -> None:
        self.has_external_event = self.paused is not None or self.parked is not None
        if self.parked is not None or self.paused is not None:
            self.parked = self.paused = None
            self.changed.update(self.children)
        self._pin(event.version)

    def _pin(self, version: str) -> None:
        if version and self.started is not None:
            self.started = msgspec.structs.replace(self.started, version=version)

    def _run_forked(self, event: RunForked, at: float) -> None:
        self.created_at = at
        self.values.update(event.state or {})
        # Its first owner may have something to start, even if the run also waits.
        self.has_external_event = self.epoch > 0

    def _outcome_kept(self, event: OutcomeKept, at: float) -> None:
        if self.kept is None:
            self.kept = KeptOutcomes()
            self.kept.versioned = self.started is not None and bool(self.started.memo)
        self.kept.add(event)

    def _run_finished(self, event: RunFinished, at: float) -> None:
        self.finished = event
        self.finished_at = at
        self.has_external_event = False
        for path in list(self.children):
            self._child_finished(ChildFinished(path, RunStatus.CANCELLED, reason="the run it belongs to ended"), at)
        self.ops.clear()
        self.waits.clear()
        self._due.clear()
        self._alarms.clear()
        self.locks.clear()
        self.lock_waits.clear()
        self.running = self.approvals = self.held = 0


_FOLD: dict[type[Any], Callable[[RunState, Any, float], None]] = {
    RunStarted: RunState._run_started,
    InputReplaced: RunState._input_replaced,
    RunClaimed: RunState._run_claimed,
    RunReleased: RunState._run_released,
    StepStarted: RunState._step_started,
    StepsHeld: RunState._steps_held,
    StepSucceeded: RunState._step_ended,
    StepFailed: RunState._step_ended,
    StepSkipped: RunState._step_ended,
    AttemptFailed: RunState._attempt_failed,
    ValueRecorded: RunState._value_recorded,
    SignalReceived: RunState._signal_received,
    ChildStarted: RunState._child_started,
    ChildFinished: RunState._child_finished,
    StateSet: RunState._state_set,
    ChunkAppended: RunState._chunk_appended,
    StepProgressed: RunState._step_progressed,
    RunPaused: RunState._run_paused,
    WaitOpened: RunState._wait_opened,
    WaitResolved: RunState._wait_resolved,
    CancelRequested: RunState._cancel_requested,
    RunParked: RunState._run_parked,
    SnapshotTaken: RunState._snapshot_taken,
    RunResumed: RunState._run_resumed,
    RunForked: RunState._run_forked,
    OutcomeKept: RunState._outcome_kept,
    RunFinished: RunState._run_finished,
}


# What changes no row of a run that has other steps under way.
_QUIET = frozenset({StepStarted, StepSucceeded})


def fold(run_id: str, batches: Iterable[Batch]) -> RunState:
    """The state after all of `batches`."""
    state = RunState(run_id)
    state.fold_batches(batches)
    return state
