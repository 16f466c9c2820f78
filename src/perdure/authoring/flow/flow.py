"""`Flow`: a definition in a file as a program. Its version is the hash of the definition."""

from __future__ import annotations

import inspect
import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw

from perdure.authoring.code.body import Called, to_await
from perdure.authoring.dataflow.dependence import Dependence
from perdure.authoring.dataflow.execution import DataflowExecution
from perdure.authoring.dataflow.plan import STATUS
from perdure.authoring.dataflow.program import DataflowProgram
from perdure.authoring.dataflow.values import Value, input_by_name
from perdure.authoring.flow.compile import CONSTANTS, INPUT, INPUTS, RUN, Compiler, all_variables
from perdure.authoring.flow.components import Components, NoComponent, ShownComponents
from perdure.authoring.flow.definition import FlowDef, InputDef, Stubs
from perdure.authoring.flow.files import MOST_BYTES, read_file, real_path
from perdure.authoring.flow.format import read_flow
from perdure.authoring.flow.importing import native
from perdure.authoring.flow.job import Result, asks
from perdure.authoring.flow.overrides import Overrides, overridden, with_profile
from perdure.authoring.flow.schemas import flaw, whole_schema
from perdure.authoring.flow.tree import Mark, Problems, put_places, read
from perdure.authoring.graph.diagram import Format, diagram, turns_of
from perdure.config import Flows
from perdure.errors import FlowInvalid, FlowProblem, NotDecodable, UsageError
from perdure.kernel.commands import UNDECODED, Command
from perdure.kernel.events import AnyEvent, RunClaimed, RunStarted
from perdure.kernel.hints import did_you_mean
from perdure.kernel.invocation import Invocation
from perdure.kernel.patches import NO_HISTORY, PatchHistory
from perdure.kernel.program import Defined, Program
from perdure.kernel.schedules.schedule import ProgramSchedule
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.signatures import Signature, Taken

_NUMBERS = itertools.count()
# Keys that are added to a stored definition: the definitions of flows in it, its places in its file, and its overrides.
# No flow has keys of these names.
INSIDE, PLACES, OVERRIDES = "", "@", "+"
_KEPT = (INSIDE, PLACES, OVERRIDES)
# How deeply definitions that steps have made may be nested.
MOST_LEVELS = 5


class Access(msgspec.Struct, frozen=True):
    """What the steps of a flow may use: as the settings allow, and functions that were given by name.

    `folder`: the folder that workspaces are relative to, if the flow has no file. `names`: the environment variables
    and secrets that it may read; None: any. `level`: how many definitions made by steps it is nested in. `shown`: it is
    only shown, so nothing is imported for its steps, and nothing is refused.
    """

    allowed: Flows = Flows()
    components: Mapping[str, Callable[..., Any]] = {}
    folder: str = ""
    names: frozenset[str] | None = None
    level: int = 0
    shown: bool = False


class FlowDependence(Dependence):
    """The dependences in a flow, whose inputs have other names in the plan."""

    def taking(self, name: str, ops: Mapping[str, int]) -> set[str]:
        """The ops that depend on an input of the flow."""
        return super().taking(INPUT + name, ops) | super().taking(INPUTS, ops)


