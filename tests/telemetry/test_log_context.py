"""Log records say which run, step and attempt they were made in, in every place where code of users runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from perdure import Engine, Retry, Telemetry, UsageError, child, step, wait_signal, workflow
from perdure.telemetry import LogContext
from tests.engine.harness import AT_ONCE, PATIENCE
from tests.telemetry.otel import Collected, installed, of

log = logging.getLogger("of.the.application")


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def said(self) -> list[str]:
        return [record.getMessage() for record in self.records]

    def one(self, message: str) -> dict[str, object]:
        [found] = [record for record in self.records if record.getMessage() == message]
        return vars(found)


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    handler.addFilter(LogContext())
    log.addHandler(handler)
    log.setLevel("INFO")
    yield handler
    log.removeHandler(handler)


@step(retry=Retry(attempts=2, initial=0.0))
async def on_loop() -> None:
    log.info("on the loop")
    if [record for record in HANDLERS[0].said() if record == "on the loop"] == ["on the loop"]:
        raise ValueError("once more")


@step
def in_thread() -> None:
    log.info("in a thread")


@step
async def in_task() -> None:
    async def deep() -> None:
        log.info("in a task")

    await asyncio.gather(asyncio.create_task(deep()), asyncio.to_thread(log.info, "in another thread"))


HANDLERS: list[Kept] = []


@workflow
async def inner() -> None:
    await in_thread()


@workflow
async def talking() -> None:
    log.info("in the body")
    await on_loop()
    await in_task()
    await child(inner(), id="the-child")
    log.info("at rest")
    await wait_signal("go")
    log.info("at the end")


@asynccontextmanager
async def opened(**options: object) -> AsyncIterator[Engine]:
    async with asyncio.timeout(PATIENCE):
        async with Engine("memory://", [talking, inner], recovery=AT_ONCE, **options) as engine:  # type: ignore[arg-type]
            yield engine


async def spoken(engine: Engine) -> str:
    run = await engine.start(talking(), id="a")
    await run.outcome(until="rest")
    assert engine._orchestrator is not None
    engine._orchestrator.warm.evict_all()
    await run.signal("go")
    await run.result()
    return run.run_id


async def test_records_say_where_they_were_made(kept: Kept) -> None:
    HANDLERS[:] = [kept]
    async with opened() as engine:
        run_id = await spoken(engine)
    log.info("outside")
    fields = ("run_id", "run", "program", "op", "attempt")
    assert [kept.one("at the end")[name] for name in fields] == [run_id, "a", "talking", "", ""]
    for message in ("in a task", "in another thread"):
        assert [kept.one(message)[name] for name in fields] == [run_id, "a", "talking", "in_task:0", 1]
    assert [kept.one("outside")[name] for name in fields] == [""] * 5
    found = vars(kept.records[kept.said().index("on the loop") + 0])
    assert (found["op"], found["attempt"]) == ("on_loop:0", 1)
    assert [vars(one)["attempt"] for one in kept.records if one.getMessage() == "on the loop"] == [1, 2]
    thread = kept.one("in a thread")
    assert (thread["run"], thread["program"]) == ("the-child", "inner")
    assert str(thread["op"]).endswith("/in_thread:0")
    assert kept.said().count("in the body") == 2, "once when it was executed, and once when it was replayed"


async def test_records_of_a_replay_are_dropped_where_that_is_asked_for(kept: Kept) -> None:
    HANDLERS[:] = [kept]
    filter = LogContext(drop_replayed=True)
    log.addFilter(filter)
    try:
        async with opened() as engine:
            await spoken(engine)
    finally:
        log.removeFilter(filter)
    for message in ("in the body", "at rest", "at the end"):
        assert kept.said().count(message) == 1


async def test_records_of_a_step_have_its_span(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    HANDLERS[:] = [kept]
    sdk = installed(monkeypatch, Collected())
    async with opened(telemetry=Telemetry(spans=True)) as engine:
        await spoken(engine)
    trace_id, span_id = of(sdk.one("step in_thread"))
    found = kept.one("in a thread")
    assert (found["trace_id"], found["span_id"]) == (f"{trace_id:032x}", f"{span_id:016x}")
    assert kept.one("at the end")["trace_id"] == ""


async def test_what_the_caller_gives_stays_and_a_second_look_changes_nothing(kept: Kept) -> None:
    @step
    async def own() -> None:
        log.info("with an extra", extra={"op": "mine"})

    @workflow
    async def flow() -> None:
        await own()

    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        await engine.run(flow(), id="a")
    found = kept.one("with an extra")
    assert (found["op"], found["run"]) == ("mine", "a")
    [record] = [one for one in kept.records if one.getMessage() == "with an extra"]
    assert LogContext().filter(record)  # as a queue has it, in another thread
    assert (vars(record)["op"], vars(record)["run"]) == ("mine", "a")


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(UsageError, match="drop_replayed"):
        LogContext(drop_replayed="yes")  # type: ignore[arg-type]
