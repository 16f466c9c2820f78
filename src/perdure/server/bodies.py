"""Read the body of a request, within a limit of its size and of the time that it takes to arrive."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from perdure.server.problems import Problem
from perdure.server.routing import KIB, MIB

# How long a body may take to arrive.
BODY_SECONDS = 60.0


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request. Refuses one that is too large, or takes too long to arrive."""
    said = request.headers.get("content-length", "")
    if said.isdecimal() and len(said) < 20 and int(said) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise Problem(408, "too_slow", f"the body did not arrive within {BODY_SECONDS:.0f} seconds") from None
    return b"".join(parts)


def _too_large(limit: int) -> Problem:
    size = f"{limit // MIB} MiB" if limit >= MIB else f"{limit // KIB} KiB"
    return Problem(
        413,
        "body_too_large",
        f"the body is larger than {size}",
        hint="put large values elsewhere, and send a reference",
        headers={"Connection": "close"},
    )
