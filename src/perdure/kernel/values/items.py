"""Long lists: read one element at a time, and kept in blobs where they need not fit in memory. Never touches a store.

A list in blobs is stored as a reference, `{"$items":[{"blob":"<id>","n":500}, ...]}`: its parts in order, each with how
many elements it has, and `first` where the elements do not begin with the first one of the blob. A blob is a JSON list.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import Any, Generic, Protocol, TypeVar, get_args, get_origin, overload

import msgspec
from msgspec import Raw

from perdure.kernel.values.types import PlainForm

T = TypeVar("T", covariant=True)

# A blob is full with this many items, or this many bytes.
ITEMS_IN_BLOB = 500
BYTES_IN_BLOB = 256 * 1024
# The key of a reference to items, and how a reference begins. No text in a value can contain this: quotes are escaped.
KEY = "$items"
REFERENCE = b'{"$items":[{"blob":"'
_BLOB = re.compile(rb'\{"blob":"([0-9a-f]{64})"')
_Decode = Callable[[Any], Any]


class Part(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The elements of a list that are in one blob: `n` elements, from number `first` of the blob on."""

    blob: str
    n: int
    first: int = 0


class _Reference(msgspec.Struct, frozen=True, rename={"parts": KEY}):
    parts: tuple[Part, ...]


_reference = msgspec.json.Decoder(_Reference).decode
_list = msgspec.json.Decoder(list[Raw]).decode


class PartReader(Protocol):
    """Reads the blobs of items."""

    def read(self, blob: str) -> bytes:
        """The bytes of a blob; blocks the thread. Raises Corrupt if the blob is missing."""
        ...

    def each(self, parts: Sequence[Part], elements: Callable[[Part, bytes], list[Any]]) -> AsyncIterator[Any]:
        """The elements of parts, read one part at a time; the event loop is free in between."""
        ...

    def elsewhere(self) -> PartReader | None:
        """A reader that can be sent to another process; None if only this process can read them."""
        ...


class Items(Sequence[T], PlainForm, Generic[T]):
    """A list that need not fit in memory: `rows: Items[Row]` takes a long list. Iterable, indexable, read-only.

    An element is decoded when it is read, and not kept. In `async` code, `async for` does not block the event loop
    while it reads.
    """

    __slots__ = ("_decode", "_plain")

    def __init__(self, plain: list[Any], decode: _Decode | None = None) -> None:
        self._plain, self._decode = plain, decode

    @classmethod
    def of(cls, items: Iterable[T]) -> Items[T]:
        """The items of any iterable, to start a graph with. A long one is written to the store as it is read."""
        source = iter(items)
        head = list(islice(source, ITEMS_IN_BLOB + 1))
        return cls(head) if len(head) <= ITEMS_IN_BLOB else Unstored(head, source)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Items[T]: ...
    def __getitem__(self, index: int | slice) -> T | Items[T]:
        if isinstance(index, slice):
            return Items(self._plain[index], self._decode)
        found = self._plain[index]
        return found if self._decode is None else self._decode(found)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[T]:
        decode = self._decode
        return iter(self._plain) if decode is None else map(decode, self._plain)

    def __aiter__(self) -> AsyncIterator[T]:
        return _Awaited(iter(self))

    def __len__(self) -> int:
        return len(self._plain)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Items | list) or len(self) != len(other):
            return False
        if isinstance(self, Stored) and isinstance(other, Stored) and self.parts == other.parts:
            return True
        return all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} items>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Items, (list(self),)

    @property
    def plain(self) -> Any:
        """The encoded elements."""
        return self._plain


class _Awaited(AsyncIterator[T]):
    """Lets `async for` iterate over values in memory."""

    __slots__ = ("_source",)

    def __init__(self, source: Iterator[T]) -> None:
        self._source = source

    def __anext__(self) -> Awaitable[T]:
        for item in self._source:
            return _AtHand(item)
        raise StopAsyncIteration


class _AtHand(Awaitable[T]):
    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, None, T]:
        return self._value
        yield


class Unstored(Items[T]):
    """Items of an iterable that has not been read to its end: `start` writes them to the store."""

    __slots__ = ("_source", "stored")

    def __init__(self, head: list[Any], source: Iterator[Any]) -> None:
        super().__init__(head)
        self._source = source
        # The stored items, once `start` has written them.
        self.stored: Stored[T] | None = None

    def take(self) -> Iterator[T]:
        """Iterate over all of them, once: no element is kept."""
        head, self._plain = self._plain, []
        return chain(head, self._source)

    def _whole(self) -> Items[T]:
        if self.stored is not None:
            return self.stored
        self._plain.extend(self._source)
        return Items(self._plain)

    def __getitem__(self, index: Any) -> Any:
        return self._whole()[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())

    @property
    def plain(self) -> Any:
        """The stored form: a reference once they are in a store, all of them otherwise."""
        return self._whole().plain


