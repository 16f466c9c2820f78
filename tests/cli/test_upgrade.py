"""`perdure upgrade-check`, `perdure check` and `perdure resolve`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, RunStatus, connect, step, wait_signal, workflow
from perdure.authoring.code import repairs
from perdure.client.upgrade import upgrade_check
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.policies.versions import Programs
from perdure.stores.open import open_store
from tests.cli.conftest import Cli
from tests.patience import PATIENCE


@step
async def charge(n: int) -> int:
    return n


@workflow
async def order(n: int) -> int:
    paid = await charge(n)
    await wait_signal("go")
    return paid


@workflow
async def other(n: int) -> int:
    await wait_signal("go")
    return n


HEAD = """
from perdure import patched, step, wait_signal, workflow

@step
async def charge(n: int) -> int:
    raise AssertionError("nothing is executed")

@step
async def check(n: int) -> int:
    raise AssertionError("nothing is executed")

@workflow
async def other(n: int) -> int:
    await wait_signal("go")
    return n
"""
SAFE = """
@workflow
async def order(n: int) -> int:
    paid = await charge(n)
    await wait_signal("go")
    return paid + await check(n)
"""
INSERTED = """
@workflow
async def order(n: int) -> int:
    await check(n)
    paid = await charge(n)
    await wait_signal("go")
    return paid
"""
PATCHED = """
@workflow
async def order(n: int) -> int:
    if patched("check-first"):
        await check(n)
    paid = await charge(n)
    await wait_signal("go")
    return paid
"""
NEWER = """
@workflow(version="2")
async def order(n: int) -> int:
    return await check(n)
"""
UNREADABLE = """
@workflow
async def order(n: list[str]) -> int:
    return await charge(len(n))
