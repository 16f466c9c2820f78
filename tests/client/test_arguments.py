# mypy: disable-error-code="unused-awaitable"
"""Arguments that do not fit are refused where it is known what the program takes, and named where they are read."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Client,
    Engine,
    NotDecodable,
    RunParked,
    RunStatus,
    Start,
    StoreUnavailable,
    UsageError,
    blocking,
    call,
    child,
    connect,
    step,
    workflow,
)
from perdure.client import base
from perdure.client.signatures import Signatures, SignaturesConfig
from perdure.kernel.invocation import WrongCall
from perdure.orchestrator.membership import REGISTRATION_SIZE
from perdure.ports.clock import SystemClock
from perdure.ports.leases import ORCHESTRATOR, REGISTRATION, SIGNATURES, holder
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from perdure.stores.open import open_store
from tests.engine.harness import AT_ONCE, PATIENCE
from tests.services.plugin import on_two_stores


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    # A start that cannot find out in time what the workers take does without.
    monkeypatch.setattr(base, "Signatures", partial(Signatures, config=SignaturesConfig(wait=PATIENCE)))


@dataclass
class Item:
    name: str
    cents: int


@dataclass
class Order:
    id: str
    items: list[Item]


@step
async def charge(cents: int) -> int:
    return cents


@workflow
async def fulfil(order: Order, *, gift: bool = False) -> int:
    return await charge(sum(item.cents for item in order.items))


GOOD = Order("o-1", [Item("tea", 300)])
WRONG: Any = {"id": "o-1", "items": [{"name": "tea", "cents": "three"}]}
NAMED = (
    r"the argument order of fulfil cannot be read as .*Order: Expected `int`, got `str` - at `\$\.items\[0\]\.cents`"
)

OPTIONS: list[dict[str, Any]] = [{}, {"delay": 60}, {"queue": "q"}, {"queue": "q", "key": "k", "debounce": 5}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("by_name", [True, False])
async def test_an_engine_refuses_arguments_that_do_not_fit_whenever_the_run_begins(
    options: dict[str, Any], by_name: bool
) -> None:
    invocation = call("fulfil", WRONG) if by_name else fulfil(WRONG)
    async with Engine("memory://", [fulfil], recovery=AT_ONCE) as engine:
        with pytest.raises(NotDecodable, match=NAMED):
            await engine.start(invocation, **options)
        assert not await engine.list()


async def test_a_client_that_has_the_program_refuses_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [fulfil], recovery=AT_ONCE) as engine, connect(url) as client:
        with pytest.raises(NotDecodable, match=NAMED):
            await client.start(fulfil(WRONG))
        with pytest.raises(NotDecodable, match="the argument gift of fulfil cannot be read as bool"):
            await client.start(fulfil(GOOD, gift=7))  # type: ignore[arg-type]
        report = await client.start_many([fulfil(GOOD), fulfil(WRONG)])
        assert len(report.done) == 1
        assert isinstance(report.failed[0].error, NotDecodable)
        assert await client.handle(report.done[0].id, fulfil).result(PATIENCE) == 300
        assert len(await engine.list()) == 1


async def test_a_schedule_refuses_them_before_it_has_ticked() -> None:
    async with Engine("memory://", [fulfil], recovery=AT_ONCE) as engine:
        with pytest.raises(NotDecodable, match=NAMED):
            await engine.schedule("s", fulfil(WRONG), every=3600)
        assert not await engine.schedules()


@pytest.mark.parametrize("how", ["awaited", "by name", "child", "child by name", "detached"])
async def test_a_child_refuses_them_in_the_body_that_asks_for_it(how: str) -> None:
    @workflow
    async def outer() -> str:
        try:
            match how:
                case "awaited":
                    await fulfil(WRONG)
                case "by name":
                    await call("fulfil", WRONG)
                case "child":
                    await child(fulfil(WRONG))
                case "child by name":
                    await child(call("fulfil", WRONG))
                case _:
                    await child(fulfil(WRONG), detached=True)
        except NotDecodable as error:
            return str(error)
        return "taken"

    async with Engine("memory://", [outer, fulfil], recovery=AT_ONCE) as engine:
        result = await (await engine.start(outer())).outcome(PATIENCE)
        assert result.status is RunStatus.COMPLETED
        assert "the argument order of fulfil" in str(result.output)
        assert "$.items[0].cents" in str(result.output)


@pytest.mark.parametrize(
    ("invocation", "told"),
    [
        (call("fulfil", WRONG), "the argument order of fulfil cannot be read as"),
        (call("fulfil", 7), "the argument order of fulfil cannot be read as"),
        (call("fulfil", order=WRONG), "`$.items[0].cents`"),
        (call("fulfil", GOOD, 5), "too many positional arguments"),
        (call("fulfil"), "is missing its argument 'order'"),
        (call("fulfil", gift=True), "is missing its argument 'order'"),
        (call("fulfil", order=GOOD, colour="red"), "has no argument colour"),
    ],
)
async def test_a_worker_says_which_argument_does_not_fit_and_blames_no_other_code(
    invocation: Any, told: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url), connect(url) as client:
        _ = await client.start(invocation, id="it")  # no worker lives that could say what it takes
    async with Engine(url, [fulfil], recovery=AT_ONCE) as engine:
        result = await engine.handle("it").outcome(PATIENCE)
        assert isinstance(result.error, RunParked)
        assert told in str(result.error)
        assert "other code" not in str(result.error)
        assert "the run again with a value that fits" in str(result.error)
        _ = await engine.resolve("it", fail="wrong order")
        assert (await engine.run(fulfil(GOOD))).output == 300


async def test_arguments_that_fit_are_taken_by_name_and_by_position(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [fulfil], recovery=AT_ONCE), connect(url) as client:
        for invocation in (call("fulfil", order=GOOD), call("fulfil", GOOD), call("fulfil", order=GOOD, gift=True)):
            assert await (await client.start(invocation)).result(PATIENCE) == 300
        with pytest.raises(UsageError, match="mixes positional and keyword"):
            await client.start(call("fulfil", GOOD, gift=True))


# --- programs that only workers have --------------------------------------------------------------------------------


@pytest.fixture
def beside(any_store: Store, any_url: str) -> Store:
    """The same store, for another process; there is one of a store in memory."""
    return any_store if any_url.startswith("memory:") else open_store(any_url)


MISFITS: list[tuple[Any, type[Exception], str]] = [
    (
        call("fulfil", 7),
        NotDecodable,
        r'the argument order of fulfil cannot be read as .*Order: 7 is not of type "object"',
    ),
    (call("fulfil", order=WRONG), NotDecodable, r'"three" is not of type "integer" - at `\$\.items\[0\]\.cents`'),
    (call("fulfil", order=GOOD, gift=7), NotDecodable, "the argument gift of fulfil cannot be read as bool: 7 is not"),
    (call("fulfil"), UsageError, r"fulfil\(\) cannot be called like this: missing a required argument: 'order'"),
    (call("fulfil", gift=True), UsageError, "missing a required argument: 'order'"),
    (call("fulfil", GOOD, 5), UsageError, "too many positional arguments"),
    (call("fulfil", order=GOOD, colour="red"), UsageError, "got an unexpected keyword argument 'colour'"),
]


@on_two_stores
@pytest.mark.parametrize(("invocation", "error", "told"), MISFITS, ids=range(len(MISFITS)))
async def test_a_client_refuses_what_no_worker_takes_and_says_who_said_so(
    any_store: Store, beside: Store, invocation: Any, error: type[Exception], told: str
) -> None:
    async with Engine(any_store, [fulfil], name="w1"), connect(beside) as client:
        with pytest.raises(error, match=told) as raised:
            await client.start(invocation, id="it")
        assert "worker w1 has fulfil(order: " in str(raised.value)
        assert not await client.list()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
async def test_a_client_refuses_them_whenever_the_run_begins(options: dict[str, Any]) -> None:
    store = MemoryStore()
    async with Engine(store, [fulfil]), connect(store) as client:
        with pytest.raises(NotDecodable, match="the argument order of fulfil"):
            await client.start(call("fulfil", 7), **options)
        assert not await client.list()


async def test_of_many_starts_those_that_do_not_fit_fail_alone() -> None:
    store = MemoryStore()
    async with Engine(store, [fulfil]), connect(store) as client:
        starts: list[Start[Any]] = [Start(call("fulfil", GOOD)), Start(call("fulfil", 7)), Start(call("fulfil"))]
        report = await client.start_many(starts)
        assert [type(item.error) for item in report.failed] == [NotDecodable, WrongCall]
        assert await report.done[0].result(PATIENCE) == 300
        assert len(await client.list()) == 1


async def test_a_run_that_exists_is_given_out_whatever_the_arguments_are() -> None:
    store = MemoryStore()
    async with Engine(store, [fulfil]), connect(store) as client:
        _ = await client.start(call("fulfil", GOOD), id="it")
        assert await (await client.start(call("fulfil"), id="it")).result(PATIENCE) == 300
        report = await client.start_many([Start(call("fulfil", 7), id="it")])
        assert [handle.id for handle in report.done] == ["it"]


@pytest.mark.parametrize("large", [False, True])
async def test_what_exists_is_neither_ended_nor_changed_for_arguments_that_do_not_fit(large: bool) -> None:
    store = MemoryStore()
    wrong = "x" * 1_000_000 if large else 7
    async with Engine(store, [fulfil]), connect(store) as client:
        first = await client.start(call("fulfil", GOOD), id="it", delay=60)
        _ = await client.start(call("fulfil", GOOD), id="later", queue="q", debounce=60)
        with pytest.raises(NotDecodable, match="the argument order of fulfil"):
            await client.start(call("fulfil", wrong), id="it", reuse="terminate_running")
        with pytest.raises(NotDecodable, match="the argument order of fulfil"):
            await client.start(call("fulfil", wrong), id="later", queue="q", debounce=60)
        assert {run.status for run in await client.list()} <= {RunStatus.QUEUED, RunStatus.RUNNING}
        runs = {run.id: run for run in await client.list()}
        assert runs["it"].run_id == first.run_id
        later = await client.get("later")
        assert later is not None
        assert later.input["order"]["id"] == "o-1"
        assert (await store.upkeep.collect(-1, 10, dry_run=True)).blobs == 0


@on_two_stores
async def test_a_client_refuses_a_schedule_of_them(any_store: Store, beside: Store) -> None:
    async with Engine(any_store, [fulfil]), connect(beside) as client:
        with pytest.raises(NotDecodable, match="the argument order of fulfil"):
            await client.schedule("s", call("fulfil", 7), every=3600)
        assert not await client.schedules()
        _ = await client.schedule("s", call("fulfil", GOOD), every=3600)


def test_a_blocking_client_refuses_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    with blocking.Engine(url, [fulfil]), blocking.connect(url) as client:
        with pytest.raises(NotDecodable, match="the argument order of fulfil"):
            client.start(call("fulfil", 7))
        assert client.start(call("fulfil", GOOD)).result(PATIENCE) == 300


def of_type(annotation: Any, version: str = "1") -> Any:
    """A program of one name, with an argument of that type."""

    async def takes(x: Any) -> Any:
        return repr(x)

    takes.__annotations__["x"] = annotation
    return workflow(version=version)(takes)


@on_two_stores
async def test_what_fits_one_of_several_workers_is_taken(any_store: Store, beside: Store, any_url: str) -> None:
    another = beside if beside is any_store else open_store(any_url)
    async with (
        Engine(any_store, [of_type(int)], name="w1"),
        Engine(beside, [of_type(str)], name="w2"),
        connect(another) as client,
    ):
        _ = await client.start(call("takes", 7), delay=60)
        _ = await client.start(call("takes", "seven"), delay=60)
        with pytest.raises(NotDecodable, match=r"worker w1 and 1 more has takes\(x: int\)"):
            await client.start(call("takes", [7]))


async def test_the_newest_version_counts_as_it_takes_runs_that_are_started_by_name() -> None:
    store = MemoryStore()
    async with Engine(store, [of_type(int), of_type(str, "2")]), connect(store) as client:
        assert await (await client.start(call("takes", "seven"))).result(PATIENCE) == "'seven'"
        with pytest.raises(NotDecodable, match="cannot be read as str"):
            await client.start(call("takes", 7))


async def test_a_worker_that_comes_with_other_code_is_heard_before_anything_is_refused() -> None:
    store = MemoryStore()
    async with connect(store) as client:
        async with Engine(store, [of_type(int)], name="w1"):
            assert await (await client.start(call("takes", 7))).result(PATIENCE) == "7"
        async with Engine(store, [of_type(str)], name="w1"):
            assert await (await client.start(call("takes", "seven"))).result(PATIENCE) == "'seven'"


async def test_a_program_that_is_defined_again_is_registered_again() -> None:
    store = MemoryStore()
    async with Engine(store, [of_type(int)]) as engine, connect(store) as client:
        with pytest.raises(NotDecodable):
            await client.start(call("takes", "seven"))
        assert (await engine.run(of_type(str)("six"))).output == "'six'"
        async with asyncio.timeout(PATIENCE):
            while not await taken(client, call("takes", "seven")):
                await asyncio.sleep(0)  # it is registered in the background
        assert not await taken(client, call("takes", 7))
    assert not await store.leases.live("", 0.0), "nor is anything left of what was said before"


async def taken(client: Client, invocation: Any) -> bool:
    try:
        _ = await client.start(invocation)
    except NotDecodable:
        return False
    return True


@on_two_stores
async def test_without_a_worker_that_lives_everything_is_taken(any_store: Store, beside: Store) -> None:
    async with Engine(any_store, [fulfil]):
        pass
    async with Engine(any_store, [], name="other"), connect(beside) as client:
        _ = await client.start(call("fulfil", 7), id="it")
        assert await client.get("it") is not None


async def test_a_worker_that_has_said_nothing_or_no_signature_may_take_anything() -> None:
    store, clock = MemoryStore(), SystemClock()

    async def start() -> None:
        async with connect(store) as client:
            _ = await client.start(call("fulfil", 7), delay=60)

    async with Engine(store, [fulfil], name="w1"):
        await store.leases.acquire(ORCHESTRATOR + "old", holder("old", "s"), 60, clock.now())
        await start()
        # As it was written before there were signatures.
        await store.leases.acquire(REGISTRATION + "old", '{"programs":["fulfil"],"lease":15.0}', 60, clock.now())
        await start()
        await store.leases.release(ORCHESTRATOR + "old", holder("old", "s"))
        with pytest.raises(NotDecodable, match="worker w1 has fulfil"):
            await start()


async def test_a_program_that_is_not_loaded_yet_takes_anything() -> None:
    store = MemoryStore()
    async with Engine(store, ["fulfil=tests.nowhere:fulfil"]), connect(store) as client:
        _ = await client.start(call("fulfil", 7), delay=60)


@on_two_stores
async def test_signatures_go_with_their_worker_and_come_again(any_store: Store, beside: Store) -> None:
    for _ in range(2):
        async with Engine(any_store, [fulfil], name="w1"), connect(beside) as client:
            with pytest.raises(NotDecodable, match="the argument order of fulfil"):
                await client.start(call("fulfil", 7))
            leases, now = client.store.leases, client.clock.now()
            assert await leases.live(SIGNATURES, now)
        async with connect(beside) as client:
            assert not await client.store.leases.live(SIGNATURES, now)


@on_two_stores
async def test_a_worker_whose_name_was_taken_leaves_what_its_successor_says(any_store: Store, beside: Store) -> None:
    async with Engine(any_store):
        pass  # the store is there
    async with AsyncExitStack() as successors:
        async with Engine(any_store, [fulfil], name="w1"):
            await successors.enter_async_context(Engine(beside, [fulfil], name="w1"))
        async with connect(any_store) as client:
            assert await client.store.leases.live(SIGNATURES, client.clock.now())
            assert await client.store.leases.live(REGISTRATION, client.clock.now())
            with pytest.raises(NotDecodable, match="worker w1 has fulfil"):
                await client.start(call("fulfil", 7))
    async with connect(any_store) as client:
        assert not await client.store.leases.live("", client.clock.now())


async def test_a_worker_with_very_many_programs_says_what_each_takes() -> None:
    def named(n: int) -> Any:
        async def taker(x: int) -> None: ...

        return workflow(name=f"{n}" + "x" * 150)(taker)

    programs = [named(n) for n in range(REGISTRATION_SIZE // 150 + 1)]
    store = MemoryStore()
    async with Engine(store, programs), connect(store) as client:
        with pytest.raises(NotDecodable, match="the argument x of 3x"):
            await client.start(call(programs[3].name, "seven"))
        _ = await client.start(call("fulfil", 7))


async def test_many_starts_ask_for_the_signature_once() -> None:
    store = MemoryStore()
    async with Engine(store, [fulfil]), connect(store) as client:
        reads = 0
        live = store.leases.live

        async def counted(prefix: str, now: float) -> Any:
            nonlocal reads
            reads += client_at_work
            return await live(prefix, now)

        store.leases.live = counted  # type: ignore[method-assign]
        client_at_work = 1
        await asyncio.gather(*(client.start(call("fulfil", GOOD), delay=60) for _ in range(50)))
        assert reads == 3
        _ = await client.start(fulfil(GOOD), delay=60)
        assert reads == 3


async def test_a_start_does_not_fail_because_the_leases_cannot_be_read() -> None:
    store = MemoryStore()
    async with Engine(store, [fulfil]), connect(store) as client:
        live = store.leases.live

        async def gone(prefix: str, now: float) -> Any:
            raise StoreUnavailable("etcd://nowhere", "it is out of reach")

        store.leases.live = gone  # type: ignore[method-assign]
        _ = await client.start(call("fulfil", 7), delay=60)
        store.leases.live = live  # type: ignore[method-assign]


def test_a_call_binds_as_python_binds_it() -> None:
    async def none() -> None: ...
    async def two(a: int, b: int = 2) -> None: ...
    async def only(a: int, /, b: int = 2) -> None: ...
    async def rest(a: int, *more: int) -> None: ...
    async def named(a: int, *, b: int = 2) -> None: ...
    async def needed(a: int, b: int = 2, *, c: int) -> None: ...
    async def keywords(a: int = 1, **more: int) -> None: ...

    calls: list[tuple[tuple[int, ...], dict[str, int]]] = [
        *((tuple(range(count)), {}) for count in range(4)),
        *(((), {name: 1}) for name in ("a", "b", "c", "d")),
        *(((1,), {name: 1}) for name in ("a", "b", "c", "d")),
    ]
    for fn in (none, two, only, rest, named, needed, keywords):
        made, signature = workflow(fn), inspect.signature(fn)
        for args, kwargs in calls:
            try:
                expected = signature.bind(*args, **kwargs).arguments
            except TypeError:
                with pytest.raises(TypeError):
                    made(*args, **kwargs)
            else:
                assert made._by_name(args, kwargs) == expected
                made(*args, **kwargs)
