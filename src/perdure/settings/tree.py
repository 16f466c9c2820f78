"""The values of a settings file with their places. Knows no setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Settings are small. A larger or deeper file is not one, or is hostile.
MOST_BYTES, MOST_DEPTH = 256 * 1024, 20


@dataclass(frozen=True, slots=True)
class Node:
    """A value and its place. `value` is plain, a list of nodes, or a dict of nodes.

    `spoken`: it is text from a variable, from which numbers must be parsed.
    """

    value: Any
    where: str
    spoken: bool = False

    @property
    def kind(self) -> str:
        """The type of the value, in words."""
        if isinstance(self.value, bool):
            return "true or false"
        names = {dict: "a mapping", list: "a list", str: "text", int: "a number", float: "a number"}
        return names.get(type(self.value), "empty" if self.value is None else type(self.value).__name__)
