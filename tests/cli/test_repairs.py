"""A run parked by a change shows its old code and a fix that was tried; `perdure resolve --apply` writes the fix."""

from __future__ import annotations

import asyncio
import linecache
import runpy
from typing import Any

import pytest

from perdure import Engine
from tests.cli.conftest import Cli

SHOP = """
from perdure import step, wait_signal, workflow


@step
async def pay(n: int) -> int:
    return n


@step
async def mail(n: int) -> int:
    return n


@workflow
async def order(n: int) -> int:
    paid = await pay(n)
    await wait_signal("go")
    return paid
"""
CHANGED = SHOP.replace("    paid = await pay(n)", "    await mail(n)\n    paid = await pay(n + 1)")


async def deploy(cli: Cli, text: str, until: str, signal: bool = False) -> Any:
    file = cli.write("shop.py", text)
    linecache.checkcache(str(file))
    order = runpy.run_path(str(file))["order"]
    async with Engine(cli.url, [order]) as engine:
        if await engine.get("it") is None:
            _ = await engine.start(order(7), id="it")
        if signal:
            await engine.signal("it", "go")
        while (view := await engine.get("it")) is None or (view.status != until and until not in str(view.waits)):
            await asyncio.sleep(0.005)
        return view


@pytest.fixture
def parked(cli: Cli) -> Cli:
    asyncio.run(deploy(cli, SHOP, "go:0"))
    asyncio.run(deploy(cli, CHANGED, "parked", signal=True))
    return cli


def test_show_has_the_change_the_fix_and_the_code_that_the_run_was_executed_with(parked: Cli) -> None:
    out = parked("runs", "show", "it").out
    assert "What has changed in the code since:" in out
    assert "    -    paid = await pay(n)" in out
    assert "perdure resolve ID --apply" in out
    assert "shop.py:16" in out
    shown = parked("runs", "show", "it", "--json").json
    assert shown["code"][0]["name"] == "order"
    assert "paid = await pay(n)\n" in shown["code"][0]["text"]
    assert shown["divergence"]["patch"].startswith("--- shop.py\n+++ shop.py\n@@ ")


def test_a_dry_run_shows_the_change_and_writes_nothing(parked: Cli) -> None:
    ended = parked("resolve", "it", "--apply", "--dry-run")
    assert ended.code == 0
    assert '+    if patched("' in ended.out
    assert "would be changed" in ended.err
    assert (parked.folder / "shop.py").read_text() == CHANGED


def test_the_fix_is_written_and_lets_the_run_go_on(parked: Cli) -> None:
    ended = parked("resolve", "it", "--apply", "--json")
    assert ended.json["written"] is True
    fixed = (parked.folder / "shop.py").read_text()
    assert "patched(" in fixed
    assert asyncio.run(deploy(parked, fixed, "completed")).output == 7


def test_what_cannot_be_applied_is_refused_and_nothing_is_written(parked: Cli) -> None:
    other = parked.write("shop.py", CHANGED.replace("await mail(n)", "await mail(n + 5)")).read_text()
    ended = parked("resolve", "it", "--apply")
    assert ended.code == 2
    assert "is not the code that the fix was tried with" in ended.err
    assert (parked.folder / "shop.py").read_text() == other
    (parked.folder / "shop.py").unlink()
    assert "there is no file shop.py here" in parked("resolve", "it", "--apply").err
    assert parked("resolve", "it", "--apply", "--fail", "no").code == 2
    assert parked("resolve", "it", "--dry-run").code == 2
    assert parked("resolve", "nobody", "--apply").code == 3


def test_a_run_that_is_not_parked_has_nothing_to_apply(cli: Cli) -> None:
    asyncio.run(deploy(cli, SHOP, "go:0"))
    assert "is not parked" in cli("resolve", "it", "--apply").err


def test_the_source_of_an_engine_that_closes_at_once_is_stored(cli: Cli) -> None:
    async def run() -> None:
        file = cli.write("shop.py", SHOP)
        linecache.checkcache(str(file))
        order = runpy.run_path(str(file))["order"]
        async with Engine(cli.url, [order]) as engine:
            _ = await engine.start(order(7), id="it")

    asyncio.run(run())
    assert cli("runs", "show", "it", "--json").json["code"][0]["name"] == "order"
