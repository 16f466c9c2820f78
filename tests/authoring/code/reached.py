"""Steps that another module calls."""

from __future__ import annotations

from typing import Any

from perdure import step


@step
async def deep_step(n: int) -> int:
    return n


@step
async def shallow(n: int) -> int:
    return n


async def deep(n: int) -> int:
    """Calls one of them."""
    return await deep_step(n)


class Proxy:
    """A proxy for something that does not exist."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("nothing to stand for")


PROXY = Proxy()
