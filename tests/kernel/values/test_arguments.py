"""The arguments of calls: recorded by name, compared by name, and bound by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from perdure import Step, step
from perdure.kernel.commands import RunStep
from perdure.kernel.values.arguments import call_names, changes, rebound, recorded_call, same_call
from perdure.kernel.values.codec import Codec


@step
async def plain(order: str, items: list[str] | None = None, *, gift: bool = False) -> None: ...


@step
async def every(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> None: ...


def called(what: Step[..., Any], *args: Any, **kwargs: Any) -> RunStep:
    inputs = Codec().encode_inputs((*args, *kwargs.values()), "it")
    record = recorded_call(call_names(what.spec.types, len(args), kwargs), inputs)
    return RunStep(f"{what.name}:0", what.spec, inputs, record, len(args), tuple(kwargs))


@pytest.mark.parametrize(
    ("command", "record"),
    [
        (called(plain, "o-1"), 'order["o-1"]'),
        (called(plain, "o-1", gift=True), 'order,gift["o-1",true]'),
        (called(plain, "x" * 31, ["a"]), 'order#,items[["a"]]'),
        (called(every, 1, 2, 3, 4, c=5, d=6), "a,b,*rest,c,d[1,2,[3,4],5,6]"),
        (called(every, *range(100)), "a,b,*rest#[0,1]"),
        (called(every, 1, **{f"name{n}": n for n in range(500)}), "arguments#[]"),
        (called(every, 1, **{"not a name": 7}), "a,?[1,7]"),
    ],
)
def test_a_record_names_what_was_given(command: RunStep, record: str) -> None:
    names, values = record.split("[", 1)
    found, known = command.inputs_hash.split("[", 1)
    assert known == values
    assert [one.partition("#")[0][: 1 if one.startswith("?") else None] for one in found.split(",")] == [
        one.partition("#")[0] for one in names.split(",")
    ]
    assert len(command.inputs_hash) < 1100


SAME: list[tuple[RunStep, RunStep]] = [
    (called(plain, "o-1"), called(plain, order="o-1", items=None, gift=False)),
    (called(plain, "x" * 99, ["a" * 99]), called(plain, items=["a" * 99], order="x" * 99)),
    (called(every, 1, 2, 3, 4), called(every, 1, 2, 3, 4, c=3)),
    (called(every, 1, e=5, d=4), called(every, 1, d=4, e=5)),
    (
        called(every, 1, **{f"name{n}": n for n in range(500)}),
        called(every, 1, **{f"name{n}": n for n in reversed(range(500))}),
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_calls_are_compared_by_name(one: RunStep, other: RunStep) -> None:
    assert same_call(one.inputs_hash, other)
    assert same_call(other.inputs_hash, one)
    assert changes(one.inputs_hash, other) == []


OTHER: list[tuple[RunStep, RunStep, list[str]]] = [
    (called(plain, "o-1"), called(plain, "o-2"), ['order: was "o-1", now "o-2"']),
    (called(plain, "o", ["u1"]), called(plain, "o", ["u1", "u2"]), ['items: was ["u1"], now ["u1", "u2"]']),
    (called(plain, "o"), called(plain, "o", gift=True), ["gift: was not given, now true"]),
    (called(every, 1, 2, 3, 4), called(every, 1, 2, 3), ["rest: was [3, 4], now [3]"]),
    (called(plain, "x" * 99), called(plain, "o"), ['order: was another value, too long for the journal, now "o"']),
    (called(plain, "~/a]b"), called(plain, "~/a]c"), ['order: was "~/a]b", now "~/a]c"']),
]


@pytest.mark.parametrize(("one", "other", "told"), OTHER)
def test_what_differs_is_told(one: RunStep, other: RunStep, told: list[str]) -> None:
    assert not same_call(one.inputs_hash, other)
    assert [str(change) for change in changes(one.inputs_hash, other)] == told


def moved(items: Any, order: Any = 1, *rest: Any, gift: Any = 0) -> Any:
    return items, order, rest, gift


def only_positions(x: Any, order: Any, /) -> Any: ...


def only_keywords(*, items: Any = 9, order: Any) -> Any:
    return items, order


REBOUND: list[tuple[Callable[..., Any], list[str], list[str], bytes, Any]] = [
    (moved, ["order", "items"], [], b"[7,8]", (8, 7, (), 0)),
    (moved, ["items"], ["gift"], b"[8,5]", (8, 1, (), 5)),
    (moved, ["items", "*rest", "*rest"], [], b"[8,5,6]", (8, 1, (5, 6), 0)),
    (only_keywords, ["order"], [], b"[7]", (9, 7)),
    (only_positions, ["order"], [], b"[7]", TypeError),
    (only_keywords, ["order", "gone"], [], b"[7,8]", TypeError),
]


@pytest.mark.parametrize(("fn", "names", "keywords", "inputs", "expected"), REBOUND)
def test_a_call_of_other_code_is_bound_by_name(
    fn: Callable[..., Any], names: list[str], keywords: list[str], inputs: bytes, expected: Any
) -> None:
    spec = step(fn).spec
    if expected is TypeError:
        with pytest.raises(TypeError, match=r"in the stored input|which the stored input holds"):
            rebound(spec, names, keywords, inputs)
        return
    data, positional, by_keyword = rebound(spec, names, keywords, inputs)
    values = Codec().decode(data, list[Any], "it")
    assert fn(*values[:positional], **dict(zip(by_keyword, values[positional:], strict=True))) == expected


@dataclass
class Line:
    sku: str
    quantity: int
    note: str = ""


class Basket(msgspec.Struct):
    lines: list[Line]
    owner: dict[str, int]


@step
async def reserve(basket: Basket, line: Line | None = None) -> None: ...


@pytest.mark.parametrize("long", ["", "a text that is longer than what a record shows"])
def test_fields_in_another_order_are_the_same_call(long: str) -> None:
    command = called(reserve, Basket([Line("tea", 2, long)], {"a": 1}), Line("x", 1))
    stored = {"owner": {"a": 1}, "lines": [{"quantity": 2, "note": long, "sku": "tea"}]}
    line = {"quantity": 1, "note": "", "sku": "x"}
    record = recorded_call(("basket", "line"), msgspec.json.encode([stored, line]))
    assert same_call(record, command)
    stored["lines"] = [{"quantity": 3, "note": long, "sku": "tea"}]
    record = recorded_call(("basket", "line"), msgspec.json.encode([stored, line]))
    assert not same_call(record, command)


@pytest.mark.parametrize(
    ("was", "now", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}], True),
        ({"a": 1, "b": 2}, {"b": 1, "a": 2}, False),
        ({"a": True}, {"a": 1}, False),
        ([1, 2], [2, 1], False),
        ({"a": 1}, {"a": 1.0}, False),
    ],
)
def test_the_order_of_keys_does_not_matter_and_values_do(was: Any, now: Any, same: bool) -> None:
    assert same_call(called(anything, was).inputs_hash, called(anything, now)) is same


@step
async def anything(what: Any) -> None: ...
