"""The checker accepts what could have been and nothing else: against all orders, on small histories of any kind.

Larger ones are made from a sequential truth by letting operations overlap, and then by spoiling them.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.linearizability.checker import check, lost
from tests.linearizability.history import (
    Acquire,
    Answer,
    Append,
    Call,
    Conflicted,
    Done,
    Events,
    Free,
    Granted,
    Held,
    Look,
    Nothing,
    NotYours,
    Operation,
    Read,
    Refused,
    Release,
    Renew,
    Unknown,
    Written,
    at_least_once,
)
from tests.linearizability.models import JournalModel, LeaseModel, Model


class Truth:
    """A journal and a lease of each name, one call at a time. Written without a look at the models."""

    def __init__(self) -> None:
        self.journals: dict[str, list[str]] = {}
        self.leases: dict[str, tuple[str, int, float]] = {}

    def do(self, key: str, call: Call) -> Answer:
        journal = self.journals.setdefault(key, [])
        owner, epoch, expires = self.leases.get(key, ("", 0, 0.0))
        match call:
            case Append(expected, events):
                if expected != len(journal):
                    return Conflicted(len(journal))
                journal.extend(events)
                return Written()
            case Read():
                return Events(tuple(journal))
            case Acquire(asking, ttl, now):
                if owner not in ("", asking) and expires > now:
                    return Refused(owner, expires)
                self.leases[key] = (asking, epoch + (asking != owner), now + ttl)
                return Granted(epoch + (asking != owner), now + ttl)
            case Renew(asking, ttl, now):
                if asking != owner:
                    return NotYours()
                self.leases[key] = (owner, epoch, now + ttl)
                return Done()
            case Release(asking, _):
                if asking != owner:
                    return NotYours()
                self.leases[key] = ("", epoch, 0.0)
                return Done()
            case Look(now):
                return Held(owner, epoch, expires) if owner and expires > now else Free()


def calls(random_: random.Random, truth: Truth, count: int, keys: int) -> list[tuple[str, str, Call]]:
    """What clients might do: mostly sensible, as they know something of what is there."""
    made: list[tuple[str, str, Call]] = []
    for number in range(count):
        key, owner, now = f"k{random_.randrange(keys)}", random_.choice("abcd"), number * 0.25
        match random_.randrange(8):
            case 0 | 1 | 2:
                events = tuple(f"{number}.{i}" for i in range(random_.randint(1, 3)))
                made.append((owner, key, Append(-1, events)))
            case 3:
                made.append((owner, key, Read()))
            case 4:
                made.append((owner, key, Acquire(owner, 5.0, now)))
            case 5:
                made.append((owner, key, Renew(owner, 5.0, now)))
            case 6:
                made.append((owner, key, Release(owner, now)))
            case _:
                made.append((owner, key, Look(now)))
    return made


def overlapping(seed: int, count: int, keys: int = 3, width: int = 40, unknown: float = 0.05) -> list[Operation]:
    """A history that has an explanation: each operation took effect at a moment within its own time."""
    random_, truth = random.Random(seed), Truth()
    history = []
    for number, (client, key, call) in enumerate(calls(random_, truth, count, keys)):
        if isinstance(call, Append):
            length = len(truth.journals.get(key, ()))
            call = Append(max(0, length - random_.choice((0, 0, 0, 1))), call.events)
        moment, dice = number * 10, random_.random()
        began, ended = moment - random_.randint(0, width), moment + random_.randint(0, width)
        if dice < unknown / 2:
            answer: Answer = Unknown()  # and it had no effect
        else:
            answer = truth.do(key, call)
            answer = Unknown() if dice < unknown else answer
        history.append(Operation(client, key, call, answer, began, ended))
    return history


def one_after_another(seed: int, count: int) -> list[Operation]:
    """The same without overlaps: each answer was there before the next call."""
    return overlapping(seed, count, width=0, unknown=0.0)


# --- against all orders ---------------------------------------------------------------------------------------------


def explained(model: Model[Any], operations: Sequence[Operation]) -> bool:
    """Try all orders of all choices of those without an answer."""
    unknown = [operation for operation in operations if isinstance(operation.answer, Unknown)]
    known = [operation for operation in operations if not isinstance(operation.answer, Unknown)]
    for size in range(len(unknown) + 1):
        for effective in itertools.combinations(unknown, size):
            for order in itertools.permutations([*known, *effective]):
                if _in_time(order) and _fits(model, order):
                    return True
    return False


def _in_time(order: Sequence[Operation]) -> bool:
    return not any(
        later.ended < earlier.began and not isinstance(later.answer, Unknown)
        for earlier, later in itertools.combinations(order, 2)
    )


def _fits(model: Model[Any], order: Sequence[Operation]) -> bool:
    states = {model.initial()}
    for operation in order:
        states = {after for state in states for after in model.step(state, operation)}
    return bool(states)


TIMES = st.tuples(st.integers(0, 12), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
NAMES = st.sampled_from([("x",), ("y",), ("z", "w")])
JOURNAL = st.one_of(
    st.tuples(
        st.builds(Append, st.integers(0, 3), NAMES),
        st.sampled_from([Written(), Unknown(), Conflicted(1), Conflicted(0)]),
    ),
    st.tuples(
        st.just(Read()),
        st.lists(NAMES, max_size=2).map(lambda names: Events(tuple(itertools.chain.from_iterable(names)))),
    ),
)
OWNERS, NOWS = st.sampled_from("ab"), st.sampled_from([0.0, 1.0, 2.0])
LEASE = st.one_of(
    st.tuples(
        st.builds(Acquire, OWNERS, st.sampled_from([1.0, 2.0]), NOWS),
        st.one_of(
            st.builds(Granted, st.integers(1, 3), st.sampled_from([1.0, 2.0, 3.0])),
            st.builds(Refused, OWNERS, st.sampled_from([1.0, 2.0, 3.0])),
            st.just(Unknown()),
        ),
    ),
    st.tuples(st.builds(Renew, OWNERS, st.just(1.0), NOWS), st.sampled_from([Done(), NotYours(), Unknown()])),
    st.tuples(st.builds(Release, OWNERS, NOWS), st.sampled_from([Done(), NotYours(), Unknown()])),
    st.tuples(
        st.builds(Look, NOWS),
        st.one_of(st.just(Free()), st.builds(Held, OWNERS, st.integers(1, 3), st.sampled_from([1.0, 2.0, 3.0]))),
    ),
)


def history_of(drawn: list[tuple[tuple[Call, Answer], tuple[int, int]]]) -> list[Operation]:
    return [Operation("c", "k", call, answer, *times) for (call, answer), times in drawn]


@given(st.lists(st.tuples(JOURNAL, TIMES), min_size=1, max_size=5))
@settings(max_examples=150)
def test_a_small_history_of_a_journal_is_accepted_exactly_when_some_order_explains_it(
    drawn: list[tuple[tuple[Call, Answer], tuple[int, int]]],
) -> None:
    history = history_of(drawn)
    assert check(history).linearizable == explained(JournalModel(), history)


@given(st.lists(st.tuples(LEASE, TIMES), min_size=1, max_size=5))
@settings(max_examples=200)
def test_a_small_history_of_a_lease_is_accepted_exactly_when_some_order_explains_it(
    drawn: list[tuple[tuple[Call, Answer], tuple[int, int]]],
) -> None:
    history = history_of(drawn)
    assert check(history).linearizable == explained(LeaseModel(), history)


@given(st.integers(0, 2**32), st.integers(3, 6), st.integers(0, 60), st.data())
@settings(max_examples=100)
def test_a_likely_history_with_one_answer_changed_is_judged_as_all_orders_judge_it(
    seed: int, count: int, width: int, data: st.DataObject
) -> None:
    history = overlapping(seed, count, keys=1, width=width, unknown=0.2)
    kinds = {
        "journal": [operation for operation in history if operation.object[0] == "journal"],
        "lease": [operation for operation in history if operation.object[0] == "lease"],
    }
    spoilt = data.draw(st.integers(0, count - 1))
    others = [operation.answer for operation in history if type(operation.call) is type(history[spoilt].call)]
    history[spoilt] = msgspec.structs.replace(history[spoilt], answer=data.draw(st.sampled_from(others)))
    kinds = {kind: [operation for operation in history if operation.object[0] == kind] for kind in ("journal", "lease")}
    expected = explained(JournalModel(), kinds["journal"]) and explained(LeaseModel(), kinds["lease"])
    assert check(history).linearizable == expected


# --- what could have been -------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(1, 120), st.integers(1, 4), st.integers(0, 200))
@settings(max_examples=100)
def test_what_happened_is_accepted_however_its_operations_overlap(seed: int, count: int, keys: int, width: int) -> None:
    verdict = check(overlapping(seed, count, keys, width))
    assert verdict.linearizable, "\n".join(map(str, verdict.violations))


@pytest.mark.parametrize("unknown", [0.05, 0.2])
@pytest.mark.parametrize("keys", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_a_history_of_500_operations_is_checked_with_little_searching(seed: int, keys: int, unknown: float) -> None:
    history = overlapping(seed, 500, keys, unknown=unknown)
    verdict = check(history)
    assert verdict.linearizable
    assert verdict.looked_at < 40 * len(history)


# --- what could not -------------------------------------------------------------------------------------------------


def spoil(
    history: list[Operation], wanted: Callable[[Operation], bool], change: Callable[[Operation], Answer | None]
) -> list[list[Operation]]:
    """The history with one answer changed, for each that is wanted and can be."""
    spoilt = []
    for index, operation in enumerate(history):
        if wanted(operation) and (answer := change(operation)) is not None:
            spoilt.append([*history[:index], msgspec.structs.replace(operation, answer=answer), *history[index + 1 :]])
    return spoilt


def rejected(histories: list[list[Operation]]) -> None:
    assert histories, "nothing was spoilt"
    for history in histories:
        assert not check(history).linearizable


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_a_lost_update_is_found(seed: int) -> None:
    """Two appends at one number are acknowledged: one of them must be lost."""
    history = one_after_another(seed, 60)
    conflicts = spoil(history, lambda operation: isinstance(operation.answer, Conflicted), lambda _: Written())
    for one in conflicts:
        assert not check(one).linearizable


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_a_stale_read_is_found(seed: int) -> None:
    """A read that does not see the last event, which was acknowledged before the read began."""

    def older(operation: Operation) -> Answer | None:
        assert isinstance(operation.answer, Events)
        return Events(operation.answer.events[:-1]) if operation.answer.events else None

    history = [*one_after_another(seed, 60), *_reads(one_after_another(seed, 60))]
    rejected(spoil(history, lambda operation: isinstance(operation.answer, Events), older))


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_events_out_of_order_or_from_nowhere_are_found(seed: int) -> None:
    def other(operation: Operation) -> Answer | None:
        assert isinstance(operation.answer, Events)
        return Events((*operation.answer.events, "from nowhere"))

    def reverse(operation: Operation) -> Answer | None:
        assert isinstance(operation.answer, Events)
        events = operation.answer.events
        return Events(events[::-1]) if len(events) > 1 else None

    history = [*one_after_another(seed, 60), *_reads(one_after_another(seed, 60))]
    rejected(spoil(history, lambda operation: isinstance(operation.answer, Events), other))
    for one in spoil(history, lambda operation: isinstance(operation.answer, Events), reverse):
        assert not check(one).linearizable


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_two_owners_at_once_are_found(seed: int) -> None:
    """Somebody is told that the lease is his while it is somebody else's."""

    def granted(operation: Operation) -> Answer | None:
        assert isinstance(operation.call, Acquire)
        return Granted(1_000, operation.call.now + operation.call.ttl)

    history = one_after_another(seed, 120)
    for one in spoil(history, lambda operation: isinstance(operation.answer, Refused), granted):
        assert not check(one).linearizable


