"""Classifying changes from a journal, the commands of the code, and its source map."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from msgspec import Raw

from perdure.errors import Diverged
from perdure.kernel.commands import Finish, OpenWait, RecordValue, RunStep, SetState, StartChild, StartTimer, StepSpec
from perdure.kernel.divergence.explain import Evidence, commanded_op, explain, recorded_op
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.divergence.recorder import follow
from perdure.kernel.divergence.source_map import Arms, SourceMap
from perdure.kernel.events import (
    NULL,
    ChildStarted,
    RunClaimed,
    RunParked,
    RunStatus,
    StateSet,
    StepStarted,
    ValueRecorded,
    WaitOpened,
    decode_events,
    encode_events,
)
from perdure.kernel.policies.versions import Programs
from perdure.kernel.replay import Replay
from perdure.kernel.state import RunState
from tests.kernel.table import CODEC, Story, batches, stories, total

CHANGES = {"inserted", "removed", "renamed", "reordered", "inputs", "type", "fewer", "more", "branch", "raised"}


def op(path: str, line: int, inputs: str = "", kind: str = "step") -> OpView:
    name = path.rpartition("/")[2].partition(":")[0]
    return OpView(kind, path, name, inputs, f"shop.py:{line}")


def source_map(**lines: int) -> SourceMap:
    return SourceMap({name: (f"shop.py:{line}",) for name, line in lines.items()}, {}, {}, True)


# --- one form for what was recorded and what is commanded -------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "command"),
    [
        (StepStarted("a:0", 1, "h", "s:1"), RunStep("a:0", StepSpec("a", total), b"[]", "h", source="s:1")),
        (WaitOpened("sleep:0", "timer", 9.0, "s:1"), StartTimer("sleep:0", 9.0, "s:1")),
        (WaitOpened("go:0", "signal", None, "s:1", "go"), OpenWait("go:0", "signal", "go", source="s:1")),
        (WaitOpened("lock:0", "lock", None, "s:1", "key"), OpenWait("lock:0", "lock", "key", source="s:1")),
        (ChildStarted("c:0", "c", inputs="h", source="s:1"), StartChild("c:0", "c", "", b"", "h", source="s:1")),
        (
            ChildStarted("c:0", "c", inputs="h", id="i", detached="r2", source="s:1"),
            StartChild("c:0", "c", "", b"", "h", "i", True, source="s:1"),
        ),
        (StateSet("state:0", "key", NULL, "s:1"), SetState("state:0", "key", NULL, "s:1")),
        (ValueRecorded("now:0", "now", NULL, "s:1"), RecordValue("now:0", "now", NULL, "s:1")),
    ],
)
def test_a_recorded_op_equals_the_op_of_its_command(event: object, command: object) -> None:
    assert recorded_op(event) == commanded_op(command)  # type: ignore[arg-type]


def test_only_the_first_attempt_begins_an_op() -> None:
    assert recorded_op(StepStarted("a:0", 2)) is None
    assert recorded_op(RunClaimed("me", 1)) is None
    assert recorded_op(ValueRecorded("lock:0", "lock", Raw(b"7"))) is None


# --- classification ---------------------------------------------------------------------------------------------------


def test_without_source_equal_inputs_mean_a_renamed_step() -> None:
    recorded = op("a:0", 1, "h")
    assert explain(Evidence(recorded, [op("b:0", 1, "h")])).change == "renamed"
    assert explain(Evidence(recorded, [op("b:0", 1, "other")])).change == "inserted"


def test_a_name_that_the_code_still_mentions_was_not_renamed() -> None:
    evidence = Evidence(op("a:0", 1, "h"), [op("b:0", 1, "h")], source_map=source_map(a=2, b=1))
    assert explain(evidence).change == "inserted"


def test_what_the_journal_has_later_was_not_inserted() -> None:
    recorded, now = op("a:0", 1, "h"), op("b:0", 1, "h")
    after = [op("b:0", 2, "h")]
    assert explain(Evidence(recorded, [now], after=after, source_map=source_map(a=2, b=1))).change == "reordered"
    assert explain(Evidence(recorded, [now], after=after, source_map=source_map(b=1))).change == "removed"


def test_one_line_that_asks_again_and_again_is_a_loop() -> None:
    again = [op("a:0", 1), op("a:1", 1)]
    fewer = Evidence(op("a:2", 1), [op("b:0", 2)], before=again, after=[op("b:0", 2)], source_map=source_map(a=1, b=2))
    assert explain(fewer).change == "fewer"
    asked = [*again, op("a:2", 1)]
    more = Evidence(op("b:0", 2), [asked[-1]], before=again, asked=asked, source_map=source_map(a=1, b=2))
    assert explain(more).change == "more"


def test_what_is_commanded_in_passing_is_not_what_the_code_is_at() -> None:
    found = explain(Evidence(op("a:0", 1), [op("now:0", 1, kind="now"), op("b:0", 2)], source_map=source_map(a=3, b=2)))
    assert found.current is not None
    assert found.current.path == "b:0"


def test_commands_of_a_child_do_not_explain_its_parent() -> None:
    child = op("c:0", 1, kind="child")
    found = explain(Evidence(op("a:0", 2), [op("c:0/b:0", 9)], before=[child], source_map=source_map(a=3)))
    assert found.current is None


def test_arms_of_an_if_exclude_each_other() -> None:
    arms: dict[str, Arms] = {"shop.py:2": ((1, 0),), "shop.py:4": ((1, 1),)}
    known = SourceMap({"a": ("shop.py:2",), "b": ("shop.py:4",)}, {}, arms, True)
    assert explain(Evidence(op("a:0", 2), [op("b:0", 4)], source_map=known)).change == "branch"


def test_the_end_has_the_error_of_the_code() -> None:
    from perdure.kernel.values.failures import Failure

    failure = Failure("builtins.ValueError", "no stock", traceback='  File "shop.py", line 7, in order\n    raise\n')
    found = explain(Evidence(op("a:0", 1), [commanded_op(Finish(RunStatus.FAILED, error=failure))]))
    assert found.title == "The code now fails before the step a: ValueError: no stock."
    assert found.current is not None
    assert found.current.source == "shop.py:7"


@pytest.mark.parametrize("kind", ["step", "timer", "signal", "approval", "lock", "child", "detached child", "state"])
@pytest.mark.parametrize("other", ["step", "timer", "checkpoint", "now", "end", "unlock"])
@pytest.mark.parametrize("known", [True, False])
def test_every_pair_has_words(kind: str, other: str, known: bool) -> None:
    found = explain(
        Evidence(
            op("a:0", 1, kind=kind), [op("b:0", 2, kind=other)], source_map=source_map(b=2) if known else SourceMap()
        )
    )
    assert found.change in CHANGES
    assert found.fix
    assert "shop.py:1" in str(found)
    assert all(len(line) <= 100 for line in str(found).splitlines())


def test_a_divergence_is_kept_in_the_journal_as_it_is() -> None:
    found = explain(Evidence(op("a:0", 1), [op("b:0", 2)]))
    (back,) = decode_events(encode_events([RunParked(str(found), "diverged", found)]))
    assert isinstance(back, RunParked)
    assert back.divergence == found
    assert msgspec.json.decode(msgspec.json.encode(found), type=Divergence) == found


# --- any program ------------------------------------------------------------------------------------------------------


@given(stories(), stories())
def test_any_journal_fits_any_program_or_is_explained(story: Story, other: Story) -> None:
    machine = story.run()
    journal = batches(machine.journal)

    def opened(kind: type[Replay]) -> Replay:
        return kind(RunState("r1"), other.table.open("r1", machine.started, CODEC))

    try:
        opened(Replay).fold_whole(journal)
        return
    except Diverged as raised:
        error = raised
    with pytest.raises(Diverged) as explained:
        follow(opened, journal, Programs())
    found = explained.value
    assert (found.seq, found.op) == (error.seq, error.op)
    assert found.change in CHANGES
    assert found.divergence.recorded.path == found.op
    assert found.divergence.title in str(found)


@given(stories())
def test_a_program_fits_its_own_journal(story: Story) -> None:
    machine = story.run()

    def opened(kind: type[Replay]) -> Replay:
        return kind(RunState("r1"), story.table.open("r1", machine.started, CODEC))

    assert follow(opened, batches(machine.journal), Programs()).pending == {}
