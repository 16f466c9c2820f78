"""Check whether a run would continue under new code. Replays its journal; executes and records nothing."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import TypeGuard

import msgspec

from perdure.errors import Diverged, NotDecodable, PerdureError
from perdure.kernel.commands import FINISH, Command, Finish
from perdure.kernel.divergence.parked import parked_for
from perdure.kernel.divergence.recorder import explained, follow, follow_parts
from perdure.kernel.divergence.repair import Repairs
from perdure.kernel.divergence.source import Source
from perdure.kernel.divergence.undecodable import explain_narrowed
from perdure.kernel.events import Batch, RunClaimed, RunStarted, RunStatus, WaitResolved
from perdure.kernel.misfits import narrowed
from perdure.kernel.parts import result_of
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
    """Whether one run fits, and the reason if it does not."""

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
            return open_replay(programs, run_id, started, codec, batches, kind=kind, sources=sources)

        replay = follow(opened, batches, programs, other_code=True)
        try:
            if replay.state.epoch == 0:
                # The run is still queued: claim it in memory to see whether it can begin.
                try:
                    replay.fold(RunClaimed("", 1), batches[-1].at)
                except NotDecodable as error:
                    raise explained(error, opened, batches, programs) from None
            _deliver(replay, batches[-1].at)
            end, unfit = replay.pending.get(FINISH), _unfit_next(replay)
            waits = [] if repairs is None else list(narrowed(replay.state))
        finally:
            replay.close()
    except Exception as error:
        if repairs is not None:
            error = repairs.repaired(
                error,
                batches,
                sources,
                lambda others: result_of(fit_parts(others, codec, run_id, started, batches, sources)),
            )
        return _misfit(error)
    if _fails(end) and end.error is not None:
        # The old code did not fail here, or the journal would hold the failure.
        title = f"it would fail as soon as it continues: {end.error.type}: {end.error.message}"
        return Compatibility(Fit.BREAKS, f"{title}\n{end.error.traceback}".rstrip(), "fails", title)
    if unfit is not None:
        title = f"it would fail as soon as it continues: {unfit}"
        return Compatibility(Fit.BREAKS, title, "fails", title)
    for op, wait in waits:
        program = programs.find(started.program, started.version)
        found = explain_narrowed(op, wait, program.source_map())
        return Compatibility(Fit.BREAKS, str(found), found.change, found.title, wait.source)
    return SAFE


def fit_parts(
    programs: Programs,
    codec: Codec,
    run_id: str,
    started: RunStarted,
    batches: Sequence[Batch],
    sources: Mapping[str, Source] = MappingProxyType({}),
) -> Generator[None, None, bool]:
    """Whether a run would continue, with a pause after each part of its journal."""
    try:
        opened = partial(open_replay, programs, run_id, started, codec, batches, lambda program: None, sources=sources)
        replay = yield from follow_parts(opened, batches, other_code=True)
        try:
            if replay.state.epoch == 0:
                replay.fold(RunClaimed("", 1), batches[-1].at)
            _deliver(replay, batches[-1].at)
            replay.check_next()
            return not _fails(replay.pending.get(FINISH))
        finally:
            replay.close()
    except Exception:
        return False


def _deliver(replay: Replay, at: float) -> None:
    """Give a run the signals that have arrived for it, as its next owner does."""
    while (op := replay.state.next_delivery) is not None:
        replay.fold(WaitResolved(op, by="signal"), at)


def _unfit_next(replay: Replay) -> PerdureError | None:
    """Why something that a run asks for next cannot be called with its arguments, if so."""
    try:
        replay.check_next()
    except NotDecodable as error:
        return error
    except PerdureError:
        return None  # the program of a child is missing here: it is looked for when the child begins
    return None


def _fails(end: Command | None) -> TypeGuard[Finish]:
    """Whether a run would fail as soon as it continues."""
    return isinstance(end, Finish) and end.status is RunStatus.FAILED and end.error is not None


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
