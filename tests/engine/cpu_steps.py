"""Steps that other processes can find by name."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass

from perdure import Retry, RunContext, bail, patched, resource, run_context, step, step_context, workflow


@dataclass
class Order:
    id: str
    cents: int


class Declined(Exception):
    """An exception that crosses the border of a process."""


@step(cpu=True)
def pid() -> int:
    return os.getpid()


@step(cpu=True)
def discount(order: Order, *, percent: int) -> Order:
    return Order(order.id, order.cents * (100 - percent) // 100)


@step(cpu=True)
def decline(why: str) -> None:
    raise Declined(why)


@step(cpu=True)
def context() -> list[str | int]:
    return [step_context().id, step_context().attempt]


@step
def pid_of_plain_step() -> int:
    return os.getpid()


@workflow
async def crunch() -> list[object]:
    seen: list[object] = [await pid(), await discount(Order("a", 200), percent=25), await context()]
    try:
        await decline("too dear")
    except Declined as error:
        seen.append(str(error))
    return seen


@workflow
async def plain() -> int:
    return await pid_of_plain_step()


@step(cpu=True)
def emitting() -> None:
    """Tries what works in the engine's own process only."""
    step_context().emit(1)


@step(cpu=True)
def beating() -> None:
    """Tries what works in the engine's own process only."""
    step_context().heartbeat()


@step(cpu=True)
def whose_run() -> RunContext:
    return run_context()


@step(cpu=True)
def raises(kind: str) -> None:
    """Raises what ends a process, were it let out."""
    raise {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt, "GeneratorExit": GeneratorExit}[kind]("x")


@step(cpu=True)
def dies() -> None:
    """Takes its process with it."""
    os._exit(3)


@step
def dies_anywhere() -> None:
    """Takes its process with it, for an executor of processes."""
    os._exit(3)


@step(cpu=True)
def is_killed() -> None:
    """Meets the OOM killer."""
    os.kill(os.getpid(), signal.SIGKILL)


@step(cpu=True, retry=Retry(attempts=3, initial=0))
def dies_once() -> int:
    """Takes its process with it the first time."""
    if step_context().attempt == 1:
        os._exit(3)
    return step_context().attempt


@step(cpu=True, at_most_once=True)
def dies_for_good() -> None:
    """May not be made again."""
    os._exit(3)


@step(cpu=True)
def waits_for(file: str) -> int:
    """Goes on when a file is there."""
    while not os.path.exists(file):
        time.sleep(0.01)
    return step_context().attempt


@step(cpu=True)
def appears(file: str) -> None:
    """Makes a file, and stays for longer than any test waits."""
    with open(file, "w") as made:
        made.write(str(os.getpid()))
    time.sleep(600)


class Fussy(Exception):
    """Cannot be made again from its arguments alone."""

    def __init__(self, code: int, why: str) -> None:
        self.code = code
        super().__init__(f"{why} ({code})")


@step(cpu=True)
def fails_fussily() -> None:
    """Raises what another process cannot make again as it was made here."""
    raise Fussy(7, "no")


@step(cpu=True)
def returns_a_lock() -> object:
    """Returns what cannot leave its process."""
    return {"locks": [1, threading.Lock()]}


def load_model() -> list[int]:
    """A resource that each process makes for itself."""
    return [os.getpid(), 0]


@step(cpu=True)
def use_model() -> list[int]:
    model: list[int] = resource("model", list)
    model[1] += 1
    return model


@step(cpu=True)
def use_db() -> str:
    return str(resource("db"))


@step(cpu=True)
def bail_out() -> str:
    bail("no stock", {"left": 0})


@step(cpu=True)
def ask_patch(cents: int) -> int:
    return cents * 2 if patched("twice") else cents


@step(cpu=True)
def length(text: str) -> int:
    return len(text)
