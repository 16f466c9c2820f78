"""Children of tests behave as from a terminal, however the suite was started, and end when their test fails.

`nohup make test &`, a cron job and a service manager start the suite with signals ignored or blocked, and every child
would inherit that: Ctrl-C would not interrupt it, and its test would wait for ever.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.crash.harness import Children

DISREGARDED: pytest.StashKey[list[int]] = pytest.StashKey()
# Python ignores these itself, and `subprocess` restores them in children.
PYTHONS_OWN = {getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ", "SIGXFZ") if hasattr(signal, name)}


def _disregard(number: int, frame: FrameType | None) -> None:
    """Ignore a signal in this process alone: a signal with a handler has its default disposition in a child."""


def pytest_configure(config: pytest.Config) -> None:
    """Give children the default dispositions; this process goes on ignoring what it was told to ignore."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    ignored = {int(n) for n in signal.valid_signals() - PYTHONS_OWN if signal.getsignal(n) is signal.SIG_IGN}
    # A worker of xdist is a child itself: it has the defaults, and is told what its controller ignores.
    ignored |= set(getattr(config, "workerinput", {}).get("disregarded", ()))
    for number in ignored:
        # Ignored, SIGCHLD would take the exit status of children away.
        signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else _disregard)
    config.stash[DISREGARDED] = sorted(ignored)
    subprocess.Popen.__exit__ = _leave  # type: ignore[method-assign]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist what is ignored."""
    node.workerinput["disregarded"] = node.config.stash[DISREGARDED]


def pytest_unconfigure() -> None:
    """Leave `subprocess` as it was."""
    subprocess.Popen.__exit__ = _wait  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def children() -> Iterator[Children]:
    """Processes that begin at once, and may be killed. All of them are gone when the session ends."""
    # Here, so that sessions without them do not pay for it.
    from tests.crash.harness import Children

    children = Children()
    yield children
    children.close()


def is_alive(pid: int) -> bool:
    """Whether there is such a process; one that has ended and waits to be collected is none."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        # It has ended meanwhile, or this system has no such files.
        return not Path("/proc/self/stat").exists()


_wait = subprocess.Popen.__exit__


def _leave(
    process: subprocess.Popen[Any],
    kind: type[BaseException] | None,
    error: BaseException | None,
    at: TracebackType | None,
) -> None:
    """Leave `with Popen(...)`: after a failure the child is killed, since nothing will tell it to end."""
    if kind is not None:
        process.kill()
    _wait(process, kind, error, at)
