"""Applying a unified diff."""

from __future__ import annotations

from difflib import unified_diff

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.kernel.divergence.patching import DoesNotApply, apply_diff

LINES = st.lists(st.sampled_from(["a", "b", "  c", "", "--- d", "+++ e", "@@ f", "-g", "+h"]), max_size=12)


@given(LINES, LINES, st.integers(0, 3))
def test_the_diff_of_two_texts_makes_one_of_the_other(old: list[str], new: list[str], context: int) -> None:
    diff = "\n".join(unified_diff(old, new, "x", "x", n=context, lineterm=""))
    if old != new:
        assert apply_diff("\n".join(old) + "\n" if old else "", diff).splitlines() == (new or [""])


def test_a_text_with_other_lines_is_refused() -> None:
    diff = "\n".join(unified_diff(["a", "b", "c"], ["a", "x", "c"], "f", "f", lineterm=""))
    with pytest.raises(DoesNotApply, match="line 2 is not 'b'"):
        apply_diff("a\nB\nc\n", diff)
    with pytest.raises(DoesNotApply):
        apply_diff("a\n", diff)