class ForkedExecution(DataflowExecution):
    """A run of a flow with the past of another run: it has the id of its origin while it repeats that past."""

    def _take_input(self, event: RunClaimed) -> None:
        super()._take_input(event)
        self._take_id()

    def advance(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> Sequence[Command]:
        """Apply one fact, and return the commands of the nodes whose turn it is."""
        self._take_id()
        return super().advance(event, at, decoded)

    def _take_id(self) -> None:
        context = self._past.context()
        if context is not None:
            self._lookup.input[RUN] = Value(msgspec.json.encode({"id": context.id}))


class Flow(DataflowProgram):
    """A flow, as `load_flow` returns it. Call it with its inputs by name, and pass the result to `start` or `run`."""

    def __init__(
        self,
        definition: FlowDef,
        compiler: Compiler,
        access: Access,
        problems: Problems,
        programs: Mapping[str, Program],
        stored: bytes | None = None,
    ) -> None:
        self.plan = compiler.build().plan
        file = problems.file
        self.name, self.file, self.access = definition.name, file, access
        self._inputs, self.schemas = definition.inputs, definition.schemas
        # What its runs store: without places, comments and descriptions, and with the flows in it.
        self.definition = _defined(definition, programs, file) if stored is None else stored
        # Places are at most three numbers for each value: what is bounded is the rest.
        if len(self.definition) - len(msgspec.json.encode(definition.places)) > MOST_BYTES:
            problems.add(definition.mark, "F008", f"with the flows in it, it is larger than {MOST_BYTES:,} bytes")
            problems.stop()
        self.version = version_of(self.definition)
        self.warnings: tuple[FlowProblem, ...] = tuple(problems.found)
        self.variant = bool(self.overrides)
        self.tests, self.content = definition.tests, definition.canonical
        # The flows in it, by the names that steps use.
        self.inner = {use: one for use, one in programs.items() if isinstance(one, Flow)}
        self.schedules = tuple(
            ProgramSchedule(one.id, one.spec, msgspec.json.encode(one.input.plain()).decode(), one.queue)
            for one in definition.schedules
        )
        self.returns = Result()
        self.decides = self.rests = True
        self.dataflow = FlowDependence(self.plan)
        self.asks = asks(self.plan)
        if stored is None:
            self.defined = Defined((file, self.name), f"{file}:1", next(_NUMBERS))
        self.types = tuple((f"={name}", Any) for name in self._inputs)
        self.defaults = {name: one.default for name, one in self._inputs.items() if not one.required}
        self.__name__ = self.__qualname__ = self.name
        variables = all_variables(definition)
        given = {} if compiler.stubs is None else compiler.stubs.vars
        fixed = {
            name: given.get(name, one.default) for name, one in variables.items() if not one.env and not one.secret
        }
        self._constants = Raw(msgspec.json.encode(fixed))
        self._defaults = {
            name: Raw(msgspec.json.encode(one.default)) for name, one in self._inputs.items() if one.has_default
        }

    def __call__(self, /, **inputs: Any) -> Invocation[Any]:
        """What to run, with its inputs; give it to `start` or `run`."""
        self._check_names(inputs)  # a wrong call fails here, at the user's line
        return to_await(Called(self.name, self, (), inputs), sys._getframe(1), f"{self.name}(...)")

    def __repr__(self) -> str:
        return f"<flow {self.name} {self.version}>"

    def override(self, overrides: Overrides) -> Flow:
        """The same flow with changed steps, for one run: `engine.start(flow.override({...})(date=...))`.

        By step, as `book`, or in a flow with jobs as `extract.pull`: an object is a merge patch, such as
        `{"timeout": "5s"}`, and a list a JSON patch. Runs record it with their definition. Raises FlowInvalid.
        """
        if not self.definition:
            raise UsageError("a flow of a test is not overridden")
        data = msgspec.json.decode(self.definition)
        return define(msgspec.json.encode({**data, OVERRIDES: [*data.get(OVERRIDES, ()), overrides]}), self.access)

    @property
    def overrides(self) -> list[Overrides]:
        """Its overrides, in order."""
        found: list[Overrides] = msgspec.json.decode(self.definition or b"{}").get(OVERRIDES, [])
        return found

    @property
    def inputs(self) -> Mapping[str, InputDef]:
        """Its inputs, with their types."""
        return self._inputs

    @property
    def input_names(self) -> Mapping[str, str]:
        """By name in the plan: the names of inputs for callers."""
        others = {INPUTS: "input", CONSTANTS: "vars", RUN: "run", STATUS: "run.status"}
        return {**others, **{INPUT + name: name for name in self._inputs}}

    # --- inputs -----------------------------------------------------------------------------------------------------

    def _check_names(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name not in self._inputs:
                raise TypeError(f"there is no input {name!r}; {did_you_mean(name, self._inputs)}")
        missing = [name for name, one in self._inputs.items() if one.required and name not in given]
        if missing:
            raise TypeError(f"{self.name}() lacks {', '.join(map(repr, missing))}")

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any], codec: Codec) -> bytes:
        """The inputs as one JSON object by name. Raises TypeError for a call that does not fit."""
        if args:
            raise TypeError(f"{self.name}() takes its inputs by name")
        self._check_names(kwargs)
        data = codec.encode_inputs(kwargs, f"an input of {self.name}")
        self._check_values(msgspec.json.decode(data))
        return data

    def check_input(self, input: Raw, codec: Codec) -> object:
        """Raise NotDecodable for stored input that does not fit."""
        given = codec.decode(input_by_name(input), dict[str, Any], f"the input of {self.name}")
        try:
            self._check_names(given)
        except TypeError as error:
            raise NotDecodable(
                f"the input of {self.name}", "its inputs", f"{error} ({self.name} is {self.file})"
            ) from None
        self._check_values(given)
        return given

    def _check_values(self, given: Mapping[str, Any]) -> None:
        for name, value in given.items():
            wrong = flaw(self._inputs[name].schema, self.schemas, value)
            if wrong is not None:
                raise NotDecodable(f"the input {name} of {self.name}", "its schema", wrong)

    @property
    def signature(self) -> str:
        """How it is called."""
        shown = []
        for name, one in sorted(self._inputs.items(), key=lambda item: not item[1].required):
            shown.append(f"{name}: {one.schema.get('type', 'any')}{'' if one.required else ' = ...'}")
        return f"({', '.join(shown)})"

    def call_signature(self, codec: Codec) -> Signature:
        """Its signature as data, for callers in other processes."""
        kind = int(inspect.Parameter.KEYWORD_ONLY)
        return Signature(
            tuple(
                Taken(
                    name,
                    str(one.schema.get("type", "Any")),
                    kind,
                    one.required,
                    Raw(msgspec.json.encode(whole_schema(one.schema, self.schemas))),
                )
                for name, one in self._inputs.items()
            )
        )

    # --- Program ----------------------------------------------------------------------------------------------------

    def open(
        self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY
    ) -> DataflowExecution:
        """A fresh execution of its plan."""
        if not past.replaying:
            self.check_input(started.input, codec)
        given = self._defaults | msgspec.json.decode(input_by_name(started.input), type=dict[str, Raw])
        values = {INPUT + name: value for name, value in given.items()}
        values[INPUTS] = Raw(msgspec.json.encode(given))
        values[CONSTANTS] = self._constants
        values[RUN] = Raw(msgspec.json.encode({"id": started.id}))
        kind = ForkedExecution if past.forked else DataflowExecution
        return kind(self.plan, msgspec.structs.replace(started, input=Raw(msgspec.json.encode(values))), codec, past)

    def diagram(self, *, format: Format = "mermaid", depth: int | None = None) -> str:
        """The flow as a mermaid diagram, or for Graphviz with `format="dot"`."""
        return diagram(self.plan, format=format, depth=depth, inputs=self.input_names)

    def drawn(self, statuses: Mapping[str, str], format: Any, depth: int | None) -> str:
        """The diagram with steps coloured by the statuses of their ops, and the edges that were taken marked."""
        turns = turns_of(statuses)
        return diagram(self.plan, format=format, depth=depth, statuses=turns, inputs=self.input_names)


