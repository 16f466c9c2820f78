"""A workflow body in memory: coroutines on a BodyLoop, fed with events, giving commands.

This is where code meets the kernel: an op called in the body becomes a command, an event resolves what the body awaits.
It knows no store and calls no step.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import events
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from perdure.authoring.code.loop import (
    AWAIT,
    BodyLoop,
    BodyTask,
    BodyTimer,
    ChildFuture,
    Closing,
    EarlyFuture,
    GatherFuture,
    OpFuture,
    Site,
    call_site,
    user_line,
    waiting_line,
)
from perdure.errors import (
    ApprovalRejected,
    LockTimeout,
    NotDecodable,
    NotDurable,
    NotSerializable,
    PayloadTooLarge,
    PerdureError,
    RunCancelled,
    SignalTimeout,
    UsageError,
)
from perdure.kernel.commands import (
    UNDECODED,
    CancelOp,
    Checkpoint,
    Command,
    Finish,
    OpenWait,
    RecordValue,
    RunStep,
    SetState,
    StartChild,
    StartOptions,
    StartTimer,
    StepSpec,
)
from perdure.kernel.context import RunContext, started_context
from perdure.kernel.divergence.model import Raised
from perdure.kernel.events import (
    AnyEvent,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    RunClaimed,
    RunStarted,
    RunStatus,
    StepFailed,
    StepSkipped,
    StepSucceeded,
    ValueRecorded,
    WaitResolved,
)
from perdure.kernel.invocation import Invocation, check_arguments
from perdure.kernel.patches import NO_HISTORY, PATCH, PatchHistory
from perdure.kernel.program import Execution, Program
from perdure.kernel.values.arguments import ALL_SMALL, call_names, recorded_call
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.failures import add_note, describe, rebuild
from perdure.kernel.values.raised import brief, contained, is_a
from perdure.kernel.values.value_versions import VERSION_KEY

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=Coroutine[Any, Any, Any])
R = TypeVar("R", covariant=True)


class Called(Invocation[R]):
    """An invocation that can be awaited inside a workflow: it is a child run then."""

    __slots__ = ("begun",)

    def __init__(self, name: str, program: Program | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(name, program, args, kwargs)
        self.begun = False

    def __await__(self) -> Generator[Any, None, R]:
        body = current_body()
        if body is None:
            return super().__await__()
        return body.start_child(self).__await__()


class Bail(BaseException):
    """Unwinds a body that ends early and on purpose."""


class Wait(msgspec.Struct, frozen=True):
    """What a body waits for from outside, and the type it comes as."""

    kind: str
    name: str
    type: Any
    # How long it waits for a lock at most.
    seconds: float = 0.0
    # Whether the body gets every NotDecodable, also where a change of the code is the reason.
    judges: bool = False


class WaitReader(msgspec.Struct, frozen=True):
    """Decodes what a wait gets. Equal for equal waits: two replays of a journal ask for the same."""

    codec: Codec
    wait: Wait
    op: str

    def __call__(self, value: Raw, *, exact: bool = False) -> Any:
        what = "answer to the approval" if self.wait.kind == "approval" else self.wait.kind
        decode = self.codec.decode_exact if exact else self.codec.decode
        return decode(value, self.wait.type, f"the {what} {self.wait.name!r} taken by {self.op}")


class BodyLock:
    """A lock that a body holds. The token changes when the run lost the lock and has it again."""

    __slots__ = ("key", "op", "scope", "token")

    def __init__(self, key: str, op: str, scope: object, token: int) -> None:
        self.key, self.op, self.scope, self.token = key, op, scope, token


class Child(msgspec.Struct, frozen=True):
    """A child that a body waits for, and what its end is read with."""

    id: str
    returns: Any
    errors: Mapping[str, type[BaseException]]


# The arguments of the next incarnation, encoded; and whether to check them.
EncodeNext = Callable[[tuple[Any, ...], dict[str, Any], Codec, bool], bytes]


class Body(Execution):
    """One run of a workflow function."""

    def __init__(
        self,
        run_id: str,
        make: Callable[[Sequence[str]], Coroutine[Any, Any, Any]],
        returns: Any,
        codec: Codec,
        encode_next: EncodeNext,
        version: str = "",
        past: PatchHistory = NO_HISTORY,
    ) -> None:
        self._encode_next = encode_next
        self.run_id = run_id
        self._version, self._past = version, past
        # What `patched()` has returned, by patch: the same for as long as the body lives.
        self.patches: dict[str, bool] = {}
        self.codec = codec
        # How recorded results are decoded.
        self.decode = codec.decode
        self._make = make
        self._returns = returns
        self.loop = BodyLoop(self)  # type: ignore[abstract] # the rest of the methods refuse, see loop.py
        self._task: BodyTask | None = None
        self._commands: list[Command] = []
        # Ops that had their outcome before anything awaited them, and those that begin only when they are awaited.
        self._early: list[EarlyFuture] = []
        self._made: list[tuple[int, str, str, str, Coroutine[Any, Any, Any]]] = []
        # The last op that was refused because it is not awaited: also a body that catches this is to fail.
        self._refused: UsageError | None = None
        # What each open op resolves: the future of a step or a wait, or a timer.
        self._futures: dict[str, tuple[OpFuture, StepSpec | Wait | Child | None]] = {}
        self._timers: dict[str, BodyTimer] = {}
        self._finish: Finish | None = None
        # An error of our own at the end of the body: the loop drops what its callbacks raise.
        self._broken: Exception | None = None
        self._refusals = 0
        self._cancelled: CancelRequested | None = None
        # Values that the run it was forked from recorded, by op; and how the run was started.
        self.recorded: dict[str, Raw] = {}
        self.started: RunStarted | None = None
        # Locks that the body holds, by the op that asked for them.
        self.locks: dict[str, BodyLock] = {}

    # --- Execution ------------------------------------------------------------------------------------------------

    def advance(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> Sequence[Command]:
        """Apply one fact, run the body until it waits, and return the commands that it made."""
        apply = _APPLY.get(type(event))
        if apply is None or self._finish is not None:
            return ()
        loop = self.loop
        loop.now = at
        apply(self, event, decoded)
        if loop.ready:
            loop.drain()
            if self._broken is not None:
                raise self._broken
        if not self._futures and not self._timers:
            self._check_stuck()
        commands, self._commands = self._commands, []
        return commands

    def watch(self) -> Iterable[Raised]:
        """Trace the body from now on, which is slow; each iteration gives the exceptions that it raised meanwhile."""
        from perdure.authoring.code.exceptions import RaisedErrors  # parses source: needed for explanations only

        return RaisedErrors(self.loop)

    def _apply_run_claimed(self, event: RunClaimed, decoded: Any) -> None:
        self._task = self.loop.run_root(self._make(event.names))
        self._task.add_done_callback(self._ended)

    def _apply_step_succeeded(self, event: StepSucceeded, decoded: Any) -> None:
        found = self._futures.pop(event.op, None)
        if found is None:
            return
        future, spec = found
        if decoded is UNDECODED:
            returns = spec.returns if isinstance(spec, StepSpec) else Any
            decoded = self.decode(event.value, returns, f"the result of {event.op}")
        future._op = None
        if not future.done():
            if not future._callbacks:
                self._came_early(future, event.op)
            future.set_result(decoded)

    def _apply_step_failed(self, event: StepFailed, decoded: Any) -> None:
        if event.op not in self._futures:
            return
        if event.bailed:
            self.finish(Finish(RunStatus.BAILED, bytes(event.output), reason=event.error.message))
            self._resolve_with(event.op, Bail())
            return
        spec = self._futures[event.op][1]
        error = rebuild(event.error, self.codec, spec.errors if isinstance(spec, StepSpec) else None)
        if event.error.traceback:
            add_note(error, f"in step {event.op}:\n{event.error.traceback.rstrip()}")
        self._resolve_with(event.op, error)

    def _apply_step_skipped(self, event: StepSkipped, decoded: Any) -> None:
        self._resolve_with(event.op, None)

    def _apply_wait_resolved(self, event: WaitResolved, decoded: Any) -> None:
        timer = self._timers.pop(event.op, None)
        if timer is not None:
            self.loop.fire(timer)
        else:
            self._answered(event)

    def _apply_child_started(self, event: ChildStarted, decoded: Any) -> None:
        self._resolve_with(event.op, None, event.detached)

    def _apply_cancel_requested(self, event: CancelRequested, decoded: Any) -> None:
        self._cancelled = event
        if self._task is not None:
            self._task.cancel(event.reason)

    def _apply_value_recorded(self, event: ValueRecorded, decoded: Any) -> None:
        if event.kind == "lock" and event.op in self.locks:
            self.locks[event.op].token = self.codec.decode(event.value, int, event.op)
        elif event.kind == "checkpoint":
            self._resolve_with(event.op, None)

    def close(self) -> None:
        """Close the coroutines; nothing of them runs any more but their own clean-up."""
        self.loop.shut()
        self._futures.clear()
        self._timers.clear()
        self._early.clear()
        self._made.clear()
        if self._task is not None:
            self._task.remove_done_callback(self._ended)  # a task that waits is left to the garbage; not its body
            self._task = None

    def _resolve_with(self, op: str, error: BaseException | None, value: Any = None) -> None:
        found = self._futures.pop(op, None)
        if found is None:
            return
        future = found[0]
        future._op = None
        if not future.done():
            if not future._callbacks:
                self._came_early(future, op)
            elif error is not None:
                self.loop.failed_at = self.loop.numbers
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(plain_error(error))

    def _came_early(self, future: OpFuture, op: str) -> None:
        """An op has its outcome, and nothing awaits it yet: see in the end whether something did."""
        if future.awaited or future.site[3]:
            return
        future.__class__ = EarlyFuture
        assert isinstance(future, EarlyFuture)
        future.what = op
        self._early.append(future)
        if (count := len(self._early)) > 64 and not count & (count - 1):
            self._early = [one for one in self._early if not one.awaited]

    def _answered(self, event: WaitResolved) -> None:
        found = self._futures.get(event.op)
        if found is None:
            return
        wait = found[1]
        if not isinstance(wait, Wait):
            self._resolve_with(event.op, None)
        elif event.by == "timeout":
            late = LockTimeout(wait.name, wait.seconds) if wait.kind == "lock" else SignalTimeout(wait.kind, wait.name)
            self._resolve_with(event.op, late)
        elif event.is_rejection:
            reason = msgspec.json.decode(event.value, type=str)
            self._resolve_with(event.op, ApprovalRejected(wait.name, event.person, reason))
        else:
            try:
                value = WaitReader(self.codec, wait, event.op)(event.value)
            except NotDecodable as error:
                # It never was what was asked for; the body decides what that means.
                self._resolve_with(event.op, error)
            else:
                self._resolve_with(event.op, None, value)

    def _apply_child_finished(self, event: ChildFinished, decoded: Any) -> None:
        found = self._futures.pop(event.op, None)
        if found is None:
            return
        future, child = found
        assert isinstance(future, ChildFuture)
        assert isinstance(child, Child)
        if not future.done() and not future._asked:
            if not future._callbacks:
                self._came_early(future, event.op)
            elif event.status not in (RunStatus.COMPLETED, RunStatus.BAILED):
                self.loop.failed_at = self.loop.numbers
        if event.status in (RunStatus.COMPLETED, RunStatus.BAILED):
            returns = child.returns if event.status is RunStatus.COMPLETED else Any
            future.ended(self.decode(event.value, returns, f"the result of {event.op}"), None)
        elif event.status is RunStatus.CANCELLED or event.error is None:
            future.ended(None, RunCancelled(child.id, event.reason or None))
        else:
            error = rebuild(event.error, self.codec, child.errors)
            if event.error.traceback:
                add_note(error, f"in the child {event.op}:\n{event.error.traceback.rstrip()}")
            future.ended(None, plain_error(error))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self._finish is not None or self.loop.closing:
            return
        try:
            self.finish(self._end_of(task))
        except BaseException as error:
            self._broken = contained(error)

    def _end_of(self, task: asyncio.Task[Any]) -> Finish:
        """The end that the body has come to."""
        error: BaseException | None
        try:
            error = task.exception()
            value = None if error is not None else task.result()
        except asyncio.CancelledError as cancelled:
            if self._cancelled is not None:
                return Finish(RunStatus.CANCELLED, reason=self._cancelled.reason)
            error, value = cancelled, None
        if error is None:
            error = self._refused
        if error is None:
            try:
                data = self.codec.encode(value, "the result of the workflow")
                decoded = self.codec.decode(data, self._returns, "the result of the workflow")
                if self.codec.fields:
                    data = self.codec.exact(data, decoded, self._returns, "the result of the workflow")
                self.check_all_awaited()
                return Finish(RunStatus.COMPLETED, data)
            except UsageError as forgotten:
                error = forgotten
            except PerdureError as not_kept:
                error, inner = not_kept, _unawaited(value)
                if inner is not None:
                    write = "`return await ...`" if inner is value else "`await` before it"
                    error = UsageError(f"the workflow returned {_named(inner)} without awaiting it; write {write}")
        return Finish(RunStatus.FAILED, error=describe(error, self.codec))

    def _check_stuck(self) -> None:
        """A body that waits, with nothing under way that could wake it, waits for something that is not durable."""
        task = self._task
        if task is None or task.done() or self._futures or self._timers or self._finish is not None:
            return
        where = waiting_line(task.body)
        error = NotDurable("waiting for something that no step, timer or signal of this run can bring about", where)
        self.finish(Finish(RunStatus.FAILED, error=describe(error, self.codec)))

    # --- ops ------------------------------------------------------------------------------------------------------

    def run_step(self, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> OpFuture:
        """Command a call of a step."""
        if self.loop.closing:
            return self._refuse()
        site = call_site(frame)
        source = site[0] or self._line()
        if site[2]:
            self.check_awaited(source, f"{spec.name}(...)")
        name, scope = spec.name, self.loop.scope
        number = scope.counts.get(name, 0)
        scope.counts[name] = number + 1
        op = f"{scope.prefix}{name}:{number}"
        keywords = tuple(kwargs) if kwargs else ()
        try:
            inputs = self.codec.encode_inputs((*args, *kwargs.values()) if kwargs else args, f"an argument of {op}")
        except NotSerializable:
            _check_arguments(source, spec.name, args, kwargs)
            raise
        given = len(args)
        if not kwargs and len(inputs) <= ALL_SMALL and given < len(spec.prefixes) and VERSION_KEY not in inputs:
            record = spec.prefixes[given] + inputs.decode()
        else:
            record = recorded_call(call_names(spec.types, given, keywords), inputs)
        future = self.loop.create_op_future()
        future._op, future.site = op, site
        self._futures[op] = future, spec
        command = RunStep(op, spec, inputs, record, given, keywords, source)
        if spec.queue and self.patches:
            command = msgspec.structs.replace(command, patches=dict(self.patches))
        self._commands.append(command)
        return future

    def check_awaited(self, where: str, what: str, instead: str = "") -> None:
        """Refuse an op that the code does not await: the run would continue without it.

        Replay refuses it again, since the code may have gone on from there, as compensations do. A run with a journal
        of before ops were refused repeats what it has done.
        """
        refuses = self.started is not None and self.started.exact > 0
        if refuses or not self._past.replaying:
            write = instead or f"write `await {what}`, or `asyncio.create_task({what})` to have it done beside the rest"
            self._refused = UsageError(
                f"{where}: {what} is not awaited, so the workflow would continue without it; {write}"
            )
            raise self._refused

    def to_await(self, made: Coroutine[Any, Any, Any], site: Site, what: str) -> None:
        """Keep an op that begins when it is awaited, to see in the end whether it was."""
        if site[3]:
            return
        self._made.append((self.loop.numbers, self.loop.scope.prefix, site[0], what, made))
        if (count := len(self._made)) > 64 and not count & (count - 1):
            self._made = [one for one in self._made if _not_begun(one[4])]

    def check_all_awaited(self, after: int = 0, prefix: str = "") -> None:
        """Refuse to end as if all were done, where the code called something that it never awaited.

        That is: neither awaited nor given to asyncio, cancelled, or kept under a name that begins with `_`. A task is
        done beside the rest, and given up with it. What was called before something failed does not count: the
        exception may have led past its await. With `after` and `prefix`: what was called since that number in the scope
        with that prefix.
        """
        loop = self.loop
        if not self._futures and not self._early and not self._made and not loop.combined:
            return
        if self._past.completed:
            return  # as code of before did
        found = sorted(self._forgotten(max(after, loop.failed_at), prefix))
        if found:
            _, where, what = found[0]
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise UsageError(
                f"{where}: {what} is not awaited{more}, so the workflow ends without it; write `await {what}` before "
                "the end, cancel it, or make it a task if it may be left unfinished"
            )

    def _forgotten(self, after: int, prefix: str) -> Iterator[tuple[int, str, str]]:
        """The number, the place and the name of each call that was never awaited."""
        for op, (future, _) in self._futures.items():
            if future._number > after and op.startswith(prefix) and not _is_awaited(future):
                yield future._number, future.site[0], _of_op(op)
        for early in self._early:
            if early._number > after and early.what.startswith(prefix) and not early.awaited:
                yield early._number, early.site[0], _of_op(early.what)
        for number, scope, site, both in self.loop.combined:
            if number > after and scope.startswith(prefix) and not both.awaited and not site[3]:
                name = "asyncio.gather" if isinstance(both, GatherFuture) else "asyncio.shield"
                yield number, site[0], f"{name}(...)"
        begun = {id(task.body) for task in self.loop.tasks()}
        for number, scope, where, what, made in self._made:
            if number >= after and scope.startswith(prefix) and _not_begun(made) and id(made) not in begun:
                made.close()
                yield number, where, what

    def start_timer(self, op: str, due: float, timer: BodyTimer) -> None:
        """Command a timer that runs a callback."""
        if self.loop.closing:
            raise Closing
        self._timers[op] = timer
        self._commands.append(StartTimer(op, due, self._line()))

    def sleep(self, name: str, due: float) -> OpFuture:
        """Command a timer that resolves a future."""
        if self.loop.closing:
            return self._refuse()
        op = self.loop.scope.path(name)
        future = self._future(op, None)
        self._commands.append(StartTimer(op, due, self._line()))
        return future

    def wait(self, wait: Wait, deadline: float | None, **question: Any) -> OpFuture:
        """Command a wait for a signal or an answer."""
        if self.loop.closing:
            return self._refuse()
        op = self.loop.scope.path(wait.name)
        if "request" in question:
            self.check_size(op, f"the request of {wait.name!r}", len(question["request"]))
        future = self._future(op, wait)
        reads = None if wait.judges else WaitReader(self.codec, wait, op)
        self._commands.append(OpenWait(op, wait.kind, wait.name, deadline, self._line(), reads=reads, **question))
        return future

    async def lock(self, key: str, ttl: float, timeout: float | None) -> BodyLock:
        """Command a wait for a lock, until the run holds it."""
        scope = self.loop.scope
        if any(held.key == key and held.scope is scope for held in self.locks.values()):
            raise UsageError(
                f"{self._line()}: this part of the workflow already holds the lock {key!r} and would deadlock; "
                "take it once, around everything it is for"
            )
        if self.loop.closing:
            await self._refuse()
        op = scope.path("lock")
        future = self._future(op, Wait("lock", key, int, timeout or 0.0))
        deadline = None if timeout is None else self.loop.now + timeout
        self._commands.append(OpenWait(op, "lock", key, deadline, self._line(), ttl=ttl))
        try:
            held = BodyLock(key, op, scope, await future)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._unlock(op)  # it was acquired just as the wait was cancelled
            raise
        self.locks[op] = held
        return held

    def unlock(self, held: BodyLock) -> None:
        """Command the release of a lock. Nothing waits for it: it happens once it is in the journal."""
        if self.locks.pop(held.op, None) is not None:
            self._unlock(held.op)

    def _unlock(self, op: str) -> None:
        if self.loop.closing:
            raise Closing
        # Under the path of what it ends, which stays right whatever a parent puts before it.
        self._commands.append(RecordValue(f"{op}/unlock", "unlock", source=self._line()))

    def start_child(
        self,
        invocation: Invocation[Any],
        id: str = "",
        detached: bool = False,
        deadline: float | None = None,
        options: StartOptions | None = None,
    ) -> OpFuture:
        """Command a run of another program."""
        if self.loop.closing:
            return self._refuse()
        if isinstance(invocation, Called):
            invocation.begun = True  # it was awaited, also where its arguments are refused
        program = invocation.program
        data = invocation.encode(program, self.codec)
        scope = self.loop.scope
        # A child that the journal holds was checked, by types of then. One that was refused is refused again.
        if program is not None and not self._past.has_child(scope.next_path(invocation.name)):
            program.check_input(Raw(data), self.codec)
        op = scope.path(invocation.name)
        future = self.loop.create_op_future() if detached else self.loop.create_child_future()
        future._op = op
        self._futures[op] = (future, Child(id or op, invocation.returns, {} if program is None else program.errors))
        version = program.version if program is not None else ""
        self._commands.append(
            StartChild(
                op,
                invocation.name,
                version,
                data,
                invocation.record(self.codec),
                id,
                detached,
                deadline,
                self._line(),
                options=options,
                own=program,
            )
        )
        return future

    def cancel_child(self, op: str, reason: Any) -> None:
        """Ask a child to end."""
        if not self.loop.closing:
            self._commands.append(CancelOp(op, str(reason or "the body no longer waits for it")))

    def continue_as(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """End this incarnation, and have the next one begin."""
        if self.loop.closing:
            raise Closing
        try:
            data = self._encode_next(args, kwargs, self.codec, not self._past.replaying)
        except TypeError as error:
            raise UsageError(f"continue_as() takes the arguments of this workflow: {error}") from None
        except NotSerializable:
            check_arguments("continue_as", (*args, *kwargs.values()))
            raise
        if self._refused is not None:
            raise self._refused
        self.check_all_awaited()
        self.finish(Finish(RunStatus.COMPLETED, continue_with=data, version=self._version))
        raise Bail

    def set_state(self, key: str, value: Any) -> None:
        """Command that a value is published."""
        if self.loop.closing:
            raise Closing
        op = self.loop.scope.path("state")
        data = self.codec.encode(value, f"the state {key!r}")
        self.check_size(op, f"the state {key!r}", len(data))
        self._commands.append(SetState(op, key, Raw(data), self._line()))

    def check_size(self, op: str, what: str, size: int) -> None:
        """Raise PayloadTooLarge for a value that the journal does not take."""
        # A value that the journal holds already is within the limits, whatever they are by now.
        if size > self.codec.limit and not self._past.took(op):
            raise PayloadTooLarge(what, size, self.codec.limit)

    def checkpoint(self) -> OpFuture:
        """Command that everything so far becomes durable."""
        if self.loop.closing:
            return self._refuse()
        op = self.loop.scope.path("checkpoint")
        future = self._future(op, None)
        self._commands.append(Checkpoint(op, self._line()))
        return future

    def record(self, kind: str, returns: Any, compute: Callable[[str], Any]) -> Any:
        """Use a value that follows from the journal, and have it recorded."""
        if self.loop.closing:
            raise Closing
        op = self.loop.scope.path(kind)
        known = self.recorded.get(op)
        value = compute(op) if known is None else self.codec.decode(known, returns, op)
        self._commands.append(RecordValue(op, kind, Raw(self.codec.encode(value, op)), self._line()))
        return value

    def patched(self, id: str) -> bool:
        """Whether to take the new path of a patch: unless the journal tells that the old one was taken."""
        if self.loop.closing:
            raise Closing
        known = self.patches.get(id)
        if known is None:
            op = f"{PATCH}:{id}"
            known = self._past.marked(op)
            if not known and not self._past.replaying:
                known = True
                self._commands.append(RecordValue(op, PATCH))
            self.patches[id] = known
        return known

    @property
    def replaying(self) -> bool:
        """Whether the journal holds more of what the body does."""
        return self._past.replaying

    def run_context(self) -> RunContext:
        """The run that this body is."""
        found = self._past.context()
        if found is None:
            assert self.started is not None
            found = started_context(self.run_id, self.started)
        return found if found.version else msgspec.structs.replace(found, version=self._version)

    def cancel_op(self, op: str) -> None:
        """Give an op up: the body no longer waits for it."""
        if self._futures.pop(op, None) is None and self._timers.pop(op, None) is None:
            return
        if not self.loop.closing:
            self._commands.append(CancelOp(op))

    def bail(self, reason: str, output: Any) -> None:
        """End the run here, whatever the rest of the body would do."""
        if self.loop.closing:
            raise Closing
        self.finish(Finish(RunStatus.BAILED, self.codec.encode(output, "the output of bail()"), reason=reason))
        raise Bail

    def finish(self, finish: Finish) -> None:
        """Command the end, once."""
        if self._finish is None:
            self._finish = finish
            self._commands.append(finish)

    def _future(self, op: str, spec: StepSpec | Wait | None) -> OpFuture:
        future = self.loop.create_op_future()
        future._op = op
        self._futures[op] = (future, spec)
        return future

    def _refuse(self) -> OpFuture:
        """What an op returns to a body that is being evicted: an exception, or a future that never ends.

        A body that swallows every exception would ask for ever; it gets a future that is never resolved, and stays.
        """
        self._refusals += 1
        if self._refusals <= 10:
            raise Closing
        return self.loop.create_future()

    def _line(self) -> str:
        task = asyncio.current_task(self.loop)
        return (task.source if type(task) is BodyTask else "") or user_line(inspect.currentframe())


# What each event does to the body; it does not see the others.
_APPLY: dict[type[Any], Callable[[Body, Any, Any], None]] = {
    RunClaimed: Body._apply_run_claimed,
    StepSucceeded: Body._apply_step_succeeded,
    StepFailed: Body._apply_step_failed,
    StepSkipped: Body._apply_step_skipped,
    WaitResolved: Body._apply_wait_resolved,
    ChildStarted: Body._apply_child_started,
    ChildFinished: Body._apply_child_finished,
    CancelRequested: Body._apply_cancel_requested,
    ValueRecorded: Body._apply_value_recorded,
}


def _check_arguments(where: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Say of an argument that cannot be stored that it is not awaited, where that is why."""
    inner = _unawaited((args, kwargs))
    if inner is not None:
        raise UsageError(
            f"{where}: {name}(...) is given {_named(inner)}, which is not awaited; write `{name}(await ...)`"
        )


