"""Which steps and workflows a function calls, found in its bytecode. Never runs any of it.

Used to find typos in rules and the children of a workflow. If code decides at run time what it calls, the result is
marked incomplete.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

from perdure.authoring.code.bytecode import instructions
from perdure.kernel.commands import StepSpec
from perdure.kernel.policies.rules import StepNames
from perdure.kernel.program import is_program
from perdure.kernel.values.raised import contained, is_a
from perdure.kernel.values.static import attributes_of, items_of, module_of, mro, own

# The limit of objects that are visited.
MOST = 1000
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME"}
_FREE = {"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
# A function that uses these may call anything.
_OPEN_ENDS = {"getattr", "globals", "locals", "vars", "eval", "exec", "__import__", "import_module"}
# These call steps and programs by name.
BY_NAME = {"step_inline", "call"}


def called_steps(fn: Callable[..., Any]) -> StepNames:
    """The steps that `fn` calls, as far as its code shows."""
    walk = Walk()
    walk.visit(fn, frozenset())
    walk.finish()
    return StepNames(frozenset(walk.steps), frozenset(walk.texts), walk.complete and not walk.by_name)


def workflows(fn: Callable[..., Any]) -> list[Any]:
    """The workflows that `fn` calls, directly and indirectly, as far as the code shows."""
    walk = Walk()
    walk.visit(fn, frozenset())
    walk.finish()
    return walk.workflows


class Walk:
    """Visits a function, what it calls, and containers of what it calls, each once."""

    def __init__(self) -> None:
        self.steps: set[str] = set()
        self.workflows: list[Any] = []
        self.texts: set[str] = set()
        self.complete = True
        # Whether steps or programs are called by names that are texts.
        self.by_name = False
        # By id. Keeps the objects alive, so that an id is not reused during the walk.
        self._seen: dict[int, Any] = {}
        self._todo: list[tuple[Any, frozenset[str]]] = []

    def visit(self, found: Any, attributes: frozenset[str]) -> None:
        """Schedule an object, and these attributes of it."""
        self._todo.append((found, attributes))

    def finish(self) -> None:
        """Visit everything that is scheduled."""
        while self._todo:
            found, attributes = self._todo.pop()
            # Visit a module or an object again: other code may use other attributes of it.
            if type(found) is FunctionType or not attributes:
                if id(found) in self._seen:
                    continue
                self._seen[id(found)] = found
            if len(self._seen) > MOST:
                self.complete = False
                return
            try:
                self._inspect(found, attributes)
            except BaseException as error:
                contained(error)
                self.complete = False

    def _inspect(self, found: Any, attributes: frozenset[str]) -> None:
        spec = spec_of(found)
        if spec is not None:
            self._step(spec)
        elif is_a(found, FunctionType):
            self._function(found)
        elif is_a(found, ModuleType):
            self._module(found, attributes)
        elif is_a(found, functools.partial):
            self.visit(found.func, attributes)
        elif is_a(found, MethodType):
            self.visit(found.__func__, attributes)
        elif is_a(found, (dict, list, tuple, set, frozenset)):
            self._items(items_of(found))
        elif is_a(found, type):
            self._attributes(found, attributes)
        elif is_program(found) and is_a(own(found, "fn"), FunctionType):
            self._workflow(found)
        elif is_a(found, BuiltinFunctionType) and found.__name__ in _OPEN_ENDS:
            self.complete = False
        elif module_of(type(found)) not in _PLAIN:
            self._attributes(type(found), attributes)
            for name in attributes:
                self.visit(own(found, name), frozenset())
            self.complete = False

    def _step(self, spec: StepSpec) -> None:
        self.steps.add(spec.name)

    def _workflow(self, found: Any) -> None:
        self.workflows.append(found)
        self.visit(own(found, "fn"), frozenset())  # its steps run under the same rules

    def _items(self, items: Any) -> None:
        for item in list(items)[:MOST]:
            if not is_a(item, (str, int, float, bytes, bool, NoneType)):
                self.visit(item, frozenset())

    def _module(self, module: ModuleType, attributes: frozenset[str]) -> None:
        names = attributes_of(module)
        if not is_users(names.get("__name__")):
            self.by_name |= not attributes.isdisjoint(BY_NAME)
            self.complete &= attributes.isdisjoint(_OPEN_ENDS)
            return
        for name in attributes:
            self.visit(names.get(name), attributes)

    def _attributes(self, cls: type, attributes: frozenset[str]) -> None:
        for base in mro(cls):
            if is_users(module_of(base)):
                names = attributes_of(base)
                for name in attributes & names.keys():
                    self.visit(function_of(names[name]), frozenset())

    def _function(self, function: FunctionType) -> None:
        if not is_users(function.__module__):
            self.by_name |= function.__name__ in BY_NAME
            self.complete &= function.__name__ not in _OPEN_ENDS
            return
        free = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        codes = list(codes_of(function.__code__))
        instructions = [one for code in codes for one in instructions_of(code)]
        attributes = frozenset(str(one.argval) for one in instructions if one.opname in _ATTRIBUTES)
        for code in codes:
            self.texts.update(text for text in code.co_consts if isinstance(text, str))
        for one in instructions:
            name = str(one.argval)
            if one.opname in _GLOBALS:
                self._global(function, name, attributes)
            elif one.opname in _FREE and name in free:
                try:
                    self.visit(free[name].cell_contents, attributes)
                except ValueError:  # not bound yet
                    self.complete = False
            elif one.opname == "IMPORT_NAME":
                module = sys.modules.get(name)
                imported = frozenset(str(i.argval) for i in instructions if i.opname == "IMPORT_FROM")
                self.complete &= module is not None
                self.visit(module, attributes | imported)
        self._items(function.__defaults__ or ())

    def _global(self, function: FunctionType, name: str, attributes: frozenset[str]) -> None:
        if name in function.__globals__:
            self.visit(function.__globals__[name], attributes)
        elif name in _OPEN_ENDS or not hasattr(builtins, name):
            self.complete = False


# Modules of types whose values hold no steps.
_PLAIN = {
    "builtins",
    "datetime",
    "decimal",
    "uuid",
    "enum",
    "logging",
    "re",
    "typing",
    "pathlib",
    "fractions",
    "zoneinfo",
}


def function_of(found: Any) -> Any:
    """The function of a static method or a class method; anything else as it is."""
    is_wrapped = is_a(found, staticmethod) or is_a(found, classmethod)
    return found.__func__ if is_wrapped else found


def spec_of(found: Any) -> StepSpec | None:
    """What a step is executed with; None for anything else."""
    spec = own(found, "spec")
    return spec if is_a(spec, StepSpec) else None


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def instructions_of(code: CodeType) -> tuple[dis.Instruction, ...]:
    """The instructions of a function, decoded once for all who walk over it."""
    return _instructions(code, code.co_linetable)


# Equal code may stand at other columns: the table of its lines tells the two apart.
@functools.lru_cache(maxsize=128)
def _instructions(code: CodeType, linetable: bytes) -> tuple[dis.Instruction, ...]:
    return tuple(instructions(code))


def is_users(module: object) -> bool:
    """Whether a module, by its name, belongs neither to perdure nor to the standard library."""
    top = module.partition(".")[0] if is_a(module, str) else ""
    return top != "perdure" and top not in sys.stdlib_module_names
