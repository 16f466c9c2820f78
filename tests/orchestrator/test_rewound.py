"""A store that has lost its last commits under a working engine: a replica that was behind was made the primary.

What was acknowledged is gone, which is the operator's choice. The run goes on from what is there: no event is made up,
and what is done again is done under the idempotency keys it was done under before.
"""

from __future__ import annotations

import asyncio

import asyncpg  # type: ignore[import-untyped]

from perdure import Engine, step, step_context, wait_signal, workflow

called: list[str] = []
hanging = asyncio.Event()
go_on = asyncio.Event()


@step
async def count(number: int) -> int:
    called.append(step_context().id)
    return number


@step
async def hang() -> str:
    called.append(step_context().id)
    hanging.set()
    await go_on.wait()
    return "done"


@workflow
async def counting() -> str:
    for number in range(3):
        await count(number)
    result = await hang()
    return f"{result} {await wait_signal('end', type=str)}"


async def test_a_run_whose_last_events_are_lost_under_it_goes_on_from_those_that_are_left(postgres_url: str) -> None:
    async with Engine(postgres_url, [counting]) as engine:
        run = await engine.start(counting(), id="counting")
        await hanging.wait()
        connection = await asyncpg.connect(postgres_url)
        appends = [row[0] for row in await connection.fetch("select seq from perdure_journal order by seq")]
        # The last two appends: the outcomes of count:1 and count:2, and the starts of count:2 and hang:0.
        await connection.execute("delete from perdure_journal where seq >= $1", appends[-2])
        await connection.execute("update perdure_heads set next_seq = $1", appends[-2])
        await connection.close()
        first = list(called)

        await engine.signal("counting", "end", "and ended")
        go_on.set()
        assert await run.result() == "done and ended"

        [zero, one, two, hung] = [f"{run.run_id}/{path}" for path in ("count:0", "count:1", "count:2", "hang:0")]
        assert first == [zero, one, two, hung]
        # What the journal still had was not called again. What was under way went on, or was called again.
        assert called[4:6] == [one, two]
        assert called[6:] in ([], [hung])
        outcomes = [
            entry.event.op
            for entry in await engine.journal("counting")
            if type(entry.event).__name__ == "StepSucceeded" and hasattr(entry.event, "op")
        ]
        assert outcomes == ["count:0", "count:1", "count:2", "hang:0"]
