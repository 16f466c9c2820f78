"""Wait until a run ends or rests, and answer its questions on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal, TypeAlias

from perdure.client.base import StoreClient
from perdure.client.chunks import ChunkReader, OpenChunk, answered
from perdure.client.messages import Messages
from perdure.client.views import Interrupt, RunResult, interrupts
from perdure.errors import NoSuchRun, RunParked, UsageError
from perdure.kernel.events import RunStatus, WaitResolved
from perdure.kernel.hints import did_you_mean
from perdure.kernel.policies.resting import at_rest
from perdure.kernel.program import Program
from perdure.kernel.projection import RunRow
from perdure.kernel.state import RunState

# Wait for the end of a run, or until it rests.
Until: TypeAlias = Literal["end", "rest"]
# What to answer, by the name of the question or by its path.
Answers: TypeAlias = Mapping[str, Any]


def check_answers(answers: Answers, program: Program | None) -> None:
    """Raise UsageError for an answer to a question that the program never asks."""
    known = None if program is None else program.question_names()
    if program is None or known is None:
        return
    for name in answers:
        if name not in known and not {":", "/"}.intersection(name):
            hint = did_you_mean(name, known)
            raise UsageError(f"answers={{{name!r}: ...}} answers nothing that {program.name} asks; {hint}")


class Rest:
    """One wait for a run to come to rest, with the answers that are still to be given."""

    def __init__(
        self, base: StoreClient, messages: Messages, answers: Answers, by: str | None, program: Program | None
    ) -> None:
        self._base, self._messages, self._answers, self._by = base, messages, dict(answers), by
        self._program = program
        # The questions that have been answered, by path and by name: they need no answer any more.
        self._answered: set[str] = set()

    async def wait(self, run: RunRow, until: Until) -> RunResult[Any] | None:
        """Wait until a run rests or is parked. None if it has ended, or if its end is awaited."""
        if run.root:
            raise UsageError(
                f"{run.id!r} is a child, and goes on with the run at the top; wait for its root, {run.root}, to rest"
            )
        check_answers(self._answers, self._program)
        run_id = run.run_id
        while True:
            state, chunks = await self._at_rest(run_id)
            if state.finished is not None and state.finished.continued_as:
                run_id = state.finished.continued_as
                continue
            if state.finished is not None:
                return None
            if state.parked is not None:
                if not await self._stays_parked(run_id, state.next_seq):
                    continue
                error = RunParked(run.id, state.parked.reason)
                tags = dict(run.tags)
                return RunResult(run.id, run_id, RunStatus.PARKED, error=error, program=run.program, tags=tags)
            asked = interrupts(state, self._program, self._base.codec, chunks)
            if await self._answer(run_id, asked):
                continue
            unasked = next((one for one in self._answers if one not in self._answered), None)
            if unasked is not None and asked:
                raise UsageError(
                    f"answers={{{unasked!r}: ...}} answers nothing that run {run.id!r} asks; it asks "
                    f"for {', '.join(f'{one.name!r} ({one.path})' for one in asked)}"
                )
            if until == "end":
                return None
            return RunResult(run.id, run_id, state.status, program=run.program, tags=dict(run.tags), interrupts=asked)

    async def _answer(self, run_id: str, asked: tuple[Interrupt, ...]) -> bool:
        """Give what was asked for and is known; False when nothing of it is."""
        found: dict[str, list[Interrupt]] = {}
        for one in asked:
            key = one.path if one.path in self._answers else one.name
            if key in self._answers:
                found.setdefault(key, []).append(one)
        for key, several in found.items():
            if len(several) > 1 and several[0].kind == "approval":
                paths = ", ".join(one.path for one in several)
                raise UsageError(
                    f"answers={{{key!r}: ...}}: run {several[0].id!r} asks that more than once; nothing was answered. "
                    f"Answer by path: {paths}"
                )
        for key, (one, *_) in found.items():
            if one.kind == "approval":
                await self._messages.approve(run_id, one.path, self._answers[key], by=self._by)
            else:
                await self._messages.signal(one.id, one.name, self._answers[key])
            del self._answers[key]
        return bool(found)

    async def _stays_parked(self, run_id: str, seq: int) -> bool:
        """Whether a run stays parked after this process has tried it again; False as soon as it continues."""
        with self._base.followers.follow(run_id) as follower:
            ended = asyncio.ensure_future(self._base.watch.wait_for_end(run_id))
            gone_on = asyncio.ensure_future(follower.beyond(seq))
            try:
                await asyncio.wait({ended, gone_on}, return_when=asyncio.FIRST_COMPLETED)
                return not gone_on.done() and ended.result().status is RunStatus.PARKED
            finally:
                ended.cancel()
                gone_on.cancel()

    async def _at_rest(self, run_id: str) -> tuple[RunState, Sequence[OpenChunk]]:
        """The state of a run as soon as it rests, with that of its chunks."""
        state = RunState(run_id)
        followers, reader = self._base.followers, ChunkReader(self._base.store)
        # Chunks without questions do not come to rest before they end.
        asks = self._program is None or self._program.asks
        with followers.follow(run_id, status_only=True) as follower:
            while True:
                batches = await self._base.store.journal.read(run_id, state.next_seq)
                for batch in batches:
                    for event in batch.events:
                        if isinstance(event, WaitResolved):
                            self._answered |= answered(state, event.op)
                        state.fold(event, batch.at)
                if state.started is None:
                    raise NoSuchRun(run_id)
                chunks = await reader.under_way(state) if asks else ()
                self._answered |= reader.answered
                if at_rest(state, [one.state for one in chunks]):
                    return state, chunks
                with ExitStack() as stack:
                    waits = [follower.beyond(state.next_seq)]
                    for chunk in chunks:
                        of_chunk = stack.enter_context(followers.follow(chunk.state.run_id, status_only=True))
                        waits.append(of_chunk.beyond(chunk.state.next_seq))
                    goes_on = await (waits[0] if len(waits) == 1 else _first(waits))
                if not goes_on and await self._base.store.runs.get(run_id) is None:
                    raise NoSuchRun(state.started.id)


async def _first(waits: Iterable[Coroutine[Any, Any, bool]]) -> bool:
    """The result of the first of several waits that ends."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return all(task.result() for task in done)
    finally:
        for task in tasks:
            task.cancel()
