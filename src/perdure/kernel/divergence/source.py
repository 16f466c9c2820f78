"""The source of a program as it was when a run used it. Data only; `authoring/code/source.py` reads it.

A program that is made of data has a structure in its place: `authoring/dataflow/manifest.py` reads that.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from functools import lru_cache
from hashlib import sha256

import msgspec


class SourcePart(msgspec.Struct, frozen=True):
    """A function: its file, its first line, its qualified name, and its text."""

    file: str
    line: int
    name: str
    text: str


class Source(msgspec.Struct, frozen=True, omit_defaults=True):
    """A program's function, and then the functions that it reaches outside of steps; or its structure, as JSON.

    `types` is the table of what its runs have stored, see kernel/values/type_table.py.
    """

    parts: tuple[SourcePart, ...] = ()
    structure: bytes = b""
    types: str = ""

    def encode(self) -> bytes:
        """As it is stored."""
        return self.structure or msgspec.json.encode(self)

    def of(self, name: str) -> Source:
        """The same with this function as the program's own; empty if it has none of that name."""
        own = [part for part in self.parts if part.name == name]
        rest = (part for part in self.parts if part.name != name)
        return Source((*own, *rest), types=self.types) if own else NO_SOURCE

    @lru_cache(1024)  # noqa: B019 (sources live as long as their programs)
    def digest(self) -> str:
        """The id of the blob that holds it; empty if there is nothing to hold."""
        return sha256(self.encode()).hexdigest() if self.parts or self.structure else ""


NO_SOURCE = Source()


def matched(old: Source, new: Source) -> Iterator[tuple[SourcePart | None, SourcePart | None]]:
    """All functions, as they were and as they are, as far as they are in both; the program's own is the first."""
    now = {part.name: part for part in new.parts}
    for number, was in enumerate(old.parts):
        part = now.get(was.name) if number or not new.parts else new.parts[0]
        if part is not None:
            now.pop(part.name, None)
        yield was, part
    yield from ((None, part) for part in now.values())


def pairs(old: Source, new: Source) -> Iterator[tuple[SourcePart, SourcePart]]:
    """The functions that differ, as they were and as they are."""
    for was, part in matched(old, new):
        if was is not None and part is not None and part.text != was.text:
            yield was, part


def difference(old: Source, new: Source) -> str:
    """How the functions of two sources differ, with the lines of each; empty if one of them is not known."""
    lines: list[str] = []
    for was, part in pairs(old, new):
        diff = unified_diff(was.text.splitlines(), part.text.splitlines(), n=1, lineterm="")
        for line in list(diff)[2:]:
            lines.append(_moved(line, was, part) if line.startswith("@@ ") else line)
    return "\n".join(lines)


def _moved(head: str, old: SourcePart, new: SourcePart) -> str:
    """The head of a hunk with the file and the lines in it."""
    _, was, now, _ = head.split(" ", 3)
    first, second = (abs(int(place.partition(",")[0])) for place in (was, now))
    return f"@@ {old.file}:{old.line + first - 1}, now {new.file}:{new.line + second - 1} @@ {new.name}"


def decode_source(data: bytes) -> Source:
    """A stored source. One that another version of perdure wrote differently is empty."""
    try:
        found = msgspec.json.decode(data, type=Source)
    except msgspec.DecodeError:
        return NO_SOURCE
    return found if found.parts else Source(structure=data, types=found.types)
