"""What `use:` of a step can name: functions, other programs, and built-in components. Wires nothing."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from perdure.authoring.code.step import Step, step
from perdure.authoring.flow.children import DynamicFlow, NamedFlow
from perdure.authoring.flow.schemas import flaw
from perdure.config import Flows
from perdure.errors import FlowInvalid, InvalidName, NotDecodable, UsageError
from perdure.kernel.commands import StepSpec
from perdure.kernel.hints import did_you_mean
from perdure.kernel.ids import check_name
from perdure.kernel.program import Program, is_program
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.raised import brief, contained

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "perdure.components"
_STORED = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
DYNAMIC = "Run the flow that `definition` is, an object that an earlier step has made, with this `input`."


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a component."""

    name: str
    required: bool = True
    type: Any = Any
    # For an input of a flow: its JSON Schema, and the schemas that it may refer to.
    schema: tuple[dict[str, Any], dict[str, Any]] | None = None

    def misfit(self, value: bytes) -> str | None:
        """Why an encoded value does not fit; None if it may fit."""
        try:
            if self.schema is not None:
                return flaw(*self.schema, msgspec.json.decode(value))
            if self.type is not Any:
                _codec().decode(value, self.type, self.name)
        except NotDecodable as error:
            return error.reason
        except UsageError:
            pass  # a type that only the engine's codec can decode
        return None


class Component(msgspec.Struct, frozen=True):
    """What a step does. `parameters` is None if it takes any arguments."""

    kind: Literal["step", "child", "sleep", "signal", "approval", "value"]
    parameters: tuple[Parameter, ...] | None
    spec: StepSpec | None = None
    program: Program | None = None
    # A description, in a paragraph.
    about: str = ""


