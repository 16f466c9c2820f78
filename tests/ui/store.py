"""A store for the dashboard: days of runs, made in virtual time and copied into SQLite within a second."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

from perdure import Engine, RunView, call
from perdure.kernel.invocation import Invocation
from perdure.kernel.projection import child_rows, row
from perdure.kernel.state import RunState
from perdure.ports.journal import Append, append_one
from perdure.ports.runs import RunFilter
from perdure.ports.store import Store
from perdure.stores.open import open_store
from perdure.testing.simulation import Simulation
from tests.ui import shop

DAYS = 3
# How long the past is that is played: it ends now.
PAST = timedelta(days=DAYS, hours=3)


def seeded(url: str, *, wide: int = 0) -> None:
    """Fill an empty store. With `wide`, the run `wide` has so many steps."""
    sim = Simulation(seed=14, start=time.time() - PAST.total_seconds())
    sim.play(_past(sim, wide))
    asyncio.run(_copied(sim, url))


async def _past(sim: Simulation, wide: int) -> None:
    programs = [*shop.PROGRAMS, shop.invoices(changed=False)]
    async with sim.engine(programs, queues=shop.QUEUES, steps=[shop.send_mail], name="berlin-1") as engine:
        await _began(sim, engine)
        if wide:
            await _start(engine, shop.nightly(wide), "wide")
        await sim.advance(hours=1)
    # Its owner has left for a while, with runs on hand that could go on.
    await sim.advance(minutes=30)
    programs[-1] = shop.invoices(changed=True)
    async with sim.engine(programs, queues=shop.QUEUES, steps=[shop.send_mail], name="berlin-2") as engine:
        await sim.advance(minutes=5)
        await _lately(sim, engine)
        await sim.advance(minutes=80)
    await sim.advance(minutes=4)


async def _began(sim: Simulation, engine: Engine) -> None:
    await _start(engine, call("invoice", 500), "invoice-7", tags={"customer": "ann"})
    await _start(engine, shop.forever(1), "forever/1 ünïcödé 🧾", tags={"odd": "id"})
    for hour in range(0, 24 * DAYS, 6):
        customer = shop.CUSTOMERS[hour // 6 % len(shop.CUSTOMERS)]
        tags = {"customer": customer, "region": "eu" if hour % 12 else "us"}
        await _start(engine, shop.order(customer, 1000 + hour * 10, hour // 6 % 4), f"order-{hour}", tags=tags)
        await _start(engine, shop.newsletter(f"{customer}@example.org"), f"mail-{hour}", queue="orders", key=customer)
        letter = f"where is order {hour}?" if hour % 12 else "too late!"
        await _start(engine, shop.desk(text=letter), f"letter-{hour}")
        if hour % 18 == 0:
            await _start(engine, shop.close_books([customer, "cash"]), f"books-{hour}", tags=tags)
        await sim.advance(hours=6)
    await _start(engine, shop.nightly(400), "nightly-1")
    # Its engine leaves in the middle of its sleep.
    await _start(engine, shop.naps(timedelta(minutes=70)), "nap-1")


async def _lately(sim: Simulation, engine: Engine) -> None:
    for n, customer in enumerate(shop.CUSTOMERS[:3]):
        await _start(engine, shop.order(customer, 25_000 + n * 1000, items=5), f"big-{n}", tags={"customer": customer})
    await _start(engine, shop.order("ida", 12_000, refusals=9), "broke", tags={"customer": "ida"})
    value = {
        "exact": shop.BIG,
        "text": shop.HOSTILE,
        "deep": [[[[["bottom"]]]]],
        "none": None,
        "list": list(range(300)),
    }
    await _start(engine, shop.hostile(value), "hostile", tags={"<i>": shop.HOSTILE[:40]})
    await _start(engine, shop.nightly(120), "nightly-2")
    chat = await engine.start(shop.chat("perdure"), id="chat-1")
    await sim.advance(minutes=1)
    await engine.signal("chat-1", "thanks", "Thanks. ")
    await chat.result()
    await engine.pause("big-2", "until the warehouse is open again")
    await _start(engine, shop.chat("queues"), "chat-2", delay=timedelta(days=2))
    async with sim.client() as client:
        _ = await client.start(call("of_another_team", 1), id="stray")
    await engine.schedule("nightly", shop.nightly(10), cron="30 2 * * *", timezone="Europe/Berlin")
    await engine.schedule("weekly", shop.newsletter("all@example.org"), every=timedelta(days=7))


async def at_work(engine: Engine) -> None:
    """Start what is held, and what waits for it, while the dashboard is looked at."""
    for number in (1, 2):
        await _start(engine, shop.guard("north"), f"guard-{number}")
        # The first has the lock before the second asks for it.
        while not (await _view(engine, "guard-1")).locks:
            await asyncio.sleep(0.01)
    for number in range(3):
        await _start(engine, shop.naps(shop.LONG), f"queued-{number}", queue="orders", key=f"k{number % 2}")
        while (await _view(engine, "queued-0")).status == "queued":
            await asyncio.sleep(0.01)


async def _view(engine: Engine, id: str) -> RunView:
    view = await engine.get(id)
    assert view is not None
    return view


async def _start(engine: Engine, invocation: Invocation[Any], id: str, **options: Any) -> None:
    _ = await engine.start(invocation, id=id, **options)


async def _copied(sim: Simulation, url: str) -> None:
    store = open_store(url)
    await store.open(migrate=True)
    try:
        for one, _ in await sim.store.runs.list(RunFilter(limit=1000, roots=True, built_in=True)):
            await _copy(sim, store, one.run_id)
    finally:
        await store.close()


async def _copy(sim: Simulation, store: Store, run_id: str) -> None:
    batches = await sim.store.journal.read(run_id)
    state = RunState(run_id)
    for batch in batches:
        for event in batch.events:
            state.fold(event, batch.at)
        blobs = ("blob", "input_blob", "code", "structure")
        for blob in {getattr(event, name, "") for event in batch.events for name in blobs}:
            if blob and (data := await sim.store.blobs.get(blob)):
                await store.blobs.put(data)
    await append_one(store.journal, Append(run_id, 0, batches, row(state), children=child_rows(state)))
