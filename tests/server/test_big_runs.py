"""Runs of many steps: their pages come in slices, and a page has what was known when it began."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2 as httpx
import msgspec
import pytest
from msgspec import Raw

from perdure import Engine
from perdure.kernel.events import Batch, RunStarted, StepStarted
from perdure.server import application, op_table, service
from perdure.server.op_table import OpTable
from perdure.server.ops import SLICES
from tests.server.programs import looping

STEPS = 1000


def table_of(ops: int) -> OpTable:
    """A table of steps that have started."""
    table = OpTable("r1")
    started = RunStarted("p", "1", "r1", Raw(b"{}"))
    table.feed([Batch(0, 0.0, [started, *(StepStarted(f"s:{n}") for n in range(ops))])])
    return table


async def test_a_page_has_what_was_known_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream goes on from its `next_seq`: what another request reads meanwhile is not skipped."""
    monkeypatch.setattr(op_table, "SLICE", 10)
    table = table_of(100)
    making = asyncio.create_task(table.page("", 0, 0, 1000, complete=True))
    await asyncio.sleep(0)
    table.feed([Batch(101, 1.0, [StepStarted(f"late:{n}") for n in range(50)])])
    page = await making
    assert (page.next_seq, page.total, page.next) == (101, 100, None)
    assert page.path == [f"s:{n}" for n in range(100)]


async def walked(http: httpx.AsyncClient, run_id: str, **query: Any) -> tuple[list[str], int]:
    """All ops of a run, page by page, and how many pages there were."""
    paths, pages, after = list[str](), 0, 0
    while True:
        page = (await http.get(f"runs/{run_id}/ops", params={"after": after, **query})).json()
        pages += 1
        paths += page["path"]
        assert len(page["number"]) == len(page["status"]) == len(page["group"]) == len(page["due"])
        if page["next"] is None:
            assert page["complete"]
            return paths, pages
        assert page["next"] > after
        after = page["next"]


@pytest.mark.parametrize("query", [{}, {"limit": 300}, {"since": 1}], ids=str)
async def test_pages_have_each_op_once_also_before_the_journal_is_read(
    engine: Engine, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, query: dict[str, int]
) -> None:
    monkeypatch.setattr(service, "SLICE", 5)  # a request reads 200 slices: a thousand events of two thousand
    run = await engine.run(looping(STEPS))
    paths, pages = await walked(http, run.run_id, **query)
    assert paths == [f"charge:{n}" for n in range(STEPS)]
    assert pages > 1
    assert SLICES * 5 < STEPS * 2
    assert (await http.get(f"runs/{run.run_id}/ops/charge:{STEPS - 1}")).json()["status"] == "succeeded"


async def test_an_answer_in_slices_is_the_same_json(monkeypatch: pytest.MonkeyPatch) -> None:
    page = await table_of(50).page("", 0, 0, 1000, complete=True)
    whole = await application.encoded(page)
    for size in (1, 7, 49, 50, 51):
        monkeypatch.setattr(application, "SLICE", size)
        assert await application.encoded(page) == whole == msgspec.json.encode(page)
