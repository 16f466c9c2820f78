"""Decide whether a value stays in the journal, is offloaded, or is refused. Never stores it, and never logs.

Sizes are bytes of JSON. Up to `blob` a value stays in the journal; above it, it is offloaded to a blob; above `payload`
it is refused. `history` bounds the journal of one root run.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from perdure.errors import UsageError

Place = Literal["inline", "blob", "refuse"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Size limits of a value and of the journal of one root run, in bytes of JSON."""

    blob: int = 256 * 1024
    """Above this a value is offloaded to a blob, and a warning is logged."""
    payload: int = 2 * 1024 * 1024
    """Above this a value is refused with `PayloadTooLarge`."""
    history: int = 50 * 1024 * 1024
    """Above this a journal accepts no more events (`HistoryTooLarge`)."""

    def __post_init__(self) -> None:
        for name in ("blob", "payload", "history"):
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise UsageError(f"Limits({name}={size!r}): give a number of bytes, at least 1")


def place(size: int, limits: Limits) -> Place:
    """Where a value of `size` bytes goes. A size equal to a limit is within it."""
    if size > limits.payload:
        return "refuse"
    return "blob" if size > limits.blob else "inline"


def blob_id(data: bytes) -> str:
    """The id of a blob: the SHA-256 of its bytes in hexadecimal, which a reader can verify."""
    return sha256(data).hexdigest()
