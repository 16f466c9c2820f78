"""`perdure sweep`: execute what is due, and exit."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from perdure.assembly import Engine
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl, engine_options
from perdure.cli.output import note, write_json
from perdure.cli.targets import load_served


def sweep(
    module: Annotated[str, Parameter(help="file.py, a module, flow.yaml or a folder of flows.")],
    /,
    *,
    max_timers: Annotated[int, Parameter(help="The maximum number of waiting runs to continue.")] = 100,
    max_schedules: Annotated[int, Parameter(help="The maximum number of ticks of schedules.")] = 100,
    max_runs: Annotated[int, Parameter(help="The maximum number of runs that are new or lost their owner.")] = 100,
    until: Annotated[float | None, Parameter(help="Hand over what is not done after this many seconds.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Execute what is due, and exit: for cron jobs and serverless hosts."""
    target = load_served(module)
    options = engine_options(store, target.queues)
    engine = Engine(
        store,
        target.programs.values(),
        steps=target.steps,
        schedules=target.schedules,
        resources=target.resources,
        **options,
    )
    engine.module = target.file
    report = asyncio.run(
        engine.sweep(max_timers=max_timers, max_schedules=max_schedules, max_runs=max_runs, until=until)
    )
    if json:
        write_json(asdict(report))
    else:
        more = "; more may be left to do" if report.more else ""
        counts = [(report.timers, "timer{}"), (report.schedules, "tick{} of schedules"), (report.runs, "run{}")]
        note(", ".join(f"{n} {what.format('s' if n != 1 else '')}" for n, what in counts) + more)
    return 0
