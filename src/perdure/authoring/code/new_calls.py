"""Find what the code calls now and did not call before, outside of steps. Compares sources, and runs none of them.

Where the code can no longer ask for a recorded step, such a call may be what the step did: replay would do it again.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Collection, Iterator

import perdure
from perdure.authoring.code.source_map import parse
from perdure.kernel.divergence.model import OpView
from perdure.kernel.divergence.source import Source, SourcePart
from perdure.kernel.program import NEW_CALL

# What changes nothing outside of the body.
_HARMLESS = (
    (set(dir(builtins)) - {"open", "exec", "eval", "__import__", "input"})
    | set(dir(str))
    | {"get", "items", "keys", "values", "copy", "gather", "create_task", "timeout", "wait_for", "wait", "TaskGroup"}
)
_INLINE = "step_inline"


def new_call(before: Source, now: Source, asked: Collection[str]) -> OpView | None:
    """The first function that the code calls and did not call before; None if a step or child is new, too.

    `asked` are the names of the steps and children that it asks for: a new one was put in the place of the other.
    """
    text = "\n".join(part.text for part in before.parts)
    if any(not re.search(rf"\b{re.escape(name)}\b", text) for name in asked):
        return None
    known = called(before) | _HARMLESS | set(perdure.__all__) | set(asked)
    for part in now.parts:
        lines = part.text.splitlines()
        for name, line in _calls(part):
            if name not in known:
                place = f"{part.file}:{part.line + line - 1}"
                return OpView(NEW_CALL, name, name, "", place, lines[line - 1].partition("  #")[0].strip())
    return None


def called(source: Source) -> set[str]:
    """The names of everything that a program calls."""
    return {name for part in source.parts for name, _ in _calls(part)}


def _calls(part: SourcePart) -> Iterator[tuple[str, int]]:
    """What a function calls, by name, with the line in its text; without what it passes on to be called as a step."""
    try:
        tree = parse(textwrap.dedent(part.text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    queue: list[ast.AST] = [tree]
    while queue:
        node = queue.pop()
        inner = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call):
            name = _name(node.func)
            if name:
                yield name, node.lineno
            if name == _INLINE:
                inner = [one for one in inner if not isinstance(one, ast.Lambda)]
        queue.extend(reversed(inner))


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
