"""Run attempts of steps: on the loop, in threads, in processes, under their timeouts. Never decides about retries."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import BrokenExecutor, Executor
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol, get_args

import msgspec
from msgspec import Raw

from perdure.engine.executor_call import Job, Raised
from perdure.engine.fallback import fall_back
from perdure.engine.items import ItemBlobs, ItemWriter, collect, collect_in_thread, element, stored
from perdure.engine.lease_deadline import LeaseDeadline
from perdure.engine.locks import Locker
from perdure.engine.probe import Tracing
from perdure.engine.secrets import Secrets
from perdure.engine.step_context import AttemptOwner, StepContext, current
from perdure.engine.step_task import StepTask
from perdure.engine.streams import drain, drain_in_thread
from perdure.engine.threads import DEFAULT_THREADS, Threads
from perdure.errors import ExecutorBroken, HeartbeatTimeout, NotDecodable, StepTimeout
from perdure.kernel.commands import RunStep, StepSpec
from perdure.kernel.plan import Call
from perdure.kernel.values.arguments import argument_types, names_of
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.items import REFERENCE
from perdure.kernel.values.masking import masking
from perdure.kernel.values.raised import contained, is_a, pressed
from perdure.ports.clock import Clock

if TYPE_CHECKING:
    from perdure.engine.processes import Processes
    from perdure.engine.step_logs import StepLogs
    from perdure.engine.writer import Writer


class RoomWaiter(Protocol):
    """A driver with steps that the engine's concurrency limit holds back."""

    def room_free(self) -> None: ...


