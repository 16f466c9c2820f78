"""How PostgreSQL finds what people look for: by an index, however many runs there are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure.kernel.events import RunStatus
from perdure.ports.runs import RunFilter, Span
from perdure.stores.postgres.store import PostgresStore
from perdure.testing.conformance.history import History, finished, write_all
from tests.stores.postgres import opened, sql

# Every four hundredth run has failed, and every two hundredth is of the program `q`.
MANY = """
    insert into perdure_runs
    select (jsonb_populate_record(r, jsonb_build_object(
        'run_id', 'r' || lpad(n::text, 8, '0'), 'id', 'order-' || n,
        'status', case when n % 400 = 0 then 'failed' else 'completed' end,
        'program', case when n % 200 = 0 then 'q' else r.program end))).*
    from perdure_runs r, generate_series(1, 4000) n where r.run_id = 'r'
"""


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(postgres_url) as store:
        await write_all(store, History("r").begin_as("a", finished()))
        await sql(postgres_url, MANY, "vacuum analyze perdure_runs")
        yield store


async def plan_of(store: PostgresStore, ask: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The plan of the statement by which the store is asked."""
    plans: list[Any] = []

    async def read(statement: str, *arguments: Any) -> list[Any]:
        plans.extend(await store._database.query("explain " + statement, *arguments))
        return []

    with monkeypatch.context() as patch:
        patch.setattr(store._database, "read", read)
        await ask(store.runs)
    return "\n".join(line for (line,) in plans)


LISTS = [
    (RunFilter(status=[RunStatus.FAILED], values=False), "perdure_runs_by_status"),
    (RunFilter(status=[RunStatus.WAITING], program="checkout"), "perdure_runs_by_status"),
    (RunFilter(program="q", values=False), "perdure_runs_of_program"),
    (RunFilter(values=False, cursor="r00002000"), "perdure_runs_pkey"),
    (RunFilter(values=False, tags={"a": "b"}, floor="r00002000"), "perdure_runs_pkey"),
]


async def test_a_list_comes_in_order_from_its_index_before_there_are_statistics(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_url) as store:
        await write_all(store, History("r").begin_as("a", finished()))
        await sql(postgres_url, "alter table perdure_runs set (autovacuum_enabled = off)", MANY)
        for filter in (RunFilter(values=False, limit=9), RunFilter(roots=True, built_in=False, limit=9)):
            plan = await plan_of(store, lambda runs, filter=filter: runs.list(filter), monkeypatch)
            assert "perdure_runs_pkey" in plan, plan
            assert "Sort" not in plan, plan


async def test_lists_and_counts_come_from_an_index(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for filter, index in LISTS:
        plan = await plan_of(store, lambda runs, filter=filter: runs.list(filter), monkeypatch)
        assert index in plan, plan
        assert "Seq Scan" not in plan, plan
        assert "Sort" not in plan, plan
    for ask in (lambda runs: runs.counts(100), lambda runs: runs.count_ended(Span(0.0, 9.0, 3), None, 100)):
        plan = await plan_of(store, ask, monkeypatch)
        assert "Index Only Scan" in plan, plan
        assert "Seq Scan" not in plan, plan
    assert {(one.program, one.status.value): one.count for one in await store.runs.counts(100_000)} == {
        ("checkout", "completed"): 3_981,
        ("q", "completed"): 10,
        ("q", "failed"): 10,
    }
