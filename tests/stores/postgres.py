"""What tests of the PostgreSQL store share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from perdure.stores.postgres.config import PostgresConfig
from perdure.stores.postgres.store import PostgresStore


@asynccontextmanager
async def opened(
    url: str,
    *,
    migrate: bool = True,
    config: PostgresConfig = PostgresConfig(),  # noqa: B008 - frozen
) -> AsyncIterator[PostgresStore]:
    """A store that is open."""
    store = PostgresStore(url, config)
    await store.open(migrate=migrate)
    try:
        yield store
    finally:
        await store.close()


async def sql(url: str, *statements: str) -> list[Any]:
    """Do something to a database behind the store's back; the rows of the last statement."""
    connection = await asyncpg.connect(url.partition("?")[0])
    try:
        rows: list[Any] = []
        for statement in statements:
            rows = await connection.fetch(statement)
        return rows
    finally:
        await connection.close()
