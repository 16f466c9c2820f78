"""What a program wishes for. Describes work, never performs it."""

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
# The name of the wish for the end of a run.
FINISH = "<finish>"
# In place of a value that has not been decoded.
UNDECODED: Any = object()


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
    # Whether `fn` yields what it makes, piece by piece; its result is the list of that.
    generator: bool = False
    # When the chunks it emits are written; None: as the engine says.
    stream: StreamMode | None = None
    # Seconds without a heartbeat after which an attempt is given up.
    heartbeat: float | None = None
    types: tuple[tuple[str, Any], ...] = ()
    returns: Any = Any
    # Exception classes that can be found through no module, by name.
    errors: Mapping[str, type[BaseException]] = field(default_factory=dict)
    # What the last failure comes to: the end of the step, None as its result, or what the fallback makes of it.
    on_failure: OnFailure = "halt"
    fallback: Callable[..., Any] | None = None
    # The queue from which another process takes it.
    queue: str = ""
    # Whether the journal keeps its arguments, to be inspected.
    record_inputs: bool = False
    # Of a remote step: the policy that options of the call and rules gave it, which its worker is sent.
    sent: tuple[tuple[str, Any], ...] = ()


class RunStep(msgspec.Struct, frozen=True, gc=False):
    """Call a step. `inputs` are its encoded arguments: `positional` of them, then those that `keywords` names."""

    op: str
    spec: StepSpec
    inputs: bytes
    inputs_hash: str
    positional: int = 0
    keywords: tuple[str, ...] = ()
    source: str = ""
    # For a remote step, and one whose inputs are recorded: the blob that has them, and why it cannot be called.
    blob: str = ""
    refused: Failure | None = None
    # For a remote step: what the body knows of patches.
    patches: dict[str, bool] | None = None


class StartTimer(msgspec.Struct, frozen=True, gc=False):
    """Tell the program when `due` has come."""

    op: str
    due: float
    source: str = ""


class OpenWait(msgspec.Struct, frozen=True, gc=False):
    """Tell the program when a signal or an answer has come, or a lock is its own, or `deadline` has passed."""

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


class SetState(msgspec.Struct, frozen=True, gc=False):
    """Publish a value."""

    op: str
    key: str
    value: Raw
    source: str = ""


class StartOptions(msgspec.Struct, frozen=True):
    """What a run that goes its own way is started with, beside its input: as the journal keeps it."""

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
    # Why it cannot begin: it ends with this at once.
    refused: Failure | None = None
    # For one that is detached.
    options: StartOptions | None = None
    # The program itself, where the body has it: it may have been defined again since the engine was given it.
    own: Any = None


class CancelOp(msgspec.Struct, frozen=True, gc=False):
    """Give up an op that is under way; its outcome no longer matters. A child is asked to end, and then ends."""

    op: str
    reason: str = ""


class RecordValue(msgspec.Struct, frozen=True, gc=False):
    """Keep a value that the program has just used."""

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
    # The encoded input that the next incarnation begins with.
    continue_with: bytes | None = None
    # The version of the program that wishes for it: the next incarnation begins with that.
    version: str = ""


class CancelKey(NamedTuple):
    """What a CancelOp is found under among a program's wishes: the op itself may be wished for again."""

    op: str


Command = RunStep | StartTimer | OpenWait | StartChild | SetState | CancelOp | RecordValue | Checkpoint | Finish
# What a program wishes for and the journal does not hold yet, by op, in order.
Wishes: TypeAlias = dict[str | CancelKey, Command]
