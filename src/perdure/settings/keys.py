"""Every setting there is: its name, the name that Stepflow's files have for it, what it holds and what it is about."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from perdure.kernel.policies.durations import ENDLESS, duration, parse_duration
from perdure.kernel.policies.policy import suggest
from perdure.settings.problems import InvalidSettings
from perdure.settings.tree import Node

FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Kind:
    """What a setting holds: in words, with an example, and how it is read. `read` gives None for anything else."""

    words: str
    example: str
    read: Callable[[Any, bool], Any]


def _text(value: Any, spoken: bool) -> str | None:
    return value if isinstance(value, str) and value else None


def _flag(value: Any, spoken: bool) -> bool | None:
    if spoken:
        return FLAGS.get(str(value).lower())
    return value if isinstance(value, bool) else None


def _count(value: Any, spoken: bool) -> int | None:
    if spoken and re.fullmatch(r"-?[0-9]{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(value: Any, spoken: bool) -> float | None:
    if isinstance(value, str):
        return parse_duration(value, bare=spoken)
    seconds = duration(value)
    return seconds if seconds is not None and -ENDLESS < seconds < ENDLESS else None


def _names(value: Any, spoken: bool) -> tuple[str, ...] | None:
    if isinstance(value, str):
        value = [Node(part.strip(), "") for part in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(node.value, str) and node.value for node in value):
        return None
    return tuple(node.value for node in value)


TEXT = Kind("text", "'name'", _text)
FLAG = Kind("true or false", "true", _flag)
COUNT = Kind("a whole number", "10", _count)
SECONDS = Kind("a number of seconds, or a length of time", "30 or '5m'", _seconds)
NAMES = Kind("a list of names", "[a, b]", _names)


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `stepflow` is its name in Stepflow's files, which is read as well."""

    kind: Kind
    about: str
    stepflow: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Settings under one name; for `each`, under names that the user chooses."""

    keys: Mapping[str, Key | Section]
    about: str
    each: bool = False


RECOVERY = {
    "enabled": Key(FLAG, "whether runs of dead orchestrators are taken over", "enabled"),
    "check_interval": Key(SECONDS, "how often to check for such runs", "checkIntervalSecs"),
    "max_startup": Key(COUNT, "how many runs are loaded at a time at start-up", "maxStartupRecovery"),
    "max_claims": Key(COUNT, "how many runs are claimed at a time after start-up", "maxClaimsPerCheck"),
    "lease": Key(SECONDS, "how long an orchestrator's lease lasts after its last heartbeat"),
    "grace": Key(SECONDS, "how long running steps get when the engine closes"),
    "quarantine": Key(COUNT, "after how many takeovers without progress a run is parked; 0: never"),
    "snapshot": Key(COUNT, "after how many finished events a snapshot is stored; 0: never"),
}
LIMITS = {
    "blob": Key(COUNT, "bytes above which a value goes to the blob store"),
    "payload": Key(COUNT, "bytes above which a value is refused"),
    "history": Key(COUNT, "bytes above which a journal accepts no more events"),
}
RETENTION = {
    "older_than": Key(SECONDS, "how long ago a run must have ended to be pruned"),
    "statuses": Key(NAMES, "how it must have ended"),
    "every": Key(SECONDS, "how long to wait between two passes"),
    "archive": Key(TEXT, "a directory for capsules of the pruned runs"),
}
QUEUE: dict[str, Key | Section] = {
    "concurrency": Key(COUNT, "how many of its runs may be in progress at once"),
    "per_key": Key(COUNT, "how many of those may have the same key"),
    "rate": Section(
        {"count": Key(COUNT, "how many may begin"), "per": Key(SECONDS, "within this time")},
        "how many may begin within a time",
    ),
}
STORAGE = {
    "type": Key(TEXT, "inMemory, file, sqlite, postgres or redis", "type"),
    "databaseUrl": Key(TEXT, "its URL", "databaseUrl"),
    "autoMigrate": Key(
        FLAG, "whether an engine may create and change the schema, on SQLite and PostgreSQL", "autoMigrate"
    ),
    "maxConnections": Key(
        COUNT, "how many connections read at once, on SQLite, PostgreSQL and Redis", "maxConnections"
    ),
}
LEASE_MANAGER = {
    "type": Key(TEXT, "none, etcd, or store", "type"),
    "endpoints": Key(NAMES, "the members of etcd, as http://host:2379", "endpoints"),
    "prefix": Key(TEXT, "the prefix of all keys in etcd"),
    "user": Key(TEXT, "the user name for etcd"),
    "password": Key(TEXT, "the password of that user"),
    "ca": Key(TEXT, "a file with the authority that signed etcd's certificate"),
    "cert": Key(TEXT, "a file with the client's certificate"),
    "key": Key(TEXT, "a file with the key of the client's certificate"),
}
KEYS = Section(
    {
        "store": Key(TEXT, "URL of the store"),
        "leases": Key(TEXT, "URL of leases outside the store, or none for a single orchestrator"),
        "name": Key(TEXT, "the orchestrator's name"),
        "module": Key(TEXT, "the module or file whose workflows a worker executes"),
        "durability": Key(TEXT, "sync, relaxed, async, exit, every(n) or manual"),
        "reuse": Key(TEXT, "what a start does if the id exists: return_existing, reject_duplicate, ..."),
        "stream": Key(TEXT, "when what steps emit is written: immediate, on_complete or batched(20, 0.5)"),
        "max_concurrency": Key(COUNT, "how many steps run at once"),
        "threads": Key(COUNT, "how many `def` steps run at once"),
        "serves": Key(NAMES, "the queues that it serves; otherwise all runs"),
        "recovery": Section(RECOVERY, "how runs that lost their owner are looked after"),
        "limits": Section(LIMITS, "how large values and journals may become"),
        "retention": Section(RETENTION, "which runs are pruned by themselves; none without it"),
        "queues": Section(QUEUE, "the limits of queues, by their names", each=True),
        "storageConfig": Section(STORAGE, "the store, as Stepflow's files say it"),
        "leaseManager": Section(LEASE_MANAGER, "the leases, as Stepflow's files say it"),
    },
    "all settings",
)


Values = dict[str, Any]


def read(section: Section, node: Node, path: str = "") -> tuple[Values, dict[str, str]]:
    """The settings that a node gives, by their names, and the place of each by its path. Refuses what is unknown."""
    if node.value is None:
        node = Node({}, node.where)
    if not isinstance(node.value, dict):
        raise InvalidSettings(
            node.where, f"{path or 'the file'} holds settings by their names, and this is {node.kind}"
        )
    known = {key.stepflow: name for name, key in section.keys.items() if isinstance(key, Key) and key.stepflow}
    values: Values = {}
    places: dict[str, str] = {path: node.where}
    for word, item in node.value.items():
        name = word if word in section.keys or section.each else known.get(word)
        if name is None:
            inside = f"{path} has" if path else "there is"
            near = get_close_matches(word, [*section.keys, *known], 1)
            raise InvalidSettings(item.where, f"{inside} no setting {word!r}; {suggest(word, near or section.keys)}")
        inner = f"{path}.{name}" if path else name
        if name in values:
            raise InvalidSettings(item.where, f"{inner} is given twice; it was in {places[inner]}")
        key = Section(section.keys, "") if section.each else section.keys[name]
        if isinstance(key, Section):
            values[name], more = read(key, item, inner)
            places |= more
        else:
            values[name] = _value(key, item, inner)
            places[inner] = item.where
    return values, places


def _value(key: Key, node: Node, path: str) -> Any:
    found = key.kind.read(node.value, node.spoken)
    if found is None:
        is_ = node.kind if not node.spoken else "something else"
        raise InvalidSettings(node.where, f"{path} is {key.kind.words}, such as {key.kind.example}; this is {is_}")
    return found
