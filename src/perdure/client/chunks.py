"""The open chunks of a run: each is a run itself, and its questions count as questions of the run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.kernel.chunks import open_chunks
from perdure.kernel.events import WaitResolved
from perdure.kernel.policies.resting import questions
from perdure.kernel.state import RunState
from perdure.ports.store import Store


class OpenChunk(msgspec.Struct, frozen=True):
    """An open chunk. `scope` precedes its op paths in the run with the map: empty, or a path that ends with a slash."""

    scope: str
    state: RunState

    def questions(self, name: str) -> list[str]:
        """The op paths, in the chunk's run, of the questions with a name, or of the one at a path of the run."""
        found = (op for op in questions(self.state) if self.state.ops[op].opened is not None)
        return [op for op in found if name in (f"{self.scope}{op}", self.state.ops[op].name.rpartition("/")[2])]


def answered(state: RunState, op: str, scope: str = "") -> set[str]:
    """The path of a question, and its name."""
    question = state.ops.get(op)
    return {f"{scope}{op}"} if question is None else {f"{scope}{op}", question.name.rpartition("/")[2]}


class ChunkReader:
    """Reads the open chunks of a run; of each chunk, only events that it has not read before."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._states: dict[str, RunState] = {}
        # The questions that have an answer, by path and by name.
        self.answered: set[str] = set()

    async def under_way(self, state: RunState, scope: str = "") -> Sequence[OpenChunk]:
        """The open chunks of a run, and those inside their items, in the order they began."""
        found: list[OpenChunk] = []
        for op, id in open_chunks(state).items():
            if id not in self._states:
                row = await self._store.runs.find(id)
                if row is None:
                    continue
                self._states[id] = RunState(row[0].run_id)
            chunk, inner = self._states[id], f"{scope}{op[: op.rfind('/') + 1]}"
            for batch in await self._store.journal.read(chunk.run_id, chunk.next_seq):
                for event in batch.events:
                    if isinstance(event, WaitResolved):
                        self.answered |= answered(chunk, event.op, inner)
                    chunk.fold(event, batch.at)
            found += [OpenChunk(inner, chunk), *await self.under_way(chunk, inner)]
        return found
