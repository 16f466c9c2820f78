"""The state machine alone: events in, commands out, without an engine."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from perdure.authoring.dataflow.execution import DataflowExecution
from perdure.graph import END, Graph, node, route
from perdure.kernel.commands import Command, Finish, RecordValue, RunStep
from perdure.kernel.events import RunClaimed, RunStarted, RunStatus, StepSucceeded
from perdure.kernel.patches import NO_HISTORY
from perdure.kernel.values.codec import Codec


def opened(graph: Graph[..., Any], **inputs: Any) -> DataflowExecution:
    """A run of a graph that has not begun."""
    started = RunStarted("r", graph.name, graph.version, Raw(msgspec.json.encode(inputs)))
    return graph.open("r1", started, Codec(), NO_HISTORY)


def begin(execution: DataflowExecution) -> list[Command]:
    """What it commands first."""
    return list(execution.advance(RunClaimed("host", 1), 0.0))


def end(execution: DataflowExecution, op: str, value: Any) -> list[Command]:
    """What it commands when a step has succeeded."""
    return list(execution.advance(StepSucceeded(op, Raw(msgspec.json.encode(value))), 1.0))


def ops(commands: list[Command]) -> list[str]:
    return [command.op for command in commands]


def add(name: str, *values: str) -> Any:
    return node(lambda parts: sum(parts), name=name, inputs={"parts": list(values)})


def test_a_node_has_its_turn_when_its_own_values_are_there_and_in_the_order_of_the_nodes() -> None:
    graph = Graph([add("late", "quick", "slow"), add("quick", "x"), add("slow", "x"), add("next", "quick")], name="g")
    execution = opened(graph, x=1)
    assert ops(begin(execution)) == ["quick:0", "slow:0"]
    (command,) = end(execution, "quick:0", 2)
    assert isinstance(command, RunStep)
    assert (command.op, command.inputs, command.inputs_hash) == ("next:0", b"[[2]]", "parts[[2]]")
    assert end(execution, "next:0", 3) == []
    assert ops(end(execution, "slow:0", 4)) == ["late:0"]
    (finish,) = end(execution, "late:0", 6)
    assert isinstance(finish, Finish)
    assert (finish.status, finish.value) == (RunStatus.COMPLETED, b'{"late":6,"next":3}')


def test_a_value_is_forgotten_when_its_last_node_has_taken_it() -> None:
    graph = Graph([add("a", "x"), add("b", "a"), add("c", "a", "b")], name="g", output="c")
    execution = opened(graph, x=1)
    begin(execution)
    end(execution, "a:0", "x" * 1000)
    assert execution._values[0] is not None
    assert len(execution._values[0].data) > 1000
    end(execution, "b:0", 2)
    assert execution._values[0] is not None
    assert execution._values[0].data == b"null"


def test_the_decision_of_a_gate_is_commanded_with_what_follows_from_it() -> None:
    @route(targets=["yes", "no", END])
    def choose(a: int) -> object:
        return "yes" if a else END

    graph = Graph([add("a", "x"), choose, add("yes", "a"), add("no", "a"), add("after", "no")], name="g")
    execution = opened(graph, x=1)
    begin(execution)
    record, step = end(execution, "a:0", 1)
    assert isinstance(record, RecordValue)
    assert (record.op, record.kind, bytes(record.value)) == (
        "choose:0",
        "route",
        b'{"chose":["yes"],"skips":["no"]}',
    )
    assert step.op == "yes:0"
    (finish,) = end(execution, "yes:0", 1)
    assert isinstance(finish, Finish)
    assert msgspec.json.decode(finish.value) == {"yes": 1, "$skipped": {"after": "no:0 was skipped"}}


def test_a_chain_of_ten_thousand_nodes_is_built_and_executed_without_recursion() -> None:
    fn = node(lambda before: before + 1)
    nodes = [node(fn, name=f"n{i}", inputs={"before": f"n{i - 1}" if i else "x"}) for i in range(10_000)]
    execution = opened(Graph(list(reversed(nodes)), name="g"), x=0)
    commands = begin(execution)
    for i in range(10_000):
        assert ops(commands) == [f"n{i}:0"]
        commands = end(execution, f"n{i}:0", i)
    assert isinstance(commands[0], Finish)


def test_a_map_begins_as_many_items_as_its_limit_and_gives_its_results_in_order() -> None:
    fetch = node(lambda url: url, name="fetch").map_over("url", limit=2)
    execution = opened(Graph([fetch], name="g", output="fetch"), url=[1, 2, 3])
    record, *items = begin(execution)
    assert isinstance(record, RecordValue)
    assert (record.op, record.kind, bytes(record.value)) == ("fetch:0", "map", b'{"n":3}')
    assert ops(items) == ["fetch:0[0]", "fetch:0[1]"]
    assert ops(end(execution, "fetch:0[1]", "b")) == ["fetch:0[2]"]
    assert end(execution, "fetch:0[2]", "c") == []
    (finish,) = end(execution, "fetch:0[0]", "a")
    assert isinstance(finish, Finish)
    assert finish.value == b'["a","b","c"]'


def test_a_map_that_needs_no_further_item_gives_up_those_under_way_and_ends_with_the_one_that_said_so() -> None:
    fetch = node(lambda url: url, name="fetch").map_over("url", limit=3, until=lambda result: result == "last")
    execution = opened(Graph([fetch], name="g", output="fetch"), url=[1, 2, 3, 4])
    begin(execution)
    (cancel,) = end(execution, "fetch:0[1]", "last")
    assert (cancel.op, type(cancel).__name__) == ("fetch:0[2]", "CancelOp")
    (finish,) = end(execution, "fetch:0[0]", "first")
    assert isinstance(finish, Finish)
    assert finish.value == b'["first","last"]'


def test_the_reason_of_a_skip_is_the_first_value_that_is_missing() -> None:
    gone = node(lambda x: x, name="gone", when=lambda x: False)
    late = node(lambda gone, a: gone, name="late", when=lambda b: b)
    one = route(targets=["left", "right"], name="one")(lambda x: "left")
    left, right = (node(lambda x: True, name=name, outputs="b") for name in ("left", "right"))
    execution = opened(Graph([gone, one, left, right, add("a", "x"), late], name="g"), x=1)
    execution.noted = []
    begin(execution)
    end(execution, "left:0", True)
    end(execution, "a:0", 1)
    assert {turn.op: turn.by for turn in execution.noted} == {"gone:0": "when", "right:0": "one:0", "late:0": "gone:0"}
