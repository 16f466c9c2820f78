"""An asyncio event loop without I/O: what a workflow body runs on.

It runs what is ready and returns. Time does not move between two events of the journal; timers are durable waits; tasks
are numbered in the order they are created, so that sets of them iterate the same way on every replay. Everything a body
could suspend on besides that raises NotDurable.
"""

from __future__ import annotations

import asyncio
import collections
import dis
import functools
import os
import sys
import sysconfig
import types
import warnings
import weakref
from asyncio import events
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import Context, copy_context
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from perdure.authoring.code.bytecode import instructions
from perdure.errors import NotDurable
from perdure.kernel.invocation import Invocation
from perdure.kernel.values.raised import pressed

if TYPE_CHECKING:
    from perdure.authoring.code.body import Body

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
INSIDES = (_PACKAGE + os.sep, os.path.dirname(os.path.abspath(asyncio.__file__)) + os.sep)
LIBRARIES = tuple({sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep})
# as_completed starts the coroutines of a set, so in the order of their addresses. From 3.13 on it is a class that does.
_AS_COMPLETED: frozenset[CodeType] = frozenset(
    function.__code__
    for function in (
        asyncio.as_completed,
        getattr(getattr(asyncio.tasks, "_AsCompletedIterator", None), "__init__", None),
    )
    if isinstance(function, types.FunctionType)
)
_SHIELD = asyncio.shield.__code__
_MAKE_GATHER = asyncio.tasks._GatheringFuture.__init__.__code__  # type: ignore[attr-defined]

# `file:line` of a call, its code, whether the code does without what the call returns, so that it is not awaited, and
# whether it says that this is meant.
Site: TypeAlias = tuple[str, CodeType | None, bool, bool]


class Scope:
    """Where ops get their names: one per task of the body, so that two branches never race for a number."""

    __slots__ = ("counts", "prefix")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.counts: dict[str, int] = {}

    def next_path(self, name: str) -> str:
        """What `path` is about to return."""
        return f"{self.prefix}{name}:{self.counts.get(name, 0)}"

    def path(self, name: str) -> str:
        """The path of the next op of this name."""
        n = self.counts.get(name, 0)
        self.counts[name] = n + 1
        return f"{self.prefix}{name}:{n}"


class OpFuture(asyncio.Future[Any]):
    """What awaiting an op waits for. Cancelling it gives the op up."""

    _number: int
    _op: str | None = None
    # Where it was called, and whether something has awaited it, as far as is known without work on every await:
    # what awaits it now is among its callbacks, and what did so in vain has taken its callback back.
    site: Site = ("", None, False, False)
    awaited = False

    def __hash__(self) -> int:
        return self._number

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        self.awaited = True
        return super().remove_done_callback(fn)

    def cancel(self, msg: Any | None = None) -> bool:
        if not super().cancel(msg):
            return False
        _failed(self)
        if self._op is not None:
            loop = self.get_loop()
            assert isinstance(loop, BodyLoop)
            if (body := loop.body()) is not None:
                body.cancel_op(self._op)
        return True


class ChildFuture(OpFuture):
    """What awaiting a child waits for. Cancelling it asks the child to end; it is done when the child has."""

    _asked = False

    def cancel(self, msg: Any | None = None) -> bool:
        if self.done() or self._op is None:
            return super().cancel(msg)
        if not self._asked:
            self._asked = True
            _failed(self)
            loop = self.get_loop()
            assert isinstance(loop, BodyLoop)
            if (body := loop.body()) is not None:
                body.cancel_child(self._op, msg)
        return True

    def ended(self, value: Any, error: BaseException | None) -> None:
        """The child has ended. What cancelled it gets CancelledError, whatever the child returned."""
        self._op = None
        if self.done():
            return
        if self._asked:
            super().cancel()
        elif error is None:
            self.set_result(value)
        else:
            self.set_exception(error)


class _Watched(asyncio.Future[Any]):
    """A future that knows whether something has awaited it. A step is none until it is done: that would cost."""

    awaited: bool

    def __await__(self) -> Generator[Any, None, Any]:
        self._seen()
        return super().__await__()

    __iter__ = __await__

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        if sys._getframe(1).f_code is not _SHIELD:  # which does so with what it returns
            self._seen()
        super().add_done_callback(fn, context=context)

    def result(self) -> Any:
        self._seen()
        return super().result()

    def exception(self) -> BaseException | None:
        self._seen()
        return super().exception()

    def cancel(self, msg: Any | None = None) -> bool:
        self._seen()
        return super().cancel(msg)

    def _seen(self) -> None:
        self.awaited = True


