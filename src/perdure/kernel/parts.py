"""Work in parts, with pauses between them in which everything else on an event loop has its turn."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def result_of(parts: Generator[None, None, T]) -> T:
    """The result of all parts, without pauses."""
    while True:
        try:
            next(parts)
        except StopIteration as done:
            result: T = done.value
            return result
