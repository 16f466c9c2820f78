"""Histories of a store: clients in several processes that append, read and lease, while things go wrong around them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from contextvars import ContextVar
from inspect import isawaitable
from pathlib import Path
from typing import Any

import msgspec

from perdure.errors import NotOwner, StoreUnavailable
from perdure.kernel.events import Batch, ValueRecorded, entries
from perdure.ports import journal as ports
from perdure.ports.leases import Acquired, HeldBy, Lease, Leases, Renewal
from perdure.ports.store import Store
from perdure.stores.open import open_store
from tests.crash.harness import PATIENCE, Child, Children
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
)
from tests.services.proxy import Proxy

KEYS = ("run-a", "run-b", "run-c")
# Fractions that floats hold exactly, sums of them too: a store that keeps times must keep these.
TICK = 1 / 256
TTLS = (8 * TICK, 32 * TICK, 64 * TICK)
EPOCH = 1_700_000_000.0


class Began(msgspec.Struct, tag=True):
    """A line of a client's log: it calls."""

    number: int
    client: str
    key: str
    call: Call
    at: int


class Ended(msgspec.Struct, tag=True):
    """A line of a client's log: it was answered."""

    number: int
    answer: Answer
    at: int
    sent: int = 1


# The commands that were sent for the call that is being made.
SENT: ContextVar[list[str]] = ContextVar("sent")

_LINE: msgspec.json.Decoder[Began | Ended] = msgspec.json.Decoder(Began | Ended)


# --- the clients, each in a child -----------------------------------------------------------------------------------


class Log:
    """Lines that are the system's before the call is made: they stay when the process is killed."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._count = 0

    def begin(self, client: str, key: str, call: Call) -> int:
        """Say that a call is made."""
        self._count += 1
        self._write(Began(self._count, client, key, call, time.monotonic_ns()))
        return self._count

    def end(self, number: int, answer: Answer, sent: int = 1) -> None:
        """Say what it was answered, and how many commands that took."""
        self._write(Ended(number, answer, time.monotonic_ns(), sent))

    def _write(self, line: Began | Ended) -> None:
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def clients(
    url: str, log: str, name: str, seed: int, operations: int, width: int, timeout: float, spoil: str = ""
) -> int:
    """Run `width` clients on one store until they have made so many calls. `spoil` takes a promise from the store."""

    async def main() -> None:
        store = open_store(url)
        await _opened(store)
        lines = Log(log)
        store.trace(lambda command: SENT.get([]).append(command))
        journal: Any = Unfenced(store.journal) if spoil == "fence" else store.journal
        leases: Any = Generous(store.leases) if spoil == "lease" else store.leases
        try:
            share = -(-operations // width)
            tasks = [
                _Client(journal, leases, lines, f"{name}.{i}", random.Random(f"{seed} {name} {i}"), timeout).run(share)
                for i in range(width)
            ]
            await asyncio.gather(*tasks)
        finally:
            with suppress(StoreUnavailable, TimeoutError):
                await asyncio.wait_for(store.close(), PATIENCE)

    asyncio.run(main())
    return operations


async def _opened(store: Store) -> None:
    """Open a store, however long the network is down."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return await store.open(migrate=False)
        except StoreUnavailable:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.02)


