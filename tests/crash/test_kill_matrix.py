"""Kill -9 at every commit of a workflow that does one of everything, just before and just after it.

After each death the same command is run again. It must come to the same end, with every outcome recorded once, and no
step may have been executed twice unless it was under way when the process died.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from perdure.kernel.events import AttemptFailed, ValueRecorded
from tests.amounts import some
from tests.crash.failpoints import END
from tests.crash.harness import Children, Journal, at_once, audit, check_executions, read_effects, through_kills

# The voyage has about 29 commits, and fewer on a busy machine: outcomes that come together share one. A share of the
# matrix takes each fourth.
SHARES = 4
MOST = 32
TOTAL = {"total": 604710, "problems": ["timeout", "hasty", "as it should"]}


def check_end(ended: dict[str, Any], journal: Journal, ending: str) -> None:
    """The end is the one that every voyage has, and the values in it are those in the journal."""
    assert ended["status"] == {"return": "completed", "bail": "bailed", "raise": "failed"}[ending]
    output = json.loads(ended["output"]) if ending == "raise" else ended["output"]
    assert {key: output[key] for key in TOTAL} == TOTAL
    values = [(e.kind, json.loads(bytes(e.value))) for e in journal.events if isinstance(e, ValueRecorded)]
    assert values[:3] == [("now", values[0][1]), ("uuid", output["recorded"]["uuid"]), ("random", values[2][1])]
    seen = [output[part][kind] for part in ("recorded", "later") for kind in ("uuid", "random")]
    assert seen == [value for kind, value in values if kind in ("uuid", "random")]


def sail(children: Children, folder: Path, ending: str, *kills: tuple[int, bool]) -> int:
    """Run the voyage through deaths, and check everything. Says how often it died."""
    ended, left = through_kills(children, "voyage", folder, kills, ending=ending)
    under_way = {one for journals in left if journals for one in journals["voyage"].under_way}
    journal = audit(folder / "runs.db")["voyage"]
    check_end(ended, journal, ending)
    executed = check_executions(journal, read_effects(folder / "effects"))
    for op, times in journal.started.items():
        failures = sum(isinstance(e, AttemptFailed) and e.op == op for e in journal.events)
        died = sum(op == name for name, _ in under_way)
        assert times == 1 + failures + died, f"{op} was started {times} times, died {died} times"
        assert executed[op] <= times
        # The timeout around this one may come while its process is dead.
        assert executed[op] >= 1 or op.startswith("stuck"), f"{op} has an outcome and was never executed"
    return len(left)


def test_the_voyage_has_at_least_20_commits_to_die_at(children: Children, tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    ended = children.start("voyage", tmp_path, db=str(db), effects=str(effects), ending="return").result()
    assert 20 <= ended["commits"] <= MOST
    journal = audit(db)["voyage"]
    check_end(ended, journal, "return")
    assert set(journal.started.values()) == {1, 3}, "nothing runs twice without a reason"


# Each commit is met on one side, by turns; `make soak` meets all on both.
PARTS = some([(bool((share + turn) % 2), share) for turn in range(2) for share in range(SHARES)], SHARES)


@pytest.mark.parametrize(("after", "share"), PARTS)
def test_a_run_killed_at_any_commit_goes_on_where_it_was(
    children: Children, tmp_path: Path, after: bool, share: int
) -> None:
    points = range(1 + share, MOST + 1, SHARES)
    deaths = at_once(lambda n: sail(children, tmp_path / str(n), "return", (n, after)), points, 4)
    assert sum(deaths) >= 20 // SHARES


@pytest.mark.parametrize("ending", ["bail", "raise"])
def test_an_end_by_bail_or_by_an_error_survives_a_kill_too(children: Children, tmp_path: Path, ending: str) -> None:
    points = [(n, after) for n in (MOST - 8, MOST - 6, MOST - 4, END) for after in (False, True)]
    deaths = at_once(lambda p: sail(children, tmp_path / f"{p[0]}-{p[1]}", ending, p), points, 4)
    assert deaths[-2:] == [1, 1]


def kills(seed: int, count: int) -> list[list[tuple[int, bool]]]:
    """Several deaths in a row: one anywhere, the others while the run is being taken up again."""
    chance = random.Random(seed)
    return [
        [(chance.randint(2, MOST - 3), chance.random() < 0.5)]
        + [(chance.randint(1, 5), chance.random() < 0.5) for _ in range(chance.randint(1, 4))]
        for _ in range(count)
    ]


def test_a_run_killed_again_while_it_is_taken_up_goes_on_all_the_same(children: Children, tmp_path: Path) -> None:
    trials = list(enumerate(kills(seed=1, count=10)))
    deaths = at_once(lambda trial: sail(children, tmp_path / str(trial[0]), "return", *trial[1]), trials, 4)
    assert sum(deaths) >= 20


@pytest.mark.soak
def test_a_run_survives_any_two_kills(children: Children, tmp_path: Path) -> None:
    trials = [
        [(first, one), (second, other)]
        for first in range(1, MOST)
        for second in (1, 2, 3, 5, 8)
        for one in (False, True)
        for other in (False, True)
    ]
    deaths = at_once(
        lambda trial: sail(children, tmp_path / str(trial[0]), "return", *trial[1]), list(enumerate(trials)), 4
    )
    assert sum(deaths) >= len(trials)
