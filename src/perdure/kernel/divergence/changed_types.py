"""Find recorded values that the types of now read as something else, before the body gets them. Decodes no value."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

import msgspec
from msgspec import Raw

from perdure.errors import NotDecodable
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.divergence.recorded_source import code_at
from perdure.kernel.divergence.source import NO_SOURCE, Source
from perdure.kernel.events import (
    NULL,
    Batch,
    ChildFinished,
    ChildStarted,
    OutcomeKept,
    RunClaimed,
    RunStarted,
    RunStatus,
    SignalReceived,
    StepStarted,
    StepSucceeded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.ids import address, enclosing, op_name
from perdure.kernel.values.type_table import ChangedMeaning, changed_meaning, changed_uses, decode_table

if TYPE_CHECKING:
    from perdure.kernel.program import Program

_THEN = "The run then continues by itself."


class _Value(msgspec.Struct, frozen=True):
    """A recorded value: its use, the event that holds it, its op, and the line that asked for it."""

    use: str
    number: int
    op: str
    data: Raw
    source: str = ""


def check_types(
    program: Program,
    started: RunStarted,
    batches: Sequence[Batch],
    sources: Mapping[str, Source],
    opaque: frozenset[str] = frozenset(),
    since: float = float("inf"),
) -> None:
    """Raise NotDecodable if a recorded value means something else by the types of the program as it is now.

    `sources` are those that the run was executed with, by id; `opaque` are classes that a codec of the user stores. A
    signal that was not taken yet came from code of now if it came after `since`.
    """
    now = program.source()
    changed = {code: _changed(source.types, now.types) for code, source in sources.items() if source.types}
    if not any(changed.values()):
        return
    for value in _values(started, batches, since):
        code = code_at(batches, value.number)
        if value.use in changed.get(code, ()):
            old = decode_table(sources.get(code, NO_SOURCE).types)
            found = changed_meaning(value.use, msgspec.json.decode(value.data), old, decode_table(now.types), opaque)
            if found is not None:
                _refuse(program, value, found)


@lru_cache(maxsize=256)
def _changed(old: str, new: str) -> frozenset[str]:
    return frozenset() if old == new else changed_uses(decode_table(old), decode_table(new))


def _values(started: RunStarted, batches: Sequence[Batch], since: float) -> Iterator[_Value]:
    """The recorded values that the code gets, each with the event by which it was recorded, or taken."""
    yield from _arguments(started, batches)
    asked: dict[str, str] = {}
    kinds: dict[str, str] = {}
    children: dict[str, str] = {}
    signals: dict[str, deque[tuple[SignalReceived, int, float]]] = {}
    for batch in batches:
        for number, event in enumerate(batch.events, batch.seq):
            if isinstance(event, StepStarted | WaitOpened | ChildStarted):
                asked[event.op] = event.source
                if isinstance(event, ChildStarted):
                    children[event.op] = event.program
                elif isinstance(event, WaitOpened):
                    kinds[event.op] = f"{event.kind} {event.name}"
            elif isinstance(event, StepSucceeded):
                yield _Value(f"step {op_name(event.op)}", number, event.op, event.value, asked.get(event.op, ""))
            elif isinstance(event, ChildFinished):
                if event.status is RunStatus.COMPLETED:
                    use = f"child {children.get(event.op, '')}"
                    yield _Value(use, number, event.op, event.value, asked.get(event.op, ""))
            elif isinstance(event, OutcomeKept):
                if event.kind == "succeeded":
                    yield _Value(f"step {op_name(event.op)}", number, event.op, event.value)
                elif event.kind == "waited" and not WaitResolved(event.op, event.by).is_rejection:
                    yield _Value(event.inputs, number, event.op, event.value)
            elif isinstance(event, SignalReceived):
                signals.setdefault(address(event.child, event.name), deque()).append((event, number, batch.at))
            elif isinstance(event, WaitResolved):
                waiting = signals.get(address(enclosing(event.op, children), op_name(event.op)))
                if event.brings_value and not event.is_rejection:
                    taken = waiting.popleft()[0].payload if event.by == "signal" and waiting else event.value
                    yield _Value(kinds.get(event.op, ""), number, event.op, taken, asked.get(event.op, ""))
    for left in signals.values():
        for signal, number, at in left:
            if at < since:
                yield _Value(f"signal {signal.name}", number, signal.name, signal.payload)


def _arguments(started: RunStarted, batches: Sequence[Batch]) -> Iterator[_Value]:
    """The arguments of a run, by the code that claimed it first."""
    if started.input == NULL:
        return
    given = msgspec.json.decode(started.input, type=dict[str, Raw] | list[Raw])
    claims = ((n, event) for batch in batches for n, event in enumerate(batch.events, batch.seq))
    number, names = next(((n, event.names) for n, event in claims if isinstance(event, RunClaimed)), (0, ()))
    if isinstance(given, list):
        given = dict(zip(names, given, strict=False))
    for name, value in given.items():
        yield _Value(f"input {name}", number, "", value)


def _refuse(program: Program, value: _Value, found: ChangedMeaning) -> NoReturn:
    kind, _, name = value.use.partition(" ")
    what = {
        "step": f"the result of {value.op}",
        "child": f"the result of {value.op}",
        "input": f"the argument {name} of {program.name}",
        "approval": f"the answer to the approval {name!r} taken by {value.op}",
    }.get(kind, f"the signal {name!r} taken by {value.op}")
    reason = found.reason if found.path == "$" else f"{found.reason} - at `{found.path}`"
    error = NotDecodable(what, found.type, reason)
    error.op = value.op
    source_map = program.source_map()
    defined = program.defined.source if program.defined is not None else ""
    lines = source_map.lines.get(name, ())
    source = defined if kind == "input" else lines[0] if lines else value.source
    current = OpView(kind, value.op or program.name, name, source=source, code=source_map.code.get(source, ""))
    recorded = OpView(kind, value.op or program.name, name, source=value.source)
    title = f"{what} would be read as another {found.type}: {reason}."
    fix = f"{found.fix} {_THEN}"
    raise error.explained(Divergence("undecodable", value.op, title, recorded, current, fix))
