"""A run that was started: wait for it, ask about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perdure.client.views import Chunk, RunResult
from perdure.errors import NoSuchRun, RunCancelled, RunFailed, RunParked, StepError, UsageError
from perdure.kernel.commands import Program
from perdure.kernel.events import RunStatus
from perdure.kernel.failures import add_note, rebuild
from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate, Finished, NotFound

if TYPE_CHECKING:
    from perdure.client.client import Client

R = TypeVar("R")


class RunHandle(Generic[R]):
    """One run. Awaiting it is awaiting its result."""

    def __init__(self, client: Client, id: str, run_id: str, program: Program | None) -> None:
        self._client = client
        self._program = program
        self.id = id
        # Empty: whichever run is the latest under the id when something is asked of it.
        self._run_id = run_id

    @property
    def run_id(self) -> str:
        """The run that was started. A handle of `engine.handle(id)` has none: it means the latest run under its id."""
        if not self._run_id:
            raise UsageError(
                f"the handle of {self.id!r} was made by its id, and means the latest run under it; "
                f"`await engine.get({self.id!r})` has the run_id"
            )
        return self._run_id

    async def result(self, timeout: float | None = None) -> R:
        """What the run returned; raises what it raised, RunCancelled or RunParked.

        TimeoutError after `timeout` seconds leaves the run going.
        """
        result = await self.outcome(timeout)
        if result.error is not None:
            raise result.error
        return result.output  # type: ignore[return-value]

    async def outcome(self, timeout: float | None = None) -> RunResult[R]:
        """How the run ended; raises nothing but TimeoutError."""
        program = self._program
        async with asyncio.timeout(timeout):
            run_id = self._run_id
            if not run_id:
                found, _ = await self._client._require(self.id)
                run_id = found.run_id
                program = self._checked_program(found.program)
            row = await self._client.watch.ended(run_id)
            while row.continued_as:
                row = await self._client.watch.ended(row.continued_as)
        if row.status in (RunStatus.COMPLETED, RunStatus.BAILED):
            output = await self._client.payloads.load(row.output_blob, row.output)
            returns = getattr(program, "returns", Any) if row.status is RunStatus.COMPLETED else Any
            value = self._client.codec.decode(output, returns, f"the result of run {self.id!r}")
            return RunResult(self.id, run_id, row.status, value)
        error: BaseException
        if row.status is RunStatus.CANCELLED:
            error = RunCancelled(self.id, row.reason or None)
        elif row.status is RunStatus.PARKED:
            error = RunParked(self.id, row.reason)
        else:
            assert row.error is not None
            error = rebuild(row.error, self._client.codec, getattr(program, "errors", {}))
            if isinstance(error, StepError):
                traceback = row.error.traceback or error.traceback
                failed = RunFailed(self.id, error.type, error.message, traceback, error.attributes)
                failed.__cause__ = error.__cause__
                for note in getattr(error, "__notes__", ()):
                    failed.add_note(note)
                error = failed
            elif row.error.traceback:
                add_note(error, f"in run {self.id!r}:\n{row.error.traceback.rstrip()}")
        return RunResult(self.id, run_id, row.status, error=error)

    def _checked_program(self, name: str) -> Program | None:
        """The program whose types the result has: the one that was given, or the one that is known here."""
        if self._program is None:
            return self._client._known(name)
        if self._program.name != name:
            raise UsageError(
                f"{self.id!r} is a run of {name!r} and not of {self._program.name!r}; give handle() the workflow that "
                "it was started with, or none"
            )
        return self._program

    async def status(self) -> RunStatus:
        """Where the run stands."""
        self._client._check_open()
        if not self._run_id:
            return (await self._client._require(self.id))[0].status
        row = await self._client.store.runs.get(self._run_id)
        if row is None:
            raise NoSuchRun(self.id)
        return row.status

    async def cancel(self, reason: str | None = None) -> Cancelled | AlreadyFinished:
        """Ask the run to end."""
        return await self._client.cancel(self._run_id or self.id, reason)

    async def signal(
        self, name: str, payload: Any = None, signal_id: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send the run a signal."""
        return await self._client.signal(self._run_id or self.id, name, payload, signal_id)

    async def approve(
        self, name: str, payload: Any, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Answer an open approval of the run."""
        return await self._client.approve(self._run_id or self.id, name, payload, approval_id, by)

    async def reject(
        self, name: str, reason: str | None = None, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Say no to an open approval of the run."""
        return await self._client.reject(self._run_id or self.id, name, reason, approval_id, by)

    def stream(self, step: str | None = None, start: int = 0) -> AsyncIterator[Chunk]:
        """What a step of the run, or all of them, show before they end; see `Client.stream`."""
        return self._client.stream(self._run_id or self.id, step, start)

    def __await__(self) -> Generator[Any, None, R]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<run {self.id!r}>"
