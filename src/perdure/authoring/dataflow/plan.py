"""The plan of a dataflow program: nodes, where their arguments come from, gates, loops. Frozen, never executed here.

Nodes are numbered in the order in which they were written; everything refers to them by number. A plan is *regions*:
region 0 is the program, every other one the body of a loop. A region ends when all of its nodes, and the loops directly
inside it, have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
from msgspec import Raw

from perdure.kernel.commands import StepSpec
from perdure.kernel.program import Program
from perdure.kernel.values.arguments import may_be_long

if TYPE_CHECKING:
    from perdure.authoring.dataflow.values import Value

Kind: TypeAlias = Literal["step", "gate", "wait", "child", "timer"]
OnFailure: TypeAlias = Literal["stop", "continue"]
OnError: TypeAlias = Literal["fail", "none", "skip"]
# The path of a part of a value: keys of objects and positions in lists. `EACH` means every item of a list, with None
# for an item without the part; `PRESENT` means every item that has it.
EACH, PRESENT = "*", "?"
Path: TypeAlias = tuple[str | int, ...]


# --- where an argument comes from -----------------------------------------------------------------------------------


class Input(msgspec.Struct, frozen=True, gc=False):
    """A value of the run's input."""

    name: str


class Output(msgspec.Struct, frozen=True, gc=False):
    """The value of another node, or a part of it."""

    node: int
    path: Path = ()


class Carried(msgspec.Struct, frozen=True, gc=False):
    """The value that the last round of a loop left for this one. The first round has none."""

    slot: int


class Const(msgspec.Struct, frozen=True):
    """A fixed value."""

    value: Any


class Collect(msgspec.Struct, frozen=True, gc=False):
    """Several values as one list, in this order. Has no value if one of them is missing."""

    parts: tuple[Source, ...]


class FirstOf(msgspec.Struct, frozen=True, gc=False):
    """The first of several values that exists."""

    parts: tuple[Source, ...]


class Absent(msgspec.Struct, frozen=True, gc=False):
    """Why there is no value: a value that it is made of does not exist."""

    reason: str


class Computed(msgspec.Struct, frozen=True):
    """A value that a pure function makes from others, encoded. The function gets None for values that do not exist.

    It returns Absent if it needs one of those, and raises ExpressionFailed if it cannot be computed at all.
    """

    call: Callable[[Sequence[Value | None]], bytes | Absent]
    parts: tuple[Source, ...]


Source: TypeAlias = Input | Output | Carried | Const | Collect | FirstOf | Computed


class Argument(msgspec.Struct, frozen=True):
    """A parameter and its source. One that is not `required` is left out if the source has no value."""

    name: str
    source: Source
    required: bool = True
    # Whether it must be passed by name.
    keyword: bool = False
    type: Any = Any


# --- what a node does -----------------------------------------------------------------------------------------------


class Decision(msgspec.Struct, frozen=True):
    """A pure function that the orchestrator calls: of a gate, a condition or a question."""

    call: Callable[..., Any]
    arguments: tuple[Argument, ...]


class Gate(msgspec.Struct, frozen=True):
    """Chooses which of its targets run. `targets` maps names to node numbers; None for a name without a node.

    `choose` turns the function's result into names, and raises UsageError for anything that is no target.
    """

    targets: dict[str, int | None]
    choose: Callable[[Any], list[str]]


class Question(msgspec.Struct, frozen=True):
    """What a node waits for: a signal, or a person's answer; who may answer, and until when."""

    name: str
    answer: Any = Any
    request: Any = Any
    # The parameter whose value is the request; if None, the node's function makes the request.
    shows: str | None = None
    timeout: float | None = None
    approvers: tuple[str, ...] = ()
    # Whether a timeout gives `on_timeout` in place of a failure.
    has_default: bool = False
    on_timeout: Any = None
    kind: Literal["approval", "signal"] = "approval"
    # The schema of the answer, where its type does not give it.
    schema: Raw | None = None


class Mapped(msgspec.Struct, frozen=True):
    """A node that runs once for each item of its arguments `over`."""

    over: tuple[str, ...]
    limit: int | None = None
    on_error: OnError = "fail"
    # How many items may fail: a number, or a share if it is a float.
    tolerate: float | None = None
    chunk: int = 500
    until: Callable[[Any], bool] | None = None
    # Whether the items are rows of a batch: each is the whole input of its program, and its result says how it ended.
    rows: bool = False


class Lock(msgspec.Struct, frozen=True):
    """A lock that a node holds while it runs: its key, and how long the node waits for it."""

    key: Source
    ttl: float
    wait: float | None = None


class Node(msgspec.Struct, frozen=True):
    """One node. `outputs` are the names of its values; if there are several, each is an element of its result."""

    name: str
    kind: Kind
    arguments: tuple[Argument, ...] = ()
    outputs: tuple[str, ...] = ()
    where: str = ""
    # The type of its result; of a map, that of each item.
    returns: Any = Any
    spec: StepSpec | None = None
    program: Program | None = None
    # The function of a gate or a question.
    function: Callable[..., Any] | None = None
    gate: Gate | None = None
    question: Question | None = None
    when: Decision | None = None
    mapped: Mapped | None = None
    # The gates that have it as a target, except for those that lead back to it; and nodes that it comes after without
    # taking a value.
    gates: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    # What follows a failure of the node: it fails, is skipped, has this value in place of its own, or another node
    # runs `instead` of it.
    on_error: Literal["fail", "skip", "instead"] = "fail"
    otherwise: Source | None = None
    instead: int | None = None
    lock: Lock | None = None
    # Whether its result {"status": "no_data"} skips all nodes that have not begun, and leaves the program without a
    # result.
    skips_rest: bool = False
    # For the entry of a loop: the most rounds; 0: as the plan says.
    max_rounds: int = 0


