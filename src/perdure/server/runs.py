"""Routes that read runs: lists, one run, its ops, its journal, its values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw
from starlette.responses import Response

from perdure.client.views import Loaded, RunSummary, run_summary
from perdure.client.why import Why
from perdure.errors import NoSuchOp, NoSuchRun
from perdure.kernel.events import AnyEvent, Batch, Entry, RunStatus, entries
from perdure.kernel.projection import RunRow, child_path
from perdure.kernel.step_records import StepRecord, steps
from perdure.kernel.values.failures import Failure
from perdure.ports.journal import Head
from perdure.ports.runs import RunFilter
from perdure.server import shapes
from perdure.server.access import Access
from perdure.server.paging import cursor, key_of
from perdure.server.problems import FieldError, Problem
from perdure.server.routing import Call, Reply, Route
from perdure.server.service import Service, seconds_of, time_of

# The fields of events that hold values of users, and the field that names the blob of an offloaded one.
VALUES = {"value": "blob", "input": "input_blob", "payload": "", "request": "", "progress": "", "output": ""}
# The place of a run's own values, beside the numbers of events.
RUN = "run"
# How many events are read at a time where most of them may not be wanted, and how many in one request.
SCANNED, SCANNED_AT_MOST = 1000, 20_000


def run_item(row: RunRow, head: Head) -> dict[str, Any]:
    """The fields of a run that need no look into its journal."""
    same = ("id", "run_id", "program", "version", "status", "reason", "owner", "epoch", "tags", "priority")
    fields = {name: getattr(row, name) for name in (*same, "incarnation", "approvals")}
    error = None if row.error is None else shapes.ErrorItem(row.error.type, row.error.message[:1000])
    return fields | {
        "error": error,
        "parent": row.parent or None,
        "root": row.root or row.run_id,
        "forked_from": row.forked_from or None,
        "continued_as": row.continued_as or None,
        "created_at": time_of(row.created_at),
        "updated_at": time_of(head.at),
        "began_at": time_of(row.began_at),
        "finished_at": time_of(row.finished_at),
        "due_at": time_of(row.wake_at),
        "next_seq": head.next_seq,
        "size": head.size,
        "queue": row.queue or None,
        "key": row.queue_key or None,
    }


def statuses(given: Sequence[str]) -> list[RunStatus]:
    """Statuses of a query, each perhaps several with commas."""
    found = []
    for one in (part for text in given for part in text.split(",") if part):
        try:
            found.append(RunStatus(one))
        except ValueError:
            detail = f"{one[:40]!r} is no status; there are {', '.join(RunStatus)}"
            raise Problem(422, "invalid_request", detail, fields=[FieldError("status", detail)]) from None
    return found


def tags(given: Sequence[str]) -> dict[str, str] | None:
    """Tags of a query."""
    found = {}
    for one in given:
        key, colon, value = one.partition(":")
        if not colon or not key:
            detail = f"{one[:40]!r} is no tag; write key:value"
            raise Problem(422, "invalid_request", detail, fields=[FieldError("tag", detail)])
        found[key] = value
    return found or None


def failure_item(failure: Failure | None) -> shapes.FailureItem | None:
    """An error for an answer."""
    if failure is None:
        return None
    return shapes.FailureItem(
        failure.type,
        failure.message,
        failure.traceback,
        failure_item(failure.cause),
        [item for one in failure.errors if (item := failure_item(one)) is not None],
        failure.data if len(failure.data) else None,
    )


async def list_runs(call: Call[shapes.RunsQuery, None]) -> shapes.Runs:
    """List runs, newest first, without their values."""
    query, service = call.query, call.service
    after = key_of(query.cursor, query)
    wanted = statuses(query.status)
    if query.parked is not None:
        wanted = [RunStatus.PARKED]
    filter = RunFilter(
        status=wanted,
        program=query.program,
        tags=tags(query.tag),
        since=seconds_of(query.since, "since"),
        until=seconds_of(query.until, "until"),
        owner=query.owner,
        parent=query.parent,
        root=query.root,
        queue=query.queue,
        id_prefix=query.q or None,
        limit=query.limit + 1,
        cursor=after,
        built_in=query.program is not None,
    )
    found = await _found(service, call.access, filter)
    page, more = found[: query.limit], len(found) > query.limit
    why: dict[str, shapes.WhyItem] = {}
    if query.why:
        summaries = [_summary(row, head) for row, head in page]
        why = {id: _why(one) for id, one in (await service.client.reasons(summaries)).items()}
    return shapes.Runs(
        runs=[shapes.RunItem(**run_item(row, head)) for row, head in page],
        next=cursor(page[-1][0].run_id, query) if more else None,
        why=why,
    )


async def _found(service: Service, access: Access, filter: RunFilter) -> Sequence[tuple[RunRow, Head]]:
    """A page of runs that may be seen. Of several programs, it is what the pages of each have first."""
    runs = service.client.store.runs
    if access.programs is None:
        return await runs.list(filter)
    if filter.program is not None:
        return await runs.list(filter) if access.sees(filter.program) else ()
    pages = [await runs.list(msgspec.structs.replace(filter, program=name)) for name in sorted(access.programs)]
    every = sorted((one for page in pages for one in page), key=lambda one: one[0].run_id, reverse=True)
    return every[: filter.limit]


def _summary(row: RunRow, head: Head) -> RunSummary:
    return run_summary(Loaded(row), head)


def _why(why: Why) -> shapes.WhyItem:
    return shapes.WhyItem(why.kind, why.text, why.until)


async def count_runs(call: Call[shapes.CountsQuery, None]) -> shapes.Counts:
    """Count runs by status, by program, or by both."""
    by = [part.strip() for part in call.query.by.split(",")]
    if not set(by) <= {"status", "program"}:
        raise Problem(422, "invalid_request", f"by={call.query.by[:40]!r}: count by status, program, or both")
    return await call.service.counts(
        call.access, tuple(by), seconds_of(call.query.since, "since"), seconds_of(call.query.until, "until")
    )


async def get_run_by_id(call: Call[shapes.ByIdQuery, None]) -> Reply:
    """The newest run under a caller's id."""
    found = await call.service.client.store.runs.find(call.query.id)
    if found is None or not call.access.sees(found[0].program):
        raise NoSuchRun(call.query.id)
    return await _detail(call.service, call.access, *found)


