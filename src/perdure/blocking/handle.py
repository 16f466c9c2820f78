"""A run, for code that does not await."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from perdure.blocking.loop import Loop
from perdure.client.handle import RunHandle as AsyncRunHandle
from perdure.client.resting import Answers, Until
from perdure.client.views import Chunk, RunResult
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import INPUT
from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate, Finished, NotFound

R = TypeVar("R")


class RunHandle(Generic[R]):
    """One run."""

    def __init__(self, handle: AsyncRunHandle[R], loop: Loop) -> None:
        self._handle, self._loop = handle, loop
        self.id = handle.id

    @property
    def run_id(self) -> str:
        """The run that was started. A handle of `engine.handle(id)` has none: it means the latest run under its id."""
        return self._handle.run_id

    def result(self, timeout: float | None = None) -> R:
        """What the run returned; raises what it raised, RunCancelled or RunParked.

        TimeoutError after `timeout` seconds leaves the run going.
        """
        return self._loop.wait(self._handle.result(timeout))

    def outcome(
        self,
        timeout: float | None = None,
        *,
        until: Until = "end",
        answers: Answers | None = None,
        by: str | None = None,
    ) -> RunResult[R]:
        """How the run ended, or with `until="rest"` what it asks for; raises nothing but TimeoutError."""
        return self._loop.wait(self._handle.outcome(timeout, until=until, answers=answers, by=by))

    def status(self) -> RunStatus:
        """Where the run stands."""
        return self._loop.wait(self._handle.status())

    def cancel(self, reason: str | None = None) -> Cancelled | AlreadyFinished:
        """Ask the run to end."""
        return self._loop.wait(self._handle.cancel(reason))

    def signal(
        self, name: str, payload: Any = None, signal_id: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send the run a signal."""
        return self._loop.wait(self._handle.signal(name, payload, signal_id))

    def feed(
        self, input: Any, input_id: str | None = None, name: str = INPUT
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Give the run its next input."""
        return self._loop.wait(self._handle.feed(input, input_id, name))

    def approve(
        self, name: str, payload: Any, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Answer an open approval of the run."""
        return self._loop.wait(self._handle.approve(name, payload, approval_id, by))

    def reject(
        self, name: str, reason: str | None = None, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Say no to an open approval of the run."""
        return self._loop.wait(self._handle.reject(name, reason, approval_id, by))

    def stream(self, step: str | None = None, start: int = 0) -> Iterator[Chunk]:
        """What a step of the run, or all of them, show before they end."""
        return self._loop.iterate(self._handle.stream(step, start))

    def __repr__(self) -> str:
        return repr(self._handle)
