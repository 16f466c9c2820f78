"""Plain commands of documents, `perdure ...` and `python shop.py`, in processes that have everything imported.

A process that has executed nothing of the document yet forks them. What only a shell understands is left to one.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any

# What a shell would do something about; most characters in quotes are safe, and left to it all the same.
SHELL = re.compile(r"[|&;<>()$`\\*?~#=!{}\n]|\[")


def plain(command: str) -> list[str] | None:
    """The words of `perdure ...` or `python SCRIPT ...`, if that needs no shell."""
    if SHELL.search(re.sub(r"'[^']*'", "", command)):
        return None
    words = shlex.split(command)
    return words if words[0] == "perdure" or (words[0] == "python" and words[1].endswith(".py")) else None


class Commands:
    """Starts commands. In each of them it is made too, with a `request`: what is to be done."""

    def __init__(self) -> None:
        self._asking, asked = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        self.request = _serve(asked, self._asking) if os.fork() == 0 else None
        if self.request is None:
            asked.close()

    def end(self) -> None:
        """Start no more."""
        self._asking.close()

    def start(self, command: str) -> tuple[int, IO[str], Callable[[], object]]:
        """The id of a new process, which is a group of its own, what it prints, and a way to wait for its end."""
        words = plain(command)
        if words is None:
            shell = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            assert shell.stdout is not None
            return shell.pid, shell.stdout, shell.wait
        read, write = os.pipe()
        request = json.dumps({"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}).encode()
        socket.send_fds(self._asking, [len(request).to_bytes(8, "big")], [write])
        self._asking.sendall(request)
        os.close(write)
        pid = int.from_bytes(self._asking.recv(8, socket.MSG_WAITALL), "big")
        return pid, open(read, encoding="utf-8"), lambda: gone(pid)


def gone(pid: int) -> None:
    """Wait until a process of another one has ended."""
    with suppress(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            time.sleep(0.001)


def _serve(asked: socket.socket, other: socket.socket) -> dict[str, Any]:
    """Fork one process for each request until there are no more."""
    other.close()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        head, [*files], _, _ = socket.recv_fds(asked, 8, 1)
        if not head:
            os._exit(0)
        request = asked.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            asked.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for stream in (1, 2):
                os.dup2(files[0], stream)
            os.close(files[0])
            return dict(json.loads(request))
        os.close(files[0])
        asked.sendall(pid.to_bytes(8, "big"))


def execute(request: dict[str, Any], path: list[str]) -> None:
    """Do what the interpreter does with a command line. `path` is where it finds modules that are installed."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    # Unbuffered, as PYTHONUNBUFFERED would have it.
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(stream, "w", closefd=False), encoding="utf-8", write_through=True)
        for stream in (1, 2)
    )
    sys.excepthook = _tell
    program, *words = request["words"]
    script = str(shutil.which("perdure")) if program == "perdure" else words.pop(0)
    file = Path(script).absolute()
    sys.path[:] = [str(file.parent), *path]
    sys.argv = [script, *words]
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(file)
    exec(compile(file.read_bytes(), str(file), "exec"), main.__dict__)  # noqa: S102 - the documentation is ours


def _tell(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """Print an error as if the script had been run by itself."""
    while at is not None and at.tb_frame.f_globals is not sys.modules["__main__"].__dict__:
        at = at.tb_next
    traceback.print_exception(kind, error, at)
