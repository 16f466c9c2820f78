"""Translate flows of other engines to trees of perdure's format that keep the places in the original file.

Parts that cannot be translated are noted: as an error, or as a warning if they make no difference to a run. Compiles
nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from typing import Literal

from perdure.authoring.flow.definition import RESERVED, VERSION
from perdure.authoring.flow.expressions import KEYWORDS, Path
from perdure.authoring.flow.tree import Item, Problems, elements, fields, made, text

Engine = Literal["stepflow", "aetherflow"]
# The codes of parts that are not translated, and of parts that are left out or renamed.
TODO, LEFT_OUT = "F040", "F041"
# A profile of Aetherflow has some of these keys.
_PROFILE = frozenset({"config", "options", "decode"})
# Files of Stepflow that are no flows have these keys.
_SETTINGS = frozenset({"storageConfig", "leaseManager", "recovery", "plugins", "routes"})


def engine_of(root: Item) -> Engine | None:
    """The engine that a file was written for; None for perdure, and if the file is no flow at all."""
    if not isinstance(root.value, dict) or "perdure" in root.value:
        return None
    value = root.value
    if "flow" in value and value.keys() & {"jobs", "resources", "version"}:
        return "aetherflow"
    steps = value.get("steps")
    listed = steps.value if steps is not None and isinstance(steps.value, list) else ()
    if "schemas" in value or any(isinstance(one.value, dict) and "component" in one.value for one in listed):
        return "stepflow"
    named = value.get("schema")
    return "stepflow" if named is not None and "stepflow" in str(named.value) else None


def native(root: Item, problems: Problems) -> Item:
    """The tree of a flow in perdure's format."""
    engine = engine_of(root)
    if engine == "stepflow":
        from perdure.authoring.flow.importing_stepflow import Translation

        return Translation(root, problems).flow()
    if engine == "aetherflow":
        from perdure.authoring.flow.importing_aetherflow import Translation as Other

        return Other(root, problems).flow()
    if isinstance(root.value, dict) and root.value and root.value.keys() <= _SETTINGS:
        problems.add(root.mark, "F002", "these are settings of Stepflow, and no flow; give the file as --config")
        problems.stop()
    _refuse_beside(root, problems)
    return root


def _refuse_beside(root: Item, problems: Problems) -> None:
    """Refuse a file that Aetherflow has beside flows; note for each part where perdure has it."""
    items = elements(fields(root).get("items"))
    if items and all({"cron", "flow_yaml"} <= fields(one).keys() for one in items):
        zone = _said(root, "timezone")
        for one in items:
            given = [f"{key}: {json.dumps(value)}" for key, value in _schedule(one, zone).items()]
            left = sorted(fields(one).keys() & {"flow_job", "bundle_manifest"})
            more = f"; {' and '.join(left)} {'has' if len(left) == 1 else 'have'} no counterpart" if left else ""
            said = f"write it in {_said(one, 'flow_yaml')}, as schedules: [{{{', '.join(given)}}}]{more}"
            problems.add(one.mark, TODO, f"this is a schedule of Aetherflow: {said}")
    parts = fields(root).values()
    if parts and all(fields(one) and fields(one).keys() <= _PROFILE for one in parts):
        for name, one in root.value.items():
            keys = [key for part in ("config", "options") for key in fields(fields(one).get(part))]
            said = f"{json.dumps(name)}: {{resources: {{NAME: {{{', '.join(f'{key}: ...' for key in keys)}}}}}}}"
            problems.add(root.keys[name], TODO, f"this is a profile of Aetherflow: write it as profiles: {{{said}}}")
    problems.stop()


def _schedule(item: Item, zone: str) -> dict[str, str]:
    """The keys of the schedule that is equivalent to one of Aetherflow."""
    given = {"id": _said(item, "id"), "cron": _said(item, "cron"), "timezone": zone}
    if "misfire_grace_time" in fields(item):
        given["catch_up"] = "one"
    return {key: value for key, value in given.items() if value}


def _said(item: Item, key: str) -> str:
    """The text of a key; empty if there is none."""
    value = fields(item)[key].value if key in fields(item) else ""
    return value if isinstance(value, str) else ""


