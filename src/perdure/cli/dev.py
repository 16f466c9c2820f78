"""`perdure dev`: a worker, the dashboard and a watch over the files of a module, in one command.

This process holds the listening socket and starts others. One of them executes the runs and serves; another waits, with
perdure imported, for the next edit. It imports the module as it is now, and holds the open runs against it. If they all
fit, it takes the place of the first one; if not, the page says which runs would be parked, and the code from before
continues until the edit fits, or a person takes it anyway.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import cache_from_source
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter

from perdure.cli.exits import Exit, Problem
from perdure.cli.options import DEFAULT_STORE, StoreUrl, settings
from perdure.cli.output import clean, note

if TYPE_CHECKING:
    from perdure.cli.dev_messages import Broken, Channel, Loaded
    from perdure.server.shapes import DevState

# By file: the time of its last change, and its size.
Stamps: TypeAlias = dict[str, tuple[int, int]]
# In seconds: how often files are checked, how long they must be unchanged, and how long a process gets to leave.
LOOK_EVERY, SETTLE = 0.15, 0.02
LEAVE_WITHIN = 5.0


@dataclass(frozen=True, slots=True)
class DevConfig:
    """What is developed, on which store, and where the dashboard listens."""

    module: str
    store: str
    host: str
    port: int
    opens: bool


def dev(
    module: str | None = None,
    /,
    *,
    host: Annotated[str, Parameter(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="The port to listen on; 0 takes one that is free.")] = 8500,
    open: Annotated[bool, Parameter(help="Whether the dashboard is opened in a browser.")] = True,
    store: StoreUrl = DEFAULT_STORE,
) -> int:
    """Execute the runs of a module, show them in the dashboard, and take every edit of it at once, until Ctrl-C.

    An edit is first held against the open runs. If it would park one, the page
    says which and why, and the code from before continues until the edit fits,
    or is taken anyway.

    Parameters
    ----------
    module
        file.py, a module, flow.yaml or a folder of flows; by default from the settings.
    """
    module = module or settings().module
    if module is None:
        raise Problem("name the module to develop: perdure dev flows.py, or `module: flows` in the settings")
    if os.name != "posix":
        raise Problem("perdure dev needs a POSIX system; elsewhere use `perdure worker` beside `perdure serve`")
    if store.startswith("memory:"):
        raise Problem("a store in memory would not survive an edit; use a file: --store sqlite:///dev.db")
    return asyncio.run(_develop(DevConfig(module, store, host, port, open)))


async def _develop(config: DevConfig) -> int:
    from perdure.server.guards import is_loopback

    if not is_loopback(config.host):
        await _check_tokens(config)
    return await _Developing(config).run()


async def _check_tokens(config: DevConfig) -> None:
    """Raise UsageError unless the store has a token, as other machines can reach the host."""
    from perdure.client.client import Client
    from perdure.server.serve import takes_tokens
    from perdure.stores.open import open_store

    store = open_store(config.store)
    # A missing store is created, as an engine would, so that a token can be created in it.
    await store.open(migrate=True)
    try:
        async with Client(store) as client:
            _ = await takes_tokens(client, config.host)
    finally:
        await store.close()


def listening(host: str, port: int) -> socket.socket:
    """A listening socket."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(256)
    except OSError as error:
        found.close()
        raise Problem(
            f"cannot listen on {host}:{port} ({error.strerror}); --port 0 takes a port that is free"
        ) from None
    return found