class Attempt:
    """One attempt of a step, from its launch to its outcome."""

    __slots__ = (
        "_heartbeat",
        "_runner",
        "_timer",
        "arguments",
        "began",
        "call",
        "context",
        "owner",
        "task",
        "variables",
    )

    def __init__(
        self, runner: StepRunner, call: Call, context: StepContext, variables: Context, owner: AttemptOwner
    ) -> None:
        self._runner = runner
        self.call = call
        self.context = context
        self.variables = variables
        # Gets the outcome; None when there is one, or when it no longer counts.
        self.owner: AttemptOwner | None = owner
        # Its decoded arguments, if prepared before the launch.
        self.arguments: tuple[list[Any], dict[str, Any]] | None = None
        self.task: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self.began = 0.0

    def __str__(self) -> str:
        return f"{self.call.command.op} of run {self.context.run.id!r}"

    def launched(self, task: asyncio.Future[Any]) -> None:
        """The attempt has a task of its own: its function is called in it, or as soon as there is a thread."""
        self.task = task
        self.began = self._runner.loop.time()
        task.add_done_callback(self._finished)

    def start_timers(self, timeout: float | None, heartbeat: float | None) -> None:
        """Start its timeouts."""
        loop = self._runner.loop
        if self.task is None or self.task.done():
            return
        if timeout is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(timeout, self._expired, timeout)
        if heartbeat is not None:
            self.context.last_heartbeat = loop.time()
            self._heartbeat = loop.call_later(heartbeat, self._check_heartbeat, heartbeat)

    def hand_over(self, owner: AttemptOwner) -> None:
        """Another driver takes the attempt over."""
        self.context.owner = owner
        if self.owner is not None:
            self.owner = owner

    def cancel(self) -> None:
        """Stop the attempt. In a thread it may keep running, but its outcome no longer counts."""
        self.owner = None
        self.context.cancel()
        if self.task is not None:
            self.task.cancel()

    def _expired(self, timeout: float) -> None:
        # None if the deadline of the run has passed: then the run ends, and its body cannot handle it.
        self.give_up(None if self.context.capped else StepTimeout(self.call.command.op, timeout))

    def _check_heartbeat(self, heartbeat: float) -> None:
        loop = self._runner.loop
        left = self.context.last_heartbeat + heartbeat - loop.time()
        if left > 0:
            self._heartbeat = loop.call_later(left, self._check_heartbeat, heartbeat)
        else:
            self.give_up(HeartbeatTimeout(self.call.command.op, heartbeat))

    def give_up(self, error: Exception | None) -> None:
        """End it now with this error, or with none if its run ends anyway."""
        # At once: a step that ignores its cancellation must not delay the run.
        owner, self.owner = self.owner, None
        if self._runner.tracing is not None:
            self._runner.tracing.ended(self, error or TimeoutError())
        try:
            self.context.cancel()
            if self.task is not None:
                self.task.cancel()
        finally:
            if owner is not None and error is not None:
                owner.attempt_ended(self, None, error)

    def _finished(self, task: asyncio.Future[Any]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        self.ended(None if error is not None else task.result(), error)

    def ended(self, value: Any, error: BaseException | None) -> None:
        """Its function has ended: free its slot, stop its timers, and report the outcome."""
        try:
            self._runner.release_slot()
            if self.call.failed is not None:
                self.context.cancel()  # a fallback that was timed out may have left a thread behind
            if self._timer is not None:
                self._timer.cancel()
            if self._heartbeat is not None:
                self._heartbeat.cancel()
        finally:
            # Whatever became of the slot and the timers: the run waits for this outcome.
            if error is not None and is_a(error, asyncio.CancelledError):
                error = asyncio.CancelledError("the step was cancelled from within")
            elif type(error) is Raised:
                error = error.error
            if self._runner.tracing is not None:
                self._runner.tracing.ended(self, error)
            owner, self.owner = self.owner, None
            if owner is not None:
                owner.attempt_ended(self, value, error)


class EveryStepExecutor(Executor):
    """An executor for every plain step. With any other, steps with `cpu=True` run in processes of the engine."""

    async def call(self, context: StepContext, fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call an async step, on the loop."""
        return await fn(*args, **kwargs)


class StepRunner:
    """Runs attempts, at most `limit` at a time."""

    def __init__(
        self,
        codec: Codec,
        clock: Clock,
        limit: int,
        executor: Executor | None,
        deadline: LeaseDeadline,
        locker: Locker | None = None,
        threads: int | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._clock = clock
        self._codec = codec
        self.locker = locker
        self.secrets = Secrets()
        # Sees log records; None until a step runs that has them as chunks.
        self._logs: StepLogs | None = None
        # Makes spans of attempts; None unless that is on.
        self.tracing: Tracing | None = None
        # Reads and writes the items that steps take and return.
        self.items: ItemBlobs | None = None
        self._limit = limit
        self._running = 0
        # Due attempts that wait for the concurrency limit: retries, and attempts that are repeated after a takeover.
        self._queue: deque[Attempt] = deque()
        self._waiters: dict[RoomWaiter, None] = {}
        self._notifying: asyncio.Handle | None = None
        # Attempts within the limit whose StepStarted is not durable yet.
        self.reserved = 0
        self._executor = executor
        self._call_with = executor.call if isinstance(executor, EveryStepExecutor) else None
        self._most_threads = min(limit, threads or DEFAULT_THREADS)
        self._threads: Threads | None = None
        self._processes: Processes | None = None
        # Whether the engine shuts down: start nothing that the next owner can do; or nothing at all.
        self._withdrawn = self._closed = False
        self._argument_types: dict[Any, Any] = {}
        # Attempts of async steps that are called in the next turn of the loop, and the task that they are called in.
        self._next: deque[Attempt] = deque()
        self._turn: asyncio.Handle | None = None
        self._step_task: StepTask | None = None
        # Writes what is recorded in such a turn.
        self.writer: Writer | None = None

    def make_ready(self, attempt: Attempt) -> None:
        """Prepare an attempt before it is launched."""
        if REFERENCE in attempt.call.command.inputs:
            return  # a list may have to be loaded first
        try:
            attempt.arguments = self._arguments(attempt.call.command)
        except BaseException as error:
            contained(error)  # reported as its outcome when it is launched

    def start(self, attempt: Attempt) -> None:
        """Launch an attempt now, or as soon as the limit allows."""
        if self._closed or (self._withdrawn and not attempt.call.command.spec.at_most_once):
            self.loop.call_soon(self._drop, attempt)
            return
        if self._running >= self._limit:
            self._queue.append(attempt)
        else:
            self._launch(attempt)

    @property
    def free(self) -> int:
        """How many more attempts may be planned now."""
        return self._limit - self._running - len(self._queue) - self.reserved

    @property
    def running(self) -> int:
        """How many attempts are running."""
        return self._running

    @property
    def idle(self) -> bool:
        """Whether no attempt is running."""
        return self._running == 0

    def wait_for_room(self, waiter: RoomWaiter) -> None:
        """Call `room_free` of a driver when the limit allows another attempt, in order."""
        self._waiters[waiter] = None

    def release_slot(self) -> None:
        """An attempt has ended, and another may take its slot."""
        self._running -= 1
        while self._queue and self._running < self._limit:
            waiting = self._queue.popleft()
            if waiting.owner is not None:
                self._launch(waiting)
        if self._waiters:
            self.notify_waiters()

    def notify_waiters(self) -> None:
        """Call the drivers that wait for a slot, in a separate callback."""
        if self._waiters and self._notifying is None:
            self._notifying = self.loop.call_soon(self._notify_waiters)

    def _notify_waiters(self) -> None:
        self._notifying = None
        # A driver that does not need the slot leaves it to the next.
        for waiter in list(self._waiters):
            if self.free <= 0:
                break
            del self._waiters[waiter]
            waiter.room_free()

    def _launch(self, attempt: Attempt) -> None:
        self._running += 1
        command = attempt.call.command
        spec = command.spec
        if (
            spec.asynchronous
            and not (spec.generator or spec.items or REFERENCE in command.inputs)
            and attempt.call.failed is None
        ):
            # In the next turn, with all that begin in this one: they share a commit, and the loop has its turn.
            self._next.append(attempt)
            if self._turn is None:
                self._turn = self.loop.call_soon(self._call_steps)
            return
        if self._deadline.expired():
            self._running -= 1
            self._deadline.enforce()
            return
        begun: Callable[[], None] | None = None
        try:
            context = attempt.variables.copy()
            context.run(current.set, attempt.context)
            if self.tracing is not None:
                self.tracing.launched(attempt, context)
            if spec.logs and self._logs is None:
                self._see_logs()
            if spec.secrets:
                context.run(masking.set, self.secrets.shortened)
            if not spec.asynchronous and (spec.timeout is not None or spec.heartbeat is not None):
                begun = self._when_called(attempt) if attempt.call.failed is None else None
            work: Coroutine[Any, Any, Any]
            if spec.items or REFERENCE in command.inputs:
                work = self._with_items(attempt, context, begun)
            else:
                args, kwargs = attempt.arguments or self._arguments(command)
                if attempt.call.failed is not None:
                    work = self._fall_back(args, kwargs, attempt, context)
                else:
                    work = self._work(spec, args, kwargs, attempt, context, begun)
            # A name of its own: asyncio would make one up, for each.
            task: asyncio.Future[Any] = self.loop.create_task(work, name=command.op, context=context)
        except BaseException as error:  # a wrong call, arguments that do not decode, or an error of the engine
            task = self.loop.create_future()
            task.set_exception(contained(error))
        attempt.launched(task)
        try:
            if begun is not None and attempt.context.ends is not None:
                self._start_timers(attempt, None, None)  # the deadline of the run does not wait for a thread
            elif begun is None and not (spec.timeout is spec.heartbeat is attempt.context.ends is None):
                self._start_timers(attempt, spec.timeout, spec.heartbeat)
        except BaseException as error:  # the outcome of this attempt, not of the one that freed the slot
            attempt.give_up(contained(error))

    def _call_steps(self) -> None:
        """Call the async steps that were launched in the last turn; what those record that end at once is one write."""
        self._turn = None
        attempts, self._next = self._next, deque()
        writer = self.writer
        if writer is not None:
            writer.hold()
        try:
            while attempts:
                self._call_step(attempts.popleft())
        finally:
            if attempts:  # the loop was interrupted
                self._next.extendleft(reversed(attempts))
                self._turn = self._turn or self.loop.call_soon(self._call_steps)
            if writer is not None:
                writer.resume(now=self._running == 0)

    def _call_step(self, attempt: Attempt) -> None:
        """Call an async step. Until it suspends it has no task of its own."""
        if attempt.owner is None:
            attempt.ended(None, None)  # it was cancelled before it began
            return
        if self._deadline.expired():
            self._deadline.enforce()  # the process was stopped between the launch and now
            attempt.ended(None, asyncio.CancelledError())
            return
        command, step_task = attempt.call.command, self._step_task
        spec = command.spec
        try:
            args, kwargs = attempt.arguments or self._arguments(command)
            if step_task is None or step_task.over:
                step_task = self._step_task = StepTask(self.loop)
            attempt.task = step_task.task
            context = attempt.variables.copy()
            context.run(current.set, attempt.context)
            if self.tracing is not None:
                self.tracing.launched(attempt, context)
            if spec.logs and self._logs is None:
                self._see_logs()
            if spec.secrets:
                context.run(masking.set, self.secrets.shortened)
            if not (spec.timeout is spec.heartbeat is attempt.context.ends is None):
                self._start_timers(attempt, spec.timeout, spec.heartbeat)
            if self._call_with is None:
                outcome = step_task.call(command.op, context, spec.fn, args, kwargs)
            else:
                given = [attempt.context, spec.fn, args, kwargs]
                outcome = step_task.call(command.op, context, self._call_with, given, {})
        except BaseException as error:  # arguments that do not decode, or an error of the engine
            outcome = None, contained(error)
        if outcome is None:
            self._step_task = None
            assert attempt.task is not None
            attempt.launched(attempt.task)
        else:
            attempt.task = None
            attempt.ended(*outcome)

    def _fall_back(
        self, args: list[Any], kwargs: dict[str, Any], attempt: Attempt, context: Context
    ) -> Coroutine[Any, Any, Any]:
        """A call of a fallback: it has its own timeout, and no heartbeat."""
        return fall_back(
            attempt.call,
            args,
            kwargs,
            self._codec,
            lambda spec, args, kwargs, begun: self._work(spec, args, kwargs, attempt, context, begun),
        )

    async def _with_items(self, attempt: Attempt, context: Context, begun: Callable[[], None] | None) -> Any:
        """A call of a step that takes or gives items."""
        command, spec = attempt.call.command, attempt.call.command.spec
        assert self.items is not None
        args, kwargs = self._arguments(await self.items.given(command, self._types(command), self._codec.limit))
        if attempt.call.failed is not None:
            made = await self._fall_back(args, kwargs, attempt, context)
        else:
            made = await self._work(spec, args, kwargs, attempt, context, begun)
        return await stored(made, self.items, self._codec, f"the result of {command.op}")

    def _start_timers(self, attempt: Attempt, timeout: float | None, heartbeat: float | None) -> None:
        if attempt.call.failed is not None:
            timeout = heartbeat = None
        if timeout is not None or heartbeat is not None or attempt.context.ends is not None:
            attempt.start_timers(self._timeout(attempt.context, timeout), heartbeat)

    def _when_called(self, attempt: Attempt) -> Callable[[], None]:
        """A callback for the thread that calls the step, which starts the attempt's timeouts."""
        spec = attempt.call.command.spec
        # A step in another process sends no heartbeats.
        heartbeat = None if spec.cpu else spec.heartbeat

        def begun() -> None:
            timeout = self._timeout(attempt.context, spec.timeout)
            self.loop.call_soon_threadsafe(attempt.start_timers, timeout, heartbeat)

        return begun

    def _timeout(self, context: StepContext, timeout: float | None) -> float | None:
        """Seconds that the attempt may take from now on: its timeout, capped by the run's deadline."""
        if timeout is None and context.ends is None:
            return None
        now = self._clock.now()
        if context.ends is not None:
            left = max(0.0, context.ends - now)
            context.capped = timeout is None or left <= timeout
            timeout = left if timeout is None else min(left, timeout)
        assert timeout is not None
        context.ends = now + timeout
        return timeout

    def _work(
        self,
        spec: StepSpec,
        args: list[Any],
        kwargs: dict[str, Any],
        attempt: Attempt,
        context: Context,
        begun: Callable[[], None] | None,
    ) -> Coroutine[Any, Any, Any]:
        """A call of a step's function, where steps of its kind run; `begun` is called when it is."""
        step = attempt.context
        if spec.asynchronous:
            if begun is not None:
                begun()
            if spec.generator and spec.items:
                return self._contained(collect, [spec.fn, args, kwargs, step, self._writer(attempt)], {})
            if spec.generator:
                return self._contained(drain, [spec.fn, args, kwargs, step], {})
            return self._contained(spec.fn, args, kwargs)
        fn: Callable[..., Any] = spec.fn
        if spec.generator:
            args, kwargs = [spec.fn, args, kwargs, step], {}
            fn = drain_in_thread
            if spec.items:
                args, fn = [*args, self._writer(attempt), self.items], collect_in_thread
        job = Job(fn, args, kwargs, step, context.copy())
        job.generator = spec.fn if spec.generator else None
        job.begun, job.timeout = begun, spec.timeout
        return self._call(job, spec, attempt)

    def _writer(self, attempt: Attempt) -> ItemWriter:
        assert self.items is not None
        command = attempt.call.command
        mask = self.secrets.mask if command.spec.secrets else None
        return ItemWriter(self.items, self._codec, command.op, element(command.spec.returns), mask)

    async def _contained(self, fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call an async step. sys.exit() fails the step, and does not end the engine."""
        if self._deadline.expired():  # the process was stopped between the launch and now
            self._deadline.enforce()
            raise asyncio.CancelledError
        try:
            return await fn(*args, **kwargs)
        except (SystemExit, KeyboardInterrupt) as error:
            if pressed(error):
                raise
            raise Raised(error) from None

    async def _call(self, job: Job, spec: StepSpec, attempt: Attempt) -> Any:
        executor = self._executor_for(spec)
        if executor is not None:
            result, error = await self._foreign(executor, job)
        elif spec.cpu:
            result, error = await self._process_pool().submit(job, attempt, spec.at_most_once)
        else:
            result, error = await self._thread_pool().submit(job, attempt, spec.at_most_once)
        if error is not None:
            # A thread gets no Ctrl-C: a KeyboardInterrupt from there was raised by the step.
            raise Raised(error) if is_a(error, (SystemExit, KeyboardInterrupt)) else error
        if not isinstance(result, Coroutine):
            return result
        # `step_inline("fetch", lambda: client.get(url))`: the lambda is plain, what it returns is not.
        return await self._contained(lambda: result, [], {})

    async def _foreign(self, executor: Executor, job: Job) -> tuple[Any, BaseException | None]:
        """Call a function in the executor that the engine was given."""
        name = type(executor).__name__
        try:
            submitted = executor.submit(job)
        except Exception as error:  # shut down, or one of its processes died
            return None, ExecutorBroken(name, str(error) or type(error).__name__)
        try:
            return await asyncio.wrap_future(submitted), None
        except BrokenExecutor as error:
            return None, ExecutorBroken(name, str(error) or type(error).__name__)
        except (SystemExit, KeyboardInterrupt) as error:
            return None, error

    def _executor_for(self, spec: StepSpec) -> Executor | None:
        """The executor that was passed to the engine, if it is for this step."""
        return self._executor if not spec.cpu or isinstance(self._executor, EveryStepExecutor) else None

    def _thread_pool(self) -> Threads:
        if self._threads is None:
            self._threads = Threads(self.loop, self._most_threads, "perdure-step", "Engine(threads=...)")
        return self._threads

    def _process_pool(self) -> Processes:
        if self._processes is None:
            from perdure.engine.processes import Processes

            self._processes = Processes(self.loop)
        return self._processes

    def _arguments(self, command: RunStep) -> tuple[list[Any], dict[str, Any]]:
        """The arguments decoded from their stored form, as they would be after a crash."""
        inputs = command.inputs if not command.spec.secrets else self.secrets.put_in(command)
        try:
            values = self._codec.decode(inputs, self._types(command), f"the arguments of {command.op}")
        except NotDecodable as error:
            raise self._of_one(command, inputs) or error from None
        if not command.keywords:
            return values, {}
        return values[: command.positional], dict(zip(command.keywords, values[command.positional :], strict=True))

    def _of_one(self, command: RunStep, inputs: bytes) -> NotDecodable | None:
        """Why arguments cannot be decoded, by the name of the first that cannot."""
        given = msgspec.json.decode(inputs, type=list[Raw])
        for name, annotation, value in zip(names_of(command), get_args(self._types(command)), given, strict=False):
            try:
                self._codec.decode(value, annotation, f"the argument {name.lstrip('*=')} of {command.op}")
            except NotDecodable as error:
                return error
        return None

    def _types(self, command: RunStep) -> Any:
        if not command.positional and not command.keywords:
            return list[Any]  # a function that is made for one call, such as a report, is not kept
        # By the function, not by the spec: `.options()` makes a new spec for every call.
        key = (command.spec.fn, command.positional, command.keywords)
        found = self._argument_types.get(key)
        if found is None:
            if len(self._argument_types) > 10_000:  # functions created for every call
                self._argument_types.clear()
            found = self._argument_types[key] = argument_types(command)
        return found

    def withdraw(self, *, everything: bool = False) -> None:
        """The engine shuts down: begin nothing more, except at-most-once steps that are recorded as begun."""
        self._withdrawn, self._closed = True, self._closed or everything
        waiting, self._queue = self._queue, deque()
        for attempt in waiting:
            self._drop(attempt)
        for pool in (self._threads, self._processes):
            if pool is not None:
                pool.withdraw()

    def _drop(self, attempt: Attempt) -> None:
        """Leave an attempt that has not begun to the next owner."""
        owner, attempt.owner = attempt.owner, None
        if owner is not None:
            owner.attempt_ended(attempt, None, asyncio.CancelledError())

    def _see_logs(self) -> None:
        from perdure.engine.step_logs import StepLogs

        self._logs = StepLogs(self)
        self._logs.open()

    def close(self) -> None:
        """Close the pools. Threads that are still busy are left running, and processes are ended."""
        self._closed = True
        if self._step_task is not None:
            self._step_task.drop()
            self._step_task = None
        if self._logs is not None:
            self._logs.close()
        for pool in (self._threads, self._processes):
            if pool is not None:
                pool.close()
