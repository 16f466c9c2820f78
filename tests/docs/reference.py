"""Write docs/api.md from the source: every public name, its signature, and what its docstring says.

`python -m tests.docs.reference` writes the page; a test compares it with the source.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import sys
import textwrap
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from perdure.kernel.program import Program
from tests.docs.markdown import ROOT

PAGE = ROOT / "docs" / "api.md"
WIDTH = 118

# Where a public name stands on the page, by the module it comes from; what fits nowhere is under "Other names".
SECTIONS: dict[str, tuple[str, ...]] = {
    "Engines and clients": ("perdure.assembly", "perdure.client.client", "perdure.client.handle"),
    "Programs and steps": (
        "perdure.authoring.code.workflow",
        "perdure.authoring.code.step",
        "perdure.kernel.invocation",
    ),
    "Inside a workflow": ("perdure.authoring.code.", "perdure.locks"),
    "Inside a step": ("perdure.engine.step_context",),
    "What you read": (
        "perdure.client.",
        "perdure.kernel.events",
        "perdure.kernel.values.failures",
        "perdure.orchestrator.sweep",
    ),
    "What calls return": ("perdure.kernel.inbound", "perdure.ports.leases"),
    "Settings": (
        "perdure.config",
        "perdure.settings.",
        "perdure.kernel.policies.durability",
        "perdure.kernel.policies.queues",
    ),
    "Retries, rules and policies": (
        "perdure.kernel.policies.retry",
        "perdure.kernel.policies.rules",
        "perdure.kernel.policies.policy",
        "perdure.kernel.policies.fallback",
    ),
    "Errors": ("perdure.errors",),
}
OTHER = "Other names"
# Classes whose objects callers get and never make.
GIVEN = {
    *("RunHandle", "ScheduleHandle", "Client", "Locks", "StepContext", "Saga", "Lock", "Inputs", "Invocation", "Step"),
    *("Workflow", "Flow", "Outputs", "RunPage", "RunFilters", "Policy", "Blobs"),
}
# Methods that only perdure calls.
INTERNAL = {
    "Client": ("watch",),
    "Flow": ("manifest",),
    "Graph": ("manifest",),
    "InterruptNode": ("draft", "finished", "of"),
    "Invocation": ("close", "encode", "record", "send", "throw"),
    "Items": ("made", "plain"),
    "Outputs": ("made", "of"),
    "StepContext": ("cancel", "channel", "patches"),
    "Workflow": ("with_function",),
}
# The other public modules, and what they are for.
MODULES = {
    "perdure.graph": "Programs made of nodes: see [graphs](graphs.md).",
    "perdure.flow": "Programs in YAML and JSON files: see [flows](flows.md).",
    "perdure.blocking": "The same names for code that does not await. Methods have the parameters of the async ones.",
    "perdure.testing": "For tests of workflows: see [testing your workflows](testing-your-workflows.md).",
    "perdure.testing.simulation": "Workflows in virtual time, and under faults: see "
    "[virtual time](testing-your-workflows.md#virtual-time).",
}


def page() -> str:
    """The whole page, as Markdown."""
    public = import_module("perdure")
    parts = [
        "# API reference",
        "",
        "Every public name, generated from the source by `make api`. The guides explain how to use them; the",
        "[README](../README.md) lists the guides.",
        "",
    ]
    by_section: dict[str, list[str]] = {title: [] for title in (*SECTIONS, OTHER)}
    for name in public.__all__:
        by_section[_section(_home(public, name))].append(name)
    for title, names in by_section.items():
        if names:
            parts += [f"## {title}", ""]
            ordered = sorted(names, key=lambda name: (name[0].islower(), name.lower()))
            if title == "Errors":
                ordered = sorted(ordered, key=lambda name: len(getattr(public, name).__mro__) > 3)
            for name in ordered:
                parts += _entry(name, getattr(public, name))
    for module, intro in MODULES.items():
        loaded = import_module(module)
        parts += [f"## `{module}`", "", intro, ""]
        for name in sorted(set(loaded.__all__) - set(public.__all__)):
            parts += _entry(
                f"{module.removeprefix('perdure.')}.{name}", getattr(loaded, name), brief=module.endswith("blocking")
            )
    return "\n".join(parts).rstrip() + "\n"


def _home(public: ModuleType, name: str) -> str:
    return str(public._HOMES[name])


def _section(home: str) -> str:
    fitting = [
        (len(prefix), title)
        for title, prefixes in SECTIONS.items()
        for prefix in prefixes
        if home == prefix or (prefix.endswith(".") and home.startswith(prefix))
    ]
    return max(fitting)[1] if fitting else OTHER


def _entry(name: str, thing: Any, *, brief: bool = False) -> list[str]:
    lines = [f"### {name}", ""]
    if inspect.isclass(thing):
        lines += _class(name, thing, brief=brief)
    elif callable(thing):
        lines += [*_fenced(f"{_prefix(thing)}{name}{_signature(thing)}"), *_doc(thing)]
    else:
        lines += [
            f"`{_shown(thing)}`",
            "",
            *(_doc(type(thing)) if type(thing).__module__.startswith("perdure") else ()),
        ]
    return lines


def _class(name: str, cls: type, *, brief: bool) -> list[str]:
    if issubclass(cls, BaseException):
        bases = " and ".join(f"`{base.__name__}`" for base in cls.__bases__)
        return [*_doc(cls), f"Derived from {bases}.", ""]
    if issubclass(cls, enum.Enum):
        return [*_doc(cls), "One of " + ", ".join(f"`{member.value}`" for member in cls) + ".", ""]
    lines = []
    if dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct):
        lines += _doc(cls) + _fields(cls)
    else:
        if (init := inspect.getattr_static(cls, "__init__", None)) and not _is_made_by_us(cls):
            lines += _fenced(f"{name}{_signature(init, bound=True)}")
        lines += _doc(cls)
    internal = set(INTERNAL.get(cls.__name__, ()))
    if Program in cls.__mro__[1:]:
        # What a kind of program answers to the engine is described once, at Program.
        internal |= {*dict(_methods(Program))}
    methods = [(method, function) for method, function in _methods(cls) if method not in internal]
    if cls.__name__ == "Engine":
        base = dict(_methods(cls.__mro__[1]))
        methods = [(method, function) for method, function in methods if base.get(method) is not function]
        lines += ["It has everything that a [`Client`](#client) has, and:", ""]
    if brief and methods:
        return [*lines, "Methods: " + ", ".join(f"`{method}`" for method, _ in methods) + ".", ""]
    for method, function in methods:
        if isinstance(function, property):
            lines += [f"- `{method}`: {_first(function.fget)}"]
        else:
            lines += [f"- `{_prefix(function)}{method}{_signature(function, bound=True)}`: {_first(function)}"]
    return [*lines, ""] if methods else lines


def _is_made_by_us(cls: type) -> bool:
    """Handles and views are given to callers, who never make one."""
    return cls.__name__ in GIVEN


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    seen = set()
    for owner in cls.__mro__:
        if not owner.__module__.startswith("perdure"):
            continue
        for name, value in vars(owner).items():
            if name.startswith("_") or name in seen:
                continue
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if inspect.isfunction(function) or isinstance(function, property):
                seen.add(name)
                yield name, function


def _fields(cls: type) -> list[str]:
    docs = _field_docs(cls)
    rows = ["| field | type | meaning |", "| --- | --- | --- |"]
    names = (
        [field.name for field in dataclasses.fields(cls)]
        if dataclasses.is_dataclass(cls)
        else list(typing.cast(Any, cls).__struct_fields__)
    )
    annotations = {
        key: kind for owner in reversed(cls.__mro__) for key, kind in vars(owner).get("__annotations__", {}).items()
    }
    for name in names:
        if not name.startswith("_"):
            kind = str(annotations.get(name, "")).replace("|", "\\|")
            rows.append(f"| `{name}` | `{kind}` | {docs.get(name, '')} |")
    return [*rows, ""] if len(rows) > 2 else []


def _field_docs(cls: type) -> dict[str, str]:
    """The texts below the fields of a class, of its bases too."""
    found: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not owner.__module__.startswith("perdure"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            match field, after:
                case (ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text)))):
                    found[name] = " ".join(text.split())
    return found


def _prefix(function: Any) -> str:
    return "await " if inspect.iscoroutinefunction(function) else ""


def _signature(function: Any, *, bound: bool = False) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = list(signature.parameters.values())
    if bound and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    shown = [_parameter(parameter) for parameter in parameters if not parameter.name.startswith("_")]
    for at, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if not any(other.kind is inspect.Parameter.VAR_POSITIONAL for other in parameters):
                shown.insert(at, "*")
            break
    result = signature.return_annotation
    arrow = "" if result in (inspect.Signature.empty, "None", None) else f" -> {_annotation(result)}"
    return f"({', '.join(shown)}){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    kind = parameter.kind
    stars = "*" if kind is inspect.Parameter.VAR_POSITIONAL else "**" if kind is inspect.Parameter.VAR_KEYWORD else ""
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        text += f" = {_shown(parameter.default)}"
    return text


def _annotation(kind: Any) -> str:
    return kind if isinstance(kind, str) else inspect.formatannotation(kind)


def _shown(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}()"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    text = repr(value)
    return "..." if " at 0x" in text else text


def _fenced(text: str) -> list[str]:
    if len(text) > WIDTH:
        head, _, rest = text.partition("(")
        inner, arrow, result = rest.rpartition(") -> ")
        if not arrow:
            inner, _, result = rest.rpartition(")")
        body = textwrap.indent("\n".join(f"{part}," for part in _split(inner)), "    ")
        text = f"{head}(\n{body}\n){' -> ' if arrow else ''}{result}"
    return ["```", text, "```", ""]


def _split(inner: str) -> Iterator[str]:
    """The parameters of a signature: commas inside brackets do not part them."""
    depth, start = 0, 0
    for at, character in enumerate(inner):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield inner[start:at].strip()
            start = at + 1
    yield inner[start:].strip()


def _doc(thing: Any) -> list[str]:
    return [inspect.cleandoc(thing.__doc__ or ""), ""] if thing.__doc__ else []


def _first(function: Any) -> str:
    return " ".join(inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].split())


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{Path(PAGE).relative_to(ROOT)} written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
