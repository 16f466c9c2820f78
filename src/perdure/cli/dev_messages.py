"""The messages between `perdure dev` and the processes that it starts: one line of JSON each."""

from __future__ import annotations

import asyncio
import socket
from typing import TypeAlias

import msgspec

from perdure.client.upgrade import Checked
from perdure.server.shapes import DevState


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Import everything that an edit will need, for a store."""

    store: str


class Load(msgspec.Struct, frozen=True, tag=True):
    """Import a module, and check the open runs of a store against it."""

    module: str
    store: str


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The module is imported, from these files, with these programs. `runs` of the `checked` ones do not fit it."""

    files: list[str]
    programs: list[str]
    checked: int
    runs: list[Checked]


class Broken(msgspec.Struct, frozen=True, tag=True):
    """The module cannot be imported or used."""

    problem: str
    files: list[str]


class Go(msgspec.Struct, frozen=True, tag=True):
    """Execute runs, and serve the dashboard on the socket with this number. A broken module executes no runs.

    `host` is the address of the socket: if other machines can reach it, callers need a token.
    """

    listener: int
    host: str
    state: DevState


class Serving(msgspec.Struct, frozen=True, tag=True):
    """Requests are answered, and runs are executed."""


class Show(msgspec.Struct, frozen=True, tag=True):
    """Show a new state of the edited code."""

    state: DevState


class Take(msgspec.Struct, frozen=True, tag=True):
    """A person wants the held-back edit to be applied."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Hand over the runs, and end."""


class Left(msgspec.Struct, frozen=True, tag=True):
    """The runs are handed over, and the process is about to end."""


Message: TypeAlias = Prepare | Load | Loaded | Broken | Go | Serving | Show | Take | Stop | Left

# The longest line: a module may park thousands of runs.
LINE_LIMIT = 256 * 1024 * 1024


class Channel:
    """One end of the connection between two processes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, sock: socket.socket) -> Channel:
        """The end that is this socket."""
        return cls(*await asyncio.open_connection(sock=sock, limit=LINE_LIMIT))

    def send(self, message: Message) -> None:
        """Send a message. Does nothing if the other process has ended."""
        if not self._writer.is_closing():
            self._writer.write(msgspec.json.encode(message) + b"\n")

    async def receive(self) -> Message | None:
        """The next message; None when the other process has ended."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return msgspec.json.decode(line, type=Message) if line.endswith(b"\n") else None

    def close(self) -> None:
        """Close it; the other process notices."""
        self._writer.close()
