"""What each durability mode may lose when its process is killed, and what it may not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.crash.harness import Child, Children, Effect, Journal, audit, audit_copy, peek, read_effects, until

COUNT = 40
SECONDS = 0.02


class Ticking:
    """A run of steps in a row that is killed in the midst of them."""

    def __init__(self, children: Children, folder: Path, durability: str, wait: int = 0, checkpoint: int = 0) -> None:
        self._children, self._folder = children, folder
        self.db, self._effects, self._still = folder / "runs.db", folder / "effects", folder / "still"
        self._command: dict[str, Any] = {
            "db": str(self.db),
            "effects": str(self._effects),
            "program": "ticks",
            "arguments": [COUNT, SECONDS, wait, checkpoint, str(self._still)],
            "durability": durability,
        }

    def start(self) -> Child:
        """Run it, or run it again."""
        return self._children.start("run", self._folder, **self._command)

    def effects(self, what: str) -> list[Effect]:
        """Lines of the log so far."""
        return [effect for effect in read_effects(self._effects) if effect.what == what]

    def kill_during(self, tick: int, *, when: Callable[[], bool] = lambda: True) -> tuple[Journal, list[str]]:
        """Kill it while this tick is under way and `when` holds. Says what the store has, and which ticks had ended."""
        self._still.write_text(str(tick))
        child = self.start()
        until(lambda: any(effect.op == f"tick:{tick}" for effect in self.effects("begin")) and when())
        child.kill()
        self._still.unlink()
        ended = [effect.op for effect in self.effects("end")]
        return audit_copy(self.db)["ticks"], ended

    def recorded(self) -> list[str]:
        """The outcomes that the store has, while the run goes on."""
        journal = peek(self.db, "ticks")
        return [] if journal is None else journal.outcomes

    def finish(self, recorded: list[str]) -> None:
        """Run it again to its end. What was recorded is not executed again."""
        before = len(self.effects("begin"))
        assert self.start().result() == sum(range(COUNT))
        again = {effect.op for effect in self.effects("begin")[before:]}
        assert again == {f"tick:{i}" for i in range(len(recorded), COUNT)}
        assert audit(self.db)["ticks"].outcomes == [f"tick:{i}" for i in range(COUNT)]


def in_a_row(count: int) -> list[str]:
    """The first ticks."""
    return [f"tick:{i}" for i in range(count)]


@pytest.mark.parametrize("durability", ["sync", "relaxed"])
@pytest.mark.parametrize("tick", [0, 1, 7, 23])
def test_sync_and_relaxed_lose_nothing_on_kill_9(
    children: Children, tmp_path: Path, durability: str, tick: int
) -> None:
    ticking = Ticking(children, tmp_path, durability)
    journal, ended = ticking.kill_during(tick)
    assert journal.outcomes == ended == in_a_row(tick)
    ticking.finish(journal.outcomes)


@pytest.mark.parametrize("tick", [2, 15, 30])
def test_async_loses_a_suffix_and_never_a_middle(children: Children, tmp_path: Path, tick: int) -> None:
    ticking = Ticking(children, tmp_path, "async")
    journal, ended = ticking.kill_during(tick)
    assert journal.outcomes == in_a_row(len(journal.outcomes))
    assert ended == in_a_row(tick)
    assert set(journal.outcomes) <= set(ended)
    ticking.finish(journal.outcomes)


@pytest.mark.parametrize("tick", [1, COUNT - 1])
def test_async_records_all_that_ended_while_a_step_goes_on(children: Children, tmp_path: Path, tick: int) -> None:
    ticking = Ticking(children, tmp_path, "async")
    journal, _ = ticking.kill_during(tick, when=lambda: ticking.recorded() == in_a_row(tick))
    assert journal.outcomes == in_a_row(tick)
    ticking.finish(journal.outcomes)


@pytest.mark.parametrize(("tick", "kept"), [(0, 0), (3, 0), (6, 5), (20, 5)])
def test_exit_loses_everything_since_the_last_wait_and_nothing_before_it(
    children: Children, tmp_path: Path, tick: int, kept: int
) -> None:
    ticking = Ticking(children, tmp_path, "exit", wait=5)
    journal, _ = ticking.kill_during(tick)
    assert journal.outcomes == in_a_row(kept)
    ticking.finish(journal.outcomes)


@pytest.mark.parametrize("tick", [1, 9, 22])
def test_every_n_loses_fewer_than_n_outcomes(children: Children, tmp_path: Path, tick: int) -> None:
    ticking = Ticking(children, tmp_path, "every(4)")
    journal, ended = ticking.kill_during(tick)
    assert journal.outcomes == in_a_row(len(journal.outcomes))
    # The last one before the kill may have ended with its append under way.
    assert len(ended) - len(journal.outcomes) <= 4
    ticking.finish(journal.outcomes)


@pytest.mark.parametrize(("tick", "kept"), [(2, 0), (7, 6), (25, 6)])
def test_manual_keeps_what_a_checkpoint_kept(children: Children, tmp_path: Path, tick: int, kept: int) -> None:
    ticking = Ticking(children, tmp_path, "manual", checkpoint=6)
    journal, _ = ticking.kill_during(tick)
    assert journal.outcomes == in_a_row(kept)
    ticking.finish(journal.outcomes)


@pytest.mark.parametrize("durability", ["sync", "relaxed", "async", "exit", "every(4)", "manual"])
def test_the_start_itself_is_kept_in_every_mode(children: Children, tmp_path: Path, durability: str) -> None:
    ticking = Ticking(children, tmp_path, durability)
    journal, _ = ticking.kill_during(0)
    assert len(journal.events) >= 2
    ticking.finish(journal.outcomes)
