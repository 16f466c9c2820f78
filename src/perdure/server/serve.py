"""The server as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

import uvicorn

from perdure.client.client import Client
from perdure.errors import UsageError
from perdure.logs import log
from perdure.server.application import app
from perdure.server.guards import is_loopback
from perdure.server.tokens import Tokens


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Where the server listens, and which hosts and proxies it trusts."""

    host: str = "127.0.0.1"
    port: int = 8500
    hosts: Collection[str] = ()
    """The names under which it is reached, besides those of this machine."""
    trusted: str = ""
    """Addresses of trusted proxies, separated by commas; `*` for all."""
    trace_url: str | None = None
    metrics: bool = False
    """Whether callers with the permission `metrics` get what the store knows, for Prometheus."""


def serve(client: Client, config: ServeConfig) -> int:
    """Serve until SIGINT or SIGTERM."""
    return asyncio.run(_serve(client, config))


async def _serve(client: Client, config: ServeConfig) -> int:
    async with client:
        tokens = await takes_tokens(client, config.host)
        names = {config.host, socket.gethostname(), *config.hosts}
        application = app(
            client,
            access=Tokens(client) if tokens else None,
            trace_url=config.trace_url,
            hosts=names,
            metrics=config.metrics,
        )
        server = uvicorn.Server(
            uvicorn.Config(
                application,
                host=config.host,
                port=config.port,
                log_level="warning",
                lifespan="off",
                proxy_headers=bool(config.trusted),
                forwarded_allow_ips=config.trusted or None,
                server_header=False,
                # Open streams end with the server; their clients reconnect.
                timeout_graceful_shutdown=5,
            )
        )
        async with _announced(server, config.host, tokens):
            await server.serve()
    return 0


async def takes_tokens(client: Client, host: str) -> bool:
    """Whether the store has tokens. Raises UsageError if it has none, and others than this machine reach the host."""
    found = await client._credentials.any("token")
    if not found and not is_loopback(host):
        raise UsageError(
            f"--host {host} would let everyone in who can reach this machine; make a token first: "
            "perdure token new --name NAME --may read,run,approve"
        )
    return found


@contextlib.asynccontextmanager
async def _announced(server: uvicorn.Server, host: str, tokens: bool) -> AsyncIterator[None]:
    """Log the address, once the server listens."""

    async def announce() -> None:
        while not server.started:
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        who = "for those who have a token" if tokens else "for this machine alone"
        log.info("perdure serves at http://%s:%d/, %s", shown, port, who)

    task = asyncio.create_task(announce())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
