"""Routes about the server and the store as a whole."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from perdure import __version__
from perdure.client.locks import LockView
from perdure.client.views import QueueView
from perdure.doctor import examine, place, software
from perdure.kernel.events import RunStatus
from perdure.kernel.policies.queues import Queue
from perdure.kernel.projection import RunRow
from perdure.kernel.values.redact import redacted_row
from perdure.ports.journal import Head
from perdure.ports.leases import ORCHESTRATOR
from perdure.ports.runs import RunFilter
from perdure.server import shapes
from perdure.server.messages import write_audit
from perdure.server.problems import Problem
from perdure.server.programs import redacted
from perdure.server.routing import Call, Route
from perdure.server.runs import run_item
from perdure.server.service import Service
from perdure.telemetry.prometheus import CONTENT_TYPE

# How many open runs of a queue are read to count its keys.
OF_QUEUE = 1000


async def me(call: Call[None, None]) -> shapes.Me:
    """The caller: name, permissions, and the features of this server."""
    service, access = call.service, call.access
    return shapes.Me(
        name=access.name,
        may=sorted(access.may),
        programs=None if access.programs is None else sorted(access.programs),
        signed_in=access.by,
        expires_at=access.expires_at,
        redacted=list(service.redaction(access).texts),
        version=__version__,
        store=service.client.store.url.partition(":")[0],
        executes=service.executes,
        time=datetime.fromtimestamp(service.client.clock.now(), UTC),
        features=await _features(service),
        trace_url=service.trace_url,
    )


async def _features(service: Service) -> list[str]:
    leases, now = service.client._base.leases, service.client.clock.now()
    return [
        *(["source"] if service.programs.here is not None else []),
        *(["dev"] if service.development is not None else []),
        *(["bulk"] if service.executes or await leases.live(ORCHESTRATOR, now) else []),
    ]


async def health_live(call: Call[None, None]) -> shapes.Health:
    """Whether the server is alive. Does not query the store."""
    return shapes.Health("ok")


async def health_ready(call: Call[None, None]) -> shapes.Health:
    """Whether the store answers."""
    await call.service.ready()
    try:
        await call.service.client.store.runs.get("0" * 16)
    except Exception as error:
        raise Problem(503, "not_ready", "the store does not answer", headers={"Retry-After": "2"}) from error
    return shapes.Health("ok")


async def describe(call: Call[None, None]) -> dict[str, Any]:
    """This API, as OpenAPI 3.1."""
    return call.service.openapi


async def read_metrics(call: Call[None, None]) -> Response:
    """The metrics, as the text that Prometheus reads. 404 unless the server was made with `metrics=True`."""
    read = call.service.metrics
    if read is None:
        raise Problem(
            404, "metrics_off", "this server does not serve metrics", hint="turn them on: engine.asgi(metrics=True)"
        )
    _check_sees_all(call)
    return Response(await read(), headers={"Content-Type": CONTENT_TYPE})


# --- what executes runs ----------------------------------------------------------------------------------------------


async def list_queues(call: Call[None, None]) -> shapes.Queues:
    """Queues with runs that wait or are in progress, and those whose limits this process knows.

    For a caller who sees some programs only, these are the queues of their open runs; the numbers count all runs.
    """
    found = await call.service.client.queues()
    if call.access.listed is not None:
        rows, _ = await _open_runs(call, None)
        own = {row.queue for row, _ in rows}
        found = [one for one in found if one.name in own]
    return shapes.Queues([_queue(one) for one in found])


async def _open_runs(call: Call[None, None], queue: str | None) -> tuple[list[tuple[RunRow, Head]], bool]:
    """The newest open runs that the caller may see, of a queue or of all; and whether there may be more."""
    found: list[tuple[RunRow, Head]] = []
    bounded = False
    for program in [None] if call.access.listed is None else sorted(call.access.listed):
        wanted = RunFilter(status=_OPEN, program=program, queue=queue, limit=OF_QUEUE, values=False)
        rows = await call.service.client.store.runs.list(wanted)
        found += [(row, head) for row, head in rows if call.access.sees(row.program)]
        bounded |= len(rows) == OF_QUEUE
    return sorted(found, key=lambda one: one[0].run_id, reverse=True), bounded


_OPEN = [RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING]


def _queue(view: QueueView) -> shapes.QueueItem:
    return shapes.QueueItem(view.name, view.queued, view.running, view.oldest, _limits(view.limits))


def _limits(limits: Queue | None) -> shapes.QueueLimits | None:
    if limits is None:
        return None
    rate = limits.rate
    return shapes.QueueLimits(
        limits.concurrency,
        limits.per_key,
        None if rate is None else rate.count,
        None if rate is None else rate.seconds,
    )


async def get_queue(call: Call[None, None]) -> shapes.QueueDetail:
    """A queue with its runs by key, as far as the caller may see them."""
    client, name = call.service.client, call.path["name"]
    rows, bounded = await _open_runs(call, name)
    known = {one.name: one for one in await client.queues()} if rows or call.access.listed is None else {}
    found = known.get(name) or QueueView(name, 0, 0)
    redaction = call.service.redaction(call.access)
    keys: Counter[tuple[str, bool]] = Counter()
    for row, _ in rows:
        keys[row.queue_key, row.status is RunStatus.QUEUED] += 1
    names = sorted({key for key, _ in keys})
    queued = [row for row in rows if row[0].status is RunStatus.QUEUED]
    return shapes.QueueDetail(
        queue=_queue(found),
        keys=[shapes.QueueKey(key or None, keys[key, True], keys[key, False]) for key in names],
        bounded=bounded,
        next=[shapes.RunItem(**run_item(redacted_row(row, redaction), head)) for row, head in reversed(queued[-20:])],
    )


async def list_orchestrators(call: Call[None, None]) -> shapes.Orchestrators:
    """The orchestrators that are alive, and those that are gone and still own runs."""
    return shapes.Orchestrators(
        [
            shapes.OrchestratorItem(
                name=one.name,
                alive=one.alive,
                running=one.running,
                waiting=one.waiting,
                session=one.session,
                expires_at=one.expires_at,
                programs=None if one.programs is None else sorted(filter(call.access.sees, one.programs)),
            )
            for one in await call.service.client.orchestrators()
        ]
    )


async def list_locks(call: Call[None, None]) -> shapes.Locks:
    """Every lock that is held, by key. A caller who sees some programs only gets those that their runs hold."""
    found = await call.service.client.locks.list()
    return shapes.Locks([_lock(one) for one in found if await _sees_holder(call, one)])


def _lock(view: LockView) -> shapes.LockItem:
    return shapes.LockItem(view.key, view.owner, view.token, view.expires_at, view.run_id, view.id)


async def _sees_holder(call: Call[None, None], view: LockView) -> bool:
    """Whether the caller may see the run that holds a lock. Who holds one outside a run is not known."""
    if call.access.programs is None:
        return True
    row = None if view.run_id is None else await call.service.client.store.runs.get(view.run_id)
    return row is not None and call.access.sees(row.program)


async def release_lock(call: Call[None, None]) -> shapes.Locks:
    """Release a lock of any holder, and return its last state; empty if it was free."""
    locks, key = call.service.client.locks, call.path["key"]
    held = await locks.get(key)
    if held is None or not await _sees_holder(call, held):
        return shapes.Locks([])
    held = await locks.force_release(key)
    if held is None:
        return shapes.Locks([])
    write_audit(call, "released the lock", held.key)
    return shapes.Locks([_lock(held)])


def _check_sees_all(call: Call[Any, Any]) -> None:
    if call.access.programs is not None:
        raise Problem(403, "forbidden", f"{call.access.name} may not see this: it is about the runs of all programs")


async def check_store(call: Call[None, None]) -> shapes.Doctor:
    """Check the store and its environment; this takes a while if the store is large."""
    client, here = call.service.client, call.service.programs.here
    _check_sees_all(call)
    text = call.service.redaction(call.access).text
    checks = [*software(), *place(client.store), *await examine(client, None if here is None else [*here])]
    return shapes.Doctor(
        all(one.verdict != "fail" for one in checks),
        [shapes.CheckItem(one.name, one.verdict, text(one.found), text(one.fix)) for one in checks],
    )


# --- programs --------------------------------------------------------------------------------------------------------


async def list_programs(call: Call[None, None]) -> shapes.Programs:
    """The programs that this server or a live orchestrator has, and those of open runs that none has."""
    found = await call.service.programs.all()
    return shapes.Programs([one for one in found if call.access.sees(one.name)])


async def get_program(call: Call[None, None]) -> shapes.ProgramDetail:
    """A program with the schema of its parameters, and its source where that is known."""
    name = call.path["name"]
    found = await call.service.programs.one(name) if call.access.sees(name) else None
    if found is None:
        raise Problem(404, "no_such_program", f"no program {name[:100]!r} is known here, or to a living orchestrator")
    return redacted(found, call.service.redaction(call.access))


def _get(path: str, handler: Any, result: Any, role: Any = "read", **more: Any) -> Route:
    return Route(method="GET", path=path, role=role, handler=handler, result=result, **more)


ROUTES = (
    _get("me", me, shapes.Me, "any"),
    _get("health/live", health_live, shapes.Health, "any", open=True),
    _get("health/ready", health_ready, shapes.Health, "any", open=True),
    _get("openapi.json", describe, dict[str, Any], "any"),
    _get("metrics", read_metrics, None, "metrics", media="text/plain"),
    _get("queues", list_queues, shapes.Queues),
    _get("queues/{name}", get_queue, shapes.QueueDetail),
    _get("orchestrators", list_orchestrators, shapes.Orchestrators),
    _get("locks", list_locks, shapes.Locks),
    Route(method="DELETE", path="locks/{key:path}", role="admin", handler=release_lock, result=shapes.Locks),
    _get("programs", list_programs, shapes.Programs),
    _get("programs/{name}", get_program, shapes.ProgramDetail),
    _get("doctor", check_store, shapes.Doctor),
)
