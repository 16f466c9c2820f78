"""A capsule is read as it was written, or refused; nothing in between."""

from __future__ import annotations

import struct
import zlib
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from perdure import InvalidCapsule, UsageError
from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    ChildFinished,
    ChildStarted,
    RunClaimed,
    RunFinished,
    RunForked,
    RunStarted,
    RunStatus,
    StepFailed,
    StepStarted,
    StepSucceeded,
)
from perdure.kernel.history.capsule import (
    HEAD_SIZE,
    MOST,
    Capsule,
    capsule_of,
    check,
    decode_capsule,
    encode_capsule,
    inflated,
    read_capsule,
)
from perdure.kernel.projection import child_rows, row
from perdure.kernel.state import fold
from perdure.kernel.values.failures import Failure
from perdure.kernel.values.limits import blob_id
from perdure.kernel.values.redact import redact
from perdure.kernel.values.redaction import parse
from tests.kernel.table import Story, batches, stories

LARGE = b'{"pan":"4111","all":[1,2,3]}'


def a_journal() -> list[Batch]:
    started = RunStarted("order-1", "fulfil", "2", Raw(b'{"order":{"card":{"number":"4111"},"cents":700}}'))
    return [
        Batch(0, 10.0, [started, RunClaimed("m1", 1), StepStarted("charge:0", 1, "abc", "shop.py:7")]),
        Batch(3, 11.0, [StepSucceeded("charge:0", Raw(b"null"), blob=blob_id(LARGE)), ChildStarted("ship:0", "ship")]),
        Batch(5, 12.0, [StepStarted("ship:0/post:0", 1, "x")]),
        Batch(6, 13.0, [StepSucceeded("ship:0/post:0", Raw(b'"posted"'))]),
        Batch(7, 14.0, [ChildFinished("ship:0", RunStatus.COMPLETED, Raw(b"1"))]),
        Batch(8, 15.0, [RunFinished(RunStatus.COMPLETED, Raw(b'{"number":"4111","at":"2030-01-01T10:00:00Z"}'))]),
    ]


def a_capsule() -> Capsule:
    return capsule_of("r1", a_journal(), {blob_id(LARGE): LARGE}, source="f" * 64, now=20.0)


def sealed(plain: bytes, *, format: int = 1, declared: int | None = None, size: int | None = None) -> bytes:
    """A handmade file with a valid hash."""
    body = zlib.compress(plain)
    declared, size = len(plain) if declared is None else declared, len(body) if size is None else size
    head = struct.pack(">8sHQQ", b"PERDURE\x1a", format, size, declared)
    return head + sha256(head + body).digest() + body


def forged(change: Any) -> bytes:
    """A capsule with changed content and a recomputed hash."""
    content = msgspec.json.decode(msgspec.json.encode(a_capsule()))
    change(content)
    return sealed(msgspec.json.encode(content))


# --- there and back -------------------------------------------------------------------------------------------------


def test_a_capsule_is_read_as_it_was_written() -> None:
    capsule = a_capsule()
    assert msgspec.json.encode(decode_capsule(encode_capsule(capsule))) == msgspec.json.encode(capsule)


@given(stories())
@settings(max_examples=60)
def test_a_capsule_of_any_journal_folds_to_the_same_state_and_row(story: Story) -> None:
    journal = batches(story.run().journal)
    _, state = read_capsule(encode_capsule(capsule_of("r1", list(journal), {})))
    before = fold("r1", journal)
    assert row(state) == row(before)
    assert state.next_seq == before.next_seq
    assert list(state.ops) == list(before.ops)


def test_children_come_along_with_their_rows() -> None:
    _, state = read_capsule(encode_capsule(a_capsule()))
    assert [(child.run_id, child.status) for child in child_rows(state)] == [("r1/ship:0", "completed")]


def test_large_values_come_along_in_their_place() -> None:
    capsule = decode_capsule(encode_capsule(a_capsule()))
    values = [bytes(event.value) for _, _, event in inflated(capsule) if isinstance(event, StepSucceeded)]
    assert values == [LARGE, b'"posted"']


# --- hostile files --------------------------------------------------------------------------------------------------


def test_a_capsule_that_is_cut_off_anywhere_is_refused() -> None:
    data = encode_capsule(a_capsule())
    for length in range(len(data)):
        with pytest.raises(InvalidCapsule):
            decode_capsule(data[:length])


def test_a_capsule_with_any_bit_flipped_is_refused() -> None:
    data = encode_capsule(a_capsule())
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << (position % 8)
        with pytest.raises(InvalidCapsule):
            decode_capsule(bytes(changed))


@given(st.binary(max_size=300))
def test_bytes_that_are_no_capsule_are_refused(data: bytes) -> None:
    for start in (b"", b"PERDURE\x1a", encode_capsule(a_capsule())[:HEAD_SIZE]):
        with pytest.raises(InvalidCapsule):
            decode_capsule(start + data)


