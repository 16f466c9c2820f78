"""Load settings from a file and the environment, which overrides it. The one place that reads variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from perdure.config import Limits, Queue, Rate, Recovery, Retention
from perdure.errors import UsageError
from perdure.kernel.policies.durability import durability
from perdure.kernel.policies.policy import suggest
from perdure.kernel.policies.reuse import decide
from perdure.kernel.streams import stream_mode
from perdure.settings.keys import KEYS, Key, Section, Values, read
from perdure.settings.problems import InvalidSettings
from perdure.settings.toml import read_toml
from perdure.settings.tree import MOST_BYTES, Node
from perdure.settings.yaml import read_yaml

T = TypeVar("T")

PREFIX = "PERDURE_"
FILE = "PERDURE_CONFIG"
FOUND = ("perdure.yaml", "perdure.yml")
PYPROJECT = "pyproject.toml"
# Sections without variables for their keys: one variable sets all, or the user chooses the names.
UNREACHED = ("queues", "storageConfig", "leaseManager")
SCHEMES = {
    "inMemory": "memory",
    "memory": "memory",
    "file": "file",
    "sqlite": "sqlite",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "redis": "redis",
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
    limits: Limits | None = None
    recovery: Recovery | None = None
    retention: Retention | None = None
    queues: tuple[Queue, ...] | None = None
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
    tree, source = _file(chosen) if chosen else _found()
    for place, node in _variables(variables).items():
        _set(tree, place, node)
    values, places = read(KEYS, tree)
    return _settings(values, places, source)


# --- files ------------------------------------------------------------------------------------------------------------


def _found() -> tuple[Node, str]:
    names = [name for name in FOUND if os.path.isfile(name)]
    table = _table(PYPROJECT) if os.path.isfile(PYPROJECT) else None
    if len(names) + (table is not None) > 1:
        others = names[1:] + ([f"[tool.perdure] in {PYPROJECT}"] if table is not None else [])
        raise InvalidSettings(names[0], f"there are settings in {' and in '.join(others)} too; keep them in one place")
    if names:
        return _file(names[0])
    return (table, PYPROJECT) if table is not None else (Node({}, ""), "")


def _file(path: str) -> tuple[Node, str]:
    if path.endswith((".yaml", ".yml")):
        return read_yaml(_read(path), path), path
    if path.endswith(".toml"):
        table = _table(path)
        if table is None:
            raise InvalidSettings(path, "it has no table [tool.perdure]")
        return table, path
    raise InvalidSettings(path, "settings are in a file that ends with .yaml, .yml or .toml")


def _table(path: str) -> Node | None:
    """The table [tool.perdure]; None when there is none."""
    text = _read(path)
    if os.path.basename(path) == PYPROJECT and "perdure" not in text:
        return None
    tree = read_toml(text, path)
    tool = tree["tool"].value if "tool" in tree else None
    found = tool.get("perdure") if isinstance(tool, dict) else None
    return found if isinstance(found, Node) else None


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise InvalidSettings(path, f"there is no such file (the current directory is {os.getcwd()})") from error
    except OSError as error:
        raise InvalidSettings(path, f"it cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise InvalidSettings(path, f"it is larger than {MOST_BYTES:,} bytes, and settings are not")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidSettings(f"{path}, line {line}", "it is not UTF-8") from error


# --- the environment --------------------------------------------------------------------------------------------------


def variable_names() -> dict[str, tuple[str, ...]]:
    """Every variable, with its setting."""
    names: dict[str, tuple[str, ...]] = {}
    for name, key in KEYS.keys.items():
        if isinstance(key, Key):
            names[PREFIX + name.upper()] = (name,)
        elif name not in UNREACHED:
            for inner in key.keys:
                names[f"{PREFIX}{name.upper()}__{inner.upper()}"] = (name, inner)
    return names


def _variables(variables: Mapping[str, str]) -> dict[tuple[str, ...], Node]:
    known = variable_names()
    found = {}
    for name, value in variables.items():
        if name in known:
            found[known[name]] = Node(value, name, spoken=True)
        elif name.startswith(PREFIX) and name != FILE:
            _check_variable(name, known)
    return found


def _check_variable(name: str, known: Mapping[str, Any]) -> None:
    """Refuse an unknown PERDURE_ variable that resembles a setting or names a section; ignore the others."""
    section, inside, _ = name.partition("__")
    mistaken = inside and any(one.startswith(f"{section}__") for one in known)
    if mistaken or get_close_matches(name, known, 1, 0.9):
        near = [one for one in known if one.startswith(f"{section}__")] if mistaken else known
        raise InvalidSettings(name, f"there is no setting of that name; {suggest(name, near)}")


def _set(tree: Node, path: tuple[str, ...], node: Node) -> None:
    """Override a value of the file, under any of its names."""
    section: Section = KEYS
    for name in path[:-1]:
        inner = section.keys[name]
        assert isinstance(inner, Section)
        section = inner
        if not isinstance(tree.value, dict):
            return  # reported when the section is read
        if not isinstance(tree.value.get(name, Node(None, "")).value, dict | None):
            return
        if name not in tree.value or tree.value[name].value is None:
            tree.value[name] = Node({}, node.where)
        tree = tree.value[name]
    if not isinstance(tree.value, dict):
        return
    key = section.keys[path[-1]]
    if isinstance(key, Key) and key.stepflow:
        tree.value.pop(key.stepflow, None)
    instead = {"store": "storageConfig", "leases": "leaseManager"}.get(path[-1]) if len(path) == 1 else None
    if instead is not None:
        tree.value.pop(instead, None)
    tree.value[path[-1]] = node


# --- from values to settings ------------------------------------------------------------------------------------------


def _settings(values: Values, places: dict[str, str], source: str) -> Settings:
    for ours, theirs in (("store", "storageConfig"), ("leases", "leaseManager")):
        if ours in values and theirs in values:
            reason = f"{ours} is given in {places[ours]} already; keep one of the two"
            raise InvalidSettings(places[theirs], reason)
    if "storageConfig" in values:
        values["store"] = _store(values["storageConfig"], places)
    if "leaseManager" in values:
        values["leases"] = _leases(values["leaseManager"], places)
    _check_scheme("store", ("memory", "file", "sqlite", "postgresql", "postgres", "redis", "rediss"), values, places)
    _check_scheme("leases", ("etcd", "etcds", "none"), values, places)
    if "durability" in values:
        _made(lambda: durability(values["durability"]), "durability", places)
    if "reuse" in values:
        _made(lambda: decide(values["reuse"], None), "reuse", places)
    if "stream" in values:
        _made(lambda: stream_mode(values["stream"]), "stream", places)
    for count in ("max_concurrency", "threads"):
        if values.get(count, 1) < 1:
            raise InvalidSettings(places[count], f"{count} must be at least 1")
    limits = _made(lambda: Limits(**values["limits"]), "limits", places) if "limits" in values else None
    recovery = _made(lambda: Recovery(**values["recovery"]), "recovery", places) if "recovery" in values else None
    return Settings(
        store=values.get("store"),
        leases=values.get("leases"),
        name=values.get("name"),
        module=values.get("module"),
        durability=values.get("durability"),
        reuse=values.get("reuse"),
        stream=values.get("stream"),
        max_concurrency=values.get("max_concurrency"),
        threads=values.get("threads"),
        serves=values.get("serves"),
        limits=limits,
        recovery=recovery,
        retention=_retention(values["retention"], places) if "retention" in values else None,
        queues=tuple(_queue(name, values["queues"][name], places) for name in values.get("queues", ())) or None,
        source=source,
    )


def _check_scheme(name: str, known: Sequence[str], values: Values, places: dict[str, str]) -> None:
    """Check the scheme of a URL. The rest of it, a password among it, is checked where it is opened."""
    url = values.get(name)
    if url is None or url == "none" == known[-1]:
        return
    scheme, separator, _ = url.partition("://")
    where = places.get(name) or places["storageConfig" if name == "store" else "leaseManager"]
    if not separator:
        example = "'sqlite:///flows.db'" if name == "store" else "'etcd://host:2379', or none"
        raise InvalidSettings(where, f"{name} is a URL, such as {example}")
    if scheme not in known:
        raise InvalidSettings(where, f"{name}: {scheme!r} is no known backend; {suggest(scheme, known)}")


def _made(make: Callable[[], T], section: str, places: dict[str, str]) -> T:
    """Build the dataclass of a section; an error is reported at the line of the setting."""
    try:
        return make()
    except (UsageError, ValueError) as error:
        if isinstance(error, InvalidSettings):
            raise
        said = str(error)
        inner = [path for path in places if path.startswith(f"{section}.") and f"{path.rpartition('.')[2]}=" in said]
        raise InvalidSettings(places[inner[0] if inner else section], said) from error


def _retention(values: Values, places: dict[str, str]) -> Retention:
    if "older_than" not in values:
        raise InvalidSettings(places["retention"], "retention needs older_than, such as older_than: 30d")
    return _made(lambda: Retention(**values), "retention", places)


def _queue(name: str, values: Values, places: dict[str, str]) -> Queue:
    where = f"queues.{name}"
    rate = values.pop("rate", None)
    if rate is not None and "count" not in rate:
        raise InvalidSettings(places[f"{where}.rate"], f"{where}.rate needs a count, such as count: 10")
    return _made(lambda: Queue(name, rate=Rate(**rate) if rate is not None else None, **values), where, places)


def _store(values: Values, places: dict[str, str]) -> str:
    """The URL of a store described as in Stepflow's files."""
    where = places["storageConfig"]
    kind, url = values.get("type"), values.get("databaseUrl", "")
    if kind not in SCHEMES:
        reason = f"{kind!r} is no type of store; {suggest(kind, SCHEMES)}" if kind else "it needs a type"
        raise InvalidSettings(places.get("storageConfig.type", where), reason)
    scheme = SCHEMES[kind]
    place = places.get("storageConfig.databaseUrl", where)
    if url == "sqlite::memory:":
        scheme, url = "memory", ""
    for name, has in (("autoMigrate", ("sqlite", "postgresql")), ("maxConnections", ("sqlite", "postgresql", "redis"))):
        if name in values and scheme not in has:
            reason = f"{name} has no effect on a {kind} store; leave it out"
            raise InvalidSettings(places[f"storageConfig.{name}"], reason)
    if scheme == "memory":
        if url:
            raise InvalidSettings(place, "a store in memory has no databaseUrl; leave it out")
        return "memory://"
    if not url:
        raise InvalidSettings(place, f"a {kind} store needs its databaseUrl")
    if scheme == "sqlite" and not url.startswith("sqlite://"):
        url = f"sqlite:///{url.removeprefix('sqlite:')}"  # sqlite:relative.db or sqlite:/absolute.db
    given = url.partition(":")[0]
    if given not in {scheme, *(name for name, one in SCHEMES.items() if one == scheme), f"{scheme}s"}:
        raise InvalidSettings(place, f"storageConfig.type is {kind}, and this is the URL of something else")
    base, _, query = url.partition("?")
    options = query.split("&") if query else []
    if scheme == "sqlite" and "mode=rwc" in options:
        options.remove("mode=rwc")  # the default
    for name, ours in (("maxConnections", "pool"), ("autoMigrate", "migrate")):
        if name not in values:
            continue
        if any(option.startswith(f"{ours}=") for option in options):
            raise InvalidSettings(places[f"storageConfig.{name}"], f"databaseUrl says {ours}= too; keep one of the two")
        if name == "maxConnections" and not 1 <= values[name] <= 999:
            raise InvalidSettings(places[f"storageConfig.{name}"], "maxConnections must be from 1 to 999")
        if (scheme, values[name]) != ("sqlite", True):  # SQLite is migrated by default
            options.append(f"{ours}={str(values[name]).lower()}")
    return "?".join([base, "&".join(options)] if options else [base])


