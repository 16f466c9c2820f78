"""Keep one server, and end it with the process it was started for, however that process ends. Standard library only.

Run as a program: takes its orders as JSON on standard input, starts the server, answers with two process ids and goes
into the background. It holds a lock on a file for as long as the server runs, so that anyone can wait for its end.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

GRACE = 5.0
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Start the server and go into the background, as the one who watches it."""
    orders: dict[str, Any] = json.load(sys.stdin)
    answer, tell = os.pipe()
    if os.fork():
        # Whoever called waits for this process; the keeper is its orphan, and nobody has to collect it.
        os.close(tell)
        with os.fdopen(answer) as told:
            sys.stdout.write(told.read())
        return
    os.setsid()
    os.close(answer)
    lock = os.open(orders["lock"], os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with open(orders["log"], "ab") as log:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream, target in ((0, nothing), (1, log.fileno()), (2, log.fileno())):
            os.dup2(target, stream)
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        server = _start(orders)
    os.write(tell, json.dumps({"keeper": os.getpid(), "pid": server.pid}).encode())
    os.close(tell)
    gone = _watch(server, orders["watch"], wake)
    _end(server, orders["stop"])
    if gone:
        # Nobody is left to tidy up. Whoever waits for the lock gets it when this is done.
        things, lock_file = orders["remove"]
        shutil.rmtree(things, ignore_errors=True)
        Path(lock_file).unlink(missing_ok=True)


def _start(orders: dict[str, Any]) -> subprocess.Popen[bytes]:
    keeper = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def end_with_keeper() -> None:
        # After the change of user, which would undo it.
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, orders["stop"], 0, 0, 0)
            if os.getppid() != keeper:
                os._exit(1)

    as_user = {} if orders["user"] is None else {"user": orders["user"], "group": orders["group"], "extra_groups": []}
    return subprocess.Popen(
        orders["command"], cwd=orders["cwd"], env=orders["env"], preexec_fn=end_with_keeper, umask=0o077, **as_user
    )


def _watch(server: subprocess.Popen[bytes], pid: int, wake: int) -> bool:
    """Return when the server has ended, when asked by SIGTERM, or, with True, when the process `pid` is gone."""
    watched: list[int] = [wake]
    handle = None
    if sys.platform == "linux":
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        watched.append(handle)
    while True:
        ready, _, _ = select.select(watched, [], [], None if handle is not None else 0.5)
        if wake in ready and signal.SIGTERM in os.read(wake, 64):
            return False
        if server.poll() is not None:
            return False
        if handle is not None and handle in ready:
            return True
        if handle is None:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True


def _end(server: subprocess.Popen[bytes], number: int) -> None:
    """End it, first as it likes to be ended; also when it stands still."""
    for how in (number, signal.SIGKILL):
        if server.poll() is None:
            server.send_signal(how)
            for pid in (server.pid, *children(server.pid)):
                _continue(pid)
            try:
                server.wait(GRACE)
            except subprocess.TimeoutExpired:
                pass


def _continue(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


def children(pid: int) -> list[int]:
    """The processes whose parent is `pid`."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        pairs = [line.split() for line in listed.splitlines()]
        return [int(child) for child, parent in pairs if int(parent) == pid]
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name, in brackets, may hold anything; the parent is the second field after it.
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(parent) == pid and state != "Z":
                found.append(int(entry.name))
    return found


if __name__ == "__main__":
    main()
