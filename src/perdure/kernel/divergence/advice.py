"""The title of a divergence, and the ways to go on."""

from __future__ import annotations

from textwrap import fill

from perdure.kernel.divergence.model import OpView

# How a program in code says its version.
OF_WORKFLOWS = '@workflow(version="...")'
_WAYS = """\
Put the old code back, or register both: give the new one a version, {register}.
The run then continues by itself, and keeps everything.
Or continue with the new code:
  perdure resolve ID --before {op}
      keeps what was done before {op}; the rest is executed again
  perdure runs fork ID --at {op}
      the same in another run; this one stays as it is
  perdure resolve ID --fail REASON
      ends it; what was done stays done"""


def title_for(change: str, recorded: OpView, current: OpView | None) -> str:
    """What has changed, in one sentence."""
    return fill(_title(change, recorded, current), 98, break_long_words=False, break_on_hyphens=False)


def _title(change: str, recorded: OpView, current: OpView | None) -> str:
    old, new = _phrase(recorded), "" if current is None else _phrase(current)
    if recorded.kind == "cancel":
        return f"The run cancelled {recorded.path}, and the code now waits for it."
    if change == "raised" and current is not None:
        return f"The code now raises {current.code}, at {current.source}, where the run continued with {old}."
    if change == "removed":
        if current is not None and current.name == "failed":
            return f"The code now fails before {old}: {current.code.partition('(')[2].removesuffix(')')}."
        if current is not None and (current.kind, current.path) == (recorded.kind, recorded.path):
            return f"A call of {old} was removed, and the next one has taken its place as {recorded.path}."
        instead = "and ends" if current is not None and current.kind == "end" else f"and continues with {new}"
        return f"{_upper(old)} was removed: the code no longer asks for it" + (f" {instead}." if new else ".")
    if current is not None and current.name == recorded.name and _task(current) != _task(recorded):
        return f"{_upper(old)} was asked for in {_task(recorded)}, and now is in {_task(current)}."
    if change == "renamed":
        return f"{_upper(old)} was renamed, or replaced: the code asks for {new}."
    if change == "reordered" and current is not None and current.name == recorded.name:
        return f"Calls of {old} have changed places: another one comes first."
    if change == "reordered":
        return f"The order has changed: {old} came first, and now {new} does."
    if change == "inputs":
        if recorded.kind == "lock":
            return f"{_upper(old)} has another key."
        if current is not None and (ids := _ids(recorded, current)):
            return f"{_upper(old)} has another id: it was {ids[0] or 'none'!r}, and now is {ids[1] or 'none'!r}."
        return f"The inputs of {old} have changed."
    if change == "type":
        return f"{_upper(old)} is something else now: {new}."
    if change == "fewer":
        how = "fewer things happen side by side" if current is None else "it is asked for fewer times"
        return f"The code no longer asks for {old} ({recorded.path}) here: {how}."
    if change == "more":
        return f"The code asks for {new} more often, or in more tasks, than the run did: {_path(current)} is new."
    if change == "branch":
        instead = f"asks for {new}" if new else "waits for something else"
        instead = "ends" if current is not None and current.kind == "end" else instead
        return f"The code takes another branch: the run came to {old}, and now it {instead}."
    return f"{_upper(new)} was inserted before {old}."


def ways(op: str, register: str = OF_WORKFLOWS) -> str:
    """How a run can go on that does not fit at an op, what each way keeps, and how its code would `register` both."""
    return _WAYS.format(op=op, register=register)


def _ids(recorded: OpView, current: OpView) -> tuple[str, str] | None:
    """The ids of two children that differ only in their ids."""
    (old, _, was), (new, _, now) = recorded.inputs.partition("\n"), current.inputs.partition("\n")
    return (was, now) if "child" in recorded.kind and old == new and was != now else None


def _phrase(op: OpView) -> str:
    """`the step charge`."""
    if op.kind == "end":
        return op.code
    if op.kind == "timer":
        return "the sleep" if op.name == "sleep" else "the timer of asyncio"
    if op.kind == "lock":
        return f"the lock {op.inputs!r}"
    if op.kind == "state":
        return f"the state {op.name!r}"
    if op.kind in ("now", "uuid", "random"):
        return f"the call of {_CALLS[op.kind]}"
    if op.kind in ("checkpoint", "unlock"):
        return "the checkpoint" if op.kind == "checkpoint" else "the end of the lock"
    return f"the {op.kind} {op.name}"


_CALLS = {
    "now": "now()",
    "uuid": "uuid4()",
    "random": "random()",
    "checkpoint": "await checkpoint()",
    "unlock": "...  # the end of the lock",
}


def _task(op: OpView) -> str:
    scope = op.path.rpartition("/")[0]
    return f"the task {scope}" if scope else "the workflow itself"


def _path(op: OpView | None) -> str:
    return "it" if op is None else op.path


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
