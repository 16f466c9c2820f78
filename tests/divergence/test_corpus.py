"""A corpus of changed workflows: unsafe changes are found before anything is executed, and explained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, RunStatus
from perdure.kernel.divergence.explain import recorded_op
from perdure.kernel.divergence.model import Divergence
from perdure.kernel.events import Batch
from tests.divergence import shop
from tests.divergence.corpus import CASES, Case
from tests.divergence.harness import Code, cuts, events, journal, recorded, replay
from tests.engine.harness import AT_ONCE, FakeClock, eventually, in_callback, left_by_a_crash

UNSAFE = [case for case in CASES if not case.safe]
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
        shop.executed.clear()

    async def cuts(self) -> list[list[Batch]]:
        return cuts(await journal(self.store, self.run_id))

    def is_right(self, found: Divergence | None) -> bool:
        """Whether an explanation names the change and both lines."""
        if found is None or found.change != self.case.change:
            return False
        now = found.current.source if found.current is not None else ""
        return found.recorded.source in self.before.sources and (now == self.after.source or not self.after.line)


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Story]:
    folder = tmp_path_factory.mktemp("corpus")
    made = {}
    for number, case in enumerate(CASES):
        (folder / str(number)).mkdir()
        made[name(case)] = Story(case, folder / str(number))
    return made


def test_the_corpus_is_large_enough() -> None:
    assert len(CASES) >= 60
    assert len(UNSAFE) >= 50
    assert len({name(case) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", UNSAFE, ids=name)
async def test_an_unsafe_change_is_found_wherever_the_run_has_come_to_it(case: Case, stories: dict[str, Story]) -> None:
    story, found = stories[name(case)], 0
    for batches in await story.cuts():
        why = await in_callback(lambda b=batches: replay(story.after, b))  # type: ignore[misc]
        reached = reaches(batches, story.before, case)
        assert (why is not None) is reached, why
        found += reached
        # The code that it ran with always fits.
        assert await in_callback(lambda b=batches: replay(story.before, b)) is None  # type: ignore[misc]
    assert found
    assert shop.executed == []


@pytest.mark.parametrize("case", SAFE, ids=name)
async def test_a_safe_change_is_never_reported(case: Case, stories: dict[str, Story]) -> None:
    story = stories[name(case)]
    for batches in await story.cuts():
        assert await in_callback(lambda b=batches: replay(story.after, b)) is None  # type: ignore[misc]


@pytest.mark.parametrize("case", UNSAFE, ids=name)
async def test_an_engine_parks_the_run_before_any_effect_of_the_new_code(case: Case, stories: dict[str, Story]) -> None:
    story = stories[name(case)]
    reached = [batches for batches in await story.cuts() if reaches(batches, story.before, case)]
    for batches in (reached[0], reached[-1]):
        shop.executed.clear()
        end = batches[-1].seq + len(batches[-1].events)
        store, clock = left_by_a_crash(story.store, end), FakeClock(batches[-1].at + 1e6)
        async with Engine(store, story.after.programs.values(), recovery=AT_ONCE, clock=clock) as engine:
            # A run that only waits for external events is loaded when one arrives.
            for signal in ("paid", "settled"):
                await engine.signal("it", signal, 1)
            for asked in await engine.approvals():
                await engine.approve("it", asked.name, 1)
            await eventually(lambda s=store: s.journal.rows[story.run_id].status is RunStatus.PARKED)  # type: ignore[misc]
            view = await engine.get("it")
        assert view is not None
        assert view.reason
        assert shop.executed == []


async def test_explanations_name_the_change_and_the_lines(stories: dict[str, Story]) -> None:
    wrong: list[str] = []
    for case in UNSAFE:
        story = stories[name(case)]
        last = (await story.cuts())[-1]
        why: Any = await in_callback(lambda s=story, b=last: replay(s.after, b))  # type: ignore[misc]
        if not story.is_right(why):
            wrong.append(f"{name(case)}\n{'' if why is None else why.change} {why}")
        else:
            assert all(len(line) <= 100 for line in str(why).splitlines() if "orders.py" not in line), why
    assert len(UNSAFE) - len(wrong) >= 50, "\n\n".join(wrong)
    assert not wrong, f"{len(wrong)} of {len(UNSAFE)} are wrong\n\n" + "\n\n".join(wrong)


@pytest.mark.parametrize("case", UNSAFE, ids=name)
async def test_an_explanation_shows_both_sides_with_file_and_line_and_the_ways_to_go_on(
    case: Case, stories: dict[str, Story]
) -> None:
    story = stories[name(case)]
    last = (await story.cuts())[-1]
    why = await in_callback(lambda: replay(story.after, last))
    assert why is not None
    sides = {line.split()[0]: line for line in str(why).splitlines() if line.startswith(("  recorded ", "  now "))}
    assert f"{story.after.file}:" in sides["now"]
    # A cancellation has no source line.
    assert (f"{story.before.file}:" in sides["recorded"]) or why.recorded.kind == "cancel"
    assert "Traceback" not in str(why)
    assert "perdure/kernel" not in str(why)
    assert f"perdure resolve ID --before {why.op}" in why.fix
