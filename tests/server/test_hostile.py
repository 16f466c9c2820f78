"""Texts and numbers that no program sends, in every place of every request, on every store: none is a bug."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from perdure import Engine
from perdure.server.application import ROUTES
from perdure.server.problems import MEDIA_TYPE
from perdure.server.routing import BYTES, JSON, KIB, SSE, Route
from tests.server.conftest import client_of
from tests.server.programs import PROGRAMS
from tests.server.test_contract import prepared

TEXTS: list[Any] = [
    *(
        "",
        "\x00",
        "a\x00b",
        "\ud800",
        "\u2028",
        "../../etc/passwd",
        "%",
        "a" * 5000,
        "'; --",
        "${{7*7}}",
        "null",
        "-1",
        "1e309",
    ),
    *("0x10", "9" * 40, "NaN", "\U0010ffff", "\r\nSet-Cookie: a=b", "{{7*7}}", "[", "runs:0/", "a:0", "$..*", "true"),
]
NUMBERS: list[Any] = [-1, 0, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e308, -1e308, 1e-320, 0.1]
OTHERS: list[Any] = [
    None,
    True,
    [],
    {},
    [[]],
    {"": None},
    [None],
    {"\x00": "\x00"},
    "2026-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z",
]
OTHERS += ["9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-23:59", "1969-12-31T23:59:59Z"]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        yield request.getfixturevalue("postgres_url")
    else:
        yield "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/flows.db"


@pytest.fixture
async def engine(url: str) -> AsyncIterator[Engine]:
    async with Engine(url, PROGRAMS) as engine:
        yield engine


def fields_of(route: Route) -> tuple[list[str], dict[str, Any]]:
    """The names of the query parameters of a route, and the schema of its body."""
    schema = {} if route.body is None else msgspec.json.schema(route.body)
    if "$ref" in schema:
        schema = schema["$defs"][schema["$ref"].rpartition("/")[2]] | {"$defs": schema["$defs"]}
    return list(route.query.__struct_fields__), schema


def addressed(route: Route, names: dict[str, list[str]], hostile: str = "", at: str = "") -> str:
    path = route.path.replace(":path}", "}")
    for name in route.parameters:
        value = (
            hostile
            if name == at
            else quote((names["ended"] if route.media == SSE and name == "run" else names.get(name, ["x"]))[0])
        )
        path = path.replace(f"{{{name}}}", value)
    return path


def bytes_of(value: Any) -> bytes:
    return json.dumps(value).encode()


GOOD = {
    "program": "quick",
    "kwargs": {"amount": 1},
    "action": "cancel",
    "ids": ["x"],
    "every": 3600,
    "step": "charge:0",
}
GOOD |= {"person": "ann", "token": "x", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T01:00:00Z"}


def requests(names: dict[str, list[str]]) -> Iterator[tuple[str, str, bytes | None]]:
    for route in ROUTES:
        if route.path == "events":
            continue
        query, schema = fields_of(route)
        properties: dict[str, Any] = schema.get("properties", {})
        good = {
            name: GOOD[name]
            for name in properties
            if name in GOOD and (name in schema.get("required", ()) or name in ("kwargs", "every", "ids"))
        }
        body = (
            bytes_of(good) if route.takes == JSON and route.body is not None else b"" if route.takes == BYTES else None
        )
        for name in route.parameters:
            for text in TEXTS:
                yield (
                    route.method,
                    addressed(route, names, quote(text.encode("utf-8", "surrogatepass"), safe="") or "%20", name),
                    body,
                )
        for name in query:
            for value in [*TEXTS, *NUMBERS, "2026-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"]:
                text = str(value) if not isinstance(value, str) else value
                yield (
                    route.method,
                    f"{addressed(route, names)}?{name}={quote(text.encode('utf-8', 'surrogatepass'), safe='')}",
                    body,
                )
        for name in properties:
            for value in [*TEXTS, *NUMBERS, *OTHERS]:
                yield route.method, addressed(route, names), bytes_of({**good, name: value})


async def storm(engine: Engine, every: int) -> int:
    """Send every so many-th of the requests; how many were sent."""
    names = await prepared(engine)
    bad: list[str] = []
    count = 0
    async with client_of(engine.asgi()) as http:
        for number, (method, path, body) in enumerate(requests(names)):
            if number % every:
                continue
            media = {} if body is None else {"Content-Type": BYTES if path.startswith("capsules") else JSON}
            answer = await http.request(method, path, content=body, headers=media)
            count += 1
            problem = answer.status_code < 400 or answer.headers["content-type"] == MEDIA_TYPE
            if answer.status_code >= 500 or not problem or len(answer.content) > 64 * KIB:
                bad.append(f"{method} {path[:150]} {(body or b'')[:150]!r}: {answer.status_code} {answer.text[:300]}")
    assert not bad, f"{len(bad)}:\n" + "\n".join(bad[:40])
    return count


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
async def test_what_no_program_sends_is_a_clear_problem(engine: Engine) -> None:
    assert await storm(engine, 7) > 900


@pytest.mark.soak
@pytest.mark.parametrize("url", ["memory", "sqlite", "postgres"], indirect=True)
async def test_nothing_that_no_program_sends_is_a_bug(engine: Engine) -> None:
    assert await storm(engine, 1) > 6000
