"""What happens when an id is used again."""

from __future__ import annotations

import pytest

from perdure.kernel.events import RunStatus
from perdure.kernel.policies.start_options import Decision, Reuse, decide

OPEN = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING, RunStatus.PAUSED, RunStatus.PARKED)
LOST = (RunStatus.FAILED, RunStatus.CANCELLED)
WON = (RunStatus.COMPLETED, RunStatus.BAILED)


@pytest.mark.parametrize("reuse", ["return_existing", "reject_duplicate", "allow_if_failed", "terminate_running"])
def test_an_id_that_was_never_used_makes_a_run(reuse: Reuse) -> None:
    assert decide(reuse, None) == "create"


@pytest.mark.parametrize(
    ("reuse", "open", "lost", "won"),
    [
        ("return_existing", "return", "return", "return"),
        ("reject_duplicate", "reject", "reject", "reject"),
        ("allow_if_failed", "reject", "create", "reject"),
        ("terminate_running", "replace", "create", "create"),
    ],
)
def test_the_policy_decides_by_the_status_of_the_existing_run(
    reuse: Reuse, open: Decision, lost: Decision, won: Decision
) -> None:
    assert {decide(reuse, status) for status in OPEN} == {open}
    assert {decide(reuse, status) for status in LOST} == {lost}
    assert {decide(reuse, status) for status in WON} == {won}


def test_every_status_is_covered() -> None:
    assert {*OPEN, *LOST, *WON} == set(RunStatus)
    assert {status for status in RunStatus if status.finished} == {*LOST, *WON}


@pytest.mark.parametrize("existing", [None, RunStatus.RUNNING])
def test_a_policy_that_does_not_exist_is_refused(existing: RunStatus | None) -> None:
    with pytest.raises(ValueError, match="'return_existing', 'reject_duplicate'"):
        decide("replace", existing)  # type: ignore[arg-type]
