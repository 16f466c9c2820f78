"""What a journal and a lease may answer, one operation after another. The truth that stores are compared with.

`step` gives the states in which an operation, with the answer it had, may leave its object; none when there are none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from tests.linearizability.history import (
    Acquire,
    Append,
    Conflicted,
    Done,
    Events,
    Free,
    Granted,
    Held,
    Look,
    NotYours,
    Operation,
    Read,
    Refused,
    Release,
    Renew,
    Unknown,
    Written,
)

S = TypeVar("S")


class Model(ABC, Generic[S]):
    """A sequential object. States are small and can be compared."""

    @abstractmethod
    def initial(self) -> S:
        """Before the first operation."""

    @abstractmethod
    def step(self, state: S, operation: Operation) -> Iterable[S]:
        """Where the operation may lead from here. An Unknown one: where it leads if it has its effect here."""


class JournalModel(Model[int]):
    """A list that grows by compare-and-swap on its length. A state is the number of a list in `_lists`."""

    def __init__(self) -> None:
        # Lists that differ in their last event only share the rest: equal lists have equal numbers.
        self._longer: dict[tuple[int, str], int] = {}
        self._lengths = [0]
        self._read: dict[tuple[str, ...], int] = {}

    def initial(self) -> int:
        return 0

    def step(self, state: int, operation: Operation) -> Iterable[int]:
        length = self._lengths[state]
        match operation.call, operation.answer:
            case Append(expected, events), Written() | Unknown():
                return (self._with(state, events),) if expected == length else ()
            case Append(expected, _), Conflicted(found):
                return (state,) if expected != length and found == length else ()
            case Read(), Events(events):
                return (state,) if self._number(events) == state else ()
            case _:
                return ()

    def _number(self, events: tuple[str, ...]) -> int:
        if events not in self._read:
            self._read[events] = self._with(0, events)
        return self._read[events]

    def _with(self, state: int, events: tuple[str, ...]) -> int:
        for event in events:
            longer = self._longer.get((state, event))
            if longer is None:
                longer = self._longer[state, event] = len(self._lengths)
                self._lengths.append(self._lengths[state] + 1)
            state = longer
        return state


class LeaseState(msgspec.Struct, frozen=True):
    """Who holds a lease, nobody being ''. Its epoch is `epoch`; or some higher one, when nobody was told which."""

    owner: str = ""
    epoch: int = 0
    told: bool = True
    expires: float = 0.0

    def may_be(self, epoch: int) -> bool:
        """Whether this may be the epoch."""
        return epoch == self.epoch if self.told else epoch > self.epoch

    def may_precede(self, epoch: int) -> bool:
        """Whether this may be an epoch after a change of hands."""
        return epoch > (self.epoch if self.told else self.epoch + 1)

    def handed(self, owner: str, expires: float) -> LeaseState:
        """In other hands, with an epoch that nobody was told."""
        return LeaseState(owner, self.epoch if self.told else self.epoch + 1, False, expires)


class LeaseModel(Model[LeaseState]):
    """One holder at a time until it runs out, by the caller's `now`; an epoch that grows when it changes hands.

    A holder whose lease has run out may still get it, or be refused, as long as nobody else took it.
    """

    def initial(self) -> LeaseState:
        return LeaseState()

    def step(self, state: LeaseState, operation: Operation) -> Iterable[LeaseState]:
        match operation.call:
            case Acquire():
                return self._acquire(state, operation.call, operation)
            case Renew(owner, ttl, now):
                if owner == state.owner and isinstance(operation.answer, Done | Unknown):
                    return (msgspec.structs.replace(state, expires=now + ttl),)
                return self._refused(state, owner, now, operation)
            case Release(owner, now):
                if owner == state.owner and isinstance(operation.answer, Done | Unknown):
                    return (msgspec.structs.replace(state, owner="", expires=0.0),)
                return self._refused(state, owner, now, operation)
            case Look(now):
                match operation.answer:
                    case Held(owner, epoch, expires):
                        fits = (owner, expires) == (state.owner, state.expires) and expires > now
                        return (LeaseState(owner, epoch, True, expires),) if fits and state.may_be(epoch) else ()
                    case Free():
                        return (state,) if not state.owner or state.expires <= now else ()
        return ()

    def _acquire(self, state: LeaseState, call: Acquire, operation: Operation) -> Iterable[LeaseState]:
        expires = call.now + call.ttl
        mine, over = state.owner == call.owner, not state.owner or state.expires <= call.now
        match operation.answer:
            case Granted(epoch, until) if until == expires:
                if (mine and state.may_be(epoch)) or (over and state.may_precede(epoch)):
                    return (LeaseState(call.owner, epoch, True, expires),)
            case Refused(owner, until):
                return (state,) if (owner, until) == (state.owner, state.expires) and not mine and not over else ()
            case Unknown():
                possible = []
                if mine:
                    possible.append(msgspec.structs.replace(state, expires=expires))
                if over:
                    possible.append(state.handed(call.owner, expires))
                return possible
        return ()

    def _refused(self, state: LeaseState, owner: str, now: float, operation: Operation) -> Iterable[LeaseState]:
        if isinstance(operation.answer, NotYours) and (owner != state.owner or state.expires <= now):
            return (state,)
        return ()
