"""Steps that must not run twice, tries that must wait, and sleeps: over the death of their process."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure.kernel.events import AttemptFailed, StepFailed, WaitOpened
from tests.crash.harness import Children, audit, peek, read_effects, until


@pytest.fixture
def command(tmp_path: Path) -> dict[str, Any]:
    """The command that is run again and again."""
    return {"db": str(tmp_path / "runs.db"), "effects": str(tmp_path / "effects")}


def begun(folder: Path, name: str) -> list[float]:
    """When a step was executed."""
    return [e.at for e in read_effects(folder / "effects") if e.op.startswith(name) and e.what == "begin"]


def waits(db: Path) -> bool:
    """Whether the sleep has begun."""
    journal = peek(db, "sleepy")
    return journal is not None and any(isinstance(e, WaitOpened) for e in journal.events)


@pytest.mark.parametrize("durability", ["sync", "relaxed", "async", "exit", "every(3)", "manual"])
def test_a_step_that_must_not_run_twice_is_reported_as_unknown_after_a_kill(
    children: Children, tmp_path: Path, command: dict[str, Any], durability: str
) -> None:
    command |= {"program": "careful", "arguments": [str(tmp_path / "death")], "durability": durability}
    assert children.start("run", tmp_path, **command).killed()
    assert children.start("run", tmp_path, **command).result() == "unknown: charge:0, 3"
    assert len(begun(tmp_path, "charge")) == 1
    failed = [e for e in audit(tmp_path / "runs.db")["careful"].events if isinstance(e, StepFailed)]
    assert [(e.op, e.attempt, e.unknown) for e in failed] == [("charge:0", 1, True)]
    # And it stays so.
    assert children.start("run", tmp_path, **command).result() == "unknown: charge:0, 3"
    assert len(begun(tmp_path, "charge")) == 1


def test_a_step_that_must_not_run_twice_is_unknown_even_if_it_had_not_begun(
    children: Children, tmp_path: Path, command: dict[str, Any]
) -> None:
    # Its intent is recorded with the outcome of the step before it, in the second commit.
    command |= {"program": "careful", "arguments": [str(tmp_path / "death")]}
    assert children.start("run", tmp_path, **command, at=2, after=True).killed()
    assert children.start("run", tmp_path, **command).result() == "unknown: charge:0, 3"
    assert begun(tmp_path, "charge") == []


def test_a_step_that_must_not_run_twice_runs_if_its_intent_was_not_recorded(
    children: Children, tmp_path: Path, command: dict[str, Any]
) -> None:
    (tmp_path / "death").touch()  # it does not die this time
    command |= {"program": "careful", "arguments": [str(tmp_path / "death")]}
    assert children.start("run", tmp_path, **command, at=2, after=False).killed()
    assert children.start("run", tmp_path, **command).result() == "charged, 3"
    assert len(begun(tmp_path, "charge")) == 1


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_backoff_goes_on_over_a_kill_and_does_not_start_over(
    children: Children, tmp_path: Path, command: dict[str, Any], durability: str
) -> None:
    command |= {"program": "patient", "arguments": [], "durability": durability}
    db = tmp_path / "runs.db"

    def recorded(count: int) -> list[AttemptFailed]:
        journal = peek(db, "patient")
        found = [] if journal is None else [e for e in journal.events if isinstance(e, AttemptFailed)]
        return found if len(found) >= count else []

    # Killed during the first wait, and again during the second.
    for attempt in (1, 2):
        child = children.start("run", tmp_path, **command)
        failed = until(partial(recorded, attempt), every=0.02)
        child.kill()
        # On a busy machine it may have come further before the kill.
        assert [e.attempt for e in failed] == list(range(1, len(failed) + 1))
    assert children.start("run", tmp_path, **command).result() == "no route"
    tries = begun(tmp_path, "unreachable")
    events = audit(db)["patient"].events
    waits = [e.retry_at for e in events if isinstance(e, AttemptFailed)]
    assert len(tries) == 4, "as many tries as the policy allows, whatever happened in between"
    assert len(waits) == 3
    for at, retry_at in zip(tries[1:], waits, strict=True):
        assert retry_at - 0.01 <= at
    assert [(e.op, e.attempt) for e in events if isinstance(e, StepFailed)] == [("unreachable:0", 4)]


@pytest.mark.parametrize("seconds", [0.5, 1.5], ids=["in-memory", "evicted"])
def test_a_sleep_goes_on_over_a_kill_and_ends_when_it_would_have(
    children: Children, tmp_path: Path, command: dict[str, Any], seconds: float
) -> None:
    command |= {"program": "sleepy", "arguments": [seconds]}
    db = tmp_path / "runs.db"
    child = children.start("run", tmp_path, **command)
    until(lambda: begun(tmp_path, "add:0"))
    until(lambda: waits(db), every=0.02)
    child.kill()
    assert children.start("run", tmp_path, **command).result() == seconds
    (wait,) = [e for e in audit(db)["sleepy"].events if isinstance(e, WaitOpened)]
    assert wait.deadline is not None
    (woken,) = begun(tmp_path, "add:1")
    assert wait.deadline - 0.01 <= woken


def test_a_sleep_that_ended_while_nobody_lived_ends_at_once(
    children: Children, tmp_path: Path, command: dict[str, Any]
) -> None:
    command |= {"program": "sleepy", "arguments": [0.4]}
    child = children.start("run", tmp_path, **command)
    until(lambda: begun(tmp_path, "add:0"))
    until(lambda: waits(tmp_path / "runs.db"), every=0.02)
    child.kill()
    time.sleep(0.5)
    assert children.start("run", tmp_path, **command).result() == 0.4
    assert len(begun(tmp_path, "add:1")) == 1
