"""Routes of bulk actions: one action on many runs. A run performs it, so it continues without the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.client.bulk_runs import BulkRequest, Filters, Progress
from perdure.client.views import RunView
from perdure.errors import NoSuchRun
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import BULK
from perdure.server import shapes
from perdure.server.messages import digest, reply_to, write_audit
from perdure.server.problems import FieldError, Problem
from perdure.server.routing import Call, Reply, Route
from perdure.server.runs import kind_of, statuses
from perdure.server.service import seconds_of

# How many runs a dry run names.
NAMED = 1000


async def start_bulk(call: Call[None, shapes.BulkBody]) -> Reply:
    """Apply one action to many runs. `bulk/{id}` shows the progress."""
    request, client = _request(call), call.service.client
    if call.body.dry_run:
        return Reply(await _dry_run(call, request), 200)
    id = f"bulk-{digest(call.key)}" if call.key else None
    before = None if id is None else await client.store.runs.find(id)
    if before is not None:
        # Another caller may have sent the same key.
        return Reply(_item(call, await _view(call, before[0].id)), 200)
    handle = await client._bulk_runs.start(request, id)
    write_audit(call, f"started {request.action} of many runs, run", handle.run_id)
    view = await client.get(handle.id)
    assert view is not None
    return Reply(_item(call, view), 202)


def _request(call: Call[None, shapes.BulkBody]) -> BulkRequest:
    body, given, options = call.body, call.body.filter, call.body.options
    filters = Filters()
    if given is not None:
        for name in ("since", "until"):
            _ = seconds_of(getattr(given, name), name)
        text = given.q or ""
        searches = text.startswith(("input", "output", "error")) and "=" in text
        filters = Filters(
            status=_statuses(given),
            program=given.program,
            tags=given.tags or None,
            since=given.since,
            until=given.until,
            owner=given.owner,
            parent=given.parent,
            root=None if given.root == "true" else given.root,
            roots=given.root == "true",
            parked=kind_of(given.parked),
            queue=given.queue,
            id_prefix=None if searches else text or None,
            search=text if searches else None,
        )
    return BulkRequest(
        body.action,
        None if body.ids is None else tuple(dict.fromkeys(body.ids)),
        filters,
        options.reason,
        options.name,
        options.payload,
        options.signal_id,
        call.access.name,
        None if call.access.listed is None else tuple(sorted(call.access.listed)),
        call.service.redaction(call.access).texts,
    )


def _statuses(given: shapes.BulkFilter) -> tuple[RunStatus, ...]:
    """The statuses of a filter. Raises a Problem for those that no parked run has, where parked ones are asked for."""
    found = tuple(statuses(given.status))
    if given.parked is None:
        return found
    if found and RunStatus.PARKED not in found:
        detail = "filter: no run is parked and in another status"
        raise Problem(422, "invalid_request", detail, fields=[FieldError("/filter/parked", detail)])
    return (RunStatus.PARKED,)


async def _dry_run(call: Call[None, shapes.BulkBody], request: BulkRequest) -> shapes.BulkItem:
    """The runs that a bulk action would act on."""
    ids: list[str] = []
    failures: list[shapes.BulkFailure] = []
    cursor: str | None = None
    while len(ids) < NAMED:
        selected = await call.service.client._bulk_runs.select(request, cursor)
        ids += selected.run_ids
        failures += [shapes.BulkFailure(id, error) for id, error in selected.failures]
        cursor = selected.cursor
        if cursor is None:
            break
    more = cursor is not None or len(ids) > NAMED
    return shapes.BulkItem(
        id=None, run_id=None, action=request.action, status=None, ids=ids[:NAMED], failures=failures[:NAMED], more=more
    )


async def get_bulk(call: Call[None, None]) -> shapes.BulkItem:
    """The progress of a bulk action."""
    return _item(call, await _view(call, call.path["id"]))


async def abort_bulk(call: Call[None, shapes.EmptyBody]) -> Reply:
    """Stop a bulk action. Runs that were acted on stay as they are."""
    view = await _view(call, call.path["id"])
    verdict = await call.service.client.cancel(view.id, "aborted", by=call.access.name)
    write_audit(call, "aborted", view.run_id)
    return reply_to(verdict)


async def _view(call: Call[None, Any], id: str) -> RunView:
    view = await call.service.client.get(id)
    if view is None or view.program != BULK:
        raise NoSuchRun(id[:200])
    wanted = view.input["request"].get("programs")
    if call.access.listed is not None and (wanted is None or not call.access.listed.issuperset(wanted)):
        raise NoSuchRun(id[:200])
    return view


def _item(call: Call[Any, Any], view: RunView) -> shapes.BulkItem:
    text = call.service.redaction(call.access).text
    action: str = view.input["request"]["action"]
    progress = Progress()
    if view.output is not None:
        progress = msgspec.convert(view.output, Progress)
    elif "counts" in view.state:
        progress = Progress(**view.state["counts"], failures=_pairs(view.state.get("failures", ())))
    else:
        progress = msgspec.convert(view.input["progress"], Progress)
    return shapes.BulkItem(
        id=view.id,
        run_id=view.run_id,
        action=action,
        status=view.status,
        done=progress.done,
        skipped=progress.skipped,
        failed=progress.failed,
        failures=[shapes.BulkFailure(id, text(error)) for id, error in progress.failures],
    )


def _pairs(given: Sequence[Sequence[str]]) -> tuple[tuple[str, str], ...]:
    return tuple((id, error) for id, error in given)


ROUTES = (
    Route(
        method="POST",
        path="bulk",
        role="run",
        handler=start_bulk,
        body=shapes.BulkBody,
        result=shapes.BulkItem,
        status=202,
    ),
    Route(method="GET", path="bulk/{id}", role="run", handler=get_bulk, result=shapes.BulkItem),
    Route(
        method="POST",
        path="bulk/{id}/abort",
        role="run",
        handler=abort_bulk,
        body=shapes.EmptyBody,
        result=shapes.Done,
        optional=True,
    ),
)