def _unawaited(value: object, depth: int = 5) -> object | None:
    """What is awaitable in a value that cannot be stored, and was to be awaited."""
    if is_a(value, Awaitable):
        if inspect.iscoroutine(value):
            value.close()
        return value
    if depth and type(value) in (dict, list, tuple, set, frozenset):
        parts: Iterable[object] = value.values() if type(value) is dict else value  # type: ignore[assignment]
        inner = (_unawaited(one, depth - 1) for one in parts)
        return next((one for one in inner if one is not None), None)
    return None


def _named(awaitable: object) -> str:
    if isinstance(awaitable, Invocation):
        return f"{awaitable.name}(...)"
    if getattr(awaitable, "cr_code", None) is AWAIT and awaitable.cr_frame is not None:  # type: ignore[attr-defined]
        return _named(awaitable.cr_frame.f_locals.get("awaitable"))  # type: ignore[attr-defined]
    if isinstance(awaitable, OpFuture) and awaitable._op:
        return _of_op(awaitable._op)
    return f"{getattr(awaitable, '__name__', type(awaitable).__name__)}(...)"


def check_awaited(frame: FrameType, what: str, instead: str = "") -> Site:
    """Refuse an op of the body that is running which the code in `frame` calls and does not await; give its place."""
    body = current_body()
    site = call_site(frame)
    if site[2] and body is not None and not body.loop.closing:
        body.check_awaited(site[0], what, instead)
    return site


