"""Signals to one waiting run from several processes, while senders and the engine are killed at random.

Everything that was acknowledged is delivered once, and in the order of its sender.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from perdure import RunStatus
from perdure.kernel.events import SignalReceived, WaitResolved
from tests.amounts import some
from tests.crash import programs
from tests.crash.harness import PATIENCE, Child, Children, audit, queue

SENDERS = 4


@pytest.mark.parametrize(("each", "kills", "seed", "patience"), some([(50, 6, 1, PATIENCE), (2500, 100, 2, 1500.0)], 1))
def test_signals_of_killed_senders_to_a_killed_engine_arrive_once_and_in_order(
    children: Children, tmp_path: Path, each: int, kills: int, seed: int, patience: float
) -> None:
    folder, db, count, chance = tmp_path, tmp_path / "runs.db", SENDERS * each, random.Random(seed)
    asyncio.run(queue(f"sqlite:///{db}", {"mailbox": programs.mailbox(count)}))

    def work() -> Child:
        return children.start("work", folder, db=str(db), effects=str(folder / "effects"))

    def send(sender: int) -> Child:
        return children.start(
            "send", folder, db=str(db), acks=str(folder / f"acks-{sender}"), sender=sender, count=each
        )

    def acknowledged() -> int:
        logs = [folder / f"acks-{sender}" for sender in range(SENDERS)]
        return sum(log.read_bytes().count(b"\n") for log in logs if log.exists())

    engine, senders = work(), [send(n) for n in range(SENDERS)]
    deadline = time.monotonic() + patience
    try:
        for kill in range(kills):
            share = (kill + chance.random()) / (kills + 1) * count
            while acknowledged() < share:
                assert time.monotonic() < deadline, f"only {acknowledged()} of {count} were acknowledged in time"
                time.sleep(0.005)
            victim = chance.randrange(SENDERS + 2)  # the engine twice as often as each of the others
            if victim >= SENDERS:
                engine.kill()
                engine = work()
            elif senders[victim].alive:
                senders[victim].kill()
                senders[victim] = send(victim)
        for sender in senders:
            sender.result(max(1.0, deadline - time.monotonic()))
        (folder / "drained").touch()
        assert engine.result(max(1.0, deadline - time.monotonic())) == "drained"
    finally:
        for child in (engine, *senders):
            child.kill()
    assert acknowledged() == count
    journal = audit(db)["mailbox"]
    received = [event for event in journal.events if isinstance(event, SignalReceived)]
    assert set(Counter(event.signal_id for event in received).values()) == {1}, "a signal is in the journal twice"
    assert len(received) == count
    assert sum(isinstance(event, WaitResolved) and event.by == "signal" for event in journal.events) == count
    [end] = journal.finished
    assert end.status is RunStatus.COMPLETED
    got = msgspec.json.decode(end.value, type=list[tuple[int, int]])
    assert got == [msgspec.json.decode(event.payload, type=tuple[int, int]) for event in received]
    for number in range(SENDERS):
        assert [n for who, n in got if who == number] == list(range(each)), f"sender {number} is out of order"
