"""Apply a unified diff to the text of a file. Changes nothing unless every line that it names is there."""

from __future__ import annotations


class DoesNotApply(Exception):
    """The text is not the one that a diff was made for: at the line that is named."""


def apply_diff(text: str, diff: str) -> str:
    """The text with a diff of one file applied. Raises DoesNotApply where the text has other lines."""
    lines = text.splitlines()
    made: list[str] = []
    done = 0
    for line in diff.splitlines():
        if line.startswith(("--- ", "+++ ")) and not made and not done:
            continue
        if line.startswith("@@ "):
            first, _, count = line.split()[1].lstrip("-").partition(",")
            start = int(first) - (0 if count == "0" else 1)
            made += lines[done:start]
            done = start
        elif line.startswith("+"):
            made.append(line[1:])
        else:
            if done >= len(lines) or lines[done] != line[1:]:
                raise DoesNotApply(f"line {done + 1} is not {line[1:]!r}")
            if line.startswith(" ") or not line:
                made.append(lines[done])
            done += 1
    return "\n".join([*made, *lines[done:]]) + "\n"
