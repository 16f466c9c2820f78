"""Record runs of workflows given as text, and replay their journals with other code."""

from __future__ import annotations

import asyncio
import importlib.util
import linecache
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from perdure import RunStatus
from perdure.authoring.code.program import CodeProgram
from perdure.errors import Diverged
from perdure.kernel.divergence.model import Divergence
from perdure.kernel.divergence.recorder import follow
from perdure.kernel.events import AnyEvent, Batch, RunFinished, RunStarted
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Program
from perdure.kernel.replay import Replay, open_replay
from perdure.kernel.values.codec import Codec
from perdure.stores.memory.store import MemoryStore
from perdure.testing.simulation import Simulation
from tests.divergence import shop
from tests.divergence.corpus import marked, module
from tests.engine.harness import left_by_a_crash


class Code:
    """A version of the code, in a file of its own, and the programs in it."""

    def __init__(self, folder: Path, text: str) -> None:
        folder.mkdir(exist_ok=True)
        self.file = folder / "orders.py"
        self.file.write_text(module(text))
        self.line, self.nth = marked(text)
        self.load()

    def load(self) -> None:
        """Import the file as it is now."""
        linecache.checkcache(str(self.file))
        spec = importlib.util.spec_from_file_location(f"orders_{self.file.parent.name}", self.file)
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        # Bytecode of a text with as many characters, written in the same second, would pass for that of this one.
        Path(importlib.util.cache_from_source(str(self.file))).unlink(missing_ok=True)
        spec.loader.exec_module(loaded)
        self.programs = programs_of(loaded)
        self.order = loaded.order

    @property
    def source(self) -> str:
        return f"{self.file}:{self.line}" if self.line else ""

    @property
    def sources(self) -> list[str]:
        """All marked lines; an empty one if there is none."""
        lines = enumerate(self.file.read_text().splitlines(), 1)
        return [f"{self.file}:{number}" for number, line in lines if "#!" in line] or [""]


def programs_of(loaded: ModuleType) -> dict[str, Program]:
    found = [value for value in vars(loaded).values() if isinstance(value, CodeProgram)]
    return {program.name: program for program in found}


def recorded(code: Code, max_concurrency: int | None = None) -> tuple[MemoryStore, str]:
    """A run to its end, in virtual time, with everything it waits for."""
    sim = Simulation(seed=1)

    async def scenario() -> str:
        async with sim.engine(code.programs.values()) as engine:
            run = await engine.start(code.order(), id="it", max_concurrency=max_concurrency)
            for signal in ("paid", "settled", "late"):
                await engine.signal("it", signal, 1)
            while (await run.status()) not in (RunStatus.COMPLETED, RunStatus.FAILED):
                await sim.advance(20)
                for asked in await engine.approvals():
                    await engine.approve("it", asked.name, 1)
            assert await run.status() is RunStatus.COMPLETED
            return run.run_id

    return sim.store, sim.play(scenario())


def cuts(batches: Sequence[Batch]) -> list[list[Batch]]:
    """The journals that a crash may leave: up to each append, without the last."""
    kept = [batch for batch in batches if not any(isinstance(event, RunFinished) for event in batch.events)]
    return [kept[: n + 1] for n in range(len(kept))]


def events(batches: Sequence[Batch]) -> list[AnyEvent]:
    return [event for batch in batches for event in batch.events]


def replay(code: Code, batches: Sequence[Batch], run_id: str = "r1") -> Divergence | None:
    """Replay a journal with this code; the reason why it does not fit, or None."""
    started, codec = batches[0].events[0], Codec()
    assert isinstance(started, RunStarted)

    def opened(kind: type[Replay]) -> Replay:
        return open_replay(Programs(code.programs.values()), run_id, started, codec, batches, kind=kind)

    try:
        follow(opened, batches, Programs(code.programs.values())).close()
    except Diverged as error:
        return error.divergence
    return None


async def journal(store: MemoryStore, run_id: str) -> Sequence[Batch]:
    return await store.journal.read(run_id)


class Change:
    """A run that was recorded with one version of the code, and another version."""

    def __init__(self, folder: Path, before: str, after: str, limit: int | None = None) -> None:
        self.before, self.after = Code(folder / "before", before), Code(folder / "after", after)
        self.store, self.run_id = recorded(self.before, limit)
        self.cuts = cuts(asyncio.run(journal(self.store, self.run_id)))
        shop.executed.clear()

    def verdicts(self) -> list[Divergence | None]:
        """What the other version makes of the journal, wherever a crash may have left it. Executes nothing."""
        found = [replay(self.after, batches, self.run_id) for batches in self.cuts]
        assert shop.executed == []
        return found

    def first(self) -> Divergence:
        """The verdict at the first point where the versions differ; it stays the same from there on."""
        found = [why for why in self.verdicts() if why is not None]
        assert found
        assert {(why.change, why.current.source if why.current else "") for why in found} == {
            (found[0].change, found[0].current.source if found[0].current else "")
        }
        return found[0]

    def left(self, end: int = -1) -> MemoryStore:
        """The store as a crash leaves it at the last point, or at another one."""
        last = self.cuts[end][-1]
        return left_by_a_crash(self.store, last.seq + len(last.events))
