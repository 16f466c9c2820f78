"""Mounted in the hosts that people have, behind proxies that take the prefix off or do not: nothing leads outside."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from urllib.parse import quote, urljoin, urlsplit

import httpx2 as httpx
import pytest
from fastapi import FastAPI

from perdure import Engine
from perdure.server import Access, pages
from perdure.server.pages import File
from tests.server.conftest import client_of
from tests.server.hosts import HOSTS
from tests.server.programs import long_text, order

HOST = "https://shop.test"

BUNDLE = {
    "index.html": b'<!doctype html><base href="./"><link rel="stylesheet" href="app.css?v=1"><script src="app.js">'
    b'</script><a href="runs">runs</a><a href="api/v1/openapi.json">api</a>',
    "app.js": b"export {}",
    "app.css": b"@import url('more.css');",
    "more.css": b"",
}


@pytest.fixture
def bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle in the place of the dashboard's."""
    media = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
    files = {name: File(name, data, media[name.rpartition(".")[2]], f'"{name}"') for name, data in BUNDLE.items()}
    monkeypatch.setattr(pages, "bundle", lambda: files)


class Links(HTMLParser):
    """The addresses in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.base, self.found = "", list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src", "action") and value is not None:
                if tag == "base":
                    self.base = value
                else:
                    self.found.append(value)


def links_of(address: str, answer: httpx.Response) -> list[str]:
    """Every address that an answer leads to, as a browser resolves it."""
    media, found = answer.headers.get("content-type", ""), list[str]()
    base = address
    if "location" in answer.headers:
        found.append(answer.headers["location"])
    if media.startswith("text/html"):
        links = Links(answer.text)
        base, found = urljoin(address, links.base), [*found, *links.found]
    elif media.startswith("text/css"):
        found += re.findall(r"url\('([^']+)'\)", answer.text)
    elif media.startswith("application/json"):
        base = address[: address.index("api/v1/") + len("api/v1/")]
        found += re.findall(r'"\$value":"([^"]+)"', answer.text)
    return [urljoin(base, one) for one in found]


@pytest.mark.parametrize("name", HOSTS)
async def test_a_crawl_finds_no_link_outside_of_the_prefix(engine: Engine, bundle: None, name: str) -> None:
    long, asked = await engine.run(long_text(20_000)), await engine.run(order(1), id="o", until="rest")
    host, prefix = HOSTS[name]
    application = host(engine.asgi(access=lambda request: Access("ann", {"read", "run", "admin", "debug"})))
    async with client_of(application, HOST) as http:
        made = await http.post(f"{prefix}api/v1/runs/{asked.run_id}/approvals/ship:0/links", json={"person": "ann"})
        begin = [
            *("", "runs", f"runs/{long.run_id}", f"runs/{long.run_id}/ops/{quote('a/b:0', safe='')}", "x/y/z/"),
            *(f"api/v1/runs/{long.run_id}", f"api/v1/runs/{long.run_id}/journal", "api/v1/runs", "api/v1/openapi.json"),
            made.json()["path"],
        ]
        pending, seen = [f"{HOST}{prefix}{path}" for path in begin], dict[str, int]()
        if name in ("django", "litestar"):  # the others redirect by themselves
            pending.append(f"{HOST}{prefix}".rstrip("/"))
        while pending:
            address = pending.pop()
            if address in seen:
                continue
            assert urlsplit(address).path.startswith(prefix.rstrip("/")), f"{address} is outside of {prefix}"
            answer = await http.get(address)
            seen[address] = answer.status_code
            assert answer.status_code in (200, 307), f"{address}: {answer.status_code} {answer.text[:200]}"
            pending += links_of(address, answer)
        assert {f"{HOST}{prefix}app.js", f"{HOST}{prefix}more.css", f"{HOST}{prefix}answer/style.css"} <= set(seen)
        assert any("/values/" in address for address in seen)


@pytest.mark.parametrize("name", HOSTS)
async def test_an_id_with_slashes_and_streams_work_under_every_prefix(engine: Engine, name: str) -> None:
    run = await engine.run(order(1), id="order/1 é%😀?", until="rest")
    host, prefix = HOSTS[name]
    async with client_of(host(engine.asgi(access=lambda request: Access("ann", {"read", "run"}))), HOST) as http:
        api = f"{prefix}api/v1/"
        found = await http.get(f"{api}runs/by-id", params={"id": "order/1 é%😀?"})
        assert found.json()["run_id"] == run.run_id
        op = await http.get(f"{api}runs/{run.run_id}/ops/{quote('charge:0', safe='')}")
        assert op.json()["path"] == "charge:0"
        assert (await http.post(f"{api}runs/{run.run_id}/cancel", json={})).json()["answer"] == "accepted"
        stream = await http.get(f"{api}runs/{run.run_id}/events")
        assert stream.text.endswith('"continued_as":null}\n\n')
        problem = await http.get(f"{api}nothing")
        assert json.loads(problem.text)["instance"] == "api/v1/nothing"


async def test_a_host_keeps_its_own_routes_and_errors(engine: Engine) -> None:
    host = FastAPI()

    @host.get("/orders")
    async def orders() -> dict[str, str]:
        return {"orders": "none"}

    host.mount("/flows", engine.asgi(access=lambda request: None))
    async with client_of(host, HOST) as http:
        assert (await http.get("/orders")).json() == {"orders": "none"}
        assert (await http.get("/nothing")).json() == {"detail": "Not Found"}
        assert (await http.get("/flows/api/v1/runs")).json()["code"] == "unauthorized"


async def test_a_lifespan_opens_the_engine_for_as_long_as_the_host_lives() -> None:
    engine = Engine("memory://")
    host = FastAPI(lifespan=engine.lifespan)
    host.mount("/flows", engine.asgi())
    async with client_of(host, "http://localhost") as http:
        assert (await http.get("/flows/api/v1/runs")).status_code == 503
        async with host.router.lifespan_context(host):
            assert (await http.get("/flows/api/v1/runs")).status_code == 200
        assert (await http.get("/flows/api/v1/runs")).status_code == 503