def to_await(made: C, frame: FrameType, what: str) -> C:
    """What the code in `frame` is to await. In a body it is refused at once, or in the end, when that is forgotten."""
    body = current_body()
    if body is not None and not body.loop.closing:
        site = call_site(frame)
        if site[2]:
            made.close()
            body.check_awaited(site[0], what)
        body.to_await(made, site, what)
    return made


def _is_awaited(future: OpFuture) -> bool:
    return future.awaited or future.site[3] or future.done() or bool(future._callbacks)


def _not_begun(made: Any) -> bool:
    """Whether an op that begins when it is awaited never was."""
    if isinstance(made, Called):
        return not made.begun
    return inspect.getcoroutinestate(made) == inspect.CORO_CREATED


def _of_op(op: str) -> str:
    """How an op was called, by its path."""
    return f"{op.rpartition('/')[2].rpartition(':')[0]}(...)"


def named(name: str) -> Callable[[F], F]:
    """Give a coroutine function the name that tasks of it are called by: it is part of op paths."""

    def rename(function: F) -> F:
        function.__name__ = function.__qualname__ = name
        return function

    return rename


def plain_error(error: BaseException) -> BaseException:
    """An error that a future can hold: not StopIteration, nor CancelledError, which looks like a cancel of the body."""
    if is_a(error, (asyncio.CancelledError, StopIteration)):
        return PerdureError(brief(error))
    return error


def current_body() -> Body | None:
    """The body that is running, or None outside a workflow."""
    loop = events._get_running_loop()
    return loop.body() if type(loop) is BodyLoop else None


def require_body(what: str) -> Body:
    """The body that is running; raises when there is none."""
    body = current_body()
    if body is None:
        raise PerdureError(f"{what} works only inside a workflow, and this code does not run in one")
    return body
