"""The program `perdure.bulk`: does one thing to many runs, a page at a time, and publishes how far it has come.

Which runs a page has is recorded before anything is done to them, so that an attempt which is made again after a crash
means the same runs. Doing it twice to one run changes nothing: signals are deduplicated by the page's key.
"""

from __future__ import annotations

from perdure.authoring.code.child import continue_as
from perdure.authoring.code.step import step
from perdure.authoring.code.waits import set_state
from perdure.authoring.code.workflow import Workflow, workflow
from perdure.client.bulk_runs import BulkRequest, BulkRuns, Progress, Selected
from perdure.engine.step_context import step_context
from perdure.kernel.ids import BULK
from perdure.kernel.policies.retry import Retry

# The store may be unreachable for a while.
_PATIENT = Retry(attempts=1000, initial=0.5, max=60.0)
# After so many pages it continues in a new journal.
RENEWAL = 250


def bulk_program(runs: BulkRuns) -> Workflow[..., Progress]:
    """The program, for an engine that does it to the runs of its store."""

    @step(name="select", retry=_PATIENT)
    async def select(request: BulkRequest, cursor: str | None) -> Selected:
        return await runs.select(request, cursor)

    @step(name="act", retry=_PATIENT)
    async def act(request: BulkRequest, selected: Selected) -> Progress:
        return await runs.act(request, selected, step_context().id)

    @workflow(name=BULK)
    async def bulk(request: BulkRequest, progress: Progress, cursor: str | None) -> Progress:
        for _ in range(RENEWAL):
            selected = await select(request, cursor)
            before, progress, cursor = progress, progress.plus(await act(request, selected)), selected.cursor
            set_state("counts", progress.counts)
            if progress.failures != before.failures:
                set_state("failures", progress.failures)
            if cursor is None:
                break
        else:
            continue_as(request, progress, cursor)
        return progress

    return bulk