class Stored(Items[T]):
    """Items in blobs. One blob of them is in memory at a time."""

    __slots__ = ("_ends", "_last", "_of", "_reader", "parts")

    def __init__(self, parts: Sequence[Part], of: Any, decode: _Decode, reader: PartReader | None) -> None:
        super().__init__([], decode)
        self.parts, self._of, self._reader = tuple(parts), of, reader
        self._ends = list(accumulate(part.n for part in self.parts))
        # The latest blob that was read, with its elements.
        self._last: tuple[str, list[Any]] = ("", [])

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Items[T]: ...
    def __getitem__(self, index: int | slice) -> T | Items[T]:
        numbers = range(len(self))[index]  # raises IndexError as a list does
        if isinstance(numbers, range):
            if numbers.step != 1:
                return Items([self[number] for number in numbers])
            parts = cut(self.parts, numbers.start, numbers.stop)
            return Stored(parts, self._of, self._decoded, self._reader)
        at = bisect_right(self._ends, numbers)
        part = self.parts[at]
        return self._read(part)[numbers - self._ends[at] + part.n]  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[T]:
        for part in self.parts:
            yield from self._read(part)

    def __aiter__(self) -> AsyncIterator[T]:
        return self._where().each(self.parts, self._elements)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __reduce__(self) -> tuple[Any, ...]:
        reader = self._where().elsewhere()
        if reader is None:
            return super().__reduce__()
        return _sent, (self.parts, self._of, reader)

    def _where(self) -> PartReader:
        if self._reader is None:
            raise ValueError("these items are in a store that is not open here")
        return self._reader

    def _read(self, part: Part) -> list[Any]:
        blob, elements = self._last
        if blob != part.blob:
            elements = self._decoded(self._where().read(part.blob))
            self._last = part.blob, elements
        return elements[part.first : part.first + part.n]

    def _elements(self, part: Part, data: bytes) -> list[Any]:
        return self._decoded(data)[part.first : part.first + part.n]

    def _decoded(self, data: bytes) -> list[Any]:
        assert self._decode is not None
        return self._decode(data)  # type: ignore[no-any-return]

    @property
    def plain(self) -> Any:
        """The stored form: a reference."""
        return {KEY: self.parts} if self.parts else []


def _sent(parts: Sequence[Part], of: Any, reader: PartReader) -> Items[Any]:
    """Items that were sent to this process."""
    from perdure.kernel.values.codec import Codec  # it imports this module

    return Stored(parts, of, Codec().decoder(list[of], "items"), reader)


def is_items(annotation: Any) -> bool:
    """Whether a parameter takes items."""
    return annotation is Items or get_origin(annotation) is Items or any(map(is_items, get_args(annotation)))


def as_items(plain: Any, annotation: Any) -> Any:
    """The annotation by which a value is decoded: `Items[T]` in place of `list[T]` if the value is a reference."""
    if not isinstance(plain, dict) or KEY not in plain or is_items(annotation):
        return annotation
    of = (get_args(annotation) or (Any,))[0]
    return Items[of]  # type: ignore[valid-type]


# --- references in encoded values -----------------------------------------------------------------------------------


def cut(parts: Sequence[Part], start: int, stop: int) -> list[Part]:
    """The elements `start` to `stop` of a list in parts."""
    found, before = [], 0
    for part in parts:
        first, last = max(start - before, 0), min(stop - before, part.n)
        if first < last:
            found.append(Part(part.blob, last - first, part.first + first))
        before += part.n
        if before >= stop:
            break
    return found


def parts_of(data: bytes | Raw) -> tuple[Part, ...] | None:
    """The parts of an encoded value that is a reference to items; None for any other."""
    if not bytes(data).startswith(REFERENCE):
        return None
    try:
        return _reference(data).parts
    except msgspec.MsgspecError:
        return None


def reference(parts: Iterable[Part]) -> bytes:
    """An encoded reference to items."""
    return msgspec.json.encode({KEY: list(parts)})


def has_references(data: bytes) -> bool:
    """Whether an encoded value refers to items: fast, without false negatives."""
    return REFERENCE in data


def blobs_in(data: bytes) -> list[str]:
    """The ids of the blobs of the items that an encoded value refers to."""
    return [blob.decode() for blob in _BLOB.findall(data)] if REFERENCE in data else []


def elements_of(part: Part, blob: bytes) -> bytes:
    """The elements of a part, encoded and separated by commas, given its blob."""
    elements = _list(blob)
    if not part.first and part.n == len(elements):
        return blob[1:-1]
    return b",".join(map(bytes, elements[part.first : part.first + part.n]))


def whole(data: bytes, blobs: Mapping[str, bytes]) -> bytes:
    """An encoded list, which may be a reference to items in blobs."""
    parts = parts_of(data)
    return data if parts is None else b"[%b]" % b",".join(elements_of(part, blobs[part.blob]) for part in parts)
