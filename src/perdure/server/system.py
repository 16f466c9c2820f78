"""Routes about the server and the store as a whole."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from perdure import __version__
from perdure.server import shapes
from perdure.server.problems import Problem
from perdure.server.routing import Call, Route


async def me(call: Call[None, None]) -> shapes.Me:
    """Who asks, what they may do, and what there is."""
    service, access = call.service, call.access
    return shapes.Me(
        name=access.name,
        may=sorted(access.may),
        programs=None if access.programs is None else sorted(access.programs),
        version=__version__,
        store=service.client.store.url.partition(":")[0],
        executes=service.executes,
        time=datetime.fromtimestamp(service.client.clock.now(), UTC),
        features=service.features,
        trace_url=service.trace_url,
    )


async def health_live(call: Call[None, None]) -> shapes.Health:
    """Whether the server answers at all. Asks no store."""
    return shapes.Health("ok")


async def health_ready(call: Call[None, None]) -> shapes.Health:
    """Whether the store answers."""
    await call.service.ready()
    try:
        await call.service.client.store.runs.get("0" * 16)
    except Exception as error:
        raise Problem(503, "not_ready", "the store does not answer", headers={"Retry-After": "2"}) from error
    return shapes.Health("ok", call.service.client.store.url.partition(":")[0])


async def describe(call: Call[None, None]) -> dict[str, Any]:
    """This API, as OpenAPI 3.1."""
    return call.service.openapi()


ROUTES = (
    Route(method="GET", path="me", role="any", handler=me, result=shapes.Me),
    Route(method="GET", path="health/live", role="any", handler=health_live, result=shapes.Health, open=True),
    Route(method="GET", path="health/ready", role="any", handler=health_ready, result=shapes.Health, open=True),
    Route(method="GET", path="openapi.json", role="any", handler=describe, result=dict[str, Any]),
)