@given(st.integers(0, 2**32))
@settings(max_examples=25)
def test_an_epoch_that_does_not_grow_is_found(seed: int) -> None:
    """The lease changes hands, and the new holder gets the epoch of the one before."""
    history = one_after_another(seed, 120)
    epochs: dict[str, int] = {}
    spoilt = []
    for index, operation in enumerate(history):
        if isinstance(operation.answer, Granted):
            if operation.answer.epoch > epochs.get(operation.key, 0) > 0:
                answer = msgspec.structs.replace(operation.answer, epoch=operation.answer.epoch - 1)
                spoilt.append(
                    [*history[:index], msgspec.structs.replace(operation, answer=answer), *history[index + 1 :]]
                )
            epochs[operation.key] = operation.answer.epoch
    for one in spoilt:
        assert not check(one).linearizable


def test_the_spoilers_have_something_to_spoil() -> None:
    """The tests above would pass on histories without conflicts and refusals."""
    history = one_after_another(1, 120)
    answers = {type(operation.answer) for operation in history}
    assert answers >= {Conflicted, Refused, Granted, Events, Held, Written}


def test_an_append_that_failed_without_effect_must_have_had_none() -> None:
    append = Operation("a", "k", Append(0, ("x",)), Nothing(), 0, 1)
    nothing, something = Events(()), Events(("x",))
    assert check([append, Operation("b", "k", Read(), nothing, 2, 3)]).linearizable
    assert not check([append, Operation("b", "k", Read(), something, 2, 3)]).linearizable


