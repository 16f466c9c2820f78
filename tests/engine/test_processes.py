"""Steps in other processes: found there by name, with their arguments, context and exceptions intact."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from perdure import UsageError, step, workflow
from tests.engine.cpu_steps import crunch, plain
from tests.engine.harness import run


async def test_cpu_steps_run_in_another_process() -> None:
    ran = await run(crunch())
    pid, order, context, error = ran.output
    assert pid != os.getpid()
    assert order == {"id": "a", "cents": 150}
    assert context == [f"{ran.run_id}/context:0", 1]
    assert error == "too dear"


async def test_a_process_pool_of_the_user_runs_plain_steps() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert (await run(plain(), executor=pool)).output != os.getpid()


async def test_a_cpu_step_that_another_process_could_not_find_says_so() -> None:
    @step(cpu=True)
    def hidden() -> int:
        return 1

    @workflow
    async def flow() -> str:
        try:
            await hidden()
        except UsageError as error:
            return str(error)
        return ""

    assert "define it at the top of a module" in (await run(flow())).output
