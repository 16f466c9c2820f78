"""`saga()`: compensations that run in reverse when a later step fails. Stores nothing itself: the journal does.

Compensations are ops of the body like any other. A crash while they run is a crash in the middle of a body: the journal
says which of them are done, and the next owner continues with the rest.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self

from perdure.authoring.code.body import require_body
from perdure.authoring.code.loop import BodyTask, source_of
from perdure.errors import CompensationFailed, PerdureError, UsageError
from perdure.kernel.values.failures import is_any_of, message_of

P = ParamSpec("P")


class Saga:
    """The compensations of one `async with saga()` block, in the order in which they were added."""

    def __init__(self) -> None:
        self._undo: list[_Compensation] = []
        self._open = False

    def compensate(self, undo: Callable[P, Awaitable[object]], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call `undo` with these arguments if the block fails or is cancelled; a step, a workflow or an `async def`."""
        if not self._open:
            raise UsageError("compensate() belongs inside its block: `async with saga() as s: ... s.compensate(...)`")
        if not callable(undo):
            raise TypeError(
                f"compensate() takes a step or workflow and its arguments, as in s.compensate(refund, payment), not "
                f"{undo!r}"
            )
        name = getattr(undo, "__name__", "") or type(undo).__name__
        if inspect.isfunction(undo) and not inspect.iscoroutinefunction(undo) and name != "<lambda>":
            raise TypeError(f"compensate({name}): a plain function cannot be awaited; make it a @step")
        inspect.signature(undo).bind(*args, **kwargs)  # a wrong call fails here, at the user's line
        self._undo.append(_Compensation(name, undo, args, kwargs, source_of(sys._getframe(1))))

    async def __aenter__(self) -> Self:
        require_body("saga()")
        if self._open or self._undo:
            raise UsageError("a saga can be entered only once; write `async with saga() as s` again for another one")
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        # Other exceptions end the body on purpose or evict it: nothing has failed.
        if error is None or not self._undo or not is_any_of(error, (Exception, asyncio.CancelledError)):
            return
        # In a task of its own, which is never cancelled: giving up half-way would leave half of it done.
        task = asyncio.get_running_loop().create_task(compensate(self._undo))
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as request:
                cancelled = request
        failures = task.result()
        if failures:
            raise CompensationFailed(_message(error, failures, len(self._undo)), [e for _, e in failures]) from error
        if cancelled is not None and not is_any_of(error, (asyncio.CancelledError,)):
            raise cancelled


def saga() -> Saga:
    """Undo completed work when a later step fails.

    async with saga() as s:
        payment = await charge(order)
        s.compensate(refund, payment)
        await ship(order)              # when this fails, refund(payment) is called, durably

    Compensations run in reverse, on any exception and when the run is cancelled; then the exception propagates. One
    that fails does not keep the others from running: CompensationFailed names all that did.
    """
    return Saga()


class _Compensation:
    __slots__ = ("args", "kwargs", "name", "source", "undo")

    def __init__(
        self,
        name: str,
        undo: Callable[..., Awaitable[object]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        source: str,
    ) -> None:
        self.name, self.undo, self.args, self.kwargs, self.source = name, undo, args, kwargs, source

    async def run(self) -> None:
        body = require_body("compensate()")
        task = asyncio.current_task()
        if isinstance(task, BodyTask):
            task.source = self.source  # of compensate(): no other line of the workflow is to be seen from here
        before = body.loop.numbers
        done = self.undo(*self.args, **self.kwargs)
        if not inspect.isawaitable(done):
            raise TypeError(f"{self.name} returned {done!r}, which cannot be awaited; make it a @step")
        await done
        body.check_all_awaited(before, body.loop.scope.prefix)


# Not private: its name is the scope of its ops, `compensate:0/refund:0`.
async def compensate(undo: Sequence[_Compensation]) -> list[tuple[str, Exception]]:
    """Run all of them, the last one first, and return the failures."""
    failures: list[tuple[str, Exception]] = []
    for compensation in reversed(undo):
        try:
            await compensation.run()
        except Exception as error:
            failures.append((compensation.name, error))
        except asyncio.CancelledError as error:  # this task is never cancelled from outside
            failures.append((compensation.name, PerdureError(f"CancelledError: {error}")))
    return failures


def _message(error: BaseException, failures: Sequence[tuple[str, Exception]], count: int) -> str:
    listed = "; ".join(f"{name} raised {_name(failure)}" for name, failure in failures)
    return f"{len(failures)} of {count} compensations failed ({listed}) after {_name(error)}"


def _name(error: BaseException) -> str:
    text = message_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