def _defined(definition: FlowDef, programs: Mapping[str, Program], file: str) -> bytes:
    """A definition with the definitions of the flows in it, and the versions of the programs that are code."""
    inner = {use: Raw(one.definition) if one.definition else one.version for use, one in programs.items()}
    where = {"file": file, "places": definition.places}
    return msgspec.json.encode({**definition.canonical, INSIDE: inner, PLACES: where})


def version_of(definition: bytes) -> str:
    """The version of a definition: a hash that ignores places and the order of keys."""
    return sha256(msgspec.json.encode(_placeless(msgspec.json.decode(definition)), order="sorted")).hexdigest()[:16]


def _placeless(data: Any) -> Any:
    """A definition without places, its own and those of the flows in it."""
    if not isinstance(data, dict):
        return data
    found = {key: value for key, value in data.items() if key != PLACES}
    if isinstance(found.get(INSIDE), dict):
        found[INSIDE] = {use: _placeless(one) for use, one in found[INSIDE].items()}
    return found


def load(path: str, access: Access, stubs: Stubs | None = None) -> Flow:
    """The flow in a file. Raises FlowInvalid with all problems, also if the file cannot be read.

    `stubs`: for a test, replacements of steps and variables. The definition of such a flow is not stored.
    """
    try:
        file = real_path(path)
        return _Files(access, real_path(os.path.dirname(os.path.abspath(path)))).load(path, file, stubs)
    except OSError as error:
        why = f"the file cannot be read: {error.strerror or error}"
        raise FlowInvalid([FlowProblem(os.path.normpath(path), 1, 1, "F001", why)]) from error