def test_an_append_of_unknown_outcome_may_come_late_but_not_go_away_again() -> None:
    append = Operation("a", "k", Append(0, ("x",)), Unknown(), 0, 1)
    reads = [Operation("b", "k", Read(), Events(events), 10 + i, 10 + i) for i, events in enumerate([(), ("x",)])]
    assert check([append, *reads]).linearizable
    assert not check([append, *reads, Operation("b", "k", Read(), Events(()), 20, 21)]).linearizable


def test_an_operation_that_seems_to_change_nothing_may_be_needed_later() -> None:
    """The second renewal seems idle before the third, and must come after it to explain what is seen."""
    assert check(
        [
            Operation("a", "k", Acquire("a", 2.0, 0.0), Granted(1, 2.0), 0, 1),
            Operation("a", "k", Renew("a", 1.0, 1.0), Done(), 2, 10),
            Operation("a", "k", Renew("a", 1.0, 2.0), Done(), 2, 10),
            Operation("b", "k", Look(1.0), Held("a", 1, 2.0), 11, 12),
        ]
    ).linearizable


def test_a_call_that_was_sent_twice_may_have_its_effect_late_and_again() -> None:
    """The second sending of what was acquired arrives when it has long been given back."""
    history = [
        Operation("a", "k", Acquire("a", 9.0, 0.0), Granted(1, 9.0), 0, 1),
        Operation("a", "k", Release("a", 1.0), Done(), 2, 3),
        Operation("a", "k", Acquire("a", 9.0, 2.0), Granted(2, 11.0), 4, 5, sent=2),
        Operation("a", "k", Release("a", 3.0), Done(), 6, 7),
        Operation("b", "k", Look(4.0), Held("a", 3, 11.0), 8, 9),
    ]
    assert not check(history).linearizable
    assert check(at_least_once(history)).linearizable
    # Nobody else gets it meanwhile, however often it was sent.
    other = Operation("b", "k", Acquire("b", 1.0, 4.0), Granted(4, 5.0), 10, 11)
    assert not check(at_least_once([*history, other])).linearizable


