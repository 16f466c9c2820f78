"""Changes that are deployed after a kill -9, in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.changes.corpus import FAMILIES
from tests.changes.harness import bites, edited, record
from tests.changes.ledger import effects
from tests.changes.model import Change, Family
from tests.crash.harness import Children

PLAIN = {"inserted", "removed", "renamed", "reordered", "inputs", "branch", "fewer", "more", "type"}


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    """Processes to kill. All of them are gone when the tests of this module are."""
    children = Children()
    yield children
    children.close()


def several() -> Iterator[tuple[Family, Change]]:
    """Of each workflow two changes that park its runs, and one that does not."""
    for family in FAMILIES:
        # One is started by a schedule, one has remote steps, and one starts runs that go on while it is parked.
        if family.name not in ("digest", "film", "novel"):
            usual = [change for change in family.changes if change.scenario == "usual" and not change.keeps]
            parking = [change for change in usual if change.bites != "start" and PLAIN >= set(change.kinds) > set()]
            for change in (parking[0], parking[len(parking) // 2], next(c for c in usual if not c.bites)):
                yield family, change


# Of each workflow one of the three; `make soak` has all.
SEVERAL = [
    pytest.param(family, change, id=f"{family.name}-{change.name}", marks=() if n % 4 == 0 else pytest.mark.soak)
    for n, (family, change) in enumerate(several())
]


@pytest.mark.parametrize(("family", "change"), SEVERAL)
def test_a_change_is_deployed_after_a_kill(family: Family, change: Change, tmp_path: Path, children: Children) -> None:
    recording = record(tmp_path / "recording", family, family.scenarios[change.scenario])
    point = next((point for point in recording.points if bites(change, point)), recording.points[-1])
    folder = tmp_path / "run"
    folder.mkdir()
    ledger = folder / "ledger"
    ledger.touch()
    told = {"family": family.name, "scenario": change.scenario, "place": str(folder)}

    after = min(len(point.ledger.splitlines()) + 1, len(recording.reference.ledger.splitlines()))
    assert children.start("tests.changes.processes:until_killed", tmp_path, after=after, **told).killed()
    before = ledger.read_text()
    source, _ = edited(family, change)
    deployed = children.start("tests.changes.processes:deploy", tmp_path, name="new", source=source, **told).result()
    if change.bites:
        assert deployed["status"] == "parked", deployed
        assert deployed["kind"] in change.kinds
        assert ledger.read_text() == before
        reverted = children.start("tests.changes.processes:deploy", tmp_path, name="old", source=family.source, **told)
        deployed = reverted.result()
    assert deployed["status"] == recording.reference.status, deployed
    assert effects(ledger.read_text()) == recording.reference.effects
