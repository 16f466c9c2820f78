"""Resources of steps: pools, clients, models. Looked up by name in the process that runs the step, never stored."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perdure.errors import NoSuchResource, UsageError

# How another process finds a factory: its module and name; None if it cannot.
Place = tuple[str, str] | None


class PerProcess:
    """A resource that each process creates once, when it is first needed."""

    __slots__ = ("factory",)

    def __init__(self, factory: Callable[[], Any]) -> None:
        self.factory = factory

    @property
    def place(self) -> Place:
        """Where another process finds the factory."""
        module, name = getattr(self.factory, "__module__", None), getattr(self.factory, "__qualname__", "<")
        return None if module is None or "<" in name else (module, name)


def per_process(factory: Callable[[], Any]) -> Any:
    """A resource that each process creates when a step first needs it: `{"model": per_process(load_model)}`.

    It works in `cpu=True` steps too; for them the factory must be a module-level function.
    """
    if not callable(factory):
        raise UsageError(f"per_process() takes a function that creates the resource, not {factory!r}")
    return PerProcess(factory)


class Resources(Mapping[str, Any]):
    """The resources of an engine, by name."""

    def __init__(self, given: Mapping[str, Any] | None = None, elsewhere: Mapping[str, Place] | None = None) -> None:
        self._given = dict(given or {})
        # In a process that runs steps for an engine: the names that the engine has, and their factories.
        self._elsewhere = dict(elsewhere or {})
        # The factories of resources that have been created.
        self._factories: dict[str, PerProcess] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Any:
        if name not in self._given:
            raise self._missing(name)
        found = self._given[name]
        if type(found) is PerProcess:
            with self._lock:  # steps in several threads may need it at the same time
                if type(found := self._given[name]) is PerProcess:
                    self._factories[name] = found
                    found = self._given[name] = found.factory()
        return found

    def __iter__(self) -> Iterator[str]:
        return iter({**self._given, **self._elsewhere})

    def __len__(self) -> int:
        return len({**self._given, **self._elsewhere})

    def places(self) -> dict[str, Place]:
        """The factories by name, for another process."""
        return {name: self._place(name, value) for name, value in self._given.items()}

    def _place(self, name: str, value: Any) -> Place:
        factory = value if type(value) is PerProcess else self._factories.get(name)
        return factory.place if factory is not None else None

    def _missing(self, name: str) -> NoSuchResource:
        if name in self._elsewhere:
            return NoSuchResource(
                name,
                "is in the engine's process, and this step runs in another one (cpu=True, or an executor of its own); "
                f"write Engine(resources={{{name!r}: per_process(make)}}) with a function at the top of a module, or "
                "make it a step without cpu=True",
            )
        has = f"it has {', '.join(sorted(self))}" if len(self) else "it has none"
        return NoSuchResource(name, f"is none of this engine's ({has}); add it: Engine(resources={{{name!r}: ...}})")


def resources_of(given: Mapping[str, Any] | None) -> Resources:
    """The resources of `Engine(resources=...)`, checked."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"Engine(resources=...) takes a dict of names and resources, not {given!r:.80}")
    for name in given or ():
        if not isinstance(name, str) or not name:
            raise UsageError(
                f"Engine(resources={{...}}): {name!r} is not a name of a resource; use a text, such as 'db'"
            )
    return Resources(given)


# Resources that this process created for steps of an engine in another process. Kept as long as the process lives, so
# that a large model is loaded once and not for each step.
_MADE: dict[str, Resources] = {}


def resources_here(places: Mapping[str, Place]) -> Resources:
    """The resources of an engine in another process that this process can create."""
    key = repr(sorted(places.items()))
    found = _MADE.get(key)
    if found is None:
        made = {name: PerProcess(_factory(*place)) for name, place in places.items() if place is not None}
        found = _MADE[key] = Resources(made, places)
    return found


def _factory(module: str, name: str) -> Callable[[], Any]:
    def make() -> Any:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found()

    return make
