"""Where each run is in this process: one state per run, one function that changes it.

Theory of operation
===================

Every run that this process knows has one slot in one table, and the slot is in one state. Whether a run may be loaded,
whether it has a driver, and which callers wait for it follow from that state.

The journal decides who owns a run; this table only says what this process does with it. So a wrong entry costs time,
never a second execution: the writes of a driver are fenced by compare-and-swap.

::

              start                                  first commit
    ABSENT ──────────────────▶ STARTING ───────────────────────────┐
      │                                                            │
      │ wake, takeover,                                            ▼      idle
      │ admission, message                    replayed          ACTIVE ◀────────▶ WARM
      └──────────────────────▶ LOADING ───────────────────────▶  │  ▲              │
                               │  │  │                           │  │ caught up    │
        previous owners may    │  │  │      another process      ▼  │              │
        have died of it        │  │  │      has appended      CATCHING_UP ◀────────┘
    SUSPECT ◀──────────────────┘  │  │
      └── on trial ──▶ LOADING    │  └─▶ REGAINING_LOCKS ── has them ──▶ ABSENT, and LOADING again
                                  │
         does not fit, damaged    ▼
                       PARKED_HERE, LEFT, UNREADABLE

    From every state with a driver: evicted ──▶ ABSENT; an error of the engine ──▶ PARKING ──▶ PARKED_HERE

====================  ========  ========================================================================================
state                 driver    what it means, and what ends it
====================  ========  ========================================================================================
``ABSENT``            no        unknown here; such a run has no slot
``STARTING``          soon      started here, and its start is not durable yet. The caller waits on ``accepted``
``LOADING``           no        being read, claimed and replayed. A request that comes in this state sets ``again``
``ACTIVE``            yes       advanced here
``WARM``              yes       idle when last seen, and kept in memory for a moment: what it waits for often comes soon
``CATCHING_UP``       yes       another process has appended: nothing is written until the driver has caught up, and
                                messages wait on ``caught_up``
``REGAINING_LOCKS``   no        claimed; it is loaded again when it holds the locks that its journal says it holds
``SUSPECT``           no        previous owners may have died of it; it is loaded on trial, with few others (quarantine)
``PARKING``           no        does not fit, or was stopped by an error of the engine; nothing loads it until the
                                parking is in its journal
``PARKED_HERE``       no        does not fit the code of this process; a message may load it again, a search does not
``LEFT``              no        it needs a program or version that this process lacks; tried again when other
                                orchestrators come or go (`fit_check`)
``UNREADABLE``        no        nothing can be read of it or appended to it; this process leaves it alone
====================  ========  ========================================================================================

What couples the table to the rest:

- *Drivers.* A slot has a driver exactly in STARTING (once its body was opened), ACTIVE, WARM and CATCHING_UP. A driver
  that is not the one of its slot has been evicted or replaced, and nothing of the run depends on it.
- *Waiters.* The table answers them when a run moves to a state in which the answer cannot come any more: a caller of
  `start` gets an error, an admission learns that the run is no longer tried, a message is decided again. No waiter is
  left behind.
- *Entry.* Only the `Loader` gives a run a driver: `enter` does, and `rejoin` gives it a new one when its driver cannot
  catch up.
- *What is not here.* Five collections of run_ids are elsewhere, because they are facts beside the state of a slot:
  which runs of a group are still on trial (`Quarantine.on_trial`: a run may come and go during its trial), the tasks
  that regain locks (`RunLocks._regaining`: they end after the slot has moved on), which ids were warm lately
  (`WarmCache._known`: a hint about evicted runs), of which runs a snapshot is being taken (`SnapshotTaker._taking`: it
  goes on when the run is evicted), and which parked runs are entered again (`Parking.entered_again`: they are absent).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from perdure.engine.driver import Driver
from perdure.errors import Corrupt
from perdure.kernel.events import RunStarted
from perdure.kernel.policies.queues import Queue
from perdure.ports.journal import Full


class Residency(Enum):
    """The state of a run in this process."""

    ABSENT = "absent"
    STARTING = "starting"
    LOADING = "loading"
    ACTIVE = "active"
    WARM = "warm"
    CATCHING_UP = "catching up"
    REGAINING_LOCKS = "regaining locks"
    SUSPECT = "suspect"
    PARKING = "parking"
    PARKED_HERE = "parked here"
    LEFT = "left to another orchestrator"
    UNREADABLE = "unreadable"

    __hash__ = object.__hash__


ABSENT, STARTING, LOADING = Residency.ABSENT, Residency.STARTING, Residency.LOADING
ACTIVE, WARM, CATCHING_UP = Residency.ACTIVE, Residency.WARM, Residency.CATCHING_UP
REGAINING_LOCKS, SUSPECT, PARKING = Residency.REGAINING_LOCKS, Residency.SUSPECT, Residency.PARKING
PARKED_HERE, LEFT, UNREADABLE = Residency.PARKED_HERE, Residency.LEFT, Residency.UNREADABLE

# The states in which a slot has a driver. In STARTING it gets one.
_ADVANCED = frozenset({ACTIVE, WARM, CATCHING_UP})
# The states in which it is not known yet whether a queued run has begun.
_ADMITTING = frozenset({LOADING, ACTIVE, CATCHING_UP})
# The states in which a run may be loaded.
MAY_ENTER = frozenset({ABSENT, PARKED_HERE})

TRANSITIONS: Mapping[Residency, frozenset[Residency]] = {
    ABSENT: frozenset({STARTING, LOADING, PARKING, PARKED_HERE, UNREADABLE}),
    STARTING: frozenset({ACTIVE, PARKING, ABSENT}),
    LOADING: frozenset({ACTIVE, REGAINING_LOCKS, SUSPECT, PARKING, PARKED_HERE, LEFT, UNREADABLE, ABSENT}),
    ACTIVE: frozenset({WARM, CATCHING_UP, PARKING, ABSENT}),
    WARM: frozenset({ACTIVE, CATCHING_UP, PARKING, ABSENT}),
    CATCHING_UP: frozenset({ACTIVE, PARKING, ABSENT}),
    REGAINING_LOCKS: frozenset({PARKING, ABSENT}),
    SUSPECT: frozenset({LOADING, PARKED_HERE}),
    PARKING: frozenset({PARKED_HERE, UNREADABLE}),
    PARKED_HERE: frozenset({LOADING, PARKING, UNREADABLE}),
    LEFT: frozenset({PARKING, PARKED_HERE, ABSENT}),
    UNREADABLE: frozenset(),
}


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run that is not in the store yet: its first event as the body gets it, and as it is recorded."""

    started: RunStarted
    recorded: RunStarted
    # Steps of the run see the context variables of the caller that started it.
    variables: Context