# --- loops and the whole --------------------------------------------------------------------------------------------


class Slot(msgspec.Struct, frozen=True):
    """A value that is carried from one round to the next, and the nodes that produce it."""

    name: str
    producers: tuple[Output, ...]


class Region(msgspec.Struct, frozen=True):
    """The nodes of the program (region 0), or of the body of a loop.

    `nodes` and `inner` are the nodes and loops directly in it. `body` has all of its nodes, each with the number of
    nodes in the body that it waits for.
    """

    parent: int = -1
    entry: int = -1
    nodes: tuple[int, ...] = ()
    inner: tuple[int, ...] = ()
    body: tuple[tuple[int, int], ...] = ()
    # All loops inside it, at any depth.
    within: tuple[int, ...] = ()
    # The gates that lead back to the entry, the slots of the body, and the slots that the entry takes.
    gates: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    feeds: tuple[int, ...] = ()
    # Nodes outside that wait for nodes of the body; they are counted down when the loop has ended.
    exports: tuple[tuple[int, int], ...] = ()


class Plan(msgspec.Struct, frozen=True):
    """A dataflow program."""

    nodes: tuple[Node, ...]
    regions: tuple[Region, ...]
    slots: tuple[Slot, ...] = ()
    # By node: its region, the nodes to count down when it ends, and how many nodes it waits for.
    region: tuple[int, ...] = ()
    consumers: tuple[tuple[int, ...], ...] = ()
    waits: tuple[int, ...] = ()
    # By node: the nodes whose values it takes, except for values that leave a loop. The values of `kept` nodes are
    # needed until the end, other values until the last node has taken them.
    reads: tuple[tuple[int, ...], ...] = ()
    kept: frozenset[int] = frozenset()
    # All values by name, each with the outputs that make it.
    values: dict[str, tuple[Output, ...]] = {}
    # The result: names with their sources. If `single`, the one value is the result itself.
    results: tuple[tuple[str, Source], ...] = ()
    single: bool = False
    # Names without whose values there is no result.
    required: frozenset[str] = frozenset()
    on_failure: OnFailure = "stop"
    max_rounds: int = 1000
    patches: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    renamed: dict[str, str] = {}
    # Whether its nodes are jobs: a job that lacks a value is blocked, even if the value was only skipped.
    jobs: bool = False
    # Whether nodes run in order, so that a failure blocks the nodes after it.
    in_order: bool = False
    # The node that runs when the others have ended, whatever their outcome: a child, in no region. -1: none. It may
    # take the input `STATUS`.
    last: int = -1
    # Counted once for all runs: by node, how many nodes take its value; by region, how many nodes and loops are
    # directly in it.
    readers: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        readers = [0] * len(self.nodes)
        for producers in self.reads:
            for producer in producers:
                readers[producer] += 1
        msgspec.structs.force_setattr(self, "readers", tuple(readers))
        sizes = tuple([len(region.nodes) + len(region.inner) for region in self.regions])
        msgspec.structs.force_setattr(self, "sizes", sizes)


# The input of the last node that says how the run has ended: succeeded, failed, cancelled or bailed.
STATUS = ".status"


def outputs_in(source: Source) -> Iterable[Output]:
    """The outputs of nodes that a source consists of."""
    if isinstance(source, Output):
        yield source
    elif isinstance(source, Collect | FirstOf | Computed):
        for part in source.parts:
            yield from outputs_in(part)


def outputs_of(node: Node) -> Iterable[Output]:
    """The outputs of other nodes that a node takes, those for its condition included."""
    for argument in (*node.arguments, *(node.when.arguments if node.when is not None else ())):
        yield from outputs_in(argument.source)
    if node.otherwise is not None:
        yield from outputs_in(node.otherwise)
    if node.lock is not None:
        yield from outputs_in(node.lock.key)


def passed_on(plan: Plan) -> list[bool]:
    """By node: whether its value only goes to steps and the result, so that the orchestrator never decodes it."""
    found = [True] * len(plan.nodes)
    looked_into: list[Output] = [output for slot in plan.slots for output in slot.producers]
    for _, source in plan.results:
        looked_into += [output for output in outputs_in(source) if not _is_whole(source)]
    for number, node in enumerate(plan.nodes):
        if node.mapped is not None or node.program is not None:
            found[number] = False  # the results of items are joined, and a program's result is read
        plain = node.kind == "step" and node.mapped is None and node.when is None and node.otherwise is None
        plain = plain and node.lock is None and not may_be_long(argument.name for argument in node.arguments)
        sources = [argument.source for argument in node.arguments]
        looked_into += (
            [output for source in sources if not _is_whole(source) for output in outputs_in(source)]
            if plain
            else outputs_of(node)
        )
    for output in looked_into:
        found[output.node] = False
    return found


def _is_whole(source: Source) -> bool:
    """Whether a source is the whole value of a node."""
    if isinstance(source, FirstOf):
        return all(_is_whole(part) for part in source.parts)
    return not isinstance(source, Collect | Computed) and not (isinstance(source, Output) and source.path)
