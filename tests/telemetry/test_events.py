"""Handlers are called under fixed names, once for each fact; one that fails harms nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from perdure import Engine, Retry, UsageError, step, wait_signal, workflow
from perdure.telemetry import attach, event_names
from tests.engine.harness import AT_ONCE, PATIENCE


@step
async def add(n: int) -> int:
    return n + 1


@step(retry=Retry(attempts=2, initial=0.0))
async def fail() -> None:
    raise ValueError("no")


@workflow
async def mixed() -> int:
    total = await add(1)
    try:
        await fail()
    except ValueError:
        total = await add(total)
    return total


@workflow
async def signalled() -> int:
    return await add(int(await wait_signal("go")))


class Heard:
    def __init__(self) -> None:
        self.events: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = []

    def __call__(self, name: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        self.events.append((name.removeprefix("perdure.runner."), measurements, metadata))

    def of(self, name: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        return [(measurements, metadata) for found, measurements, metadata in self.events if found == name]


async def test_a_handler_hears_of_a_run_its_attempts_and_its_commits() -> None:
    heard = Heard()
    async with asyncio.timeout(PATIENCE), Engine("memory://", [mixed], recovery=AT_ONCE) as engine:
        attach(engine, heard)
        assert (await engine.run(mixed(), id="a")).output == 3
    [(_, began)], [(took, ended)] = heard.of("workflow.start"), heard.of("workflow.stop")
    assert began["id"] == ended["id"] == "a"
    assert (began["program"], began["resumed"], ended["status"]) == ("mixed", False, "completed")
    assert took["duration"] >= 0
    started = [(metadata["op"], metadata["attempt"]) for _, metadata in heard.of("runnable.start")]
    assert started == [("add:0", 1), ("fail:0", 1), ("fail:0", 2), ("add:1", 1)]
    assert [metadata["step"] for _, metadata in heard.of("runnable.stop")] == ["add", "add"]
    [(measured, failed)] = heard.of("runnable.exception")
    assert (failed["op"], failed["attempt"], failed["kind"]) == ("fail:0", 2, "builtins.ValueError")
    assert measured["duration"] >= 0
    assert len(heard.of("store.start")) == len(heard.of("store.stop")) > 2
    assert all(metadata["written"] for _, metadata in heard.of("store.stop"))


async def test_a_run_that_comes_back_into_memory_is_resumed() -> None:
    heard = Heard()
    async with asyncio.timeout(PATIENCE), Engine("memory://", [signalled], recovery=AT_ONCE) as engine:
        attach(engine, heard, ["workflow.start", "perdure.runner.workflow.stop"])
        run = await engine.start(signalled())
        await run.outcome(until="rest")
        assert engine._orchestrator is not None
        engine._orchestrator.warm.evict_all()
        await run.signal("go", 1)
        assert await run.result() == 2
    assert [metadata["resumed"] for _, metadata in heard.of("workflow.start")] == [False, True]
    assert {name for name, _, _ in heard.events} == {"workflow.start", "workflow.stop"}


async def test_a_handler_can_be_detached() -> None:
    heard = Heard()
    async with Engine("memory://", [mixed], recovery=AT_ONCE) as engine:
        detach = attach(engine, heard)
        detach()
        detach()
        await engine.run(mixed())
        assert not engine._telemetry.probes
    assert heard.events == []


async def test_a_handler_that_raises_is_detached_and_no_run_notices(caplog: pytest.LogCaptureFixture) -> None:
    heard, calls = Heard(), 0

    def bad(name: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        nonlocal calls
        calls += 1
        raise SystemExit("of the handler")

    async with asyncio.timeout(PATIENCE), Engine("memory://", [mixed], recovery=AT_ONCE) as engine:
        attach(engine, bad)
        attach(engine, heard)
        for _ in range(3):
            assert (await engine.run(mixed())).output == 3
    assert calls == 5
    assert len(heard.of("workflow.stop")) == 3
    assert "failed 5 times and is off from now on" in caplog.text


def test_what_is_no_handler_or_no_event_is_refused() -> None:
    engine = Engine("memory://", [mixed])
    with pytest.raises(UsageError, match="a function"):
        attach(engine, "handler")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"perdure\.runner\.workflow\.start"):
        attach(engine, Heard(), ["workflow.begin"])
    with pytest.raises(UsageError, match="a list"):
        attach(engine, Heard(), "workflow.start")
    assert len(event_names()) == 7
