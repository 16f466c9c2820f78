"""Is there an order of the operations, each at one moment between its call and its answer, that explains all answers?

The search of Wing and Gong with the memory of Lowe: never try the same set of operations with the same state twice.
What makes it quick here: journals and leases are checked one by one; an operation that changes nothing is put in order
as soon as it fits; and one without an answer is put in order only when one with an answer needs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.linearizability.history import (
    Append,
    Conflicted,
    History,
    Look,
    Nothing,
    NotYours,
    Operation,
    Read,
    Refused,
    Unknown,
    Written,
)
from tests.linearizability.models import JournalModel, LeaseModel, Model

# States that are looked at before the search is given up, which no history of ours comes near.
MOST = 5_000_000
FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Violation:
    """No order explains what happened to this object: the longest one found, and what could not follow it."""

    object: tuple[str, str]
    explained: tuple[Operation, ...]
    unexplained: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [f"the {' '.join(self.object)} answered what no order of its operations explains; after"]
        lines += [f"  {_line(operation)}" for operation in self.explained[-5:]]
        lines += ["none of these can follow:", *(f"  {_line(operation)}" for operation in self.unexplained)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found, and how many states it looked at."""

    violations: tuple[Violation, ...]
    looked_at: int

    @property
    def linearizable(self) -> bool:
        """Whether all is explained."""
        return not self.violations


def check(history: History) -> Verdict:
    """Check every journal and lease of a history."""
    objects: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)
    for operation in history:
        # What had no effect and told nothing needs no explanation; if it did have one, what others saw has none.
        if not isinstance(operation.answer, Nothing):
            objects[operation.object].append(operation)
    violations, looked_at = [], 0
    for name, operations in objects.items():
        model: Model[Any] = JournalModel() if name[0] == "journal" else LeaseModel()
        search = _Search(model, operations)
        violation = search.run(name)
        looked_at += search.looked_at
        if violation is not None:
            violations.append(violation)
    return Verdict(tuple(violations), looked_at)


class _Search:
    """Depth first, without recursion: histories are longer than Python's stack likes."""

    def __init__(self, model: Model[Any], operations: list[Operation]) -> None:
        self._model = model
        self._operations = sorted(operations, key=lambda operation: operation.began)
        self._optional = [isinstance(operation.answer, Unknown) for operation in self._operations]
        self._answered = sum(1 << index for index, unknown in enumerate(self._optional) if not unknown)
        self._observes = [_observes(operation) for operation in self._operations]
        self._ended = [
            FOREVER if unknown else operation.ended
            for operation, unknown in zip(self._operations, self._optional, strict=True)
        ]
        # Those not in order yet, as a list that is linked both ways; the last entry is its beginning and its end.
        count = len(operations)
        self._next = [*range(1, count + 1), 0]
        self._previous = [count, *range(count)]
        self._left = self._optional.count(False)
        self._order: list[int] = []
        self._done = 0
        self.looked_at = 0

    def run(self, name: tuple[str, str]) -> Violation | None:
        """Search; the deepest dead end when there is no order."""
        best: tuple[int, ...] = ()
        stuck: tuple[int, ...] = ()
        seen = _Seen()
        state = self._model.initial()
        # For each choice on the way: how long the order was before it, and what else there was to choose.
        choices: list[tuple[int, Iterator[tuple[tuple[int, ...], Any]]]] = []
        while True:
            state = self._observe(state)
            if not self._left:
                return None
            if seen.is_new((self._done & self._answered, state), self._done & ~self._answered):
                choices.append((len(self._order), self._candidates(state)))
                if len(self._order) >= len(best):
                    best, stuck = tuple(self._order), tuple(self._open())
            while choices:
                length, candidates = choices[-1]
                self._back_to(length)
                chosen = next(candidates, None)
                if chosen is not None:
                    indexes, state = chosen
                    for index in indexes:
                        self._take(index)
                    break
                choices.pop()
            else:
                operations = self._operations
                return Violation(name, tuple(operations[i] for i in best), tuple(operations[i] for i in stuck))
            self._count(name)

    def _count(self, name: tuple[str, str]) -> None:
        if self.looked_at > MOST:
            raise RuntimeError(f"gave up on the {' '.join(name)} after {MOST} states")

    def _open(self) -> list[int]:
        """Those that may come next: called before the first of all answers that are still to come."""
        found, first, index = [], FOREVER, self._next[-1]
        end = len(self._operations)
        while index != end and self._operations[index].began <= first:
            found.append(index)
            first = min(first, self._ended[index])
            index = self._next[index]
        return found

    def _observe(self, state: Any) -> Any:
        """Put in order whatever fits and never changes anything: it cannot be better to wait with it."""
        again = True
        while again and self._left:
            again = False
            for index in self._open():
                if self._observes[index] and state in self._model.step(state, self._operations[index]):
                    self._take(index)
                    again = True
        return state

    def _candidates(self, state: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
        """What may come next: one with an answer, after as few without an answer as make it possible."""
        # What was answered first comes first: that is most often how it was.
        following = sorted(self._open(), key=lambda index: self._ended[index])
        answered = [index for index in following if not self._optional[index]]
        optional = [index for index in following if self._optional[index]]
        reached = _Seen()
        reached.is_new(state, 0)
        level: list[tuple[Any, tuple[int, ...], int]] = [(state, (), 0)]
        while level:
            for before, taken, _ in level:
                self.looked_at += 1
                for index in answered:
                    for after in self._model.step(before, self._operations[index]):
                        yield (*taken, index), after
            longer = []
            for before, taken, used in level:
                for index in optional:
                    if not used >> index & 1:
                        for after in self._model.step(before, self._operations[index]):
                            if reached.is_new(after, used | 1 << index):
                                longer.append((after, (*taken, index), used | 1 << index))
            level = longer

    def _take(self, index: int) -> None:
        before, after = self._previous[index], self._next[index]
        self._next[before], self._previous[after] = after, before
        self._order.append(index)
        self._done |= 1 << index
        self._left -= not self._optional[index]

    def _back_to(self, length: int) -> None:
        while len(self._order) > length:
            index = self._order.pop()
            self._next[self._previous[index]] = index
            self._previous[self._next[index]] = index
            self._done &= ~(1 << index)
            self._left += not self._optional[index]


class _Seen:
    """Where the search has been, and what without an answer it took to get there: getting there with more is no use."""

    def __init__(self) -> None:
        self._ways: dict[Any, list[int]] = {}

    def is_new(self, place: Any, used: int) -> bool:
        """Whether nobody came here with these or fewer; remembers it."""
        ways = self._ways.setdefault(place, [])
        if any(way & used == way for way in ways):
            return False
        ways.append(used)
        return True


def lost(history: History, journals: dict[str, tuple[str, ...]]) -> list[Operation]:
    """Appends that were acknowledged and are not in the journal, whole and where they were put. A second witness."""
    missing = []
    for operation in history:
        if isinstance(operation.call, Append) and isinstance(operation.answer, Written):
            start, events = operation.call.expected_next, operation.call.events
            if journals.get(operation.key, ())[start : start + len(events)] != events:
                missing.append(operation)
    return missing


def _observes(operation: Operation) -> bool:
    """Whether it tells of its object, and leaves it as it is wherever it comes in the order."""
    if isinstance(operation.answer, Unknown):
        return False
    return isinstance(operation.call, Read | Look) or isinstance(operation.answer, Conflicted | Refused | NotYours)


def _line(operation: Operation) -> str:
    return f"{operation.client} [{operation.began}..{operation.ended}] {operation.call} -> {operation.answer}"