@given(st.data())
@settings(max_examples=150)
def test_a_forged_content_is_refused_or_can_be_read_whole(data: st.DataObject) -> None:
    """An attacker who recomputes the hash can write anything; what is accepted must at least be a journal."""
    plain = bytearray(msgspec.json.encode(a_capsule()))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(plain) - 1))
        plain[position] = data.draw(st.integers(0, 255))
    try:
        capsule, state = read_capsule(sealed(bytes(plain)))
    except InvalidCapsule:
        return
    assert row(state).run_id == capsule.run_id
    assert [seq for seq, _, _ in inflated(capsule)] == list(range(state.next_seq))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "does not begin"),
        (b"SQLite format 3\0" + bytes(100), "does not begin"),
        (sealed(b"{}", format=2), "newer perdure"),
        (sealed(b"{}", declared=1024**3), "limit"),
        (sealed(b"{}", declared=2**63), "limit"),
        (sealed(b"{}", size=1024**3), "follow its head"),
        (sealed(b"{}", declared=MOST), "another number"),
        (sealed(bytes(10_000_000), declared=100), "another number"),
        (sealed(b"{}"), "cannot be read"),
        (sealed(b'{"x":' + b"[" * 5_000_000), "nested too deeply"),
        (sealed(b"[" * 5_000_000), "cannot be read"),
        (sealed(b'{"run_id":' * 200_000), "cannot be read"),
        (sealed(b"\xff\xfe"), "cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",
)
def test_a_hostile_file_is_refused_with_its_reason(data: bytes, why: str) -> None:
    with pytest.raises(InvalidCapsule, match=why):
        decode_capsule(data)


def test_a_capsule_is_never_decompressed_beyond_its_declared_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    make = zlib.decompressobj

    class Inflater:
        def __init__(self) -> None:
            self.inner = make()
            self.eof, self.unused_data, self.unconsumed_tail = False, b"", b""

        def decompress(self, data: bytes, most: int) -> bytes:
            asked.append(most)
            return self.inner.decompress(data, most)

    monkeypatch.setattr(zlib, "decompressobj", Inflater)
    with pytest.raises(InvalidCapsule):
        decode_capsule(sealed(bytes(50_000_000), declared=1000))
    assert asked == [1001]


def deep(content: dict[str, Any]) -> None:
    content["batches"][3]["events"][0]["value"] = Raw(b"[" * 800 + b"]" * 800)


def put(where: str, value: Any) -> Any:
    """A change of the content at a path such as `batches.1.seq`."""

    def change(content: Any) -> None:
        *path, last = where.split(".")
        for part in path:
            content = content[int(part) if part.isdecimal() else part]
        content[int(last) if last.isdecimal() else last] = value

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (put("batches.1.seq", 4), "entries are missing"),
        (put("batches.1.seq", 2), "entries come twice"),
        (put("batches.0.seq", -1), "entries come twice"),
        (put("batches.1.events", []), "empty"),
        (put("batches", []), "empty"),
        (put("batches.2.at", 1.0), "before the entry"),
        (put("batches.5.at", 1e300), "no time"),
        (put("batches.2.events.0.type", "StepDreamt"), "StepDreamt"),
        (put("batches.2.events.0", {"type": "AttemptFailed"}), "cannot be read"),
        (put("batches.0.events.0.type", "RunResumed"), "does not begin with RunStarted|cannot be read"),
        (put("batches.2.events.0.op", "x" * 10_000), "characters"),
        (put("batches.2.events.0.attempt", 2**70), "larger than any store|cannot be read"),
        (put("batches.0.events.0.not_before", 1e18), "no time"),
        (put("batches.0.events.0.id", ""), "is empty"),
        (put("batches.0.events.0.id", "another"), "another run"),
        (put("program", "another"), "another run"),
        (put("run_id", "r1/ship:0"), "slash"),
        (put("run_id", ""), "empty"),
        (put("blobs", {}), "is not in it"),
        (put("blobs", {blob_id(LARGE): "AAAA"}), "not what its hash says"),
        (put("batches.4.events.0.op", "other:0"), "no engine could have written"),
        (lambda content: content["batches"].append(content["batches"][-1] | {"seq": 9}), "after its end"),
        (lambda content: content["batches"][0]["events"].append(content["batches"][0]["events"][0]), "begins twice"),
        (deep, "nested too deeply"),
    ],
    ids=lambda value: value if isinstance(value, str) else "change",
)
def test_a_journal_that_no_engine_wrote_is_refused(change: Any, why: str) -> None:
    with pytest.raises(InvalidCapsule, match=why):
        decode_capsule(forged(change))


