"""Size limits: where a value of a given size goes, and the ids of blobs."""

from __future__ import annotations

import hashlib

import pytest

from perdure.errors import UsageError
from perdure.kernel.values.limits import Limits, blob_id, place


def test_the_default_limits_are_the_documented_ones() -> None:
    assert Limits() == Limits(blob=262_144, payload=2_097_152, history=52_428_800)


@pytest.mark.parametrize(
    ("size", "where"),
    [(0, "inline"), (10, "inline"), (11, "blob"), (20, "blob"), (21, "refuse"), (10**12, "refuse")],
)
def test_a_size_equal_to_a_limit_is_within_it(size: int, where: str) -> None:
    assert place(size, Limits(blob=10, payload=20)) == where


def test_a_blob_limit_above_the_payload_limit_never_offloads() -> None:
    limits = Limits(blob=100, payload=20)
    assert {place(size, limits) for size in range(150)} == {"inline", "refuse"}


@pytest.mark.parametrize("bad", [0, -1, 1.5, "2MB", True])
def test_a_limit_that_is_not_a_number_of_bytes_is_refused(bad: object) -> None:
    with pytest.raises(UsageError, match="payload"):
        Limits(payload=bad)  # type: ignore[arg-type]


def test_a_blob_is_named_by_the_sha256_of_its_bytes() -> None:
    assert blob_id(b"abc") == hashlib.sha256(b"abc").hexdigest()
    assert blob_id(b"abc") != blob_id(b"abd")
