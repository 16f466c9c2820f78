"""The objects behind the fixtures `engine` and `virtual_time`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from perdure.assembly import Engine
from perdure.client.views import RunResult
from perdure.errors import UsageError
from perdure.gateway import LocalGateway
from perdure.kernel.events import RunStatus
from perdure.kernel.invocation import Invocation
from perdure.kernel.program import Program
from perdure.testing.simulation import Simulation
from perdure.testing.simulation.checks import unfinished

R = TypeVar("R")


def invoked(given: Any) -> Invocation[Any]:
    """The invocation, or UsageError for anything else."""
    if not isinstance(given, Invocation):
        raise UsageError(f"this needs an invocation, such as fulfil(order), not {given!r}")
    return given


def known(invocation: Invocation[Any], others: Iterable[Program] = ()) -> list[Program]:
    """The programs that a test of an invocation needs: its own, the workflows that it calls, and those given."""
    program = invoked(invocation).program
    own = [] if program is None else [program, *program.children()]
    return list({(one.name, one.version): one for one in [*own, *others]}.values())


class _LearningGateway(LocalGateway):
    def program(self, invocation: Invocation[Any]) -> Program | None:
        for program in known(invocation):
            if not self.programs.serves(program.name, program.version):
                self.programs.add(program)
        return super().program(invocation)


class LearningEngine(Engine):
    """An engine that registers the program of an invocation, and those of its children, when it is started."""

    _gateway_class = _LearningGateway


class VirtualTime(Simulation):
    """A simulation for one test: a workflow that sleeps for a month ends at once."""

    def __init__(self, programs: Sequence[Program] = (), seed: int | str = 0) -> None:
        super().__init__(seed)
        self._known = tuple(programs)

    def outcome(self, invocation: Invocation[R], **options: Any) -> RunResult[R]:
        """Run a workflow to its end, however long it sleeps, and return its result. Takes the options of `start`.

        Raises AssertionError if it waits for a signal or an approval, which the test can no longer send.
        """
        programs = known(invocation, self._known)

        async def scenario() -> RunResult[R]:
            async with self.engine(programs) as engine:
                run = await engine.start(invocation, **options)
                while True:
                    try:
                        return await run.outcome(timeout=3600)
                    except TimeoutError:
                        row = await engine.store.runs.get(run.run_id)
                        if row is not None and row.status is RunStatus.WAITING and row.wake_at is None:
                            waits = unfinished([watched.state for watched in self.monitor.runs.values()])
                            raise AssertionError(
                                f"{waits}; to send something meanwhile, write a scenario: "
                                "virtual_time.play(scenario()), with virtual_time.engine([...]) in it"
                            ) from None

        return self.play(scenario())