@pytest.mark.parametrize(
    "value",
    [
        b"[" * 500 + b"]" * 500,
        b'{"a":[' * 250 + b"]}" * 250,
        b"[" + b"{}," * 5000 + b"[[]]]",
        b'["' + b"[" * 5000 + b'"]',
        b'["\\"[[[' + b"[" * 5000 + b'\\\\"]',
    ],
    ids=["lists", "both", "beside each other", "in a text", "in a text with quotes"],
)
def test_a_value_that_is_not_too_deep_is_read_whatever_it_holds(value: bytes) -> None:
    content = msgspec.json.decode(msgspec.json.encode(a_capsule()))
    content["batches"][3]["events"][0]["value"] = Raw(value)
    _ = decode_capsule(sealed(msgspec.json.encode(content)))


@pytest.mark.parametrize("value", [b"[" * 501 + b"]" * 501, b'{"a":[' * 251 + b"]}" * 251], ids=["lists", "both"])
def test_a_value_that_is_too_deep_is_refused_by_every_python(value: bytes) -> None:
    content = msgspec.json.decode(msgspec.json.encode(a_capsule()))
    content["batches"][3]["events"][0]["value"] = Raw(value)
    with pytest.raises(InvalidCapsule, match="nested too deeply"):
        decode_capsule(sealed(msgspec.json.encode(content)))


def test_a_failed_attempt_of_a_step_that_never_began_is_refused() -> None:
    error = AttemptFailed("ghost:0", 1, Failure("E", "m"), 1.0)
    with pytest.raises(InvalidCapsule, match="KeyError"):
        check(capsule_of("r1", [*a_journal()[:5], Batch(8, 15.0, [error])], {blob_id(LARGE): LARGE}))


# --- taking values out ----------------------------------------------------------------------------------------------


def values(capsule: Capsule) -> str:
    return msgspec.json.encode([event for _, _, event in inflated(capsule)]).decode()


def test_a_value_is_taken_out_wherever_its_path_leads() -> None:
    capsule = redact(a_capsule(), ["$..number", "charge:0.$.pan"])
    assert "4111" not in values(capsule)
    assert '"number":"[redacted]"' in values(capsule)
    assert '"cents":700' in values(capsule)
    assert capsule.redacted == ("$..number", "charge:0.$.pan")
    assert decode_capsule(encode_capsule(capsule)).redacted == capsule.redacted


def test_a_large_value_is_taken_out_of_its_blob() -> None:
    capsule = redact(a_capsule(), ["charge.$.pan"])
    assert not any(b"4111" in data for data in capsule.blobs.values())
    assert all(blob_id(data) == id for id, data in capsule.blobs.items())


@pytest.mark.parametrize(
    ("path", "gone"),
    [
        ("$.order.card.number", '"card":{"number":"[redacted]"}'),
        ("input.$.order", '"order":{"card":{"number":"[redacted]"},"cents":0}'),
        ("output.$", '"number":"[redacted]","at":"1970-01-01T00:00:00Z"'),
        ("charge:0.$.all[1]", '"all":[1,0,3]'),
        ("charge:0.$.all[*]", '"all":[0,0,0]'),
        ("post.$", '"value":"[redacted]"'),
        ("$.*.card", '"card":{"number":"[redacted]"}'),
    ],
)
def test_what_is_taken_out_keeps_its_type(path: str, gone: str) -> None:
    assert gone in values(redact(a_capsule(), [path]))


def test_fingerprints_of_inputs_go_with_what_was_taken_out() -> None:
    steps = [e for _, _, e in inflated(redact(a_capsule(), ["$..pan"])) if isinstance(e, StepStarted)]
    assert [step.inputs for step in steps] == ["", ""]


def test_edited_values_of_forks_and_outputs_of_bail_are_redacted() -> None:
    secret = Raw(b'{"pan":"4111"}')
    events: list[AnyEvent] = [
        RunForked(
            "r0",
            1,
            inputs={"charge:0": {"card": secret, "pan": Raw(b'"4111"')}},
            state={"card": secret},
            values={"a:0[1]": secret},
        ),
        StepFailed("charge:0", 1, Failure("E", "m"), bailed=True, output=secret),
    ]
    capsule = Capsule("r1", "it", "shop", "1", [Batch(0, 1.0, events)], {})
    assert b"4111" not in msgspec.json.encode(redact(capsule, ["$..pan"]).batches)
    only_state = redact(capsule, ["card.$.pan"]).batches[0].events
    assert only_state[1] == events[1]
    assert isinstance(only_state[0], RunForked)
    assert only_state[0].state == {"card": Raw(b'{"pan":"[redacted]"}')}


def test_a_path_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(UsageError, match="nowhere"):
        redact(a_capsule(), ["$.order.kard"])


@pytest.mark.parametrize("path", ["", "card.number", "$card", "$.", "$[x]", "$.a["])
def test_an_invalid_path_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="redact="):
        parse(path)
