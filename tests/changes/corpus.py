"""The workflows, how their runs go, and the changes that are made to them."""

from __future__ import annotations

from tests.changes.model import Scenario, family

TEA = [{"sku": "tea", "quantity": 2}]
DIGEST = {"topic": "tea", "limit": 3, "readers": ["ann", "bob"]}

FAMILIES = (
    family(
        "order",
        usual=Scenario("fulfil", {"order_id": "o-7", "items": TEA, "cents": 700, "tip": 50}, {"packed": [1]}),
        far=Scenario("fulfil", {"order_id": "far-away", "items": TEA, "cents": 700, "tip": 50}, {"packed": [3]}),
    ),
    family(
        "expense",
        usual=Scenario(
            "expense",
            {"claim": {"person": "ann", "cents": 1500}},
            {"manager": [{"ok": True}], "finance": [{"ok": True}]},
            by="fay",
        ),
        small=Scenario(
            "expense", {"claim": {"person": "bob", "cents": 90}}, {"manager": [{"ok": False, "note": "no"}]}, by="ann"
        ),
    ),
    family("etl", usual=Scenario("etl", {"day": "mon", "table": "facts"})),
    family("agent", usual=Scenario("agent", {"question": "what is it", "tools": 3}, {"write": [True]})),
    family(
        "subscription",
        usual=Scenario("subscribe", {"customer": "ann", "cents": 950, "month": 1, "last": 3}),
        short=Scenario("subscribe", {"customer": "bob", "cents": 950, "month": 4, "last": 4}),
    ),
    family(
        "payment",
        usual=Scenario("transfer", {"payer": "a", "payee": "b", "cents": 100, "urgent": False}),
        urgent=Scenario("transfer", {"payer": "a", "payee": "b", "cents": 100, "urgent": True}),
    ),
    family("travel", usual=Scenario("trip", {"person": "ann", "city": "Rome", "nights": 2})),
    family(
        "delivery",
        usual=Scenario(
            "delivery",
            {"parcel": "p-1", "patience": 3},
            {"signature": ["Ann"], "stars": [5]},
            held=frozenset({"sleep:0/sleep:0"}),
        ),
        late=Scenario("delivery", {"parcel": "p-2", "patience": 3}, {"stars": [4]}),
        silent=Scenario("delivery", {"parcel": "p-3", "patience": 3}, expire=frozenset({"stars:0"})),
    ),
    family("report", usual=Scenario("report", {"topic": "tea", "copies": 2})),
    family("digest", usual=Scenario("digest", DIGEST, scheduled=True), byhand=Scenario("digest", DIGEST)),
    family("film", usual=Scenario("film", {"title": "Tea", "cinema": "rex"})),
    family(
        "account",
        usual=Scenario(
            "account",
            {"customer": {"name": "ann", "address": {"street": "Elm"}, "tier": "gold"}, "rounds": 2},
            {"input": [{"cents": 5}, {"cents": 7, "text": "more"}], "close": [{"cents": 1}]},
        ),
    ),
    family(
        "wedding", usual=Scenario("wedding", {"couple": "a&b", "day": "may", "guests": 9}, {"tasted": [1], "yes": [1]})
    ),
    family("mill", usual=Scenario("mill", {"farm": "elm", "stones": 2})),
    family(
        "ward",
        usual=Scenario("ward", {"patient": {"name": "ann", "bed": 4}, "rounds": 2}, {"drug": ["salt"]}),
        silent=Scenario(
            "ward", {"patient": {"name": "bob", "bed": 1}, "rounds": 2}, expire=frozenset({"drug:0", "drug:1"})
        ),
    ),
    family("novel", usual=Scenario("novel", {"title": "tea", "chapters": 2})),
    family(
        "relay",
        usual=Scenario("relay", {"team": ["ann", "bob"]}, {"decided": ["fair"]}, held=frozenset({"sleep:0/sleep:0"})),
    ),
    family("gazette", usual=Scenario("gazette", {"topic": "tea"}, {"approved": [True]})),
)
