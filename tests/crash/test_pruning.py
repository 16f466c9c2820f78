"""Whoever prunes may be killed at any moment: each run is in the store, or in the archive, wholly; none is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from perdure import Engine, Limits, connect, step, workflow
from perdure.kernel.history.capsule import decode_capsule
from tests.crash.harness import Children

RUNS = 300
KILLS = 12

# Small commits, so that there are many moments to be killed at.
PRUNE = """
import asyncio, os, signal, sys
from perdure import connect
from perdure.client import pruning

pruning.BATCH = 5
pruning.BLOBS = 5

async def main():
    async with connect(sys.argv[1]) as client:
        # After so much work of its own, not so much time: a busy machine changes nothing.
        signal.signal(signal.SIGPROF, lambda number, frame: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[3]))
        await client.prune(0, archive=sys.argv[2], grace=0)

asyncio.run(main())
"""


@step
def enlarge(number: int) -> str:
    return f"{number} " * 300


@workflow
async def part(number: int) -> int:
    return len(await enlarge(number))


@workflow
async def flow(number: int) -> int:
    return await part(number)


async def test_a_prune_that_is_killed_again_and_again_loses_nothing(children: Children, tmp_path: Path) -> None:
    url, archive, chance = f"sqlite:///{tmp_path}/runs.db", tmp_path / "archive", random.Random(5)
    everyone = {f"r{number}" for number in range(RUNS)}
    async with Engine(url, [flow, part], limits=Limits(blob=500), durability="relaxed") as engine:
        for number in range(RUNS):
            _ = await engine.start(flow(number), id=f"r{number}")
        for id in everyone:
            while (view := await engine.get(id)) is None or view.finished_at is None:
                await asyncio.sleep(0.01)
    (tmp_path / "prune.py").write_text(PRUNE)
    killed = 0
    while True:
        # The first time at once, so that something is left to do.
        after = 0.0 if killed >= KILLS else chance.uniform(0.001, 0.05) if killed else 0.001
        died = children.python(tmp_path, "prune.py", url, str(archive), str(after)).killed()
        killed += died
        await check(url, archive, everyone)
        if not died:
            break
    assert killed > 0
    async with connect(url) as client:
        assert list(await client.list()) == []
        assert (await client.rebuild()).journals == 0
        assert (await client.store.upkeep.collect(0, 1000)).blobs == 0


async def check(url: str, archive: Path, everyone: set[str]) -> None:
    """Every run is where it was, with all it needs, or in a file that can be read."""
    files = [file for file in archive.iterdir() if file.suffix == ".capsule"] if archive.exists() else []
    archived = {decode_capsule(file.read_bytes()).id for file in files}
    async with connect(url) as client:
        page = await client.list(limit=1000)
        here = {view.id for view in page if view.root == view.run_id}
        assert here | archived == everyone
        report = await client.rebuild(dry_run=True)
        assert (report.differences, report.damaged) == ([], [])
        for id in sorted(here)[:20]:
            (only,) = await client.steps(id)
            assert only.output == f"{id[1:]} " * 300
