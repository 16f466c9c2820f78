"""A corpus of changed workflows: unsafe changes are found before anything is executed, and explained."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure import Engine, RunStatus
from perdure.kernel.divergence.explain import recorded_op
from perdure.kernel.divergence.model import Divergence
from perdure.kernel.events import Batch
from tests.divergence import shop
from tests.divergence.corpus import CASES, Case
from tests.divergence.harness import Code, cuts, events, journal, recorded, replay
from tests.engine.harness import AT_ONCE, FakeClock, eventually, left_by_a_crash

UNSAFE = [case for case in CASES if not case.safe]
KINDS = [case.change for case in UNSAFE]
SAFE = [case for case in CASES if case.safe]


def name(case: Case) -> str:
    return f"{case.change or 'safe'}: {case.name}"


def reaches(batches: Sequence[Batch], before: Code, case: Case) -> bool:
    """Whether the run has reached the change."""
    if not before.line:
        return any(getattr(event, "by", "") == "cancelled" for event in events(batches))
    ops = [op for op in map(recorded_op, events(batches)) if op is not None and op.source == before.source]
    return len(ops) >= before.nth


class Story:
    """A case that has been played."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.before, self.after = Code(folder / "before", case.before), Code(folder / "after", case.after)
        self.store, self.run_id = recorded(self.before)
        self.cuts = cuts(asyncio.run(journal(self.store, self.run_id)))
        shop.executed.clear()

    def is_right(self, found: Divergence) -> bool:
        """Whether an explanation names the change and both lines."""
        now = found.current.source if found.current is not None else ""
        lines = found.recorded.source in self.before.sources and (now == self.after.source or not self.after.line)
        return lines and found.change == self.case.change

    async def is_parked(self, batches: Sequence[Batch]) -> None:
        """An engine with the other code parks the run, where a crash has left it, before any effect of that code."""
        shop.executed.clear()
        end = batches[-1].seq + len(batches[-1].events)
        store, clock = left_by_a_crash(self.store, end), FakeClock(batches[-1].at + 1e6)
        async with Engine(store, self.after.programs.values(), recovery=AT_ONCE, clock=clock) as engine:
            # A run that only waits for external events is loaded when one arrives.
            for signal in ("paid", "settled"):
                await engine.signal("it", signal, 1)
            for asked in await engine.approvals():
                await engine.approve("it", asked.name, 1)
            await eventually(lambda: store.journal.rows[self.run_id].status is RunStatus.PARKED)
            view = await engine.get("it")
        assert view is not None
        assert view.reason
        assert shop.executed == []


def test_the_corpus_is_large_enough() -> None:
    assert len(CASES) >= 60
    assert len(UNSAFE) >= 50
    assert len({name(case) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", UNSAFE, ids=name)
def test_an_unsafe_change_is_found_wherever_the_run_has_come_to_it_and_explained(case: Case, tmp_path: Path) -> None:
    story = Story(case, tmp_path)
    why: Divergence | None = None
    for batches in story.cuts:
        why = replay(story.after, batches)
        assert (why is not None) is reaches(batches, story.before, case), why
        # The code that it ran with always fits.
        assert replay(story.before, batches) is None
    assert shop.executed == []
    assert why is not None
    assert story.is_right(why), f"{why.change} {why}"
    assert all(len(line) <= 100 for line in str(why).splitlines() if "orders.py" not in line), why
    sides = {line.split()[0]: line for line in str(why).splitlines() if line.startswith(("  recorded ", "  now "))}
    assert f"{story.after.file}:" in sides["now"]
    # A cancellation has no source line.
    assert (f"{story.before.file}:" in sides["recorded"]) or why.recorded.kind == "cancel"
    assert "Traceback" not in str(why)
    assert "perdure/kernel" not in str(why)
    assert f"perdure resolve ID --before {why.op}" in why.fix


@pytest.mark.parametrize("case", SAFE, ids=name)
def test_a_safe_change_is_never_reported(case: Case, tmp_path: Path) -> None:
    story = Story(case, tmp_path)
    assert {replay(story.after, batches) for batches in story.cuts} == {None}


# Two of each kind; `make soak` has all of them, at two points.
@pytest.mark.parametrize("case", [case for n, case in enumerate(UNSAFE) if KINDS[:n].count(case.change) < 2], ids=name)
def test_an_engine_parks_the_run_before_any_effect_of_the_new_code(case: Case, tmp_path: Path) -> None:
    story = Story(case, tmp_path)
    asyncio.run(story.is_parked(next(one for one in story.cuts if reaches(one, story.before, case))))


@pytest.mark.soak
@pytest.mark.parametrize("case", UNSAFE, ids=name)
def test_an_engine_parks_the_run_wherever_it_is(case: Case, tmp_path: Path) -> None:
    story = Story(case, tmp_path)
    reached = [batches for batches in story.cuts if reaches(batches, story.before, case)]
    for batches in (reached[0], reached[-1]):
        asyncio.run(story.is_parked(batches))
