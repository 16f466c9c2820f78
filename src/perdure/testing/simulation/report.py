"""The record of a simulation. Checks nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure.client.views import RunResult
from perdure.kernel.events import Batch

if TYPE_CHECKING:
    from perdure.testing.simulation.messages import Reply


class PromiseBroken(AssertionError):
    """A run of the simulation broke a promise of perdure, or never ended."""

    def __init__(self, seed: object, violations: Sequence[str], trace: Sequence[str]) -> None:
        self.seed, self.violations, self.trace = seed, tuple(violations), tuple(trace)
        found = "\n".join(f"- {violation}" for violation in violations[:5])
        tail = "\n".join(trace[-40:])
        super().__init__(f"seed {seed!r}:\n{found}\nThe end of the trace:\n{tail}")


@dataclass(frozen=True, slots=True)
class StepExecution:
    """One execution of a step's code, whether or not its outcome was recorded."""

    at: float
    """Virtual seconds since the simulation began."""
    machine: str
    run_id: str
    op: str
    attempt: int
    next_seq: int
    """How many events the journal of the run had at that time."""
    owned: bool
    """Whether the machine still owned the run; False for a zombie that does not know yet."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A result that died with its machine. The step is executed again."""

    run_id: str
    op: str
    returned_at: float
    lost_at: float


@dataclass(frozen=True, slots=True)
class Report:
    """A run of a simulation that kept every promise."""

    seed: int | str
    trace: tuple[str, ...]
    """Everything that happened, in order: appends, executions of steps, crashes. The same for the same seed."""
    results: Mapping[str, RunResult[Any]]
    """How each run ended, by its id."""
    journals: Mapping[str, Sequence[Batch]]
    """The journals, by the id of the run."""
    executions: Sequence[StepExecution]
    appends: int
    """How many times a machine called the store's append: the numbers that `Crash` and `Pause` can name."""
    elapsed: float
    """How much virtual time went by, in seconds."""
    crashes: int = 0
    lost: Sequence[Lost] = ()
    """Results that a machine lost when it died, because they were not stored."""
    replies: Sequence[Reply] = ()
    """The replies to the senders."""

    most_under_way: Mapping[str, int] = field(default_factory=dict)
    """The most runs of each queue that were running at once."""

    @property
    def text(self) -> str:
        """The trace as one text."""
        return "\n".join(self.trace)
