"""Find recorded steps and children that are plain functions now, before the body runs: every replay would call them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from perdure.errors import Diverged
from perdure.kernel.divergence.advice import ways
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.divergence.source import NO_SOURCE, Source
from perdure.kernel.events import (
    Batch,
    ChildStarted,
    OutcomeKept,
    RunClaimed,
    RunForked,
    RunStarted,
    StepStarted,
    StepSucceeded,
)
from perdure.kernel.ids import enclosing, op_name
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import NEW_CALL

if TYPE_CHECKING:
    from perdure.kernel.program import Program

_Recorded: TypeAlias = StepStarted | ChildStarted | OutcomeKept
# Outcomes that are kept, and of which ops.
_KEPT = {"succeeded": "step", "skipped": "step", "failed": "step", "again": "step", "started": "child"}


def check_steps(
    programs: Programs,
    program: Program,
    batches: Iterable[Batch],
    sources: Mapping[str, Source] = MappingProxyType({}),
) -> set[str]:
    """Raise Diverged if the code of a program, or of a child in its journal, calls a recorded step or child as it is.

    `sources` are those that the run was executed with, by id, as far as they are known. Returns which of them are not
    the program's source as it is now.
    """
    former: set[str] = set()
    children: dict[str, Program] = {}
    # Whether the run has been continued by the code as it is now, which has the steps that it had; and its code.
    unchanged, code = False, ""
    seen: set[tuple[str, str]] = set()
    for batch in batches:
        for number, event in enumerate(batch.events, batch.seq):
            kind = type(event)
            if kind is StepSucceeded or (unchanged and not children and kind is StepStarted):
                continue
            if kind is StepStarted or kind is ChildStarted:
                assert isinstance(event, StepStarted | ChildStarted)
                path, name = enclosing(event.op, children) if children else "", op_name(event.op)
                if (path or not unchanged) and (path, name) not in seen:
                    seen.add((path, name))
                    before = sources.get(code, NO_SOURCE)
                    now = children.get(path, program).lost(name, event.source, event.function, before)
                    if now is not None:
                        raise Diverged(number, _lost(event, now))
                if isinstance(event, ChildStarted) and not event.detached:
                    if programs.serves(event.program, event.version):
                        children[event.op] = programs.find(event.program, event.version)
            elif isinstance(event, RunClaimed):
                if event.code:
                    code, unchanged = event.code, event.code == program.source().digest()
                    if not unchanged and code in sources:
                        former.add(code)
            elif kind is RunStarted:
                assert isinstance(event, RunStarted)
                if event.structure in sources and event.structure != program.structure:
                    former.add(event.structure)
            elif isinstance(event, RunForked):
                if event.code in sources and event.code != program.source().digest():
                    former.add(event.code)
                if batch.seq == 0:
                    _check_kept(programs, program, batch, sources)
    return former


def _check_kept(programs: Programs, program: Program, batch: Batch, sources: Mapping[str, Source]) -> None:
    """The same for outcomes that are kept from an earlier run, which stand before the beginning of any op."""
    forked = next(event for event in batch.events if isinstance(event, RunForked))
    before = sources.get(forked.code, NO_SOURCE)
    children = [ChildStarted(path, op_name(path), function=name) for path, name in (forked.children or {}).items()]
    kept = [event for event in batch.events if isinstance(event, OutcomeKept) and event.kind in _KEPT]
    events: list[_Recorded] = [*children, *kept]
    for number, event in enumerate(events):
        now = _asking(programs, program, event.op).lost(op_name(event.op), "", event.function, before)
        if now is not None:
            raise Diverged(number, _lost(event, now))


def _asking(programs: Programs, program: Program, op: str) -> Program:
    """The program that asked for an op whose outcome is kept, without the beginnings of children."""
    for part in op.split("/")[:-1]:
        name = op_name(part)  # of a task, or of a child
        program = programs.find(name, "") if programs.serves(name, "") else program
    return program


def _lost(event: _Recorded, now: OpView) -> Divergence:
    kind = _KEPT[event.kind] if isinstance(event, OutcomeKept) else _kind(event)
    queue, source = getattr(event, "queue", ""), getattr(event, "source", "")
    name = op_name(event.op)
    recorded = OpView(kind, event.op, name, event.inputs, source, queue=queue, function=event.function)
    if now.kind == NEW_CALL:
        title = (
            f"The {kind} {name} was removed: the code cannot ask for it any more, and calls {now.name}() outside of\n"
            "any step, which it did not call before: each replay would call it again."
        )
        fix = f"Call {now.name}() in a step, and guard the change with `patched()`.\n{ways(event.op)}"
        return Divergence("removed", event.op, title, recorded, now, fix)
    called = "" if now.name == name else f", {now.name},"
    given = [f'name="{name}"'] * bool(called) + [f'queue="{queue}"'] * bool(queue)
    decorator = "@step" if kind == "step" else "@workflow"
    decorator = f"{decorator}({', '.join(given)})" if given else decorator
    title = (
        f"The {kind} {name} is {now.kind}{called} now: the body would perform it again on every replay,\n"
        "and nothing of it would be recorded."
    )
    what = "a step" if kind == "step" else "a workflow"
    fix = f"Make {now.name} {what} again, with {decorator}: the run then continues by itself.\n{ways(event.op)}"
    return Divergence("type", event.op, title, recorded, now, fix)


def _kind(event: StepStarted | ChildStarted) -> str:
    if isinstance(event, StepStarted):
        return "step"
    return "detached child" if event.detached else "child"
