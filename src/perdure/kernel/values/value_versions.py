"""Types of values that have a version, and how a stored value of an older one becomes a value of today.

A value of such a type is stored with its version beside its fields, under the key `$version`; one without the key is of
version 1. Migrations take and give plain data, one version at a time. Never decodes a type itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
# Where a type keeps what is declared about it: it is a property of the type, and goes where the type goes.
_DECLARED = "__perdure_versions__"
VERSION_KEY = b'"$version":'
_MARK = re.compile(re.escape(VERSION_KEY) + rb'("[^"]*")')


class Versions:
    """What is declared about one type: the version of its values today, and the ways there from older ones."""

    # Whether any type of this process has a version: only then is it worth looking for them in every value. A type is
    # the process's and not a codec's, and so is this. A codec of its own would have to find out by looking (1 µs for a
    # small value, and many times what encoding takes for a list), or from annotations, which a value in a signal has
    # none of: it would be stored without its version. It says nothing about what is stored, only how fast.
    anywhere = False

    __slots__ = ("current", "migrations")

    def __init__(self, current: str = "") -> None:
        self.current = current
        self.migrations: dict[str, Callable[[Any], Any]] = {}

    @property
    def version(self) -> str:
        """The version of values that are written now."""
        if self.current:
            return self.current
        return str(int(max(self.migrations, key=order)) + 1)

    def current_form(self, cls: type, value: Any) -> Any:
        """Plain data of any version as plain data of today; raises CannotMigrate where there is no way."""
        if not isinstance(value, dict):
            raise CannotMigrate(f"Expected `object`, got `{type(value).__name__}`")
        found, name = str(value.get(VERSION, FIRST)), cls.__qualname__
        value = {key: item for key, item in value.items() if key != VERSION}
        if found == self.version:
            return value
        steps = sorted((v for v in self.migrations if order(v) >= order(found)), key=order)
        if found not in steps:
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
        return value


class CannotMigrate(ValueError):
    """A stored value is of a version that nothing leads on from, or what leads on from it failed."""


def versioned(version: str) -> Callable[[type[T]], type[T]]:
    """Say which version of a type the code has: `@versioned("2")`, above a dataclass, a Struct or a pydantic model.

    Values are stored with it. A stored value that has none is of version "1".
    """
    current = check_version(version, "the version of a type")

    def declare(cls: type[T]) -> type[T]:
        if not isinstance(cls, type):
            raise UsageError(f"@versioned({current!r}) goes above a class, not {cls!r}")
        versions_to_change(cls).current = current
        return cls

    return declare


def migrates(cls: type, *, from_: str) -> Callable[[F], F]:
    """Make a function the way from one version of a type to the next: `@migrates(Order, from_="1")`.

    It takes a stored value as plain data and returns it as the next version has it: the next that a migration leads on
    from, or the version of today. It must depend on nothing else. Without `@versioned`, a type is one whole number
    further than its last migration.
    """
    if not isinstance(cls, type):
        raise UsageError(f"migrates() needs a class, not {cls!r}")
    version = check_version(from_, "from_")
    versions = versions_to_change(cls)
    if not versions.current and not version.isdecimal():
        raise UsageError(
            f"from_={version!r} is no whole number, so what follows it is not known; say which version "
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
    """What is declared about a type itself; nothing is inherited."""
    found = cls.__dict__.get(_DECLARED)
    return found if isinstance(found, Versions) else None


def versions_to_change(cls: type) -> Versions:
    """What is declared about a type, to declare more."""
    found = versions_of(cls)
    if found is None:
        found = Versions()
        setattr(cls, _DECLARED, found)
        Versions.anywhere = True
    return found


# --- inputs whose types have moved on -------------------------------------------------------------------------------


def versions_in(data: bytes) -> str:
    """A short fingerprint of the versions in encoded inputs; empty when there are none."""
    found = _MARK.findall(data)
    return "~" + blake2b(b",".join(found), digest_size=3).hexdigest() if found else ""


def same_inputs(recorded: str, current: str) -> bool:
    """Whether two fingerprints may be of the same inputs: with values of other versions, nobody can tell."""
    return recorded == current or recorded.partition("~")[2] != current.partition("~")[2]
