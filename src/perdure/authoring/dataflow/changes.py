"""Explain why a recorded run does not fit a plan: what has become of the node of an op.

It was removed, another node has to come before it now, or it takes its values from other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from perdure.authoring.dataflow.manifest import Manifest, StoredArgument, StoredNode, StoredSource, read_structure
from perdure.authoring.dataflow.plan import Plan, outputs_of
from perdure.kernel.divergence.advice import ways
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.hints import did_you_mean

# How a graph says its version.
OF_GRAPHS = 'Graph(version="...")'


def explain(
    plan: Plan,
    op: str,
    recorded: OpView,
    had_turn: Callable[[int], bool],
    has_ended: Callable[[int], bool],
    began: Callable[[str], bool],
    why_not: Callable[[int, str], str],
) -> Divergence | None:
    """Why the plan does not ask for a recorded op; None where the op itself, its kind or arguments, has changed.

    `had_turn` and `has_ended` say how far a node has come, `began` whether the journal has an op, `why_not`
    for what reason a node did not run in a turn; empty if it ran.
    """
    name, _, turn = op.partition(":")
    numbers = {node.name: number for number, node in enumerate(plan.nodes)}
    if name not in numbers:
        # A node of the plan that has not run may be this node under another name.
        fresh = [node.name for node in plan.nodes if not began(f"{node.name}:{turn}")]
        near = did_you_mean(name, fresh) if fresh else ""
        title = f"The node {name!r} has run, and the graph no longer has it."
        renamed = f" ({near})" if near else ""
        fix = (
            f"If it has another name now{renamed}: Graph(renamed={{{name!r}: ...}}).\n"
            f"If it is gone for good: Graph(retired=[{name!r}]), and its record is passed over.\n{_ways(recorded.path)}"
        )
        return Divergence("removed", recorded.path, title, recorded, None, fix)
    number = numbers[name]
    node = plan.nodes[number]
    if had_turn(number):
        reason = why_not(number, turn)
        title = f"The node {name!r} has run, and now is skipped: {reason}."
        return Divergence("branch", recorded.path, title, recorded, None, _ways(recorded.path)) if reason else None
    before = dict.fromkeys([*(output.node for output in outputs_of(node)), *node.gates, *node.after])
    waits = [one for one in before if one != number and not has_ended(one)]
    new = [one for one in waits if not began(f"{plan.nodes[one].name}:{turn}")] or waits
    if not new:
        return None
    other = plan.nodes[new[0]]
    title = f"The node {name!r} has run, and now comes after {other.name!r}, which had not ended then."
    path = f"{recorded.path.rpartition('/')[0]}/{other.name}:{turn}".lstrip("/")
    current = OpView("gate" if other.kind == "gate" else "node", path, other.name, source=other.where)
    return Divergence("inserted", recorded.path, title, replace(recorded, code=""), current, _ways(recorded.path))


def _ways(op: str) -> str:
    return ways(op, OF_GRAPHS)


# --- where values come from -----------------------------------------------------------------------------------------


def rewired(before: Manifest, now: Manifest, op: str, divergence: Divergence, seq: int, id: str) -> Divergence | None:
    """The divergence, if its node takes a value from another source than when it ran; None if it does not.

    `op` is its path in the graph. Both structures are searched: nested graphs are parts of them.
    """
    sides = _node_at(before, op), _node_at(now, op)
    if sides[0] is None or sides[1] is None:
        return None
    (old, was_in), (new, is_in) = sides[0], sides[1]
    changed = [*_changed(old, new)]
    if not changed:
        return None
    was, takes = (tuple(one[side] for one in changed if one[side] is not None) for side in (0, 1))
    title = " ".join(_sentence(new.name, *one) for one in changed)
    # A node that it comes after now may be new; if that node is old, only the source of a value has changed.
    other = divergence.current if divergence.change == "inserted" else None
    inserted = other is not None and _node_at(before, f"{op.rpartition('/')[0]}/{other.name}".lstrip("/")) is None
    if inserted:
        title = f"{divergence.title}\n{title}"
    path = divergence.op
    recorded = replace(
        divergence.recorded,
        code="",
        takes=_shown(was, was_in),
        source=f"seq {seq}; {old.where} of version {before.version}",
    )
    current = OpView(divergence.recorded.kind, path, new.name, source=new.where, takes=_shown(takes, is_in))
    rerun = f"run {new.name} again with the new"
    fix = (
        f"Either  {'run it with the old code':<{len(rerun)}}  Graph(..., version=...) for the new one, and keep both\n"
        f"or      {rerun}  perdure runs travel {id} {path}"
    )
    return Divergence("inserted" if inserted else "rewired", path, title, recorded, current, fix)


def sources(before: bytes, now: bytes, op: str) -> tuple[str, str] | None:
    """The sources of an op's values in two stored structures, with their lines, if they differ."""
    sides = [_node_at(read_structure(data), op) for data in (before, now)]
    if sides[0] is None or sides[1] is None:
        return None
    (old, was_in), (new, is_in) = sides[0], sides[1]
    changed = [*_changed(old, new)]
    was, takes = _shown((one for one, _ in changed), was_in), _shown((one for _, one in changed), is_in)
    return (f"{was or 'nothing'} ({old.where})", f"{takes or 'nothing'} ({new.where})") if changed else None


