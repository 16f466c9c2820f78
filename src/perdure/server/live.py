"""Routes that stream: the events of a run, the chunks of a step, and which runs of the store have changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from perdure.server import shapes
from perdure.server.journals import event_item
from perdure.server.problems import Problem, ProblemBody
from perdure.server.routing import SSE, Call, Route
from perdure.server.streams import EventStream, Message


def resumed(call: Call[Any, Any]) -> int:
    """The number of the first message to send: the one after the last that the client has."""
    last = call.last_event_id
    if last.isascii() and last.isdecimal() and len(last) < 16:
        return int(last) + 1
    after: int | None = call.query.after
    return 0 if after is None else after + 1


async def follow_run(call: Call[shapes.FollowQuery, None]) -> EventStream:
    """The events of a run as they are committed; the id of each is its number."""
    run = await call.run()
    start = resumed(call)

    async def messages() -> AsyncIterator[Message]:
        async for entry in run.client.follow(run.row.run_id, start):
            yield Message(msgspec.json.encode(await event_item(run, entry)), str(entry.seq), "entry")
        latest = await run.client.store.runs.get(run.row.run_id) or run.row
        ended = shapes.RunEnd(latest.status, latest.continued_as or None)
        yield Message(msgspec.json.encode(ended), event="end")

    return opened(call, messages)


async def stream_run(call: Call[shapes.StreamQuery, None]) -> EventStream:
    """The chunks that a step emits, as they are committed; the id of each is its number."""
    run, step = await call.run(), call.query.step
    start = resumed(call)

    async def messages() -> AsyncIterator[Message]:
        async for chunk in run.client.stream(run.row.run_id, step, start):
            value = run.plain(chunk.value, chunk.path)
            item = shapes.ChunkItem(chunk.index, chunk.path, value, chunk.attempt, chunk.restart)
            yield Message(msgspec.json.encode(item), str(chunk.index), "chunk")
        latest = await run.client.store.runs.get(run.row.run_id) or run.row
        yield Message(msgspec.json.encode(shapes.StreamEnd(latest.status)), event="end")

    return opened(call, messages)


async def follow_store(call: Call[shapes.ChangesQuery, None]) -> EventStream:
    """Which runs of the store have changed. Connect first, and read what you show when `hello` has come.

    `changed` has the run_ids of new runs that have changed, and `more` when older ones may have, too; `reset` says that
    some changes were missed: read everything again.
    """
    changes = call.service.changes

    async def messages() -> AsyncIterator[Message]:
        changes.listen()
        yield Message(b"{}", "" if call.last_event_id else changes.last, "hello")
        async for change in changes.follow(call.last_event_id or changes.last):
            if change is None:
                yield Message(b"{}", changes.last, "reset")
            elif change.event:
                yield Message(b"{}", change.id, change.event)
            else:
                seen = [run_id for run_id, program in change.runs if call.access.sees(program)]
                item = shapes.ChangedItem(seen, change.more)
                yield Message(msgspec.json.encode(item), change.id, "changed")

    return opened(call, messages)


def opened(call: Call[Any, Any], messages: Callable[[], AsyncIterator[Message]]) -> EventStream:
    """Open a stream. Raises a Problem (503) when too many are open."""
    # Without an access everyone is this machine: callers are not told apart.
    caller = "" if call.access.by == "machine" else call.access.name
    call.service.streams.take(caller)

    async def admit() -> None:
        now = await call.admit()
        if (now.programs, now.redact) != (call.access.programs, call.access.redact):
            # What has been read is for the access of then. The client connects again, with the one of now.
            raise Problem(403, "access_changed", f"what {now.name} may see has changed", hint="connect again")

    return EventStream(call.service.streams, messages(), admit, caller)


# The last event of a stream that cannot continue.
PROBLEM = {"problem": ProblemBody}

ROUTES = (
    Route(
        method="GET",
        path="events",
        role="read",
        handler=follow_store,
        query=shapes.ChangesQuery,
        media=SSE,
        events={"hello": shapes.Nothing, "changed": shapes.ChangedItem, "reset": shapes.Nothing, **PROBLEM},
    ),
    Route(
        method="GET",
        path="runs/{run}/events",
        role="read",
        handler=follow_run,
        query=shapes.FollowQuery,
        media=SSE,
        events={"entry": shapes.EventItem, "end": shapes.RunEnd, **PROBLEM},
    ),
    Route(
        method="GET",
        path="runs/{run}/stream",
        role="read",
        handler=stream_run,
        query=shapes.StreamQuery,
        media=SSE,
        events={"chunk": shapes.ChunkItem, "end": shapes.StreamEnd, **PROBLEM},
    ),
)
