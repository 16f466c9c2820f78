"""Recorded runs as tests: from stores, and from capsules in folders."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure.client.client import Client
from perdure.client.queries import pages
from perdure.errors import PerdureError
from perdure.kernel.history.capsule import Capsule
from perdure.kernel.ids import BUILT_IN
from perdure.kernel.program import Program, is_program
from perdure.kernel.projection import RunRow
from perdure.kernel.values.static import file_of
from perdure.ports.runs import RunFilter
from perdure.ports.store import Store
from perdure.stores.open import open_store
from perdure.testing.replaying import Replaying, capsule_from

SUFFIX = ".capsule"
PAGE = 500
HOW = (
    "--perdure-programs=shop, --perdure-programs=path/to/shop.py or --perdure-programs=path/to/flow.yaml, or "
    "perdure_programs in the configuration"
)
FLOW_FILES = (".yaml", ".yml", ".json")


def recorded_runs(
    session: pytest.Session, stores: Sequence[str], folders: Sequence[Path], places: Sequence[str]
) -> list[pytest.Item]:
    """One test for each run in the stores and each capsule in the folders."""
    programs = load_programs(places, session.config.rootpath)
    if not programs:
        raise pytest.UsageError(f"recorded runs are replayed against workflows; say where they are: {HOW}")
    items: list[pytest.Item] = []
    for given in stores:
        parent = Recordings.from_parent(session, name=given)
        url, program = split(given)
        for row in _runs_in(given, url, program):
            # Read when it is tested: a store may hold more than fits into memory.
            read = partial(_read, url, row.run_id)
            items.append(RecordedRun.from_parent(parent, name=f"{row.program}[{row.id}]", read=read, programs=programs))
    for folder in folders:
        if not folder.is_dir():
            raise pytest.UsageError(f"perdure_golden: there is no folder {folder}")
        parent = Recordings.from_parent(session, name=folder.name)
        for file in sorted(folder.rglob(f"*{SUFFIX}")):
            name, read = str(file.relative_to(folder)), partial(capsule_from, file)
            items.append(RecordedRun.from_parent(parent, name=name, read=read, programs=programs))
    return items


class Recordings(pytest.Collector):
    """A store or a folder, in the names of its tests."""

    def collect(self) -> list[pytest.Item]:
        """Nothing: pytest collects files, and these tests are made after that."""
        return []


class RecordedRun(pytest.Item):
    """A recorded run that must fit the code."""

    def __init__(self, *, read: Callable[[], Capsule], programs: list[Program], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._read, self._programs = read, programs

    def runtest(self) -> None:
        """Replay it to its end. Executes no step, writes nothing."""
        with Replaying(self._read(), tuple(self._programs)) as replaying:
            replaying.check()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message of a divergence, without the engine's traceback."""
        if isinstance(excinfo.value, PerdureError | AssertionError):
            return f"{type(excinfo.value).__name__}: {excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where it comes from."""
        return self.path, None, f"recorded run {self.name}"


# --- stores and programs --------------------------------------------------------------------------------------------


def split(given: str) -> tuple[str, str | None]:
    """`prod.db`, `prod.db:fulfil`, `sqlite:///prod.db` or `sqlite:///prod.db:fulfil`: the store, and the program."""
    if os.path.exists(given):
        return given, None
    place, colon, program = given.rpartition(":")
    return (place, program) if colon and place and "/" not in program and os.sep not in program else (given, None)


def _store(place: str) -> Store:
    return open_store(place if "://" in place else f"sqlite:///{os.path.abspath(place)}")


def _runs_in(given: str, url: str, program: str | None) -> list[RunRow]:
    """The runs of a store, the oldest first."""

    async def read() -> list[RunRow]:
        wanted = RunFilter(program=program, limit=PAGE, built_in=False)
        async with Client(_store(url)) as client:
            # A child is in the journal of its root, and is replayed with it.
            return [row async for page in pages(client.store, wanted) for row in page if not row.root][::-1]

    try:
        found = asyncio.run(read())
    except PerdureError as error:
        raise pytest.UsageError(f"--perdure-runs={given}: {error}") from None
    if not found:
        # An empty collection would look like success.
        what = f"no run of {program!r}" if program is not None else "no run"
        raise pytest.UsageError(f"--perdure-runs={given}: there is {what} in {url}")
    return found


def _read(url: str, run_id: str) -> Capsule:
    async def read() -> Capsule:
        async with Client(_store(url)) as client:
            return await client._capsules.capsule(run_id)

    return asyncio.run(read())


def load_programs(places: Sequence[str], root: Path) -> list[Program]:
    """The programs of modules and files, each once; those of files relative to the root of the tests."""
    found: dict[int, Program] = {}
    for place in places:
        if place.endswith(FLOW_FILES):
            flow = _load_flow(root / place)
            found[id(flow)] = flow
            continue
        module = _load_file(root / place) if place.endswith(".py") else _load_module(place, root)
        programs = [value for value in vars(module).values() if _is_program(value)]
        if not programs:
            raise pytest.UsageError(f"there is no workflow in {place}; decorate an `async def` with @workflow")
        found.update({id(program): program for program in programs})
    return list(found.values())


def _load_flow(path: Path) -> Program:
    """The flow in a file, which may use what the settings allow."""
    from perdure.flow import load_flow

    if not path.is_file():
        raise pytest.UsageError(f"there is no file {path} to load a flow from")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where functions of flows are found
    try:
        return load_flow(path)
    except Exception as error:
        raise _unloaded(str(path), error) from error


def _load_module(name: str, root: Path) -> ModuleType:
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise _unloaded(name, error) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise pytest.UsageError(f"there is no file {path} to load workflows from")
    # Reuse a module that a test has imported: a second copy would define every class twice.
    for module in list(sys.modules.values()):
        if file_of(module) == str(path):
            return module
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _unloaded(str(path), error) from error
    return module


def _unloaded(place: str, error: Exception) -> pytest.UsageError:
    kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    return pytest.UsageError(f"the workflows in {place} cannot be loaded: {kind}{error}")


def _is_program(value: Any) -> bool:
    named = is_program(value) and isinstance(value.name, str)
    return named and not value.name.startswith(BUILT_IN)
