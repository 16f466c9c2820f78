"""What callers say is refused in the same way whatever the store: impossible ids and names, values too large."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Engine,
    InvalidId,
    Limits,
    PayloadTooLarge,
    UsageError,
    approval,
    call,
    set_state,
    wait_signal,
    workflow,
)
from perdure.config import Queue
from perdure.errors import InvalidLock, InvalidName
from perdure.ports.store import Store

# What some store or other could not keep or look for.
ODD = ["a\x00b", "\x00", "a\ud800", "\udfffb", "a\nb", "\x1f"]


@workflow
async def plain(number: int = 1) -> int:
    return number


@workflow
async def publishing(size: int, times: int = 1) -> str:
    for _ in range(times):
        try:
            set_state("large", "x" * size)
        except PayloadTooLarge as error:
            return str(error)
    return "published"


@workflow
async def asking(size: int) -> str:
    try:
        return str(await approval("ship", request="x" * size, timeout=0))
    except PayloadTooLarge as error:
        return str(error)
    except TimeoutError:
        return "asked"


@pytest.fixture
async def engine(place: str | Store) -> AsyncIterator[Engine]:
    async with Engine(place, [plain, publishing, asking], durability="relaxed") as engine:
        yield engine


CALLS: dict[str, tuple[type[Exception], Callable[[Engine, str], Awaitable[Any]]]] = {
    "start by id": (InvalidId, lambda engine, odd: engine.start(plain(), id=odd)),
    "get": (InvalidId, lambda engine, odd: engine.get(odd)),
    "steps": (InvalidId, lambda engine, odd: engine.steps(odd)),
    "journal": (InvalidId, lambda engine, odd: engine.journal(odd)),
    "signal": (InvalidId, lambda engine, odd: engine.signal(odd, "go")),
    "approve": (InvalidId, lambda engine, odd: engine.approve(odd, "go", 1)),
    "cancel": (InvalidId, lambda engine, odd: engine.cancel(odd)),
    "pause": (InvalidId, lambda engine, odd: engine.pause(odd)),
    "retry": (InvalidId, lambda engine, odd: engine.retry(odd)),
    "export": (InvalidId, lambda engine, odd: engine.export(odd)),
    "fork": (InvalidId, lambda engine, odd: engine.fork(odd)),
    "signal by name": (InvalidName, lambda engine, odd: engine.signal("r", odd)),
    "start in a queue": (UsageError, lambda engine, odd: engine.start(plain(), queue=odd)),
    "start with a key": (UsageError, lambda engine, odd: engine.start(plain(), queue="q", key=odd)),
    "start by name": (UsageError, lambda engine, odd: _start_called(engine, odd)),
    "tag by name": (UsageError, lambda engine, odd: engine.start(plain(), tags={odd: "x"})),
    "list by program": (UsageError, lambda engine, odd: engine.list(program=odd)),
    "list by tag": (UsageError, lambda engine, odd: engine.list(tags={odd: "x"})),
    "list by owner": (UsageError, lambda engine, odd: engine.list(owner=odd)),
    "list by queue": (UsageError, lambda engine, odd: engine.list(queue=odd)),
    "list by parent": (InvalidId, lambda engine, odd: engine.list(parent=odd)),
    "list by prefix": (UsageError, lambda engine, odd: engine.list(id_prefix=odd)),
    "list from a cursor": (UsageError, lambda engine, odd: engine.list(cursor=odd)),
    "lock": (InvalidLock, lambda engine, odd: engine.locks.hold(odd).__aenter__()),
}


async def _start_called(engine: Engine, name: str) -> None:
    _ = await engine.start(call(name))


async def test_no_call_takes_characters_that_no_store_can_keep(engine: Engine) -> None:
    for what, (kind, ask) in CALLS.items():
        for odd in ODD:
            with pytest.raises(kind) as caught:
                await ask(engine, odd)
            said = str(caught.value)
            assert any(word in said for word in ("character", "surrogate", "give the cursor")), (what, odd, said)
    assert await engine.list() == []


async def test_values_of_tags_are_texts_that_every_store_keeps(engine: Engine) -> None:
    for odd in ("a\x00b", "a\ud800"):
        for refused in (engine.start(plain(), tags={"t": odd}), engine.list(tags={"t": odd})):
            with pytest.raises(UsageError, match="the value of the tag 't' holds a"):
                _ = await refused
    kept = {"line": "a\nb\t", "emoji": "\U0001f600", "empty": "", "del": "\x7f"}
    await engine.run(plain(), id="kept", tags=kept)
    for name, value in kept.items():
        assert [view.tags for view in await engine.list(tags={name: value})] == [kept]


async def test_tags_are_few_and_short(engine: Engine) -> None:
    with pytest.raises(UsageError, match=r"there are 65 tags, and 64 is the limit"):
        _ = await engine.start(plain(), tags={f"t{n}": "x" for n in range(65)})
    with pytest.raises(UsageError, match=r"the value of the tag 't' has 3,000,000 characters, and 1,000 is the limit"):
        _ = await engine.start(plain(), tags={"t": "x" * 3_000_000})
    with pytest.raises(UsageError, match=r"the name of the tag 't+' has 201 characters, and 200 is the limit"):
        _ = await engine.start(plain(), tags={"t" * 201: "x"})
    many = {f"t{n}": "x" * 1000 for n in range(64)}
    assert (await engine.run(plain(), id="most", tags=many)).tags == many


async def test_an_id_that_no_run_has_is_not_found_however_long_it_is(engine: Engine) -> None:
    for id in ("", "x" * 256, "x" * 100_000, "\u00fc" * 5000, "\U0001f600" * 300, "a\x7f", "%00", "a'b\"c\\"):
        assert await engine.get(id) is None


async def test_published_state_and_requests_have_the_limit_of_values(place: str | Store) -> None:
    limits = Limits(payload=200_000)
    async with Engine(place, [publishing, asking], durability="relaxed", limits=limits) as engine:
        assert (await engine.run(publishing(199_000), id="within")).output == "published"
        refused = await engine.run(publishing(200_000), id="above")
        assert refused.output is not None
        assert refused.output.startswith("the state 'large' is 200,002 bytes as JSON, above the limit of 200,000")
        assert (await engine.run(asking(100_000), id="asked")).output == "asked"
        refused = await engine.run(asking(3_000_000), id="not asked")
        assert refused.output is not None
        assert refused.output.startswith("the request of 'ship' is 3,000,002 bytes as JSON")
        view = await engine.get("above")
        assert view is not None
        assert view.state == {}


async def test_a_state_that_was_within_the_limits_is_replayed_when_they_are_lower(tmp_path: Path) -> None:
    @workflow
    async def waiting(size: int) -> str:
        set_state("large", "x" * size)
        return str(await wait_signal("go"))

    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [waiting], limits=Limits(payload=300_000)) as engine:
        _ = await engine.start(waiting(200_000), id="r")
    async with Engine(url, [waiting], limits=Limits(payload=100_000)) as engine:
        await engine.signal("r", "go", "on")
        assert await engine.handle("r", waiting).result() == "on"
        view = await engine.get("r")
        assert view is not None
        assert view.state == {"large": "x" * 200_000}


def test_a_queue_has_a_name_that_every_store_keeps() -> None:
    for odd in ODD:
        with pytest.raises(UsageError):
            Queue(odd)
