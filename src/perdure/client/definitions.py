"""Definitions of programs in a store, kept as long as there may be runs of them. Makes no program itself.

A definition is the input, in a blob, of a run of the built-in program `perdure.flow` that has ended when it begins. So
every store has them, and backups and copies hold them. One run has the version in its id, and is written once; one has
the name alone, and its last incarnation has the version that was stored last, which is the latest. Both are found by
id, however many runs there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw

from perdure.client.base import StoreClient
from perdure.client.gateway import decided
from perdure.client.queries import pages
from perdure.errors import Corrupt, NoSuchFlow, UsageError
from perdure.kernel.events import NULL, Batch, RunFinished, RunStarted, RunStatus, moment
from perdure.kernel.ids import STORED, stored_id
from perdure.kernel.inbound import UNDECIDED, Decided, Undecided
from perdure.kernel.program import Program, is_program
from perdure.kernel.projection import RunRow
from perdure.ports.appends import create
from perdure.ports.runs import RunFilter

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class FlowView:
    """A flow in a store: its name, its latest version, and since when it is that."""

    name: str
    version: str
    stored_at: datetime


class Definitions:
    """Stores definitions, and finds them."""

    def __init__(self, base: StoreClient) -> None:
        self._base = base
        # Name and version of definitions that are known to be stored.
        self._known: set[tuple[str, str]] = set()

    async def keep(self, program: Program, *, for_one_run: bool = False) -> None:
        """Store the definition of a program, if it has one, durably before a run of it begins.

        A version that was not stored yet becomes the latest of its name, unless it is meant `for_one_run`.
        """
        if (program.name, program.version) not in self._known and program.definition:
            if await self._find(program.name, program.version) is None:
                await self._put(program, latest=not (for_one_run or program.variant))
            self._known.add((program.name, program.version))

    async def store(self, program: Program) -> str:
        """Store the definition of a flow, as the latest of its name, and return its version.

        If it is the latest already, nothing is written.
        """
        self._base.check_open()
        if not is_program(program) or not program.definition:
            raise UsageError(f"store_flow() takes a flow, as load_flow() gives it, not {program!r:.80}")
        await self._put(program, latest=True)
        return program.version

    async def get(self, name: str) -> Any:
        """The flow that was stored last under a name, or as `name@version`, or the one with this version.

        It may use what the settings allow. Raises NoSuchFlow, and FlowInvalid if it may not be used here.
        """
        self._base.check_open()
        name, _, version = str(name).partition("@")
        found = await self.defined(name, version)
        if found is None and not version:
            wanted = RunFilter(program=STORED, tags={"version": name}, limit=1)
            rows = await self._base.store.runs.list(wanted)
            found = await self._made(rows[0][0], None) if rows else None
        if found is None:
            raise NoSuchFlow(f"{name}@{version}" if version else name, await self.names())
        return found

    async def defined(self, name: str, version: str, like: Program | None = None) -> Program | None:
        """Make a version of a program from its definition; without a version, the latest. None if none is stored.

        Raises UsageError if it cannot be made here. It may use what `like` may, if that is given.
        """
        row = await self._find(name, version)
        if row is None:
            return None
        self._known.add((name, row.version))
        return await self._made(row, like)

    async def has(self, name: str) -> bool:
        """Whether a definition of this name is stored."""
        return await self._find(name) is not None

    async def names(self) -> list[str]:
        """The names of all programs whose definitions are stored."""
        rows = [row async for row in self._rows()]
        return sorted({row.id.removeprefix(f"{STORED}:").partition("@")[0] for row in rows})

    async def flows(self) -> Sequence[FlowView]:
        """The stored flows by name: the latest version of each, and since when it is the latest."""
        self._base.check_open()
        found = [
            FlowView(row.id.removeprefix(f"{STORED}:"), row.version, moment(row.created_at))
            async for row in self._rows()
            if "@" not in row.id
        ]
        return sorted(found, key=lambda view: view.name)

    async def _rows(self) -> AsyncIterator[RunRow]:
        """The runs that hold definitions; for an id without a version, its latest incarnation."""
        seen = set[str]()
        async for page in pages(self._base.store, RunFilter(program=STORED, limit=_PAGE)):
            for row in page:
                if row.id not in seen:
                    seen.add(row.id)
                    yield row

    async def _made(self, row: RunRow, like: Program | None) -> Program:
        data = await self._base.store.blobs.get(row.input_blob)
        if data is None:
            raise Corrupt(f"the definition {row.id!r}", f"its blob {row.input_blob} is missing", row.run_id)
        return self._base.structures.defined(data, like)

    async def _find(self, name: str, version: str = "") -> RunRow | None:
        found = await self._base.store.runs.find(stored_id(name, version))
        return None if found is None else found[0]

    async def _put(self, program: Program, *, latest: bool) -> None:
        """Store a definition; with `latest`, also as the latest of its name."""
        # The latest first: if this process dies in between, the version is missing, and is stored the next time.
        for id in (*([stored_id(program.name)] if latest else []), stored_id(program.name, program.version)):
            await self._write(program, id)
        self._known.add((program.name, program.version))

    async def _write(self, program: Program, id: str) -> None:
        """Store a definition under an id, unless the same version is stored there."""
        blob = ""

        async def attempt() -> Decided[None] | Undecided:
            nonlocal blob
            found, now = await self._base.store.runs.find(id), self._base.clock.now()
            before = None if found is None else found[0]
            if before is not None and before.version == program.version:
                return Decided(None)
            blob = blob or await self._base.store.blobs.put(program.definition)
            started = RunStarted(
                id,
                STORED,
                program.version,
                NULL,
                input_blob=blob,
                incarnation=1 if before is None else before.incarnation + 1,
                tags={"flow": program.name, "version": program.version},
            )
            ended = RunFinished(RunStatus.COMPLETED, Raw(msgspec.json.encode(program.version)))
            past = [Batch(0, now, [started, ended])]
            written = await self._base.append(create(self._base.new_run_id(now), past))
            return Decided(None) if written else UNDECIDED

        await decided(attempt)
