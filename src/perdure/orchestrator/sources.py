"""Store the source of each program that runs here once: checks and explanations need it after the code has changed.

The structure of a graph or a flow is stored in the same way: views of its runs need it in processes without the code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from perdure.errors import Corrupt, PerdureError
from perdure.kernel.divergence.recorded_source import source_ids
from perdure.kernel.divergence.source import NO_SOURCE, Source, decode_source
from perdure.kernel.events import Batch, RunStarted
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Program
from perdure.kernel.state import RunState
from perdure.logs import log
from perdure.ports.store import Store

# How long a claim waits at most until the source that it names is stored.
MOMENT = 1.0
# How many recorded sources are kept in memory.
MOST = 1000


class ProgramSources:
    """Stores the source of each program when it first runs here; `since` is when the process began."""

    def __init__(
        self, store: Store, programs: Programs, spawn: Callable[[Coroutine[Any, Any, Any]], None], since: float
    ) -> None:
        self._store, self._programs, self._spawn, self.since = store, programs, spawn, since
        # The blob of each program's source, by name and version: of those stored already, or being stored.
        self._codes: dict[tuple[str, str], str] = {}
        # Programs whose source a claim need not wait for, by name and version.
        self.ready: set[tuple[str, str]] = set()
        # The sources that runs were executed with, by id; empty ones if they cannot be read.
        self.recorded: dict[str, Source] = {}
        self._under_way = 0
        # Set while none is being stored.
        self._stored = asyncio.Event()
        self._stored.set()

    async def read(self, batches: Sequence[Batch]) -> None:
        """Read the sources that a run was executed with, unless they are known. Raises StoreUnavailable."""
        for code in source_ids(batches):
            if code not in self.recorded:
                if len(self.recorded) >= MOST:
                    del self.recorded[next(iter(self.recorded))]
                try:
                    data = await self._store.blobs.get(code)
                except Corrupt:
                    data = None  # the run goes on as one from before sources were stored
                self.recorded[code] = NO_SOURCE if data is None else decode_source(data)

    async def make_ready(self, started: RunStarted) -> None:
        """Store the source of the program that continues a run before its claim names it: a kill may follow at once."""
        self._code_of(started)
        if self._under_way:
            with suppress(TimeoutError):  # a run does not wait for what only explains it
                async with asyncio.timeout(MOMENT):
                    await self._stored.wait()
        self.ready.add((started.program, started.version))

    def changed(self, state: RunState) -> str:
        """The blob of the code that continues a run; empty if the journal names it already."""
        started = state.started
        if started is None:
            return ""
        code = self._codes.get((started.program, started.version))
        if code is None:
            code = self._code_of(started)
        return "" if code == (state.code or started.structure) else code

    def _code_of(self, started: RunStarted) -> str:
        code = self._codes.get((started.program, started.version))
        if code is None:
            serves = self._programs.serves(started.program, started.version)
            program = self._programs.find(started.program, started.version) if serves else None
            code = "" if program is None else self._put_source(program.name, program.source())
            self._codes[started.program, started.version] = code
        return code

    def store(self, program: Program) -> None:
        """Store the structure of a program that runs as a child."""
        if self._codes.get((program.name, program.version)) != program.structure:
            self._codes[program.name, program.version] = self._put_source(program.name, program.source())

    def forget(self, name: str) -> None:
        """A program was defined again: its source is read again."""
        for known in [known for known in self._codes if known[0] == name]:
            del self._codes[known]
        self.ready = {known for known in self.ready if known[0] != name}

    def _put_source(self, name: str, source: Source) -> str:
        code = source.digest()
        if code:
            self._under_way += 1
            self._stored.clear()
            self._spawn(self._put(name, code, source.encode()))
        return code

    async def _put(self, name: str, code: str, data: bytes) -> None:
        try:
            # A process that starts again with the same code writes nothing.
            if await self._store.blobs.get(code) is None:
                await self._store.upkeep.keep(await self._store.blobs.put(data))
        except PerdureError as error:
            log.warning(
                "the source of %s could not be stored: %s. Runs are not affected; `why` cannot show it", name, error
            )
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._stored.set()

    async def stored(self) -> None:
        """Wait until no source is being stored."""
        await self._stored.wait()
