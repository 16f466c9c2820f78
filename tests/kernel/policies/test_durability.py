"""Durability modes: when events must be committed."""

from __future__ import annotations

import pytest

from perdure.kernel.policies.durability import MODES, Durability, durability, every


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "every"])
def test_a_mode_is_named_by_a_word(mode: str) -> None:
    assert durability(mode).mode == mode


@pytest.mark.parametrize(
    "value", [*MODES[:1], "relaxed", "async", "async(0.5)", "async(1e-05)", "exit", "manual", "every(7)"]
)
def test_a_mode_survives_being_written_down(value: str) -> None:
    made = durability(value)
    assert durability(str(made)) == made
    assert durability(made) is made


def test_only_sync_survives_power_loss_and_only_sync_and_relaxed_wait() -> None:
    modes = [durability(mode) for mode in ("sync", "relaxed", "async", "exit", "manual", "every(2)")]
    assert [mode.fsync for mode in modes] == [True, False, False, False, False, False]
    assert [mode.waits for mode in modes] == [True, True, False, False, False, False]


def test_every_nth_outcome_calls_for_an_append() -> None:
    assert [every(3).due(n) for n in range(1, 5)] == [False, False, True, True]
    assert durability("every(3)") == every(3)


@pytest.mark.parametrize(
    ("mode", "due"), [("sync", True), ("relaxed", True), ("async", False), ("exit", False), ("manual", False)]
)
def test_the_other_modes_do_not_count(mode: str, due: bool) -> None:
    assert [durability(mode).due(n) for n in (1, 1000)] == [due, due]


@pytest.mark.parametrize(
    "value", ["", "every", "every(0)", "every(-1)", "every(x)", "SYNC", "fsync", "async()", "async(-1)"]
)
def test_an_unknown_mode_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"every|durability"):
        durability(value)


def test_every_zeroth_outcome_means_nothing() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        every(0)


def test_a_mode_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Durability().mode = "exit"  # type: ignore[misc]
