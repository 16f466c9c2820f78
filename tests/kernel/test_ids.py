"""Names: run ids that sort by age, valid ids, stable op paths and keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidId
from perdure.kernel.ids import MAX_ID, check_id, check_name, derived_uuid, inputs_hash, op_name, run_id, step_key

MOMENTS = st.floats(0, 4e9, allow_nan=False)


@given(MOMENTS, MOMENTS, st.integers(0, 2**52 - 1), st.integers(0, 2**52 - 1))
def test_run_ids_sort_by_age(one: float, other: float, entropy: int, more: int) -> None:
    if int(one * 1000) < int(other * 1000):
        assert run_id(one, entropy) < run_id(other, more)


@given(MOMENTS, st.integers(0, 2**64))
def test_run_ids_have_one_length_and_plain_characters(now: float, entropy: int) -> None:
    made = run_id(now, entropy)
    assert len(made) == 16
    assert made.isascii()
    assert made.isalnum()
    assert made == made.lower()
    assert check_id(made) == made


@given(MOMENTS, st.integers(0, 2**36 - 1), st.integers(0, 2**36 - 1))
def test_run_ids_of_one_moment_differ_by_their_entropy(now: float, entropy: int, more: int) -> None:
    assert (run_id(now, entropy) == run_id(now, more)) == (entropy == more)


def test_a_run_id_is_written_in_base_32_and_comes_soon_after_the_last_one_of_its_millisecond() -> None:
    last = run_id(1_700_000_000.123, 0xA_BCDE_F012)
    assert last == "32yfwnm7qaydxw0j"
    assert run_id(1_700_000_000.123, 1, after=last) == "32yfwnm7qaydxw0m"
    assert run_id(1_700_000_000.124, 1, after=last) == "32yfwnm7r0000001"


@pytest.mark.parametrize("id", ["1", "order 7", "a/b:c[0]", "Bestellung № 7", "👩‍👩‍👧‍👦", "x" * MAX_ID, "%", "'; drop"])
def test_an_id_may_hold_almost_anything(id: str) -> None:
    assert check_id(id) == id


@pytest.mark.parametrize("id", ["", "x" * (MAX_ID + 1), "a\nb", "nul\x00", "\ud800", 7, None, b"x"])
def test_an_id_that_cannot_be_kept_is_refused(id: str) -> None:
    with pytest.raises(InvalidId, match="give a text of 1 to 255 characters"):
        check_id(id)


@pytest.mark.parametrize("name", ["charge", "Größe", "send mail", "a.b-c"])
def test_a_name_may_be_part_of_an_op_path(name: str) -> None:
    assert check_name(name, "a step") == name


@pytest.mark.parametrize("name", ["", "a/b", "a:0", "a[0]", "a]", "x" * 201, "a\n", 7])
def test_a_name_that_would_break_an_op_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a step"):
        check_name(name, "a step")


@pytest.mark.parametrize(
    ("op", "name"), [("charge:0", "charge"), ("rag:1/embed:0", "embed"), ("items:0[3]/resize:12", "resize")]
)
def test_the_name_is_found_in_an_op_path(op: str, name: str) -> None:
    assert op_name(op) == name


def test_a_step_has_one_key_for_all_its_attempts() -> None:
    assert step_key("r1", "charge:0") == "r1/charge:0"
    assert step_key("r1", "charge:0") != step_key("r2", "charge:0")


@given(st.binary(), st.binary())
def test_the_fingerprint_of_inputs_depends_on_them_alone(one: bytes, other: bytes) -> None:
    assert (inputs_hash(one) == inputs_hash(other)) == (one == other)


def test_a_derived_uuid_is_a_uuid4_and_the_same_on_every_replay() -> None:
    made = derived_uuid("r1", "uuid:0")
    assert made.version == 4
    assert made == derived_uuid("r1", "uuid:0")
    assert len({made, derived_uuid("r1", "uuid:1"), derived_uuid("r2", "uuid:0")}) == 3
