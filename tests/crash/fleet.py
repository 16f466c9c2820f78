"""Orchestrators in processes of their own, and what they have written down."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from perdure import RunSummary, call, connect
from perdure.kernel.events import RunClaimed
from tests.crash.harness import ROOT, Child, Children, create, until, whole_lines


@dataclass(frozen=True, slots=True)
class Did:
    """A line that an orchestrator has written down."""

    at: float
    pid: int
    words: tuple[str, ...]


class Member:
    """One process."""

    def __init__(self, name: str, child: Child) -> None:
        self.name, self.child, self.pid = name, child, child.pid
        self.signal, self.wait = child.signal, child.wait

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.child.alive


class Fleet:
    """Orchestrators on one store, which it makes. Leave it, and none is left."""

    def __init__(
        self,
        children: Children,
        url: str,
        folder: Path,
        lease: float,
        quarantine: int = 3,
        leases: str | None = None,
        check_interval: float | None = None,
    ) -> None:
        self._children, self.url, self.folder, self.leases = children, url, folder, leases
        self._settings = [str(lease), str(check_interval or lease / 3), str(quarantine)]
        self.members: list[Member] = []
        asyncio.run(create(url))

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        for member in self.members:
            member.child.kill()

    def start(self, name: str, *, wait: bool = True) -> Member:
        """Start an orchestrator, and wait until it is open."""
        command = ["-m", "tests.crash.orchestrating", self.url, name, str(self.folder), *self._settings]
        child = self._children.python(self.folder, *command, *([self.leases] if self.leases else []), cwd=ROOT)
        member = Member(name, child)
        self.members.append(member)
        if wait:
            until(lambda: "open\n" in child.log or not child.alive, every=0.01)
            assert child.alive or child.wait() < 0, f"{name} ended by itself\n{child.log}"
        return member

    def mend(self) -> None:
        """Let what holds or kills its orchestrators end."""
        (self.folder / "mended").touch()

    @property
    def log(self) -> str:
        """What all of them logged."""
        return "".join(member.child.log for member in self.members)

    def did(self, file: str) -> list[Did]:
        """What they wrote down: `steps` that began, or `appends` that were taken."""
        path = self.folder / file
        lines = whole_lines(path)
        return [Did(float(at), int(pid), tuple(words)) for at, pid, *words in map(str.split, lines)]

    # --- as a caller ----------------------------------------------------------------------------------------------

    def put(self, program: str, *arguments: Any, ids: Sequence[str]) -> None:
        """Start runs from outside."""

        async def start() -> None:
            async with connect(self.url) as client:
                for id in ids:
                    _ = await client.start(call(program, *arguments), id=id)

        asyncio.run(start())

    def views(self) -> dict[str, RunSummary]:
        """All runs."""

        async def ask() -> dict[str, RunSummary]:
            async with connect(self.url) as client:
                return {view.id: view for view in await client.list(limit=10_000)}

        return asyncio.run(ask())

    def stale_writes(self) -> list[str]:
        """The appends that were taken from a process that did not own the run at that moment."""

        async def claims(run_ids: set[str]) -> dict[str, list[tuple[int, str]]]:
            async with connect(self.url) as client:
                return {
                    run_id: [(e.seq, e.event.session) for e in entries if isinstance(e.event, RunClaimed)]
                    for run_id in run_ids
                    for entries in [await client.journal(run_id)]
                }

        appends = self.did("appends")
        known = asyncio.run(claims({one.words[1] for one in appends}))
        stale = []
        for one in appends:
            session, run_id, first, following = one.words
            # Its own claim may be in the append itself.
            owners = [owner for seq, owner in known[run_id] if seq < int(following)]
            if not owners or owners[-1] != session:
                stale.append(f"{run_id}[{first}] by {session}, of {owners}")
        return stale


def freeze(member: Member | Child, url: str) -> None:
    """Let it stand still; on SQLite outside of a commit, in which it would keep every other process from writing."""
    member.signal(signal.SIGSTOP)
    while url.startswith("sqlite:") and not _can_write(url.removeprefix("sqlite:///")):
        member.signal(signal.SIGCONT)
        time.sleep(0.02)
        member.signal(signal.SIGSTOP)


def _can_write(path: str) -> bool:
    """Whether the write lock comes free: the others hold it for moments, the one that stands still for good.

    It is waited for much shorter than any lease: a member that stood still for its lease and goes on would start its
    steps again. Where only the others were slow, `freeze` just tries again.
    """
    database = apsw.Connection(path)
    database.set_busy_timeout(500)
    try:
        database.execute("begin immediate; rollback")
    except apsw.BusyError:
        return False
    finally:
        database.close()
    return True


def wake(member: Member) -> None:
    """Let it go on."""
    member.signal(signal.SIGCONT)
