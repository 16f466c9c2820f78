"""YAML with line numbers, limited to plain data: no tags, aliases or duplicate keys; small and shallow."""

from __future__ import annotations

from typing import Any

from perdure.settings.problems import InvalidSettings
from perdure.settings.tree import MOST_DEPTH, Node


def read_yaml(text: str, file: str) -> Node:
    """Parse a YAML document; raises InvalidSettings with the line."""
    try:
        import yaml
    except ImportError as error:
        raise InvalidSettings(
            file, "YAML needs a library: pip install 'perdure[yaml]'; or put the same under [tool.perdure] in TOML"
        ) from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check(yaml, yaml.parse(text, Loader=loader), file)
        root = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}, line {mark.line + 1}" if mark is not None else file
        raise InvalidSettings(where, f"this is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise InvalidSettings(file, f"this is not YAML: {' '.join(str(error).split())}") from error
    if root is None:
        return Node({}, f"{file}, line 1")
    return _node(yaml, root, file, _place(root, file))


def _check(yaml: Any, events: Any, file: str) -> None:
    depth = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MOST_DEPTH:
                raise InvalidSettings(_place(event, file), f"it is nested more than {MOST_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise InvalidSettings(_place(event, file), "anchors and aliases (& and *) are not read; write it out")
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            raise InvalidSettings(_place(event, file), f"tags such as {tag} are not read; write the plain value")


def _node(yaml: Any, node: Any, file: str, where: str) -> Node:
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Node] = {}
        for key, value in node.value:
            at = _place(key, file)
            if not isinstance(key, yaml.ScalarNode):
                raise InvalidSettings(at, "a key is a plain name")
            if key.value in found:
                raise InvalidSettings(at, f"{key.value!r} is given twice; it was in {found[key.value].where}")
            found[key.value] = _node(yaml, value, file, at)
        return Node(found, where)
    if isinstance(node, yaml.SequenceNode):
        return Node([_node(yaml, item, file, _place(item, file)) for item in node.value], where)
    try:
        return Node(yaml.constructor.SafeConstructor().construct_object(node), where)
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidSettings(where, f"{node.value!r} cannot be read: {' '.join(str(error).split())}") from error


def _place(what: Any, file: str) -> str:
    return f"{file}, line {what.start_mark.line + 1}"
