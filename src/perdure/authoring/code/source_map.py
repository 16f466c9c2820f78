"""Map the ops that a workflow function mentions to its source lines. Reads code, never runs it."""

from __future__ import annotations

import ast
import dis
import linecache
import threading
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

from perdure.authoring.code.call_graph import Walk, codes_of, is_users
from perdure.authoring.code.loop import short
from perdure.kernel.commands import StepSpec
from perdure.kernel.divergence.source_map import Arms, SourceMap
from perdure.kernel.program import Program

# The names in op paths of functions of perdure and asyncio.
_OPS = {
    ("perdure", "sleep"): "sleep",
    ("perdure", "sleep_until"): "sleep",
    ("perdure", "now"): "now",
    ("perdure", "uuid4"): "uuid",
    ("perdure", "random"): "random",
    ("perdure", "checkpoint"): "checkpoint",
    ("perdure", "lock"): "lock",
    ("asyncio", "sleep"): "timer",
    ("asyncio", "timeout"): "timer",
    ("asyncio", "timeout_at"): "timer",
    ("asyncio", "wait_for"): "timer",
    ("asyncio", "wait"): "timer",
}
_LOADS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
_PARSING = threading.Lock()


def read_source_map(fn: Callable[..., Any]) -> SourceMap:
    """The source map of `fn` and the functions that it calls."""
    walk = _SourceWalk()
    walk.visit(fn, frozenset())
    walk.finish()
    lines = {name: tuple(dict.fromkeys(places)) for name, places in walk.lines.items()}
    return SourceMap(lines, walk.code, walk.arms, True)


class _SourceWalk(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, list[str]] = {}
        self.code: dict[str, str] = {}
        self.arms: dict[str, Arms] = {}
        self._files: dict[str, dict[int, Arms]] = {}

    def _function(self, function: FunctionType) -> None:
        super()._function(function)
        if not is_users(function.__module__ or ""):
            return
        free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for code in codes_of(function.__code__):
            self._lines_of(code)
            found: Any = None
            for one in dis.get_instructions(code):
                line = one.positions.lineno if one.positions is not None else None
                if one.opname in _LOADS:
                    found = _value(function, free, str(one.argval))
                elif one.opname in _ATTRIBUTES:
                    found = vars(found).get(str(one.argval)) if isinstance(found, ModuleType | type) else None
                elif one.opname == "LOAD_CONST" and isinstance(one.argval, str):
                    self._note(one.argval, code, line)
                    continue
                else:
                    continue
                self._note(_name(found), code, line)

    def _note(self, name: str, code: CodeType, line: int | None) -> None:
        if name and line is not None:
            self.lines.setdefault(name, []).append(f"{short(code.co_filename)}:{line}")

    def _lines_of(self, code: CodeType) -> None:
        file = code.co_filename
        if file not in self._files:
            self._files[file] = _arms("".join(linecache.getlines(file)))
        for _, _, line in code.co_lines():
            if line:
                source = f"{short(file)}:{line}"
                self.code[source] = linecache.getline(file, line).partition("  #")[0].strip()
                self.arms[source] = self._files[file].get(line, ())


def _value(function: FunctionType, free: dict[str, Any], name: str) -> Any:
    if name in free:
        try:
            return free[name].cell_contents
        except ValueError:  # not bound yet
            return None
    return function.__globals__.get(name)


def _name(found: Any) -> str:
    """The name of an object in op paths; empty if it is not an op."""
    spec = getattr(found, "spec", None)
    if isinstance(spec, StepSpec):
        return spec.name
    if isinstance(getattr(found, "fn", None), FunctionType) and isinstance(found, Program):
        return str(found.name)
    module, name = str(getattr(found, "__module__", "")), str(getattr(found, "__name__", ""))
    return _OPS.get((module.partition(".")[0], name), "")


def parse(source: str, file: str = "<unknown>") -> ast.Module:
    """As `ast.parse`, but safe in several threads at once.

    CPython 3.11 shares its recursion counter among threads and may raise SystemError for valid source.
    """
    # With a timeout, because a forked child may have inherited the lock while it was held.
    held = _PARSING.acquire(timeout=1.0)
    try:
        return ast.parse(source, filename=file)
    except SystemError:  # code outside of this lock parsed at the same time
        return ast.parse(source, filename=file)
    finally:
        if held:
            _PARSING.release()


def _arms(source: str) -> dict[int, Arms]:
    """The `if` arms around each line of a file."""
    try:
        tree = parse(source)
    except (SyntaxError, ValueError, SystemError, RecursionError, MemoryError):
        return {}
    found: dict[int, Arms] = {}

    def walk(node: ast.AST, arms: Arms) -> None:
        line = getattr(node, "lineno", None)
        if line is not None:
            found.setdefault(line, arms)
        if isinstance(node, ast.If):
            walk(node.test, arms)
            for arm, body in enumerate((node.body, node.orelse)):
                for statement in body:
                    walk(statement, (*arms, (node.lineno, arm)))
            return
        for inner in ast.iter_child_nodes(node):
            walk(inner, () if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else arms)

    with suppress(RecursionError):  # deeply nested code: keep the lines before it
        walk(tree, ())
    return found
