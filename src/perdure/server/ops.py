"""Routes that read the ops of a run: all of them in columns, or one in detail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from perdure.authoring.code.frames import arguments
from perdure.errors import NoSuchOp, UsageError
from perdure.kernel.events import NULL, Batch, Entry, StepStarted
from perdure.kernel.step_records import StepRecord, steps
from perdure.kernel.values.arguments import by_name
from perdure.server import shapes
from perdure.server.journals import SCANNED
from perdure.server.op_table import OpTable
from perdure.server.requested_run import RequestedRun
from perdure.server.routing import Call, Route
from perdure.server.service import time_of

# How many of the last chunks of a step are in its details.
CHUNKS = 100
# At most how many slices of a journal are read for one request for ops.
SLICES = 200
# The longest journal that is replayed to find a step's arguments, unless the caller asks for it.
REPLAYED = 20_000


async def list_ops(call: Call[shapes.OpsQuery, None]) -> shapes.Ops:
    """The ops of a run in columns, in the order in which they started."""
    run, query = await call.run(), call.query
    read, wanted = 0, query.after + query.limit

    def enough(table: OpTable) -> bool:
        nonlocal read
        read += 1
        # For a child, or with `since`, it is unknown how many ops must be searched.
        return read > SLICES or (len(table) > wanted and not query.child and not query.since)

    table = await run.table(enough)
    complete = table.next_seq >= run.head.next_seq
    return await table.page(query.child, query.after, query.since, query.limit, complete=complete)


async def get_op(call: Call[shapes.OpQuery, None]) -> shapes.OpDetail:
    """One op with its attempts, its value, and its arguments where they are known."""
    run, path = await call.run(), call.path["path"]
    path = f"{call.query.child}/{path}" if call.query.child else path
    table = await run.table(lambda table: path in table.rows and table.ending(table.rows[path]) is not None)
    number = table.rows.get(path)
    if number is None:
        raise NoSuchOp(path[:200], table.path[:20])
    first, last = table.first[number], table.seq[number]
    own: list[Entry] = []
    at = first
    while at <= last:
        found = await run.entries(at, min(SCANNED, last - at + 1))
        if not found:
            break
        own += [entry for entry in found if getattr(entry.event, "op", "") == path and entry.seq <= last]
        at = found[-1].seq + 1
    record = _record(own, path)
    events = {type(entry.event).__name__: entry.event for entry in own}
    opened: Any = events.get("WaitOpened") or events.get("ChildStarted") or events.get("ValueRecorded")
    resolved: Any = events.get("WaitResolved")
    finished: Any = events.get("ChildFinished")
    ending = next((one for one in own if one.seq == table.ending(number)), None)
    inputs, came_from = await _inputs(run, path, record, call.query.inputs)
    return shapes.OpDetail(
        path=path,
        kind=table.kind[number],
        status=table.status[number],
        source=table.source[number],
        name=getattr(opened, "name", "") or path.rpartition("/")[2].partition(":")[0],
        attempts=[] if record is None else _attempts(run, record),
        output=None if ending is None else await run.of_event(ending.event, "value", ending.seq),
        error=run.failure(record.error if record else getattr(finished, "error", None)),
        progress=None if record is None else run.shown(f"{last}/progress", record.progress, path),
        chunks=[] if record is None else [run.redacted(Raw(chunk), path) for chunk in record.chunks[-CHUNKS:]],
        input_hash="" if record is None or run.redaction else record.inputs_hash,
        inputs=None if inputs is None else run.plain(inputs, path),
        inputs_from=came_from,
        request=await run.of_event(opened, "request", first),
        schema=getattr(opened, "schema", None),
        deadline=time_of(getattr(opened, "deadline", None)),
        by="" if resolved is None else resolved.by,
        reason=run.text(getattr(finished, "reason", "")),
        replayed=record.replayed if record is not None else False,
        child_run_id=(table.children.get(path) or f"{run.root}/{path}") if table.kind[number] == "child" else None,
        first_seq=first,
        last_seq=last,
    )


def _record(own: Sequence[Entry], path: str) -> StepRecord | None:
    batches = [Batch(one.seq, one.at.timestamp(), [one.event]) for one in own]
    return next((record for record in steps(batches) if record.path == path and record.attempts), None)


def _attempts(run: RequestedRun, record: StepRecord) -> list[shapes.AttemptItem]:
    return [
        shapes.AttemptItem(
            number=one.number,
            status=str(one.status),
            error=run.failure(one.error),
            started_at=datetime.fromtimestamp(one.started_at, UTC),
            finished_at=time_of(one.finished_at),
            retry_at=time_of(one.retry_at),
            fallback=one.fallback,
        )
        for one in record.attempts
    ]


async def _inputs(run: RequestedRun, path: str, record: StepRecord | None, replayed: bool | None) -> tuple[Any, Any]:
    """The arguments of a step by name, and their origin: `record` or `replay`."""
    if record is None:
        return None, None
    if record.names or record.input_blob or record.input != NULL:
        data = await run.client.payloads.load(record.input_blob, record.input)
        return by_name(record.names, data), "record"
    programs = run.service.programs.here
    if programs is None or replayed is False or (replayed is None and run.head.next_seq > REPLAYED):
        return None, None
    started, whole = await run.replayable()
    try:
        found = await asyncio.to_thread(
            arguments, programs, run.client.codec, run.root, started, _until(whole, path), None
        )
    except UsageError:
        return None, None  # this process lacks the program of the run, or its version
    inputs = found.get(path)
    return (None, None) if inputs is None else (msgspec.to_builtins(inputs, enc_hook=repr), "replay")


def _until(batches: Sequence[Batch], path: str) -> list[Batch]:
    """The part of a journal up to the first attempt of a step."""
    found: list[Batch] = []
    for batch in batches:
        for number, event in enumerate(batch.events):
            if isinstance(event, StepStarted) and event.op == path:
                return [*found, Batch(batch.seq, batch.at, batch.events[: number + 1])]
        found.append(batch)
    return found


async def list_items(call: Call[shapes.ItemsQuery, None]) -> shapes.Items:
    """The items of a map, or the rows of a batch, that have started."""
    query, run = call.query, await call.run()
    found = await run.client.items(
        run.row.run_id, query.op, status=query.status, start=query.start, limit=query.limit + 1
    )
    page = found[: query.limit]
    return shapes.Items(
        items=[
            shapes.MapItem(
                one.index,
                one.path,
                one.status,
                run.plain(one.output, one.path),
                run.failure(one.error),
                run.text(one.reason),
            )
            for one in page
        ],
        next=page[-1].index + 1 if len(found) > query.limit else None,
    )


ROUTES = (
    Route(method="GET", path="runs/{run}/ops", role="read", handler=list_ops, query=shapes.OpsQuery, result=shapes.Ops),
    Route(
        method="GET",
        path="runs/{run}/ops/{path:path}",
        role="read",
        handler=get_op,
        query=shapes.OpQuery,
        result=shapes.OpDetail,
    ),
    Route(
        method="GET",
        path="runs/{run}/items",
        role="read",
        handler=list_items,
        query=shapes.ItemsQuery,
        result=shapes.Items,
    ),
)
