"""The lines that the source view says were executed are those that a tracer saw while the run was executed."""

from __future__ import annotations

import asyncio
import sys
import trace
from contextlib import suppress
from typing import Any

import pytest

from perdure import Engine
from tests.server import line_programs
from tests.server.conftest import client_of
from tests.server.line_programs import CALLS, PROGRAMS

FILE = line_programs.__file__


async def executed(call: Any) -> tuple[str, Engine]:
    """Execute a run from its beginning to its end, in this thread."""
    engine = Engine("memory://", PROGRAMS)
    _ = await engine.open()
    run = await engine.start(call, id="run")
    if call.name == "asked":
        for name, answer in (("first", "yes"), ("second", None)):
            await engine.run(call, id="run", until="rest")
            _ = await (engine.approve("run", name, answer) if answer else engine.reject("run", name))
    with suppress(RuntimeError):
        await run.result()
    return run.run_id, engine


async def shown(engine: Engine, run_id: str) -> dict[int, int]:
    """What the source view says of that run."""
    try:
        async with client_of(engine.asgi()) as http:
            found = (await http.get(f"runs/{run_id}/source")).json()
    finally:
        await engine.close()
    assert found["problem"] is None
    # Neither decorators of the standard library nor steps are its source.
    assert {part["file"] for part in found["parts"]} == found["executed"].keys()
    (counts,) = found["executed"].values()
    lines = {part["line"] + n for part in found["parts"] for n in range(len(part["text"].splitlines()))}
    assert {int(line) for line in counts} <= lines, "every line that was executed is shown"
    return {int(line): count for line, count in counts.items()}


@pytest.mark.parametrize("name", CALLS)
def test_the_source_view_has_the_lines_of_a_coverage_run(name: str) -> None:
    assert len(CALLS) >= 20
    tracer = trace.Trace(count=True, trace=False, ignoredirs=[sys.prefix, sys.base_prefix])
    with asyncio.Runner() as runner:
        run_id, engine = tracer.runfunc(runner.run, executed(CALLS[name]))
        found = runner.run(shown(engine, run_id))
    counted = {line: count for (file, line), count in tracer.results().counts.items() if file == FILE}
    assert found == counted
    assert found
