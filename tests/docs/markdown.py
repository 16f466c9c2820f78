"""Read the fenced blocks of a Markdown file. Never runs them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = sorted([README, ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, and the line of the file its text begins on.

    `saved_as` is the file that its reader is to save it as: the fence says ```python shop.py, the text above it too.
    """

    language: str
    text: str
    line: int
    saved_as: str | None = None

    @property
    def raises(self) -> str | None:
        """The error that a block shows: a comment says so, as in `# raises NotDurable`."""
        match = re.search(r"# raises (\w+)$", self.text, flags=re.MULTILINE)
        return match[1] if match and self.language == "python" else None


_FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ ]*$", flags=re.MULTILINE | re.DOTALL)


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a text, in their order."""
    for match in _FENCE.finditer(text):
        language, _, saved_as = match[1].strip().partition(" ")
        yield Block(language, match[2], text.count("\n", 0, match.start(2)) + 1, saved_as or None)


def prose(text: str) -> str:
    """A text without its fenced blocks; lines keep their numbers."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


def table(text: str, heading: str) -> list[list[str]]:
    """The rows of the table whose first column is called `heading`, without the heading itself."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {heading} |"):
            next(lines)
            break
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split(" |")])
    return rows
