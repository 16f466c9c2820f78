"""A process that `perdure dev` starts: it imports the module, checks it, and executes and serves until told to stop.

`python -m perdure.cli.dev_process FD`: FD is the socket on which it receives messages.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from typing import Any

import uvicorn

from perdure.cli.dev_messages import Broken, Channel, Go, Left, Load, Loaded, Prepare, Serving, Show, Stop, Take
from perdure.cli.engines import engine_of
from perdure.cli.exits import Problem
from perdure.cli.output import log_to_stderr
from perdure.cli.targets import Target, load
from perdure.client.client import Client
from perdure.client.upgrade import Checked
from perdure.client.upgrade import upgrade_check as checked
from perdure.errors import PerdureError
from perdure.kernel.events import RunStatus
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.policies.versions import Programs
from perdure.kernel.values.static import file_of
from perdure.server.application import Server, app
from perdure.server.development import Development
from perdure.server.guards import is_loopback
from perdure.server.shapes import DevState
from perdure.server.streams import StreamLimits, Streams
from perdure.server.tokens import Tokens
from perdure.stored import StoredPrograms
from perdure.stores.open import open_store

# The orchestrator's name: the next process takes over the runs of the one before at once.
NAME = "dev"
# How long steps may continue when the code changes, in seconds. Then they are attempted again with the new code.
GRACE = 0.5
# How soon a page that has lost its server reconnects.
RETRY_MS = 100


def prepare(store: str) -> None:
    """Import everything but the user's code before an edit comes."""
    with suppress(PerdureError):  # the first load reports problems of the store
        open_store(store)
    for module in ("uvicorn.protocols.http.auto", "uvicorn.protocols.websockets.auto", "uvicorn.lifespan.off"):
        import_module(module)


async def main(control: socket.socket) -> None:
    """Serve the requests on a socket, until it is closed or asks to stop."""
    channel = await Channel.over(control)
    target, store = None, ""
    while True:
        match await channel.receive():
            case Prepare(store=store):
                prepare(store)
            case Load() as asked:
                store = asked.store
                target = await _loaded(channel, asked)
            case Go() as go:
                try:
                    await _serve(channel, go, target, store)
                    sys.stdout.flush()
                    channel.send(Left())
                except PerdureError as error:
                    channel.send(Broken(str(error), []))
                return
            case Stop() | None:
                return
            case _:
                pass


async def _loaded(channel: Channel, asked: Load) -> Target | None:
    """Import the module and check the open runs. Returns the message with the findings."""
    before = set(sys.modules)
    try:
        target = load(asked.module)
        if not target.programs and not target.steps:
            raise Problem(f"{asked.module} has no workflows; decorate an `async def` with @workflow")
        count, misfits = await _check(asked.store, target)
    except (PerdureError, Problem) as error:
        channel.send(Broken(str(error), _files(before, asked.module)))
        return None
    names = sorted({program.name for program in target.programs.values()})
    channel.send(Loaded(_files(before, asked.module), names, count, misfits))
    return target


async def _check(store: str, target: Target) -> tuple[int, list[Checked]]:
    """How many runs are open, and which of those that can continue now would be parked by this code."""
    programs, count, found = Programs(target.programs.values()), 0, []
    async with _reading(store, codecs=target.codecs) as client:
        async for run in checked(client, programs):
            count += 1
            if run.fit is not Fit.SAFE and run.status is not RunStatus.PARKED:
                found.append(run)
    return count, found


def _files(before: set[str], module: str) -> list[str]:
    """The imported files of the user, including the module itself."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    outside = tuple(f"{folder}{os.sep}" for folder in {own, sys.prefix, sys.base_prefix, os.path.dirname(os.__file__)})
    found = {os.path.abspath(module)} if os.path.exists(module) else set()
    for name in set(sys.modules) - before:
        file = file_of(sys.modules[name])
        if file and not os.path.abspath(file).startswith(outside):
            found.add(os.path.abspath(file))
    return sorted(found)


async def _serve(channel: Channel, go: Go, target: Target | None, store: str) -> None:
    """Execute runs and answer requests until told to stop, or until the other process has ended."""
    async with _opened(target, store) as client:
        application = served(client, go.host)
        service = application.service
        service.streams = Streams(StreamLimits(retry_ms=RETRY_MS))
        service.development = Development(go.state, service.changes, lambda: channel.send(Take()))
        server = _Server(
            uvicorn.Config(
                application,
                log_level="critical",
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=0,
            )
        )
        serving = asyncio.create_task(server.serve([socket.socket(fileno=go.listener)]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        channel.send(Serving())
        async for state in _shown(channel):
            service.development.show(state)
        server.should_exit = True
        await serving


def served(client: Client, host: str) -> Server:
    """The application for an address: other machines need a token, this one does not."""
    if is_loopback(host):
        return app(client)
    return app(client, access=Tokens(client), hosts={host, socket.gethostname()})


class _Server(uvicorn.Server):
    """A server that leaves signals to the parent process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


@asynccontextmanager
async def _opened(target: Target | None, store: str) -> AsyncIterator[Client]:
    if target is None:
        async with _reading(store, structures=StoredPrograms()) as client:
            yield client
    else:
        async with engine_of(target, store, {"name": NAME}, GRACE).engine as engine:
            yield engine


@asynccontextmanager
async def _reading(store: str, **options: Any) -> AsyncIterator[Client]:
    """A client of a store, which is created if there is none."""
    opened = open_store(store)
    await opened.open(migrate=True)
    try:
        async with Client(opened, **options) as client:
            yield client
    finally:
        await opened.close()


async def _shown(channel: Channel) -> AsyncIterator[DevState]:
    while isinstance(message := await channel.receive(), Show):
        yield message.state


if __name__ == "__main__":
    # Python compares bytecode to its source by second and size, so it could take an edit for the previous one.
    sys.dont_write_bytecode = True
    log_to_stderr("warning")
    asyncio.run(main(socket.socket(fileno=int(sys.argv[1]))))
