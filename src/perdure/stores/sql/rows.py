"""Rows of runs to and from SQL."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
from msgspec import Raw

from perdure.errors import Corrupt
from perdure.kernel.events import RunStatus
from perdure.kernel.failures import Failure
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Head

RUN = """
    select r.run_id, r.id, r.incarnation, r.program, r.version, r.status, r.owner, r.epoch, r.wake_at, r.created_at,
        r.finished_at, cast(r.tags as blob), cast(r.input as blob), r.input_blob, cast(r.output as blob), r.output_blob,
        cast(r.error as blob), r.reason, r.checksum
    from perdure_runs r
"""
RUN_AND_HEAD = """
    select r.run_id, r.id, r.incarnation, r.program, r.version, r.status, r.owner, r.epoch, r.wake_at, r.created_at,
        r.finished_at, cast(r.tags as blob), cast(r.input as blob), r.input_blob, cast(r.output as blob), r.output_blob,
        cast(r.error as blob), r.reason, r.checksum, h.next_seq, h.at, h.size
    from perdure_runs r join perdure_heads h using (run_id)
"""

_encode = msgspec.json.encode
_failure = msgspec.json.Decoder(Failure)
_tags = msgspec.json.Decoder(dict[str, str])


def run_bindings(row: RunRow) -> tuple[Any, ...]:
    """The bindings of an insert, in the order of the table's columns."""
    input, output = bytes(row.input).decode(), bytes(row.output).decode()
    error = _encode(row.error).decode() if row.error is not None else None
    tags = _encode(row.tags).decode() if row.tags else "{}"
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
        input,
        row.input_blob,
        output,
        row.output_blob,
        error,
        row.reason,
        _checksum(tags.encode(), bytes(row.input), bytes(row.output), None if error is None else error.encode()),
    )


def run_row(columns: tuple[Any, ...]) -> RunRow:
    """The inverse of `run_bindings`; raises Corrupt when stored values changed."""
    row = run_row_or_damage(columns)
    if isinstance(row, Corrupt):
        raise row
    return row


def run_row_or_damage(columns: tuple[Any, ...]) -> RunRow | Corrupt:
    """A row, or what is wrong with it: one damaged run must not hide the others."""
    (run_id, id, incarnation, program, version, status, owner, epoch, wake_at, created_at, finished_at) = columns[:11]
    tags, input, input_blob, output, output_blob, error, reason, checksum = columns[11:19]
    if _checksum(tags, input, output, error) != checksum:
        return Corrupt(f"the row of run {id!r}", "its checksum does not match", run_id=run_id)
    return RunRow(
        run_id=run_id,
        id=id,
        incarnation=incarnation,
        program=program,
        version=version,
        status=RunStatus(status),
        owner=owner,
        epoch=epoch,
        wake_at=wake_at,
        created_at=created_at,
        finished_at=finished_at,
        tags=_tags.decode(tags),
        input=Raw(input),
        input_blob=input_blob,
        output=Raw(output),
        output_blob=output_blob,
        error=_failure.decode(error) if error is not None else None,
        reason=reason,
    )


def run_and_head(columns: tuple[Any, ...]) -> tuple[RunRow, Head]:
    """A joined row of runs and heads."""
    return run_row(columns[:19]), Head(*columns[19:])


def listed(columns: tuple[Any, ...]) -> tuple[RunRow, Head]:
    """As `run_and_head`, but a damaged run is listed too: without its values, and with what is wrong as its reason."""
    row = run_row_or_damage(columns[:19])
    if isinstance(row, Corrupt):
        null = b"null"
        known = (*columns[:11], b"{}", null, "", null, "", None, str(row), _checksum(b"{}", null, null, None))
        row = run_row(known)
    return row, Head(*columns[19:])


def _checksum(tags: bytes, input: bytes, output: bytes, error: bytes | None) -> int:
    crc = zlib.crc32(output, zlib.crc32(input, zlib.crc32(tags)))
    return zlib.crc32(error, crc) if error is not None else crc
