"""`perdure worker`: an engine with everything a module defines, until it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Annotated, Any

from cyclopts import Parameter

from perdure import termination
from perdure.assembly import Engine
from perdure.cli.engines import ModuleEngine, engine_of
from perdure.cli.exits import Exit, Problem
from perdure.cli.options import DEFAULT_STORE, LogLevel, StoreUrl, seconds, settings
from perdure.cli.output import log_to_stderr, note
from perdure.cli.targets import Target, flow_files, is_for_flows, load_served
from perdure.errors import UsageError
from perdure.logs import log
from perdure.loops import new_loop
from perdure.telemetry.listener import Address, MetricsListener, address_of
from perdure.termination import LEAVE_SECONDS


def worker(
    module: str | None = None,
    /,
    *,
    queues: Annotated[str | None, Parameter(help="Serve only these queues, such as a,b; by default all runs.")] = None,
    name: Annotated[
        str | None, Parameter(help="The orchestrator's name; by default one made of the host and the module.")
    ] = None,
    max_concurrency: Annotated[int | None, Parameter(help="How many steps may run at once; 1000 by default.")] = None,
    threads: Annotated[int | None, Parameter(help="How many of them may be `def` steps; 64 by default.")] = None,
    grace: Annotated[
        str | None, Parameter(help="How long running steps get after SIGTERM, such as 45s or 10m; 30s by default.")
    ] = None,
    metrics: Annotated[
        str | None, Parameter(help="Serve metrics for Prometheus at this address, such as 127.0.0.1:9464.")
    ] = None,
    log_level: Annotated[
        LogLevel, Parameter(help="What it logs to stderr; info has a line for each failed attempt.")
    ] = "info",
    store: StoreUrl = DEFAULT_STORE,
) -> int:
    """Execute the runs of a module's workflows until SIGTERM or Ctrl-C, and then hand them over.

    Running steps get the grace to end; a second signal cancels them. Runs that
    only wait are handed over at once.

    The worker applies the limits of the queues in the module, such as emails =
    Queue("emails", concurrency=5), creates or updates its schedules, such as
    nightly = Schedule("nightly", report(), cron="30 2 * * *"), and gives its
    steps the resources in resources = {"db": ...}.

    Parameters
    ----------
    module
        file.py, a module, flow.yaml or a folder of flows; by default from the settings.
    """
    module = module or settings().module
    if module is None:
        raise Problem(
            "name the module whose workflows to execute: perdure worker flows.py, or `module: flows` in the settings"
        )
    target = load_served(module)
    log_to_stderr(log_level)
    given = {
        "name": name,
        "max_concurrency": max_concurrency,
        "threads": threads,
        "serves": None if queues is None else [part.strip() for part in queues.split(",")],
    }
    address = None if metrics is None else _address(metrics)
    made = engine_of(
        target,
        store,
        {key: value for key, value in given.items() if value is not None},
        None if grace is None else seconds(grace, "--grace"),
    )
    try:
        _run(_work(made, target, address))
    except asyncio.CancelledError:
        pass  # a second signal: running steps are abandoned, and their runs released
    return Exit.OK


def _run(work: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.run`, but a task that a step has made and that calls sys.exit() ends itself and not the worker."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        loop = runner.get_loop()
        asyncio.set_event_loop(loop)
        task = loop.create_task(work)
        while True:
            try:
                return loop.run_until_complete(task)
            except SystemExit as error:
                if task.done():
                    raise
                log.error("a task that a step created raised %r; the task has ended, and the worker continues", error)


def _address(text: str) -> Address:
    try:
        return address_of(text)
    except UsageError as error:
        raise Problem(f"--metrics {text}: {error}") from None


async def _work(made: ModuleEngine, target: Target, address: Address | None) -> None:
    engine = made.engine
    if address is None:
        await _serve(made, target)
        return
    try:
        listener = MetricsListener(engine._telemetry.exposition)
        await listener.open(address)
    except OSError as error:
        raise Problem(f"--metrics: cannot listen on {address}: {error.strerror or error}") from error
    _ = engine._telemetry.count()
    try:
        note(f"metrics are at http://{listener.address}/metrics")
        await _serve(made, target)
    finally:
        await listener.close()


async def _serve(made: ModuleEngine, target: Target) -> None:
    engine, grace = made.engine, made.grace
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = _Signals(loop, stop, grace)
    async with engine:
        note(_introduction(made, target))
        signalled = [loop.create_task(one.wait()) for one in (stop, engine.superseded)]
        following = loop.create_task(_follow(engine, target))
        await asyncio.wait(signalled, return_when=asyncio.FIRST_COMPLETED)
        following.cancel()
        if engine.superseded.is_set() and not stop.is_set():
            # No error: a supervisor would start it again, and it would take its name back.
            note(f"stopping: another process was started under the name {engine.name}")
        else:
            note(
                f"stopping: waiting runs are handed over, and running steps get {grace:g} s; a second SIGTERM or "
                "Ctrl-C stops at once"
            )
    signals.exit.within(LEAVE_SECONDS, Exit.OK)


async def _follow(engine: Engine, target: Target) -> None:
    """Serve changed files of flows, if flows are what it serves."""
    if flow_files(target.source) or is_for_flows(target.source):
        from perdure.cli.flow_watch import follow

        await follow(engine, target)


class _Signals:
    """The first signal stops the worker, the second ends the grace of its steps, the third ends the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stop: asyncio.Event, grace: float) -> None:
        self._loop, self._stop, self._grace = loop, stop, grace
        self._task = asyncio.current_task()
        self._count = 0
        self.exit = termination.Exit()
        # Not the loop's own handlers: those wait until a step gives the loop back.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._heed)

    def _heed(self, number: int, frame: object) -> None:
        self._count += 1
        if self._count == 1:
            self._loop.call_soon_threadsafe(self._stop.set)
            self.exit.within(self._grace + 3 * LEAVE_SECONDS, Exit.TERMINATED)
        elif self._count == 2:
            if self._task is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
            self.exit.within(LEAVE_SECONDS, Exit.TERMINATED)
        else:
            os._exit(128 + number)


def _introduction(made: ModuleEngine, target: Target) -> str:
    engine, serves = made.engine, made.serves
    names = {program.name for program in target.programs.values()} | {f"step {step.name}" for step in target.steps}
    programs = ", ".join(sorted(names)) or "the flows in the store"
    what = "all runs" if serves is None else f"the queue{'s' * (len(serves) > 1)} {', '.join(serves)}"
    limits = "".join(f"\n  queue {queue.name}: {queue}" for queue in made.queues)
    return f"{engine.name} serves {what} of {programs} in {engine.store.url}; Ctrl-C stops it{limits}"
