"""Instructions have one form in all versions of Python: those that stand for two are two, and none borrows."""

from __future__ import annotations

import dis

import pytest

from perdure.authoring.code.bytecode import instructions


def made(name: str, argval: object) -> dis.Instruction:
    first = next(iter(dis.get_instructions(made)))
    return first._replace(opname=name, argval=argval)


def test_pairs_are_two_and_borrowed_ones_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [
        made("STORE_FAST_LOAD_FAST", ("a", "b")),
        made("LOAD_FAST_BORROW_LOAD_FAST_BORROW", ("c", "d")),
        made("STORE_FAST_STORE_FAST", ("e", "f")),
        made("LOAD_FAST_BORROW", "g"),
        made("LOAD_GLOBAL", "h"),
    ]
    monkeypatch.setattr(dis, "get_instructions", lambda code: iter(given))
    found = [(one.opname, one.argval) for one in instructions(made.__code__)]
    assert found == [
        ("STORE_FAST", "a"),
        ("LOAD_FAST", "b"),
        ("LOAD_FAST", "c"),
        ("LOAD_FAST", "d"),
        ("STORE_FAST", "e"),
        ("STORE_FAST", "f"),
        ("LOAD_FAST", "g"),
        ("LOAD_GLOBAL", "h"),
    ]
