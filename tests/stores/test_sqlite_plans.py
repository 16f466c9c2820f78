"""How SQLite finds what is looked for again and again: by an index, however many runs there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import apsw
import pytest

from perdure.kernel.events import RunStatus
from perdure.ports.runs import RunFilter, Span
from perdure.stores.sqlite.runs import SqlRuns
from perdure.stores.sqlite.store import SqliteStore
from perdure.testing.conformance.history import History, finished, parked, write_all


async def plan_of(
    store: SqliteStore, ask: Callable[[SqlRuns], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The plan of the statement by which the store is asked."""
    asked: list[tuple[str, Any]] = []

    async def read(sql: str, bindings: Any = ()) -> list[Any]:
        asked.append((sql, bindings))
        return []

    with monkeypatch.context() as patch:
        patch.setattr(store._database, "read", read)
        await ask(store.runs)
    [(sql, bindings)] = asked
    return [str(row[-1]) for row in store._database.query("explain query plan " + sql, bindings)]


@pytest.mark.parametrize(
    ("filter", "index"),
    [
        (RunFilter(status=[RunStatus.PARKED]), "perdure_runs_by_status"),
        (RunFilter(status=[RunStatus.PARKED], program="p", cursor="r5", limit=3), "perdure_runs_by_status"),
        (RunFilter(status=[RunStatus.FAILED], values=False), "perdure_runs_by_status"),
        (RunFilter(program="p", cursor="r5"), "perdure_runs_of_program"),
        (RunFilter(program="p", status=[RunStatus.COMPLETED], built_in=False), "perdure_runs_of_program"),
        (RunFilter(), "PRIMARY KEY (run_id<?)"),
        (RunFilter(tags={"a": "b"}, floor="r3"), "PRIMARY KEY (run_id>? AND run_id<?)"),
        (RunFilter(asking=True), "perdure_runs_by_approvals"),
        (RunFilter(asking=True, status=[RunStatus.PARKED, RunStatus.WAITING]), "perdure_runs_by_approvals"),
    ],
)
async def test_few_among_many_are_found_by_their_index(
    store: SqliteStore, filter: RunFilter, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = await plan_of(store, lambda runs: runs.list(filter), monkeypatch)
    assert any(index in line for line in plan), plan
    assert not any("TEMP B-TREE" in line for line in plan), plan


@pytest.mark.parametrize(
    "ask",
    [lambda runs: runs.counts(9), lambda runs: runs.count_ended(Span(0.0, 9.0, 3), None, 9)],
    ids=["counts", "ended"],
)
async def test_runs_are_counted_in_an_index_alone(
    store: SqliteStore, ask: Callable[[SqlRuns], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = [line for line in await plan_of(store, ask, monkeypatch) if " r " in f"{line} " or "perdure_runs" in line]
    assert plan
    assert all("COVERING INDEX perdure_runs_by_outcome" in line for line in plan), plan


async def test_parked_runs_are_listed_newest_first_and_page_by_page(store: SqliteStore) -> None:
    runs = [History(f"r{n:02}") for n in range(30)]
    await write_all(store, *(run.begin_as("a") for run in runs))
    await write_all(store, *(run.then(parked() if n % 3 == 0 else finished()) for n, run in enumerate(runs)))
    found: list[str] = []
    cursor = None
    while page := await store.runs.list(RunFilter(status=[RunStatus.PARKED], limit=4, cursor=cursor)):
        found += [row.run_id for row, _ in page]
        cursor = found[-1]
    assert found == [f"r{n:02}" for n in range(27, -1, -3)]


async def test_a_statement_is_prepared_once_whatever_its_values(store: SqliteStore) -> None:
    runs = [History(f"r{number}") for number in range(4)]
    prepared: list[int] = []

    def authorize(part: int, *names: str | None) -> int:
        prepared.append(part)
        return int(apsw.SQLITE_OK)

    for connection in (store._database._writer, store._database._reader):
        assert connection is not None
        # Called for each part of a statement while it is prepared, and never while it is executed.
        connection.authorizer = authorize
    counts = []
    for run in runs:
        prepared.clear()
        await write_all(store, run.begin())
        assert await store.runs.find(run.run_id) is not None
        assert await store.runs.find(f"no-{run.run_id}") is None
        counts.append(len(prepared))
    assert counts[0] > 0
    assert counts[1:] == [0, 0, 0]
