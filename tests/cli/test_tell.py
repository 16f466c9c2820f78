"""`perdure signal`, `approve`, `cancel`, `pause` and `resume`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, approval, wait_signal, workflow
from perdure.kernel.events import WaitOpened
from tests.cli.conftest import Cli, Ended
from tests.engine.harness import Recorded


@dataclass
class Decision:
    ok: bool


@workflow
async def parcel() -> list[Any]:
    courier = await wait_signal("picked-up")
    decision = await approval("ship", schema=Decision)
    return [courier, decision.ok]


@pytest.fixture
async def store(tmp_path: Path) -> str:
    """A store with a run that waits for a signal."""
    url = f"sqlite:///{tmp_path / 'tell.db'}"
    recorded = Recorded()
    async with Engine(url, [parcel], on_commit=recorded) as engine:
        _ = await engine.start(parcel(), id="p1")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
    return url


async def aside(cli: Cli, *words: str) -> Ended:
    """Call a command, which has an event loop of its own."""
    return await asyncio.to_thread(cli, *words)


async def until_it_asks(url: str) -> None:
    recorded = Recorded()
    async with Engine(url, [parcel], on_commit=recorded):
        await recorded.until(lambda e: isinstance(e, WaitOpened) and e.kind == "approval")


async def test_a_run_is_told_from_the_command_line_and_goes_on_with_the_next_engine(store: str, cli: Cli) -> None:
    sent = await aside(cli, "signal", "p1", "picked-up", "--input", '"Ann"', "--signal-id", "s1", "--store", store)
    assert (sent.code, "signal sent" in sent.err) == (0, True)
    again = await aside(cli, "signal", "p1", "picked-up", "--signal-id", "s1", "--store", store, "--json")
    assert again.json == {"answer": "Duplicate"}
    early = await aside(cli, "approve", "p1", "ship", "--input", '{"ok": true}', "--store", store)
    assert (early.code, "asks no question named 'ship'" in early.err) == (2, True)
    await until_it_asks(store)
    wrong = await aside(cli, "approve", "p1", "ship", "--input", '{"ok": 1}', "--store", store)
    assert (wrong.code, "$.ok" in wrong.err) == (2, True)
    right = await aside(cli, "approve", "p1", "ship", "--input", '{"ok": true}', "--by", "ann", "--store", store)
    assert right.code == 0
    async with Engine(store, [parcel]) as engine:
        assert await (await engine.start(parcel(), id="p1")).result(5) == ["Ann", True]
    late = await aside(cli, "cancel", "p1", "--store", store)
    assert (late.code, "is completed already" in late.err) == (1, True)


async def test_a_run_is_paused_resumed_and_cancelled(store: str, cli: Cli) -> None:
    for command in ("pause", "resume", "cancel"):
        assert (await aside(cli, command, "p1", "--store", store)).code == 0
    async with Engine(store, [parcel]) as engine:
        assert (await (await engine.start(parcel(), id="p1")).outcome(5)).status == "cancelled"


@pytest.mark.parametrize("command", [["signal", "x", "y"], ["approve", "x", "y"], ["cancel", "x"], ["pause", "x"]])
async def test_an_unknown_run_is_named(store: str, cli: Cli, command: list[str]) -> None:
    ended = await aside(cli, *command, "--store", store)
    assert (ended.code, "no run with id 'x'" in ended.err) == (3, True)
