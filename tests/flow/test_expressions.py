"""Expressions are strict, bounded, and refer to nothing but what they are given."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from perdure.authoring.flow.expressions import UNSET, Expression, Failed, Unset, Wrong, encode, find_end


def value(text: str, *values: Any) -> Any:
    expression = Expression(text)
    assert len(expression.references) == len(values), expression.references
    return expression.evaluate(values)


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("steps.a.b + 1", [2], 3),
        ("steps.t | sum > 1000", [[999, 2]], True),
        ("steps.big.approved | default(false)", [UNSET], False),
        ("steps['a']['b c'][0].d", [5], 5),
        ("input.x ~ '-' ~ input.y", ["a", 3], "a-3"),
        ("item.t * 10", [7], 70),
        ("(item.t + 1) * item.n", [7, 2], 16),
        ("steps.t | map(attribute='q') | join(', ')", [[{"q": 1}, {"q": "b"}]], "1, b"),
        ("'x' if input.n is not defined else input.n", [UNSET, UNSET], "x"),
        ("{'a': {'b': input.x}}", [1], {"a": {"b": 1}}),
        ("input.d | add_days(1)", ["2026-11-30"], "2026-12-01"),
        ("input.d | date('%d.%m.%Y')", ["2026-11-30"], "30.11.2026"),
        ("input.d | from_json", ['{"a": 1}'], {"a": 1}),
        ("input.d | tojson", [{"a": "<"}], '{"a":"<"}'),
        ("input.d | hash", ["a"], "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
        ("range(3) | list", [], [0, 1, 2]),
        ("not true or none is none", [], True),
    ],
)
def test_values(text: str, values: list[Any], expected: Any) -> None:
    found = value(text, *values)
    assert found == expected
    assert type(found) is type(expected)


def test_references_are_found_with_their_places() -> None:
    found = Expression(
        "  steps.a['b'].c + input.x | default(steps.d) + range(2) | map(attribute='x') | first"
    ).references
    assert [(one.root, one.path, one.at) for one in found] == [
        ("steps", ("a", "b", "c"), 2),
        ("input", ("x",), 19),
        ("steps", ("d",), 37),
    ]


@pytest.mark.parametrize(
    "text", ["steps.a", "steps.a > 3", "steps.a + 1", "steps.a | length", "'a' ~ (steps.a or 'b')"]
)
def test_what_has_no_value_is_no_value_of_an_expression(text: str) -> None:
    with pytest.raises((Unset, Failed)):
        value(text, UNSET)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("1 +", "F010"),
        ("", "F010"),
        ("a ? b", "F010"),
        ("a }} {{ b", "F010"),
        ("x | shuffle", "F015"),
        ("x | batch(1000000000)", "F015"),
        ("open('x')", "F015"),
        ("x.upper()", "F015"),
        ("debug()", "F015"),
        ("x" * 5000, "F010"),
    ],
)
def test_what_is_no_expression_is_refused_before_it_is_evaluated(text: str, code: str) -> None:
    with pytest.raises(Wrong) as caught:
        Expression(text)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "text",
    [
        "[1] * 100000000",
        "([1] * 100000000) | sum",
        "[[1] * 100000000]",
        "100000000 * [1]",
        "'a' * 100000000",
        "(1, 2) * (10 ** 9)",
        "[[0] | first, 1] * 99999999",
        "range(99999999)",
        "'x'" + "| replace('x', 'xxxxxxxxxxxxxxxxxxxx')" * 50,
        "'xx'" + "| list | join('xxxxxxxxxxxxxxxxxxxx')" * 50,
        "2 ** 100000",
        "1 / 0",
        "1e999",
        "range | first",
        "[1] | join({'a': 1})",
        "[1] | replace('a', 'b')",
    ],
)
def test_an_expression_makes_nothing_large_of_something_small(text: str) -> None:
    expression = Expression(text)
    with pytest.raises((Failed, Unset)):
        encode(expression.evaluate([UNSET] * len(expression.references)))


@pytest.mark.parametrize(
    "text",
    [
        "steps.a | tojson",
        "steps.a | hash",
        "steps.a | urlencode",
        "steps.a | join(',')",
        "steps.a | first",
        "steps.a | date",
        "steps.a | split(',')",
        "steps.a | map(attribute='x') | list",
        "[steps.a]",
        "{'k': steps.a}",
        "['x', steps.a] | join",
        "'x' | replace('x', steps.a)",
        "(steps.a) | tojson",
        "steps.a is none",
        "steps.b | default(steps.a)",
        "steps.b | default((steps.a))",
    ],
)
def test_what_is_not_there_is_missed_wherever_it_stands(text: str) -> None:
    """Whoever refers to a skipped step is skipped; no filter makes a value, or a failure, of it."""
    expression = Expression(text)
    with pytest.raises(Unset):
        expression.evaluate([UNSET] * len(expression.references))


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("steps.a | default([]) | join(',')", [UNSET], ""),
        ("(steps.a) | d('x')", [UNSET], "x"),
        ("((steps.a)) | default('x') | tojson", [UNSET], '"x"'),
        ("steps.a | default(steps.b)", ["a", UNSET], "a"),
        ("steps.a | default(steps.b)", [UNSET, "b"], "b"),
        ("steps.a | default(steps.b | default(steps.c))", [UNSET, UNSET, "c"], "c"),
        ("[steps.a | default(1), steps.b]", [UNSET, 2], [1, 2]),
        ("steps.a is defined and steps.a > 1", [UNSET, UNSET], False),
        ("steps.a is not defined", [UNSET], True),
        ("steps.a is undefined or steps.b", [UNSET, UNSET], True),
        ("(steps.a | tojson) if input.n else 'no'", [UNSET, False], "no"),
        ("input.x ~ input.x ~ input.y", ["a", "a", "b"], "aab"),
    ],
)
def test_what_is_not_there_is_not_missed_where_it_is_not_needed(text: str, values: list[Any], expected: Any) -> None:
    assert value(text, *values) == expected


LONG, LIST = "x" * 1_000_000, list(range(100_000))


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (" ~ ".join(["input.x"] * 400), LONG),
        (" ~ ".join(["input.x"] * 400), "x" * 2000),
        (" + ".join(["input.x"] * 400), LIST),
        ("[" + ", ".join(["input.x"] * 400) + "] | length", LONG),
        ("input.x | select('in', input.x) | list", LIST),
        ("input.x | map('default', input.x, true) | list", LIST),
        ("input.x | map('in', input.x) | list", {"a": LIST}),
        ("input.x | split('') | reject('in', input.x | split('')) | list", "x" * 10_000),
        ("input.x | select('startingwith', input.x) | list", ["x" * 10_000] * 500),
        ("'x'" + " | tojson" * 200, None),
        ("range(1000)" + " | map('tojson')" * 40 + " | list", None),
        ("'x' | urlencode" + " | replace('x', 'xxxxxxxxxxxxxxxxxxxxxxx')" * 30, None),
        ("[" * 18 + "'x'" + " ~ '']" * 18, None),
        ("[" * 18 + "'x'" + " | string]" * 18, None),
    ],
)
def test_an_expression_makes_nothing_large_of_something_large(text: str, given: Any) -> None:
    """What has no bound does not end here."""
    expression = Expression(text)
    values = [given] * len(expression.references)
    with pytest.raises(Failed):
        expression.check_sizes([len(msgspec.json.encode(one)) for one in values])
        encode(expression.evaluate(values))


def test_what_stands_in_for_each_item_is_a_value_as_it_is() -> None:
    assert value("input.x | map(attribute='k', default=input.n) | list", [{"k": 1}, {}], 7) == [1, 7]
    with pytest.raises(Wrong):
        Expression("range(1000) | map('default', range(1000) | join('xxxxxxxx')) | list")


def test_many_values_are_unique_in_no_time() -> None:
    found = value("input.x | unique | length", [[n] for n in range(30_000)] * 2)
    assert found == 30_000
    assert value("input.x | unique", ["a", "A", 1, 1.0, True, None, {"k": 1}, {"k": 1}]) == [
        "a",
        1,
        True,
        None,
        {"k": 1},
    ]
    assert value("input.x | unique(attribute='k.0')", [{"k": [1]}, {"k": [1, 2]}, {}]) == [{"k": [1]}, {}]


def test_attributes_of_python_are_out_of_reach() -> None:
    for text in ("input.__class__", "input | map(attribute='__class__') | list", "input['__init__']['__globals__']"):
        expression = Expression(text)
        try:
            found = expression.evaluate([[1]] if "map" in text else [UNSET])
        except (Unset, Failed):
            continue
        assert found in ([None], None)


def test_random_expressions_raise_nothing_but_our_errors() -> None:
    draw = random.Random(7)
    pieces = [
        *"()[]{}|.,:+-*/%~<>='\" ",
        "**",
        "//",
        "==",
        "and",
        "or",
        "not",
        "in",
        "is",
        "if",
        "else",
        "true",
        "none",
    ]
    pieces += [
        "steps.a",
        "input",
        "item[0]",
        "'x'",
        "3",
        "2.5",
        "| sum",
        "| default(1)",
        "is defined",
        "range(9)",
        "é",
        "\n",
    ]
    for _ in range(1500):
        text = "".join(draw.choice(pieces) + draw.choice(["", " "]) for _ in range(draw.randint(1, 12)))
        find_end(text + "}}", 0)
        try:
            expression = Expression(text)
            values = [draw.choice([UNSET, None, 3, "x", [1, 2], {"a": 1}]) for _ in expression.references]
            encode(expression.evaluate(values))
        except (Wrong, Unset, Failed):
            pass
