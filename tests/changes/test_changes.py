"""Every change of every workflow, at points of a run that was killed there.

An unsafe change parks the run before the new code has any effect, says what has changed and where, and the old code
goes on with the run as if nothing had happened. A safe one is not noticed. `upgrade-check` says which it is beforehand.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.cli.main import main
from tests.changes.corpus import FAMILIES
from tests.changes.fixes import fix
from tests.changes.harness import Case, Ended, Point, Recording, bites, chosen, edited, fresh, record
from tests.changes.model import Change, Family
from tests.changes.trial import LOOKS_THE_SAME, tried

CHANGES = [(family, change) for family in FAMILIES for change in family.changes]
NAMES = [f"{family.name}-{change.name}" for family, change in CHANGES]


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> functools._lru_cache_wrapper[Recording]:
    """The old code, run once for each scenario."""
    folder = tmp_path_factory.mktemp("recordings")

    @functools.cache
    def recorded(number: int, scenario: str) -> Recording:
        family = FAMILIES[number]
        return record(folder / family.name / scenario.replace(" ", "-"), family, family.scenarios[scenario])

    return recorded


def points(change: Change, recording: Recording) -> list[Point]:
    """Where the change is tried."""
    found = chosen(change, recording.points)
    if change.bites or change.keeps:
        assert any(bites(change, point) or change.keeps in point.marks for point in found), "no run comes to that"
    return found


def findings(
    folder: Path, family: Family, change: Change, recording: Recording, tried_at: list[Point]
) -> Iterator[str]:
    @functools.cache
    def expected() -> Ended:
        return fresh(folder / "fresh", family, family.scenarios[change.scenario], edited(family, change)[0])

    for point in tried_at:
        where = f"killed at {point.number}, with {sorted(point.marks)}"
        for found in tried(folder / str(point.number), family, change, recording, point, expected):
            if found.grade != LOOKS_THE_SAME:
                yield f"{found.grade}: {found.text} ({where})"


# The first of each kind and every thirteenth change, at one point; `make soak` has all of them at up to four.
KINDS = [change.kinds[:1] for _, change in CHANGES]
FEW = [n for n, kind in enumerate(KINDS) if n % 13 == 0 or kind not in KINDS[:n]]


@pytest.mark.parametrize(("family", "change"), [CHANGES[n] for n in FEW], ids=[NAMES[n] for n in FEW])
def test_a_change_is_safe_or_parks_the_run(
    family: Family,
    change: Change,
    tmp_path: Path,
    recordings: functools._lru_cache_wrapper[Recording],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    recording = recordings(FAMILIES.index(family), change.scenario)
    telling = points(change, recording)
    unsafe = [point for point in telling if bites(change, point)] or telling
    # One of them, another one for each change.
    assert not list(findings(tmp_path, family, change, recording, [unsafe[len(change.name) % len(unsafe)]]))


@pytest.mark.soak
@pytest.mark.parametrize(("family", "change"), CHANGES, ids=NAMES)
def test_a_change_is_safe_or_parks_the_run_wherever_it_is(
    family: Family,
    change: Change,
    tmp_path: Path,
    recordings: functools._lru_cache_wrapper[Recording],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    recording = recordings(FAMILIES.index(family), change.scenario)
    assert not list(findings(tmp_path, family, change, recording, points(change, recording)))


@pytest.mark.parametrize(
    "name",
    ["order-a step before the charge", "expense-transfer is pay", "digest-three columns", "film-sound is music"],
)
def test_the_fix_that_an_explanation_shows_is_written_into_the_file(
    name: str,
    tmp_path: Path,
    recordings: functools._lru_cache_wrapper[Recording],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    family, change = CHANGES[NAMES.index(name)]
    recording = recordings(FAMILIES.index(family), change.scenario)
    point = next(point for point in reversed(recording.points) if bites(change, point))
    case = Case(tmp_path / "case", family, family.scenarios[change.scenario], recording, point)
    source, _ = edited(family, change)
    parked = case.go(source, "new")
    assert parked.view is not None
    shown = fix(source, parked.view.reason)
    assert shown is not None

    assert main(["resolve", point.run, "--apply", "--store", f"sqlite:///{case.store}"]) == 0
    written = (case.folder / "new" / f"{family.name}.py").read_text()
    assert written == shown[1]
    assert case.go(written, "mended").effects == recording.reference.effects
