"""Journals written by somebody who knows how: their checksums are right. Refused, and no other run is affected."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure import Engine, PerdureError, RunStatus, step, wait_signal, workflow
from perdure.stores.sqlshared.entries import checksum
from tests.engine.harness import AT_ONCE, PATIENCE

DEEP = 200_000


@step
async def work(n: int) -> int:
    return n


@workflow
async def order(n: int) -> int:
    await work(n)
    await wait_signal("go")
    return n


FORGERIES: dict[str, tuple[str, str]] = {
    "a value nested deeply": ('"value":1', '"value":' + "[" * DEEP + "]" * DEEP),
    "objects nested deeply": ('"value":1', '"value":' + '{"a":' * DEEP + "1" + "}" * DEEP),
    "brackets without an end": ('"value":1', '"value":' + "[" * DEEP),
    "events nested deeply": (r"\A.*\Z", "[" * DEEP + "]" * DEEP),
    "another event": ("StepSucceeded", "Nonsense"),
    "an outcome of what never began": ('"op":"work:0"', '"op":"never:0"'),
    "more events than there are": (r"\]\Z", ',{"type":"RunPaused"}]'),
    "no events": (r"\A.*\Z", "[]"),
    "a number without an end": ('"value":1', '"value":' + "9" * 2_000_000),
    "an end in the middle": (
        '{"type":"WaitOpened"',
        '{"type":"RunFinished","status":"completed"},{"type":"WaitOpened"',
    ),
}


def forge(path: Path, run_id: str, pattern: str, text: str) -> None:
    """Change the last entry of a journal behind the store's back, and its checksum with it."""
    db = apsw.Connection(str(path))
    rows: list[Any] = db.execute(
        "select seq, at, events from perdure_journal where run_id = ? order by seq desc limit 1", (run_id,)
    ).fetchall()
    seq, at, events = rows[0]
    changed, count = re.subn(pattern, lambda found: text, events, count=1, flags=re.DOTALL)
    assert count == 1
    db.execute(
        "update perdure_journal set events = ?, checksum = ? where run_id = ? and seq = ?",
        (changed, checksum(run_id, seq, at, changed.encode()), run_id, seq),
    )
    db.close()


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_forged_journal_is_refused_and_no_other_run_is_affected(tmp_path: Path, forgery: str) -> None:
    path = tmp_path / "runs.db"
    async with Engine(f"sqlite:///{path}", [order], recovery=AT_ONCE) as engine:
        for n in range(3):
            _ = await engine.start(order(n), id=f"order-{n}")
            async for entry in engine.follow(f"order-{n}"):
                if type(entry.event).__name__ == "WaitOpened":
                    break
        view = await engine.get("order-1")
        assert view is not None
    forge(path, view.run_id, *FORGERIES[forgery])
    async with Engine(f"sqlite:///{path}", [order], recovery=AT_ONCE) as engine:
        for n in (0, 2):
            _ = await engine.signal(f"order-{n}", "go")
            assert await (await engine.start(order(n), id=f"order-{n}")).result(PATIENCE) == n
        for look in (engine.get, engine.steps, engine.journal, engine.export, engine.fork):
            # Nothing but an error of perdure's own, if anything.
            with suppress(PerdureError):
                await look("order-1")
        with suppress(PerdureError):
            _ = await engine.signal("order-1", "go")
        after = {one.id: one.status for one in await engine.list()}
    assert (after["order-0"], after["order-2"]) == (RunStatus.COMPLETED, RunStatus.COMPLETED)
    assert after["order-1"] is not RunStatus.COMPLETED
