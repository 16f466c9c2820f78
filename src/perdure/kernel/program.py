"""Programs: the protocol that a new kind of program implements. Describes, never executes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

import msgspec
from msgspec import Raw

from perdure.errors import UsageError
from perdure.kernel.commands import UNDECODED, Command
from perdure.kernel.divergence.advice import OF_WORKFLOWS
from perdure.kernel.divergence.model import Divergence, OpView, Raised
from perdure.kernel.divergence.source import Source
from perdure.kernel.divergence.source_map import NO_SOURCE, SourceMap
from perdure.kernel.events import AnyEvent, RunStarted
from perdure.kernel.policies.rules import NONE, UNKNOWN, Rules, StepNames
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.signatures import Signature

if TYPE_CHECKING:
    from perdure.kernel.divergence.repair import Repair
    from perdure.kernel.patches import PatchHistory
    from perdure.kernel.schedules.schedule import ProgramSchedule


# The kind of a function that the code did not call before.
NEW_CALL = "a new call"
_UNKNOWN = Source()


class Execution(Protocol):
    """One run of a program in memory: a state machine that takes events and returns commands. Derive from this class.

    `advance` must depend on nothing but the events it has received, in order.
    """

    # Whether only values order its ops: then new ops may begin beside those in the journal.
    by_data: bool = False
    # How its program says its version, for advice.
    register: str = OF_WORKFLOWS
    # What `patched()` has returned, for its steps.
    patches: Mapping[str, bool] = MappingProxyType({})

    def advance(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> Sequence[Command]:
        """Apply one event, and return the next commands of the program.

        `decoded` is the value of a StepSucceeded, if it has just been decoded.
        """
        ...

    def close(self) -> None:
        """Release everything held; no further event will come."""
        ...

    def check_ahead(self, *, failing: bool = False) -> Iterable[None]:
        """Raise NotDecodable if what is recorded cannot be read where it will be taken. May pause now and then.

        `failing`: raise also what an expression raises that is to be evaluated later.
        """
        return ()

    def retires(self, op: str) -> bool:
        """Whether a recorded op is passed over if it is not commanded."""
        return False

    def explains(self, op: str, recorded: OpView) -> Divergence | None:
        """Why a recorded op is not commanded, if the execution knows better than the journal and the source tell."""
        return None


@runtime_checkable
class Watchable(Protocol):
    """An execution that reports which exceptions its code raises."""

    def watch(self) -> Iterable[Raised]:
        """From now on; each iteration gives the exceptions since the last one."""
        ...


@runtime_checkable
class ByReference(Protocol):
    """An execution that takes offloaded outcomes without their values, and asks for the values that it needs."""

    def loaded(self, blob: str, value: Raw, at: float) -> Sequence[Command]:
        """Take a value that was asked for with LoadValue, and return the next commands of the program."""
        ...


class Dataflow(Protocol):
    """The dependencies between the ops of a run, for a program in which only values order the ops.

    Ops are given by path, with the numbers of the events that began them.
    """

    def affected(self, path: str, ops: Mapping[str, int]) -> set[str]:
        """The ops that depend on the outcome of the one at this path; not that op itself."""
        ...

    def taking(self, name: str, ops: Mapping[str, int]) -> set[str]:
        """The ops that depend on an input of the program."""
        ...

    def maker(self, name: str, ops: Mapping[str, int]) -> tuple[str, tuple[str | int, ...]] | None:
        """The op that made a value last, and the way to the value in its outcome; None if no op did."""
        ...

    def type_of(self, path: str) -> Any:
        """The type of the outcome of an op; Any if it is not known."""
        ...

    def named(self, op: str, outcome: Any) -> dict[str, Any]:
        """The values by name that the outcome of an op holds, as plain JSON."""
        ...

    def stands_for(self, op: str) -> bool:
        """Whether None stands for the result of an item that has none."""
        ...

    @property
    def values(self) -> Iterable[str]:
        """The names of all values."""
        ...


class Defined(msgspec.Struct, frozen=True):
    """Where and when a program was defined; a redefinition has the same place and a higher number."""

    place: tuple[str, str]
    """Its module and its qualified name."""
    source: str
    """Its file and line."""
    number: int


@runtime_checkable
class Program(Protocol):
    """A program: a workflow in code, a graph, a flow. Derive from this class.

    A new kind of program must answer three things: its `name`, its `version`, and `open()`, a fresh state machine for
    one run. Everything else has an answer here that means "not known": each one that a program gives adds something.

    - `accepts`, `rules`, `defined`: runs of older versions, policies of its steps, a definition that replaces another.
    - `returns`, `errors`: results and exceptions of its runs come back as the types they were.
    - `types`, `defaults`, `encode_input`, `check_input`, `call_signature`, `signature`: arguments are kept by name,
      bound to the parameters of the day, and refused where they are wrong.
    - `step_names`, `source_map`, `lost`, `source`, `repairs`, `children`, `drawn`: what its code does, for
      explanations, diagrams and tests.
    """

    name: str
    version: str = "1"
    # Older versions whose runs this program can continue.
    accepts: tuple[str, ...] = ()
    # The type of its result.
    returns: Any = Any
    # Its parameters with their types, as in StepSpec, and their default values.
    types: tuple[tuple[str, Any], ...] = ()
    defaults: Mapping[str, Any] = MappingProxyType({})
    # Exception classes that cannot be found through a module, by name.
    errors: Mapping[str, type[BaseException]] = MappingProxyType({})
    # The policies of its steps.
    rules: Rules = NONE
    # Whether its runs may wait for a person.
    asks: bool = True
    # Whether a caller that runs it gets it back when it rests: see kernel/policies/resting.py.
    rests: bool = False
    # Whether its executions ask for recorded decisions, and which ops have begun.
    decides: bool = False
    # What depends on what in its runs; None: on all that came before.
    dataflow: Dataflow | None = None
    # Where and when it was defined, for a program that may be defined again in one process.
    defined: Defined | None = None
    # The id of the blob with its structure, for a program that has one: see `source`.
    structure: str = ""
    # Whether it only names a program, which is looked up when a child of it begins.
    by_name: bool = False
    # What the program can be made of again in another process; empty for code. It is stored before a run begins.
    definition: bytes = b""
    # Whether it is meant for single runs: its name stands for another version.
    variant: bool = False
    # The schedules that are deployed with it.
    schedules: tuple[ProgramSchedule, ...] = ()

    def open(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory) -> Execution:
        """A new execution; `past` is the patch history of its journal."""
        ...

    def open_chunk(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory) -> Execution:
        """A new execution of a chunk of one of its maps: see kernel/chunks.py. It ends with `ChunkResults`."""
        raise UsageError(f"{self.name} has no maps")

    def inside(self, op: str) -> Program | None:
        """The program of a child at an op path, if that is a part of this one, which engines need not know by name."""
        return None

    def batch(self) -> Program:
        """The program of its batches: runs it once for each row of its input. Its name is this one's with `[]`."""
        raise UsageError(f"{self.name} has no batches")

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any], codec: Codec) -> bytes:
        """The arguments of a call as JSON. Raises TypeError for a call that does not fit, if that is known."""
        return encode_arguments(self.name, args, kwargs, codec)

    def check_input(self, input: Raw, codec: Codec) -> object:
        """Raise NotDecodable for stored input that does not fit, if that is known."""
        return None

    def call_signature(self, codec: Codec) -> Signature | None:
        """Its signature, for callers in other processes; None if it is not known."""
        return None

    @property
    def signature(self) -> str:
        """How it is called, for messages."""
        return "(...)"

    def question_types(self, path: str) -> tuple[Any, Any] | None:
        """The types of what the approval at an op path shows and of its answer, if they are known."""
        return None

    def question_names(self) -> Set[str] | None:
        """The names of all approvals and signals that it may ask for; None if that is not known."""
        return None

    def step_names(self) -> StepNames:
        """The steps that its code calls: a rule for another name is a mistake."""
        return UNKNOWN

    def source_map(self) -> SourceMap:
        """The source lines that mention ops, for the explanation of a divergence."""
        return NO_SOURCE

    def lost(self, name: str, source: str = "", function: str = "", before: Source = _UNKNOWN) -> OpView | None:
        """What its code calls in place of a recorded step or child, if that is neither: replay would call it again.

        `source`: the line of the recorded call; `function`: its function, if that had another name; `before`: the
        source that it was called by, as far as it is known. What takes its place by that source alone is NEW_CALL.
        """
        return None

    def source(self) -> Source:
        """Its source, or its structure, which is stored with its runs; empty if there is none."""
        return Source()

    def repairs(self, recorded: Source, divergence: Divergence) -> Iterable[Repair]:
        """Changes of its source that may let a run continue which was executed with the source `recorded`."""
        return ()

    def rewired(self, recorded: Source, op: str, divergence: Divergence, seq: int, id: str) -> Divergence | None:
        """A divergence at an op, of a run with the structure `recorded`, if the op takes a value from elsewhere now."""
        return None

    def drawn(self, statuses: Mapping[str, str], format: str, depth: int | None) -> str:
        """A run as a diagram, given the statuses of its ops by path. Raises UsageError for a program without one."""
        raise UsageError(f"{self.name!r} is a workflow in code, which has no diagram; only runs of graphs are drawn")

    def children(self) -> Sequence[Program]:
        """The programs that its code runs as children."""
        return ()


def is_program(found: object) -> TypeGuard[Program]:
    """Whether it is derived from Program. Unlike isinstance, runs no code of an object that is none."""
    return type.__subclasscheck__(Program, type(found))


def encode_arguments(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], codec: Codec) -> bytes:
    """The arguments of a program whose parameters are not known: an object of keywords, or a list of positions."""
    if args and kwargs:
        raise UsageError(
            f"call({name!r}, ...) mixes positional and keyword arguments for a program that is not loaded here; pass "
            "all of them by keyword"
        )
    return codec.encode(kwargs or list(args), f"an argument of {name}")
