"""How long an orchestrator may act, by its own clock."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Engine, step, workflow
from perdure.engine import lease_deadline
from perdure.engine.lease_deadline import LeaseDeadline
from perdure.kernel.events import StepStarted
from perdure.ports.journal import Append
from tests.engine.harness import AT_ONCE, eventually
from tests.patience import PATIENCE


class Told:
    """A deadline on a loop whose time is set by hand, and how often it was enforced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = asyncio.get_running_loop()
        self.now, self.asleep, self.count = 100.0, 7.0, 0
        monkeypatch.setattr(self.loop, "time", lambda: self.now)
        monkeypatch.setattr(lease_deadline, "slept", lambda: self.asleep)
        self.idle = False
        self.deadline = LeaseDeadline(self.loop, self.stop, lambda: self.idle)

    def stop(self) -> None:
        self.count += 1


async def test_without_a_lease_there_is_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.now = 1e12
    assert not told.deadline.expired()
    monkeypatch.undo()


async def test_it_expires_at_its_moment_and_asking_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.deadline.extend(130.0, 136.0)
    told.now = 129.9
    assert not told.deadline.expired()
    told.deadline.enforce()
    told.now = 130.0
    assert told.deadline.expired()
    assert told.count == 0
    told.deadline.enforce()
    assert told.count == 1
    told.deadline.extend(160.0, 166.0)
    assert not told.deadline.expired()
    told.deadline.cancel()
    monkeypatch.undo()


async def test_the_time_for_which_the_machine_was_suspended_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.deadline.extend(130.0, 136.0)
    told.asleep += 29.0
    assert not told.deadline.expired()
    told.asleep += 2.0
    assert told.deadline.expired()
    told.deadline.cancel()
    monkeypatch.undo()


async def test_the_usual_clock_of_a_loop_is_not_read_beside_the_time_since_boot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    boot = [1000.0]
    monkeypatch.setattr(lease_deadline, "since_boot", lambda: boot[0])
    monkeypatch.setattr(lease_deadline, "slept", lambda: 7.0)
    deadline = LeaseDeadline(asyncio.get_running_loop(), lambda: None)
    assert not deadline.expired()
    deadline.extend(1100.0, 1106.0)
    deadline.cancel()
    boot[0] = 1106.9
    assert not deadline.expired()
    boot[0] = 1107.0
    assert deadline.expired()


def test_suspension_is_measured_where_the_system_can_tell() -> None:
    assert lease_deadline.slept() >= -0.01


async def test_clocks_that_differ_by_a_little_do_not_make_it_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.deadline.extend(130.0, 136.0)
    told.now, told.asleep = 130.0, 7.0 - 1e-6
    assert told.deadline.expired()
    monkeypatch.undo()


async def test_a_timer_that_comes_early_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.deadline.extend(130.0, 136.0)
    told.now = 130.0 - 1e-9
    told.deadline._ring()
    assert told.count == 0
    monkeypatch.undo()
    told.deadline.until = 0.0
    async with asyncio.timeout(PATIENCE):
        while not told.count:
            await asyncio.sleep(0.001)


async def test_an_idle_orchestrator_is_stopped_only_when_the_lease_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told(monkeypatch)
    told.idle = True
    told.deadline.extend(130.0, 136.0)
    told.now = 135.9
    told.deadline._ring()
    assert told.count == 0
    assert told.deadline.expired()  # but a run that begins checks, and is stopped
    told.deadline.enforce()
    told.asleep += 2.0  # the machine was suspended: the lease has ended
    told.deadline._ring()
    assert told.count == 2
    told.deadline.cancel()
    monkeypatch.undo()


async def test_a_step_that_is_launched_and_has_not_begun_when_the_time_is_up_does_not_begin() -> None:
    called: list[int] = []

    @step
    async def note(number: int) -> int:
        called.append(number)
        return number

    @workflow
    async def flow() -> list[int]:
        return [await note(1), await note(2)]

    class StandingStill(Engine):
        def _committed(self, id: str, append: Append) -> None:
            # After the launch and before its first moment: where a process may be stopped as anywhere else.
            assert self._orchestrator is not None
            if any(isinstance(e, StepStarted) and e.op == "note:1" for batch in append.batches for e in batch.events):
                self._orchestrator.lease_deadline.until = 0.0

    async with StandingStill("memory://", [flow], recovery=AT_ONCE) as engine:
        _ = await engine.start(flow())
        orchestrator = engine._orchestrator
        assert orchestrator is not None
        await eventually(lambda: orchestrator.session.suspended)
        assert called == [1]
        assert not orchestrator.active
