"""For tests of workflows and of stores: replay of recorded runs, crashes, virtual time, conformance suites.

Names are loaded when they are first used: pytest imports this package for its plugin in every project.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.testing.crash_trials import Interleavings, Survived, crash_everywhere, interleavings
    from perdure.testing.replaying import Replaying, Stop, replay

__all__ = ["Interleavings", "Replaying", "Stop", "Survived", "crash_everywhere", "interleavings", "replay"]

_HOMES = {
    **dict.fromkeys(("Replaying", "Stop", "replay"), "perdure.testing.replaying"),
    **dict.fromkeys(("Interleavings", "Survived", "crash_everywhere", "interleavings"), "perdure.testing.crash_trials"),
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'perdure.testing' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value
