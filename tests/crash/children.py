"""What runs in the children. Each function is one command: run it again after a crash, and it goes on."""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from perdure import Accepted, Duplicate, Engine, Queue, Recovery, RunHandle, StoreUnavailable, call, connect
from perdure.authoring.dataflow import batch as batches
from perdure.kernel.program import Program
from perdure.orchestrator.service import ServiceConfig
from perdure.orchestrator.session import OrchestratorConfig
from perdure.ports.store import Store
from perdure.stores.sqlite.store import SqliteStore
from tests.crash import flows, graphs, programs
from tests.crash.disk import Disk, put_back
from tests.crash.failpoints import Failpoint, any_store_with, die, store_with
from tests.patience import PATIENCE

ALL: list[Program] = [
    programs.voyage,
    programs.five,
    programs.ticks,
    programs.careful,
    programs.patient,
    programs.sleepy,
    programs.crunching,
    programs.telling,
    programs.telling_again,
    programs.telling_in_thread,
    programs.counting,
    programs.locked,
    programs.locked_in_step,
    programs.trip,
    programs.asking,
    programs.mailbox,
]


def voyage(db: str, effects: str, ending: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """Run the voyage to its end, unless the failpoint comes first."""
    programs.log_effects(effects)
    # So that the run leaves memory during its longer sleep.
    Engine._service_config = ServiceConfig(orchestrator=OrchestratorConfig(idle=0.1))
    failpoint = Failpoint(at, after)

    async def main() -> dict[str, Any]:
        async with Engine(store_with(failpoint, db), [programs.voyage]) as engine:
            result = await engine.run(programs.voyage(1, ending), id="voyage")
        output = result.output if result.error is None else str(result.error)
        return {"status": result.status, "output": output, "commits": failpoint.commits}

    return asyncio.run(main())


def family(db: str, effects: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """Run a family of workflows to its end, unless the failpoint comes first."""
    programs.log_effects(effects)
    failpoint = Failpoint(at, after)

    async def main() -> dict[str, Any]:
        known: list[Program] = [programs.elder, programs.younger, programs.loner]
        async with Engine(store_with(failpoint, db), known) as engine:
            result = await engine.run(programs.elder(1, 2), id="family")
            alone = await (await engine.start(programs.loner(7), id="loner")).outcome()
        return {"output": result.output, "loner": alone.output, "commits": failpoint.commits}

    return asyncio.run(main())


def graph(db: str, effects: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """Run a graph to its end and answer what it asks, unless the failpoint comes first."""
    programs.log_effects(effects)
    failpoint = Failpoint(at, after)

    async def main() -> dict[str, Any]:
        async with Engine(store_with(failpoint, db), [graphs.journey]) as engine:
            await engine.run(graphs.journey(n=1), id="graph")
            result = await engine.run(graphs.journey, answers={"approve": 5}, id="graph")
        return {"output": result.output, "commits": failpoint.commits}

    return asyncio.run(main())


def long_map(db: str, effects: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """Run a graph with a map in chunks to its end, unless the failpoint comes first."""
    programs.log_effects(effects)
    failpoint = Failpoint(at, after)

    async def main() -> dict[str, Any]:
        async with Engine(store_with(failpoint, db), [graphs.long_map]) as engine:
            result = await engine.run(graphs.long_map(n=graphs.ITEMS), id="long")
            items = [item.index for item in await engine.items("long", "squared:0", status="succeeded")]
        return {"output": result.output, "items": items, "commits": failpoint.commits}

    return asyncio.run(main())


def long_map_in(url: str, effects: str, id: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """As `long_map`, under that id in a store of any kind."""
    programs.log_effects(effects)
    failpoint = Failpoint(at, after)

    async def main() -> dict[str, Any]:
        async with Engine(any_store_with(failpoint, url), [graphs.long_map], name=f"engine-{id}") as engine:
            result = await engine.run(graphs.long_map(n=graphs.ITEMS), id=id)
            items = [item.index for item in await engine.items(id, "squared:0", status="succeeded")]
        return {"output": result.output, "items": items, "commits": failpoint.commits}

    return asyncio.run(main())


def graph_in(url: str, effects: str, id: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """As `graph`, under that id in a store of any kind. Each id has an engine of its own."""
    programs.log_effects(effects)
    failpoint = Failpoint(at, after)

    async def main() -> dict[str, Any]:
        async with Engine(any_store_with(failpoint, url), [graphs.journey], name=f"engine-{id}") as engine:
            await engine.run(graphs.journey(n=1), id=id)
            result = await engine.run(graphs.journey, answers={"approve": 5}, id=id)
        return {"output": result.output, "commits": failpoint.commits}

    return asyncio.run(main())


def flow(db: str, effects: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """Run a flow with jobs to its end and answer what it asks, unless the failpoint comes first."""
    failpoint = Failpoint(at, after)
    return _flow(store_with(failpoint, db), failpoint, effects, "flow")


def flow_in(url: str, effects: str, id: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """As `flow`, under that id in a store of any kind. Each id has an engine of its own."""
    failpoint = Failpoint(at, after)
    return _flow(any_store_with(failpoint, url), failpoint, effects, id)


def _flow(store: Store, failpoint: Failpoint, effects: str, id: str) -> dict[str, Any]:
    programs.log_effects(effects)
    program = flows.nightly(Path(effects).parent)

    async def main() -> dict[str, Any]:
        async with Engine(store, [program], name=f"engine-{id}") as engine:
            await engine.run(program(rows=flows.ROWS), id=id)
            result = await engine.run(program, answers={"book": True}, id=id)
        return {"output": result.output, "commits": failpoint.commits}

    return asyncio.run(main())


def batch(db: str, effects: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """Run a batch of a flow, whose rows are in several chunks, to its end, unless the failpoint comes first."""
    programs.log_effects(effects)
    failpoint = Failpoint(at, after)
    batches._MAPPED = msgspec.structs.replace(batches._MAPPED, chunk=flows.CHUNK)
    program = flows.line(Path(effects).parent)

    async def main() -> dict[str, Any]:
        async with Engine(store_with(failpoint, db), [program]) as engine:
            rows = ({"number": number} for number in range(flows.LINES))
            results = [one async for one in await (await engine.start_batch(program, rows, id="batch")).result()]
            view = await engine.batch("batch")
        counts = {"completed": view.completed, "failed": view.failed, "rows": view.rows}
        return {"results": results, "counts": counts, "commits": failpoint.commits}

    return asyncio.run(main())


def forking(db: str, effects: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """Run a voyage and a fork of it from its middle, and retry one that failed, unless the failpoint comes first."""
    programs.log_effects(effects)
    failpoint = Failpoint(at, after)

    async def main() -> dict[str, Any]:
        async with Engine(store_with(failpoint, db), [programs.voyage]) as engine:
            outcomes = {}
            for id in ("fork", "voyage"):
                if id == "fork" and await engine.get("fork") is None:
                    _ = await engine.fork("voyage", set={"large:0": "x" * 300_001}, new_id="fork")
                latest = await engine.get(id)
                if id == "voyage" and latest is not None and latest.forked_from is None:
                    _ = await engine.retry(id)
                async for _entry in engine.follow(id):
                    pass
                view = await engine.get(id)
                assert view is not None
                outcomes[id] = str(view.error.message if view.error is not None else view.output)
        return {"outcomes": outcomes, "commits": failpoint.commits}

    return asyncio.run(main())


def changing(db: str, effects: str) -> None:
    """A run that the code of today does not fit, parked by an engine that has that code."""
    programs.log_effects(effects)

    async def main() -> None:
        async with Engine(f"sqlite:///{db}", [programs.before_the_change]) as engine:
            _ = await engine.start(programs.before_the_change(1), id="it")
            _ = await engine.signal("it", "heard", 5)
            while not [wait for wait in (await engine.get("it")).waits if wait.name == "end"]:  # type: ignore[union-attr]
                await asyncio.sleep(0.005)
        async with Engine(f"sqlite:///{db}", [programs.after_the_change]) as engine:
            _ = await engine.signal("it", "end", "of it")
            while (await engine.get("it")).status != "parked":  # type: ignore[union-attr]
                await asyncio.sleep(0.005)

    asyncio.run(main())


def truncating(db: str, effects: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """Let the parked run go on from before the op that no longer fits, unless the failpoint comes first."""
    programs.log_effects(effects)
    failpoint = Failpoint(at, after)

    async def main() -> dict[str, Any]:
        async with Engine(store_with(failpoint, db), [programs.after_the_change]) as engine:
            first = await engine.start(programs.after_the_change(1), id="it")
            view = await engine.get("it")
            assert view is not None
            if view.forked_from is None:
                _ = await engine.resolve("it", before="add:1")
            return {"output": await first.result(), "commits": failpoint.commits}

    return asyncio.run(main())


def strolling(url: str, effects: str, seed: int, forks: int) -> dict[str, Any]:
    """A walk that the seed leads, and forks of it from places that the seed names. Killed at any time, it goes on."""
    programs.log_effects(effects)
    recovery = Recovery(check_interval=0.3, quarantine=0)

    async def main() -> dict[str, Any]:
        async with Engine(url, [programs.stroll], name="keeper", recovery=recovery) as engine:
            origin = await engine.start(programs.stroll(seed), id="original")
            results = {"original": await origin.result()}
            journal = await engine.journal(origin.run_id)
            chance = random.Random(seed)
            ops = list(dict.fromkeys(str(entry.event.op) for entry in journal if hasattr(entry.event, "op")))
            for number in range(forks):
                places: list[str | int] = [chance.randint(1, len(journal) - 1), *ops]
                place = chance.choice(places)
                if await engine.get(f"fork-{number}") is None:
                    _ = await engine.fork("original", at=place, new_id=f"fork-{number}")
            for number in range(forks):
                handle = await engine.start(programs.stroll(seed), id=f"fork-{number}")
                results[handle.id] = await handle.result()
            return results

    return asyncio.run(main())


def scheduled(db: str, effects: str, overlap: str, at: int = 0, after: bool = False) -> dict[str, Any]:
    """Fill in four ticks of a schedule and wait for their runs, unless the failpoint comes first."""
    programs.log_effects(effects)
    failpoint = Failpoint(at, after)
    start = datetime(2025, 1, 1, tzinfo=UTC)

    async def main() -> dict[str, Any]:
        async with Engine(store_with(failpoint, db), [programs.five], name="keeper") as engine:
            schedule = await engine.schedule(
                "s",
                programs.five(1, 0.0),
                cron="0 3 * * *",
                overlap=overlap,  # type: ignore[arg-type]
                pause=True,
            )
            ids = await schedule.backfill(start, start + timedelta(days=4))
            while [getattr(await engine.get(id), "status", None) for id in ids] != ["completed"] * 4:
                await asyncio.sleep(0.02)
            while (view := await schedule.view()).waiting:
                await asyncio.sleep(0.005)
            return {"runs": ids, "fired": view.fired, "failed": view.failed, "commits": failpoint.commits}

    return asyncio.run(main())


def work(
    db: str,
    effects: str,
    max_concurrency: int = 1000,
    check_interval: float = 0.3,
    name: str | None = None,
    lease: float = 30.0,
    limits: dict[str, Any] | None = None,
) -> str:
    """Work off what is queued, until nothing is left and the file `drained` says that no more will come."""
    programs.log_effects(effects)
    drained = os.path.join(os.path.dirname(db), "drained")

    async def main() -> str:
        recovery = Recovery(check_interval=check_interval, lease=lease, quarantine=0)
        url = f"sqlite:///{db}"
        options: dict[str, Any] = {"max_concurrency": max_concurrency, "name": name}
        queues = [Queue("q", **limits)] if limits else []
        async with Engine(url, ALL, recovery=recovery, queues=queues, **options) as engine:
            while not (os.path.exists(drained) and not await engine.store.runs.programs()):
                await asyncio.sleep(0.05)
        return "drained"

    return asyncio.run(main())


def on_disk(
    db: str, effects: str, acks: str, after_cut: str, runs: int, durability: str, cut_at: int, seed: int
) -> list[Any]:
    """Start runs and finish them on a disk whose power is cut at some point; what survives is put into `after_cut`."""
    programs.log_effects(effects)
    log = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(kind: str, id: str, next_seq: int = 0) -> None:
        # The disk is dead from the cut on: nobody hears of what happens then.
        if not disk.dead:
            os.write(log, json.dumps({"kind": kind, "id": id, "next_seq": next_seq}).encode() + b"\n")

    def cut() -> None:
        put_back(Path(after_cut), disk.survivors(random.Random(seed)))
        if seed % 2 and os.path.exists(f"{db}-owners"):
            shutil.copytree(f"{db}-owners", f"{after_cut}/{os.path.basename(db)}-owners", dirs_exist_ok=True)
        die()

    disk = Disk("disk", cut_at, cut)

    async def main() -> list[Any]:
        engine = Engine(
            SqliteStore(db, vfs="disk"),
            ALL,
            durability=durability,
            # The file that shows who is alive may not have survived; then only time tells.
            recovery=Recovery(check_interval=0.1, lease=1.0, quarantine=0),
            on_commit=lambda id, append: note("commit", id, append.next_seq),
        )
        async with engine:
            handles = []
            for n in range(runs):
                handles.append(await started(engine, n))
                note("start", f"run-{n}")
            results = []
            for handle in handles:
                results.append(await handle.result())
                note("result", handle.id)
        return results

    async def started(engine: Engine, n: int) -> RunHandle[int]:
        while True:
            try:
                return await engine.start(programs.five(n, 0.001), id=f"run-{n}")
            except StoreUnavailable:  # on a busy machine its heartbeat was late, and it says to try again
                await asyncio.sleep(0.05)

    return asyncio.run(main())


def no_room(db: str, effects: str) -> dict[str, Any]:
    """Begin a run, let no file grow for a while, and go on."""
    programs.log_effects(effects)

    async def main() -> dict[str, Any]:
        async with Engine(f"sqlite:///{db}", ALL) as engine:
            handle = await engine.start(programs.voyage(1, "return"), id="voyage")
            await asyncio.sleep(0.05)
            allow(16_384)  # the log of effects is shorter, the database is longer
            refused = ""
            try:
                _ = await engine.start(programs.five(1, 0.0), id="refused")
            except StoreUnavailable as error:
                refused = str(error)
            await asyncio.sleep(1.0)
            finished = (await handle.status()).finished
            allow(None)
            result = await handle.result(PATIENCE)
        return {"refused": refused, "finished_without_room": finished, "result": result["total"]}

    return asyncio.run(main())


def allow(size: int | None) -> None:
    """Let no file of this process grow beyond `size` bytes."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def leave_without_room(db: str, effects: str) -> str:
    """Begin a run and leave the engine in the midst of it, when nothing can be written any more."""
    programs.log_effects(effects)

    still = Path(db).with_name("still")
    still.write_text("2")

    async def main() -> None:
        # Its leases cannot be given back.
        recovery = Recovery(grace=0.05, quarantine=0)
        async with Engine(f"sqlite:///{db}", ALL, recovery=recovery) as engine:
            _ = await engine.start(programs.ticks(4, 0.0, 0, 0, str(still)), id="ticks")
            while len(await engine.steps("ticks")) < 3:
                await asyncio.sleep(0.01)
            allow(16_384)

    asyncio.run(main())
    still.unlink()
    return "left"


def run(
    db: str,
    effects: str,
    program: str,
    arguments: list[Any],
    durability: str = "sync",
    at: int = 0,
    after: bool = False,
) -> Any:
    """Run one program to its end under its own name as id."""
    programs.log_effects(effects)

    async def main() -> Any:
        async with Engine(store_with(Failpoint(at, after), db), ALL) as engine:
            return await (await engine.start(call(program, *arguments), id=program, durability=durability)).result()

    return asyncio.run(main())


def end(db: str, effects: str, program: str, arguments: list[Any], at: int = 0, after: bool = False) -> dict[str, Any]:
    """Run one program to its end, whatever that is."""
    programs.log_effects(effects)
    failpoint = Failpoint(at, after)

    async def main() -> dict[str, Any]:
        async with Engine(store_with(failpoint, db), ALL) as engine:
            result = await engine.run(call(program, *arguments), id=program)
        error = None if result.error is None else f"{type(result.error).__name__}: {result.error}"
        return {"status": result.status, "output": result.output, "error": error, "commits": failpoint.commits}

    return asyncio.run(main())


def send(db: str, acks: str, sender: int, count: int) -> int:
    """Send numbered signals one after another, from the first that nobody has acknowledged; again under its id."""
    log = os.open(acks, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    first = len(Path(acks).read_bytes().splitlines())

    async def main() -> int:
        async with connect(f"sqlite:///{db}") as client:
            n = first
            while n < count:
                try:
                    verdict = await client.signal("mailbox", "item", [sender, n], signal_id=f"{sender}.{n}")
                except StoreUnavailable:
                    await asyncio.sleep(0.01)
                    continue
                assert isinstance(verdict, Accepted | Duplicate), verdict
                os.write(log, f"{n} {type(verdict).__name__}\n".encode())
                n += 1
        return count - first

    return asyncio.run(main())


def crowded(db: str, effects: str, room: int, blocked: bool) -> str:
    """Work on a run that waits and has a step to begin; `blocked`: beside one that takes the only room."""
    programs.log_effects(effects)

    async def main() -> str:
        known: list[Program] = [programs.crowded_out, *([programs.blocking] if blocked else [])]
        async with Engine(f"sqlite:///{db}", known, max_concurrency=room) as engine:
            if blocked:
                _ = await engine.start(programs.blocking(), id="blocking")
                while not os.path.getsize(effects):
                    await asyncio.sleep(0.01)
                _ = await engine.start(programs.crowded_out(), id="crowded")
            await asyncio.sleep(3600)
        return ""

    return asyncio.run(main())