class _Stored(msgspec.Struct):
    """The additional keys of a stored definition."""

    flows: dict[str, Any] = msgspec.field(default_factory=dict, name=INSIDE)
    places: _Where = msgspec.field(default_factory=lambda: _Where(), name=PLACES)
    overrides: list[dict[str, Any]] = msgspec.field(default_factory=list, name=OVERRIDES)


class _Where(msgspec.Struct):
    """The file that a definition was read from, and its places in the file."""

    file: str = ""
    places: list[int] = msgspec.field(default_factory=list)


def define(definition: bytes, access: Access) -> Flow:
    """The flow of a definition from the store or from a step. Raises FlowInvalid. Reads no file."""
    problems = Problems(version_of(definition))
    try:
        stored = msgspec.json.decode(definition, type=_Stored)
        data = {key: one for key, one in msgspec.json.decode(definition).items() if key not in _KEPT}
    except msgspec.ValidationError as error:
        raise FlowInvalid([FlowProblem(problems.file, 1, 1, "F002", f"this is no definition: {error}")]) from None
    flows, problems.file = stored.flows, stored.places.file or problems.file

    def load(path: str) -> Flow:
        found = flows.get(f"flow:{path}")
        if not isinstance(found, dict):
            raise NoComponent("F023", f"the flow {path} is not a part of this definition, and files are not read here")
        inner = msgspec.structs.replace(access, folder=os.path.dirname(os.path.join(access.folder, path)))
        return define(msgspec.json.encode(found), inner)

    tree = read(msgspec.json.encode(data), "definition.json", problems)
    put_places(tree, stored.places.places)
    tree = overridden(tree, stored.overrides, problems)
    problems.stop()
    read_back = read_flow(tree, problems)
    return _flow(read_back, access, load, problems, stored=definition)


def _flow(
    definition: FlowDef,
    access: Access,
    load: Callable[[str], Flow],
    problems: Problems,
    stubs: Stubs | None = None,
    stored: bytes | None = None,
) -> Flow:
    variables = all_variables(definition).values()
    names = {name for one in variables for name in (one.env, one.secret) if name}
    for one in variables:
        for name in (one.env, one.secret):
            if name and access.names is not None and name not in access.names:
                problems.add(one.mark, "F023", f"{name} may not be used here: the flow around it does not have it")
    inner = msgspec.structs.replace(access, names=frozenset(names), level=access.level + 1)
    made = partial(define, access=inner) if access.level < MOST_LEVELS else None
    kind = ShownComponents if access.shown else Components
    components = kind(access.allowed, access.components, access.folder, load, made, access.level)
    compiler = Compiler(definition, components, problems, stubs)
    found = Flow(definition, compiler, access, problems, components.programs, stored)
    if stubs is not None:
        found.definition = b""
    return found


class _Files:
    """Reads a flow and the flows in it, each file once."""

    def __init__(self, access: Access, root: str) -> None:
        self._access, self._root = access, root
        self._loaded: dict[str, Flow | None] = {}

    def load(self, shown: str, file: str, stubs: Stubs | None = None) -> Flow:
        """The flow in a file. Errors name the file as the caller did."""
        problems = Problems(os.path.normpath(shown))
        if file in self._loaded:
            found = self._loaded[file]
            if found is None:
                problems.add(Mark(1, 1), "F016", "this flow contains itself")
                problems.stop()
            assert found is not None
            return found
        data = read_file(file)
        self._loaded[file] = None
        try:
            root = native(read(data, problems.file, problems), problems)
            definition = read_flow(with_profile(root, self._access.allowed.profile, problems), problems)
            folder = os.path.dirname(shown)
            access = msgspec.structs.replace(self._access, folder=folder)
            found = _flow(definition, access, partial(self._beside, folder), problems, stubs)
        except BaseException:
            del self._loaded[file]
            raise
        self._loaded[file] = found
        return found

    def _beside(self, folder: str, path: str) -> Flow:
        """The flow in another file, which must be below the folder of the first one."""
        file = real_path(os.path.join(folder, path))
        if os.path.commonpath([file, self._root]) != self._root:
            raise NoComponent("F023", f"{path} is outside of the folder of this flow")
        return self.load(os.path.join(folder, path), file)
