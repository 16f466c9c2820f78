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
_OF_LINES = frozenset({"inserted", "removed", "renamed", "reordered", "type", "branch"})
_CONDITION = re.compile(r"\b(if|elif|else|match|case|and|or)\b")
_SIDE_BY_SIDE = re.compile(r"\b(gather|TaskGroup|create_task|ensure_future|asyncio\.wait)\b")


def compared(divergence: Divergence, old: Source, new: Source) -> Divergence:
    """The same divergence, with the kind and the line that the two sources show; unchanged where they show none."""
    current = divergence.current
    if current is None or current.kind == "end" or divergence.change not in _OF_LINES:
        return divergence
    recorded = divergence.recorded
    # A plain function in place of a step is no op, and its path has no number.
    if recorded.kind == "cancel" or ":" not in current.path or _place(current) == _place(recorded):
        return divergence
    for was, now in pairs(old, new):
        x, w = _index(was, recorded.source), _index(now, current.source)
        if x is not None and w is not None:
            texts = _Texts(was, now)
            change = texts.change(divergence.change, recorded, x, current, w) or divergence.change
            if change == "inserted":
                current = texts.added_line(current, w)
            title = title_for(change, recorded, None if texts.one_by_one else current)
            return msgspec.structs.replace(divergence, change=change, title=title, current=current)
    return divergence


class _Texts:
    """A function as it was and as it is, line by line."""

    def __init__(self, was: SourcePart, now: SourcePart) -> None:
        self._now, self._before, self._after = now, _lines(was), _lines(now)
        self._blocks = SequenceMatcher(None, self._before, self._after, autojunk=False).get_opcodes()
        self._changed = [block for block in self._blocks if block[0] != "equal"]
        # Whether what was done side by side is done one by one.
        self.one_by_one = False

    def change(self, told: str, recorded: OpView, x: int, current: OpView, w: int) -> str:
        """What has become of the line `x` of the recorded op, with the line `w` in its place; empty if not known."""
        before, after = self._before, self._after
        here = next(block for block in self._blocks if block[1] <= x < block[2])
        there = next(block for block in self._blocks if block[3] <= w < block[4])
        gone = [line for _, a, b, _, _ in self._changed for line in before[a:b]]
        added = [line for _, _, _, c, d in self._changed for line in after[c:d]]
        if told == "branch" and any(map(_CONDITION.search, [*gone, *added])):
            return ""
        if here[0] == "equal" and there[0] == "equal":
            return _led([*gone, *added], past=w > x - here[1] + here[3])
        old, new = _pattern(recorded, before[x]), _pattern(current, after[w])
        if old == new and recorded.kind != current.kind:
            return ""  # the same call, made differently
        if here == there:
            if told == "inserted" and old == new:
                return ""  # one more of them
            if new.search(before[x]) and _SIDE_BY_SIDE.search(before[x]) and not _SIDE_BY_SIDE.search(after[w]):
                self.one_by_one = True
                return "fewer"
            block, other = after[here[3] : here[4]], before[here[1] : here[2]]
            swapped = any(map(old.search, block)) and any(map(new.search, other))
            if len(block) == len(other) and x - here[1] == w - here[3] and not swapped:
                # One line in place of another: what else has changed does not matter.
                gone, added = [before[x]], [after[w]]
        # Whether the code still has the one, and had the other one before.
        kept = here[0] == "equal" or before[x] in added or any(map(old.search, added))
        known = there[0] == "equal" or after[w] in gone or 0 < _count(new, added) <= _count(new, gone)
        if kept and known:
            return "reordered"
        if kept or known:
            return "inserted" if kept else "removed"
        return "renamed" if recorded.kind == current.kind else "type"

    def added_line(self, current: OpView, w: int) -> OpView:
        """An inserted op with its own line: of several of one name, a later one is the first that has no record."""
        lines = [n for _, _, _, c, d in self._changed for n in range(c, d)]
        found = [n for n in lines if _pattern(current, self._after[w]).search(self._after[n])]
        if w in lines or len(found) != 1 or found[0] > w:
            return current
        source = f"{self._now.file}:{self._now.line + found[0]}"
        return msgspec.structs.replace(current, source=source, code=self._after[found[0]])


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


def _pattern(op: OpView, line: str) -> re.Pattern[str]:
    """What mentions an op, of which one line that does is known."""
    name = re.escape(op.name)
    quoted = rf"""(?<!approval\()["']{name}["']"""
    if op.kind == "approval":
        pattern = rf"""\bapproval\(["']{name}["']"""
    elif op.kind == "signal" or (op.kind == "step" and re.search(quoted, line)):
        pattern = quoted
    elif op.kind == "timer":
        pattern = r"(?<!asyncio\.)\bsleep" if op.name == "sleep" else r"\basyncio\.(sleep|timeout|wait)"
    elif op.kind in _CALLED:
        pattern = rf"\b{_CALLED[op.kind]}\("
    else:
        pattern = rf"""(?<!["'])\b{name}\b(?!["'])"""
    return re.compile(pattern)


def _place(op: OpView) -> tuple[str, str]:
    return op.kind, op.path


def _count(pattern: re.Pattern[str], lines: Sequence[str]) -> int:
    return sum(len(pattern.findall(line)) for line in lines)


_CALLED = {"lock": "lock", "uuid": "uuid4", "random": "random", "now": "now"}
