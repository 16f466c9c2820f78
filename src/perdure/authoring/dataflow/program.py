"""The common base of programs with a plan: names, questions, structure, chunks of maps."""

from __future__ import annotations

from collections.abc import Mapping, Set
from functools import cached_property
from typing import Any

import msgspec

from perdure.authoring.dataflow.changes import rewired
from perdure.authoring.dataflow.chunks import ChunkExecution
from perdure.authoring.dataflow.dependence import turn_of
from perdure.authoring.dataflow.manifest import Manifest, manifest_of, read_structure
from perdure.authoring.dataflow.plan import Node, Plan
from perdure.errors import UnknownProgram
from perdure.kernel.divergence.model import Divergence
from perdure.kernel.divergence.source import NO_SOURCE, Source
from perdure.kernel.events import RunStarted
from perdure.kernel.ids import op_name
from perdure.kernel.patches import NO_HISTORY, PatchHistory
from perdure.kernel.policies.rules import StepNames
from perdure.kernel.program import Program
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.type_table import TableMaker


class DataflowProgram(Program):
    """A program that consists of a plan."""

    plan: Plan

    @property
    def input_names(self) -> Mapping[str, str]:
        """By name in the plan: the names of inputs for callers, where they differ."""
        return {}

    def step_names(self) -> StepNames:
        """The names of its steps, including those of the programs in it."""
        found, complete = set[str](), True
        work: list[Program] = [self]
        while work:
            program = work.pop()
            if not isinstance(program, DataflowProgram):
                names = program.step_names()
                found |= names.steps
                complete &= names.complete
                continue
            for node in program.plan.nodes:
                if node.kind == "step":
                    found.add(node.name)
                elif node.program is not None:
                    work.append(node.program)
        return StepNames(frozenset(found), complete=complete)

    def question_types(self, path: str) -> tuple[Any, Any] | None:
        """The types of the question at an op path; the op may be in a program inside it."""
        first, _, rest = path.partition("/")
        node = self._node(op_name(first).partition("[")[0])
        if node is None or (node.question is None and node.program is None):
            return None
        if node.program is not None:
            return node.program.question_types(rest) if rest else None
        assert node.question is not None
        return node.question.request, node.question.answer

    def question_names(self) -> Set[str] | None:
        """The present and former names of its questions, including those of the programs in it."""
        found = {*self.plan.retired, *self.plan.renamed}
        for node in self.plan.nodes:
            if node.question is not None:
                found.add(node.question.name)
            if node.program is not None:
                inner = node.program.question_names()
                if inner is None:
                    return None
                found |= inner
        return found

    def children(self) -> list[Program]:
        """The programs that it runs as nodes."""
        return [node.program for node in self.plan.nodes if node.program is not None]

    @cached_property
    def structure(self) -> str:  # type: ignore[override]
        """The id of the blob with its structure."""
        return self.source().digest()

    def manifest(self) -> Manifest:
        """Its structure as data."""
        return manifest_of(self.plan, self.name, self.version, self.input_names)

    def source(self) -> Source:
        """Its structure, which is stored with its runs."""
        try:
            manifest = msgspec.structs.replace(self.manifest(), types=self._stored_types)
            return Source(structure=msgspec.json.encode(manifest), types=manifest.types)
        except RecursionError:
            return NO_SOURCE  # programs nested a thousand deep: their runs are not explained

    @cached_property
    def _stored_types(self) -> str:
        """The types of its inputs, results and answers, including those of the programs in it."""
        made = TableMaker()
        for name, annotation in self.types:
            made.add(f"input {name.lstrip('*=')}", annotation)
        work: list[Program] = [self]
        while work:
            program = work.pop()
            for node in program.plan.nodes if isinstance(program, DataflowProgram) else ():
                if node.kind == "step" and node.mapped is None:
                    made.add(f"step {node.name}", node.returns)
                elif node.question is not None:
                    made.add(f"approval {node.question.name}", node.question.answer)
                elif node.program is not None:
                    made.add(f"child {node.program.name}", node.program.returns)
                    work.append(node.program)
        return made.table().encode()

    def rewired(self, recorded: Source, op: str, divergence: Divergence, seq: int, id: str) -> Divergence | None:
        """A divergence, explained by a value that a node takes from another source than when it ran, if one does."""
        before = read_structure(recorded.structure)
        return None if before is None else rewired(before, self.manifest(), op, divergence, seq, id)

    def open_chunk(
        self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY
    ) -> ChunkExecution:
        """A fresh execution of a chunk of one of its maps."""
        assert started.remote is not None
        name, turn = turn_of(started.remote.op.rpartition("/")[2])
        name = self.plan.renamed.get(name, name)
        node = self._node(name)
        if node is None or node.mapped is None:
            raise UnknownProgram(f"{self.name}, with the map {name!r}", ())
        return ChunkExecution(self.plan, node, turn, started, codec, past)

    def batch(self) -> Program:
        """The program of its batches."""
        return self._batches

    @cached_property
    def _batches(self) -> Program:
        from perdure.authoring.dataflow.batch import Batches  # it derives from this class

        return Batches(self)

    def inside(self, op: str) -> Program | None:
        """The program of a node."""
        node = self._node(turn_of(op)[0])
        return None if node is None else node.program

    def _node(self, name: str) -> Node | None:
        return next((node for node in self.plan.nodes if node.name == name), None)
