"""Load settings from a file and the environment, which overrides it. The one place that reads variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

from perdure.config import Flows, Limits, Queue, Rate, Recovery, Retention, Telemetry
from perdure.errors import InvalidSettings, UsageError
from perdure.kernel.policies.durability import durability
from perdure.kernel.policies.policy import suggest
from perdure.kernel.policies.start_options import decide
from perdure.kernel.streams import stream_mode
from perdure.kernel.values.redaction import Redaction
from perdure.settings.files import PYPROJECT, Path, Source, read_file, read_table
from perdure.settings.keys import EACH, KEYS, Kind, read_section, read_value
from perdure.settings.stepflow import leases_url, store_url

T = TypeVar("T")

PREFIX = "PERDURE_"
FILE = "PERDURE_CONFIG"
FOUND = ("perdure.yaml", "perdure.yml")
SCHEMES = {
    "store": ("memory", "file", "sqlite", "postgresql", "postgres", "redis", "rediss", "http", "https"),
    "leases": ("etcd", "etcds", "none"),
}
# What parses a setting that stays text, and what a section becomes.
PARSERS: dict[str, Callable[[Any], Any]] = {
    "durability": durability,
    "reuse": lambda text: decide(text, None),
    "stream": stream_mode,
    "redact": Redaction,
}
SECTIONS: dict[str, Callable[..., Any]] = {
    "limits": Limits,
    "recovery": Recovery,
    "retention": Retention,
    "flows": Flows,
    "telemetry": Telemetry,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings; None for those that are not set. `source` is the file, empty when there is none."""

    # Both may contain a password.
    store: str | None = field(default=None, repr=False)
    leases: str | None = field(default=None, repr=False)
    name: str | None = None
    module: str | None = None
    durability: str | None = None
    reuse: str | None = None
    stream: str | None = None
    max_concurrency: int | None = None
    threads: int | None = None
    serves: tuple[str, ...] | None = None
    redact: tuple[str, ...] | None = None
    limits: Limits | None = None
    recovery: Recovery | None = None
    retention: Retention | None = None
    queues: tuple[Queue, ...] | None = None
    flows: Flows | None = None
    telemetry: Telemetry | None = None
    source: str = ""

    def options(self) -> dict[str, Any]:
        """The settings as parameters of an Engine."""
        names = [name for name in self.__slots__ if name not in ("module", "source")]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def load_settings(
    path: str | os.PathLike[str] | None = None, *, environment: Mapping[str, str] | None = None
) -> Settings:
    """The settings of a file, overridden by the environment.

    Without a `path` it is the file that PERDURE_CONFIG names, or perdure.yaml in the current directory, or the table
    [tool.perdure] of pyproject.toml there; when there is none of these, the environment alone.
    """
    variables = os.environ if environment is None else environment
    chosen = os.fspath(path) if path is not None else variables.get(FILE, "")
    source = read_file(chosen) if chosen else _find()
    values = read_section(KEYS, source.data, source)
    known = variable_names()
    for name, text in variables.items():
        if name in known:
            _override(values, known[name], name, text, source)
        elif name.startswith(PREFIX) and name != FILE:
            _check_variable(name, known)
    return _settings(values, source)


def _find() -> Source:
    names = [name for name in FOUND if os.path.isfile(name)]
    table = read_table(PYPROJECT) if os.path.isfile(PYPROJECT) else None
    if len(names) + (table is not None) > 1:
        others = names[1:] + ([f"[tool.perdure] in {PYPROJECT}"] if table is not None else [])
        raise InvalidSettings(names[0], f"there are settings in {' and in '.join(others)} too; keep them in one place")
    return read_file(names[0]) if names else table or Source()


# --- the environment --------------------------------------------------------------------------------------------------