def _leases(values: Values, places: dict[str, str]) -> str | None:
    """The URL of leases described as in Stepflow's files."""
    where, kind = places["leaseManager"], values.get("type")
    if kind in ("none", "store"):
        for name in values.keys() - {"type"}:
            reason = f"{name} has no effect on leases of the type {kind}; leave it out"
            raise InvalidSettings(places[f"leaseManager.{name}"], reason)
        return "none" if kind == "none" else None
    if kind != "etcd":
        known = ("none", "etcd", "store")
        reason = f"{kind!r} is no type of leases; {suggest(kind, known)}" if kind else "it needs a type"
        raise InvalidSettings(places.get("leaseManager.type", where), reason)
    place = places.get("leaseManager.endpoints", where)
    parts = [urlsplit(endpoint) for endpoint in values.get("endpoints", ())]
    schemes = {part.scheme for part in parts}
    if not parts or len(schemes) > 1 or schemes - {"http", "https"} or not all(part.netloc for part in parts):
        raise InvalidSettings(
            place, "endpoints are the members of etcd, such as [http://etcd-1:2379], all http or https"
        )
    if "password" in values and "user" not in values:
        raise InvalidSettings(places["leaseManager.password"], "a password needs a user; give user too")
    named = [quote(values[name], safe="") for name in ("user", "password") if name in values]
    access = f"{':'.join(named)}@" if named else ""
    files = "&".join(f"{name}={quote(values[name], safe='/')}" for name in ("ca", "cert", "key") if name in values)
    scheme = "etcds" if schemes == {"https"} else "etcd"
    prefix = f"/{quote(values['prefix'])}" if "prefix" in values else ""
    return f"{scheme}://{access}{','.join(part.netloc for part in parts)}{prefix}{'?' + files if files else ''}"
