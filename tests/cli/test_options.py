"""What options say, in one way for all commands."""

from __future__ import annotations

import pytest

from perdure.cli.exits import Problem
from perdure.cli.options import age, seconds


@pytest.mark.parametrize(("text", "length"), [("4", 4.0), ("0.5", 0.5), ("4s", 4.0), ("2 h", 7200.0), ("0", 0.0)])
def test_a_duration_is_seconds_or_has_a_unit(text: str, length: float) -> None:
    assert seconds(text, "--grace") == length


@pytest.mark.parametrize("text", ["", "soon", "4x", "4 4", "1e400", "nan"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Problem, match=r"--grace '.*' is not a duration; write seconds, or a number with one of ms, s,"):
        seconds(text, "--grace")


def test_an_age_of_what_is_removed_needs_its_unit() -> None:
    assert age("30d", "--older-than") == 30 * 86_400
    with pytest.raises(Problem, match="would be seconds, and what is removed is gone; write 30s, or 30d"):
        age("30", "--older-than")
