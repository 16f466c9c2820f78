"""Which steps of a lazy flow run: the steps that the output needs, and those that its forms choose.

`$if` and `$coalesce` evaluate their values one after the other. So the steps that only one of the values needs are
targets of a gate, which decides once the steps that it depends on have ended. A gate that only one choice of another
gate needs is a target of that gate. A step that is needed in any case is no target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec

from perdure.authoring.dataflow.build import Draft, Wanted
from perdure.authoring.dataflow.plan import Gate, Node
from perdure.authoring.flow.tree import Item, Problems, made
from perdure.authoring.flow.values import Given, Missing, Template
from perdure.errors import ExpressionFailed

# In how many rounds nodes that wait for each other are settled one after another.
MOST_ROUNDS = 50
# Why a node is needed: a choice of a gate; None: it is needed in any case.
Cause = tuple[str, int] | None
# Returns the template of an item, and the names of the values that it takes.
Compile = Callable[[Item, Problems], tuple[Template, Sequence[str]]]


class Need(msgspec.Struct):
    """What a value needs: other values by name, and forms, which choose among further values."""

    names: list[str] = []
    forms: list[Form] = []


class Form(msgspec.Struct):
    """A form: what it needs in order to decide, and what each choice needs. `chooses` makes the choice."""

    decides: Need
    choices: list[Need]
    chooses: Wanted
    where: str
    # The name of its gate.
    gate: str = ""


class Needs:
    """Finds what values need."""

    def __init__(self, file: str, compile: Compile) -> None:
        self._file, self._compile = file, compile
        self.forms: list[Form] = []
        # By owner: how many forms it has.
        self._counts: dict[str, int] = {}

    def of(self, item: Item, owner: str) -> Need:
        """The needs of an item; its gates are named after `owner`."""
        value = item.value
        if isinstance(value, dict):
            if "$if" in value and "then" in value:
                return self._of_if(item, owner)
            if "$coalesce" in value and isinstance(value["$coalesce"].value, list):
                return self._of_coalesce(item, owner)
            if not any(key.startswith("$") for key in value):
                return _merged(self.of(one, owner) for one in value.values())
        if isinstance(value, list):
            return _merged(self.of(one, owner) for one in value)
        _, names = self._compile(item, Problems(self._file))
        return Need([*names])

    def _of_if(self, item: Item, owner: str) -> Need:
        value = item.value
        decides = self.of(value["$if"], owner)
        otherwise = [self.of(value["else"], owner)] if "else" in value else [Need()]
        holds, names = self._compile(value["$if"], Problems(self._file))

        def choose(given: Given) -> bytes:
            try:
                return b"1" if holds.evaluate(given) in (b"null", b"false") else b"0"
            except (Missing, ExpressionFailed):
                return b"1"

        form = Form(decides, [self.of(value["then"], owner), *otherwise], _choice(names, choose), self._where(item))
        return Need(forms=[self._named(form, owner)])

    def _of_coalesce(self, item: Item, owner: str) -> Need:
        parts: list[Item] = item.value["$coalesce"].value
        needs = [self.of(part, owner) for part in parts]
        found = needs[0] if needs else Need()
        if len(parts) < 2:
            return found
        # Each value but the first is needed if all values before it are null.
        last: Form | None = None
        for number in range(len(parts) - 1, 0, -1):
            before, names = self._compile(made({"$coalesce": parts[:number]}, item.mark), Problems(self._file))
            form = Form(
                Need(),
                [_merged([needs[number], *([Need(forms=[last])] if last else [])]), Need()],
                _choice(names, _null(before)),
                self._where(item),
            )
            last = self._named(form, owner)
        assert last is not None
        return _merged([found, Need(forms=[last])])

    def _named(self, form: Form, owner: str) -> Form:
        many = self._counts[owner] = self._counts.get(owner, 0) + 1
        form.gate = f"{owner}.if{many if many > 1 else ''}"
        self.forms.append(form)
        return form

    def _where(self, item: Item) -> str:
        return f"{self._file}:{item.mark.line}:{item.mark.column}"


def _null(before: Template) -> Callable[[Given], bytes]:
    def choose(given: Given) -> bytes:
        try:
            return b"0" if before.evaluate(given) == b"null" else b"1"
        except (Missing, ExpressionFailed):
            return b"1"  # it fails in the same way where it is used

    return choose


def _choice(names: Sequence[str], choose: Callable[[Given], bytes]) -> Wanted:
    return Wanted("choice", tuple(names), compute=choose)


def _merged(needs: Iterable[Need]) -> Need:
    found = Need([], [])
    for one in needs:
        found.names += one.names
        found.forms += one.forms
    return found


# --- what is needed when --------------------------------------------------------------------------------------------


def causes_of(
    needs: Mapping[str, Need],
    forms: Iterable[Form],
    wanted: Need,
    always: Iterable[str],
    waits: Mapping[str, Iterable[str]],
) -> dict[str, set[Cause]]:
    """By step or gate: why it is needed. Nodes that nothing needs are left out.

    `needs` has the needs of steps by id, `wanted` those of the result, `always` the steps that are needed in any case,
    and `waits` what steps wait for.
    """
    gates = {form.gate: form for form in forms}
    found: dict[str, set[Cause]] = {}
    # Causes are followed in the order in which their gates were found: what an earlier gate covers, a later one skips.
    work: list[tuple[int, int, str, Cause]] = []
    ranks: dict[str, int] = {}

    def follow(names: Iterable[str], cause: Cause) -> None:
        rank = -1 if cause is None else ranks.setdefault(cause[0], len(ranks))
        for name in names:
            heappush(work, (rank, -len(work), name, cause))

    follow((*_all(wanted), *always), None)
    while work:
        _, _, name, cause = heappop(work)
        known = found.setdefault(name, set())
        if cause in known or None in known or (name not in needs and name not in gates):
            continue
        if cause is not None and (above := found.get(cause[0])) and above <= known:
            continue  # the node is needed whenever the gate is
        if cause is None:
            known.clear()
        known.add(cause)
        if name in needs:
            follow(_all(needs[name]), cause)
            continue
        follow(_all(gates[name].decides), cause)
        for number, choice in enumerate(gates[name].choices):
            follow(_all(choice), (name, number))
    found = {name: why for name, why in found.items() if why}
    _reduce(found, gates)
    rounds = 0
    while edges := _circular(found, waits, gates):
        # The gate takes a value that it may choose, so the value is needed whenever the gate decides. The first may
        # settle the others, so they are taken one by one; after many rounds, all at once.
        rounds += 1
        for gate, name in edges[: 1 if rounds < MOST_ROUNDS else None]:
            found[name] |= found[gate]
        _reduce(found, gates)
    return found


def _circular(
    found: Mapping[str, set[Cause]], waits: Mapping[str, Iterable[str]], gates: Mapping[str, Form]
) -> list[tuple[str, str]]:
    """The gates that wait, directly or not, for a node that they choose, each with that node."""
    behind: dict[str, set[str]] = {name: set() for name in found}
    for name, why in found.items():
        before = gates[name].chooses.values if name in gates else waits.get(name, ())
        for one in (*before, *(cause[0] for cause in why if cause is not None)):
            if one in behind and one != name:
                behind[one].add(name)
    left = dict.fromkeys(behind, 0)
    for names in behind.values():
        for name in names:
            left[name] += 1
    ready = [name for name, count in left.items() if not count]
    while ready:
        for name in behind[(done := ready.pop())]:
            left[name] -= 1
            if not left[name]:
                ready.append(name)
        del left[done]
    return [
        (cause[0], name)
        for name in left
        for cause in sorted(one for one in found[name] if one is not None)
        if cause[0] in left and not found[cause[0]] <= found[name]
    ]


def _all(need: Need) -> list[str]:
    return [*need.names, *(form.gate for form in need.forms)]


def _reduce(found: dict[str, set[Cause]], gates: Mapping[str, Form]) -> None:
    """Leave out choices that are made only if the node is needed anyway."""

    def implied(cause: Cause, by: set[Cause]) -> bool:
        """Whether a node with these causes is needed whenever this cause holds: no other way leads to this cause."""
        if None in by:
            return True
        work, seen = [cause], set[str]()
        while work:
            one = work.pop()
            if one is None:
                return False
            gate = one[0]
            if one in by or gate in seen or all((gate, number) in by for number in range(len(gates[gate].choices))):
                continue
            seen.add(gate)
            work += found[gate]
        return True

    changed = True
    while changed:
        changed = False
        for why in found.values():
            for cause in list(why):
                if cause is None:
                    continue
                gate = cause[0]
                if all((gate, number) in why for number in range(len(gates[gate].choices))):
                    # Every choice of the gate needs the node, so it is needed if the gate is.
                    rest = {one for one in why if one is None or one[0] != gate} | found[gate]
                elif len(why) > 1 and implied(cause, why - {cause}):
                    rest = why - {cause}
                else:
                    continue
                if rest != why:
                    why.clear()
                    why.update(rest)
                    changed = True
                    break


def gates_of(forms: Iterable[Form], found: Mapping[str, set[Cause]]) -> list[Draft]:
    """The gates that have targets."""
    targets: dict[Cause, list[str]] = {}
    for name, why in found.items():
        for cause in why:
            targets.setdefault(cause, []).append(name)
    chosen = {
        form.gate: [targets.get((form.gate, number), []) for number in range(2)] for form in forms if form.gate in found
    }
    # A gate without targets is left out, and is no target of others.
    while empty := [gate for gate, choices in chosen.items() if not any(choices)]:
        for gate in empty:
            del chosen[gate]
        for choices in chosen.values():
            choices[:] = [[name for name in names if name not in empty] for names in choices]
    return [_gate(form, chosen[form.gate]) for form in forms if form.gate in chosen]


def _gate(form: Form, chosen: Sequence[list[str]]) -> Draft:
    targets = tuple(dict.fromkeys(name for names in chosen for name in names))
    node = Node(form.gate, "gate", where=form.where, function=_same, gate=Gate({}, lambda choice: chosen[choice]))
    return Draft(node, (form.chooses,), targets=targets, many=True)


def _same(choice: Any) -> Any:
    return choice
