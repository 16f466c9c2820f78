"""Steps in other processes: found there by name, with their arguments, context and exceptions intact."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from perdure import (
    ExecutorBroken,
    NotSerializable,
    OutcomeUnknown,
    ProcessDied,
    StepTimeout,
    UsageError,
    step,
    workflow,
)
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
from tests.processes import is_alive


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
    except NotSerializable as error:
        return f"{error.path} {error}; then {await waits_for(os.devnull)}"
    return ""


async def test_a_value_that_cannot_be_sent_fails_its_step_alone() -> None:
    said = (await run(unsendable())).output
    assert said.startswith("$.locks[1] the result of returns_a_lock:0")
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
    # It may be given up before it has written anything.
    while not file.exists() or not file.read_text():
        assert (await run(given_up(str(file)))).output == "late"
    pid = int(file.read_text())
    await eventually(lambda: not is_alive(pid))


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
    assert all("ProcessPoolExecutor" in one and "create a new engine" in one for one in said)


SCRIPT = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
import asyncio
from perdure import Engine, Retry, step, workflow

class Declined(Exception): pass

class Shop:
    class Closed(Exception): pass

@dataclass
class Order:
    id: str

@step(cpu=True)
def charge(how):
    if how == "group":
        raise ExceptionGroup("both", [Declined("a"), Shop.Closed("b")])
    raise Shop.Closed("later") if how == "nested" else Declined("no money")

@step(cpu=True)
def order() -> Order: return Order("a")

@step
def charge_in_executor(how): raise Declined("no money")

@workflow
async def w(executor: bool) -> list:
    seen = []
    for how in ("plain", "nested", "group"):
        try:
            await (charge_in_executor(how) if executor else charge(how))
        except Declined as error: seen.append(f"Declined {error}")
        except Shop.Closed as error: seen.append(f"Closed {error}")
        except ExceptionGroup as group:
            seen.append([type(one) in (Declined, Shop.Closed) for one in group.exceptions])
    if not executor:
        seen.append(type(await order()) is Order)
    return seen

async def main():
    async with Engine("memory://", [w]) as engine:
        print(await (await engine.start(w(False))).result())
    for method in ("spawn", "forkserver"):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
            async with Engine("memory://", [w], executor=pool) as engine:
                print(await (await engine.start(w(True))).result())

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_the_classes_of_a_script_are_the_same_in_the_processes_of_its_steps(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == [
        "['Declined no money', 'Closed later', [True, True], True]",
        *["['Declined no money', 'Declined no money', 'Declined no money']"] * 2,
    ], done.stderr
