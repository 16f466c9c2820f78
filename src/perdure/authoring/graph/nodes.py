"""Nodes as users write them: `@node`, gates and interrupts. Describes them, never wires them."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import (
    Any,
    Final,
    Generic,
    ParamSpec,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    get_origin,
    overload,
)

from msgspec.structs import replace

from perdure.authoring.code.hints import hints_of
from perdure.authoring.code.loop import short
from perdure.authoring.code.step import (
    AsyncGeneratorStep,
    AsyncStep,
    DefStep,
    GeneratorStep,
    Step,
    refuse_method,
    seconds,
    step,
)
from perdure.authoring.dataflow.build import END_IS, RESERVED, Draft, Made, Wanted
from perdure.authoring.dataflow.plan import EACH, PRESENT, Mapped, OnError, Question
from perdure.authoring.dataflow.plan import Gate as PlannedGate
from perdure.authoring.dataflow.plan import Node as PlannedNode
from perdure.authoring.dataflow.values import OrSkipped
from perdure.errors import UsageError
from perdure.kernel.commands import StepSpec
from perdure.kernel.hints import did_you_mean
from perdure.kernel.ids import WrongValue, check_text
from perdure.kernel.policies.retry import Retry
from perdure.kernel.program import Program, is_program
from perdure.kernel.streams import StreamMode
from perdure.kernel.values.items import Items

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
T = TypeVar("T")

# The source of a parameter: the name of a value, or several names, whose values become a list. A node stands for its
# value.
Sources: TypeAlias = Mapping[str, "str | Step[..., Any] | Sequence[str | Step[..., Any]]"]
# A node, or its name.
Named: TypeAlias = "str | Step[..., Any] | Gate"
_UNSET: Any = object()
_REFUSED = {
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values (*{0}); give it a parameter for each, or a list",
    inspect.Parameter.VAR_KEYWORD: "takes values of any name (**{0}); give it a parameter for each",
    inspect.Parameter.POSITIONAL_ONLY: "has the positional-only parameter {0}; values have names, so leave out `/`",
}


class _End:
    """What a gate returns to end a branch."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "END"

    def __reduce__(self) -> str:
        return "END"


END: Final = _End()


class Wiring:
    """How a node is wired: its name, the sources of its parameters, what it comes after, and its condition."""

    __slots__ = ("after", "inputs", "name", "when")

    def __init__(
        self,
        name: str,
        inputs: Sources | None = None,
        after: Iterable[Named] = (),
        when: Callable[..., bool] | None = None,
    ) -> None:
        if inputs is not None and not isinstance(inputs, Mapping):
            raise WrongValue(f"inputs={inputs!r:.80} gives parameters their values by name: {{'order': 'validated'}}")
        self.inputs = {parameter: source_of(parameter, source) for parameter, source in (inputs or {}).items()}
        if isinstance(after, str | Step | Gate) or not isinstance(after, Iterable):
            raise WrongValue(f"after={after!r:.80} is a list of nodes; write after=[...]")
        if when is not None:
            check_pure(when, "when")
        self.name, self.when = name, when
        self.after = tuple(name_of(one) for one in after)


