"""Flows in canonical form: what they mean stays, comments stay, and a second time changes nothing."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.authoring.flow.formatting import as_yaml, formatted
from perdure.authoring.flow.tree import Mark, Problems, made, read
from perdure.errors import FlowInvalid, UsageError
from perdure.flow import load_flow
from tests.flow.test_fuzz import PIECES, SEED

WRITTEN = """\
# yaml-language-server: $schema=flow.schema.json

# The nightly flow.
name: "nightly"
perdure: 1   # the version


steps:
  # First comes the first.
  - use: 'value'   # a component
    # The name.
    id: a
    with:
        x:   [1,   2]   # numbers
        'y': "yes"
        z: 'plain text'
        code: |   # Python
          a = 1

          b = 2
        none:
        folded: >-
          one
          line
  - {id: b, use: value, with: {expression: "${{ steps.a.x }}",
      long: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}}

  - id: c
    use: shell
    with: {argv: [ls, # list
      "-l", "#no comment"]}
output: ${{ steps.b }}  # the result
# the end
"""
CANONICAL = """\
# yaml-language-server: $schema=flow.schema.json

# The nightly flow.
perdure: 1  # the version
name: nightly

steps:
  # First comes the first.
  # The name.
  - id: a
    use: value  # a component
    with:
      x: [1, 2]  # numbers
      y: "yes"
      z: plain text
      code: |  # Python
        a = 1

        b = 2
      none: null
      folded: one line
  - id: b
    use: value
    with:
      expression: ${{ steps.a.x }}
      long: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa

  - id: c
    use: shell
    with: {argv: [ls, -l, "#no comment"]}  # list
output: ${{ steps.b }}  # the result
# the end
"""


def test_keys_have_an_order_quotes_are_where_they_are_needed_and_comments_stay(tmp_path: Path) -> None:
    found = formatted(WRITTEN.encode(), "flow.yaml")
    assert found == CANONICAL
    assert formatted(found.encode(), "flow.yaml") == found
    before, after = tmp_path / "a.yaml", tmp_path / "b.yaml"
    before.write_text(WRITTEN)
    after.write_text(found)
    assert load_flow(before).version == load_flow(after).version


def test_json_stays_json() -> None:
    data = b'{"steps": [{"use": "value", "id": "a", "with": "\xc3\xa4"}], "name": "n", "perdure": 1}'
    found = formatted(data, "flow.json")
    assert found.startswith('{\n  "perdure": 1,\n  "name": "n",\n  "steps": [\n    {\n      "id": "a",')
    assert "ä" in found
    assert formatted(found.encode(), "flow.json") == found


@pytest.mark.parametrize("text", ["perdure: [", "name: x\nsteps: []\n", "perdure: 1\na: &x 1\nb: *x\n", "", "- 1\n"])
def test_what_is_no_flow_is_refused(text: str) -> None:
    with pytest.raises(FlowInvalid):
        formatted(text.encode(), "flow.yaml")


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
ODD = ["yes", "1", "-1", "- a", "a: b", "a #b", "#", "${{ x }}", "a\nb", "a\n", " a", "a ", "|", "{", "\x85", "\u2028a"]
ODD += ["...", "---", "--- a", "0x1", "1:30", "~", "=", "<<", "a:", "!t", "%x", "@", "`", "\ta", "a\n\n b\n", "é", "🙂"]
ODD += ["\ufeff", "a\tb", "a\n\n", "\na", "a \nb", "a\n  b", "a,b", "[", "--", "-x", "True", "null", ""]
TEXTS = st.text(max_size=12) | st.sampled_from(ODD)
TREES = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def check_tree(value: Any) -> None:
    text = as_yaml(made({"perdure": 1, "steps": [{"with": value, "id": "a"}], "name": value}, Mark(1, 1)))
    assert read(text.encode(), "f.yaml", Problems("f.yaml")).plain() == {
        "perdure": 1,
        "name": value,
        "steps": [{"id": "a", "with": value}],
    }
    assert formatted(text.encode(), "f.yaml") == text


@given(TREES)
@settings(max_examples=25, deadline=None)
def test_every_value_is_read_as_it_was(value: Any) -> None:
    check_tree(value)


@pytest.mark.soak
@given(TREES)
@settings(max_examples=20_000, deadline=None)
def test_many_values_are_read_as_they_were(value: Any) -> None:
    check_tree(value)


def check_mutated(seeds: range) -> int:
    done = 0
    for seed in seeds:
        draw = random.Random(seed)
        text = draw.choice([SEED, WRITTEN, CANONICAL])
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(text) + 1)
            piece = draw.choice([draw.choice(PIECES), "# c", "\n", "\n\n", "  # d\n", "\n    # e\n"])
            text = text[:at] + piece + text[at:]
        try:
            found = formatted(text.encode(errors="surrogatepass"), "flow.yaml")
        except FlowInvalid:
            continue
        except UsageError as error:  # it would be changed
            raise AssertionError(f"seed {seed}: {error}\n{text}") from error
        done += 1
        assert formatted(found.encode(), "flow.yaml") == found, f"seed {seed}"
    return done


def test_what_is_in_canonical_form_stays_as_it_is() -> None:
    assert check_mutated(range(60)) > 10


@pytest.mark.soak
def test_many_that_are_in_canonical_form_stay_as_they_are() -> None:
    assert check_mutated(range(30_000)) > 5_000
