"""Remove values from a capsule by path, and leave it readable. Knows no store.

A redacted value keeps its type: a text becomes `[redacted]`, a number 0, and a list keeps its length, so that the
program's types still decode it. Hashes of inputs are removed as well: they would no longer match, and an attacker could
use them to confirm a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from perdure.errors import UsageError
from perdure.kernel.divergence.repair import source_ids
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
    StepFailed,
    StepStarted,
    StepSucceeded,
)
from perdure.kernel.history.capsule import Capsule
from perdure.kernel.ids import op_name
from perdure.kernel.values.limits import blob_id

REDACTED = "[redacted]"
_PART = re.compile(r"\.\.(?P<deep>[^.\[\]]+)|\.(?P<key>[^.\[\]]+)|\[(?P<index>\d+|\*)\]")
# Texts that decode as another type get a blank of that type.
_FORMS = (
    (re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE), "00000000-0000-0000-0000-000000000000"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?"), "1970-01-01T00:00:00"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)"), "1970-01-01T00:00:00Z"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "1970-01-01"),
    (re.compile(r"-?\d+\.\d+"), "0"),
)
# The fields of events that hold values of users, and the field that names the blob of an offloaded one.
VALUES = {"value": "blob", "input": "input_blob", "payload": "", "request": "", "progress": "", "output": ""}
# Fields with several values: a list of them, and by op or by key.
CHUNKS, KEYED, ARGUMENTS = "chunks", ("recorded", "state", "values"), "inputs"


class Path(msgspec.Struct, frozen=True):
    """What to redact: `$.card.number` of every value, or of those of an op, as in `charge:0.$.pan`.

    Before the `$`: an op path, a name, `input`, `output`, or nothing for all. After it `.key`, `[0]`, `[*]`, `.*`, and
    `..key` for a key at any depth.
    """

    text: str
    where: str
    parts: tuple[tuple[str, str], ...]


def parse(text: str) -> Path:
    """Parse a path, or raise UsageError."""
    if not isinstance(text, str) or "$" not in text:
        raise UsageError(f"redact={text!r}: a path has a $ in it, as in $.card.number or charge:0.$.pan")
    where, _, rest = text.partition("$")
    parts: list[tuple[str, str]] = []
    position = 0
    while position < len(rest):
        found = _PART.match(rest, position)
        if found is None:
            raise UsageError(f"redact={text!r}: {rest[position:]!r} is no .key, ..key, [0] or [*]")
        kind = found.lastgroup
        assert kind is not None
        parts.append((kind, found[kind]))
        position = found.end()
    return Path(text, where.removesuffix("."), tuple(parts))


def redact(capsule: Capsule, paths: Sequence[str]) -> Capsule:
    """The same run without the values at these paths. Raises UsageError for a path that matches nothing."""
    parsed = [parse(path) for path in paths]
    if not parsed:
        return capsule
    found = {path.text: 0 for path in parsed}
    # Structures hold no values.
    blobs = {id: capsule.blobs[id] for id in source_ids(capsule.batches) if id in capsule.blobs}
    batches = [
        Batch(b.seq, b.at, [_event(event, parsed, found, capsule.blobs, blobs) for event in b.events])
        for b in capsule.batches
    ]
    nowhere = [path for path, count in found.items() if not count]
    if nowhere:
        raise UsageError(
            f"redact={nowhere[0]!r} is nowhere in run {capsule.id!r}; nothing was written, because the value that it "
            "was meant for would still be in the file"
        )
    return msgspec.structs.replace(capsule, batches=batches, blobs=blobs, redacted=tuple(found))


def _event(
    event: AnyEvent, paths: Sequence[Path], found: dict[str, int], old: dict[str, bytes], new: dict[str, bytes]
) -> AnyEvent:
    changes: dict[str, Any] = {}
    if isinstance(event, StepStarted | ChildStarted | OutcomeKept):
        changes["inputs"] = ""
    if isinstance(event, RunParked) and event.kind in ("diverged", "undecodable"):
        # The reason may show arguments, in the words of several modules.
        changes |= {"reason": f"{event.kind} ({REDACTED})", "divergence": None}
    if isinstance(event, SnapshotTaken):
        # A snapshot repeats the values, and the journal does not need it.
        return msgspec.structs.replace(event, blob="")
    wanted = [path for path in paths if _applies(path.where, event)]
    for field, blob_field in VALUES.items():
        value = getattr(event, field, None)
        if not isinstance(value, Raw):
            continue
        blob = getattr(event, blob_field, "") if blob_field else ""
        data = _value(old[blob] if blob else bytes(value), wanted, found)
        if blob:
            changes[blob_field] = blob_id(data)
            if isinstance(event, StepSucceeded | OutcomeKept):
                changes["digest"] = ""
            new[changes[blob_field]] = data
        elif data is not value:
            changes[field] = Raw(data)
    if chunks := getattr(event, CHUNKS, ()):
        changes[CHUNKS] = tuple(Raw(_value(bytes(chunk), wanted, found)) for chunk in chunks)
    for field in KEYED:
        if values := getattr(event, field, None):
            changes[field] = {
                key: Raw(_value(bytes(value), _of_key(paths, key), found)) for key, value in values.items()
            }
    if isinstance(event, RunForked) and event.inputs:
        changes[ARGUMENTS] = {
            op: _arguments(_value(msgspec.json.encode(given), _of_key(paths, op), found))
            for op, given in event.inputs.items()
        }
    return msgspec.structs.replace(event, **changes) if changes else event


_arguments = msgspec.json.Decoder(dict[str, Raw]).decode


def _of_key(paths: Sequence[Path], key: str) -> list[Path]:
    return [path for path in paths if path.where in ("", "*", key, op_name(key))]


def _applies(where: str, event: AnyEvent) -> bool:
    if where in ("", "*"):
        return True
    if where == "input" and isinstance(event, RunStarted | InputReplaced):
        return True
    if where == "output" and (isinstance(event, RunFinished) or (isinstance(event, StepFailed) and event.bailed)):
        return True
    op: str = getattr(event, "op", "")
    name: str = getattr(event, "name", "") or getattr(event, "key", "")
    return (bool(op) and where in (op, op_name(op))) or (bool(name) and where == name)


def _value(data: bytes, paths: Sequence[Path], found: dict[str, int]) -> bytes:
    if not paths:
        return data
    value = before = msgspec.json.decode(data)
    for path in paths:
        value, count = _redact_at(value, path.parts)
        found[path.text] += count
    return data if value is before else msgspec.json.encode(value)


def _redact_at(value: Any, parts: tuple[tuple[str, str], ...]) -> tuple[Any, int]:
    """The redacted value and the number of matches; the same object if there are none."""
    if not parts:
        return _blank(value), 1
    (kind, name), rest = parts[0], parts[1:]
    count = 0
    if isinstance(value, dict):
        made: dict[str, Any] = {}
        for key, item in value.items():
            if kind == "deep":
                hit = _redact_at(item, rest if key == name else parts)
            elif kind == "key" and name in (key, "*"):
                hit = _redact_at(item, rest)
            else:
                hit = item, 0
            made[key], count = hit[0], count + hit[1]
        return (made, count) if count else (value, 0)
    if isinstance(value, list):
        items = []
        for number, item in enumerate(value):
            if kind == "deep":
                hit = _redact_at(item, parts)
            elif (kind == "index" and name in (str(number), "*")) or (kind == "key" and name == "*"):
                hit = _redact_at(item, rest)
            else:
                hit = item, 0
            items.append(hit[0])
            count += hit[1]
        return (items, count) if count else (value, 0)
    return value, 0


def _blank(value: Any) -> Any:
    """A blank value of the same type."""
    if isinstance(value, str):
        return next((blank for form, blank in _FORMS if form.fullmatch(value)), REDACTED)
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return type(value)(0)
    if isinstance(value, list):
        return [_blank(item) for item in value]
    if isinstance(value, dict):
        return {key: _blank(item) for key, item in value.items()}
    return value
