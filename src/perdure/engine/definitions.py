"""Load programs that runs need from their stored definitions. Stores nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from perdure.errors import BrokenProgram, UsageError
from perdure.kernel.events import Batch, ChildStarted, RunStarted
from perdure.kernel.ids import BATCH
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Program

# Loads a version of a program, or the latest for an empty version; None if its definition is not stored. Raises
# UsageError if the definition cannot be used here.
Resolve = Callable[[str, str], Awaitable[Program | None]]


async def nothing_stored(name: str, version: str) -> Program | None:
    """For an orchestrator without definitions."""
    return None


class DefinedPrograms:
    """Loads programs by their definitions."""

    def __init__(self, programs: Programs, resolve: Resolve = nothing_stored) -> None:
        self.programs, self._resolve = programs, resolve

    async def load(self, started: RunStarted, batches: Sequence[Batch] = ()) -> None:
        """Load the programs of a run and its children whose definitions are stored."""
        defined = self.programs.defined
        if not defined:
            return
        needs = {(started.program, started.version)}
        for batch in batches:
            for event in batch.events:
                if type(event) is ChildStarted:
                    needs.add((event.program, event.version))
        for name, version in needs:
            if name.removesuffix(BATCH) in defined:
                await self.load_version(name, version)

    async def load_version(self, name: str, version: str) -> None:
        """Load a version of a program, or the latest for an empty version, unless it is loaded."""
        programs, name = self.programs, name.removesuffix(BATCH)
        if not programs.lacks(name, version):
            return
        try:
            program = await self._resolve(name, version)
        except UsageError as error:
            programs.refuse(name, version, BrokenProgram(name, f"the definition {version}".rstrip(), str(error)))
            return
        if program is not None:
            programs.put(program, newest=not version)
        elif name in programs.defined:
            programs.refuse(name, version)