def variable_names() -> dict[str, Path]:
    """Every variable, with its setting. Queues have none, as the user chooses their names; nor has Stepflow's form."""
    names: dict[str, Path] = {}
    for name, key in KEYS.items():
        if isinstance(key, Kind):
            names[PREFIX + name.upper()] = (name,)
        elif EACH not in key and name not in ("storageConfig", "leaseManager"):
            names |= {f"{PREFIX}{name.upper()}__{inner.upper()}": (name, inner) for inner in key}
    return names


def _override(values: dict[str, Any], path: Path, variable: str, text: str, source: Source) -> None:
    source.variables[path] = variable
    keys: Any = KEYS
    for name in path[:-1]:
        values, keys = values.setdefault(name, {}), keys[name]
    values[path[-1]] = read_value(keys[path[-1]], text, path, variable, spoken=True)
    if path in (("store",), ("leases",)):
        values.pop("storageConfig" if path == ("store",) else "leaseManager", None)


def _check_variable(name: str, known: Mapping[str, Path]) -> None:
    """Refuse an unknown PERDURE_ variable that resembles a setting or names a section; ignore the others."""
    section, inside, _ = name.partition("__")
    near = [one for one in known if inside and one.startswith(f"{section}__")]
    if near or get_close_matches(name, known, 1, 0.9):
        raise InvalidSettings(name, f"there is no setting of that name; {suggest(name, near or known)}")


# --- from values to settings ------------------------------------------------------------------------------------------


def _settings(values: dict[str, Any], source: Source) -> Settings:
    for name, theirs, make_url in (("store", "storageConfig", store_url), ("leases", "leaseManager", leases_url)):
        given = name
        if theirs in values:
            if name in values:
                reason = f"{name} is given in {source.where((name,))} already; keep one of the two"
                raise InvalidSettings(source.where((theirs,)), reason)
            given, values[name] = theirs, make_url(values.pop(theirs), source)
        _check_scheme(name, values.get(name), source.where((given,)))
    for name, parse in PARSERS.items():
        if name in values:
            _made(partial(parse, values[name]), (name,), source)
    for name in ("max_concurrency", "threads"):
        if values.get(name, 1) < 1:
            raise InvalidSettings(source.where((name,)), f"{name} must be at least 1")
    if "retention" in values and "older_than" not in values["retention"]:
        raise InvalidSettings(source.where(("retention",)), "retention needs older_than, such as older_than: 30d")
    for name, section in SECTIONS.items():
        if name in values:
            values[name] = _made(section, (name,), source, **values[name])
    queues = values.pop("queues", {})
    return Settings(
        **values, queues=tuple(_queue(name, queues[name], source) for name in queues) or None, source=source.file
    )


def _check_scheme(name: str, url: str | None, where: str) -> None:
    """Check the scheme of a URL. The rest of it, a password among it, is checked where it is opened."""
    if url is None or (name, url) == ("leases", "none"):
        return
    scheme, separator, _ = url.partition("://")
    if not separator:
        example = "'sqlite:///flows.db'" if name == "store" else "'etcd://host:2379', or none"
        raise InvalidSettings(where, f"{name} is a URL, such as {example}")
    if scheme not in SCHEMES[name]:
        raise InvalidSettings(where, f"{name}: {scheme!r} is not a known backend; {suggest(scheme, SCHEMES[name])}")


def _made(make: Callable[..., T], path: Path, source: Source, **values: Any) -> T:
    """Call `make` with the values of a section; an error is reported at the line of the setting."""
    try:
        return make(**values)
    except (UsageError, ValueError) as error:
        inner = [name for name in values if f"{name}=" in str(error)]
        raise InvalidSettings(source.where((*path, *inner[:1])), str(error)) from error


def _queue(name: str, values: dict[str, Any], source: Source) -> Queue:
    path = ("queues", name)
    if "rate" in values:
        if "count" not in values["rate"]:
            raise InvalidSettings(source.where((*path, "rate")), f"queues.{name}.rate needs a count, such as count: 10")
        values["rate"] = _made(Rate, (*path, "rate"), source, **values["rate"])
    return _made(partial(Queue, name), path, source, **values)
