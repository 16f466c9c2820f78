"""The exceptions that the user's code raises in a body, and the lines that each led past. For explanations only.

Traces the body while it runs, which is slow: it is done once, after a replay has diverged.
"""

from __future__ import annotations

import ast
import asyncio
import linecache
import sys
import sysconfig
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import msgspec

from perdure.authoring.code.body import Bail
from perdure.authoring.code.loop import INSIDES, LIBRARIES, BodyLoop, short
from perdure.authoring.code.source_map import parse
from perdure.errors import PerdureError
from perdure.kernel.divergence.model import Raised
from perdure.kernel.values.failures import message_of, type_name
from perdure.kernel.values.raised import is_a

_FOREIGN = (*INSIDES, *LIBRARIES, sysconfig.get_path("stdlib"), "<frozen ")
# These end a loop, a generator, a task or the run on purpose.
_ORDINARY = (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError, Bail)
# No code that has ever run raises these on purpose.
_MISTAKES = (NameError, ImportError, SystemExit, PerdureError)


class RaisedErrors:
    """Collects the exceptions of one body. Iterating gives those that are new since the last time."""

    def __init__(self, loop: BodyLoop) -> None:
        self._drain: Callable[[], None] = loop.drain
        # By id, with the exception, so that the id is not given again.
        self._found: dict[int, tuple[BaseException, list[tuple[CodeType, int]], list[tuple[CodeType, int]]]] = {}
        self._last: dict[FrameType, int] = {}
        # Those that were reported before, by id.
        self._known: dict[int, tuple[BaseException, Raised]] = {}
        loop.drain = self._traced  # type: ignore[method-assign]

    def _traced(self) -> None:
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            self._drain()
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename.startswith(_FOREIGN):
            return None
        frame.f_trace_lines = False
        return self._inside

    def _inside(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "exception":
            error = arg[1]
            if is_a(error, BaseException) and not is_a(error, _ORDINARY):
                _, places, _ = self._found.setdefault(id(error), (error, [], []))
                places.append((frame.f_code, frame.f_lineno))
                self._last[frame] = id(error)
                frame.f_trace_lines = True
        elif event == "line" and frame in self._last:
            self._found[self._last[frame]][2].append((frame.f_code, frame.f_lineno))
        return self._inside

    def __iter__(self) -> Iterator[Raised]:
        found, self._found = self._found, {}
        self._last.clear()
        for error, places, after in found.values():
            one = _raised(error, places, after, len(self._known) + 1)
            if id(error) in self._known:  # raised again: it comes from where it was raised first
                first = self._known[id(error)][1]
                one = msgspec.structs.replace(
                    first,
                    skipped=first.skipped | one.skipped,
                    handlers=first.handlers | one.handlers,
                    names=first.names | one.names,
                    caught=one.caught,
                )
            self._known[id(error)] = error, one
            yield one


def _raised(
    error: BaseException, places: list[tuple[CodeType, int]], after: list[tuple[CodeType, int]], number: int
) -> Raised:
    leap = _Leap()
    for code, line in places:
        if leap.follow(code, line, [n for other, n in after if other is code]):
            break
    code, line = places[0]
    source = f"{short(code.co_filename)}:{line}"
    text = linecache.getline(code.co_filename, line).partition("  #")[0].strip()
    mistake = is_a(error, _MISTAKES)
    return Raised(
        type_name(type(error)),
        message_of(error),
        source,
        text,
        leap.skipped,
        leap.handlers,
        leap.names,
        leap.caught,
        mistake,
        number,
    )


class _Leap:
    """Where an exception leads: the lines that it skips, what they mention, and the lines that handle it."""

    def __init__(self) -> None:
        self.skipped: set[str] = set()
        self.handlers: set[str] = set()
        self.names: set[str] = set()
        self.caught = False

    def follow(self, code: CodeType, line: int, after: list[int]) -> bool:
        """Follow it through a function that goes on at the lines `after`; whether that caught it."""
        file = code.co_filename
        try:
            tree = parse("".join(linecache.getlines(file)))
        except (SyntaxError, ValueError, SystemError, RecursionError, MemoryError):
            return False
        within = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _holds(node, line)]
        within.sort(key=lambda node: (node.lineno, -(node.end_lineno or 0)))
        functions = [n for n, node in enumerate(within) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        # From the statement that raised outwards, up to the function.
        inner = within[functions[-1] + 1 :] if functions else within
        begin = inner[-1].lineno if inner else line
        end = (within[functions[-1]].end_lineno if functions else None) or line
        for node in reversed(inner):
            if isinstance(node, ast.For | ast.AsyncFor | ast.While):
                begin = min(begin, node.lineno)
            elif isinstance(node, ast.With | ast.AsyncWith):
                self.handlers.add(f"{short(file)}:{node.lineno}")
            elif isinstance(node, ast.Try | ast.TryStar) and any(_holds(one, line) for one in node.body):
                for handling in (*(one for h in node.handlers for one in h.body), *node.finalbody):
                    self.handlers.update(_lines(file, handling.lineno, handling.end_lineno))
                if any(_holds(one, n) for h in node.handlers for one in h.body for n in after):
                    self.caught = True
                    end = (node.orelse or node.body)[-1].end_lineno or line
                    break
        self.skipped.update(_lines(file, begin, end))
        for found in ast.walk(tree):
            if begin <= getattr(found, "lineno", 0) <= end:
                self.names.update(_mentioned(found))
        return self.caught


def _mentioned(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _lines(file: str, first: int, last: int | None) -> set[str]:
    return {f"{short(file)}:{line}" for line in range(first, (last or first) + 1)}
