"""The title of a divergence, and code that lets old runs keep their path."""

from __future__ import annotations

from textwrap import fill

from perdure.kernel.divergence.model import OpView

_VERSION = (
    'Or keep the old code for such runs: give the new one a version, @workflow(version="..."), and\n'
    "register both; or put the old code back. The run then goes on by itself."
)
# Longer source lines are not quoted.
_LONGEST = 80


def title_for(change: str, recorded: OpView, current: OpView | None) -> str:
    """What has changed, in one sentence."""
    return fill(_title(change, recorded, current), 98, break_long_words=False, break_on_hyphens=False)


def _title(change: str, recorded: OpView, current: OpView | None) -> str:
    old, new = _phrase(recorded), "" if current is None else _phrase(current)
    if recorded.kind == "cancel":
        return f"The run gave {recorded.path} up, and the code now waits for it."
    if change == "raised" and current is not None:
        return f"The code now raises {current.code}, at {current.source}, where the run went on with {old}."
    if change == "removed":
        if current is not None and current.name == "failed":
            return f"The code now fails before {old}: {current.code.partition('(')[2].removesuffix(')')}."
        if current is not None and current.path == recorded.path:
            return f"A call of {old} was removed, and the next one has taken its place as {recorded.path}."
        instead = "and ends" if current is not None and current.kind == "end" else f"and goes on with {new}"
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
        instead = "ends" if current is not None and current.kind == "end" else f"asks for {new}"
        return f"The code takes another branch: the run came to {old}, and now it {instead}."
    return f"{_upper(new)} was inserted before {old}."


def fix_for(change: str, recorded: OpView, current: OpView | None, condition: tuple[str, str] | None = None) -> str:
    """What to write so that runs from before the change keep their path. `condition` is the `if` that changed."""
    if current is not None and current.kind == "end" and current.name == "failed":
        return f"Mend the error and deploy again.\n{_VERSION}"
    name = f"{_slug(change, recorded, current)}"
    advice = _advice(change, recorded, current)
    code = _branch(name, condition) if condition is not None else _code(change, name, recorded, current)
    return f"{advice}\n\n{_indented(_with_import(code))}\n\n{_VERSION}"


def _with_import(code: str) -> str:
    """The code with a comment that says where to import `patched` from."""
    first, _, rest = code.partition("\n")
    return f"{first}  # from perdure import patched\n{rest}" if first.endswith(":") else code


def _branch(name: str, condition: tuple[str, str]) -> str:
    where, code = condition
    head, _, now = code.partition(" ")
    if head not in ("if", "elif", "while") or not now.endswith(":"):
        return f'condition = new_condition if patched("{name}") else old_condition  # {where}'
    return f'{head} ({now[:-1]}) if patched("{name}") else old_condition:  # {where}'


def _advice(change: str, recorded: OpView, current: OpView | None) -> str:
    if change == "renamed" and current is not None and _moved(recorded, current):
        return "Ops are named after the tasks that ask for them. Keep the name of the function, or guard the change:"
    if change == "renamed" and current is not None and "step_inline(" in current.code:
        return f'Keep the name "{recorded.name}" in step_inline(), or guard the change:'
    if change == "renamed" and recorded.kind == "step":
        return f'Keep the name in the journal with @step(name="{recorded.name}"), or guard the change:'
    if change == "inputs" and recorded.kind == "lock":
        return "Keep the key, or guard the change:"
    if change == "inputs" and current is not None and _ids(recorded, current):
        return "Keep the id, or guard the change:"
    if change == "inputs":
        return "Pass what the old code passed, or guard the change:"
    if change in ("fewer", "more"):
        return "Keep the old number, or the old tasks, for runs that began with it:"
    if change == "removed":
        return "Keep it for runs that have done it:"
    return "Guard the change, so that runs which began before it keep their path:"


def _code(change: str, name: str, recorded: OpView, current: OpView | None) -> str:
    old = _call(recorded)
    if recorded.kind == "cancel":
        return f'if not patched("{name}"):\n    ...  # give {recorded.path} up, as before'
    if change == "removed" and recorded.kind == "timer" and recorded.name != "sleep":
        # The journal does not distinguish a sleep from a timeout.
        return f'if not patched("{name}"):\n    ...  # the sleep or the timeout that was at {recorded.source}'
    if change == "removed":
        return f'if not patched("{name}"):\n    {old}{_was_at(recorded)}'
    new = "..." if current is None or current.kind == "end" else _statement(current)
    if change == "inserted" and current is not None:
        rest = "" if _alone(new, current) else f"\nelse:\n    ...  # the same without {current.name}"
        return f'if patched("{name}"):\n    {new}{rest}'
    if current is not None and _moved(recorded, current):
        here, there = _call(current), f"{old}  # in {_task(recorded)}"
        return f'if patched("{name}"):\n    {here}  # in {_task(current)}\nelse:\n    {there}{_was(recorded)}'
    if change == "more" and current is not None:
        return f'count = new_count if patched("{name}") else old_count  # of {current.name}, at {current.source}'
    if change == "fewer" and current is None:
        return _either(name, "...  # as it is now", f"...  # with {recorded.path} begun here", recorded)
    if change == "fewer":
        return f'count = new_count if patched("{name}") else old_count  # of {recorded.name}{_was(recorded)}'
    if change == "branch":
        return f'condition = new_condition if patched("{name}") else old_condition{_at(current)}'
    if change == "reordered" and current is not None:
        first, second = _call(current), old
        return (
            f'if patched("{name}"):\n    {first}\n    {second}\nelse:\n    {second}\n    {first}'
            if current.path != recorded.path
            else _either(name, new, old, recorded)
        )
    if current is not None and current.kind == recorded.kind and new != _call(current):
        # The current line, with what the run asked for in it.
        old = new.replace(current.name, recorded.name) if change == "renamed" else _with_other_arguments(new, current)
        if ids := _ids(recorded, current):
            old = new.replace(ids[1], ids[0]) if all(ids) else _call(recorded)
    return _either(name, new, old, recorded)


