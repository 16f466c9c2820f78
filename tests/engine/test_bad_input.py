"""What users get wrong, one by one: each is met with an error that names the cause and what to do, nothing is lost, and
other runs go on."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure import (
    Engine,
    InvalidId,
    InvalidStoreUrl,
    Invocation,
    NotAStore,
    NotDecodable,
    NotSerializable,
    PayloadTooLarge,
    RunFailed,
    RunStatus,
    SchemaMismatch,
    UnknownProgram,
    UsageError,
    call,
    connect,
    step,
    workflow,
)
from perdure.client import base
from perdure.client.signatures import Signatures, SignaturesConfig
from perdure.errors import StoreError
from perdure.kernel.program import Program
from tests.patience import PATIENCE

KIB = 1024


class Declined(Exception):
    """An error of the user's own."""

    def __init__(self, code: int, *, reason: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(f"declined with {code}: {reason}")


class Unreadable(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Opaque:
    """Something that has no form in a store."""


class Unbound:
    """A proxy of a web framework, outside of a request."""

    @property
    def __class__(self) -> type:
        raise RuntimeError("working outside of request context")

    @__class__.setter
    def __class__(self, value: type) -> None: ...


def in_itself() -> list[Any]:
    """A list that holds itself."""
    endless: list[Any] = []
    endless.append(endless)
    return endless


@step
async def make(kind: str) -> Any:
    """A value that may not be fit to keep."""
    return VALUES[kind]()


VALUES: dict[str, Callable[[], Any]] = {
    "object": Opaque,
    "nested object": lambda: {"items": [1, {"price": Opaque()}]},
    "nan": lambda: {"rate": math.nan},
    "infinity": lambda: [1.0, math.inf],
    "surrogate": lambda: {"name": "\ud800"},
    "function": lambda: lambda: None,
    "3 MB": lambda: "x" * (3 * KIB * KIB),
    "300 KB": lambda: "x" * (300 * KIB),
    "loop": lambda: in_itself(),
    "proxy": Unbound,
}
UNFIT = {
    "object": (NotSerializable, r"\$ .*Opaque"),
    "nested object": (NotSerializable, r"\$\.items\[1\]\.price .*Opaque"),
    "nan": (NotSerializable, r"\$\.rate .*[Nn]a[Nn]"),
    "infinity": (NotSerializable, r"\$\[1\] .*inf"),
    "surrogate": (NotSerializable, r"\$\.name .*surrogate"),
    "function": (NotSerializable, r"\$ .*function"),
    "3 MB": (PayloadTooLarge, r"3,145,730 bytes .*2,097,152.*blobs\.put"),
    "loop": (NotSerializable, r"\$"),
    "proxy": (NotSerializable, r"\$ .*Unbound"),
}


@workflow
async def from_step(kind: str) -> Any:
    """The value comes from a step."""
    return await make(kind)


@workflow
async def from_body(kind: str) -> Any:
    """The value comes from the body."""
    return VALUES[kind]()


@workflow
async def take(value: Any) -> str:
    """Takes anything."""
    return "taken"


@workflow
async def good(n: int) -> int:
    """Nothing is wrong with it."""
    return n + 1


@workflow
async def failing(kind: str) -> None:
    """Raises something."""
    raise ERRORS[kind]()


ERRORS: dict[str, Callable[[], BaseException]] = {
    "own": lambda: Declined(51, reason="no cover"),
    "object": lambda: ValueError("odd", Opaque()),
    "nan": lambda: ValueError(math.nan),
    "bytes": lambda: ValueError(b"\xff\x00"),
    "huge": lambda: ValueError("x" * (3 * KIB * KIB)),
    "surrogate": lambda: ValueError("\ud800"),
    "unreadable": Unreadable,
    "group": lambda: ExceptionGroup("several", [ValueError("a"), Declined(1, reason="b")]),
    "system exit": lambda: SystemExit(3),
    "cancelled": lambda: asyncio.CancelledError("by itself"),
}

PROGRAMS: list[Program] = [from_step, from_body, take, good, failing]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store of its own."""
    return f"sqlite:///{tmp_path / 'runs.db'}"


async def check_goes_on(engine: Engine) -> None:
    """Other runs are unaffected."""
    assert (await engine.run(good(1))).output == 2


# --- errors ---------------------------------------------------------------------------------------------------------


async def test_an_error_of_the_users_own_comes_back_as_it_was(url: str) -> None:
    async with Engine(url, PROGRAMS) as engine:
        run = await engine.start(failing("own"), id="r")
        with pytest.raises(Declined, match="declined with 51: no cover") as caught:
            await run.result()
        assert (caught.value.code, caught.value.reason) == (51, "no cover")
        assert "in failing" in "".join(caught.value.__notes__), "the notes show where it was raised"
        await check_goes_on(engine)
    async with connect(url) as client:
        view = await client.get("r")
        assert view is not None
        assert view.status is RunStatus.FAILED
        assert view.error is not None
        assert view.error.message == "declined with 51: no cover"


@pytest.mark.parametrize("kind", [kind for kind in ERRORS if kind != "own"])
async def test_an_error_with_strange_contents_fails_its_run_and_nothing_else(url: str, kind: str) -> None:
    async with Engine(url, PROGRAMS) as engine:
        result = await engine.run(failing(kind), id="r")
        assert result.status is RunStatus.FAILED
        assert result.error is not None
        expected = type(ERRORS[kind]())
        assert isinstance(result.error, expected | RunFailed)
        view = await engine.get("r")
        assert view is not None
        assert view.error is not None
        assert len(view.error.message) < 100 * KIB
        await check_goes_on(engine)


# --- values ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(UNFIT))
@pytest.mark.parametrize("program", [from_step, from_body], ids=["step", "body"])
async def test_a_value_that_cannot_be_kept_fails_where_it_was_made_and_names_its_place(
    url: str, program: Callable[[str], Invocation[Any]], kind: str
) -> None:
    error, message = UNFIT[kind]
    async with Engine(url, PROGRAMS) as engine:
        run = await engine.start(program(kind))
        with pytest.raises(error, match=message) as caught:
            await run.result()
        assert ("make:0" if program is from_step else "the workflow") in str(caught.value)
        assert await run.status() is RunStatus.FAILED
        await check_goes_on(engine)


@pytest.mark.parametrize("kind", list(UNFIT))
async def test_an_argument_that_cannot_be_kept_is_refused_before_anything_is_written(url: str, kind: str) -> None:
    error, message = UNFIT[kind]
    if kind == "3 MB":
        message = message.replace("3,145,730", "3,145,740")  # with the name of the argument
    async with Engine(url, PROGRAMS) as engine:
        with pytest.raises(error) as caught:
            _ = await engine.start(take(VALUES[kind]()), id="r")
        assert "take" in str(caught.value)
        assert await engine.get("r") is None
        assert (await engine.run(take(1), id="r")).output == "taken", "the id is free"
        await check_goes_on(engine)


@pytest.mark.parametrize("program", [from_step, from_body], ids=["step", "body"])
async def test_a_value_of_300_kb_is_kept_apart_with_a_warning(
    url: str, program: Callable[[str], Invocation[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine(url, PROGRAMS) as engine:
        result = await engine.run(program("300 KB"), id="r")
        assert result.output == "x" * (300 * KIB)
        assert "307,202 bytes" in caplog.text
        blob = await engine.blobs.get(hashlib.sha256(b'"' + b"x" * (300 * KIB) + b'"').hexdigest())
        assert blob is not None
    async with connect(url) as client:
        view = await client.get("r")
        assert view is not None
        assert view.output == "x" * (300 * KIB)


async def test_an_argument_of_300_kb_is_kept_apart_and_comes_back(url: str) -> None:
    text = "y" * (300 * KIB)
    async with Engine(url, PROGRAMS) as engine:
        assert (await engine.run(take(text), id="r")).output == "taken"
        view = await engine.get("r")
        assert view is not None
        assert view.input == {"value": text}


# --- ids ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "id", ["with spaces in it", " ", "🚀🧪", "a/b/c", "x" * 255, "ü" * 255, "'; drop table perdure_runs; --", "%", "*"]
)
async def test_an_id_may_be_any_text_of_reasonable_length(url: str, id: str) -> None:
    async with Engine(url, PROGRAMS) as engine:
        assert (await engine.run(good(1), id=id)).output == 2
        view = await engine.get(id)
        assert view is not None
        assert view.id == id
        assert (await engine.run(good(5), id=id)).output == 2, "the same run again"


@pytest.mark.parametrize(
    ("id", "reason"),
    [
        ("", "is empty"),
        ("x" * 500, "has 500 characters, and 255 is the limit"),
        ("a\nb", "control character"),
        ("\x00", "control character"),
        ("\ud800", "surrogate"),
        (5, "is not a string but of type int"),
    ],
)
async def test_an_id_that_cannot_be_used_is_refused_with_the_reason(url: str, id: Any, reason: str) -> None:
    async with Engine(url, PROGRAMS) as engine:
        with pytest.raises(InvalidId, match=reason) as caught:
            _ = await engine.start(good(1), id=id)
        assert "give a text of 1 to 255 characters" in str(caught.value)
        assert await engine.list() == []
        await check_goes_on(engine)


# --- programs -------------------------------------------------------------------------------------------------------


async def test_runs_of_a_program_that_an_engine_does_not_have_are_kept_for_one_that_does(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine(url, PROGRAMS):
        pass
    async with connect(url) as client:
        _ = await client.start(call("good", 1), id="known")
        _ = await client.start(call("unheard-of", 1), id="unknown")
    with caplog.at_level(logging.WARNING, "perdure"):
        async with Engine(url, PROGRAMS) as engine:
            assert await (await engine.start(good(1), id="known")).result(PATIENCE) == 2
            view = await engine.get("unknown")
            assert view is not None
            assert view.status is RunStatus.QUEUED
    assert "unheard-of" in caplog.text
    assert "wait until an engine has them" in caplog.text

    @workflow(name="unheard-of")
    async def heard_of(n: int) -> int:
        return n + 10

    async with Engine(url, [heard_of]) as engine:
        assert await (await engine.start(heard_of(1), id="unknown")).result(PATIENCE) == 11


async def test_starting_a_program_the_engine_does_not_have_says_which_it_has(url: str) -> None:
    async with Engine(url, [good, take]) as engine:
        with pytest.raises(UnknownProgram, match=r"no program named 'failing' \(it has good, take\).*add it"):
            _ = await engine.start(failing("own"))
        await check_goes_on(engine)


async def test_arguments_that_do_not_fit_are_refused_before_anything_is_written(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A start that cannot find out in time what the workers take does without.
    monkeypatch.setattr(base, "Signatures", partial(Signatures, config=SignaturesConfig(wait=PATIENCE)))
    async with Engine(url, PROGRAMS) as engine:
        with pytest.raises(TypeError, match="too many positional arguments"):
            _ = await engine.start(good(1, 2), id="r")  # type: ignore[call-arg]
        with pytest.raises(UsageError, match="needs an invocation"):
            _ = await engine.start(good, id="r")  # type: ignore[arg-type]
        assert await engine.list() == []
        async with connect(url) as client:  # which does not have the program
            with pytest.raises(NotDecodable, match="the argument n of good"):
                _ = await client.start(call("good", "one"), id="misfit")
            with pytest.raises(TypeError, match="too many positional arguments"):
                _ = await client.start(call("good", 1, 2, 3), id="too many")
        assert await engine.list() == []
    # Queued while no worker says what the program takes: the run fails, and says why.
    async with connect(url) as client:
        _ = await client.start(call("good", "one"), id="misfit")
        _ = await client.start(call("good", 1, 2, 3), id="too many")
    async with Engine(url, PROGRAMS) as engine:
        for id in ("misfit", "too many"):
            outcome = await (await engine.start(good(1), id=id)).outcome(PATIENCE)
            assert outcome.status in (RunStatus.FAILED, RunStatus.PARKED)
            assert "argument" in str(outcome.error)
        await check_goes_on(engine)


# --- stores ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"# My notes\n" * 500, b"\x00" * 8192, b"SQLite format 2\x00"])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(content)
    for opening in (Engine(f"sqlite:///{path}", PROGRAMS), connect(f"sqlite:///{path}")):
        with pytest.raises(NotAStore, match=r"notes\.md .*not an SQLite database; name another file"):
            _ = await opening.open()
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["notes.md"]


async def test_a_database_cut_short_is_reported(url: str, tmp_path: Path) -> None:
    async with Engine(url, PROGRAMS) as engine:
        await check_goes_on(engine)
    path = tmp_path / "runs.db"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(StoreError, match=r"runs\.db"):
        async with Engine(url, PROGRAMS) as engine:
            await check_goes_on(engine)


async def test_a_database_of_another_application_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    db = apsw.Connection(str(path))
    db.execute("create table customers (name)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(NotAStore, match="another application"):
        _ = await Engine(f"sqlite:///{path}", PROGRAMS).open()
    assert path.read_bytes() == before


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    async with Engine(f"sqlite:///{path}", PROGRAMS) as engine:
        await check_goes_on(engine)


async def test_a_store_of_a_newer_perdure_is_refused_and_left_alone(url: str, tmp_path: Path) -> None:
    async with Engine(url, PROGRAMS) as engine:
        await check_goes_on(engine)
    path = tmp_path / "runs.db"
    db = apsw.Connection(str(path))
    db.pragma("user_version", 999)
    db.close()
    before = path.read_bytes()
    for opening in (Engine(url, PROGRAMS), connect(url)):
        with pytest.raises(SchemaMismatch, match=r"schema 999.*upgrade perdure"):
            _ = await opening.open()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing/runs.db", "directory .*missing does not exist; create it"), ("", "names no file")],
)
async def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    url = f"sqlite:///{tmp_path / name}" if name else "sqlite:///"
    with pytest.raises(InvalidStoreUrl, match=reason):
        _ = await Engine(url, PROGRAMS).open()


async def test_a_client_of_a_store_that_is_not_there_is_told_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidStoreUrl, match="no such file; start a run with an Engine"):
        _ = await connect(f"sqlite:///{tmp_path / 'none.db'}").open()


async def test_a_directory_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="it is a directory"):
        _ = await Engine(f"sqlite:///{tmp_path}", PROGRAMS).open()