class EarlyFuture(_Watched, OpFuture):
    """What an op becomes that has its outcome before anything awaits it."""

    what: str

    def _seen(self) -> None:
        self.awaited = True
        if self.done() and not self.cancelled() and asyncio.Future.exception(self) is not None:
            _failed(self)


class ShieldFuture(_Watched, OpFuture):
    """What asyncio.shield() returns."""


class GatherFuture(_Watched, asyncio.tasks._GatheringFuture):  # type: ignore[name-defined, misc]
    """What asyncio.gather() returns in a body. It is numbered when it is first hashed."""

    _number: int | None = None
    awaited = False

    def __hash__(self) -> int:
        if self._number is None:
            loop = self.get_loop()
            assert isinstance(loop, BodyLoop)
            self._number = loop.number()
        return self._number


def _failed(future: asyncio.Future[Any]) -> None:
    """Something that a body awaits has failed: the exception may lead it past the awaits of all it called before."""
    loop = future.get_loop()
    assert isinstance(loop, BodyLoop)
    loop.failed_at = loop.numbers


class BodyTask(asyncio.Task[Any]):
    """A task of a workflow body."""

    def __init__(
        self, coro: Coroutine[Any, Any, Any], loop: BodyLoop, scope: Scope, name: str, context: Context | None
    ) -> None:
        # asyncio keeps all tasks of the process in one set, by the hash they have now. There the first task of every
        # body would have the same one, and each new body would cost more than the last.
        self._number = id(self)
        self.scope = scope
        self.body = coro
        # The line that made the task, where its code is not the user's: no other line is to be seen from inside.
        self.source = ""
        super().__init__(Guard(coro, loop, scope), loop=loop, name=name, context=context)
        self._number = loop.number()

    def __hash__(self) -> int:
        return self._number


class BodyTimer(asyncio.TimerHandle):
    """A timer of a workflow body: a durable wait whose path is `op`."""

    __slots__ = ("op",)
    op: str


class BodyHandle(events.Handle):
    """A callback of a body that is ready. Made by `call_soon` alone, which fills it in: without a debug mode, and
    without a call."""

    __slots__ = ()


