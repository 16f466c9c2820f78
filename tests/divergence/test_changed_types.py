"""A type changes so that what runs have stored would be read as something else: they are parked before the body begins.

upgrade-check says the same, `retry` refuses, and with the old types the run goes on with the values that it had.
"""

from __future__ import annotations

import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, RunStatus, call, connect
from perdure.client.upgrade import upgrade_check
from perdure.errors import ForkRefused
from perdure.graph import Graph, interrupt, node
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Program
from perdure.stores.memory.store import MemoryStore
from tests.divergence import shop
from tests.divergence.harness import Code
from tests.engine.harness import eventually

TYPES = """
from enum import Enum, auto
from typing import NamedTuple
from tests.divergence.shop import executed

class Tier(Enum):
    FREE = auto()
{more}    GOLD = auto()

class Bill(NamedTuple):
{fields}

@step
async def rate(n: int) -> Tier:
    return Tier.GOLD

@step
async def bill(n: int) -> list[Bill]:
    return [Bill(cents=700, tip=50)]

@step
async def book(text: str) -> str:
    executed.append(text)
    return text

@step
async def fail(text: str) -> str:
    raise ValueError(text)

@workflow
async def rated(n: int) -> Tier:
    return Tier.GOLD

@workflow(name="order")
async def order({takes}) -> str:
    {got}
    await wait_signal("go")
    return await {end}({said})
"""
OLD = {"more": "", "fields": "    cents: int\n    tip: int"}
NEW = {"more": "    SILVER = auto()\n", "fields": "    tip: int\n    cents: int"}
SAFE = {"more": "", "fields": "    cents: int\n    tip: int\n    fee: int = 0"}
# What the run has got, and what it says of it.
GOT = {
    "a step": ("got = await rate(1)", "got.name", "GOLD"),
    "a step, in a list": ("got = await bill(1)", "str(got[0].cents)", "700"),
    "a child": ("got = await rated(1)", "got.name", "GOLD"),
    "a signal": ('got = await wait_signal("tier", type=Tier)', "got.name", "GOLD"),
    "a signal of a union": ('got = await wait_signal("tier", None, Tier | None)', "got.name", "GOLD"),
    "a signal of an input": ('got = await anext(aiter(inputs(Tier, name="tier")))', "got.name", "GOLD"),
    "an answer": ('got = await approval("sure", schema=Tier)', "got.name", "GOLD"),
    "an argument": ("got = tier", "got.name", "GOLD"),
}


def programs(folder: Path, got: str, types: dict[str, str], end: str = "book") -> list[Program]:
    line, said, _ = GOT[got]
    takes = "tier: Tier" if got == "an argument" else "n: int"
    text = TYPES.format(got=line, said=said, takes=takes, end=end, **types)
    imports = "from perdure import inputs\n"
    return list(Code(folder, imports + text).programs.values())


async def started(engine: Engine) -> None:
    run = await engine.start(call("order", 2), id="it")
    assert run.id == "it"


async def begun(store: MemoryStore, before: list[Program], got: str) -> None:
    """A run that has got its value, and waits."""
    async with Engine(store, before) as engine:
        await started(engine)
        if got.startswith("a signal"):
            await engine.signal("it", "tier", 2)
        if got == "an answer":
            await eventually(lambda: any(row.status is RunStatus.WAITING for row in store.journal.rows.values()))
            await engine.approve("it", "sure", 2)

        async def waits() -> bool:
            view = await engine.get("it")
            return view is not None and [one.name for one in view.waits] == ["go"]

        while not await waits():
            pass


async def verdict(store: MemoryStore, now: list[Program]) -> Any:
    async with connect(store) as client:
        [checked] = [one async for one in upgrade_check(client, Programs(now))]
        return checked


@pytest.mark.parametrize("got", GOT)
async def test_a_run_that_holds_such_a_value_is_parked_and_goes_on_with_the_old_types(got: str, tmp_path: Path) -> None:
    before, after = (programs(tmp_path / name, got, types) for name, types in (("before", OLD), ("after", NEW)))
    shop.executed.clear()
    store = MemoryStore()
    await begun(store, before, got)
    checked = await verdict(store, after)
    assert checked.kind == "undecodable", checked
    async with Engine(store, after) as engine:
        await engine.signal("it", "go")
        await eventually(lambda: any(row.status is RunStatus.PARKED for row in store.journal.rows.values()))
        view = await engine.get("it")
        assert view is not None
        assert view.divergence is not None
        assert (view.divergence.title in checked.reason, view.divergence.change) == (True, "undecodable")
        assert view.divergence.current is not None
        assert view.divergence.current.source
    assert shop.executed == []
    async with Engine(store, before) as engine:
        assert await engine.handle("it").result() == GOT[got][2]


@pytest.mark.parametrize("got", GOT)
async def test_types_that_only_grow_let_it_go_on(got: str, tmp_path: Path) -> None:
    before, after = (programs(tmp_path / name, got, types) for name, types in (("before", OLD), ("after", SAFE)))
    store = MemoryStore()
    await begun(store, before, got)
    assert (await verdict(store, after)).fit == "safe"
    async with Engine(store, after) as engine:
        await engine.signal("it", "go")
        assert await engine.handle("it").result() == GOT[got][2]


