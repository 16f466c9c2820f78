"""Whatever is raised, wherever it is raised: the run ends, others go on, and a replay sees the same."""

from __future__ import annotations

import threading
import urllib.error
from typing import Any

import pytest

from perdure import CompensationFailed, Engine, RunFailed, RunStatus, StepError, rule, saga, step, workflow
from perdure.kernel.events import RunFinished, StepFailed, StepStarted
from perdure.stores.memory.store import MemoryStore
from tests.amounts import some
from tests.engine.awkward_steps import KINDS, STEPS, WHERE, body, caught, escaped, good, make
from tests.engine.harness import AT_ONCE, PATIENCE, left_by_a_crash, replay
from tests.kernel.awkward import http_error

# A process for each would take long: some of every sort.
IN_A_PROCESS = [
    "http error",
    "required arguments",
    "getattribute raises",
    "exits",
    "exit",
    "interrupt",
    "slots",
    "masked",
]
EACH = [(where, kind) for where in WHERE for kind in KINDS if where != "in_a_process" or kind in IN_A_PROCESS]
# Everything on the loop, and elsewhere each in its turn; `make soak` has all.
FIRST = [
    (where, kind)
    for where, kind in EACH
    if where in ("on_the_loop", "in_a_process") or (list(WHERE).index(where) + list(KINDS).index(kind)) % 3 == 0
]


def engine(store: MemoryStore) -> Engine:
    return Engine(store, [caught, escaped, body, good], steps=[STEPS["in_a_queue"]], recovery=AT_ONCE)


@pytest.mark.parametrize(("where", "kind"), some([*FIRST, *(one for one in EACH if one not in FIRST)], len(FIRST)))
async def test_whatever_is_raised_reaches_the_body_and_a_replay_alike(where: str, kind: str) -> None:
    store = MemoryStore()
    async with engine(store) as first:
        result = await (await first.start(caught(where, kind), id="it")).outcome(PATIENCE)
        assert result.error is None
        assert result.output != "nothing was raised"
        failed = await (await first.start(escaped(where, kind), id="out")).outcome(PATIENCE)
        assert failed.status is RunStatus.FAILED
        assert isinstance(failed.error, Exception)
        view = await first.get("out")
        assert view is not None
        assert view.error is not None
        assert view.error.message
        assert (await first.run(good())).output == "good"
    if where != "child":
        await replay(caught, result.run_id, store)
        await replay(escaped, failed.run_id, store)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_goes_on_in_another_process_with_what_was_raised_before(kind: str) -> None:
    store = MemoryStore()
    async with engine(store) as first:
        result = await (await first.start(caught("on_the_loop", kind), id="it")).outcome(PATIENCE)
        batches = await store.journal.read(result.run_id)
    events = [event for batch in batches for event in batch.events]
    # Killed after the step's failure was recorded, and before the end was.
    end = next(n for n, event in enumerate(events) if isinstance(event, StepFailed)) + 1
    async with engine(left_by_a_crash(store, end)) as second:
        again = await second.handle("it").outcome(PATIENCE)
        assert (again.status, again.output) == (result.status, result.output)


async def test_an_http_error_is_an_http_error_to_the_body_and_to_the_caller() -> None:
    @step
    async def fetch() -> None:
        raise http_error()

    @workflow
    async def flow() -> int:
        try:
            await fetch()
        except urllib.error.HTTPError as error:
            return error.code if error.reason == "Not Found" else 1
        return 0

    @workflow
    async def fails() -> None:
        await fetch()

    async with Engine("memory://", [flow, fails], recovery=AT_ONCE) as opened:
        assert (await opened.run(flow())).output == 404
        with pytest.raises(urllib.error.HTTPError, match="HTTP Error 404: Not Found") as told:
            await (await opened.start(fails())).result(PATIENCE)
        assert told.value.code == 404


@pytest.mark.parametrize("kind", ["exit", "interrupt", "generator exit", "own base", "cancelled"])
async def test_what_cannot_be_rebuilt_tells_its_type_its_message_and_where(kind: str) -> None:
    async with Engine("memory://", [escaped], recovery=AT_ONCE) as opened:
        result = await (await opened.start(escaped("on_the_loop", kind))).outcome(PATIENCE)
    assert isinstance(result.error, RunFailed)
    assert type(make(kind)).__name__ in result.error.type
    if kind != "cancelled":  # a task that was cancelled keeps nothing else
        assert "awkward_steps.py" in "".join([result.error.traceback, *getattr(result.error, "__notes__", [])])


async def test_attributes_that_can_be_kept_are_told_where_the_class_cannot() -> None:
    class Escaped(BaseException):
        def __init__(self) -> None:
            super().__init__("with a code")
            self.code, self.lock = 7, threading.Lock()

    @step
    async def fails() -> None:
        raise Escaped

    @workflow
    async def flow() -> dict[str, Any]:
        try:
            await fails()
        except StepError as error:
            told = error.type.endswith("Escaped") and "test_exceptions.py" in error.traceback
            return error.attributes if told else {"type": error.type, "traceback": error.traceback}
        return {}

    @workflow
    async def outer() -> None:
        await fails()

    async with Engine("memory://", [flow, outer], recovery=AT_ONCE) as opened:
        assert (await opened.run(flow())).output == {"code": 7}
        error = (await opened.run(outer())).error
        assert isinstance(error, RunFailed)
        assert error.attributes == {"code": 7}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_fallback_and_a_compensation_may_raise_anything_too(kind: str) -> None:
    def answer(failed: Any) -> int:
        raise make(kind)

    @step
    async def fails() -> int:
        raise make(kind)

    @step
    async def undo() -> None:
        raise make(kind)

    @workflow
    async def flow() -> None:
        async with saga() as s:
            s.compensate(undo)
            await fails()

    async with Engine("memory://", [flow, good], rules=[rule("fails", fallback=answer)], recovery=AT_ONCE) as opened:
        result = await (await opened.start(flow())).outcome(PATIENCE)
        assert isinstance(result.error, CompensationFailed)
        assert (await opened.run(good())).output == "good"


@pytest.mark.parametrize("kind", ["exit", "interrupt", "http error", "masked"])
async def test_what_would_end_the_process_is_retried_like_any_other_failure(kind: str) -> None:
    store = MemoryStore()
    async with engine(store) as opened:
        result = await (await opened.start(escaped("again_and_again", kind))).outcome(PATIENCE)
    events = [event for batch in await store.journal.read(result.run_id) for event in batch.events]
    assert sum(isinstance(event, StepStarted) for event in events) == 2
    assert isinstance(events[-1], RunFinished)
