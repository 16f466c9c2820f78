"""The arguments of steps by name, for views of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from perdure.kernel.commands import RunStep


def names_of(command: RunStep) -> tuple[str, ...]:
    """The parameter names of the encoded arguments of a call, in order; `*rest` for each that `*rest` receives."""
    known = [name for name, _ in command.spec.types]
    plain = [name for name in known if not name.startswith(("*", "="))]
    rest = next((name for name in known if name.startswith("*") and not name.startswith("**")), "")
    positional = (plain[n] if n < len(plain) else rest or f"{n}" for n in range(command.positional))
    return (*positional, *command.keywords)


def by_name(names: Sequence[str], inputs: bytes | Raw) -> dict[str, Any]:
    """Encoded arguments as plain values by name; those of a `*rest` are a list."""
    found: dict[str, Any] = {}
    for name, value in zip(names, msgspec.json.decode(inputs), strict=True):
        if name.startswith("*"):
            found.setdefault(name[1:], []).append(value)
        else:
            found[name] = value
    return found
