"""Changes to the tree of a flow before it is read: a profile of its file, and the overrides of a run. Reads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from perdure.authoring.flow.definition import FINALLY, JOB_KEYS
from perdure.authoring.flow.tree import Item, Problems, elements, fields, made
from perdure.errors import UsageError
from perdure.kernel.hints import did_you_mean

# By step or job: an object is a merge patch (RFC 7396), a list is a JSON patch (RFC 6902).
Patch = Mapping[str, Any] | Sequence[Mapping[str, Any]]
Overrides = Mapping[str, Patch]


def with_profile(root: Item, name: str, problems: Problems) -> Item:
    """The tree with the variables and resources of a profile. A flow without profiles stays as it is."""
    profiles = fields(fields(root).get("profiles"))
    if not name or not profiles:
        return root
    if name not in profiles:
        mark = root.keys["profiles"]
        problems.add(mark, "F013", f"there is no profile {name!r}; {did_you_mean(name, profiles)}")
        return root
    profile = fields(profiles[name])
    changed = dict(root.value)
    if "variables" in profile:
        changed["variables"] = _laid_over(root.value.get("variables"), profile["variables"])
    if "resources" in profile:
        before = fields(root.value.get("resources"))
        over = {key: _laid_over(before.get(key), one) for key, one in fields(profile["resources"]).items()}
        changed["resources"] = _laid_over(root.value.get("resources"), Item(over, profile["resources"].mark))
    return _with_keys(Item(changed, root.mark), root)


def _laid_over(before: Item | None, over: Item) -> Item:
    """An object with some entries replaced by those of another one."""
    if before is None or not isinstance(before.value, dict) or not isinstance(over.value, dict):
        return over
    return _with_keys(Item({**before.value, **over.value}, before.mark), before)


def _with_keys(item: Item, before: Item) -> Item:
    """A copy of an object with entries and the places of their keys."""
    item.keys = {key: before.keys.get(key, one.mark) for key, one in item.value.items()}
    return item


def overridden(root: Item, overrides: Iterable[Overrides], problems: Problems) -> Item:
    """The tree with overrides of steps and jobs, one after the other."""
    for one in overrides:
        for target, patch in one.items():
            root = _overridden(root, target, patch, problems)
    return root


def _overridden(root: Item, target: str, patch: Patch, problems: Problems) -> Item:
    for way in _places(root):
        item = _at(root, way)
        if _name(root, way) != target or not isinstance(item.value, dict):
            continue
        plain = item.plain()
        try:
            changed = _patched(plain, patch)
            if not isinstance(changed, dict) or changed.get("id") != plain.get("id"):
                raise UsageError("it must leave an object with the same id")
        except UsageError as error:
            problems.add(item.mark, "F002", f"the override of {target} cannot be applied: {error}")
            return root
        return _replaced(root, way, _remade(item, changed))
    known = [name for way in _places(root) if (name := _name(root, way))]
    hint = did_you_mean(target, known)
    problems.add(root.mark, "F012", f"the override of {target} changes nothing: there is no such step or job; {hint}")
    return root


def target_of(root: Mapping[str, Any], path: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The step or job at the beginning of a path such as `book.with.url`, and the rest of the path."""
    jobs = {job.get("id") for job in root.get("jobs", ()) if isinstance(job, dict)}
    if path[0] in jobs and len(path) > 1 and (path[1] not in JOB_KEYS or path[1] == "steps"):
        return ".".join(path[:2]), path[2:]
    return path[0], path[1:]


def _places(root: Item) -> Iterable[tuple[str | int, ...]]:
    """The paths of all steps and jobs in the tree."""
    value = fields(root)
    for key in ("steps", FINALLY, "jobs"):
        for number, item in enumerate(elements(value.get(key))):
            yield key, number
            if key == "jobs":
                yield from ((key, number, "steps", inner) for inner in range(len(elements(fields(item).get("steps")))))


def _at(root: Item, way: Sequence[str | int]) -> Item:
    item = root
    for key in way:
        item = item.value[key]
    return item


def _name(root: Item, way: Sequence[str | int]) -> str:
    """The name of a step or a job in overrides; a step of a job is `job.step`."""
    names = [fields(_at(root, way[:end])).get("id") for end in (2, 4) if end <= len(way)]
    return ".".join(str(name.value) for name in names if name is not None)


