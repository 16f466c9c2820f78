"""An orchestrator as a process of its own, for tests that stop, wake and kill it. It writes down all that it does.

`python -m tests.crash.orchestrating URL NAME FOLDER LEASE CHECK_INTERVAL QUARANTINE [LEASES]`
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from perdure import Engine, Recovery, StoreUnavailable, lock, step, wait_signal, workflow
from perdure.engine.lease_deadline import LeaseDeadline
from perdure.kernel.program import Program
from perdure.ports.journal import Append


def write_down(file: str, *words: object) -> None:
    """Add a line to a file of the test, in one piece."""
    line = " ".join(map(str, (time.time(), os.getpid(), *words))) + "\n"
    handle = os.open(Path(os.environ["FOLDER"]) / file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.close(handle)


# When this process has last seen that its lease is in force.
seen_in_force = 0.0
expired = LeaseDeadline.expired


def look(self: LeaseDeadline, moment: float | None = None) -> bool:
    global seen_in_force
    at = time.time()
    if expired(self, moment):
        return True
    seen_in_force = at
    return False


def mended() -> bool:
    return (Path(os.environ["FOLDER"]) / "mended").exists()


@step
async def work(number: int, seconds: float) -> int:
    # A process may be stopped between its look at the lease and this line.
    write_down("steps", "work", number, seen_in_force)
    await asyncio.sleep(seconds)
    return number


@workflow
async def flow(steps: int, seconds: float) -> int:
    return sum([await work(number, seconds) for number in range(steps)])


@step
async def hold(number: int) -> int:
    write_down("steps", "hold", number)
    while not mended():
        await asyncio.sleep(0.02)
    return number


@workflow
async def held(steps: int) -> int:
    return sum([await hold(number) for number in range(steps)])


@step
async def kill() -> str:
    write_down("steps", "kill", 0)
    if not mended():
        os.kill(os.getpid(), signal.SIGKILL)
    return "mended"


@workflow
async def poison() -> str:
    return await kill()


@workflow
async def poison_body() -> str:
    if not mended():
        os._exit(3)
    return "mended"


@step
def think(seconds: float) -> str:
    write_down("steps", "think", 0)
    time.sleep(seconds)
    return "thought"


@workflow
async def thinking(seconds: float) -> str:
    async with lock("mind", ttl=60):
        return await think(seconds)


@workflow
async def waiting_inside() -> str:
    async with lock("door", ttl=60):
        return str(await wait_signal("go"))


@workflow
async def poison_inside() -> str:
    async with lock("cellar", ttl=60):
        return await kill()


@step
def eat() -> str:
    write_down("steps", "eat", 0)
    hoard: list[bytes] = []
    end = time.time() + 3
    while time.time() < end and not mended():
        hoard.append(b"x" * (8 << 20))
        time.sleep(0.05)
    if not mended():
        os.kill(os.getpid(), signal.SIGKILL)  # as the system does when there is no more
    return "mended"


@workflow
async def glutton() -> str:
    return await eat()


async def main(url: str, name: str, recovery: Recovery, leases: str | None) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    def committed(id: str, append: Append) -> None:
        assert engine._orchestrator is not None
        write_down("appends", engine._orchestrator.session.id, append.run_id, append.expected_next, append.next_seq)

    programs: list[Program] = [flow, held, poison, poison_body, thinking, waiting_inside, poison_inside, glutton]
    engine = Engine(url, programs, name=name, recovery=recovery, on_commit=committed, leases=leases)
    async with engine:
        print("open", flush=True)
        waits = [asyncio.ensure_future(one.wait()) for one in (stop, engine.superseded)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        told = "superseded" if engine.superseded.is_set() else "stopping"
        write_down("ends", told, name)
        print(told, flush=True)
    write_down("ends", "left", name)


if __name__ == "__main__":
    os.environ["FOLDER"] = sys.argv[3]
    LeaseDeadline.expired = look  # type: ignore[method-assign]
    lease, interval, quarantine = map(float, sys.argv[4:7])
    recovery = Recovery(lease=lease, check_interval=interval, grace=0.2, quarantine=int(quarantine))
    while True:
        try:
            asyncio.run(main(sys.argv[1], sys.argv[2], recovery, next(iter(sys.argv[7:]), None)))
            break
        except StoreUnavailable:
            # A server that is busy, or that is just coming back, does not answer in time.
            time.sleep(0.05)
