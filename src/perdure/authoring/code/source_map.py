"""Map the ops that a workflow function mentions to its source lines. Reads code, never runs it."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dis import Instruction
from types import CodeType, FunctionType, ModuleType
from typing import Any

import msgspec

from perdure.authoring.code.call_graph import BY_NAME, Walk, codes_of, function_of, instructions_of, is_users, spec_of
from perdure.authoring.code.loop import short
from perdure.authoring.code.step import Step, step
from perdure.kernel.commands import StepSpec
from perdure.kernel.divergence.model import OpView
from perdure.kernel.divergence.source_map import Arms, Loop, Mention, SourceMap
from perdure.kernel.program import is_program
from perdure.kernel.values.raised import is_a
from perdure.kernel.values.static import (
    attribute,
    attributes_of,
    defined_in,
    items_of,
    module_of,
    mro,
    name_of,
    own,
    text_of,
)

# A line and a column; and from one to another.
Position = tuple[int, int]
Span = tuple[Position, Position]
# The arms and the loops of a file, and the second arguments of its calls.
Structure = tuple[dict[int | Position, Arms], dict[int, tuple[Loop, ...]], dict[Position, Span]]

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
_MAKES_TEXT = {"FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "BUILD_STRING", "BINARY_OP"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"}
# What the variables of an inner function are loaded with before it is made, and functions inside a function are.
_OF_CLOSURES = {"LOAD_CLOSURE", "BUILD_TUPLE", "LOAD_FAST", "LOAD_DEREF"}
# What leaves the value that was loaded last as it is.
_SAME = {"CACHE", "PUSH_NULL", "EXTENDED_ARG", "RESUME", "NOP", "COPY", "SWAP", "PRECALL"}
# The most lines, and one more, that a decorator of a step is expected to take.
_DECORATOR = 4
_INLINE = "step_inline"
_PARSING = threading.Lock()


class Code(msgspec.Struct, frozen=True):
    """What the code of a program calls: its steps and children, and what it calls as it is, by name."""

    steps: frozenset[str]
    # The workflows that it runs as children.
    children: frozenset[str]
    plain: dict[str, OpView]
    # Functions of the user that are called, by line; none if the code may call steps that it does not show.
    calls: dict[str, OpView]
    # The steps and workflows of the modules of these functions, called or not.
    defined: frozenset[str]
    # Functions that are called by no name of theirs: from a table, or through an attribute that the code makes.
    unnamed: dict[str, OpView]
    # Texts of which names are made; whether no step or workflow is called but those above, and those of such names.
    pieces: frozenset[str]
    closed: bool
    # Those steps and children that the code is seen to ask for.
    shown: frozenset[str]

    def lost(self, name: str, source: str = "", function: str = "") -> OpView | None:
        """What the code calls in place of a step or a workflow of this name, if that is neither.

        `source`: where it was called. `function`: its function, where that had another name. Without its decorator the
        code after it is a few lines further up.
        """
        if self.may_ask_for(name):
            return None
        if name in self.plain or name in self.unnamed:
            return self.plain.get(name) or self.unnamed[name]
        for one in function.split():
            if one in self.plain and one not in self.steps | self.children:
                return self.plain[one]
        if name in self.defined:
            return None
        file, _, line = _in_any_folder(source).rpartition(":")
        lines = range(int(line), max(0, int(line) - _DECORATOR), -1) if line.isdecimal() else ()
        return next((found for n in lines if (found := self.calls.get(f"{file}:{n}"))), None)

    def may_ask_for(self, name: str) -> bool:
        """Whether the code may ask for a step or a child of this name."""
        return name in self.steps or name in self.children or any(piece in name for piece in self.pieces)


def read_map(fn: Callable[..., Any]) -> SourceMap:
    """The ops that `fn`, the functions that it calls and its children mention."""
    walk = _SourceWalk(enters=True)
    walk.visit(fn, frozenset())
    walk.finish()
    lines = {name: tuple(dict.fromkeys(one.place for one in found)) for name, found in walk.mentions.items()}
    mentions = {name: tuple(dict.fromkeys(found)) for name, found in walk.mentions.items()}
    return SourceMap(lines, walk.code, walk.arms, True, mentions, walk.loops)


def read_code(fn: Callable[..., Any]) -> Code:
    """What `fn` and the functions that it calls ask for, and call; not its children, which are other executions."""
    walk = _SourceWalk()
    walk.visit(fn, frozenset())
    walk.finish()
    steps = walk.steps - (walk.bypassed - walk.called)
    children = {one.name for one in walk.workflows} - walk.bypassed
    steps |= walk.names
    children |= walk.names
    pieces: frozenset[str] = frozenset()
    if walk.makes_names:
        texts = walk.texts_for_names()
        steps |= texts
        children |= texts
        pieces = frozenset(text for text in texts if len(text) > 1)
    modules = [list(globals_.values()) for globals_ in walk.globals.values()]
    defined = {spec.name for values in modules for spec in _steps(values)}
    programs = {one.name for values in modules for one in values if is_program(one)}
    shown = frozenset(steps | children)
    if not walk.complete:
        steps |= defined - walk.bypassed
        children |= programs - walk.bypassed
    unnamed = walk.unnamed(fn)
    # What the body makes a step of is one.
    made = {name for name, one in walk.plain.items() if one.source in walk.making}
    steps |= ({*walk.plain, *unnamed} if walk.makes_any else made) - walk.bypassed
    is_closed = walk.complete and not walk.makes_any
    return Code(
        frozenset(steps),
        frozenset(children),
        walk.plain,
        walk.calls if is_closed and not walk.makes_names else {},
        frozenset(defined | programs),
        unnamed,
        pieces,
        is_closed,
        shown,
    )


def _steps(values: Iterable[Any], depth: int = 1) -> Iterator[StepSpec]:
    """The steps among some values, and in tables of them."""
    for value in list(values):
        if is_a(value, Step):
            yield value.spec
        elif depth:
            yield from _steps(items_of(value), depth - 1)


class _SourceWalk(Walk):
    def __init__(self, *, enters: bool = False) -> None:
        super().__init__()
        # Whether children are visited as well.
        self._enters = enters
        self.mentions: dict[str, list[Mention]] = {}
        self.code: dict[str, str] = {}
        self.arms: dict[str, Arms] = {}
        self.loops: dict[str, tuple[Loop, ...]] = {}
        self._files: dict[str, dict[int | tuple[int, int], Arms]] = {}
        # Of each file, by where the name of a called function ends: where its second argument is.
        self._seconds: dict[str, dict[Position, Span]] = {}
        self._names: dict[str, str] = {}
        self._read: set[CodeType] = set()
        # What is called as it is, by name; steps that are called, and those whose function is called.
        self.plain: dict[str, OpView] = {}
        self.calls: dict[str, OpView] = {}
        self.called: set[str] = set()
        self.bypassed: set[str] = set()
        # Of each function: its name, its texts, and the names that it loads; and the functions themselves by name.
        self._functions: list[tuple[str, set[str], set[str]]] = []
        self._reached: dict[str, FunctionType] = {}
        # The names of the modules whose functions were visited.
        self.globals: dict[int, Mapping[str, Any]] = {}
        # Lines on which a body makes steps itself, and whether it makes them of what it is given.
        self.making: set[str] = set()
        self.makes_any = False
        # The names that are given to inline steps and to `call`, and whether the code makes some of them.
        self.names: set[str] = set()
        self.makes_names = False
        # Functions that are passed on, to be called as steps.
        self.passed: set[str] = set()
        # Where attributes of objects are read that the code alone does not show.
        self._reads: dict[str, tuple[CodeType, int]] = {}

    def _workflow(self, found: Any) -> None:
        if self._enters:
            super()._workflow(found)
        else:
            self.workflows.append(found)

    def texts_for_names(self) -> set[str]:
        """What may be the name of an inline step, or a part of it: a text of a function that leads to such a call."""
        leading, known = set(BY_NAME), 0
        while len(leading) > known:
            known = len(leading)
            leading |= {name for name, _, loaded in self._functions if not loaded.isdisjoint(leading)}
        return {text for _, texts, loaded in self._functions if not loaded.isdisjoint(leading) for text in texts}

    def unnamed(self, fn: Callable[..., Any]) -> dict[str, OpView]:
        """Functions that are called, or may be, by name, at their definitions. Workflows are left out."""
        found = dict(self._reached)
        if not self.complete:
            every = (value for names in self.globals.values() for value in list(names.values()))
            found = {value.__name__: value for value in every if is_a(value, FunctionType)} | found
        known = {fn, *(own(workflow, "fn") for workflow in self.workflows)}
        passed = self.passed - self.plain.keys()
        return {
            name: self._at_definition(one) for name, one in found.items() if one not in known and name not in passed
        }

    def _at_definition(self, function: FunctionType) -> OpView:
        code = function.__code__
        place = self._place(code, code.co_firstlineno)
        text = linecache.getline(code.co_filename, code.co_firstlineno).partition("  #")[0].strip()
        return OpView("a plain function", function.__name__, function.__name__, "", place, text)

    def _module(self, module: ModuleType, attributes: frozenset[str]) -> None:
        super()._module(module, attributes)
        names = attributes_of(module)
        if is_users(names.get("__name__")):
            self.globals[id(names)] = names

    def _function(self, function: FunctionType) -> None:
        super()._function(function)
        if not is_users(function.__module__):
            return
        texts: set[str] = set()
        loaded: set[str] = set()
        self._functions.append((function.__name__, texts, loaded))
        self._reached.setdefault(function.__name__, function)
        self.globals[id(function.__globals__)] = function.__globals__
        free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        codes = list(codes_of(function.__code__))
        passed_on = {inner for code in codes for inner in _passed_on(code)}
        # What is given to `step_inline` as its function, which is called as a step.
        given: list[Span] = []
        local = {name for code in codes for name in _local_functions(code)}
        for code in codes:
            self._lines_of(code)
            texts.update(_texts(code.co_consts))
            found: Any = None
            # How many arguments of `step_inline` are still to be loaded: its name, and then what it calls.
            inline = 0
            # Whether the second one is a function that is not called here.
            passes = False
            if code in passed_on:
                continue
            instructions = instructions_of(code)
            made = [span for one in instructions if one.opname in _MAKES_TEXT and (span := _span(one)) is not None]
            # Where the function is named whose first argument is a name.
            by_name: Span | None = None
            for one in instructions:
                position = one.positions
                line = position.lineno if position is not None else None
                at = (line, position.col_offset) if position is not None else None
                name = str(one.argval)
                is_given = any(first <= (line or 0, at[1] or 0) < end for first, end in given) if at else False
                passed = is_given or (inline == 1 and passes)
                if is_given:
                    passed_on |= {inner for inner in code.co_consts if _is_made_for(inner, one, name, code)}
                if inline == 2 and one.opname not in _SAME:
                    is_text = one.opname == "LOAD_CONST" and isinstance(one.argval, str)
                    self.names |= {name} if is_text else set()
                    self.makes_names |= not is_text or _is_part(one, by_name, made)
                inline = max(0, inline - (one.opname not in _SAME))
                if line is not None and one.opname == "LOAD_FAST" and name not in local:
                    self.makes_any |= self._place(code, line) in self.making
                if (
                    one.opname in ("LOAD_FAST", "LOAD_DEREF", "LOAD_FAST_CHECK")
                    and name in local
                    and not _is_of_closure(one, code)
                    and line is not None
                    and not passed
                ):
                    self._plain(name, code, line, "a plain function")
                    found = None
                elif is_given and one.opname in _ATTRIBUTES:
                    loaded.add(name)
                    self.passed.add(name)
                    found = None
                    continue
                elif one.opname in _LOADS:
                    found = _value(function, free, name)
                    if passed:
                        self.passed |= {name, name_of(found) or name}
                    else:
                        self._refer(name, found, code, line)
                    if _takes_a_name(found):
                        inline, passes, by_name = 2, name_of(found) == _INLINE, _span(one)
                        given += self._given(code, one) if passes else []
                    loaded |= {name, name_of(found) or name}
                    if (text := text_of(found)) is not None:
                        texts.add(text)
                elif one.opname == "IMPORT_NAME":
                    found = sys.modules.get(name)
                elif one.opname in _ATTRIBUTES:
                    loaded.add(name)
                    whole = found if one.opname == "IMPORT_FROM" else None
                    found = self._attribute(found, name, code, line)
                    if _takes_a_name(found):
                        inline, passes, by_name = 2, name_of(found) == _INLINE, _span(one)
                        given += self._given(code, one) if passes else []
                    self._note(_name(found), code, line, at)
                    found = whole if whole is not None else found
                    continue
                elif one.opname == "LOAD_CONST" and isinstance(one.argval, str):
                    self._note(one.argval, code, line, at)
                    continue
                else:
                    found = found if one.opname in _SAME else None
                    continue
                self._note(_name(found), code, line, at)

    def _given(self, code: CodeType, one: Instruction) -> list[Span]:
        """Where the second argument of the call is, whose function was loaded by an instruction."""
        position = one.positions
        if position is None or position.end_lineno is None or position.end_col_offset is None:
            return []
        span = self._seconds.get(code.co_filename, {}).get((position.end_lineno, position.end_col_offset))
        return [] if span is None else [span]

    def _attribute(self, owner: Any, name: str, code: CodeType, line: int | None) -> Any:
        """What an attribute is, read without calling properties."""
        if owner is None:
            if line is not None:
                self._reads[name] = code, line
            return None
        called = _called_name(owner)
        if called:
            if name in ("fn", "__wrapped__") and line is not None:
                self.called.discard(called)
                self.bypassed.add(called)
                self._plain(called, code, line, "called as a plain function")
            return None
        found = function_of(attribute(owner, name))
        self._refer(name, found, code, line)
        return found

    def _attributes(self, cls: type, attributes: frozenset[str]) -> None:
        super()._attributes(cls, attributes)
        for base in mro(cls):
            if is_users(module_of(base)):
                names = attributes_of(base)
                for name in attributes & names.keys() & self._reads.keys():
                    if callable(function_of(names[name])):
                        self._plain(name, *self._reads[name], f"a plain method of {name_of(base)}")

    def _refer(self, name: str, found: Any, code: CodeType, line: int | None) -> None:
        """Note what the code loads under a name: a step, or what it may call as it is."""
        spec = spec_of(found)
        if spec is not None:
            self.called.add(spec.name)
            return
        if line is not None and found is step:
            self.making.add(self._place(code, line))
        if line is None or is_program(found) or not callable(found):
            return
        kind = "a class" if is_a(found, type) else "a plain function"
        self._plain(name, code, line, kind)
        if is_a(found, FunctionType) and is_users(found.__module__):
            place = self._place(code, line)
            self.calls.setdefault(_in_any_folder(place), OpView(kind, name, name, "", place, self.code.get(place, "")))
        defined = name_of(found)
        if defined and defined != name:
            self._plain(defined, code, line, kind)

    def _plain(self, name: str, code: CodeType, line: int, kind: str) -> None:
        if name not in self.plain:
            self._lines_of(code)
            place = self._place(code, line)
            self.plain[name] = OpView(kind, name, name, "", place, self.code.get(place, ""))

    def _note(self, name: str, code: CodeType, line: int | None, at: Any) -> None:
        if name and line is not None:
            place = self._place(code, line)
            arms = self._files.get(code.co_filename, {})
            self.mentions.setdefault(name, []).append(Mention(place, arms.get(at, arms.get(line, ()))))

    def _place(self, code: CodeType, line: int) -> str:
        file = code.co_filename
        if file not in self._names:
            self._names[file] = short(file)
        return f"{self._names[file]}:{line}"

    def _lines_of(self, code: CodeType) -> None:
        file = code.co_filename
        if file not in self._files:
            self._files[file], loops_by_line, self._seconds[file] = _structure("".join(linecache.getlines(file)))
            self.loops.update((self._place(code, line), loops) for line, loops in loops_by_line.items())
        if code not in self._read:
            self._read.add(code)
            for line in {line for _, _, line in code.co_lines() if line}:
                place = self._place(code, line)
                self.code[place] = linecache.getline(file, line).partition("  #")[0].strip()
                self.arms[place] = self._files[file].get(line, ())


def _called_name(owner: Any) -> str:
    """The name of a step or of a workflow in code; empty for anything else."""
    spec = spec_of(owner)
    if spec is not None:
        return spec.name
    return owner.name if is_program(owner) and is_a(own(owner, "fn"), FunctionType) else ""


def _takes_a_name(found: Any) -> bool:
    """Whether it is `step_inline` or `call`, whose first argument is a name."""
    return name_of(found) in BY_NAME and defined_in(found).startswith("perdure.")


def _texts(constants: Iterable[Any]) -> Iterator[str]:
    """The texts among the constants of a function, also those in tuples of them."""
    for one in constants:
        if isinstance(one, str):
            yield one
        elif isinstance(one, tuple | frozenset):
            yield from _texts(one)


def _is_made_for(inner: Any, one: Instruction, name: str, code: CodeType) -> bool:
    """Whether an instruction loads an inner function, by its name or as it is written there."""
    if not isinstance(inner, CodeType):
        return False
    return one.argval is inner or (
        one.opname in ("LOAD_FAST", "LOAD_DEREF", "LOAD_FAST_CHECK")
        and inner.co_name == name
        and not _is_of_closure(one, code)
    )


def _span(one: Instruction) -> Span | None:
    """Where the expression of an instruction begins and ends."""
    at = one.positions
    if at is None or at.lineno is None or at.end_lineno is None or at.col_offset is None or at.end_col_offset is None:
        return None
    return (at.lineno, at.col_offset), (at.end_lineno, at.end_col_offset)


def _is_part(one: Instruction, by_name: Span | None, made: Collection[Span]) -> bool:
    """Whether a text, after the function that is given it, is a part of one of the texts that are made."""
    text = _span(one)
    if by_name is None or text is None:
        return bool(made)
    return any(by_name[0] < start <= text[0] and text[1] <= end for start, end in made)


def _in_any_folder(place: str) -> str:
    """A place without the folder: a deploy may be in another one."""
    return place.rpartition("/")[2]


def _local_functions(code: CodeType) -> set[str]:
    """The names of functions that are made inside a function, and not decorated."""
    found: set[str] = set()
    made = False
    for one in instructions_of(code):
        if made and one.opname in ("STORE_FAST", "STORE_DEREF"):
            found.add(str(one.argval))
        made = one.opname == "MAKE_FUNCTION" or (made and one.opname == "SET_FUNCTION_ATTRIBUTE")
    return found


def _passed_on(code: CodeType) -> Iterator[CodeType]:
    """The functions inside a function that it gives to `step_inline`, which calls them as steps."""
    inner = {one.co_name: one for one in code.co_consts if isinstance(one, CodeType)}
    # How many values are still to be loaded: the name of the step, and then its function.
    left = 0
    for one in instructions_of(code) if inner else ():
        if one.opname in (*_LOADS, *_ATTRIBUTES) and one.argval == _INLINE:
            left = 2
        elif left == 2 and one.opname not in _SAME:
            left = 1
        elif left and one.opname not in _SAME | _OF_CLOSURES:
            left = 0
            if isinstance(one.argval, CodeType):
                yield one.argval
        elif left and one.argval in inner and not _is_of_closure(one, code):
            left = 0
            yield inner[one.argval]


def _is_of_closure(one: Instruction, code: CodeType) -> bool:
    """Whether an instruction loads a variable for an inner function, and not its value."""
    is_cell = one.argval in code.co_cellvars or one.argval in code.co_freevars
    return one.opname == "LOAD_CLOSURE" or (one.opname == "LOAD_FAST" and is_cell)  # the latter from 3.13 on


def _value(function: FunctionType, free: dict[str, Any], name: str) -> Any:
    if name in free:
        try:
            return free[name].cell_contents
        except ValueError:  # not bound yet
            return None
    return function.__globals__.get(name)


def _name(found: Any) -> str:
    """The name of an object in op paths; empty if it is not an op. A text may be the name of a signal."""
    if (text := text_of(found)) is not None:
        return text[:200]
    return _called_name(found) or _OPS.get((defined_in(found).partition(".")[0], name_of(found)), "")


def parse(source: str, file: str = "<unknown>") -> ast.Module:
    """As `ast.parse`, but safe in several threads at once.

    CPython 3.11 shares its recursion counter among threads and may raise SystemError for valid source.
    """
    with _PARSING:
        for _ in range(5):
            with suppress(SystemError):  # code outside of this lock parsed at the same time
                return ast.parse(source, filename=file)
        return ast.parse(source, filename=file)


def _new_lock() -> None:
    global _PARSING
    _PARSING = threading.Lock()


# A forked child may have inherited the lock while another thread held it.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def _structure(source: str) -> Structure:
    """The arms and the loops of a file, and the second arguments of its calls; none if it cannot be read."""
    try:
        return _read_structure(source)
    except (SyntaxError, ValueError, SystemError, RecursionError, MemoryError):
        return {}, {}, {}


# Fixes are tried on copies of a program, whose files are the same.
@functools.lru_cache(maxsize=4)
def _read_structure(source: str) -> Structure:
    tree = parse(source)
    return _arms(tree), _loops(tree), _seconds(tree)


def _arms(tree: ast.Module) -> dict[int | tuple[int, int], Arms]:
    """The arms of conditions around each line of a file, and around each expression by line and column."""
    found: dict[int | tuple[int, int], Arms] = {}

    def walk(node: ast.AST, arms: Arms) -> None:
        line = getattr(node, "lineno", None)
        if line is not None:
            found.setdefault(line, arms)
            found[line, node.col_offset] = arms  # type: ignore[attr-defined]
        inside = _arms_in(node)
        for inner in ast.iter_child_nodes(node):
            around = () if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else arms
            walk(inner, (*around, (line or 0, inside[id(inner)])) if id(inner) in inside else around)

    with suppress(RecursionError):  # deeply nested code: keep the lines before it
        walk(tree, ())
    return found


def _loops(tree: ast.Module) -> dict[int, tuple[Loop, ...]]:
    """The loops around each line of a file, the innermost first."""
    found: dict[int, tuple[Loop, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            for line in range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1):
                found[line] = ((node.lineno, node.body[-1].end_lineno or 0), *found.get(line, ()))
    return found


def _seconds(tree: ast.Module) -> dict[Position, Span]:
    """Where the second argument of each call is, or the one named `fn`, by where the name of what is called ends."""
    found: dict[Position, Span] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            named = [one.value for one in node.keywords if one.arg == "fn"]
            starred = any(isinstance(one, ast.Starred) for one in node.args[:2])
            for second in named or ([] if starred else node.args[1:2]):
                at = node.func.end_lineno or 0, node.func.end_col_offset or 0
                end = second.end_lineno or 0, second.end_col_offset or 0
                found[at] = (second.lineno, second.col_offset), end
    return found


def _arms_in(node: ast.AST) -> dict[int, int]:
    """Which arm of a node each of its parts is, by id; none for a part that is always reached."""
    parts: list[Sequence[ast.AST]] = []
    if isinstance(node, ast.If):
        parts = [node.body, node.orelse]
    elif isinstance(node, ast.IfExp):
        parts = [[node.body], [node.orelse]]
    elif isinstance(node, ast.BoolOp):
        parts = [[], *([value] for value in node.values[1:])]
    elif isinstance(node, ast.Match):
        parts = [[case] for case in node.cases]
    return {id(part): arm for arm, some in enumerate(parts) for part in some}
