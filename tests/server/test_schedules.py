"""Schedules over HTTP."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import httpx2 as httpx
import msgspec

from perdure import Engine
from perdure.kernel.events import SignalReceived
from tests.patience import PATIENCE
from tests.server.programs import quick

NIGHTLY = {"program": "quick", "kwargs": {"amount": 1}, "cron": "0 3 * * *"}


async def test_a_schedule_is_made_changed_and_deleted(http: httpx.AsyncClient) -> None:
    made = await http.put("schedules/nightly", json=NIGHTLY)
    assert (made.status_code, made.json()["cron"], made.json()["input"]) == (201, "0 3 * * *", {"amount": 1})
    changed = await http.put("schedules/nightly", json={**NIGHTLY, "cron": "0 4 * * *", "tags": {"a": "b"}})
    assert (changed.status_code, changed.json()["cron"], changed.json()["tags"]) == (200, "0 4 * * *", {"a": "b"})
    (listed,) = (await http.get("schedules")).json()["schedules"]
    assert listed == (await http.get("schedules/nightly")).json()
    assert (await http.delete("schedules/nightly")).json()["answer"] == "accepted"
    assert (await http.get("schedules/nightly")).json()["code"] == "no_such_schedule"
    assert (await http.get("schedules")).json() == {"schedules": []}


async def test_an_id_of_a_schedule_may_have_slashes(http: httpx.AsyncClient) -> None:
    assert (await http.put("schedules/shop/é%20nightly", json=NIGHTLY)).json()["id"] == "shop/é nightly"
    assert len((await http.get("schedules/shop/é%20nightly/next", params={"count": 3})).json()["next"]) == 3
    assert (await http.get("schedules/shop/é%20nightly")).json()["id"] == "shop/é nightly"


async def test_a_schedule_is_paused_and_resumed(http: httpx.AsyncClient) -> None:
    _ = await http.put("schedules/s", json=NIGHTLY)
    _ = await http.post("schedules/s/pause", json={"reason": "holidays"})
    assert (await http.get("schedules/s")).json()["paused"] is True
    _ = await http.post("schedules/s/resume")
    assert (await http.get("schedules/s")).json()["paused"] is False


async def test_a_trigger_that_is_sent_again_starts_one_run(engine: Engine, http: httpx.AsyncClient) -> None:
    _ = await http.put("schedules/s", json=NIGHTLY)
    key = {"Idempotency-Key": "once"}
    runs = [(await http.post("schedules/s/trigger", headers=key)).json()["id"] for _ in range(2)]
    assert runs[0] == runs[1]
    handle = engine.handle(runs[0], quick)
    async with asyncio.timeout(PATIENCE):
        while await engine.get(runs[0]) is None:  # the schedule starts it
            await asyncio.sleep(0)
    assert await handle.result() == 2
    assert (await http.get("schedules/s")).json()["fired"] == 1


async def test_ticks_of_the_past_are_filled_in(http: httpx.AsyncClient) -> None:
    _ = await http.put("schedules/s", json={**NIGHTLY, "cron": None, "every": 3600, "overlap": "allow"})
    end = datetime.now(UTC)
    start = end - timedelta(hours=3)
    times = {"start": start.isoformat(), "end": end.isoformat()}
    assert len((await http.post("schedules/s/backfill", json=times)).json()["ids"]) == 3
    naive = {"start": "2026-01-01T00:00:00", "end": end.isoformat()}
    assert (await http.post("schedules/s/backfill", json=naive)).status_code == 422


async def test_a_schedule_that_can_never_fire_is_refused(http: httpx.AsyncClient) -> None:
    wrong = await http.put("schedules/s", json={**NIGHTLY, "cron": "0 0 30 2 *"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_request")


async def test_a_backfill_that_is_sent_again_counts_once(engine: Engine, http: httpx.AsyncClient) -> None:
    _ = await http.put("schedules/s", json={**NIGHTLY, "cron": None, "every": 3600, "overlap": "allow"})
    end = datetime.now(UTC)
    times = {"start": (end - timedelta(hours=3)).isoformat(), "end": end.isoformat()}
    key = {"Idempotency-Key": "past"}
    told = [(await http.post("schedules/s/backfill", json=times, headers=key)).json() for _ in range(2)]
    assert [one["duplicate"] for one in told] == [False, True]
    assert told[0]["ids"] == told[1]["ids"]
    # The same key for another action is another message.
    fired = [(await http.post("schedules/s/trigger", headers=key)).json() for _ in range(2)]
    assert [one["duplicate"] for one in fired] == [False, True]
    assert (await http.post("schedules/s/trigger")).json()["duplicate"] is False
    (row,) = await engine.list(program="perdure.schedule")
    sent = [one.event for one in await engine.journal(row.id) if isinstance(one.event, SignalReceived)]
    controls = [msgspec.json.decode(one.payload) for one in sent]
    assert [one["type"] for one in controls] == ["Backfill", "Trigger", "Trigger"]


async def test_who_changes_a_schedule_is_in_its_journal(engine: Engine, http: httpx.AsyncClient) -> None:
    _ = await http.put("schedules/s", json={**NIGHTLY, "pause": True})
    (row,) = await engine.list(program="perdure.schedule")
    end = datetime.now(UTC)
    times = {"start": (end - timedelta(days=2)).isoformat(), "end": end.isoformat()}
    for what, body in (("pause", {"reason": "x"}), ("resume", {}), ("trigger", {}), ("backfill", times)):
        assert (await http.post(f"schedules/s/{what}", json=body)).status_code == 200
    _ = await http.put("schedules/s", json={**NIGHTLY, "cron": "0 5 * * *"})
    sent = [one.event for one in await engine.journal(row.id) if isinstance(one.event, SignalReceived)]
    controls = [msgspec.json.decode(one.payload) for one in sent]
    assert [(one["type"], one["by"]) for one in controls] == [
        (name, "local") for name in ("Pause", "Resume", "Trigger", "Backfill", "Change")
    ]
    assert row.tags["by"] == "local"
    _ = await http.delete("schedules/s")
    assert (await engine.get(row.id)).reason == "the schedule was deleted by local"  # type: ignore[union-attr]
