"""Routes that start runs and send them messages: signals, cancel, pause, retry, fork and so on."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

from perdure.client.handle import RunHandle
from perdure.errors import AnswerRejected, NoSuchRun, UsageError
from perdure.kernel.history.rewind import Truncated
from perdure.kernel.ids import BUILT_IN, MAX_ID, STORED, check_id, check_trace, flaw_of
from perdure.kernel.inbound import Duplicate, NotFound, may_answer
from perdure.kernel.invocation import Invocation
from perdure.kernel.projection import RunRow
from perdure.kernel.schedules.schedule import PROGRAM as SCHEDULE
from perdure.logs import Log
from perdure.server import shapes
from perdure.server.access import Role
from perdure.server.problems import FieldError, Problem
from perdure.server.requested_run import RequestedRun
from perdure.server.routing import Call, Reply, Route

# The audit log: one line for each effect, with who caused it.
audit = Log("perdure.audit")

# Programs whose runs are schedules and stored flows: a message to one would change or end it.
OF_ADMINS = (SCHEDULE, STORED)

_WORDS: dict[str, Literal["accepted", "duplicate", "finished", "not_found"]] = {
    "Accepted": "accepted",
    "Duplicate": "duplicate",
    "NotFound": "not_found",
    "Finished": "finished",
    "Cancelled": "accepted",
    "AlreadyFinished": "finished",
}


def message_key(call: Call[Any, Any], own: str | None = None) -> str | None:
    """What deduplicates a message: its own id, or the Idempotency-Key of the request."""
    return own or call.key or None


async def target_run(call: Call[Any, Any]) -> RequestedRun:
    """The run that a message is for. Refuses with 412 if it has new events since the caller read it (If-Match)."""
    run = await call.run()
    if run.client is not call.service.client:
        raise Problem(409, "only_viewed", "this run is viewed from a capsule; import the capsule to act on it")
    if run.row.program in OF_ADMINS and not call.access.allows("admin"):
        raise Problem(403, "forbidden", f"{call.access.name} may not do this: a run of {run.row.program} takes 'admin'")
    seen = call.request.headers.get("if-match")
    if seen is None or run.is_at(seen):
        return run
    raise Problem(
        412,
        "moved_on",
        f"the run has changed: its last event is now {run.head.next_seq - 1}",
        hint="read the run again, and repeat the request with its new ETag",
        headers={"ETag": run.etag},
    )


def reply_to(verdict: object) -> Reply:
    """The response for the outcome of a message."""
    status = getattr(verdict, "status", None)
    answer = _WORDS[type(verdict).__name__]
    return Reply(shapes.Done(answer, isinstance(verdict, Duplicate), status))


async def _send(call: Call[Any, Any], what: str, send: Any) -> Reply:
    run_id = (await target_run(call)).row.run_id
    verdict = await send(run_id)
    if isinstance(verdict, NotFound):
        raise NoSuchRun(run_id)
    write_audit(call, what, run_id)
    return reply_to(verdict)


def write_audit(call: Call[Any, Any], what: str, of: str) -> None:
    """Write a line to the audit log."""
    audit.info("%s: %s %s", call.access.name, what, of)


def invocation_of(program: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Invocation[Any]:
    """The invocation of a program given by name. Raises a Problem for an impossible name, and for one of perdure."""
    flaw = flaw_of(program, MAX_ID) or ("is one of perdure's own" if program.startswith(BUILT_IN) else None)
    if flaw is not None:
        detail = f"the name of the program {flaw}"
        raise Problem(422, "invalid_request", detail, fields=[FieldError("/program", detail)])
    return Invocation(program, None, tuple(args), dict(kwargs))


async def start_run(call: Call[Any, shapes.StartBody]) -> Reply:
    """Start a run. If the id exists, `reuse` decides."""
    body, client = call.body, call.service.client
    if not call.access.sees(body.program):
        raise Problem(403, "forbidden", f"{call.access.name} may not start runs of {body.program!r}")
    invocation = invocation_of(body.program, body.args, body.kwargs)
    _check_new_id(body.id, "/id")
    id = body.id or (f"key-{digest(call.key)}" if call.key else None)
    before = None if id is None else await client.store.runs.find(id)
    if before is not None and (not call.access.sees(other := before[0].program) or other.startswith(BUILT_IN)):
        # Whatever `reuse` says: it would end a schedule, for example.
        raise Problem(409, "already_exists", f"the id {id!r:.100} is taken by a run that is not yours")
    handle = await client.start(
        invocation,
        id=id,
        reuse=body.reuse,
        queue=body.queue,
        key=body.key,
        priority=body.priority,
        delay=body.delay,
        deadline=body.deadline,
        tags=body.tags or None,
        trace=trace_of(call),
    )
    known = before is not None and before[0].run_id == handle.run_id
    if not known:
        write_audit(call, "started", handle.run_id)
    return Reply(shapes.Started(id=handle.id, run_id=handle.run_id, duplicate=known), 200 if known else 201)


def trace_of(call: Call[Any, Any]) -> str | None:
    """The trace that the caller is in: the headers traceparent and tracestate. None without them, or if malformed."""
    headers = call.request.headers
    parent, state = headers.get("traceparent", "").strip(), ",".join(headers.getlist("tracestate")).strip()
    for trace in (f"{parent} {state}", parent) if state else (parent,):
        try:
            return check_trace(trace)
        except UsageError:
            continue  # W3C: what cannot be read is ignored
    return None


def digest(key: str) -> str:
    """A short hash of an idempotency key, for use in an id."""
    return blake2b(key.encode(), digest_size=12).hexdigest()


async def signal_run(call: Call[shapes.RunQuery, shapes.SignalBody]) -> Reply:
    """Send a signal to a run."""
    body, name, client = call.body, call.path["name"], call.service.client
    key = message_key(call, body.signal_id)
    trace = trace_of(call)
    return await _send(
        call, f"sent the signal {name} to", lambda id: client.signal(id, name, body.payload, key, trace=trace)
    )


async def cancel_run(call: Call[shapes.RunQuery, shapes.ReasonBody]) -> Reply:
    """Cancel a run; it may clean up first."""
    return await _send(
        call, "cancelled", lambda id: call.service.client.cancel(id, call.body.reason, by=call.access.name)
    )


async def pause_run(call: Call[shapes.RunQuery, shapes.ReasonBody]) -> Reply:
    """Pause a run: no new step starts."""
    return await _send(call, "paused", lambda id: call.service.client.pause(id, call.body.reason, by=call.access.name))


async def resume_run(call: Call[shapes.RunQuery, shapes.ReasonBody]) -> Reply:
    """Continue a paused run."""
    return await _send(call, "resumed", lambda id: call.service.client.resume(id, by=call.access.name))


async def resolve_run(call: Call[shapes.RunQuery, shapes.ResolveBody]) -> Reply:
    """Continue a parked run, or end it."""
    body, client = call.body, call.service.client
    row = (await target_run(call)).row
    verdict = await client.resolve(
        row.run_id, version=body.version, fail=body.fail, before=body.before, by=call.access.name
    )
    write_audit(call, "resolved", row.run_id)
    if isinstance(verdict, Truncated):
        return Reply(shapes.Done("accepted", again=list(verdict.again)))
    return reply_to(verdict)


async def retry_run(call: Call[shapes.RunQuery, shapes.RetryBody]) -> Reply:
    """Continue a failed or cancelled run, and keep what succeeded."""
    row = (await target_run(call)).row
    retried = call.service.client.retry(row.run_id, max_rounds=call.body.max_rounds, by=call.access.name)
    return await _begun(call, "retried", row, retried)


async def fork_run(call: Call[shapes.RunQuery, shapes.ForkBody]) -> Reply:
    """Start a run with the past of another up to a point."""
    body, client = call.body, call.service.client
    row = (await target_run(call)).row
    await _check_answers(call, row, body.values or {})
    id = await _new_id(call, body.new_id, "fork")
    if isinstance(id, Reply):
        return id
    forked = client.fork(row.run_id, body.at, body.values, body.inputs, id, state=body.state, by=call.access.name)
    return await _begun(call, "forked", row, forked)


async def _check_answers(call: Call[Any, Any], row: RunRow, values: Mapping[str, Any]) -> None:
    """Refuse values for approvals that the caller may not answer: a fork is no way round them."""
    for asked in await call.service.client._forks.questions(row.run_id, values) if values else ():
        if not call.access.allows("approve"):
            detail = f"{call.access.name} may not answer {asked.op}: it takes the permission 'approve'"
            raise Problem(403, "forbidden", detail, fields=[FieldError("/values", detail)])
        approvers = may_answer(asked, call.service.client.clock.now())
        if approvers and call.access.name not in approvers:
            raise AnswerRejected(asked.name, "", f"{call.access.name} is not among {', '.join(sorted(approvers))}")


async def travel_run(call: Call[shapes.RunQuery, shapes.TravelBody]) -> Reply:
    """Start a run that continues right before a step of another."""
    body, client = call.body, call.service.client
    row = (await target_run(call)).row
    id = await _new_id(call, body.new_id, "fork")
    if isinstance(id, Reply):
        return id
    return await _begun(
        call, "forked", row, client.time_travel(row.run_id, body.step, body.inputs, id, by=call.access.name)
    )


def _check_new_id(id: str | None, pointer: str) -> None:
    """Refuse ids of perdure's own runs: a run under one would take the place of a schedule or of a credential."""
    if id is None:
        return
    _ = check_id(id)
    if id.startswith(BUILT_IN):
        detail = f"ids that begin with {BUILT_IN!r} are those of perdure's own runs; choose another"
        raise Problem(422, "invalid_request", detail, fields=[FieldError(pointer, detail)])


