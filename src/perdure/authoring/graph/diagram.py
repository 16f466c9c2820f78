"""Draw a plan as text that other tools lay out: mermaid, dot, or JSON. Knows no store; statuses are given to it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from perdure.authoring.dataflow.plan import (
    Argument,
    Carried,
    Collect,
    Computed,
    FirstOf,
    Input,
    Node,
    Output,
    Plan,
    Source,
)
from perdure.errors import UsageError

Format: TypeAlias = Literal["mermaid", "dot", "json"]
Shape: TypeAlias = Literal["input", "step", "gate", "question", "map", "child"]
Link: TypeAlias = Literal["value", "order", "gate", "loop"]

# A graph of more nodes, those of nested graphs included, is drawn with its nested graphs folded.
MOST_NODES = 200


class Turns(NamedTuple):
    """How many turns a node has had, and the status of the last one."""

    number: int
    status: str


# By node path: an op path without the numbers of turns and items.
Statuses: TypeAlias = Mapping[str, Turns]
# Nodes with any other status have not begun.
NO_TURN = Turns(0, "")
BEGUN = ("succeeded", "running", "waiting", "failed", "unknown")


@dataclass(slots=True)
class _Box:
    id: str
    label: str
    shape: Shape
    status: str = ""
    # The path of its node: its op paths without the numbers of turns and items.
    path: str = ""
    # What is drawn inside it, if it is an open nested graph.
    inner: _Picture | None = None


@dataclass(slots=True)
class _Line:
    source: str
    target: str
    label: str
    link: Link
    taken: bool


@dataclass(slots=True)
class _Picture:
    boxes: list[_Box] = field(default_factory=list)
    lines: list[_Line] = field(default_factory=list)


def diagram(
    plan: Plan,
    *,
    format: Format = "mermaid",
    depth: int | None = None,
    statuses: Statuses | None = None,
    inputs: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The plan as text. `depth` levels of nested graphs are open: all of them, unless the whole is large.

    With `statuses`, by node path, nodes are coloured and the edges that were taken are marked. `inputs` maps names in
    the plan to the names that callers use.
    """
    if format not in _WRITERS:
        raise UsageError(f"format={format!r} is none of 'mermaid', 'dot' and 'json'")
    if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool) or depth < 0):
        raise UsageError(f"depth={depth!r} is not a number of levels, such as 1")
    if depth is None:
        depth = 0 if _is_large(plan) else -1
    picture = _picture(plan, depth, statuses or {})
    for box in picture.boxes:
        if box.shape == "input":
            box.label = inputs.get(box.label, box.label)
    return _WRITERS[format](picture)


def turns_of(statuses: Mapping[str, str]) -> Statuses:
    """The turns of nodes, from the statuses of their ops. All items of a map are one turn."""
    turns: dict[str, dict[tuple[int, ...], list[str]]] = {}
    for path, status in statuses.items():
        whole = re.sub(r"\[[\d-]+\]", "", path)
        numbers = tuple(int(number) for number in re.findall(r":(\d+)(?=/|$)", whole))
        turns.setdefault(re.sub(r":\d+(?=/|$)", "", whole), {}).setdefault(numbers, []).append(status)
    return {node: Turns(len(found), min(found[max(found)], key=_weight)) for node, found in turns.items()}


def _weight(status: str) -> int:
    """Which item decides the status of a map: one that runs, then one that failed."""
    order = ("running", "waiting", "unknown", "failed", "blocked", "succeeded", "skipped")
    return order.index(status)


def _nested(node: Node) -> Plan | None:
    return getattr(node.program, "plan", None)


def _is_large(plan: Plan) -> bool:
    count, more = 0, [plan]
    while more:
        nodes = more.pop().nodes
        count += len(nodes)
        if count > MOST_NODES:
            return True
        more += [inner for node in nodes if (inner := _nested(node)) is not None]
    return False


# --- what is drawn ----------------------------------------------------------------------------------------------------


def _picture(plan: Plan, depth: int, statuses: Statuses) -> _Picture:
    """Boxes and lines of a plan and of the plans in it, `depth` levels deep; -1 opens all."""
    whole = _Picture()
    more = [(plan, whole, "", "", depth)]
    while more:
        plan, picture, prefix, path, levels = more.pop()
        for number, node in enumerate(plan.nodes):
            status = statuses[f"{path}{node.name}"].status if f"{path}{node.name}" in statuses else ""
            box = _Box(f"{prefix}n{number}", node.name, _shape(node), status, f"{path}{node.name}")
            picture.boxes.append(box)
            inner = _nested(node)
            if inner is not None and levels:
                box.inner = _Picture()
                more.append((inner, box.inner, f"{box.id}_", f"{path}{node.name}/", levels - 1))
        here = [statuses.get(f"{path}{node.name}", NO_TURN) for node in plan.nodes]
        _add_lines(plan, picture, prefix, here)
    return whole


