"""How long an orchestrator may act, by its own clock."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Engine, step, workflow
from perdure.engine import lease_deadline
from perdure.engine.lease_deadline import Tenure
from perdure.kernel.events import StepStarted
from perdure.ports.journal import Append
from tests.engine.harness import AT_ONCE, eventually
from tests.patience import PATIENCE


class Told:
    """A tenure on a loop whose time is set by hand, and how often it was over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = asyncio.get_running_loop()
        self.now, self.asleep, self.count = 100.0, 7.0, 0
        monkeypatch.setattr(self.loop, "time", lambda: self.now)
        monkeypatch.setattr(lease_deadline, "slept", lambda: self.asleep)
        self.tenure = Tenure(self.loop)
        self.tenure.on_over = self.over

    def over(self) -> None:
        self.count += 1


async def test_without_a_lease_there_is_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.now = 1e12
    assert not told.tenure.over()
    monkeypatch.undo()


async def test_it_is_over_at_its_moment_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.tenure.extend(130.0, 136.0)
    told.now = 129.9
    assert not told.tenure.over()
    told.now = 130.0
    assert told.tenure.over()
    assert told.count == 1
    told.tenure.extend(160.0, 166.0)
    assert not told.tenure.over()
    told.tenure.end()
    monkeypatch.undo()


async def test_the_time_for_which_the_machine_was_suspended_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.tenure.extend(130.0, 136.0)
    told.asleep += 29.0
    assert not told.tenure.over()
    told.asleep += 2.0
    assert told.tenure.over()
    told.tenure.end()
    monkeypatch.undo()


def test_suspension_is_measured_where_the_system_can_tell() -> None:
    assert lease_deadline.slept() >= -0.01


async def test_clocks_that_differ_by_a_little_do_not_make_it_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.tenure.extend(130.0, 136.0)
    told.now, told.asleep = 130.0, 7.0 - 1e-6
    assert told.tenure.over()
    monkeypatch.undo()


async def test_a_timer_that_comes_early_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.tenure.extend(130.0, 136.0)
    told.now = 130.0 - 1e-9
    told.tenure._ring()
    assert told.count == 0
    monkeypatch.undo()
    told.tenure.until = 0.0
    async with asyncio.timeout(PATIENCE):
        while not told.count:
            await asyncio.sleep(0.001)


async def test_where_nothing_would_have_to_stop_it_is_told_only_when_the_lease_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = Told(monkeypatch)
    told.tenure.idle = lambda: True
    told.tenure.extend(130.0, 136.0)
    told.now = 135.9
    told.tenure._ring()
    assert told.count == 0
    assert told.tenure.over()  # but whatever begins has to ask, and is told so
    told.asleep += 2.0  # the machine was suspended: the lease has ended
    told.tenure._ring()
    assert told.count == 2
    told.tenure.end()
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
                self._orchestrator.tenure.until = 0.0

    async with StandingStill("memory://", [flow], recovery=AT_ONCE) as engine:
        _ = await engine.start(flow())
        orchestrator = engine._orchestrator
        assert orchestrator is not None
        await eventually(lambda: orchestrator.suspended)
        assert called == [1]
        assert not orchestrator.active
