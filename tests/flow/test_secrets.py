"""Secrets are names in all that is kept of a run, however a step tries to say them."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import logging
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from perdure import Engine, Recovery, bail, step, step_context
from perdure.flow import Flow
from perdure.kernel.history.capsule import decode_capsule
from tests.engine import cpu_steps
from tests.flow.test_http import serving
from tests.flow.writing import flow_of

NAME = "FLOW_SECRET"
VALUE = 's3cr3t/+ &x"y\\ü\nsecond line'
FORMS = [
    VALUE,
    repr(VALUE)[1:-1],
    json.dumps(VALUE)[1:-1],
    json.dumps(json.dumps(VALUE))[3:-3],
    urllib.parse.quote(VALUE),
    urllib.parse.quote_plus(VALUE, safe=""),
    base64.b64encode(VALUE.encode()).decode()[:-4],
    repr(VALUE.encode())[2:-1],
    "second line",
]


@dataclass
class Login:
    user: str
    password: str


class Held:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Held({self.text})"


class Loud(Exception):
    def __init__(self, held: Held) -> None:
        super().__init__("bad")
        self.held, self.more = held, {"deep": [held.text, {held.text: 1}]}

    def __str__(self) -> str:
        return f"no entry for {self.__dict__.get('held')}"


def returned(secret: str) -> Any:
    return {"a": [secret, {secret: (f"<{secret}>", secret.encode())}], "set": {secret}, "login": Login("u", secret)}


def emitted(secret: str) -> list[int]:
    context = step_context()
    context.emit({"chunk": secret})
    context.heartbeat({"at": secret})
    return [1]


def yielded(secret: str) -> Iterator[str]:
    yield from (f"{form} of {number}" for number, form in enumerate(FORMS))


async def ayielded(secret: str) -> Any:
    yield secret


def raised(secret: str) -> None:
    try:
        raise KeyError(secret)
    except KeyError as error:
        error.add_note(secret)
        raise Loud(Held(secret)) from error


async def grouped(secret: str) -> None:
    raise ExceptionGroup(secret, [ValueError(*FORMS), OSError(2, "no file", secret)])


def bailed(secret: str) -> None:
    bail(reason=f"because of {secret}", output={"is": secret})


def written(secret: str) -> str:
    return " ".join(FORMS)


def basic(secret: str) -> str:
    return "Basic " + base64.b64encode(f"user:{secret}".encode()).decode()


def spoilt(secret: str) -> Any:
    return {secret: float("nan")}


SAYING: list[Callable[..., Any]] = [
    returned,
    emitted,
    yielded,
    ayielded,
    raised,
    grouped,
    bailed,
    written,
    basic,
    spoilt,
]
FLOW = """
variables: {token: {secret: FLOW_SECRET}}
steps:
  - {id: a, use: say, with: {secret: "${{ secrets.FLOW_SECRET }}"}}
  - {id: b, use: value, with: "${{ steps.a }}"}
"""


async def kept(engine: Engine, id: str) -> str:
    """All that can be known of a run."""
    view = await engine.get(id)
    assert view is not None
    found = [repr(view), repr(await engine.journal(id)), repr(decode_capsule(await engine.export(id)))]
    found += [repr(step) for step in await engine.steps(id)]
    found += [repr([chunk async for chunk in engine.stream(id)])]
    return "\n".join(found)


@pytest.mark.parametrize("say", SAYING, ids=lambda say: say.__name__)
async def test_whatever_a_step_says_its_secret_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, say: Callable[..., Any]
) -> None:
    monkeypatch.setenv(NAME, VALUE)
    caplog.set_level(logging.DEBUG)
    flow = flow_of(tmp_path, FLOW, components={"say": say})
    async with Engine(f"sqlite:///{tmp_path}/runs.db", [flow]) as engine:
        result = await engine.run(flow(), id="r")
        said = f"{result.output}{await kept(engine, 'r')}{caplog.text}"
    said += "".join(file.read_bytes().decode("latin-1") for file in tmp_path.glob("runs.db*"))
    assert [form for form in FORMS if form in said] == []
    assert "***" in said
    assert base64.b64encode(b"user:" + VALUE.encode()).decode()[8:-4] not in said


def typed(login: Login) -> bool:
    return login == Login("me", VALUE)


async def test_a_secret_is_there_for_every_kind_of_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, VALUE)
    text = """
