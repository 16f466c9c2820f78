"""Refuse engines and runs in forked and spawned child processes, where they cannot work. Opens nothing.

A forked child has a copy of everything but the threads: its parent's engine would wait for ever for an event loop that
does not run in the child, and a file lock would outlive the parent while the child holds a copy of the descriptor. A
spawned child imports the main module of its parent, and must not start runs while it does.
"""

from __future__ import annotations

import os
import sys

from perdure.errors import UsageError

# The name of processes that execute `cpu=True` steps, and their exit code when importing the main module starts runs.
CPU_PROCESS = "perdure-cpu"
UNGUARDED = 79

# File descriptors that forked children must not hold open.
_private: set[int] = set()


def keep_private(file: int) -> None:
    """Close this file in forked children. Call `forget_private` before closing it here."""
    _private.add(file)


def forget_private(file: int) -> None:
    """Undo `keep_private`: the file is about to be closed."""
    _private.discard(file)


def _in_child() -> None:
    if not _private:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in _private:
        # Redirected, not closed: a later file would get the number, and the copied engine would close it.
        os.dup2(nothing, file, inheritable=False)
    os.close(nothing)
    _private.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def check_process(pid: int, what: str) -> None:
    """Raise UsageError in a fork of the process `pid`, which opened a `what`."""
    if pid not in (0, os.getpid()):
        raise UsageError(
            f"this {what} was opened by process {pid} and does not work in {os.getpid()}, a fork of it; "
            f"open one {what} per process, after the fork: in gunicorn's post_fork hook (or without --preload), "
            "in the function that a multiprocessing.Process executes, or start processes with the method 'spawn'"
        )


def check_main() -> None:
    """Raise while a spawned process imports its parent's main module, which must not start runs."""
    loaded = sys.modules.get("multiprocessing.process")
    process = loaded.current_process() if loaded is not None else None
    if process is None or not getattr(process, "_inheriting", False):
        return
    if process.name == CPU_PROCESS:
        # Not caught by `except Exception`; the engine that started the process reports the exit code.
        raise SystemExit(UNGUARDED)
    raise UsageError(f"the process {process.name!r} {GUARD}")


GUARD = (
    "imports the main module of the program, and that starts runs again; put what starts them under "
    '`if __name__ == "__main__":`'
)
