"""What a process inherits from the one that made it, and what it must not do with it. Opens nothing.

A forked child has a copy of everything but the threads: an engine of its parent would wait for ever for a loop that
does not run there, and a lock on a file would outlive the parent as long as the child holds a copy of it. A spawned
child imports the main module of its parent, and must not start runs while it does.
"""

from __future__ import annotations

import os
import sys

from perdure.errors import UsageError

# What processes of `cpu=True` steps are called, and how one ends whose main module starts runs while it is imported.
CPU_PROCESS = "perdure-cpu"
UNGUARDED = 79

# Files that only the process which opened them may hold open.
_private: set[int] = set()


def keep_private(file: int) -> None:
    """Let no forked child hold this file open. To be taken back with `let_go` before it is closed."""
    _private.add(file)


def let_go(file: int) -> None:
    """This file is about to be closed."""
    _private.discard(file)


def _in_child() -> None:
    if not _private:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in _private:
        # Not closed: the number would be given to another file, which its owner would close one day.
        os.dup2(nothing, file, inheritable=False)
    os.close(nothing)
    _private.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def check_process(pid: int, what: str) -> None:
    """Raise where this process is a fork of the one in which something was opened."""
    if pid not in (0, os.getpid()):
        raise UsageError(
            f"this {what} was opened by process {pid}, and this is {os.getpid()}, a fork of it, in which nothing of it "
            f"works; open one {what} per process, after the fork: in gunicorn's post_fork hook (or without --preload), "
            "in the function that a multiprocessing.Process executes, or start processes with the method 'spawn'"
        )


def check_main() -> None:
    """Raise where a new process imports the main module of the program that started it: this is no place for runs."""
    loaded = sys.modules.get("multiprocessing.process")
    process = loaded.current_process() if loaded is not None else None
    if process is None or not getattr(process, "_inheriting", False):
        return
    if process.name == CPU_PROCESS:
        # No handler of the program may take it for something else; the engine that waits says what is wrong.
        raise SystemExit(UNGUARDED)
    raise UsageError(f"the process {process.name!r} {GUARD}")


GUARD = (
    "imports the main module of the program, and that starts runs again; put what starts them under "
    '`if __name__ == "__main__":`'
)
