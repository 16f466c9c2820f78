"""Export runs from a store into files, and import them into another one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from perdure.client.base import StoreClient
from perdure.client.folded import in_slices
from perdure.client.gateway import RunGateway
from perdure.client.queries import Queries
from perdure.client.views import RunView
from perdure.errors import AlreadyExists, Corrupt, InvalidCapsule
from perdure.kernel.divergence.recorded_source import source_ids
from perdure.kernel.events import AnyEvent, Batch, RunParked, RunReleased, encode_events, events_in
from perdure.kernel.history.capsule import Capsule, blobs_of, capsule_of, encode_capsule, read_capsule
from perdure.kernel.ids import SECRET
from perdure.kernel.projection import child_rows, row
from perdure.kernel.state import IMPORTED, REDACTED, RunState
from perdure.kernel.values.redact import redact as take_out
from perdure.ports.journal import Append


class Capsules:
    """Writes runs into files, and reads them from there."""

    def __init__(self, base: StoreClient, gateway: RunGateway, queries: Queries) -> None:
        self._base, self._gateway, self._queries = base, gateway, queries

    async def export(self, id: str, *, redact: Sequence[str] = (), always: Sequence[str] = ()) -> bytes:
        """A run as one file, a capsule: its journal with its children, its large values, and which program wrote it.

        `redact` removes values: `$.card.number` from every value, `charge:0.$.pan` from an op, `$..pan` at any depth,
        `*password*` under every key of such a name; one that matches nothing is an error. What `Engine(redact=...)`
        names, and `always`, is removed where it is.
        """
        paths = [redact] if isinstance(redact, str) else redact
        capsule, hidden = await self.capsule(id), (*self._base.redaction.texts, *always)
        return await asyncio.to_thread(lambda: encode_capsule(take_out(capsule, paths, hidden)))

    async def capsule(self, id: str) -> Capsule:
        """A run with its children and its large values."""
        run, _ = await self._base.require(id)
        root = run.root or run.run_id
        batches = await in_slices(self._base.store.journal, root)
        blobs: dict[str, bytes] = {}
        for blob in await asyncio.to_thread(blobs_of, batches):
            data = await self._base.store.blobs.get(blob)
            if data is None:
                raise Corrupt(f"the blob {blob}", "it is missing", root)
            blobs[blob] = data
        blobs |= await self._base.stored_structures(batches)
        started = batches[0].events[0]
        program = self._gateway.find_program(getattr(started, "program", ""))
        source = program.source().digest() if program is not None else ""
        make = partial(capsule_of, root, batches, blobs, source=source, now=self._base.clock.now())
        return await asyncio.to_thread(make)

    async def import_run(self, data: bytes) -> RunView:
        """Import a run from a capsule into this store, for reading and replaying; no engine executes it.

        A run that had not ended is parked here. A run that is already in this store is left as it is. Raises
        InvalidCapsule, and changes nothing, when the file was altered; AlreadyExists when its id belongs to another
        run.
        """
        self._base.check_open()
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidCapsule(f"it is a {type(data).__name__}; give the bytes of the file")
        capsule, state = await asyncio.to_thread(read_capsule, bytes(data))
        if capsule.program in SECRET:
            raise InvalidCapsule(
                "it holds a credential, which is not taken from a file; make one with perdure token new"
            )
        if not await self._is_here(capsule):
            structures = source_ids(capsule.batches)
            for blob in capsule.blobs.values():
                id = await self._base.store.blobs.put(blob)
                if id in structures:
                    await self._base.store.upkeep.keep(id)
            if not await self._base.append(self._arrival(capsule, state)) and not await self._is_here(capsule):
                raise AlreadyExists(capsule.id, "accepted just now", "import", capsule.program)
        view = await self._queries.get(capsule.run_id)
        assert view is not None
        return view

    async def _is_here(self, capsule: Capsule) -> bool:
        """Whether this run is in the store already. Raises AlreadyExists if another one has its id."""
        here = await self._base.store.journal.read(capsule.run_id)
        if here:
            if not _begins_with(here, capsule.batches):
                raise AlreadyExists(capsule.id, "of another content", "import", capsule.program)
            return True
        found = await self._base.store.runs.find(capsule.id)
        # The incarnations of one run may come one after another.
        if found is not None and not found[0].root and found[0].continued_as != capsule.run_id:
            raise AlreadyExists(capsule.id, found[0].status, "import", found[0].program)
        return False

    def _arrival(self, capsule: Capsule, state: RunState) -> Append:
        """The whole journal as one append. A run that has not ended is parked by it."""
        batches = list(capsule.batches)
        kind = REDACTED if capsule.redacted else IMPORTED
        stands = state.parked.kind if state.parked is not None else ""
        if state.finished is None and stands not in (kind, REDACTED):
            why = "it was imported, for reading and replaying; no engine executes it until it is resolved"
            if capsule.redacted:
                why = "it was imported, for reading and replaying. Redacted in it: " + ", ".join(capsule.redacted)
            events: list[AnyEvent] = [RunReleased(state.owner)] if state.owner is not None else []
            events.append(RunParked(why, kind))
            batches.append(Batch(state.next_seq, max(self._base.clock.now(), state.at), events))
            for event in events:
                state.fold(event, batches[-1].at)
        return Append(capsule.run_id, 0, batches, row(state), children=child_rows(state))


def _begins_with(here: Sequence[Batch], batches: Sequence[Batch]) -> bool:
    def flat(batches: Sequence[Batch]) -> list[bytes]:
        return [encode_events([event]) for event in events_in(batches)]

    mine = flat(batches)
    return flat(here)[: len(mine)] == mine
