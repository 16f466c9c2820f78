"""Find the program and version that executes a run. Never opens one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from perdure.errors import BrokenProgram, UnknownProgram, UnknownVersion, UsageError
from perdure.kernel.ids import BATCH, BUILT_IN, check_version, version_order

if TYPE_CHECKING:
    from perdure.kernel.program import Program


class Programs(Mapping[str, "Program"]):
    """Programs by name, in all their versions. As a mapping, the newest version of each name.

    With a program, its batches are here too, under its name with `[]`; they are not listed.

    Programs whose definitions are stored are put here in the versions that runs need: see engine/definitions.py.
    """

    __slots__ = ("_given", "_lacking", "_newest", "_unloaded", "_versions", "defined", "on_renewed")

    def __init__(
        self, programs: Iterable[Program] = (), lazy: Mapping[str, Callable[[], Program]] | None = None
    ) -> None:
        self._versions: dict[str, dict[str, Program]] = {}
        self._newest: dict[str, Program] = {}
        # Loaders of programs that are loaded when they are first needed, by name.
        self._unloaded: dict[str, Callable[[], Program]] = dict(lazy or {})
        # Called with a program right before it replaces an older definition.
        self.on_renewed: Callable[[Program], None] = lambda program: None
        # The names of programs whose definitions are stored.
        self.defined: set[str] = set()
        # Those of them that this process was given: a run that is started by name here begins with that version.
        self._given: set[str] = set()
        # Why a version could not be made of its definition, by name and version.
        self._lacking: dict[tuple[str, str], UnknownProgram | UnknownVersion] = {}
        for program in programs:
            self.add(program)

    def renew(self, program: Program) -> None:
        """Replace a program that was defined again: a notebook cell run twice, a module reloaded.

        The latest definition counts. Raises UsageError for a different program of this name and version.
        """
        versions = self._versions.get(program.name, {})
        known = versions.get(program.version)
        if known is None and program.definition:
            self.put(program, newest=False)
        if known is None or known is program:
            return
        here, there = known.defined, program.defined
        if here is None or there is None:
            return
        if here.place != there.place:
            raise UsageError(
                f"this engine has another program named {program.name!r}, of {here.source}, and this one is of "
                f"{there.source}. Give one of them another name, as in @workflow(name=...), or create a separate "
                "engine for it"
            )
        if here.number < there.number:
            self.on_renewed(program)
            versions[program.version] = program
            newest = versions[max(versions, key=version_order)]
            self._newest[program.name] = program if program.definition else newest

    def add(self, program: Program) -> None:
        """Register a program. Raises UsageError if another has its name and version."""
        versions = self._versions.setdefault(program.name, {})
        if versions.setdefault(program.version, program) is not program:
            raise UsageError(
                f"two programs are version {program.version!r} of {program.name!r}; give one another name or "
                f"another version: @workflow(name=..., version=...)"
            )
        self._newest[program.name] = versions[max(versions, key=version_order)]
        if program.definition:
            self.change(program)

    def change(self, program: Program) -> None:
        """Register a program with a definition: runs that are started by name alone begin with it from now on."""
        self.put(program, newest=True)
        self._given.add(program.name)

    def put(self, program: Program, *, newest: bool) -> None:
        """Register a program with a definition, unless it is known. `newest`: it is the latest of its name."""
        found = self._versions.setdefault(program.name, {}).setdefault(program.version, program)
        self.defined.add(program.name)
        self._lacking.pop((program.name, program.version), None)
        if newest:
            self._lacking.pop((program.name, ""), None)
            self._newest[program.name] = found
        else:
            self._newest.setdefault(program.name, found)

    def lacks(self, name: str, version: str) -> bool:
        """Whether a version of a program may be in the store and is not here, or the latest of its name is wanted."""
        name = name.removesuffix(BATCH)
        if not version:
            return name not in self._given and (name in self.defined or name not in self)
        return name not in self or (name in self.defined and version not in self.versions(name))

    def refuse(self, name: str, version: str, error: BrokenProgram | None = None) -> None:
        """Note that a version cannot be loaded from its definition here, or that there is none, until it is put."""
        self._lacking[name, version] = error or self._unknown(name, version)

    def _unknown(self, name: str, version: str) -> UnknownProgram | UnknownVersion:
        if not self._versions.get(name):
            return UnknownProgram(name, tuple(known for known in self if not known.startswith(BUILT_IN)))
        return UnknownVersion(name, version, tuple(sorted(self._versions[name], key=version_order)))

    def __getitem__(self, name: str) -> Program:
        if name.endswith(BATCH):
            return self[name.removesuffix(BATCH)].batch()
        if name in self._unloaded:
            self._load(name)
        return self._newest[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._newest if not self._unloaded else {**self._newest, **self._unloaded})

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str):
            name = name.removesuffix(BATCH)
        return name in self._newest or name in self._unloaded

    def is_loaded(self, name: str) -> bool:
        """Whether a program is here and need not be imported first."""
        return name.removesuffix(BATCH) in self._newest

    def __len__(self) -> int:
        return len(self._newest.keys() | self._unloaded.keys())

    def _load(self, name: str) -> None:
        """Load a program. If its loader raises, the next call tries again."""
        load = self._unloaded.get(name)
        if load is not None:
            program = load()
            del self._unloaded[name]
            self.add(program)

    def every(self) -> list[Program]:
        """All programs that are loaded, in all versions."""
        return [program for versions in self._versions.values() for program in versions.values()]

    def newest(self) -> list[Program]:
        """The programs that are loaded, each in its newest version."""
        return list(self._newest.values())

    def versions(self, name: str) -> tuple[str, ...]:
        """The versions of a program whose runs can continue here, accepted ones included; empty before it is loaded."""
        versions = self._versions.get(name.removesuffix(BATCH), {})
        accepted = (version for program in versions.values() for version in program.accepts)
        return tuple(sorted({*versions, *accepted}, key=version_order))

    def taken(self) -> list[str]:
        """The programs and versions whose runs can continue here, in the form of `ports.runs.takes`."""
        found: list[str] = []
        for name in self:
            if name.startswith(BUILT_IN):
                found.append(name)
                continue
            some = () if name in self.defined else self.versions(name)
            for one in (name, name + BATCH):
                found += [f"{one}:{version}" for version in ("", *some)] if some else [one]
        for name in sorted(self.defined.difference(found)):
            found += [name, name + BATCH]
        return found

    def find(self, name: str, version: str) -> Program:
        """The program for a run of this version: exactly that version, or the newest that accepts it.

        A run that was started by name only has no version, and gets the newest. Raises UnknownProgram or
        UnknownVersion.
        """
        if name in self._unloaded:
            self._load(name)
        versions = self._versions.get(name, {})
        if version in versions:
            return versions[version]
        if name.endswith(BATCH):
            return self.find(name.removesuffix(BATCH), version).batch()
        if (missing := self.missing(name, version)) is not None:
            raise missing
        if not version and name in self.defined and name in self._newest:
            return self._newest[name]  # versions of definitions are hashes, and have no order
        accepting = [known for known, program in versions.items() if not version or version in program.accepts]
        if not accepting:
            raise self._unknown(name, version)
        return versions[max(accepting, key=version_order)]

    def missing(self, name: str, version: str) -> UnknownProgram | UnknownVersion | None:
        """The error for a run of this version that cannot continue here; None if it can, or if that is not known."""
        base = name.removesuffix(BATCH)
        if base in self.defined:
            return self._lacking.get((base, version))
        if base in self and (base in self._unloaded or not version or version in self.versions(base)):
            return None
        return self._unknown(name, version)

    def serves(self, name: str, version: str) -> bool:
        """Whether there is a program for a run of this version."""
        try:
            self.find(name, version)
        except UsageError:
            return False
        return True


def check_accepts(accepts: Iterable[str], version: str, what: str) -> tuple[str, ...]:
    """Return the versions that a program takes over, or raise UsageError."""
    if isinstance(accepts, str | int):
        raise UsageError(f"{what}: accepts={accepts!r} is one version; write accepts=({str(accepts)!r},)")
    if not isinstance(accepts, Iterable) or isinstance(accepts, type | bytes):
        raise UsageError(f"{what}: accepts={accepts!r:.80}: name older versions in a tuple, as in accepts=('1',)")
    found = tuple(check_version(one, f"{what}: a version in accepts") for one in accepts)
    if version in found:
        raise UsageError(
            f"{what}: it is version {version!r} itself; accepts= lists the older versions whose runs it takes over"
        )
    return found
