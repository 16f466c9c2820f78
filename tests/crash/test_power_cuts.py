"""Power cuts at random points, with the writes since the last sync lost in part.

What was acknowledged under `sync` is there afterwards. What was acknowledged under `relaxed` may be lost, but only from
the end: never one append without all that came after it. The file is whole in every case.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest
from msgspec import Raw

from perdure.kernel.events import AnyEvent, Batch, RunClaimed, RunStarted, StepStarted, StepSucceeded, encode_events
from perdure.kernel.projection import row, row_key
from perdure.kernel.state import RunState
from perdure.ports.journal import Append, Appended, Outcome
from perdure.stores.sqlite.store import SqliteStore
from tests.amounts import some
from tests.crash.disk import Disk, put_back
from tests.crash.harness import Children, Journal, at_once, audit, check_executions, read_effects
from tests.crash.neighbours import KINDS


@dataclass
class Ledger:
    """What a writer was told is kept, in the order of the commits."""

    states: dict[str, RunState] = field(default_factory=dict)
    acknowledged: list[tuple[Append, ...]] = field(default_factory=list)
    # How many of them must survive: up to the last one that was synced.
    synced: int = 0


class Writer:
    """Makes up appends for a few runs, without an engine, as fast as the store takes them."""

    def __init__(self, chance: random.Random, ledger: Ledger) -> None:
        self._chance, self._ledger = chance, ledger

    def appends(self) -> tuple[Append, ...]:
        """One to four appends for one commit, and whether they ask for a sync."""
        chance, states = self._chance, self._ledger.states
        fsync = chance.random() < 0.4
        result = []
        for run_id in chance.sample(range(6), chance.randint(1, 4)):
            name = f"run-{run_id}"
            state = states.get(name)
            events: list[AnyEvent] = []
            if state is None:
                state = states[name] = RunState(name)
                events.append(RunStarted(name, "made-up", "1", Raw(b"{}")))
                events.append(RunClaimed("writer", 1))
            for _ in range(chance.randint(1, 3)):
                op = f"step:{state.next_seq + len(events)}"
                value = Raw(b'"%s"' % (b"v" * chance.choice((1, 10, 500, 6000))))
                events += [StepStarted(op), StepSucceeded(op, value)]
            seq = state.next_seq
            before = row_key(state) if seq else ()
            for event in events:
                state.fold(event, float(seq))
            changed = row(state) if row_key(state) != before else None
            result.append(Append(name, seq, [Batch(seq, float(seq), events)], changed, fsync or seq == 0))
        return tuple(result)


async def write_until_the_cut(
    store: SqliteStore, disk: Disk, chance: random.Random, ledger: Ledger, beside: Sequence[str] = ()
) -> None:
    """Append until the power goes, noting what was acknowledged. What is under way then is noted last, unsynced."""
    await store.open(migrate=True)
    database = store._database
    assert database._writer is not None
    database._writer.pragma("wal_autocheckpoint", chance.choice((1, 4, 20, 1000)))
    writer = Writer(chance, ledger)
    while not disk.dead:
        if beside and chance.random() < 0.3:
            KINDS[chance.choice(beside)](database.path)
        if chance.random() < 0.05:
            database._checkpoint()
            continue
        if chance.random() < 0.05:
            await store.blobs.put(chance.randbytes(3000))
            if not disk.dead:
                ledger.synced = len(ledger.acknowledged)
            continue
        appends = writer.appends()
        outcomes = store.journal.append(appends)
        done: Sequence[Outcome] = outcomes if isinstance(outcomes, Sequence) else await outcomes
        assert all(isinstance(outcome, Appended) for outcome in done)
        ledger.acknowledged.append(appends)
        if not disk.dead and any(append.fsync for append in appends):
            ledger.synced = len(ledger.acknowledged)
    await store.close()


def surviving(ledger: Ledger, path: Path) -> Ledger:
    """Compare a file after a cut with the ledger. Returns the ledger of what is there."""
    if not path.exists() or path.stat().st_size == 0 or not has_schema(path):
        assert not ledger.synced, "an acknowledged append was lost with its file"
        return Ledger()
    journals = audit(path)
    stored = {
        (run_id, batch.seq): encode_events(batch.events)
        for run_id, journal in journals.items()
        for batch in journal.batches
    }
    kept = Ledger()
    for commit in ledger.acknowledged:
        found = [(append.run_id, append.expected_next) in stored for append in commit]
        assert all(found) or not any(found), "half of a commit survived"
        if not all(found):
            break
        for append in commit:
            batch = append.batches[0]
            assert stored.pop((append.run_id, batch.seq)) == encode_events(batch.events)
            state = kept.states.setdefault(append.run_id, RunState(append.run_id))
            for event in batch.events:
                state.fold(event, batch.at)
        kept.acknowledged.append(commit)
    assert not stored, "something survived that came after something lost"
    assert len(kept.acknowledged) >= ledger.synced, "an acknowledged append was lost"
    kept.synced = len(kept.acknowledged)
    return kept


def has_schema(path: Path) -> bool:
    """Whether the migration survived; it is one transaction, so it is there or not."""
    db = apsw.Connection(str(path))
    try:
        tables = db.execute("select count(*) from sqlite_schema where type = 'table'").get
        assert tables == 0 or db.pragma("user_version") >= 1
        return bool(tables)
    finally:
        db.close()


def cut_again_and_again(folder: Path, cuts: int, seed: int, beside: Sequence[str] = ()) -> int:
    """Cut the power of one writer after another on the same file. Says how many commits were lost in all."""
    chance = random.Random(seed)
    ledger, files, lost = Ledger(), dict[str, bytes](), 0
    for number in range(cuts):
        if number % 20 == 0:
            ledger, files = Ledger(), {}  # from an empty folder now and then, which also keeps it fast
        live = folder / f"{number}"
        put_back(live, files)
        disk = Disk(f"disk-{seed}", cut_at=chance.randint(1, chance.choice((40, 150, 400))))
        try:
            store = SqliteStore(str(live / "runs.db"), vfs=disk.name)
            asyncio.run(write_until_the_cut(store, disk, chance, ledger, beside))
        finally:
            disk.unregister()
        files = disk.survivors(chance)
        if chance.random() < 0.3:
            files["runs.db-shm"] = chance.randbytes(32768)  # stale shared memory must not be believed
        check = folder / f"{number}-check"
        put_back(check, files)
        before = len(ledger.acknowledged)
        ledger = surviving(ledger, check / "runs.db")
        lost += before - len(ledger.acknowledged)
        shutil.rmtree(live)
        shutil.rmtree(check)
    return lost


@pytest.mark.parametrize(("cuts", "seed"), some([(25, 0), (25, 1), (25, 2), *((500, n) for n in range(100, 104))], 3))
def test_a_power_cut_loses_nothing_synced_and_only_a_suffix_of_the_rest(tmp_path: Path, cuts: int, seed: int) -> None:
    lost = cut_again_and_again(tmp_path, cuts=cuts, seed=seed)
    assert lost > 0, "the disk lost nothing, so nothing was tested"


@pytest.mark.parametrize("beside", [["select", "forget"], ["read bytes", "copy"]])
def test_a_power_cut_beside_other_code_on_the_file_loses_nothing_synced(tmp_path: Path, beside: list[str]) -> None:
    lost = cut_again_and_again(tmp_path, cuts=20, seed=7, beside=beside)
    assert lost > 0, "the disk lost nothing, so nothing was tested"


# --- the whole engine -----------------------------------------------------------------------------------------------

RUNS = 6


def engine_through_cuts(children: Children, folder: Path, durability: str, cuts: int, seed: int) -> int:
    """Run an engine on a disk that loses power again and again, and then to the end. Says how often it was cut."""
    folder.mkdir()
    chance = random.Random(f"{durability} {seed}")
    live = folder / "0"
    live.mkdir()
    effects, happened = folder / "effects", 0
    journals: dict[str, Journal] = {}
    for number in range(1, cuts + 2):
        acks, after_cut = folder / f"acks-{number}", folder / f"{number}"
        child = children.start(
            "on_disk",
            folder,
            db=str(live / "runs.db"),
            effects=str(effects),
            acks=str(acks),
            after_cut=str(after_cut),
            runs=RUNS * number,  # there is always something new to do
            durability=durability,
            cut_at=chance.randint(1, 60) if number <= cuts else 0,
            seed=chance.randrange(1 << 30),
        )
        if not child.killed():
            assert child.result() == [n + 10 for n in range(RUNS * number)]
            journals = audit(live / "runs.db")
        else:
            happened += 1
            after_cut.mkdir(exist_ok=True)
            live = after_cut
            check = folder / f"{number}-check"
            shutil.copytree(live, check)
            path = check / "runs.db"
            journals = audit(path) if path.exists() and has_schema(path) else {}
        check_acknowledged(journals, acks, durability)
    assert set(journals) == {f"run-{n}" for n in range(RUNS * (cuts + 1))}
    if durability == "sync":
        logged = read_effects(effects)
        for journal in journals.values():
            check_executions(journal, logged)
    return happened


def check_acknowledged(journals: dict[str, Journal], acks: Path, durability: str) -> None:
    """Whatever the engine told anybody is in the store."""
    for line in acks.read_text().splitlines():
        ack = json.loads(line)
        if durability == "sync" or ack["kind"] == "start":
            journal = journals.get(ack["id"])
            assert journal is not None, f"{ack} was acknowledged and is lost"
            assert len(journal.events) >= ack["next_seq"], f"{ack} was acknowledged and is lost"
            assert ack["kind"] != "result" or journal.finished


# The busier the machine, the more is written at once, and the fewer writes there are to be cut.
@pytest.mark.parametrize(("cuts", "seeds", "least"), some([(5, range(4), 6), (10, range(1000, 1030), 200)], 1))
@pytest.mark.parametrize("durability", ["sync", "relaxed"])
def test_an_engine_goes_on_after_power_cuts_from_what_it_acknowledged(
    children: Children, tmp_path: Path, durability: str, cuts: int, seeds: range, least: int
) -> None:
    cut = at_once(lambda seed: engine_through_cuts(children, tmp_path / f"{seed}", durability, cuts, seed), seeds, 4)
    assert sum(cut) >= least
