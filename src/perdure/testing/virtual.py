"""What the fixtures `engine` and `virtual_time` give a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from perdure.assembly import Engine
from perdure.client.views import RunResult
from perdure.kernel.commands import Program
from perdure.kernel.invocation import Invocation
from perdure.testing.simulation import Simulation

R = TypeVar("R")


class LearningEngine(Engine):
    """An engine that takes on the program of an invocation when it is started."""

    def _program(self, invocation: Invocation[Any]) -> Program | None:
        program = invocation.program
        if program is not None and not self._programs.serves(program.name, program.version):
            self._programs.add(program)
        return super()._program(invocation)


class VirtualTime(Simulation):
    """A simulation for one test: workflows that sleep for a month end at once."""

    def __init__(self, programs: Sequence[Program] = (), seed: int | str = 0) -> None:
        super().__init__(seed)
        self._known = tuple(programs)

    def outcome(self, invocation: Invocation[R], **options: Any) -> RunResult[R]:
        """Run a workflow to its end, however long it sleeps, and say how it ended. Takes the options of `start`."""
        own = [] if invocation.program is None else [invocation.program]
        programs = [*own, *(program for program in self._known if program not in own)]

        async def scenario() -> RunResult[R]:
            async with self.engine(programs) as engine:
                return await engine.run(invocation, **options)

        return self.play(scenario())
