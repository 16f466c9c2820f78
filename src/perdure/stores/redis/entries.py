"""Entries of journals as text: number, time, checksum and events. Says what is damaged."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from perdure.errors import Corrupt
from perdure.kernel.events import Batch, decode_events


def entry(run_id: str, seq: int, at: float, data: bytes) -> bytes:
    """A batch with what proves that it is whole and in its place."""
    place = b"%d %s" % (seq, repr(at).encode())
    return b"%s %08x %s" % (place, _checksum(run_id, place, data), data)


def batches(run_id: str, head: bytes | None, entries: Sequence[bytes], start: int, *, whole: bool) -> list[Batch]:
    """The batches that must follow each other from `start` and, if they are the `whole` rest, end at the head."""
    found: list[Batch] = []
    ends = start
    for text in entries:
        batch = _batch(run_id, ends, text)
        if batch.seq > ends or (found and batch.seq != ends):
            raise _damage(run_id, ends, "entries are missing")
        ends = batch.seq + len(batch.events)
        found.append(batch)
    if whole and found and head != str(ends).encode():
        said = "is missing" if head is None else f"says {head.decode(errors='replace')}"
        raise _damage(run_id, ends, f"it ends here, and its head {said}")
    if whole and not found and head not in (None, b"0"):
        raise _damage(run_id, 0, "its entries are gone")
    return found


def cut(found: list[Batch], start: int, limit: int | None) -> list[Batch]:
    """Trim batches to the events from `start` on, at most `limit`."""
    result, left = [], limit
    for batch in found:
        skip = max(0, start - batch.seq)
        events = batch.events[skip:] if left is None else batch.events[skip : skip + left]
        if events:
            result.append(batch if len(events) == len(batch.events) else Batch(batch.seq + skip, batch.at, events))
            if left is not None:
                left -= len(events)
        if left == 0:
            break
    return result


def _batch(run_id: str, expected: int, text: bytes) -> Batch:
    try:
        seq, at, checksum, data = text.split(b" ", 3)
        if int(checksum, 16) != _checksum(run_id, b"%s %s" % (seq, at), data):
            raise _damage(run_id, expected, "its checksum does not match")
        return Batch(int(seq), float(at), decode_events(data))
    except (ValueError, msgspec.MsgspecError) as error:
        raise _damage(run_id, expected, str(error)) from error


def _checksum(run_id: str, place: bytes, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(place, zlib.crc32(run_id.encode())))


def _damage(run_id: str, seq: int, reason: str) -> Corrupt:
    return Corrupt(f"the journal of run_id {run_id} at entry {seq}", reason, run_id)
