"""Explain why a recorded run does not fit a plan: a node was removed, or another one has to come before it now."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from perdure.authoring.dataflow.plan import Plan, outputs_of
from perdure.kernel.divergence.advice import ways
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.hints import did_you_mean


def explain(
    plan: Plan,
    op: str,
    recorded: OpView,
    had_turn: Callable[[int], bool],
    has_ended: Callable[[int], bool],
    began: Callable[[str], bool],
) -> Divergence | None:
    """Why the plan does not ask for a recorded op; None where the op itself, its kind or arguments, has changed.

    `had_turn` and `has_ended` tell how far a node has come by now, `began` whether the journal holds an op.
    """
    name, _, turn = op.partition(":")
    numbers = {node.name: number for number, node in enumerate(plan.nodes)}
    if name not in numbers:
        # A node of the plan that has not run may be this one under another name.
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
        return None
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
    return ways(op).replace('@workflow(version="...")', 'Graph(version="...")')
