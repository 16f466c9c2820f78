"""Reading changes nothing, and an engine without the server imports nothing of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx2 as httpx
import pytest

from perdure import Engine, connect
from perdure.client.client import Client
from perdure.kernel.events import RunStatus
from perdure.ports.runs import RunFilter
from perdure.server import Tokens, app
from perdure.server.application import ROUTES
from perdure.server.routing import SSE, Route
from tests.patience import PATIENCE
from tests.server.conftest import client_of
from tests.server.listener import Listener
from tests.server.programs import PROGRAMS
from tests.server.test_contract import prepared

# Routes with another method that only compute.
COMPUTING = [route for route in ROUTES if not route.unsafe and route.method != "GET"]


def addresses(route: Route, names: dict[str, list[str]]) -> list[str]:
    """The path of a route for things that there are, and for one that there is not."""
    found = [route.path.replace(":path}", "}")]
    for name in route.parameters:
        values = [*names.get(name, ["x"]), "none"]
        if route.media == SSE and name == "run":
            values = names["ended"]
        found = [one.replace(f"{{{name}}}", value) for one in found for value in values]
    return found


async def read_all(http: httpx.AsyncClient, names: dict[str, list[str]]) -> dict[int, int]:
    """Send every GET and HEAD, pages too; how many answers there were of each status."""
    counts: dict[int, int] = {}
    for route in ROUTES:
        if route.method != "GET" or route.path == "events":
            continue
        for path in addresses(route, names):
            for method in ("GET", "HEAD"):
                answer = await http.request(method, path)
                counts[answer.status_code] = counts.get(answer.status_code, 0) + 1
                assert answer.status_code < 500, (path, answer.text)
                assert method == "GET" or not answer.content, path
    for page in ("", "runs", "assets/app.js", "answer/x", "answer/style.css", "favicon.ico"):
        answer = await http.get(f"../../{page}")
        counts[answer.status_code] = counts.get(answer.status_code, 0) + 1
    return counts


async def compute_all(http: httpx.AsyncClient, names: dict[str, list[str]]) -> None:
    """Send every request of another method that only computes."""
    capsule = await http.get(f"runs/{names['ended'][0]}/capsule")
    for route in COMPUTING:
        body = capsule.content if "capsule" in route.path else b"{}"
        answer = await http.request(route.method, route.path, content=body, headers={"Content-Type": route.takes})
        assert answer.status_code in (200, 409), answer.text


@pytest.mark.parametrize("guarded", [False, True])
async def test_no_get_changes_a_byte_of_the_store(tmp_path: Path, guarded: bool) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    async with Engine(url, PROGRAMS) as engine:
        names = await prepared(engine)
        issued = await engine._credentials.issue("token", "ann", may=["read", "run", "approve", "debug", "admin"])
    client: Client = connect(url)
    async with client:

        def stored() -> dict[str, bytes]:
            return {one.name: one.read_bytes() for one in tmp_path.iterdir() if not one.name.endswith("-shm")}

        flows = app(client, access=Tokens(client)) if guarded else client.asgi()
        headers = {"Authorization": f"Bearer {issued.text}"} if guarded else {}
        before = stored()
        async with client_of(flows, headers=headers) as http:
            counts = await read_all(http, names)
            if not guarded:  # the use of a token by another method is noted
                await compute_all(http, names)
        async with Listener(flows, "events", **{name.lower(): value for name, value in headers.items()}) as heard:
            await heard.until(lambda heard: "hello" in heard.kinds())
        assert sum(counts.values()) > 500
        assert counts[200] > 200
        assert stored() == before


async def test_no_get_commits_in_an_engine(engine: Engine) -> None:
    """With the code at hand more is done for an answer: runs are replayed."""
    names = await prepared(engine)
    async with asyncio.timeout(PATIENCE):
        while await engine.store.runs.list(RunFilter(status=[RunStatus.RUNNING, RunStatus.QUEUED])):
            await asyncio.sleep(0)
    before = engine.store.journal.commits  # type: ignore[attr-defined]
    heads = {id: await engine.store.journal.head(id) for id in names["run"]}
    async with client_of(engine.asgi()) as http:
        _ = await read_all(http, names)
        await compute_all(http, names)
    assert {id: await engine.store.journal.head(id) for id in names["run"]} == heads
    assert engine.store.journal.commits == before  # type: ignore[attr-defined]


WITHOUT = """
import asyncio, sys
import perdure

@perdure.step
async def one() -> int: return 1

@perdure.workflow
async def flow() -> int: return await one()

async def main():
    async with perdure.Engine("memory://", [flow]) as engine:
        assert (await engine.run(flow())).output == 1
        assert len(await engine.list()) == 1

asyncio.run(main())
heavy = {"starlette", "uvicorn", "anyio", "h11", "httptools", "opentelemetry", "prometheus_client", "cyclopts"}
found = heavy & {name.partition(".")[0] for name in sys.modules}
assert not found, found
assert not [name for name in sys.modules if name.startswith(("perdure.server", "perdure.cli."))]
"""


def test_an_engine_imports_nothing_of_the_server() -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr


def test_the_server_is_named_when_it_is_not_installed() -> None:
    """As where `perdure[server]` is not installed: Starlette cannot be imported."""
    hidden = "import sys; sys.modules['starlette'] = None\nimport perdure\nperdure.Engine('memory://', []).asgi()"
    ended = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, "UsageError: asgi() needs starlette" in ended.stderr) == (1, True), ended.stderr
    assert "pip install 'perdure[server]'" in ended.stderr
