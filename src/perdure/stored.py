"""Programs of which only what is stored is at hand: how graphs look and what they skipped, and flows that can run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perdure.config import Flows
from perdure.errors import UsageError
from perdure.kernel.events import Batch, RunStarted
from perdure.kernel.policies.versions import Programs
from perdure.kernel.step_records import Missed
from perdure.kernel.structures import Structures
from perdure.kernel.values.codec import Codec
from perdure.settings.load import load_settings

if TYPE_CHECKING:
    from perdure.authoring.dataflow.manifest import StoredProgram
    from perdure.authoring.flow.flow import Access
    from perdure.kernel.program import Program


class StoredPrograms(Structures):
    """Reads the structures of graphs, and the definitions of flows. What that takes is imported when there is one.

    `flows`: what flows may use that are not here otherwise; None: what the settings say.
    """

    def __init__(self, flows: Flows | None = None) -> None:
        self._flows = flows

    def defined(self, definition: bytes, like: Program | None) -> Program:
        """The flow of a definition."""
        from perdure.authoring.flow.flow import Flow, define

        if isinstance(like, Flow):
            return define(definition, like.access)
        return define(definition, access(self._flows or load_settings().flows or Flows()))

    def replayed(
        self, definitions: Sequence[bytes], run_id: str, started: RunStarted, batches: Sequence[Batch], missed: Missed
    ) -> dict[str, dict[str, Any]]:
        """The arguments of steps by op path, and what did not run."""
        from perdure.authoring.code.frames import arguments

        programs = shown(definitions)
        if not programs.serves(started.program, started.version):
            return {}
        return arguments(programs, Codec(), run_id, started, batches, missed)

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


class LookedAt(StoredPrograms):
    """Makes flows that are only looked at, whatever they use."""

    def defined(self, definition: bytes, like: Program | None) -> Program:
        """The flow of a definition, whose steps cannot be executed."""
        return next(iter(shown([definition]).every()))


def access(allowed: Flows, components: Mapping[str, Callable[..., Any]] | None = None) -> Access:
    """What a flow may use: by the settings, functions given by name, and the component that needs an engine."""
    from perdure.authoring.flow.flow import Access
    from perdure.engine.blob_step import blob

    return Access(allowed, {"blob": blob, **(components or {})})


def shown(definitions: Iterable[bytes]) -> Programs:
    """The flows of definitions, to be looked at: their runs can be replayed, and their steps cannot be executed."""
    from perdure.authoring.flow.flow import Access, define

    found = Programs()
    for definition in definitions:
        with suppress(UsageError):  # of a later version of perdure
            found.put(define(definition, Access(shown=True)), newest=False)
    return found


def _programs(structures: Mapping[str, bytes]) -> dict[str, StoredProgram]:
    from perdure.authoring.dataflow.manifest import StoredProgram, read_structure

    read = {id: read_structure(data) for id, data in structures.items()}
    return {id: StoredProgram(manifest) for id, manifest in read.items() if manifest is not None}
