"""A stored value that a changed type would read as another one is found; changes that keep its meaning are not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest

from perdure.kernel.values.codec import Codec
from perdure.kernel.values.type_table import TableMaker, TypeTable, changed_meaning, changed_uses, decode_table

HEADER = """
import dataclasses, datetime, decimal, enum, typing, uuid
from enum import Enum, IntEnum, IntFlag, StrEnum, auto
import msgspec, pydantic
from dataclasses import dataclass
from msgspec import Struct, field
from typing import Any, NamedTuple, Optional, TypedDict, NotRequired
"""
BILL = "class T(NamedTuple):\n    cents: int\n    tip: int = 0\n"
TIER = "class T(Enum):\n    FREE = auto()\n    GOLD = auto()\n"
ORDER = "class T(Struct, omit_defaults=True):\n    cents: int\n    currency: str = 'EUR'\n"
ROW = "class T(Struct, array_like=True):\n    cents: int\n    tip: int = 0\n"
CARD, CASH = (f"class {name}(Struct, tag='{{}}'):\n    n: int = 0\n" for name in ("Card", "Cash"))
CARDS = f"{CARD.format('card')}{CASH.format('cash')}T = Card | Cash\n"
CHANGED = {
    "fields of a NamedTuple in another order": (
        BILL,
        "T(700, 50)",
        "class T(NamedTuple):\n    tip: int\n    cents: int = 0\n",
        "`cents` was number 1 and is number 2",
    ),
    "a field inserted": (
        BILL,
        "T(700, 50)",
        "class T(NamedTuple):\n    cents: int\n    fee: int = 9\n    tip: int = 0\n",
        "`tip` was number 2 and is number 3",
    ),
    "a field removed and one inserted": (
        BILL,
        "T(700, 50)",
        "class T(NamedTuple):\n    fee: int\n    amount: int = 0\n    more: int = 0\n",
        "number 1 was `cents` and is `fee`",
    ),
    "fields of an array-like Struct": (
        ROW,
        "T(700, 50)",
        "class T(Struct, array_like=True):\n    tip: int\n    cents: int = 0\n",
        "`cents` was number 1",
    ),
    "a field of a tagged array-like Struct": (
        ROW.replace("True)", "True, tag='t')"),
        "T(700, 50)",
        "class T(Struct, array_like=True, tag='t'):\n    cents: int\n    fee: int = 0\n    tip: int = 0\n",
        "`tip` was number 2",
    ),
    "a member of an Enum inserted": (
        TIER,
        "T.GOLD",
        "class T(Enum):\n    FREE = auto()\n    SILVER = auto()\n    GOLD = auto()\n",
        "the stored 2 was T.GOLD, and is T.SILVER",
    ),
    "members of an IntEnum exchanged": (
        "class T(IntEnum):\n    A = 1\n    B = 2\n",
        "T.A",
        "class T(IntEnum):\n    B = 1\n    A = 2\n",
        "the stored 1 was T.A, and is T.B",
    ),
    "values of a StrEnum exchanged": (
        "class T(StrEnum):\n    A = 'a'\n    B = 'b'\n",
        "T.A",
        "class T(StrEnum):\n    A = 'b'\n    B = 'a'\n",
        "was T.A, and is T.B",
    ),
    "a member removed before others": (
        "class T(Enum):\n    A = auto()\n    B = auto()\n    C = auto()\n",
        "T.B",
        "class T(Enum):\n    A = auto()\n    C = auto()\n",
        "was T.B, and is T.C",
    ),
    "an Enum in a list in a dataclass": (
        f"{TIER}E = T\n@dataclass\nclass T:\n    tiers: list[E]\n",
        "T([E.FREE, E.GOLD])",
        "class E(Enum):\n    GOLD = auto()\n    FREE = auto()\n@dataclass\nclass T:\n    tiers: list[E]\n",
        "was E.FREE, and is E.GOLD",
    ),
    "an Enum as a key": (
        f"{TIER}E = T\nT = dict[E, int]\n",
        "{E.GOLD: 1}",
        "class E(Enum):\n    GOLD = auto()\n    FREE = auto()\nT = dict[E, int]\n",
        "was E.GOLD",
    ),
    "an Enum in a pydantic model": (
        f"{TIER}E = T\nclass T(pydantic.BaseModel):\n    tier: E\n",
        "T(tier=E.GOLD)",
        "class E(Enum):\n    GOLD = auto()\n    FREE = auto()\nclass T(pydantic.BaseModel):\n    tier: E\n",
        "was E.GOLD",
    ),
    "an Enum in a union with None": (
        f"{TIER}E = T\nT = Optional[E]\n",
        "E.GOLD",
        "class E(Enum):\n    GOLD = auto()\n    FREE = auto()\nT = Optional[E]\n",
        "was E.GOLD",
    ),
    "another default of a Struct that omits it": (
        ORDER,
        "T(5)",
        ORDER.replace("EUR", "USD"),
        'which was "EUR" and is "USD"',
    ),
    "another default, deep inside": (
        f"{ORDER}O = T\nclass T(TypedDict):\n    orders: tuple[O, int]\n",
        "{'orders': (O(5), 1)}",
        ORDER.replace("EUR", "USD") + "O = T\nclass T(TypedDict):\n    orders: tuple[O, int]\n",
        "$.orders[0]",
    ),
    "a list as a set": ("T = list[int]\n", "[5, 5, 7]", "T = set[int]\n", "order"),
    "a text as bytes": ("T = str\n", "'abcd'", "T = bytes\n", "stored as str"),
    "bytes as a text": ("T = bytes\n", "b'abc'", "T = str\n", "stored as bytes"),
    "a text in a field as bytes": (
        "@dataclass\nclass T:\n    key: str\n",
        "T('abcd')",
        "@dataclass\nclass T:\n    key: bytes\n",
        "$.key",
    ),
    "tags exchanged": (
        CARDS,
        "Card(1)",
        f"{CARD.format('cash')}{CASH.format('card')}T = Card | Cash\n",
        "the tag 'card' stood for Card",
    ),
    "names in storage exchanged": (
        "class T(Struct):\n    a: int = field(name='x')\n    b: int = field(name='y')\n",
        "T(1, 2)",
        "class T(Struct):\n    a: int = field(name='y')\n    b: int = field(name='x')\n",
        "was its field `b`",
    ),
    "a recursive type": (
        "class T(Struct):\n    tier: int = 0\n    below: Optional['T'] = None\n    by: tuple[str, ...] = ()\n",
        "T(1, T(2, None, ('a', 'b')))",
        "class T(Struct):\n    tier: int = 0\n    below: Optional['T'] = None\n    by: set[str] = set()\n",
        "$.below.by",
    ),
}
SAME = {
    "a field added last": (BILL, "T(700, 50)", BILL + "    fee: int = 0\n"),
    "a field renamed at its place": (BILL, "T(700, 50)", BILL.replace("cents", "amount")),
    "the type renamed": (BILL, "T(700, 50)", BILL.replace("class T", "class U") + "T = U\n"),
    "a NamedTuple as a tuple": (BILL, "T(700, 50)", "T = tuple[int, int]\n"),
    "a field of an array-like Struct removed": (ROW, "T(7, 5)", ROW.replace("    tip: int = 0\n", "")),
    "a member added last": (TIER, "T.GOLD", TIER + "    SILVER = auto()\n"),
    "a member inserted after what is stored": (
        TIER,
        "T.FREE",
        "class T(Enum):\n    FREE = auto()\n    SILVER = auto()\n    GOLD = auto()\n",
    ),
    "a member renamed": (TIER, "T.GOLD", TIER.replace("GOLD", "GILT")),
    "a member with an alias": (TIER, "T.GOLD", TIER + "    GILT = 2\n"),
    "members of texts in another order": (
        "class T(Enum):\n    A = 'a'\n    B = 'b'\n",
        "T.A",
        "class T(Enum):\n    B = 'b'\n    C = 'c'\n    A = 'a'\n",
    ),
    "a member of a text renamed among new ones": (
        "class T(StrEnum):\n    A = 'a'\n",
        "T.A",
        "class T(StrEnum):\n    FIRST = 'a'\n    OTHER = 'o'\n",
    ),
    "an Enum as its value": (TIER, "T.GOLD", "T = int\n"),
    "a default that is stored": (ORDER.replace(", omit_defaults=True", ""), "T(5)", ORDER.replace("EUR", "USD")),
    "another default, and the value is stored": (ORDER, "T(5, 'CHF')", ORDER.replace("EUR", "USD")),
    "another default of a dataclass": (
        "@dataclass\nclass T:\n    cents: int = 5\n",
        "T()",
        "@dataclass\nclass T:\n    cents: int = 6\n",
    ),
    "fields of a dataclass in another order": (
        "@dataclass\nclass T:\n    a: int = 1\n    b: int = 2\n",
        "T()",
        "@dataclass\nclass T:\n    b: int = 2\n    a: int = 1\n",
    ),
    "a set as a list": ("T = set[int]\n", "{5}", "T = list[int]\n"),
    "one item as a set": ("T = list[int]\n", "[5]", "T = set[int]\n"),
    "None of an Enum": (f"{TIER}E = T\nT = Optional[E]\n", "None", "class E(Enum):\n    GOLD = 1\nT = Optional[E]\n"),
    "an int as a float": ("T = int\n", "5", "T = float\n"),
    "a date as a text": ("T = datetime.date\n", "datetime.date(2026, 1, 1)", "T = str\n"),
    "a text and bytes": ("T = str\n", "'abcd'", "T = str | int\n"),
    "a list without a type": ("T = list[int]\n", "[5, 5]", "T = Any\n"),
    "a text of a model as bytes": (
        "class T(pydantic.BaseModel):\n    key: str\n",
        "T(key='abcd')",
        "class T(pydantic.BaseModel):\n    key: bytes\n",
    ),
    "a class added to a union": (
        CARDS,
        "Card(1)",
        CARDS + "class Bank(Struct, tag='bank'):\n    n: int = 0\nT = T | Bank\n",
    ),
    "a dataclass as a TypedDict": (
        "@dataclass\nclass T:\n    a: int = 1\n",
        "T()",
        "class T(TypedDict):\n    a: int\n    b: NotRequired[int]\n",
    ),
}


def table(text: str) -> tuple[TypeTable, dict[str, Any]]:
    module = sys.modules["shop"] = ModuleType("shop")
    names = vars(module)
    exec(HEADER + text, names)  # noqa: S102
    made = TableMaker()
    made.add("step a", names["T"])
    return decode_table(made.table().encode()), names


def found(old: str, value: str, new: str, *opaque: str) -> str:
    (before, names), (after, now) = table(old), table(new)
    codec = Codec()
    stored = codec.encode(eval(value, names), "a value")  # noqa: S307
    codec.decode(stored, now["T"], "a value")  # nothing else notices
    changed = changed_meaning("step a", msgspec.json.decode(stored), before, after, opaque)
    if changed is not None:
        assert changed_uses(before, after) == {"step a"}
        assert changed.fix
    return "" if changed is None else f"{changed.reason} {changed.path}"


@pytest.fixture(autouse=True)
def _shop() -> Iterator[None]:
    yield
    sys.modules.pop("shop", None)


@pytest.mark.parametrize("name", CHANGED)
def test_a_value_that_would_be_another_one_is_found(name: str) -> None:
    *change, reason = CHANGED[name]
    assert reason in found(*change)


@pytest.mark.parametrize("name", SAME)
def test_a_value_that_stays_the_same_is_not(name: str) -> None:
    assert found(*SAME[name]) == ""


@pytest.mark.parametrize("name", CHANGED)
def test_the_same_types_are_the_same_table(name: str) -> None:
    old = CHANGED[name][0]
    assert changed_uses(table(old)[0], table(old)[0]) == frozenset()


def test_a_class_that_a_codec_stores_is_left_to_it() -> None:
    old, value, new, _ = CHANGED["fields of a NamedTuple in another order"]
    assert found(old, value, new)
    assert not found(old, value, new, "shop.T")


def test_a_type_with_a_migration_is_left_to_it() -> None:
    migration = "@migrates(T, from_='1')\ndef up(old):\n    return {'currency': 'EUR', **old}\n"
    new = f"from perdure import migrates\n{ORDER.replace('EUR', 'USD')}\n{migration}"
    assert not found(ORDER, "T(5)", new)


def test_a_use_of_two_types_has_none() -> None:
    made = TableMaker()
    made.add("step a", int)
    made.add("step a", str)
    made.add("step b", int)
    assert set(made.table().uses) == {"step b"}
