"""A run that was started: wait for it, ask about it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, get_args

from msgspec import Raw

from perdure.client.base import StoreClient
from perdure.client.gateway import RunGateway
from perdure.client.messages import Messages
from perdure.client.queries import Queries
from perdure.client.resting import Answers, Rest, Until
from perdure.client.views import Chunk, RunResult
from perdure.errors import NoSuchRun, RunCancelled, RunFailed, RunParked, StepError, UsageError
from perdure.kernel.events import RunStarted, RunStatus
from perdure.kernel.inbound import AlreadyFinished, Finished, NotFound
from perdure.kernel.program import Program
from perdure.kernel.projection import RunRow
from perdure.kernel.values.failures import add_note, rebuild
from perdure.kernel.values.items import REFERENCE
from perdure.kernel.values.skips import without_skips

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Handles:
    """Makes handles of runs, and has what they need."""

    base: StoreClient
    gateway: RunGateway
    queries: Queries
    messages: Messages

    def of(self, id: str, run_id: str, program: Program | None) -> RunHandle[Any]:
        """A handle of one run; without a run_id, of the latest run under the id."""
        return RunHandle(self, id, run_id, program)


def _sent(
    method: Callable[Concatenate[Messages, str, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method of a handle that sends its run what `method` sends to the run of an id."""

    async def send(self: RunHandle[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._send(method, *args, **kwargs)

    functools.update_wrapper(send, method)
    itself, _, *parameters = inspect.signature(method).parameters.values()
    send.__signature__ = inspect.signature(method).replace(parameters=[itself, *parameters])  # type: ignore[attr-defined]
    return send


class RunHandle(Generic[R]):
    """One run, with the incarnations it continues as by `continue_as`. Awaiting it is awaiting its result.

    A run that was started later under the same id, because this one had failed or was replaced, is another run.
    """

    def __init__(self, by: Handles, id: str, run_id: str, program: Program | None) -> None:
        self._by = by
        self._program = program
        self.id = id
        # Empty: each call means the latest run under the id at that time.
        self._run_id = run_id
        # The last incarnation that is known, by `continue_as`.
        self._current = run_id

    @property
    def program(self) -> Program | None:
        """The program, if it is known here."""
        return self._program

    @property
    def run_id(self) -> str:
        """The run that was started. A handle of `engine.handle(id)` has none: it follows the latest under its id."""
        if not self._run_id:
            raise UsageError(
                f"the handle of {self.id!r} was made by its id, and means the latest run under it; "
                f"`await engine.get({self.id!r})` has the run_id"
            )
        return self._run_id

    async def result(self, timeout: float | None = None) -> R:
        """What the run returned; raises what it raised, RunCancelled or RunParked.

        A TimeoutError after `timeout` seconds does not affect the run.
        """
        result = await self.outcome(timeout)
        if result.error is not None:
            raise result.error
        return result.output

    async def outcome(
        self,
        timeout: float | None = None,
        *,
        until: Until = "end",
        answers: Answers | None = None,
        by: str | None = None,
    ) -> RunResult[R]:
        """How the run ended; raises nothing but TimeoutError.

        With `until="rest"`: how it ended, or what it asks for as soon as it cannot continue without a person. `answers`
        are given to what it asks for, by name or by path and as `by`; then it waits again.
        """
        if timeout is None and until == "end" and not answers:
            return await self._end()
        if until not in get_args(Until):
            raise UsageError(f"until={until!r} is neither 'end' nor 'rest'")
        async with asyncio.timeout(timeout):
            if until == "rest" or answers:
                found = await self._latest() if self._run_id else (await self._by.base.require(self.id))[0]
                program = self._program or self._by.gateway.find_program(found.program)
                resting = await Rest(self._by.base, self._by.messages, answers or {}, by, program).wait(found, until)
                if resting is not None:
                    return resting
            return await self._end()

    async def _end(self) -> RunResult[R]:
        program, run_id = self._program, self._run_id
        if not run_id:
            found, _ = await self._by.base.require(self.id)
            run_id = found.run_id
            program = self._checked_program(found.program)
            if found.root and await self._by.base.store.runs.get(run_id) is None:
                return await run_result(self._by.base, await self._end_of_item(found), program, self.id, run_id)
        row = await self._wait_for_end(run_id)
        while row.continued_as:
            row = await self._wait_for_end(row.continued_as)
        return await run_result(self._by.base, row, program, self.id, run_id)

    async def _end_of_item(self, item: RunRow) -> RunRow:
        """The row of an item of a map that has ended, or is parked, from the journal that the item is in."""
        base = self._by.base
        with base.followers.follow(item.root) as follower:
            while True:
                row, head = await base.require(self.id)
                if row.status.finished or row.status is RunStatus.PARKED:
                    return row
                if not await follower.beyond(head.next_seq):
                    raise NoSuchRun(self.id)

    async def _wait_for_end(self, run_id: str) -> RunRow:
        try:
            return await self._by.base.watch.wait_for_end(run_id)
        except NoSuchRun:
            if not self._run_id:
                raise
            return await self._by.base.watch.wait_for_end((await self._latest()).run_id)

    def _checked_program(self, name: str) -> Program | None:
        """The program whose types the result has: the one that was given, or the one that is known here."""
        if self._program is None:
            return self._by.gateway.find_program(name)
        if self._program.name != name:
            raise UsageError(
                f"{self.id!r} is a run of {name!r} and not of {self._program.name!r}; give handle() the workflow that "
                "it was started with, or none"
            )
        return self._program

    async def status(self) -> RunStatus:
        """The status of the run."""
        self._by.base.check_open()
        if not self._run_id:
            return (await self._by.base.require(self.id))[0].status
        return (await self._latest()).status

    async def _latest(self) -> RunRow:
        """The run that was started, or the incarnation that it has continued as."""
        runs = self._by.base.store.runs
        row = await runs.get(self._current) or await self._beyond_pruned()
        while row.continued_as:
            row = await runs.get(row.continued_as) or await self._beyond_pruned()
        self._current = row.run_id
        return row

    async def _beyond_pruned(self) -> RunRow:
        """The latest incarnation under the id, if those in between were pruned."""
        found = await self._by.base.store.runs.find(self.id)
        if found is not None:
            batches = await self._by.base.store.journal.read(found[0].run_id, 0, 1)
            started = batches[0].events[0] if batches else None
            if isinstance(started, RunStarted) and started.continued_from:
                return found[0]
        raise NoSuchRun(self.id)

    async def _send(
        self, method: Callable[Concatenate[Messages, str, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Send the run something. If it has ended by continuing as another run, that one gets it.

        `Messages` follows an id, under which another run may have been started since; a handle follows its own run.
        """
        while True:
            current = self._current or self.id
            try:
                verdict = await method(self._by.messages, current, *args, **kwargs)
            except NoSuchRun:
                if not await self._continues(current):
                    raise NoSuchRun(self.id) from None
            else:
                if not isinstance(verdict, Finished | AlreadyFinished | NotFound) or not await self._continues(current):
                    return verdict

    async def _continues(self, run: str) -> bool:
        """Whether the run has continued as another one since it was known as `run`."""
        with suppress(NoSuchRun):
            return bool(self._run_id) and (await self._latest()).run_id != run
        return False

    cancel = _sent(Messages.cancel)
    signal = _sent(Messages.signal)
    feed = _sent(Messages.feed)
    approve = _sent(Messages.approve)
    reject = _sent(Messages.reject)

    async def stream(self, step: str | None = None, start: int = 0) -> AsyncIterator[Chunk]:
        """The chunks that a step of the run, or all of them, emit; see `Client.stream`."""
        self._by.base.check_open()
        run = await self._by.base.store.runs.get(self._run_id) if self._run_id else None
        if run is None:
            run, _ = await self._by.base.require(self.id)
        async for chunk in self._by.queries.stream_run(run, step, start, goes_on=True):
            yield chunk

    def __await__(self) -> Generator[Any, None, R]:
        return self.result().__await__()

    def __repr__(self) -> str:
        return f"<run {self.id!r}>"


async def run_result(base: StoreClient, row: RunRow, program: Program | None, id: str, run_id: str) -> RunResult[Any]:
    """How a run ended: its row, with values of the types of its program and exceptions as they were raised."""
    if row.status in (RunStatus.COMPLETED, RunStatus.BAILED):
        output = await base.payloads.load(row.output_blob, row.output)
        if REFERENCE in bytes(output):
            output = await base.items.whole(output, base.codec.limit)
        returns = program.returns if program is not None and row.status is RunStatus.COMPLETED else Any
        output = Raw(without_skips(output)) if program is None else output
        value = base.codec.decode(output, returns, f"the result of run {id!r}")
        return RunResult(id, run_id, row.status, value, program=row.program, tags=dict(row.tags))
    error: BaseException
    if row.status is RunStatus.CANCELLED:
        error = RunCancelled(id, row.reason or None)
    elif row.status is RunStatus.PARKED:
        error = RunParked(id, row.reason)
    else:
        assert row.error is not None
        error = rebuild(row.error, base.codec, program.errors if program is not None else {})
        if isinstance(error, StepError):
            traceback = row.error.traceback or error.traceback
            failed = RunFailed(id, error.type, error.message, traceback, error.attributes)
            failed.__cause__ = error.__cause__
            for note in getattr(error, "__notes__", ()):
                failed.add_note(note)
            error = failed
        elif row.error.traceback:
            add_note(error, f"in run {id!r}:\n{row.error.traceback.rstrip()}")
    return RunResult(id, run_id, row.status, error=error, program=row.program, tags=dict(row.tags))
