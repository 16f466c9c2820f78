"""The commands of a program. Describes work, never performs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw

from perdure.kernel.events import NULL, RunStatus
from perdure.kernel.policies.retry import ONCE, Retry
from perdure.kernel.streams import StreamMode
from perdure.kernel.values.failures import Failure

OnFailure = Literal["halt", "skip"]
# The key of the command that ends a run.
FINISH = "<finish>"
# Decodes a value as the program gets it, or raises NotDecodable; `exact=True`: see Codec.decode_exact.
Reads: TypeAlias = Callable[..., Any]
# A value that has not been decoded.
UNDECODED: Any = object()
# The key of an object that stands for a secret: its name, or the pieces of a text that has secrets in it.
SECRET = "$secret"
# The way to a place in a value: keys of objects, and positions in lists.
Place: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StepSpec:
    """A step's function and policy. The kernel carries `fn` and never calls it."""

    name: str
    fn: Callable[..., Any]
    retry: Retry = ONCE
    timeout: float | None = None
    at_most_once: bool = False
    cpu: bool = False
    asynchronous: bool = False
    # Whether `fn` is a generator, whose chunks are its result.
    generator: bool = False
    # When the chunks it emits are written; None: the engine's default.
    stream: StreamMode | None = None
    # Seconds without a heartbeat after which an attempt fails.
    heartbeat: float | None = None
    types: tuple[tuple[str, Any], ...] = ()
    # The names in the record of a call with no, one, two ... positional arguments: see kernel/values/arguments.py.
    prefixes: tuple[str, ...] = ("",)
    returns: Any = Any
    # Exception classes that cannot be found through a module, by name.
    errors: Mapping[str, type[BaseException]] = field(default_factory=dict)
    # What follows the last failure: the step fails, is skipped with None, or the fallback is called.
    on_failure: OnFailure = "halt"
    fallback: Callable[..., Any] | None = None
    # The queue of a remote step.
    queue: str = ""
    # Whether the journal records its arguments.
    record_inputs: bool = False
    # The lowest level of log records that become chunks of its stream; 0: none do.
    logs: int = 0
    # For a remote step: the policy from call options and rules, which is sent to its worker.
    sent: tuple[tuple[str, Any], ...] = ()
    # Whether its result is items, which are written to the store as they come.
    items: bool = False
    # The version of a node: results of another one are not reused.
    version: str = ""
    # The name under which workers serve it, if its node has another one.
    served_as: str = ""
    # The function that it calls, if that has another name; of a lambda, the names in it.
    function: str = ""
    # Where its arguments hold secrets, by parameter: the executor puts them in.
    secrets: tuple[tuple[str, tuple[Place, ...]], ...] = ()


class RunStep(msgspec.Struct, frozen=True, gc=False):
    """Call a step. `inputs` are its encoded arguments: `positional` of them, then those that `keywords` names.

    `inputs_hash` is the record of the call: see kernel/values/arguments.py.
    """

    op: str
    spec: StepSpec
    inputs: bytes
    inputs_hash: str
    positional: int = 0
    keywords: tuple[str, ...] = ()
    source: str = ""
    # For a remote step, and one whose inputs are recorded: the blob of the inputs, and why it cannot be called.
    blob: str = ""
    refused: Failure | None = None
    # For a remote step: the answers of `patched()` in the body.
    patches: dict[str, bool] | None = None
    # Arguments that are in blobs: their positions in `inputs`, where they are null, and the ids of the blobs. They are
    # loaded when the step is about to begin.
    references: tuple[tuple[int, str], ...] = ()
    # Which of these blobs other code recorded, with what raises NotDecodable if the step cannot take the value.
    unread: tuple[tuple[str, Callable[[Raw], object]], ...] = ()


class LoadValue(msgspec.Struct, frozen=True, gc=False):
    """Load the value of an outcome that the program needs and that is in a blob. Is not recorded."""

    op: str
    blob: str


class StartTimer(msgspec.Struct, frozen=True, gc=False):
    """Resume the program at `due`."""

    op: str
    due: float
    source: str = ""


class OpenWait(msgspec.Struct, frozen=True, gc=False):
    """Resume the program when a signal or an answer has come, a lock is acquired, or `deadline` has passed."""

    op: str
    kind: str
    name: str
    deadline: float | None = None
    source: str = ""
    request: Raw = NULL
    schema: Raw = NULL
    approvers: tuple[str, ...] = ()
    escalate_at: float | None = None
    escalate_to: tuple[str, ...] = ()
    ttl: float = 0.0
    # How the program decodes what arrives; None: it decides itself about what it cannot decode.
    reads: Reads | None = None


class SetState(msgspec.Struct, frozen=True, gc=False):
    """Publish a value."""

    op: str
    key: str
    value: Raw
    source: str = ""


class StartOptions(msgspec.Struct, frozen=True):
    """The start options of a detached run, as the journal stores them."""

    tags: dict[str, str] | None = None
    queue: str = ""
    queue_key: str = ""
    priority: int = 0
    not_before: float | None = None
    max_concurrency: int | None = None
    rules: dict[str, Any] | None = None


class StartChild(msgspec.Struct, frozen=True, gc=False):
    """Run another program, here or on its own. `input` is its encoded input, offloaded to `blob` if it is large."""

    op: str
    program: str
    version: str
    input: bytes
    inputs_hash: str
    id: str = ""
    detached: bool = False
    deadline: float | None = None
    source: str = ""
    blob: str = ""
    # Why it cannot begin: it fails with this at once.
    refused: Failure | None = None
    # For one that is detached.
    options: StartOptions | None = None
    # The program object, if the body has it: it may have been redefined since the engine got it.
    own: Any = None
    # Whether `own` is a part of the program that starts it, which the engine need not know by name.
    embedded: bool = False
    # The structure of its program, or of the one that it is a part of: see Program.
    structure: str = ""
    # Whether it runs when everything else has ended.
    last: bool = False


class CancelOp(msgspec.Struct, frozen=True, gc=False):
    """Cancel an open op; its outcome no longer matters. A child gets a cancellation, and then ends."""

    op: str
    reason: str = ""
    # Whether it is of a node that the program no longer has.
    retired: bool = False


class RecordValue(msgspec.Struct, frozen=True, gc=False):
    """Record a value that the program has just used."""

    op: str
    kind: str
    value: Raw = NULL
    source: str = ""


class Checkpoint(msgspec.Struct, frozen=True, gc=False):
    """Make everything so far durable before anything else takes effect."""

    op: str
    source: str = ""


class Finish(msgspec.Struct, frozen=True, gc=False):
    """End the run."""

    status: RunStatus
    value: bytes = b"null"
    error: Failure | None = None
    reason: str = ""
    blob: str = ""
    op: str = FINISH
    # The encoded input of the next incarnation.
    continue_with: bytes | None = None
    # The version of the program, with which the next incarnation begins.
    version: str = ""
    # Whether it ends a child of a node that the program no longer has.
    retired: bool = False


class CancelKey(NamedTuple):
    """The key of a CancelOp among pending commands: the op itself may be commanded again."""

    op: str


Command = (
    RunStep | LoadValue | StartTimer | OpenWait | StartChild | SetState | CancelOp | RecordValue | Checkpoint | Finish
)
# Commands that are not in the journal yet, by op, in order.
Pending: TypeAlias = dict[str | CancelKey, Command]
