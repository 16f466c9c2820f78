"""Starting runs in queues: what callers may say, and what they see."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import AlreadyExists, Engine, Queue, QueueView, Rate, RunStatus, UsageError, call, connect, step, workflow
from perdure.client.queries import pages
from perdure.ports.runs import RunFilter

gates: list[asyncio.Event] = []


@step
async def wait() -> str:
    await gates[0].wait()
    return "done"


@workflow
async def job(what: str = "") -> str:
    return await wait() + what


@workflow
async def other() -> None: ...


@pytest.fixture(autouse=True)
def closed() -> None:
    gates[:] = [asyncio.Event()]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": 7}, "name of a queue"),
        ({"queue": ""}, "name of a queue"),
        ({"queue": "a:b"}, "name of a queue"),
        ({"key": "tenant-7"}, "without a queue"),
        ({"priority": 3}, "without a queue"),
        ({"queue": "q", "key": 7}, "key=7"),
        ({"queue": "q", "key": ""}, "key='' is empty"),
        ({"queue": "q", "key": "k" * 300}, "300 characters, and 255 is the limit"),
        ({"queue": "q", "key": "a\nb"}, "control character"),
        ({"queue": "q", "priority": "high"}, "priority='high'"),
        ({"queue": "q", "priority": 1.5}, "priority=1.5"),
        ({"queue": "q", "priority": True}, "priority=True"),
        ({"queue": "q", "priority": 1 << 40}, "priority="),
        ({"queue": "q", "key": "k", "debounce": -1}, "debounce=-1"),
        ({"queue": "q", "key": "k", "debounce": "soon"}, "debounce='soon'"),
        ({"queue": "q", "key": "k", "debounce": timedelta(seconds=-1)}, "not negative"),
        ({"queue": "q", "debounce": 5}, "which starts belong together"),
        ({"debounce": 5}, "which starts belong together"),
        ({"id": "a", "debounce": 5, "delay": 5}, "debounce and delay"),
        ({"id": "a", "debounce": 5, "reuse": "reject_duplicate"}, "does not go with debounce"),
    ],
)
async def test_a_place_that_makes_no_sense_is_refused_and_nothing_is_started(
    options: dict[str, Any], says: str
) -> None:
    async with Engine("memory://", [job]) as engine:
        with pytest.raises(UsageError, match=says):
            _ = await engine.start(job(), **options)
        assert await engine.list() == []


async def test_a_run_of_another_program_is_not_debounced_away() -> None:
    async with Engine("memory://", [job, other]) as engine:
        first = await engine.start(job(), id="a", debounce=3600)
        with pytest.raises(AlreadyExists, match="job"):
            _ = await engine.start(other(), id="a", debounce=3600)
        assert await first.status() is RunStatus.QUEUED


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queues": ["emails"]}, "Queue"),
        ({"queues": [Queue("q", concurrency=1), Queue("q", concurrency=2)]}, "given twice"),
        ({"serves": "gpu"}, r"serves=\('gpu',\)"),
        ({"serves": [7]}, "name of a queue"),
    ],
)
def test_an_engine_with_queues_that_make_no_sense_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        _ = Engine("memory://", [job], **options)


async def test_queues_are_told_in_numbers_with_the_limits_known_here(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'q.db'}"
    emails, idle = Queue("emails", concurrency=2, rate=Rate(100)), Queue("idle")
    async with Engine(url, [job], queues=[emails, idle]) as engine, connect(url) as client:
        handles = [await engine.start(job(), queue="emails", key=f"k{i}", priority=i) for i in range(5)]
        while (await engine.queues())[0].running < 2:
            await asyncio.sleep(0)
        seen, unused = await engine.queues()
        assert (seen.name, seen.queued, seen.running, seen.limits) == ("emails", 3, 2, emails)
        assert seen.oldest is not None
        assert seen.oldest >= 0
        assert unused == QueueView("idle", 0, 0, None, idle)
        (elsewhere,) = await client.queues()
        assert (elsewhere.name, elsewhere.queued, elsewhere.running, elsewhere.limits) == ("emails", 3, 2, None)
        view = await engine.get(handles[4].id)
        assert view is not None
        assert (view.queue, view.key, view.priority) == ("emails", "k4", 4)
        gates[0].set()
        assert [await handle.result() for handle in handles] == ["done"] * 5
        assert await client.queues() == []


async def test_an_engine_takes_work_only_from_the_queues_it_serves(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'q.db'}"
    gates[0].set()
    async with connect_when_made(url) as client:
        plain = await client.start(job(), id="plain")
        mail = await client.start(job(), id="mail", queue="emails")
        gpu = await client.start(job(), id="gpu", queue="gpu")
        async with Engine(url, [job], name="a", serves=("gpu",)) as engine:
            assert await gpu.result() == "done"
            # What is started there and is not for it, is for others.
            _ = await engine.start(job(), id="more")
            assert [view.id for view in await client.list(status="queued")] == ["more", "mail", "plain"]
        async with Engine(url, [job], name="b"):
            assert [await h.result() for h in (plain, mail)] == ["done"] * 2
            assert await (await client.start(call("job"), id="more")).result() == "done"


class connect_when_made:  # noqa: N801 - reads as a function
    """A client of a store that an engine has made before."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Any:
        async with Engine(self._url, []):
            pass
        self._client = await connect(self._url)
        return self._client

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()


