# mypy: disable-error-code="arg-type,list-item,attr-defined,call-overload"
"""The obvious wrong things to write: each is refused at once, and says what to write instead."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

import perdure
from perdure import (
    Engine,
    Recovery,
    Retry,
    RunStatus,
    UsageError,
    call,
    child,
    continue_as,
    sleep_until,
    step,
    workflow,
)
from perdure.kernel.policies.durability import durability
from tests.engine.harness import AT_ONCE, PATIENCE


@step
async def charge(cents: int) -> int:
    return cents


@workflow
async def fulfil(cents: int) -> int:
    return await charge(cents)


@workflow
async def loop(n: int, *, step: int = 1) -> int:
    if n > 0:
        continue_as(loop(n - 1, step=step))
    return n


@workflow
async def loop_of_many(n: int) -> int:
    continue_as(1, 2, 3)


@workflow
async def naive() -> None:
    await sleep_until(datetime.now())  # noqa: DTZ005


@workflow
async def no_child() -> None:
    await child(fulfil)


NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001

ASKED: dict[str, tuple[Callable[[Engine], Any], str]] = {
    "a workflow without arguments": (lambda e: e.start(fulfil), "the workflow with its arguments"),
    "run of one": (lambda e: e.run(fulfil), r"write start\(fulfil\(\.\.\.\)\)"),
    "a coroutine": (lambda e: e.start(fulfil.fn(1)), "is a plain coroutine"),
    "a call of a step": (lambda e: e.start(charge(1)), "is a plain coroutine"),
    "a step": (lambda e: e.start(charge), "charge is a step, which a workflow calls"),
    "a name": (lambda e: e.start("fulfil"), r"write start\(call\('fulfil'\)\)"),
    "an invocation as an argument": (lambda e: e.start(fulfil(fulfil(1))), "which has not been run"),
    "a coroutine as an argument": (lambda e: e.start(fulfil(charge(1))), "which is not awaited"),
    "too many arguments": (lambda e: e.start(call("fulfil", 1, 2)), r"it is fulfil\(cents: int\) -> int"),
    "an unknown argument": (lambda e: e.start(call("fulfil", dollars=1)), r"it is fulfil\(cents: int\) -> int"),
    "an argument too few": (lambda e: e.start(call("fulfil")), "missing a required argument: 'cents'"),
    "a deadline without a zone": (lambda e: e.start(fulfil(1), deadline=NAIVE), r"write datetime\.now\(UTC\)"),
    "one start for many": (lambda e: e.start_many(fulfil(1)), r"takes a list of invocations.*for one use start\(\)"),
    "a number of starts": (lambda e: e.start_many(5), "takes a list of invocations"),
    "a number of ids": (lambda e: e.cancel_many(ids=5), "give the ids in a list"),
    "a cursor that no page gave": (lambda e: e.list(cursor="page-2"), "give the cursor of the page before"),
    "a cursor of many": (lambda e: e.cancel_many(program="fulfil", cursor="2"), "give the cursor of the page before"),
    "list since": (lambda e: e.list(since=NAIVE), r"write datetime\.now\(UTC\)"),
    "list until": (lambda e: e.list(until=NAIVE), r"write datetime\.now\(UTC\)"),
    "list a limit as text": (lambda e: e.list(limit="5"), "at least one run"),
    "list a limit that is none": (lambda e: e.list(limit=None), "at least one run"),
    "list a part of a run": (lambda e: e.list(limit=1.5), "at least one run"),
    "list a status by number": (lambda e: e.list(status=5), "5 is not a status; there are queued, running"),
    "list no status": (lambda e: e.list(status=[]), "names no status; leave it out"),
    "list several by number": (lambda e: e.list(status=[5]), "5 is not a status; there are queued, running"),
    "a journal from a moment": (lambda e: e.journal("x", start=NAIVE), "numbered from 0"),
    "a journal from before": (lambda e: e.journal("x", start=-1), "numbered from 0"),
    "events from text": (lambda e: anext(e.follow("x", start="0")), "numbered from 0"),
    "sweep until": (lambda e: e.sweep(until=NAIVE), "has no time zone"),
    "prune older than a moment": (lambda e: e.prune(older_than=NAIVE), "a number of seconds or a timedelta"),
    "a schedule of a workflow": (lambda e: e.schedule("s", fulfil, every=60), r"write schedule\(fulfil\(\.\.\.\)\)"),
    "a blob of a dict": (lambda e: e.blobs.put({"a": 1}), r"write blobs\.put\(json\.dumps\(value\)\.encode\(\)\)"),
    "a blob of text": (lambda e: e.blobs.put("a"), r"write blobs\.put\(text\.encode\(\)\)"),
    "a blob by its bytes": (lambda e: e.blobs.get(b"a"), "the id that blobs.put"),
    "a handle for an id": (lambda e: e.get(e.handle("x")), r"give handle\.id"),
    "an awaited workflow": (lambda e: fulfil(1), "has not been started"),
    "perdure.run in a loop": (lambda e: perdure.run(fulfil(1), store="memory://"), "async with Engine"),
}


@pytest.mark.parametrize("what", ASKED)
async def test_an_engine_that_is_asked_for_the_wrong_thing_says_what_to_write(what: str) -> None:
    ask, told = ASKED[what]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that a coroutine was never awaited helps nobody
        async with Engine("memory://", [fulfil], recovery=AT_ONCE) as engine:
            with pytest.raises(UsageError, match=told):
                await ask(engine)
            assert not await engine.list()


MADE: dict[str, tuple[Callable[[], Any], str]] = {
    "programs in the place of the store": (lambda: Engine([fulfil]), "the store comes first"),
    "a program in the place of the store": (lambda: Engine(fulfil), "the store comes first"),
    "a program that is no list": (lambda: Engine("memory://", fulfil), r"write Engine\(store, \["),
    "a step": (lambda: Engine("memory://", [charge]), "takes workflows"),
    "a name that is none": (lambda: Engine("memory://", name=5), "a name is a string"),
    "a number as text": (lambda: Engine("memory://", max_concurrency="5"), "a whole number"),
    "recovery": (lambda: Engine("memory://", recovery=5), r"recovery=Recovery\("),
    "limits": (lambda: Engine("memory://", limits=Recovery()), r"limits=Limits\("),
    "codecs": (lambda: Engine("memory://", codecs=[int]), r"write TypeCodec\("),
    "an empty name": (lambda: Engine("memory://", name=""), "leave it out to have one generated"),
    "retention": (lambda: Engine("memory://", retention=30), r"write retention=Retention\("),
    "an executor": (lambda: Engine("memory://", executor=5), "with the interface of concurrent.futures"),
    "a clock": (lambda: Engine("memory://", clock=5), "takes a clock"),
    "leases": (lambda: Engine("memory://", leases=5), "etcd://host:2379"),
    "with": (lambda: Engine("memory://").__enter__(), "async with Engine"),
    "a client with": (lambda: perdure.connect("memory://").__enter__(), "async with Client"),
    "connect to a list": (lambda: perdure.connect(["x"]), "a store is named by a URL"),
}


@pytest.mark.parametrize("what", MADE)
def test_an_engine_that_is_made_wrongly_says_what_to_write(what: str) -> None:
    make, told = MADE[what]
    with pytest.raises(UsageError, match=told):
        make()


@pytest.mark.parametrize(
    ("invocation", "told"),
    [
        (lambda: loop(3), "Write continue_as(2, step=1)"),
        (lambda: loop_of_many(3), "continue_as() takes the arguments of this workflow: too many positional arguments"),
        (naive, "write now() + timedelta(...)"),
        (no_child, "write child(fulfil(...))"),
    ],
)
async def test_a_body_that_asks_for_the_wrong_thing_says_what_to_write(invocation: Any, told: str) -> None:
    async with Engine("memory://", [loop, loop_of_many, naive, no_child, fulfil], recovery=AT_ONCE) as engine:
        result = await (await engine.start(invocation())).outcome(PATIENCE)
    assert result.status is RunStatus.FAILED
    assert told in str(result.error)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"check_interval": "10s"}, "Recovery(check_interval='10s') must be a number of seconds, more than 0"),
        ({"lease": 0}, "Recovery(lease=0) must be a number of seconds, more than 0"),
        ({"lease": float("nan")}, "Recovery(lease=nan) must be a number of seconds, more than 0"),
        ({"grace": None}, "Recovery(grace=None) must be a number of seconds, at least 0"),
        ({"quarantine": "never"}, "Recovery(quarantine='never') must be a whole number, at least 0; 0 parks none"),
        ({"snapshot": 0.5}, "Recovery(snapshot=0.5) must be a whole number, at least 0; 0 takes none"),
        ({"max_claims": True}, "Recovery(max_claims=True) must be a whole number, at least 1"),
        ({"enabled": "no"}, "Recovery(enabled='no') must be True or False"),
    ],
)
def test_recovery_that_makes_no_sense_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as raised:
        Recovery(**settings)
    assert str(raised.value) == told


def test_a_retry_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(TypeError, match="a whole number of tries"):
        Retry(attempts="3")
    with pytest.raises(TypeError, match="a number of seconds"):
        Retry(initial="1")
    with pytest.raises(TypeError, match="takes exception classes"):
        Retry(on=("ConnectionError",))


def test_perdure_run_in_a_running_loop_leaves_no_coroutine_behind() -> None:
    async def notebook() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UsageError, match="as in a notebook"):
                perdure.run(fulfil(1), store="memory://")

    asyncio.run(notebook())


@pytest.mark.parametrize("mode", [5, b"sync", None, 1.5])
def test_a_durability_that_is_no_text_is_refused_like_one_that_is_no_mode(mode: Any) -> None:
    with pytest.raises(ValueError, match="is none of 'sync'"):
        durability(mode)
