"""Which source a run was executed with, as its journal says. Reads no source: `source.py` holds one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.kernel.events import AnyEvent, Batch, ChildStarted, RunClaimed, RunForked, RunStarted, beside_steps
from perdure.kernel.patches import commanded


def codes(batches: Sequence[Batch]) -> list[tuple[int, str]]:
    """The sources that a run was executed with: from which event on, and the id of each."""
    return _codes(beside_steps(batches))


def _codes(events: Iterable[tuple[int, AnyEvent]]) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for number, event in events:
        if isinstance(event, RunClaimed) and event.code:
            found.append((number, event.code))
        elif isinstance(event, RunStarted) and event.structure:
            found.append((number, event.structure))
        elif isinstance(event, RunForked) and event.code:
            found.append((0, event.code))  # of all that was kept, which stands before it
    return found


def last_code(batches: Sequence[Batch]) -> str:
    """The id of the source that the code's last op was recorded with; empty if it was not stored, or is a structure."""
    code = code_at(batches, last_command(batches))
    started = batches[0].events[0]
    return "" if isinstance(started, RunStarted) and code == started.structure else code


def source_ids(batches: Sequence[Batch]) -> list[str]:
    """The ids of the sources and structures that a run and its children were executed with, each once."""
    events = beside_steps(batches)
    found = dict.fromkeys(code for _, code in _codes(events))
    found.update((event.structure, None) for _, event in events if type(event) is ChildStarted and event.structure)
    return list(found)


def code_at(batches: Sequence[Batch], seq: int) -> str:
    """The id of the source that a run was executed with when an event was recorded; empty if it was not stored."""
    return next((code for number, code in reversed(codes(batches)) if number <= seq), "")


def last_command(batches: Sequence[Batch]) -> int:
    """The number of the last event that the code asked for. An owner that only parked the run asked for nothing."""
    ops = (n for batch in batches for n, event in enumerate(batch.events, batch.seq) if commanded(event))
    return max(ops, default=batches[-1].seq + len(batches[-1].events))


def executing(batches: Sequence[Batch], op: str) -> tuple[str, str, str]:
    """Which execution an op belongs to: its op path, its program and its version."""
    started = batches[0].events[0]
    found = ("", started.program, started.version) if isinstance(started, RunStarted) else ("", "", "")
    for batch in batches:
        for event in batch.events:
            if isinstance(event, ChildStarted) and not event.detached and op.startswith(event.op + "/"):
                found = max(found, (event.op, event.program, event.version), key=lambda one: len(one[0]))
    return found


def structured(batches: Sequence[Batch], op: str, seq: int) -> tuple[str, str, str, str]:
    """The innermost execution around an op that has a structure of its own: its op path, program, version and that."""
    started = batches[0].events[0]
    assert isinstance(started, RunStarted)
    found = ("", started.program, started.version, code_at(batches, seq))
    for batch in batches:
        for event in batch.events:
            if isinstance(event, ChildStarted) and event.structure and op.startswith(event.op + "/"):
                found = max(
                    found, (event.op, event.program, event.version, event.structure), key=lambda one: len(one[0])
                )
    return found
