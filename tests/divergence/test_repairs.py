"""The fix that an explanation shows was tried: applied to the file as it is, it lets the run go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.errors import Diverged
from perdure.kernel.divergence.patching import apply_diff
from perdure.kernel.divergence.recorder import follow
from perdure.kernel.divergence.repair import Repairs
from perdure.kernel.events import Batch, RunClaimed, RunStarted, WaitResolved
from perdure.kernel.history.upgrade import fit_parts
from perdure.kernel.parts import result_of
from perdure.kernel.policies.versions import Programs
from perdure.kernel.replay import Replay, open_replay
from perdure.kernel.values.codec import Codec
from tests.divergence import shop
from tests.divergence.corpus import Case
from tests.divergence.harness import Code, events, replay
from tests.divergence.test_corpus import UNSAFE, Story, name, reaches

# Nothing in a function that still exists has changed: a constant has, or a function is gone that the old code called.
WITHOUT = {
    "renamed: the function of a task",
    "inputs: a constant of the module",
    "type: a step becomes a child of the same name",
}


def repaired(story: Story, batches: Sequence[Batch]) -> Diverged:
    """What an engine with the new code says about a journal."""
    started, codec = batches[0].events[0], Codec()
    assert isinstance(started, RunStarted)
    programs = Programs(story.after.programs.values())
    sources = {one.source().digest(): one.source() for one in story.before.programs.values()}

    def opened(kind: type[Replay]) -> Replay:
        return open_replay(programs, "r1", started, codec, batches, kind=kind, sources=sources)

    def fits(others: Programs) -> bool:
        return result_of(fit_parts(others, codec, "r1", started, batches))

    with pytest.raises(Diverged) as raised:
        follow(opened, batches, programs)
    found = Repairs(programs).repaired(raised.value, batches, sources, fits)
    assert isinstance(found, Diverged)
    return found


def changed(folder: Path, before: str, after: str) -> Story:
    """A run of code, and other code that it does not fit."""
    return Story(Case("", "", before, after), folder)


CHILD = """
@workflow(name="paying")
async def paying(n: int) -> int:
    a = await charge(n)
    {}await sleep(60)
    return a

@workflow(name="order")
async def order(n: int = 7) -> int:
    await audit(n)
    a = await paying(n)
    await sleep(60)
    return a