class Node(Step[P, R]):
    """A node of a graph that has a value. A call in a workflow is a step; any other call is one of its function."""

    wiring: Wiring
    # The names of its values; None: one value, with the name of the node.
    outputs: tuple[str, ...] | None
    mapped: Mapped | None
    where: str
    version: str = ""

    def __init__(
        self, spec: StepSpec, wiring: Wiring | None = None, outputs: tuple[str, ...] | None = None, where: str = ""
    ) -> None:
        super().__init__(spec)
        self.wiring = wiring or Wiring(spec.name)
        self.outputs, self.mapped = outputs, None
        self.where = where or place_of(spec.fn)

    def map_over(
        self,
        *params: str,
        limit: int | None = None,
        on_error: OnError = "fail",
        tolerate: float | None = None,
        chunk: int = 500,
        until: Callable[[Any], bool] | None = None,
    ) -> Node[..., list[R]]:
        """The node once for each item of these parameters; its value is the list of results, in order.

        Of several parameters the first items belong together, the second ones, and so on. `limit`: how many may run at
        once. `on_error`: "fail", or None in place of the result ("none"), or no result ("skip"); `tolerate` is how many
        items may fail then, or which share of them, as a float. `until`: a pure function of a result that is true where
        no further item is needed.
        """
        if self.mapped is not None:
            raise WrongValue(f"{self.wiring.name} is mapped already; name all parameters in one map_over()")
        made = self._of_item()
        made.mapped = mapped(params, limit, on_error, tolerate, chunk, until)
        return cast("Node[..., list[R]]", made)

    def _of_item(self) -> Node[..., R]:
        """The node that runs for one item."""
        return copy.copy(self)

    def options(self, **policy: Any) -> Self:
        """The same node with another policy."""
        made = copy.copy(self)
        made.spec = Step(self.spec).options(**policy).spec
        return made

    def draft(self) -> Draft:
        """The node, to be wired."""
        spec, wiring = self.spec, self.wiring
        wants, problems = parameters(spec.fn, dict(spec.types), wiring.inputs)
        if get_origin(spec.returns) is Items:
            spec = dataclasses.replace(spec, items=True)
        if spec.name != wiring.name or self.version:
            served_as = spec.served_as or spec.name
            spec = dataclasses.replace(spec, name=wiring.name, version=self.version, served_as=served_as)
        outputs = (wiring.name,) if self.outputs is None else self.outputs
        makes, spec = _made(spec, outputs, problems)
        planned = PlannedNode(wiring.name, "step", outputs=outputs, where=self.where, returns=spec.returns, spec=spec)
        return self.finished(planned, wants, makes, problems)

    def finished(
        self, planned: PlannedNode, wants: tuple[Wanted, ...], makes: tuple[Made, ...], problems: list[str]
    ) -> Draft:
        """A draft with the fields that every kind of node has."""
        wiring, condition = self.wiring, None
        if self.mapped is not None:
            # The default is for an item, and does not replace the list.
            wants = tuple(replace(one, required=one.required or one.name in self.mapped.over) for one in wants)
            names = [wanted.name for wanted in wants]
            for name in self.mapped.over:
                if name not in names:
                    hint = did_you_mean(name, names)
                    problems.append(
                        f"{wiring.name!r} is mapped over {name!r}, which is not one of its parameters; {hint}"
                    )
            wants = tuple(
                replace(one, type=list[one.type] if one.type is not Any else Any)  # type: ignore[name-defined]
                if one.name in self.mapped.over
                else one
                for one in wants
            )
            each = EACH if self.mapped.on_error == "none" else PRESENT
            makes = tuple(
                replace(one, path=(each, *one.path) if one.path else (), type=_results(one.type, self.mapped))
                for one in makes
            )
            planned = replace(planned, mapped=self.mapped)
        if wiring.when is not None:
            of_condition, more = parameters(wiring.when, _hints(wiring.when), {})
            condition = (wiring.when, of_condition)
            problems += [f"`when` of {wiring.name!r} {problem.partition(' ')[2]}" for problem in more]
        return Draft(planned, wants, makes, wiring.after, condition=condition, problems=tuple(problems))

    def __repr__(self) -> str:
        return f"<node {self.wiring.name}>"


# Type checkers see a node as one of these, as they do a step: `.fn` has the type of the function as it was written.


class AsyncNode(Node[P, R]):
    """A node written as `async def`."""

    fn: Callable[P, Coroutine[Any, Any, R]]


class DefNode(Node[P, R]):
    """A node written as `def`."""

    fn: Callable[P, R]


class GeneratorNode(Node[P, list[C]], Generic[P, C]):
    """A node written as `def` or `async def` that yields."""

    fn: Callable[P, AsyncIterator[C]] | Callable[P, Iterator[C]]


_NODE_KINDS: dict[type[Step[..., Any]], type[Node[..., Any]]] = {
    AsyncStep: AsyncNode,
    DefStep: DefNode,
    AsyncGeneratorStep: GeneratorNode,
    GeneratorStep: GeneratorNode,
}


