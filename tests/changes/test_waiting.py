"""Runs that wait for long, and ticks of schedules: a misfit shows when the code is deployed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.changes.corpus import FAMILIES
from tests.changes.harness import Case, Clock, Recording, Session, edited, fresh, module, record
from tests.changes.model import Change, Family

KNOWN = {(family.name, change.name): (family, change) for family in FAMILIES for change in family.changes}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A subscription under the old code."""
    family, _ = KNOWN["subscription", "another price"]
    return record(tmp_path_factory.mktemp("sleeping") / "recording", family, family.scenarios["usual"])


@pytest.mark.parametrize(
    "name",
    [
        "another price",
        "bill is charge",
        "sent at once",
        "the price is gone",
        "cents that are a text",
        "sending is no step",
        "a reminder before each bill",
    ],
)
def test_a_run_that_sleeps_for_weeks_is_parked_when_the_code_is_deployed(
    name: str, tmp_path: Path, recording: Recording
) -> None:
    family, change = KNOWN["subscription", name]
    [point] = [point for point in recording.points if "sleep:1" in point.marks and "sleep:1!" not in point.marks]
    case = Case(tmp_path / "case", family, family.scenarios["usual"], recording, point)
    case.clock = Clock()  # the month has just begun

    ended = case.go(edited(family, change)[0], "new")
    assert (ended.status, ended.ledger) == ("parked", point.ledger), ended.trouble

    case.clock = Clock(point.clock)
    assert case.go(family.source, "old").effects == recording.reference.effects


TICKS = ("an optional parameter in the middle", "parameters in another order", "another reader by default")
PARKED = ("the topic is a subject", "no limit", "an editor is required", "the limit is a text")


@pytest.mark.parametrize("name", [*TICKS, *PARKED])
def test_a_schedule_binds_what_it_was_created_with_to_the_code_of_its_ticks(name: str, tmp_path: Path) -> None:
    family, change = KNOWN["digest", name]
    created(tmp_path, family)
    with module(tmp_path / "new", family.name, edited(family, change)[0]) as target:
        session = Session(tmp_path / "store.db", tmp_path / "ledger", target, family.scenarios["usual"], Clock())
        session.existing = True
        ended = asyncio.run(session.go(begin=True))
    if name in TICKS:
        expected = fresh(tmp_path / "fresh", family, family.scenarios["byhand"], family.source)
        assert (ended.status, len(ended.effects)) == ("completed", len(expected.effects))
    else:
        assert (ended.status, ended.ledger) == ("parked", ""), ended.trouble


def created(folder: Path, family: Family) -> None:
    """A schedule of the old code, which has not fired."""
    (folder / "ledger").touch()
    with module(folder / "old", family.name, family.source) as target:
        session = Session(folder / "store.db", folder / "ledger", target, family.scenarios["usual"], Clock())
        asyncio.run(session.schedule())


def test_every_change_has_a_name_of_its_own() -> None:
    changes: list[tuple[str, Change]] = [(family.name, change) for family in FAMILIES for change in family.changes]
    assert len(KNOWN) == len(changes) >= 250
