"""Fixes that an explanation shows, applied to the changed source as they are."""

from __future__ import annotations

import re
import textwrap

HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@\n", re.MULTILINE)


def fix(source: str, reason: str) -> tuple[str, str] | None:
    """The diff that an explanation shows, and the source with it; nothing when it shows none."""
    found = re.search(r"^    --- .*\n(?:    .*\n|\n)+", reason + "\n", re.MULTILINE)
    if found is None:
        return None
    diff = textwrap.dedent(found.group())
    return diff, patched(source, diff)


def patched(source: str, diff: str) -> str:
    """The source with a diff of it, whose every line must be where it says."""
    lines = source.splitlines()
    _, *hunks = HUNK.split(diff)
    # From the last hunk to the first, so that the numbers of the others stay true.
    for first, hunk in reversed(list(zip(hunks[::2], hunks[1::2], strict=True))):
        changed = hunk.rstrip("\n").splitlines()
        before = [line[1:] for line in changed if not line.startswith("+")]
        after = [line[1:] for line in changed if not line.startswith("-")]
        start = int(first) - 1
        assert lines[start : start + len(before)] == before, f"the diff is not one of this source: {hunk}"
        lines[start : start + len(before)] = after
    return "\n".join(lines) + "\n"
