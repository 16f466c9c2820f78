"""Snapshots: the events of a long journal that replay still needs. Never decides when one is taken.

A journal with a snapshot says the same without it: the events that are left out change nothing about the state of a run
or what its program commands. Events keep their numbers, so that what is left out shows as a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from perdure.errors import Corrupt
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    ChunkAppended,
    RunClaimed,
    RunReleased,
    SnapshotTaken,
    StepOutcome,
    StepProgressed,
    StepsHeld,
    StepStarted,
    Trait,
    events_in,
    events_with,
    numbered,
)

_OF_ATTEMPTS = events_with(Trait.ATTEMPT)


class Snapshot(msgspec.Struct, frozen=True):
    """The events of a run before number `seq` that are still needed."""

    run_id: str
    seq: int
    batches: list[Batch]


def needed(batches: Sequence[Batch]) -> list[Batch]:
    """The events that the state of a run and its replay depend on."""
    ended = {event.op for event in events_in(batches) if isinstance(event, StepOutcome)}
    last, counts = max(
        ((n, e.counts) for n, _, e in numbered(batches) if isinstance(e, RunClaimed)), default=(0, False)
    )
    begun = max((n for n, _, event in numbered(batches) if isinstance(event, StepStarted)), default=0)
    held = max((n for n, _, event in numbered(batches) if isinstance(event, StepsHeld)), default=0)

    def keep(number: int, event: AnyEvent) -> bool:
        if type(event) in _OF_ATTEMPTS:
            return getattr(event, "op", "") not in ended or (isinstance(event, StepStarted) and event.attempt == 1)
        if isinstance(event, RunClaimed):
            return event.epoch == 1 or number == last or bool(event.code)
        if isinstance(event, RunReleased):
            return number > last
        if isinstance(event, StepsHeld):
            # An attempt that may be left out ended one that is not counted.
            return number == held and (counts or number > begun)
        return not isinstance(event, SnapshotTaken)

    return _kept(batches, keep)


def audited(batches: Sequence[Batch]) -> list[Batch]:
    """A finished journal without chunks and progress, renumbered from 0 without gaps.

    Attempts and their errors, claims, signals and answers stay, for audits.
    """
    kept = _kept(batches, lambda _, event: not isinstance(event, ChunkAppended | StepProgressed | SnapshotTaken))
    numbered: list[Batch] = []
    seq = 0
    for batch in kept:
        if numbered and numbered[-1].at == batch.at:
            numbered[-1] = Batch(numbered[-1].seq, batch.at, [*numbered[-1].events, *batch.events])
        else:
            numbered.append(Batch(seq, batch.at, batch.events))
        seq += len(batch.events)
    return numbered


def _kept(batches: Sequence[Batch], keep: Callable[[int, AnyEvent], bool]) -> list[Batch]:
    """The kept events, in batches that end where something is left out."""
    kept: list[Batch] = []
    for batch in batches:
        run: list[AnyEvent] = []
        for number, event in enumerate(batch.events, batch.seq):
            if keep(number, event):
                run.append(event)
            elif run:
                kept.append(Batch(number - len(run), batch.at, run))
                run = []
        if run:
            kept.append(batch if len(run) == len(batch.events) else Batch(_end(batch) - len(run), batch.at, run))
    return kept


def _end(batch: Batch) -> int:
    return batch.seq + len(batch.events)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Snapshot).decode


def encode_snapshot(run_id: str, batches: Sequence[Batch]) -> tuple[int, bytes]:
    """A snapshot of all of a journal so far: the number after its last event, and the bytes."""
    seq = _end(batches[-1])
    return seq, _encode(Snapshot(run_id, seq, needed(batches)))


def decode_snapshot(data: bytes, run_id: str, seq: int) -> list[Batch]:
    """The events in a snapshot; raises Corrupt unless it is that of this run at this number."""
    try:
        snapshot = _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Corrupt(f"a snapshot of run_id {run_id}", str(error), run_id) from error
    if (snapshot.run_id, snapshot.seq) != (run_id, seq) or not snapshot.batches or snapshot.batches[0].seq != 0:
        raise Corrupt(f"a snapshot of run_id {run_id}", "it is one of another journal", run_id)
    return snapshot.batches


def newest(batches: Sequence[Batch]) -> SnapshotTaken | None:
    """The last SnapshotTaken in these events."""
    for batch in reversed(batches):
        for event in reversed(batch.events):
            if isinstance(event, SnapshotTaken):
                return event
    return None
