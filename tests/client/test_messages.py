"""What makes no sense is refused with a reason and a cure, and the run goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Accepted,
    AnswerRejected,
    Client,
    Engine,
    Finished,
    InvalidId,
    InvalidName,
    NoSuchRun,
    NotFound,
    NotSerializable,
    PayloadTooLarge,
    RunStatus,
    SignalRejected,
    UsageError,
    approval,
    connect,
    set_state,
    wait_signal,
    workflow,
)
from perdure.kernel.events import WaitOpened
from tests.engine.harness import AT_ONCE, PATIENCE, Recorded

LONG = "x" * 10_000
SURROGATE = "\ud800"


@workflow
async def parcel() -> list[Any]:
    number = await wait_signal("number", type=int)
    return [number, await approval("ship", schema=bool, approvers=["ann"])]


@workflow
async def refusals() -> list[str]:
    """Everything a body can ask for that makes no sense."""
    found = []
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        lambda: wait_signal(""),
        lambda: wait_signal(LONG),
        lambda: wait_signal("a/b"),
        lambda: wait_signal(5),  # type: ignore[call-overload]
        lambda: wait_signal("go", timeout=-1),
        lambda: wait_signal("go", timeout="soon"),  # type: ignore[call-overload]
        lambda: approval("a:b"),
        lambda: approval("ship", request=object()),
        lambda: approval("ship", approvers="ann"),
        lambda: approval("ship", approvers=[5]),  # type: ignore[list-item]
        lambda: approval("ship", escalate=60),  # type: ignore[call-overload]
        lambda: approval("ship", escalate=(60, "boss")),
        lambda: approval("ship", escalate=(-1, ["boss"])),
    ]
    for call in calls:
        try:
            await call()
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    try:
        set_state(SURROGATE, 1)
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}")
    return found


@pytest.fixture(params=["the engine itself", "a client beside it"])
async def told(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Engine, Client]]:
    """An engine with a run that waits, and who tells it something: itself, or somebody else."""
    url, recorded = f"sqlite:///{tmp_path / 'told.db'}", Recorded()
    async with Engine(url, [parcel, refusals], recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(parcel(), id="p1")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        if request.param == "the engine itself":
            yield engine, engine
        else:
            async with connect(url) as client:
                yield engine, client


Call = Callable[[Client], Coroutine[Any, Any, Any]]
WRONG: dict[str, tuple[Call, type[Exception], str]] = {
    "a name of 10 KB": (lambda c: c.signal("p1", LONG), InvalidName, "has 10,000 characters; give a text of 1 to 200"),
    "an empty name": (lambda c: c.signal("p1", ""), InvalidName, "has 0 characters"),
    "a name with a colon": (lambda c: c.signal("p1", "a:b"), InvalidName, "holds one of '/', ':'"),
    "a name that is no text": (lambda c: c.signal("p1", 5), InvalidName, "5 is of type int"),  # type: ignore[arg-type]
    "a name with half a character": (lambda c: c.signal("p1", SURROGATE), InvalidName, "lone surrogate"),
    "a payload that is no data": (lambda c: c.signal("p1", "n", {"a": [object()]}), NotSerializable, r"\$\.a\[0\]"),
    "a payload that is no number": (lambda c: c.signal("p1", "n", float("nan")), NotSerializable, "nan"),
    "a payload of 3 MB": (lambda c: c.signal("p1", "n", "x" * 3_000_000), PayloadTooLarge, "engine.blobs.put"),
    "an id that is no text": (lambda c: c.signal("p1", "n", 1, 5), UsageError, "signal_id must be a text"),  # type: ignore[arg-type]
    "an id of 10 KB": (lambda c: c.signal("p1", "n", 1, LONG), UsageError, "signal_id has 10,000 characters"),
    "an id with half a character": (lambda c: c.signal("p1", "n", 1, SURROGATE), UsageError, "lone surrogate"),
    "a run that is no text": (lambda c: c.signal(5, "n"), InvalidId, "is not a string but of type int"),  # type: ignore[arg-type]
    "a run with half a character": (lambda c: c.signal(SURROGATE, "n"), InvalidId, "lone surrogate"),
    "no run": (lambda c: c.cancel(None), InvalidId, "is not a string"),  # type: ignore[arg-type]
    "a cancel of nothing": (lambda c: c.cancel("nobody"), NoSuchRun, "there is no run with id 'nobody'"),
    "a pause of nothing": (lambda c: c.pause("nobody"), NoSuchRun, "perdure runs ls"),
    "a resume of nothing": (lambda c: c.resume("nobody"), NoSuchRun, "perdure runs ls"),
    "a reason that is no text": (lambda c: c.cancel("p1", 5), UsageError, "must be a text, not 5 of type int"),  # type: ignore[arg-type]
    "a reason with half a character": (lambda c: c.cancel("p1", SURROGATE), UsageError, "lone surrogate"),
    "a reason of 20 KB": (lambda c: c.pause("p1", LONG * 2), UsageError, "20,000 characters, and 10,000 is the limit"),
    "a person that is no text": (lambda c: c.approve("p1", "ship", 1, by=5), UsageError, "by must be"),  # type: ignore[arg-type]
    "an approval of 10 KB": (lambda c: c.approve("p1", LONG, 1), UsageError, "the name of an approval has 10,000"),
    "an answer that is no data": (lambda c: c.approve("p1", "ship", object()), NotSerializable, "the answer to 'ship'"),
    "an answer of 3 MB": (lambda c: c.approve("p1", "ship", "x" * 3_000_000), PayloadTooLarge, "the answer to 'ship'"),
    "no reason for a no": (lambda c: c.reject("p1", "ship", {"a": 1}), UsageError, "the reason must be"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", list(WRONG))
async def test_nonsense_is_refused_and_the_run_goes_on(told: tuple[Engine, Client], case: str) -> None:
    engine, client = told
    call, error, message = WRONG[case]
    with pytest.raises(error, match=message) as raised:
        await call(client)
    assert len(str(raised.value)) < 500, "nobody reads ten thousand characters of what was wrong"
    before = await engine.journal("p1")
    assert not [e for e in before if type(e.event).__name__ in ("SignalReceived", "CancelRequested", "RunPaused")]
    run = await engine.start(parcel(), id="p1")
    assert await client.signal("p1", "number", 7) == Accepted()
    async for entry in engine.follow("p1"):
        if isinstance(entry.event, WaitOpened) and entry.event.kind == "approval":
            break
    assert await client.approve("p1", "ship", True, by="ann") == Accepted()
    assert await run.result(PATIENCE) == [7, True]


async def test_what_does_not_exist_or_has_ended_is_said_so(told: tuple[Engine, Client]) -> None:
    engine, client = told
    assert await client.signal("nobody", "go") == NotFound()
    assert await client.signal("x" * 100_000, "go") == NotFound()
    assert await client.approve("nobody", "ship", True) == NotFound()
    assert await client.reject("nobody", "ship") == NotFound()
    assert await client.approve("p1", "ship", True) == NotFound(), "it does not ask yet"
    await client.cancel("p1")
    assert (await (await engine.start(parcel(), id="p1")).outcome(PATIENCE)).status is RunStatus.CANCELLED
    for verdict in (await client.signal("p1", "go"), await client.reject("p1", "ship"), await client.pause("p1")):
        assert verdict == Finished(RunStatus.CANCELLED)


async def test_an_answer_that_does_not_fit_names_the_path_and_leaves_the_question_open(
    told: tuple[Engine, Client],
) -> None:
    engine, client = told
    run = await engine.start(parcel(), id="p1")
    await client.signal("p1", "number", 1)
    async for entry in engine.follow("p1"):
        if isinstance(entry.event, WaitOpened) and entry.event.kind == "approval":
            break
    with pytest.raises(AnswerRejected, match=r'\$ "yes" is not of type "boolean"; the question is still open'):
        await client.approve("p1", "ship", "yes", by="ann")
    assert [asked.name for asked in await client.approvals()] == ["ship"]
    assert await client.approve("p1", "ship", False, by="ann") == Accepted()
    assert await run.result(PATIENCE) == [1, False]


async def test_a_signal_of_another_type_is_refused_and_the_run_still_waits(told: tuple[Engine, Client]) -> None:
    engine, client = told
    with pytest.raises(SignalRejected, match=r"\$ \"seven\" is not of type \"integer\"; the run still waits"):
        await client.signal("p1", "number", "seven")
    view = await client.get("p1")
    assert view is not None
    assert [wait.name for wait in view.waits] == ["number"]
    assert not [entry for entry in await engine.journal("p1") if type(entry.event).__name__ == "SignalReceived"]


async def test_a_body_that_asks_for_nonsense_is_told_so_and_goes_on(told: tuple[Engine, Client]) -> None:
    engine, _ = told
    found = await (await engine.start(refusals(), id="refusals")).result(PATIENCE)
    assert [message.partition(":")[0] for message in found] == (
        ["InvalidName"] * 4
        + ["WrongValue", "WrongValue", "InvalidName", "NotSerializable"]
        + ["UsageError"] * 4
        + ["WrongValue", "UsageError"]
    ), found
