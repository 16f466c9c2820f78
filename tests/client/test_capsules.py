"""Runs leave one store in a file and come into another, to be looked at: the same run, and nobody executes it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from perdure import (
    AlreadyExists,
    Client,
    Engine,
    InvalidCapsule,
    Limits,
    NoSuchRun,
    Program,
    RunStatus,
    Truncated,
    UsageError,
    connect,
    continue_as,
    set_state,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import RunParked, encode_events
from perdure.kernel.history.capsule import decode_capsule
from perdure.kernel.state import fold
from perdure.stores.memory.store import MemoryStore
from perdure.testing import replay
from tests.patience import PATIENCE

CALLS: list[str] = []


@dataclass
class Card:
    number: str
    cents: int


@step
async def charge(card: Card) -> dict[str, Any]:
    CALLS.append("charge")
    return {"pan": card.number, "ok": True}


@step
def enlarge(letter: str) -> str:
    CALLS.append("enlarge")
    return letter * 5000


@workflow
async def ship(letter: str) -> int:
    return len(await enlarge(letter))


@workflow
async def fulfil(card: Card) -> int:
    payment = await charge(card)
    set_state("paid", payment["ok"])
    return await ship("x")


@workflow
async def patient(card: Card) -> str:
    await charge(card)
    answer = await wait_signal("go", type=str)
    await charge(card)
    return answer


@workflow
async def endless(count: int) -> int:
    if count:
        continue_as(count - 1)
    return count


PROGRAMS: list[Program] = [fulfil, ship, patient, endless]
SMALL = Limits(blob=1000)


async def exported(invocation: Any, id: str = "order-1", **options: Any) -> tuple[bytes, MemoryStore]:
    store = MemoryStore()
    async with Engine(store, PROGRAMS, limits=SMALL) as engine:
        await engine.run(invocation, id=id)
        return await engine.export(id, **options), store


async def waiting(**options: Any) -> tuple[bytes, MemoryStore]:
    store = MemoryStore()
    async with Engine(store, PROGRAMS) as engine:
        _ = await engine.start(patient(Card("4111", 7)), id="order-1")
        async for entry in engine.follow("order-1"):
            if type(entry.event).__name__ == "WaitOpened":
                break
        return await engine.export("order-1", **options), store


async def test_a_finished_run_is_the_same_in_another_store(tmp_path: Path) -> None:
    data, before = await exported(fulfil(Card("4111", 700)))
    url = f"sqlite:///{tmp_path}/elsewhere.db"
    async with Engine(url) as engine:
        view = await engine.import_run(data)
        assert (view.id, view.status, view.output) == ("order-1", RunStatus.COMPLETED, 5000)
        run_id = view.run_id
        journal = await engine.store.journal.read(run_id)
        assert [encode_events(b.events) for b in journal] == [
            encode_events(b.events) for b in await before.journal.read(run_id)
        ]
        for path in (run_id, f"{run_id}/ship:0"):
            assert await engine.store.runs.get(path) == await before.runs.get(path)
        assert [step.path for step in await engine.steps("order-1")] == ["charge:0", "ship:0/enlarge:0"]
        assert (await engine.steps("order-1"))[1].output == "x" * 5000
        after = await engine.export("order-1")
    one, two = decode_capsule(data), decode_capsule(after)
    assert (one.batches, one.blobs) == (two.batches, two.blobs)
    assert fold(run_id, one.batches).values["paid"] == Raw(b"true")


async def test_a_capsule_names_the_program_and_its_source() -> None:
    data, store = await exported(fulfil(Card("4111", 700)))
    capsule = decode_capsule(data)
    assert (capsule.program, capsule.version, len(capsule.source)) == ("fulfil", "1", 64)
    async with connect(store) as client:
        assert decode_capsule(await client.export("order-1")).source == ""


async def test_a_run_that_has_not_ended_is_parked_and_nobody_executes_it(tmp_path: Path) -> None:
    data, _ = await waiting()
    url = f"sqlite:///{tmp_path}/elsewhere.db"
    CALLS.clear()
    async with Engine(url, PROGRAMS) as engine:
        view = await engine.import_run(data)
        assert (view.status, view.owner) == (RunStatus.PARKED, None)
        assert "imported" in view.reason
        assert [wait.name for wait in view.waits] == ["go"]
        await engine.signal("order-1", "go", "yes")
    async with Engine(url, PROGRAMS) as engine:
        # It waits for nobody: a run that is started after it has ended by now.
        assert (await engine.run(endless(0))).output == 0
        assert await (await engine.start(patient(Card("4111", 7)), id="order-1")).status() is RunStatus.PARKED
        last = [entry.event for entry in await engine.journal("order-1")][-2:]
    assert isinstance(last[0], RunParked)
    assert CALLS == []


async def test_an_imported_run_goes_on_where_it_stood_when_somebody_resolves_it() -> None:
    data, origin = await waiting()
    run_id = next(iter(origin.journal.rows))
    async with Engine(MemoryStore(), PROGRAMS) as engine:
        _ = await engine.import_run(data)
        CALLS.clear()
        _ = await engine.signal("order-1", "go", "yes")
        _ = await engine.resolve("order-1")
        handle = await engine.start(patient(Card("4111", 7)), id="order-1")
        assert await handle.result(PATIENCE) == "yes"
        # The same run, as the world knows it, and what it had done is not done again.
        assert handle.run_id == run_id
    assert CALLS == ["charge"]


@pytest.mark.parametrize("where", ["engine", "client"])
async def test_an_imported_run_goes_on_as_a_copy_when_it_is_forked(where: str) -> None:
    data, _ = await waiting()
    store = MemoryStore()
    async with Engine(store, PROGRAMS) as engine, connect(store) as client:
        imported = await engine.import_run(data)
        CALLS.clear()
        teller: Client = engine if where == "engine" else client
        fork = await teller.fork("order-1", new_id="copy")
        _ = await engine.signal("copy", "go", "yes")
        assert await fork.result(PATIENCE) == "yes"
        view, original = await engine.get("copy"), await engine.get("order-1")
        assert view is not None
        assert original is not None
        assert (view.forked_from, view.run_id != imported.run_id) == (imported.run_id, True)
        assert (original.status, original.parked) == (RunStatus.PARKED, "imported")
    assert CALLS == ["charge"]


async def test_an_imported_run_that_had_ended_goes_on_as_a_copy_too() -> None:
    data, _ = await exported(fulfil(Card("4111", 7)))
    async with Engine(MemoryStore(), PROGRAMS, limits=SMALL) as engine:
        _ = await engine.import_run(data)
        CALLS.clear()
        fork = await engine.fork("order-1", at="ship:0")
        assert await fork.result(PATIENCE) == 5000
    assert CALLS == ["enlarge"]


async def test_an_imported_run_goes_on_from_before_an_op() -> None:
    data, _ = await waiting()
    async with Engine(MemoryStore(), PROGRAMS) as engine:
        imported = await engine.import_run(data)
        CALLS.clear()
        verdict = await engine.resolve("order-1", before="charge:0")
        assert isinstance(verdict, Truncated)
        assert verdict.again == ("charge:0",)
        _ = await engine.signal("order-1", "go", "yes")
        handle = await engine.start(patient(Card("4111", 7)), id="order-1")
        assert await handle.result(PATIENCE) == "yes"
        assert handle.run_id == verdict.run_id != imported.run_id
    assert CALLS == ["charge", "charge"]


async def test_a_run_that_came_without_some_of_its_values_is_not_let_go_on() -> None:
    data, _ = await waiting(redact=["$..number"])
    store = MemoryStore()
    async with Engine(store, PROGRAMS) as engine:
        view = await engine.import_run(data)
        assert (view.status, view.parked) == (RunStatus.PARKED, "redacted")
        assert "Redacted in it: $..number" in view.reason
        for how in ({}, {"version": "2"}, {"before": "charge:0"}):
            with pytest.raises(UsageError, match="without some of its values"):
                _ = await engine.resolve("order-1", **how)
        again = await engine.export("order-1")
        fork = await engine.fork("order-1", inputs={"card": Card("4242", 7)})
        _ = await engine.signal(fork.id, "go", "yes")
        assert await fork.result(PATIENCE) == "yes"
        _ = await engine.resolve("order-1", fail="it was only to be looked at")
    async with Engine(MemoryStore(), PROGRAMS) as engine:
        assert (await engine.import_run(again)).parked == "redacted", "it stays so on its further travels"


async def test_a_run_that_is_redacted_on_its_second_travel_is_known_as_such() -> None:
    data, _ = await waiting()
    async with Engine(MemoryStore(), PROGRAMS) as engine:
        _ = await engine.import_run(data)
        data = await engine.export("order-1", redact=["$..number"])
    async with Engine(MemoryStore(), PROGRAMS) as engine:
        assert (await engine.import_run(data)).parked == "redacted"


async def test_an_imported_run_takes_no_room_in_a_queue() -> None:
    store = MemoryStore()
    async with Engine(store, PROGRAMS) as engine:
        run = await engine.start(patient(Card("4111", 7)), id="order-1", queue="orders")
        async for entry in engine.follow(run.id):
            if type(entry.event).__name__ == "WaitOpened":
                break
        data = await engine.export("order-1")
        assert [queue.running for queue in await engine.queues()] == [1]
    async with Engine("memory://") as engine:
        assert (await engine.import_run(data)).queue == "orders"
        assert [queue.running for queue in await engine.queues()] in ([], [0])


async def test_importing_twice_is_importing_once() -> None:
    data, _ = await waiting()
    async with Engine("memory://") as engine:
        first = await engine.import_run(data)
        version = engine.store.version()
        assert await engine.import_run(data) == first
        assert engine.store.version() == version


async def test_importing_where_it_came_from_changes_nothing() -> None:
    data, store = await exported(fulfil(Card("4111", 700)))
    async with connect(store) as client:
        version = store.version()
        assert (await client.import_run(data)).status is RunStatus.COMPLETED
        assert store.version() == version


async def test_an_id_that_belongs_to_another_run_is_not_taken_over() -> None:
    data, _ = await exported(fulfil(Card("4111", 700)))
    async with Engine("memory://", PROGRAMS) as engine:
        await engine.run(endless(0), id="order-1")
        with pytest.raises(AlreadyExists, match="store of its own"):
            await engine.import_run(data)
        view = await engine.get("order-1")
        assert view is not None
        assert view.program == "endless"


async def test_the_incarnations_of_a_run_come_one_after_another() -> None:
    data, store = await exported(endless(1))
    second = decode_capsule(data)
    assert second.continued_from
    async with connect(store) as client:
        first = await client.export(second.continued_from)
    assert decode_capsule(first).continued_as == second.run_id
    async with Engine("memory://") as engine:
        await engine.import_run(first)
        assert (await engine.import_run(data)).run_id == second.run_id


async def test_a_child_is_exported_with_its_whole_tree() -> None:
    data, store = await exported(fulfil(Card("4111", 700)))
    async with connect(store) as client:
        run_id = decode_capsule(data).run_id
        assert decode_capsule(await client.export(f"{run_id}/ship:0")).run_id == run_id
        with pytest.raises(NoSuchRun):
            await client.export("nobody")


async def test_values_that_were_taken_out_are_nowhere_and_the_run_still_replays() -> None:
    data, _ = await waiting(redact=["$..number", "charge.$.pan"])
    assert b"4111" not in b"".join(encode_events(b.events) for b in decode_capsule(data).batches)
    async with Engine("memory://") as engine:
        view = await engine.import_run(data)
        assert view.input == {"card": {"number": "[redacted]", "cents": 7}}
        assert "$..number" in view.reason


def test_a_redacted_run_replays() -> None:
    data, _ = asyncio.run(exported(fulfil(Card("4111", 700)), redact=["$..number", "charge.$.pan"]))
    replay(data, fulfil, ship).check()


# --- hostile files --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file() -> bytes:
    return asyncio.run(waiting())[0]


async def refused(store: MemoryStore, data: Any) -> None:
    async with connect(store) as client:
        version = store.version()
        with pytest.raises(InvalidCapsule, match="Nothing was imported"):
            await client.import_run(data)
        assert store.version() == version
        assert not store.blobs.blobs


@given(data=st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_was_changed_is_refused_and_changes_nothing(file: bytes, data: st.DataObject) -> None:
    changed = bytearray(file)
    if data.draw(st.booleans(), label="cut off"):
        changed = changed[: data.draw(st.integers(0, len(file) - 1), label="after")]
    else:
        changed[data.draw(st.integers(0, len(file) - 1), label="byte")] ^= data.draw(st.integers(1, 255), label="by")
    asyncio.run(refused(MemoryStore(), bytes(changed)))


async def test_what_is_no_bytes_is_refused() -> None:
    await refused(MemoryStore(), "a text")
    await refused(MemoryStore(), None)
    await refused(MemoryStore(), b"")
