"""`perdure signal`, `approve`, `reject`, `approvals ls`, `cancel`, `pause` and `resume`."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from perdure import Engine, approval, wait_signal, workflow
from perdure.cli.approvals import example
from perdure.kernel.events import WaitOpened
from tests.cli.conftest import Cli, Ended
from tests.engine.harness import Recorded
from tests.patience import PATIENCE


@dataclass
class Decision:
    ok: bool


class Level(Enum):
    HIGH = "high"
    LOW = "low"


@dataclass
class Inner:
    level: Level
    names: list[str]


@dataclass
class Answer:
    inner: Inner
    count: int
    ratio: float
    maybe: str | None
    note: str = "left out"


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
    assert (early.code, "has no open approval 'ship'" in early.err) == (2, True)
    await until_it_asks(store)
    wrong = await aside(cli, "approve", "p1", "ship", "--input", '{"ok": 1}', "--store", store)
    assert (wrong.code, "$.ok" in wrong.err) == (2, True)
    right = await aside(cli, "approve", "p1", "ship", "--input", '{"ok": true}', "--by", "ann", "--store", store)
    assert right.code == 0
    async with Engine(store, [parcel]) as engine:
        assert await (await engine.start(parcel(), id="p1")).result(PATIENCE) == ["Ann", True]
    late = await aside(cli, "cancel", "p1", "--store", store)
    assert (late.code, "is already completed" in late.err) == (1, True)


async def test_open_questions_are_listed_with_the_command_to_type(store: str, cli: Cli) -> None:
    none = await aside(cli, "approvals", "ls", "--store", store)
    assert (none.code, none.out, "no approval is open" in none.err) == (0, "", True)
    await aside(cli, "signal", "p1", "picked-up", "--input", '"Ann"', "--store", store)
    await until_it_asks(store)
    shown = await aside(cli, "approvals", "ls", "--store", store)
    assert shown.code == 0
    for part in (
        "ship (ship:0)",
        "run        p1",
        "program    parcel",
        "anyone",
        f"--input '{{\"ok\":true}}' --store {store}",
    ):
        assert part in shown.out
    [asked] = (await aside(cli, "approvals", "ls", "--store", store, "--json")).json["approvals"]
    assert (asked["id"], asked["name"], asked["path"], asked["approvers"]) == ("p1", "ship", "ship:0", [])
    other = await aside(cli, "approvals", "ls", "--name", "pay", "--store", store, "--json")
    assert other.json == {"approvals": []}
    [line] = [line for line in shown.out.splitlines() if line.startswith("to accept")]
    typed = shlex.split(line.removeprefix("to accept"))
    assert typed[0] == "perdure"
    accepted = await aside(cli, *typed[1:])
    assert (accepted.code, accepted.err) == (0, "perdure: run 'p1': ship:0 accepted\n")


async def test_a_question_is_rejected_from_the_command_line(store: str, cli: Cli) -> None:
    await aside(cli, "signal", "p1", "picked-up", "--store", store)
    early = await aside(cli, "reject", "p1", "ship", "--store", store)
    assert (early.code, "has no open approval 'ship'; `perdure approvals ls`" in early.err) == (2, True)
    await until_it_asks(store)
    options = ("--reason", "too heavy", "--by", "ann", "--approval-id", "m1", "--store", store)
    no = await aside(cli, "reject", "p1", "ship", *options)
    assert (no.code, no.err) == (0, "perdure: run 'p1': ship rejected\n")
    again = await aside(cli, "reject", "p1", "ship", *options, "--json")
    assert again.json == {"answer": "Duplicate"}
    async with Engine(store, [parcel]) as engine:
        outcome = await (await engine.start(parcel(), id="p1")).outcome(PATIENCE)
        assert str(outcome.error).startswith("'ship' was rejected by ann: too heavy")


def test_the_example_of_an_answer_fits_its_schema() -> None:
    for kind in (Answer, Level, bool, list[int], dict[str, int], str):
        schema = msgspec.json.schema(kind)
        jsonschema_rs.validate(schema, example(schema))
    assert example({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}) is None


async def test_the_reason_of_a_pause_shows_while_it_lasts(store: str, cli: Cli) -> None:
    assert (await aside(cli, "pause", "p1", "--reason", "the courier is ill", "--store", store)).code == 0
    assert (await aside(cli, "runs", "show", "p1", "--store", store, "--json")).json["reason"] == "the courier is ill"
    assert (await aside(cli, "resume", "p1", "--store", store)).code == 0
    assert (await aside(cli, "runs", "show", "p1", "--store", store, "--json")).json["reason"] == ""


async def test_a_run_is_paused_resumed_and_cancelled(store: str, cli: Cli) -> None:
    for command in ("pause", "resume", "cancel"):
        assert (await aside(cli, command, "p1", "--store", store)).code == 0
    async with Engine(store, [parcel]) as engine:
        assert (await (await engine.start(parcel(), id="p1")).outcome(PATIENCE)).status == "cancelled"


@pytest.mark.parametrize(
    "command", [["signal", "x", "y"], ["approve", "x", "y"], ["reject", "x", "y"], ["cancel", "x"], ["pause", "x"]]
)
async def test_an_unknown_run_is_named(store: str, cli: Cli, command: list[str]) -> None:
    ended = await aside(cli, *command, "--store", store)
    assert (ended.code, "no run with id 'x'" in ended.err) == (3, True)
