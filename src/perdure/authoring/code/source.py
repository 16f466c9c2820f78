"""Read the source of a workflow function and of the functions that it reaches. Never runs any of it."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

from perdure.authoring.code.call_graph import Walk, codes_of, is_users, spec_of
from perdure.authoring.code.loop import short
from perdure.authoring.code.stored_types import type_table
from perdure.kernel.commands import StepSpec
from perdure.kernel.divergence.source import Source, SourcePart
from perdure.kernel.values.raised import is_a
from perdure.kernel.values.static import attributes_of, module_of, mro


def read_source(fn: Callable[..., Any], types: Sequence[tuple[str, Any]] = ()) -> Source:
    """The source of `fn`, then of what it calls, by file and line. Functions without a file are left out.

    `types`: its parameters, as in a Program.
    """
    walk = _Functions()
    walk.visit(fn, frozenset())
    walk.finish()
    parts = {part for function in walk.functions if (part := part_of(function)) is not None}
    first = part_of(fn)
    rest = sorted(parts - {first}, key=lambda part: (part.file, part.line))
    if first is None:
        return Source()
    table = type_table(types, walk.functions, [*walk.specs, *walk.more_specs()], walk.workflows)
    return Source((first, *rest), types=table.encode())


def reached(fn: Callable[..., Any]) -> list[FunctionType]:
    """What `fn` may call, as far as its code shows; itself among them."""
    walk = _Functions()
    walk.visit(fn, frozenset())
    walk.finish()
    return walk.functions


# What the language calls by itself where code makes an object, calls it, enters it or goes through it.
_CALLED = frozenset(
    [
        *("__new__", "__init__", "__post_init__", "__call__", "__enter__", "__exit__", "__aenter__", "__aexit__"),
        *("__iter__", "__next__", "__aiter__", "__anext__", "__await__", "__getitem__", "__contains__"),
    ]
)


class _Functions(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.functions: list[FunctionType] = []
        self.specs: list[StepSpec] = []

    def _step(self, spec: StepSpec) -> None:
        super()._step(spec)
        self.specs.append(spec)

    def more_specs(self) -> list[StepSpec]:
        """The steps of the modules, for code that does not show which of them it calls."""
        if self.complete and not self.by_name:
            return []
        modules = {id(function.__globals__): function.__globals__ for function in self.functions}
        found = (spec_of(one) for names in modules.values() for one in list(names.values()))
        return [spec for spec in found if spec is not None and spec.name not in self.steps]

    def _function(self, function: FunctionType) -> None:
        super()._function(function)
        # A decorator may have given it the `__module__` of what it wraps.
        if is_users(function.__globals__.get("__name__")):
            self.functions.append(function)

    def _attributes(self, cls: type, attributes: frozenset[str]) -> None:
        super()._attributes(cls, attributes)
        for base in mro(cls):
            if is_users(module_of(base)):
                for name, one in attributes_of(base).items():
                    if name in _CALLED:
                        self.visit(one, frozenset())
                    elif name in attributes and is_a(one, property):
                        self.visit(one.fget, frozenset())


def part_of(function: Any) -> SourcePart | None:
    """The text of one function, without the lines of comments behind its last statement."""
    code: CodeType = function.__code__
    first = code.co_firstlineno
    last = max(last_line(one) for one in codes_of(code))
    lines = linecache.getlines(code.co_filename)[first - 1 : last]
    if not lines:
        return None
    return SourcePart(short(code.co_filename), first, function.__qualname__, "".join(lines).rstrip() + "\n")


def last_line(code: CodeType) -> int:
    """The last line that an instruction stands for."""
    return max((end for _, end, _, _ in code.co_positions() if end is not None), default=code.co_firstlineno)
