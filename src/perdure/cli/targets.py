"""Resolve `module:workflow`, `file.py:workflow` or `flow.yaml` to programs. Imports the user's code once."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.authoring.code.step import Step
from perdure.cli.exits import Problem
from perdure.cli.options import settings
from perdure.config import Flows
from perdure.errors import FlowProblem
from perdure.kernel.policies.queues import Queue
from perdure.kernel.program import Program, is_program
from perdure.kernel.values.codec import TypeCodec
from perdure.kernel.values.raised import is_a
from perdure.kernel.values.static import attributes_of, file_of

if TYPE_CHECKING:
    from perdure.authoring.flow.flow import Flow
    from perdure.client.schedules import Schedule

T = TypeVar("T")

HOW = "write file.py:workflow, module:workflow or flow.yaml"
FLOW_FILES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Target:
    """A module with its programs by variable name, queues, schedules and codecs; `own` are those it defines."""

    source: str
    programs: dict[str, Program]
    own: tuple[str, ...]
    queues: tuple[Queue, ...] = ()
    steps: tuple[Step[..., Any], ...] = ()
    codecs: tuple[TypeCodec[Any], ...] = ()
    schedules: tuple[Schedule, ...] = ()
    resources: Mapping[str, Any] | None = None
    # Where it is.
    file: str = ""

    def pick(self, name: str) -> Program:
        """The program of that name, or the only program when `name` is empty."""
        if name:
            by_program_name = {program.name: program for program in self.programs.values()}
            found = self.programs.get(name) or by_program_name.get(name)
            if found is None:
                raise Problem(f"{self.source} has no workflow named {name!r}; {self._listed()}")
            return found
        candidates = self.own or tuple(self.programs)
        if len(candidates) != 1:
            raise Problem(f"the target {self.source!r} does not say which workflow; {self._listed()}")
        return self.programs[candidates[0]]

    def _listed(self) -> str:
        if not self.programs:
            return "there is none in it: decorate an `async def` with @workflow"
        names = sorted(self.programs)
        listed = f"it has {', '.join(names)}. " if len(names) > 1 else f"it has {names[0]}. "
        return listed + f"For example: {self.source}:{names[0]}"


def resolve(target: str) -> tuple[Program, Target]:
    """The program that a TARGET names, and the module it is in."""
    place, name = _split(target)
    module = load(place)
    return module.pick(name), module


def _split(target: str) -> tuple[str, str]:
    if os.path.isfile(target):  # also `C:\\flows.py`
        return target, ""
    place, colon, name = target.rpartition(":")
    if not colon:
        return target, ""
    if not place:
        raise Problem(f"the target {target!r} has nothing before its ':'; {HOW}")
    return place, name


def load(place: str) -> Target:
    """Import a file or a module, and find its programs; or read a flow, or all in a folder."""
    flows = flow_files(place)
    if flows:
        return _of_flows(place, flows)
    from perdure.client.schedules import Schedule  # a file of a flow has none

    sys.path.insert(0, os.getcwd())
    is_file = place.endswith(".py") or os.sep in place
    module = _import_file(place) if is_file else _import_module(place)
    programs = {name: value for name, value in attributes_of(module).items() if _is_program(value)}
    own = tuple(n for n, p in programs.items() if getattr(p, "__module__", module.__name__) == module.__name__)
    queues = tuple(dict.fromkeys(value for value in attributes_of(module).values() if is_a(value, Queue)))
    steps = {id(s): s for s in attributes_of(module).values() if is_a(s, Step) and s.spec.queue}
    codecs = tuple(value for value in attributes_of(module).values() if is_a(value, TypeCodec))
    schedules = {id(s): s for s in attributes_of(module).values() if is_a(s, Schedule)}
    resources = attributes_of(module).get("resources")
    return Target(
        place,
        programs,
        own,
        queues,
        tuple(steps.values()),
        codecs,
        tuple(schedules.values()),
        resources if is_a(resources, Mapping) else None,
        os.path.abspath(file_of(module) or place),
    )


def load_served(place: str) -> Target:
    """What a worker serves: as `load`, and a folder for flows may have none yet. Raises Problem if there is nothing."""
    if is_for_flows(place):
        search_here()  # functions of flows in the store
        return _of_flows(place, flow_files(place))
    target = load(place)
    if not target.programs and not target.steps:
        raise Problem(f"{place} has no workflows; decorate an `async def` with @workflow, or import some into it")
    return target


def is_for_flows(place: str) -> bool:
    """Whether a target is a folder without modules: files of flows, or none, and then flows in the store are served."""
    return os.path.isdir(place) and not any(name.endswith(".py") for name in os.listdir(place))


def search_here() -> None:
    """Let functions of flows be found in the current directory, as modules are."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def load_flow_file(file: str, profile: str | None = None) -> Flow:
    """The flow in a file, which may use what the settings allow. Raises FlowInvalid."""
    from perdure.authoring.flow.flow import load as load_flow
    from perdure.stored import access

    search_here()
    allowed = settings().flows or Flows()
    chosen = allowed.profile if profile is None else profile
    return load_flow(file, access(replace(allowed, profile=chosen)))