async def test_a_run_that_holds_no_such_value_goes_on_and_takes_new_ones(tmp_path: Path) -> None:
    got = "a signal"
    before, after = (programs(tmp_path / name, got, types) for name, types in (("before", OLD), ("after", NEW)))
    store = MemoryStore()
    async with Engine(store, before) as engine:
        await started(engine)
        await eventually(lambda: any(row.status is RunStatus.WAITING for row in store.journal.rows.values()))
    assert (await verdict(store, after)).fit == "safe"
    async with Engine(store, after) as engine:
        await engine.signal("it", "tier", 2)
        await engine.signal("it", "go")
        assert await engine.handle("it").result() == "SILVER"


async def test_a_signal_that_was_sent_before_the_deploy_and_not_taken_yet_parks_the_run(tmp_path: Path) -> None:
    got = "a signal"
    before, after = (programs(tmp_path / name, got, types) for name, types in (("before", OLD), ("after", NEW)))
    store = MemoryStore()
    async with Engine(store, before) as engine:
        await started(engine)
        await eventually(lambda: any(row.status is RunStatus.WAITING for row in store.journal.rows.values()))
    async with connect(store) as client:
        await client.signal("it", "tier", 2)
    assert (await verdict(store, after)).kind == "undecodable"
    async with Engine(store, after):
        await eventually(lambda: any(row.status is RunStatus.PARKED for row in store.journal.rows.values()))


@pytest.mark.parametrize("asked", ["retry", "fork", "retry without the code"])
async def test_a_retry_with_such_a_value_is_refused(asked: str, tmp_path: Path) -> None:
    got = "a step"
    before, after = (programs(tmp_path / name, got, types, "fail") for name, types in (("before", OLD), ("after", NEW)))
    store = MemoryStore()
    await begun(store, before, got)
    async with Engine(store, before) as engine:
        await engine.signal("it", "go")
        assert (await engine.handle("it").outcome()).status is RunStatus.FAILED
    if asked == "retry without the code":
        async with connect(store) as client:
            await (await client.retry("it")).status()
    async with Engine(store, after) as engine:
        if asked == "retry without the code":
            await eventually(lambda: any(row.status is RunStatus.PARKED for row in store.journal.rows.values()))
            return
        with pytest.raises(ForkRefused, match="SILVER"):
            retried = engine.retry("it") if asked == "retry" else engine.fork("it", at="fail:0", new_id="other")
            await (await retried).status()


async def test_neither_the_check_at_the_start_nor_the_parking_fails_on_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before, after = (programs(tmp_path / name, "a step", types) for name, types in (("before", OLD), ("after", NEW)))
    store = MemoryStore()
    await begun(store, before, "a step")
    async with Engine(store, after):
        await eventually(lambda: any(row.status is RunStatus.PARKED for row in store.journal.rows.values()))
    assert "no fix could be tried" not in caplog.text


def test_the_table_is_the_same_in_every_process(tmp_path: Path) -> None:
    code = "import sys; sys.path[:0] = sys.argv[1:]; import orders; print(orders.order.source().digest())"
    programs(tmp_path / "code", "a signal", OLD)
    digests = set()
    for seed in "12":
        command = [sys.executable, "-c", code, str(tmp_path / "code"), str(Path(__file__).parents[2])]
        digests.add(subprocess.run(command, env={"PYTHONHASHSEED": seed}, check=True, capture_output=True).stdout)
    assert len(digests) == 1


def graph(*members: str, inside: bool = False) -> Any:
    """A graph that rates with a tier of these members, asks, and says which tier it was."""
    tier = Enum("tier", members)  # type: ignore[misc]

    def rate(n: Any) -> Any:
        return tier["GOLD"]

    def named(rate: Any, ask: Any) -> Any:
        shop.executed.append(rate.name)
        return rate.name

    rate.__annotations__ = {"n": int, "return": tier}
    named.__annotations__ = {"rate": tier, "ask": str, "return": str}
    rates: Any = Graph([node(rate)], name="rates", output="rate").as_node("rate") if inside else node(rate)
    ask = interrupt(answer=str, name="ask", inputs={"shown": "rate"})(lambda shown: "sure?")
    return Graph([rates, ask, node(named)], name="graph", output="named")


@pytest.mark.parametrize("inside", [False, True])
async def test_a_graph_is_parked_too(inside: bool) -> None:
    before = graph("FREE", "GOLD", inside=inside)
    after = graph("FREE", "SILVER", "GOLD", inside=inside)
    safe = graph("FREE", "GOLD", "PLATINUM", inside=inside)
    shop.executed.clear()
    store = MemoryStore()
    async with Engine(store, [before]) as engine:
        run = await engine.start(call("graph", n=1), id="it")
        await eventually(lambda: any(row.status is RunStatus.WAITING for row in store.journal.rows.values()))
    assert (await verdict(store, [safe])).fit == "safe"
    assert (await verdict(store, [after])).kind == "undecodable"
    async with Engine(store, [after]) as engine:
        await eventually(lambda: store.journal.rows[run.run_id].status is RunStatus.PARKED)
    assert shop.executed == []
    async with Engine(store, [safe]) as engine:
        await eventually(lambda: store.journal.rows[run.run_id].status is RunStatus.WAITING)
        await engine.approve("it", "ask", "yes")
        assert await engine.handle("it").result() == "GOLD"
