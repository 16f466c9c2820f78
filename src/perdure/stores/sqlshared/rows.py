"""Rows of runs to and from SQL. Text is read as bytes: damaged text would fail the whole statement, not its row."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
from msgspec import Raw

from perdure.errors import Corrupt
from perdure.kernel.events import NULL, RunStatus
from perdure.kernel.projection import RunRow
from perdure.kernel.values.failures import Failure
from perdure.ports.journal import Head

RUN = """
    select cast(r.run_id as blob), cast(r.id as blob), r.incarnation, cast(r.program as blob), cast(r.version as blob),
        cast(r.status as blob), cast(r.owner as blob), r.epoch, r.wake_at, r.created_at, r.finished_at,
        cast(r.tags as blob), cast(r.input as blob), cast(r.input_blob as blob), cast(r.output as blob),
        cast(r.output_blob as blob), cast(r.error as blob), cast(r.reason as blob),
        cast(r.parent as blob), cast(r.root as blob), cast(r.queue as blob), cast(r.queue_key as blob), r.priority,
        r.not_before, r.began_at, cast(r.continued_as as blob), r.approvals, cast(r.forked_from as blob),
        r.checksum
    from perdure_runs r
"""
RUN_AND_HEAD = """
    select cast(r.run_id as blob), cast(r.id as blob), r.incarnation, cast(r.program as blob), cast(r.version as blob),
        cast(r.status as blob), cast(r.owner as blob), r.epoch, r.wake_at, r.created_at, r.finished_at,
        cast(r.tags as blob), cast(r.input as blob), cast(r.input_blob as blob), cast(r.output as blob),
        cast(r.output_blob as blob), cast(r.error as blob), cast(r.reason as blob),
        cast(r.parent as blob), cast(r.root as blob), cast(r.queue as blob), cast(r.queue_key as blob), r.priority,
        r.not_before, r.began_at, cast(r.continued_as as blob), r.approvals, cast(r.forked_from as blob),
        r.checksum,
        h.next_seq, h.at, h.size
    from perdure_runs r left join perdure_heads h on h.run_id = case r.root when '' then r.run_id else r.root end
"""

_TEXTS = (0, 1, 3, 4, 13, 15, 17, 18, 19, 20, 21, 25, 27)
# How many columns a row of runs has; those of the head follow.
WIDTH = 29
_encode = msgspec.json.encode
_failure = msgspec.json.Decoder(Failure)
_tags = msgspec.json.Decoder(dict[str, str])


def run_bindings(row: RunRow) -> tuple[Any, ...]:
    """The bindings of an insert, in the order of the table's columns."""
    tags = _encode(row.tags).decode() if row.tags else "{}"
    error = _encode(row.error).decode() if row.error is not None else None
    return (
        row.run_id,
        row.id,
        row.incarnation,
        row.program,
        row.version,
        row.status.value,
        row.owner,
        row.epoch,
        row.wake_at,
        row.created_at,
        row.finished_at,
        tags,
        bytes(row.input).decode(),
        row.input_blob,
        bytes(row.output).decode(),
        row.output_blob,
        error,
        row.reason,
        row.parent,
        row.root,
        row.queue,
        row.queue_key,
        row.priority,
        row.not_before,
        row.began_at,
        row.continued_as,
        row.approvals,
        row.forked_from,
        _checksum(row, tags.encode(), None if error is None else error.encode()),
    )


def run_row(columns: tuple[Any, ...]) -> RunRow:
    """The inverse of `run_bindings`; raises Corrupt when stored values changed."""
    row = run_row_or_damage(columns)
    if isinstance(row, Corrupt):
        raise row
    return row


def run_row_or_damage(columns: tuple[Any, ...]) -> RunRow | Corrupt:
    """A row, or what is wrong with it: one damaged run must not hide the others."""
    tags, error, checksum = columns[11], columns[16], columns[WIDTH - 1]
    try:
        row = _row(columns, "strict", RunStatus(columns[5].decode()), _tags.decode(tags), error)
        if _checksum(row, tags, error) == checksum:
            return row
        reason = "its checksum does not match"
    except (ValueError, TypeError, AttributeError) as problem:  # text, JSON or a number that is none any more
        reason = str(problem)
    return Corrupt(f"the row of run {_text(columns[1])!r}", reason, run_id=_text(columns[0]))


