"""Journal entries as both SQL stores keep them: a checksum of events and place, and how damage is reported.

Reads and writes nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from perdure.errors import Corrupt
from perdure.kernel.events import DECODE, Batch


def checksum(run_id: str, seq: int, at: float, data: bytes) -> int:
    """Covers the events and their place, so that neither can change unnoticed."""
    return zlib.crc32(data, zlib.crc32(f"{run_id} {seq} {at!r}".encode()))


def batches(run_id: str, rows: Iterable[Sequence[Any]], start: int, whole: bool) -> list[Batch]:
    """The batches of rows that must follow each other from `start` and, if it is the `whole` rest, end at the head."""
    found: list[Batch] = []
    ends = start
    head: object = None
    for seq, at, recorded, data, next_seq in rows:
        batch, head = one_batch(run_id, seq, at, recorded, data), next_seq
        if batch.seq > ends or (found and batch.seq != ends):
            raise _damage(run_id, ends, "entries are missing")
        ends = batch.seq + len(batch.events)
        found.append(batch)
    if whole and found and head != ends:
        raise _damage(run_id, ends, f"it ends here, and its head says {head}")
    return found


def journals(rows: Iterable[Sequence[Any]]) -> dict[str, list[Batch] | Exception]:
    """Whole journals by rows that begin with their run_id; a damaged journal is returned as its error."""
    found: dict[str, list[Batch] | Exception] = {}
    for run_id, entries in groupby(rows, key=itemgetter(0)):
        try:
            found[run_id] = batches(run_id, [row[1:] for row in entries], 0, whole=True)
        except Corrupt as error:
            found[run_id] = error
    return found


def one_batch(run_id: str, seq: int, at: float, recorded: int, data: bytes) -> Batch:
    """The batch of an entry; raises Corrupt when it is not what was written."""
    try:
        if checksum(run_id, seq, at, data) != recorded:
            raise _damage(run_id, seq, "its checksum does not match")
        return Batch(seq, at, DECODE(data))
    except RecursionError:
        raise _damage(run_id, seq, "its values are nested too deeply") from None
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise _damage(run_id, seq, str(error)) from error


def _damage(run_id: str, seq: int, reason: str) -> Corrupt:
    return Corrupt(f"the journal of run_id {run_id} at entry {seq}", reason, run_id)


def cut(batches: list[Batch], start: int, limit: int | None) -> list[Batch]:
    """Trim batches to the events from `start` on, at most `limit`."""
    if limit is None and (not batches or start <= batches[0].seq):
        return batches
    result, left = [], limit
    for batch in batches:
        skip = max(0, start - batch.seq)
        events = batch.events[skip:] if left is None else batch.events[skip : skip + left]
        if events:
            result.append(batch if len(events) == len(batch.events) else Batch(batch.seq + skip, batch.at, events))
            if left is not None:
                left -= len(events)
        if left == 0:
            break
    return result