class ProgramNode(Node[P, R]):
    """A program as a node: a graph, a workflow. Its runs are children."""

    def __init__(
        self, program: Program, wiring: Wiring, outputs: tuple[str, ...] | None, where: str, parts: Mapping[str, Any]
    ) -> None:
        super().__init__(StepSpec(program.name, _not_a_step, types=program.types), wiring, outputs, where)
        self.program = program
        # The values in its result that other nodes can take by name, with their types.
        self.parts = parts
        # The questions in it that may be answered in advance.
        self.answers: Collection[str] = getattr(program, "answers", ())

    def draft(self) -> Draft:
        """The node, to be wired."""
        wiring, problems = self.wiring, list[str]()
        wants = []
        for name, annotation in self.program.types:
            plain = name.lstrip("*=")
            if plain in self.answers and plain not in wiring.inputs:
                continue  # the answer is not for another question of that name
            if name.startswith("*"):
                problems.append(f"{wiring.name!r} takes any number of values ({name}); give it a parameter for each")
                continue
            wants.append(wanted(plain, wiring.inputs, plain not in self.program.defaults, True, annotation))
        _check_names(wiring.name, wiring.inputs, [one.name for one in wants], problems)
        outputs = (wiring.name,) if self.outputs is None else self.outputs
        makes: tuple[Made, ...]
        if self.outputs is not None and len(outputs) > 1:
            makes = tuple(Made(name, (position,)) for position, name in enumerate(outputs))
        else:
            returns = self.program.returns
            returns = returns.type if isinstance(returns, OrSkipped) else returns
            makes = tuple(Made(name, (), returns) for name in outputs)
            makes += tuple(
                Made(name, (name,), type, weak=True) for name, type in self.parts.items() if name not in outputs
            )
        planned = PlannedNode(
            wiring.name, "child", outputs=outputs, where=self.where, returns=self.program.returns, program=self.program
        )
        return self.finished(planned, tuple(wants), makes, problems)


class InterruptNode(Node[..., T]):
    """A question to a person; the answer is its value. Written as `@interrupt(...)`, or with the value to show:

    `InterruptNode(name="approval", input_param="prompt", response_schema=Answer, suspend_schema=Reason)`.
    """

    @overload
    def __init__(
        self,
        name: str,
        input_param: str,
        response_schema: type[T],
        suspend_schema: Any = None,
        *,
        timeout: float | timedelta | None = None,
        on_timeout: T = ...,
        approvers: Sequence[str] = (),
        after: Iterable[Named] = (),
        when: Callable[..., bool] | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: InterruptNode[Any],
        name: str,
        input_param: str,
        response_schema: None = None,
        suspend_schema: Any = None,
        *,
        timeout: float | timedelta | None = None,
        on_timeout: Any = ...,
        approvers: Sequence[str] = (),
        after: Iterable[Named] = (),
        when: Callable[..., bool] | None = None,
    ) -> None: ...
    def __init__(
        self,
        name: str,
        input_param: str,
        response_schema: Any = None,
        suspend_schema: Any = None,
        *,
        timeout: float | timedelta | None = None,
        on_timeout: Any = _UNSET,
        approvers: Sequence[str] = (),
        after: Iterable[Named] = (),
        when: Callable[..., bool] | None = None,
    ) -> None:
        shown = Any if suspend_schema is None else suspend_schema
        spec = StepSpec(given_name(name, ""), _not_a_step, types=((input_param, shown),))
        wiring = Wiring(name, {}, after, when)
        super().__init__(spec, wiring, None, _line(sys._getframe(1)))
        self.function: Callable[..., Any] | None = None
        self.question = _question(name, response_schema, shown, input_param, timeout, on_timeout, approvers)

    @classmethod
    def of(
        cls, fn: Callable[..., Any], wiring: Wiring, question: Question, hints: dict[str, Any]
    ) -> InterruptNode[Any]:
        """The node of a function that makes the question."""
        made = cls.__new__(cls)
        spec = StepSpec(wiring.name, fn, types=tuple(hints.items()), errors={})
        Node.__init__(made, spec, wiring, None)
        made.function, made.question = fn, question
        return made

    def _of_item(self) -> Node[..., T]:
        """A graph with only this question: each item asks its own, at `approval:0[17]/approval:0`."""
        from perdure.authoring.graph.graph import Graph  # it imports this module

        alone = copy.copy(self)
        alone.wiring = Wiring(self.wiring.name)
        asked = Graph([alone], name=self.wiring.name, output=alone)
        return ProgramNode(asked, self.wiring, None, self.where, {})

    def draft(self) -> Draft:
        """The node, to be wired."""
        wiring, problems = self.wiring, list[str]()
        if self.function is None:
            name, annotation = self.spec.types[0]
            wants: tuple[Wanted, ...] = (wanted(name, wiring.inputs, True, False, annotation),)
        else:
            wants, problems = parameters(self.function, dict(self.spec.types), wiring.inputs)
        outputs = (wiring.name,) if self.outputs is None else self.outputs
        if len(outputs) != 1:
            problems.append(f"the answer to {wiring.name!r} is one value; give it one name, as in outputs='approval'")
            outputs = (wiring.name,)
        planned = PlannedNode(
            wiring.name,
            "wait",
            outputs=outputs,
            where=self.where,
            function=self.function,
            question=replace(self.question, name=wiring.name),
        )
        return self.finished(planned, wants, (Made(outputs[0], (), self.question.answer),), problems)