def _node_at(manifest: Manifest | None, op: str) -> tuple[StoredNode, Manifest] | None:
    """The node of an op, and the structure that has it."""
    first, _, rest = op.partition("/")
    nodes = () if manifest is None else manifest.nodes
    found = next((node for node in nodes if node.name == first.partition(":")[0]), None)
    if manifest is None or found is None:
        return None
    return _node_at(found.program, rest) if rest else (found, manifest)


def _changed(old: StoredNode, new: StoredNode) -> Iterable[tuple[StoredArgument | None, StoredArgument | None]]:
    """The arguments whose sources differ; None for an argument that one side does not take."""
    before, now = ({one.name: one for one in node.takes} for node in (old, new))
    for name in dict.fromkeys((*before, *now)):
        was, takes = before.get(name), now.get(name)
        if was is None or takes is None or was.source != takes.source:
            yield was, takes


def _sentence(node: str, was: StoredArgument | None, takes: StoredArgument | None) -> str:
    name = (takes or was or StoredArgument("", StoredSource())).name
    then = "it did not take it" if was is None else f"it took it from {_origin(was.source, name)}"
    if takes is None:
        return f"{node!r} takes no {name!r} now; when it ran, {then}."
    return f"{node!r} takes {name!r} from {_origin(takes.source, name)} now; when it ran, {then}."


def _origin(source: StoredSource, name: str) -> str:
    """Where a value comes from, in words."""
    if source.node:
        return repr(source.node)
    if source.every or source.first:
        return f" {'and' if source.every else 'or'} ".join(_origin(one, name) for one in source.every or source.first)
    if source.carried is not None:
        return "the round before"
    if source.fixed:
        return "a fixed value"
    return "the input" if source.input == name else f"the input {source.input!r}"


def _shown(takes: Iterable[StoredArgument | None], manifest: Manifest) -> str:
    """Arguments with their sources, as in `order = validate.order`."""
    return ", ".join(f"{one.name} = {_expression(one.source, manifest)}" for one in takes if one is not None)


def _expression(source: StoredSource, manifest: Manifest) -> str:
    if source.every or source.first:
        parts = [_expression(one, manifest) for one in source.every or source.first]
        return f"[{', '.join(parts)}]" if source.every else " or ".join(parts)
    if source.node:
        outputs = next(node.outputs for node in manifest.nodes if node.name == source.node)
        path = [outputs[key] if isinstance(key, int) and key < len(outputs) else key for key in source.path]
        if not path and outputs and outputs[0] != source.node:
            path = [outputs[0]]
        return ".".join(map(str, (source.node, *path)))
    if source.carried is not None:
        return f"{manifest.slots[source.carried][0]} of the round before"
    return "a fixed value" if source.fixed else f"input.{source.input}"
