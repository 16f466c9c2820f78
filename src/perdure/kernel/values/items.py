"""A list whose elements are decoded one at a time, when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

from perdure.kernel.values.types import PlainForm

T = TypeVar("T", covariant=True)


class Items(Sequence[T], PlainForm):
    """The annotation of a parameter that takes a long list: `rows: Items[Row]`. Iterable, indexable, read-only.

    Each element is decoded when it is read, and not kept.
    """

    __slots__ = ("_decode", "_plain")

    def __init__(self, plain: list[Any], decode: Callable[[Any], Any] | None = None) -> None:
        self._plain, self._decode = plain, decode

    @classmethod
    def of(cls, items: Iterable[T]) -> Items[T]:
        """The items of any iterable, to start a graph with."""
        return cls(list(items))

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

    def __len__(self) -> int:
        return len(self._plain)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Items | list) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} items>"

    @property
    def plain(self) -> list[Any]:
        """The elements as they are encoded."""
        return self._plain
