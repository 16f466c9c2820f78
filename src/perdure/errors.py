"""The error tree: every exception a caller of perdure can meet.

    PerdureError
    ├── UsageError            the call was wrong; nothing was written
    │   ├── InvalidId
    │   ├── InvalidName        (also a ValueError)
    │   ├── InvalidStoreUrl
    │   ├── UnknownProgram
    │   ├── UnknownVersion
    │   ├── AlreadyExists
    │   ├── AnswerRejected
    │   ├── SignalRejected
    │   ├── InvalidCapsule    a file is not a capsule, or was damaged or forged
    │   ├── InvalidLock
    │   ├── InvalidSettings   in a settings file or an environment variable
    │   ├── GraphInvalid      nodes that cannot be one graph
    │   ├── FlowInvalid       a file that cannot be a flow, with all problems
    │   ├── InvalidRule       a rule contradicts itself, or can never match
    │   ├── NoSuchRun
    │   ├── NoSuchOp
    │   ├── ForkRefused       the current code would not have produced the kept part of the journal
    │   ├── CannotRetry       only failed and cancelled runs can be retried
    │   ├── NotParked
    │   ├── NoSuchSchedule
    │   └── NoSuchFlow
    ├── NotDurable            a workflow body suspended on something that cannot be replayed
    ├── ValueProblem          a value cannot be stored
    │   ├── NotSerializable
    │   ├── NotDecodable
    │   ├── PayloadTooLarge
    │   └── HistoryTooLarge
    ├── StepError             a step failed with an exception that cannot be rebuilt here
    ├── StepTimeout           an attempt took longer than its timeout (also a TimeoutError)
    │   └── HeartbeatTimeout  an attempt sent no heartbeat for too long
    ├── ProcessDied           the process in which a step was executed died
    ├── ExecutorBroken        the executor passed to the engine accepts no more steps (also a RuntimeError)
    ├── StepCancelled         a step was cancelled before it had an outcome
    ├── OutcomeUnknown        an at-most-once step was running when its process died
    ├── ExpressionFailed      an expression of a flow has no value
    ├── LoopLimit             a loop of a graph has more rounds than max_rounds
    ├── CompensationFailed    a saga failed, and so did its compensations (also an ExceptionGroup)
    ├── SignalTimeout         no signal or answer came in time (also a TimeoutError)
    ├── ApprovalRejected      the approver said no
    ├── LockTimeout           a lock was not released in time (also a TimeoutError)
    ├── LockLost              a lock expired or was force-released while it was held
    ├── DeadlineExceeded      the run did not finish before its deadline (also a TimeoutError)
    ├── RunError              how a run ended, or why it is parked
    │   ├── RunFailed
    │   ├── FailedByHand      an operator ended a parked run
    │   ├── RunCancelled
    │   └── RunParked
    ├── Diverged              a journal does not fit the code that replays it
    └── StoreError
        ├── StoreUnavailable  busy, full or unreachable: try again
        ├── NotAStore
        ├── SchemaMismatch
        ├── Corrupt           stored bytes are not what was written
        └── NotOwner          a lease has another owner

Errors carry data and say what to do next. They import nothing of perdure but the data of a divergence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.kernel.divergence.model import Divergence, LostField, OpView


class PerdureError(Exception):
    """The base of every error of perdure."""


# --- the call was wrong ---------------------------------------------------------------------------------------------


class UsageError(PerdureError):
    """The call was wrong; nothing was written."""


class InvalidId(UsageError):
    """A run id is empty, too long, or holds characters that cannot be stored."""

    def __init__(self, id: str, reason: str) -> None:
        self.id, self.reason = id, reason
        super().__init__(f"the run id {id[:60]!r} {reason}; give a text of 1 to 255 characters, or leave it out")


class InvalidName(UsageError, ValueError):
    """A name cannot be part of an op path."""

    def __init__(self, what: str, name: object) -> None:
        self.what, self.name = what, name
        if not isinstance(name, str):
            shown, reason = repr(name)[:60], f"is of type {type(name).__name__}"
        else:
            shown = repr(name if len(name) <= 60 else name[:59] + "…")
            reason = f"has {len(name):,} characters" if not 1 <= len(name) <= 200 else "holds one of '/', ':', '[', ']'"
            if "holds" in reason and not any(c in "/:[]" for c in name):
                reason = "holds a control character or a lone surrogate"
        super().__init__(f"{what} {shown} {reason}; give a text of 1 to 200 characters without '/', ':', '[' and ']'")


class InvalidStoreUrl(UsageError):
    """A store URL names no known backend, or lacks something the backend needs."""

    def __init__(self, url: str, reason: str, what: str = "store") -> None:
        self.url, self.reason, self.what = url, reason, what
        super().__init__(f"cannot open the {what} {url!r}: {reason}")


class UnknownProgram(UsageError):
    """A run needs a program that this engine does not have."""

    def __init__(self, name: str, known: tuple[str, ...] = (), hint: str = "") -> None:
        self.name, self.known = name, known
        has = f"it has {', '.join(sorted(known))}" if known else "it has none"
        cure = hint or f"add it: Engine(store, [..., {name.rpartition('.')[2]}])"
        super().__init__(f"this engine has no program named {name!r} ({has}); {cure}")


class NoSuchResource(UsageError, KeyError):
    """A step asked for a resource that the engine or process executing it does not have."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"the resource {name!r} {reason}")

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # a KeyError shows its repr


