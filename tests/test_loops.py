"""The event loops that perdure makes itself are uvloop's where that is installed; an application keeps its own."""

from __future__ import annotations

import asyncio
import sys
import types
from pathlib import Path

import pytest

import perdure
from perdure import blocking, step, workflow
from perdure.cli import worker
from perdure.engine.lease_deadline import LeaseDeadline

kinds: list[str] = []


class StandIn(asyncio.SelectorEventLoop):
    """In place of the loop of uvloop, which reads the clock once in each turn."""

    def time(self) -> float:
        return super().time()


StandIn.__module__ = "uvloop.loop"


@step
async def work() -> None:
    kinds.append(type(asyncio.get_running_loop()).__name__)


@workflow
async def flow() -> None:
    await work()


@pytest.fixture(params=[False, True], ids=["without uvloop", "with uvloop"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The class of the loops that are made."""
    kinds.clear()
    stand_in = types.ModuleType("uvloop")
    stand_in.new_event_loop = StandIn  # type: ignore[attr-defined]
    # None: as if it were not installed.
    monkeypatch.setitem(sys.modules, "uvloop", stand_in if request.param else None)
    loop = asyncio.new_event_loop()
    usual = type(loop).__name__
    loop.close()
    return "StandIn" if request.param else usual


def test_run_and_blocking_and_workers_make_it(made: str, tmp_path: Path) -> None:
    perdure.run(flow(), store=f"sqlite:///{tmp_path}/x.db", progress=False)
    with blocking.Engine(f"sqlite:///{tmp_path}/y.db", [flow]) as engine:
        _ = engine.run(flow())

    async def serve() -> None:
        kinds.append(type(asyncio.get_running_loop()).__name__)

    worker._run(serve())
    assert kinds == [made] * 3


async def test_an_engine_takes_the_loop_that_it_is_opened_on(made: str) -> None:
    async with perdure.Engine("memory://", [flow]) as engine:
        _ = await engine.run(flow())
    assert kinds == [type(asyncio.get_running_loop()).__name__]


def test_the_deadline_of_a_lease_is_read_from_the_clock_and_not_from_the_turn(made: str) -> None:
    loop = StandIn() if made == "StandIn" else asyncio.new_event_loop()
    deadline = LeaseDeadline(loop, lambda: None)
    now = loop.time()
    deadline.extend(now - 1.0, now + 60.0)
    # A turn that has not ended: its time stands still, and a lease may end meanwhile.
    loop.time = lambda: now - 5.0  # type: ignore[method-assign]
    assert deadline.expired()
    deadline.extend(now + 60.0, now + 120.0)
    assert not deadline.expired()
    deadline.cancel()
    loop.close()
