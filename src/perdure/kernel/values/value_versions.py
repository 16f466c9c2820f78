"""Types with a version, and the migration of stored values from older versions. Never decodes a type itself.

A value of such a type is stored with its version beside its fields, under the key `$version`; a value without the key
has version 1. Migrations convert plain data, one version at a time.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, TypeVar

from perdure.errors import UsageError
from perdure.kernel.ids import check_version
from perdure.kernel.ids import version_order as order
from perdure.kernel.values.raised import brief, pressed

T = TypeVar("T")
F = TypeVar("F", bound=Callable[[Any], Any])

VERSION = "$version"
FIRST = "1"
# The attribute of a type that holds its declared versions.
_DECLARED = "__perdure_versions__"
VERSION_KEY = b'"$version":'
_MARK = re.compile(re.escape(VERSION_KEY) + rb'("[^"]*")')


class Versions:
    """The current version of one type, and the migrations from older ones."""

    # Whether any type of this process has a version; only then does a codec search values for them. The flag affects
    # speed, never what is stored. It belongs to the process, because types do: a codec could only find out by walking
    # each value (1 µs for a small one, and many times the cost of encoding for a list).
    anywhere = False

    __slots__ = ("current", "migrations", "renamed")

    def __init__(self, current: str = "") -> None:
        self.current = current
        # The former names of fields, in every older version; None: nothing is said about them.
        self.renamed: Mapping[str, str] | None = None
        self.migrations: dict[str, Callable[[Any], Any]] = {}

    @property
    def version(self) -> str:
        """The version with which values are stored now."""
        if self.current:
            return self.current
        return str(int(max(self.migrations, key=order)) + 1)

    def current_form(self, cls: type, value: Any) -> Any:
        """Migrate plain data of any version to the current one; raises CannotMigrate if no migration leads there."""
        if not isinstance(value, dict):
            raise CannotMigrate(f"Expected `object`, got `{type(value).__name__}`")
        found, name = str(value.get(VERSION, FIRST)), cls.__qualname__
        value = {key: item for key, item in value.items() if key != VERSION}
        if found == self.version:
            return value
        steps = sorted((v for v in self.migrations if order(v) >= order(found)), key=order)
        if found not in steps and (self.renamed is None or order(found) > order(self.version)):
            cure = (
                f"write one: @migrates({name}, from_={found!r})"
                if order(found) < order(self.version)
                else "deploy the code that wrote it, or newer"
            )
            raise CannotMigrate(f"it is version {found} of {name}, and nothing leads to {self.version}; {cure}")
        for version in steps:
            migration = self.migrations[version]
            try:
                value = migration(value)
            except BaseException as error:
                if pressed(error):
                    raise
                where = f"{migration.__qualname__}, from version {version} of {name}"
                raise CannotMigrate(f"the migration {where}, failed: {brief(error)}") from error
        if self.renamed and isinstance(value, dict):
            for name, former in self.renamed.items():
                if former in value and name not in value:
                    value[name] = value.pop(former)
        return value


class CannotMigrate(ValueError):
    """There is no migration for the version of a stored value, or it failed."""


def versioned(version: str, *, renamed_from: Mapping[str, str] | None = None) -> Callable[[type[T]], type[T]]:
    """Declare the version of a type: `@versioned("2")`, above a dataclass, a Struct or a pydantic model.

    Values are stored with it. A stored value without a version has version "1". `renamed_from` tells the former names
    of fields: with `{"amount": "cents"}` a value of an older version that has `cents` is read as if it had `amount`,
    without a migration. `{}` says that no field was renamed.
    """
    current = check_version(version, "the version of a type")
    texts = [part for pair in (renamed_from or {}).items() for part in pair]
    if not isinstance(renamed_from, Mapping | None) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"renamed_from={renamed_from!r}: write {{'new name': 'former name'}}")

    def declare(cls: type[T]) -> type[T]:
        if not isinstance(cls, type):
            raise UsageError(f"@versioned({current!r}) goes above a class, not {cls!r}")
        fields = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
        unknown = sorted(set(renamed_from or ()) - fields)
        if unknown:
            raise UsageError(f"renamed_from names {unknown[0]!r}, and {cls.__qualname__} has no such field")
        versions = versions_to_change(cls)
        versions.current, versions.renamed = current, renamed_from
        return cls

    return declare


def migrates(cls: type, *, from_: str) -> Callable[[F], F]:
    """Declare a migration from one version of a type to the next: `@migrates(Order, from_="1")`.

    The function takes a stored value as plain data and returns plain data of the next version: the next one that has a
    migration, or the current one. It must be deterministic. Without `@versioned`, the current version of a type is one
    more than its last migration.
    """
    if not isinstance(cls, type):
        raise UsageError(f"migrates() needs a class, not {cls!r}")
    version = check_version(from_, "from_")
    versions = versions_to_change(cls)
    if not versions.current and not version.isdecimal():
        raise UsageError(
            f"from_={version!r} is not a whole number, so the next version is not known; say which version "
            f"{cls.__qualname__} has now, with @versioned(...) above it"
        )
    if versions.current and order(version) >= order(versions.current):
        raise UsageError(
            f"{cls.__qualname__} is version {versions.current} now, and a migration leads on from an older one; "
            f"write @versioned(...) with a version after {version}"
        )

    def register(function: F) -> F:
        other = versions.migrations.setdefault(version, function)
        if other is not function and other.__code__ is not getattr(function, "__code__", None):
            raise UsageError(
                f"two functions migrate {cls.__qualname__} from version {version}: {other.__qualname__} and "
                f"{function.__qualname__}; keep one"
            )
        return function

    return register


def versions_of(cls: type) -> Versions | None:
    """The versions declared for a type itself; they are not inherited."""
    found = cls.__dict__.get(_DECLARED)
    return found if isinstance(found, Versions) else None


def versions_to_change(cls: type) -> Versions:
    """The versions of a type, created if it has none."""
    found = versions_of(cls)
    if found is None:
        found = Versions()
        setattr(cls, _DECLARED, found)
        Versions.anywhere = True
    return found


# --- inputs whose types have changed --------------------------------------------------------------------------------


def versions_in(data: bytes) -> str:
    """A short fingerprint of the versions in encoded inputs; empty when there are none."""
    found = _MARK.findall(data)
    return "~" + blake2b(b",".join(found), digest_size=3).hexdigest() if found else ""