async def test_a_queued_run_is_begun_by_an_engine_that_comes_later(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'q.db'}"
    gates[0].set()
    async with connect_when_made(url) as client:
        handles = [await client.start(job(f"{i}"), queue="q", key="k") for i in range(20)]
        assert len(await client.list(status="queued")) == 20
        async with Engine(url, [job], queues=[Queue("q", concurrency=3)]):
            assert [await handle.result() for handle in handles] == [f"done{i}" for i in range(20)]


async def test_terminating_a_queued_run_gives_its_place_to_the_next(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path / 'q.db'}", [job], queues=[Queue("q", concurrency=1)]) as engine:
        first = await engine.start(job("1"), id="a", queue="q")
        second = await engine.start(job("2"), id="b", queue="q")
        again = await engine.start(job("3"), id="b", queue="q", reuse="terminate_running")
        assert (await second.outcome()).status is RunStatus.CANCELLED
        gates[0].set()
        assert [await first.result(), await again.result()] == ["done1", "done3"]


def test_one_queue_in_place_of_a_list_is_told_how_to_be_written() -> None:
    with pytest.raises(UsageError, match=r"takes a list; write queues=\[Queue\("):
        _ = Engine("memory://", [job], queues=Queue("q"))  # type: ignore[arg-type]


async def test_remote_steps_of_a_retried_run_keep_the_key_and_priority_of_its_first_start() -> None:
    fails = [True]

    @step(queue="gpu")
    async def render(n: int) -> int:
        if n == 1 and fails.pop():
            raise ValueError("too hot")
        return n

    @workflow
    async def film() -> int:
        return await render(0) + await render(1)

    async with Engine("memory://", [film], steps=[render]) as engine:
        run = await engine.start(film(), id="film", queue="films", key="ann", priority=3)
        assert (await run.outcome()).status is RunStatus.FAILED
        fails.append(False)
        again = await engine.retry("film")
        assert await again.result() == 1
        fork = await engine.fork("film", at="render:1", new_id="other")
        fails.append(False)
        assert await fork.result() == 1
        rows = [row async for page in pages(engine.store, RunFilter(program="perdure.step.render")) for row in page]
        assert [(row.queue, row.queue_key, row.priority) for row in rows] == [("gpu", "ann", 3)] * 4
        for one in (again, fork):
            view = await engine.get(one.id)
            assert view is not None
            assert view.queue is None
