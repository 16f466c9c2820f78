"""Orchestrators in processes of their own, and what they have written down."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from perdure import RunSummary, call, connect
from perdure.kernel.events import RunClaimed
from tests.crash.harness import PATIENCE, ROOT, whole_lines


@dataclass(frozen=True, slots=True)
class Did:
    """A line that an orchestrator has written down."""

    at: float
    pid: int
    words: tuple[str, ...]


class Member:
    """One process."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name, self.process, self.pid = name, process, process.pid

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(PATIENCE)


class Fleet:
    """Orchestrators on one store. Leave it, and none is left."""

    def __init__(self, url: str, folder: Path, lease: float, quarantine: int = 3, leases: str | None = None) -> None:
        self.url, self.folder, self.lease, self.quarantine, self.leases = url, folder, lease, quarantine, leases
        self.members: list[Member] = []

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *error: object) -> None:
        for member in self.members:
            member.process.kill()
        for member in self.members:
            member.process.wait(PATIENCE)
            assert member.process.stdout is not None
            member.process.stdout.close()

    def start(self, name: str, *, wait: bool = True) -> Member:
        """Start an orchestrator, and wait until it is open."""
        command = [sys.executable, "-m", "tests.crash.orchestrating", self.url, name, str(self.folder)]
        command += [str(self.lease), str(self.quarantine), *([self.leases] if self.leases else [])]
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
        member = Member(name, process)
        self.members.append(member)
        assert process.stdout is not None
        if wait and process.stdout.readline() != "open\n":
            assert process.wait(PATIENCE) < 0, f"{name} ended by itself\n{self.log}"
        return member

    @property
    def log(self) -> str:
        """What all of them logged."""
        return (self.folder / "log").read_text()

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


def freeze(member: Member, url: str) -> None:
    """Let it stand still; on SQLite outside of a commit, in which it would keep every other process from writing."""
    member.signal(signal.SIGSTOP)
    while url.startswith("sqlite:") and not _can_write(url.removeprefix("sqlite:///")):
        member.signal(signal.SIGCONT)
        time.sleep(0.02)
        member.signal(signal.SIGSTOP)


def _can_write(path: str) -> bool:
    """Whether the write lock comes free: the others hold it for moments, the one that stands still for good."""
    database = apsw.Connection(path)
    database.set_busy_timeout(5000)
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