class _Client:
    """Makes one call after another; what it has read last is what it believes."""

    def __init__(self, journal: Any, leases: Any, log: Log, name: str, dice: random.Random, timeout: float) -> None:
        self._journal, self._leases, self._log = journal, leases, log
        self._name, self._dice, self._timeout = name, dice, timeout
        self._next = dict.fromkeys(KEYS, 0)
        self._made = 0
        # At its own number mostly; now and then at one that was right a moment ago, or at one that is not yet right.
        self._offsets = (0, 0, 0, 0, 0, -1, 1)

    async def run(self, count: int) -> None:
        for _ in range(count):
            key = self._dice.choice(KEYS)
            now = EPOCH + int(time.monotonic() / TICK) * TICK
            match self._dice.randrange(12):
                case 0 | 1 | 2 | 3:
                    await self._append([key])
                case 4:
                    await self._append(self._dice.sample(KEYS, 2))
                case 5 | 6:
                    await self._ask(key, Read(), self._read(key))
                case 7 | 8:
                    acquire = Acquire(self._name, self._dice.choice(TTLS), now)
                    await self._ask(key, acquire, self._acquire(key, acquire))
                case 9:
                    renew = Renew(self._name, self._dice.choice(TTLS), now)
                    await self._ask(key, renew, self._renew(key, renew))
                case 10:
                    await self._ask(key, Release(self._name, now), self._release(key))
                case _:
                    await self._ask(key, Look(now), self._look(key, now))

    async def _append(self, keys: Sequence[str]) -> None:
        appends, calls = [], []
        for key in keys:
            self._made += 1
            expected = max(0, self._next[key] + self._dice.choice(self._offsets))
            names = tuple(f"{self._name}/{self._made}/{i}/{os.getpid()}" for i in range(self._dice.randint(1, 3)))
            batch = Batch(expected, EPOCH, [ValueRecorded(name, "now") for name in names])
            appends.append(ports.Append(key, expected, [batch], fsync=self._dice.random() < 0.5))
            calls.append(Append(expected, names))
        numbers = [self._log.begin(self._name, key, call) for key, call in zip(keys, calls, strict=True)]
        answers: list[Answer]
        try:
            outcomes = self._journal.append(appends)
            if isawaitable(outcomes):
                outcomes = await asyncio.wait_for(outcomes, self._patience())
            answers = [self._outcome(outcome) for outcome in outcomes]
        except StoreUnavailable:
            # The port promises that nothing was written.
            answers = [Nothing()] * len(appends)
        except TimeoutError:
            answers = [Unknown()] * len(appends)
        for number, key, call, answer in zip(numbers, keys, calls, answers, strict=True):
            self._log.end(number, answer)
            match answer:
                case Written():
                    self._next[key] = call.expected_next + len(call.events)
                case Conflicted(found):
                    self._next[key] = found

    def _patience(self) -> float:
        return HASTE if self._dice.random() < 0.1 else self._timeout

    def _outcome(self, outcome: ports.Outcome) -> Answer:
        match outcome:
            case ports.Appended():
                return Written()
            case ports.Conflict(int() as found):
                return Conflicted(found)
            case _:
                raise AssertionError(outcome)

    async def _ask(self, key: str, call: Call, asked: Coroutine[Any, Any, Answer]) -> None:
        number = self._log.begin(self._name, key, call)
        sent: list[str] = []
        SENT.set(sent)
        try:
            answer = await asyncio.wait_for(asked, self._patience())
        except NotOwner:
            answer = NotYours()
        except (StoreUnavailable, TimeoutError):
            # Of leases nobody promises that an attempt that failed had no effect.
            answer = Unknown()
        self._log.end(number, answer, len(sent))
        if isinstance(answer, Events):
            self._next[key] = len(answer.events)

    async def _read(self, key: str) -> Answer:
        return await read(self._journal, key)

    async def _acquire(self, key: str, call: Acquire) -> Answer:
        answer: Acquired | HeldBy = await self._leases.acquire(f"lease:{key}", call.owner, call.ttl, call.now)
        if isinstance(answer, HeldBy):
            return Refused(answer.owner, answer.expires)
        return Granted(answer.epoch, answer.expires)

    async def _renew(self, key: str, call: Renew) -> Answer:
        refused = await self._leases.renew_all([Renewal(f"lease:{key}", call.owner, call.ttl)], call.now)
        return NotYours() if refused else Done()

    async def _release(self, key: str) -> Answer:
        await self._leases.release(f"lease:{key}", self._name)
        return Done()

    async def _look(self, key: str, now: float) -> Answer:
        found: Lease | None = await self._leases.get(f"lease:{key}", now)
        return Free() if found is None else Held(found.owner, found.epoch, found.expires)


async def read(journal: ports.Journal, key: str) -> Events:
    """What a journal holds."""
    names = []
    for entry in entries(key, await journal.read(key)):
        assert isinstance(entry.event, ValueRecorded)
        names.append(entry.event.op)
    return Events(tuple(names))


class Unfenced:
    """A journal whose compare-and-swap compares nothing: whatever comes is put at the end."""

    def __init__(self, journal: ports.Journal) -> None:
        self._journal = journal

    async def append(self, appends: Sequence[ports.Append]) -> Sequence[ports.Outcome]:
        while True:
            heads = await self._journal.heads([append.run_id for append in appends])
            moved = []
            for append in appends:
                number = heads.get(append.run_id, 0)
                batches = [Batch(number, batch.at, batch.events) for batch in append.batches]
                moved.append(ports.Append(append.run_id, number, batches, fsync=append.fsync))
            outcomes = self._journal.append(moved)
            outcomes = await outcomes if isawaitable(outcomes) else outcomes
            if all(isinstance(outcome, ports.Appended) for outcome in outcomes):
                return outcomes

    async def read(self, run_id: str) -> list[Batch]:
        return await self._journal.read(run_id)


