"""`Engine(store, ["shop.flows:fulfil"])`: imported when it is first needed; a broken one costs its own runs alone."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import BrokenProgram, Engine, RunStatus, UsageError, call, connect, step, workflow
from tests.engine.harness import PATIENCE

GOOD = """
from perdure import step, workflow, wait_signal

@step
def double(n: int) -> int:
    return n * 2

@workflow
async def doubled(n: int) -> set[int]:
    return {await double(n)}

@workflow(name="other-name")
async def renamed(n: int) -> int:
    return n

@workflow
async def waits() -> str:
    return await wait_signal("go", type=str)

def plain() -> None: ...
"""


@step
async def one() -> int:
    return 1


@workflow
async def eager() -> int:
    return await one()


@workflow
async def parent() -> object:
    return await call("doubled", 4)


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "lazy_good.py").write_text(GOOD)
    (tmp_path / "lazy_bad.py").write_text("import not_there_at_all\n")
    (tmp_path / "lazy_exits.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("lazy_good", "lazy_bad", "lazy_exits"):
        sys.modules.pop(name, None)


async def test_a_program_is_imported_when_it_is_first_needed() -> None:
    async with Engine("memory://", [eager, "lazy_good:doubled", "other-name=lazy_good:renamed"]) as engine:
        assert (await engine.run(eager())).output == 1
        assert "lazy_good" not in sys.modules
        assert (await engine.run(call("doubled", 3))).output == {6}
        assert "lazy_good" in sys.modules
        assert (await engine.run(call("other-name", 3))).output == 3


async def test_a_run_that_is_found_in_the_store_loads_its_program(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [eager]) as engine:
        _ = await engine.run(eager())
    async with connect(url) as client:
        _ = await client.start(call("doubled", 3), id="r")
    async with Engine(url, ["lazy_good:doubled"]) as engine:
        assert await engine.handle("r").result(PATIENCE) == {6}


async def test_a_run_under_way_goes_on_and_a_child_is_loaded_by_its_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, ["lazy_good:waits"], name="a") as engine:
        _ = await engine.start(call("waits"), id="w")
    sys.modules.pop("lazy_good")
    async with Engine(url, [parent, "lazy_good:waits", "lazy_good:doubled"], name="a") as engine:
        await engine.signal("w", "go", "went")
        assert await engine.handle("w").result(PATIENCE) == "went"
        assert (await engine.run(parent())).output == [8]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("lazy_bad:doubled", "No module named 'not_there_at_all' (File "),
        ("lazy_missing:doubled", "No module named 'lazy_missing'"),
        ("lazy_exits:doubled", "SystemExit: 3"),
        ("doubled=lazy_good:nothing", "no attribute 'nothing'"),
        ("doubled=lazy_good:plain", "is not a workflow; decorate it with @workflow"),
        ("doubled=lazy_good:renamed", "its name is 'other-name': write 'other-name=lazy_good:renamed'"),
    ],
)
async def test_a_program_that_cannot_be_loaded_costs_its_own_runs_alone_and_says_why(
    place: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "perdure"):
        async with Engine("memory://", [eager, place]) as engine:
            for _ in range(2):
                with pytest.raises(BrokenProgram, match="the program 'doubled' cannot be loaded") as raised:
                    _ = await engine.start(call("doubled", 3))
                assert reason in str(raised.value)
                assert str(raised.value).endswith("; correct it and start the engine again")
            assert (await engine.run(eager())).output == 1
    assert len([record for record in caplog.records if "cannot be loaded" in record.getMessage()]) == 1


async def test_runs_of_a_program_that_is_broken_wait_for_one_that_is_not(modules: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, ["lazy_good:waits", "lazy_good:doubled"], name="a") as engine:
        _ = await engine.start(call("waits"), id="begun")
    async with connect(url) as client:
        _ = await client.start(call("doubled", 3), id="new")
    sys.modules.pop("lazy_good")
    (modules / "lazy_good.py").rename(modules / "gone.txt")
    async with Engine(url, [eager, "lazy_good:waits", "lazy_good:doubled"], name="a") as engine:
        assert (await engine.run(eager())).output == 1
        await engine.signal("begun", "go", "went")
        result = await engine.handle("begun").outcome(PATIENCE)
        assert result.status is RunStatus.PARKED
        assert "No module named 'lazy_good'" in str(result.error)
        assert "renamed" not in str(result.error)
        assert await engine.handle("new").status() is RunStatus.QUEUED
    (modules / "gone.txt").rename(modules / "lazy_good.py")
    async with Engine(url, [eager, "lazy_good:waits", "lazy_good:doubled"], name="a") as engine:
        await engine.resolve("begun")
        assert await engine.handle("new").result(PATIENCE) == {6}
        async with engine.locks.hold("x"):
            pass


def test_a_place_that_makes_no_sense_is_refused_when_the_engine_is_made() -> None:
    wrong: list[tuple[list[object], str]] = [
        (["lazy_good"], "write the place of a workflow as 'module:workflow'"),
        (["lazy good:x y"], "write 'name=module:workflow'|write the place"),
        (["a:x", "b:x"], "'x' is given twice"),
        ([eager, "a:eager"], "'eager' is given twice"),
    ]
    for programs, says in wrong:
        with pytest.raises(UsageError, match=says):
            _ = Engine("memory://", programs)  # type: ignore[arg-type]
