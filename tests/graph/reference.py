"""What a graph must do, computed in the plainest way: by recursion, in one go, without an engine and without crashes.

A `Plan` is a graph as data. `expected` says what a run of it comes to: how each turn of each node ends, and what the
graph puts out. `tests/graph/plans.py` makes plans, and the graphs that they describe.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from zlib import crc32

Kind = Literal["step", "gate", "interrupt", "graph"]


@dataclass(frozen=True)
class Take:
    """A parameter, and the values that it takes: several, in this order, are a join."""

    name: str
    values: tuple[str, ...]
    join: bool = False
    default: int | None = None
    # Whether it is left out where the value is missing: an input that a nested graph can do without.
    optional: bool = False


@dataclass(frozen=True)
class Spec:
    """A node. A gate chooses among `targets`, where None is END; `when` names a value that must be even.

    `over` are parameters that it is mapped over, `many` makes a gate choose several targets or a step return a list,
    `large` lets a step return a value that is stored apart, `lazy` lets it yield the elements of its list.
    """

    name: str
    kind: Kind = "step"
    takes: tuple[Take, ...] = ()
    outputs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    when: str | None = None
    targets: tuple[str | None, ...] = ()
    many: bool = False
    fails: bool = False
    large: bool = False
    lazy: bool = False
    inner: Plan | None = None
    over: tuple[str, ...] = ()
    limit: int | None = None
    on_error: Literal["fail", "none", "skip"] = "fail"


@dataclass(frozen=True)
class Plan:
    """A graph: an outer loop stands before the loops within it."""

    nodes: tuple[Spec, ...]
    loops: tuple[str, ...] = ()
    max_rounds: int = 4
    on_failure: Literal["stop", "continue"] = "stop"
    output: str | None = None


def value_of(spec: Spec, arguments: Mapping[str, Any]) -> Any:
    """What a node returns for its arguments."""
    number = crc32(json.dumps([spec.name, arguments], sort_keys=True).encode()) % 997
    if not spec.outputs:
        return None
    if spec.large:
        return ["x" * (400 + number), number]
    if len(spec.outputs) > 1:
        return tuple(number + i for i in range(len(spec.outputs)))
    return [number + i for i in range(number % 4)] if spec.many else number


def choice_of(spec: Spec, arguments: Mapping[str, Any]) -> list[str | None]:
    """What a gate chooses for its arguments."""
    number = crc32(json.dumps([spec.name, arguments], sort_keys=True).encode())
    if spec.many:
        return [target for i, target in enumerate(spec.targets) if number >> i & 1]
    return [spec.targets[number % len(spec.targets)]]


def is_even(value: Any) -> bool:
    """The condition that nodes have."""
    return value % 2 == 0 if isinstance(value, int) else len(json.dumps(value)) % 2 == 0


def answer_to(name: str) -> int:
    """What a person answers to an interrupt."""
    return len(name) + 100


@dataclass(frozen=True)
class Ended:
    """How a turn ended; *perhaps* it ran. `by` are the nodes that may be named as the reason where it did not run."""

    how: Literal["ran", "skipped", "failed", "blocked", "perhaps"]
    values: Mapping[str, Any] = field(default_factory=dict)
    chose: tuple[str | None, ...] = ()
    by: frozenset[str] = frozenset()


class LoopLimit(Exception):
    """A loop has more rounds than it may have."""


class Expected:
    """The turns of a graph and of the graphs in it, by op path, in no order; what it puts out; what failed in it.

    `replaced` are values that are others than what their nodes return.
    """

    def __init__(
        self,
        plan: Plan,
        inputs: Mapping[str, Any],
        turns: dict[str, Ended] | None = None,
        at: str = "",
        replaced: Mapping[str, Any] | None = None,
    ) -> None:
        self.plan, self.inputs, self.at, self.replaced = plan, inputs, at, replaced or {}
        self.turns: dict[str, Ended] = {} if turns is None else turns
        self._nodes = {node.name: node for node in plan.nodes}
        self._turns: Counter[str] = Counter()
        # By the nodes where loops begin: the values that were produced in their rounds so far.
        self._carried: dict[str, dict[str, Any]] = {}
        self.ended: dict[str, Ended] = {}
        # The beginnings of op paths behind which it is not known what had its turn, because something failed there.
        self.unclear: set[str] = set()
        self.limit = False
        try:
            for name in self._nodes:
                self._turn(name, self.ended, {})
        except LoopLimit:
            self.limit = True
        self.failed = self.limit or any(end.how == "failed" for end in self.ended.values())

    def values(self) -> dict[str, Any]:
        """Every value, as it was in the end."""
        return {name: value for end in self.ended.values() for name, value in end.values.items()}

    def outputs(self) -> dict[str, Any]:
        """The values that no node takes."""
        taken = {value for node in self.plan.nodes for value in self._takes(node)}
        return {name: value for name, value in self.values().items() if name not in taken}

    def _takes(self, node: Spec) -> list[str]:
        return [value for take in node.takes for value in take.values] + ([] if node.when is None else [node.when])

    def _makers(self, value: str) -> list[str]:
        return [node.name for node in self.plan.nodes if value in node.outputs]

    def _gates(self, name: str) -> set[str]:
        return {node.name for node in self.plan.nodes if name in node.targets}

    def _before(self, name: str, cut: Mapping[str, set[str]]) -> set[str]:
        """The nodes that one waits for. `cut` has the bodies of the loops under way, by the nodes where they begin."""
        node = self._nodes[name]
        makers = {maker for value in self._takes(node) for maker in self._makers(value)}
        return (makers | self._gates(name) | set(node.after)) - {name} - cut.get(name, set())

    def _behind(self, name: str, ended: Mapping[str, Ended], cut: Mapping[str, set[str]]) -> set[str]:
        """Everything that must have its turn before a node."""
        found: set[str] = set()
        more = [name]
        while more:
            new = self._before(more.pop(), cut) - found - set(ended)
            found |= new
            more += new
        return found

    def _turn(self, name: str, ended: dict[str, Ended], cut: dict[str, set[str]]) -> None:
        """Give a node its turn, after all that it waits for; if it is in a loop, give the loop all its rounds."""
        if name in ended:
            return
        body = {other for other in self._behind(name, ended, cut) if name in self._behind(other, ended, cut)}
        if name in self.plan.loops and name not in cut and self._makes_its_own(name):
            body.add(name)
        if body:
            self._loop(next(entry for entry in self.plan.loops if entry in body), body, ended, cut)
            return
        for other in self._before(name, cut):
            self._turn(other, ended, cut)
        op = f"{self.at}{name}:{self._turns[name]}"
        self._turns[name] += 1
        ended[name] = self.turns[op] = self._end(self._nodes[name], op, ended, cut)

    def _makes_its_own(self, name: str) -> bool:
        return bool(set(self._takes(self._nodes[name])) & set(self._nodes[name].outputs))

    def _loop(self, entry: str, body: set[str], ended: dict[str, Ended], cut: dict[str, set[str]]) -> None:
        for other in {before for name in body for before in self._before(name, cut)} - body:
            self._turn(other, ended, cut)
        gates = self._gates(entry) & body
        made_here = {value for name in body for value in self._nodes[name].outputs}
        carried = made_here & set(self._takes(self._nodes[entry]))
        self._carried[entry] = {}
        for _ in range(self.plan.max_rounds):
            last = dict(ended)
            for name in body:
                self._turn(name, last, {**cut, entry: body})
            produced = {value: made for name in body for value, made in last[name].values.items()}
            self._carried[entry] |= produced
            if not (any(entry in last[gate].chose for gate in gates) if gates else carried & set(produced)):
                ended.update({name: last[name] for name in body})
                return
        raise LoopLimit(entry)

    def _end(self, node: Spec, op: str, ended: Mapping[str, Ended], cut: dict[str, set[str]]) -> Ended:
        """How a turn of a node ends, all before it having ended."""
        round_edges = cut.get(node.name, set()) | {node.name}
        # A loop begins with what it has carried itself, another node with what the innermost loop around it has.
        around = node.name if node.name in cut else next((one for one in reversed(cut) if node.name in cut[one]), "")
        gates = self._gates(node.name) - round_edges
        if gates and not any(node.name in ended[gate].chose for gate in gates):
            lost = frozenset(gate for gate in gates if ended[gate].how in ("failed", "blocked"))
            return Ended("blocked", by=lost) if lost else Ended("skipped", by=frozenset(gates))
        arguments: dict[str, Any] = {}
        skipped: set[str] = set()
        blocked: set[str] = set()
        for take in (*node.takes, *([Take("when", (node.when,))] if node.when else [])):
            parts: list[Any] = []
            missing: set[str] = set()
            for value in take.values:
                makers = self._makers(value)
                if set(makers) & round_edges:
                    found, ends = {**self.inputs, **self._carried.get(around, {})}, list[Ended]()
                else:
                    ends = [ended[maker] for maker in makers]
                    found = {**({} if makers else self.inputs), **{n: v for end in ends for n, v in end.values.items()}}
                blocked |= {m for m, end in zip(makers, ends, strict=False) if end.how in ("failed", "blocked")}
                if value in found:
                    parts.append(found[value])
                else:
                    missing |= set(makers)
            if len(parts) == len(take.values):
                arguments[take.name] = parts if take.join else parts[0]
            elif take.default is not None:
                arguments[take.name] = take.default
            elif not take.optional:
                skipped |= missing
        if blocked or skipped:
            return Ended("blocked", by=frozenset(blocked)) if blocked else Ended("skipped", by=frozenset(skipped))
        if node.when and not is_even(arguments.pop("when")):
            return Ended("skipped", by=frozenset(["when"]))
        return self._act(node, op, arguments)

    def _act(self, node: Spec, op: str, arguments: dict[str, Any]) -> Ended:
        """What a node comes to once it has its arguments."""
        if node.kind == "gate":
            return Ended("ran", chose=tuple(choice_of(node, arguments)))
        if not node.over:
            result = self._call(node, op, arguments)
            if result is FAILED:
                return Ended("failed")
            results = result if len(node.outputs) > 1 else (result,)
            values = dict(zip(node.outputs, results, strict=False))
            return Ended("ran", {name: self.replaced.get(name, value) for name, value in values.items()})
        columns = [arguments[name] for name in node.over]
        if len({len(column) for column in columns}) > 1:
            return Ended("failed")
        results = []
        for i, row in enumerate(zip(*columns, strict=True)):
            item = f"{op}[{i}]"
            results.append(self._call(node, item, {**arguments, **dict(zip(node.over, row, strict=True))}))
            values = dict(zip(node.outputs, results[-1:], strict=True))
            self.turns[item] = Ended("failed") if results[-1] is FAILED else Ended("ran", values)
        if FAILED in results and node.on_error == "fail":
            # The others run as far as they have begun.
            self._forget(f"{op}[")
            return Ended("failed")
        kept = [None if result is FAILED else result for result in results]
        if node.on_error == "skip":
            kept = [result for result in results if result is not FAILED]
        return Ended("ran", {node.outputs[0]: kept})

    def _call(self, node: Spec, op: str, arguments: dict[str, Any]) -> Any:
        if node.inner is not None:
            inner = Expected(node.inner, arguments, self.turns, f"{op}/")
            self.unclear |= inner.unclear
            if inner.limit or (inner.failed and node.inner.on_failure == "stop"):
                self._forget(f"{op}/")
            return FAILED if inner.failed else inner.values().get(node.inner.output or "")
        if node.kind == "interrupt":
            return answer_to(node.name)
        return FAILED if fails(node, arguments) else value_of(node, arguments)

    def _forget(self, path: str) -> None:
        """Only so much is known of ops whose paths begin like this: they may have had these turns."""
        self.unclear.add(path)
        for op in [op for op in self.turns if op.startswith(path)]:
            self.turns[op] = replace(self.turns[op], how="perhaps")


FAILED: Any = object()


def fails(node: Spec, arguments: Mapping[str, Any]) -> bool:
    """Whether a node raises for its arguments: about every other time, where it can."""
    return node.fails and crc32(json.dumps([arguments, node.name], sort_keys=True).encode()) % 2 == 0
