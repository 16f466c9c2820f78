"""A nightly import: list the sources, fetch and clean them side by side, load what is there, report."""

import asyncio
from typing import NamedTuple

from perdure import step, wait_signal, workflow
from tests.changes.ledger import effect


class Batch(NamedTuple):
    source: str
    rows: int


@step
async def sources(day: str) -> list[str]:
    effect("sources", day)
    return ["crm", "shop", "web"]


@step
async def fetch(source: str, day: str) -> Batch:
    effect("fetch", source, day)
    await asyncio.sleep(0.01 * (source == "shop"))  # the others are quicker
    return Batch(source, len(source))


@step
async def clean(batch: Batch) -> Batch:
    effect("clean", batch.source, batch.rows)
    return Batch(batch.source, batch.rows * 10)


@step
async def validate(name: str) -> bool:
    effect("validate", name)
    return True


@step
async def load(table: str, rows: int) -> int:
    effect("load", table, rows)
    return rows


@step
async def publish(day: str, total: int) -> str:
    effect("publish", day, total)
    return f"{day}: {total} rows"


async def one(source: str, day: str) -> Batch:
    raw = await fetch(source, day)
    return await clean(raw)


@workflow
async def etl(day: str, table: str = "facts") -> str:
    names = await sources(day)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(name, day)) for name in names]
    batches = [task.result() for task in tasks]
    checks = await asyncio.gather(*[validate(batch.source) for batch in batches])
    await wait_signal("window")
    total = 0
    for batch in batches:
        total += await load(f"{table}.{batch.source}", batch.rows)
    return await publish(day, total if all(checks) else 0)
