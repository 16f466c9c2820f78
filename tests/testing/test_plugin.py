"""The pytest plugin, seen from a project that uses it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # noqa: F401 - before a test: pytester forgets what a test imports first, and yaml's C part does not

from perdure import blocking, call
from perdure.flow import load_flow
from perdure.kernel.history.capsule import decode_capsule

SHOP = """
import asyncio
from datetime import timedelta

from perdure import sleep, step, step_context, workflow

CHARGED = set()


@step
async def charge(cents: int) -> str:
    CHARGED.add(step_context().id)
    return f"paid {cents}"


@workflow
async def ship(name: str) -> str:
    return await charge(len(name))


@workflow
async def fulfil(cents: int) -> str:
    first = await charge(cents)
    await sleep(timedelta(seconds=0))
    return first + " " + await ship("abc")


@workflow
async def nap() -> str:
    await sleep(timedelta(days=30))
    return "rested"


@workflow
async def both(cents: int) -> list[str]:
    return list(await asyncio.gather(*[charge(cents + n) for n in range(3)]))
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makepyfile(shop=SHOP)
    pytester.syspathinsert()
    # Nothing else that happens to be installed here, which takes longer to load than the tests take.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    options = "-p pytest_asyncio.plugin -p perdure.testing.plugin -o asyncio_default_fixture_loop_scope=function"
    monkeypatch.setenv("PYTEST_ADDOPTS", options)
    return pytester


def record(project: pytest.Pytester, count: int = 3) -> Path:
    """A store with runs of the shop, one of them of another program."""
    import shop  # type: ignore[import-not-found]

    path = project.path / "prod.db"
    with blocking.Engine(f"sqlite:///{path}", [shop.fulfil, shop.ship, shop.nap]) as engine:
        for number in range(count):
            engine.run(shop.fulfil(number), id=f"order-{number}")
        engine.start(shop.nap(), id="asleep")
    return path


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    sys.modules.pop("shop", None)


# --- recorded runs --------------------------------------------------------------------------------------------------


def test_each_recorded_run_is_a_test(project: pytest.Pytester) -> None:
    record(project)
    result = project.runpytest("--perdure-runs=prod.db", "--perdure-programs=shop", "-v")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*prod.db::fulfil?order-0?*PASSED*", "*nap?asleep?*PASSED*"])


def test_runs_of_one_program_can_be_chosen(project: pytest.Pytester) -> None:
    path = record(project)
    project.runpytest("--perdure-runs=prod.db:nap", "--perdure-programs=shop.py").assert_outcomes(passed=1)
    url = f"sqlite:///{path}:fulfil"
    project.runpytest(f"--perdure-runs={url}", "--perdure-programs=shop").assert_outcomes(passed=3)
    project.runpytest("--perdure-runs=prod.db", "--perdure-programs=shop", "-k", "order-1").assert_outcomes(
        passed=1, deselected=3
    )


def test_a_diverged_run_fails_with_the_explanation_only(project: pytest.Pytester) -> None:
    record(project)
    sys.modules.pop("shop")
    project.makepyfile(shop=SHOP.replace("first = await charge(cents)", "first = await ship('x')"))
    result = project.runpytest("--perdure-runs=prod.db", "--perdure-programs=shop")
    result.assert_outcomes(passed=1, failed=3)
    assert "charge:0" in result.stdout.str()
    assert "kernel/replay.py" not in result.stdout.str()


def test_a_store_is_only_read(project: pytest.Pytester) -> None:
    path = record(project)
    before = path.read_bytes()
    project.runpytest("--perdure-runs=prod.db", "--perdure-programs=shop").assert_outcomes(passed=4)
    assert path.read_bytes() == before


def test_recorded_runs_can_be_spread_over_processes(project: pytest.Pytester) -> None:
    record(project)
    result = project.runpytest_subprocess(
        "--perdure-runs=prod.db", "--perdure-programs=shop", "-p", "xdist.plugin", "-n", "2", "-W", "error"
    )
    result.assert_outcomes(passed=4)


