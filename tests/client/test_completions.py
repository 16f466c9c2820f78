"""`Engine(on_complete=...)`: told once of each run that ends here, and unable to harm one."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Engine,
    Recovery,
    RunCancelled,
    RunResult,
    RunStatus,
    UsageError,
    assembly,
    bail,
    blocking,
    child,
    connect,
    continue_as,
    step,
    wait_signal,
    workflow,
)
from perdure.client.observing import Observers, ObserversConfig
from tests.engine.harness import PATIENCE


@step
async def double(n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    return n * 2


@workflow
async def doubled(n: int) -> tuple[int, str]:
    return await double(n), "ok"


@workflow
async def waits() -> str:
    return await wait_signal("go", type=str)


@workflow
async def family(n: int) -> tuple[int, str]:
    if n == 0:
        bail("nothing", "to do")
    if n > 5:
        continue_as(n - 1)
    return await child(doubled(n), id="inner")


Told = list[tuple[str, RunStatus, Any]]


async def test_each_run_that_ends_is_told_once_with_its_result() -> None:
    told: Told = []

    async def note(result: RunResult[Any]) -> None:
        told.append((result.id, result.status, result.output if result.error is None else type(result.error)))
        assert (result.program, result.tags) == (result.program, {"a": "b"})

    async with Engine("memory://", [doubled, waits, family], on_complete=note) as engine:
        tags = {"a": "b"}
        _ = await engine.run(doubled(1), id="good", tags=tags)
        _ = await engine.run(doubled(-1), id="bad", tags=tags)
        _ = await engine.run(family(7), id="goes-on", tags=tags)
        _ = await engine.run(family(0), id="bails", tags=tags)
        _ = await engine.start(waits(), id="cancelled", tags=tags)
        await engine.cancel("cancelled")
        _ = await engine.start(waits(), id="queued", tags=tags, delay=3600)
        await engine.cancel("queued")
        _ = await engine.start(waits(), id="replaced", tags=tags)
        _ = await engine.start(doubled(4), id="replaced", tags=tags, reuse="terminate_running")
    assert sorted(told, key=lambda one: (one[0], one[1])) == [
        ("bad", RunStatus.FAILED, ValueError),
        ("bails", RunStatus.BAILED, "to do"),
        ("cancelled", RunStatus.CANCELLED, RunCancelled),
        ("goes-on", RunStatus.COMPLETED, (10, "ok")),
        ("good", RunStatus.COMPLETED, (2, "ok")),
        ("queued", RunStatus.CANCELLED, RunCancelled),
        ("replaced", RunStatus.CANCELLED, RunCancelled),
        ("replaced", RunStatus.COMPLETED, (8, "ok")),
    ]


@pytest.mark.parametrize("durability", ["sync", "relaxed", "async", "exit"])
async def test_a_run_is_told_of_in_every_mode_after_it_is_in_the_store(tmp_path: Path, durability: str) -> None:
    url, seen = f"sqlite:///{tmp_path}/runs.db", []

    async def note(result: RunResult[Any]) -> None:
        async with connect(url) as client:
            view = await client.get(result.id)
            seen.append(view.status if view is not None else None)

    async with Engine(url, [doubled], on_complete=note, durability=durability) as engine:
        _ = await engine.run(doubled(1), id="r")
    assert seen == [RunStatus.COMPLETED]


async def test_a_run_that_ends_elsewhere_is_told_there(tmp_path: Path) -> None:
    url, here, there = f"sqlite:///{tmp_path}/runs.db", [], []
    async with (
        Engine(url, [waits], name="a", on_complete=lambda result: here.append(result.id)) as engine,
        Engine(url, [doubled], name="b", on_complete=lambda result: there.append(result.id)) as other,
    ):
        run = await other.start(doubled(1), id="r")
        assert await engine.handle("r").result(PATIENCE) == [2, "ok"]
        assert await run.result() == (2, "ok")
    assert (here, there) == ([], ["r"])


async def test_a_callback_that_raises_is_logged_once_for_each_kind_of_error_and_no_run_and_no_other_callback_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[str] = []

    def breaks(result: RunResult[Any]) -> None:
        raise [RuntimeError("oh"), SystemExit(3), StopIteration("odd")][len(told) % 3]

    with caplog.at_level(logging.ERROR, "perdure"):
        async with Engine(
            "memory://", [doubled], on_complete=[breaks, lambda result: told.append(result.id)]
        ) as engine:
            for n in range(6):
                assert (await engine.run(doubled(n), id=f"r{n}")).output == (n * 2, "ok")
    assert told == [f"r{n}" for n in range(6)]
    assert [record.getMessage().partition(" raised ")[2].partition(" (")[0] for record in caplog.records] == [
        "RuntimeError: oh",
        "SystemExit: 3",
        "StopIteration: odd",
    ]
    assert all(f'File "{__file__}", line ' in record.getMessage() for record in caplog.records)
    assert not any(record.exc_info or "\n" in record.getMessage() for record in caplog.records)


class Unspeakable:
    """A callback that cannot even be shown."""

    def __call__(self, result: RunResult[Any]) -> None:
        raise ValueError("oh")

    def __repr__(self) -> str:
        raise ValueError("no words")


async def test_a_callback_that_cannot_be_shown_is_named_by_its_class(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "perdure"):
        async with Engine("memory://", [doubled], on_complete=Unspeakable()) as engine:
            assert (await engine.run(doubled(1))).output == (2, "ok")
    assert "Unspeakable raised ValueError: oh" in caplog.records[0].getMessage()


@pytest.mark.parametrize(
    "raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, BaseException]
)
async def test_an_async_callback_that_raises_no_exception_of_a_program_harms_nothing(
    raised: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    async def breaks(result: RunResult[Any]) -> None:
        raise raised("odd")

    with caplog.at_level(logging.ERROR, "perdure"):
        async with Engine(
            "memory://", [doubled], on_complete=[breaks, lambda result: told.append(result.id)]
        ) as engine:
            for n in range(2):
                assert (await engine.run(doubled(n), id=f"r{n}")).output == (n * 2, "ok")
    assert told == ["r0", "r1"]
    assert [f"raised {raised.__name__}: odd" in record.getMessage() for record in caplog.records] == [True]


async def test_a_callback_that_blocks_holds_no_run_up_and_the_engine_can_be_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "Observers", partial(Observers, config=ObserversConfig(closing=0.05)))
    stuck = threading.Event()
    try:
        async with Engine(
            "memory://", [doubled], on_complete=lambda result: stuck.wait(), recovery=Recovery(grace=30)
        ) as engine:
            for n in range(3):
                assert (await engine.run(doubled(n))).output == (n * 2, "ok")
        assert "a callback has not returned 0.05 s after the engine was closed" in caplog.text
    finally:
        stuck.set()


async def test_callbacks_may_use_the_engine() -> None:
    async def follow_up(result: RunResult[Any]) -> None:
        if result.id == "first":
            assert result.output is not None
            _ = await engine.run(doubled(result.output[0]), id="second")

    async with Engine("memory://", [doubled], on_complete=follow_up) as engine:
        _ = await engine.run(doubled(1), id="first")
        async with asyncio.timeout(PATIENCE):
            while await engine.get("second") is None:
                await asyncio.sleep(0.001)
        assert await engine.handle("second").result() == (4, "ok")


async def test_schedules_and_remote_steps_are_no_runs_of_their_own() -> None:
    told: list[str] = []

    @step(queue="q")
    async def remote() -> int:
        return 1

    @workflow
    async def calls() -> int:
        return await remote()

    async with Engine(
        "memory://", [calls], steps=[remote], on_complete=lambda result: told.append(result.program)
    ) as engine:
        nightly = await engine.schedule("s", calls(), every=3600)
        assert (await engine.run(calls())).output == 1
        await nightly.delete()
    assert told == ["calls"]


def test_blocking_code_is_told_in_a_thread_where_it_may_use_the_engine(tmp_path: Path) -> None:
    told: list[Any] = []
    done = threading.Event()

    def note(result: RunResult[Any]) -> None:
        view = engine.get(result.id)
        told.append((result.output, view.status if view is not None else None))
        done.set()

    with blocking.Engine(f"sqlite:///{tmp_path}/runs.db", [doubled], on_complete=note) as engine:
        _ = engine.run(doubled(1), id="r")
        assert done.wait(PATIENCE)
    assert told == [((2, "ok"), RunStatus.COMPLETED)]


def test_what_is_no_function_is_refused() -> None:
    for given in (3, [3], "print"):
        with pytest.raises(UsageError, match="on_complete takes a function"):
            _ = Engine("memory://", on_complete=given)  # type: ignore[arg-type]
