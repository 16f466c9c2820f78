"""`@step`: a function with side effects, called durably from a workflow and plainly from anywhere else."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from asyncio import events
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, Generic, Never, ParamSpec, Self, TypeVar, get_args, overload

from perdure.authoring.code.body import require_body
from perdure.authoring.code.hints import hints_of, local_errors
from perdure.authoring.code.loop import BodyLoop
from perdure.errors import UsageError
from perdure.kernel.commands import StepSpec
from perdure.kernel.ids import WrongValue, check_name
from perdure.kernel.policies.durations import ENDLESS, duration
from perdure.kernel.policies.policy import CODE_FOR_WORKER, policy_data
from perdure.kernel.policies.queues import check_queue
from perdure.kernel.policies.retry import ONCE, Retry
from perdure.kernel.streams import StreamMode, stream_mode
from perdure.kernel.values.arguments import prefixes

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


class Step(Generic[P, R]):
    """A step. Inside a workflow a call is durable and awaited; outside it calls `fn`, the function itself."""

    def __init__(self, spec: StepSpec) -> None:
        self.spec = spec
        self.fn: Callable[P, Any] = spec.fn
        self.__name__ = spec.name
        self.__qualname__ = getattr(spec.fn, "__qualname__", spec.name)
        self.__module__ = spec.fn.__module__
        self.__doc__ = spec.fn.__doc__
        self.__wrapped__ = spec.fn

    @property
    def name(self) -> str:
        """The name that op paths are made of."""
        return self.spec.name

    # Not Coroutine[Any, Any, R]: with Any in it, mypy sees no types through asyncio.gather.
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[object, Never, R]:
        """Command the step (in a workflow), or call the function (anywhere else)."""
        loop = events._get_running_loop()
        if type(loop) is BodyLoop and (body := loop.body()) is not None:
            # A future in place of a coroutine: gather, create_task and wait take it without another task.
            return body.run_step(self.spec, args, kwargs, sys._getframe(1))  # type: ignore[return-value]
        if self.spec.generator:
            return _all(self.fn(*args, **kwargs))  # type: ignore[no-any-return]
        return self.fn(*args, **kwargs)  # type: ignore[no-any-return]

    def options(
        self,
        *,
        retry: Retry | None = None,
        timeout: float | timedelta | None = None,
        at_most_once: bool | None = None,
        heartbeat: float | timedelta | None = None,
        stream: str | StreamMode | None = None,
        queue: str | None = None,
    ) -> Self:
        """The same step with another policy, for one call."""
        changes: dict[str, Any] = {}
        if retry is not None:
            changes["retry"] = _retry(retry)
        if timeout is not None:
            changes["timeout"] = seconds(timeout, "timeout")
        if at_most_once is not None:
            changes["at_most_once"] = _flag("at_most_once", at_most_once)
        if heartbeat is not None:
            changes["heartbeat"] = _heartbeat(heartbeat, self.spec.cpu, self.name)
        if stream is not None:
            changes["stream"] = stream_mode(stream)
        if queue is not None:
            changes["queue"] = check_queue(queue)
        if queue or self.spec.queue:
            sent = dict(self.spec.sent) | {
                key: value for key, value in changes.items() if key not in ("stream", "queue")
            }
            policy_data(sent, f"the options of the remote step {self.name!r}", CODE_FOR_WORKER)
            changes["sent"] = tuple(sorted(sent.items()))
        return type(self)(dataclasses.replace(self.spec, **changes))

    def __repr__(self) -> str:
        return f"<step {self.name}>"


# Type checkers see a step as one of these, so that `.fn` has the type of the function as it was written.


class AsyncStep(Step[P, R]):
    """A step written as `async def`."""

    fn: Callable[P, Coroutine[Any, Any, R]]


class DefStep(Step[P, R]):
    """A step written as `def`. The plugin `perdure.mypy_plugin` types a call of it outside of async code as `R`."""

    fn: Callable[P, R]


class AsyncGeneratorStep(Step[P, list[C]], Generic[P, C]):
    """A step written as `async def` that yields."""

    fn: Callable[P, AsyncIterator[C]]


class GeneratorStep(Step[P, list[C]], Generic[P, C]):
    """A step written as `def` that yields."""

    fn: Callable[P, Iterator[C]]


def _kind_of(fn: Callable[..., Any]) -> type[Step[..., Any]]:
    if inspect.iscoroutinefunction(fn):
        return AsyncStep
    if inspect.isasyncgenfunction(fn):
        return AsyncGeneratorStep
    return GeneratorStep if inspect.isgeneratorfunction(fn) else DefStep


# A coroutine function is also a Callable[P, R]: type checkers take the first that fits, as is meant.
@overload
def step(fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]
@overload
def step(fn: Callable[P, AsyncIterator[C]], /) -> AsyncGeneratorStep[P, C]: ...  # type: ignore[overload-overlap]
@overload
def step(fn: Callable[P, Iterator[C]], /) -> GeneratorStep[P, C]: ...  # type: ignore[overload-overlap]
@overload
def step(fn: Callable[P, R], /) -> DefStep[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
    at_most_once: bool = False,
    cpu: bool = False,
    heartbeat: float | timedelta | None = None,
    stream: str | StreamMode | None = None,
    queue: str | None = None,
    record_inputs: bool = False,
    logs: str | None = None,
) -> StepDecorator: ...
def step(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
    at_most_once: bool = False,
    cpu: bool = False,
    heartbeat: float | timedelta | None = None,
    stream: str | StreamMode | None = None,
    queue: str | None = None,
    record_inputs: bool = False,
    logs: str | None = None,
) -> Any:
    """Make a function a step: `@step` or `@step(retry=Retry(...), timeout=10)`.

    `at_most_once`: never try again an attempt whose process died; the workflow gets OutcomeUnknown instead.
    `cpu`: run it in a process of its own, for work that would hold the interpreter.
    `heartbeat`: fail an attempt that does not call `step_context().heartbeat()` or emit anything for so long.
    `stream`: when the chunks that it emits or yields are written: "immediate", "on_complete" or `batched(20, 0.5)`;
    by default that of `Engine(stream=...)`.
    `queue`: a remote step, executed by an engine that serves this queue and has the step: `Engine(steps=[...])`.
    `record_inputs`: record its arguments in the journal, for `steps(id)` in processes without the code.
    `logs`: log records of this level, such as "INFO", and above become chunks of its stream, 100 KiB per attempt.
    """
    mode = None if stream is None else stream_mode(stream)
    for option, given in (("at_most_once", at_most_once), ("cpu", cpu), ("record_inputs", record_inputs)):
        _flag(option, given)
    decorator = StepDecorator(
        name, _retry(retry), timeout, at_most_once, cpu, heartbeat, mode, queue, record_inputs, logs
    )
    return decorator if fn is None else decorator.make(fn, 2)


class StepDecorator:
    """`@step(...)` with its options, waiting for the function."""

    def __init__(
        self,
        name: str | None,
        retry: Retry,
        timeout: float | timedelta | None,
        at_most_once: bool,
        cpu: bool,
        heartbeat: float | timedelta | None = None,
        stream: StreamMode | None = None,
        queue: str | None = None,
        record_inputs: bool = False,
        logs: str | None = None,
    ) -> None:
        self._record_inputs = record_inputs
        self._logs = 0 if logs is None else _level(logs)
        self._queue = "" if queue is None else check_queue(queue)
        self._name, self._retry, self._at_most_once, self._cpu = name, retry, at_most_once, cpu
        self._heartbeat, self._stream = heartbeat, stream
        self._timeout = None if timeout is None else seconds(timeout, "timeout")

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncStep[P, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, AsyncIterator[C]], /) -> AsyncGeneratorStep[P, C]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, Iterator[C]], /) -> GeneratorStep[P, C]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> DefStep[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        return self.make(fn, 2)

    def make(self, fn: Callable[..., Any], depth: int) -> Step[..., Any]:
        if isinstance(fn, staticmethod):
            fn = fn.__func__
        refuse_method(fn, "step")
        if not callable(fn) or isinstance(fn, Step):
            raise TypeError(f"@step needs a function, not {fn!r}")
        if not hasattr(fn, "__module__") or not hasattr(fn, "__name__"):
            raise TypeError(f"@step needs a function with a name, not {fn!r:.80}; write a def that calls it")
        if self._cpu and inspect.ismethod(fn):
            raise TypeError(
                f"@step(cpu=True) {fn.__qualname__} is a method of an object that the other process does not have; "
                "make it a function at the top of a module"
            )
        generator = _is_generator(fn)
        if self._cpu and generator:
            raise TypeError(
                f"@step(cpu=True) {fn.__qualname__} runs in another process, from which it cannot emit what it yields; "
                "return a list, or leave out cpu=True"
            )
        if self._cpu and inspect.iscoroutinefunction(fn):
            raise TypeError(f"@step(cpu=True) {fn.__qualname__} runs in another process and must be a plain def")
        if self._logs and (generator or self._cpu):
            why = "its stream is its result" if generator else "it runs in another process"
            raise TypeError(f"@step(logs=...) {fn.__qualname__} cannot have its log records as chunks: {why}")
        hints = hints_of(fn, depth + 1)
        returns, types = hints.get("return", Any), parameter_types(fn, hints)
        return _kind_of(fn)(
            StepSpec(
                name=check_name(self._name or fn.__name__.strip("<>"), "the name of a step"),
                fn=fn,
                retry=self._retry,
                timeout=self._timeout,
                at_most_once=self._at_most_once,
                cpu=self._cpu,
                asynchronous=inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn),
                generator=generator,
                stream=self._stream,
                heartbeat=None if self._heartbeat is None else _heartbeat(self._heartbeat, self._cpu, fn.__qualname__),
                types=types,
                prefixes=prefixes(types),
                returns=list[(get_args(returns) or (Any,))[0]] if generator else returns,  # type: ignore[misc]
                errors=local_errors(fn, depth + 1),
                queue=self._queue,
                record_inputs=self._record_inputs,
                logs=self._logs,
                function="" if self._name in (None, fn.__name__) else _function_of(fn, self._name),
            )
        )


LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}


def _level(name: str) -> int:
    """The number of a level of `logging`."""
    found = LEVELS.get(name.upper()) if isinstance(name, str) else None
    if found is None:
        raise UsageError(f"@step(logs={name!r:.80}) is the name of a level: {', '.join(LEVELS)}")
    return found


def refuse_method(fn: Any, what: str) -> None:
    """Raise TypeError for a function of a class that needs an instance: a replay elsewhere has none to call it on."""
    plain = fn.__func__ if isinstance(fn, classmethod) else fn
    name = getattr(plain, "__qualname__", "")
    inside = name.rpartition(".")[0].rpartition(".")[2]
    if not inspect.isfunction(plain) or not inside or inside == "<locals>":
        return
    first = next(iter(inspect.signature(plain).parameters), "")
    if isinstance(fn, classmethod) or first in ("self", "cls"):
        short, kind = plain.__name__, "node" if what == "node" else "step"
        raise TypeError(
            f"@{what} on the method {name}: it is called by its name, in any process, where there is no {inside} to "
            f"call it on. Write a function, and get what {first or 'cls'} holds with resource() in a step: "
            f'Engine(resources={{"{inside.lower()}": {inside}(...)}}), and '
            f'`@{kind} def {short}(...): return resource("{inside.lower()}").{short}(...)`'
        )


def parameter_types(fn: Callable[..., Any], hints: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Pairs of a parameter's name and type; `*`, `**` and `=` mark variable and keyword-only ones."""
    marks: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    marks[inspect.Parameter.KEYWORD_ONLY] = "="
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # a builtin without a signature
        return ()
    return tuple((marks.get(p.kind, "") + p.name, hints.get(p.name, Any)) for p in parameters)


