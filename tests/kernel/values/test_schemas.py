"""Whether one schema takes everything that another takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from perdure.kernel.values.codec import Codec
from perdure.kernel.values.schemas import covers


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Tone(Enum):
    RED = "red"


@dataclass
class Order:
    n: int


@dataclass
class Noted:
    n: int
    note: str = ""


@dataclass
class Renamed:
    count: int = 0


@dataclass
class Required:
    n: int
    price: int


@dataclass
class Empty:
    pass


@dataclass
class Tree:
    n: int
    children: list[Tree] = field(default_factory=list)


@dataclass
class Wood:
    n: int
    children: list[Wood] = field(default_factory=list)
    age: int = 0


WIDER: list[tuple[Any, Any]] = [
    (int, float),
    (int, int | str),
    (int, int | None),
    (Order, Noted),
    (Noted, Order),
    (Order, Empty),
    (list[Order], list[Noted]),
    (dict[str, int], dict[str, float]),
    (Literal["red"], Colour),
    (Tone, Colour),
    (Colour, str),
    (Annotated[int, Meta(ge=3)], Annotated[int, Meta(ge=0)]),
    (Annotated[str, Meta(max_length=3)], str),
    (Tree, Wood),
    (str, Decimal),
    (int, Any),
    (tuple[int, str], tuple[float, str]),
]


def schema(type: Any) -> Any:
    return msgspec.json.decode(Codec().schema(type, described=True))


@pytest.mark.parametrize(("old", "new"), WIDER, ids=lambda one: str(one))
def test_a_wider_type_covers_a_narrower_one_and_itself(old: Any, new: Any) -> None:
    assert covers(schema(new), schema(old))
    assert covers(schema(old), schema(old))
    assert covers(schema(new), schema(new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (int, str),
        (int | None, int),
        (float, int),
        (Order, Required),
        (Order, Renamed),
        (list[Order], list[Required]),
        (dict[str, int], dict[str, str]),
        (Colour, Tone),
        (str, Colour),
        (Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=3)]),
        (str, Annotated[str, Meta(max_length=3)]),
        (tuple[int, str], tuple[str, str]),
    ],
    ids=lambda one: str(one),
)
def test_a_type_that_takes_less_does_not_cover(old: Any, new: Any) -> None:
    assert not covers(schema(new), schema(old))


@pytest.mark.parametrize("type", [int, Order, Noted, Tree, Colour, list[Order], int | None, Decimal], ids=str)
def test_a_schema_of_msgspec_which_older_journals_hold_is_covered_by_that_of_the_same_type(type: Any) -> None:
    assert covers(schema(type), msgspec.json.schema(type))
