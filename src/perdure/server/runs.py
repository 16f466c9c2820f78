"""Routes that read runs: lists, counts, and one run as it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.client.folded import sliced
from perdure.client.queries import COUNTED, RowPage
from perdure.client.views import Loaded, RunSummary, run_summary
from perdure.client.why import Why
from perdure.errors import NoSuchRun
from perdure.kernel.events import RunParked, RunStatus, moment
from perdure.kernel.ids import BUILT_IN, check_cursor, flaw_of
from perdure.kernel.projection import RunRow
from perdure.kernel.values.redact import redacted_row
from perdure.kernel.values.redaction import Redaction, Removed
from perdure.ports.journal import Head
from perdure.ports.runs import RunFilter, Span
from perdure.server import shapes
from perdure.server.access import Access
from perdure.server.paging import cursor, key_of
from perdure.server.problems import FieldError, Problem
from perdure.server.requested_run import RUN, RequestedRun
from perdure.server.routing import Call, Reply, Route
from perdure.server.service import MAX_PATH, seconds_of, time_of

# The length of a bucket in seconds, and the default number of buckets, by kind.
BUCKETS = {"minute": (60, 60), "hour": (3600, 48), "day": (86_400, 30)}
# How many runs a search among redacted values reads at a time, and how many pages of them for one response.
SEARCH_PAGE, PAGES_SEARCHED = 200, 500
# How many parked runs are searched for those with one kind of reason, for one response.
PARKED_SEARCHED = 1000
# How many characters of an error message a list shows.
MESSAGE = 1000


def run_item(row: RunRow, head: Head) -> dict[str, Any]:
    """The fields of a run that are in its row."""
    same = ("id", "run_id", "program", "version", "status", "reason", "owner", "epoch", "tags", "priority")
    fields = {name: getattr(row, name) for name in (*same, "incarnation", "approvals")}
    error = None if row.error is None else shapes.ErrorItem(row.error.type, row.error.message[:MESSAGE])
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
    """The statuses in a query: repeated, or separated by commas."""
    found = []
    for one in (part for text in given for part in text.split(",") if part):
        try:
            found.append(RunStatus(one))
        except ValueError:
            detail = f"{one[:40]!r} is not a status; there are {', '.join(RunStatus)}"
            raise Problem(422, "invalid_request", detail, fields=[FieldError("status", detail)]) from None
    return found


def tags(given: Sequence[str]) -> dict[str, str] | None:
    """The tags in a query."""
    found = {}
    for one in given:
        key, colon, value = one.partition(":")
        if not colon or not key:
            detail = f"{one[:40]!r} is no tag; write key:value"
            raise Problem(422, "invalid_request", detail, fields=[FieldError("tag", detail)])
        found[key] = value
    return found or None


async def list_runs(call: Call[shapes.RunsQuery, None]) -> shapes.Runs:
    """List runs, newest first, without their values."""
    query, service = call.query, call.service
    filter = await run_filter(call)
    after = key_of(query.cursor, query) or check_cursor(query.before, "before")
    hidden = query.program is not None and not call.access.sees(query.program)
    wanted = statuses(query.status)
    hidden |= query.parked is not None and bool(wanted) and RunStatus.PARKED not in wanted
    found = RowPage(()) if hidden else await _page(call, filter, after)
    redaction = service.redaction(call.access)
    seen = [_seen(row, head, redaction) for row, head in found.rows]
    why: dict[str, shapes.WhyItem] = {}
    if query.why:
        reasons = await service.client._queries.reasons_in(UTC, [_summary(row, head) for row, head, _ in seen])
        texts = {row.run_id: text for row, _, text in seen}
        why = {id: _why(one, texts[id], call.access) for id, one in reasons.items()}
    runs: list[shapes.RunItem] = []
    for some in sliced(seen):
        runs += [shapes.RunItem(**run_item(row, head)) for row, head, _ in some]
        await asyncio.sleep(0)
    return shapes.Runs(
        runs=runs,
        next=None if found.cursor is None else cursor(found.cursor, query),
        why=why,
        searched=found.searched,
        exact=None if hidden or after is not None else await _exact(call),
    )


async def _exact(call: Call[shapes.RunsQuery, None]) -> shapes.RunItem | None:
    """The run whose id or run_id is what is searched for, whatever the other filters are."""
    text = (call.query.q or "").strip()
    if not text or _searches(text) or flaw_of(text, MAX_PATH) is not None:
        return None
    found = await call.service.client._base.find(text)
    if found is None or not call.access.sees(found[0].program):
        return None
    row, head, _ = _seen(*found, call.service.redaction(call.access))
    return shapes.RunItem(**run_item(row, head))


def _searches(text: str) -> bool:
    """Whether a text is a condition on values, rather than the beginning of an id."""
    return text.startswith(("input", "output", "error")) and "=" in text


async def _page(call: Call[shapes.RunsQuery, None], filter: RunFilter, after: str | None) -> RowPage:
    """A page of the runs that match as the caller sees them: neither it nor its cursor tells of redacted values.

    It may be shorter than asked for, and more may follow it, where what is searched for is in no row.
    """
    queries, access, limit = call.service.client._queries, call.access, call.query.limit
    redaction, kind = call.service.redaction(access), kind_of(call.query.parked)
    guessing = bool(redaction) and (filter.match is not None or bool(filter.tags))
    if not guessing and kind is None:
        return await queries.page(filter, limit, after, access.listed)
    seen: list[tuple[RunRow, Head]] = []
    searched: int | None = None
    size = max(limit, SEARCH_PAGE)
    for _ in range(PAGES_SEARCHED if kind is None else max(1, PARKED_SEARCHED // size)):
        found = await queries.page(filter, size, after, access.listed)
        some = [one for one in found.rows if not guessing or filter.fits(redacted_row(one[0], redaction), one[1])]
        seen += some if kind is None else await queries.parked_as(some, kind)
        if len(seen) > limit:
            return RowPage(seen[:limit], seen[limit - 1][0].run_id)
        after, searched = found.cursor, found.searched
        if after is None or searched is not None:
            break
        await asyncio.sleep(0)
    return RowPage(seen, after, searched)


def kind_of(parked: str | None) -> str | None:
    """The kind of reason in a query for parked runs; None for any."""
    return None if parked in (None, "", "true") else parked


def _seen(row: RunRow, head: Head, redaction: Redaction) -> tuple[RunRow, Head, Callable[[str], str]]:
    """A row as the caller sees it, with what removes its redacted values from its texts."""
    removed = Removed()
    return redacted_row(row, redaction, removed), head, partial(redaction.text, removed=removed)


async def run_filter(call: Call[shapes.RunsQuery, None]) -> RunFilter:
    """The filter of a query, for the store."""
    query = call.query
    text = (query.q or "").strip()
    searches = _searches(text)
    parked = query.parked is not None
    filter = await call.service.client._queries.filter(
        "runs",
        {
            "status": [RunStatus.PARKED] if parked else statuses(query.status) or None,
            "program": query.program,
            "tags": tags(query.tag),
            "since": _zoned(query.since, "since"),
            "until": _zoned(query.until, "until"),
            "owner": query.owner,
            "parent": query.parent,
            "root": None if query.root in (None, "true") else query.root,
            "queue": query.queue,
            "id_prefix": None if searches else text,
            "roots": query.root == "true",
            "search": text if searches else None,
        },
    )
    # Values are only read if they have to be removed from texts.
    return replace(filter, values=bool(call.service.redaction(call.access)))


def _zoned(at: datetime | None, name: str) -> datetime | None:
    _ = seconds_of(at, name)
    return at


def _summary(row: RunRow, head: Head) -> RunSummary:
    return run_summary(Loaded(row), head)


def _why(why: Why, text: Callable[[str], str], access: Access) -> shapes.WhyItem:
    said = why.text
    if why.kind in ("lock", "remote") and access.programs is not None:
        said = said.partition(" held by ")[0]  # the holder may be a run that the caller may not see
    return shapes.WhyItem(why.kind, text(said), why.until)


async def count_runs(call: Call[shapes.CountsQuery, None]) -> shapes.Counts:
    """Count runs by status, by program, or by both."""
    by = [part.strip() for part in call.query.by.split(",")]
    if not set(by) <= {"status", "program"}:
        raise Problem(422, "invalid_request", f"by={call.query.by[:40]!r}: count by status, program, or both")
    return await call.service.run_counts.counts(call.access, by)


async def ended_runs(call: Call[shapes.HistogramQuery, None]) -> shapes.Histogram:
    """How many runs ended in each minute, hour or day."""
    query, client = call.query, call.service.client
    width, usual = BUCKETS[query.bucket]
    last = seconds_of(query.until, "until")
    last = client.clock.now() if last is None else last
    first = seconds_of(query.since, "since")
    # Bounds are rounded to whole buckets, so that two requests give the same ones.
    end = -(-last // width) * width
    start = end - usual * width if first is None else first // width * width
    if start < 0:
        raise Problem(422, "invalid_request", "since, until: no run ended before 1970")
    buckets = round((end - start) / width)
    if not 1 <= buckets <= shapes.MOST_BUCKETS:
        detail = f"from since to until are {buckets:,} buckets; ask for 1 to {shapes.MOST_BUCKETS:,}"
        raise Problem(422, "invalid_request", detail)
    counted: list[dict[str, int]] = [{} for _ in range(buckets)]
    for one in await client.store.runs.count_ended(Span(start, end, buckets), query.program, COUNTED):
        built_in = query.program is None and one.program.startswith(BUILT_IN)
        if call.access.sees(one.program) and not built_in:
            counts = counted[one.bucket]
            counts[one.status.value] = counts.get(one.status.value, 0) + one.count
    items = [shapes.BucketItem(moment(start + n * width), counts) for n, counts in enumerate(counted)]
    return shapes.Histogram(query.bucket, items)


async def get_run_by_id(call: Call[shapes.ByIdQuery, None]) -> Reply:
    """The newest run under a caller's id."""
    found = await call.service.client.store.runs.find(call.query.id)
    if found is None or not call.access.sees(found[0].program):
        raise NoSuchRun(call.query.id)
    row, head = found
    address = row.root or row.run_id
    run = RequestedRun(call.service, call.service.client, call.access, address, row, head)
    return Reply(await detail_of(run, journal=call.query.journal), etag=run.etag)


