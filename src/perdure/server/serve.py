"""The server as a process of its own."""

from __future__ import annotations

import asyncio

import uvicorn

from perdure.client.client import Client
from perdure.server.app import app


def serve(client: Client, host: str, port: int) -> int:
    """Serve until SIGINT or SIGTERM."""
    return asyncio.run(_serve(client, host, port))


async def _serve(client: Client, host: str, port: int) -> int:
    async with client:
        config = uvicorn.Config(
            app(client), host=host, port=port, log_level="warning", lifespan="off", proxy_headers=False
        )
        await uvicorn.Server(config).serve()
    return 0
