"""Recorded values that the code of now cannot decode: they park the run, and are never raised into the program.

A signal or an answer was accepted by the type that its wait was opened with. If the program has another type now and
cannot decode the value, the code has changed, and the sender made no mistake. If the earlier code could not decode a
signal either, the program got NotDecodable, and gets it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw

from perdure.errors import NotDecodable
from perdure.kernel.commands import OpenWait, Pending, Reads
from perdure.kernel.events import NULL, WaitResolved
from perdure.kernel.ids import address
from perdure.kernel.state import OpenOp, RunState
from perdure.kernel.values.schemas import covers
from perdure.kernel.values.signatures import misfit


def expect(wait: OpenOp, command: OpenWait) -> None:
    """Note how the program decodes what an open wait gets."""
    wait.reads = command.reads
    if wait.opened is not None and wait.opened.schema != command.schema:
        wait.recorded = wait.opened.schema
        wait.opened = msgspec.structs.replace(wait.opened, schema=command.schema)
        wait.source = command.source
        if command.reads is not None and (known := set(_properties(msgspec.json.decode(wait.recorded)))):
            wait.reads = partial(_read_all, command.reads, known)


def _read_all(reads: Reads, known: set[str], value: Raw) -> Any:
    """Decode a value. Raises NotDecodable also if a field that the recorded type had is lost to a new one."""
    try:
        return reads(value, exact=True)
    except NotDecodable as error:
        if error.lost is None or (error.lost.stored in known and error.lost.default not in known):
            raise
    return reads(value)


def _properties(schema: Any) -> Iterator[str]:
    """The names of all fields in a schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        for part in schema.values():
            yield from _properties(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _properties(part)


def check_value(wait: OpenOp, event: WaitResolved) -> None:
    """Raise NotDecodable if a wait got a value that its type took when it was opened, and the program cannot decode."""
    assert wait.reads is not None
    try:
        wait.reads(event.value)
    except NotDecodable as error:
        schema = wait.recorded or (NULL if wait.opened is None else wait.opened.schema)
        if schema == NULL or misfit(bytes(schema), msgspec.json.decode(event.value)) is None:
            raise _of(error, event.op) from None


def judged(state: RunState, delivery: WaitResolved) -> WaitResolved:
    """The delivery of a signal, marked if the program gets NotDecodable for it."""
    wait, signal = state.ops[delivery.op], state.next_signal(delivery.op)
    if wait.reads is not None and signal is not None:
        try:
            wait.reads(signal.payload)
        except NotDecodable:
            return msgspec.structs.replace(delivery, misfit=True)
    return delivery


def check_inbox(state: RunState, pending: Pending, *, other_code: bool = False) -> None:
    """Raise NotDecodable if the program cannot decode the signal that it gets next, and other code may have taken it.

    Other code may have done so if the wait or the signal is older than the process that owns the run. `other_code`:
    assume it.
    """
    if not state.inbox:
        return
    other_code = other_code or state.parked is not None
    if not pending:
        if (op := state.next_delivery) is not None:
            wait, signal = state.ops[op], state.next_signal(op)
            if wait.reads is not None and signal is not None and (other_code or state.is_inherited(wait)):
                _decode(wait.reads, signal.payload, op)
        return
    seen = {to for to, waits in state.waits.items() if waits}
    for command in pending.values():
        if isinstance(command, OpenWait) and command.kind == "signal" and command.reads is not None:
            to = address(state.child_of(command.op), command.name)
            if to not in seen and state.inbox.get(to) and (other_code or state.inherited.get(to)):
                _decode(command.reads, state.inbox[to][0].payload, command.op)
            seen.add(to)


def narrowed(state: RunState) -> Iterator[tuple[str, OpenOp]]:
    """The open waits whose type accepts less than when they were opened."""
    for op, wait in state.ops.items():
        if wait.recorded is not None and wait.opened is not None and NULL not in (wait.recorded, wait.opened.schema):
            if not covers(msgspec.json.decode(wait.opened.schema), msgspec.json.decode(wait.recorded)):
                yield op, wait


def _decode(reads: Reads, value: Raw, op: str) -> None:
    try:
        reads(value)
    except NotDecodable as error:
        raise _of(error, op) from None


def _of(error: NotDecodable, op: str) -> NotDecodable:
    error.op = op
    return error
