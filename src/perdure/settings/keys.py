"""Every setting there is, with what it holds. What each is about is in docs/configuration.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from perdure.errors import InvalidSettings
from perdure.kernel.policies.durations import ENDLESS, duration, parse_duration
from perdure.kernel.policies.policy import suggest
from perdure.settings.files import Path, Source

FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
TYPES = {dict: "a mapping", list: "a list", str: "text", int: "a number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of setting, in words, with an example. `read` gives None for any other value.

    The second parameter of `read`: the value is text from a variable, from which numbers must be parsed.
    """

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
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        return None
    return tuple(value)


TEXT = Kind("text", "'name'", _text)
FLAG = Kind("true or false", "true", _flag)
PATHS = Kind("a list of paths and names", "['$.card', '*password*']", _names)
COUNT = Kind("a whole number", "10", _count)
SECONDS = Kind("a number of seconds, or a length of time", "30 or '5m'", _seconds)
NAMES = Kind("a list of names", "[a, b]", _names)

# What stands for a name that the user chooses.
EACH = "NAME"
# The names of settings in Stepflow's files, which are read as well.
STEPFLOW = {
    "checkIntervalSecs": "check_interval",
    "maxStartupRecovery": "max_startup",
    "maxClaimsPerCheck": "max_claims",
}

Section = Mapping[str, Any]
KEYS: Section = {
    "store": TEXT,
    "leases": TEXT,
    "name": TEXT,
    "module": TEXT,
    "durability": TEXT,
    "reuse": TEXT,
    "stream": TEXT,
    "max_concurrency": COUNT,
    "threads": COUNT,
    "serves": NAMES,
    "redact": PATHS,
    "recovery": {
        "enabled": FLAG,
        "check_interval": SECONDS,
        "max_startup": COUNT,
        "max_claims": COUNT,
        "lease": SECONDS,
        "grace": SECONDS,
        "quarantine": COUNT,
        "snapshot": COUNT,
    },
    "limits": {"blob": COUNT, "payload": COUNT, "history": COUNT},
    "retention": {"older_than": SECONDS, "statuses": NAMES, "every": SECONDS, "archive": TEXT},
    "queues": {EACH: {"concurrency": COUNT, "per_key": COUNT, "rate": {"count": COUNT, "per": SECONDS}}},
    "flows": {"python": NAMES, "http": NAMES, "shell": FLAG, "profile": TEXT, "workspaces": NAMES},
    "telemetry": {"metrics": FLAG, "spans": FLAG, "store_metrics": FLAG, "trace_gap": SECONDS},
    "storageConfig": {"type": TEXT, "databaseUrl": TEXT, "autoMigrate": FLAG, "maxConnections": COUNT},
    "leaseManager": {
        "type": TEXT,
        "endpoints": NAMES,
        **dict.fromkeys(("prefix", "user", "password", "ca", "cert", "key"), TEXT),
    },
}


def read_section(section: Section, data: Any, source: Source, path: Path = ()) -> dict[str, Any]:
    """The settings that data gives, by their names. Refuses what is unknown."""
    if data is not None and not isinstance(data, dict):
        reason = f"{'.'.join(path) or 'the file'} holds settings by their names, and this is {_type(data)}"
        raise InvalidSettings(source.where(path), reason)
    values: dict[str, Any] = {}
    word: str
    for word, item in (data or {}).items():
        name = word if word in section or EACH in section else STEPFLOW.get(word, word)
        where = source.where((*path, word))
        if name not in section and EACH not in section:
            inside = f"{'.'.join(path)} has" if path else "there is"
            near = get_close_matches(word, [*section, *(old for old, new in STEPFLOW.items() if new in section)], 1)
            raise InvalidSettings(where, f"{inside} no setting {word!r}; {suggest(word, near or section)}")
        inner = (*path, name)
        if name in values:
            raise InvalidSettings(where, f"{'.'.join(inner)} is given twice, under both of its names")
        key = section[EACH] if EACH in section else section[name]
        if isinstance(key, Kind):
            values[name] = read_value(key, item, inner, where)
        else:
            values[name] = read_section(key, item, source, inner)
    return values


def read_value(kind: Kind, value: Any, path: Path, where: str, *, spoken: bool = False) -> Any:
    """The value of a setting. Refuses one of another kind."""
    found = kind.read(value, spoken)
    if found is None:
        is_ = "something else" if spoken else _type(value)
        reason = f"{'.'.join(path)} is {kind.words}, such as {kind.example}; this is {is_}"
        raise InvalidSettings(where, reason)
    return found


def _type(value: Any) -> str:
    return TYPES.get(type(value), "empty" if value is None else type(value).__name__)