@overload
def step_inline(name: str, fn: Callable[..., Coroutine[Any, Any, R]], *args: Any) -> Coroutine[object, Never, R]: ...
@overload
def step_inline(name: str, fn: Callable[..., AsyncIterator[C]], *args: Any) -> Coroutine[object, Never, list[C]]: ...
@overload
def step_inline(name: str, fn: Callable[..., Iterator[C]], *args: Any) -> Coroutine[object, Never, list[C]]: ...
@overload
def step_inline(name: str, fn: Callable[..., R], *args: Any) -> Coroutine[object, Never, R]: ...
def step_inline(name: str, fn: Callable[..., Any], *args: Any) -> Coroutine[Any, Any, Any]:
    """Call a function as a step where it is needed: `await step_inline("roll", lambda: randint(1, 6))`."""
    body = require_body("step_inline()")
    spec = StepSpec(
        name=check_name(name, "the name of a step"),
        fn=fn,
        asynchronous=inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn),
        generator=_is_generator(fn),
        function=_function_of(fn, name),
    )
    return body.run_step(spec, args, {}, sys._getframe(1))  # type: ignore[return-value]


def _function_of(fn: Any, step: str | None) -> str:
    """The name of a step's function, if it is not that of the step; of a lambda, the names in it."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__name__", type(fn).__name__)
    if name == "<lambda>":
        code = fn.__code__
        return " ".join((*code.co_names, *code.co_freevars))[:200]
    return "" if name == step else str(name)


def seconds(value: float | timedelta, what: str) -> float:
    """A duration in seconds; raises ValueError when it is negative or no number."""
    number = duration(value)
    if number is None:
        raise WrongValue(f"{what} is a number of seconds or a timedelta, not {value!r}")
    if not 0 <= number < ENDLESS:
        raise WrongValue(f"{what}={value!r:.80} must not be negative or endless; give a number of seconds from 0 on")
    return number


def _flag(option: str, given: bool) -> bool:
    if not isinstance(given, bool):
        raise WrongValue(f"{option}={given!r:.80} is True or False")
    return given


def _is_generator(fn: Callable[..., Any]) -> bool:
    return inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn)


def _heartbeat(value: float | timedelta, cpu: bool, name: str) -> float:
    if cpu:
        raise WrongValue(
            f"@step(cpu=True, heartbeat=...) {name} runs in another process, from which it cannot send heartbeats; "
            "use timeout=, or leave out cpu=True"
        )
    number = seconds(value, "heartbeat")
    if number == 0:
        raise WrongValue("heartbeat=0 would end every attempt at once; give a number of seconds")
    return number


def _all(items: Any) -> Any:
    """What a generator makes, when it is called outside of a workflow: all of it, as a workflow would get it."""
    if not isinstance(items, AsyncIterator):
        return list(items)

    async def collect() -> list[Any]:
        return [item async for item in items]

    return collect()


def _retry(retry: Retry | None) -> Retry:
    if retry is None:
        return ONCE
    if not isinstance(retry, Retry):
        raise WrongValue(f"retry is a Retry, as in retry=Retry(attempts=3), not {retry!r}")
    return retry
