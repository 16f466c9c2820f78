"""The pytest plugin: recorded runs as tests, and fixtures. Loads nothing until one of them is used.

    pytest --perdure-runs=prod.db --perdure-programs=shop       one test for each run in a store
    [pytest] perdure_golden = tests/golden                      one test for each capsule in a folder, for ever

Fixtures: `engine`, `virtual_time`, `crash_everywhere`, `interleavings`; override `perdure_programs` to give the engine
programs that no test starts itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from perdure.assembly import Engine
    from perdure.kernel.program import Program
    from perdure.testing.crash_trials import Interleavings, Survived
    from perdure.testing.fixtures import VirtualTime

try:  # pytest_asyncio needs its own decorator in strict mode; another plugin may handle `async def` fixtures
    from pytest_asyncio import fixture as async_fixture
except ImportError:
    async_fixture = pytest.fixture  # type: ignore[assignment]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the plugin."""
    group = parser.getgroup("perdure", "perdure: recorded runs as tests")
    group.addoption(
        "--perdure-runs",
        action="append",
        default=[],
        metavar="STORE[:PROGRAM]",
        help="make one test of each run in a store (a file or a URL), or of those of one program; may be repeated",
    )
    group.addoption(
        "--perdure-programs",
        action="append",
        default=[],
        metavar="MODULE",
        help="module or file.py with the workflows to replay recorded runs against; may be repeated",
    )
    parser.addini("perdure_programs", "modules or files with workflows, as --perdure-programs", type="linelist")
    parser.addini("perdure_golden", "folders of capsules; each one is a test that replays it", type="paths", default=[])


@pytest.hookimpl(tryfirst=True)  # so that -k and -m choose among recorded runs as well
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Collect the recorded runs that the options name."""
    runs, golden = config.getoption("--perdure-runs"), config.getini("perdure_golden")
    if runs or golden:
        from perdure.testing.pytest_recorded import recorded_runs

        items += recorded_runs(session, runs, golden, _places(config))


def _places(config: pytest.Config) -> list[str]:
    return [*config.getini("perdure_programs"), *config.getoption("--perdure-programs")]


@pytest.fixture
def perdure_programs(request: pytest.FixtureRequest) -> list[Program]:
    """Programs that the `engine` fixture starts with: those of `--perdure-programs`. May be overridden."""
    places = _places(request.config)
    if not places:
        return []
    from perdure.testing.pytest_recorded import load_programs

    return load_programs(places, request.config.rootpath)


@async_fixture
async def engine(perdure_programs: list[Program]) -> AsyncIterator[Engine]:
    """An open engine on an in-memory store. It registers a workflow when the test starts it."""
    from perdure.testing.fixtures import LearningEngine

    async with LearningEngine("memory://", perdure_programs) as engine:
        yield engine


@pytest.fixture
def virtual_time(perdure_programs: list[Program]) -> VirtualTime:
    """Sleeping takes no time: `virtual_time.outcome(workflow(...))`, `virtual_time.play(scenario())`."""
    from perdure.testing.fixtures import VirtualTime

    return VirtualTime(perdure_programs)


@pytest.fixture
def crash_everywhere(perdure_programs: list[Program]) -> Callable[..., Survived]:
    """Runs a workflow once per durable boundary and kills it there: `crash_everywhere(workflow(...), effects=...)`."""
    from perdure.testing.crash_trials import crash_everywhere

    return _with_programs(crash_everywhere, perdure_programs)


@pytest.fixture
def interleavings(perdure_programs: list[Program]) -> Callable[..., Interleavings]:
    """Runs a workflow under many orders in which its steps end: `interleavings(workflow(...), seeds=100)`."""
    from perdure.testing.crash_trials import interleavings

    return _with_programs(interleavings, perdure_programs)


def _with_programs(function: Callable[..., Any], programs: list[Program]) -> Callable[..., Any]:
    from functools import partial

    # Without programs, the function uses those of the invocation.
    return partial(function, programs=programs) if programs else function