class Gate:
    """A function that chooses which nodes run. Called in the orchestrator, so it must be pure."""

    def __init__(
        self,
        fn: Callable[..., Any],
        wiring: Wiring,
        targets: tuple[str | None, ...],
        choose: Callable[[Any], list[str | None]],
        many: bool,
        hints: dict[str, Any],
    ) -> None:
        self.fn, self.wiring, self.targets, self._choose, self.many = fn, wiring, targets, choose, many
        self._hints = hints
        self.where = place_of(fn)
        self.__name__, self.__doc__, self.__wrapped__ = wiring.name, fn.__doc__, fn
        self.__module__, self.__qualname__ = fn.__module__, fn.__qualname__

    @property
    def name(self) -> str:
        """The name that op paths are made of."""
        return self.wiring.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.fn(*args, **kwargs)

    def draft(self) -> Draft:
        """The gate, to be wired."""
        wants, problems = parameters(self.fn, self._hints, self.wiring.inputs)
        gate = PlannedGate({}, self._choose)  # type: ignore[arg-type]
        planned = PlannedNode(self.name, "gate", where=self.where, function=self.fn, gate=gate)
        targets = tuple(target for target in self.targets if target is not None)
        return Draft(planned, wants, (), self.wiring.after, targets, self.many, problems=tuple(problems))

    def __repr__(self) -> str:
        return f"<gate {self.name}>"


# --- @node ----------------------------------------------------------------------------------------------------------


class WiringOptions(TypedDict, total=False):
    """How a node is wired: see `node`."""

    name: str | None
    outputs: str | tuple[str, ...] | None
    inputs: Sources | None
    after: Iterable[Named]
    when: Callable[..., bool] | None


class NodeOptions(WiringOptions, total=False):
    """The options of a node: how it is wired, and those of `@step`."""

    version: str
    retry: Retry | None
    timeout: float | timedelta | None
    at_most_once: bool
    cpu: bool
    heartbeat: float | timedelta | None
    stream: str | StreamMode | None
    queue: str | None
    record_inputs: bool


@overload
def node(fn: Callable[P, Coroutine[Any, Any, R]], /, **options: Unpack[NodeOptions]) -> AsyncNode[P, R]: ...  # type: ignore[overload-overlap]
@overload
def node(  # type: ignore[overload-overlap]
    fn: Callable[P, AsyncIterator[C]] | Callable[P, Iterator[C]], /, **options: Unpack[NodeOptions]
) -> GeneratorNode[P, C]: ...
@overload
def node(fn: Callable[P, R], /, **options: Unpack[NodeOptions]) -> DefNode[P, R]: ...
@overload
def node(program: Program, /, **options: Unpack[WiringOptions]) -> Node[..., Any]: ...
@overload
def node(**options: Unpack[NodeOptions]) -> NodeDecorator: ...
def node(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    outputs: str | tuple[str, ...] | None = _UNSET,
    inputs: Sources | None = None,
    after: Iterable[Named] = (),
    when: Callable[..., bool] | None = None,
    version: str = "",
    **options: Any,
) -> Any:
    """Make a function, a step or a program a node: `@node`, `@node(outputs="docs", timeout=10)`, `node(charge, ...)`.

    Its parameters take the values of their names: of another node, or an input of the graph. `inputs` gives them other
    values, `{"order": "validated"}`, or several as one list, `{"parts": ["left", "right"]}`. Its own value is called as
    the node is; `outputs` calls it otherwise, is a tuple where the function returns one, or None if it has no value.
    `after`: nodes that must have ended before, without giving a value. `when`: a pure function of values; the node is
    skipped where it returns False. `version`: a new one says that earlier results are not to be reused. It takes every
    option of `@step`.
    """
    decorator = NodeDecorator(name, outputs, inputs, after, when, version, options)
    return decorator if fn is None else decorator.make(fn, 2)