class BodyLoop(asyncio.AbstractEventLoop):
    """The loop of one body."""

    def __init__(self, body: Body) -> None:
        # The body owns the loop: a strong reference back would leave both to the garbage collector.
        self.body = weakref.ref(body)
        self.now = 0.0
        self.closing = False
        self.root = Scope("")
        # The scope of the code that is running; that of the root outside of tasks.
        self.scope = self.root
        self.ready: collections.deque[events.Handle] = collections.deque()
        self.numbers = 0
        # The last number that was given when something failed that the body awaited.
        self.failed_at = 0
        self._tasks: list[BodyTask] = []
        # What gather() and shield() returned, with the number, the scope and the place of the call.
        self.combined: list[tuple[int, str, Site, GatherFuture | ShieldFuture]] = []

    # --- driving --------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Run everything that is ready. Call it from a callback, never from inside a task: the current task is kept
        per thread in newer Pythons."""
        outer = events._get_running_loop()
        hooks = sys.get_asyncgen_hooks()
        events._set_running_loop(self)
        # Async generators of the body belong to this loop; the outer one must not finish them later.
        sys.set_asyncgen_hooks(None, self._finish_generator)
        ready = self.ready
        try:
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:
                    try:
                        handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                    except BaseException as error:
                        # The task that called sys.exit() has it as its exception: the run fails, not the engine. Other
                        # exceptions that are never retrieved have no effect, here as on a replay.
                        if pressed(error):
                            raise
        finally:
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(outer)

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """An async generator was dropped in its middle: close it in a task, as asyncio does."""
        if not self.closing:
            self.call_soon(self.create_task, generator.aclose())

    def fire(self, timer: BodyTimer) -> None:
        """Make a timer's callback ready."""
        self.ready.append(timer)

    def shut(self) -> None:
        """Let every task go without a trace. Ops asked for from here on raise instead of acting."""
        self.closing = True
        self.ready.clear()
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.body)
        finally:
            events._set_running_loop(outer)
        self._tasks.clear()
        self.ready.clear()
        self.combined.clear()

    # --- what asyncio asks of a loop ------------------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> events.Handle:  # type: ignore[override]
        handle: Any = BodyHandle.__new__(BodyHandle)
        handle._callback, handle._args, handle._loop = callback, args, self
        handle._context = copy_context() if context is None else context
        handle._cancelled = False
        handle._repr = handle._source_traceback = None
        self.ready.append(handle)
        return handle  # type: ignore[no-any-return]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = BodyTimer(when, callback, args, self, context)
        timer.op = self.scope.path("timer")
        if (body := self.body()) is None:
            raise Closing
        body.start_timer(timer.op, when, timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        assert isinstance(handle, BodyTimer)
        if (body := self.body()) is not None:
            body.cancel_op(handle.op)

    def time(self) -> float:
        return self.now

    def create_future(self) -> OpFuture:
        frame = sys._getframe(1)
        if frame.f_code is not _SHIELD:
            return self.create_op_future()
        future = ShieldFuture(loop=self)
        future._number = self.number()
        self.combine(future, frame)
        return future

    def create_op_future(self) -> OpFuture:
        """What the outcome of an op resolves."""
        future = OpFuture(loop=self)
        self.numbers += 1
        future._number = self.numbers
        return future

    def combine(self, future: GatherFuture | ShieldFuture, frame: FrameType | None) -> None:
        """Keep what gather() or shield() returns, to see in the end whether it was awaited."""
        while frame is not None and frame.f_code.co_filename.startswith(INSIDES):
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename.startswith(LIBRARIES):
            return
        self.combined.append((self.numbers, self.scope.prefix, call_site(frame), future))
        if (count := len(self.combined)) > 64 and not count & (count - 1):
            self.combined = [one for one in self.combined if not one[3].awaited]

    def create_child_future(self) -> ChildFuture:
        """What the end of a child resolves."""
        future = ChildFuture(loop=self)
        future._number = self.number()
        return future

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any] | Awaitable[Any],
        *,
        name: str | None = None,
        context: Context | None = None,
        **_: Any,
    ) -> BodyTask:
        if self.closing:
            if isinstance(coro, Coroutine):
                coro.close()  # or Python would warn that it was never awaited
            raise Closing
        if _called_from(_AS_COMPLETED):
            what = "asyncio.as_completed over coroutines, which starts them in no fixed order (pass it tasks instead),"
            raise NotDurable(what, user_line(sys._getframe(1)))
        # The one op of a task that only awaits a child has its name already.
        alone = isinstance(coro, Invocation)
        scope = self.scope if alone else Scope(f"{self.scope.path(_task_name(coro))}/")
        if alone or not isinstance(coro, Coroutine):
            coro = _await(coro)
        task = BodyTask(coro, self, scope, name or scope.prefix[:-1], context)
        if _code_of(coro).startswith(INSIDES):
            task.source = user_line(sys._getframe(1))
        self._tasks.append(task)
        if (count := len(self._tasks)) > 64 and not count & (count - 1):
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def run_root(self, coro: Coroutine[Any, Any, Any]) -> BodyTask:
        """The task of the body itself; its ops have no prefix."""
        # An empty context: what the caller of start() had in its variables would be gone after a crash.
        context = Context()
        if "opentelemetry.trace" in sys.modules:
            _silence(context)
        task = BodyTask(coro, self, self.root, "workflow", context)
        self._tasks.append(task)
        return task

    def tasks(self) -> list[BodyTask]:
        """The tasks that are not done, in the order they were made."""
        return [task for task in self._tasks if not task.done()]

    def number(self) -> int:
        """The next number of a task or future, in the order they are made."""
        self.numbers += 1
        return self.numbers

    def get_debug(self) -> bool:
        # Every new future asks this of its loop. What gather() returns is made without asking the loop for a future,
        # so here is the place to make it one of the body's own.
        frame = sys._getframe(1)
        if frame.f_code is _MAKE_GATHER:
            future = frame.f_locals["self"]
            future.__class__ = GatherFuture
            self.combine(future, frame.f_back)
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self.closing

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Exceptions that are never retrieved have no effect, on the first execution as on a replay."""


def _silence(context: Context) -> None:
    """Make a span current that is not sampled: spans that a body begins would be made again by every replay."""
    trace = sys.modules["opentelemetry.trace"]
    silent = trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False))
    context.run(sys.modules["opentelemetry.context"].attach, trace.set_span_in_context(silent))


class Closing(BaseException):
    """The run is evicted; its body does not continue."""


def _not_durable(name: str, what: str) -> Callable[..., NoReturn]:
    def refuse(self: BodyLoop, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotDurable(what, user_line(sys._getframe(1)))

    refuse.__name__ = name
    return refuse


_REFUSED = {
    "run_in_executor": "running code in a thread or process",
    "call_soon_threadsafe": "a call from another thread",
    "run_until_complete": "running another event loop",
    "run_forever": "running another event loop",
    "add_reader": "watching a socket or file",
    "add_writer": "watching a socket or file",
    "add_signal_handler": "handling a signal of the operating system",
    "getaddrinfo": "looking up a host",
    "getnameinfo": "looking up a host",
    "create_connection": "a network connection",
    "create_datagram_endpoint": "a network connection",
    "create_server": "a network server",
    "create_unix_connection": "a socket",
    "create_unix_server": "a socket",
    "start_tls": "a network connection",
    "sendfile": "sending a file",
    "sock_recv": "reading a socket",
    "sock_recv_into": "reading a socket",
    "sock_recvfrom": "reading a socket",
    "sock_sendall": "writing to a socket",
    "sock_sendto": "writing to a socket",
    "sock_connect": "a network connection",
    "sock_accept": "a network server",
    "subprocess_exec": "a subprocess",
    "subprocess_shell": "a subprocess",
    "connect_read_pipe": "a pipe",
    "connect_write_pipe": "a pipe",
}
for _name, _what in _REFUSED.items():
    setattr(BodyLoop, _name, _not_durable(_name, _what))


class Guard(Coroutine[Any, Any, Any]):
    """Passes everything between a task and its coroutine, except a wait for something that cannot be replayed."""

    __slots__ = ("_coro", "_loop", "_scope")

    def __init__(self, coro: Coroutine[Any, Any, Any], loop: BodyLoop, scope: Scope) -> None:
        self._coro, self._loop, self._scope = coro, loop, scope

    def send(self, value: Any) -> Any:
        loop = self._loop
        loop.scope = self._scope
        try:
            awaited = self._coro.send(value)
            if awaited is None or getattr(awaited, "_loop", None) is loop:
                return awaited
            return self._refuse(awaited)
        finally:
            loop.scope = loop.root

    def throw(self, *error: Any) -> Any:
        loop = self._loop
        loop.scope = self._scope
        try:
            awaited = self._coro.throw(*error)
            if awaited is None or getattr(awaited, "_loop", None) is loop:
                return awaited
            return self._refuse(awaited)
        finally:
            loop.scope = loop.root

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coro.__await__()

    def _refuse(self, awaited: Any) -> Any:
        while awaited is not None and getattr(awaited, "_loop", None) is not self._loop:
            if getattr(awaited, "_asyncio_future_blocking", None):
                awaited._asyncio_future_blocking = False
            awaited = self._coro.throw(NotDurable(f"waiting for {_kind(awaited)}", waiting_line(self._coro)))
        return awaited


def _close(coro: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine wherever it stands, also where it awaits on its way out."""
    with warnings.catch_warnings():
        # `finally: await gather(a(), b())` makes coroutines that get no further: no warning is due.
        warnings.simplefilter("ignore", RuntimeWarning)
        for _ in range(100):
            try:
                coro.close()
            except RuntimeError:
                continue
            except BaseException:
                pass
            return
    _keep_for_ever(coro)


