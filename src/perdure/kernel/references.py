"""Which blobs a journal refers to. Never follows them: what users keep inside their values is theirs."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.kernel.events import AnyEvent

# How a reference begins in encoded events, those in `input_blob` included. Values of users may hold the same bytes.
MARK = b'blob":"'


def mentions_blob(data: bytes) -> bool:
    """Whether encoded events may refer to a blob: quick, never wrong about a reference, sometimes about a value."""
    return MARK in data


def references(events: Iterable[AnyEvent]) -> list[str]:
    """The ids of the blobs that events refer to, each once; those of snapshots too."""
    found: dict[str, None] = {}
    for event in events:
        for name in ("blob", "input_blob"):
            if blob := getattr(event, name, ""):
                found[blob] = None
    return list(found)
