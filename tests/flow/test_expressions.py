"""Expressions are strict, bounded, and refer to nothing but what they are given."""

from __future__ import annotations

import random
from typing import Any

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