def _keep_for_ever(coro: Coroutine[Any, Any, Any]) -> None:
    """Leave a coroutine that will not be closed where it stands.

    One that swallows even GeneratorExit would be closed again by the garbage collector, outside of any loop that could
    stop it, and would never return. What it holds is lost; it is a fault in the workflow.
    """
    if getattr(coro, "cr_frame", None) is not None:
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(coro))


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


AWAIT = _await.__code__


def _kind(awaited: object) -> str:
    if isinstance(awaited, asyncio.Future):
        return "a future or task of another event loop"
    return f"a {type(awaited).__name__}"


def _code_of(coro: object) -> str:
    """The file that a coroutine's code is in."""
    code = getattr(coro, "cr_code", None)
    return code.co_filename if code is not None else ""


def _task_name(coro: object) -> str:
    name = getattr(coro, "__qualname__", "") or type(coro).__name__
    name = name.rpartition(".")[2]
    return "".join(c for c in name if c not in "/:[]<>") or "task"


def _called_from(codes: frozenset[CodeType]) -> bool:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


# --- naming the user's line -----------------------------------------------------------------------------------------

# By the identity of the code, which is kept with it: two pieces of code that are equal may stand in different files.
_sources: dict[tuple[int, int], Site] = {}


def source_of(frame: FrameType) -> str:
    """`file:line` of a frame, remembered by instruction: a step in a loop asks for the same one again and again."""
    return call_site(frame)[0]


