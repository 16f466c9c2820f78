"""Compare the two ways to commit: on the event loop, and in a thread. The basis of docs/decisions/0003.

    python -m bench.commit_path

Each row is one way on one disk: this machine's, and the same one with a sync that takes 5 ms more (a VFS that sleeps).
`adaptive` is what the store does. `stall` is the longest time the event loop did not turn while 100 runs were busy.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import apsw

from bench.engine import PROGRAMS, sequence
from perdure import Engine
from perdure.stores.sqlite.config import SqliteConfig
from perdure.stores.sqlite.store import SqliteStore

SLOW_SYNC = 0.005
ROUNDS = 5
WAYS = {"inline": 1e9, "thread": 0.0, "adaptive": SqliteConfig().inline}


class SlowFile(apsw.VFSFile):
    """A file whose sync takes longer."""

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        time.sleep(SLOW_SYNC)
        super().xSync(flags)


class SlowDisk(apsw.VFS):
    """A disk whose syncs take longer."""

    def __init__(self) -> None:
        super().__init__("slow", "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> SlowFile:  # noqa: N802
        return SlowFile("", name, flags)


async def measure(folder: Path, vfs: str | None, inline: float) -> tuple[float, float, float]:
    """Sequential and concurrent steps a second, and the longest stall of the loop in milliseconds."""
    store = SqliteStore(str(folder / "commit.db"), vfs=vfs, config=SqliteConfig(inline=inline))
    async with Engine(store, PROGRAMS) as engine:
        steps = 100 if vfs else 1000
        began = time.perf_counter()
        await (await engine.start(sequence(steps))).result()
        sequential = steps / (time.perf_counter() - began)
        stall = 0.0

        async def turn() -> None:
            nonlocal stall
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0)
                stall = max(stall, time.perf_counter() - before)

        turning = asyncio.create_task(turn())
        began = time.perf_counter()
        runs = [await engine.start(sequence(10)) for _ in range(100)]
        await asyncio.gather(*[run.result() for run in runs])
        concurrent = 1000 / (time.perf_counter() - began)
        turning.cancel()
    return sequential, concurrent, stall * 1000


def main() -> None:
    """Print the table."""
    slow = SlowDisk()
    print(f"{'disk':<12} {'commit':<10} {'seq/s':>8} {'many/s':>8} {'stall ms':>9}")
    for disk, vfs in (("this one", None), ("+5 ms sync", "slow")):
        rows: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
        for _ in range(ROUNDS):
            for way, limit in WAYS.items():
                with tempfile.TemporaryDirectory() as folder:
                    rows[way].append(asyncio.run(measure(Path(folder), vfs, limit)))
        for way, results in rows.items():
            seq, many, stall = (statistics.median(column) for column in zip(*results, strict=True))
            print(f"{disk:<12} {way:<10} {seq:>8,.0f} {many:>8,.0f} {stall:>9.1f}")
    del slow


if __name__ == "__main__":
    main()