class BrokenProgram(UnknownProgram):
    """A program that is loaded lazily could not be loaded."""

    def __init__(self, name: str, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(name, (), "")
        self.args = (
            f"the program {name!r} cannot be loaded from {place!r}: {reason}; correct it and start the engine again",
        )


class UnknownVersion(UsageError):
    """A run needs a version of its program that this engine does not have."""

    def __init__(self, name: str, version: str, known: tuple[str, ...]) -> None:
        self.name, self.version, self.known = name, version, known
        newest = f"version {known[-1]}"
        cure = f"register it beside {newest}, or let {newest} take over with accepts=({version!r},)"
        super().__init__(f"version {version} of {name} is not registered here: {cure}")

    def beside(self, others: str) -> UnknownVersion:
        """The same, with which versions other live orchestrators have."""
        error = UnknownVersion(self.name, self.version, self.known)
        error.args = (f"{self}. Of other live engines, {others}",)
        return error


class NotParked(UsageError):
    """Only parked runs can be resolved."""

    def __init__(self, id: str, status: str) -> None:
        self.id, self.status = id, status
        super().__init__(f"run {id!r} is {status}, and only parked runs are resolved; see `perdure runs show`")


class AlreadyExists(UsageError):
    """A run with this id exists, and the reuse policy forbids another."""

    def __init__(self, id: str, status: str, reuse: str, program: str | None = None) -> None:
        self.id, self.status, self.reuse, self.program = id, status, reuse, program
        if reuse == "import":
            PerdureError.__init__(
                self,
                f"this store has another run with the id {id!r}, of {program!r} and {status}; import it into a "
                "store of its own: perdure import FILE --store sqlite:///imported.db",
            )
            return
        cure = "Use reuse='return_existing' to get it, or choose another id"
        if program is not None:
            cure = f"It is a run of {program!r}, so its result is not the one asked for: choose another id"
        super().__init__(
            f"a run with id {id!r} exists and is {status}; reuse={reuse!r} does not allow a new one. {cure}"
        )


class SignalRejected(UsageError):
    """A signal is not of the type that the run waits for. The run still waits."""

    def __init__(self, name: str, path: str, reason: str) -> None:
        self.name, self.path, self.reason = name, path, reason
        super().__init__(
            f"the signal {name!r} was not sent: {path} {reason}; the run still waits for one of the type that its "
            "wait_signal(type=...) or inputs(...) asks for"
        )


class AnswerRejected(UsageError):
    """An answer does not fit the question, which stays open.

    `path` points into the answer, such as `$.ok`; it is empty when the person may not answer.
    """

    def __init__(self, name: str, path: str, reason: str) -> None:
        self.name, self.path, self.reason = name, path, reason
        where = f"{path} " if path else ""
        super().__init__(f"the answer to {name!r} was not accepted: {where}{reason}; the question is still open")


class InvalidCapsule(UsageError):
    """A file is not a capsule, or was damaged or changed."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"this is not a capsule that can be used: {reason}. Nothing was imported")


class InvalidLock(UsageError):
    """A lock has an invalid key or ttl."""

    def __init__(self, key: str, reason: str, cure: str = "choose a short name, such as 'account:7'") -> None:
        self.key, self.reason, self.cure = key[:60], reason, cure
        super().__init__(f"the lock {key[:60]!r} {reason}; {cure}")


class InvalidSettings(UsageError):
    """A setting makes no sense. `where` is its file and line, as in `perdure.yaml, line 3`, or its variable."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"{where}: {reason}")


class GraphProblem:
    """A problem of a node, or of a whole graph: where it is, and what to change."""

    def __init__(self, where: str, message: str) -> None:
        self.where, self.message = where, message

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def __repr__(self) -> str:
        return f"<{self}>"


class GraphInvalid(UsageError):
    """Nodes cannot be one graph. `problems` are all that were found."""

    def __init__(self, problems: Sequence[GraphProblem]) -> None:
        self.problems = tuple(problems)
        found = "\n  ".join(map(str, self.problems))
        many = "" if len(self.problems) == 1 else f" ({len(self.problems)} problems)"
        super().__init__(f"this cannot be a graph{many}:\n  {found}")


class FlowProblem:
    """A problem of a flow, and its place. `level` is "error" or "warning"; `code` is stable, such as "F012"."""

    __slots__ = ("code", "column", "file", "level", "line", "message")

    def __init__(self, file: str, line: int, column: int, code: str, message: str, level: str = "error") -> None:
        self.file, self.line, self.column = file, line, column
        self.code, self.message, self.level = code, message, level

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.level} {self.code} {self.message}"

    def __repr__(self) -> str:
        return f"<{self}>"