def _replaced(item: Item, way: Sequence[str | int], by: Item) -> Item:
    """The tree with another item at a path."""
    if not way:
        return by
    first, rest = way[0], way[1:]
    if isinstance(item.value, list):
        return Item([_replaced(one, rest, by) if n == first else one for n, one in enumerate(item.value)], item.mark)
    changed = {key: _replaced(one, rest, by) if key == first else one for key, one in item.value.items()}
    return _with_keys(Item(changed, item.mark), item)


def _remade(item: Item, plain: Any) -> Item:
    """The tree of a changed value: unchanged parts keep their places, changed parts get the place of the change."""
    if item.plain() == plain and isinstance(plain, type(item.value)):
        return item
    if not isinstance(item.value, dict) or not isinstance(plain, dict):
        return made(plain, item.mark)
    value = {
        key: _remade(item.value[key], one) if key in item.value else made(one, item.mark) for key, one in plain.items()
    }
    return _with_keys(Item(value, item.mark), item)


# --- patches --------------------------------------------------------------------------------------------------------


def _patched(value: Any, patch: Any) -> Any:
    # The keys of a patch as Stepflow writes it.
    if isinstance(patch, dict) and patch.keys() == {"$type", "value"}:
        kind, patch = patch["$type"], patch["value"]
        if kind not in ("merge_patch", "json_patch") or isinstance(patch, list) != (kind == "json_patch"):
            raise UsageError("`$type` is merge_patch, of an object, or json_patch, of a list")
    if isinstance(patch, list):
        changed = deepcopy(value)
        for operation in patch:
            changed = _applied(changed, operation)
        return changed
    if not isinstance(patch, dict):
        raise UsageError(f"it is an object, a merge patch, or a list, a JSON patch; not {patch!r:.80}")
    return _merged(value, patch)


def _merged(value: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    found = dict(value) if isinstance(value, dict) else {}
    for key, one in patch.items():
        if one is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), one)
    return found


def _applied(value: Any, operation: Any) -> Any:
    """RFC 6902: one operation."""
    if not isinstance(operation, dict) or not isinstance(operation.get("op"), str):
        raise UsageError(f"an operation is an object with `op` and `path`, not {operation!r:.80}")
    op, path = operation["op"], _pointer(operation.get("path"))
    if op in ("add", "replace", "test") and "value" not in operation:
        raise UsageError(f"{op} needs a value")
    if op == "test":
        if _get(value, path) != operation["value"]:
            raise UsageError(f"the test of {operation['path']} does not hold")
        return value
    if op in ("move", "copy"):
        source = _pointer(operation.get("from"))
        found = deepcopy(_get(value, source))
        return _add(value if op == "copy" else _remove(value, source), path, found)
    if op == "add":
        return _add(value, path, operation["value"])
    if op == "remove":
        return _remove(value, path)
    if op == "replace":
        _get(value, path)
        return operation["value"] if not path else _add(_remove(value, path), path, operation["value"])
    raise UsageError(f"there is no operation {op!r}; {did_you_mean(op, _OPERATIONS)}")


_OPERATIONS = ("add", "remove", "replace", "move", "copy", "test")


def _pointer(text: Any) -> list[str]:
    if text == "":
        return []
    if not isinstance(text, str) or not text.startswith("/"):
        raise UsageError(f"a path begins with /, as in /with/url, and not {text!r:.80}")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _get(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        value = value[_key(value, key)]
    return value


def _add(value: Any, path: Sequence[str], what: Any) -> Any:
    if not path:
        return what
    holder = _get(value, path[:-1])
    if isinstance(holder, list):
        holder.insert(len(holder) if path[-1] == "-" else _key(holder, path[-1], end=True), what)
    elif isinstance(holder, dict):
        holder[path[-1]] = what
    else:
        raise UsageError(f"/{'/'.join(path)} leads into {holder!r:.40}")
    return value


def _remove(value: Any, path: Sequence[str]) -> Any:
    if not path:
        raise UsageError("a step is not removed; let it be skipped: `when: ${{ false }}`")
    holder = _get(value, path[:-1])
    del holder[_key(holder, path[-1])]
    return value


def _key(value: Any, key: str, *, end: bool = False) -> Any:
    """A key of an object, or a position in a list. Raises UsageError if it does not exist."""
    if isinstance(value, list) and key.isdecimal() and int(key) < len(value) + end:
        return int(key)
    if isinstance(value, dict) and key in value:
        return key
    known = f"; {did_you_mean(key, value)}" if isinstance(value, dict) else ""
    raise UsageError(f"there is no {key!r} in {value!r:.80}{known}")
