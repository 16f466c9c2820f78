"""Capsules over HTTP: exported, looked at without a trace, imported."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from perdure import Engine
from perdure.server import viewed_capsules
from tests.server.conftest import client_of
from tests.server.listener import Listener
from tests.server.programs import PROGRAMS, long_text, order

FILE = {"Content-Type": "application/octet-stream"}


async def test_a_capsule_is_looked_at_like_a_run_and_stored_nowhere(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(order(3), id="order/3", until="rest")
    capsule = await http.get(f"runs/{run.run_id}/capsule")
    assert "order_3.capsule" in capsule.headers["content-disposition"]
    async with Engine("memory://", PROGRAMS) as other, client_of(other.asgi()) as there:
        at = (await there.post("capsules/view", content=capsule.content, headers=FILE)).json()["run"]
        seen = (await there.get(f"runs/{at}")).json()
        here = (await http.get(f"runs/{run.run_id}")).json()
        assert (seen["id"], seen["status"], seen["state"]) == ("order/3", "waiting", {"phase": "asked"})
        assert {**seen, "why": None} == {**here, "why": None}
        for part in ("ops", "journal", "ops/charge:0"):
            mine, theirs = await http.get(f"runs/{run.run_id}/{part}"), await there.get(f"runs/{at}/{part}")
            assert mine.json() == theirs.json()
        source = (await there.get(f"runs/{at}/source")).json()
        assert source["tasks"][0]["frames"][0]["variables"] == {"amount": "3", "total": "6"}
        refused = await there.post(f"runs/{at}/cancel")
        assert (refused.status_code, refused.json()["code"]) == (409, "only_viewed")
        assert (await there.get("runs")).json()["runs"] == []
        assert (await there.get(f"runs/{run.run_id}")).status_code == 404


@pytest.mark.parametrize("what", ["events", "stream"])
async def test_a_stream_of_an_unfinished_run_in_a_capsule_ends_where_the_capsule_does(
    engine: Engine, http: httpx.AsyncClient, what: str
) -> None:
    run = await engine.run(order(3), until="rest")
    capsule, server = await http.get(f"runs/{run.run_id}/capsule"), engine.asgi()
    async with client_of(server) as there:
        at = (await there.post("capsules/view", content=capsule.content, headers=FILE)).json()["run"]
    async with Listener(server, f"runs/{at}/{what}") as heard:
        await heard.until(lambda heard: heard.ended)
    assert heard.events[-1][1:] == ("end", {"status": "waiting"} | ({"continued_as": None} if what == "events" else {}))
    entries = [id for id, kind, _ in heard.events if kind == "entry"]
    assert entries == ([str(one.seq) for one in await engine.journal(run.run_id)] if what == "events" else [])


async def test_large_values_of_a_capsule_are_had_by_their_url(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(long_text(300_000))
    capsule = (await http.get(f"runs/{run.run_id}/capsule")).content
    at = (await http.post("capsules/view", content=capsule, headers=FILE)).json()["run"]
    output = (await http.get(f"runs/{at}")).json()["output"]
    assert output["$value"] == f"runs/{at}/values/run/output"
    assert len((await http.get(output["$value"])).content) == output["bytes"] == 300_002


async def test_a_capsule_that_the_server_has_forgotten_is_sent_again(
    engine: Engine, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewed_capsules, "KEPT", 1)
    runs = [await engine.run(order(number), until="rest") for number in range(2)]
    files = [(await http.get(f"runs/{run.run_id}/capsule")).content for run in runs]
    first, _ = [(await http.post("capsules/view", content=file, headers=FILE)).json()["run"] for file in files]
    gone = await http.get(f"runs/{first}")
    assert (gone.status_code, gone.json()["code"]) == (404, "no_such_view")
    assert (await http.post("capsules/view", content=files[0], headers=FILE)).json()["run"] == first
    assert (await http.get(f"runs/{first}")).status_code == 200


async def test_a_capsule_is_imported(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(order(3), until="rest")
    capsule = (await http.get(f"runs/{run.run_id}/capsule", params={"redact": "$.amount"})).content
    async with Engine("memory://", PROGRAMS) as other, client_of(other.asgi()) as there:
        imported = await there.post("capsules", content=capsule, headers=FILE)
        assert (imported.status_code, imported.json()["status"], imported.json()["parked"]) == (
            201,
            "parked",
            "redacted",
        )
        assert imported.json()["input"] == {"amount": 0}


async def test_what_is_no_capsule_is_refused(http: httpx.AsyncClient) -> None:
    for path in ("capsules", "capsules/view"):
        refused = await http.post(path, content=b"nothing", headers=FILE)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_capsule")
