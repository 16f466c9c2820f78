"""Routes that stream: what happens in a run, what its steps emit, and which runs of the store have changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from perdure.kernel.events import RunFinished
from perdure.server import shapes
from perdure.server.routing import SSE, Call, Route
from perdure.server.runs import event_item
from perdure.server.streams import EventStream, Message


def resumed(call: Call[Any, Any]) -> int:
    """The number of the first message that is wanted: after the one that came last."""
    last = call.request.headers.get("last-event-id", "")
    if last.isascii() and last.isdecimal() and len(last) < 16:
        return int(last) + 1
    after: int | None = call.query.after
    return 0 if after is None else after + 1


async def follow_run(call: Call[shapes.FollowQuery, None]) -> EventStream:
    """The events of a run as they are committed; the id of each is its number."""
    service = call.service
    row, _ = await service.run(call.access, call.path["run"], call.query.child)
    start = resumed(call)

    async def messages() -> AsyncIterator[Message]:
        status = row.status
        async for entry in service.client.follow(row.run_id, start):
            item = await event_item(service, call.access, row, entry)
            yield Message(msgspec.json.encode(item), str(entry.seq), "entry")
            if isinstance(entry.event, RunFinished):
                status = entry.event.status
        latest = await service.client.store.runs.get(row.run_id)
        ended = {"status": status if latest is None else latest.status}
        continued = None if latest is None else latest.continued_as or None
        yield Message(msgspec.json.encode(ended | {"continued_as": continued}), event="end")

    return opened(call, messages)


async def stream_run(call: Call[shapes.StreamQuery, None]) -> EventStream:
    """The chunks that a step emits, as they are committed; the id of each is its number."""
    service, step = call.service, call.query.step
    row, _ = await service.run(call.access, call.path["run"], call.query.child)
    start = resumed(call)

    async def messages() -> AsyncIterator[Message]:
        async for chunk in service.client.stream(row.run_id, step, start):
            item = {
                "index": chunk.index,
                "path": chunk.path,
                "value": chunk.value,
                "attempt": chunk.attempt,
                "restart": chunk.restart,
            }
            yield Message(msgspec.json.encode(item), str(chunk.index), "chunk")
        latest = await service.client.store.runs.get(row.run_id)
        yield Message(msgspec.json.encode({"status": row.status if latest is None else latest.status}), event="end")

    return opened(call, messages)


def opened(call: Call[Any, Any], messages: Callable[[], AsyncIterator[Message]]) -> EventStream:
    """A stream, if there are not too many."""
    call.service.streams.take()
    return EventStream(call.service.streams, messages())


ROUTES = (
    Route(
        method="GET",
        path="runs/{run}/events",
        role="read",
        handler=follow_run,
        query=shapes.FollowQuery,
        media=SSE,
    ),
    Route(
        method="GET",
        path="runs/{run}/stream",
        role="read",
        handler=stream_run,
        query=shapes.StreamQuery,
        media=SSE,
    ),
)
