"""Changes of a workflow's source that may let a run from before a change go on. Compiles them, never runs them.

The stored source of the old program is compared with the source of the new one, statement by statement. A repair guards
what differs with `patched()`, so that old runs take the old statements; or it gives a step its old name or decorator
back. Whether it works is for the caller to find out, by replaying a journal with the program of the repair.
"""

from __future__ import annotations
import __future__

import ast
import copy
import dataclasses
import difflib
import linecache
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any

from perdure.authoring.code.body import require_body
from perdure.authoring.code.call_graph import codes_of, function_of
from perdure.authoring.code.loop import from_here
from perdure.authoring.code.source import reached, read_source
from perdure.authoring.code.source_map import parse
from perdure.authoring.code.step import Step, step
from perdure.kernel.divergence.model import Divergence
from perdure.kernel.divergence.repair import Repair
from perdure.kernel.divergence.source import Source, SourcePart, pairs
from perdure.kernel.program import Program
from perdure.kernel.values.raised import is_a
from perdure.kernel.values.static import attributes_of

Block = Sequence[ast.stmt]


@dataclass(frozen=True)
class Edit:
    """Lines `first` to `last` of a file are replaced; none if `last` is before `first`."""

    first: int
    last: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Hunk:
    """Statements of a block that differ: those of the stored source, those of now, and the line they come before."""

    old: Block
    new: Block
    line: int
    column: int


def repairs(program: Any, recorded: Source, divergence: Divergence) -> Iterator[Repair]:
    """Repairs of a workflow in code, the smallest first."""
    lost = _lost_function(divergence)
    # What was a step, and no trial may do what it does. A repair gives the functions of a module other variables: what
    # methods, tables and other modules call stays as it is.
    if lost and any(lost in one.__code__.co_names for one in _methods(program.fn)):
        return
    former = {id(one) for one in reached(program.fn) if one.__name__ == lost} if lost else set()
    for repair in _proposed(program, recorded, divergence):
        if not former or former.isdisjoint(id(one) for one in reached(repair.program.fn)):  # type: ignore[attr-defined]
            yield repair


def _methods(fn: FunctionType) -> Iterator[FunctionType]:
    """The methods of all classes of a module: which of them are called may be found out only by running the code."""
    for cls in [found for found in fn.__globals__.values() if is_a(found, type)]:
        for found in attributes_of(cls).values():
            method = function_of(found)
            if is_a(method, FunctionType):
                yield method


def _proposed(program: Any, recorded: Source, divergence: Divergence) -> Iterator[Repair]:
    fn = program.fn
    yield from _renames(program, fn, divergence)
    current = read_source(fn)
    for function, old, new in _changed(fn, recorded, current):
        yield from _guards(program, function, old, new, divergence)


# --- names and decorators -------------------------------------------------------------------------------------------


def _renames(program: Any, fn: FunctionType, divergence: Divergence) -> Iterator[Repair]:
    """A step that has lost its name or its decorator gets it back."""
    recorded, current = divergence.recorded, divergence.current
    if recorded.kind != "step" or any(_is_step(found, recorded.name) for found in fn.__globals__.values()):
        return
    for name, found in list(fn.__globals__.items()):
        if current is not None and _is_step(found, current.name):
            function, what = found.fn, f"give the step the name that it has in the journal: {recorded.name!r}"
            made = type(found)(dataclasses.replace(found.spec, name=recorded.name))
        elif name == recorded.name and is_a(found, FunctionType) and found.__globals__ is fn.__globals__:
            queue = recorded.queue or None
            function, what, made = found, f"make {name!r} a step again", step(queue=queue)(found)
        else:
            continue
        if not isinstance(function, FunctionType):
            continue
        text, line = _text(function), function.__code__.co_firstlineno
        edit = _named(text, line, recorded.name) if function is not found else _decorated(text, line, recorded.queue)
        if edit is None:
            continue
        if function is not found:
            repaired: Program | None = _rebound(program, fn, fn.__code__, {name: made})
            edits = [edit]
        else:
            tree = parse(text)
            awaits = [] if iscoroutinefunction(found) else list(_awaits(tree, text, name))
            edits = [edit, *_import(tree, text, "step", fn.__globals__), *awaits]
            repaired = _compiled(program, fn, tree, text, edits, {name: made})
            if any(not _is_in(fn, tree, one.first) for one in awaits):
                continue  # in a helper, which is not compiled
        if repaired is not None:
            yield Repair(repaired, what, *_diff(function.__code__.co_filename, text, edits))