# --- trees ----------------------------------------------------------------------------------------------------------


def literal(item: Item) -> Item:
    """A value that stays as it is, even if it looks like an expression."""
    return made({"$literal": item}, item.mark) if _looks_evaluated(item) else item


def _looks_evaluated(item: Item) -> bool:
    if isinstance(item.value, dict):
        return any(key.startswith("$") or _looks_evaluated(one) for key, one in item.value.items())
    if isinstance(item.value, list):
        return any(map(_looks_evaluated, item.value))
    return isinstance(item.value, str) and "${{" in item.value


# --- expressions ----------------------------------------------------------------------------------------------------


def path_text(path: Path) -> str:
    """A path in the syntax of expressions."""
    return "".join(map(_key_text, path))


def _key_text(key: str | int) -> str:
    if isinstance(key, str) and re.fullmatch(r"[A-Za-z_]\w*", key) and key not in KEYWORDS:
        return f".{key}"
    return f"[{quoted(key) if isinstance(key, str) else key}]"


def quoted(value: str) -> str:
    """A text as a literal in an expression."""
    return f"'{value}'" if value.isprintable() and not set("'\\") & set(value) else json.dumps(value)


def escaped(value: str) -> str:
    """A text whose expressions are escaped."""
    return value.replace("${{", "$${{")


def lone(expression: str) -> str:
    """A text that consists of one expression."""
    return f"${{{{ {expression} }}}}"


def inside(item: Item) -> str | None:
    """The expression that an item consists of, or the item as a literal; None for any other item."""
    value = item.value
    if isinstance(value, str):
        found = re.fullmatch(r"\$\{\{ (.*) \}\}", value, re.DOTALL)
        if found is not None and "${{" not in found[1]:
            return found[1]
        return quoted(value) if "${{" not in value and "\\" not in json.dumps(value) else None
    if isinstance(value, dict | list):
        return None
    shown = json.dumps(value)
    return f"({shown})" if shown.startswith("-") else shown


# --- names ----------------------------------------------------------------------------------------------------------


class Names:
    """Names that expressions can use, for the names of another engine."""

    def __init__(self, problems: Problems, what: str) -> None:
        self._problems, self._what = problems, what
        self._found: dict[str, str] = {}
        self._taken: set[str] = set()

    def add(self, items: Iterable[Item | None]) -> None:
        """Choose names for these names, in order."""
        for item in items:
            if item is None or not isinstance(item.value, str) or item.value in self._found:
                continue
            name = self._found[item.value] = self.more(item.value)
            if name != item.value:
                self._problems.warn(item.mark, LEFT_OUT, f"the {self._what} {item.value!r:.80} is called {name} here")

    def more(self, name: str) -> str:
        """Add a name that is as similar to this one as possible."""
        name = re.sub(r"[^A-Za-z0-9_]", "_", name)[:80] or "_"
        name = f"_{name}" if name[0].isdigit() or name in RESERVED else name
        found, number = name, 2
        while found in self._taken:
            found, number = f"{name}_{number}", number + 1
        self._taken.add(found)
        return found

    def __getitem__(self, name: str) -> str:
        """The name in perdure. An unknown name stays, and the compiler reports it."""
        return self._found.get(name, name)


def program_name(item: Item | None, problems: Problems) -> str:
    """A name for a flow, close to its own name or that of its file."""
    stem = os.path.splitext(os.path.basename(problems.file))[0]
    given = item.value if item is not None and isinstance(item.value, str) else ""
    for one in (given, stem):
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", one).strip("-.")[:100].removeprefix("perdure.")
        if name:
            return name
    return "flow"


def todo_name(*parts: str) -> str:
    """The name of a component that the user has to write."""
    return "todo_" + "_".join(word for part in parts for word in re.findall(r"[A-Za-z0-9]+", part))


def head(name: str, root: Item) -> dict[str, Item]:
    """The first keys of a flow."""
    return {"perdure": Item(VERSION, root.mark), "name": text(name, root.mark)}
