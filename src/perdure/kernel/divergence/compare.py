"""Classify a divergence by both sources, where the old one was stored: what became of two lines is known then."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import msgspec

from perdure.kernel.divergence.advice import title_for
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.divergence.source import Source, SourcePart, matched

# Kinds that follow from what became of lines; the others do not depend on them.
_OF_LINES = frozenset({"inserted", "removed", "renamed", "reordered", "type", "branch", "fewer", "more"})
# Those of them that name a change of tasks, where the same op is in another one.
_OF_TASKS = frozenset({"renamed", "fewer", "more"})
_LOOP = re.compile(r"\b(for|while|range)\b")
_CONDITION = re.compile(r"\b(if|elif|else|match|case|and|or|try|except|continue|break|return|raise)\b")
_SIDE_BY_SIDE = re.compile(r"\b(gather|TaskGroup|create_task|ensure_future|asyncio\.wait)\b")


def compared(divergence: Divergence, old: Source, new: Source, later: Collection[OpView] = ()) -> Divergence:
    """The same divergence, with the kind and the line that the two sources show; unchanged where they show none.

    `later` are the ops that the journal has after the recorded one.
    """
    recorded, current = divergence.recorded, divergence.current
    if not old.parts or not new.parts:
        return divergence
    if divergence.change in _OF_TASKS and current is not None and _is_elsewhere(current, recorded):
        return divergence
    sources = _Sources(old, new, divergence, later)
    if recorded.kind == "lock" and divergence.change == "inputs" and current is not None:
        change = sources.locks(current)
    elif recorded.kind == "step" and divergence.change == "inputs" and current is not None:
        change = sources.calls(current)
    elif divergence.change not in _OF_LINES or (current is not None and not _replaces(current, recorded)):
        return divergence
    else:
        change = sources.change(current)
    if change == "inserted" and current is not None:
        current = sources.added(current)
    title = title_for(change, recorded, None if sources.one_by_one else current)
    return msgspec.structs.replace(divergence, change=change, title=title, current=current)


def _replaces(current: OpView, recorded: OpView) -> bool:
    """Whether it is another op, or the end; not a plain function in place of a step, and not a failure."""
    is_op = ":" in current.path or (current.kind == "end" and current.name != "failed")
    return is_op and (current.kind, current.path) != (recorded.kind, recorded.path)


def _is_elsewhere(current: OpView, recorded: OpView) -> bool:
    """Whether it is the same op in another task: that the lines of both are kept says nothing about the task."""
    same = (current.kind, current.name, current.inputs) == (recorded.kind, recorded.name, recorded.inputs)
    return same and _task(current) != _task(recorded)


def _task(op: OpView) -> str:
    return op.path.rpartition("/")[0]


class _Place(NamedTuple):
    """A line of a function, by the numbers of both."""

    function: int
    line: int


class _Function:
    """A function as it was and as it is, line by line. Either may be missing."""

    def __init__(self, was: SourcePart | None, now: SourcePart | None) -> None:
        self.was, self.now = was, now
        self.before, self.after = _lines(was), _lines(now)
        self.blocks = SequenceMatcher(None, self.before, self.after, autojunk=False).get_opcodes()
        old, new = _headers(was), _headers(now)
        # Lines that are the same and stand in another block that both have, as old and new numbers.
        self.moved: dict[int, int] = {}
        same = {a + n: c + n for tag, a, b, c, _ in self.blocks if tag == "equal" for n in range(b - a)}
        for line, place in same.items():
            outer, now_outer = old[line], new[place]
            if same.get(outer, outer) != now_outer and (outer < 0 or outer in same):
                if now_outer < 0 or now_outer in same.values():
                    self.moved[line] = place

    def old_block(self, line: int) -> tuple[str, int, int, int, int]:
        """The block of lines that differ, or do not, around an old line."""
        return next(block for block in self.blocks if block[1] <= line < block[2])

    def new_block(self, line: int) -> tuple[str, int, int, int, int]:
        """The same around a new line."""
        return next(block for block in self.blocks if block[3] <= line < block[4])

    def is_new(self, line: int) -> bool:
        """Whether a line is new, changed, or in another block."""
        return self.new_block(line)[0] != "equal" or line in self.moved.values()

    def in_loop(self, line: int) -> bool:
        """Whether an old line is in a loop."""
        return bool(_loops(self.before, _headers(self.was), line))

    def left_or_kept(self, place: int, other: int) -> str:
        """Whether a loop around one new line was left too early for another, or is still not left; empty if neither."""
        headers = _headers(self.now)
        around, around_other = (_loops(self.after, headers, line) for line in (place, other))
        if other > place and around - around_other:
            return "fewer"
        return "more" if other < place and around_other - around else ""


class _Sources:
    """All functions of a program as they were and as they are, and a divergence between them."""

    def __init__(self, old: Source, new: Source, divergence: Divergence, later: Collection[OpView]) -> None:
        self._functions = [_Function(was, now) for was, now in matched(old, new)]
        changed = [(one, block) for one in self._functions for block in one.blocks if block[0] != "equal"]
        self._gone = [line for one, (_, a, b, _, _) in changed for line in one.before[a:b]]
        self._added = [line for one, (_, _, _, c, d) in changed for line in one.after[c:d]]
        for one in self._functions:
            self._gone += [one.before[line] for line in one.moved]
            self._added += [one.before[line] for line in one.moved]
        self._told, self._recorded, self._later = divergence.change, divergence.recorded, later
        self._x = self._old(divergence.recorded.source)
        # Whether what was done side by side is done one by one.
        self.one_by_one = False

    def change(self, current: OpView | None) -> str:
        """What has become of the recorded op, with another one in its place; what was told if that is not known."""
        told, recorded, x = self._told, self._recorded, self._x
        w = None if current is None else self._new(current.source)
        if recorded.kind == "cancel":
            gone = any("cancel" in line for line in self._gone)
            return "branch" if not gone and any(map(_CONDITION.search, [*self._gone, *self._added])) else told
        if current is None or current.kind == "end":
            old = _pattern(recorded, "" if x is None else self._before(x))
            return self._led(w) if self._kept(old)[1] else "removed"
        if x is not None and w is not None and x.function == w.function and not self._is_moved(x, w):
            if self._now(x) == w.line and self._functions[x.function].old_block(x.line)[0] == "equal":
                return self._same_line(current)
        if not self._gone and not self._added:
            return self._of_data(w)
        return told if w is None else self._instead(current, w)

    def _same_line(self, current: OpView) -> str:
        """The same call asks for another op: its name is data, or what it calls is something else."""
        if current.kind != self._recorded.kind:
            return "type"
        if current.name == self._recorded.name or (
            self._told == "inserted" and _task(current) != _task(self._recorded)
        ):
            return self._told
        if self._comes_later(current):
            return "reordered" if self._told not in ("fewer", "more") else self._told
        return self._told if self._told in ("fewer", "more", "reordered") else "renamed"

    def _instead(self, current: OpView, w: _Place) -> str:
        told, recorded, x = self._told, self._recorded, self._x
        old = _pattern(recorded, "" if x is None else self._before(x))
        new = _pattern(current, self._after(w))
        here, is_kept = self._kept(old)
        function = self._functions[w.function]
        block, is_new = function.new_block(w.line), function.is_new(w.line)
        was_there = not is_new or self._after(w) in self._gone
        was_there = was_there or 0 < _count(new, self._added) <= _count(new, self._gone)
        if x is not None and x.function == w.function and block == function.old_block(x.line) and block[0] != "equal":
            found = self._replaced(current, x, w, old, new)
            if found:
                return found
            lines, others = function.after[block[3] : block[4]], function.before[block[1] : block[2]]
            if any(map(old.search, lines[w.line - block[3] + 1 :])) and any(map(new.search, others)):
                return "reordered"
            if len(lines) == len(others) and x.line - block[1] == w.line - block[3]:
                # One line in place of another: what else has changed does not matter.
                is_kept, was_there = bool(old.search(self._after(w))), bool(new.search(self._before(x)))
        if is_kept and was_there:
            if told in ("inserted", "reordered") and not self._gone and x is not None and x.function != w.function:
                return "inserted"  # one more call of the function that asks for it
            if here == "moved" or (is_new and not self._in_place(w, new)):
                return "reordered"
            if is_new and told != "branch" and _is_repeated(current) and not self._comes_later(current):
                return "more"  # the line was changed, and asks for one more
            return self._led(w)
        if is_kept:
            return "more" if told == "more" and self._in_place(w, new) else "inserted"
        if was_there:
            return "removed"
        return "renamed" if recorded.kind == current.kind else "type"

    def _replaced(self, current: OpView, x: _Place, w: _Place, old: re.Pattern[str], new: re.Pattern[str]) -> str:
        """What has become of two lines, one of which was replaced by the other; empty if that is not all."""
        before, after, kind = self._before(x), self._after(w), self._recorded.kind
        if old == new and kind != current.kind:
            return self._told  # the same call, made differently
        if self._told in ("inserted", "more") and old == new:
            return self._told  # one more of them
        if kind == current.kind and kind in _WAITS:
            waits = re.compile(_WAITS[kind])
            if len(waits.findall(before)) == len(waits.findall(after)) == 1 and current.name not in before:
                return "renamed"
        if new.search(before) and _SIDE_BY_SIDE.search(before) and not _SIDE_BY_SIDE.search(after):
            self.one_by_one = True
            return "fewer"
        return ""

    def locks(self, current: OpView) -> str:
        """Whether a lock has another key because there is one more, or one less, in its line."""
        x, w = self._x, self._new(current.source)
        if x is None or w is None:
            return "inputs"
        more = self._after(w).count("lock(") - self._before(x).count("lock(")
        if more > 0:
            return "inserted"
        return "removed" if more < 0 and any(op.inputs == current.inputs for op in self._later) else "inputs"

    def calls(self, current: OpView) -> str:
        """Whether a step has other arguments because there is one more call of it, or one less, before its line."""
        x, w = self._x, self._new(current.source)
        if x is None or w is None:
            return "inputs"
        was, now = self._functions[x.function], self._functions[w.function]
        if now.new_block(w.line)[0] == "insert" and was.old_block(x.line)[0] == "equal":
            return "inserted"
        return "removed" if now.new_block(w.line)[0] == "equal" and was.old_block(x.line)[0] == "delete" else "inputs"

    def added(self, current: OpView) -> OpView:
        """An inserted op with its own line: of several of one name, a later one is the first that has no record."""
        w = self._new(current.source)
        if w is None:
            return current
        function = self._functions[w.function]
        lines = [n for tag, _, _, c, d in function.blocks if tag != "equal" for n in range(c, d)]
        found = [n for n in lines if _pattern(current, self._after(w)).search(function.after[n])]
        is_draw = current.kind in _DRAWS
        if w.line in lines or len(found) != 1 or (found[0] > w.line and not is_draw) or function.now is None:
            return current
        source = f"{function.now.file}:{function.now.line + found[0]}"
        return msgspec.structs.replace(current, source=source, code=function.after[found[0]])

    def _kept(self, pattern: re.Pattern[str]) -> tuple[str, bool]:
        """Where the recorded op is now (`equal`, `in place`, `moved`, or nowhere), and whether it is anywhere."""
        x = self._x
        if x is None:
            return "equal", True  # in a function that is not known: it has not changed, as far as that shows
        function = self._functions[x.function]
        block = function.old_block(x.line)
        if block[0] == "equal":
            return "moved" if x.line in function.moved else "equal", True
        if any(map(pattern.search, function.after[block[3] : block[4]])):
            return "in place", _count(pattern, self._added) >= _count(pattern, self._gone)
        if self._before(x) in self._added or 0 < _count(pattern, self._gone) <= _count(pattern, self._added):
            return "moved", True
        return "", any(map(pattern.search, self._added))

    def _comes_later(self, current: OpView) -> bool:
        return any(op.path == current.path for op in self._later)

    def _in_place(self, w: _Place, pattern: re.Pattern[str]) -> bool:
        """Whether a line that was changed had the same op before."""
        function = self._functions[w.function]
        tag, first, last, _, _ = function.new_block(w.line)
        return tag != "equal" and any(map(pattern.search, function.before[first:last]))

    def _is_moved(self, x: _Place, w: _Place) -> bool:
        return x.line in self._functions[x.function].moved or w.line in self._functions[w.function].moved.values()

    def _led(self, w: _Place | None) -> str:
        """What has led the code past a line that it still has, or to another one that it had."""
        told, x, changed = self._told, self._x, [*self._gone, *self._added]
        in_loop = None if x is None else self._functions[x.function].in_loop(x.line)
        if x is not None and w is not None and x.function == w.function:
            function = self._functions[x.function]
            jump = function.left_or_kept(min(self._now(x), len(function.after) - 1), w.line)
            if jump:
                return jump
        if told == "fewer" and w is None and any(map(_SIDE_BY_SIDE.search, self._gone)):
            return told  # a task is gone
        is_conditional = any(map(_CONDITION.search, changed))
        if told == "branch" and is_conditional:
            return told
        if any(map(_LOOP.search, changed)):
            if told in ("fewer", "more") or x is None or w is None or x.function != w.function:
                return told if told in ("fewer", "more") else "fewer"
            return "fewer" if w.line > self._now(x) else "more"
        if (told == "fewer" and in_loop is not False) or (told == "more" and not in_loop):
            return told
        return "branch" if is_conditional else told

    def _of_data(self, w: _Place | None) -> str:
        """No function has changed: something that they use has, and leads the code another way."""
        if self._told in ("fewer", "more", "branch"):
            return self._told
        is_below = self._x is not None and w is not None and w.line > self._x.line
        return "reordered" if self._told == "reordered" and is_below else "branch"

    def _old(self, source: str) -> _Place | None:
        return next((_Place(n, i) for n, one in enumerate(self._functions) if (i := _at(one.was, source)) >= 0), None)

    def _new(self, source: str) -> _Place | None:
        return next((_Place(n, i) for n, one in enumerate(self._functions) if (i := _at(one.now, source)) >= 0), None)

    def _before(self, x: _Place) -> str:
        return self._functions[x.function].before[x.line]

    def _after(self, w: _Place) -> str:
        return self._functions[w.function].after[w.line]

    def _now(self, x: _Place) -> int:
        """Where an old line is, or would be."""
        _, first, _, start, _ = self._functions[x.function].old_block(x.line)
        return start + x.line - first


def _is_repeated(op: OpView) -> bool:
    """Whether there was one of its name before."""
    return not op.path.endswith(":0")


def _at(part: SourcePart | None, source: str) -> int:
    """The number of a line in the text of a function; -1 if it is not there."""
    file, _, line = source.rpartition(":")
    if part is None or file != part.file or not line.isdigit():
        return -1
    index = int(line) - part.line
    return index if 0 <= index < len(part.text.splitlines()) else -1


def _lines(part: SourcePart | None) -> list[str]:
    return [] if part is None else [line.partition("  #")[0].strip() for line in part.text.splitlines()]


def _headers(part: SourcePart | None) -> list[int]:
    """For each line of a function, the number of the line whose block it is in; -1 for those that are in none."""
    found: list[int] = []
    # Lines around the next one, each with how far it is indented.
    around: list[tuple[int, int]] = []
    for number, line in enumerate([] if part is None else part.text.splitlines()):
        indent = len(line) - len(line.lstrip())
        if line.strip():
            while around and around[-1][1] >= indent:
                around.pop()
        found.append(around[-1][0] if around else -1)
        if line.partition("  #")[0].rstrip().endswith(":"):
            around.append((number, indent))
    return found


def _loops(lines: Sequence[str], headers: Sequence[int], line: int) -> set[int]:
    """The lines at which the loops around a line begin."""
    found: set[int] = set()
    while (line := headers[line]) >= 0:
        if _LOOP.match(lines[line].removeprefix("async ")):
            found.add(line)
    return found


def _pattern(op: OpView, line: str) -> re.Pattern[str]:
    """What mentions an op, of which one line that does is known."""
    name = re.escape(op.name)
    quoted = rf"""(?<!approval\()["']{name}["']"""
    if op.kind == "approval":
        pattern = rf"""\bapproval\(["']{name}["']"""
    elif op.kind == "step" and re.search(rf"\bstep_inline\({quoted}", line):
        pattern = rf"\bstep_inline\({quoted}"
    elif op.kind == "signal" or (op.kind == "step" and re.search(quoted, line)):
        pattern = quoted
    elif op.kind == "timer":
        asyncio = r"\basyncio\.((sleep|timeout|timeout_at|wait_for)\(|wait\(.*\btimeout\b)"
        pattern = r"(?<!asyncio\.)\bsleep" if op.name == "sleep" else asyncio
    elif op.kind in _CALLED:
        pattern = rf"\b{_CALLED[op.kind]}\("
    else:
        pattern = rf"""(?<!["'])\b{name}\b(?!["'])"""
    if line and op.kind in _WAITS and not re.search(pattern, line):
        pattern = _WAITS[op.kind]  # its name is not in its line
    return re.compile(pattern)


def _count(pattern: re.Pattern[str], lines: Sequence[str]) -> int:
    return sum(len(pattern.findall(line)) for line in lines)


_DRAWS = frozenset({"uuid", "random", "now"})
_CALLED = {"lock": "lock", "uuid": "uuid4", "random": "random", "now": "now"}
_WAITS = {"approval": r"\bapproval\(", "signal": r"\b(wait_signal|inputs)\("}
