"""Rows of runs as text: first what the indexes are made of, which scripts read, then all of it with a checksum."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from perdure.errors import Corrupt
from perdure.kernel.events import NULL, RunStatus
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Head
from perdure.stores.redis.scripts import Index
from perdure.stores.redis.server import Texts

_row = msgspec.json.Decoder(RunRow)
_index = msgspec.msgpack.Decoder(Index)

PackedRow = tuple[str, Index, int]


def pack(row: RunRow, texts: Texts) -> PackedRow:
    """The arguments of a script that writes a row: its run_id, the fields of the indexes, and its text."""
    index = Index(
        status=row.status.value,
        program=row.program,
        owner=row.owner,
        wake=_moment(row.wake_at),
        finished=_moment(row.finished_at),
        queue=row.queue,
        key=row.queue_key,
        priority=str(row.priority),
        ready=_moment(row.created_at if row.not_before is None else row.not_before),
        began=_moment(row.began_at),
        approvals=row.approvals,
        root=row.root,
        id=row.id,
        incarnation=row.incarnation,
        created=_moment(row.created_at),
        version=row.version,
    )
    packed, body = msgspec.msgpack.encode(index), msgspec.json.encode(row)
    text = b"%04x%s%08x%s" % (len(packed), packed, zlib.crc32(body, zlib.crc32(packed)), body)
    return row.run_id, index, texts.put(text)


def unpack(run_id: str, text: bytes) -> RunRow:
    """The inverse of `pack`; raises Corrupt when the stored text has changed."""
    row = unpack_or_damage(run_id, text)
    if isinstance(row, Corrupt):
        raise row
    return row


def unpack_or_damage(run_id: str, text: bytes | None) -> RunRow | Corrupt:
    """A row, or what is wrong with it: one damaged run must not hide the others."""
    if text is None:
        return Corrupt(f"the row of run_id {run_id}", "it is missing", run_id)
    try:
        size = 4 + int(text[:4], 16)
        packed, checksum, body = text[4:size], text[size : size + 8], text[size + 8 :]
        if zlib.crc32(body, zlib.crc32(packed)) != int(checksum, 16):
            return Corrupt(f"the row of run_id {run_id}", "its checksum does not match", run_id)
        row = _row.decode(body)
    except (ValueError, msgspec.MsgspecError) as error:
        return Corrupt(f"the row of run_id {run_id}", str(error), run_id)
    if row.run_id != run_id:
        return Corrupt(f"the row of run_id {run_id}", f"it is that of run_id {row.run_id}", run_id)
    return row


def head_of(columns: Sequence[bytes | None]) -> Head | None:
    """A head from its fields; None if they cannot be read."""
    next_seq, at, size = columns
    if next_seq is None or at is None or size is None:
        return None
    try:
        return Head(int(next_seq), float(at), int(size))
    except ValueError:
        return None


def listed(run_id: str, text: bytes | None, head: Sequence[bytes | None]) -> tuple[RunRow, Head]:
    """A row with its head. A damaged run is listed too: without its values, and with what is wrong as its reason."""
    row = unpack_or_damage(run_id, text)
    if isinstance(row, Corrupt):
        row = _damaged(run_id, text or b"", str(row))
    return row, head_of(head) or Head(0, row.created_at, 0)


def _damaged(run_id: str, text: bytes, reason: str) -> RunRow:
    """As much of a row as its index still has."""
    status, program, id, root, created = RunStatus.PARKED, "", run_id, "", 0.0
    try:
        index = _index.decode(text[4 : 4 + int(text[:4], 16)])
        status, program, id, root = RunStatus(index.status), index.program, index.id, index.root
        created = float(index.created or 0.0)
    except (ValueError, msgspec.MsgspecError):
        pass
    return RunRow(
        run_id=run_id,
        id=id,
        incarnation=1,
        program=program,
        version="",
        status=status,
        owner=None,
        epoch=0,
        wake_at=None,
        created_at=created if 0 <= created < 1e11 else 0.0,
        finished_at=None,
        tags={},
        input=NULL,
        input_blob="",
        output=NULL,
        output_blob="",
        error=None,
        reason=reason,
        root=root,
    )


def _moment(at: float | None) -> str | None:
    return None if at is None else repr(float(at))
