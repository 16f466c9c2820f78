"""`Graph`: nodes wired by names, as a program. Immutable; every method returns a new graph."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, Generic, Literal, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast, overload

import msgspec
from msgspec import Raw

from perdure.authoring.code.body import Called, to_await
from perdure.authoring.code.hints import hints_of
from perdure.authoring.code.loop import short
from perdure.authoring.code.step import Step
from perdure.authoring.dataflow.build import Built, Draft, Needed, Options, build, reached
from perdure.authoring.dataflow.dependence import Dependence
from perdure.authoring.dataflow.execution import DataflowExecution
from perdure.authoring.dataflow.plan import Gate as PlannedGate
from perdure.authoring.dataflow.plan import OnError, Plan
from perdure.authoring.dataflow.program import DataflowProgram
from perdure.authoring.dataflow.values import OrSkipped
from perdure.authoring.graph.diagram import Format, diagram, turns_of
from perdure.authoring.graph.fits import fits
from perdure.authoring.graph.nodes import Gate, Named, Node, ProgramNode, Wiring, given_name, name_of
from perdure.authoring.graph.outputs import Outputs
from perdure.errors import GraphInvalid, GraphProblem, NotDecodable, NotSerializable
from perdure.kernel.events import RunStarted
from perdure.kernel.hints import did_you_mean
from perdure.kernel.ids import WrongValue, check_name, check_version
from perdure.kernel.invocation import Invocation
from perdure.kernel.patches import NO_HISTORY, PatchHistory
from perdure.kernel.policies.rules import NONE, Rules, RulesLike, combine, rules_of
from perdure.kernel.policies.versions import check_accepts
from perdure.kernel.program import Defined, Program, is_program
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.items import has_references
from perdure.kernel.values.signatures import Signature, Taken, shown
from perdure.kernel.values.types import name_of as type_name

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")

Member = Step[..., Any] | Gate | Program
# The order in which graphs were defined: of two with one name, the later one is meant.
_NUMBERS = itertools.count()


class Inputs(msgspec.Struct, frozen=True):
    """The inputs of a graph by name, with their types; `bound` inputs have fixed values."""

    required: dict[str, Any]
    optional: dict[str, Any]
    bound: dict[str, Any]


class GraphOptions(TypedDict, total=False):
    """The options of a graph beside its output: see `Graph`."""

    name: str
    version: str
    accepts: Iterable[str]
    loops: Iterable[Named]
    rules: RulesLike
    patches: Iterable[str]
    max_rounds: int
    on_failure: Literal["stop", "continue"]
    retired: Iterable[str]
    renamed: Mapping[str, str] | None


class Graph(DataflowProgram, Generic[P, R]):
    """A program of nodes. A node runs when the values that it takes are there.

    `output`: the node or the value that is the result, or a class whose fields are values; without it the result is
    `Outputs`, with the values that no node takes. `loops` names the nodes at which the rounds of loops begin.
    `on_failure`: after a failure, "stop" begins nothing more; "continue" runs all that does not need what failed.
    `patches` are marked in new runs, for `patched()` in nodes. `retired` and `renamed` let runs continue that were
    started with nodes which the graph no longer has, or has under other names.
    """

    @overload
    def __init__(
        self: Graph[..., Outputs], nodes: Iterable[Member], *, output: None = None, **options: Unpack[GraphOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[..., T], nodes: Iterable[Member], *, output: Step[..., T], **options: Unpack[GraphOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[..., T], nodes: Iterable[Member], *, output: type[T], **options: Unpack[GraphOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: Graph[..., Any], nodes: Iterable[Member], *, output: str | Program, **options: Unpack[GraphOptions]
    ) -> None: ...
    def __init__(
        self,
        nodes: Iterable[Member],
        *,
        name: str = "graph",
        version: str = "1",
        output: Any = None,
        accepts: Iterable[str] = (),
        loops: Iterable[Named] = (),
        rules: RulesLike = (),
        patches: Iterable[str] = (),
        max_rounds: int = 1000,
        on_failure: Literal["stop", "continue"] = "stop",
        retired: Iterable[str] = (),
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        frame = sys._getframe(1)
        where = f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"
        self.name = check_name(name, "the name of a graph")
        self.version = check_version(version, f"the version of {name}")
        self.accepts = check_accepts(accepts, self.version, f"Graph {name}")
        self.rules = rules_of(rules, f"Graph {name}")
        self.errors: Mapping[str, type[BaseException]] = {}
        self.decides = self.rests = True
        self.defined: Defined = Defined((frame.f_globals.get("__name__", ""), name), where, next(_NUMBERS))
        self.__name__ = self.__qualname__ = name
        self._members = tuple(_member(one) for one in _listed("nodes", nodes))
        # The names of the nodes, if this graph is a part of another one.
        self._kept: set[str] | None = None
        self._output = output
        # The names of inputs and values for callers, where they differ from those of the nodes.
        self._input_names: dict[str, str] = {}
        self._output_names: dict[str, str] = {}
        self._given: tuple[inspect.Parameter, ...] | None = None
        self._options = Options(
            where=where,
            loops=tuple(name_of(one) for one in _listed("loops", loops)),
            on_failure=_one_of("on_failure", on_failure, ("stop", "continue")),
            max_rounds=_rounds(max_rounds),
            patches=tuple(check_name(one, "the id of a patch") for one in _listed("patches", patches)),
            retired=tuple(_listed("retired", retired)),
            renamed=_names(renamed),
            fits=fits,
            **_results(output),
        )
        self._build(self._drafts())

    def _drafts(self) -> tuple[Draft, ...]:
        """Its nodes, to be wired. Not kept: a large graph has many of these objects, and its runs need none."""
        drafts = _drafts(self._members, self._options.where)
        return drafts if self._kept is None else tuple(_without(draft, self._kept) for draft in drafts)

    def _build(self, drafts: tuple[Draft, ...]) -> None:
        _forget(self)
        built = build(drafts, self._options)
        self._built: Built = built
        self.plan: Plan = built.plan
        values = {self._output_names.get(name, name): type for name, type in built.values.items()}
        results = {self._output_names.get(name, name): built.values[name] for name, _ in built.plan.results}
        if self._output is None:
            self.returns = Outputs.of(results, values)
        elif built.plan.single:
            self.returns = OrSkipped(next(iter(results.values())))
        else:
            self.returns = OrSkipped(self._output)
        if self._output_names:
            renamed = tuple((self._output_names.get(name, name), source) for name, source in built.plan.results)
            required = frozenset(self._output_names.get(name, name) for name in built.plan.required)
            self.plan = msgspec.structs.replace(built.plan, results=renamed, required=required)
        self.plan = _ruled(self.plan, self.rules)
        self._needed = {self._input_names.get(name, name): needed for name, needed in built.inputs.items()}
        # Inputs that answer questions in advance.
        self.answers = {
            self._input_names.get(node.outputs[0], node.outputs[0]): node.question.answer
            for node in self.plan.nodes
            if node.question is not None
        }
        for name, answer in self.answers.items():
            self._needed.setdefault(name, Needed(answer, False))
        self.dataflow = Dependence(self.plan, self._input_names)
        self.asks = any(
            node.kind == "wait" or (node.program is not None and node.program.asks) for node in self.plan.nodes
        )
        self.types = tuple((f"={name}", needed.type) for name, needed in self._needed.items())
        self.defaults = {name: None for name, needed in self._needed.items() if not needed.required}
        if self._given is not None:
            self._check_taken(self._given)

    # --- what it is -----------------------------------------------------------------------------------------------

    @property
    def input_names(self) -> Mapping[str, str]:
        """By name in the nodes: the names of inputs for callers, where they differ."""
        return self._input_names

    @property
    def inputs(self) -> Inputs:
        """Its inputs, with their types and bound values."""
        bound = {self._input_names.get(name, name): value for name, value in self._options.bound.items()}
        return Inputs(
            {name: needed.type for name, needed in self._needed.items() if needed.required},
            {name: needed.type for name, needed in self._needed.items() if not needed.required and name not in bound},
            bound,
        )

    @property
    def nodes(self) -> Mapping[str, Member]:
        """Its nodes and gates by name."""
        return {node.name: member for node, member in zip(self.plan.nodes, self._members, strict=True)}

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the values in its result."""
        return tuple(name for name, _ in self.plan.results)

    @property
    def parts(self) -> Mapping[str, Any]:
        """The values in its result that other nodes can take by name, with their types."""
        if self._output is not None:
            return {}
        values = [self._built.values[name] for name, _ in self._built.plan.results]
        return dict(zip(self.outputs, values, strict=True))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Invocation[R]:
        """What to run, with its inputs; give it to `start` or `run`."""
        self._arguments(args, kwargs)  # so that a wrong call fails at the user's line
        return to_await(Called(self.name, self, args, kwargs), sys._getframe(1), f"{self.name}(...)")

    def __repr__(self) -> str:
        return f"<graph {self.name}>"

    # --- other graphs of it -----------------------------------------------------------------------------------------

    def _with(self, method: str, **changes: Any) -> Self:
        made = copy.copy(self)
        module, place = self.defined.place
        made.defined = Defined((module, f"{place}.{method}"), self.defined.source, next(_NUMBERS))
        for name, value in changes.items():
            setattr(made, name, value)
        made._build(made._drafts())
        return made

    def bind(self, **values: Any) -> Self:
        """The graph with fixed values for some of its inputs. They also stand in for a value that was skipped."""
        inner = {external: internal for internal, external in self._input_names.items()}
        bound = {**self._options.bound, **{inner.get(name, name): value for name, value in values.items()}}
        return self._with("bind", _options=msgspec.structs.replace(self._options, bound=bound))

    def select(self, *names: str) -> Graph[..., Any]:
        """The part of the graph that these values need, with them as its result."""
        inner = {external: internal for internal, external in self._output_names.items()}
        wanted = [inner.get(one, one) for one in map(name_of, names)]
        makers: dict[str, list[str]] = {}
        drafts = self._drafts()
        for draft in drafts:
            for made in draft.makes:
                makers.setdefault(made.name, []).append(draft.node.name)
        self._refuse_unknown("select", wanted, makers)
        kept = reached(drafts, [maker for name in wanted for maker in makers[name]], behind=False)
        single = self._options.single and len(wanted) == 1 and wanted == list(self._options.results or ())
        options = msgspec.structs.replace(
            self._options, results=tuple(wanted), single=single, required=frozenset(), types={}
        )
        return self._narrowed("select", drafts, kept, options, None if not single else self._output)

    def with_entrypoint(self, *nodes: Named) -> Graph[..., R]:
        """The part of the graph that begins at these nodes; values that they take from earlier nodes become inputs."""
        names = [name_of(one) for one in nodes]
        drafts = self._drafts()
        self._refuse_unknown("with_entrypoint", names, {draft.node.name: None for draft in drafts})
        kept = reached(drafts, names, behind=True)
        return self._narrowed("with_entrypoint", drafts, kept, self._options, self._output)

    def _refuse_unknown(self, method: str, names: Sequence[str], known: Mapping[str, object]) -> None:
        problems = [
            GraphProblem(self._options.where, f"{method}({name!r}): {did_you_mean(name, known)}")
            for name in names
            if name not in known
        ]
        if not names:
            problems = [GraphProblem(self._options.where, f"{method}() names nothing; {did_you_mean('', known)}")]
        if problems:
            raise GraphInvalid(problems)

    def _narrowed(
        self, method: str, drafts: Iterable[Draft], kept: set[str], options: Options, output: Any
    ) -> Graph[..., Any]:
        drafts = [draft for draft in drafts if draft.node.name in kept]
        loops = tuple(name for name in options.loops if name in kept)
        taken = {value for draft in drafts for wanted in draft.reads for value in wanted.values}
        bound = {name: value for name, value in options.bound.items() if name in taken}
        renamed = {former: name for former, name in options.renamed.items() if name in kept}
        options = msgspec.structs.replace(options, loops=loops, bound=bound, renamed=renamed)
        members = tuple(member for name, member in self.nodes.items() if name in kept)
        return self._with(method, _kept=kept, _members=members, _options=options, _output=output, _given=None)

    def rename_inputs(self, **names: str) -> Graph[..., R]:
        """The graph with other names for its inputs: `rename_inputs(query="question")`."""
        renamed = self._renamed(self._input_names, names, self._needed, "inputs")
        return self._with("rename_inputs", _input_names=renamed, _given=None)

    def rename_outputs(self, **names: str) -> Self:
        """The graph with other names for the values of its result: `rename_outputs(answer="reply")`."""
        known = {self._output_names.get(name, name): None for name in self._built.values}
        return self._with("rename_outputs", _output_names=self._renamed(self._output_names, names, known, "outputs"))

    def _renamed(
        self, before: Mapping[str, str], names: Mapping[str, str], known: Mapping[str, object], what: str
    ) -> dict[str, str]:
        history = {internal: external for internal, external in before.items() if internal not in known}
        problems = []
        for old, new in names.items():
            if old not in known:
                was = f"{old!r} was renamed to {history[old]!r}; " if old in history else ""
                hint = f"{was}current {what}: {', '.join(known)}" if was else did_you_mean(old, known)
                problems.append(f"rename_{what}({old}=...): {hint}")
            elif (new in known and new not in names) or list(names.values()).count(new) > 1:
                problems.append(f"rename_{what}({old}={new!r}): {new!r} is the name of another one")
        if problems:
            raise GraphInvalid([GraphProblem(self._options.where, problem) for problem in problems])
        inner = {external: internal for internal, external in before.items()}
        after = {inner.get(old, old): check_name(new, f"a name in rename_{what}()") for old, new in names.items()}
        return {**before, **after}

    def with_name(self, name: str) -> Self:
        """The graph under another name; run by itself, it is another program."""
        made = self._with("with_name")
        made.name = made.__name__ = made.__qualname__ = check_name(name, "the name of a graph")
        made.defined = Defined((self.defined.place[0], name), self.defined.source, next(_NUMBERS))
        return made

    def as_node(self, name: str | None = None) -> Node[P, R]:
        """The graph as a node of another graph. Its runs are children, with op paths such as `answer:0/retrieve:0`."""
        return self._as_node(name, sys._getframe(1))

    def _as_node(self, name: str | None, frame: FrameType) -> Node[P, R]:
        where = f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"
        return ProgramNode(self, Wiring(given_name(name, self.name)), None, where, self.parts)

    def map_over(
        self,
        *params: str,
        limit: int | None = None,
        on_error: OnError = "fail",
        tolerate: float | None = None,
        chunk: int = 500,
        until: Callable[[Any], bool] | None = None,
    ) -> Node[..., list[R]]:
        """The graph as a node that runs once for each item of these inputs: see `Node.map_over`."""
        return self._as_node(None, sys._getframe(1)).map_over(
            *params, limit=limit, on_error=on_error, tolerate=tolerate, chunk=chunk, until=until
        )

    def takes(self, signature: Callable[Q, Any]) -> Graph[Q, R]:
        """The graph with typed inputs: those of this function, which is never called. Raises if they do not fit."""
        made = self._with("takes")
        made.defined = Defined(self.defined.place, self.defined.source, next(_NUMBERS))
        hints = hints_of(signature, 2)
        found = tuple(inspect.signature(signature).parameters.values())
        made._given = tuple(one.replace(annotation=hints.get(one.name, Any)) for one in found)
        made._check_taken(made._given)
        return cast("Graph[Q, R]", made)

    def _check_taken(self, parameters: Iterable[inspect.Parameter]) -> None:
        problems, names = [], set[str]()
        for one in parameters:
            names.add(one.name)
            needed = self._needed.get(one.name)
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
                problems.append(f"takes(): the parameter {one} cannot be matched with inputs; name each of them")
            elif needed is None:
                hint = did_you_mean(one.name, self._needed)
                problems.append(f"takes(): {one.name!r} is not an input of the graph; {hint}")
            elif not fits(one.annotation, needed.type):
                problems.append(
                    f"takes(): {one.name} is {type_name(one.annotation)}, and the graph takes {type_name(needed.type)}"
                )
        for name, needed in self._needed.items():
            if needed.required and name not in names:
                problems.append(f"takes(): the signature lacks {name!r}, which the graph needs")
        if problems:
            raise GraphInvalid([GraphProblem(self._options.where, problem) for problem in problems])

    # --- pictures -------------------------------------------------------------------------------------------------

    def diagram(self, *, format: Format = "mermaid", depth: int | None = None) -> str:
        """The graph as a mermaid diagram, or for Graphviz with `format="dot"`.

        `depth` levels of nested graphs are open; by default all, unless the graph is large.
        """
        return diagram(self.plan, format=format, depth=depth, inputs=self._input_names)

    def drawn(self, statuses: Mapping[str, str], format: Any, depth: int | None) -> str:
        """The diagram with nodes coloured by the statuses of their ops, and the edges that were taken marked."""
        turns = turns_of(statuses)
        return diagram(self.plan, format=format, depth=depth, statuses=turns, inputs=self._input_names)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """The diagram, for notebooks that can draw it."""
        text = self.diagram()
        return {"text/plain": repr(self), "text/vnd.mermaid": text, "text/markdown": f"```mermaid\n{text}```"}

    # --- Program --------------------------------------------------------------------------------------------------

    @property
    def signature(self) -> str:
        """How it is called."""
        if self._given is not None:
            return shown(inspect.Signature(list(self._given)))
        by_need = sorted(self._needed.items(), key=lambda item: not item[1].required)
        parameters = (f"{name}: {type_name(one.type)}{'' if one.required else ' = ...'}" for name, one in by_need)
        return f"({', '.join(parameters)})"

    def call_signature(self, codec: Codec) -> Signature:
        """Its signature as data, for callers in other processes."""
        kind = int(inspect.Parameter.KEYWORD_ONLY)
        return Signature(
            tuple(
                Taken(name, type_name(needed.type), kind, needed.required, codec.schema(needed.type))
                for name, needed in self._needed.items()
            )
        )

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of a call by name. Raises TypeError for a call that does not fit."""
        if self._given is not None:
            call = inspect.Signature(list(self._given)).bind(*args, **kwargs)
            given = set(call.arguments)
            call.apply_defaults()
            # A bound value replaces the default of the signature.
            bound = {self._input_names.get(name, name) for name in self._options.bound} - given
            return {name: value for name, value in call.arguments.items() if name not in bound}
        if args:
            raise TypeError(f"{self.name}() takes its inputs by name: {self.name}{self.signature}")
        for name in kwargs:
            if name not in self._needed:
                made = f"{name!r} is made by a node" if name in self._built.values else f"there is no input {name!r}"
                raise TypeError(f"{made}; {self.name}() takes {', '.join(self._needed) or 'no inputs'}")
        missing = [name for name, needed in self._needed.items() if needed.required and name not in kwargs]
        if missing:
            raise TypeError(f"{self.name}() lacks {', '.join(map(repr, missing))}")
        return dict(kwargs)

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any], codec: Codec) -> bytes:
        """The inputs as one JSON object by name."""
        given = self._arguments(args, kwargs)
        for name, value in given.items():
            if hasattr(value, "__next__") or isinstance(value, range):
                reason = f"is a {type(value).__name__}: give a list, or Items.of(...) of a long one"
                raise NotSerializable(f"an input of {self.name}", f"$.{name}", reason)
        return codec.encode_inputs(given, f"an input of {self.name}")

    def check_input(self, input: Raw, codec: Codec) -> object:
        """Raise NotDecodable for stored input that does not fit."""
        given = codec.decode(input, dict[str, Raw], f"the input of {self.name}")
        for name, needed in self._needed.items():
            if name in given and has_references(bytes(given[name])):
                continue  # items are checked where they are read
            if name in given:
                codec.decode(given[name], needed.type, f"the input {name} of {self.name}")
            elif needed.required:
                where = f"{self.name} is at {self.defined.source}"
                raise NotDecodable(f"the input of {self.name}", "its inputs", f"{name!r} is not given ({where})")
        unknown = [name for name in given if name not in self._needed]
        if unknown:
            hint = did_you_mean(unknown[0], self._needed)
            raise NotDecodable(f"the input of {self.name}", "its inputs", f"there is no input {unknown[0]!r}; {hint}")
        return given

    def open(
        self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY
    ) -> DataflowExecution:
        """A fresh execution of its plan."""

        def check(input: Raw) -> object:
            return self.check_input(input, codec)

        if not self._input_names:
            return DataflowExecution(self.plan, started, codec, past, check)
        inner = {external: internal for internal, external in self._input_names.items()}
        return DataflowExecution(self.plan, started, codec, past, check, inner)


def _forget(copied: Program) -> None:
    """Drop cached values that a copy of a program has from the original."""
    for cached in ("structure", "_batches"):
        copied.__dict__.pop(cached, None)


def _ruled(plan: Plan, rules: Rules) -> Plan:
    """A plan whose nested programs have these rules after their own."""
    if rules == NONE or all(node.program is None for node in plan.nodes):
        return plan
    nodes = []
    for node in plan.nodes:
        if node.program is not None:
            nested, before = copy.copy(node.program), node.program.rules
            _forget(nested)
            nested.rules = Rules(combine((before, rules)), before.replaces or rules.replaces)
            if isinstance(nested, Graph):
                nested.plan = _ruled(nested.plan, rules)
            node = msgspec.structs.replace(node, program=nested)
        nodes.append(node)
    return msgspec.structs.replace(plan, nodes=tuple(nodes))


def _member(given: Any) -> Member:
    if isinstance(given, Step | Gate | Program):
        return given
    if callable(given):
        name = getattr(given, "__name__", repr(given))
        raise WrongValue(f"Graph([{name}, ...]): {name} is a plain function; decorate it with @node")
    raise WrongValue(f"Graph([...]) takes nodes, steps, gates and programs, and {given!r:.80} is none")


def _drafts(members: Iterable[Member], where: str) -> tuple[Draft, ...]:
    found = []
    for member in members:
        if isinstance(member, Node | Gate):
            found.append(member.draft())
        elif isinstance(member, Step):
            found.append(Node(member.spec).draft())
        else:
            parts = getattr(member, "parts", {})
            found.append(ProgramNode(member, Wiring(member.name), None, where, parts).draft())
    return tuple(found)


def _without(draft: Draft, kept: set[str]) -> Draft:
    """A node in a part of its graph, without references to nodes that the part does not have."""
    node = draft.node
    if node.gate is not None:
        gone = {target: None for target in draft.targets if target not in kept}
        node = msgspec.structs.replace(node, gate=PlannedGate({**node.gate.targets, **gone}, node.gate.choose))
    after = tuple(name for name in draft.after if name in kept)
    return msgspec.structs.replace(draft, node=node, after=after)


def _results(output: Any) -> dict[str, Any]:
    """What the result of a graph is, as options of the plan."""
    if output is None:
        return {}
    if isinstance(output, str):
        return {"results": (output,), "single": True}
    if not isinstance(output, type) and is_program(output):
        return {"results": (output.name,), "single": True}
    if isinstance(output, Step):
        names = output.outputs if isinstance(output, Node) else None
        names = (name_of(output),) if names is None else names
        if len(names) != 1:
            raise WrongValue(
                f"output={name_of(output)}: it has {len(names)} values; name one of them, as in output='...'"
            )
        return {"results": names, "single": True}
    fields = _fields(output) if isinstance(output, type) else None
    if fields is None:
        raise WrongValue(f"output={output!r:.80} is a node, the name of a value, or a class whose fields are values")
    return {
        "results": tuple(fields),
        "required": frozenset(name for name in fields if fields[name]),
        "types": hints_of(output, 3),
    }


def _fields(cls: type) -> dict[str, bool] | None:
    """The fields of a class, and whether they are required; None for a class without fields."""
    if dataclasses.is_dataclass(cls):
        none = dataclasses.MISSING
        return {one.name: one.default is none and one.default_factory is none for one in dataclasses.fields(cls)}
    if typing.is_typeddict(cls):
        required: frozenset[str] = cls.__required_keys__  # type: ignore[attr-defined]
        return {name: name in required for name in typing.get_type_hints(cls)}
    if issubclass(cls, msgspec.Struct):
        return {one.name: one.required for one in msgspec.structs.fields(cls)}
    of_model = getattr(cls, "model_fields", None)
    return None if of_model is None else {name: one.is_required() for name, one in of_model.items()}


def _listed(what: str, given: Any) -> list[Any]:
    if isinstance(given, str | Step | Program) or not isinstance(given, Iterable):
        raise WrongValue(f"Graph({what}={given!r:.80}) takes a list; write {what}=[...]")
    return list(given)


def _names(renamed: Any) -> dict[str, str]:
    if renamed is not None and not isinstance(renamed, Mapping):
        raise WrongValue(f"Graph(renamed={renamed!r:.80}) gives former nodes their names of now: {{'old': 'new'}}")
    return dict(renamed or {})


def _one_of(what: str, given: Any, known: tuple[str, ...]) -> Any:
    if given not in known:
        raise WrongValue(f"Graph({what}={given!r:.80}) is {' or '.join(map(repr, known))}")
    return given


def _rounds(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise WrongValue(f"Graph(max_rounds={given!r:.80}) is a whole number from 1 on")
    return given