async def get_run(call: Call[shapes.RunQuery, None]) -> Reply:
    """A run as it stands."""
    row, head = await call.service.run(call.access, call.path["run"], call.query.child)
    if call.request.headers.get("if-none-match") == etag(row, head):
        return Reply(None, 304, etag=etag(row, head))
    return await _detail(call.service, call.access, row, head)


def etag(row: RunRow, head: Head) -> str:
    """What a run's ETag is: it changes with every event."""
    return f'"{_ascii(row.run_id)}:{head.next_seq}"'


def _ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode().replace('"', "&quot;")


async def _detail(service: Service, access: Access, row: RunRow, head: Head) -> Reply:
    state = await service.state(row, head)
    path = child_path(row)
    inside = f"{path}/" if path else ""
    values = state.child_values.get(path, {}) if path else state.values
    parked = state.parked if row.status is RunStatus.PARKED else None
    reasons = await service.client.reasons([_summary(row, head)])
    waits = []
    for at, op in state.ops.items():
        if op.running or not at.startswith(inside):
            continue
        asked = op.opened
        waits.append(
            shapes.WaitItem(
                path=at,
                kind="retry" if op.kind == "step" else op.kind,
                deadline=time_of(op.due),
                source=op.source,
                name=op.name.rpartition("/")[2] if asked is None else asked.name,
                request=None if asked is None else service.shown(row, f"{RUN}/request:{at}", asked.request, access),
                schema=None if asked is None else asked.schema,
                approvers=[] if asked is None else list(asked.approvers),
            )
        )
    detail = shapes.RunDetail(
        **run_item(row, head),
        input=await service.value(row, f"{RUN}/input", row.input, row.input_blob, access),
        output=await service.value(row, f"{RUN}/output", row.output, row.output_blob, access),
        failure=failure_item(row.error),
        state={key: service.shown(row, f"{RUN}/state:{key}", value, access) for key, value in values.items()},
        waits=waits,
        locks=[lock.key for op, lock in state.locks.items() if op.startswith(inside)],
        parked=parked.kind if parked is not None else None,
        divergence=parked.divergence if parked is not None else None,
        continued_from=(state.started.continued_from or None) if state.started is not None and not path else None,
        why=_why(reasons[row.run_id]) if row.run_id in reasons else None,
    )
    return Reply(detail, etag=etag(row, head))


# --- ops -------------------------------------------------------------------------------------------------------------


async def list_ops(call: Call[shapes.OpsQuery, None]) -> shapes.Ops:
    """The ops of a run in columns, in the order they began."""
    row, _ = await call.service.run(call.access, call.path["run"], call.query.child)
    table = await call.service.table(row)
    return table.page(call.query.child, call.query.after, call.query.since, call.query.limit)


