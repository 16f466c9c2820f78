"""Graphs of which only the stored structure is at hand: what their runs skipped, and how they look. Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perdure.kernel.events import Batch, RunStarted
from perdure.kernel.step_records import Missed
from perdure.kernel.structures import Structures

if TYPE_CHECKING:
    from perdure.authoring.dataflow.manifest import StoredProgram
    from perdure.kernel.program import Program


class StoredGraphs(Structures):
    """Reads the structures of graphs. What that takes is imported when a run has one."""

    def missed(self, structures: Mapping[str, bytes], started: RunStarted, batches: Sequence[Batch]) -> Missed:
        """The turns of nodes that did not run."""
        from perdure.authoring.dataflow.recorded import missed

        return missed(_programs(structures), started, batches)

    def program(self, structures: Mapping[str, bytes], batches: Sequence[Batch], path: str) -> Program | None:
        """The graph of a run or a child, which can be drawn and asked what depends on what."""
        from perdure.authoring.dataflow.manifest import StoredProgram
        from perdure.authoring.dataflow.recorded import program_at

        class StoredGraph(StoredProgram):
            """A graph that can be drawn."""

            def drawn(self, statuses: Mapping[str, str], format: Any, depth: int | None) -> str:
                """As `Graph.drawn`."""
                from perdure.authoring.graph.diagram import diagram, turns_of

                assert self.plan is not None
                return diagram(self.plan, format=format, depth=depth, statuses=turns_of(statuses))

        found = program_at(_programs(structures), batches, path)
        return StoredGraph(found.manifest) if found is not None and found.plan is not None else None


def _programs(structures: Mapping[str, bytes]) -> dict[str, StoredProgram]:
    from perdure.authoring.dataflow.manifest import StoredProgram, read_structure

    read = {id: read_structure(data) for id, data in structures.items()}
    return {id: StoredProgram(manifest) for id, manifest in read.items() if manifest is not None}
