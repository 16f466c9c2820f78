"""Entries of journals as text: number, time, checksum and events. Damage is reported as in every other store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perdure.errors import Corrupt
from perdure.kernel.events import Batch
from perdure.stores.sqlshared.entries import batches, checksum


def entry(run_id: str, seq: int, at: float, data: bytes) -> bytes:
    """A batch with a checksum of its events and its place."""
    return b"%d %s %08x %s" % (seq, repr(at).encode(), checksum(run_id, seq, at, data), data)


def decode(run_id: str, head: bytes | None, entries: Sequence[bytes], start: int, *, whole: bool) -> list[Batch]:
    """The batches of entries that follow each other from `start` and, if it is the `whole` rest, end at the head."""
    if whole and not entries and head is not None:
        raise Corrupt(f"the journal of run_id {run_id}", "its entries are missing", run_id)
    return batches(run_id, _rows(run_id, head, entries), start, whole)


def _rows(run_id: str, head: bytes | None, entries: Sequence[bytes]) -> Iterator[tuple[Any, ...]]:
    for number, text in enumerate(entries):
        try:
            seq, at, recorded, data = text.split(b" ", 3)
            yield int(seq), float(at), int(recorded, 16), data, None if head is None else int(head)
        except ValueError as error:
            raise Corrupt(f"the journal of run_id {run_id}, in its part {number}", str(error), run_id) from error