"""


def test_a_change_of_a_child_is_compared_with_the_child_as_it_was(tmp_path: Path) -> None:
    story = changed(tmp_path, CHILD.format(""), CHILD.format("await mail(n)\n    "))
    found = repaired(story, story.cuts[-1]).divergence
    assert found is not None
    assert found.change == "inserted"
    assert "@@ paying\n     a = await charge(n)\n+    await mail(n)\n" in found.changed
    assert "audit" not in found.patch
    assert '+    if patched("inserted-mail"):\n+        await mail(n)\n' in found.patch


def test_the_code_of_the_last_op_is_meant_also_if_the_next_owner_has_claimed_the_run(tmp_path: Path) -> None:
    text = "a = await charge(n)\n{}await sleep(60)"
    story = changed(tmp_path, text.format(""), text.format("await asyncio.gather(mail(n), audit(n))\n"))
    batches = story.cuts[-1]
    claim = RunClaimed("next", 2, code=story.after.order.source().digest())
    end = batches[-1].seq + len(batches[-1].events)
    alone, claimed = (
        repaired(story, one).divergence for one in (batches, [*batches, Batch(end, batches[-1].at, [claim])])
    )
    assert alone is not None
    assert claimed is not None
    assert claimed.changed == alone.changed != ""
    assert claimed.patch == alone.patch != ""


def test_a_fix_with_which_the_next_step_cannot_be_called_is_not_shown(tmp_path: Path) -> None:
    before = """
    from typing import Any

    @step
    async def book(cents: {}) -> int:
        return 1

    @step
    async def find(n: int = 0) -> Any:
        return {}

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        cents = await find()
        await sleep(60)
        return await book(cents)
    """
    after = before.replace("cents = await find()", "cents = await find(1)")
    story = changed(tmp_path, before.format("int", 1), after.format("str", "'1'"))
    asleep = next(cut for cut in story.cuts if any(isinstance(one, WaitResolved) for one in events(cut)))
    found = repaired(story, asleep).divergence
    assert found is not None
    assert found.change == "inputs"
    assert found.patch == ""


def test_a_fix_ends_with_a_line_end_as_other_tools_expect(tmp_path: Path) -> None:
    story = changed(tmp_path, "await charge(n)", "await charge(n + 1)")
    found = repaired(story, story.cuts[-1]).divergence
    assert found is not None
    assert found.patch.endswith("\n")
    assert not found.patch.endswith("\n\n")


def test_a_renamed_step_is_told_so_where_its_line_calls_a_function_too(tmp_path: Path) -> None:
    text = """
        def total(n):
            return n

        @step
        async def {name}(n: int) -> int:
            return n

        @workflow(name="order")
        async def order(n: int = 7) -> int:
            a = await {name}(total(n))
            await sleep(60)
            return a
    """
    story = changed(tmp_path, text.format(name="hold"), text.format(name="reserve"))
    found = repaired(story, story.cuts[-1]).divergence
    assert found is not None
    assert found.change == "renamed"
    assert found.current is not None
    assert found.current.path == "reserve:0"
    assert '+@step(name="hold")' in found.patch


def test_a_function_that_is_a_step_again_is_awaited(tmp_path: Path) -> None:
    text = """
        {step}
        def seat(n: int) -> int:
            return n

        @workflow(name="order")
        async def order(n: int = 7) -> int:
            total = 0
            for i in range(2):
                total += {await_}seat(i) + {await_}seat(n)
            await sleep(60)
            return total
    """
    before, after = text.format(step="@step", await_="await "), text.format(step="", await_="")
    story = changed(tmp_path, before, after)
    found = repaired(story, story.cuts[-1]).divergence
    assert found is not None
    fixed = Code(tmp_path / "fixed", "pass")
    fixed.file.write_text(apply_diff(story.after.file.read_text(), found.patch))
    assert "total += await seat(i) + await seat(n)" in fixed.file.read_text()
    fixed.load()
    assert replay(fixed, story.cuts[-1]) is None


RACE = """
    first = asyncio.ensure_future(wait_signal("{}"))
    second = asyncio.ensure_future(wait_signal("{}"))
    done, _ = await asyncio.wait({{first, second}}, return_when=asyncio.FIRST_COMPLETED, timeout=900)
    if {} in done:
        await refund(n)
"""


def test_a_fix_keeps_together_what_belongs_together(tmp_path: Path) -> None:
    story = changed(tmp_path, RACE.format("never", "paid", "first"), RACE.format("paid", "never", "second"))
    found = repaired(story, story.cuts[0]).divergence
    assert found is not None
    assert found.patch
    after = apply_diff(story.after.file.read_text(), found.patch)
    assert after.count("if first in done:") == after.count("if second in done:") == 1


TASKS = """
    async def one(n):
        await charge(n)
    async with asyncio.TaskGroup() as group:
        group.create_task(one(1)){}
    await mail(1 if n else 0{})
"""


def test_a_task_that_is_gone_is_told_so_whatever_else_has_changed(tmp_path: Path) -> None:
    story = changed(tmp_path, TASKS.format("\n        group.create_task(one(2))", ""), TASKS.format("", " + 1"))
    found = repaired(story, story.cuts[0]).divergence
    assert found is not None
    assert found.change == "fewer"
    assert "asks for ." not in found.title


@pytest.fixture
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Story:
    return Story(request.param, tmp_path)


@pytest.mark.parametrize("story", UNSAFE, ids=name, indirect=True)
def test_the_fix_lets_the_run_go_on_when_it_is_applied_as_it_stands(story: Story, tmp_path: Path) -> None:
    case = story.case
    reached = [batches for batches in story.cuts if reaches(batches, story.before, case)]
    for number, batches in enumerate((reached[0], reached[-1])):
        found = repaired(story, batches).divergence
        assert found is not None
        assert (found.patch == "") is (name(case) in WITHOUT), found
        if found.patch:
            fixed = Code(tmp_path / f"fixed{number}", "pass")
            fixed.file.write_text(apply_diff(story.after.file.read_text(), found.patch))
            fixed.load()
            assert replay(fixed, batches) is None
    assert shop.executed == []
