"""`perdure stream`: follow what a step emits, also when its process or the store crashes in between."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from cyclopts import Parameter

from perdure.cli.clients import Follower, client_of, view_of
from perdure.cli.exits import ENDS, Exit, Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, RunId, StoreUrl, opened
from perdure.cli.output import clean, note, write_json
from perdure.client.views import Chunk
from perdure.kernel.events import RunStatus


def stream(
    id: RunId,
    step: Annotated[
        str | None, Parameter(help="An op path such as tokens:0, or a name, for the first step of that name.")
    ] = None,
    /,
    *,
    start: Annotated[int, Parameter(help="The number of the first chunk to show.")] = 0,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Follow what a step emits until it ends. Without a step, follow all steps until the run ends, and exit as it did.

    Each chunk is a line: text as it is, everything else as JSON. With --json,
    each line is an object with the number of the chunk.
    """
    if start < 0:
        raise Problem(f"--start {start}: chunks are numbered from 0")
    return asyncio.run(_Follower(id, step, start, store, json).until_end())


class _Follower(Follower):
    """Follows one stream by number."""

    def __init__(self, id: str, step: str | None, start: int, store: str, json: bool) -> None:
        super().__init__(id, start, store, json, "chunk")
        self._step = step

    async def _follow(self) -> int:
        async with client_of(opened(self._store)) as client:
            if self._run_id is None:
                view = await view_of(client, self._id)
                self._run_id = view.run_id
                if view.status is RunStatus.PARKED:
                    note(f"run {view.id!r} is parked; its stream continues when the run does: {view.reason}")
            # By run_id, once known: it includes later incarnations, but no other run under the same id.
            handle = client._handles.of(self._id, self._run_id, None)
            async for chunk in handle.stream(self._step, self._next):
                self._write(chunk)
                self._next = chunk.index + 1
            if self._step is not None:
                return Exit.OK
            status = await handle.status()
        return ENDS[status]

    def _write(self, chunk: Chunk) -> None:
        if self._json:
            write_json(chunk, line=True)
        elif chunk.restart:
            note(f"{chunk.path} starts over in attempt {chunk.attempt}: discard what it emitted before")
        else:
            value = chunk.value
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            path = "" if self._step is not None else f"{chunk.path}  "
            print(clean(f"{path}{text}", "\n\t"), flush=True)
