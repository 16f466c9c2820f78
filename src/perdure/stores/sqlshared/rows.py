"""Rows of runs to and from SQL. Text is read as bytes: damaged text would fail the whole statement, not its row.

What a column is stands in kernel/projection.py. Everything here and in the statements of SQLite and PostgreSQL is made
from that at import; no text of a user is ever part of a statement.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import msgspec
from msgspec import Raw

from perdure.errors import Corrupt
from perdure.kernel.events import NULL, RunStatus
from perdure.kernel.projection import COLUMNS, Changes, Kind, RunRow
from perdure.kernel.values.failures import Failure
from perdure.ports.journal import Head

_NAMES = tuple(column.name for column in COLUMNS)
# The columns of the table; those of the head follow them in a joined row.
TABLE = (*_NAMES, "checksum")
WIDTH = len(TABLE)


def position(name: str) -> int:
    """The position of a column in a row, from 0."""
    return TABLE.index(name)


def compose(statement: str, **parts: str) -> str:
    """A statement with its parts, which stand in it as `<part>`. At import, from constants of this package alone."""
    for name, text in parts.items():
        statement = statement.replace(f"<{name}>", text)
    return statement


def selects(columns: str) -> tuple[str, str]:
    """The statements that read rows, alone and with their heads: the head of a child is that of its root."""
    run = compose("select <columns> from perdure_runs r", columns=columns)
    and_head = """
        select <columns>, h.next_seq, h.at, h.size from perdure_runs r
        left join perdure_heads h on h.run_id = case r.root when '' then r.run_id else r.root end
    """
    return run, compose(and_head, columns=columns)


def _changing(*when: Changes) -> tuple[str, ...]:
    return *(column.name for column in COLUMNS if column.changes in when), "checksum"


# The columns that an append updates: in the row of its run, in that of a child, and with another input.
CHANGED_IN_RUN = _changing(Changes.IN_ROOTS, Changes.IN_ALL)
CHANGED_IN_CHILD = _changing(Changes.IN_ALL)
CHANGED_WITH_INPUT = _changing(Changes.WITH_INPUT)

_AS_TEXT = {column.name for column in COLUMNS if column.kind in (Kind.TEXT, Kind.JSON)}
_COLUMNS = [f"cast(r.{name} as blob)" if name in _AS_TEXT else f"r.{name}" for name in TABLE]
RUN, RUN_AND_HEAD = selects(", ".join(_COLUMNS))
# What a list may leave out: it is most of a row.
VALUES = ("input", "output")
_NO_VALUES = ("cast('null' as blob)" if n in VALUES else part for n, part in zip(TABLE, _COLUMNS, strict=True))
WITHOUT_VALUES = selects(", ".join(_NO_VALUES))[1]

_ID, _STATUS = position("id"), position("status")
_TEXTS = [position(column.name) for column in COLUMNS if column.kind is Kind.TEXT]
_JSON = [position(column.name) for column in COLUMNS if column.kind is Kind.JSON]
_encode = msgspec.json.encode
_failure = msgspec.json.Decoder(Failure).decode
_READ_JSON: dict[str, Callable[[Any], Any]] = {
    "tags": msgspec.json.Decoder(dict[str, str]).decode,
    "error": lambda data: None if data is None else _failure(data),
}
_READERS = [(i, _READ_JSON.get(TABLE[i], Raw)) for i in _JSON]


def run_bindings(row: RunRow) -> tuple[Any, ...]:
    """The bindings of an insert, in the order of the table's columns."""
    values: list[Any] = list(msgspec.structs.astuple(row))
    values[_STATUS] = str.__str__(row.status)
    parts = []
    for i in _JSON:
        value = values[i]
        if value is None:
            parts.append(b"")
        else:
            data = bytes(value) if type(value) is Raw else _encode(value)
            parts.append(data)
            values[i] = data.decode()
    values.append(_checksum(values, parts))
    return tuple(values)


def run_row(columns: Sequence[Any]) -> RunRow:
    """The inverse of `run_bindings`; raises Corrupt when stored values changed."""
    row = run_row_or_damage(columns)
    if isinstance(row, Corrupt):
        raise row
    return row


