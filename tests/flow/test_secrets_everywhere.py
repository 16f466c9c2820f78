"""Of a secret there is only the name, wherever a run is looked at: over HTTP, in pictures, views, capsules and logs."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, RunStatus, Telemetry, step, step_context
from perdure.cli.main import main
from perdure.flow import Flow
from perdure.server.application import ROUTES
from tests.flow.test_secrets import FORMS, NAME, VALUE
from tests.flow.writing import flow_of
from tests.server.conftest import client_of
from tests.telemetry.otel import Collected, installed

INNER = """
perdure: 1
name: inner
variables: {token: {secret: FLOW_SECRET}}
steps:
  - {id: deep, use: loud, with: {token: "${{ secrets.FLOW_SECRET }}"}, retry: {attempts: 2, initial: 0}, on_error: skip}
"""
OUTER = """
variables: {token: {secret: FLOW_SECRET}}
schemas: {Answer: {type: object}}
steps:
  - {id: elsewhere, use: "queue:desk/said", with: {token: "<${{ vars.token }}>"}, retry: {attempts: 1}, on_error: skip}
  - {id: inside, use: "flow:./inner.yaml", after: [elsewhere]}
  - {id: many, map: {over: [1, 2]}, use: quiet, with: {n: "${{ item }}", token: "${{ vars.token }}"}}
  - {id: say, use: quiet, with: {n: 3, token: "${{ secrets.FLOW_SECRET }}"}, lock: "lock-${{ run.id }}"}
  - {id: ask, use: approval, with: {request: "${{ steps.say }}", schema: {$ref: "#/schemas/Answer"}}, after: [inside]}
  - {id: end, use: loud, with: {token: "${{ vars.token }}"}, needs: [ask]}
"""


def said(token: str) -> None:
    step_context().emit({"is": token})
    raise ValueError(token, *FORMS)


def loud(token: str) -> None:
    try:
        raise KeyError(token)
    except KeyError as error:
        raise RuntimeError(f"in {token[:12]} and {token}") from error


def quiet(n: int, token: str) -> dict[str, Any]:
    step_context().emit(token)
    step_context().heartbeat(token)
    return {"n": n, "token": token, token: [token]}


def written(folder: Path) -> Flow:
    components = {"loud": loud, "quiet": quiet}
    flow_of(folder, INNER, "inner.yaml", components=components)
    return flow_of(folder, OUTER, components=components)


async def over_http(engine: Engine) -> str:
    """What every route answers that reads a run."""
    found = ""
    async with client_of(engine.asgi(metrics=True)) as http:
        run = (await http.get("runs/by-id", params={"id": "r"})).json()
        run_id = run.get("run_id") or run["run"]["run_id"]
        last = (await engine.journal("r"))[-1].seq
        for route in ROUTES:
            if route.method != "GET" or route.path in ("events", "runs/{run}/events", "runs/{run}/stream"):
                continue
            path = route.path.replace("{run}", run_id).replace("{other}", run_id).replace("{name}", "test")
            for op in ("end:0", "say:0", "many:0", "inside:0/deep:0"):
                for seq in range(last + 1) if "{seq}" in path else (0,):
                    to = path.replace("{path:path}", op).replace("{seq}", str(seq)).replace("{field:path}", "value")
                    answer = await http.get(to, params={"id": "r"})
                    found += answer.text
                if "{" not in path.replace("{seq}", ""):
                    break
        async with http.stream("GET", f"runs/{run_id}/stream", params={"follow": "false"}) as stream:
            async for line in stream.aiter_lines():
                found += line
    return found


def in_views(file: Path) -> str:
    database = sqlite3.connect(file)
    try:
        names = [name for (name,) in database.execute("select name from sqlite_schema where type in ('table', 'view')")]
        found = [database.execute(f'select * from "{name}"').fetchall() for name in names]  # noqa: S608 - its own names
        return repr(found)
    finally:
        database.close()


async def test_a_secret_is_nowhere_that_a_run_is_looked_at(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(NAME, VALUE)
    caplog.set_level(logging.DEBUG)
    spans = installed(monkeypatch, Collected())
    flow, file = written(tmp_path), tmp_path / "runs.db"
    store = f"sqlite:///{file}"
    async with Engine(store, [flow], steps=[step(queue="desk")(said)], telemetry=Telemetry(spans=True)) as engine:
        assert (await engine.run(flow(), id="r")).interrupt is not None
        await engine.approve("r", "ask", {"ok": True})
        result = await engine.handle("r").outcome()
        assert result.status is RunStatus.FAILED
        seen = {
            "result": repr(result),
            "http": await over_http(engine),
            "diagram": await engine.diagram("r"),
            "dot": await engine.diagram("r", format="dot"),
        }
        capsule = tmp_path / "r.perdure"
        capsule.write_bytes(await engine.export("r"))
        for run in await engine.list():
            seen[f"journal of {run.id}"] = repr(await engine.journal(run.run_id))
    seen["views"] = in_views(file)
    other = f"sqlite:///{tmp_path}/other.db"
    capsys.readouterr()
    commands = [
        ["runs", "show", "r", "--store", store],
        ["runs", "show", "r", "--json", "--store", store],
        ["runs", "steps", "r", "--store", store],
        ["runs", "journal", "r", "--store", store],
        ["runs", "inspect", "r", "--store", store],
        ["stream", "r", "--store", store],
        ["flow", "show", "r", "--store", store],
        ["import", str(capsule), "--store", other],
        ["runs", "show", "r", "--store", other],
        ["runs", "journal", "r", "--store", other],
    ]
    for command in commands:
        assert await asyncio.to_thread(main, command) in (0, 1), command
        shown = capsys.readouterr()
        seen[" ".join(command[:4])] = shown.out + shown.err
    seen["log"] = caplog.text
    seen["spans"] = "".join(span.to_json() for span in spans.spans)
    seen["files"] = "".join(one.read_bytes().decode("latin-1") for one in tmp_path.glob("*.db*"))
    leaks = {where: [form for form in [*FORMS, VALUE[:12]] if form in text] for where, text in seen.items()}
    assert {where: found for where, found in leaks.items() if found} == {}
    for where in ("result", "http", "journal of r", "views", "spans"):
        assert seen[where]
    assert "***" in seen["http"]
    assert "***" in seen["views"]
