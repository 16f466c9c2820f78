"""A graph that cannot work is refused when it is built: every problem at once, with its place and how to fix it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Literal, TypedDict

import pytest

from perdure import Engine, rule
from perdure.errors import GraphInvalid, InvalidRule, UsageError
from perdure.graph import END, Graph, InterruptNode, Items, ifelse, interrupt, node, route


@node
def a(x: int) -> int:
    return x


@node
def b(a: int) -> int:
    return a


@node(outputs="v")
def one_v(x: int) -> int:
    return x


@node(outputs="v")
def other_v(x: int) -> int:
    return x


@node
def text(x: int) -> str:
    return str(x)


@node
def number(text: int) -> int:
    return text


@node
def items(*x: int) -> int:
    return len(x)


@node
def options(**x: int) -> int:
    return len(x)


@node
def positional(x: int, /) -> int:
    return x


@node
def left(right: int) -> int:
    return right


@node
def right(left: int) -> int:
    return left


@node
def ask(told: str) -> str:
    return told


@interrupt(answer=str)
def told(ask: str) -> str:
    return ask


@route(targets=["ask", END])
def again(told: str) -> object:
    return END


@route(targets=["b", END])
def gate(a: int) -> object:
    return END


@route(targets=["bb", END])
def to_nowhere(a: int) -> object:
    return END


@ifelse(when_true="b", when_false="c")
def to_half(a: int) -> bool:
    return True


@route(targets=["again_in", END])
def again_in(a: int) -> object:
    return END


@route(targets=["a", END])
def back(b: int) -> object:
    return END


@route(targets=["a", END])
def back_too(b: int) -> object:
    return END


@dataclass
class Wrong:
    """An output whose field is not what its node gives."""

    a: str


class One(TypedDict):
    """What a node gives."""

    n: int


class Other(TypedDict):
    """What another takes."""

    n: str


class Part(TypedDict):
    """A part of what one gives."""

    n: float


def upper(x: str) -> str:
    return x.upper()


def add(parts: list[int]) -> int:
    return sum(parts)


@node
def one_dict(x: int) -> One:
    return {"n": x}


@node
def other_dict(one_dict: Other) -> str:
    return one_dict["n"]


def problems(make: Callable[[], object]) -> list[str]:
    """What is wrong with a graph."""
    with pytest.raises(GraphInvalid) as caught:
        make()
    found = [str(problem) for problem in caught.value.problems]
    assert all(problem in str(caught.value) for problem in found)
    return found


def line(made: Any) -> str:
    """Where a node is written."""
    fn = made.fn if hasattr(made, "fn") else made
    return f"test_build_errors.py:{fn.__code__.co_firstlineno}"


@dataclass(frozen=True)
class Case:
    """A graph, and what the problem with it says: where, and which words."""

    make: Callable[[], object]
    says: tuple[str, ...]
    at: Any = None


CASES = {
    "unknown target": Case(lambda: Graph([a, b, to_nowhere], name="g"), ("'bb'", "did you mean 'b'"), to_nowhere),
    "unknown target of an ifelse": Case(lambda: Graph([a, b, to_half], name="g"), ("'c'",), to_half),
    "gate that targets itself": Case(lambda: Graph([a, again_in], name="g"), ("again_in",), again_in),
    "unknown after": Case(lambda: Graph([a, node(b, after=["aa"])], name="g"), ("'aa'", "did you mean 'a'"), b),
    "unknown renamed parameter": Case(
        lambda: Graph([a, node(b, inputs={"aa": "x"})], name="g"), ("'aa'", "did you mean 'a'"), b
    ),
    "two producers": Case(lambda: Graph([one_v, other_v], name="g"), ("'v'", "one_v", "outputs="), other_v),
    "one name for two nodes": Case(lambda: Graph([a, node(b, name="a")], name="g"), ("'a'",)),
    "cycle without loops": Case(lambda: Graph([left, right], name="g"), ("left", "right", "loops="), left),
    "carried parameter without an initial value": Case(
        lambda: Graph([ask, told, again], name="g", loops=["ask"]), ("'told'", "first round", "default"), ask
    ),
    "two gates back to one entry": Case(
        lambda: Graph([a, b, back, back_too], name="g", loops=["a"]), ("back", "back_too", "'a'"), back
    ),
    "unknown loop": Case(lambda: Graph([a, b, back], name="g", loops=["aa"]), ("'aa'", "did you mean 'a'")),
    "types that do not fit": Case(lambda: Graph([text, number], name="g"), ("str", "int", "text", "number"), number),
    "a parameter of any number of values": Case(lambda: Graph([items], name="g"), ("*x",), items),
    "a parameter of any number of names": Case(lambda: Graph([options], name="g"), ("**x",), options),
    "a positional-only parameter": Case(lambda: Graph([positional], name="g"), ("x", "positional"), positional),
    "a node called like a value": Case(
        lambda: Graph([a, node(b, name="score"), node(text, outputs="score")], name="g"), ("'score'",)
    ),
    "unused bind": Case(lambda: Graph([a, b], name="g").bind(xx=3), ("'xx'", "did you mean 'x'")),
    "END as a name": Case(lambda: Graph([a, node(b, name="END")], name="g"), ("END",), b),
    "a retired node that is there": Case(lambda: Graph([a], name="g", retired=["a"]), ("retired=['a']", "still")),
    "a retired node without a name": Case(lambda: Graph([a], name="g", retired=[""]), ("no name of a node",)),
    "a renamed node that is there": Case(lambda: Graph([a, b], name="g", renamed={"a": "b"}), ("'a'", "still")),
    "a renamed node that is not there": Case(
        lambda: Graph([a], name="g", renamed={"o": "aa"}), ("'aa'", "did you mean 'a'")
    ),
    "a node retired and renamed": Case(
        lambda: Graph([a], name="g", renamed={"o": "a"}, retired=["o"]), ("both retired and renamed",)
    ),
    "a second entry of one loop": Case(
        lambda: Graph([a, b, back], name="g", loops=["a", "b"]), ("but through 'a'", "leave out one"), b
    ),
    "an input of two types": Case(
        lambda: Graph([a, node(lambda x: x, name="u"), node(number, inputs={"text": "x"}), node(upper)], name="g"),
        ("the input 'x'", "str", "int"),
        upper,
    ),
    "a field of the output of another type": Case(
        lambda: Graph([a], name="g", output=Wrong), ("field 'a'", "str", "int", line(a))
    ),
    "typed dicts that do not fit": Case(lambda: Graph([one_dict, other_dict], name="g"), ("Other", "One"), other_dict),
    "END in quotes": Case(
        lambda: Graph([a, route(targets=["END"], name="g1")(lambda a: END)], name="g"), ("END without quotes", "import")
    ),
    "a join where one value is taken": Case(
        lambda: Graph([text, node(upper, inputs={"x": ["text", "other"]})], name="g"),
        ("x: str", "a list of 'text', 'other'", "list[...]"),
        upper,
    ),
    "a join of other elements": Case(
        lambda: Graph([text, node(add, inputs={"parts": ["text", "x"]})], name="g"),
        ("parts: list[int]", "a list with 'text', which is str"),
        add,
    ),
    "unknown output": Case(lambda: Graph([a, b], name="g", output="bb"), ("'bb'", "did you mean 'b'")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_graph_that_cannot_work_is_refused(case: str) -> None:
    found = problems(CASES[case].make)
    assert len(found) == 1, found
    for word in CASES[case].says:
        assert word in found[0]
    if CASES[case].at is not None:
        assert line(CASES[case].at) in found[0]


def test_all_problems_are_found_at_once() -> None:
    found = problems(
        lambda: Graph(
            [a, a, one_v, other_v, node(b, after=["aa"]), text, number, left, right, items, to_nowhere],
            name="g",
            output="bb",
        ).bind(xx=1)
    )
    for words in ("two nodes are named 'a'", "two nodes make", "'aa'", "str", "cycle", "*x", "'bb'", "output"):
        assert any(words in problem for problem in found), (words, found)
    assert len(found) >= 8


Colour = Enum("Colour", ["RED"])


@pytest.mark.parametrize(
    ("made", "wanted", "fit"),
    [
        (tuple[int, ...], tuple[str, ...], False),
        (tuple[int, int], tuple[int, ...], True),
        (tuple[int, str], tuple[int, ...], False),
        (tuple[int, str], tuple[int, str], True),
        (tuple[int, str], tuple[str, int], False),
        (tuple[int], tuple[int, int], False),
        (tuple[int, ...], tuple[int, int], True),
        (tuple[int, str], Sequence[str], False),
        (tuple[int, int], Sequence[int], True),
        (tuple[int, int], list[int], False),
        (tuple, tuple[int, ...], True),
        (str, Literal["a", "b"], False),
        (Literal["a"], Literal["a", "b"], True),
        (Literal["a", "c"], Literal["a", "b"], False),
        (bool, Literal[True, False], True),
        (bool, Literal[True], False),
        (Colour, Literal[Colour.RED], True),
        (None, Literal["a"] | None, True),
        (str, Literal["a"] | None, False),
        (list[bool], list[int], True),
        (list[int], Items[int], True),
        (Items[int], Items[str], False),
    ],
)
def test_a_value_fits_a_parameter_as_a_type_checker_sees_it(made: Any, wanted: Any, fit: bool) -> None:
    def gives() -> Any: ...
    def takes(gives: Any) -> Any: ...

    gives.__annotations__, takes.__annotations__ = {"return": made}, {"gives": wanted}
    if fit:
        assert Graph([node(gives), node(takes)], name="g").outputs == ("takes",)
    else:
        with pytest.raises(GraphInvalid, match="'takes' takes gives"):
            Graph([node(gives), node(takes)], name="g")


def _named(name: str) -> object:
    return Graph([node(b, name=name)], name="g")


def test_a_name_with_a_character_of_op_paths_is_refused() -> None:
    for name in ("a/b", "a:b", "a[0]"):
        assert repr(name) in problems(partial(_named, name))[0]


def test_a_signature_that_does_not_fit_is_refused() -> None:
    def sig(y: int) -> None: ...

    def wrong_type(x: str) -> None: ...

    found = problems(lambda: Graph([a], name="g").takes(sig))
    assert any("'x'" in problem for problem in found)
    assert any("'y'" in problem for problem in found)
    assert "str" in problems(lambda: Graph([a], name="g").takes(wrong_type))[0]


def test_fields_of_an_output_that_no_node_makes_are_refused() -> None:
    @dataclass
    class Report:
        a: int
        c: str

    assert "'c'" in problems(lambda: Graph([a, b], name="g", output=Report))[0]


def test_an_unknown_name_in_select_or_with_entrypoint_is_refused() -> None:
    graph = Graph([a, b], name="g")
    assert "did you mean 'b'" in problems(lambda: graph.select("bb"))[0]
    assert "names nothing; there are a, b" in problems(graph.select)[0]
    assert "names nothing; there are a, b" in problems(graph.with_entrypoint)[0]
    assert "did you mean 'b'" in problems(lambda: graph.with_entrypoint("bb"))[0]
    assert "did you mean 'x'" in problems(lambda: graph.rename_inputs(xx="y"))[0]
    assert "did you mean 'b'" in problems(lambda: graph.rename_outputs(bb="y"))[0]


def test_exclusive_producers_and_declared_loops_are_fine() -> None:
    @ifelse(when_true="one_v", when_false="other_v")
    def one_of_them(x: int) -> bool:
        return True

    Graph([one_v, other_v, one_of_them], name="g")
    Graph([a, b, back], name="g", loops=["a"])


def test_typed_dicts_fit_by_their_fields() -> None:
    def takes(one_dict: Part) -> float:
        return one_dict["n"]

    assert Graph([one_dict, node(takes)], name="g").outputs == ("takes",)


def test_an_input_has_the_narrowest_of_its_types() -> None:
    def wide(x: float) -> float:
        return x

    assert Graph([node(wide), a], name="g").inputs.required == {"x": int}


def test_a_node_as_a_source_stands_for_its_value() -> None:
    graph = Graph(
        [one_v, node(b, inputs={"a": one_v}), node(lambda xs: xs, name="j", inputs={"xs": [one_v]})], name="g"
    )
    assert set(graph.inputs.required) == {"x"}
    with pytest.raises(UsageError, match="its values are 'p' and 'q'; name one"):
        node(b, inputs={"a": node(_two, outputs=("p", "q"))})


def _two(x: int) -> tuple[int, int]:
    return x, x


# Calls that a type checker refuses, too.
_node: Any = node
_a: Any = a
_graph: Any = Graph


async def _awaited(value: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: _node(b, inputs={"a": 3}), "inputs={'a': 3} is the name of a value"),
        (lambda: node(b, inputs={"a": ""}), "names no value"),
        (lambda: _node(b, when=_awaited), "when=.* it is not awaited"),
        (lambda: _a.map_over("x", until=_awaited), "until=.* it is not awaited"),
        (lambda: _a.map_over("x", until=3), "until=3 is a plain function"),
        (lambda: a.map_over("x", "x"), "names a parameter twice"),
        (lambda: a.map_over("x").map_over("x"), "is mapped already"),
        (lambda: a.map_over("x", on_error="none", tolerate=float("nan")), "tolerate=nan"),
        (lambda: route(targets=[]), "has nothing to choose from"),
        (lambda: _graph([a], name="g", renamed=["old"]), "gives former nodes their names of now"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


def test_what_has_no_name_is_no_node() -> None:
    for given in (str.upper, partial(_named, "x")):
        with pytest.raises(TypeError, match="a function with a name"):
            node(given)


def test_an_empty_name_is_refused_and_not_taken_for_none() -> None:
    def plain(x: int) -> bool:
        return True

    calls: list[Callable[[], object]] = [
        lambda: node(plain, name=""),
        lambda: node(name="")(plain),
        lambda: node(a, name=""),
        lambda: route(targets=["a"], name="")(plain),
        lambda: ifelse("a", "b", name="")(plain),
        lambda: interrupt(answer=int, name="")(plain),
        lambda: InterruptNode("", "x", int),
        lambda: Graph([a], name="g").as_node(name=""),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="not empty"):
            call()


async def test_a_wrong_name_in_a_rule_or_a_map_is_told_with_the_right_one() -> None:
    assert "did you mean 'x'?" in problems(lambda: Graph([a.map_over("xx")], name="g"))[0]
    with pytest.raises(
        InvalidRule, match=r"Graph g, rule 1: 'fetc' .*the graph 'g' calls no step.*did you mean 'fetch'"
    ):
        async with Engine(
            "memory://", [Graph([node(lambda x: x, name="fetch")], name="g", rules=[rule("fetc", timeout=1)])]
        ):
            pass
