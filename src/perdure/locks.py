"""`lock`: one holder at a time, in workflow bodies and in steps. Callers outside use `engine.locks`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from perdure.authoring.code.body import Body, BodyLock, check_awaited, current_body
from perdure.engine.locks import Hold, Locker
from perdure.engine.step_context import StepContext, current
from perdure.errors import LockLost, StepCancelled, UsageError
from perdure.kernel.policies.durations import ENDLESS, duration
from perdure.kernel.policies.lock_keys import check_key, check_ttl

T = TypeVar("T")

# How often a thread that waits looks whether its step was cancelled.
POLL_SECONDS = 0.1


def lock(key: str, ttl: float | timedelta = 30, timeout: float | timedelta | None = None) -> Lock:
    """A lock for the duration of a block: `async with lock("account:7") as held`.

    It is renewed while its holder is alive, and expires `ttl` seconds after its holder has died. Raises LockTimeout
    when it is not released within `timeout`. In a plain `def` step, write `with lock(...)`.
    """
    check_awaited(sys._getframe(1), f"lock({key!r})", "write `async with lock(...):`")
    key = check_key(key)
    seconds = check_ttl(ttl, key)
    wait = duration(timeout)
    if timeout is not None and (wait is None or not 0 <= wait < ENDLESS):
        raise UsageError(f"lock({key!r}, timeout={timeout!r}): give the seconds to wait at most, or leave it out")
    return Lock(key, seconds, wait)


class Lock:
    """A lock that a body or a step takes for the length of a block."""

    def __init__(self, key: str, ttl: float, timeout: float | None) -> None:
        self.key, self.ttl, self.timeout = key, ttl, timeout
        self._body: Body | None = None
        self._held: BodyLock | Hold | None = None

    @property
    def token(self) -> int:
        """The fencing token: it grows each time the lock changes hands. Pass it to what the lock guards."""
        if self._held is None:
            raise UsageError(f"the lock {self.key!r} is not held: use it as `async with lock(...) as held`")
        return self._held.token

    async def __aenter__(self) -> Self:
        self._check_free()
        self._body = current_body()
        if self._body is not None:
            self._held = await self._body.lock(self.key, self.ttl, self.timeout)
        else:
            step = _step()
            self._held = await self._acquire(step, _locker(step))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if isinstance(held, BodyLock):
            assert self._body is not None
            self._body.unlock(held)
        elif held is not None:
            # Shielded: a step that is cancelled while it gives its lock back has still given it back.
            await asyncio.shield(_locker(_step()).release(held))
            self._check_kept(held, error)

    def __enter__(self) -> Self:
        self._check_free()
        if current_body() is not None:
            raise UsageError(f"a workflow takes the lock {self.key!r} with `async with lock(...)`")
        step = _step()
        locker = _locker(step)
        self._held = _in_loop(locker, step, lambda: self._acquire(step, locker))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if isinstance(held, Hold):
            step = _step()
            locker = _locker(step)
            if step.cancelled:
                # The step was cancelled, and the engine may be closed: release without waiting for it.
                with suppress(RuntimeError):
                    locker.loop.call_soon_threadsafe(locker.release_soon, held)
                return
            _in_loop(locker, step, lambda: locker.release(held))
            self._check_kept(held, error)

    async def _acquire(self, step: StepContext, locker: Locker) -> Hold:
        # With the attempt: an older one that has not noticed its end must not give back what is ours.
        owner = f"{step.id}#{step.attempt}"
        if locker.holds(self.key, owner):
            raise UsageError(f"this step already holds the lock {self.key!r} and would deadlock; take it once")

        def earlier(other: str) -> bool:
            return other != owner and other.startswith(f"{step.id}#")

        hold = await locker.acquire(self.key, owner, self.ttl, timeout=self.timeout, replaces=earlier)
        hold.wanted = lambda: not step.cancelled
        return hold

    def _check_free(self) -> None:
        if self._held is not None:
            raise UsageError(f"this lock object already holds {self.key!r}; call lock(...) for each block")

    def _check_kept(self, held: Hold, error: BaseException | None) -> None:
        if held.lost and error is None:
            raise LockLost(held.key, held.token)


def _step() -> StepContext:
    try:
        return current.get()
    except LookupError:
        raise UsageError(
            "lock() works inside a workflow or a step that a workflow called; elsewhere use engine.locks.hold(key)"
        ) from None


def _locker(step: StepContext) -> Locker:
    if step.locker is None:
        raise UsageError(
            "a step in another process (cpu=True) cannot take a lock; take it in the workflow, around the step"
        )
    return step.locker


def _in_loop(locker: Locker, step: StepContext, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Wait in a thread for what the loop of the engine does, until the step is cancelled."""
    loop, answer, tasks = locker.loop, Future[T](), list[asyncio.Task[T]]()
    if asyncio.events._get_running_loop() is not None or loop.is_closed():
        raise UsageError("in an `async def` step a lock is taken with `async with lock(...)`")

    def begin() -> None:
        # Created here: a loop that ends earlier leaves no coroutine that was never awaited.
        tasks.append(loop.create_task(work()))
        tasks[0].add_done_callback(pass_on)

    def pass_on(task: asyncio.Task[T]) -> None:
        if task.cancelled():
            answer.cancel()
        elif error := task.exception():
            answer.set_exception(error)
        else:
            answer.set_result(task.result())

    loop.call_soon_threadsafe(begin)
    while True:
        try:
            return answer.result(POLL_SECONDS)
        except TimeoutError:
            if answer.done():
                return answer.result()
            if step.cancelled:
                # The engine may be closed, and never answer.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
                raise StepCancelled(step.id, "it was cancelled while it waited for a lock") from None
