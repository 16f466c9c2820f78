"""Signals, answers, cancels and pauses from other machines, under every fault.

Every answer that a sender gets is held against the journal at that moment, and again at the end (`messages.py`); here
is what the simulation cannot know: that the body got each signal once, in order.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure import ApprovalRejected, Invocation, SignalTimeout, approval, set_state, step, wait_signal, workflow
from perdure.kernel.events import CancelRequested, RunFinished, RunStatus, SignalReceived, WaitResolved
from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate
from perdure.testing.simulation import STORMY, Crash, Faults, Message, Report, Sender, Simulation, every_crash
from tests.simulation.test_promises import LIMIT, LONG, SOAK, search, seeds

SLOW = Faults(delays=(0.0, 0.002, 0.3), interference=0.1, lost_replies=0.1)
STORM = Faults(
    delays=STORMY.delays,
    lost_replies=STORMY.lost_replies,
    refusals=STORMY.refusals,
    interference=STORMY.interference,
    crashes=0.05,
)


@step
async def work(number: Any) -> Any:
    return number


@workflow
async def collect(count: int, busy: bool) -> list[Any]:
    """Take signals one by one, with a step between them or without."""
    got = []
    for _ in range(count):
        got.append(await wait_signal("item"))
        if busy:
            await work(got[-1])
    return got


@workflow
async def gathered(count: int) -> list[Any]:
    return list(await asyncio.gather(*[wait_signal("item") for _ in range(count)]))


@workflow
async def impatient(count: int, timeout: float) -> list[Any]:
    """Count what came and what did not, until a last signal says that it is enough."""
    got: list[Any] = []
    while len(got) < count:
        try:
            got.append(await wait_signal("item", timeout=timeout))
        except SignalTimeout:
            set_state("waited", len(got))
            if await work(len(got)) > 1000:
                break
    return got


@workflow
async def asking() -> str:
    try:
        return f"yes {await approval('ship', approvers=['ann', 'bob'])}"
    except ApprovalRejected as error:
        return f"no {error.by} {error.reason}"


@workflow
async def careful(count: int) -> list[Any]:
    try:
        return [await work(n) for n in range(count)]
    finally:
        await work("clean up")


def received(report: Report, name: str = "item") -> list[Any]:
    events = [event for batch in report.journals["run-0"] for event in batch.events]
    found = [e for e in events if isinstance(e, SignalReceived) and e.name == name]
    return [msgspec.json.decode(e.payload) for e in found]


def senders(count: int, each: int, wait: float = 0.0, local: bool = False) -> list[Sender]:
    return [
        Sender([Message("signal", "item", [number, n], wait=wait) for n in range(each)], local=local and number == 0)
        for number in range(count)
    ]


def in_order(report: Report) -> None:
    """Everything that was received was delivered, once and in the order in which it stands in the journal."""
    got = report.results["run-0"].output
    assert got == received(report)[: len(got or ())]
    for number in range(3):
        mine = [payload for payload in got or () if payload[0] == number]
        assert mine == sorted(mine)


def delivered(invocation: Invocation[Any], seed: Any, faults: Faults, each: int, **options: Any) -> None:
    sent = senders(3, each, wait=options.pop("wait", 0.0), local=options.pop("local", False))
    report = Simulation(seed, faults=faults).run(invocation, senders=sent, **{"limit": LONG, **options})
    in_order(report)


@search(6, SOAK // 4)
@given(seeds, st.booleans(), st.sampled_from([SLOW, STORM]), st.integers(1, 2))
# The reply to a claim is lost, and what came before the claim waits to be delivered.
@example(224, False, STORM, 2)
def test_signals_are_delivered_once_and_in_order_whatever_happens(
    seed: int, local: bool, faults: Faults, engines: int
) -> None:
    options: dict[str, Any] = {"local": local, "engines": engines}
    delivered(collect(9, False), f"{seed} a", faults, 3, **options)
    delivered(collect(9, True), f"{seed} b", faults, 3, **options)
    delivered(gathered(9), f"{seed} c", faults, 3, **options)
    delivered(collect(9, True), f"{seed} d", faults, 3, wait=1.5, **options)
    delivered(impatient(9, 1.0), f"{seed} e", faults, 3, wait=0.9, **options)


def test_signals_survive_a_crash_at_every_append() -> None:
    for local in (False, True):
        sent = senders(2, 2, local=local)
        for report in every_crash(collect(4, True), seed=3, faults=Faults(), limit=LIMIT, senders=sent):
            in_order(report)


# --- races -----------------------------------------------------------------------------------------------------------


def winner(report: Report, op: str) -> WaitResolved:
    """How a wait ended: once."""
    events = [event for batch in report.journals["run-0"] for event in batch.events]
    [found] = [e for e in events if isinstance(e, WaitResolved) and e.op == op]
    return found


def signal_against_timeout(seed: Any, faults: Faults, wait: float = 2.0) -> str:
    sent = [Sender([Message("signal", "item", "here", wait=wait)])]
    report = Simulation(seed, faults=faults).run(impatient(1, 2.0), senders=sent, limit=LONG)
    assert report.results["run-0"].output == ["here"]
    return winner(report, "item:0").by


def approve_against_approve(seed: Any, faults: Faults, local: bool) -> str:
    sent = [
        Sender([Message("approve", "ship", by="ann", payload="a", wait=1.0)]),
        Sender([Message("approve", "ship", by="bob", payload="b", wait=1.0)], local=local),
        Sender([Message("reject", "ship", by="bob", payload="never", wait=1.0)]),
    ]
    report = Simulation(seed, faults=faults).run(asking(), senders=sent, limit=LONG)
    by = winner(report, "ship:0").by
    outputs = {"answer:ann": "yes a", "answer:bob": "yes b", "rejected:bob": "no bob never"}
    assert report.results["run-0"].output == outputs[by]
    told = [r for r in report.replies if isinstance(r.verdict, Accepted | Duplicate)]
    assert len(told) == 1, "one of them won, and only that one was told so"
    assert told[0].id == winner(report, "ship:0").answer_id
    return by


def cancel_against_completion(seed: Any, faults: Faults, wait: float, local: bool) -> str:
    sent = [Sender([Message("cancel", wait=wait)], local=local), Sender([Message("signal", "item", 1, wait=wait)])]
    report = Simulation(seed, faults=faults).run(careful(2), senders=sent, limit=LONG)
    events = [event for batch in report.journals["run-0"] for event in batch.events]
    asked = any(isinstance(e, CancelRequested) for e in events)
    end = events[-1]
    assert isinstance(end, RunFinished)
    [verdict] = [r.verdict for r in report.replies if r.message.kind == "cancel"]
    assert (end.status is RunStatus.CANCELLED) == asked
    if isinstance(verdict, AlreadyFinished):
        # A sender whose first reply was lost asks again, and may find that it had won.
        assert verdict.status is end.status
    else:
        assert verdict == Cancelled()
        assert asked
    return end.status


def pause_against_completion(seed: Any, faults: Faults, wait: float, local: bool) -> None:
    messages = [Message("pause", wait=wait), Message("resume", wait=1.0)]
    report = Simulation(seed, faults=faults).run(careful(2), senders=[Sender(messages, local=local)], limit=LONG)
    assert report.results["run-0"].output == [0, 1]


def races(count: int) -> None:
    """Each of the races, under many schedules: every outcome is seen."""
    timing = Faults(delays=(0.0, 0.001, 0.1), durations=(0.0, 0.01, 0.1))
    # The run begins when its engine has opened, which takes a few delays: the signal comes a little before or after it.
    seen = {signal_against_timeout(f"{n} s", timing, 2.0 + n % 6 * 0.1) for n in range(count)}
    assert seen == {"signal", "timeout"}
    seen = {approve_against_approve(f"{n} a", timing, local=bool(n % 2)) for n in range(count)}
    assert seen == {"answer:ann", "answer:bob", "rejected:bob"}
    seen = {cancel_against_completion(f"{n} c", timing, n % 10 / 20, local=bool(n % 2)) for n in range(count)}
    assert seen == {RunStatus.CANCELLED, RunStatus.COMPLETED}
    for n in range(count):
        pause_against_completion(f"{n} p", timing, n % 10 / 20, local=bool(n % 2))


def races_in_a_storm(count: int) -> None:
    for n in range(count):
        signal_against_timeout(f"{n} S", STORM)
        approve_against_approve(f"{n} A", STORM, local=bool(n % 2))
        cancel_against_completion(f"{n} C", STORM, n % 10 / 5, local=bool(n % 2))
        pause_against_completion(f"{n} P", STORM, n % 10 / 5, local=bool(n % 2))


def test_every_race_has_one_winner_and_every_caller_is_told_the_truth() -> None:
    races(60)


def test_races_in_a_storm_have_one_winner_too() -> None:
    races_in_a_storm(25)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_soak_a_thousand_races_of_each_kind() -> None:
    races(1000)
    races_in_a_storm(1000)


def test_a_sender_that_dies_asks_again_under_the_same_id() -> None:
    sent = [Sender([Message("signal", "item", n) for n in range(3)])]
    for number in range(12):
        for side in ("before", "after", "during"):
            crash = Crash(number, side)
            report = Simulation(number).run(collect(3, False), senders=sent, crashes=[crash], limit=LIMIT)
            assert report.results["run-0"].output == [0, 1, 2]
            assert all(isinstance(reply.verdict, Accepted | Duplicate) for reply in report.replies)
