from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest

from perdure import Engine
from tests.server.programs import PROGRAMS


@asynccontextmanager
async def client_of(
    app: Any, base: str = "http://localhost/api/v1/", peer: str = "127.0.0.1", **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client whose requests go to an application in this process, as if they came from this address."""
    transport = httpx.ASGITransport(app=app, client=(peer, 4711))
    async with httpx.AsyncClient(transport=transport, base_url=base, **options) as http:
        yield http


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    async with Engine("memory://", PROGRAMS) as engine:
        yield engine


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(engine.asgi()) as http:
        yield http