def _is_step(found: Any, name: str) -> bool:
    return is_a(found, Step) and found.name == name


def _named(text: str, line: int, name: str) -> Edit | None:
    """`@step` with a name."""
    lines = text.splitlines()
    code = lines[line - 1] if line <= len(lines) else ""
    head, at, rest = code.partition("@step")
    if not at or head.strip() or "name=" in rest:
        return None
    if rest.startswith("("):
        more = "" if rest[1:2] == ")" else ", "
        inner = rest[1:]
        return Edit(line, line, (f'{head}@step(name="{name}"{more}{inner}',)) if inner.strip() else None
    return Edit(line, line, (f'{head}@step(name="{name}"){rest}',))


def _decorated(text: str, line: int, queue: str) -> Edit | None:
    """A function with `@step`."""
    lines = text.splitlines()
    if line > len(lines):
        return None
    indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
    return Edit(line, line - 1, (f'{indent}@step(queue="{queue}")' if queue else f"{indent}@step",))


def _awaits(tree: ast.Module, text: str, name: str) -> Iterator[Edit]:
    """The `await` that the calls of a function need which gave its result at once, and is a step again."""
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    calls: dict[int, list[int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            if id(node) not in awaited:
                calls.setdefault(node.lineno, []).append(node.col_offset)
    lines = text.splitlines()
    for number, columns in calls.items():
        line = lines[number - 1].encode()
        for column in sorted(columns, reverse=True):
            line = line[:column] + b"await " + line[column:]
        yield Edit(number, number, (line.decode(),))


def _is_in(function: FunctionType, tree: ast.Module, line: int) -> bool:
    """Whether a line is in the statement of a module that makes this function."""
    start = function.__code__.co_firstlineno
    return any(_first(one) <= min(start, line) and max(start, line) <= (one.end_lineno or 0) for one in tree.body)


# --- guards ---------------------------------------------------------------------------------------------------------


def _changed(
    fn: FunctionType, recorded: Source, current: Source
) -> Iterator[tuple[FunctionType, SourcePart, SourcePart]]:
    """The functions that differ from the stored source: the workflow's own, then others of its module."""
    functions = {fn.__qualname__: fn}
    for found in fn.__globals__.values():
        if is_a(found, FunctionType) and found.__globals__ is fn.__globals__:
            functions.setdefault(found.__qualname__, found)
    for before, part in pairs(recorded, current):
        function = functions.get(part.name)
        if function is not None:
            yield function, before, part


def _guards(
    program: Any, function: FunctionType, old: SourcePart, new: SourcePart, divergence: Divergence
) -> Iterator[Repair]:
    """The differences of one function under `patched()`: each alone, all of them, and the whole body."""
    text = _text(function)
    before, now = _function(old.text), _function(new.text)
    if before is None or now is None or not text:
        return
    hunks = list(_hunks(_body(before), _body(now)))
    if not hunks:
        return
    # From the first difference to the last, and the whole body.
    larger = [[_span(_body(before), _body(now))], [Hunk(_body(before), _body(now), 0, 0)]]
    line = _line(divergence)
    nearest = sorted(hunks, key=lambda hunk: abs(hunk.line + new.line - 1 - line))
    lost = _lost_function(divergence)
    # What was a step and is called as it is must be under the guard: a part of the change may leave it outside.
    parts = [_with_users(hunk, hunks) for hunk in nearest[:4]] if len(hunks) > 1 and not lost else []
    groups = [*parts, hunks, *larger]
    name = _unused(_slug(divergence), text)
    try:
        tree = parse(text)
    except (SyntaxError, ValueError):  # the file is no longer what was loaded
        return
    importing = _import(tree, text, "patched", function.__globals__)
    for group in groups:
        if any(_leaves_unbound(hunk, now) for hunk in group):
            continue
        edits = [edit for hunk in group if (edit := _guard(hunk, old, new, name)) is not None]
        if len(edits) < len(group):
            continue
        edits += importing
        path, diff, made = _diff(function.__code__.co_filename, text, edits)
        repaired = _compiled(program, function, tree, text, edits, _refusing(function, lost))
        if repaired is not None:
            yield Repair(repaired, "guard the change, so that runs from before it keep their path", path, diff, made)


def _hunks(old: Block, new: Block) -> Iterator[Hunk]:
    """Where two blocks differ; statements with the same head are compared inside."""
    matcher = difflib.SequenceMatcher(None, [_head(s) for s in old], [_head(s) for s in new], autojunk=False)
    for tag, i, i_end, j, j_end in matcher.get_opcodes():
        if tag == "equal":
            for was, now in zip(old[i:i_end], new[j:j_end], strict=True):
                yield from _inside(was, now)
        else:
            yield _hunk(old[i:i_end], new, j, j_end)


def _span(old: Block, new: Block) -> Hunk:
    """All that differs in a block as one hunk."""
    was, now = [ast.dump(one) for one in old], [ast.dump(one) for one in new]
    most = min(len(was), len(now))
    start = next((n for n in range(most) if was[n] != now[n]), most)
    end = next((n for n in range(most - start) if was[-1 - n] != now[-1 - n]), most - start)
    return _hunk(old[start : len(old) - end], new, start, len(new) - end)


def _hunk(old: Block, new: Block, start: int, end: int) -> Hunk:
    """Statements of the old block against those of the new one from `start` to before `end`."""
    at = new[start] if start < len(new) else None
    line = _first(at) if at is not None else (new[-1].end_lineno or 0) + 1
    return Hunk(old, new[start:end], line, (at or new[-1]).col_offset)


def _inside(was: ast.stmt, now: ast.stmt) -> Iterator[Hunk]:
    if ast.dump(was) == ast.dump(now):
        return
    for (_, old), (_, new) in zip(_blocks(was), _blocks(now), strict=True):
        if new:
            yield from _hunks(old, new)
        elif old:  # an `else` or `finally` that is gone has no place any more
            yield Hunk([was], [now], _first(now), now.col_offset)
            return


def _blocks(statement: ast.AST) -> Iterator[tuple[ast.AST, Block]]:
    """The blocks of a compound statement."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list):
            yield statement, block
    for handler in getattr(statement, "handlers", ()):
        yield from _blocks(handler)


def _head(statement: ast.stmt) -> str:
    """A statement without its blocks: equal heads are the same statement."""
    if not any(True for _ in _blocks(statement)):
        return ast.dump(statement)
    bare = copy.copy(statement)
    for name in ("body", "orelse", "finalbody"):
        if isinstance(getattr(bare, name, None), list):
            setattr(bare, name, [])
    if isinstance(bare, ast.Try):
        handlers = []
        for handler in bare.handlers:
            one = copy.copy(handler)
            one.body = []
            handlers.append(one)
        bare.handlers = handlers
    return ast.dump(bare)


def _guard(hunk: Hunk, old: SourcePart, new: SourcePart, name: str) -> Edit | None:
    """An edit of the new file that takes the old statements for old runs."""
    offset = new.line - 1
    now, was = _lines(new.text, hunk.new), _lines(old.text, hunk.old)
    if now is None or was is None:
        return None
    first = _first(hunk.new[0]) if hunk.new else hunk.line
    last = (hunk.new[-1].end_lineno or 0) if hunk.new else first - 1
    # The text of a part is as indented as its file.
    shift = len(new.text) - len(new.text.lstrip())
    indent = " " * ((hunk.new[0].col_offset if hunk.new else hunk.column) + shift)
    inner = indent + "    "
    guarded: list[str] = []
    if now:
        guarded += [f'{indent}if patched("{name}"):', *_indented(now, inner)]
        guarded += [f"{indent}else:", *_indented(was, inner)] if was else []
    else:
        guarded += [f'{indent}if not patched("{name}"):', *_indented(was, inner)]
    return Edit(first + offset, last + offset, tuple(guarded))


def _lines(text: str, block: Block) -> list[tuple[str, bool]] | None:
    """The lines of statements, dedented, each with whether it may be indented; None if they share lines with others."""
    if not block:
        return []
    source = textwrap.dedent(text).splitlines()
    first, last = _first(block[0]), block[-1].end_lineno or 0
    if any(a.end_lineno == _first(b) for a, b in pairwise(block)):
        return None
    column = block[0].col_offset
    if source[first - 1][:column].strip():
        return None
    fixed: set[int] = set()
    for statement in block:
        for node in ast.walk(statement):
            if isinstance(node, ast.Constant | ast.JoinedStr) and (node.end_lineno or 0) > node.lineno:
                fixed.update(range(node.lineno + 1, (node.end_lineno or 0) + 1))
    found: list[tuple[str, bool]] = []
    for number in range(first, last + 1):
        line = source[number - 1]
        if number in fixed:
            found.append((line, False))
        elif line.strip() and line[:column].strip():
            return None
        else:
            found.append((line[column:], True))
    return found


def _indented(lines: list[tuple[str, bool]], indent: str) -> list[str]:
    return [f"{indent}{line}".rstrip() if free else line for line, free in lines]


def _with_users(hunk: Hunk, hunks: Sequence[Hunk]) -> list[Hunk]:
    """A difference, and those that use what it binds: old statements before new ones that take them for others."""
    found = [hunk]
    for one in found:
        bound = _names([*one.old, *one.new], ast.Store)
        found += [user for user in hunks if user not in found and bound & _names([*user.old, *user.new], ast.Load)]
    return [one for one in hunks if one in found]


def _leaves_unbound(hunk: Hunk, function: ast.AST) -> bool:
    """Whether what the new statements bind, and the old ones do not, is used elsewhere in the function."""
    inside = {id(node) for statement in hunk.new for node in ast.walk(statement)}
    bound = _names(hunk.new, ast.Store) - _names(hunk.old, ast.Store)
    if not bound:
        return False
    used: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and id(node) not in inside:
            if isinstance(node.ctx, ast.Store):
                bound.discard(node.id)
            else:
                used.add(node.id)
    return bool(bound & used)


def _names(block: Block, context: type[ast.expr_context]) -> set[str]:
    return {
        node.id
        for statement in block
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }


# --- text -----------------------------------------------------------------------------------------------------------


def _text(function: FunctionType) -> str:
    return "".join(linecache.getlines(function.__code__.co_filename))


def _function(text: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        body = parse(textwrap.dedent(text)).body
    except (SyntaxError, ValueError):
        return None
    found = body[0] if len(body) == 1 else None
    return found if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Block:
    """The statements of a function without its docstring."""
    first = function.body[0]
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return function.body[1:] if is_text and len(function.body) > 1 else function.body


def _first(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(one.lineno for one in decorators)])


def _line(divergence: Divergence) -> int:
    for op in (divergence.current, divergence.last, divergence.recorded):
        number = op.source.rpartition(":")[2] if op is not None else ""
        if number.isdigit():
            return int(number)
    return 0


def _slug(divergence: Divergence) -> str:
    old, now = divergence.recorded.name, divergence.current
    new = old if now is None or now.kind == "end" else now.name
    name = {"inserted": new, "more": new, "renamed": f"{old}-to-{new}", "type": f"{old}-to-{new}"}.get(
        divergence.change, old
    )
    return "".join(c if c.isalnum() or c in "_-." else "-" for c in f"{divergence.change}-{name}")[:60]


def _unused(name: str, text: str) -> str:
    number = 2
    found = name
    while f'"{found}"' in text or f"'{found}'" in text:
        found, number = f"{name}-{number}", number + 1
    return found


def _import(tree: ast.Module, text: str, name: str, globals: dict[str, Any]) -> list[Edit]:
    """The import of a name of perdure that a module does not have yet."""
    if name in globals:
        return []
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    ours = [node for node in imports if isinstance(node, ast.ImportFrom) and node.module == "perdure"]
    lines = text.splitlines()
    if ours and ours[-1].lineno == ours[-1].end_lineno and not lines[ours[-1].lineno - 1].rstrip().endswith(")"):
        line = ours[-1].lineno
        code, hash, comment = lines[line - 1].partition("  #")
        return [Edit(line, line, (f"{code}, {name}{hash}{comment}",))]
    after = ((ours or imports)[-1].end_lineno or 0) if imports else 0
    return [Edit(after + 1, after, (f"from perdure import {name}",))]


def _diff(file: str, text: str, edits: Sequence[Edit]) -> tuple[str, str, str]:
    """The file, the change of it as a unified diff, and its text afterwards."""
    before = text.splitlines()
    after = _edited(before, edits)
    name = from_here(file)
    diff = difflib.unified_diff(before, after, name, name, n=2, lineterm="")
    return name, "\n".join([*diff, ""]), "\n".join(after) + "\n"


def _edited(lines: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    made = list(lines)
    for edit in sorted(edits, key=lambda one: one.first, reverse=True):
        made[edit.first - 1 : edit.last] = edit.lines
    return made


# --- code -----------------------------------------------------------------------------------------------------------


def _lost_function(divergence: Divergence) -> str:
    """The function that the code calls in place of a recorded step or child; empty if that is not what has changed."""
    now = divergence.current
    return "" if now is None or ":" in now.path or now.kind in ("end", "input") else now.name


def _compiled(
    program: Any, function: FunctionType, tree: ast.Module, text: str, edits: Sequence[Edit], values: dict[str, Any]
) -> Program | None:
    """The program with one function as edited, and other values; None if it does not compile, or needs other variables.

    Compiled alone, at the lines that it will have in its file: a file may be long, and repairs many.
    """
    code = function.__code__
    around = next((s for s in tree.body if _first(s) <= code.co_firstlineno <= (s.end_lineno or 0)), None)
    if around is None:
        return None
    start, end = _first(around), around.end_lineno or 0
    before = [edit for edit in edits if edit.last < start]
    inside = [edit for edit in edits if edit not in before and edit.first <= end + 1]
    shift = sum(len(edit.lines) - (edit.last - edit.first + 1) for edit in before)
    lines = "\n" * (start - 1 + shift) + "\n".join(_edited(text.splitlines()[:end], inside)[start - 1 :]) + "\n"
    flags = code.co_flags & __future__.annotations.compiler_flag
    try:
        module = compile(lines, code.co_filename, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    made = next((one for one in codes_of(module) if one.co_qualname == function.__qualname__), None)
    if made is None or made.co_freevars != code.co_freevars:
        return None
    return _rebound(program, function, made, values)


def _refusing(function: FunctionType, lost: str) -> dict[str, Any]:
    """A lost function refuses to be called: it was a step, and no trial may do what it does."""
    return {lost: _refuse} if callable(function.__globals__.get(lost)) else {}


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a repair that calls what was a step is not tried")


def _patched(id: str) -> bool:
    return require_body("patched()").patched(id)


def _rebound(program: Any, function: FunctionType, code: CodeType, values: dict[str, Any]) -> Program:
    """A copy of the program whose module has another function, and other values. The module itself stays as it is."""
    names = {**function.__globals__, "patched": _patched, **values}
    copies: dict[int, FunctionType] = {}

    def copied(one: FunctionType) -> FunctionType:
        found = copies.get(id(one))
        if found is None:
            body = code if one is function else one.__code__
            found = FunctionType(body, names, one.__name__, one.__defaults__, one.__closure__)
            found.__kwdefaults__, found.__qualname__, found.__module__ = (
                one.__kwdefaults__,
                one.__qualname__,
                one.__module__,
            )
            copies[id(one)] = found
        return found

    for name, value in function.__globals__.items():
        if is_a(value, FunctionType) and value.__globals__ is function.__globals__ and name not in values:
            names[name] = copied(value)
    fn: Callable[..., Any] = program.fn
    assert isinstance(fn, FunctionType)
    return program.with_function(copied(fn))  # type: ignore[no-any-return]