def test_recorded_runs_of_flows_are_replayed_against_their_files(project: pytest.Pytester) -> None:
    steps = "steps: [{id: a, use: value, with: '${{ input.text | upper }}'}]"
    text = f"perdure: 1\nname: loud\ninputs: {{text: string}}\n{steps}\n"
    file = project.path / "loud.yaml"
    file.write_text(text)
    with blocking.Engine(f"sqlite:///{project.path}/prod.db", [load_flow(file)]) as engine:
        engine.run(call("loud", text="a"), id="r")
    options = ("--perdure-runs=prod.db", "--perdure-programs=loud.yaml")
    project.runpytest(*options).assert_outcomes(passed=1)
    file.write_text(text.replace("upper", "lower"))
    result = project.runpytest(*options)
    result.assert_outcomes(failed=1)
    assert 'value: was "A", now "a"' in result.stdout.str()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--perdure-runs=prod.db"], "*--perdure-programs*"),
        (["--perdure-runs=prod.db", "--perdure-programs=nothing.yaml"], "*no file*nothing.yaml*"),
        (["--perdure-runs=prod.db", "--perdure-programs=wrong.yaml"], "*wrong.yaml cannot be loaded*F005*"),
        (["--perdure-runs=missing.db", "--perdure-programs=shop"], "*missing.db*"),
        (["--perdure-runs=prod.db", "--perdure-programs=nothing"], "*nothing*cannot be loaded*"),
        (["--perdure-runs=prod.db", "--perdure-programs=nothing.py"], "*no file*nothing.py*"),
        (["--perdure-runs=shop.py", "--perdure-programs=shop"], "*not a perdure store*"),
        (["--perdure-runs=prod.db:nobody", "--perdure-programs=shop"], "*no run of 'nobody' in prod.db*"),
        (["--perdure-runs=prod.db", "--perdure-programs=broken"], "*broken cannot be loaded: ZeroDivisionError*"),
        (["--perdure-runs=prod.db", "--perdure-programs=broken.py"], "*broken.py cannot be loaded: ZeroDivisionError*"),
    ],
)
def test_what_is_missing_is_said(project: pytest.Pytester, options: list[str], said: str) -> None:
    record(project)
    project.makepyfile(broken="1 / 0")
    (project.path / "wrong.yaml").write_text("perdure: 1\nname: wrong\nstep: []\nsteps: []\n")
    result = project.runpytest(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


def test_golden_journals_are_replayed_for_ever(project: pytest.Pytester) -> None:
    path = record(project)
    (project.path / "golden" / "old").mkdir(parents=True)
    with blocking.connect(f"sqlite:///{path}") as client:
        for number in range(2):
            (project.path / "golden" / "old" / f"{number}.capsule").write_bytes(client.export(f"order-{number}"))
    project.makeini("[pytest]\nperdure_golden = golden\nperdure_programs = shop\n")
    result = project.runpytest("-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*golden::old/0.capsule*PASSED*"])
    damaged = project.path / "golden" / "old" / "1.capsule"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    result = project.runpytest("-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*InvalidCapsule*"])
    assert decode_capsule((project.path / "golden" / "old" / "0.capsule").read_bytes()).id == "order-0"


# --- fixtures -------------------------------------------------------------------------------------------------------


def test_an_engine_in_memory_is_given_to_each_test(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_shop="""
        import pytest
        import shop

        @pytest.fixture
        def perdure_programs():
            return [shop.ship]

        @pytest.mark.asyncio
        @pytest.mark.parametrize("time", [1, 2])
        async def test_it(engine, time):
            assert await engine.list() == []
            assert (await engine.run(shop.fulfil(5), id="o")).output == "paid 5 paid 3"
        """
    )
    project.runpytest("-W", "error").assert_outcomes(passed=2)


