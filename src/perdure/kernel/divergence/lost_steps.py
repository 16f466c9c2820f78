"""Find recorded steps that are plain functions now, before the body runs: it would perform them on every replay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from perdure.errors import Diverged
from perdure.kernel.divergence.advice import title_for, ways
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.divergence.source import Source
from perdure.kernel.events import Batch, ChildStarted, RunClaimed, StepStarted
from perdure.kernel.ids import enclosing, op_name
from perdure.kernel.policies.versions import Programs

if TYPE_CHECKING:
    from perdure.kernel.program import Program


def check_steps(programs: Programs, program: Program, batches: Iterable[Batch]) -> None:
    """Raise Diverged if the code of a program, or of a child in its journal, calls a recorded step as it is."""
    children: dict[str, Program] = {}
    # Whether the run has been continued by the code as it is now, which has the steps that it had.
    unchanged = False
    seen: set[tuple[str, str]] = set()
    for batch in batches:
        for number, event in enumerate(batch.events, batch.seq):
            if type(event) is StepStarted:
                path = enclosing(event.op, children) if children else ""
                name = op_name(event.op)
                if (path or not unchanged) and (path, name) not in seen:
                    seen.add((path, name))
                    now = children.get(path, program).lost_step(name, event.source)
                    if now is not None:
                        raise Diverged(number, _lost(event, now))
            elif type(event) is RunClaimed and event.code:
                unchanged = event.code == program.source().digest()
            elif type(event) is ChildStarted and not event.detached and programs.serves(event.program, event.version):
                children[event.op] = programs.find(event.program, event.version)


def as_not_lost(divergence: Divergence, old: Source) -> Divergence:
    """The same divergence, where a function was taken for a lost step by its line alone, and the old code had both."""
    recorded, now = divergence.recorded, divergence.current
    was_plain = now is not None and any(part.name.rpartition(".")[2] == now.name for part in old.parts)
    if divergence.change != "type" or now is None or ":" in now.path or now.name == recorded.name or not was_plain:
        return divergence
    title = title_for("removed", recorded, None)
    return msgspec.structs.replace(
        divergence, change="removed", title=title, current=None, last=None, fix=ways(divergence.op)
    )


def _lost(event: StepStarted, now: OpView) -> Divergence:
    recorded = OpView("step", event.op, op_name(event.op), event.inputs, event.source, queue=event.queue)
    called = "" if now.name == recorded.name else f", {now.name},"
    given = [f'name="{recorded.name}"'] * bool(called) + [f'queue="{event.queue}"'] * bool(event.queue)
    decorator = f"@step({', '.join(given)})" if given else "@step"
    title = (
        f"The step {recorded.name} is {now.kind}{called} now: the body would perform it again on every replay,\n"
        "and nothing of it would be recorded."
    )
    fix = f"Make {now.name} a step again, with {decorator}: the run then continues by itself.\n{ways(event.op)}"
    return Divergence("type", event.op, title, recorded, now, fix)