variables: {token: {secret: FLOW_SECRET}}
steps:
  - {id: typed, use: typed, with: {login: {user: me, password: "${{ vars.token }}"}}}
  - {id: elsewhere, use: "queue:desk/typed", with: {login: {user: me, password: "${{ vars.token }}"}}}
  - {id: process, use: process, with: {text: "<${{ vars.token }}>"}}
  - {id: items, map: {over: [a, b]}, use: join, with: {texts: ["${{ item }}", "x ${{ vars.token }}"]}}
  - {id: instead, use: fails, with: {}, on_error: {use: join, with: {texts: ["${{ vars.token }}"]}}}
"""

    def join(texts: list[str]) -> int:
        return sum(map(len, texts))

    def fails() -> None:
        raise ValueError("always")

    components = {"typed": typed, "process": cpu_steps.length, "join": join, "fails": fails}
    flow = flow_of(tmp_path, text, components=components)
    async with Engine("memory://", [flow], steps=[step(typed)]) as engine:
        result = await engine.run(flow(), id="r")
        size = len(VALUE)
        assert result.output == {
            "typed": True,
            "elsewhere": True,
            "process": size + 2,
            "items": [size + 3] * 2,
            "instead": size,
        }
        said = "".join([await kept(engine, run.run_id) for run in await engine.list()])
        assert [form for form in FORMS if form in said] == []


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "is not set where this step runs"), ("", "is not set"), ("abc", "less than 4 characters")],
)
async def test_a_secret_that_is_none_fails_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, said: str
) -> None:
    if value is not None:
        monkeypatch.setenv(NAME, value)
    flow = flow_of(tmp_path, FLOW, components={"say": written})
    async with Engine("memory://", [flow]) as engine:
        assert said in str((await engine.run(flow(), id="r")).error)


def flow_with_name(folder: Path) -> Flow:
    return flow_of(folder, FLOW, components={"say": lambda secret: secret})


async def test_arguments_that_a_traveller_gives_are_taken_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, VALUE)
    flow = flow_with_name(tmp_path)
    async with Engine("memory://", [flow]) as engine:
        await engine.run(flow(), id="r")
        handle = await engine.time_travel("r", "a:0", inputs={"secret": "another"}, new_id="other")
        assert await handle.result() == {"b": "another"}


def _taken(token: str) -> None:
    assert token == VALUE


def _long(token: Annotated[str, msgspec.Meta(min_length=12)]) -> None:
    assert token == VALUE


def _nested(token: Login) -> None:
    assert token == Login("me", VALUE)


def _many(**more: str) -> None:
    assert more == {"token": VALUE}


@pytest.mark.parametrize(
    ("check", "token"),
    [
        (_taken, "${{ secrets.FLOW_SECRET }}"),
        (_long, "${{ vars.key }}"),
        (_nested, {"user": "me", "password": "${{ secrets.FLOW_SECRET }}"}),
        (_many, "${{ secrets.FLOW_SECRET }}"),
    ],
)
async def test_a_step_with_a_secret_that_was_under_way_is_executed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Callable[..., None], token: Any
) -> None:
    """The recorded arguments are checked before that, and do not have the value that its parameter takes."""
    monkeypatch.setenv(NAME, VALUE)
    began, calls = asyncio.Event(), 0

    @functools.wraps(check)
    async def use(**given: Any) -> int:
        nonlocal calls
        calls += 1
        check(**given)
        if calls == 1:
            began.set()
            await asyncio.Event().wait()
        return calls

    steps = [{"id": "a", "use": "use", "with": {"token": token}}]
    text = json.dumps({"perdure": 1, "name": "test", "variables": {"key": {"secret": NAME}}, "steps": steps})
    flow = flow_of(tmp_path, text, "flow.json", components={"use": use})
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [flow], recovery=Recovery(grace=0)) as engine:
        _ = await engine.start(flow(), id="r")
        await began.wait()
    async with Engine(url, [flow]) as engine:
        assert await engine.handle("r").result() == {"a": 2}


# --- what is cut ----------------------------------------------------------------------------------------------------

LONG = "s3cr3t-" + "0123456789abcdef" * 6
PARTS = [LONG[at : at + 8] for at in range(len(LONG) - 7)]


def cut_at(most: int) -> Callable[[str], None]:
    def cut(secret: str) -> None:
        raise ValueError(f"{'x' * (100 - most)}{secret}"[:100])

    return cut


def cut_before(secret: str) -> None:
    raise ValueError(f"...{f'{secret} was refused'[-40:]}")


def quoted_in_part(secret: str) -> None:
    raise KeyError(f"{ {'password': secret}!r:.60}")


def at_the_limit(secret: str) -> None:
    raise ValueError("x" * (64 * 1024 - 30) + secret)


def of_a_cause(secret: str) -> None:
    try:
        raise OSError(secret[:30])
    except OSError as error:
        raise LookupError("no") from error


def in_a_note(secret: str) -> None:
    error = ValueError("no")
    error.add_note(secret[:50])
    raise error


def in_a_process(secret: str) -> None:
    subprocess.run(["false", secret[20:]], check=True)


CUTTING = [*map(cut_at, (8, 20, 90)), cut_before, quoted_in_part, at_the_limit, of_a_cause, in_a_note, in_a_process]


@pytest.mark.parametrize("say", CUTTING, ids=lambda say: say.__name__)
async def test_an_error_that_quotes_a_part_of_a_secret_does_not_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, say: Callable[..., Any]
) -> None:
    monkeypatch.setenv(NAME, LONG)
    caplog.set_level(logging.DEBUG)
    flow = flow_of(tmp_path, FLOW, components={"say": say})
    async with Engine("memory://", [flow]) as engine:
        result = await engine.run(flow(), id="r")
        said = f"{result.error}{await kept(engine, 'r')}{caplog.text}"
    assert result.status == "failed"
    assert "***" in said
    assert [part for part in PARTS if part in said] == []


@pytest.mark.parametrize("before", [0, 60, 99, 100, 10_000])
async def test_output_of_a_command_is_cut_without_halving_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setenv(NAME, LONG)
    text = """