def test_what_was_given_back_twice_tells_nothing() -> None:
    history = [
        Operation("a", "k", Acquire("a", 9.0, 0.0), Granted(1, 9.0), 0, 1),
        Operation("a", "k", Release("a", 1.0), Done(), 2, 3),
        Operation("a", "k", Release("a", 2.0), Done(), 4, 5, sent=2),
    ]
    assert not check(history).linearizable
    assert check(at_least_once(history)).linearizable
    assert not check(at_least_once([*history[:2], msgspec.structs.replace(history[2], sent=1)])).linearizable


def test_a_violation_says_what_could_not_follow_what() -> None:
    [violation] = check(
        [
            Operation("a", "k", Append(0, ("x",)), Written(), 0, 1),
            Operation("b", "k", Append(0, ("y",)), Written(), 2, 3),
        ]
    ).violations
    assert "the journal k answered what no order of its operations explains" in str(violation)
    assert "('y',)" in str(violation)
    assert [operation.client for operation in violation.unexplained] == ["b"]


def test_an_acknowledged_append_that_is_not_in_the_journal_is_lost() -> None:
    kept = Operation("a", "k", Append(0, ("x",)), Written(), 0, 1)
    gone = Operation("a", "k", Append(1, ("y", "z")), Written(), 2, 3)
    assert lost([kept, gone], {"k": ("x", "y", "z")}) == []
    assert lost([kept, gone], {"k": ("x", "y")}) == [gone]
    assert lost([kept, gone], {}) == [kept, gone]


def _reads(history: list[Operation]) -> list[Operation]:
    """A read of each journal after everything."""
    journals: dict[str, tuple[str, ...]] = {}
    for operation in history:
        if isinstance(operation.call, Append) and isinstance(operation.answer, Written):
            journals[operation.key] = (*journals.get(operation.key, ()), *operation.call.events)
    after = len(history) * 10 + 1_000
    return [Operation("z", key, Read(), Events(events), after, after) for key, events in journals.items()]