async def get_op(call: Call[shapes.RunQuery, None]) -> shapes.OpDetail:
    """One op with its attempts, its value, and its arguments where they are known."""
    service, path = call.service, call.path["path"]
    row, _ = await service.run(call.access, call.path["run"], call.query.child)
    path = f"{call.query.child}/{path}" if call.query.child else path
    table = await service.table(row)
    number = table.rows.get(path)
    if number is None:
        raise NoSuchOp(path[:200], table.path[:20])
    root = row.root or row.run_id
    first, last = table.first[number], table.seq[number]
    own: list[Entry] = []
    at = first
    while at <= last:
        found = entries(root, await service.client.store.journal.read(root, at, SCANNED), at)
        if not found:
            break
        own += [entry for entry in found if getattr(entry.event, "op", "") == path and entry.seq <= last]
        at = found[-1].seq + 1
    record = _record(own, path)
    events = {type(entry.event).__name__: entry.event for entry in own}
    opened: Any = events.get("WaitOpened") or events.get("ChildStarted") or events.get("ValueRecorded")
    resolved: Any = events.get("WaitResolved")
    output: Any = None
    if (ending := table.brought.get(path)) is not None:
        entry = next((one for one in own if one.seq == ending), None)
        if entry is not None:
            output = await _value_of(service, call.access, row, entry.seq, entry.event)
    inputs, came_from = await _inputs(service, row, path, record)
    status = table.status[number]
    return shapes.OpDetail(
        path=path,
        kind=table.kind[number],
        status=status,
        source=table.source[number],
        name=getattr(opened, "name", "") or path.rpartition("/")[2].partition(":")[0],
        attempts=[] if record is None else _attempts(record),
        output=output,
        error=failure_item(record.error if record else getattr(events.get("ChildFinished"), "error", None)),
        progress=None if record is None else service.shown(row, f"{last}/progress", record.progress, call.access),
        chunks=[] if record is None else [Raw(chunk) for chunk in record.chunks[-100:]],
        input_hash="" if record is None else record.inputs_hash,
        inputs=inputs,
        inputs_from=came_from,
        request=_of_wait(service, call.access, row, opened, "request", first),
        schema=_of_wait(service, call.access, row, opened, "schema", first),
        deadline=time_of(getattr(opened, "deadline", None)),
        by="" if resolved is None else resolved.by,
        reason=getattr(events.get("ChildFinished"), "reason", ""),
        replayed=record.replayed if record is not None else False,
        child_run_id=(table.children.get(path) or f"{root}/{path}") if table.kind[number] == "child" else None,
        first_seq=first,
        last_seq=last,
    )


def _record(own: Sequence[Entry], path: str) -> StepRecord | None:
    batches = [Batch(one.seq, one.at.timestamp(), [one.event]) for one in own]
    return next((record for record in steps(batches) if record.path == path and record.attempts), None)


def _attempts(record: StepRecord) -> list[shapes.AttemptItem]:
    return [
        shapes.AttemptItem(
            number=one.number,
            status=str(one.status),
            error=failure_item(one.error),
            started_at=datetime.fromtimestamp(one.started_at, UTC),
            finished_at=time_of(one.finished_at),
            retry_at=time_of(one.retry_at),
            fallback=one.fallback,
        )
        for one in record.attempts
    ]


def _of_wait(service: Service, access: Access, row: RunRow, opened: Any, field: str, seq: int) -> Any:
    value = getattr(opened, field, None)
    return None if value is None else service.shown(row, f"{seq}/{field}", value, access)


async def _inputs(service: Service, row: RunRow, path: str, record: StepRecord | None) -> tuple[Any, Any]:
    """The arguments of a step by name, and where they come from."""
    if record is None:
        return None, None
    for view in await service.client.steps(row.run_id):
        if view.path == path and view.inputs is not None:
            recorded = bool(record.names) or bool(record.input_blob)
            return msgspec.to_builtins(view.inputs, enc_hook=repr), "record" if recorded else "replay"
    return None, None


# --- the journal -----------------------------------------------------------------------------------------------------


async def list_events(call: Call[shapes.JournalQuery, None]) -> shapes.Journal:
    """The events of a run, a page at a time."""
    service, query = call.service, call.query
    row, head = await service.run(call.access, call.path["run"], query.child)
    root, path, kinds = row.root or row.run_id, child_path(row), set(query.kind)
    found: list[shapes.EventItem] = []
    at, read = query.start, 0
    while len(found) < query.limit and read < SCANNED_AT_MOST:
        page = entries(root, await service.client.store.journal.read(root, at, SCANNED), at, row.run_id)
        if not page:
            break
        for entry in page:
            at = entry.seq + 1
            if _is_asked_for(entry.event, path, kinds, query.op):
                found.append(await event_item(service, call.access, row, entry))
                if len(found) == query.limit:
                    break
        read += len(page)
    return shapes.Journal(events=found, next=at if at < head.next_seq else None, next_seq=head.next_seq)


def _is_asked_for(event: AnyEvent, path: str, kinds: set[str], op: str | None) -> bool:
    if kinds and type(event).__name__ not in kinds:
        return False
    own: str = getattr(event, "op", "") or getattr(event, "child", "")
    if path and own != path and not own.startswith(f"{path}/"):
        return False
    return op is None or own == op