def flow_files(place: str) -> list[str]:
    """The flow that a target is, or those in a folder that is no package."""
    if place.endswith(FLOW_FILES):
        return [place]
    if not os.path.isdir(place) or os.path.isfile(os.path.join(place, "__init__.py")):
        return []
    found = sorted(os.path.join(place, name) for name in os.listdir(place) if name.endswith(FLOW_FILES))
    return [file for file in found if _is_flow(file)]


def listed_flows(files: Iterable[str]) -> tuple[list[str], list[FlowProblem]]:
    """The flows that are files, or in folders, each once; and what is neither."""
    found: dict[str, None] = {}
    problems: list[FlowProblem] = []
    for file in files:
        paths = flow_files(file)
        found.update(dict.fromkeys(paths))
        if not paths:
            why = f"its name ends with {', '.join(FLOW_FILES[:-1])} or {FLOW_FILES[-1]}"
            what = "the folder has no flows in it" if os.path.isdir(file) else f"this is not a flow: {why}"
            problems.append(FlowProblem(file, 1, 1, "F001", what))
    return list(found), problems


def _of_flows(place: str, files: Iterable[str]) -> Target:
    programs: dict[str, Program] = {os.path.basename(file): load_flow_file(file) for file in files}
    return Target(place, programs, tuple(programs))


def _is_flow(file: str) -> bool:
    """Whether a file says that it is a flow: other YAML may be beside it."""
    from perdure.authoring.flow.files import read_file

    try:
        data = read_file(file)
    except PermissionError:
        return True  # reading it will raise what is wrong with it
    except OSError:  # a pipe, a folder, or a link to nothing
        return False
    return re.search(rb'^\s*\{?\s*"?perdure"?\s*:', data, re.MULTILINE) is not None


def _is_program(value: Any) -> bool:
    return is_program(value) and isinstance(value.name, str)


def _import_file(place: str) -> ModuleType:
    if not os.path.isfile(place):
        if os.path.isdir(place):
            raise Problem(f"{place} is a directory; {HOW}")
        raise Problem(f"the file {place} does not exist (the current directory is {os.getcwd()})")
    path = os.path.abspath(place)
    stem = os.path.splitext(os.path.basename(path))[0]
    # Its directory comes first on sys.path, as with `python file.py`.
    sys.path.insert(0, os.path.dirname(path))
    # Under its plain name, unless taken, so that a process of a `cpu=True` step can import it.
    name = stem if stem not in sys.modules and stem not in sys.stdlib_module_names else f"{stem}_program"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Problem(f"{place} is not a Python file; {HOW}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    loader = spec.loader
    _guarded(place, lambda: loader.exec_module(module))
    return module


def _import_module(place: str) -> ModuleType:
    try:
        return _guarded(place, lambda: importlib.import_module(place))
    except _Missing as missing:
        where = f"in {os.getcwd()} or among the installed packages"
        raise Problem(f"there is no module named {missing} {where}; {HOW}") from missing


class _Missing(Exception):
    """Whether the module itself or its package does not exist, as opposed to an import inside it."""


def _guarded(place: str, work: Callable[[], T]) -> T:
    """Execute the user's module; an error is reported at the user's lines."""
    try:
        return work()
    except SystemExit as error:
        raise Problem(
            f"{place} ended the process while it was imported; put the code that starts runs under "
            '`if __name__ == "__main__":`'
        ) from error
    except ModuleNotFoundError as error:
        if error.name is not None and f"{place}.".startswith(f"{error.name}."):
            raise _Missing(error.name) from error
        raise _unimportable(place, error) from error
    except Exception as error:
        raise _unimportable(place, error) from error


def _unimportable(place: str, error: Exception) -> Problem:
    """An error in the user's code, with the lines of that code."""
    if isinstance(error, SyntaxError):
        at = f'  File "{error.filename}", line {error.lineno}, column {error.offset}'
        line = f"\n    {error.text.strip()}" if error.text else ""
        return Problem(f"{place} cannot be imported: {type(error).__name__}: {error.msg}\n{at}{line}")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and not _is_ours(frame.filename)
    ]
    lines = [f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}\n    {frame.line}' for frame in frames]
    return Problem("\n".join([f"{place} cannot be imported: {type(error).__name__}: {error}", *lines]))


def _is_ours(path: str) -> bool:
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return path.startswith((package + os.sep, os.path.dirname(importlib.__file__) + os.sep))
