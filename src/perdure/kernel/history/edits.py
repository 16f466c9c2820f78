"""Replace arguments of a step or child in a fork. Edits the command, never executes it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from perdure.errors import UsageError
from perdure.kernel.commands import Command, RunStep, StartChild
from perdure.kernel.values.arguments import call_names, recorded_call

_array = msgspec.json.Decoder(list[Raw])
_arguments = msgspec.json.Decoder(dict[str, Raw] | list[Raw])


def with_inputs(command: Command, changes: Mapping[str, Raw]) -> Command:
    """The same call with some arguments replaced, by parameter name."""
    if isinstance(command, RunStep):
        return _step(command, changes)
    if isinstance(command, StartChild):
        return _child(command, changes)
    raise UsageError(f"{command.op} takes no arguments: give inputs for a step or a child, and a value with values=")


def _step(command: RunStep, changes: Mapping[str, Raw]) -> RunStep:
    names = [name for name, _ in command.spec.types]
    plain = [name for name in names if not name.startswith(("*", "="))]
    values = _array.decode(command.inputs)
    given = dict(zip(command.keywords, values[command.positional :], strict=True))
    positional = values[: command.positional]
    known = {name.lstrip("=") for name in names if not name.startswith("*")}
    for name, value in changes.items():
        if name in plain[: command.positional]:
            positional[plain.index(name)] = value
        elif name in known or name in given or any(n.startswith("**") for n in names) or not names:
            given[name] = value
        else:
            takes = ", ".join(n.lstrip("=*") for n in names) or "none"
            raise UsageError(f"{command.op} has no argument {name!r}; it takes {takes}")
    keywords = tuple(given)
    inputs = msgspec.json.encode([*positional, *given.values()])
    record = recorded_call(call_names(command.spec.types, command.positional, keywords), inputs)
    return msgspec.structs.replace(command, inputs=inputs, inputs_hash=record, keywords=keywords)


def _child(command: StartChild, changes: Mapping[str, Raw]) -> StartChild:
    arguments = _arguments.decode(command.input)
    if isinstance(arguments, list):
        raise UsageError(
            f"the arguments of {command.op} were given by position to a program that is known by name only, so they "
            "have no names to change"
        )
    values = {**arguments, **changes}
    record = recorded_call(tuple(values), msgspec.json.encode([*values.values()]))
    return msgspec.structs.replace(command, input=msgspec.json.encode(values), inputs_hash=record)
