"""Check whether a run would continue under new code. Replays its journal; executes and records nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

import msgspec

from perdure.errors import Diverged, NotDecodable
from perdure.kernel.commands import FINISH, Finish
from perdure.kernel.divergence.parked import parked_for
from perdure.kernel.divergence.recorder import explained, follow
from perdure.kernel.divergence.repair import Repairs
from perdure.kernel.divergence.source import Source
from perdure.kernel.divergence.undecodable import explain_narrowed
from perdure.kernel.events import Batch, RunClaimed, RunStarted, RunStatus
from perdure.kernel.misfits import narrowed
from perdure.kernel.policies.versions import Programs
from perdure.kernel.replay import Replay, open_replay
from perdure.kernel.values.codec import Codec


class Fit(StrEnum):
    """Whether a run can continue under the code."""

    SAFE = "safe"
    """It continues."""
    PATCH = "patch"
    """The code diverges from the journal; guard the change with `patched` to keep the run's path."""
    BREAKS = "breaks"
    """It would be parked or fail, and no patch helps: a program, version or migration is missing, or there is a bug."""


class Compatibility(msgspec.Struct, frozen=True):
    """How one run fits, and the reason if it does not."""

    fit: Fit
    reason: str = ""
    # What is wrong, in one word and in one line, and the line of the code.
    kind: str = ""
    title: str = ""
    source: str = ""


SAFE = Compatibility(Fit.SAFE)


def check_compatibility(
    programs: Programs,
    codec: Codec,
    run_id: str,
    started: RunStarted,
    batches: Sequence[Batch],
    repairs: Repairs | None = None,
    sources: Mapping[str, Source] = MappingProxyType({}),
) -> Compatibility:
    """Replay a journal, with its large values in place. Errors of the code become the reason, and are not raised.

    With `repairs`, a divergence is explained with one that was tried; `sources` are those that the run had.
    """
    try:

        def opened(kind: type[Replay]) -> Replay:
            return open_replay(programs, run_id, started, codec, batches, kind=kind)

        replay = follow(opened, batches, programs, other_code=True)
        try:
            if replay.state.epoch == 0:
                # The run is still queued: claim it in memory to see whether it can begin.
                try:
                    replay.fold(RunClaimed("", 1), batches[-1].at)
                except NotDecodable as error:
                    raise explained(error, opened, batches, programs) from None
            end = replay.wishes.get(FINISH)
            waits = [] if repairs is None else list(narrowed(replay.state))
        finally:
            replay.close()
    except Exception as error:
        if repairs is not None:
            error = repairs.repaired(
                error, batches, sources, lambda others: fits(others, codec, run_id, started, batches)
            )
        return _misfit(error)
    if isinstance(end, Finish) and end.status is RunStatus.FAILED and end.error is not None:
        # The old code did not fail here, or the journal would hold the failure.
        title = f"it would fail as soon as it goes on: {end.error.type}: {end.error.message}"
        return Compatibility(Fit.BREAKS, f"{title}\n{end.error.traceback}".rstrip(), "fails", title)
    for op, wait in waits:
        program = programs.find(started.program, started.version)
        found = explain_narrowed(op, wait, program.source_map())
        return Compatibility(Fit.BREAKS, str(found), found.change, found.title, wait.source)
    return SAFE


def fits(programs: Programs, codec: Codec, run_id: str, started: RunStarted, batches: Sequence[Batch]) -> bool:
    """Whether a run would continue."""
    return check_compatibility(programs, codec, run_id, started, batches).fit is Fit.SAFE


def _misfit(error: Exception) -> Compatibility:
    """Why a run would be parked."""
    parked = parked_for(error)
    divergence = parked.divergence
    if divergence is None:
        return Compatibility(Fit.BREAKS, parked.reason, parked.kind, parked.reason.partition("\n")[0])
    now = divergence.current or divergence.last
    source = (now.source if now is not None else "") or divergence.recorded.source
    fit = Fit.PATCH if isinstance(error, Diverged) or divergence.patch else Fit.BREAKS
    return Compatibility(fit, parked.reason, divergence.change, " ".join(divergence.title.split()), source)
