"""Find the values that the nodes of a run take, and say which node or input is to blame for a missing one.

Changes nothing but its notes about the last search.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.authoring.dataflow.plan import (
    Absent,
    Argument,
    Carried,
    Collect,
    Computed,
    Const,
    FirstOf,
    Input,
    Node,
    Output,
    Plan,
    Source,
)
from perdure.authoring.dataflow.values import Value, joined
from perdure.errors import NotDecodable
from perdure.kernel.divergence.undecodable import NOT_GIVEN
from perdure.kernel.events import RunStarted
from perdure.kernel.values.codec import Codec

# The status of a node in the present round. A node that needs one at FAILED or above cannot run.
WAITING, OPEN, DONE, SKIPPED, FAILED, BLOCKED = range(6)


class Lookup:
    """The values of a run: its input, the outputs of nodes in this round, and what the last round carried over."""

    __slots__ = ("_absent", "_codec", "_fixed", "_started", "carry", "input", "lost", "missing", "status", "values")

    def __init__(self, plan: Plan, started: RunStarted, codec: Codec) -> None:
        self._started, self._codec = started, codec
        self.status = [WAITING] * len(plan.nodes)
        self.values: list[Value | None] = [None] * len(plan.nodes)
        self.carry: list[Value | None] = [None] * len(plan.slots)
        self.input: dict[str, Value] = {}
        # Fixed values, encoded, by the identity of their sources.
        self._fixed: dict[int, Value] | None = None
        # About the last search: the nodes that had no value for it, why the last computed value does not exist, and
        # the first node or input whose value is required and missing.
        self.lost: list[int] = []
        self._absent: Absent | None = None
        self.missing: int | Absent | None = None

    def given_answer(self, node: Node) -> Value | None:
        """The answer to a question that was given with the input; None if the question is asked."""
        return self.input.get(node.outputs[0]) if node.outputs else None

    def gather(self, arguments: Iterable[Argument]) -> dict[str, Value] | None:
        """The values of arguments by name; None if a required one has none, which `missing` then explains."""
        found: dict[str, Value] = {}
        missing: int | Absent | None = None
        for argument in arguments:
            before, source = len(self.lost), argument.source
            if type(source) is Output and not source.path and self.status[source.node] == DONE:
                value = self.values[source.node]  # the most frequent case, without a call
            else:
                value = self.find(source)
            if value is not None:
                found[argument.name] = value
            elif argument.required and missing is None:
                if len(self.lost) > before:
                    missing = self.lost[before]
                elif self._absent is not None:
                    missing, self._absent = self._absent, None
                else:
                    raise self.not_given(source.name if isinstance(source, Input) else argument.name)
        if missing is None:
            return found
        if self.missing is None:
            self.missing = missing
        return None

    def not_given(self, name: str) -> NotDecodable:
        """The error about an input that the run was started without."""
        return NotDecodable(f"the input of run {self._started.id!r}", f"{self._started.program}(...)", name + NOT_GIVEN)

    def find(self, source: Source) -> Value | None:
        """The value of a source; None if it has none, and then the nodes without a value are added to `lost`."""
        if isinstance(source, Output):
            if self.status[source.node] == DONE:
                value = self.values[source.node]
                assert value is not None
                if not source.path:
                    return value
                if (part := value.part(source.path)) is not None:
                    return part
            self.lost.append(source.node)
            return None
        if isinstance(source, Input):
            return self.input.get(source.name)
        if isinstance(source, Carried):
            return self.carry[source.slot]
        if isinstance(source, Const):
            if self._fixed is None:
                self._fixed = {}
            if id(source) not in self._fixed:
                self._fixed[id(source)] = Value(self._codec.encode_inputs(source.value, "a bound value"))
            return self._fixed[id(source)]
        if isinstance(source, Collect):
            found = [self.find(one) for one in source.parts]
            every = [value for value in found if value is not None]
            return Value(joined(every)) if len(every) == len(found) else None
        before = len(self.lost)
        if isinstance(source, Computed):
            made = source.call([self.find(one) for one in source.parts])
            if isinstance(made, Absent):
                self._absent = made
                return None
            self._keep_failed(before)
            return Value(made)
        assert isinstance(source, FirstOf)
        for one in source.parts:
            value = self.find(one)
            if value is not None:
                self._keep_failed(before)
                return value
        return None

    def forget(self) -> None:
        """Forget the last search."""
        self.lost.clear()
        self._absent = None

    def _keep_failed(self, before: int) -> None:
        """A value was found in spite of nodes without one: only those that failed still keep the taker from running."""
        self.lost[before:] = [lost for lost in self.lost[before:] if self.status[lost] >= FAILED]

    def has(self, source: Source) -> bool:
        """Whether a source has a value. Computes nothing."""
        if isinstance(source, Output):
            return self.status[source.node] == DONE
        if isinstance(source, Input):
            return source.name in self.input
        return self.carry[source.slot] is not None if isinstance(source, Carried) else True
