"""The structure of a dataflow program as data: stored with its runs, and made into a plan again.

It holds no code and no values: a plan made from it shows what a run did, and cannot execute one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.authoring.dataflow.dependence import Dependence
from perdure.authoring.dataflow.plan import (
    Absent,
    Argument,
    Carried,
    Collect,
    Computed,
    Const,
    Decision,
    FirstOf,
    Gate,
    Input,
    Kind,
    Mapped,
    Node,
    OnError,
    OnFailure,
    Output,
    Path,
    Plan,
    Question,
    Region,
    Slot,
    Source,
)
from perdure.authoring.dataflow.values import Value
from perdure.errors import UsageError
from perdure.kernel.commands import StepSpec
from perdure.kernel.events import RunStarted
from perdure.kernel.patches import PatchHistory
from perdure.kernel.program import Execution, Program
from perdure.kernel.values.codec import Codec


class StoredSource(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a value comes from: an input, a node, an earlier round, a fixed value; or several of those."""

    input: str = ""
    node: str = ""
    path: Path = ()
    carried: int | None = None
    fixed: bool = False
    every: tuple[StoredSource, ...] = ()
    first: tuple[StoredSource, ...] = ()
    made: tuple[StoredSource, ...] = ()


class StoredArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A parameter and its source. If `optional`, it is left out when there is no value."""

    name: str
    source: StoredSource
    optional: bool = False


class StoredNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node. A `program` in it is a structure, or only a name where it is code."""

    name: str
    kind: Kind
    where: str = ""
    takes: tuple[StoredArgument, ...] = ()
    when: tuple[StoredArgument, ...] | None = None
    after: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    # For a gate: its targets, and which of them are no nodes.
    targets: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    # For a question: its name.
    asks: str = ""
    # For a map: the parameters that it is mapped over.
    over: tuple[str, ...] = ()
    limit: int | None = None
    on_error: OnError = "fail"
    tolerate: float | None = None
    program: Manifest | None = None
    # What follows its failure: "" (the failure counts), "skip", "value" or "instead".
    otherwise: str = ""
    skips_rest: bool = False
    # The node that it runs instead of.
    instead: str = ""


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The structure of a program; without nodes, only which program it is."""

    program: str
    version: str
    nodes: tuple[StoredNode, ...] = ()
    on_failure: OnFailure = "stop"
    max_rounds: int = 1000
    results: tuple[StoredArgument, ...] = ()
    single: bool = False
    required: tuple[str, ...] = ()
    values: dict[str, tuple[StoredSource, ...]] = {}
    # As in the plan, with names in place of node numbers.
    slots: tuple[tuple[str, tuple[StoredSource, ...]], ...] = ()
    regions: tuple[Region, ...] = ()
    region: tuple[int, ...] = ()
    consumers: tuple[tuple[int, ...], ...] = ()
    waits: tuple[int, ...] = ()
    reads: tuple[tuple[int, ...], ...] = ()
    kept: tuple[int, ...] = ()
    jobs: bool = False
    in_order: bool = False
    last: int = -1
    # The table of what its runs have stored: see kernel/values/type_table.py.
    types: str = ""


_decode = msgspec.json.Decoder(Manifest).decode


def read_structure(data: bytes) -> Manifest | None:
    """A stored structure; None for one that another version of perdure wrote differently."""
    try:
        found = _decode(data)
    except msgspec.MsgspecError:
        return None
    return found if found.nodes else None


class _Names:
    """The names of nodes by number, and of inputs as callers know them."""

    def __init__(self, plan: Plan, inputs: Mapping[str, str]) -> None:
        self.nodes, self.inputs = [node.name for node in plan.nodes], inputs

    def all(self, numbers: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.nodes[number] for number in numbers)


def manifest_of(plan: Plan, name: str, version: str, inputs: Mapping[str, str]) -> Manifest:
    """The structure of a program. `inputs` maps names in the plan to the names that callers use."""
    names = _Names(plan, inputs)
    return Manifest(
        name,
        version,
        tuple(_stored_node(node, names) for node in plan.nodes),
        plan.on_failure,
        plan.max_rounds,
        tuple(StoredArgument(result, _stored(source, names)) for result, source in plan.results),
        plan.single,
        tuple(sorted(plan.required)),
        {value: tuple(_stored(output, names) for output in made) for value, made in plan.values.items()},
        tuple((slot.name, tuple(_stored(output, names) for output in slot.producers)) for slot in plan.slots),
        plan.regions,
        plan.region,
        plan.consumers,
        plan.waits,
        plan.reads,
        tuple(sorted(plan.kept)),
        plan.jobs,
        plan.in_order,
        plan.last,
    )


def _stored_node(node: Node, names: _Names) -> StoredNode:
    mapped, gate, inner = node.mapped or Mapped(()), node.gate, None
    if node.program is not None:
        manifest: Callable[[], Manifest] | None = getattr(node.program, "manifest", None)
        inner = Manifest(node.program.name, node.program.version) if manifest is None else manifest()
    return StoredNode(
        node.name,
        node.kind,
        node.where,
        _stored_arguments(node.arguments, names),
        None if node.when is None else _stored_arguments(node.when.arguments, names),
        names.all(node.after),
        names.all(node.gates),
        node.outputs,
        () if gate is None else tuple(gate.targets),
        () if gate is None else tuple(target for target, number in gate.targets.items() if number is None),
        "" if node.question is None else node.question.name,
        mapped.over,
        mapped.limit,
        mapped.on_error,
        mapped.tolerate,
        inner,
        node.on_error if node.on_error != "fail" else "" if node.otherwise is None else "value",
        node.skips_rest,
        "" if node.instead is None else names.all((node.instead,))[0],
    )


def _stored_arguments(arguments: Iterable[Argument], names: _Names) -> tuple[StoredArgument, ...]:
    return tuple(StoredArgument(one.name, _stored(one.source, names), not one.required) for one in arguments)


def _stored(source: Source, names: _Names) -> StoredSource:
    match source:
        case Input():
            return StoredSource(input=names.inputs.get(source.name, source.name))
        case Output():
            return StoredSource(node=names.nodes[source.node], path=source.path)
        case Carried():
            return StoredSource(carried=source.slot)
        case Const():
            return StoredSource(fixed=True)
        case Collect():
            return StoredSource(every=tuple(_stored(one, names) for one in source.parts))
        case FirstOf():
            return StoredSource(first=tuple(_stored(one, names) for one in source.parts))
        case Computed() if source.parts:
            return StoredSource(made=tuple(_stored(one, names) for one in source.parts))
        case Computed():
            return StoredSource(fixed=True)


# --- and back -------------------------------------------------------------------------------------------------------


class StoredProgram(Program):
    """A program whose structure alone is known, or only its name. Its runs can be shown, but not advanced."""

    def __init__(self, manifest: Manifest) -> None:
        self.name, self.version, self.manifest = manifest.program, manifest.version, manifest
        self.decides = bool(manifest.nodes)
        self.plan = plan_of(manifest) if manifest.nodes else None
        self.dataflow = None if self.plan is None else Dependence(self.plan)

    def open(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory) -> Execution:
        """Nothing executes it."""
        raise UsageError(f"of {self.name!r} only the structure is known here, which runs nothing")


def plan_of(manifest: Manifest) -> Plan:
    """The plan of a stored structure. Its functions are placeholders: the run recorded what the real ones decided."""
    numbers = {node.name: number for number, node in enumerate(manifest.nodes)}
    return Plan(
        tuple(_node(node, numbers) for node in manifest.nodes),
        manifest.regions,
        tuple(Slot(name, tuple(_output(one, numbers) for one in made)) for name, made in manifest.slots),
        manifest.region,
        manifest.consumers,
        manifest.waits,
        manifest.reads,
        frozenset(manifest.kept),
        {value: tuple(_output(one, numbers) for one in made) for value, made in manifest.values.items()},
        tuple((one.name, _source(one.source, numbers)) for one in manifest.results),
        manifest.single,
        frozenset(manifest.required),
        manifest.on_failure,
        manifest.max_rounds,
        jobs=manifest.jobs,
        in_order=manifest.in_order,
        last=manifest.last,
    )


def _node(node: StoredNode, numbers: Mapping[str, int]) -> Node:
    gate = None
    if node.kind == "gate":
        gate = Gate({one: None if one in node.gone else numbers[one] for one in node.targets}, _no_code)
    return Node(
        node.name,
        node.kind,
        _arguments(node.takes, numbers),
        node.outputs,
        node.where,
        spec=StepSpec(node.name, _no_code) if node.kind == "step" else None,
        program=None if node.program is None else StoredProgram(node.program),
        function=_nothing if node.kind == "wait" else None,
        gate=gate,
        question=Question(node.asks) if node.kind == "wait" else None,
        when=None if node.when is None else Decision(_holds, _arguments(node.when, numbers)),
        mapped=Mapped(node.over, node.limit, node.on_error, node.tolerate) if node.over else None,
        gates=tuple(numbers[one] for one in node.gates),
        after=tuple(numbers[one] for one in node.after),
        on_error="skip" if node.otherwise == "skip" else "instead" if node.otherwise == "instead" else "fail",
        instead=numbers[node.instead] if node.instead else None,
        otherwise=Const(None) if node.otherwise == "value" else None,
        skips_rest=node.skips_rest,
    )


def _arguments(arguments: Iterable[StoredArgument], numbers: Mapping[str, int]) -> tuple[Argument, ...]:
    return tuple(Argument(one.name, _source(one.source, numbers), not one.optional) for one in arguments)


def _source(source: StoredSource, numbers: Mapping[str, int]) -> Source:
    if source.node:
        return _output(source, numbers)
    if source.carried is not None:
        return Carried(source.carried)
    if source.every or source.first:
        parts = tuple(_source(one, numbers) for one in source.every or source.first)
        return Collect(parts) if source.every else FirstOf(parts)
    if source.made:
        return Computed(_made, tuple(_source(one, numbers) for one in source.made))
    return Const(None) if source.fixed else Input(source.input)


def _output(source: StoredSource, numbers: Mapping[str, int]) -> Output:
    return Output(numbers[source.node], source.path)


def _made(parts: Sequence[Value | None]) -> bytes | Absent:
    """Replaces the computation of a value: a value exists if all its parts do."""
    return Absent("a value that it takes was not given") if None in parts else b"null"


def _no_code(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("a stored structure has no code")


def _nothing(**_: Any) -> None:
    """Replaces the function of a question: the journal has its request."""


def _holds(**_: Any) -> bool:
    """Replaces a condition: only a false one is recorded."""
    return True