def _with_other_arguments(code: str, op: OpView) -> str:
    """The statement with `...` for the arguments of the call."""
    start = code.find(f"{op.name}(")
    if start < 0:
        return _call(op)
    start += len(op.name) + 1
    depth, end = 1, start
    while end < len(code) and depth:
        depth += {"(": 1, ")": -1}.get(code[end], 0)
        end += 1
    return f"{code[:start]}...{code[end - 1 :]}"


def _moved(recorded: OpView, current: OpView) -> bool:
    return current.name == recorded.name and _task(current) != _task(recorded)


def _ids(recorded: OpView, current: OpView) -> tuple[str, str] | None:
    """The ids of two children that differ only in their ids."""
    (old, _, was), (new, _, now) = recorded.inputs.partition("\n"), current.inputs.partition("\n")
    return (was, now) if "child" in recorded.kind and old == new and was != now else None


def _alone(code: str, op: OpView) -> bool:
    """Whether a statement asks only for this op."""
    _, found, call = code.rpartition("await ")
    return (not found or call.startswith((op.name, *_ASKING))) and not code.startswith("async with")


# Functions of perdure and asyncio that ask for an op.
_ASKING = ("sleep", "asyncio.sleep", "wait_signal", "approval", "child", "step_inline", "checkpoint", "perdure.")


def _either(name: str, new: str, old: str, recorded: OpView) -> str:
    return f'if patched("{name}"):\n    {new}\nelse:\n    {old}{"" if "#" in old else _was_at(recorded)}'


def _slug(change: str, recorded: OpView, current: OpView | None) -> str:
    old = _plain(recorded.name)
    new = old if current is None or current.kind == "end" else _plain(current.name)
    return {
        "inserted": f"add-{new}",
        "removed": f"keep-{old}" if recorded.kind == "cancel" else f"drop-{old}",
        "renamed": f"{old}-to-{new}" if old != new else f"move-{old}",
        "reordered": f"{new}-before-{old}" if old != new else f"{old}-order",
        "inputs": f"{old}-inputs",
        "type": f"{old}-to-{new}" if old != new else f"{old}-as-{_plain(current.kind if current else '')}",
        "fewer": f"fewer-{old}",
        "more": f"more-{new}",
        "branch": f"branch-{new}",
    }[change]


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_-." else "-" for c in name)[:40]


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


def _call(op: OpView) -> str:
    """Code that asks for an op, made from its name."""
    if op.kind in _CALLS:
        return _CALLS[op.kind]
    match op.kind:
        case "timer":
            return "await sleep(...)" if op.name == "sleep" else "await asyncio.sleep(...)"
        case "signal":
            return f'await wait_signal("{op.name}")'
        case "approval":
            return f'await approval("{op.name}", ...)'
        case "lock":
            return f'async with lock("{op.inputs}"): ...'
        case "state":
            return f'set_state("{op.name}", ...)'
        case "detached child":
            return f"await child({op.name}(...), detached=True)"
    return f"await {op.name}(...)"


def _statement(op: OpView) -> str:
    """The line that asks for an op if it is a whole statement, else code made from its name."""
    code = op.code
    whole = code and len(code) <= _LONGEST and not code.endswith((":", ",", "(", "[")) and _balanced(code)
    if code.startswith("async with") and code.endswith(":") and _balanced(code):
        return f"{code} ..."
    return code if whole and not code.startswith(("return ", "for ", "if ", "while ")) else _call(op)


def _balanced(code: str) -> bool:
    return all(code.count(a) == code.count(b) for a, b in ("()", "[]", "{}"))


def _task(op: OpView) -> str:
    scope = op.path.rpartition("/")[0]
    return f"the task {scope}" if scope else "the workflow itself"


def _path(op: OpView | None) -> str:
    return "it" if op is None else op.path


def _was_at(op: OpView) -> str:
    return f"  # as it was at {op.source}" if op.source else ""


def _was(op: OpView) -> str:
    return f", before at {op.source}" if op.source else ""


def _at(op: OpView | None) -> str:
    return f"  # {op.source}" if op is not None and op.source else ""


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.splitlines())