class NodeDecorator:
    """`@node(...)` with its options, waiting for the function."""

    def __init__(
        self,
        name: str | None,
        outputs: str | tuple[str, ...] | None,
        inputs: Sources | None,
        after: Iterable[Named],
        when: Callable[..., bool] | None,
        version: str,
        options: dict[str, Any],
    ) -> None:
        self._name, self._outputs, self._options = name, _outputs(outputs), options
        self._wiring = Wiring("", inputs, after, when)
        self._version = check_text(version, "the version of a node")

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncNode[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[P, AsyncIterator[C]] | Callable[P, Iterator[C]], /
    ) -> GeneratorNode[P, C]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> DefNode[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        return self.make(fn, 2)

    def make(self, given: Any, depth: int) -> Node[..., Any]:
        """The node of a function, a step or a program; its annotations are resolved `depth` frames above."""
        if isinstance(given, Gate):
            raise TypeError(f"node({given.name}): it is a node already; give its options to @route")
        options = [*self._options, *(["version"] if self._version else [])]
        if isinstance(given, InterruptNode | ProgramNode) and options:
            kind = "a question" if isinstance(given, InterruptNode) else "a program"
            raise TypeError(f"node({given.name}, {options[0]}=...): {kind} has no such option")
        # A protocol is slow to check: the other kinds come first.
        if not isinstance(given, Step) and is_program(given):
            if options:
                raise TypeError(f"node({given.name}, {options[0]}=...): a program has no such option")
            parts = getattr(given, "parts", {})
            place = _line(sys._getframe(depth))
            return ProgramNode(given, self._wired(given.name), self._outputs, place, parts)
        if isinstance(given, Step):
            made = given.options(**self._options) if self._options else given
            spec = made.spec
            if isinstance(given, Node):
                return self._again(given, spec)
        else:
            refuse_method(given, "node")
            made = step(name=self._name, **self._options).make(given, depth + 1)
            spec = made.spec
        found = _NODE_KINDS.get(type(made), Node)(spec, self._wired(spec.name), self._outputs)
        found.version = self._version
        return found

    def _again(self, given: Node[..., Any], spec: StepSpec) -> Node[..., Any]:
        """Another node of what a node does; what is not given here stays."""
        made, before, now = copy.copy(given), given.wiring, self._wiring
        made.spec = spec
        inputs = {**before.inputs, **now.inputs}
        made.wiring = Wiring(
            given_name(self._name, before.name), inputs, now.after or before.after, now.when or before.when
        )
        if self._outputs is not None:
            made.outputs = self._outputs
        made.version = self._version or given.version
        return made

    def _wired(self, name: str) -> Wiring:
        wiring = self._wiring
        return Wiring(given_name(self._name, name), wiring.inputs, wiring.after, wiring.when)


def _outputs(given: Any) -> tuple[str, ...] | None:
    if given is _UNSET:
        return None
    if given is None:
        return ()
    found = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, tuple | list) else None
    if not found or not all(isinstance(name, str) for name in found):
        raise WrongValue(f"outputs={given!r:.80} is a name, a tuple of names, or None")
    return found


# --- gates ----------------------------------------------------------------------------------------------------------

Target: TypeAlias = "str | Step[..., Any] | Gate | _End"


def route(
    targets: Iterable[Target],
    fallback: Target | None = None,
    many: bool = False,
    *,
    name: str | None = None,
    inputs: Sources | None = None,
    after: Iterable[Named] = (),
) -> Callable[[Callable[..., Any]], Gate]:
    """A gate: `@route(targets=["publish", "revise", END])` on a pure function that returns one of them.

    `END` chooses none, and so does None, unless there is a `fallback`. With `many=True` it returns a list of targets.
    What it chose is recorded: it is not called again on replay.
    """
    if isinstance(targets, str | Step | Gate | _End) or not isinstance(targets, Iterable):
        raise WrongValue(f"route(targets={targets!r:.80}) takes a list of nodes; write targets=[...]")
    names = dict.fromkeys(_target(target) for target in targets)
    other = [] if fallback is None else [_target(fallback)]
    names.update(dict.fromkeys(other))
    if not names:
        raise WrongValue("route(targets=[]) has nothing to choose from; name its nodes, as in targets=[approve, END]")

    def make(fn: Callable[..., Any]) -> Gate:
        own = given_name(name, fn.__name__.strip("<>"))

        def choose(result: Any) -> list[str | None]:
            if result is None:
                return list(other)
            several = many and isinstance(result, list | tuple | set | frozenset)
            chosen = [_chosen(one, names, own, many) for one in (result if several else [result])]
            if many and not several:
                raise UsageError(f"the gate {own!r} chooses many, and returned {result!r:.80}; return a list")
            return [target for target in names if target in chosen]

        return _gate(fn, own, tuple(names), choose, many, inputs, after)

    return make


