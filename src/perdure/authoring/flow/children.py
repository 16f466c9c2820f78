"""Flows as steps whose definition is found at run time: a stored flow, and one that an earlier step has made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from perdure.authoring.flow.job import Result
from perdure.errors import UnknownProgram, UsageError
from perdure.kernel.events import RunStarted
from perdure.kernel.patches import NO_HISTORY, PatchHistory
from perdure.kernel.program import Execution, Program
from perdure.kernel.values.codec import Codec


class NamedFlow(Program):
    """A flow or another program that engines know by name; without a version, its latest."""

    by_name = True

    def __init__(self, name: str, version: str) -> None:
        self.name, self.version = name, version
        self.returns = Result()

    def open(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY) -> Execution:
        """Never executed: engines open the program that it names."""
        raise UnknownProgram(self.name)


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    definition: Raw
    input: dict[str, Raw] = {}


class DynamicFlow(Program):
    """Runs the definition that it gets as input. The input is in the journal, so every replay runs the same."""

    name = "flow"
    types = (("=definition", Any), ("=input", Any))
    # An optional parameter.
    defaults = {"input": None}  # noqa: RUF012 - as in Program

    def __init__(self, define: Callable[[bytes], Program]) -> None:
        self._define = define
        self.returns = Result()
        # The last flow that was made: a run is checked before it begins.
        self._made: tuple[bytes, Program] | None = None

    def check_input(self, input: Raw, codec: Codec) -> object:
        """Raise FlowInvalid if the definition is invalid, or uses what it may not."""
        program, given = self._read(input)
        return program.check_input(given, codec)

    def open(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY) -> Execution:
        """A fresh execution of the flow."""
        program, given = self._read(started.input)
        begun = msgspec.structs.replace(started, program=program.name, version=program.version, input=given)
        return program.open(run_id, begun, codec, past)

    def _read(self, input: Raw) -> tuple[Program, Raw]:
        try:
            given = msgspec.json.decode(input, type=_Given)
        except msgspec.ValidationError as error:
            raise UsageError(f"`use: flow` takes a definition, and its input as an object: {error}") from None
        data = bytes(given.definition)
        if self._made is None or self._made[0] != data:
            self._made = data, self._define(data)
        return self._made[1], Raw(msgspec.json.encode(given.input))
