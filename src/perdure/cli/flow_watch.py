"""Watch the files of a worker's flows: a changed file is a new version."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator

from perdure.assembly import Engine
from perdure.authoring.flow.flow import Flow
from perdure.cli.targets import Target, flow_files, load_flow_file
from perdure.errors import FlowInvalid, PerdureError, UsageError
from perdure.kernel.program import Program
from perdure.logs import log

# How often files are checked.
SECONDS = 2.0

# A file as it was last seen: when it was written, and its size.
Stamp = tuple[int, int]


class FlowFiles:
    """The files of the flows that a worker serves."""

    def __init__(self, place: str, programs: Iterable[Program]) -> None:
        self._place = place
        self._versions = {program.name: program.version for program in programs}
        self._used = {file for program in programs if isinstance(program, Flow) for file in _files(program)}
        self._stamps = self._look()

    def changed(self) -> list[Flow]:
        """The flows whose definition has changed. If a file is invalid, its flow stays as it was."""
        stamps = self._look()
        if stamps == self._stamps:
            return []
        self._stamps = stamps
        found = []
        for path in flow_files(self._place):
            try:
                flow = load_flow_file(path)
            except (FlowInvalid, UsageError) as error:
                log.error("%s has changed, and its flow stays as it was:\n%s", path, error)
                continue
            self._used.update(_files(flow))
            if self._versions.get(flow.name) != flow.version:
                self._versions[flow.name] = flow.version
                found.append(flow)
        self._stamps = self._look()
        return found

    def _look(self) -> dict[str, Stamp | None]:
        return {path: _stamp(path) for path in sorted({*self._listed(), *self._used})}

    def _listed(self) -> list[str]:
        try:
            return flow_files(self._place)
        except OSError:  # it is being replaced
            return []


def _files(flow: Flow) -> Iterator[str]:
    """The files of a flow, and of the flows in it."""
    yield flow.file
    for inner in flow.inner.values():
        yield from _files(inner)


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


async def follow(engine: Engine, target: Target) -> None:
    """Serve the new version of a flow whenever its files change."""
    files, changed = FlowFiles(target.source, target.programs.values()), dict[str, Flow]()
    while True:
        await asyncio.sleep(SECONDS)
        changed |= {flow.name: flow for flow in files.changed()}
        for name, flow in list(changed.items()):
            try:
                await engine.serve_flow(flow)
            except PerdureError as error:
                log.error("the new version of %s is not served yet, and is tried again: %s", name, error)
                continue
            del changed[name]
            log.info("serves %s in version %s, of %s; runs in progress keep theirs", name, flow.version, flow.file)
