"""Classify a divergence by both sources, where the old one was stored: what became of two lines is known then."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

import msgspec

from perdure.kernel.divergence.advice import title_for
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.divergence.source import Source, SourcePart, pairs

# Kinds that follow from one line in place of another.
_OF_LINES = frozenset({"inserted", "removed", "renamed", "reordered", "type"})


def compared(divergence: Divergence, old: Source, new: Source) -> Divergence:
    """The same divergence, with the kind that the two sources show; unchanged where they do not show it."""
    current = divergence.current
    if current is None or current.kind == "end" or divergence.change not in _OF_LINES:
        return divergence
    if current.path == divergence.recorded.path or divergence.recorded.kind == "cancel":
        return divergence
    change = _change(divergence, current, old, new)
    if not change or change == divergence.change:
        return divergence
    title = title_for(change, divergence.recorded, current)
    return msgspec.structs.replace(divergence, change=change, title=title)


def _change(divergence: Divergence, current: OpView, old: Source, new: Source) -> str:
    recorded = divergence.recorded
    for was, now in pairs(old, new):
        x, w = _index(was, recorded.source), _index(now, current.source)
        if x is None or w is None:
            continue
        before, after = _lines(was), _lines(now)
        blocks = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        here = next(block for block in blocks if block[1] <= x < block[2])
        there = next(block for block in blocks if block[3] <= w < block[4])
        gone = [line for tag, a, b, _, _ in blocks if tag != "equal" for line in before[a:b]]
        added = [line for tag, _, _, c, d in blocks if tag != "equal" for line in after[c:d]]
        if here[0] == "equal" and there[0] == "equal":
            return _led([*gone, *added], past=w > x - here[1] + here[3])
        if here == there and here[2] - here[1] == here[4] - here[3] and x - here[1] == w - here[3]:
            # One line in place of another: what else has changed does not matter.
            gone, added = [before[x]], [after[w]]
        # Whether the code still has the one, and had the other one before.
        kept = here[0] == "equal" or before[x] in added or _mentions(recorded, added)
        known = there[0] == "equal" or after[w] in gone or _mentions(current, gone)
        if kept and known:
            return "reordered"
        if kept or known:
            return "inserted" if kept else "removed"
        return "renamed" if recorded.kind == current.kind else "type"
    return ""


def _led(changed: Sequence[str], *, past: bool) -> str:
    """What has led the code to a line that has not changed, in place of another one that has not."""
    if any(re.search(r"\b(for|while)\b", line) for line in changed):
        return "fewer" if past else "more"
    return "branch" if any(re.search(r"\b(if|elif|match|case|and|or)\b", line) for line in changed) else ""


def _index(part: SourcePart, source: str) -> int | None:
    """The number of a line in the text of a function."""
    file, _, line = source.rpartition(":")
    if file != part.file or not line.isdigit():
        return None
    index = int(line) - part.line
    return index if 0 <= index < len(part.text.splitlines()) else None


def _lines(part: SourcePart) -> list[str]:
    return [line.partition("  #")[0].strip() for line in part.text.splitlines()]


def _mentions(op: OpView, lines: Sequence[str]) -> bool:
    name = re.escape(op.name)
    pattern = rf"\b{name}\b"
    if op.kind in ("signal", "approval"):
        pattern = rf"""["']{name}["']"""
    elif op.kind == "timer":
        pattern = r"(?<!asyncio\.)\bsleep" if op.name == "sleep" else r"\basyncio\.(sleep|timeout|wait)"
    elif op.kind in _CALLED:
        pattern = rf"\b{_CALLED[op.kind]}\("
    return any(re.search(pattern, line) for line in lines)


_CALLED = {"lock": "lock", "uuid": "uuid4", "random": "random", "now": "now"}