def ifelse(
    when_true: Target,
    when_false: Target,
    *,
    name: str | None = None,
    inputs: Sources | None = None,
    after: Iterable[Named] = (),
) -> Callable[[Callable[..., bool]], Gate]:
    """A gate with two targets: `@ifelse(when_true="publish", when_false=END)` on a pure function that gives a bool."""
    yes, no = _target(when_true), _target(when_false)

    def make(fn: Callable[..., bool]) -> Gate:
        own = given_name(name, fn.__name__.strip("<>"))

        def choose(result: Any) -> list[str | None]:
            if result is not True and result is not False:
                raise UsageError(f"the gate {own!r} returned {result!r:.80}; an ifelse returns True or False")
            return [yes if result else no]

        return _gate(fn, own, tuple(dict.fromkeys((yes, no))), choose, False, inputs, after)

    return make


def _gate(
    fn: Callable[..., Any],
    name: str,
    targets: tuple[str | None, ...],
    choose: Callable[[Any], list[str | None]],
    many: bool,
    inputs: Sources | None,
    after: Iterable[Named],
) -> Gate:
    _pure(fn, "a gate")
    return Gate(fn, Wiring(name, inputs, after), targets, choose, many, hints_of(fn, 3))


def _target(target: Any) -> str | None:
    return None if target is END else name_of(target)


def _chosen(result: Any, targets: Iterable[str | None], gate: str, many: bool) -> str | None:
    chosen: Any = None if result is END else result if isinstance(result, str) else _UNSET
    if isinstance(result, Step | Gate | Program):
        chosen = name_of(result)
    if chosen not in targets:
        valid = ", ".join("END" if target is None else repr(target) for target in targets)
        hint = f"; {END_IS}" if isinstance(result, str) and result == RESERVED else ""
        raise UsageError(
            f"the gate {gate!r} returned {result!r:.80}; it must return {'some' if many else 'one'} of {valid}{hint}"
        )
    return cast("str | None", chosen)


# --- interrupts -----------------------------------------------------------------------------------------------------


@overload
def interrupt(fn: Callable[..., Any], /) -> InterruptNode[Any]: ...
@overload
def interrupt(
    *,
    answer: type[T],
    timeout: float | timedelta | None = None,
    on_timeout: T = ...,
    approvers: Sequence[str] = (),
    name: str | None = None,
    inputs: Sources | None = None,
    after: Iterable[Named] = (),
    when: Callable[..., bool] | None = None,
) -> Callable[[Callable[..., Any]], InterruptNode[T]]: ...
@overload
def interrupt(
    *,
    answer: None = None,
    timeout: float | timedelta | None = None,
    on_timeout: Any = ...,
    approvers: Sequence[str] = (),
    name: str | None = None,
    inputs: Sources | None = None,
    after: Iterable[Named] = (),
    when: Callable[..., bool] | None = None,
) -> Callable[[Callable[..., Any]], InterruptNode[Any]]: ...
def interrupt(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    answer: Any = None,
    timeout: float | timedelta | None = None,
    on_timeout: Any = _UNSET,
    approvers: Sequence[str] = (),
    name: str | None = None,
    inputs: Sources | None = None,
    after: Iterable[Named] = (),
    when: Callable[..., bool] | None = None,
) -> Any:
    """A question to a person: `@interrupt(answer=Decision)` on a pure function that returns what the person is shown.

    The answer is the value of the node; given as an input of the graph, it is never asked for. Without an answer within
    `timeout` the node fails, unless `on_timeout` gives a value. `approvers` may answer, anyone if there are none.
    """

    def make(fn: Callable[..., Any], depth: int = 2) -> InterruptNode[Any]:
        _pure(fn, "an interrupt")
        hints = hints_of(fn, depth)
        own = given_name(name, fn.__name__.strip("<>"))
        question = _question(own, answer, hints.get("return", Any), None, timeout, on_timeout, approvers)
        return InterruptNode.of(fn, Wiring(own, inputs, after, when), question, hints)

    return make if fn is None else make(fn, 3)


