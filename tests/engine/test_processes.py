"""Steps in other processes: found there by name, with their arguments, context and exceptions intact."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from perdure import ExecutorBroken, OutcomeUnknown, ProcessDied, StepTimeout, UsageError, step, workflow
from perdure.kernel.events import AttemptFailed
from tests.engine.cpu_steps import (
    Fussy,
    appears,
    crunch,
    dies,
    dies_anywhere,
    dies_for_good,
    dies_once,
    fails_fussily,
    is_killed,
    plain,
    returns_a_lock,
    waits_for,
)
from tests.engine.harness import eventually, run


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


# --- processes that die ----------------------------------------------------------------------------------------------


@workflow
async def after_death(how: str) -> list[object]:
    seen: list[object] = []
    try:
        await {"exits": dies, "killed": is_killed}[how]()
    except ProcessDied as error:
        seen.append(str(error))
    seen.append(await waits_for(os.devnull))
    return seen


@pytest.mark.parametrize(("how", "words"), [("exits", "exit code 3"), ("killed", "SIGKILL")])
async def test_a_process_that_dies_fails_its_step_and_is_replaced(how: str, words: str) -> None:
    said, later = (await run(after_death(how))).output
    assert words in said
    assert later == 1


@workflow
async def death_in_company(file: str, others: int) -> list[int]:
    neighbours = [asyncio.ensure_future(waits_for(file)) for _ in range(others)]
    retried = await dies_once()
    await makes(file)
    return [retried, *await asyncio.gather(*neighbours)]


@step
def makes(file: str) -> None:
    Path(file).touch()


async def test_the_attempt_is_charged_to_the_step_that_was_in_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    ran = await run(death_in_company(str(tmp_path / "go"), 2))
    assert ran.output == [2, 1, 1]
    failed = [event.op for event in await ran.events() if isinstance(event, AttemptFailed)]
    assert failed == ["dies_once:0"]


@workflow
async def in_doubt() -> str:
    try:
        await dies_for_good()
    except OutcomeUnknown as error:
        return error.op
    return ""


async def test_a_step_that_must_not_run_twice_is_in_doubt_when_its_process_dies() -> None:
    assert (await run(in_doubt())).output == "dies_for_good:0"


@workflow
async def fussy() -> list[object]:
    try:
        await fails_fussily()
    except Fussy as error:
        return [str(error), error.code]
    return []


async def test_an_exception_that_cannot_be_sent_keeps_its_class_and_what_it_says() -> None:
    assert (await run(fussy())).output == ["no (7)", 7]


@workflow
async def unsendable() -> str:
    try:
        await returns_a_lock()
    except TypeError as error:
        return f"{error}; then {await waits_for(os.devnull)}"
    return ""


async def test_a_value_that_cannot_be_sent_fails_its_step_alone() -> None:
    said = (await run(unsendable())).output
    assert "lock" in said
    assert said.endswith("then 1")


@workflow
async def given_up(file: str) -> str:
    try:
        await appears.options(timeout=0.2)(file)
    except StepTimeout:
        return "late"
    return ""


async def test_a_step_that_is_given_up_does_not_go_on_in_its_process(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    assert (await run(given_up(str(file)))).output == "late"
    pid = int(file.read_text())
    await eventually(lambda: not _lives(pid))


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


@workflow
async def on_a_broken_executor() -> list[str]:
    said = []
    for _ in range(2):
        try:
            await dies_anywhere()
        except ExecutorBroken as error:
            said.append(str(error))
    return said


async def test_an_executor_of_the_user_that_breaks_says_what_to_do() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        said = (await run(on_a_broken_executor(), executor=pool)).output
    assert len(said) == 2
    assert all("ProcessPoolExecutor" in one and "make the engine anew" in one for one in said)
