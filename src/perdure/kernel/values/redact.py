"""Take values out of events, rows and capsules, and leave them readable. Knows no store.

Hashes of inputs are removed as well: they would no longer match, and an attacker could use them to confirm a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from perdure.errors import UsageError
from perdure.kernel.commands import RunStep
from perdure.kernel.divergence.recorded_source import source_ids
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    ChildStarted,
    InputReplaced,
    OutcomeKept,
    RunFinished,
    RunForked,
    RunParked,
    RunStarted,
    SnapshotTaken,
    StateSet,
    StepFailed,
    StepStarted,
    StepSucceeded,
)
from perdure.kernel.history.capsule import Capsule
from perdure.kernel.projection import RunRow
from perdure.kernel.values.arguments import names_of as names_of_call
from perdure.kernel.values.limits import blob_id
from perdure.kernel.values.redaction import REDACTED, Redaction, Removed

# The fields of events that hold values of users, and the field that names the blob of an offloaded one.
VALUES = {"value": "blob", "input": "input_blob", "payload": "", "request": "", "progress": "", "output": ""}
# Fields with several values: a list of them, and by op or by key.
CHUNKS, KEYED, ARGUMENTS = "chunks", ("recorded", "state", "values"), "inputs"
# Values that are lists of arguments.
_GIVEN = (RunStarted, InputReplaced, StepStarted, ChildStarted)


def redact(capsule: Capsule, paths: Sequence[str], always: Sequence[str] = ()) -> Capsule:
    """The same run without the values at these paths, and at those of `always`.

    Raises UsageError for one of `paths` that matches nothing: the value that it was meant for would still be there.
    """
    redaction = Redaction((*paths, *always), typed=True)
    if not redaction:
        return capsule
    removed = Removed()
    # Structures hold no values.
    blobs = {id: capsule.blobs[id] for id in source_ids(capsule.batches) if id in capsule.blobs}
    batches = [
        Batch(b.seq, b.at, [without_values(event, redaction, removed, capsule.blobs, blobs) for event in b.events])
        for b in capsule.batches
    ]
    nowhere = [path for path in paths if path not in removed.counts]
    if nowhere:
        raise UsageError(
            f"redact={nowhere[0]!r} is nowhere in run {capsule.id!r}; nothing was written, because the value that it "
            "was meant for would still be in the file"
        )
    batches = [
        Batch(b.seq, b.at, [_anonymous(without_texts(e, redaction, removed)) for e in b.events]) for b in batches
    ]
    taken = tuple(text for text in redaction.texts if text in removed.counts)
    return replace(capsule, batches=batches, blobs=blobs, redacted=taken)


def _anonymous(event: AnyEvent) -> AnyEvent:
    """An event for a capsule: a snapshot repeats the values, and a reason may show arguments in many words."""
    if isinstance(event, SnapshotTaken):
        return replace(event, blob="")
    if isinstance(event, RunParked) and event.kind in ("diverged", "undecodable"):
        return replace(event, reason=f"{event.kind} ({REDACTED})", divergence=None)
    return event


def taken_of_call(command: RunStep, started: RunStarted | None, redaction: Redaction) -> Removed:
    """What is taken out of the arguments of a step and of the input of its run: an error of the step may repeat it."""
    removed = Removed()
    if redaction:
        names = names_of_call(command)
        _ = redaction.value(bytes(command.inputs), command.op, arguments=names, removed=removed)
        if started is not None:
            _ = without_values(started, redaction, removed)
    return removed


def without_values(
    event: AnyEvent,
    redaction: Redaction,
    removed: Removed,
    old: Mapping[str, bytes] | None = None,
    new: MutableMapping[str, bytes] | None = None,
) -> AnyEvent:
    """An event without the values that are taken out; with `old` and `new` also those in blobs."""
    changes: dict[str, Any] = {}
    names = names_of(event)
    if isinstance(event, StepStarted | ChildStarted | OutcomeKept):
        changes["inputs"] = ""
    for field, blob_field in VALUES.items():
        value = getattr(event, field, None)
        if not isinstance(value, Raw):
            continue
        blob = getattr(event, blob_field, "") if blob_field else ""
        if blob and (old is None or new is None):
            continue
        data = value_of(event, field, old[blob] if blob and old is not None else bytes(value), redaction, removed)
        if blob and new is not None:
            changes[blob_field] = blob_id(data)
            if isinstance(event, StepSucceeded | OutcomeKept):
                changes["digest"] = ""
            new[changes[blob_field]] = data
        elif data != value:
            changes[field] = Raw(data)
    if chunks := getattr(event, CHUNKS, ()):
        changes[CHUNKS] = tuple(Raw(redaction.value(bytes(chunk), *names, removed=removed)) for chunk in chunks)
    for field in KEYED:
        if values := getattr(event, field, None):
            changes[field] = {key: Raw(redaction.keyed(key, bytes(value), removed)) for key, value in values.items()}
    if isinstance(event, RunForked) and event.inputs:
        changes[ARGUMENTS] = {
            op: _arguments(redaction.value(msgspec.json.encode(given), op, removed=removed))
            for op, given in event.inputs.items()
        }
    if isinstance(event, RunStarted) and event.tags:
        changes["tags"] = redaction.named(event.tags)
    return replace(event, **changes) if changes else event


_arguments = msgspec.json.Decoder(dict[str, Raw]).decode


def value_of(event: AnyEvent, field: str, data: bytes, redaction: Redaction, removed: Removed | None = None) -> bytes:
    """A value of an event, without what is taken out of it."""
    if isinstance(event, StateSet):
        return redaction.keyed(event.key, data, removed)
    arguments = getattr(event, "names", ()) if field == "input" and isinstance(event, _GIVEN) else None
    return redaction.value(data, *names_of(event), arguments=arguments, removed=removed)


def without_texts(event: AnyEvent, redaction: Redaction, removed: Removed) -> AnyEvent:
    """An event without what was taken out of values in its texts: reasons and errors."""
    changes: dict[str, Any] = {}
    if reason := getattr(event, "reason", ""):
        changes["reason"] = redaction.text(reason, removed)
    if (error := getattr(event, "error", None)) is not None:
        changes["error"] = redaction.failure(error, removed)
    if isinstance(event, RunParked) and event.divergence is not None:
        plain = msgspec.to_builtins(event.divergence)
        changes["divergence"] = msgspec.convert(redaction.texts_in(plain, removed), type(event.divergence))
    return replace(event, **changes) if changes else event


def names_of(event: AnyEvent) -> tuple[str, ...]:
    """What the values of an event can be called by."""
    if isinstance(event, RunStarted | InputReplaced):
        return ("input",)
    op: str = getattr(event, "op", "")
    name: str = getattr(event, "name", "") or getattr(event, "key", "")
    ends = isinstance(event, RunFinished) or (isinstance(event, StepFailed) and event.bailed)
    return tuple(one for one in ("output" if ends else "", op, name) if one)


def redacted_row(row: RunRow, redaction: Redaction, removed: Removed | None = None) -> RunRow:
    """A row without what is taken out of its values and texts."""
    if not redaction:
        return row
    removed = Removed() if removed is None else removed
    input = Raw(redaction.value(bytes(row.input), "input", arguments=(), removed=removed))
    output = Raw(redaction.value(bytes(row.output), "output", removed=removed))
    return replace(
        row,
        input=input,
        output=output,
        tags=redaction.named(row.tags),
        error=redaction.failure(row.error, removed),
        reason=redaction.text(row.reason, removed),
    )
