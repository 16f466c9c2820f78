"""Graphs as data, made by hypothesis, and the graphs of `perdure.graph` that they describe."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from perdure.graph import END, Graph, interrupt, node, route
from tests.graph.reference import Plan, Spec, Take, choice_of, fails, is_even, value_of

INPUTS = {"x": 4, "y": 7}
# How many nodes a graph inside another one has at most.
INNER = 3


class Boom(Exception):
    """What a node raises that fails."""


def build(plan: Plan, name: str = "model", chunk: int = 500) -> Graph[..., Any]:
    """The graph that a plan describes; its maps have chunks of so many items."""
    output: Any = plan.output
    return Graph(
        [_node(spec, chunk, _lists(plan)) for spec in plan.nodes],
        name=name,
        loops=plan.loops,
        max_rounds=plan.max_rounds,
        on_failure=plan.on_failure,
        output=output,
    )


def _lists(plan: Plan) -> set[str]:
    """The values that are lists whenever they exist; what a loop carries may begin as another value."""
    lists = [bool(spec.over) or (spec.kind == "step" and spec.many) for spec in plan.nodes]
    others = {name for spec, is_list in zip(plan.nodes, lists, strict=True) if not is_list for name in spec.outputs}
    return set() if plan.loops else {name for spec in plan.nodes for name in spec.outputs} - others


def _node(spec: Spec, chunk: int, lists: set[str]) -> Any:
    options: dict[str, Any] = {}
    if spec.after:
        options["after"] = list(spec.after)
    if spec.when is not None:
        take = Take(spec.when, (spec.when,))
        options["when"] = _function("when", (take,), lambda given: is_even(given[take.name]))
    renames = {take.name: list(take.values) if take.join else take.values[0] for take in spec.takes if _renamed(take)}
    if renames:
        options["inputs"] = renames
    if spec.kind == "gate":
        targets = [END if target is None else target for target in spec.targets]
        return route(targets=targets, many=spec.many, **options)(_function(spec.name, spec.takes, _choice(spec)))
    if spec.kind == "interrupt":
        ask = _function(spec.name, spec.takes, lambda given: given)
        return interrupt(answer=int, **options)(ask)
    if spec.inner is not None:
        made = node(build(spec.inner, spec.name, chunk), name=spec.name, **options)
    else:
        outputs = spec.outputs[0] if len(spec.outputs) == 1 else spec.outputs or None
        made = node(_step(spec, lists), name=spec.name, outputs=outputs, **options)
    return made.map_over(*spec.over, limit=spec.limit, on_error=spec.on_error, chunk=chunk) if spec.over else made


def _renamed(take: Take) -> bool:
    return take.join or take.values != (take.name,)


def _choice(spec: Spec) -> Callable[[Mapping[str, Any]], Any]:
    def choose(given: Mapping[str, Any]) -> Any:
        chosen = [END if target is None else target for target in choice_of(spec, given)]
        return chosen if spec.many else chosen[0]

    return choose


def _step(spec: Spec, lists: set[str]) -> Callable[..., Any]:
    def act(given: Mapping[str, Any]) -> Any:
        if fails(spec, given):
            raise Boom(spec.name)
        return value_of(spec, given)

    made: Any = _function(spec.name, spec.takes, act, is_async=True, is_generator=spec.lazy)
    taken = [take for take in spec.takes if take.join or lists.issuperset(take.values)]
    made.__annotations__ |= {take.name: list[Any] for take in taken if take.name not in spec.over}
    return made  # type: ignore[no-any-return]


def _function(
    name: str,
    takes: tuple[Take, ...],
    act: Callable[[Mapping[str, Any]], Any],
    is_async: bool = False,
    is_generator: bool = False,
) -> Callable[..., Any]:
    """A function with these parameters, which gives its arguments by name to another."""
    empty = inspect.Parameter.empty
    parameters = [
        inspect.Parameter(take.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=empty) for take in takes
    ]
    parameters = [
        parameter if take.default is None else parameter.replace(default=take.default)
        for parameter, take in zip(parameters, takes, strict=True)
    ]
    parameters.sort(key=lambda parameter: parameter.default is not empty)
    signature = inspect.Signature(parameters)

    def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def plain(*args: Any, **kwargs: Any) -> Any:
        return act(given(args, kwargs))

    async def slow(*args: Any, **kwargs: Any) -> Any:
        return act(given(args, kwargs))

    def each(*args: Any, **kwargs: Any) -> Iterator[Any]:
        yield from act(given(args, kwargs))

    made: Any = each if is_generator else slow if is_async else plain
    made.__name__ = made.__qualname__ = name
    made.__signature__ = signature
    made.__annotations__ = {take.name: Any for take in takes}
    return made  # type: ignore[no-any-return]


# --- any plan -------------------------------------------------------------------------------------------------------


@st.composite
def plans(draw: st.DrawFn, *features: str, size: int = 7, letter: str = "n") -> Plan:
    """Graphs of up to `size` nodes with joins, order, defaults, conditions and gates.

    `features`: "blobs", "failures", "loops", "maps", "nested", "interrupts", "lazy". The names of nodes begin with
    `letter`: what a loop in a graph carries is an input of it, which a node of that name beside the graph would give.
    """
    count = draw(st.integers(1, size))
    names = [f"{letter}{i}" for i in range(count)]
    values: list[str] = []
    lists: set[str] = set()
    specs: list[Spec] = []
    kinds: list[Any] = ["step"] * 6 + ["gate"] * 3 + ["fork"]
    kinds += ["interrupt"] * ("interrupts" in features) + ["graph"] * (2 * ("nested" in features))
    for i, name in enumerate(names):
        kind: Any = draw(st.sampled_from(kinds)) if i < count - 1 else "step"
        after = tuple(draw(st.lists(st.sampled_from(names[:i]), unique=True, max_size=1))) if i else ()
        known = [*values, *INPUTS]
        single = [value for value in known if value not in lists]
        when = draw(st.sampled_from([None, None, None, *single])) if kind in ("step", "graph") else None
        if kind == "fork":
            specs += draw(_fork(name, single))
            values.append(f"{name}_one")
            continue
        spec = Spec(name, kind, after=after, when=when)
        if kind == "gate":
            later = draw(st.lists(st.sampled_from(names[i + 1 :]), unique=True, min_size=1, max_size=3))
            chosen = draw(st.lists(st.sampled_from(single), unique=True, max_size=2))
            takes = tuple(Take(value, (value,)) for value in chosen)
            many = draw(st.booleans())
            specs.append(replace(spec, takes=takes, targets=(*later, *([] if many else [None])), many=many))
            continue
        if kind == "graph":
            within = set(features) if size > INNER else set(features) - {"nested"}
            inner = _with_end(draw(plans(*sorted(within), size=INNER, letter=chr(ord(letter) + 1))))
            inputs = _inputs_of(inner).items()
            takes = tuple(Take(one, (draw(st.sampled_from(known)),), optional=optional) for one, optional in inputs)
            spec = replace(spec, takes=takes, inner=inner, outputs=(name,))
        else:
            takes = tuple(draw(_takes(known, number, kind)) for number in range(draw(st.integers(0, 2))))
            spec = replace(spec, takes=takes, outputs=(name,))
        if kind == "step":
            spec = replace(spec, fails="failures" in features and draw(st.integers(0, 3)) == 0)
            spec = replace(
                spec, outputs=draw(st.sampled_from([(name,), (name,), (f"v{name}",), (f"v{name}", f"w{name}"), ()]))
            )
            spec = replace(spec, large="blobs" in features and draw(st.booleans()))
        if "maps" in features and kind != "interrupt" and len(spec.outputs) == 1:
            if lists and spec.takes and draw(st.booleans()):
                first = Take(spec.takes[0].name, (draw(st.sampled_from(sorted(lists))),))
                on_error: Any = draw(st.sampled_from(["fail", "none", "skip"]))
                limit = draw(st.sampled_from([None, 1, 2]))
                takes = (first, *spec.takes[1:])
                spec = replace(spec, takes=takes, over=(first.name,), limit=limit, on_error=on_error)
                lists |= set(spec.outputs)
            elif kind == "step" and draw(st.booleans()):
                spec = replace(spec, many=True, lazy="lazy" in features and not spec.large and draw(st.booleans()))
                lists |= set(spec.outputs)
        specs.append(spec)
        values += spec.outputs
    loops: tuple[str, ...] = ()
    if "loops" in features:
        once, a = draw(_with_a_loop(specs, specs))
        twice, b = draw(_with_a_loop(once, specs))
        # One in the other, the outer one first, or apart.
        order = [spec.name for spec in specs]
        earlier, later = sorted((a, b), key=lambda entry: [order.index(name) for name in entry])
        both = _is_loop(twice, later, cut=earlier) and draw(st.booleans())
        specs, loops = (twice, (*earlier, *later)) if both else (once, tuple(a))
    on_failure: Any = draw(st.sampled_from(["stop", "continue"])) if "failures" in features else "stop"
    return Plan(tuple(draw(st.permutations(specs))), loops, on_failure=on_failure)


@st.composite
def _takes(draw: st.DrawFn, known: list[str], number: int, kind: str) -> Take:
    default = draw(st.sampled_from([None, None, -number - 1])) if kind == "step" else None
    if len(known) > 1 and draw(st.integers(0, 4)) == 0:
        joined = draw(st.lists(st.sampled_from(known), min_size=2, max_size=3, unique=True))
        return Take(f"p{number}", tuple(joined), True, default)
    value = draw(st.sampled_from(known))
    # Two parameters may take the same value, so they are not called like it.
    return Take(f"p{number}", (value,), False, default)


def _inputs_of(plan: Plan) -> dict[str, bool]:
    """The inputs of a graph, and whether it can do without them."""
    made = {value for spec in plan.nodes for value in spec.outputs}
    takes = [take for spec in plan.nodes for take in spec.takes]
    taken = [(value, take.default is not None) for take in takes for value in take.values]
    taken += [(spec.when, False) for spec in plan.nodes if spec.when]
    return {value: all(way for other, way in taken if other == value) for value, _ in taken if value not in made}


def _with_end(plan: Plan) -> Plan:
    """The same graph with a node that takes everything and is never skipped, and whose value is its output."""
    values = [value for spec in plan.nodes for value in spec.outputs]
    end = Spec(
        "end", takes=tuple(Take(value, (value,), default=-1) for value in dict.fromkeys(values)), outputs=("end",)
    )
    return replace(plan, nodes=(*plan.nodes, end), output="end")


@st.composite
def _fork(draw: st.DrawFn, name: str, known: list[str]) -> list[Spec]:
    """A gate and two producers of one value, of which it chooses one: its targets, or nodes behind them."""
    gate = Spec(name, "gate", takes=draw(st.sampled_from([(Take(value, (value,)),) for value in known])))
    made: list[Spec] = [replace(gate, targets=(f"{name}a", f"{name}b", *draw(st.sampled_from([(), (None,)]))))]
    for side in ("a", "b"):
        first = Spec(f"{name}{side}", outputs=(f"{name}{side}",))
        if draw(st.booleans()):
            behind = Spec(f"{name}{side}{side}", takes=(Take("p0", first.outputs),), outputs=(f"{name}_one",))
            made += [first, behind]
        else:
            made.append(replace(first, outputs=(f"{name}_one",)))
    return made


@st.composite
def _with_a_loop(draw: st.DrawFn, specs: list[Spec], before: list[Spec]) -> tuple[list[Spec], list[str]]:
    """Let a gate lead back to a node before it, or let a node take a value of one behind it; as it was `before`."""
    entries = [spec for spec in specs if spec.kind == "step" and not spec.over and "again" not in _names(spec)]
    for entry in draw(st.permutations(entries)):
        behind = descendants(before, entry.name)
        gates = [spec for spec in specs if spec.name in behind and spec.kind == "gate"]
        makers = [
            spec for spec in specs if spec.name in behind and spec.outputs and not spec.outputs[0].endswith("_one")
        ]
        if not gates and not makers:
            continue
        changed = {spec.name: spec for spec in specs}
        if gates:
            gate = draw(st.sampled_from(gates))
            changed[gate.name] = replace(gate, targets=(entry.name, *gate.targets))
        if makers and (not gates or draw(st.booleans())):
            value = draw(st.sampled_from(makers)).outputs[0]
            takes = (*changed[entry.name].takes, Take("again", (value,), default=0))
            changed[entry.name] = replace(changed[entry.name], takes=takes)
        return [changed[spec.name] for spec in specs], [entry.name]
    return specs, []


def _names(spec: Spec) -> set[str]:
    return {take.name for take in spec.takes}


def _is_loop(specs: list[Spec], entry: list[str], cut: list[str]) -> bool:
    """Whether something leads back to a node on a way that does not go through another one."""
    found, more = set[str](), [*entry]
    while more:
        before = _before(specs, more.pop()) - {*cut} - found
        more += before
        found |= before
    return bool(cut) and entry != cut and bool(found & {*entry})


def _before(specs: list[Spec], name: str) -> set[str]:
    spec = next(spec for spec in specs if spec.name == name)
    values = {value for take in spec.takes for value in take.values} | {spec.when}
    return {other.name for other in specs if set(other.outputs) & values or name in other.targets} | set(spec.after)


def descendants(specs: list[Spec], name: str) -> set[str]:
    """The nodes behind one, also through rounds of loops."""
    found, more = set[str](), [name]
    while more:
        now = more.pop()
        new = {spec.name for spec in specs if now in _before(specs, spec.name)} - found
        found |= new
        more += new
    return found
