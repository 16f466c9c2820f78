"""The file store under kill -9: what was acknowledged is there, and other processes go on at once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from perdure.kernel.events import RunReleased
from perdure.stores.file.store import FileStore
from perdure.testing.conformance.history import numbered
from tests.patience import PATIENCE

ROUNDS = 5
# Appends to a journal shared by all, and says each number once it is acknowledged.
WRITER = """
import asyncio, sys
from perdure.kernel.events import Batch, RunReleased
from perdure.ports.journal import Append, Conflict
from perdure.stores.file.config import FileConfig
from perdure.stores.file.store import FileStore
from perdure.testing.conformance.history import History, write

async def main(path, name):
    store = FileStore(path, FileConfig(longest_log=20_000))
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


SCRIPT = """
import time
import perdure
from perdure import step, step_context, workflow

@step
def read(chapter: int) -> int:
    print(chapter, step_context().attempt, flush=True)
    time.sleep(3600 if chapter == 2 and step_context().attempt == 1 else 0)
    return chapter

@workflow
async def report() -> int:
    return sum([await read(chapter) for chapter in range(4)])

print("sum", perdure.run(report(), id="report", store="file:///flows", progress=False))
"""


def test_a_run_goes_on_after_its_process_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert [first.stdout.readline() for _ in range(3)] == ["0 1\n", "1 1\n", "2 1\n"]
        first.kill()
    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert second.stdout == "2 2\n3 1\nsum 6\n"


def storm(path: str) -> dict[int, str]:
    """Two writers at a time, killed at once; returns what they said was acknowledged, by its number."""
    chance = random.Random(7)
    acknowledged: dict[int, str] = {}
    for round in range(ROUNDS):
        names = [f"{round}{letter}" for letter in "ab"]
        command = [sys.executable, "-c", WRITER, path]
        with ExitStack() as stack:
            writers = [
                stack.enter_context(subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True))
                for name in names
            ]
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
