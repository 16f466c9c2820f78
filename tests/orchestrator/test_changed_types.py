"""A type that changes under a run: what the old one accepted parks the run, and is never raised into its body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest
from msgspec import Raw

from perdure import (
    Accepted,
    Engine,
    NotDecodable,
    RunStatus,
    SignalRejected,
    Workflow,
    approval,
    lock,
    saga,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.client.client import Client
from perdure.client.upgrade import upgrade_check
from perdure.errors import AnswerRejected, ForkRefused
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    RunClaimed,
    RunStarted,
    SignalReceived,
    StepStarted,
    StepSucceeded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.ids import step_key
from perdure.kernel.policies.versions import Programs
from perdure.kernel.projection import project
from perdure.kernel.state import fold
from perdure.ports.appends import extend
from perdure.ports.journal import Append, Appended
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, Recorded, eventually, left_by_a_crash

called: list[str] = []
CHILDREN: dict[Any, list[Any]] = {}


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    called.clear()


@step
async def charge(n: int) -> int:
    called.append("charge")
    return n


@step
async def refund(n: int) -> None:
    called.append("refund")


@step
async def ship(what: str) -> str:
    called.append(f"ship {what}")
    return what


@step
async def other() -> None:
    called.append("other")


# --- a signal, taken in every way that a body can take it -----------------------------------------------------------


def plain(kind: Any) -> Workflow[..., Any]:
    @workflow(name="flow")
    async def flow() -> str:
        await charge(1)
        got = await wait_signal("go", type=kind)
        return await ship(f"{got}")

    return flow


def in_saga(kind: Any) -> Workflow[..., Any]:
    @workflow(name="flow")
    async def flow() -> str:
        async with saga() as undo:
            paid = await charge(1)
            undo.compensate(refund, paid)
            got = await wait_signal("go", type=kind)
        return await ship(f"{got}")

    return flow


def in_try(kind: Any) -> Workflow[..., Any]:
    @workflow(name="flow")
    async def flow() -> str:
        paid = await charge(1)
        try:
            got = await wait_signal("go", type=kind)
        except Exception:
            await refund(paid)
            raise
        finally:
            await other()
        return await ship(f"{got}")

    return flow


def in_race(kind: Any) -> Workflow[..., Any]:
    @workflow(name="flow")
    async def flow() -> str:
        await charge(1)
        tasks = {asyncio.create_task(wait_signal("go", type=kind)), asyncio.create_task(sleep(3600))}
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        got = next(iter(done))
        return await ship("failed" if got.exception() else f"{got.result()}")

    return flow


def in_gather(kind: Any) -> Workflow[..., Any]:
    @workflow(name="flow")
    async def flow() -> str:
        await charge(1)
        both = await asyncio.gather(wait_signal("go", type=kind), sleep(0.001), return_exceptions=True)
        return await ship(f"{both[0]}")

    return flow


def with_timeout(kind: Any) -> Workflow[..., Any]:
    @workflow(name="flow")
    async def flow() -> str:
        await charge(1)
        async with asyncio.timeout(3600):
            got = await wait_signal("go", timeout=1800, type=kind)
        return await ship(f"{got}")

    return flow


def under_lock(kind: Any) -> Workflow[..., Any]:
    @workflow(name="flow")
    async def flow() -> str:
        async with lock("till"):
            await charge(1)
            got = await wait_signal("go", type=kind)
        return await ship(f"{got}")

    return flow


def in_child(kind: Any) -> Workflow[..., Any]:
    @workflow(name="inner")
    async def inner() -> str:
        return f"{await wait_signal('go', type=kind)}"

    @workflow(name="flow")
    async def flow() -> str:
        await charge(1)
        try:
            got = await inner()
        except Exception:
            await refund(1)
            raise
        return await ship(got)

    CHILDREN[flow] = [inner]
    return flow


def asked(kind: Any) -> Workflow[..., Any]:
    @workflow(name="flow")
    async def flow() -> str:
        async with saga() as undo:
            undo.compensate(refund, await charge(1))
            got = await approval("go", schema=kind)
        return await ship(f"{got}")

    return flow


WAYS = [plain, in_saga, in_try, in_race, in_gather, with_timeout, under_lock, in_child, asked]


class Left:
    """A run of old code that waits for "go", left by a crash."""

    def __init__(self, store: MemoryStore, run_id: str, clock: FakeClock) -> None:
        self.store, self.run_id, self.clock = store, run_id, clock

    async def send(self, value: Any) -> None:
        """Send the signal or the answer while no engine runs."""
        state = fold(self.run_id, await self.store.journal.read(self.run_id))
        [wait] = [op for op, open_op in state.ops.items() if open_op.opened is not None]
        async with Client(self.store, clock=self.clock) as client:
            if state.ops[wait].kind == "approval":
                assert await client.approve("it", "go", value) == Accepted()
            elif not state.child_of(wait):
                assert await client.signal("it", "go", value) == Accepted()
            else:  # a crash leaves no row of a child here, to which a client could send it
                sent = SignalReceived("go", Raw(msgspec.json.encode(value)), child=state.child_of(wait))
                [outcome] = self.store.journal.append([extend(state, [sent], self.clock.now())])
                assert isinstance(outcome, Appended)

    async def verdict(self, program: Workflow[..., Any]) -> tuple[Fit, str]:
        """What upgrade-check says."""
        async with Client(self.store, clock=self.clock) as client:
            found = [one async for one in upgrade_check(client, Programs(programs_of(program)))]
        assert len(found) == 1
        return found[0].fit, found[0].reason

    def engine(self, program: Workflow[..., Any], name: str = "w2") -> Engine:
        return Engine(self.store, programs_of(program), name=name, recovery=AT_ONCE, clock=self.clock)

    async def parked(self) -> None:
        await eventually(lambda: self.store.journal.rows[self.run_id].status is RunStatus.PARKED)


def programs_of(program: Workflow[..., Any]) -> list[Any]:
    return [program, *CHILDREN.get(program, ())]


async def left(program: Workflow[..., Any]) -> Left:
    store, recorded, clock = MemoryStore(), Recorded(), FakeClock()
    async with Engine(
        store, programs_of(program), name="w", recovery=AT_ONCE, clock=clock, on_commit=recorded
    ) as engine:
        handle = await engine.start(program(), id="it")
        await recorded.until(lambda e: getattr(e, "name", "") == "go" and type(e).__name__ == "WaitOpened")
        return Left(left_by_a_crash(store), handle.run_id, clock)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_what_was_accepted_as_an_int_and_is_read_as_a_str_parks_the_run(
    way: Callable[[Any], Workflow[..., Any]],
) -> None:
    before, after = way(int), way(str)
    it = await left(before)
    await it.send(5)
    called.clear()
    fit, reason = await it.verdict(after)
    assert fit is Fit.BREAKS
    assert "cannot be read as str" in reason
    async with it.engine(after) as engine:
        await it.parked()
        view = await engine.get("it")
    assert view is not None
    assert view.parked == "undecodable"
    assert view.reason == reason
    assert "It was accepted as int" in view.reason
    assert "str | int" in view.reason
    assert view.divergence is not None
    assert view.divergence.current is not None
    assert "test_changed_types.py:" in view.divergence.current.source
    assert "type=kind" in view.divergence.current.code or "schema=kind" in view.divergence.current.code
    assert called == []
    # Tried again by the same code, it stays where it is.
    length = (await it.store.journal.head(it.run_id)).next_seq  # type: ignore[union-attr]
    async with it.engine(after, "w3") as engine:
        await asyncio.sleep(0.05)
    assert (await it.store.journal.head(it.run_id)).next_seq == length  # type: ignore[union-attr]
    assert called == []
    # The type comes back.
    it.clock.advance(10)
    async with it.engine(before) as engine:
        assert await engine.handle("it").result(PATIENCE) == "5"
    assert "refund" not in called
    assert called.count("charge") == 0


async def test_an_early_signal_for_which_the_next_code_opens_a_wait_of_another_type_parks_the_run() -> None:
    gate = asyncio.Event()

    def held(kind: Any) -> Workflow[..., Any]:
        @step
        async def hold() -> None:
            await gate.wait()

        @workflow(name="flow")
        async def flow() -> str:
            async with saga() as undo:
                undo.compensate(refund, await charge(1))
                await hold()
                got, _ = await asyncio.gather(wait_signal("go", type=kind), other())
            return await ship(f"{got}")

        return flow

    store, recorded, clock = MemoryStore(), Recorded(), FakeClock()
    async with Engine(store, [held(int)], name="w", recovery=AT_ONCE, clock=clock, on_commit=recorded) as engine:
        handle = await engine.start(held(int)(), id="it")
        await recorded.until_started("hold:0")
        await engine.signal("it", "go", 5)
        it = Left(left_by_a_crash(store), handle.run_id, clock)
    gate.set()
    called.clear()
    async with it.engine(held(str)) as engine:
        await it.parked()
        view = await engine.get("it")
    assert view is not None
    assert view.parked == "undecodable"
    assert "test_changed_types.py:" in view.reason
    assert called == [], "nothing beside the wait has begun either"
    async with it.engine(held(int)) as engine:
        assert await engine.handle("it").result(PATIENCE) == "5"
    assert called == ["other", "ship 5"]


async def test_a_wait_that_is_open_takes_what_the_code_of_now_can_read_and_refuses_the_rest() -> None:
    it = await left(plain(int))
    async with it.engine(plain(str), "w") as engine:
        with pytest.raises(SignalRejected, match="str"):
            await engine.signal("it", "go", 5)
        assert await engine.signal("it", "go", "five") == Accepted()
        assert await engine.handle("it").result(PATIENCE) == "five"


@dataclass
class Answer:
    ok: bool


@dataclass
class LongAnswer:
    ok: bool
    why: str


async def test_a_required_field_added_to_an_answer_parks_the_run_and_advises_a_default() -> None:
    it = await left(asked(Answer))
    await it.send({"ok": True})
    called.clear()
    fit, reason = await it.verdict(asked(LongAnswer))
    assert fit is Fit.BREAKS
    async with it.engine(asked(LongAnswer)) as engine:
        await it.parked()
        view = await engine.get("it")
    assert view is not None
    assert view.reason == reason
    assert "It was accepted as an object with ok" in reason
    assert "Give the field `why` a default" in reason
    assert called == []


async def test_an_answer_that_the_code_in_memory_cannot_read_is_refused_and_the_question_stays() -> None:
    it = await left(asked(Answer))
    async with it.engine(asked(LongAnswer), "w") as engine:
        with pytest.raises(AnswerRejected, match="why"):
            await engine.approve("it", "go", {"ok": True})
        assert await engine.approve("it", "go", {"ok": True, "why": "x"}) == Accepted()
        assert "LongAnswer" in await engine.handle("it").result(PATIENCE)
    assert "refund" not in called


@dataclass
class NotedAnswer:
    ok: bool
    note: str = ""


@dataclass
class RenamedAnswer:
    yes: bool = False


@dataclass
class LevelAnswer:
    ok: Literal["yes", "no"]


@dataclass
class Form:
    answer: LevelAnswer
    note: str = ""


@dataclass
class OtherForm:
    answer: Answer
    note: str = ""


@pytest.mark.parametrize(
    ("before", "after", "fit"),
    [
        (plain(int), plain(str), Fit.BREAKS),
        (in_child(int), in_child(str), Fit.BREAKS),
        (asked(Answer), asked(LongAnswer), Fit.BREAKS),
        (asked(Answer), asked(RenamedAnswer), Fit.BREAKS),
        (plain(int), plain(int | str), Fit.SAFE),
        (plain(int), plain(None), Fit.SAFE),
        (plain(None), plain(int), Fit.SAFE),
        (asked(Answer), asked(NotedAnswer), Fit.SAFE),
        (asked(NotedAnswer), asked(Answer), Fit.SAFE),
    ],
)
async def test_upgrade_check_compares_the_type_of_an_open_wait_with_the_recorded_one(
    before: Workflow[..., Any], after: Workflow[..., Any], fit: Fit
) -> None:
    it = await left(before)
    found, reason = await it.verdict(after)
    assert found is fit, reason
    if fit is Fit.BREAKS:
        assert "The run waits for the" in reason
        assert "test_changed_types.py:" in reason
    assert await it.verdict(before) == (Fit.SAFE, "")


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (plain(int), plain(str), "as int, and the code now reads it as str."),
        (plain(int | str), plain(str), "as int | str, and the code now reads it as str."),
        (plain(list[int]), plain(list[str]), "as an array, and the code now reads it as another array."),
        (
            asked(LevelAnswer),
            asked(Answer),
            "as something whose ok is one of 'no', 'yes', and the code now reads that as bool.",
        ),
        (
            asked(Form),
            asked(OtherForm),
            "as something whose answer.ok is one of 'no', 'yes', and the code now reads that as bool.",
        ),
    ],
)
async def test_upgrade_check_names_the_part_of_an_open_wait_that_has_changed(
    before: Workflow[..., Any], after: Workflow[..., Any], told: str
) -> None:
    _, reason = await (await left(before)).verdict(after)
    assert told in " ".join(reason.split())


@step
async def double(cents: int) -> int:
    return 2 * cents


@step(name="double")
async def double_text(cents: str) -> str:
    return cents


@workflow(name="flow")
async def doubled() -> Any:
    return await double(await wait_signal("go", type=int))


@workflow(name="flow")
async def doubled_text() -> Any:
    return await double_text(await wait_signal("go", type=int))  # type: ignore[arg-type]


async def test_upgrade_check_tells_of_a_step_that_cannot_be_called_with_what_the_run_has() -> None:
    it = await left(doubled)
    await it.send(5)
    assert await it.verdict(doubled) == (Fit.SAFE, "")
    fit, reason = await it.verdict(doubled_text)
    assert fit is Fit.BREAKS
    assert "it would fail as soon as it continues: the arguments of double:0 cannot be read" in reason
    assert "Expected `str`, got `int`" in reason
    assert "test_changed_types.py:" in reason


# --- results --------------------------------------------------------------------------------------------------------


async def test_a_result_of_a_remote_step_that_arrives_for_other_code_parks_the_run_in_memory() -> None:
    gate = asyncio.Event()

    def flows(kind: Any) -> tuple[Workflow[..., Any], Any]:
        async def far() -> Any:
            await gate.wait()
            return 5

        far.__annotations__["return"] = kind
        called_far = step(queue="gpu")(far)

        @workflow(name="flow")
        async def flow() -> str:
            async with saga() as undo:
                undo.compensate(refund, await charge(1))
                got = await called_far()
            return await ship(f"{got}")

        return flow, called_far

    store, recorded = MemoryStore(), Recorded()
    (_, far), (flow, _) = flows(int), flows(str)
    async with Engine(store, [flow], serves=("main",), recovery=AT_ONCE, on_commit=recorded) as caller:
        handle = await caller.start(flow(), id="it", queue="main")
        await recorded.until_started("far:0")
        called.clear()
        gate.set()
        async with Engine(store, steps=[far], serves=("gpu",), recovery=AT_ONCE):
            await eventually(lambda: store.journal.rows[handle.run_id].status is RunStatus.PARKED)
        view = await caller.get("it")
    assert view is not None
    assert view.parked == "undecodable"
    assert "test_changed_types.py:" in view.reason
    assert called == []


async def test_upgrade_check_knows_a_result_that_a_remote_step_has_not_reported_yet() -> None:
    def flow(kind: Any) -> Workflow[..., Any]:
        async def far() -> Any:
            return 5

        far.__annotations__["return"] = kind
        called_far = step(queue="gpu")(far)

        @workflow(name="flow")
        async def flow() -> str:
            return f"{await called_far()}"

        return flow

    store, recorded, clock = MemoryStore(), Recorded(), FakeClock()
    async with Engine(store, [flow(int)], serves=("main",), recovery=AT_ONCE, on_commit=recorded) as caller:
        handle = await caller.start(flow(int)(), id="it", queue="main")
        await recorded.until_started("far:0")
    found = await store.runs.find(step_key(handle.run_id, "far:0"))
    assert found is not None
    remote = fold(found[0].run_id, await store.journal.read(found[0].run_id))
    done: list[AnyEvent] = [RunClaimed("gpu-1", 1), StepStarted("far:0"), StepSucceeded("far:0", Raw(b"5"))]
    it = Left(store, handle.run_id, clock)
    assert (await it.verdict(flow(str)))[0] is Fit.SAFE
    [outcome] = store.journal.append([extend(remote, done, clock.now())])
    assert isinstance(outcome, Appended)
    assert (await it.verdict(flow(int)))[0] is Fit.SAFE
    fit, reason = await it.verdict(flow(str))
    assert fit is not Fit.SAFE
    assert "the result of far:0 cannot be read" in reason


def by_step(kind: Any) -> Workflow[..., Any]:
    async def fetch() -> Any:
        return Answer(True)

    fetch.__annotations__["return"] = kind
    fetched = step(fetch)

    @workflow(name="flow")
    async def flow() -> str:
        got = await fetched()
        await wait_signal("go")
        return await ship(f"{got.ok}")

    return flow


def by_gather(kind: Any) -> Workflow[..., Any]:
    async def fetch() -> Any:
        return Answer(True)

    fetch.__annotations__["return"] = kind
    fetched = step(fetch)

    @workflow(name="flow")
    async def flow() -> str:
        results: Any = await asyncio.gather(charge(1), fetched(), return_exceptions=True)
        await wait_signal("go")
        return await ship(f"{results[1].ok}")

    return flow


def by_child(kind: Any) -> Workflow[..., Any]:
    async def child() -> Any:
        return Answer(True)

    child.__annotations__["return"] = kind
    asked_child = workflow(name="child")(child)

    @workflow(name="flow")
    async def flow() -> str:
        got = await asked_child()
        await wait_signal("go")
        return await ship(f"{got.ok}")

    CHILDREN[flow] = [asked_child]
    return flow


@pytest.mark.parametrize("way", [by_step, by_gather, by_child], ids=lambda way: way.__name__)
async def test_a_result_whose_annotation_has_changed_parks_the_run_and_names_the_line(
    way: Callable[[Any], Workflow[..., Any]],
) -> None:
    it = await left(way(Answer))
    called.clear()
    fit, reason = await it.verdict(way(LongAnswer))
    assert fit is Fit.BREAKS
    assert "fetched()" in reason or "asked_child()" in reason
    assert "test_changed_types.py:" in reason
    assert "the result of " in reason
    assert "Give the field `why` a default" in reason
    async with it.engine(way(LongAnswer), "w") as engine:
        await engine.signal("it", "go")
        await it.parked()
        view = await engine.get("it")
    assert view is not None
    assert (view.parked, view.reason) == ("undecodable", reason)
    assert called == []
    async with it.engine(way(Answer), "w") as engine:
        assert await engine.handle("it").result(PATIENCE) == "True"


async def test_a_journal_of_before_in_which_the_body_got_the_error_is_replayed_the_same_way() -> None:
    @workflow
    async def careful() -> str:
        try:
            return f"{await wait_signal('go', type=int)}"
        except NotDecodable:
            await wait_signal("more")
            return "caught"

    events: list[AnyEvent] = [
        RunStarted("it", "careful", "1", Raw(b"{}")),
        RunClaimed("w", 1),
        SignalReceived("go", Raw(b'"x"')),
        WaitOpened("go:0", "signal", name="go", schema=Raw(b'{"type":"integer"}')),
        WaitResolved("go:0", "signal"),
        WaitOpened("more:0", "signal", name="more"),
    ]
    store, batches = MemoryStore(), [Batch(0, 1.0, events)]
    [outcome] = store.journal.append([Append("r", 0, batches, project("r", batches))])
    assert isinstance(outcome, Appended)
    async with Engine(store, [careful], name="w", recovery=AT_ONCE) as engine:
        await engine.signal("it", "more")
        assert await engine.handle("it").result(PATIENCE) == "caught"


# --- forks ----------------------------------------------------------------------------------------------------------


@step
async def priced(n: int) -> int:
    return n


@workflow
async def inner(n: int) -> int:
    return n


@workflow
async def everything(n: int) -> str:
    got = await priced(n)
    number = await wait_signal("number", type=int)
    answer = await approval("sure", schema=Answer)
    child = await inner(got)
    await wait_signal("end", type=int)
    return await ship(f"{got} {number} {answer.ok} {child}")


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("fork", {"values": {"priced:0": "many"}}),
    ("fork", {"values": {"number:0": "many"}}),
    ("fork", {"values": {"sure:0": {"ok": "maybe"}}}),
    ("fork", {"values": {"inner:0": "many"}}),
    ("fork", {"values": {"end:0": "many"}}),
    ("fork", {"inputs": {"n": "many"}}),
    ("time_travel", {"step": "priced:0", "inputs": {"n": "many"}}),
    ("time_travel", {"step": "inner:0", "inputs": {"n": "many"}}),
]


async def answered(engine: Engine, recorded: Recorded) -> None:
    _ = await engine.start(everything(1), id="it")
    await engine.signal("it", "number", 2)
    await recorded.until(lambda e: type(e).__name__ == "WaitOpened" and getattr(e, "name", "") == "sure")
    await engine.approve("it", "sure", {"ok": True})
    await recorded.until(lambda e: type(e).__name__ == "WaitOpened" and getattr(e, "name", "") == "end")


@pytest.mark.parametrize(("how", "given"), WRONG, ids=lambda one: str(one))
async def test_a_fork_with_a_value_of_the_wrong_type_is_refused_before_anything_is_written(
    how: str, given: dict[str, Any]
) -> None:
    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [everything, inner], recovery=AT_ONCE, on_commit=recorded) as engine:
        await answered(engine, recorded)
        with pytest.raises(ForkRefused, match="Give a value of the type"):
            await getattr(engine, how)("it", new_id="other", **given)
        assert await engine.get("other") is None
        assert len(store.journal.batches) == 1


@pytest.mark.parametrize("op", ["number:0", "sure:0", "end:0"])
async def test_a_client_without_the_code_refuses_by_the_recorded_schema(op: str) -> None:
    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [everything, inner], recovery=AT_ONCE, on_commit=recorded) as engine:
        await answered(engine, recorded)
        store = left_by_a_crash(store)
    async with Client(store) as client:
        with pytest.raises(ForkRefused, match=f"the value of {op} does not fit"):
            _ = await client.fork("it", values={op: "many"}, new_id="other")
        assert await client.get("other") is None


async def test_a_fork_with_a_value_of_the_type_of_now_is_made_whatever_the_recorded_type() -> None:
    it = await left(plain(int))
    await it.send(5)
    async with it.engine(plain(str)) as engine:
        await it.parked()
        fork = await engine.fork("it", values={"go:0": "five"}, new_id="other")
        assert await fork.result(PATIENCE) == "five"
