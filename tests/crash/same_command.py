"""A script as a user writes it: `python -m tests.crash.same_command STORE EFFECTS`. It dies once in each of its steps.

Run it again with the same arguments, and it goes on. SERVER_LEASE says how long its lease is on a server.
"""

from __future__ import annotations

import os
import signal
import sys

import perdure
from perdure import config, step, workflow
from tests.crash import programs


def die_once(name: str) -> None:
    """Kill -9, unless that has happened here before."""
    programs.effect()
    flag = f"{sys.argv[2]}.{name}"
    if not os.path.exists(flag):
        with open(flag, "w"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)


@step
async def fetch(n: int) -> int:
    """Dies at first, on the loop."""
    die_once(f"fetch-{n}")
    return n * n


@step
def store(n: int) -> int:
    """Dies at first, in a thread."""
    die_once(f"store-{n}")
    return n + 1


@workflow
async def gathering(count: int) -> list[int]:
    """Fetch and store, one after the other."""
    return [await store(await fetch(n)) for n in range(count)]


if __name__ == "__main__":
    programs.log_effects(sys.argv[2])
    config.SERVER_LEASE = float(os.environ.get("SERVER_LEASE", config.SERVER_LEASE))
    store_url = sys.argv[1] if "://" in sys.argv[1] else f"sqlite:///{sys.argv[1]}"
    print(perdure.run(gathering(2), id="gathering", store=store_url))
