"""A protocol by which a process without the code of a program reads its stored structure. Reads nothing itself.

`RunStarted.structure` is the id of a blob with the structure of a program. For a program that is data, such as a flow,
the definition is stored as well. A client gets an object that can read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from perdure.errors import UsageError
from perdure.kernel.events import Batch, RunStarted
from perdure.kernel.step_records import Missed

if TYPE_CHECKING:
    from perdure.kernel.program import Program


class Structures(Protocol):
    """Reads stored structures, which are given as bytes, by their ids, with a journal that has its large values."""

    def missed(self, structures: Mapping[str, bytes], started: RunStarted, batches: Sequence[Batch]) -> Missed:
        """The turns that did not run."""
        ...

    def replayed(
        self, definitions: Sequence[bytes], run_id: str, started: RunStarted, batches: Sequence[Batch], missed: Missed
    ) -> dict[str, dict[str, Any]]:
        """The arguments of steps by op path, of a run whose programs have these definitions; `missed` gets what did not
        run. Nothing is executed, and nothing need be here that the steps use."""
        ...

    def program(self, structures: Mapping[str, bytes], batches: Sequence[Batch], path: str) -> Program | None:
        """The program of a run, or of its child at an op path, as far as it can be shown; None if it is not known."""
        ...

    def defined(self, definition: bytes, like: Program | None) -> Program:
        """The program of a definition, which may use what `like` may, an earlier one of its name that is here.

        Raises UsageError if none can be made of it here.
        """
        ...


class NoStructures(Structures):
    """Nothing is read."""

    def missed(self, structures: Mapping[str, bytes], started: RunStarted, batches: Sequence[Batch]) -> Missed:
        """None are known."""
        return Missed()

    def replayed(
        self, definitions: Sequence[bytes], run_id: str, started: RunStarted, batches: Sequence[Batch], missed: Missed
    ) -> dict[str, dict[str, Any]]:
        """None is read."""
        return {}

    def program(self, structures: Mapping[str, bytes], batches: Sequence[Batch], path: str) -> Program | None:
        """None is known."""
        return None

    def defined(self, definition: bytes, like: Program | None) -> Program:
        """None can be made."""
        raise UsageError("programs cannot be made of their definitions here")
