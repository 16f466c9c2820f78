"""A field that is renamed and has a default: the stored value is not lost to the default without a word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from perdure import (
    Engine,
    RunStatus,
    Workflow,
    approval,
    call,
    continue_as,
    migrates,
    step,
    versioned,
    wait_signal,
    workflow,
)
from perdure.client.client import Client
from perdure.client.upgrade import upgrade_check
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.policies.versions import Programs
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, Recorded, eventually, left_by_a_crash

called: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    called.clear()


@step
async def pay(cents: int) -> int:
    called.append(cents)
    return cents


@dataclass
class Old:
    id: str
    cents: int = 5


@dataclass
class Renamed:
    id: str
    amount: int = 5

    @property
    def cents(self) -> int:
        return self.amount


@dataclass
class Added:
    id: str
    cents: int = 5
    tip: int = 0


@dataclass
class Removed:
    cents: int = 5


class OldStruct(msgspec.Struct):
    id: str
    cents: int = 5


class RenamedStruct(msgspec.Struct):
    id: str
    amount: int = 5


class OldDict(TypedDict):
    id: str
    cents: NotRequired[int]


class RenamedDict(TypedDict):
    id: str
    amount: NotRequired[int]


@versioned("2")
@dataclass
class OldVersioned:
    id: str
    cents: int


@versioned("2")
@dataclass
class RenamedVersioned:
    id: str
    amount: int = 5

    @property
    def cents(self) -> int:
        return self.amount


class OldModel(pydantic.BaseModel):
    id: str
    cents: int = 5


class RenamedModel(pydantic.BaseModel):
    id: str
    amount: int = 5


def value_of(order: Any) -> Any:
    if isinstance(order, dict):
        return order.get("cents", order.get("amount", 5))
    return order.cents if hasattr(order, "cents") else order.amount


# --- where a value comes from ---------------------------------------------------------------------------------------


def as_input(kind: Any) -> Workflow[..., Any]:
    async def flow(order: Any) -> int:
        await wait_signal("go")
        return await pay(value_of(order))

    flow.__annotations__["order"] = kind
    return workflow(name="flow")(flow)


def as_result(kind: Any) -> Workflow[..., Any]:
    async def fetch(order: Any) -> Any:
        return order

    fetch.__annotations__["return"] = kind
    fetched = step(fetch)

    @workflow(name="flow")
    async def flow(order: Any) -> int:
        order = await fetched(order)
        await wait_signal("go")
        return await pay(value_of(order))

    return flow


def as_signal(kind: Any) -> Workflow[..., Any]:
    @workflow(name="flow")
    async def flow(order: Any) -> int:
        order = await wait_signal("order", type=kind)
        await wait_signal("go")
        return await pay(value_of(order))

    return flow


def as_answer(kind: Any) -> Workflow[..., Any]:
    @workflow(name="flow")
    async def flow(order: Any) -> int:
        order = await approval("order", schema=kind)
        await wait_signal("go")
        return await pay(value_of(order))

    return flow


def as_child(kind: Any) -> Workflow[..., Any]:
    async def inner(order: Any) -> Any:
        return order

    inner.__annotations__["return"] = kind
    child = workflow(name="inner")(inner)

    @workflow(name="flow")
    async def flow(order: Any) -> int:
        order = await child(order)
        await wait_signal("go")
        return await pay(value_of(order))

    CHILDREN[flow] = [child]
    return flow


CHILDREN: dict[Any, list[Any]] = {}
WAYS = [as_input, as_result, as_signal, as_answer, as_child]


def programs_of(program: Workflow[..., Any]) -> list[Any]:
    return [program, *CHILDREN.get(program, ())]


async def left(program: Workflow[..., Any], order: Any) -> tuple[MemoryStore, str]:
    """A run that waits for "go", left by a crash."""
    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, programs_of(program), name="w", recovery=AT_ONCE, on_commit=recorded) as engine:
        handle = await engine.start(program(order), id="it")
        view = await engine.get("it")
        assert view is not None
        if view.waits and view.waits[0].name == "order":
            send = engine.approve if view.waits[0].kind == "approval" else engine.signal
            await send("it", "order", order)
        await recorded.until(lambda e: getattr(e, "name", "") == "go" and type(e).__name__ == "WaitOpened")
        return left_by_a_crash(store), handle.run_id


async def verdict(store: MemoryStore, program: Workflow[..., Any]) -> tuple[Fit, str]:
    async with Client(store) as client:
        [found] = [one async for one in upgrade_check(client, Programs(programs_of(program)))]
    return found.fit, found.reason


async def parks(store: MemoryStore, run_id: str, program: Workflow[..., Any]) -> str:
    """The reason with which a run is parked, which upgrade-check gives beforehand."""
    fit, reason = await verdict(store, program)
    assert fit is Fit.BREAKS, reason
    called.clear()
    async with Engine(store, programs_of(program), name="w", recovery=AT_ONCE) as engine:
        await engine.signal("it", "go")
        await eventually(lambda: store.journal.rows[run_id].status is RunStatus.PARKED)
        view = await engine.get("it")
    assert view is not None
    assert (view.parked, view.reason) == ("undecodable", reason)
    assert view.divergence is not None
    assert view.divergence.change == "renamed"
    assert called == []
    return reason


async def goes_on(store: MemoryStore, program: Workflow[..., Any]) -> Any:
    assert await verdict(store, program) == (Fit.SAFE, "")
    async with Engine(store, programs_of(program), name="w", recovery=AT_ONCE) as engine:
        await engine.signal("it", "go")
        return await engine.handle("it").result(PATIENCE)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_field_renamed_with_a_default_parks_the_run(way: Callable[[Any], Workflow[..., Any]]) -> None:
    store, run_id = await left(way(Old), Old("a", 700))
    reason = await parks(store, run_id, way(Renamed))
    assert "the stored field `cents` is no longer read, and `amount` takes its default" in reason
    assert 'renamed_from={"amount": "cents"}' in reason
    assert "test_lost_fields.py:" in reason
    assert await goes_on(store, way(Old)) == 700


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_what_the_advice_says_lets_the_run_go_on_with_its_value(way: Callable[[Any], Workflow[..., Any]]) -> None:
    @versioned("2", renamed_from={"amount": "cents"})
    @dataclass
    class Declared:
        id: str
        amount: int = 5

    store, run_id = await left(way(Old), Old("a", 700))
    await parks(store, run_id, way(Renamed))
    assert await goes_on(store, way(Declared)) == 700


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_a_field_added_and_a_field_removed_are_safe(way: Callable[[Any], Workflow[..., Any]]) -> None:
    store, _ = await left(way(Old), Old("a", 700))
    assert await goes_on(left_by_a_crash(store), way(Added)) == 700
    assert await goes_on(left_by_a_crash(store), way(Removed)) == 700


@pytest.mark.parametrize(
    ("old", "new", "order"),
    [
        (OldStruct, RenamedStruct, OldStruct("a", 700)),
        (OldDict, RenamedDict, {"id": "a", "cents": 700}),
        (OldModel, RenamedModel, OldModel(id="a", cents=700)),
    ],
    ids=["struct", "typed-dict", "model"],
)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_every_kind_of_type_with_fields(way: Any, old: Any, new: Any, order: Any) -> None:
    store, run_id = await left(way(old), order)
    await parks(store, run_id, way(new))
    assert await goes_on(store, way(old)) == 700


# The schema of a wait does not show the fields of a type with a version.
@pytest.mark.parametrize(
    "way", [way for way in WAYS if way not in (as_signal, as_answer)], ids=lambda way: way.__name__
)
async def test_a_field_renamed_under_the_same_version_parks_the_run(way: Callable[[Any], Workflow[..., Any]]) -> None:
    store, run_id = await left(way(OldVersioned), OldVersioned("a", 700))
    reason = await parks(store, run_id, way(RenamedVersioned))
    assert '@versioned("3", renamed_from={"amount": "cents"})' in reason
    assert await goes_on(store, way(OldVersioned)) == 700


@dataclass
class Cart:
    orders: list[Old]
    more: dict[str, Old | None] = field(default_factory=dict)

    @property
    def cents(self) -> int:
        return sum(order.cents for order in [*self.orders, *filter(None, self.more.values())])


@dataclass
class RenamedCart:
    orders: list[Renamed]
    more: dict[str, Renamed | None] = field(default_factory=dict)

    @property
    def cents(self) -> int:
        return sum(order.cents for order in [*self.orders, *filter(None, self.more.values())])


@pytest.mark.parametrize(
    "cart", [Cart([Old("a", 700)]), Cart([], {"x": None, "y": Old("a", 700)})], ids=["list", "dict"]
)
async def test_fields_inside_lists_dicts_and_optionals(cart: Cart) -> None:
    store, run_id = await left(as_input(Cart), cart)
    reason = await parks(store, run_id, as_input(RenamedCart))
    assert " - at `$." in reason
    assert await goes_on(store, as_input(Cart)) == 700


# --- no false alarms ------------------------------------------------------------------------------------------------

LOOSE = {"id": "a", "colour": "red"}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_plain_data_with_fields_that_the_type_never_read_is_not_taken_for_a_rename(
    way: Callable[[Any], Workflow[..., Any]],
) -> None:
    store, _ = await left(way(Old), LOOSE)
    assert await goes_on(store, way(Old)) == 5


async def test_a_run_that_was_started_by_name_with_more_than_its_type_reads_goes_on() -> None:
    program = as_input(Old)
    store, recorded = MemoryStore(), Recorded()
    async with Client(store) as client:
        _ = await client.start(call("flow", order=LOOSE), id="it")
    async with Engine(store, [program], name="w", recovery=AT_ONCE, on_commit=recorded):
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
        store = left_by_a_crash(store)
    assert await goes_on(store, program) == 5


async def test_a_migration_says_what_became_of_a_field() -> None:
    @versioned("2")
    @dataclass
    class Migrated:
        id: str
        amount: int = 5

    @migrates(Migrated, from_="1")
    def in_tens(old: dict[str, Any]) -> dict[str, Any]:
        return {"id": old["id"], "amount": old["cents"] // 10}

    @versioned("2", renamed_from={})
    @dataclass
    class Replaced:
        id: str
        amount: int = 5

    store, _ = await left(as_input(Old), Old("a", 700))
    assert await goes_on(left_by_a_crash(store), as_input(Migrated)) == 70
    assert await goes_on(left_by_a_crash(store), as_input(Replaced)) == 5


async def test_a_run_that_was_queued_under_the_old_name_is_parked_when_it_would_begin() -> None:
    store = MemoryStore()
    async with Engine(store, [as_input(Old)], name="w", recovery=AT_ONCE) as engine:
        handle = await engine.start(as_input(Old)(Old("a", 700)), id="it", delay=3600)
    fit, reason = await verdict(store, as_input(Renamed))
    assert fit is Fit.BREAKS
    clock = FakeClock()
    clock.advance(1e9)
    async with Engine(store, [as_input(Renamed)], name="w", recovery=AT_ONCE, clock=clock) as engine:
        await eventually(lambda: store.journal.rows[handle.run_id].status is RunStatus.PARKED)
        view = await engine.get("it")
    assert view is not None
    assert "test_lost_fields.py:" in view.reason
    assert "renamed_from" in view.reason
    assert view.reason == reason


async def test_the_input_of_the_next_incarnation_is_not_lost_either() -> None:
    def rounds(kind: Any) -> Workflow[..., Any]:
        async def flow(order: Any) -> int:
            if order.id == "first":
                continue_as(Old("second", 700))
            await wait_signal("go")
            return await pay(value_of(order))

        flow.__annotations__["order"] = kind
        return workflow(name="flow")(flow)

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [rounds(Old)], name="w", recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(rounds(Old)(Old("first", 700)), id="it")
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
        view = await engine.get("it")
        assert view is not None
        store = left_by_a_crash(store)
    await parks(store, view.run_id, rounds(Renamed))
