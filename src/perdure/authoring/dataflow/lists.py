"""Values in blobs that the orchestrator decodes: long lists, part by part, and what earlier code recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import Raw

from perdure.authoring.dataflow.values import Value
from perdure.errors import NotDecodable
from perdure.kernel.divergence.model import OpView
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.items import Part, elements_of


class LongLists:
    """Arguments of a node, some of which are references to items, and what to do once those are loaded as lists."""

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
        """Add the loaded part. Returns the size of the list so far."""
        parts = self._lists[self.name]
        self._found.append(elements_of(parts[len(self._found)], blob))
        size = sum(map(len, self._found)) + len(self._found) + 1
        if len(self._found) == len(parts):
            self.arguments[self.name] = Value(b"[%b]" % b",".join(self._found))
            del self._lists[self.name]
            self._found, self.name = [], next(iter(self._lists), self.name)
        return size


class Reader(msgspec.Struct, frozen=True):
    """Reads a recorded value by the type that the present code declares. Errors name `op`."""

    codec: Codec
    type: Any
    what: str
    op: str
    # For a long list: the part to read.
    part: Part | None = None
    # The op that takes the value.
    taker: OpView | None = None

    def of_part(self, part: Part) -> Reader:
        """The same for a part of the list."""
        of = (get_args(self.type) or (Any,))[0]
        return msgspec.structs.replace(self, type=list[of], part=part)  # type: ignore[valid-type]

    def __call__(self, data: bytes | Raw) -> Any:
        """Read it."""
        return self.read(bytes(data))

    def read(self, data: bytes, *, exact: bool = False) -> Any:
        """The value. Raises NotDecodable if the code cannot read it; `exact`: see Codec.decode_exact."""
        data = data if self.part is None else b"[%b]" % elements_of(self.part, data)
        try:
            return (self.codec.decode_exact if exact else self.codec.decode)(data, self.type, self.what)
        except NotDecodable as error:
            error.op, error.taker = self.op, self.taker
            raise


# Values that are read when a step begins, by blob.
Readers: TypeAlias = tuple[tuple[str, Reader], ...]


class Unread:
    """Parts of long lists that have to be read before an op begins."""

    __slots__ = ("left", "then")

    def __init__(self, left: dict[str, list[Reader]], then: Callable[[], None]) -> None:
        # By blob: the readers whose part is not loaded yet.
        self.left, self.then = left, then

    def read(self, blob: str, data: bytes) -> None:
        """Read the values in a blob. Raises NotDecodable if the code cannot."""
        for reader in self.left.pop(blob):
            reader.read(data)