def _question(
    name: str,
    answer: Any,
    request: Any,
    shows: str | None,
    timeout: float | timedelta | None,
    on_timeout: Any,
    approvers: Sequence[str],
) -> Question:
    if isinstance(approvers, str) or not isinstance(approvers, Iterable):
        raise WrongValue(f"approvers={approvers!r:.80}: name people in a list, as in ['ann']")
    people = tuple(check_text(person, "a name in approvers") for person in approvers)
    if not all(people) or (not people and tuple(approvers) == () and approvers != ()):
        raise WrongValue(f"approvers={approvers!r:.80} is empty; leave it out if anyone may answer")
    return Question(
        name,
        Any if answer is None else answer,
        request,
        shows,
        None if timeout is None else seconds(timeout, "timeout"),
        people,
        on_timeout is not _UNSET,
        None if on_timeout is _UNSET else on_timeout,
    )


# --- shared ---------------------------------------------------------------------------------------------------------


def given_name(name: Any, otherwise: str) -> str:
    """The given name of a node, or its default name."""
    if name is None:
        return otherwise
    if not isinstance(name, str) or not name:
        raise WrongValue(f"name={name!r:.80} is not a name for a node; give a text that is not empty")
    return name


def name_of(target: Any) -> str:
    """The name of a node that is given by itself or by its name."""
    if isinstance(target, str):
        return target
    if isinstance(target, Node):
        return target.wiring.name
    if isinstance(target, Step | Gate | Program):
        return target.name
    raise WrongValue(f"{target!r:.80} is not a node; give a node or its name")


def source_of(parameter: str, source: Any) -> str | tuple[str, ...]:
    """The name of a value, or of several, that is the source of a parameter."""
    if isinstance(source, str | Step):
        return _value_of(parameter, source)
    if not isinstance(source, Sequence):
        if is_program(source):
            return source.name
        raise WrongValue(f"inputs={{{parameter!r}: {source!r:.80}}} is the name of a value, or a list of names")
    return tuple(_value_of(parameter, one) for one in source)


def _value_of(parameter: str, source: Any) -> str:
    if isinstance(source, Node) and source.outputs is not None:
        if len(source.outputs) != 1:
            values = " and ".join(map(repr, source.outputs)) or "none"
            raise WrongValue(f"inputs={{{parameter!r}: {name_of(source)}}}: its values are {values}; name one of them")
        return source.outputs[0]
    name = name_of(source)
    if not name:
        raise WrongValue(f"inputs={{{parameter!r}: ''}} names no value")
    return name


def check_pure(fn: Any, what: str) -> None:
    """Raise WrongValue unless it is a plain function."""
    if not callable(fn) or isinstance(fn, Step) or inspect.iscoroutinefunction(fn):
        raise WrongValue(f"{what}={fn!r:.80} is a plain function that returns True or False; it is not awaited")


def mapped(
    params: Sequence[str],
    limit: int | None,
    on_error: OnError,
    tolerate: float | None,
    chunk: int,
    until: Callable[[Any], bool] | None,
) -> Mapped:
    """How a node is mapped. Raises for arguments that make no sense."""
    if not params or not all(isinstance(one, str) for one in params):
        raise WrongValue(f"map_over({', '.join(map(repr, params))}) takes the names of parameters")
    if len(set(params)) < len(params):
        raise WrongValue(f"map_over({', '.join(map(repr, params))}) names a parameter twice")
    for what, given in (("limit", limit), ("chunk", chunk)):
        if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
            raise WrongValue(f"map_over({what}={given!r:.80}) is a whole number from 1 on")
    if on_error not in get_args(OnError):
        raise WrongValue(f"map_over(on_error={on_error!r:.80}) is 'fail', 'none' or 'skip'")
    if tolerate is not None and (isinstance(tolerate, bool) or not isinstance(tolerate, int | float)):
        raise WrongValue(f"map_over(tolerate={tolerate!r:.80}) is how many items may fail: 3, or a share such as 0.01")
    if tolerate is not None and not 0 <= tolerate <= (1 if isinstance(tolerate, float) else tolerate):
        raise WrongValue(f"map_over(tolerate={tolerate!r:.80}) is a number of items, or a share between 0.0 and 1.0")
    if tolerate is not None and on_error == "fail":
        raise WrongValue("map_over(tolerate=...) is for on_error='none' or 'skip': with 'fail' no item may fail")
    if until is not None:
        check_pure(until, "until")
    return Mapped(tuple(params), limit, on_error, tolerate, chunk, until)