class _Process:
    """A process that executes, or that waits for an edit."""

    def __init__(self, listener: socket.socket) -> None:
        self._own, control = socket.socketpair()
        self._listener = listener
        # In its own session: Ctrl-C is for this process, which tells the others what to do.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "perdure.cli.dev_process", str(control.fileno())],
            pass_fds=(control.fileno(), listener.fileno()),
            start_new_session=True,
        )
        control.close()
        self.channel: Channel
        # Set once its runs are handed over, or it has ended.
        self.left = asyncio.Event()

    async def connect(self, store: str) -> None:
        """Connect to it, and have it import everything but the user's code."""
        from perdure.cli.dev_messages import Channel, Prepare

        self.channel = await Channel.over(self._own)
        self.channel.send(Prepare(store))  # not an argument: it may contain a password, and all users can see arguments

    async def load(self, module: str, store: str) -> Loaded | Broken | None:
        """Have it import the module and check the open runs; None if it ended meanwhile."""
        from perdure.cli.dev_messages import Broken, Load, Loaded

        self.channel.send(Load(module, store))
        found = await self.channel.receive()
        return found if isinstance(found, Loaded | Broken) else None

    async def leave(self) -> None:
        """Have it hand over its runs; kill it if it does not."""
        from perdure.cli.dev_messages import Stop

        self.channel.send(Stop())
        try:
            await asyncio.wait_for(self.left.wait(), LEAVE_WITHIN)
        except TimeoutError:
            pass
        # Only the shutdown of its Python is left, and nothing has to wait for that.
        self.kill()

    def kill(self) -> None:
        """Kill it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.channel.close()


class _Developing:
    """The state of a session: the process that executes, the edit that is held back, the process that waits."""

    def __init__(self, config: DevConfig) -> None:
        self._config = config
        self._listener = listening(config.host, config.port)
        self._since = datetime.now(UTC)
        self._current: _Process | None = None
        self._held: _Process | None = None
        self._spare = _Process(self._listener)
        self._files = existing([config.module])
        self._stop = asyncio.Event()
        self._took = asyncio.Event()

    async def run(self) -> int:
        """Run until told to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        work = loop.create_task(self._work())
        stopped = loop.create_task(self._stop.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            for process in filter(None, (self._held, self._spare)):
                process.kill()
            if self._current is not None:
                await self._current.leave()
            self._listener.close()
        return Exit.OK

    async def _work(self) -> None:
        await self._spare.connect(self._config.store)
        await self._take_first()
        seen = stamps(self._files)
        while True:
            now = await self._changed(seen)
            if self._took.is_set():
                await self._take_held()
            elif now == seen:
                note(f"the process that executed {self._config.module} has ended; an edit starts it again")
                self._current = None
            else:
                forget_bytecode(file for file, stamp in now.items() if seen.get(file) != stamp)
                await self._take_edit(time.monotonic())
            # An edit that was made meanwhile comes next.
            seen = stamps(self._files) | now

    async def _changed(self, seen: Stamps) -> Stamps:
        """Wait for an edit, a decision, or the end of the executing process. Returns the state of the files."""
        while not self._took.is_set():
            await asyncio.sleep(LOOK_EVERY)
            now = stamps(self._files)
            if now != seen:
                return await self._settled(now)
            if self._current is not None and self._current.process.poll() is not None:
                break
        return seen

    async def _settled(self, now: Stamps) -> Stamps:
        """Wait until the editor has written all files: some editors remove a file for a moment."""
        for _ in range(20):
            before = now
            await asyncio.sleep(SETTLE)
            now = stamps(self._files)
            if now == before and len(now) == len(self._files):
                break
        return now

    # --- taking code ------------------------------------------------------------------------------------------------

    async def _take_first(self) -> None:
        from perdure.cli.dev_messages import Broken

        process = self._spare
        found = await process.load(self._config.module, self._config.store)
        if isinstance(found, Broken):
            note(found.problem)
            self._files |= set(found.files)
            await self._go(process, "broken", found.problem)
        elif found is None:
            raise Problem(f"{self._config.module} ended the process that imported it")
        else:
            self._files |= set(found.files)
            await self._go(process)
            note(f"{', '.join(found.programs) or 'steps'} of {self._config.module} in {self._config.store}")
            for run in found.runs:
                note(f"{run.id} does not fit the code, and is parked: {clean(run.title)}")
        url = self._url()
        note(f"dashboard at {url}; Ctrl-C stops it")
        if self._config.opens and has_screen():
            webbrowser.open(url)

    async def _take_edit(self, began: float) -> None:
        """Check the edit against the open runs, and apply it if they fit."""
        from perdure.cli.dev_messages import Loaded

        self._discard_held()
        process = self._spare
        self._show("checking")
        found = await process.load(self._config.module, self._config.store)
        self._files |= set(found.files if found is not None else ())
        if not isinstance(found, Loaded):
            problem = found.problem if found is not None else "it ended the process that imported it"
            process.kill()
            self._spare = await self._another()
            note(f"the edit cannot be loaded; the code from before continues\n{problem}")
            self._show("broken", problem)
            return
        if found.runs:
            self._held, self._spare = process, await self._another()
            note(
                f"the edit is held back: it would park {len(found.runs)} of {found.checked} open runs; the code from "
                f"before continues. {self._url()}check says which and why, and takes it anyway"
            )
            self._show("held", checked=found.checked, found=found)
            return
        await self._replace(process, found.checked)
        note(f"live after {time.monotonic() - began:.1f} s; {found.checked} open runs fit")

    async def _take_held(self) -> None:
        self._took.clear()
        process, self._held = self._held, None
        if process is not None:
            note("the edit is taken; runs that do not fit it are parked")
            await self._replace(process, 0, spare=self._spare)

    async def _replace(self, process: _Process, checked: int, spare: _Process | None = None) -> None:
        """Replace the executing process by this one."""
        if self._current is not None:
            await self._current.leave()
        await self._go(process, checked=checked, spare=spare)

    async def _go(
        self,
        process: _Process,
        status: Literal["live", "broken"] = "live",
        problem: str = "",
        checked: int = 0,
        spare: _Process | None = None,
    ) -> None:
        from perdure.cli.dev_messages import Broken, Go, Serving, Take

        self._since, self._current = datetime.now(UTC), process
        process.channel.send(Go(self._listener.fileno(), self._config.host, self._state(status, problem, checked)))
        answer = await process.channel.receive()
        if not isinstance(answer, Serving):
            process.left.set()
            why = answer.problem if isinstance(answer, Broken) else "see the error above"
            raise Problem(f"{self._config.module} cannot be executed: {why}")

        async def receive() -> None:
            while isinstance(await process.channel.receive(), Take):
                self._took.set()
            process.left.set()

        self._receiving = asyncio.create_task(receive())
        self._spare = spare or await self._another()

    async def _another(self) -> _Process:
        found = _Process(self._listener)
        await found.connect(self._config.store)
        return found

    def _discard_held(self) -> None:
        if self._held is not None:
            self._held.kill()
            self._held = None

    # --- for the dashboard ------------------------------------------------------------------------------------------

    def _show(
        self,
        status: Literal["live", "checking", "held", "broken"],
        problem: str = "",
        checked: int = 0,
        found: Loaded | None = None,
    ) -> None:
        from perdure.cli.dev_messages import Show

        if self._current is not None:
            self._current.channel.send(Show(self._state(status, problem, checked, found)))

    def _state(self, status: Any, problem: str = "", checked: int = 0, found: Loaded | None = None) -> DevState:
        import msgspec

        from perdure.server.shapes import CheckedRun, DevState

        runs = [] if found is None else [CheckedRun(**msgspec.structs.asdict(run)) for run in found.runs]
        return DevState(self._config.module, status, self._since, problem, checked, runs, os.getcwd())

    def _url(self) -> str:
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        return f"http://{host}:{self._listener.getsockname()[1]}/"


def has_screen() -> bool:
    """Whether this machine has a screen on which a browser could be opened."""
    return sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def forget_bytecode(files: Iterable[str]) -> None:
    """Have these modules compiled again: bytecode from before an edit within the same second would look valid."""
    for file in files:
        if file.endswith(".py"):
            with suppress(OSError):
                os.unlink(cache_from_source(file))


def existing(files: Iterable[str]) -> set[str]:
    """The files that exist, by their whole paths."""
    return {os.path.abspath(file) for file in files if os.path.exists(file)}


def stamps(files: Iterable[str]) -> Stamps:
    """The times of the last changes of files, and their sizes. Files that are gone are left out."""
    found = {}
    for file in files:
        try:
            stat = os.stat(file)
        except OSError:
            continue
        found[file] = (stat.st_mtime_ns, stat.st_size)
    return found
