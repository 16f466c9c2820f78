"""`perdure worker`: an engine with everything a module has, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from perdure.assembly import Engine
from perdure.cli.exits import Exit, Problem
from perdure.cli.options import DEFAULT_STORE, LogLevel, StoreUrl, engine_options, settings
from perdure.cli.output import log_to_stderr, note
from perdure.cli.targets import Target, load
from perdure.kernel.queues import Queue


def worker(
    module: str | None = None,
    /,
    *,
    queues: Annotated[
        str | None, Parameter(help="Take runs of these queues alone, as a,b; otherwise all, and runs that are in none.")
    ] = None,
    name: Annotated[str | None, Parameter(help="Its name among the engines of the store; made if left out.")] = None,
    max_concurrency: Annotated[int | None, Parameter(help="How many steps it runs at once; 1000 if left out.")] = None,
    log_level: Annotated[
        LogLevel, Parameter(help="How much it logs to stderr; info has a line for each attempt that fails.")
    ] = "info",
    store: StoreUrl = DEFAULT_STORE,
) -> int:
    """Execute runs of a module's workflows until SIGTERM or Ctrl-C; then hand over what is under way.

    Queues that the module declares, such as emails = Queue("emails", concurrency=5), have their limits, and
    schedules, such as nightly = Schedule("nightly", report(), cron="30 2 * * *"), are made or changed. Its steps find
    what resources = {"db": ...} in it holds.

    Parameters
    ----------
    module
        file.py or a module: all its workflows, queues and steps that have a queue. Otherwise the settings say.
    """
    module = module or settings().module
    if module is None:
        raise Problem("say whose workflows to execute: perdure worker flows.py, or `module: flows` in the settings")
    target = load(module)
    if not target.programs and not target.steps:
        raise Problem(f"{module} has no workflows; decorate an `async def` with @workflow, or import some into it")
    log_to_stderr(log_level)
    options = engine_options(store, target.queues)
    given = {
        "name": name,
        "max_concurrency": max_concurrency,
        "serves": None if queues is None else [part.strip() for part in queues.split(",")],
    }
    options |= {key: value for key, value in given.items() if value is not None}
    engine = Engine(
        store,
        {id(program): program for program in target.programs.values()}.values(),
        steps=target.steps,
        schedules=target.schedules,
        resources=target.resources,
        **options,
    )
    asyncio.run(_work(engine, target, options["queues"], options.get("serves")))
    return Exit.OK


async def _work(engine: Engine, target: Target, queues: Sequence[Queue], serves: Sequence[str] | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows: Ctrl-C comes as KeyboardInterrupt
            pass
    async with engine:
        note(_introduction(engine, target, queues, serves))
        told = [loop.create_task(one.wait()) for one in (stop, engine.superseded)]
        await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
        if engine.superseded.is_set() and not stop.is_set():
            # No error: whoever looks after processes would start it again, and it would take its name back.
            note(f"stopping: another process has been started as {engine.name}")
        else:
            note("stopping: what is under way is finished or handed over")


def _introduction(engine: Engine, target: Target, queues: Sequence[Queue], serves: Sequence[str] | None) -> str:
    names = {program.name for program in target.programs.values()} | {f"step {step.name}" for step in target.steps}
    programs = ", ".join(sorted(names))
    what = "all runs" if serves is None else f"the queue{'s' * (len(serves) > 1)} {', '.join(serves)}"
    limits = "".join(f"\n  queue {queue.name}: {queue}" for queue in queues)
    return f"{engine.name} serves {what} of {programs} in {engine.store.url}; Ctrl-C stops it{limits}"