"""
RAISES = """
@workflow
async def order(n: int) -> int:
    paid = await charge(n)
    return paid.oops
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store with six open runs."""
    url = f"sqlite:///{tmp_path}/runs.db"

    @workflow
    async def charge_only() -> int:
        return await charge(1)

    async def fill() -> None:
        async with Engine(url, [order, other, charge_only]) as engine:
            for n in range(5):
                _ = await engine.start(order(n), id=f"order-{n}")
            _ = await engine.start(other(1), id="other")
            _ = await engine.run(charge_only(), id="done")
            async with asyncio.timeout(PATIENCE):
                while len(await engine.list(status="waiting")) < 6:
                    await asyncio.sleep(0)

    asyncio.run(fill())
    return url


def module(tmp_path: Path, code: str) -> str:
    path = tmp_path / f"code_{abs(hash(code))}.py"
    path.write_text(HEAD + code)
    return str(path)


@pytest.mark.parametrize("code", [SAFE, PATCHED], ids=["safe", "patched"])
def test_runs_that_fit_are_safe(cli: Cli, url: str, tmp_path: Path, code: str) -> None:
    ended = cli("upgrade-check", module(tmp_path, code), "--store", url)
    assert ended.code == 0, ended.err
    assert "6 open runs: 6 safe, 0 needs a patch, 0 breaks" in ended.err


def test_runs_that_need_a_patch_are_told_of_with_the_explanation(cli: Cli, url: str, tmp_path: Path) -> None:
    ended = cli("upgrade-check", module(tmp_path, INSERTED), "--store", url)
    assert ended.code == 1
    assert "needs a patch: " in ended.out
    assert "of order, version 1 (order-" in ended.out
    assert "charge:0" in ended.out
    assert "6 open runs: 1 safe, 5 needs a patch, 0 breaks" in ended.err


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (NEWER, "breaks: version 1 of order is not registered here"),
        (UNREADABLE, "breaks: the argument n of order cannot be read as list[str]"),
        (
            RAISES,
            "patch: The code now raises AttributeError: 'int' object has no attribute 'oops'",
        ),
        ("", "breaks: no program named 'order'"),
    ],
    ids=["version", "value", "raises", "program"],
)
def test_runs_that_break_are_told_of_with_the_reason(
    cli: Cli, url: str, tmp_path: Path, code: str, reason: str
) -> None:
    ended = cli("upgrade-check", module(tmp_path, code), "--store", url, "--json")
    assert ended.code == 1
    report: dict[str, Any] = ended.json
    assert report["checked"] == 6
    assert report["safe"] == 1
    kind, _, told = reason.partition(": ")
    assert (report["breaks"], report["patch"]) == ((5, 0) if kind == "breaks" else (0, 5))
    assert {run["id"] for run in report["runs"]} == {f"order-{n}" for n in range(5)}
    assert all(told in run["reason"] for run in report["runs"])


def test_runs_that_do_not_fit_for_one_reason_are_one_line_with_a_fix_that_was_tried(
    cli: Cli, url: str, tmp_path: Path
) -> None:
    lines = cli("upgrade-check", module(tmp_path, INSERTED), "--store", url).out.splitlines()
    heads = [line for line in lines if not line.startswith(" ") and line]
    assert len(heads) == 1
    assert heads[0].startswith("needs a patch: 5 runs of order, version 1 (order-")
    assert heads[0].endswith("The step check was inserted before the step charge.")
    assert any("if patched(" in line for line in lines)


def test_a_fix_that_cannot_be_tried_costs_the_fix_and_not_the_verdict(
    cli: Cli, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(repairs, "read_source", broken)
    ended = cli("upgrade-check", module(tmp_path, INSERTED), "--store", url)
    assert "5 needs a patch" in ended.err
    assert "The step check was inserted before the step charge." in ended.out
    assert "if patched(" not in ended.out


def test_github_gets_an_annotation_at_the_line_of_each_class(cli: Cli, url: str, tmp_path: Path) -> None:
    file = module(tmp_path, INSERTED)
    ended = cli("upgrade-check", file, "--store", url, "--format", "github")
    assert ended.code == 1
    (line,) = ended.out.splitlines()
    number = next(n for n, text in enumerate(Path(file).read_text().splitlines(), 1) if "await check(" in text)
    assert line.startswith(
        f"::error file={Path(file).name},line={number},title=perdure upgrade-check::needs a patch: 5 "
    )
    assert "%0A%0A  recorded  step charge:0" in line
    ended = cli("upgrade-check", module(tmp_path, ""), "--store", url, "--format", "github")
    assert ended.out.startswith("::error title=perdure upgrade-check::breaks: 5 runs of order")
    assert cli("upgrade-check", file, "--store", url, "--format", "xml").code == 2


def test_a_sample_is_spread_over_all_runs(cli: Cli, url: str, tmp_path: Path) -> None:
    ended = cli("upgrade-check", module(tmp_path, INSERTED), "--store", url, "--json", "--sample", "3")
    assert ended.json["checked"] == 3
    assert cli("upgrade-check", module(tmp_path, SAFE), "--store", url, "--sample", "0").code == 2


async def test_nothing_is_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [order]) as engine:
        for n in range(20):
            _ = await engine.start(order(n))
        async with asyncio.timeout(PATIENCE):
            while len(await engine.list(status="waiting")) < 20:
                await asyncio.sleep(0)
    store = open_store(url)
    async with connect(store) as client:
        statements: list[str] = []
        store.trace(statements.append)
        found = [checked async for checked in upgrade_check(client, Programs([order]))]
        store.trace(None)
    assert len(found) == 20
    assert {checked.fit for checked in found} == {Fit.SAFE}
    assert {statement.split()[0].lower() for statement in statements} == {"select"}
    assert all(text.split()[0].lower() in ("select", "begin", "commit", "with") for text in statements), statements


async def parked(engine: Engine, *ids: str) -> None:
    """Give these runs something to do, and wait until they are parked; others may be parked at the start, too."""
    for id in ids:
        _ = await engine.signal(id, "go")
    async with asyncio.timeout(PATIENCE):
        while not set(ids) <= {view.id for view in await engine.list(status="parked")}:
            await asyncio.sleep(0)


def test_a_parked_run_is_resolved_from_the_command_line(cli: Cli, url: str, tmp_path: Path) -> None:
    ended = cli("resolve", "order-0", "--version", "2", "--store", url)
    assert ended.code == 2
    assert "only parked runs are resolved" in ended.err

    @workflow(name="order", version="2")
    async def second(n: int) -> int:
        paid = await charge(n)
        await wait_signal("go")
        return paid * 2

    async def deploy() -> None:
        async with Engine(url, [second, other]) as engine:
            await parked(engine, "order-0", "order-1")

    async def look() -> RunStatus:
        async with Engine(url, [second, other]) as engine:
            assert await (await engine.start(second(0), id="order-0")).result(PATIENCE) == 0
            view = await engine.get("order-1")
            assert view is not None
            return view.status

    asyncio.run(deploy())
    assert cli("resolve", "order-0", "--version", "2", "--store", url).code == 0
    assert cli("resolve", "order-1", "--fail", "done by hand", "--store", url, "--json").json == {"answer": "Accepted"}
    assert asyncio.run(look()) is RunStatus.FAILED
    assert cli("resolve", "order-1", "--store", url).code == 1
    assert cli("resolve", "nobody", "--store", url).code == 3


def test_a_parked_run_goes_on_from_before_an_op(cli: Cli, url: str, tmp_path: Path) -> None:
    @workflow(name="order")
    async def checked(n: int) -> int:
        await other_charge(n)
        paid = await charge(n)
        await wait_signal("go")
        return paid * 2

    @step
    async def other_charge(n: int) -> int:
        return n

    async def deploy() -> None:
        async with Engine(url, [checked, other]) as engine:
            await parked(engine, "order-1", "order-2")

    async def look() -> list[int]:
        async with Engine(url, [checked, other]) as engine:
            return [await (await engine.start(checked(n), id=f"order-{n}")).result(PATIENCE) for n in (1, 2)]

    asyncio.run(deploy())
    assert cli("resolve", "order-1", "--before", "nothing:0", "--store", url).code == 2
    ended = cli("resolve", "order-1", "--before", "charge:0", "--store", url)
    assert ended.code == 0
    assert "run 'order-1': continues from before charge:0" in ended.err
    assert "executed again if the code asks for it: charge:0" in ended.err
    told = cli("resolve", "order-2", "--before", "charge", "--store", url, "--json").json
    assert (told["answer"], told["again"]) == ("Truncated", ["charge:0"])
    shown = cli("runs", "show", "order-2", "--store", url)
    assert "forked from" in shown.out
    assert asyncio.run(look()) == [2, 4]


def test_check_tells_where_and_what_to_use_instead(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "flows.py"
    path.write_text("import time\nfrom perdure import workflow\n\n@workflow\nasync def flow():\n    time.time()\n")
    ended = cli("check", str(path))
    assert ended.code == 1
    assert "flows.py:6: clock: in the workflow flow it calls time.time(); use now() of perdure" in ended.out
    found = cli("check", str(path), "--json")
    assert found.code == 1
    assert found.json["findings"][0]["line"] == 6
    path.write_text(path.read_text().replace("time.time()", "time.time()  # noqa: perdure"))
    assert cli("check", str(tmp_path)).code == 0
    assert cli("check", "perdure.cli.demo_order").code == 0
    assert cli("check", "no.such.module").code == 2
    assert cli("check", str(tmp_path / "missing.py")).code == 2
    path.write_text("def (")
    assert cli("check", str(path)).code == 2
