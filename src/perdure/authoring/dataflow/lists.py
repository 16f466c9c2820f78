"""Long lists that are decoded in the orchestrator: their parts are loaded one after the other, up to the limit."""

from __future__ import annotations

from collections.abc import Callable

from perdure.authoring.dataflow.values import Value
from perdure.kernel.values.items import Part, elements_of


class LongLists:
    """Arguments of a node of which some are references to items, and what happens once they are lists."""

    __slots__ = ("_found", "_lists", "arguments", "name", "number", "op", "then")

    def __init__(
        self,
        number: int,
        op: str,
        arguments: dict[str, Value],
        lists: dict[str, tuple[Part, ...]],
        then: Callable[[dict[str, Value]], None],
    ) -> None:
        self.number, self.op, self.arguments, self.then = number, op, arguments, then
        self._lists, self._found = lists, list[bytes]()
        # The argument that is being loaded.
        self.name = next(iter(lists))

    @property
    def next(self) -> Part | None:
        """The part to load next."""
        return self._lists[self.name][len(self._found)] if self._lists else None

    def add(self, blob: bytes) -> int:
        """Take that part; gives the size of the list so far."""
        parts = self._lists[self.name]
        self._found.append(elements_of(parts[len(self._found)], blob))
        size = sum(map(len, self._found)) + len(self._found) + 1
        if len(self._found) == len(parts):
            self.arguments[self.name] = Value(b"[%b]" % b",".join(self._found))
            del self._lists[self.name]
            self._found, self.name = [], next(iter(self._lists), self.name)
        return size
