"""Metrics over HTTP: from a server with its permission, and from the listener of a worker, whatever reaches it."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from perdure import Client, Engine, UsageError, step, workflow
from perdure.server import Access
from perdure.stores.open import open_store
from perdure.telemetry.listener import CONNECTIONS, Address, MetricsListener, address_of
from tests.engine.harness import AT_ONCE, PATIENCE
from tests.server.conftest import client_of

BASE = "https://flows.test/api/v1/"


@step
async def add(n: int) -> int:
    return n + 1


@workflow
async def count(n: int) -> int:
    return await add(n)


@pytest.mark.parametrize(("may", "status"), [(("metrics",), 200), (("read", "admin"), 403), ((), 403)])
async def test_a_server_gives_metrics_to_those_who_may_read_them(may: Sequence[str], status: int) -> None:
    async with Engine("memory://", [count], recovery=AT_ONCE) as engine:
        app = engine.asgi(access=lambda request: Access("prometheus", may), metrics=True)
        await engine.run(count(1))
        async with client_of(app, BASE) as http:
            answer = await http.get("metrics")
    assert answer.status_code == status
    if status == 200:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = {sample.name for family in parse(answer.text) for sample in family.samples}
        assert {"perdure_runs_started_total", "perdure_orchestrators"} <= found


async def test_a_server_without_metrics_has_no_such_route_and_counts_nothing() -> None:
    async with Engine("memory://", [count], recovery=AT_ONCE) as engine:
        async with client_of(engine.asgi(access=lambda request: Access("ann", ("metrics",))), BASE) as http:
            answer = await http.get("metrics")
        assert engine._telemetry.metrics is None
    assert (answer.status_code, answer.json()["code"]) == (404, "metrics_off")


async def test_a_server_that_executes_nothing_serves_what_the_store_knows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Engine(url, [count], recovery=AT_ONCE) as engine:
        await engine.run(count(1))
    async with Client(open_store(url)) as client:
        app = client.asgi(access=lambda request: Access("prometheus", ("metrics",)), metrics=True)
        async with client_of(app, BASE) as http:
            text = (await http.get("metrics")).text
    found = {sample.name for family in parse(text) for sample in family.samples}
    assert "perdure_store_bytes" in found
    assert "perdure_steps_in_flight" not in found


def test_another_value_than_a_truth_is_refused() -> None:
    with pytest.raises(UsageError, match=r"asgi\(metrics="):
        Client(open_store("memory://")).asgi(metrics="yes")  # type: ignore[arg-type]


# --- the listener of a worker ----------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(text: str = "perdure_steps_limit 1\n") -> AsyncIterator[MetricsListener]:
    async def read() -> str:
        if not text:
            raise ValueError("no figures")
        return text

    listener = MetricsListener(read)
    await listener.open(Address("127.0.0.1", 0))
    try:
        async with asyncio.timeout(PATIENCE):
            yield listener
    finally:
        await listener.close()


async def raw(listener: MetricsListener, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(listener.address.host, listener.address.port)
    writer.write(request)
    found = await reader.read()
    writer.close()
    return found


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /metrics HTTP/1.1", b"200"),
        (b"GET / HTTP/1.0", b"200"),
        (b"GET /metrics?x=1 HTTP/1.1", b"200"),
        (b"HEAD /metrics HTTP/1.1", b"200"),
        (b"POST /metrics HTTP/1.1", b"405"),
        (b"GET /other HTTP/1.1", b"404"),
        (b"\x00\xff", b"404"),
    ],
)
async def test_the_listener_answers(request_line: bytes, status: bytes) -> None:
    async with listening() as listener:
        answer = await raw(listener, request_line + b"\r\nHost: x\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.split()[1] == status
        assert f"Content-Length: {len(body)}".encode() in head or request_line.startswith(b"HEAD")
        assert (body == b"") == request_line.startswith(b"HEAD")


async def test_what_is_no_request_harms_nothing() -> None:
    async with listening() as listener:
        assert await raw(listener, b"x" * 100_000) == b""
        held = [await asyncio.open_connection("127.0.0.1", listener.address.port) for _ in range(CONNECTIONS - 1)]
        assert b"200 OK" in await raw(listener, b"GET /metrics HTTP/1.1\r\n\r\n")
        held += [await asyncio.open_connection("127.0.0.1", listener.address.port) for _ in range(9)]
        assert await held[-1][0].read() == b"", "one more than there may be is closed"
        for _, writer in held:
            writer.close()


async def test_figures_that_cannot_be_read_are_an_error_of_the_scrape() -> None:
    async with listening("") as listener:
        assert b"500 Internal" in await raw(listener, b"GET /metrics HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    ("text", "found"), [("127.0.0.1:9464", ("127.0.0.1", 9464)), ("[::1]:0", ("::1", 0)), ("host:1", ("host", 1))]
)
def test_an_address(text: str, found: tuple[str, int]) -> None:
    address = address_of(text)
    assert (address.host, address.port) == found
    assert str(address) == text


@pytest.mark.parametrize("text", ["9464", ":9464", "127.0.0.1", "127.0.0.1:http", "::1:9464", "127.0.0.1:70000", ""])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        address_of(text)


FLOWS = """
from perdure import step, workflow
@step
async def add(n: int) -> int: return n + 1
@workflow
async def count(n: int) -> int: return await add(n)
"""


def test_a_worker_serves_its_metrics(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(FLOWS)
    command = [sys.executable, "-m", "perdure", "worker", "flows.py", "--metrics", "127.0.0.1:0"]
    worker = subprocess.Popen([*command, "--store", "sqlite:///x.db"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        assert worker.stderr is not None
        said = ""
        for line in worker.stderr:
            said += line
            if " serves " in line:
                break
        found = re.search(r"metrics are at (http://127\.0\.0\.1:\d+/metrics)", said)
        assert found, said
        text = httpx.get(found[1], timeout=PATIENCE).text
        names = {sample.name for family in parse(text) for sample in family.samples}
        assert {"perdure_steps_limit", "perdure_orchestrators"} <= names
        wrong = subprocess.run(
            [*command[:-1], found[1].split("/")[2]], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
        )
        assert wrong.returncode != 0
        assert "--metrics: cannot listen on 127.0.0.1:" in wrong.stderr
        assert "Traceback" not in wrong.stderr
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=PATIENCE)
