"""`perdure stream`, and the progress of steps in `runs show` and `runs steps`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, Retry, StoreUnavailable, continue_as, step, step_context, workflow
from perdure.cli import clients
from perdure.client.handle import RunHandle
from perdure.kernel.events import StepProgressed
from tests.cli.conftest import Cli
from tests.engine.harness import AT_ONCE, Recorded
from tests.patience import PATIENCE


@step(retry=Retry(attempts=2, initial=0.0))
async def tokens() -> AsyncIterator[object]:
    yield "Hello,"
    yield {"n": 1}
    if step_context().attempt == 1:
        raise ConnectionError
    yield "\x1b[31mred"


@step
async def working() -> None:
    step_context().heartbeat({"done": 3})
    await asyncio.sleep(3600)


@workflow
async def answer() -> list[object]:
    return await tokens()


@workflow
async def long() -> None:
    await working()


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with a run that has streamed, and one that was left in the middle of a step."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"

    async def fill() -> None:
        recorded = Recorded()
        async with Engine(url, [answer, long], recovery=AT_ONCE, on_commit=recorded) as engine:
            assert (await engine.run(answer(), id="a1")).error is None
            _ = await engine.start(long(), id="l1")
            await recorded.until(lambda event: isinstance(event, StepProgressed))

    asyncio.run(fill())
    return url


def test_a_stream_is_one_chunk_a_line_and_a_new_beginning_is_told(store: str, cli: Cli) -> None:
    ended = cli("stream", "a1", "tokens", "--store", store)
    assert ended.code == 0
    assert ended.out == 'Hello,\n{"n":1}\nHello,\n{"n":1}\n\\u001b[31mred\n'
    assert "tokens:0 starts over in attempt 2" in ended.err


def test_a_stream_of_a_whole_run_names_the_steps(store: str, cli: Cli) -> None:
    ended = cli("stream", "a1", "--store", store, "--start", "4")
    assert (ended.code, ended.out) == (0, 'tokens:0  {"n":1}\ntokens:0  \\u001b[31mred\n')


def test_a_stream_as_json_has_numbers_to_come_back_to(store: str, cli: Cli) -> None:
    ended = cli("stream", "a1", "tokens:0", "--store", store, "--json", "--start", "1")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [line["index"] for line in lines] == [1, 2, 3, 4, 5]
    assert lines[0] == {"index": 1, "path": "tokens:0", "value": {"n": 1}, "attempt": 1, "restart": False}
    assert lines[1] == {"index": 2, "path": "tokens:0", "value": None, "attempt": 2, "restart": True}


def test_a_store_that_goes_away_is_asked_again_from_where_it_was(
    store: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "RECONNECT_SECONDS", 0.0)
    streaming, starts = RunHandle.stream, []

    async def interrupted(self: RunHandle[Any], step: str | None = None, start: int = 0) -> AsyncIterator[object]:
        starts.append(start)
        async for chunk in streaming(self, step, start):
            yield chunk
            if len(starts) < 3:
                raise StoreUnavailable("the store", "it went away")

    monkeypatch.setattr(RunHandle, "stream", interrupted)
    ended = cli("stream", "a1", "tokens", "--store", store, "--json")
    assert starts == [0, 1, 2]
    assert [json.loads(line)["index"] for line in ended.out.splitlines()] == [0, 1, 2, 3, 4, 5]
    assert "trying again, from chunk 1" in ended.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nobody",), 3, "no run with id 'nobody'"),
        (("a1", "token"), 2, "without a step 'token'; its steps: tokens:0"),
        (("a1", "--start", "-1"), 2, "numbered from 0"),
    ],
)
def test_what_cannot_be_followed_is_said(store: str, cli: Cli, words: tuple[str, ...], code: int, said: str) -> None:
    ended = cli("stream", *words, "--store", store)
    assert ended.code == code
    assert said in ended.err


def test_progress_is_shown_with_the_run_and_with_its_steps(store: str, cli: Cli) -> None:
    assert (
        'working:0, attempt 1, outcome unknown: its owner is gone, progress {"done":3}'
        in cli("runs", "show", "l1", "--store", store).out
    )
    assert 'progress: {"done":3}' in cli("runs", "steps", "l1", "--store", store).out
    assert json.loads(cli("runs", "steps", "l1", "--store", store, "--json").out)[0]["progress"] == {"done": 3}
    assert "progress" not in cli("runs", "show", "a1", "--store", store).out


def test_chunks_and_progress_are_lines_of_the_journal(store: str, cli: Cli) -> None:
    lines = cli("runs", "journal", "a1", "--store", store).out
    assert 'ChunkAppended   tokens:0 attempt=1 start=0 chunks=["Hello,",{"n":1}]' in lines
    assert "restart=true" in lines
    others = cli("runs", "journal", "l1", "--store", store).out
    assert 'StepProgressed  working:0 attempt=1 progress={"done":3}' in others


@step
async def spell(n: int) -> AsyncIterator[int]:
    yield n


@workflow
async def spelling(n: int) -> int:
    await spell(n)
    if n < 2:
        continue_as(n + 1)
    return n


def test_a_run_that_goes_on_is_followed(tmp_path: Path, cli: Cli) -> None:
    url = f"sqlite:///{tmp_path / 'chain.db'}"

    async def fill() -> str:
        async with Engine(url, [spelling], recovery=AT_ONCE) as engine:
            handle = await engine.start(spelling(0), id="s")
            assert await handle.result(PATIENCE) == 2
            return handle.run_id

    first = asyncio.run(fill())
    ended = cli("stream", first, "--store", url)
    assert (ended.code, ended.out) == (0, "spell:0  0\nspell:0  1\nspell:0  2\n")
    watched = cli("runs", "watch", first, "--store", url, "--json")
    assert watched.code == 0
    assert [line["event"]["type"] for line in watched.lines].count("RunFinished") == 3
    shown = cli("runs", "show", first, "--store", url)
    assert "continued as" in shown.out
    assert "continued from" in cli("runs", "show", "s", "--store", url).out
