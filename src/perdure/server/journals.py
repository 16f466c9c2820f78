"""Routes that read the journal of a run: its events, and the values in them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace
from starlette.responses import Response

from perdure.kernel.events import AnyEvent, Entry
from perdure.kernel.values.redact import VALUES, value_of
from perdure.server import shapes
from perdure.server.problems import Problem
from perdure.server.requested_run import INLINE, RUN, RequestedRun
from perdure.server.routing import Call, Route

# How many events are read at a time when a filter may skip most of them, and at most for one request.
SCANNED, SCANNED_AT_MOST = 250, 20_000
# How many of them are encoded in one turn of the event loop.
TURN = 50
# The size at which a page with whole values ends; its last value may exceed it.
WHOLE = 4 * 1024 * 1024


async def list_events(call: Call[shapes.JournalQuery, None]) -> shapes.Journal:
    """The events of a run, a page at a time."""
    query, run = call.query, await call.run()
    kinds = set(query.kind)
    found: list[shapes.EventItem] = []
    at, read, size = query.start, 0, 0
    while len(found) < query.limit and read < SCANNED_AT_MOST and size <= WHOLE:
        page = await run.entries(at, SCANNED)
        if not page:
            break
        for number, entry in enumerate(page):
            if number % TURN == TURN - 1:
                await asyncio.sleep(0)
            at = entry.seq + 1
            if _is_asked_for(entry.event, run, kinds, query.op):
                item = await whole_item(run, entry) if query.whole else await event_item(run, entry)
                found.append(item)
                size += sum(map(len, item.event.values())) if query.whole else 0
                if len(found) == query.limit or size > WHOLE:
                    break
        read += len(page)
        await asyncio.sleep(0)
    return shapes.Journal(events=found, next=at if at < run.head.next_seq else None, next_seq=run.head.next_seq)


def _is_asked_for(event: AnyEvent, run: RequestedRun, kinds: set[str], op: str | None) -> bool:
    if kinds and type(event).__name__ not in kinds:
        return False
    own: str = getattr(event, "op", "") or getattr(event, "child", "")
    return run.owns(own) and op in (None, own)


async def event_item(run: RequestedRun, entry: Entry) -> shapes.EventItem:
    """An event for a response, with links in place of long values."""
    event, seq = run.event(entry.event), entry.seq
    shown = msgspec.json.decode(msgspec.json.encode(event), type=dict[str, Raw])
    kind = msgspec.json.decode(shown.pop("type"))
    for name, value in shown.items():
        if name not in VALUES:
            shown[name] = value if len(value) <= INLINE else as_raw(run.elsewhere(f"{seq}/{name}", len(value)))
    for name in VALUES:
        data = getattr(event, name, None)
        if isinstance(data, Raw) and (name in shown or blob_of(event, name)):
            place = f"{seq}/{name}"
            large = run.elsewhere(place, None if blob_of(event, name) else len(data))
            shown[name] = as_raw(large) if blob_of(event, name) or len(data) > INLINE else data
    return shapes.EventItem(seq, entry.run_id, entry.at, kind, shown)


async def whole_item(run: RequestedRun, entry: Entry) -> shapes.EventItem:
    """As `event_item`, with every value in place."""
    event = entry.event
    for name, blob_field in VALUES.items():
        if blob := blob_of(event, name):
            data = await run.client.payloads.load(blob, getattr(event, name))
            event = replace(event, **{name: Raw(value_of(event, name, data, run.redaction)), blob_field: ""})
    shown = msgspec.json.decode(msgspec.json.encode(run.event(event)), type=dict[str, Raw])
    kind = msgspec.json.decode(shown.pop("type"))
    return shapes.EventItem(entry.seq, entry.run_id, entry.at, kind, shown)


def blob_of(event: AnyEvent, name: str) -> str:
    """The blob id of a value of an event; empty unless it is offloaded."""
    return str(getattr(event, VALUES[name], "")) if VALUES[name] else ""


def as_raw(value: Any) -> Raw:
    """A part of a response as JSON."""
    return value if isinstance(value, Raw) else Raw(msgspec.json.encode(value))


async def get_value(call: Call[shapes.ValueQuery, None]) -> Response:
    """A value as JSON text, exactly as it is stored."""
    run, place, field = await call.run(), call.path["seq"], call.path["field"]
    if place == RUN:
        data = await _of_run(run, field)
    else:
        data = await _of_event(run, place, field, call.query.item)
    headers = {"Cache-Control": "no-store"}
    if call.query.download:
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{run.row.run_id}-{place}-{field}")[:100]
        headers["Content-Disposition"] = f'attachment; filename="{name}.json"'
    return Response(bytes(data), media_type="application/json", headers=headers)


async def _of_run(run: RequestedRun, field: str) -> Raw:
    row, load = run.row, run.client.payloads.load
    if field == "input":
        return run.redacted(await load(row.input_blob, row.input), "input", arguments=())
    if field == "output":
        return run.redacted(await load(row.output_blob, row.output), "output")
    what, colon, name = field.partition(":")
    state = await run.state()
    if what == "state" and colon:
        values = state.child_values.get(run.child, {}) if run.child else state.values
        if name in values:
            return Raw(run.redaction.keyed(name, values[name]))
    if what == "request" and name in state.ops and run.owns(name):
        asked = state.ops[name].opened
        if asked is not None:
            return run.redacted(asked.request, name, asked.name)
    raise _no_value(f"{RUN}/{field}")


async def _of_event(run: RequestedRun, place: str, field: str, item: int) -> Raw:
    if not (place.isascii() and place.isdecimal() and len(place) < 16):
        raise _no_value(f"{place}/{field}")
    found = await run.entries(int(place), 1)
    if not found or found[0].seq != int(place) or not _is_asked_for(found[0].event, run, set(), None):
        raise _no_value(f"{place}/{field}")
    event = run.event(found[0].event)
    if field in VALUES and isinstance(getattr(event, field, None), Raw):
        data = await run.client.payloads.load(blob_of(event, field), getattr(event, field))
        return Raw(value_of(event, field, data, run.redaction))
    shown = msgspec.json.decode(msgspec.json.encode(event), type=dict[str, Raw])
    chunks: Sequence[Raw] = getattr(event, "chunks", ())
    if field == "chunk" and item < len(chunks):
        return chunks[item]
    if field in shown:
        return shown[field]
    raise _no_value(f"{place}/{field}")


def _no_value(where: str) -> Problem:
    return Problem(404, "no_such_value", f"the run has no value at {where[:200]!r}")


ROUTES = (
    Route(
        method="GET",
        path="runs/{run}/journal",
        role="read",
        handler=list_events,
        query=shapes.JournalQuery,
        result=shapes.Journal,
    ),
    Route(
        method="GET",
        path="runs/{run}/values/{seq}/{field:path}",
        role="read",
        handler=get_value,
        query=shapes.ValueQuery,
        result=Any,
    ),
)
