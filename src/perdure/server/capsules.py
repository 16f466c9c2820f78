"""Routes of capsules: export a run as a file; view or import such a file."""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import Response

from perdure.server import shapes
from perdure.server.messages import write_audit
from perdure.server.problems import Problem
from perdure.server.routing import BYTES, CAPSULE_LIMIT, Call, Reply, Route
from perdure.server.runs import detail_of


async def export_run(call: Call[shapes.ExportQuery, None]) -> Response:
    """A run with its children as one file, a capsule."""
    run = await call.run()
    data = await run.client._capsules.export(run.root, redact=call.query.redact, always=run.redaction.texts)
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", run.row.id)[:100]
    headers = {"Content-Disposition": f'attachment; filename="{name}.capsule"'}
    return Response(data, media_type=BYTES, headers=headers)


async def view_capsule(call: Call[None, Any]) -> shapes.Viewed:
    """Read a capsule without importing it: the reply has the address under which its run can be read."""
    address = await call.service.viewed_capsules.add(call.body)
    run = await call.service.run(call.access, address)
    return shapes.Viewed(run.address)


async def import_capsule(call: Call[None, Any]) -> Reply:
    """Import a run from a capsule, for reading and replaying; no engine executes it."""
    client = call.service.client
    if call.access.programs is not None:
        raise Problem(403, "forbidden", f"{call.access.name} may not import runs: they may be of any program")
    view = await client.import_run(call.body)
    write_audit(call, "imported", view.run_id)
    return Reply(await detail_of(await call.service.run(call.access, view.root)), 201)


ROUTES = (
    Route(
        method="GET",
        path="runs/{run}/capsule",
        role="debug",
        handler=export_run,
        query=shapes.ExportQuery,
        media=BYTES,
    ),
    Route(
        method="POST",
        path="capsules/view",
        role="debug",
        handler=view_capsule,
        result=shapes.Viewed,
        takes=BYTES,
        limit=CAPSULE_LIMIT,
        unsafe=False,
    ),
    Route(
        method="POST",
        path="capsules",
        role="admin",
        handler=import_capsule,
        result=shapes.RunDetail,
        status=201,
        takes=BYTES,
        limit=CAPSULE_LIMIT,
    ),
)
