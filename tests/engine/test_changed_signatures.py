# mypy: disable-error-code="no-untyped-def"
"""A signature changes while a run is under way: arguments are bound by name, and what does not bind is parked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from perdure import Client, Engine, Retry, RunStatus, call, child, connect, continue_as, step, wait_signal, workflow
from perdure.client.upgrade import upgrade_check
from perdure.kernel.events import (
    AttemptFailed,
    ChildStarted,
    OutcomeKept,
    RunParked,
    StepStarted,
    decode_events,
    encode_events,
)
from perdure.kernel.history.capsule import decode_capsule
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.ids import inputs_hash
from perdure.kernel.policies.versions import Programs
from perdure.kernel.values.codec import Codec
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Recorded, eventually, left_by_a_crash

Made = list[tuple[Any, ...]]


@pytest.fixture
def made() -> Made:
    """What was called with what."""
    return []


async def verdict(store: MemoryStore, *programs: Any, id: str = "it") -> tuple[Fit, str]:
    """What `upgrade-check` says of the run."""
    async with connect(store) as client:
        assert isinstance(client, Client)
        found = [one async for one in upgrade_check(client, Programs(programs))]
    one = next(one for one in found if one.id == id)
    return one.fit, one.reason


async def parked(engine: Engine, id: str = "it") -> RunParked:
    """Why a run was parked, once it is."""
    async with asyncio.timeout(PATIENCE):
        while (view := await engine.get(id)) is None or view.status is not RunStatus.PARKED:
            assert view is None or not view.status.finished, view
            await asyncio.sleep(0.01)
    return next(e.event for e in reversed(await engine.journal(id)) if isinstance(e.event, RunParked))


# --- workflows --------------------------------------------------------------------------------------------------------


def as_it_was(made: Made):
    @workflow
    async def w(user: str, cents: int = 5, tip: int = 0) -> None:
        await wait_signal("go")
        made.append((user, cents, tip))

    return w


def an_optional_one_in_between(made: Made):
    @workflow
    async def w(user: str, retries: int = 3, cents: int = 5, tip: int = 0) -> None:
        await wait_signal("go")
        made.append((user, cents, tip))
        assert retries == 3

    return w


def an_optional_one_at_the_end(made: Made):
    @workflow
    async def w(user: str, cents: int = 5, tip: int = 0, retries: int = 3) -> None:
        await wait_signal("go")
        made.append((user, cents, tip))
        assert retries == 3

    return w


def an_optional_one_that_cannot_be_stored(made: Made):
    @workflow
    async def w(user: str, clock: Any = object, cents: int = 5, tip: int = 0) -> None:
        await wait_signal("go")
        assert clock is object
        made.append((user, cents, tip))

    return w


def moved(made: Made):
    @workflow
    async def w(tip: int, cents: int, user: str) -> None:
        await wait_signal("go")
        made.append((user, cents, tip))

    return w


def by_keyword_only(made: Made):
    @workflow
    async def w(*, tip: int = 1, user: str, cents: int) -> None:
        await wait_signal("go")
        made.append((user, cents, tip))

    return w


def by_position_only(made: Made):
    @workflow
    async def w(user: str, retries: int = 3, cents: int = 5, tip: int = 0, /) -> None:
        await wait_signal("go")
        made.append((user, cents, tip))

    return w


def a_rest_behind_an_optional_one(made: Made):
    @workflow
    async def w(user: str, retries: int = 3, cents: int = 5, tip: int = 0, *rest: int, **more: int) -> None:
        await wait_signal("go")
        assert (rest, more) == ((), {})
        made.append((user, cents, tip))

    return w


def some_of_more(made: Made):
    @workflow
    async def w(user: str, **more: int) -> None:
        await wait_signal("go")
        made.append((user, more["cents"], more["tip"]))

    return w


BIND = [
    an_optional_one_in_between,
    an_optional_one_at_the_end,
    an_optional_one_that_cannot_be_stored,
    moved,
    by_keyword_only,
    by_position_only,
    a_rest_behind_an_optional_one,
    some_of_more,
]


@pytest.mark.parametrize("now", BIND)
async def test_arguments_stay_with_their_parameters(now: Callable[[Made], Any], made: Made) -> None:
    store, old, new = MemoryStore(), as_it_was(made), now(made)
    async with Engine(store, [old], recovery=AT_ONCE) as engine:
        run = await engine.start(old("u1", 700, 50), id="it")
        await eventually(lambda: store.journal.rows[run.run_id].status is RunStatus.WAITING)
    assert await verdict(store, new) == (Fit.SAFE, "")
    async with Engine(store, [new], recovery=AT_ONCE) as engine:
        await engine.signal("it", "go")
        await engine.handle("it").result(PATIENCE)
    assert made == [("u1", 700, 50)]


def renamed(made: Made):
    @workflow
    async def w(user: str, amount: int = 5, tip: int = 0) -> None:
        await wait_signal("go")
        made.append((user, amount, tip))

    return w


def removed(made: Made):
    @workflow
    async def w(user: str, cents: int = 5) -> None:
        await wait_signal("go")
        made.append((user, cents))

    return w


def one_more_required(made: Made):
    @workflow
    async def w(user: str, currency: str, cents: int = 5, tip: int = 0) -> None:
        await wait_signal("go")
        made.append((user, currency, cents, tip))

    return w


def renamed_and_required(made: Made):
    @workflow
    async def w(user: str, amount: int, tip: int = 0) -> None:
        await wait_signal("go")
        made.append((user, amount, tip))

    return w


def all_in_a_rest(made: Made):
    @workflow
    async def w(user: str, *rest: int) -> None:
        await wait_signal("go")
        made.append((user, rest))

    return w


def of_another_type(made: Made):
    @workflow
    async def w(user: str, cents: str = "5", tip: int = 0) -> None:
        await wait_signal("go")
        made.append((user, cents, tip))

    return w


PARK = [
    (renamed, "w() has no argument cents, which the stored input holds (cents = 700)"),
    (removed, "w() has no argument tip, which the stored input holds (tip = 50)"),
    (one_more_required, "w() is missing its argument 'currency' in the stored input"),
    (renamed_and_required, "w() is missing its argument 'amount' in the stored input, which holds cents"),
    (all_in_a_rest, "w() has no argument cents, tip, which the stored input holds (cents = 700, tip = 50)"),
    (of_another_type, "the argument cents of w cannot be read as str"),
]


@pytest.mark.parametrize(("now", "told"), PARK)
async def test_what_does_not_bind_is_parked_and_goes_on_when_it_does(
    now: Callable[[Made], Any], told: str, made: Made
) -> None:
    store, old, new = MemoryStore(), as_it_was(made), now(made)
    async with Engine(store, [old], recovery=AT_ONCE) as engine:
        run = await engine.start(old("u1", 700, 50), id="it")
        await eventually(lambda: store.journal.rows[run.run_id].status is RunStatus.WAITING)
    fit, reason = await verdict(store, new)
    assert fit is Fit.BREAKS
    assert told in reason
    async with Engine(store, [new], recovery=AT_ONCE) as engine:
        await engine.signal("it", "go")
        why = await parked(engine)
        assert told in why.reason
        assert f"(w is at tests/engine/test_changed_signatures.py:{now.__code__.co_firstlineno + 2})" in why.reason
    assert made == []
    async with Engine(store, [old], recovery=AT_ONCE) as engine:
        await engine.handle("it").result(PATIENCE)
    assert made == [("u1", 700, 50)]


# --- steps ------------------------------------------------------------------------------------------------------------


def paying(made: Made, pay: Any, how: Callable[[Any], Any]):
    """A workflow that pays, in one of many ways to write it."""

    @workflow
    async def w() -> None:
        await how(pay)
        await wait_signal("go")

    return w


def pay_as_it_was(made: Made, *, blocks: bool = False):
    @step
    async def pay(user: str, cents: int, tip: int = 0, urls: tuple[str, ...] = ()) -> None:
        if blocks:
            await asyncio.Event().wait()
        made.append((user, cents, tip, urls))

    return pay


def pay_moved(made: Made):
    @step
    async def pay(cents: int, user: str, urls: tuple[str, ...] = (), tip: int = 0) -> None:
        made.append((user, cents, tip, urls))

    return pay


def pay_renamed(made: Made):
    @step
    async def pay(customer: str, cents: int, tip: int = 0, urls: tuple[str, ...] = ()) -> None:
        made.append((customer, cents, tip, urls))

    return pay


def pay_with_one_more(made: Made):
    @step
    async def pay(user: str, retries: int = 3, cents: int = 5, tip: int = 0, urls: tuple[str, ...] = ()) -> None:
        made.append((user, cents, tip, urls))

    return pay


def by_position(pay: Any) -> Any:
    return pay("u1", 700)


SAME = [
    (pay_as_it_was, lambda pay: pay(user="u1", cents=700)),
    (pay_as_it_was, lambda pay: pay(cents=700, user="u1")),
    (pay_as_it_was, lambda pay: pay("u1", cents=700)),
    (pay_as_it_was, lambda pay: pay("u1", 700, 0)),
    (pay_as_it_was, lambda pay: pay("u1", 700, urls=(), tip=0)),
    (pay_moved, lambda pay: pay(700, "u1")),
    (pay_moved, lambda pay: pay(user="u1", cents=700, tip=0)),
    (pay_renamed, by_position),
    (pay_renamed, lambda pay: pay(cents=700, customer="u1")),
    (pay_with_one_more, lambda pay: pay("u1", cents=700)),
    (pay_with_one_more, lambda pay: pay("u1", 3, 700)),
]


@pytest.mark.parametrize(("pay", "how"), SAME)
@pytest.mark.parametrize("under_way", [False, True])
async def test_a_call_that_is_written_in_another_way_is_the_same(
    pay: Any, how: Callable[[Any], Any], under_way: bool, made: Made
) -> None:
    old = paying(made, pay_as_it_was(made, blocks=under_way), by_position)
    new = paying(made, pay(made), how)
    store = await stopped(old, "pay:0", under_way=under_way)
    assert await verdict(store, new) == (Fit.SAFE, "")
    async with Engine(store, [new], recovery=AT_ONCE) as engine:
        await engine.signal("it", "go")
        await engine.handle("it").result(PATIENCE)
    assert made == [("u1", 700, 0, ())]


async def stopped(program: Any, op: str, *, under_way: bool) -> MemoryStore:
    """What a crash leaves of the run "it", while a step is under way or after it."""
    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [program], recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(program(), id="it")
        await (recorded.until_started(op) if under_way else recorded.until_succeeded(op))
        return left_by_a_crash(store)


OTHER = [
    (pay_moved, by_position, ['user: was "u1", now 700', 'cents: was 700, now "u1"']),
    (pay_with_one_more, by_position, ["cents: was 700, now not given", "retries: was not given, now 700"]),
    (pay_as_it_was, lambda pay: pay("u1", 701), ["cents: was 700, now 701"]),
    (pay_as_it_was, lambda pay: pay("u1", 700, 1), ["tip: was not given, now 1"]),
    (pay_as_it_was, lambda pay: pay("u1", 700, 0, ("a" * 40,)), [f'urls: was not given, now ["{"a" * 40}"]']),
    (pay_renamed, lambda pay: pay("u2", 700), ['user: was "u1", now not given', 'customer: was not given, now "u2"']),
]


@pytest.mark.parametrize(("pay", "how", "told"), OTHER)
@pytest.mark.parametrize("under_way", [False, True])
async def test_other_arguments_are_named(
    pay: Any, how: Callable[[Any], Any], told: list[str], under_way: bool, made: Made
) -> None:
    old = paying(made, pay_as_it_was(made, blocks=under_way), by_position)
    new = paying(made, pay(made), how)
    store = await stopped(old, "pay:0", under_way=under_way)
    done = list(made)
    fit, reason = await verdict(store, new)
    assert fit is Fit.PATCH
    async with Engine(store, [new], recovery=AT_ONCE) as engine:
        await engine.signal("it", "go")
        why = await parked(engine)
        assert why.reason == reason
        assert why.divergence is not None
        assert (why.divergence.change, list(why.divergence.arguments)) == ("inputs", told)
        assert all(f"  {line}\n" in reason for line in told)
    assert made == done


def pay_with_one_required(made: Made):
    @step
    async def pay(user: str, cents: int, currency: str) -> None:
        made.append((user, cents, currency))

    return pay


def pay_of_another_type(made: Made):
    @step
    async def pay(user: str, cents: list[int]) -> None:
        made.append((user, cents))

    return pay


UNCALLABLE = [
    (pay_with_one_required, "missing a required argument: 'currency'"),
    (pay_of_another_type, "Expected `array`, got `int`"),
]


@pytest.mark.parametrize(("pay", "told"), UNCALLABLE)
async def test_a_step_under_way_that_cannot_be_called_any_more_parks_the_run(pay: Any, told: str, made: Made) -> None:
    old, new = (paying(made, one, by_position) for one in (pay_as_it_was(made, blocks=True), pay(made)))
    store = await stopped(old, "pay:0", under_way=True)
    fit, reason = await verdict(store, new)
    assert fit is Fit.BREAKS
    assert told in reason
    async with Engine(store, [new], recovery=AT_ONCE) as engine:
        why = await parked(engine)
    assert why.reason == reason
    assert "the arguments of pay:0" in reason
    assert "Let its parameters take\nthe call" in reason
    assert why.divergence is not None
    assert why.divergence.current is not None
    assert why.divergence.op == why.divergence.recorded.path == why.divergence.current.path == "pay:0"
    assert why.divergence.current.source in reason
    assert made == []
    async with Engine(store, [paying(made, pay_as_it_was(made), by_position)], recovery=AT_ONCE) as engine:
        await engine.signal("it", "go")
        await engine.handle("it").result(PATIENCE)
    assert made == [("u1", 700, 0, ())]


@pytest.mark.parametrize(("pay", "told"), UNCALLABLE)
async def test_a_step_that_is_done_need_not_be_callable(pay: Any, told: str, made: Made) -> None:
    old, new = (paying(made, one, by_position) for one in (pay_as_it_was(made), pay(made)))
    store = await stopped(old, "pay:0", under_way=False)
    assert await verdict(store, new) == (Fit.SAFE, "")


async def test_a_step_that_waits_for_its_next_attempt_is_bound_by_name(made: Made) -> None:
    def shop(pay: Any) -> Any:
        return paying(made, pay.options(retry=Retry(attempts=100, initial=0.01)), by_position)

    @step
    async def pay(user: str, cents: int, tip: int = 0) -> None:
        raise ConnectionError

    store, recorded = MemoryStore(), Recorded()
    old = shop(pay)
    async with Engine(store, [old], recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(old(), id="it")
        await recorded.until(lambda event: isinstance(event, AttemptFailed))
        store = left_by_a_crash(store)
    async with Engine(store, [shop(pay_moved(made))], recovery=AT_ONCE) as engine:
        why = await parked(engine)
        assert why.divergence is not None
        assert why.divergence.arguments == ('user: was "u1", now 700', 'cents: was 700, now "u1"')
    assert made == []


# --- remote steps -----------------------------------------------------------------------------------------------------


def queued(pay: Any, *, by_keywords: bool) -> Any:
    """A workflow that has another process pay; a step without these parameters is called by position."""
    there = pay.options(queue="money")
    names = {name for name, _ in pay.spec.types}

    @workflow
    async def w() -> None:
        await (there(cents=700, user="u1") if by_keywords and "user" in names else there("u1", 700))

    return w


REMOTE: list[tuple[Any, Any]] = [
    (pay_as_it_was, ("u1", 700, 0, ())),
    (pay_moved, ("u1", 700, 0, ())),
    (pay_with_one_more, ("u1", 700, 0, ())),
    (pay_renamed, "pay() is missing its argument 'customer' in the stored input, which holds user"),
    (pay_with_one_required, "pay() is missing its argument 'currency' in the stored input"),
]


@pytest.mark.parametrize("keywords", [False, True])
@pytest.mark.parametrize(("pay", "expected"), REMOTE)
async def test_a_step_in_a_queue_is_bound_by_name(pay: Any, expected: Any, keywords: bool, made: Made) -> None:
    store, w = MemoryStore(), queued(pay_as_it_was(made), by_keywords=keywords)
    async with Engine(store, [w], recovery=AT_ONCE) as engine:
        run = await engine.start(w(), id="it")
        await eventually(lambda: len(store.journal.rows) == 2)
        fit, reason = await verdict(store, queued(pay(made), by_keywords=True))
        assert (fit is Fit.SAFE) == isinstance(expected, tuple)
        assert isinstance(expected, tuple) or expected in reason
        async with Engine(store, steps=[pay(made)], name="worker", recovery=AT_ONCE) as worker:
            if isinstance(expected, tuple):
                await run.result(PATIENCE)
            else:
                [remote] = [row.id for row in store.journal.rows.values() if row.id != "it"]
                why = (await parked(worker, remote)).reason
                assert expected in why
                assert "Let the parameters of pay take them" in why
        if not isinstance(expected, tuple):
            async with Engine(store, steps=[pay_as_it_was(made)], name="reverted", recovery=AT_ONCE):
                await run.result(PATIENCE)
    assert made == [("u1", 700, 0, ())]


async def test_a_step_in_a_queue_that_takes_another_type_now_does_not_fit(made: Made) -> None:
    store, w = MemoryStore(), queued(pay_as_it_was(made), by_keywords=False)
    async with Engine(store, [w], recovery=AT_ONCE) as engine:
        _ = await engine.start(w(), id="it")
        await eventually(lambda: len(store.journal.rows) == 2)
        assert await verdict(store, queued(pay_renamed(made), by_keywords=False)) != (Fit.SAFE, "")
        fit, reason = await verdict(store, queued(pay_of_another_type(made), by_keywords=False))
        assert fit is Fit.BREAKS
        assert "Expected `array`, got `int`" in reason
        assert await verdict(store, queued(pay_moved(made), by_keywords=True)) == (Fit.SAFE, "")


# --- children ---------------------------------------------------------------------------------------------------------


def parent(of: Any, how: Callable[[Any], Any]):
    @workflow
    async def outer() -> None:
        await how(of)
        await wait_signal("end")

    return outer


HOW: list[Callable[[Any], Any]] = [
    lambda w: w("u1", 700, 50),
    lambda w: child(w("u1", 700, 50), id="c"),
    lambda w: child(w("u1", 700, 50), id="c", detached=True),
    lambda w: call("w", "u1", 700, 50),
    lambda w: child(call("w", "u1", 700, 50), id="c", detached=True),
]


@pytest.mark.parametrize("how", HOW)
async def test_a_child_keeps_its_arguments(how: Callable[[Any], Any], made: Made) -> None:
    store, old, new = MemoryStore(), as_it_was(made), an_optional_one_in_between(made)
    before, after = parent(old, how), parent(new, lambda w: how(old))
    async with Engine(store, [before, old], recovery=AT_ONCE) as engine:
        _ = await engine.start(before(), id="it")
        await eventually(lambda: sum(row.status is RunStatus.WAITING for row in store.journal.rows.values()) == 2)
    assert (await verdict(store, after, new))[0] is Fit.SAFE
    async with Engine(store, [after, new], recovery=AT_ONCE) as engine:
        [inner] = [row.id for row in store.journal.rows.values() if row.program == "w"]
        await engine.signal(inner, "go")
        await engine.signal("it", "end")
        await engine.handle("it").result(PATIENCE)
        await eventually(lambda: bool(made))
    assert made == [("u1", 700, 50)]


WRITTEN: list[tuple[Callable[[Any], Any], list[str]]] = [
    (lambda w: w(tip=50, cents=700, user="u1"), []),
    (lambda w: w("u1", cents=700, tip=50), []),
    (lambda w: call("w", "u1", 700, 50), []),
    (lambda w: call("w", user="u1", cents=700, tip=50), []),
    (lambda w: w("u1", 700), ["tip: was 50, now not given"]),
    (lambda w: w("u1", 700, 51), ["tip: was 50, now 51"]),
]


@pytest.mark.parametrize(("how", "told"), WRITTEN)
@pytest.mark.parametrize("detached", [False, True])
async def test_the_call_of_a_child_may_be_written_in_another_way(
    how: Callable[[Any], Any], told: list[str], detached: bool, made: Made
) -> None:
    def begin(how: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda w: child(how(w), detached=True) if detached else child(how(w))

    store, inner = MemoryStore(), as_it_was(made)
    before, after = parent(inner, begin(lambda w: w("u1", 700, 50))), parent(inner, begin(how))
    async with Engine(store, [before, inner], recovery=AT_ONCE) as engine:
        _ = await engine.start(before(), id="it")
        await eventually(lambda: sum(row.status is RunStatus.WAITING for row in store.journal.rows.values()) == 2)
    fit, reason = await verdict(store, after, inner)
    assert (fit is Fit.SAFE) == (not told)
    assert all(f"  {line}\n" in reason for line in told)


def beside_the_old_one(made: Made):
    @workflow(name="w", version="2")
    async def w(user: str, currency: str, cents: int = 5) -> None:
        made.append((user, currency, cents))

    return [as_it_was(made), w]


@pytest.mark.parametrize("mended", [an_optional_one_in_between, beside_the_old_one])
async def test_a_child_by_name_that_is_parked_goes_on_in_the_ways_that_are_shown(
    mended: Callable[[Made], Any], made: Made
) -> None:
    def outer(*_: Any) -> Any:
        return parent(None, lambda _: call("w", "u1", 700, 50))

    store = MemoryStore()
    async with Engine(store, [outer(), as_it_was(made)], recovery=AT_ONCE) as engine:
        _ = await engine.start(outer()(), id="it")
        await eventually(lambda: sum(row.status is RunStatus.WAITING for row in store.journal.rows.values()) == 2)
    fit, reason = await verdict(store, outer(), one_more_required(made))
    assert fit is Fit.BREAKS
    async with Engine(store, [outer(), one_more_required(made)], recovery=AT_ONCE) as engine:
        assert (await parked(engine)).reason == reason
    assert "Let the parameters of w take the recorded call" in reason
    assert "give the new one a version" in reason
    assert "perdure resolve ID --before w:0\n      keeps what was done before w:0" in reason
    now = mended(made)
    async with Engine(store, [outer(), *(now if isinstance(now, list) else [now])], recovery=AT_ONCE) as engine:
        await eventually(lambda: not any(row.status is RunStatus.PARKED for row in store.journal.rows.values()))
        await engine.signal("it/w:0", "go")
        await engine.signal("it", "end")
        await engine.handle("it").result(PATIENCE)
    assert made == [("u1", 700, 50)]


async def test_an_optional_parameter_of_a_child_and_its_default_may_change(made: Made) -> None:
    @workflow(name="w")
    async def other_default(user: str, cents: int = 5, tip: int = 9, more: int = 1) -> None:
        await wait_signal("go")
        made.append((user, cents, tip))

    store, old = MemoryStore(), as_it_was(made)
    before, after = (parent(w, lambda w: w("u1", 700)) for w in (old, other_default))
    async with Engine(store, [before, old], recovery=AT_ONCE) as engine:
        _ = await engine.start(before(), id="it")
        await eventually(lambda: sum(row.status is RunStatus.WAITING for row in store.journal.rows.values()) == 2)
    assert (await verdict(store, after, other_default))[0] is Fit.SAFE
    async with Engine(store, [after, other_default], recovery=AT_ONCE) as engine:
        await engine.signal("it/w:0", "go")
        await engine.signal("it", "end")
        await engine.handle("it").result(PATIENCE)
    assert made == [("u1", 700, 0)]  # the defaults that it was started with


async def test_the_arguments_of_a_child_that_are_sets_are_the_same_in_every_process(made: Made) -> None:
    one, other = Codec(), Codec()
    names = {f"name-{n}" for n in range(50)}

    @workflow
    async def inner(names: set[str]) -> None: ...

    ordered = sorted(names)
    assert inner(names).record(one) == inner({*reversed(ordered)}).record(other)


# --- other ways to begin ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [an_optional_one_in_between, moved, removed])
@pytest.mark.parametrize("options", [{"queue": "q"}, {"delay": 0.01}, {"queue": "q", "key": "k"}], ids=str)
async def test_a_run_that_has_not_begun_is_bound_by_name(
    now: Callable[[Made], Any], options: dict[str, Any], made: Made
) -> None:
    store, old, new = MemoryStore(), as_it_was(made), now(made)
    async with connect(store) as client:
        _ = await client.start(old("u1", 700, 50), id="it", **options)
    fit, _ = await verdict(store, new)
    async with Engine(store, [new], recovery=AT_ONCE) as engine:
        if now is removed:
            assert fit is Fit.BREAKS
            assert "has no argument tip" in (await parked(engine)).reason
        else:
            assert fit is Fit.SAFE
            await engine.signal("it", "go")
            await engine.handle("it").result(PATIENCE)
    assert made == ([] if now is removed else [("u1", 700, 50)])


@pytest.mark.parametrize("now", [an_optional_one_in_between, moved, removed])
async def test_the_next_incarnation_is_bound_by_name(now: Callable[[Made], Any], made: Made) -> None:
    @workflow(name="w")
    async def old(user: str, cents: int = 5, tip: int = 0) -> None:
        if cents == 5:
            continue_as(user, 700, 50)
        await wait_signal("go")

    store = MemoryStore()
    async with Engine(store, [old], recovery=AT_ONCE) as engine:
        _ = await engine.start(old("u1"), id="it")
        await eventually(lambda: any(row.status is RunStatus.WAITING for row in store.journal.rows.values()))
    async with Engine(store, [now(made)], recovery=AT_ONCE) as engine:
        await engine.signal("it", "go")
        if now is removed:
            assert "has no argument tip" in (await parked(engine)).reason
        else:
            await engine.handle("it").result(PATIENCE)
    assert made == ([] if now is removed else [("u1", 700, 50)])


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("now", [an_optional_one_in_between, moved, removed])
async def test_a_schedule_that_ticks_under_new_code_keeps_its_arguments(
    now: Callable[[Made], Any], by_name: bool, made: Made
) -> None:
    store, old = MemoryStore(), as_it_was(made)
    async with Engine(store, [old], recovery=AT_ONCE), connect(store) as client:
        # Paused, so that it is the trigger that starts a run, and no tick of the hour that begins just then.
        given = call("w", "u1", 700, 50) if by_name else old("u1", 700, 50)
        await client.schedule("s", given, every=3600, pause=True)
    async with connect(store) as client:
        found = [one async for one in upgrade_check(client, Programs([now(made)]))]
    assert [one.id for one in found if "has no argument tip" in one.reason] == ["schedule:s"] * (now is removed)
    async with Engine(store, [now(made)], recovery=AT_ONCE) as engine:
        id = await (await engine.schedule("s")).trigger()
        if now is removed:
            assert "has no argument tip" in (await parked(engine, id)).reason
        else:
            await eventually(lambda: any(row.id == id for row in store.journal.rows.values()))
            await engine.signal(id, "go")
            await engine.handle(id).result(PATIENCE)
    assert made == ([] if now is removed else [("u1", 700, 50)])


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("now", [an_optional_one_in_between, moved, removed])
async def test_positions_are_bound_by_the_first_worker(now: Callable[[Made], Any], large: bool, made: Made) -> None:
    store, old, user = MemoryStore(), as_it_was(made), "u" * (400_000 if large else 1)
    async with connect(store) as client:
        run = await client.start(call("w", user, 700, 50), id="it")
    async with Engine(store, [old], recovery=AT_ONCE):
        await eventually(lambda: store.journal.rows[run.run_id].status is RunStatus.WAITING)
    fit, _ = await verdict(store, now(made))
    assert (fit is Fit.SAFE) == (now is not removed)
    async with Engine(store, [now(made)], recovery=AT_ONCE) as engine:
        await engine.signal("it", "go")
        if now is removed:
            assert "has no argument tip" in (await parked(engine)).reason
        else:
            await engine.handle("it").result(PATIENCE)
    assert made == ([] if now is removed else [(user, 700, 50)])


async def test_a_caller_without_the_code_records_the_names_that_a_worker_tells(made: Made) -> None:
    store, old = MemoryStore(), as_it_was(made)
    async with Engine(store, [old], recovery=AT_ONCE), connect(store) as client:
        _ = await client.start(call("w", "u1", 700), id="it", delay=60)
        view = await client.get("it")
        assert view is not None
        assert view.input == {"user": "u1", "cents": 700}


async def test_a_fork_of_positional_arguments_keeps_their_names(made: Made) -> None:
    store, old = MemoryStore(), as_it_was(made)
    async with connect(store) as client:
        run = await client.start(call("w", "u1", 700, 50), id="it")
    async with Engine(store, [old], recovery=AT_ONCE):
        await eventually(lambda: store.journal.rows[run.run_id].status is RunStatus.WAITING)
    async with Engine(store, [an_optional_one_in_between(made)], recovery=AT_ONCE) as engine:
        fork = await engine.fork("it", new_id="fork")
        other = await engine.fork("it", inputs={"cents": 701}, new_id="other")
        for one in (fork, other):
            await engine.signal(one.id, "go")
            await one.result(PATIENCE)
    assert made == [("u1", 700, 50), ("u1", 701, 50)]


# --- retries, time travel and older journals --------------------------------------------------------------------------


def formerly(store: MemoryStore, hashes: dict[str, str]) -> MemoryStore:
    """The store as it was when a journal held hashes of arguments, by op."""
    copy = left_by_a_crash(store)
    for run_id, encoded in copy.journal.batches.items():
        for index, (seq, at, data) in enumerate(encoded):
            events = [
                msgspec.structs.replace(event, inputs=hashes[event.op])
                if isinstance(event, StepStarted | ChildStarted | OutcomeKept) and event.op in hashes
                else event
                for event in decode_events(data)
            ]
            copy.journal.batches[run_id][index] = (seq, at, encode_events(events))
    return copy


@pytest.mark.parametrize("former", [False, True])
@pytest.mark.parametrize("how", [by_position, lambda pay: pay(cents=700, user="u1")])
async def test_a_retry_does_not_pay_again_because_the_call_is_written_in_another_way(
    how: Callable[[Any], Any], former: bool, made: Made
) -> None:
    def shop(how: Callable[[Any], Any], mended: bool) -> Any:
        pay = pay_as_it_was(made)

        @step
        async def ship() -> None:
            if not mended:
                raise ConnectionError

        @workflow
        async def w() -> None:
            await how(pay)
            await ship()

        return w

    store, old = MemoryStore(), shop(by_position, mended=False)
    async with Engine(store, [old], recovery=AT_ONCE) as engine:
        assert (await engine.run(old(), id="it")).status is RunStatus.FAILED
    if former and how is not by_position:
        return  # a hash of positions cannot be compared with one of keywords
    if former:
        store = formerly(store, {"pay:0": inputs_hash(b'["u1",700]'), "ship:0": inputs_hash(b"[]")})
    async with Engine(store, [shop(how, mended=True)], recovery=AT_ONCE) as engine:
        await (await engine.retry("it")).result(PATIENCE)
    assert made == [("u1", 700, 0, ())]


async def test_time_travel_gives_a_step_other_arguments_by_the_names_of_now(made: Made) -> None:
    old = paying(made, pay_as_it_was(made), by_position)
    store = await stopped(old, "pay:0", under_way=False)
    made.clear()
    new = paying(made, pay_moved(made), lambda pay: pay(user="u1", cents=700))
    async with Engine(store, [new], recovery=AT_ONCE) as engine:
        other = await engine.time_travel("it", "pay:0", inputs={"cents": 800})
        await engine.signal(other.id, "go")
        await other.result(PATIENCE)
        again = await engine.fork(other.id, new_id="again")
        await again.result(PATIENCE)
    assert made == [("u1", 800, 0, ())]


async def test_a_journal_with_hashes_of_arguments_goes_on(made: Made) -> None:
    @workflow
    async def inner(n: int, tip: int = 0) -> int:
        return n

    def outer(cents: int) -> Any:
        pay = pay_as_it_was(made)

        @workflow
        async def w() -> None:
            await pay("u1", cents)
            await pay("u2", tip=1, cents=2)
            await inner(3)
            await wait_signal("go")

        return w

    store, old = MemoryStore(), outer(700)
    async with Engine(store, [old, inner], recovery=AT_ONCE) as engine:
        run = await engine.start(old(), id="it")
        await eventually(lambda: store.journal.rows[run.run_id].status is RunStatus.WAITING)
    hashes = {
        "pay:0": inputs_hash(b'["u1",700]'),
        "pay:1": inputs_hash(b'["u2",1,2]' + repr(("tip", "cents")).encode()),
        "inner:0": inputs_hash(b'{"tip":0,"n":3}'),
    }
    store = formerly(store, hashes)
    assert await verdict(store, old, inner) == (Fit.SAFE, "")
    fit, reason = await verdict(store, outer(701), inner)
    assert fit is Fit.PATCH
    assert "The inputs of the step pay have changed." in reason
    async with Engine(store, [old, inner], recovery=AT_ONCE) as engine:
        await engine.signal("it", "go")
        await engine.handle("it").result(PATIENCE)


# --- values -----------------------------------------------------------------------------------------------------------


def ordering(kind: Any):
    @step
    async def charge(order: kind) -> None: ...

    @workflow
    async def inner(order: kind) -> None: ...

    @workflow
    async def w(order: kind) -> None:
        await charge(order)
        await inner(order)
        await wait_signal("go")

    return w, inner


@pytest.mark.parametrize("id", ["o-1", "o" * 100])
@pytest.mark.parametrize("added", [("note", str, ""), ("note", str | None, None), ("tags", list[str], [])])
async def test_an_argument_whose_type_has_got_a_field_with_a_default_is_the_same(added: Any, id: str) -> None:
    old = msgspec.defstruct("Order", [("id", str)])
    new = msgspec.defstruct("Order", [("id", str), added])
    store, (w, inner) = MemoryStore(), ordering(old)
    async with Engine(store, [w, inner], recovery=AT_ONCE) as engine:
        run = await engine.start(w(old(id)), id="it")
        await eventually(lambda: store.journal.rows[run.run_id].status is RunStatus.WAITING)
    assert await verdict(store, *ordering(new)) == (Fit.SAFE, "")
    other = msgspec.defstruct(
        "Order", [("id", str)], namespace={"__post_init__": lambda self: setattr(self, "id", "x")}
    )
    assert (await verdict(store, *ordering(other)))[0] is Fit.PATCH


async def test_a_redacted_capsule_of_a_parked_run_shows_no_argument(made: Made) -> None:
    def shop(card: str) -> Any:
        return paying(made, pay_as_it_was(made), lambda pay: pay(card, 1))

    store = await stopped(shop("4000-1234"), "pay:0", under_way=False)
    async with Engine(store, [shop("4000-9999")], recovery=AT_ONCE) as engine:
        await engine.signal("it", "go", {"card": "4000-1234"})
        assert 'user: was "4000-1234", now "4000-9999"' in (await parked(engine)).reason
        data = await engine.export("it", redact=["$.card"])
    capsule = str(decode_capsule(data).batches)
    assert "4000" not in capsule