def _shape(node: Node) -> Shape:
    if node.mapped is not None:
        return "map"
    return {"step": "step", "gate": "gate", "wait": "question", "child": "child", "timer": "question"}[node.kind]  # type: ignore[return-value]


def _add_lines(plan: Plan, picture: _Picture, prefix: str, turns: Sequence[Turns]) -> None:
    """The edges of a plan. The inputs of a nested graph are the edges into its box, so they are not drawn again."""
    back = {(gate, region.entry) for region in plan.regions for gate in region.gates}
    inputs: dict[str, str] = {}
    lines: dict[tuple[str, str, Link, bool], list[str]] = defaultdict(list)

    def add(source: int | None, id: str, target: int, link: Link, label: str = "") -> None:
        begun = turns[target].status in BEGUN and (link != "loop" or turns[target].number > 1)
        gave = source is None or plan.nodes[source].kind == "gate" or turns[source].status == "succeeded"
        lines[id, f"{prefix}n{target}", link, begun and gave].append(label)

    for number, node in enumerate(plan.nodes):
        for argument in _arguments(node):
            for source, link in _sources(plan, argument.source):
                if isinstance(source, Output):
                    label = _label(plan.nodes[source.node], source)
                    add(source.node, f"{prefix}n{source.node}", number, link, label)
                elif not prefix:
                    add(None, inputs.setdefault(source.name, f"i{len(inputs)}"), number, link)
        for other in node.after:
            add(other, f"{prefix}n{other}", number, "order")
        for chosen in node.gate.targets.values() if node.gate is not None else ():
            if chosen is not None:
                add(number, f"{prefix}n{number}", chosen, "loop" if (number, chosen) in back else "gate")
    picture.boxes[:0] = [_Box(id, name, "input") for name, id in inputs.items()]
    for (source_id, target_id, link, taken), labels in lines.items():
        shown = dict.fromkeys(label for label in labels if label)
        picture.lines.append(_Line(source_id, target_id, ", ".join(shown), link, taken))


def _arguments(node: Node) -> Iterable[Argument]:
    yield from node.arguments
    if node.when is not None:
        yield from node.when.arguments


def _sources(plan: Plan, source: Source) -> Iterator[tuple[Input | Output, Link]]:
    """The inputs and nodes that a source takes values from."""
    more: list[tuple[Any, Link]] = [(source, "value")]
    while more:
        source, link = more.pop(0)
        if isinstance(source, Input | Output):
            yield source, link
        elif isinstance(source, Collect | FirstOf | Computed):
            more += [(part, link) for part in source.parts]
        elif isinstance(source, Carried):
            more += [(producer, "loop") for producer in plan.slots[source.slot].producers]


def _label(node: Node, source: Output) -> str:
    """The name of a value, if it differs from the name of its node."""
    name = node.outputs[0] if node.outputs else ""
    if len(node.outputs) > 1 and source.path and isinstance(source.path[0], int):
        name = node.outputs[source.path[0]]
    return "" if name == node.name else name


# --- as text ----------------------------------------------------------------------------------------------------------

COLOURS = {
    "succeeded": "#d3f9d8",
    "running": "#d0ebff",
    "waiting": "#fff3bf",
    "failed": "#ffc9c9",
    "skipped": "#f1f3f5",
    "blocked": "#ffe8cc",
    "unknown": "#e5dbff",
}
TAKEN = "#2b8a3e"

_MERMAID_SHAPES: dict[Shape, tuple[str, str]] = {
    "input": ("([", "])"),
    "step": ("[", "]"),
    "gate": ("{", "}"),
    "question": ("{{", "}}"),
    "map": ("[[", "]]"),
    "child": ("[/", "/]"),
}
_MERMAID_ARROWS: dict[Link, str] = {"value": "-->", "order": "-.->", "gate": "-->", "loop": "==>"}
_DOT_SHAPES: dict[Shape, str] = {
    "input": 'shape="oval"',
    "step": 'shape="box"',
    "gate": 'shape="diamond"',
    "question": 'shape="hexagon"',
    "map": 'shape="box3d"',
    "child": 'shape="folder"',
}
_DOT_STYLES: dict[Link, str] = {"value": "", "order": "dashed", "gate": "", "loop": "bold"}


