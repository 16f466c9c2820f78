"""What the server says about itself, the store, and what executes runs."""

from __future__ import annotations

import asyncio

import httpx2 as httpx

from perdure import Engine, call, connect
from perdure.server.problems import MEDIA_TYPE
from tests.patience import PATIENCE
from tests.server.conftest import client_of
from tests.server.programs import quick, waits


async def test_me_says_who_asks_and_what_there_is(engine: Engine, http: httpx.AsyncClient) -> None:
    me = (await http.get("me")).json()
    assert (me["name"], me["signed_in"], me["store"], me["executes"]) == ("local", "machine", "memory", True)
    assert {"source", "bulk"} <= set(me["features"])
    async with connect(engine.store) as client, client_of(client.asgi()) as there:
        me = (await there.get("me")).json()
        assert (me["executes"], me["features"]) == (False, ["bulk"])


async def test_health_needs_nobody_to_sign_in(engine: Engine) -> None:
    async with client_of(engine.asgi(access=lambda request: None)) as http:
        assert [(await http.get(f"health/{what}")).status_code for what in ("live", "ready")] == [200, 200]
        assert (await http.get("me")).status_code == 401


async def test_a_server_whose_engine_is_closed_is_alive_and_not_ready() -> None:
    async with client_of(Engine("memory://").asgi()) as http:
        assert (await http.get("health/live")).json() == {"status": "ok"}
        ready = await http.get("health/ready")
        assert (ready.status_code, ready.json()["code"], ready.headers["retry-after"]) == (503, "engine_not_open", "2")
        assert (await http.get("runs")).status_code == 503


async def test_a_client_is_opened_when_it_is_needed(engine: Engine) -> None:
    async with client_of(connect(engine.store).asgi()) as http:
        assert (await http.get("runs")).status_code == 200


async def test_queues_are_shown_with_their_keys(engine: Engine, http: httpx.AsyncClient) -> None:
    for key in ("a", "a", "b"):
        _ = await engine.start(waits(), queue="q", key=key)
    async with asyncio.timeout(PATIENCE):
        while (await http.get("queues")).json()["queues"][0]["running"] < 3:
            await asyncio.sleep(0)
    (queue,) = (await http.get("queues")).json()["queues"]
    assert (queue["name"], queue["queued"], queue["running"]) == ("q", 0, 3)
    keys = (await http.get("queues/q")).json()["keys"]
    assert [(key["key"], key["running"]) for key in keys] == [("a", 2), ("b", 1)]
    assert (await http.get("queues/nothing")).json()["queue"]["queued"] == 0


async def test_a_lock_is_seen_and_taken_away(engine: Engine, http: httpx.AsyncClient) -> None:
    _ = await engine.locks.acquire("stock/7", "me", ttl=600)
    (held,) = (await http.get("locks")).json()["locks"]
    assert (held["key"], held["owner"]) == ("stock/7", "me")
    assert (await http.delete("locks/stock/7")).json()["locks"] == [held]
    assert (await http.delete("locks/stock/7")).json() == {"locks": []}


async def test_orchestrators_and_programs_are_known_elsewhere_too(engine: Engine) -> None:
    async with connect(engine.store) as client, client_of(client.asgi()) as http:
        (one,) = (await http.get("orchestrators")).json()["orchestrators"]
        assert (one["name"], one["alive"]) == (engine.name, True)
        programs = {one["name"]: one for one in (await http.get("programs")).json()["programs"]}
        assert programs["quick"]["orchestrators"] == [engine.name]
        assert programs["quick"]["here"] is False
        found = (await http.get("programs/quick")).json()
        assert found["parameters"]["properties"]["amount"]["type"] == "integer"
        assert found["parameters"]["required"] == ["amount"]
        assert (await http.get("programs/nothing")).json()["code"] == "no_such_program"


async def test_the_parameters_of_a_program_are_a_schema_with_defaults(engine: Engine, http: httpx.AsyncClient) -> None:
    found = (await http.get("programs/shaped")).json()
    schema = found["parameters"]
    assert schema["required"] == ["item"]
    assert schema["properties"]["item"] == {"$ref": "#/$defs/Item"}
    assert schema["properties"]["count"] == {"type": "integer", "default": 2}
    assert schema["properties"]["others"]["items"] == {"$ref": "#/$defs/Item"}
    assert schema["$defs"]["Item"]["properties"]["price"] == {"type": "number"}
    assert found["source"][0]["name"] == "shaped"


async def test_the_doctor_looks_at_the_store(engine: Engine, http: httpx.AsyncClient) -> None:
    _ = await engine.run(quick(1))
    found = (await http.get("doctor")).json()
    assert found["ok"] is True
    assert {"store", "orchestrators", "open runs", "programs"} <= {check["name"] for check in found["checks"]}


async def test_an_address_that_is_none_is_a_problem(http: httpx.AsyncClient) -> None:
    missing = await http.get("nothing/at/all")
    assert (missing.status_code, missing.headers["content-type"]) == (404, MEDIA_TYPE)
    wrong = await http.post("runs/counts")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")


async def test_the_doctor_names_the_programs_that_people_wrote_and_none_of_perdure(
    engine: Engine, http: httpx.AsyncClient
) -> None:
    async with connect(engine.store) as elsewhere:
        _ = await elsewhere.start(call("of_nobody"), id="stray")
        (found,) = [one for one in (await http.get("doctor")).json()["checks"] if one["name"] == "programs"]
    assert found["verdict"] == "warn"
    assert "quick" in found["fix"]
    assert "perdure." not in found["fix"]
