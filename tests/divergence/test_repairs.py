"""The fix that an explanation shows was tried: applied to the file as it is, it lets the run go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.errors import Diverged
from perdure.kernel.divergence.patching import apply_diff
from perdure.kernel.divergence.recorder import follow
from perdure.kernel.divergence.repair import Repairs
from perdure.kernel.events import Batch, RunStarted
from perdure.kernel.history.upgrade import fit_parts
from perdure.kernel.parts import result_of
from perdure.kernel.policies.versions import Programs
from perdure.kernel.replay import Replay, open_replay
from perdure.kernel.values.codec import Codec
from tests.divergence import shop
from tests.divergence.harness import Code, replay
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

    def opened(kind: type[Replay]) -> Replay:
        return open_replay(programs, "r1", started, codec, batches, kind=kind)

    def fits(others: Programs) -> bool:
        return result_of(fit_parts(others, codec, "r1", started, batches))

    with pytest.raises(Diverged) as raised:
        follow(opened, batches, programs)
    sources = {one.source().digest(): one.source() for one in story.before.programs.values()}
    found = Repairs(programs).repaired(raised.value, batches, sources, fits)
    assert isinstance(found, Diverged)
    return found


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