def _mermaid(picture: _Picture) -> str:
    text, taken = ["flowchart TD"], list[int]()
    count = 0
    used: set[str] = set()
    for event, depth, item in _walk(picture):
        pad = "    " * (depth + 1)
        if event == "close":
            text.append(f"{pad}end")
        elif event == "open":
            text.append(f'{pad}subgraph {item.id}["{_escaped(item.label)}"]')
        elif isinstance(item, _Box):
            left, right = _MERMAID_SHAPES[item.shape]
            text.append(f'{pad}{item.id}{left}"{_escaped(item.label)}"{right}')
        else:
            label = f'|"{_escaped(item.label)}"|' if item.label else ""
            text.append(f"{pad}{item.source} {_MERMAID_ARROWS[item.link]}{label} {item.target}")
            if item.taken:
                taken.append(count)
            count += 1
        if isinstance(item, _Box) and item.status and event != "close":
            used.add(item.status)
            text.append(f"{pad}class {item.id} {item.status}")
    text += [f"    classDef {status} fill:{COLOURS[status]}" for status in COLOURS if status in used]
    if taken:
        text.append(f"    linkStyle {','.join(map(str, taken))} stroke:{TAKEN},stroke-width:2px")
    return "\n".join(text) + "\n"


def _dot(picture: _Picture) -> str:
    text = ["digraph {", "    compound=true"]
    for event, depth, item in _walk(picture):
        pad = "    " * (depth + 1)
        fill = f', style="filled", fillcolor="{COLOURS[item.status]}"' if isinstance(item, _Box) and item.status else ""
        if event == "close":
            text.append(f"{pad}}}")
        elif event == "open":
            # Edges must end at a node: a point inside stands for the cluster.
            text.append(f"{pad}subgraph cluster_{item.id} {{")
            text.append(f'{pad}    label="{_quoted(item.label)}"')
            text.append(f'{pad}    {item.id} [shape="point", label=""]')
        elif isinstance(item, _Box):
            text.append(f'{pad}{item.id} [label="{_quoted(item.label)}", {_DOT_SHAPES[item.shape]}{fill}]')
        else:
            options = [f'label="{_quoted(item.label)}"'] if item.label else []
            options += [f'style="{_DOT_STYLES[item.link]}"'] if _DOT_STYLES[item.link] else []
            options += [f'color="{TAKEN}"'] if item.taken else []
            more = f" [{', '.join(options)}]" if options else ""
            text.append(f"{pad}{item.source} -> {item.target}{more}")
    return "\n".join([*text, "}"]) + "\n"


def _json(picture: _Picture) -> str:
    nodes: list[dict[str, str | None]] = []
    edges: list[dict[str, str | bool]] = []
    within: list[str | None] = [None]
    for event, _, item in _walk(picture):
        if event == "close":
            within.pop()
        elif isinstance(item, _Box):
            fields = ("id", "label", "shape", "status", "path")
            nodes.append({**{name: getattr(item, name) for name in fields}, "within": within[-1]})
            if event == "open":
                within.append(item.id)
        else:
            edges.append({name: getattr(item, name) for name in ("source", "target", "label", "link", "taken")})
    return msgspec.json.encode({"nodes": nodes, "edges": edges}).decode()


_WRITERS: dict[str, Callable[[_Picture], str]] = {"mermaid": _mermaid, "dot": _dot, "json": _json}


def _walk(picture: _Picture) -> Iterator[tuple[Literal["open", "close", "item"], int, Any]]:
    """All boxes and lines in the order they are written: a box with something inside opens and closes around it."""
    more: list[tuple[Literal["open", "close", "item"], int, Any]] = [("item", 0, item) for item in _items(picture)]
    more.reverse()
    while more:
        event, depth, item = more.pop()
        if event == "item" and isinstance(item, _Box) and item.inner is not None:
            more.append(("close", depth, item))
            more += [("item", depth + 1, one) for one in reversed(_items(item.inner))]
            event = "open"
        yield event, depth, item


def _items(picture: _Picture) -> list[_Box | _Line]:
    return [*picture.boxes, *picture.lines]


def _escaped(label: str) -> str:
    return label.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")


def _quoted(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"')
