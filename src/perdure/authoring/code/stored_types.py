"""The types of everything that runs of a workflow have stored: input, results of steps and children, signals, answers.

Read from annotations, and for signals and answers from the text of the calls that wait for them. Runs none of the code.
"""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Iterable
from types import FunctionType, NoneType
from typing import Any

from perdure.authoring.code.source_map import parse
from perdure.kernel.commands import StepSpec
from perdure.kernel.ids import INPUT
from perdure.kernel.program import is_program
from perdure.kernel.values.raised import is_a
from perdure.kernel.values.static import attribute, module_of, text_of
from perdure.kernel.values.type_table import TableMaker, TypeTable

# Where the classes of types that are no classes are: `list[int]`, `int | None`, `Annotated[...]`.
_OF_TYPES = {"types", "typing", "typing_extensions"}
# By the function that waits: what it waits for, and where its name and its type are among the arguments.
_WAITS: dict[str, tuple[str, int | None, int, str, str]] = {
    "wait_signal": ("signal", 0, 2, "type", ""),
    "inputs": ("signal", None, 0, "type", INPUT),
    "approval": ("approval", 0, 2, "schema", ""),
}


def type_table(
    types: Iterable[tuple[str, Any]],
    functions: Iterable[FunctionType],
    specs: Iterable[StepSpec],
    children: Iterable[Any],
) -> TypeTable:
    """The table of a program with these parameters, functions, steps and children."""
    made = TableMaker()
    for name, annotation in types:
        if not name.startswith("*"):
            made.add(f"input {name.lstrip('=')}", annotation)
    # In one order: what a function calls is found in the order of a set.
    for spec in sorted(specs, key=lambda one: one.name):
        made.add(f"step {spec.name}", spec.returns)
    for child in sorted((one for one in children if is_program(one)), key=lambda one: one.name):
        made.add(f"child {child.name}", child.returns)
    for function in sorted(functions, key=lambda one: (one.__code__.co_filename, one.__code__.co_firstlineno)):
        for use, annotation in _waits(function):
            made.add(use, annotation)
    return made.table()


def _waits(function: FunctionType) -> Iterable[tuple[str, Any]]:
    """What a function waits for, each with its type, as far as its text shows."""
    code = function.__code__
    if not _WAITS.keys() & {*code.co_names, *(name for inner in _inner(code) for name in inner.co_names)}:
        return
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : _last(code)]
    try:
        tree = parse(textwrap.dedent("".join(lines)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called not in _WAITS:
            continue
        kind, at, type_at, word, name = _WAITS[called]
        given = {one.arg: one.value for one in node.keywords}
        try:
            named = given.get("name", node.args[at] if at is not None and at < len(node.args) else None)
            name = name if named is None else text_of(_value(named, function)) or ""
            annotation = given.get(word, node.args[type_at] if type_at < len(node.args) else None)
            if name and annotation is not None:
                yield f"{kind} {name}", _type(annotation, function)
        except Exception:  # it is made at run time, by code that is not called here
            continue


def _value(node: ast.expr, function: FunctionType) -> Any:
    """What an expression of names, attributes and types is. Raises LookupError for any other."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        if node.id in free:
            return free[node.id].cell_contents
        known = function.__globals__
        builtins = known["__builtins__"]
        return (
            known[node.id]
            if node.id in known
            else (builtins if isinstance(builtins, dict) else vars(builtins))[node.id]
        )
    if isinstance(node, ast.Attribute):
        found = attribute(_value(node.value, function), node.attr)
        if found is None:
            raise LookupError(node.attr)
        return found
    if isinstance(node, ast.Subscript):
        generic = _type(node.value, function)
        if attribute(type(generic), "__getitem__") is not None and is_a(generic, type):
            raise LookupError(ast.dump(node))  # an item of a class, such as an Enum, and no type
        return generic[_value(node.slice, function)]
    if isinstance(node, ast.Tuple):
        return tuple(_value(one, function) for one in node.elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _type(node.left, function) | _type(node.right, function)
    raise LookupError(ast.dump(node))


def _type(node: ast.expr, function: FunctionType) -> Any:
    """What an expression is, if that is a type. Raises LookupError for anything else, which may be a proxy."""
    found = _value(node, function)
    if is_a(found, (type, str, NoneType)) or module_of(type(found)) in _OF_TYPES:
        return found
    raise LookupError(ast.dump(node))


def _inner(code: Any) -> Iterable[Any]:
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield constant
            yield from _inner(constant)


def _last(code: Any) -> int:
    from perdure.authoring.code.source import last_line

    return max(map(last_line, [code, *_inner(code)]))