class Generous:
    """Leases that are given to whoever asks."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        answer = await self._leases.acquire(key, owner, ttl, now)
        return Acquired(owner, 1, now + ttl) if isinstance(answer, HeldBy) else answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leases, name)


# --- what goes wrong around them ------------------------------------------------------------------------------------


# A client that answers to somebody gives up on a call that takes too long; so do these, now and then.
HASTE = 0.02
# About the length of a call and its answer in a log.
LINES = 300


class Trouble:
    """Something that goes wrong, and is put right again, at the roll of the dice."""

    def __init__(self, dice: random.Random, proxy: Proxy | None, kills: Sequence[int]) -> None:
        self._dice, self._proxy = dice, proxy
        # How many calls a process has made when it is killed, for each that will be.
        self._kills = list(kills)

    def make(self, running: Sequence[tuple[Path, Child]]) -> None:
        """Let one thing go wrong for a moment."""
        pause = self._dice.uniform(0.005, 0.08)
        log, child = self._dice.choice(running)
        if self._kills and log.exists() and log.stat().st_size > self._kills[0] * LINES:
            self._kills.pop(0)
            child.kill()
        elif self._proxy is not None and self._dice.random() < 0.7:
            self._network(self._proxy)
            time.sleep(pause)
            self._proxy.heal()
        else:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGSTOP)
                time.sleep(pause)
                os.kill(child.pid, signal.SIGCONT)

    def _network(self, proxy: Proxy) -> None:
        match self._dice.randrange(7):
            case 0:
                proxy.cut()
            case 1:
                proxy.lose_replies(self._dice.randint(1, 4))
            case 2:
                proxy.blackhole("up")
            case 3:
                proxy.blackhole("down")
            case 4:
                proxy.reset_after(self._dice.randint(0, 2_000), self._dice.choice(("up", "down")))
            case 5:
                proxy.refuse()
            case _:
                proxy.delay(self._dice.uniform(0.001, 0.02))


def record(
    url: str,
    children: Children,
    folder: Path,
    seed: int,
    *,
    operations: int = 500,
    processes: int = 3,
    width: int = 2,
    kills: int = 3,
    timeout: float = 2.0,
    proxy: Proxy | None = None,
    spoil: str = "",
) -> tuple[list[Operation], dict[str, tuple[str, ...]]]:
    """What clients did to the store at `url` and were told, in trouble, and what its journals hold in the end."""
    dice = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    open_at = url if proxy is None else proxy.url(url)
    logs: list[Path] = []
    share = -(-operations // processes)
    trouble = Trouble(dice, proxy, [dice.randrange(share // 2) for _ in range(kills)])

    def start(slot: int, count: int) -> tuple[int, Path, Child]:
        log = folder / f"{seed}-{len(logs)}.jsonl"
        logs.append(log)
        arguments = {"name": f"p{slot}", "seed": dice.randrange(2**32), "operations": count, "width": width}
        child = children.start(
            "tests.crash.histories:clients",
            folder,
            url=open_at,
            log=str(log),
            timeout=timeout,
            spoil=spoil,
            **arguments,
        )
        return slot, log, child

    running = [start(slot, share) for slot in range(processes)]
    while running:
        time.sleep(dice.uniform(0.002, 0.03))
        trouble.make([(log, child) for _, log, child in running])
        for one in [one for one in running if not one[2].alive]:
            slot, log, child = one
            running.remove(one)
            # Whoever was killed comes back under its name, and does what is left.
            left = share - len(operations_of(log))
            if child.killed() and left > 0:
                running.append(start(slot, left))
    if proxy is not None:
        proxy.heal()
    history = [operation for log in logs for operation in operations_of(log)]
    found = asyncio.run(_journals(url))
    end = time.monotonic_ns()
    reads = [Operation("the end", key, Read(), Events(events), end, end) for key, events in found.items()]
    return [*history, *reads], found


async def _journals(url: str) -> dict[str, tuple[str, ...]]:
    store = open_store(url)
    await store.open(migrate=False)
    try:
        return {key: (await read(store.journal, key)).events for key in KEYS}
    finally:
        await store.close()


def operations_of(log: Path) -> list[Operation]:
    """The calls of a log; those whose answer is not there, for whatever reason, are of unknown outcome."""
    begun: dict[int, Began] = {}
    made: list[Operation] = []
    for line in log.read_bytes().splitlines() if log.exists() else ():
        with suppress(msgspec.DecodeError):  # a line that was cut short by a kill
            match _LINE.decode(line):
                case Began(number) as began:
                    begun[number] = began
                case Ended(number, answer, at, sent):
                    one = begun.pop(number)
                    made.append(Operation(one.client, one.key, one.call, answer, one.at, at, sent))
    made += [Operation(one.client, one.key, one.call, Unknown(), one.at, one.at) for one in begun.values()]
    return made