def call_site(frame: FrameType) -> Site:
    """Where a call stands, and what the code makes of what it returns. In code of perdure it has no place."""
    code = frame.f_code
    found = _sources.get((id(code), frame.f_lasti))
    if found is None:
        where = "" if code.co_filename.startswith(INSIDES) else f"{short(code.co_filename)}:{frame.f_lineno}"
        found = _sources[id(code), frame.f_lasti] = where, code, *_forgets(code, frame.f_lasti)
    return found


# What takes a future for a value: dropped, taken for true, compared, shown or looked into.
_FORGETTING = frozenset(
    {
        *("POP_TOP", "UNARY_NOT", "TO_BOOL", "COMPARE_OP", "FORMAT_VALUE", "FORMAT_SIMPLE", "BINARY_SUBSCR"),
        *("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE"),
        *("POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_TRUE", "JUMP_IF_FALSE_OR_POP", "JUMP_IF_TRUE_OR_POP"),
    }
)


_STORES = ("STORE_FAST", "STORE_DEREF")
# What ends an expression, or a part of it that is awaited by itself.
_ENDS = frozenset({"GET_AWAITABLE", "YIELD_VALUE", "LIST_APPEND", "SET_ADD", "MAP_ADD", "RETURN_VALUE", "RERAISE"})


@functools.lru_cache(64)
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return list(instructions(code))


def _forgets(code: CodeType, at: int) -> tuple[bool, bool]:
    """Whether what follows a call does without awaiting what it returned, and whether it says that this is meant."""
    found = _instructions(code)
    rest = [one for one in found if one.offset > at]
    if not rest:
        return False, False
    # A name that begins with `_`, for the call or for what it is part of, says that this is meant.
    end = next(one for one in rest if one.opname in _ENDS or one.opname.startswith(("STORE_", "JUMP", "POP_")))
    meant = end.opname in _STORES and str(end.argval).startswith("_")
    # So does ensure_future(), which returns the call of a step as it is.
    before = [one for one in found if one.offset < at][-8:]
    meant |= any(one.argval == "ensure_future" for one in before) and rest[0].opname not in (*_STORES, "POP_TOP")
    if rest[0].opname not in _STORES:
        return rest[0].opname in _FORGETTING, meant
    # Kept under a name that is never read.
    name = str(rest[0].argval)
    names = {one.argval for one in found if one.opname.startswith(("LOAD_", "MAKE_CELL", "COPY_FREE"))}
    return not meant and name not in names, meant


def user_line(frame: FrameType | None) -> str:
    """`file:line` of the nearest caller that is neither asyncio's code nor ours, nor that of an installed library."""
    library = "a workflow"
    while frame is not None and frame.f_code is not _DRAIN:
        if not frame.f_code.co_filename.startswith(INSIDES):
            if not frame.f_code.co_filename.startswith(LIBRARIES):
                return source_of(frame)
            library = source_of(frame)
        frame = frame.f_back
    return library


_DRAIN = BodyLoop.drain.__code__


def waiting_frames(coro: Any) -> Iterator[FrameType]:
    """The frames of the user's code in which a suspended coroutine waits, from the outermost to the innermost."""
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None) or getattr(coro, "ag_frame", None)
        if frame is not None and not frame.f_code.co_filename.startswith(INSIDES):
            yield frame
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None) or getattr(coro, "ag_await", None)


def waiting_line(coro: Any) -> str:
    """`file:line` where a suspended coroutine waits, in the user's code."""
    frames = list(waiting_frames(coro))
    return f"{short(frames[-1].f_code.co_filename)}:{frames[-1].f_lineno}" if frames else "a workflow"


def short(filename: str) -> str:
    """A file's name from where we are, if it lies below, or from the top of our project, if it lies there."""
    name = from_here(filename)
    if os.path.isabs(name) and (top := _project(os.getcwd())) and name.startswith(top + os.sep):
        return name[len(top) + 1 :]
    return name


def from_here(filename: str) -> str:
    """A file's name by which it can be opened: relative, if it lies below the current directory."""
    try:
        relative = os.path.relpath(filename)
    except ValueError:  # another drive
        return filename
    return filename if relative.startswith("..") else relative


@functools.cache
def _project(folder: str) -> str:
    """The nearest folder around this one that a project begins in; empty if there is none."""
    while not any(os.path.exists(os.path.join(folder, name)) for name in ("pyproject.toml", "setup.py", ".git")):
        folder, last = os.path.dirname(folder), folder
        if folder == last:
            return ""
    return folder
