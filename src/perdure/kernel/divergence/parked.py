"""Why a run is parked that the code at hand cannot continue: the same words before a deploy and after it."""

from __future__ import annotations

from perdure.errors import BrokenProgram, Diverged, NotDecodable, PerdureError, UnknownProgram, UnknownVersion
from perdure.kernel.events import RunParked

_NO_PROGRAM = (
    "If it was renamed, keep the old name: @workflow(name={!r}). The run continues by itself when an engine\nhas it."
)
_UNDECODABLE = (
    "It was stored by other code. Let the type accept it (a field with a default, a union with the old\n"
    "type), or put the old type back. The run then continues by itself."
)


def parked_for(error: Exception) -> RunParked:
    """The event that parks a run for an error."""
    if isinstance(error, Diverged):
        return RunParked(str(error), "diverged", error.divergence)
    if isinstance(error, BrokenProgram):
        return RunParked(str(error), "no_program")
    if isinstance(error, UnknownProgram):
        return RunParked(f"{error}\n\n{_NO_PROGRAM.format(error.name)}", "no_program")
    if isinstance(error, UnknownVersion):
        return RunParked(str(error), "no_version")
    if isinstance(error, NotDecodable):
        reason = str(error) if error.divergence is not None else f"{error}\n\n{_UNDECODABLE}"
        return RunParked(reason, "undecodable", error.divergence)
    # The loaded code does not explain it.
    return RunParked(str(error) if isinstance(error, PerdureError) else f"{type(error).__name__}: {error}", "damaged")
