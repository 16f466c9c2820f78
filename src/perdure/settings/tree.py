"""What a file says, value by value, with the place of each. Knows no setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Settings are small. What is larger, or deeper, is something else or wants to do harm.
MOST_BYTES, MOST_DEPTH = 256 * 1024, 20


@dataclass(frozen=True, slots=True)
class Node:
    """A value and where it is said. `value` is plain, a list of nodes, or nodes by their keys.

    `spoken`: it came as text, from a variable, and a number has to be read from it.
    """

    value: Any
    where: str
    spoken: bool = False

    @property
    def kind(self) -> str:
        """What the value is, in words."""
        if isinstance(self.value, bool):
            return "true or false"
        names = {dict: "a mapping", list: "a list", str: "text", int: "a number", float: "a number"}
        return names.get(type(self.value), "empty" if self.value is None else type(self.value).__name__)
