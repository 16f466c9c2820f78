"""Which lines of its source a run has executed, and how often: found out by replay. Performs nothing."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any

from perdure.authoring.code.frames import end_of
from perdure.authoring.code.loop import short
from perdure.kernel.events import Batch, RunStarted
from perdure.kernel.policies.versions import Programs
from perdure.kernel.replay import open_replay
from perdure.kernel.values.codec import Codec


def executed_lines(
    programs: Programs,
    codec: Codec,
    run_id: str,
    started: RunStarted,
    batches: Sequence[Batch],
    at: str | int | None = None,
) -> dict[str, Counter[int]]:
    """How often each line was executed, by file, in a replay up to an op or an event; steps are not executed.

    Drives bodies, so call it from no task: from a thread of its own, whose trace function it sets meanwhile.
    """
    found: dict[str, Counter[int]] = {}
    files = _files(programs)

    # By the file name of code: how it is shown; None for code that is no program's.
    shown: dict[str, str | None] = {}

    def lines(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            found[shown[frame.f_code.co_filename] or ""][frame.f_lineno] += 1
        return lines

    def calls(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in shown:
            file = short(name)
            shown[name] = file if file in files else None
            if file in files:
                found.setdefault(file, Counter())
        return lines if shown[name] is not None else None

    end = end_of(batches, at)
    before = sys.gettrace()
    sys.settrace(calls)
    try:
        replay = open_replay(programs, run_id, started, codec, batches)
        try:
            for batch in batches:
                for seq, event in enumerate(batch.events, batch.seq):
                    if seq < end:
                        replay.fold(event, batch.at)
        finally:
            sys.settrace(before)
            replay.close()
    finally:
        sys.settrace(before)
    return found


def _files(programs: Programs) -> set[str]:
    """The files of all programs."""
    return {part.file for program in programs.every() for part in program.source().parts}
