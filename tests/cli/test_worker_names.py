"""A worker without a name parks what was taken away from its module, and leaves the runs of other modules alone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Engine, RunStatus, call
from perdure.cli import worker
from perdure.cli.engines import ModuleEngine
from tests.changes.harness import imported
from tests.cli.conftest import Cli
from tests.engine.harness import eventually

CODE = """
from perdure import wait_signal, workflow

@workflow
async def {name}() -> None:
    await wait_signal("go")
"""


def deploy(cli: Cli, monkeypatch: pytest.MonkeyPatch, file: str, name: str, work: Callable[[Engine], Any]) -> None:
    """Write a module, and run a worker with it, in this process, for as long as `work` takes."""
    path = cli.folder / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(CODE.format(name=name))

    async def during(made: ModuleEngine, *_: object) -> None:
        async with made.engine:
            await work(made.engine)

    monkeypatch.setattr(sys, "argv", ["perdure", "worker"])
    monkeypatch.setattr(worker, "_work", during)
    monkeypatch.setattr(worker, "_run", asyncio.run)
    with imported():
        assert worker.worker(str(path), store=cli.url) == 0


@pytest.mark.parametrize(("file", "parked"), [("shop.py", True), ("other/shop.py", False), ("mail.py", False)])
def test_a_renamed_workflow_is_parked_by_the_next_worker_of_its_module(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, file: str, parked: bool
) -> None:
    async def begin(engine: Engine) -> None:
        run = await engine.start(call("order"), id="it")
        while await run.status() is not RunStatus.WAITING:
            await asyncio.sleep(0)

    async def look(engine: Engine) -> None:
        service = engine._service
        assert service is not None
        await eventually(lambda: service.fit_check.last is not None)
        view = await engine.get("it")
        assert view is not None
        assert view.status is (RunStatus.PARKED if parked else RunStatus.WAITING)

    deploy(cli, monkeypatch, "shop.py", "order", begin)
    deploy(cli, monkeypatch, file, "purchase", look)
