"""The values of a dataflow program in memory: encoded, and handed from node to node without decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, get_args

import msgspec
from msgspec import Raw

from perdure.authoring.dataflow.plan import EACH, PRESENT, Path
from perdure.kernel.chunks import column
from perdure.kernel.values.arguments import SMALL, digest_of, recorded_values
from perdure.kernel.values.codec import Codec, OwnDecoder
from perdure.kernel.values.items import REFERENCE, Items
from perdure.kernel.values.skips import why_no_result
from perdure.kernel.values.types import name_of
from perdure.kernel.values.value_versions import VERSION_KEY, versions_in

_list = msgspec.json.Decoder(list[Raw]).decode
_object = msgspec.json.Decoder(dict[str, Raw]).decode


def input_by_name(input: Raw) -> Raw:
    """Input as an object. It is an empty list if a run was started by name and its parameters were not known."""
    return Raw(b"{}") if bytes(input) == b"[]" else input


class Value(msgspec.Struct, eq=False, gc=False):
    """An encoded value. Its digest and its elements are computed once, however many nodes take it.

    A value without data is a reference to a blob, and is passed on without being loaded.
    """

    data: bytes
    blob: str = ""
    # The digest in the record of a call; None until it is needed, and for a value that the record has in full.
    digest: str | None = None
    _items: list[Value] | None = None

    def elements(self) -> list[Raw]:
        """The elements of a list, encoded. Raises msgspec.MsgspecError for anything else."""
        return _list(self.data)

    def items(self) -> list[Value]:
        """The elements of a list. Raises msgspec.MsgspecError for anything else."""
        if self._items is None:
            self._items = [Value(bytes(item)) for item in self.elements()]
        return self._items

    def part(self, path: Path) -> Value | None:
        """A part of the value; None if the value has no such part."""
        value = self
        if path and self.data.startswith(REFERENCE):
            found = column(self.data, path_key(path))
            return None if found is None else Value(found)
        for depth, key in enumerate(path):
            try:
                if key in (EACH, PRESENT):
                    parts = [item.part(path[depth + 1 :]) for item in value.items()]
                    return Value(joined([part or _NULL for part in parts if part is not None or key == EACH]))
                if isinstance(key, int):
                    value = value.items()[key]
                else:
                    value = Value(bytes(_object(value.data)[key]))
            except (msgspec.MsgspecError, LookupError):
                return None
        return value


_NULL = Value(b"null")


def path_key(path: Path) -> str:
    """A path as text."""
    return msgspec.json.encode(path).decode()


class OrSkipped(OwnDecoder):
    """Reads the stored result of a program whose output may have been skipped: None if it was."""

    def __init__(self, type: Any) -> None:
        self.type = type

    def __repr__(self) -> str:
        return name_of(self.type)

    def decoder(self, codec: Codec) -> Callable[[bytes | Raw], Any]:
        """The function that decodes a result."""
        decode = codec.unchecked(self.type, "a result")
        of = (get_args(self.type) or (Any,))[0]
        items = codec.unchecked(Items[of], "a result")  # type: ignore[valid-type]

        def decoded(data: bytes | Raw) -> Any:
            if why_no_result(data) is not None:
                return None
            return items(data) if bytes(data).startswith(REFERENCE) else decode(data)

        return decoded


encoded = attrgetter("data")


def joined(values: Iterable[Value]) -> bytes:
    """Values as one list."""
    return b"[%b]" % b",".join(map(encoded, values))


def as_object(values: Mapping[str, Value]) -> bytes:
    """Values as one object."""
    return b"{%b}" % b",".join([b"%b:%b" % (msgspec.json.encode(name), value.data) for name, value in values.items()])


def record(values: Mapping[str, Value]) -> str:
    """The record of a call with these arguments: see kernel/values/arguments.py."""
    shown: dict[str, tuple[bytes, str | None]] = {}
    versioned = False
    for name, value in values.items():
        data = value.data
        if value.digest is None and len(data) > SMALL:
            value.digest = digest_of(data)
        shown[name] = data, value.digest
        versioned = versioned or VERSION_KEY in data
    return recorded_values(shown) + (versions_in(joined(values.values())) if versioned else "")
