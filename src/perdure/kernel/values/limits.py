"""Decide where a value of a given size is kept. Never keeps it, and never logs.

Sizes are bytes of JSON. Up to `blob` a value stays in the journal; above it goes to the blob store under the hash of
its bytes; above `payload` it is refused. `history` bounds the journal of one root run.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from perdure.errors import UsageError

Place = Literal["inline", "blob", "refuse"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a stored value, and the journal of one root run, may become. All in bytes of JSON."""

    blob: int = 256 * 1024
    """Above this a value goes to the blob store, and a warning is logged."""
    payload: int = 2 * 1024 * 1024
    """Above this a value is refused with `PayloadTooLarge`."""
    history: int = 50 * 1024 * 1024
    """Above this a journal is refused more events with `HistoryTooLarge`."""

    def __post_init__(self) -> None:
        for name in ("blob", "payload", "history"):
            size = getattr(self, name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise UsageError(f"Limits({name}={size!r}): give a number of bytes, at least 1")


def place(size: int, limits: Limits) -> Place:
    """Say where a value of `size` bytes goes. A size equal to a limit is still within it."""
    if size > limits.payload:
        return "refuse"
    return "blob" if size > limits.blob else "inline"


def blob_id(data: bytes) -> str:
    """Name bytes by their content: the SHA-256 in hexadecimal, which a reader can verify."""
    return sha256(data).hexdigest()
