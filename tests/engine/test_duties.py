"""The one place where background work begins, ends and fails."""

from __future__ import annotations

import asyncio
import logging

import pytest

from perdure import StoreUnavailable
from perdure.engine.duties import Done, Duties, FunctionDuty
from tests.engine.harness import FakeClock


class Work:
    """Does what the test says."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.done = 0

    async def __call__(self) -> int:
        if self.error is not None:
            raise self.error
        self.done += 1
        return self.done


async def test_a_report_is_returned() -> None:
    duties, work = Duties("orchestrator a", FakeClock()), Work()
    assert await duties.perform(FunctionDuty("working", work)) == Done(1)


async def test_a_failure_is_logged_once_until_it_changes_or_ends(caplog: pytest.LogCaptureFixture) -> None:
    duties, work = Duties("orchestrator a", FakeClock()), Work()
    duty = FunctionDuty("working", work)
    with caplog.at_level(logging.WARNING, "perdure"):
        for error in (StoreUnavailable("memory://", "away"), ValueError("odd"), None, ValueError("odd")):
            work.error = error
            reports = [await duties.perform(duty) for _ in range(3)]
            assert all((report is None) is (error is not None) for report in reports)
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "ERROR"]
    assert all(line.startswith("orchestrator a: working failed") for line in caplog.messages)
    assert [bool(record.exc_info) for record in caplog.records] == [False, True, True]


async def test_a_duty_can_be_cancelled() -> None:
    duties = Duties("orchestrator a", FakeClock())

    async def forever() -> None:
        await asyncio.Event().wait()

    task = asyncio.ensure_future(duties.perform(FunctionDuty("waiting", forever)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