def test_virtual_time_skips_sleeps(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_shop="""
        import shop

        def test_outcome(virtual_time):
            assert virtual_time.outcome(shop.nap()).output == "rested"

        def test_scenario(virtual_time):
            async def scenario():
                async with virtual_time.engine([shop.nap]) as engine:
                    run = await engine.start(shop.nap())
                    await virtual_time.advance(days=29)
                    assert await run.status() == "waiting"
                    await virtual_time.advance(days=2)
                    assert await run.status() == "completed"

            virtual_time.play(scenario())
        """
    )
    project.runpytest("-W", "error").assert_outcomes(passed=2)


def test_a_workflow_is_killed_at_every_durable_boundary(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_shop="""
        import pytest
        import shop
        from perdure import step, workflow

        @pytest.fixture
        def perdure_programs():
            return [shop.fulfil, shop.ship]

        def test_it_survives(crash_everywhere):
            survived = crash_everywhere(
                shop.fulfil(5), before=shop.CHARGED.clear, effects=lambda: len(shop.CHARGED)
            )
            assert survived.result.output == "paid 5 paid 3"
            assert survived.effects == 2
            assert survived.crashes == 3 * survived.boundaries > 9
            assert survived.executions == {"charge:0": 2, "ship:0/charge:0": 2}
        """
    )
    project.runpytest("-W", "error").assert_outcomes(passed=1)


def test_an_effect_that_a_crash_doubles_is_found(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_shop="""
        from perdure import step, workflow

        SENT = []

        @step
        async def send(cents: int) -> None:
            SENT.append(cents)  # by no key: twice is two letters

        @workflow
        async def letters(cents: int) -> None:
            await send(cents)

        def test_it_survives(crash_everywhere):
            crash_everywhere(letters(1), before=SENT.clear, effects=lambda: len(SENT))
        """
    )
    result = project.runpytest("-W", "error")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*killed * append * of *: 2 took effect, and 1 when it was not killed*"])


def test_a_body_that_depends_on_the_process_is_found(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_shop="""
        from perdure import sleep, step, workflow

        SEEN = []

        @step
        async def count() -> int:
            SEEN.append(1)
            return len(SEEN)

        @workflow
        async def careless() -> int:
            return await count() + await count()

        def test_it_survives(crash_everywhere):
            crash_everywhere(careless(), before=SEEN.clear)
        """
    )
    result = project.runpytest("-W", "error")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*killed * append*it ended with*"])


def test_steps_end_in_many_orders(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_shop="""
        import asyncio
        import shop
        from perdure import step, workflow

        @workflow
        async def first(cents: int) -> str:
            tasks = [asyncio.ensure_future(shop.charge(cents + n)) for n in range(3)]
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return min(task.result() for task in done)

        def test_gather_does_not_care(interleavings):
            tried = interleavings(shop.both(1), seeds=30)
            assert tried.result.output == ["paid 1", "paid 2", "paid 3"]
            assert len(tried.orders) > 3

        def test_a_race_does(interleavings):
            tried = interleavings(first(1), seeds=30, same=False)
            assert len({result.output for result in tried.results}) > 1

        def test_a_race_is_found(interleavings):
            interleavings(first(1), seeds=30)
        """
    )
    result = project.runpytest("-W", "error")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*seed *, where steps ended in the order *"])


# --- suites that do not use it --------------------------------------------------------------------------------------


def test_a_suite_that_does_not_use_it_loads_nothing_of_the_engine() -> None:
    code = "import sys, perdure.testing.plugin; print([m for m in sys.modules if m.startswith('perdure')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "['perdure', 'perdure.testing', 'perdure.testing.plugin']"


def test_fixtures_of_the_same_names_are_the_projects_own(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest

        @pytest.fixture
        def engine():
            return "mine"

        def test_it(engine):
            assert engine == "mine"
        """
    )
    project.runpytest("-W", "error").assert_outcomes(passed=1)
