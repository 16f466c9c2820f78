"""What stored structures of programs tell about their runs, in a process without the code: a protocol. Reads nothing.

`RunStarted.structure` is the id of a blob; what can read it is an argument of a client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from perdure.kernel.events import Batch, RunStarted
from perdure.kernel.step_records import Missed

if TYPE_CHECKING:
    from perdure.kernel.program import Program


class Structures(Protocol):
    """Reads stored structures. They are given as bytes, by their ids, with a journal that has its large values."""

    def missed(self, structures: Mapping[str, bytes], started: RunStarted, batches: Sequence[Batch]) -> Missed:
        """The turns that did not run."""
        ...

    def program(self, structures: Mapping[str, bytes], batches: Sequence[Batch], path: str) -> Program | None:
        """The program of a run, or of its child at an op path, as far as it can be shown; None if it is not known."""
        ...


class NoStructures(Structures):
    """Nothing is read."""

    def missed(self, structures: Mapping[str, bytes], started: RunStarted, batches: Sequence[Batch]) -> Missed:
        """None are known."""
        return Missed()

    def program(self, structures: Mapping[str, bytes], batches: Sequence[Batch], path: str) -> Program | None:
        """None is known."""
        return None
