"""The differences of two definitions: parts that were added, removed or changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from perdure.authoring.flow.definition import FINALLY

# Lists whose elements have an id.
_NAMED = frozenset({"steps", "jobs", FINALLY})
_ABSENT = msgspec.UNSET


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part that differs: its path, as in `steps.book.timeout`, and its value in both flows."""

    path: str
    change: Literal["added", "removed", "changed", "moved"]
    before: Any = None
    after: Any = None


def differences(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[Difference]:
    """The parts in which two flows differ, in the order of the first."""
    for key in dict.fromkeys((*before, *after)):
        one, other = before.get(key, _ABSENT), after.get(key, _ABSENT)
        inner = f"{path}.{key}" if path else key
        if key in _NAMED and isinstance(one, list) and isinstance(other, list):
            yield from _of_list(one, other, inner)
        elif isinstance(one, dict) and isinstance(other, dict):
            yield from differences(one, other, inner)
        elif one is _ABSENT or other is _ABSENT:
            yield _present(one, other, inner)
        elif one != other or type(one) is not type(other):
            yield Difference(inner, "changed", one, other)


def _of_list(before: list[Any], after: list[Any], path: str) -> Iterator[Difference]:
    was, now = _by_id(before), _by_id(after)
    for id in dict.fromkeys((*was, *now)):
        if id in was and id in now:
            yield from differences(was[id], now[id], f"{path}.{id}")
        else:
            yield _present(was.get(id, _ABSENT), now.get(id, _ABSENT), f"{path}.{id}")
    order = [id for id in was if id in now]
    if order != (other := [id for id in now if id in was]):
        yield Difference(path, "moved", order, other)


def _by_id(items: list[Any]) -> dict[str, Any]:
    return {str(one.get("id")): one for one in items if isinstance(one, dict)}


def _present(before: Any, after: Any, path: str) -> Difference:
    if before is _ABSENT:
        return Difference(path, "added", after=after)
    return Difference(path, "removed", before=before)
