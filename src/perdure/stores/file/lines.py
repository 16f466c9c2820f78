"""The lines of a file store and their checksums. Touches no file.

The file of a run has a line per append: its events, and the fields of each row that changed. The log of commits has a
line per commit, with the lines that it wrote. Each ends with a checksum of what stands before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal
from zlib import crc32

import msgspec
from msgspec import Raw

from perdure.kernel.events import Batch, encode_events
from perdure.kernel.projection import RunRow

CHECK = b',"check":"'

Fields = dict[str, Raw]


class Written(msgspec.Struct, frozen=True):
    """A batch of events. `when` is `at` for people; no code reads it."""

    seq: int
    at: float
    events: Raw
    when: str = ""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One append to the file of a run. `replaced`: the rows of earlier lines are void."""

    batches: list[Written] = []
    rows: dict[str, Fields] = {}
    replaced: bool = False


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """The change that a commit makes to the file of one run. `offset` is the position of its line."""

    run: str
    kind: Literal["append", "rewrite", "remove"] = "append"
    offset: int = 0
    line: Raw = Raw(b"null")


class Commit(msgspec.Struct, frozen=True):
    """One commit: all of these changes or none."""

    changes: list[Change]


_line = msgspec.json.Decoder(Line)
_commit = msgspec.json.Decoder(Commit)
_fields = msgspec.json.Decoder(Fields)
_row = msgspec.json.Decoder(RunRow)


def written(batches: Sequence[Batch]) -> list[Written]:
    """Batches as they are written."""
    return [Written(b.seq, b.at, Raw(encode_events(b.events)), _when(b.at)) for b in batches]


def _when(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return ""


def fields(row: RunRow) -> Fields:
    """A row, field by field."""
    return _fields.decode(msgspec.json.encode(row))


def changed(before: RunRow | None, after: RunRow) -> Fields:
    """The fields of a row that have changed."""
    old = fields(before) if before is not None else {}
    return {name: value for name, value in fields(after).items() if old.get(name) != value}


def merged(before: RunRow | None, change: Fields) -> RunRow:
    """The row after a change; raises ValueError if it is not a row any more."""
    try:
        return _row.decode(msgspec.json.encode((fields(before) if before is not None else {}) | change))
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def sealed(content: Line | Commit) -> bytes:
    """One line with its checksum, without its end."""
    body = msgspec.json.encode(content)
    if b"\n" in body or b"\r" in body:
        # These are between tokens: inside a string they are escaped.
        body = body.replace(b"\n", b" ").replace(b"\r", b" ")
    start = body[:-1] if body != b"{}" else b'{"batches":[]'
    return start + CHECK + b'%08x"}' % crc32(start)


def read_line(data: bytes) -> Line:
    """The inverse of `sealed`; raises ValueError when the bytes are something else."""
    try:
        return _line.decode(_opened(data))
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def read_commit(data: bytes) -> Commit:
    """The inverse of `sealed`; raises ValueError when the bytes are something else."""
    try:
        return _commit.decode(_opened(data))
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def _opened(data: bytes) -> bytes:
    start, mark, check = data.rpartition(CHECK)
    if not mark or check != b'%08x"}' % crc32(start):
        raise ValueError("its checksum does not match")
    return data
