"""The run that a request is about: its row, its journal, and its values as the caller may see them. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import Raw

from perdure.client.client import Client
from perdure.client.folded import in_slices
from perdure.kernel.events import Batch, Entry, entries
from perdure.kernel.projection import RunRow, child_path
from perdure.kernel.state import RunState
from perdure.ports.journal import Head
from perdure.server.access import Access
from perdure.server.routing import KIB

if TYPE_CHECKING:
    from perdure.server.op_table import OpTable
    from perdure.server.service import Service

# A longer value is sent when it is asked for.
INLINE = 16 * KIB
# The place of a run's own values, beside the numbers of events.
RUN = "run"


class FoundRun:
    """One run of the store, or of a capsule that is only looked at.

    `address` is how it is asked for: the run_id of its root, or the address of the capsule. `child` is its op path in
    the root; empty for the root itself.
    """

    def __init__(self, service: Service, client: Client, access: Access, address: str, row: RunRow, head: Head) -> None:
        self.service, self.client, self.access = service, client, access
        self.address, self.row, self.head = address, row, head
        self.root, self.child = row.root or row.run_id, child_path(row)

    @property
    def etag(self) -> str:
        """Its ETag: it changes with every event."""
        return f'"{_ascii(self.row.run_id)}:{self.head.next_seq}"'

    # --- the journal ----------------------------------------------------------------------------------------------

    async def state(self) -> RunState:
        """Its folded journal. Do not keep it over an await: the next request may continue it."""
        return (await self.client._base.folded.read(self.root, self.head)).state

    async def table(self) -> OpTable:
        """The ops of its journal, up to its present end."""
        return await self.service.tables.read(self.client.store.journal, self.address, self.root)

    async def batches(self) -> list[Batch]:
        """Its whole journal, read in slices."""
        return await in_slices(self.client.store.journal, self.root)

    async def entries(self, start: int, limit: int) -> list[Entry]:
        """At most `limit` events of the root's journal, from a number on."""
        return entries(self.root, await self.client.store.journal.read(self.root, start, limit), start, self.row.run_id)

    # --- values ---------------------------------------------------------------------------------------------------

    async def value(self, place: str, data: Raw, blob: str) -> Any:
        """A value for an answer: itself, or where it is to be had."""
        return self.shown(place, await self.client.payloads.load(blob, data) if blob else data)

    def shown(self, place: str, data: Raw) -> Any:
        """As `value`, for one that is here."""
        return data if len(data) <= INLINE else self.elsewhere(place, len(data))

    def elsewhere(self, place: str, size: int | None) -> dict[str, Any]:
        """What stands for a value in an answer: where it is to be had, relative to `api/v1/`."""
        query = f"?child={quote(self.child, safe='')}" if self.child else ""
        return {"$value": f"runs/{self.address}/values/{quote(place)}{query}", "bytes": size}

    def owns(self, op: str) -> bool:
        """Whether an op is part of it, or what an event without one is about."""
        return not self.child or op == self.child or op.startswith(f"{self.child}/")


def _ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode().replace('"', "&quot;")