class NoComponent(Exception):
    """`use:` names nothing that can be used here."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


class Components:
    """Finds components for a flow, in a `folder`. `load` gives the flow of a file that it names, or raises OSError.

    `define` makes a flow from a definition that a step has made; None if that is not allowed here. `level`: how many
    such definitions this flow is nested in.
    """

    def __init__(
        self,
        allowed: Flows,
        given: Mapping[str, Callable[..., Any]],
        folder: str,
        load: Callable[[str], Program],
        define: Callable[[bytes], Program] | None = None,
        level: int = 0,
    ) -> None:
        self._allowed, self._given, self.folder, self._load, self._define = allowed, given, folder, load, define
        self._level = level
        # The components and programs that steps use, by the text of `use`.
        self._found: dict[str, Component] = {}
        self.programs: dict[str, Program] = {}

    def find(self, use: str) -> Component:
        """The component of that name. Raises NoComponent."""
        found = self._found.get(use)
        if found is None:
            found = self._found[use] = self._find(use)
            if found.program is not None:
                self.programs[use] = found.program
        return found

    def _find(self, use: str) -> Component:
        scheme, colon, rest = use.partition(":")
        if colon and scheme == "python":
            return self._of_python(rest)
        if colon and scheme == "flow":
            return self._of_flow(rest)
        if colon and scheme == "queue":
            return _of_queue(rest)
        if colon:
            hint = did_you_mean(scheme, ("python", "flow", "queue"))
            raise NoComponent("F020", f"there is no kind of component {scheme + ':'!r}; {hint}")
        if use in self._given:
            return made_of(self._given[use], use)
        if use in OWN:
            return OWN[use]
        if use == "flow":
            if self._define is None:
                raise NoComponent("F023", "flows that steps have made run others in them five deep at most")
            return msgspec.structs.replace(of_program(DynamicFlow(self._define)), about=DYNAMIC)
        if use == "http":
            from perdure.authoring.flow.http import component

            return made_of(component(self._allowed.http), use)
        if use == "shell" and self._allowed.shell is False:
            raise NoComponent("F023", "flows may not run commands here: the settings say `flows: {shell: false}`")
        if use == "shell" and self._allowed.shell is None and self._level:
            raise NoComponent(
                "F023",
                "a flow that a step has made may not run commands; if it may, say so in the settings, as "
                "`flows: {shell: true}`",
            )
        if use == "shell":
            from perdure.authoring.flow.shell import shell

            return made_of(shell, use)
        for point in self._installed:
            if point.name != use:
                continue
            return made_of(_loaded(point.load, f"the component {use!r} of {point.value} cannot be loaded"), use)
        raise NoComponent("F020", f"there is no component {use!r}; {did_you_mean(use, self.names())}")

    def workspaces(self) -> tuple[str, ...]:
        """The folders that may contain the workspace of a flow, as absolute paths."""
        return tuple(os.path.abspath(one) for one in (self.folder, *self._allowed.workspaces))

    def names(self) -> list[str]:
        """The names of all components that have one."""
        return sorted({*self._given, *PROVIDED, *(point.name for point in self._installed)})

    @cached_property
    def _installed(self) -> Sequence[EntryPoint]:
        """The components of installed packages."""
        from importlib.metadata import entry_points

        return tuple(entry_points(group=GROUP))

    def _of_python(self, path: str) -> Component:
        module, _, name = path.rpartition(".")
        if not module or not all(part.isidentifier() and not part.startswith("__") for part in path.split(".")):
            raise NoComponent("F020", f"python:{path} is no function; write python:module.function")
        if not self._is_allowed(module):
            listed = ", ".join(self._allowed.python) or "none"
            raise NoComponent(
                "F023",
                f"functions of {module} are not allowed here (allowed: {listed}); allow it in the settings, as in "
                f"`flows: {{python: [{module.partition('.')[0]}]}}`",
            )
        imported = _loaded(lambda: importlib.import_module(module), f"{module} cannot be imported")
        # A module may have a function that gives its names.
        found = _loaded(lambda: getattr(imported, name, None), f"{path} cannot be taken from its module")
        if found is None:
            known = [one for one, value in vars(imported).items() if callable(value)]
            raise NoComponent("F023", f"{module} has no {name!r}; {did_you_mean(name, known)}")
        program = found if not isinstance(found, Step | type) and is_program(found) else None
        # Only names that the module defines itself, and none that it imports from a module that is not allowed.
        home = getattr(found, "__module__", None) or module
        if program is not None:
            # A flow is defined in a file, with its own settings of what it may use.
            place = module if program.defined is None else program.defined.place[0]
            home = place if place in sys.modules else module
        if not isinstance(home, str) or not self._is_allowed(home):
            raise NoComponent("F023", f"{path} is defined in {home}, whose functions are not allowed here")
        return made_of(found, path) if program is None else of_program(program)

    def _is_allowed(self, module: str) -> bool:
        return any(f"{module}.".startswith(f"{prefix}.") for prefix in self._allowed.python)

    def _of_flow(self, path: str) -> Component:
        if not path.endswith((".yaml", ".yml", ".json")):
            name, at, version = path.partition("@")
            if not _STORED.fullmatch(name) or (at and not version):
                raise NoComponent("F020", f"flow:{path} is neither a file, as flow:./other.yaml, nor flow:name@version")
            return Component("child", None, program=NamedFlow(name, version))
        try:
            return of_program(self._load(path))
        except FlowInvalid as error:
            raise NoComponent("F023", f"{path} is no flow:\n  " + str(error).replace("\n", "\n  ")) from None
        except OSError as error:
            raise NoComponent("F023", f"{path} cannot be read: {error.strerror or error}") from None


class ShownComponents(Components):
    """Components of a flow that is only shown: nothing is imported for its steps, and nothing is refused."""

    def workspaces(self) -> tuple[str, ...]:
        """Any folder, as none is created."""
        return (os.path.abspath(os.sep),)

    def _find(self, use: str) -> Component:
        if use in OWN or use == "flow" or use.startswith("flow:"):
            return super()._find(use)
        return made_of(_not_here, use)


def _not_here(**given: Any) -> Any:
    raise UsageError("this flow is looked at, and its steps are not executed")


def _loaded(load: Callable[[], Any], failed: str) -> Any:
    """The result of a module's code. Whatever it raises, SystemExit included, is a problem of the flow's file."""
    try:
        return load()
    except (ImportError, AttributeError) as error:
        raise NoComponent("F023", f"{failed}: {error}") from None
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise NoComponent("F023", f"{failed}: it ends the process while it is imported") from None
        raise NoComponent("F023", f"{failed}: {brief(contained(error))}") from None


@cache
def _codec() -> Codec:
    return Codec()


def made_of(function: Any, name: str) -> Component:
    """The component of a function or a step. Raises NoComponent."""
    if isinstance(function, type) or not callable(function):
        raise NoComponent("F023", f"{name} is no function")
    try:
        spec = function.spec if isinstance(function, Step) else step(function).spec
        parameters = inspect.signature(spec.fn).parameters.values()
    except (TypeError, ValueError, NameError) as error:
        raise NoComponent("F023", f"{name} cannot be used: {error}") from None
    found, about = [], inspect.getdoc(spec.fn) or ""
    types = {name.lstrip("*="): type for name, type in spec.types}
    for one in parameters:
        if one.kind is one.VAR_KEYWORD:
            return Component("step", None, spec, about=about)
        if one.kind in (one.VAR_POSITIONAL, one.POSITIONAL_ONLY):
            raise NoComponent("F023", f"{name} takes {one}, which cannot be given by name")
        found.append(Parameter(one.name, one.default is one.empty, types.get(one.name, Any)))
    return Component("step", tuple(found), spec, about=about)


def _of_queue(path: str) -> Component:
    """A step that the workers of a queue execute."""
    queue, _, name = path.partition("/")
    try:
        for part, what in ((queue, "the name of a queue"), (name, "the name of a step")):
            check_name(part, what)
    except InvalidName:
        raise NoComponent("F020", f"queue:{path} is no step of a queue; write queue:name/step") from None

    async def elsewhere(**given: Any) -> Any:
        raise UsageError(f"{name} is executed by the workers of the queue {queue}")

    made = made_of(elsewhere, name)
    assert made.spec is not None
    return msgspec.structs.replace(made, spec=dataclasses.replace(made.spec, name=name, queue=queue))


def of_program(program: Program) -> Component:
    """A program as a component: its runs are children."""
    inputs, schemas = getattr(program, "inputs", {}), getattr(program, "schemas", {})
    found = []
    for name, type in program.types:
        plain = name.lstrip("*=")
        known = getattr(inputs.get(plain), "schema", None)
        schema = None if known is None else (known, schemas)
        found.append(Parameter(plain, plain not in program.defaults, type, schema))
    return Component("child", tuple(found), program=program)


def _value(value: Any) -> Any:
    return value


OWN: Mapping[str, Component] = {
    "sleep": Component("sleep", (Parameter("for"),), about="Wait: `for` is seconds, or a text such as 90m."),
    "signal": Component(
        "signal",
        (Parameter("name", False, str), Parameter("schema", False, dict[str, Any])),
        about="Wait for a signal of this name, or of the step's; its payload is the result.",
    ),
    "approval": Component(
        "approval",
        (
            Parameter("request", False),
            Parameter("schema", False, dict[str, Any]),
            Parameter("approvers", False, list[str]),
        ),
        about="Show a person the request, and wait for the answer, which is the result.",
    ),
    "value": Component(
        "value", None, made_of(_value, "value").spec, about="What `with` holds, of whatever type, is the result."
    ),
}
# The built-in components.
PROVIDED = (*OWN, "flow", "http", "shell")