async def _new_id(call: Call[Any, Any], given: str | None, what: str) -> str | Reply | None:
    """The id for a new run; or the response, if the same request came before."""
    _check_new_id(given, "/new_id")
    if given is not None or not call.key:
        return given
    id = f"{what}-{digest(call.path['run'] + ' ' + call.key)}"
    found = await call.service.client.store.runs.find(id)
    if found is None:
        return id
    return Reply(shapes.Started(id=id, run_id=found[0].run_id, status=found[0].status, duplicate=True), 200)


async def _begun(call: Call[Any, Any], what: str, row: RunRow, begin: Awaitable[RunHandle[Any]]) -> Reply:
    handle = await begin
    write_audit(call, what, row.run_id)
    new = await call.service.client.store.runs.get(handle.run_id)
    status, origin = (None, None) if new is None else (new.status, new.forked_from or None)
    return Reply(shapes.Started(id=handle.id, run_id=handle.run_id, status=status, forked_from=origin), 201)


def _on_run(
    action: str,
    handler: Any,
    body: type[Any],
    result: Any,
    *,
    role: Role = "run",
    status: int = 200,
    optional: bool = True,
) -> Route:
    return Route(
        method="POST",
        path=f"runs/{{run}}/{action}",
        role=role,
        handler=handler,
        query=shapes.RunQuery,
        body=body,
        result=result,
        status=status,
        optional=optional,
    )


ROUTES = (
    Route(
        method="POST",
        path="runs",
        role="run",
        handler=start_run,
        body=shapes.StartBody,
        result=shapes.Started,
        status=201,
    ),
    _on_run("cancel", cancel_run, shapes.ReasonBody, shapes.Done),
    _on_run("pause", pause_run, shapes.ReasonBody, shapes.Done),
    _on_run("resume", resume_run, shapes.ReasonBody, shapes.Done),
    _on_run("retry", retry_run, shapes.RetryBody, shapes.Started, status=201),
    _on_run("fork", fork_run, shapes.ForkBody, shapes.Started, status=201),
    _on_run("travel", travel_run, shapes.TravelBody, shapes.Started, status=201, optional=False),
    _on_run("resolve", resolve_run, shapes.ResolveBody, shapes.Done, role="admin"),
    _on_run("signals/{name:path}", signal_run, shapes.SignalBody, shapes.Done),
)
