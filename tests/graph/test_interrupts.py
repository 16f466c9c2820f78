"""A person is asked: what a graph shows, who answers, and what runs meanwhile and after."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from perdure import Engine, RunStatus, bail, connect
from perdure.errors import AlreadyExists, AnswerRejected, NoSuchRun, NotSerializable, UsageError
from perdure.graph import Graph, InterruptNode, Items, interrupt, node
from perdure.kernel.events import WaitOpened
from perdure.testing.simulation import Simulation


@dataclass(frozen=True)
class Question:
    reason: str
    text: str


@dataclass(frozen=True)
class Decision:
    approved: bool


@node
def draft(query: str) -> str:
    return f"draft of {query}"


@interrupt(answer=Decision)
def sign_off(draft: str) -> Question:
    return Question("needs a person", draft)


@node
def publish(draft: str, sign_off: Decision) -> str:
    if not sign_off.approved:
        bail(reason="rejected", outputs={"status": "rejected"})
    return f"published {draft}"


ASKING = Graph([draft, sign_off, publish], name="asking", output=publish)


async def test_a_run_comes_back_when_nothing_can_go_on_without_a_person() -> None:
    async with Engine("memory://", [ASKING]) as engine:
        result = await engine.run(ASKING(query="q"), id="c-1")
        assert (result.interrupted, result.interrupt_name) == (True, "sign_off")
        assert result.suspend_payload == Question("needs a person", "draft of q")
        assert result.resume_schema is Decision
        assert [(asked.path, asked.name) for asked in result.interrupts] == [("sign_off:0", "sign_off")]
        result = await engine.run(ASKING, answers={"sign_off": Decision(True)}, id="c-1")
        assert (result.status, result.output, result.interrupted) == (
            RunStatus.COMPLETED,
            "published draft of q",
            False,
        )


async def test_an_answer_comes_from_any_process(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'g.db'}"
    async with Engine(url, [ASKING]) as engine:
        assert (await engine.run(ASKING(query="q"), id="c-1")).interrupted
    async with connect(url) as client:
        await client.approve("c-1", "sign_off", Decision(True))
    async with Engine(url, [ASKING]) as engine:
        assert (await engine.run(ASKING, id="c-1")).output == "published draft of q"


async def test_an_answer_that_is_known_before_is_never_asked_for() -> None:
    async with Engine("memory://", [ASKING]) as engine:
        result = await engine.run(ASKING(query="q", sign_off=Decision(True)), id="c-2")
        assert result.output == "published draft of q"
        assert not any(isinstance(entry.event, WaitOpened) for entry in await engine.journal("c-2"))


async def test_a_bail_in_a_node_ends_the_run_with_its_outputs_and_is_not_retried() -> None:
    async with Engine("memory://", [ASKING]) as engine:
        result = await engine.run(ASKING(query="q", sign_off=Decision(False)), id="c-3")
        assert result.status is RunStatus.BAILED
        output: Any = result.output
        assert output == {"status": "rejected"}
        [step] = [step for step in await engine.steps("c-3") if step.path == "publish:0"]
        assert step.attempt == 1


@pytest.mark.parametrize("answer", ["yes", {"approved": "perhaps"}, 3, {}])
async def test_an_answer_of_the_wrong_type_is_refused_and_the_question_stays_open(answer: Any) -> None:
    async with Engine("memory://", [ASKING]) as engine:
        await engine.run(ASKING(query="q"), id="c-4")
        with pytest.raises(AnswerRejected):
            await engine.approve("c-4", "sign_off", answer)
        assert (await engine.run(ASKING, answers={"sign_off": Decision(True)}, id="c-4")).status is RunStatus.COMPLETED


@dataclass(frozen=True)
class SuspendReason:
    reason: str


@node
def approval_prompt(query: str) -> SuspendReason:
    return SuspendReason(f"may I {query}?")


async def test_the_seeds_form_asks_the_same() -> None:
    approval = InterruptNode(
        name="approval", input_param="approval_prompt", response_schema=Decision, suspend_schema=SuspendReason
    )

    @node
    def done(approval: Decision) -> bool:
        return approval.approved

    graph = Graph([approval_prompt, approval, done], name="g", output=done)
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(query="go"), id="c")
        assert (result.interrupt_name, result.suspend_payload) == ("approval", SuspendReason("may I go?"))
        assert result.resume_schema is Decision
        assert (await engine.run(graph, answers={"approval": Decision(True)}, id="c")).output is True


def ask(name: str) -> Any:
    """An interrupt of this name."""

    def question(x: int) -> str:
        return f"{name} {x}?"

    question.__name__ = question.__qualname__ = name
    return interrupt(answer=int)(question)


async def test_parallel_questions_are_answered_one_by_one_and_none_is_asked_again() -> None:
    @node
    def both(left: int, right: int) -> int:
        return left * 10 + right

    graph = Graph([ask("left"), ask("right"), both], name="g", output=both)
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=1), id="c")
        assert [asked.name for asked in result.interrupts] == ["left", "right"]
        result = await engine.run(graph, answers={"right": 2}, id="c")
        assert [asked.name for asked in result.interrupts] == ["left"]
        assert (await engine.run(graph, answers={"left": 1}, id="c")).output == 12
        opened = [entry.event.op for entry in await engine.journal("c") if isinstance(entry.event, WaitOpened)]
        assert sorted(opened) == ["left:0", "right:0"]


async def test_a_question_in_a_nested_graph_does_not_begin_it_again() -> None:
    calls: list[int] = []

    @node
    def before(x: int) -> int:
        calls.append(x)
        return x

    @node
    def answered(before: int, really: int) -> int:
        return before + really

    inner = Graph([before, ask("really"), answered], name="inner", output=answered)

    @node
    def after(first: int, second: int) -> int:
        return first * 100 + second

    graph = Graph([inner.as_node(name="first"), inner.as_node(name="second"), after], name="g", output=after)
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=1), id="c")
        assert [asked.path for asked in result.interrupts] == ["first:0/really:0", "second:0/really:0"]
        await engine.approve("c", "second:0/really:0", 2)
        assert (await engine.run(graph, answers={"first:0/really:0": 1}, id="c")).output == 203
    assert calls == [1, 1]


async def test_an_answer_by_a_name_that_several_questions_have_is_refused() -> None:
    inner = Graph([ask("really")], name="inner", output="really")
    graph = Graph([inner.as_node(name="one"), inner.as_node(name="two"), ask("other")], name="g")
    async with Engine("memory://", [graph]) as engine:
        await engine.run(graph(x=1), id="c")
        with pytest.raises(UsageError, match=r"nothing was answered.*one:0/really:0, two:0/really:0"):
            await engine.run(graph, answers={"other": 1, "really": 3}, id="c")
        assert len((await engine.run(graph, id="c")).interrupts) == 3
        # One of them by its path, and the other is the only one of its name.
        result = await engine.run(graph, answers={"two:0/really:0": 2, "really": 3, "other": 1}, id="c")
        assert result.output == {"one": 3, "two": 2, "other": 1}


async def test_a_run_of_another_graph_is_not_taken_for_its_own() -> None:
    asks, other = Graph([ask("really")], name="asks"), Graph([draft], name="other")
    async with Engine("memory://", [asks, other]) as engine:
        await engine.run(asks(x=1), id="c")
        for answers in (None, {"really": 1}):
            with pytest.raises(AlreadyExists, match="It is a run of 'asks'"):
                await engine.run(other, id="c", answers=answers)
        with pytest.raises(NoSuchRun):
            await engine.run(other, id="none")
        assert (await engine.run(asks, id="c", answers={"really": 1})).output == {"really": 1}


@pytest.mark.parametrize("on_timeout", [False, True])
def test_a_question_that_nobody_answers_fails_unless_a_value_stands_in(on_timeout: bool) -> None:
    more: dict[str, Any] = {"on_timeout": 7} if on_timeout else {}

    @interrupt(answer=int, timeout=timedelta(days=3), **more)
    def really(x: int) -> str:
        return "really?"

    @node
    def done(really: int) -> int:
        return really

    graph = Graph([really, done], name="g", output=done)
    sim = Simulation(1)

    async def scenario() -> Any:
        async with sim.engine([graph]) as engine:
            handle = await engine.start(graph(x=1), id="c")
            await sim.advance(days=2)
            assert await handle.status() == "waiting"
            await sim.advance(days=1, minutes=1)
            return await handle.outcome()

    result = sim.play(scenario())
    assert (result.status, result.output) == ((RunStatus.COMPLETED, 7) if on_timeout else (RunStatus.FAILED, None))


@interrupt(answer=int)
def first(x: int) -> int:
    return x


@interrupt(answer=int)
def second(first: int) -> int:
    return first


@interrupt(answer=int)
def beside(x: int) -> int:
    return x


@pytest.mark.parametrize("key", ["{}", "{}:0"])
async def test_answers_that_were_given_before_may_be_given_again(key: str) -> None:
    graph = Graph([first, second, beside], name="g")
    one, other, third = key.format("first"), key.format("second"), key.format("beside")
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=1), id="r", answers={one: 1})
        assert [asked.name for asked in result.interrupts] == ["beside", "second"]
        result = await engine.run(graph, id="r", answers={one: 1, other: 2})
        assert [asked.name for asked in result.interrupts] == ["beside"]
        with pytest.raises(UsageError, match=r"'thrid': .* answers nothing"):
            await engine.run(graph, id="r", answers={one: 1, "thrid": 3})
        result = await engine.run(graph, id="r", answers={one: 1, other: 2, third: 3})
        assert dict(result.output or {}) == {"second": 2, "beside": 3}


@pytest.mark.parametrize("chunk", [500, 1])
async def test_a_question_is_mapped_over_a_list(chunk: int) -> None:
    def told(approval: list[int]) -> list[int]:
        return approval

    ask = InterruptNode(name="approval", input_param="shown", response_schema=int, suspend_schema=str)
    mapped = node(ask, inputs={"shown": "topics"}).map_over("shown", chunk=chunk)
    graph = Graph([mapped, node(told)], name="g", output="told")
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(topics=["a", "b", "c"]), id="r")
        asked = {one.path: (one.payload, one.schema) for one in result.interrupts}
        assert asked == {f"approval:0[{n}]/approval:0": (text, int) for n, text in enumerate("abc")}
        answers = {path: n for n, path in enumerate(asked)}
        result = await engine.run(graph, id="r", answers={path: answers[path] for path in list(answers)[:2]})
        assert [one.payload for one in result.interrupts] == ["c"]
        assert (await engine.run(graph, id="r", answers=answers)).output == [0, 1, 2]


async def test_a_question_is_asked_twice_under_two_names_and_its_answer_may_be_called_otherwise() -> None:
    graph = Graph([first, node(first, name="again", inputs={"x": "y"}, outputs="answer")], name="g")
    async with Engine("memory://", [graph]) as engine:
        result = await engine.run(graph(x=1, y=2), id="r")
        assert {(asked.path, asked.payload) for asked in result.interrupts} == {("first:0", 1), ("again:0", 2)}
        result = await engine.run(graph, id="r", answers={"first": 5, "again": 6})
        assert dict(result.output or {}) == {"first": 5, "answer": 6}
    with pytest.raises(TypeError, match="a question has no such option"):
        node(first, timeout=3)


async def test_an_answer_to_what_is_never_asked_is_refused_before_anything_begins() -> None:
    inner = Graph([sign_off_of("inside")], name="inner")
    graph = Graph([inner, sign_off_of("confirm"), node(lambda x: x, name="end")], name="g")
    async with Engine("memory://", [graph]) as engine:
        with pytest.raises(UsageError, match="answers nothing that g asks; did you mean 'confirm'"):
            await engine.run(graph(x=1), answers={"confrim": 1}, id="r")
        assert await engine.get("r") is None
        result = await engine.run(graph(x=1), id="r")
        assert {one.name for one in result.interrupts} == {"inside", "confirm"}
        for wrong in ("insid", "end"):
            with pytest.raises(UsageError, match="answers nothing that g asks"):
                await engine.run(graph, answers={wrong: 1}, id="r")
        assert (await engine.run(graph, answers={"inside": 1, "confirm": 2}, id="r")).status is RunStatus.COMPLETED
        with pytest.raises(UsageError, match="answers nothing that g asks"):
            await engine.run(graph, answers={"wrong": 1}, id="r")


def sign_off_of(name: str) -> Any:
    return interrupt(answer=int, name=name)(lambda x: x)


@pytest.mark.parametrize("given", [range(3), iter([1, 2])])
async def test_an_iterator_as_an_input_says_to_give_items(given: Any) -> None:
    graph = Graph([node(lambda x: x, name="each").map_over("x")], name="g")
    async with Engine("memory://", [graph]) as engine:
        with pytest.raises(NotSerializable, match=r"Items\.of"):
            await engine.run(graph(x=given))
        assert (await engine.run(graph(x=Items.of(given)))).output["each"]
