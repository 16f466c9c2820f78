"""Steps that tests of orchestrators share, and which of them were called. Each test begins with none."""

from __future__ import annotations

from perdure import step

called: list[str] = []


@step
async def charge(n: int) -> int:
    called.append(f"charge {n}")
    return n


@step
async def ship(n: int) -> int:
    called.append(f"ship {n}")
    return n


@step
async def note(what: str) -> str:
    called.append(what)
    return what
