"""The file store under kill -9: what was acknowledged is there, and other processes go on at once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

from perdure.kernel.events import RunReleased
from perdure.stores.file.store import FileStore
from perdure.testing.conformance.history import numbered

ROUNDS = 12
# Appends to a journal shared by all, and says each number once it is acknowledged.
WRITER = """
import asyncio, sys
from perdure.kernel.events import Batch, RunReleased
from perdure.ports.journal import Append, Conflict
from perdure.stores.file import folder
from perdure.stores.file.store import FileStore
from perdure.testing.conformance.history import History, write

async def main(path, name):
    folder.LONGEST_LOG = 20_000
    store = FileStore(path)
    await store.open(migrate=True)
    await write(store, History("shared").begin())
    seq, i = 1, 0
    while True:
        own = History(f"{name}-{i}").begin()
        batch = Batch(seq, 1.0, [RunReleased(f"{name}:{i}")])
        [outcome] = await write(store, Append("shared", seq, [batch], starts=[own]))
        if isinstance(outcome, Conflict):
            seq = outcome.next_seq
            continue
        print(seq, i, flush=True)
        seq, i = seq + 1, i + 1

asyncio.run(main(*sys.argv[1:]))
"""


def storm(path: str) -> dict[int, str]:
    """Two writers at a time, killed at once; returns what they said was acknowledged, by its number."""
    chance = random.Random(7)
    acknowledged: dict[int, str] = {}
    for round in range(ROUNDS):
        names = [f"{round}{letter}" for letter in "ab"]
        command = [sys.executable, "-c", WRITER, path]
        writers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in names]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        time.sleep(chance.random() * 0.1)
        for writer, name in zip(writers, names, strict=True):
            writer.kill()
            said, _ = writer.communicate()
            # The last line may be torn: it says nothing then.
            for line in said.splitlines(keepends=True):
                if line.endswith("\n"):
                    seq, i = line.split()
                    acknowledged[int(seq)] = f"{name}:{i}"
    return acknowledged


async def test_what_was_acknowledged_survives_kills_of_writers_that_write_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "flows")
    acknowledged = storm(path)
    store = FileStore(path)
    await store.open(migrate=False)
    found = await numbered(store.journal, "shared")
    assert [seq for seq, _ in found] == list(range(len(found)))
    written = {seq: event.owner for seq, event in found if isinstance(event, RunReleased)}
    assert len(acknowledged) > ROUNDS
    assert acknowledged.items() <= written.items()
    # With each number came a run, and no run without one.
    runs = set(await store.upkeep.journals("", 1_000_000)) - {"shared"}
    assert runs == {owner.replace(":", "-") for owner in written.values()}
    assert store.journal.damaged == {}
    await store.close()