def run_row_or_damage(columns: Sequence[Any], *, checked: bool = True) -> RunRow | Corrupt:
    """A row, or what is wrong with it: one damaged run must not hide the others."""
    try:
        values: list[Any] = [*columns[: WIDTH - 1]]
        for i in _TEXTS:
            if values[i] is not None:
                values[i] = values[i].decode()
        crc = _checksum(values, [values[i] or b"" for i in _JSON]) if checked else columns[WIDTH - 1]
        values[_STATUS] = RunStatus(values[_STATUS])
        for i, read in _READERS:
            values[i] = read(values[i])
        if crc == columns[WIDTH - 1]:
            return RunRow(*values)
        reason = "its checksum does not match"
    except (ValueError, TypeError, AttributeError) as problem:  # damaged text, JSON or numbers
        reason = str(problem)
    return Corrupt(f"the row of run {_text(columns[_ID])!r}", reason, run_id=_text(columns[0]))


def run_and_head(columns: Sequence[Any]) -> tuple[RunRow, Head]:
    """A joined row of runs and heads; raises Corrupt when either is not what was written."""
    row = run_row(columns)
    if columns[WIDTH] is None:
        raise Corrupt(f"the journal of run {row.id!r}", "its head is missing", run_id=row.run_id)
    if not _is_moment(columns[WIDTH + 1]):
        raise Corrupt(f"the journal of run {row.id!r}", "its head has no time", run_id=row.run_id)
    return row, Head(*columns[WIDTH:])


def listed(columns: Sequence[Any], *, checked: bool = True) -> tuple[RunRow, Head]:
    """As `run_and_head`, but a damaged run is listed too: without its values, and with what is wrong as its reason."""
    row = run_row_or_damage(columns, checked=checked)
    if isinstance(row, Corrupt):
        known = {status.value: status for status in RunStatus}
        # A damaged text may be a number or null: it is shown as it is.
        values: list[Any] = [_text(c) if i in _TEXTS else c for i, c in enumerate(columns[: WIDTH - 1])]
        shown = RunRow(*values)
        row = msgspec.structs.replace(
            shown,
            status=known.get(shown.status, RunStatus.PARKED),
            owner=None,
            created_at=shown.created_at if _is_moment(shown.created_at) else 0.0,
            finished_at=None,
            tags={},
            input=NULL,
            input_blob="",
            output=NULL,
            output_blob="",
            error=None,
            reason=str(row),
        )
    head = Head(*columns[WIDTH:]) if _is_moment(columns[WIDTH + 1]) else Head(0, row.created_at, 0)
    return row, head


def _is_moment(column: object) -> bool:
    return isinstance(column, float) and 0 <= column < 1e11  # later than any date that can be shown


def _text(column: object) -> str:
    return column.decode(errors="replace") if isinstance(column, bytes) else str(column)


def _all_of(*names: str) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    return itemgetter(*map(position, names))


# The order in which a checksum takes the columns, which databases rely on. Columns that are not named here follow.
_IDENTITY = ("run_id", "id", "incarnation", "program", "version", "status", "owner", "epoch")
_PLAIN = ("input_blob", "output_blob", "reason")
_FAMILY = ("parent", "root", "continued_as", "forked_from")
_QUEUE = ("queue", "queue_key", "priority", "approvals")
_identity, _plain, _family, _queue = _all_of(*_IDENTITY), _all_of(*_PLAIN), _all_of(*_FAMILY), _all_of(*_QUEUE)
_times = _all_of(*(column.name for column in COLUMNS if column.kind is Kind.TIME))
_MORE = [
    position(column.name)
    for column in COLUMNS
    if column.kind in (Kind.TEXT, Kind.INTEGER) and column.name not in (*_IDENTITY, *_PLAIN, *_FAMILY, *_QUEUE)
]


def _checksum(values: Sequence[Any], parts: Iterable[bytes]) -> int:
    """Covers every column, so that none can change unnoticed; `parts` are the JSON columns."""
    times = [None if at is None else float(at) for at in _times(values)]
    covered = (_identity(values), times, *_plain(values), _family(values), _queue(values), *[values[i] for i in _MORE])
    return zlib.crc32(b"\0".join((repr(covered).encode(), *parts)))
