"""Where a run that failed goes on when it is tried again: right before what failed. Decides, never writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.errors import UsageError
from perdure.kernel.events import Batch, CancelRequested, RunFinished, RunStatus
from perdure.kernel.failures import Failure
from perdure.kernel.fork import Op, Point, at_end, end_of, numbered, ops


def retries(batches: Sequence[Batch]) -> list[Point]:
    """The points from which a run that failed or was cancelled may go on, those that keep more first.

    The last one always fits the code that failed. Those before it keep also what succeeded after something had failed,
    as in `gather(..., return_exceptions=True)`; they fit if nothing followed from that failure but the end of the run.
    """
    last = failed_at(batches)
    found, end = ops(batches), end_of(batches)
    failed = [op for op in found.values() if op.failed is not None and op.ended is not None and op.ended < end]
    first = min(map(_ended, failed), default=end)
    # What the program gave up, or waited for in vain, followed from the failure or from the time that went by.
    bound = any(op.given_up and first < _ended(op) < end for op in found.values())
    if not failed or bound or last.seq < first or any(op.kind not in ("step", "child") for op in failed):
        return [last]
    children = frozenset(op.path for op in failed if op.kind == "child")
    every = frozenset(op.path for op in failed if op.kind != "child" and not op.unknown)
    around = frozenset(path for path in children if any(op.startswith(f"{path}/") for op in last.anew))
    most = Point(end, every, reopened=children)
    return [most, Point(end, last.anew, reopened=around), last] if last.anew else [most, last]


def failed_at(batches: Sequence[Batch]) -> Point:
    """The point from which a run that failed or was cancelled goes on, with all that succeeded before it.

    Right before what failed, if an op did; right before somebody asked it to end, if it was cancelled; else, for an
    error of the program's own, where it stood.
    """
    found = ops(batches)
    point = _failed_at(batches, found)
    unknown = next((path for path in point.anew if found[path].unknown), None)
    if unknown is not None:
        raise UsageError(
            f"{unknown} runs at most once, and nobody can say whether it did; find out, and fork the run: with "
            f"set={{{unknown!r}: ...}} to say what came of it, or at={unknown!r} to have it called again"
        )
    undone = next((op.path for op in found.values() if "compensate:" in op.path and op.began >= point.seq), None)
    if undone is not None:
        raise UsageError(
            f"what it had done before it failed was undone ({undone}), so it cannot go on from there; start it "
            'again, with reuse="allow_if_failed", or fork it where you want it to go on'
        )
    return point


def _failed_at(batches: Sequence[Batch], found: Mapping[str, Op]) -> Point:
    finished = batches[-1].events[-1]
    assert isinstance(finished, RunFinished)
    if finished.status is RunStatus.CANCELLED:
        asked = [s for s, _, e in numbered(batches) if isinstance(e, CancelRequested) and not e.child]
        return Point(asked[0]) if asked else at_end(batches)
    end = end_of(batches)
    failures = [op for op in found.values() if op.failed is not None and op.ended is not None and op.ended < end]
    culprits = _culprits(failures, finished.error, found, end)
    if not culprits:
        return Point(end)
    return Point(min(map(_ended, culprits)), frozenset(op.path for op in culprits if op.kind != "child"))


def _culprits(failures: list[Op], error: Failure | None, found: Mapping[str, Op], end: int) -> list[Op]:
    """The ops whose failure became that of the run."""
    if error is None or error.type.endswith(".DeadlineExceeded"):
        return []
    same = [op for op in failures if op.failed is not None and _alike(op.failed, error)]
    if same:
        last = max(same, key=lambda op: op.ended or 0)
        if last.kind != "child":
            # What failed in a child is what failed, and the child with it.
            return [last]
        inner = [op for op in failures if op.path.startswith(f"{last.path}/")]
        return _culprits(inner, last.failed, found, last.ended or end) or [last]
    members = [culprit for one in error.errors for culprit in _culprits(failures, one, found, end)]
    if members:
        return members
    if error.cause is not None and (causes := _culprits(failures, error.cause, found, end)):
        return causes
    # What the body heard last before it failed is what it failed of, if that was a failure.
    last_heard = max((op for op in found.values() if op.ended is not None and op.ended < end), key=_ended, default=None)
    return [last_heard] if last_heard is not None and last_heard in failures else []


def _alike(failure: Failure, error: Failure) -> bool:
    return (failure.type, failure.message) == (error.type, error.message)


def _ended(op: Op) -> int:
    return -1 if op.ended is None else op.ended