class FlowInvalid(UsageError):
    """A file cannot be a flow. `problems` are all that were found, also warnings."""

    def __init__(self, problems: Sequence[FlowProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class InvalidRule(UsageError):
    """A rule contradicts itself, or can never match."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"{where}: {reason}")


class NoSuchRun(UsageError):
    """No run has this id."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"there is no run with id {id!r} in this store; `perdure runs ls` lists the runs it has")


class NoSuchOp(UsageError):
    """A run has no op at that path. `known` are the paths it has."""

    def __init__(self, op: str, known: Sequence[str] = ()) -> None:
        self.op, self.known = op, tuple(known)
        listed = ", ".join(self.known[:10]) + (", ..." if len(self.known) > 10 else "")
        super().__init__(f"the run has no op {op!r}; it has {listed or 'none yet'}")


class ForkRefused(UsageError):
    """The current code would not have produced the journal of a fork, or cannot read it. Nothing was written."""

    def __init__(
        self,
        id: str,
        reason: str,
        cure: str = "Fork it before that op: the code must ask for exactly the steps that the fork keeps",
    ) -> None:
        self.id, self.reason, self.cure = id, reason, cure
        super().__init__(f"run {id!r} cannot be forked there: {reason}. {cure}")


class CannotMigrate(UsageError):
    """A run cannot be moved to another version of its flow. It stays as it is."""

    def __init__(self, id: str, reason: str) -> None:
        self.id, self.reason = id, reason
        super().__init__(f"run {id!r} cannot be moved to another version: {reason}")


class CannotRetry(UsageError):
    """Only a failed or cancelled run can be retried, and only if it would get further. Nothing was executed."""

    def __init__(self, id: str, status: str, hint: str, reason: str = "") -> None:
        self.id, self.status, self.reason = id, status, reason
        what = (
            f"cannot be retried: {reason}"
            if reason
            else f"is {status}, and only one that failed or was cancelled can be retried"
        )
        super().__init__(f"run {id!r} {what}; {hint}")


class NoSuchSchedule(UsageError):
    """There is no schedule of this id, or it was deleted."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"there is no schedule {id!r} in this store; `perdure schedules ls` lists those it has")


class NoSuchFlow(UsageError):
    """There is no flow of this name or version in the store."""

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        self.name, self.known = name, tuple(known)
        has = f"it has {', '.join(known[:10])}" if known else "it has none"
        super().__init__(f"there is no flow {name!r} in this store ({has}); store it: perdure flow deploy FILE")


# --- bodies ---------------------------------------------------------------------------------------------------------


class NotDurable(PerdureError):
    """A workflow body suspended on, or called, something that cannot be replayed."""

    def __init__(self, what: str, where: str) -> None:
        self.what, self.where = what, where
        super().__init__(f"{where}: {what} is not durable in a workflow body; put this in a @step")


class Diverged(PerdureError):
    """A journal does not fit the code that replays it, at entry `seq`. Nothing of the new code was executed."""

    divergence: Divergence

    def __init__(self, seq: int, divergence: Divergence) -> None:
        self.seq, self.divergence = seq, divergence
        self.op, self.change = divergence.op, divergence.change
        super().__init__(str(divergence))


# --- values ---------------------------------------------------------------------------------------------------------


class ValueProblem(PerdureError):
    """A value cannot be stored."""


# How the reason of a NotSerializable ends, if the value is a coroutine or something else to await.
NOT_AWAITED = "which is not awaited"


class NotSerializable(ValueProblem):
    """A value has no faithful form in the store. `path` points into the value, as in `$.items[3].price`."""

    def __init__(self, what: str, path: str, reason: str) -> None:
        self.what, self.path, self.reason = what, path, reason
        cure = "return plain data, or register a codec for it with Engine(codecs=[...])"
        if reason.endswith(NOT_AWAITED):
            cure = "write `await` before it"
        super().__init__(f"{what} cannot be stored: {path} {reason}; {cure}")


class NotDecodable(ValueProblem):
    """A stored value does not fit the type it is read as.

    `op` is the op it was recorded for, if that is known, and `divergence` the explanation, if it stops a run.
    """

    op: str = ""
    divergence: Divergence | None = None
    # A stored field that is no longer read.
    lost: LostField | None = None
    # The op that reads the value, if that is another one than it was recorded for.
    taker: OpView | None = None

    def __init__(self, what: str, type: str, reason: str) -> None:
        self.what, self.type, self.reason = what, type, reason
        super().__init__(f"{what} cannot be read as {type}: {reason}")

    def explained(self, divergence: Divergence) -> NotDecodable:
        """The same error with its explanation."""
        error = NotDecodable(self.what, self.type, self.reason)
        error.op, error.divergence, error.args = divergence.op, divergence, (str(divergence),)
        return error


class PayloadTooLarge(ValueProblem):
    """One value is larger than the limit for a single payload."""

    def __init__(self, what: str, size: int, limit: int, advice: str = "") -> None:
        self.what, self.size, self.limit = what, size, limit
        advice = advice or "store it with engine.blobs.put() and pass the reference"
        super().__init__(
            f"{what} is {size:,} bytes as JSON, above the limit of {limit:,}; {advice}, or raise Limits(payload=...)"
        )


class HistoryTooLarge(ValueProblem):
    """A journal has reached its limit."""

    def __init__(self, id: str, size: int, limit: int) -> None:
        self.id, self.size, self.limit = id, size, limit
        super().__init__(
            f"the journal of run {id!r} is {size:,} bytes, above the limit of {limit:,}; split the work into several "
            "runs or continue in a fresh one with continue_as(...), or raise Limits(history=...)"
        )


# --- steps ----------------------------------------------------------------------------------------------------------


class StepBailed(BaseException):
    """Unwinds a step that called `bail()`, which ends the run on purpose; the step is not retried.

    Not an Exception, so that an `except Exception` in the step does not catch it.
    """

    def __init__(self, reason: str, output: Any = None) -> None:
        self.reason, self.output = reason, output
        super().__init__(reason, output)

    def __str__(self) -> str:
        return self.reason


class StepError(PerdureError):
    """A step failed with an exception that cannot be rebuilt here: its class is not known, or would end the process.

    `attributes` are the attributes of the exception that could be stored, as plain data.
    """

    def __init__(
        self, type: str, message: str, traceback: str = "", attributes: Mapping[str, Any] | None = None
    ) -> None:
        self.type, self.message, self.traceback, self.attributes = type, message, traceback, dict(attributes or {})
        super().__init__(f"{type}: {message}" if message else type)


class StepTimeout(PerdureError, TimeoutError):
    """An attempt of a step took longer than its timeout."""

    def __init__(self, op: str, seconds: float) -> None:
        self.op, self.seconds = op, seconds
        super().__init__(f"{op} took longer than its timeout of {seconds:g} s")


class HeartbeatTimeout(StepTimeout):
    """An attempt of a step sent no heartbeat within its heartbeat timeout."""

    def __init__(self, op: str, seconds: float) -> None:
        self.op, self.seconds = op, seconds
        PerdureError.__init__(
            self,
            f"{op} sent no heartbeat for {seconds:g} s; call step_context().heartbeat() more often, "
            "or allow it more time with @step(heartbeat=...)",
        )


class ProcessDied(PerdureError):
    """The process in which a step with `cpu=True` was executed died. The attempt counts as failed."""

    def __init__(self, step: str, reason: str) -> None:
        self.step, self.reason = step, reason
        super().__init__(f"the process in which {step} was executed {reason}")


class ExecutorBroken(PerdureError, RuntimeError):
    """The executor passed to the engine accepts no more steps."""

    def __init__(self, executor: str, reason: str) -> None:
        self.executor, self.reason = executor, reason
        super().__init__(
            f"the {executor} given as Engine(executor=...) accepts no more steps: {reason}; create a new engine with "
            "another executor, or leave it out: steps with cpu=True have processes that are replaced when they die"
        )


class StepCancelled(PerdureError):
    """A step was cancelled before it had an outcome."""

    def __init__(self, op: str, reason: str) -> None:
        self.op, self.reason = op, reason
        super().__init__(f"{op} was cancelled: {reason}")


class SignalTimeout(PerdureError, TimeoutError):
    """No signal, or no answer, came in time."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind, self.name = kind, name
        super().__init__(f"no {kind} {name!r} came in time")


class ApprovalRejected(PerdureError):
    """The approver said no. `by` and `reason` are empty when they were not given."""

    def __init__(self, name: str, by: str = "", reason: str = "") -> None:
        self.name, self.by, self.reason = name, by, reason
        super().__init__(f"{name!r} was rejected" + (f" by {by}" if by else "") + (f": {reason}" if reason else ""))


class LockTimeout(PerdureError, TimeoutError):
    """A lock was not released in time."""

    def __init__(self, key: str, seconds: float) -> None:
        self.key, self.seconds = key, seconds
        cure = "`perdure locks ls` shows who holds it"
        super().__init__(f"the lock {key!r} was not released within {seconds:g} s; {cure}")


class LockLost(PerdureError):
    """A lock expired or was force-released while it was held, so it may have had a second holder."""

    def __init__(self, key: str, token: int) -> None:
        self.key, self.token = key, token
        super().__init__(
            f"the lock {key!r} (token {token}) was lost while it was held, so it may have had a second holder; "
            "let what the lock guards refuse tokens that are older than the newest it has seen"
        )


class OutcomeUnknown(PerdureError):
    """An at-most-once step was running when its process died: it may or may not have taken effect."""

    def __init__(self, op: str, key: str) -> None:
        self.op, self.key = op, key
        super().__init__(
            f"{op} was running when its process died, and it must not run twice; find out whether it took effect "
            f"(its idempotency key is {key})"
        )


class ExpressionFailed(PerdureError):
    """An expression of a flow has no value. `where` is its place in the file."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"{where}: {reason}")


class LoopLimit(PerdureError):
    """A loop of a graph has more rounds than it may have."""

    def __init__(self, entry: str, gate: str, rounds: int) -> None:
        self.entry, self.gate, self.rounds = entry, gate, rounds
        by = f"the gate {gate!r} chose it" if gate else "its nodes made a value for it"
        super().__init__(
            f"the loop that begins at {entry!r} has had {rounds:,} rounds, and {by} again. If it may have more, retry "
            "the run with max_rounds=... (`perdure runs retry ID --max-rounds N`), or raise the limit: "
            "Graph(max_rounds=...), or `max` of a flow's `repeat`"
        )


class CompensationFailed(PerdureError, ExceptionGroup[Exception]):
    """One or more compensations failed; the cause is the failure that they were to undo."""

    def derive(self, excs: Sequence[Exception], /) -> CompensationFailed:  # type: ignore[override]
        """A group of some of its exceptions."""
        return CompensationFailed(self.message, excs)


class DeadlineExceeded(PerdureError, TimeoutError):
    """The run did not finish before its deadline."""

    def __init__(self, id: str, deadline: str) -> None:
        self.id, self.deadline = id, deadline
        super().__init__(f"run {id!r} did not finish before its deadline {deadline}")


# --- runs -----------------------------------------------------------------------------------------------------------


class RunError(PerdureError):
    """The end of a run, or the reason of its parking."""


class RunFailed(RunError):
    """The run failed with an exception that cannot be rebuilt here.

    `attributes` are the attributes of the exception that could be stored, as plain data.
    """

    def __init__(
        self,
        id: str,
        type: str,
        message: str,
        traceback: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self.id, self.type, self.message, self.traceback = id, type, message, traceback
        self.attributes = dict(attributes or {})
        super().__init__(f"run {id!r} failed with {type}: {message}" if message else f"run {id!r} failed with {type}")


class FailedByHand(RunError):
    """An operator ended a parked run; the message is the reason."""


class RunCancelled(RunError):
    """The run was cancelled."""

    def __init__(self, id: str, reason: str | None = None) -> None:
        self.id, self.reason = id, reason
        super().__init__(f"run {id!r} was cancelled" + (f": {reason}" if reason else ""))


class RunParked(RunError):
    """The run is stopped until a person or a deploy resolves it. Nothing is lost."""

    def __init__(self, id: str, reason: str) -> None:
        self.id, self.reason = id, reason
        super().__init__(f"run {id!r} is parked: {reason}")


# --- stores ---------------------------------------------------------------------------------------------------------


class StoreError(PerdureError):
    """A request to the store failed."""


class StoreUnavailable(StoreError):
    """The store is busy, full or unreachable. Nothing was half-written."""

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(f"the store {url} cannot be used now: {reason}")


class NotAStore(StoreError):
    """The file or database is something else."""

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(f"{url} is not a perdure store: {reason}; name another file. This one was left untouched")


class SchemaMismatch(StoreError):
    """The store's schema is older or newer than this version of perdure."""

    def __init__(self, url: str, found: int, needed: int, reason: str = "") -> None:
        self.url, self.found, self.needed = url, found, needed
        older = "run `perdure migrate` to bring it up to date (an embedded one: open it once with an Engine)"
        newer = "a newer perdure wrote it: upgrade perdure in this environment"
        cure = reason or (newer if found > needed else older)
        super().__init__(f"{url} has schema {found}, and this perdure works with schema {needed}; {cure}")


class Corrupt(StoreError):
    """Stored bytes are not the bytes that were written."""

    def __init__(self, where: str, reason: str, run_id: str | None = None) -> None:
        self.where, self.reason, self.run_id = where, reason, run_id
        super().__init__(
            f"{where} is damaged ({reason}); other runs are not affected. Restore the file from a backup, "
            "and check the disk"
        )


class NotOwner(StoreError):
    """A lease can be renewed and released only by its owner."""

    def __init__(self, key: str, owner: str, held_by: str | None) -> None:
        self.key, self.owner, self.held_by = key, owner, held_by
        holder = f"{held_by!r} does" if held_by else "the lease is free"
        super().__init__(f"{owner!r} does not hold the lease {key!r}; {holder}")
