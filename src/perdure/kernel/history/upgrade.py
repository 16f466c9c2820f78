"""Tell whether a run fits code that it has not met yet. Replays its journal; executes nothing, records nothing."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from perdure.errors import Diverged, PerdureError
from perdure.kernel.commands import FINISH, Finish
from perdure.kernel.divergence.recorder import Tracing, explained, follow
from perdure.kernel.events import Batch, RunClaimed, RunStarted, RunStatus
from perdure.kernel.policies.versions import Programs
from perdure.kernel.replay import open_replay
from perdure.kernel.values.codec import Codec


class Fit(StrEnum):
    """How a run and the code go together."""

    SAFE = "safe"
    """It would go on."""
    PATCH = "patch"
    """The code no longer does what the run has done; guarded with `patched`, the run would keep its path."""
    BREAKS = "breaks"
    """It would be parked or fail, and no patch helps: a program, a version or a migration is missing, or a bug."""


class Verdict(msgspec.Struct, frozen=True):
    """What is known of one run, and why where it does not fit."""

    fit: Fit
    reason: str = ""


SAFE = Verdict(Fit.SAFE)


def judge(programs: Programs, codec: Codec, run_id: str, started: RunStarted, batches: Sequence[Batch]) -> Verdict:
    """Replay a journal, with its values in place, to its end. Raises nothing that the code brings about."""
    try:
        replay = open_replay(programs, run_id, started, codec, batches)
        try:
            follow(replay, batches)
            if replay.state.epoch == 0:
                # It has not begun: see whether it could.
                replay.fold(RunClaimed("", 1), batches[-1].at)
            end = replay.wishes.get(FINISH)
        finally:
            replay.close()
    except Diverged as error:
        trace = open_replay(programs, run_id, started, codec, batches, kind=Tracing)
        told = explained(error, trace, batches, programs)
        return Verdict(Fit.PATCH if isinstance(told, Diverged) else Fit.BREAKS, str(told))
    except Exception as error:
        return Verdict(Fit.BREAKS, str(error) if isinstance(error, PerdureError) else f"{_name(error)}: {error}")
    if isinstance(end, Finish) and end.status is RunStatus.FAILED and end.error is not None:
        # A failure of the code it was written by would be in the journal.
        what = f"{end.error.type}: {end.error.message}\n{end.error.traceback}".rstrip()
        return Verdict(Fit.BREAKS, f"it would fail as soon as it goes on: {what}")
    return SAFE


def _name(error: Exception) -> str:
    return type(error).__name__
