"""Texts that a component makes shorter: half of a secret could not be found in them. Knows no secrets itself."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

# Of the step that runs: takes a text and a length, and returns that much of the text, with a mask for each secret.
masking: ContextVar[Callable[[str, int], str]] = ContextVar("perdure_masking")


def shortened(text: str, most: int) -> str:
    """The first characters of a text, in which no secret of the running step is cut in two."""
    mask = masking.get(None)
    return text[:most] if mask is None else mask(text, most)


def has_secret(text: str) -> bool:
    """Whether a text has a secret of the running step in it."""
    return shortened(text, len(text)) != text
