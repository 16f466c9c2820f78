"""`perdure runs retry`, `cancel`, `pause`, `resume`, `signal` for all runs that match."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from perdure import Start, call, connect
from tests.cli.conftest import Cli

FLOWS = """
from pathlib import Path

from perdure import step, wait_signal, workflow


@step
def read(name: str) -> str:
    return Path(name).read_text()


@workflow
async def fragile(name: str) -> str:
    return await read(name)


@workflow
async def waits() -> str:
    return await wait_signal("go", type=str)
"""


@pytest.fixture
def many(cli: Cli) -> Cli:
    """Three runs that failed for want of a file, and three that wait."""
    Path("bulk_flows.py").write_text(FLOWS)
    assert cli("sweep", "bulk_flows.py").code == 0

    async def start() -> None:
        async with connect("sqlite:///perdure.db") as client:
            await client.start_many(
                Start(call("fragile", "there.txt"), id=f"f{n}", tags={"n": str(n)}) for n in range(3)
            )
            await client.start_many(Start(call("waits"), id=f"w{n}") for n in range(3))

    asyncio.run(start())
    assert cli("sweep", "bulk_flows.py").code == 0
    return cli


def test_all_that_failed_are_retried(many: Cli) -> None:
    shown = many("runs", "retry", "--program", "fragile", "--dry-run")
    assert (shown.code, shown.out) == (0, "f2\nf1\nf0\n")
    assert "3 runs would be retried" in shown.err
    Path("there.txt").write_text("here")
    one = many("runs", "retry", "--program", "fragile", "--tag", "n=1")
    assert (one.code, one.out) == (0, "f1\n")
    rest = json.loads(many("runs", "retry", "--status", "failed", "--json").out)
    assert rest == {"dry_run": False, "done": ["f2", "f0"], "skipped": [], "failed": []}
    assert many("sweep", "bulk_flows.py").code == 0
    assert many("runs", "ls", "--program", "fragile", "--status", "completed").out.count("completed") == 3


def test_all_that_match_are_told(many: Cli) -> None:
    assert many("runs", "pause", "--program", "waits", "--limit", "2").out == "w2\nw1\n"
    assert many("runs", "resume", "--program", "waits").out == "w2\nw1\n"
    assert "3 runs signalled" in many("runs", "signal", "go", "--input", '"x"', "--program", "waits").err
    assert many("runs", "cancel", "--program", "waits", "--id-prefix", "w1", "--reason", "enough").out == "w1\n"


def test_one_that_cannot_be_told_is_named_and_fails_the_command(many: Cli) -> None:
    refused = many("runs", "retry", "--program", "waits", "--status", "waiting", "--limit", "1")
    assert refused.code == 1
    assert "run 'w2' is waiting" in refused.err
    assert "1 failed" in refused.err


def test_a_command_for_many_says_what_it_needs(many: Cli) -> None:
    for command in (["retry"], ["cancel"], ["pause"], ["resume"], ["signal", "go"]):
        refused = many("runs", *command)
        assert (refused.code, "name the runs, as in --program fulfil" in refused.err) == (2, True)
    assert "not both" in many("runs", "retry", "f1", "--program", "fragile").err
    assert many("runs", "cancel", "--program", "x", "--limit", "0").code == 2
    assert "is not key=value" in many("runs", "cancel", "--tag", "x").err