async def get_run(call: Call[shapes.OneRunQuery, None]) -> Reply:
    """A run as it is now."""
    run = await call.run()
    if run.is_at(call.request.headers.get("if-none-match", "")):
        return Reply(None, 304, etag=run.etag)
    return Reply(await detail_of(run, journal=call.query.journal), etag=run.etag)


async def detail_of(run: RequestedRun, *, journal: bool = True) -> shapes.RunDetail:
    """A run for a response. Without its journal, only the fields of its row are set."""
    row = run.row
    return shapes.RunDetail(
        **run_item(row, run.head),
        input=await run.value(f"{RUN}/input", row.input, row.input_blob, "input", arguments=()),
        output=await run.value(f"{RUN}/output", row.output, row.output_blob, "output"),
        failure=shapes.failure_item(row.error),
        **(await _from_journal(run) if journal else {}),
    )


async def _from_journal(run: RequestedRun) -> dict[str, Any]:
    """The fields of a run that only its journal has."""
    row = run.row
    reasons = await run.client._queries.reasons_in(UTC, [_summary(row, run.head)])
    graphs = (await run.table()).graphs if run.child else ()
    state = await run.state()
    inside = f"{run.child}/" if run.child else ""
    values = state.child_values.get(run.child, {}) if run.child else state.values
    parked = state.parked if row.status is RunStatus.PARKED else None
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
                request=None if asked is None else run.shown(f"{RUN}/request:{at}", asked.request, at, asked.name),
                schema=None if asked is None else asked.schema,
                approvers=[] if asked is None else list(asked.approvers),
            )
        )
    started = state.started
    return {
        "state": {key: run.published(f"{RUN}/state:{key}", key, value) for key, value in values.items()},
        "waits": waits,
        "locks": [lock.key for op, lock in state.locks.items() if op.startswith(inside)],
        "parked": parked.kind if parked is not None else None,
        "divergence": _divergence(run, parked),
        "continued_from": (started.continued_from or None) if started is not None and not run.child else None,
        "trace": (started.trace or None) if started is not None and not run.child else None,
        "why": _why(reasons[row.run_id], run.text, run.access) if row.run_id in reasons else None,
        "graph": run.child in graphs if run.child else bool(started and started.structure),
    }


def _divergence(run: RequestedRun, parked: RunParked | None) -> Any:
    if parked is None or parked.divergence is None:
        return None
    return run.redaction.texts_in(msgspec.to_builtins(parked.divergence), run.removed)


def _reading(path: str, handler: Any, query: type[Any], result: Any) -> Route:
    return Route(method="GET", path=path, role="read", handler=handler, query=query, result=result)


ROUTES = (
    _reading("runs", list_runs, shapes.RunsQuery, shapes.Runs),
    _reading("runs/counts", count_runs, shapes.CountsQuery, shapes.Counts),
    _reading("runs/histogram", ended_runs, shapes.HistogramQuery, shapes.Histogram),
    _reading("runs/by-id", get_run_by_id, shapes.ByIdQuery, shapes.RunDetail),
    _reading("runs/{run}", get_run, shapes.OneRunQuery, shapes.RunDetail),
)
