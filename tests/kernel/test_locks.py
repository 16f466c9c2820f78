"""Locks in a journal: holders, however it is batched; invalid keys; replay of tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure.errors import InvalidLock
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    ChildFinished,
    ChildStarted,
    RunClaimed,
    RunFinished,
    RunReleased,
    RunStarted,
    RunStatus,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
    decode_events,
    encode_events,
)
from perdure.kernel.policies.lock_keys import HeldLock, check_key, check_ttl, lease_key
from perdure.kernel.projection import row
from perdure.kernel.state import RunState, fold

START: list[AnyEvent] = [RunStarted("r", "p", "1", Raw(b"null")), RunClaimed("me", 1)]


def asked(op: str, key: str) -> WaitOpened:
    return WaitOpened(op, "lock", name=key, ttl=30.0)


def taken(op: str, token: int) -> WaitResolved:
    return WaitResolved(op, "lock", Raw(str(token).encode()))


def unlocked(op: str) -> ValueRecorded:
    return ValueRecorded(f"{op}/unlock", "unlock")


def state_of(*events: AnyEvent) -> RunState:
    return fold("r", [Batch(0, 1.0, [*START, *events])])


def test_a_run_holds_a_lock_from_its_wait_to_its_unlock() -> None:
    assert state_of(asked("lock:0", "a")).lock_waits == {"lock:0": HeldLock("a", 30.0)}
    held = state_of(asked("lock:0", "a"), taken("lock:0", 7))
    assert (held.locks, held.lock_waits) == ({"lock:0": HeldLock("a", 30.0, 7)}, {})
    assert state_of(asked("lock:0", "a"), taken("lock:0", 7), unlocked("lock:0")).locks == {}


@pytest.mark.parametrize("by", ["timeout", "cancelled"])
def test_a_wait_that_ends_otherwise_holds_nothing(by: str) -> None:
    state = state_of(asked("lock:0", "a"), WaitResolved("lock:0", by))
    assert (state.locks, state.lock_waits) == ({}, {})


def test_a_lock_that_was_taken_again_has_its_new_token() -> None:
    state = state_of(asked("lock:0", "a"), taken("lock:0", 7), ValueRecorded("lock:0", "lock", Raw(b"9")))
    assert state.locks["lock:0"].token == 9


def test_a_run_that_has_ended_holds_nothing() -> None:
    state = state_of(asked("lock:0", "a"), taken("lock:0", 7), asked("lock:1", "b"), RunFinished(RunStatus.FAILED))
    assert (state.locks, state.lock_waits) == ({}, {})


def test_a_run_that_holds_or_wants_a_lock_needs_its_owner_now() -> None:
    """So that recovery finds it after its owner has died, and it is not evicted."""
    sleeping = WaitOpened("sleep:0", "timer", 1000.0)
    for events in ([asked("lock:0", "a")], [asked("lock:0", "a"), taken("lock:0", 1), sleeping]):
        assert state_of(*events).status is RunStatus.RUNNING
        released = state_of(*events, RunReleased("me"))
        assert (row(released).status, row(released).wake_at) == (RunStatus.RUNNING, 1.0)
    freed = state_of(asked("lock:0", "a"), taken("lock:0", 1), sleeping, unlocked("lock:0"))
    assert freed.status is RunStatus.WAITING


def test_a_child_that_has_ended_holds_nothing() -> None:
    held: list[AnyEvent] = [
        asked("lock:0", "a"),
        taken("lock:0", 1),
        asked("sub:0/lock:0", "b"),
        taken("sub:0/lock:0", 1),
    ]
    started = ChildStarted("sub:0", "child", "1")
    assert list(state_of(started, *held, unlocked("sub:0/lock:0")).locks) == ["lock:0"]
    assert list(state_of(started, *held, ChildFinished("sub:0", RunStatus.BAILED)).locks) == ["lock:0"]


def test_events_of_locks_survive_the_store() -> None:
    events: list[AnyEvent] = [asked("lock:0", "a"), taken("lock:0", 7), unlocked("lock:0")]
    assert decode_events(encode_events(events)) == events


@given(st.data())
def test_any_split_into_batches_holds_the_same(data: st.DataObject) -> None:
    events: list[AnyEvent] = [*START]
    for n in range(data.draw(st.integers(1, 6))):
        op = f"lock:{n}"
        events.append(asked(op, data.draw(st.sampled_from("ab"))))
        if data.draw(st.booleans()):
            events.append(taken(op, n + 1))
            if data.draw(st.booleans()):
                events.append(unlocked(op))
        elif data.draw(st.booleans()):
            events.append(WaitResolved(op, "timeout"))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(events) - 1))))
    batches = [Batch(a, 1.0, events[a:b]) for a, b in zip([0, *cuts], [*cuts, len(events)], strict=True)]
    whole, parts = fold("r", [Batch(0, 1.0, events)]), fold("r", batches)
    assert (whole.locks, whole.lock_waits) == (parts.locks, parts.lock_waits)
    assert row(whole) == row(parts)


@given(st.text(max_size=300))
def test_a_key_is_taken_as_it_is_or_refused_with_a_reason(key: str) -> None:
    try:
        assert lease_key(check_key(key)) == f"lock:{key}"
    except InvalidLock as error:
        bad = not key or len(key) > 255 or any(ord(c) < 32 or 0xD800 <= ord(c) <= 0xDFFF for c in key)
        assert bad, error  # noqa: PT017
        assert len(str(error)) < 500  # noqa: PT017


def test_a_time_to_live_is_a_positive_number_of_seconds() -> None:
    assert check_ttl(0.5, "k") == 0.5
    with pytest.raises(InvalidLock, match="not positive"):
        check_ttl(0, "k")