@dataclass(frozen=True, slots=True)
class EntryRequest:
    """Bring runs into memory: runs of this orchestrator, without an owner, or of a dead owner."""

    run_ids: Sequence[str]
    # Takeover: the owners that are not alive. Every other owner keeps its runs.
    dead: Collection[str | None] = ()
    # Admission: the queue within whose limits the runs may begin. Without it, a queued run stays in its queue.
    admit: Queue | None = None
    # Trial: how many suspects are tried at once; 0: these were found harmless.
    trial: int | None = None
    # Start: the run begins here, and its journal with it.
    new: RunStart | None = None


@dataclass(frozen=True, slots=True)
class Entered:
    """The result of a request: how many runs were read, and for each queued run whether its queue admitted it."""

    count: int = 0
    admitted: Mapping[str, asyncio.Future[Full | None]] = field(default_factory=dict)


class IllegalTransition(AssertionError):
    """A run was to move between two states that no event connects: an error of the engine."""

    def __init__(self, run_id: str, old: Residency, new: Residency) -> None:
        super().__init__(f"run_id {run_id} cannot move from {old.value} to {new.value}")


class RunSlot:
    """The state of one run, with its driver and waiters."""

    __slots__ = ("accepted", "admitted", "again", "caught_up", "driver", "run_id", "state", "suspect", "until")

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.state = ABSENT
        self.driver: Driver | None = None
        # STARTING, PARKING: resolved when the start is durable, or with why it is not.
        self.accepted: asyncio.Future[None] | None = None
        # LOADING, and ACTIVE until its claim is durable: resolved with why its queue refused it, or with None.
        self.admitted: asyncio.Future[Full | None] | None = None
        # CATCHING_UP: resolved when that is over.
        self.caught_up: asyncio.Future[None] | None = None
        # Whether it was asked for again while it was being loaded: what was read of it may be too old already.
        self.again = False
        # WARM: when it is evicted, in the time of the loop.
        self.until = 0.0
        # SUSPECT, and LOADING on trial: what is known against it, for the quarantine.
        self.suspect: Any = None