variables: {token: {secret: FLOW_SECRET}}
steps:
  - id: a
    use: shell
    with:
      argv: [sh, -c, 'printf "%0*d$T" BEFORE 0 | tee /dev/stderr; printf "%*s" 300 x >&2; exit CODE']
      env: {T: "${{ vars.token }}"}
      max_output: 100
output: "${{ steps.a }}"
"""
    for code in ("0", "1"):
        flow = flow_of(tmp_path, text.replace("BEFORE", str(before)).replace("CODE", code))
        async with Engine("memory://", [flow]) as engine:
            result = await engine.run(flow(), id="r")
            said = f"{result.output}{result.error}{await kept(engine, 'r')}"
        assert [part for part in PARTS if part in said] == []
        if code == "0":
            assert result.output["truncated"]
            assert len(result.output["stdout"]) <= 103


@pytest.mark.parametrize("before", [0, 450, 499, 500])
async def test_an_answer_is_cut_without_halving_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setenv(NAME, LONG)
    text = """
variables: {token: {secret: FLOW_SECRET}}
steps:
  - {id: a, use: http, with: {url: "http://localhost:PORT/?t=${{ vars.token }}", headers: {A: "${{ vars.token }}"}}}
"""
    body = b"-" * before + LONG.encode()
    answer = b"HTTP/1.1 500 No\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body)
    async with serving({"/": answer}) as port:
        flow = flow_of(tmp_path, text.replace("PORT", str(port)), http=["localhost"])
        async with Engine("memory://", [flow]) as engine:
            result = await engine.run(flow(), id="r")
            said = f"{result.error}{await kept(engine, 'r')}"
    assert "answered with 500" in said
    assert [part for part in PARTS if part in said] == []


async def test_a_result_that_has_a_word_of_a_secret_is_kept_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAME, "postgresql://user:pw-of-user@localhost/database")
    flow = flow_of(tmp_path, FLOW, components={"say": lambda secret: ["postgresql", "localhost", "/database"]})
    async with Engine("memory://", [flow]) as engine:
        assert (await engine.run(flow(), id="r")).output == {"b": ["postgresql", "localhost", "/database"]}
