"""The run that a request is about: its row and journal, and its values as the caller may see them. Changes nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import Raw

from perdure.client.client import Client
from perdure.client.folded import in_slices
from perdure.errors import NoSuchRun
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    Entry,
    InputReplaced,
    RunClaimed,
    RunResumed,
    RunStarted,
    blob_of,
    entries,
)
from perdure.kernel.projection import RunRow, child_path
from perdure.kernel.state import RunState
from perdure.kernel.values.failures import Failure
from perdure.kernel.values.redact import VALUES, redacted_row, value_of, without_texts, without_values
from perdure.kernel.values.redaction import Removed
from perdure.ports.journal import Head
from perdure.server import shapes
from perdure.server.access import Access
from perdure.server.routing import KIB

if TYPE_CHECKING:
    from perdure.server.op_table import OpTable
    from perdure.server.service import Service

# Longer values are replaced by a link, and sent on request.
INLINE = 16 * KIB
# The name, in a link, of the run's own values; values of events have the number of the event.
RUN = "run"


class RequestedRun:
    """One run of the store, or of a capsule that is viewed and not imported.

    `address` identifies it in requests: the run_id of its root, or the address of the capsule. `child` is its op path
    in the root; empty for the root itself.
    """

    def __init__(self, service: Service, client: Client, access: Access, address: str, row: RunRow, head: Head) -> None:
        self.service, self.client, self.access = service, client, access
        self.address, self.head = address, head
        self.redaction = service.redaction(access)
        # Values removed from its input and output, to remove them from texts as well.
        self.removed = Removed()
        self.row = redacted_row(row, self.redaction, self.removed)
        self.root, self.child = row.root or row.run_id, child_path(row)

    @property
    def etag(self) -> str:
        """Its ETag, which changes with every event."""
        return f'"{_ascii(self.row.run_id)}:{self.head.next_seq}"'

    def is_at(self, etags: str) -> bool:
        """Whether one of the ETags in a header is its present one.

        Proxies that compress a response mark its ETag as weak, or add the encoding to it.
        """
        present = self.etag.strip('"')
        given = (one.strip().removeprefix("W/").strip('"') for one in (etags, *etags.split(",")))
        return any(one == "*" or _ENCODED.sub("", one) == present for one in given)

    async def check_root(self) -> None:
        """Raise NoSuchRun unless the caller may see the root, for a response that tells of the whole tree."""
        if not self.child or self.access.programs is None:
            return
        root = await self.client.store.runs.get(self.root)
        if root is None or not self.access.sees(root.program):
            raise NoSuchRun(self.root)

    # --- the journal ----------------------------------------------------------------------------------------------

    async def state(self) -> RunState:
        """Its folded journal. Do not keep it over an await: the next request may continue it."""
        return (await self.client._base.folded_states.read(self.root, self.head)).state

    async def table(self, enough: Callable[[OpTable], bool] = lambda table: False) -> OpTable:
        """The ops of its journal. Reading stops early once the table is `enough`."""
        return await self.service.op_tables.read(self.client.store.journal, self.address, self.root, enough)

    async def batches(self) -> list[Batch]:
        """Its whole journal. Reads in slices."""
        return await in_slices(self.client.store.journal, self.root)

    async def replayable(self) -> tuple[RunStarted, Sequence[Batch]]:
        """What a replay needs: how the run was started, and its events with offloaded values in place."""
        batches, payloads = await self.batches(), self.client.payloads
        about_it, offloaded = await asyncio.to_thread(_surveyed, batches)
        return await payloads.with_input(about_it), await payloads.inflate(batches) if offloaded else batches

    async def entries(self, start: int, limit: int) -> list[Entry]:
        """At most `limit` events of the root's journal, from a number on."""
        return entries(self.root, await self.client.store.journal.read(self.root, start, limit), start, self.row.run_id)

    # --- values ---------------------------------------------------------------------------------------------------

    async def value(self, place: str, data: Raw, blob: str, *names: str, arguments: Sequence[str] | None = None) -> Any:
        """A value for a response: the value, or a link to it. `names` are the names it goes by, for redaction."""
        loaded = await self.client.payloads.load(blob, data) if blob else data
        return self.shown(place, loaded, *names, arguments=arguments)

    def shown(self, place: str, data: Raw, *names: str, arguments: Sequence[str] | None = None) -> Any:
        """As `value`, for one that is not in a blob."""
        data = self.redacted(data, *names, arguments=arguments)
        return data if len(data) <= INLINE else self.elsewhere(place, len(data))

    def redacted(self, data: Raw, *names: str, arguments: Sequence[str] | None = None) -> Raw:
        """A value without the parts that are redacted for the caller."""
        return Raw(self.redaction.value(data, *names, arguments=arguments, removed=self.removed))

    async def of_event(self, event: AnyEvent, field: str, seq: int) -> Any:
        """A value of an event for a response; None if the event has none."""
        data = getattr(event, field, None)
        if data is None:
            return None
        blob = str(getattr(event, VALUES[field], "")) if VALUES.get(field) else ""
        loaded = await self.client.payloads.load(blob, data) if blob else data
        seen = Raw(value_of(event, field, loaded, self.redaction, self.removed))
        return seen if len(seen) <= INLINE else self.elsewhere(f"{seq}/{field}", len(seen))

    def published(self, place: str, key: str, data: bytes) -> Any:
        """A published value for a response."""
        seen = Raw(self.redaction.keyed(key, data, self.removed))
        return seen if len(seen) <= INLINE else self.elsewhere(place, len(seen))

    def plain(self, value: Any, *names: str) -> Any:
        """As `redacted`, for a decoded value."""
        return self.redaction.plain(value, *names, removed=self.removed) if self.redaction else value

    def text(self, text: str) -> str:
        """A text without redacted values."""
        return self.redaction.text(text, self.removed)

    def failure(self, failure: Failure | None) -> shapes.FailureItem | None:
        """An error for a response, redacted."""
        return shapes.failure_item(self.redaction.failure(failure, self.removed))

    def event(self, event: AnyEvent) -> AnyEvent:
        """An event without redacted values; those in blobs are redacted when they are read."""
        if not self.redaction:
            return event
        return without_texts(without_values(event, self.redaction, self.removed), self.redaction, self.removed)

    def elsewhere(self, place: str, size: int | None) -> dict[str, Any]:
        """The link that replaces a long value in a response, relative to `api/v1/`."""
        query = f"?child={quote(self.child, safe='')}" if self.child else ""
        return {"$value": f"runs/{self.address}/values/{quote(place)}{query}", "bytes": size}

    def owns(self, op: str) -> bool:
        """Whether an op is in this run; events of the root are not in a child."""
        return not self.child or op == self.child or op.startswith(f"{self.child}/")


def _surveyed(batches: Sequence[Batch]) -> tuple[list[Batch], bool]:
    """The events about the start of a run, and whether any value is in a blob. Slow for a long journal."""
    about_it = [
        Batch(batch.seq, batch.at, events)
        for batch in batches
        if (events := [event for event in batch.events if isinstance(event, _ABOUT_IT)])
    ]
    return about_it, any(blob_of(event) for batch in batches for event in batch.events)


# What proxies add to an ETag: `-gzip` (Apache), `--gzip` (older Jetty), `;br`.
_ENCODED = re.compile(r"(--?|;)(gzip|br|zstd|deflate)$")

_ABOUT_IT = (RunStarted, InputReplaced, RunClaimed, RunResumed)


def _ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode().replace('"', "&quot;")
