"""A process that has everything imported and forks children which begin at once. Knows nothing of what they do.

Reads one JSON request per line: `{"target": "module:function", "arguments": {...}, "out": path}`, and answers with
`{"pid": ...}`; when a child has ended it says `{"ended": pid, "status": ...}`. A child writes what its function
returned to `out` as JSON, and its output to `out` + ".log". When the other side goes away, every child is killed.

The target `python` with `{"argv": [...], "cwd": path, "env": {...}}` does what `python ARGV` does there; it only has
everything imported, and ends as `ended` says.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PRELOADED = (
    "tests.crash.children",
    "tests.crash.storms",
    "perdure.cli.main",
    "perdure.cli.run",
    "perdure.cli.runs",
    "perdure.cli.worker",
    "perdure.progress",
    "sqlite3",
    "perdure.stores.postgres.store",
    "perdure.stores.redis.store",
    "perdure.stores.etcd.leases",
    # What flows import when the first of them is read.
    "perdure.engine.blob_step",
    "jsonschema_rs",
    "minijinja",
    "yaml",
)


def main() -> dict[str, Any] | None:
    """Serve until the input ends. In a child that does what `python` does: its request."""
    # Imported once, so that a child is there within milliseconds.
    for name in PRELOADED:
        importlib.import_module(name)
    # A collection of garbage in a child would copy all of it.
    gc.collect()
    gc.freeze()

    assert threading.active_count() == 1, "a process with threads must not be forked"
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one who asks; this end follows
    children: set[int] = set()
    parent = os.getpid()
    pending = b""
    try:
        while True:
            ready, _, _ = select.select([0, wake_read], [], [])
            if wake_read in ready:
                os.read(wake_read, 4096)
                _reap(children)
            if 0 in ready:
                data = os.read(0, 65536)
                if not data:
                    return None
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    pid = os.fork()
                    if pid == 0:
                        children.clear()
                        _begin(parent, request["out"])
                        if request["target"] == "python":
                            return dict(request["arguments"])
                        _call(**request)
                    children.add(pid)
                    _say({"pid": pid})
    finally:
        signal.set_wakeup_fd(-1)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _reap(children: set[int]) -> None:
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            children.discard(pid)
            _say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


def _begin(parent: int, out: str) -> None:
    """Become a process as others are, except that it ends with its parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        # Not even a killed parent leaves a child behind.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    log = os.open(out + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _call(target: str, arguments: dict[str, Any], out: str) -> NoReturn:
    status = 1
    try:
        module, _, name = target.partition(":")
        result = getattr(importlib.import_module(module), name)(**arguments)
        with open(out + ".part", "w") as file:
            json.dump(result, file)
        os.rename(out + ".part", out)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@contextmanager
def ended() -> Iterator[None]:
    """Do something, and end this process as the interpreter ends, without taking apart all that was imported before.

    That would copy the memory that it shares with the process that forked it: ten times the work of a short command.
    An error that is no `SystemExit` is left to the interpreter.
    """
    status: object = 0
    try:
        yield
    except SystemExit as error:
        status = error.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if not isinstance(status, int | None):
        print(status, file=sys.stderr)
        status = 1
    # What is left of the program says what it has to say: of tasks that are pending, and files that are open.
    if vars(sys.modules["__main__"]) is not globals():
        vars(sys.modules["__main__"]).clear()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((status or 0) & 0xFF)


def python(argv: list[str], cwd: str, env: dict[str, str]) -> None:
    """What the interpreter does with its command line: `SCRIPT ...` or `-m MODULE ...`."""
    os.chdir(cwd)
    os.environ.update(env)
    sys.path[0] = cwd
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    asked = main()
    if asked is not None:
        with ended():
            python(**asked)
