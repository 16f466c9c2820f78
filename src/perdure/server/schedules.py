"""Routes of schedules: read, create, pause, trigger and backfill them."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

from perdure.client.schedules import Schedule, ScheduleHandle, ScheduleView
from perdure.errors import NoSuchSchedule
from perdure.server import shapes
from perdure.server.access import Role
from perdure.server.messages import digest, invocation_of, write_audit
from perdure.server.problems import Problem
from perdure.server.routing import Call, Reply, Route
from perdure.server.service import seconds_of


async def list_schedules(call: Call[None, None]) -> shapes.Schedules:
    """All schedules, by id."""
    found = await call.service.client.schedules()
    return shapes.Schedules([_item(call, one) for one in found if call.access.sees(one.program)])


async def get_schedule(call: Call[None, None]) -> shapes.ScheduleItem:
    """A schedule as it is now."""
    _, view = await _found(call)
    return _item(call, view)


async def put_schedule(call: Call[None, shapes.ScheduleBody]) -> Reply:
    """Create or update a schedule."""
    body, client, id = call.body, call.service.client, call.path["id"]
    if not call.access.sees(body.program):
        raise Problem(403, "forbidden", f"{call.access.name} may not schedule runs of {body.program!r}")
    before: ScheduleView | None = None
    try:
        before = await (await client.schedule(id)).view()
    except NoSuchSchedule:
        pass
    if before is not None and not call.access.sees(before.program):
        raise Problem(409, "already_exists", f"the id {id!r:.100} is taken by a schedule that is not yours")
    options = {name: getattr(body, name) for name in _OPTIONS}
    asked = Schedule(id, invocation_of(body.program, body.args, body.kwargs), **options)
    handle = await client._schedules.declare(asked, call.access.name)
    write_audit(call, "changed the schedule" if before is not None else "created the schedule", id)
    return Reply(_item(call, await handle.view()), 201 if before is None else 200)


_OPTIONS = (
    *("every", "cron", "timezone", "overlap", "catch_up", "jitter", "pause"),
    *("queue", "key", "priority", "tags", "deadline", "max_concurrency"),
)


async def delete_schedule(call: Call[None, None]) -> shapes.Done:
    """Delete a schedule. Runs that it has started continue."""
    handle, _ = await _found(call)
    await handle.delete(by=call.access.name)
    write_audit(call, "deleted the schedule", handle.id)
    return shapes.Done("accepted")


async def pause_schedule(call: Call[None, shapes.ReasonBody]) -> shapes.Done:
    """Pause a schedule: it fires nothing until it is resumed."""
    handle, _ = await _found(call)
    await handle.pause(call.body.reason, by=call.access.name)
    write_audit(call, "paused the schedule", handle.id)
    return shapes.Done("accepted")


async def resume_schedule(call: Call[None, shapes.EmptyBody]) -> shapes.Done:
    """Resume a schedule at its next tick."""
    handle, _ = await _found(call)
    await handle.resume(by=call.access.name)
    write_audit(call, "resumed the schedule", handle.id)
    return shapes.Done("accepted")


async def trigger_schedule(call: Call[None, shapes.EmptyBody]) -> shapes.Triggered:
    """Start a run of a schedule now, if the overlap policy allows it."""
    handle, _ = await _found(call)
    run, duplicate = await handle.trigger_once(digest(call.key) if call.key else None, call.access.name)
    if not duplicate:
        write_audit(call, "triggered the schedule", handle.id)
    return shapes.Triggered(run, duplicate)


async def backfill_schedule(call: Call[None, shapes.BackfillBody]) -> shapes.Backfilled:
    """Fire the ticks of a past range."""
    body = call.body
    for name in ("start", "end"):
        _ = seconds_of(getattr(body, name), name)
    handle, _ = await _found(call)
    key = digest(call.key) if call.key else None
    runs, duplicate = await handle.backfill_once(body.start, body.end, key, call.access.name)
    if not duplicate:
        write_audit(call, f"backfilled {len(runs)} ticks of the schedule", handle.id)
    return shapes.Backfilled(list(runs), duplicate)


async def next_ticks(call: Call[shapes.NextQuery, None]) -> shapes.NextTicks:
    """When a schedule fires next, if it is not paused."""
    handle, _ = await _found(call)
    return shapes.NextTicks(list(await handle.next(call.query.count)))


async def _found(call: Call[Any, Any]) -> tuple[ScheduleHandle, ScheduleView]:
    """The schedule of a request. Raises NoSuchSchedule also for one that the caller may not see."""
    handle = await call.service.client.schedule(call.path["id"])
    view = await handle.view()
    if not call.access.sees(view.program):
        raise NoSuchSchedule(handle.id)
    return handle, view


def _item(call: Call[Any, Any], view: ScheduleView) -> shapes.ScheduleItem:
    redaction = call.service.redaction(call.access)
    fields = {field.name: getattr(view, field.name) for field in dataclasses.fields(view)}
    fields["input"] = redaction.plain(view.input, "input", arguments=())
    fields |= {"tags": redaction.named(view.tags), "trouble": redaction.text(view.trouble or "") or None}
    return shapes.ScheduleItem(**{name: _seconds(value) for name, value in fields.items()})


def _seconds(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


def _on_schedule(method: str, rest: str, handler: Any, role: Role, result: Any, **more: Any) -> Route:
    return Route(method=method, path=f"schedules/{{id:path}}{rest}", role=role, handler=handler, result=result, **more)


ROUTES = (
    Route(method="GET", path="schedules", role="read", handler=list_schedules, result=shapes.Schedules),
    _on_schedule("GET", "/next", next_ticks, "read", shapes.NextTicks, query=shapes.NextQuery),
    _on_schedule("GET", "", get_schedule, "read", shapes.ScheduleItem),
    _on_schedule("PUT", "", put_schedule, "admin", shapes.ScheduleItem, body=shapes.ScheduleBody),
    _on_schedule("DELETE", "", delete_schedule, "admin", shapes.Done),
    _on_schedule("POST", "/pause", pause_schedule, "admin", shapes.Done, body=shapes.ReasonBody, optional=True),
    _on_schedule("POST", "/resume", resume_schedule, "admin", shapes.Done, body=shapes.EmptyBody, optional=True),
    _on_schedule("POST", "/trigger", trigger_schedule, "admin", shapes.Triggered, body=shapes.EmptyBody, optional=True),
    _on_schedule("POST", "/backfill", backfill_schedule, "admin", shapes.Backfilled, body=shapes.BackfillBody),
)