async def event_item(service: Service, access: Access, row: RunRow, entry: Entry) -> shapes.EventItem:
    """An event for an answer: long values by where they are to be had."""
    event = entry.event
    shown = msgspec.json.decode(msgspec.json.encode(event), type=dict[str, Raw])
    kind = msgspec.json.decode(shown.pop("type"))
    for name in VALUES:
        data = getattr(event, name, None)
        if isinstance(data, Raw) and (name in shown or _blob(event, name)):
            shown[name] = _as_raw(await _field(service, access, row, entry.seq, event, name))
    for name, value in shown.items():
        if name not in VALUES:
            shown[name] = _as_raw(service.shown(row, f"{entry.seq}/{name}", value, access))
    return shapes.EventItem(entry.seq, entry.run_id, entry.at, kind, shown)


def _blob(event: AnyEvent, name: str) -> str:
    """The blob of a value of an event, if it is offloaded."""
    return str(getattr(event, VALUES[name], "")) if VALUES[name] else ""


def _as_raw(value: Any) -> Raw:
    return value if isinstance(value, Raw) else Raw(msgspec.json.encode(value))


async def _field(service: Service, access: Access, row: RunRow, seq: int, event: AnyEvent, name: str) -> Any:
    """A value of an event; an offloaded one only by where it is to be had."""
    if _blob(event, name):
        return {"$value": service.url_of(row, f"{seq}/{name}"), "bytes": None}
    return service.shown(row, f"{seq}/{name}", getattr(event, name), access)


async def _value_of(service: Service, access: Access, row: RunRow, seq: int, event: AnyEvent) -> Any:
    blob = getattr(event, "blob", "")
    value = getattr(event, "value", None)
    return None if value is None else await service.value(row, f"{seq}/value", value, blob, access)


async def get_value(call: Call[shapes.ValueQuery, None]) -> Response:
    """A value as JSON text, exactly as it is stored."""
    service, place, field = call.service, call.path["seq"], call.path["field"]
    row, head = await service.run(call.access, call.path["run"], call.query.child)
    if place == RUN:
        data = await _of_run(service, row, head, field)
    else:
        data = await _of_event(service, row, place, field, call.query.item)
    headers = {"Cache-Control": "no-store"}
    if call.query.download:
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{row.run_id}-{place}-{field}")[:100]
        headers["Content-Disposition"] = f'attachment; filename="{name}.json"'
    return Response(bytes(data), media_type="application/json", headers=headers)


async def _of_run(service: Service, row: RunRow, head: Head, field: str) -> Raw:
    if field == "input":
        return await service.client.payloads.load(row.input_blob, row.input)
    if field == "output":
        return await service.client.payloads.load(row.output_blob, row.output)
    what, colon, name = field.partition(":")
    state, path = await service.state(row, head), child_path(row)
    if what == "state" and colon:
        values = state.child_values.get(path, {}) if path else state.values
        if name in values:
            return Raw(values[name])
    if what == "request" and name in state.ops:
        asked = state.ops[name].opened
        if asked is not None:
            return asked.request
    raise _no_value(f"{RUN}/{field}")


async def _of_event(service: Service, row: RunRow, place: str, field: str, item: int) -> Raw:
    root, path = row.root or row.run_id, child_path(row)
    if not (place.isascii() and place.isdecimal() and len(place) < 16):
        raise _no_value(f"{place}/{field}")
    found = entries(root, await service.client.store.journal.read(root, int(place), 1), int(place))
    if not found or found[0].seq != int(place) or not _is_asked_for(found[0].event, path, set(), None):
        raise _no_value(f"{place}/{field}")
    event = found[0].event
    if field in VALUES and isinstance(getattr(event, field, None), Raw):
        return await service.client.payloads.load(_blob(event, field), getattr(event, field))
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
    Route(method="GET", path="runs", role="read", handler=list_runs, query=shapes.RunsQuery, result=shapes.Runs),
    Route(
        method="GET",
        path="runs/counts",
        role="read",
        handler=count_runs,
        query=shapes.CountsQuery,
        result=shapes.Counts,
    ),
    Route(
        method="GET",
        path="runs/by-id",
        role="read",
        handler=get_run_by_id,
        query=shapes.ByIdQuery,
        result=shapes.RunDetail,
    ),
    Route(
        method="GET", path="runs/{run}", role="read", handler=get_run, query=shapes.RunQuery, result=shapes.RunDetail
    ),
    Route(method="GET", path="runs/{run}/ops", role="read", handler=list_ops, query=shapes.OpsQuery, result=shapes.Ops),
    Route(
        method="GET",
        path="runs/{run}/ops/{path:path}",
        role="read",
        handler=get_op,
        query=shapes.RunQuery,
        result=shapes.OpDetail,
    ),
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
