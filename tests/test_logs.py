"""Log handlers are the user's code: what they raise costs a line, and no run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure import Engine, Retry, RunStatus, step, step_context, workflow
from perdure.logs import log
from tests.patience import PATIENCE

KINDS: list[type[BaseException]] = [ValueError, SystemExit, GeneratorExit, StopIteration]


class Broken(logging.Handler):
    """As one that sends lines to a service which is away."""

    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__()
        self.kind, self.lines = kind, 0

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += 1
        raise self.kind("the service is away")


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def broken(request: pytest.FixtureRequest) -> Iterator[Broken]:
    handler, logger = Broken(request.param), logging.getLogger("perdure")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@step(retry=Retry(attempts=2, initial=0.001))
async def shaky() -> str:
    if step_context().attempt == 1:
        raise ConnectionError("shaky")
    return "x" * 300_000


@workflow
async def logs_much() -> int:
    return len(await shaky())


async def test_runs_go_on_while_a_handler_raises(broken: Broken, capsys: pytest.CaptureFixture[str]) -> None:
    def observer(*_: object) -> None:
        raise RuntimeError("observer")

    async with Engine("memory://", [logs_much], on_commit=observer) as engine:
        result = await (await engine.start(logs_much())).outcome(PATIENCE)
        assert (result.status, result.output) == (RunStatus.COMPLETED, 300_000)
    assert broken.lines >= 3
    said = capsys.readouterr().err
    assert "attempt 1 of 2 failed: ConnectionError: shaky" in said
    assert f"(a log handler raised {broken.kind.__name__}: the service is away)" in said


def test_a_line_names_the_place_that_logged_it(caplog: pytest.LogCaptureFixture) -> None:
    frame = inspect.currentframe()
    assert frame is not None
    log.warning("a line about %s", "something")
    line = frame.f_lineno - 1
    (record,) = caplog.records
    assert (record.getMessage(), record.name, record.filename, record.lineno) == (
        "a line about something",
        "perdure",
        "test_logs.py",
        line,
    )


def test_no_module_logs_past_it() -> None:
    sources = Path(perdure.__file__).parent
    past = {str(file.relative_to(sources)) for file in sources.rglob("*.py") if "getLogger(" in file.read_text()}
    # The command line sets the level; logs of steps are records of other loggers.
    assert past - {"logs.py", "cli/output.py", "engine/step_logs.py"} == set()
