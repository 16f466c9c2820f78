"""Two who want different things of one run at once: one of them wins, the journal says who, and both are told so.

An engine and a client of its own file, as two processes have them; where both are in one process, so is the race.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Accepted,
    AlreadyFinished,
    Cancelled,
    Client,
    Engine,
    Finished,
    NotFound,
    RunHandle,
    RunStatus,
    SignalTimeout,
    approval,
    connect,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import AnyEvent, CancelRequested, RunFinished, RunPaused, SignalReceived, WaitResolved
from tests.engine.harness import PATIENCE

COUNT = 100
# How many turns of the loop, and how many seconds, one of the two is given before the other.
TURNS = 7


@step
async def work(number: int) -> int:
    return number


@workflow
async def signalled(seconds: float) -> str:
    try:
        return f"signal {await wait_signal('go', timeout=seconds)}"
    except SignalTimeout:
        return "timeout"


@workflow
async def asked() -> str:
    return f"{await approval('ship')}"


@workflow
async def short() -> int:
    return await work(await work(1))


class Two:
    """Two callers of one file: the engine that executes, and somebody beside it."""

    def __init__(self, engine: Engine, client: Client) -> None:
        self.engine, self.client = engine, client

    def who(self, number: int) -> tuple[Client, Client]:
        """The engine first, or the other, or both the same."""
        pairs = [(self.engine, self.client), (self.client, self.engine), (self.engine, self.engine)]
        return pairs[number % 3]

    async def events(self, id: str) -> list[AnyEvent]:
        return [entry.event for entry in await self.client.journal(id)]


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    url = f"sqlite:///{tmp_path / 'races.db'}"
    async with Engine(url, [signalled, asked, short]) as engine, connect(url) as client:
        yield Two(engine, client)


async def after(turns: int, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    for _ in range(turns):
        await asyncio.sleep(0)
    return await call()


async def ended(run: RunHandle[Any]) -> RunStatus:
    return (await run.outcome(PATIENCE)).status


async def until_waiting(run: RunHandle[Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while await run.status() is not RunStatus.WAITING:
            await asyncio.sleep(0)


# --- the races --------------------------------------------------------------------------------------------------------


async def signal_and_timeout(two: Two, n: int) -> str:
    seconds = 0.004 + n % 5 / 1000
    run = await two.engine.start(signalled(seconds), id=f"signal-{n}")
    await asyncio.sleep(0.002 + n % 7 / 1000)
    verdict = await two.who(n)[0].signal(run.id, "go", n)
    output = await run.result(PATIENCE)
    events = await two.events(run.id)
    [resolved] = [e for e in events if isinstance(e, WaitResolved)]
    assert output == (f"signal {n}" if resolved.by == "signal" else "timeout")
    there = any(isinstance(e, SignalReceived) for e in events)
    assert there == isinstance(verdict, Accepted)
    if not there:
        assert verdict == Finished(RunStatus.COMPLETED)
        assert resolved.by == "timeout"
    return resolved.by


async def approve_and_approve(two: Two, n: int) -> str:
    run = await two.engine.start(asked(), id=f"approve-{n}")
    await until_waiting(run)
    first, second = two.who(n)
    verdicts = await asyncio.gather(
        after(n % TURNS, lambda: first.approve(run.id, "ship", "one", by="ann")),
        after(n % (TURNS + 1), lambda: second.approve(run.id, "ship", "two", by="bob")),
    )
    output = await run.result(PATIENCE)
    [resolved] = [e for e in await two.events(run.id) if isinstance(e, WaitResolved)]
    winner = 0 if resolved.by == "answer:ann" else 1
    assert output == ("one", "two")[winner]
    assert verdicts[winner] == Accepted()
    assert verdicts[1 - winner] in (NotFound(), Finished(RunStatus.COMPLETED))
    return resolved.by


async def cancel_and_complete(two: Two, n: int) -> str:
    run = await two.engine.start(short(), id=f"cancel-{n}")
    verdict = await after(n % TURNS, lambda: two.who(n)[0].cancel(run.id, "race"))
    status = await ended(run)
    events = await two.events(run.id)
    assert isinstance(events[-1], RunFinished)
    assert sum(isinstance(e, RunFinished) for e in events) == 1
    requested = any(isinstance(e, CancelRequested) for e in events)
    assert isinstance(verdict, Cancelled) == requested
    assert status is events[-1].status is (RunStatus.CANCELLED if requested else RunStatus.COMPLETED)
    if not requested:
        assert verdict == AlreadyFinished(status)
    return status


async def signal_and_cancel(two: Two, n: int) -> str:
    run = await two.engine.start(signalled(60.0), id=f"both-{n}")
    await until_waiting(run)
    first, second = two.who(n)
    sent, cancelled = await asyncio.gather(
        after(n % TURNS, lambda: first.signal(run.id, "go", n)),
        after(n % (TURNS + 1), lambda: second.cancel(run.id)),
    )
    status = await ended(run)
    events = await two.events(run.id)
    assert any(isinstance(e, SignalReceived) for e in events) == isinstance(sent, Accepted)
    assert any(isinstance(e, CancelRequested) for e in events) == isinstance(cancelled, Cancelled)
    assert sent in (Accepted(), Finished(status))
    assert cancelled in (Cancelled(), AlreadyFinished(status))
    [resolved] = [e for e in events if isinstance(e, WaitResolved)]
    assert (resolved.by == "signal") == (status is RunStatus.COMPLETED)
    return status


async def pause_and_complete(two: Two, n: int) -> str:
    run = await two.engine.start(short(), id=f"pause-{n}")
    verdict = await after(n % TURNS, lambda: two.who(n)[0].pause(run.id))
    events = await two.events(run.id)
    assert any(isinstance(e, RunPaused) for e in events) == isinstance(verdict, Accepted)
    assert await two.client.resume(run.id) in (Accepted(), Finished(RunStatus.COMPLETED))
    assert await run.result(PATIENCE) == 1
    assert verdict in (Accepted(), Finished(RunStatus.COMPLETED))
    return type(verdict).__name__


RACES: dict[str, tuple[Callable[[Two, int], Awaitable[str]], set[str]]] = {
    "signal and timeout": (signal_and_timeout, {"signal", "timeout"}),
    "approve and approve": (approve_and_approve, {"answer:ann", "answer:bob"}),
    "cancel and complete": (cancel_and_complete, {"cancelled", "completed"}),
    "signal and cancel": (signal_and_cancel, {"cancelled", "completed"}),
    "pause and complete": (pause_and_complete, {"Accepted", "Finished"}),
}


async def held(two: Two, race: str, count: int) -> Counter[str]:
    run, _ = RACES[race]
    won: Counter[str] = Counter()
    for n in range(0, count, 10):
        won.update(await asyncio.gather(*[run(two, m) for m in range(n, n + 10)]))
    return won


@pytest.mark.parametrize("race", list(RACES))
async def test_one_wins_and_both_are_told(two: Two, race: str) -> None:
    won = await held(two, race, COUNT)
    assert won.total() == COUNT
    assert set(won) <= RACES[race][1]


@pytest.mark.soak
@pytest.mark.parametrize("race", list(RACES))
async def test_soak_a_thousand_of_each(two: Two, race: str) -> None:
    won = await held(two, race, 1000)
    assert set(won) == RACES[race][1], f"each of them wins sometimes: {won}"
