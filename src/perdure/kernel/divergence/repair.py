"""Find a change of the code that lets a run which diverged go on: repairs are tried on its journal, never only guessed.

A program proposes repairs, each with the program that it makes. One is shown only if the whole journal replays with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

import msgspec

from perdure.errors import Diverged, NotDecodable
from perdure.kernel.divergence.compare import compared
from perdure.kernel.divergence.explain import recorded_op
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.divergence.recorded_source import code_at, executing, last_command, structured
from perdure.kernel.divergence.source import NO_SOURCE, Source, difference
from perdure.kernel.events import Batch, RunStarted
from perdure.kernel.policies.versions import Programs

if TYPE_CHECKING:
    from perdure.kernel.program import Program

# How many repairs are tried on one journal, and how many that helped are remembered.
MOST, REMEMBERED = 8, 100
_APPLY = "It was tried on the journal of this run, and fits it. `perdure resolve ID --apply` writes it."


class Repair(msgspec.Struct, frozen=True):
    """A change of a file, with the program that it makes: as a unified diff, and as the text of the file afterwards."""

    program: Program
    what: str
    file: str
    diff: str
    text: str


def ops_after(batches: Sequence[Batch], path: str) -> list[OpView]:
    """The ops that a journal has after one."""
    ops = [op for batch in batches for event in batch.events if (op := recorded_op(event)) is not None]
    return ops[next((n for n, op in enumerate(ops, 1) if op.path == path), len(ops)) :]


class Repairs:
    """Tries repairs for the runs of one set of programs. What helped one run is tried first for the next like it."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        self._helped: dict[tuple[object, ...], Repair] = {}

    def repaired(
        self,
        error: Exception,
        batches: Sequence[Batch],
        sources: Mapping[str, Source],
        fits: Callable[[Programs], bool],
    ) -> Exception:
        """The same error with what has changed in the code, and with a repair that was tried, if one helps.

        `sources` are those that the run was executed with, by id, as far as they were stored; `fits` says whether its
        journal replays with these programs.
        """
        repairing, answer = self.repair(error, batches, sources), None
        while isinstance(tried := proceed(repairing, answer), Programs):
            answer = fits(tried)
        return tried

    def repair(
        self, error: Exception, batches: Sequence[Batch], sources: Mapping[str, Source]
    ) -> Generator[Programs, bool, Exception]:
        """As `repaired`: yields programs with a repair, and is sent whether the journal replays with them.

        It reads and compiles code, and opens no body: a thread may do it.
        """
        if not isinstance(error, Diverged | NotDecodable) or error.divergence is None:
            return error
        divergence, now = error.divergence, error.divergence.current
        if isinstance(error, Diverged):
            found = self._rewired(divergence, batches, sources, error.seq)
            if found is not None:
                return Diverged(error.seq, found)
        path, name, version = executing(batches, divergence.op)
        if not self.programs.serves(name, version):
            return error
        # The next owner may have claimed the run before it replayed it: the code of the last op is meant.
        seq = last_command(batches)
        if isinstance(error, Diverged):
            seq = min(seq, error.seq)
        recorded = sources.get(code_at(batches, seq), NO_SOURCE)
        program = self.programs.find(name, version)
        if path and (parts := program.source().parts):
            recorded = recorded.of(parts[0].name)  # that of the root is stored, and has those of its children
        divergence = compared(divergence, recorded, program.source(), ops_after(batches, divergence.op))
        divergence = msgspec.structs.replace(divergence, changed=difference(recorded, program.source()))
        kind = (program, recorded, divergence.change, divergence.recorded.name, now and (now.kind, now.name))
        repair = yield from self._try(program, self._helped.get(kind), recorded, divergence)
        if repair is not None:
            if len(self._helped) >= REMEMBERED:
                self._helped.clear()
            self._helped[kind] = repair
            shown = "\n".join(f"    {line}".rstrip() for line in repair.diff.splitlines())
            fix = f"{_upper(repair.what)}:\n\n{shown}\n\n{_APPLY}\n\nOther ways:\n\n{divergence.fix}"
            divergence = msgspec.structs.replace(divergence, fix=fix, patch=repair.diff)
        return Diverged(error.seq, divergence) if isinstance(error, Diverged) else error.explained(divergence)

    def _rewired(
        self, divergence: Divergence, batches: Sequence[Batch], sources: Mapping[str, Source], seq: int
    ) -> Divergence | None:
        """The divergence with both sides, where a program with a structure takes a value from elsewhere now."""
        path, name, version, structure = structured(batches, divergence.op, seq)
        recorded = sources.get(structure, NO_SOURCE)
        if not recorded.structure or not self.programs.serves(name, version):
            return None
        op = divergence.op[len(path) + 1 :] if path else divergence.op
        program, started = self.programs.find(name, version), batches[0].events[0]
        id = started.id if isinstance(started, RunStarted) else ""
        return program.rewired(recorded, op, divergence, seq, id)

    def _try(
        self, program: Program, known: Repair | None, recorded: Source, divergence: Divergence
    ) -> Generator[Programs, bool, Repair | None]:
        for repair in islice(chain(filter(None, [known]), program.repairs(recorded, divergence)), MOST):
            if (yield Programs(repair.program if one is program else one for one in self.programs.every())):
                return repair
        return None


def proceed(repairing: Generator[Programs, bool, Exception], fits: bool | None) -> Programs | Exception:
    """What to try next, given whether the last repair fits; in the end, the error with what was found."""
    try:
        return next(repairing) if fits is None else repairing.send(fits)
    except StopIteration as done:
        found: Exception = done.value
        return found


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
