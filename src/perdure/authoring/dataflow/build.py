"""Make a plan of nodes that name the values they take: wire, check, number. Finds every problem before it gives up.

Everything here is iterative, and linear in the number of nodes and edges: a graph may have 10,000 nodes in one chain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec

from perdure.authoring.dataflow.plan import (
    Absent,
    Argument,
    Carried,
    Collect,
    Computed,
    Const,
    Decision,
    FirstOf,
    Gate,
    Input,
    Lock,
    Node,
    OnFailure,
    Output,
    Path,
    Plan,
    Region,
    Slot,
    Source,
    outputs_in,
)
from perdure.errors import GraphInvalid, GraphProblem, InvalidName
from perdure.kernel.hints import did_you_mean
from perdure.kernel.ids import check_name
from perdure.kernel.values.items import Items, is_items
from perdure.kernel.values.types import name_of as _shown


class Wanted(msgspec.Struct, frozen=True):
    """A parameter, and the names of the values that it takes. If `joined`, it takes them all, as a list.

    `compute` makes one value from them: see `Computed`.
    """

    name: str
    values: tuple[str, ...]
    joined: bool = False
    required: bool = True
    keyword: bool = False
    type: Any = Any
    compute: Callable[..., bytes | Absent] | None = None


class Made(msgspec.Struct, frozen=True):
    """A value that a node makes. A `weak` name, that of a value in a child, gives way to the same name of another
    node."""

    name: str
    path: Path = ()
    type: Any = Any
    weak: bool = False


class Draft(msgspec.Struct, frozen=True):
    """A node before it is wired. In `node`, only the fields that do not depend on other nodes are set."""

    node: Node
    wants: tuple[Wanted, ...] = ()
    makes: tuple[Made, ...] = ()
    after: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    many: bool = False
    condition: tuple[Callable[..., Any], tuple[Wanted, ...]] | None = None
    # Problems of the node that do not depend on other nodes.
    problems: tuple[str, ...] = ()
    # What makes its value if it fails.
    otherwise: Wanted | None = None
    # The node that this one replaces if that node fails; it then makes that node's value.
    instead: str = ""
    # The key of its lock, the lock's time to live, and how long the node waits for it.
    lock: tuple[Wanted, float, float | None] | None = None

    @property
    def reads(self) -> Iterable[Wanted]:
        """All that it takes: for its call, its condition, its value after a failure, and the key of its lock."""
        found = self.wants if self.condition is None else (*self.wants, *self.condition[1])
        found = found if self.otherwise is None else (*found, self.otherwise)
        return found if self.lock is None else (*found, self.lock[0])


class Needed(msgspec.Struct, frozen=True):
    """An input of the program."""

    type: Any = Any
    required: bool = True


class Built(msgspec.Struct, frozen=True):
    """A plan with the inputs that it needs and the values that its nodes make, with their types."""

    plan: Plan
    inputs: dict[str, Needed]
    values: dict[str, Any]


class Options(msgspec.Struct, frozen=True):
    """The settings of a program besides its nodes."""

    where: str = ""
    loops: tuple[str, ...] = ()
    bound: Mapping[str, Any] = {}
    # The values of the result; None: those that no node takes. If `single`, the one value is the result itself.
    results: tuple[str, ...] | None = None
    single: bool = False
    # Values without which there is no result; a single value is always one of them.
    required: frozenset[str] = frozenset()
    # The types of the values in the result, where the result declares them.
    types: Mapping[str, Any] = {}
    # Further results, besides the values that no node takes.
    selected: tuple[str, ...] = ()
    # Results that are computed from values; they replace the named ones.
    made: tuple[Wanted, ...] | None = None
    on_failure: OnFailure = "stop"
    max_rounds: int = 1000
    patches: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    renamed: dict[str, str] = {}
    jobs: bool = False
    in_order: bool = False
    # The node that runs when the others have ended: see `Plan`. Only its parameters are wired.
    last: Draft | None = None
    # Whether a value of the first type can be given to a parameter of the second.
    fits: Callable[[Any, Any], bool] = lambda made, wanted: True


# A gate ends a branch by choosing an object, not a name, so that no node can have the same name.
RESERVED = "END"
END_IS = "to end the branch, write END without quotes: from perdure.graph import END"


def build(drafts: Sequence[Draft], options: Options) -> Built:
    """The plan of these nodes. Raises GraphInvalid with all problems."""
    named: dict[str, Draft] = {}
    problems: list[GraphProblem] = []
    for draft in drafts:
        name, first = draft.node.name, named.setdefault(draft.node.name, draft)
        if first is not draft:
            message = (
                f"two nodes are named {name!r}; the other one is at {first.node.where}. Give one another name, as in "
                f'node({name}, name="...")'
            )
            problems.append(GraphProblem(draft.node.where, message))
    return _Builder(list(named.values()), options, problems).build()


def with_items(nodes: Sequence[Node]) -> list[Node]:
    """The nodes; a generator that feeds a map, or a step that takes items, gives items."""
    wanted, refused = set[int](), set[int]()
    for node in nodes:
        for argument in node.arguments:
            made = {output.node for output in outputs_in(argument.source) if not output.path}
            if argument.name in (node.mapped.over if node.mapped is not None else ()) or is_items(argument.type):
                wanted |= made if isinstance(argument.source, Output) else set()
            # The orchestrator decodes the arguments of gates and conditions, and workflows in code get whole arguments.
            elif node.kind in ("gate", "wait") or (node.program is not None and not node.program.decides):
                refused |= made
        if node.when is not None:
            refused.update(output.node for one in node.when.arguments for output in outputs_in(one.source))
    found = list(nodes)
    for number in wanted - refused:
        node = found[number]
        if node.spec is not None and node.spec.generator and node.mapped is None:
            of = (get_args(node.spec.returns) or (Any,))[0]
            spec = dataclasses.replace(node.spec, items=True, returns=Items[of])  # type: ignore[valid-type]
            found[number] = msgspec.structs.replace(node, spec=spec, returns=spec.returns)
    return found


class _Builder:
    def __init__(self, drafts: Sequence[Draft], options: Options, problems: list[GraphProblem]) -> None:
        self._drafts, self._options, self._problems = drafts, options, problems
        self._numbers = {draft.node.name: number for number, draft in enumerate(drafts)}
        # By value name: the nodes that make it, with the source and the type.
        self._makers: dict[str, list[tuple[int, Made]]] = {}
        # By node: the other nodes that it waits for, because of data, gates or order.
        self._data: list[set[int]] = [set() for _ in drafts]
        self._gates: list[list[int]] = [[] for _ in drafts]
        self._after: list[list[int]] = [[] for _ in drafts]
        self._own: set[int] = set()
        # Regions as they are found: parent, entry, body.
        self._parents, self._entries, self._bodies = [-1], [-1], [frozenset(range(len(drafts)))]
        self._region = [0] * len(drafts)
        self._slots: list[Slot] = []
        self._slot_region: list[int] = []
        self._slot_numbers: dict[tuple[int, str], int] = {}
        self._inputs: dict[str, Needed] = {}
        self._used_bounds: set[str] = set()

    def build(self) -> Built:
        self._check_names()
        self._check_former_names()
        self._wire()
        self._find_loops()
        self._check_exclusive()
        nodes = with_items([self._node(number, draft) for number, draft in enumerate(self._drafts)])
        results = self._results()
        last = self._last()
        self._check_bounds()
        self._stop_at_problems()
        plan = self._plan(nodes, results)
        return Built(
            plan if last is None else _with_last(plan, last),
            self._inputs,
            {name: makers[0][1].type for name, makers in self._makers.items()},
        )

    def _problem(self, where: str, message: str) -> None:
        self._problems.append(GraphProblem(where, message))

    def _stop_at_problems(self) -> None:
        if self._problems:
            raise GraphInvalid(self._problems)

    def _where(self, number: int) -> str:
        return self._drafts[number].node.where

    def _name(self, number: int) -> str:
        return self._drafts[number].node.name

    # --- names ----------------------------------------------------------------------------------------------------

    def _check_names(self) -> None:
        for number, draft in enumerate(self._drafts):
            node = draft.node
            for problem in draft.problems:
                self._problem(node.where, problem)
            for name in dict.fromkeys((node.name, *(made.name for made in draft.makes))):
                try:
                    check_name(name, f"the name of {'a node' if name == node.name else 'a value'}")
                except InvalidName as error:
                    self._problem(node.where, str(error))
                if name == RESERVED:
                    self._problem(node.where, "END is what a gate chooses to end a branch; give the node another name")
            own = set[str]()
            for made in draft.makes:
                named = self._numbers.get(made.name, number)
                if made.weak and named != number:
                    continue
                if made.name in own:
                    self._problem(draft.node.where, f"{draft.node.name!r} makes the value {made.name!r} twice")
                elif named != number and made.name != draft.instead:
                    self._problem(
                        draft.node.where,
                        f"{draft.node.name!r} makes the value {made.name!r}, which is the name of another node, at "
                        f'{self._where(named)}; call the value otherwise with outputs="..."',
                    )
                else:
                    self._makers.setdefault(made.name, []).append((number, made))
                own.add(made.name)
        for name, makers in self._makers.items():
            strong = [one for one in makers if not one[1].weak]
            if strong and len(strong) < len(makers):
                self._makers[name] = strong

    def _check_former_names(self) -> None:
        """Check the names of nodes that open runs may have, and that the program no longer has."""
        options, nodes = self._options, self._numbers
        for former, now in options.renamed.items():
            shown = f"renamed={{{former!r}: {now!r}}}"
            if not isinstance(now, str) or now not in nodes:
                self._problem(options.where, f"{shown} names no node; {did_you_mean(str(now), nodes)}")
            if former in nodes:
                self._problem(
                    options.where,
                    f"{shown}, and there is a node {former!r} still; give the new one another name",
                )
        for former in options.retired:
            if not isinstance(former, str) or not former:
                self._problem(options.where, f"retired=[{former!r}] is no name of a node")
            elif former in nodes:
                self._problem(
                    options.where,
                    f"retired=[{former!r}], and there is a node {former!r} still; give the new one another name",
                )
            elif former in options.renamed:
                self._problem(options.where, f"{former!r} is both retired and renamed; leave out one")

    # --- wiring ---------------------------------------------------------------------------------------------------

    def _wire(self) -> None:
        nodes = self._numbers
        for number, draft in enumerate(self._drafts):
            where, name = draft.node.where, draft.node.name
            for wanted in draft.reads:
                fits = not wanted.joined or self._options.fits(list, wanted.type)
                if not fits:
                    shown = ", ".join(map(repr, wanted.values))
                    self._problem(
                        where,
                        f"{name!r} takes {wanted.name}: {_shown(wanted.type)}, and gets a list of {shown}; annotate it "
                        "list[...], or take one value",
                    )
                for value in wanted.values:
                    for maker, made in self._makers.get(value, ()):
                        if fits:
                            self._check_type(number, wanted, maker, made)
                        if maker != number:
                            self._data[number].add(maker)
                        elif not made.weak:
                            self._own.add(number)
            for before in draft.after:
                if before not in nodes:
                    hint = did_you_mean(before, nodes)
                    self._problem(where, f"{name!r} comes after {before!r}, which is no node of this graph; {hint}")
                elif nodes[before] == number:
                    self._problem(where, f"{name!r} comes after itself; leave it out of `after`")
                else:
                    self._after[number].append(nodes[before])
            for target in draft.targets:
                if target == name:
                    self._problem(where, f"the gate {name!r} has itself as a target; a gate chooses other nodes")
                elif target in nodes:
                    self._gates[nodes[target]].append(number)
                elif draft.node.gate is None or draft.node.gate.targets.get(target, -1) == -1:
                    hint = did_you_mean(target, (other for other in nodes if other != name))
                    hint = END_IS if target == RESERVED else hint
                    self._problem(where, f"the gate {name!r} has the target {target!r}, which is no node; {hint}")

    def _check_type(self, number: int, wanted: Wanted, maker: int, made: Made) -> None:
        given = list[made.type] if wanted.joined else made.type  # type: ignore[name-defined]
        if not self._options.fits(given, wanted.type):
            node = self._drafts[number].node
            joined = "a list with " if wanted.joined else ""
            self._problem(
                node.where,
                f"{node.name!r} takes {wanted.name}: {_shown(wanted.type)}, and gets {joined}{made.name!r}, which is "
                f"{_shown(made.type)}, of {self._name(maker)!r} at {self._where(maker)}; change one of the annotations",
            )

    def _before(self, number: int) -> set[int]:
        """The other nodes that a node comes after, for whatever reason."""
        return self._data[number].union(self._gates[number], self._after[number])

    # --- loops ----------------------------------------------------------------------------------------------------

    def _find_loops(self) -> None:
        options, nodes = self._options, self._numbers
        unknown = [name for name in options.loops if name not in nodes]
        for name in unknown:
            self._problem(options.where, f"loops=[{name!r}] names no node of this graph; {did_you_mean(name, nodes)}")
        if unknown:
            return  # otherwise the cycles of these loops would be reported as well
        declared = [nodes[name] for name in options.loops]
        places = {number: place for place, number in reversed(list(enumerate(declared)))}
        cyclic = set[int]()
        work = [0]
        while work:
            region = work.pop()
            entry, body = self._entries[region], self._bodies[region]
            edges = {n: [] if n == entry else self._before(n) & body if region else self._before(n) for n in body}
            for part in _components(edges):
                alone = len(part) == 1
                first = part[0]
                if alone and (first not in self._own or first == entry):
                    continue
                cyclic.update(part)
                entries = sorted((n for n in part if n in places), key=places.__getitem__)
                if not entries:
                    if alone and region:
                        continue  # it takes its own value from the last round
                    self._cycle(part, edges)
                    continue
                chosen = self._outermost(part, entries, edges)
                self._parents.append(region)
                self._entries.append(chosen)
                self._bodies.append(frozenset(part))
                for n in part:
                    self._region[n] = len(self._bodies) - 1
                work.append(len(self._bodies) - 1)
        begun = set(self._entries)
        for number in dict.fromkeys(declared):
            if number in cyclic and number not in begun:
                start = self._name(self._entries[self._loops_of(number)[0]])
                self._problem(
                    self._where(number),
                    f"loops=[{start!r}, {self._name(number)!r}], and nothing leads back to {self._name(number)!r} but "
                    f"through {start!r}, where the round begins; leave out one of them",
                )
            if number not in cyclic:
                self._problem(
                    self._where(number),
                    f"loops=[{self._name(number)!r}], and nothing leads back to {self._name(number)!r}: no gate behind "
                    "it has it as a target, and it takes no value of a node behind it",
                )

    def _outermost(self, part: Sequence[int], entries: list[int], edges: Mapping[int, Collection[int]]) -> int:
        """The entry of a loop that contains other loops: the one without which the others are still loops."""
        if len(entries) > 1:
            inside = set(part)
            for entry in entries:
                rest = {n: [] if n == entry else [p for p in edges[n] if p in inside] for n in part}
                loops = {n for found in _components(rest) if len(found) > 1 or found[0] in self._own for n in found}
                if all(other in loops for other in entries if other != entry):
                    return entry
        return entries[0]

    def _cycle(self, part: Sequence[int], edges: Mapping[int, Collection[int]]) -> None:
        inside = set(part)
        start = min(part)
        way, seen = [start], {start: 0}
        while True:
            before = min((p for p in edges[way[-1]] if p in inside), default=start)
            if before in seen:
                way = way[seen[before] :]
                break
            seen[before] = len(way)
            way.append(before)
        way = [*way[:1], *reversed(way[1:])]
        first = way.index(min(way))
        names = [self._name(n) for n in (*way[first:], *way[:first], way[first])]
        self._problem(
            self._where(way[first]),
            f"there is a cycle: {' → '.join(names)}. If it is a loop, name the node where a round begins, as in "
            f"loops=[{names[0]!r}]; if it is not, rename a value with outputs= or inputs=",
        )

    def _loops_of(self, number: int) -> list[int]:
        """The loops that a node is in, the innermost first."""
        found, region = [], self._region[number]
        while region:
            found.append(region)
            region = self._parents[region]
        return found

    def _back(self, number: int) -> frozenset[int]:
        """The nodes whose edges lead to this one only in the next round; -1 stands for the result."""
        if number < 0:
            return frozenset()
        region = self._region[number]
        if region and self._entries[region] == number:
            return self._bodies[region]
        return frozenset([number])

    def _waits_for(self, number: int) -> set[int]:
        """The nodes that must have had their turn in this round before this one has it."""
        return self._before(number) - self._back(number)

    # --- exclusive producers and gates ------------------------------------------------------------------------------

    def _check_exclusive(self) -> None:
        several = {name: makers for name, makers in self._makers.items() if len(makers) > 1}
        back: dict[int, list[int]] = {}
        for region in range(1, len(self._bodies)):
            entry, body = self._entries[region], self._bodies[region]
            back[entry] = [gate for gate in self._gates[entry] if gate in body]
        if not several and all(len(gates) < 2 for gates in back.values()):
            return
        compared = {number for makers in several.values() for number, _ in makers}
        compared.update(gate for gates in back.values() if len(gates) > 1 for gate in gates)
        guards = self._guards(compared)
        for name, makers in several.items():
            clash = _clash([number for number, _ in makers if not self._drafts[number].instead], guards)
            if clash is None:
                continue
            weak = any(made.weak for _, made in makers)
            if weak and not any(name in wanted.values for draft in self._drafts for wanted in draft.reads):
                del self._makers[name]  # each is found under the name of its node
                continue
            one, other = clash
            fix = "take it by the name of its node" if weak else 'rename one, as in outputs="..."'
            self._problem(
                self._where(other),
                f"two nodes make the value {name!r}: {self._name(one)!r} at {self._where(one)}, and "
                f"{self._name(other)!r}. No gate chooses between them, so both may run; {fix}",
            )
        for entry, gates in back.items():
            clash = _clash(gates, guards)
            if clash is not None:
                one, other = clash
                self._problem(
                    self._where(one),
                    f"two gates lead back to {self._name(entry)!r}: {self._name(one)!r}, and {self._name(other)!r} at "
                    f"{self._where(other)}. They may disagree; let one gate decide, or choose between them by a gate",
                )

    def _guards(self, compared: Iterable[int]) -> list[frozenset[tuple[int, int]]]:
        """By node: the choices, as pairs of gate and target, without which it does not run.

        Only gates that may choose between `compared` nodes count: those with two targets that lead to them.
        """
        leading, work = set(compared), list(compared)
        while work:
            new = self._before(work.pop()) - leading
            leading |= new
            work += new
        chooses = [
            not draft.many and sum(self._numbers.get(target, -1) in leading for target in set(draft.targets)) > 1
            for draft in self._drafts
        ]
        found: list[frozenset[tuple[int, int]]] = [frozenset()] * len(self._drafts)
        for number in self._in_order():
            back, parts = self._back(number), list[frozenset[tuple[int, int]]]()
            gates = [gate for gate in self._gates[number] if gate not in back]
            if gates:
                ways = [found[g] | {(g, number)} if chooses[g] else found[g] for g in gates]
                parts.append(ways[0].intersection(*ways[1:]))
            for wanted in self._drafts[number].reads:
                for value in wanted.values if wanted.required else ():
                    makers = [maker for maker, _ in self._makers.get(value, ())]
                    if makers and not back.intersection(makers) and value not in self._options.bound:
                        ways = [found[maker] for maker in makers]
                        parts.append(ways[0].intersection(*ways[1:]))
            parts = [part for part in parts if part]
            if parts:
                found[number] = parts[0].union(*parts[1:]) if len(parts) > 1 else parts[0]
        return found

    def _in_order(self) -> Iterable[int]:
        """The nodes in an order in which each comes after all that it waits for."""
        waits = [self._waits_for(number) for number in range(len(self._drafts))]
        left = [len(before) for before in waits]
        behind: list[list[int]] = [[] for _ in waits]
        for number, before in enumerate(waits):
            for one in before:
                behind[one].append(number)
        ready = [number for number, count in enumerate(left) if not count]
        while ready:
            number = ready.pop()
            yield number
            for other in behind[number]:
                left[other] -= 1
                if not left[other]:
                    ready.append(other)

    # --- sources --------------------------------------------------------------------------------------------------

    def _node(self, number: int, draft: Draft) -> Node:
        node, back = draft.node, self._back(number)
        condition = draft.condition
        gate = node.gate
        if gate is not None:
            numbers = {target: self._numbers.get(target) for target in draft.targets}
            gate = Gate(numbers, gate.choose)
        return msgspec.structs.replace(
            node,
            arguments=tuple(self._argument(number, wanted) for wanted in draft.wants),
            when=None
            if condition is None
            else Decision(condition[0], tuple(self._argument(number, wanted) for wanted in condition[1])),
            gate=gate,
            gates=tuple(one for one in dict.fromkeys(self._gates[number]) if one not in back),
            after=tuple(self._after[number]),
            instead=self._numbers.get(draft.instead),
            otherwise=None if draft.otherwise is None else self._argument(number, draft.otherwise).source,
            lock=None if draft.lock is None else Lock(self._argument(number, draft.lock[0]).source, *draft.lock[1:]),
        )

    def _argument(self, number: int, wanted: Wanted) -> Argument:
        parts = [self._source(number, wanted, value) for value in wanted.values]
        source: Source
        if wanted.compute is not None:
            source = Computed(wanted.compute, tuple(parts))
        else:
            source = Collect(tuple(parts)) if wanted.joined else parts[0]
        return Argument(wanted.name, source, wanted.required, wanted.keyword, wanted.type)

    def _source(self, number: int, wanted: Wanted, value: str) -> Source:
        back = self._back(number)
        found: list[Source] = []
        makers = self._makers.get(value, ())
        carried = [Output(maker, made.path) for maker, made in makers if maker in back]
        forward = [Output(maker, made.path) for maker, made in makers if maker not in back]
        bound = value in self._options.bound
        if carried:
            found.append(Carried(self._slot(number, value, tuple(carried))))
        found += forward
        if not forward:
            asked = any(self._drafts[maker].node.kind == "wait" for maker, _ in makers)
            if not asked:
                found.append(Input(value))
                self._need(number, value, wanted, bound)
            elif wanted.required and not bound:
                self._problem(
                    self._where(number),
                    f"{self._name(number)!r} takes {value!r}, which its loop makes, and has no value for it in the "
                    f"first round; give the parameter {wanted.name} a default, or bind({value}=...)",
                )
        if bound:
            found.append(Const(self._options.bound[value]))
            self._used_bounds.add(value)
        return found[0] if len(found) == 1 else FirstOf(tuple(found))

    def _need(self, number: int, value: str, wanted: Wanted, bound: bool) -> None:
        known = self._inputs.get(value)
        type = wanted.type if not wanted.joined else Any
        required = wanted.required and not bound
        if known is None:
            self._inputs[value] = Needed(type, required)
            return
        narrow = known.type
        if known.type is Any or (type is not Any and not self._options.fits(known.type, type)):
            narrow = type
            if not self._options.fits(type, known.type):
                self._problem(
                    self._where(number),
                    f"{self._name(number)!r} takes the input {value!r} as {_shown(type)}, and another node takes it as "
                    f"{_shown(known.type)}; change one of the annotations, or take another input with inputs=",
                )
        self._inputs[value] = Needed(narrow, required or known.required)

    def _slot(self, number: int, value: str, producers: tuple[Output, ...]) -> int:
        region = self._region[number]
        key = (region, value)
        if key not in self._slot_numbers:
            self._slot_numbers[key] = len(self._slots)
            self._slots.append(Slot(value, producers))
            self._slot_region.append(region)
        return self._slot_numbers[key]

    # --- results --------------------------------------------------------------------------------------------------

    def _results(self) -> list[tuple[str, Source]]:
        options = self._options
        if options.made is not None:
            return [(wanted.name, self._argument(-1, wanted).source) for wanted in options.made]
        taken = {value for draft in self._drafts for wanted in draft.reads for value in wanted.values}
        if options.results is None:
            parts = {made.name for draft in self._drafts for made in draft.makes if made.weak}
            whole = {
                draft.node.name
                for draft in self._drafts
                if any(made.weak and made.name in self._makers for made in draft.makes)
            }
            names = [name for name in self._makers if name not in taken and (name not in whole or name in parts)]
            names += [name for name in options.selected if name not in names]
        else:
            names = list(options.results)
        found: list[tuple[str, Source]] = []
        for name in names:
            makers = self._makers.get(name)
            if makers is None:
                hint = did_you_mean(name, self._makers)
                self._problem(options.where, f"the output {name!r} is not a value of this graph; {hint}")
                continue
            wanted = options.types.get(name, Any)
            for maker, made in makers:
                if not options.fits(made.type, wanted):
                    self._problem(
                        options.where,
                        f"the field {name!r} of the output is {_shown(wanted)}, and {self._name(maker)!r} at "
                        f"{self._where(maker)} gives {_shown(made.type)}; change one of the annotations",
                    )
            outputs = tuple(Output(maker, made.path) for maker, made in makers)
            found.append((name, outputs[0] if len(outputs) == 1 else FirstOf(outputs)))
        return found

    def _last(self) -> Node | None:
        draft = self._options.last
        if draft is None:
            return None
        return msgspec.structs.replace(draft.node, arguments=tuple(self._argument(-1, one) for one in draft.wants))

    def _check_bounds(self) -> None:
        for name in self._options.bound:
            if name not in self._used_bounds:
                known = {value for draft in self._drafts for wanted in draft.reads for value in wanted.values}
                self._problem(
                    self._options.where, f"bind({name}=...): no node takes {name!r}; {did_you_mean(name, known)}"
                )

    # --- the whole ------------------------------------------------------------------------------------------------

    def _plan(self, nodes: list[Node], results: list[tuple[str, Source]]) -> Plan:
        count = len(nodes)
        consumers: list[list[int]] = [[] for _ in range(count)]
        reads: list[list[int]] = [[] for _ in range(count)]
        kept = {part.node for _, source in results for part in outputs_in(source)}
        kept |= {part.node for node in nodes if node.otherwise is not None for part in outputs_in(node.otherwise)}
        kept |= {output.node for slot in self._slots for output in slot.producers}
        exports: list[list[tuple[int, int]]] = [[] for _ in self._bodies]
        bodies: list[list[tuple[int, int]]] = [[] for _ in self._bodies]
        loops = [self._loops_of(number) for number in range(count)]
        waits: list[int] = []
        for number in range(count):
            before = self._waits_for(number)
            waits.append(len(before))
            for one in sorted(before):
                left = [loop for loop in loops[one] if loop not in loops[number]]
                if left:
                    exports[left[-1]].append((one, number))
                    kept.add(one)
                else:
                    consumers[one].append(number)
                    if one in self._data[number] and loops[one] == loops[number]:
                        reads[number].append(one)
                    elif one in self._data[number]:
                        kept.add(one)  # every round of an inner loop takes it
            for loop in loops[number]:
                bodies[loop].append((number, len(before & self._bodies[loop])))
        regions = []
        slots_of: list[list[int]] = [[] for _ in self._bodies]
        for slot, of in enumerate(self._slot_region):
            slots_of[of].append(slot)
        inner: list[list[int]] = [[] for _ in self._bodies]
        within: list[list[int]] = [[] for _ in self._bodies]
        for loop in range(1, len(self._bodies)):
            inner[self._parents[loop]].append(loop)
            region = loop
            while region:
                region = self._parents[region]
                within[region].append(loop)
        for region, body in enumerate(self._bodies):
            entry = self._entries[region]
            slots = tuple(slots_of[region])
            taken = nodes[entry].arguments if region else ()
            feeds = {part.slot for argument in taken for part in _carried(argument)}
            regions.append(
                Region(
                    parent=self._parents[region],
                    entry=entry,
                    nodes=tuple(sorted(n for n in body if self._region[n] == region)),
                    inner=tuple(inner[region]),
                    body=tuple(bodies[region]),
                    within=tuple(within[region]),
                    gates=tuple(gate for gate in self._gates[entry] if gate in body) if region else (),
                    slots=slots,
                    feeds=tuple(slot for slot in slots if slot in feeds),
                    exports=tuple(exports[region]),
                )
            )
        options = self._options
        return Plan(
            nodes=tuple(nodes),
            regions=tuple(regions),
            slots=tuple(self._slots),
            region=tuple(self._region),
            consumers=tuple(map(tuple, consumers)),
            waits=tuple(waits),
            reads=tuple(map(tuple, reads)),
            kept=frozenset(kept),
            values={
                name: tuple(Output(maker, made.path) for maker, made in makers) for name, makers in self._makers.items()
            },
            results=tuple(results),
            single=options.single,
            required=frozenset(name for name, _ in results) if options.single else options.required,
            on_failure=options.on_failure,
            max_rounds=options.max_rounds,
            patches=options.patches,
            retired=options.retired,
            renamed=options.renamed,
            jobs=options.jobs,
            in_order=options.in_order,
        )


def _with_last(plan: Plan, node: Node) -> Plan:
    """A plan with a last node, which runs when all others have ended."""
    taken = {output.node for argument in node.arguments for output in outputs_in(argument.source)}
    return msgspec.structs.replace(
        plan,
        nodes=(*plan.nodes, node),
        region=(*plan.region, -1),
        consumers=(*plan.consumers, ()),
        waits=(*plan.waits, 1),
        reads=(*plan.reads, ()),
        kept=plan.kept | taken,
        last=len(plan.nodes),
    )


def _clash(numbers: Sequence[int], guards: Sequence[frozenset[tuple[int, int]]]) -> tuple[int, int] | None:
    """A pair of these nodes that may both run."""
    for i, other in enumerate(numbers):
        for one in numbers[:i]:
            choices = dict(guards[one])
            if not any(gate in choices and (gate, target) not in guards[one] for gate, target in guards[other]):
                return one, other
    return None


def _carried(argument: Argument) -> Iterable[Carried]:
    source = argument.source
    for part in source.parts if isinstance(source, Collect) else (source,):
        for one in part.parts if isinstance(part, FirstOf) else (part,):
            if isinstance(one, Carried):
                yield one


def _components(edges: Mapping[int, Collection[int]]) -> list[list[int]]:
    """The strongly connected components of a graph (Tarjan's algorithm, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []
    for root in sorted(edges):
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(edges[root]))]
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(edges[other])))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    part = []
                    while True:
                        other = stack.pop()
                        on_stack.discard(other)
                        part.append(other)
                        if other == node:
                            break
                    found.append(sorted(part))
    return found


def reached(drafts: Sequence[Draft], names: Iterable[str], *, behind: bool) -> set[str]:
    """The given nodes, with all nodes that they need (`behind=False`) or that they lead to (`behind=True`)."""
    makers: dict[str, list[str]] = {}
    for draft in drafts:
        for made in draft.makes:
            makers.setdefault(made.name, []).append(draft.node.name)
    edges: dict[str, set[str]] = {draft.node.name: set() for draft in drafts}
    for draft in drafts:
        name = draft.node.name
        before = {maker for wanted in draft.reads for value in wanted.values for maker in makers.get(value, ())}
        for one in (before | set(draft.after)) & edges.keys():
            edges[one if behind else name].add(name if behind else one)
        for target in draft.targets:
            if target in edges:
                edges[name if behind else target].add(target if behind else name)
    found, work = set(names), list(names)
    while work:
        for other in edges.get(work.pop(), ()):
            if other not in found:
                found.add(other)
                work.append(other)
    return found