class RunTable:
    """The runs of one orchestrator. `not_accepted` makes the error for a start that fails."""

    def __init__(self, loop: asyncio.AbstractEventLoop, not_accepted: Callable[[], Exception]) -> None:
        self._loop, self._not_accepted = loop, not_accepted
        self._slots: dict[str, RunSlot] = {}
        self._by_state: dict[Residency, dict[str, RunSlot]] = {state: {} for state in Residency}
        # Indexes of the slots, kept by `move`: read them, and write to neither.
        self.drivers: dict[str, Driver] = {}
        self.unreadable: dict[str, Corrupt] = {}
        # Set when a run has been evicted, loaded or parked, or has become idle.
        self.settled = asyncio.Event()

    # --- questions ------------------------------------------------------------------------------------------------

    def state(self, run_id: str) -> Residency:
        """The state of a run."""
        slot = self._slots.get(run_id)
        return ABSENT if slot is None else slot.state

    def slot(self, run_id: str) -> RunSlot:
        """The slot of a run; if it is absent, a new one, which is not in the table yet."""
        return self._slots.get(run_id) or RunSlot(run_id)

    def of(self, state: Residency) -> Mapping[str, RunSlot]:
        """The slots in a state, in the order in which they came there."""
        return self._by_state[state]

    def has(self, driver: Driver) -> bool:
        """Whether a driver is the one of its run: it was neither evicted nor replaced."""
        return self.drivers.get(driver.run_id) is driver

    def may(self, run_id: str, state: Residency) -> bool:
        """Whether a run may move to a state now."""
        return state in TRANSITIONS[self.state(run_id)]

    def known(self) -> set[str]:
        """The runs that a search for work has to leave alone: in memory, on the way there, or kept from it."""
        return {run_id for run_id, slot in self._slots.items() if slot.state not in MAY_ENTER}

    @property
    def empty(self) -> bool:
        """Whether no run is in memory or about to start."""
        return not self.drivers and not self._by_state[STARTING]

    # --- the one change -------------------------------------------------------------------------------------------

    def move(self, slot: RunSlot, state: Residency, driver: Driver | None = None) -> None:
        """Move a run to another state. A move to ACTIVE may bring a new driver.

        Raises IllegalTransition, and changes nothing then.
        """
        old, run_id = slot.state, slot.run_id
        if state not in TRANSITIONS[old] or (driver is not None and state is not ACTIVE):
            raise IllegalTransition(run_id, old, state)
        if state in _ADVANCED and driver is None and slot.driver is None:
            raise IllegalTransition(run_id, old, state)
        if old is ABSENT:
            if run_id in self._slots:  # this slot was left, and the run has another by now
                raise IllegalTransition(run_id, self._slots[run_id].state, state)
            self._slots[run_id] = slot
        else:
            del self._by_state[old][run_id]
        slot.state = state
        if state is ABSENT:
            del self._slots[run_id]
        else:
            self._by_state[state][run_id] = slot
        if driver is not None:
            slot.driver = self.drivers[run_id] = driver
        if state is STARTING:
            slot.accepted = self._loop.create_future()
        elif state is CATCHING_UP:
            slot.caught_up = self._loop.create_future()
        elif state is not ACTIVE and state is not WARM:
            if slot.driver is not None:
                slot.driver = None
                del self.drivers[run_id]
            if state is not LOADING:
                self.settled.set()
        if slot.accepted is not None and state is not STARTING and state is not PARKING:
            if state is ACTIVE or state is PARKED_HERE:
                # Its start is durable. If it is parked already, its journal says so.
                _resolve(slot.accepted, None)
                slot.accepted = None
            else:
                self.refuse(slot, self._not_accepted())
        if slot.caught_up is not None and state is not CATCHING_UP:
            _resolve(slot.caught_up, None)
            slot.caught_up = None
        if slot.admitted is not None and state not in _ADMITTING:
            self.admit(slot)

    def begin(self, slot: RunSlot, driver: Driver) -> None:
        """Give a run that starts its driver: its body was opened."""
        if slot.state is not STARTING or slot.driver is not None:
            raise IllegalTransition(slot.run_id, slot.state, STARTING)
        slot.driver = self.drivers[slot.run_id] = driver

    def mark_parked(self, run_id: str) -> None:
        """Note that a run does not fit the code of this process: searches do not try it again."""
        if PARKED_HERE in TRANSITIONS[self.state(run_id)]:
            self.move(self.slot(run_id), PARKED_HERE)

    def mark_left(self, run_id: str) -> None:
        """Note that a run needs something that this process lacks."""
        if LEFT in TRANSITIONS[self.state(run_id)]:
            self.move(self.slot(run_id), LEFT)

    def forget_left(self) -> bool:
        """Let searches find the runs again that were left to other orchestrators; False if there were none."""
        left = [*self._by_state[LEFT].values()]
        for slot in left:
            self.move(slot, ABSENT)
        return bool(left)

    def mark_unreadable(self, run_id: str, damage: Corrupt) -> None:
        """Note that a run cannot be read, unless it was read since: it must not be tried again and again."""
        if UNREADABLE in TRANSITIONS[self.state(run_id)]:
            self.unreadable[run_id] = damage
            self.move(self.slot(run_id), UNREADABLE)

    # --- waiters --------------------------------------------------------------------------------------------------

    def admit(self, slot: RunSlot, full: Full | None = None) -> None:
        """Answer an admission: the run has begun or is no longer tried, or its queue is full."""
        if slot.admitted is not None:
            _resolve(slot.admitted, full)
            slot.admitted = None

    def refuse(self, slot: RunSlot, error: Exception) -> bool:
        """Answer the caller of a start with why it was not accepted; False when no caller waits any more."""
        accepted, slot.accepted = slot.accepted, None
        if accepted is None:
            return False
        if not accepted.done():
            accepted.set_exception(error)
        return True


def _resolve(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)