def run_and_head(columns: tuple[Any, ...]) -> tuple[RunRow, Head]:
    """A joined row of runs and heads; raises Corrupt when either is not what was written."""
    row = run_row(columns[:WIDTH])
    if columns[WIDTH] is None:
        raise Corrupt(f"the journal of run {row.id!r}", "its head is missing", run_id=row.run_id)
    if not _is_moment(columns[WIDTH + 1]):
        raise Corrupt(f"the journal of run {row.id!r}", "its head has no time", run_id=row.run_id)
    return row, Head(*columns[WIDTH:])


def listed(columns: tuple[Any, ...]) -> tuple[RunRow, Head]:
    """As `run_and_head`, but a damaged run is listed too: without its values, and with what is wrong as its reason."""
    row = run_row_or_damage(columns[:WIDTH])
    if isinstance(row, Corrupt):
        known = {status.value.encode(): status for status in RunStatus}
        # A text may be a number or null by now: it is shown as whatever it is.
        shown = [_text(c).encode() if i in _TEXTS else c for i, c in enumerate(columns)]
        shown[6], shown[12], shown[14] = None, b"null", b"null"
        damaged = _row(tuple(shown), "replace", known.get(columns[5], RunStatus.PARKED), {}, None)
        created = columns[9] if _is_moment(columns[9]) else 0.0
        row = msgspec.structs.replace(
            damaged,
            created_at=created,
            finished_at=None,
            input=NULL,
            input_blob="",
            output=NULL,
            output_blob="",
            reason=str(row),
        )
    head = Head(*columns[WIDTH:]) if _is_moment(columns[WIDTH + 1]) else Head(0, row.created_at, 0)
    return row, head


def _row(columns: tuple[Any, ...], errors: str, status: RunStatus, tags: dict[str, str], error: bytes | None) -> RunRow:
    owner = columns[6]
    return RunRow(
        run_id=columns[0].decode(errors=errors),
        id=columns[1].decode(errors=errors),
        incarnation=columns[2],
        program=columns[3].decode(errors=errors),
        version=columns[4].decode(errors=errors),
        status=status,
        owner=None if owner is None else owner.decode(errors=errors),
        epoch=columns[7],
        wake_at=columns[8],
        created_at=columns[9],
        finished_at=columns[10],
        tags=tags,
        input=Raw(columns[12]),
        input_blob=columns[13].decode(errors=errors),
        output=Raw(columns[14]),
        output_blob=columns[15].decode(errors=errors),
        error=_failure.decode(error) if error is not None else None,
        reason=columns[17].decode(errors=errors),
        parent=columns[18].decode(errors=errors),
        root=columns[19].decode(errors=errors),
        queue=columns[20].decode(errors=errors),
        queue_key=columns[21].decode(errors=errors),
        priority=columns[22],
        not_before=columns[23],
        began_at=columns[24],
        continued_as=columns[25].decode(errors=errors),
        approvals=columns[26],
        forked_from=columns[27].decode(errors=errors),
    )


def _is_moment(column: object) -> bool:
    return isinstance(column, float) and 0 <= column < 1e11  # later than any date that can be shown


def _text(column: object) -> str:
    return column.decode(errors="replace") if isinstance(column, bytes) else str(column)


def _checksum(row: RunRow, tags: bytes, error: bytes | None) -> int:
    """Covers every column, so that none can change unnoticed."""
    plain = (row.run_id, row.id, row.incarnation, row.program, row.version, row.status.value, row.owner, row.epoch)
    moments = (row.wake_at, row.created_at, row.finished_at, row.not_before, row.began_at)
    times = [None if at is None else float(at) for at in moments]
    family = (row.parent, row.root, row.continued_as, row.forked_from)
    queued = (row.queue, row.queue_key, row.priority, row.approvals)
    crc = zlib.crc32(repr((plain, times, row.input_blob, row.output_blob, row.reason, family, queued)).encode())
    for part in (tags, bytes(row.input), bytes(row.output), error or b""):
        crc = zlib.crc32(part, zlib.crc32(b"\0", crc))
    return crc