def parameters(
    fn: Callable[..., Any], hints: Mapping[str, Any], inputs: Mapping[str, Any]
) -> tuple[tuple[Wanted, ...], list[str]]:
    """The parameters of a function with the values that they take, and the problems found."""
    found, problems = [], []
    name = getattr(fn, "__name__", "it")
    try:
        known = list(inspect.signature(fn).parameters.values())
    except ValueError:  # a builtin without a signature
        return (), [f"{name!r} is a builtin whose parameters are not known; wrap it in a function"]
    for one in known:
        if one.kind in _REFUSED:
            problems.append(f"{name!r} {_REFUSED[one.kind].format(one.name)}")
            continue
        found.append(
            wanted(
                one.name,
                inputs,
                one.default is one.empty,
                one.kind is one.KEYWORD_ONLY,
                hints.get(one.name, hints.get(f"={one.name}", Any)),
            )
        )
    _check_names(name, inputs, [one.name for one in found], problems)
    return tuple(found), problems


def wanted(
    name: str, inputs: Mapping[str, str | tuple[str, ...]], required: bool, keyword: bool, annotation: Any
) -> Wanted:
    """A parameter and its source."""
    source = inputs.get(name, name)
    joined = not isinstance(source, str)
    values = (source,) if isinstance(source, str) else source
    return Wanted(name, values, joined, required, keyword, annotation)


def _results(annotation: Any, mapped: Mapped) -> Any:
    """The type of the results of a map."""
    if annotation is Any:
        return Any
    return list[annotation | None] if mapped.on_error == "none" else list[annotation]


def _check_names(name: str, inputs: Mapping[str, Any], names: Sequence[str], problems: list[str]) -> None:
    for parameter, source in inputs.items():
        if parameter not in names:
            problems.append(
                f"inputs={{{parameter!r}: ...}} names no parameter of {name!r}; {did_you_mean(parameter, names)}"
            )
        elif not source:
            problems.append(f"inputs={{{parameter!r}: []}} of {name!r} joins nothing; name the values")


def _made(spec: StepSpec, outputs: tuple[str, ...], problems: list[str]) -> tuple[tuple[Made, ...], StepSpec]:
    """The values of a step: one, or the elements of its tuple. A tuple of another length fails the step."""
    if len(outputs) <= 1:
        return tuple(Made(name, (), spec.returns) for name in outputs), spec
    types = get_args(spec.returns) if get_origin(spec.returns) is tuple else ()
    if types and Ellipsis not in types:
        if len(types) != len(outputs):
            shown = ", ".join(map(repr, outputs))
            problems.append(f"{spec.name!r} returns {len(types)} values, and outputs=({shown}) are {len(outputs)}")
            types = ()
    else:
        types = ()
    if not types:
        types = (Any,) * len(outputs)
        spec = dataclasses.replace(spec, returns=tuple[types])  # type: ignore[valid-type]
    return tuple(Made(name, (n,), types[n]) for n, name in enumerate(outputs)), spec


def place_of(fn: Callable[..., Any]) -> str:
    """The file and line of a function."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return "" if code is None else f"{short(code.co_filename)}:{code.co_firstlineno}"


def _line(frame: FrameType) -> str:
    return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"


def _hints(fn: Callable[..., Any]) -> dict[str, Any]:
    annotations = getattr(fn, "__annotations__", {})
    return {} if not annotations else hints_of(fn, 1)


def _pure(fn: Any, what: str) -> None:
    if isinstance(fn, Step | Gate) or not callable(fn):
        raise TypeError(f"{what} is made of a function, not of {fn!r:.80}")
    refuse_method(fn, what)
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise TypeError(
            f"{fn.__qualname__} is {what}, which is called in the orchestrator and must be a plain `def`; let a node "
            "do what has to be awaited, and decide by its value"
        )


def _not_a_step(*args: Any, **kwargs: Any) -> Any:
    raise UsageError("this node is not a step and cannot be called; put it into a graph, and run the graph")
