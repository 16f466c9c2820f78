"""Exceptions as data: what was raised comes back as it was, without running or importing anything."""

from __future__ import annotations

import asyncio
import builtins
import dataclasses
import math
import subprocess
import sys
import traceback
import urllib.error
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure.errors
from perdure.errors import PerdureError, StepError
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.failures import (
    BYTES,
    DEPTH,
    TEXT,
    TRACEBACK,
    Failure,
    add_note,
    describe,
    rebuild,
    type_name,
)
from tests.kernel.awkward import AWKWARD, Delegating, Required, Rude, Shy, Slotted, caught, http_error, with_attributes

CODEC = Codec()


class Declined(Exception):
    calls = 0

    def __init__(self, code: int, *, reason: str, amount: Decimal = Decimal(0)) -> None:
        Declined.calls += 1
        self.code, self.reason, self.amount = code, reason, amount
        super().__init__(f"declined with {code}: {reason}")


class Shown(Exception):
    def __init__(self, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


@dataclasses.dataclass
class Typed(Exception):
    when: date
    parts: tuple[int, ...] = ()


class Outer:
    class Inner(Exception):
        pass


class Fussy(Exception):
    def __new__(cls, *args: Any, secret: str) -> Fussy:
        return super().__new__(cls, *args)

    def __init__(self, *args: Any, secret: str) -> None:
        super().__init__(*args)


class Liar(Exception):
    def __new__(cls, *args: Any) -> Any:
        return 5 if args == ("lie",) else super().__new__(cls, *args)


class DiskFull(OSError):
    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(28, "No space", path)


class Stop(BaseException):
    pass


class Falsy(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("no")


class Evil(Exception):
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


def through_the_journal(exc: BaseException, **options: Any) -> BaseException:
    stored = msgspec.json.encode(describe(exc, CODEC))
    return rebuild(msgspec.json.decode(stored, type=Failure), CODEC, **options)


def raised(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as caught:
        return caught


SAME = [
    ValueError("x"),
    ValueError(),
    ValueError("a", 1, None, [1, {"k": 2}]),
    ValueError(("a", 1)),
    KeyError("k"),
    KeyError(("a", 1)),
    KeyError(5),
    IndexError("list index out of range"),
    ZeroDivisionError("division by zero"),
    TimeoutError(),
    TimeoutError("slow"),
    ConnectionError("gone"),
    ConnectionResetError(104, "reset by peer"),
    OSError(5, "io"),
    FileNotFoundError(2, "No such file or directory", "x.txt"),
    OSError(18, "cross-device", "a", None, "b"),
    OSError("text only"),
    DiskFull("/data"),
    UnicodeDecodeError("utf-8", b"ab\xff", 2, 3, "invalid start byte"),
    UnicodeEncodeError("ascii", "ü", 0, 1, "ordinal not in range"),
    ImportError("no x", name="x", path="/x"),
    ModuleNotFoundError("No module named 'x'", name="x"),
    AttributeError("no attribute", name="a"),
    NameError("no name", name="n"),
    SyntaxError("bad", ("f.py", 3, 7, "x = = 1", 3, 8)),
    StopIteration(5),
    StopAsyncIteration(),
    NotImplementedError(),
    RecursionError("deep"),
    Declined(5, reason="funds", amount=Decimal("1.50")),
    Shown(7),
    Outer.Inner("in"),
    Liar("truth"),
    *map(caught, ("1 / 0", "{}['x']", "[][1]", "None.x", "undefined_name", "int('x')", "import nowhere_at_all", "(")),
]


@pytest.mark.parametrize("original", SAME, ids=repr)
def test_an_exception_comes_back_with_its_class_text_and_arguments(original: Exception) -> None:
    back = through_the_journal(raised(original))
    assert type(back) is type(original)
    assert str(back) == str(original)
    assert back.args == original.args or isinstance(original, (Shown, SyntaxError))


@pytest.mark.parametrize(
    ("original", "names"),
    [
        (FileNotFoundError(2, "No such file", "x.txt"), ("errno", "strerror", "filename")),
        (OSError(18, "cross-device", "a", None, "b"), ("errno", "filename", "filename2")),
        (DiskFull("/data"), ("errno", "strerror", "filename", "path")),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), ("encoding", "object", "start", "end", "reason")),
        (ImportError("no x", name="x", path="/x"), ("name", "path", "msg")),
        (SyntaxError("bad", ("f.py", 3, 7, "x", 3, 8)), ("filename", "lineno", "offset", "text", "msg")),
        (StopIteration(5), ("value",)),
        (Declined(5, reason="funds"), ("code", "reason")),
    ],
    ids=repr,
)
def test_attributes_come_back(original: Exception, names: tuple[str, ...]) -> None:
    back = through_the_journal(original)
    assert [getattr(back, name) for name in names] == [getattr(original, name) for name in names]


def test_annotated_attributes_come_back_in_their_types() -> None:
    back = through_the_journal(Typed(date(2024, 1, 2), (1, 2)))
    assert isinstance(back, Typed)
    assert (back.when, back.parts) == (date(2024, 1, 2), (1, 2))


def test_the_constructor_is_not_called_again() -> None:
    original, before = Declined(1, reason="r"), Declined.calls
    through_the_journal(original)
    assert Declined.calls == before


def _one_of_each() -> list[PerdureError]:
    classes: list[Any] = [
        cls for cls in vars(perdure.errors).values() if isinstance(cls, type) and issubclass(cls, PerdureError)
    ]
    values: dict[str, Any] = {
        "size": 5,
        "rounds": 6,
        "limit": 4,
        "seq": 3,
        "found": 1,
        "needed": 2,
        "seconds": 1.5,
        "known": ("a", "b"),
        "held_by": None,
        "reason": "because",
        "attributes": {"code": 5},
        "divergence": Divergence("renamed", "a:0", "A title.", OpView("step", "a:0", "a"), None, "A fix."),
    }
    made = []
    for cls in classes:
        if issubclass(cls, BaseExceptionGroup):
            made.append(cls("<message>", [ValueError("inner")]))
            continue
        code = cls.__init__.__code__ if hasattr(cls.__init__, "__code__") else None
        names = code.co_varnames[1 : code.co_argcount] if code else ()
        made.append(cls(*(values.get(name, f"<{name}>") for name in names)))
    return made


@pytest.mark.parametrize("original", _one_of_each(), ids=lambda exc: type(exc).__name__)
def test_the_errors_of_perdure_come_back_with_their_data(original: PerdureError) -> None:
    back = through_the_journal(original)
    assert type(back) is type(original)
    assert str(back) == str(original)
    for name, value in vars(original).items():
        assert getattr(back, name) == (list(value) if isinstance(value, tuple) else value)
    assert isinstance(back, TimeoutError) == isinstance(original, TimeoutError)


def test_notes_come_back() -> None:
    original = ValueError("x")
    original.add_note("while paying")
    assert through_the_journal(original).__notes__ == ["while paying"]


# --- what cannot be rebuilt -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "original",
    [Stop("x"), SystemExit(3), KeyboardInterrupt("k"), asyncio.CancelledError("c"), GeneratorExit()],
    ids=repr,
)
def test_what_would_stop_the_process_or_the_task_becomes_a_step_error(original: BaseException) -> None:
    back = through_the_journal(original)
    assert type(back) is StepError
    assert back.type == type_name(type(original))
    assert back.message == str(original)


@pytest.mark.parametrize(
    "name",
    [
        "nowhere.Error",
        "builtins.nothing",
        "builtins.int",
        "builtins.print",
        "builtins",
        "",
        ".",
        "..",
        "os.system",
        "subprocess.Popen",
        "json.decoder.JSONDecodeError.__init__",
        "perdure.errors.StepError.nothing",
        "asyncio.CancelledError",
        "sys.modules",
        "builtins.ValueError.__class__",
    ],
)
def test_a_name_that_leads_to_no_exception_becomes_a_step_error(name: str) -> None:
    back = rebuild(Failure(type=name, message="m"))
    assert type(back) is StepError
    assert (back.type, back.message) == (name, "m")


def test_an_alias_is_not_followed() -> None:
    assert type(rebuild(Failure(type="socket.error", message="m"))) is StepError  # it is builtins.OSError


def test_rebuilding_imports_nothing() -> None:
    script = (
        "import sys; from perdure.kernel.values.failures import Failure, rebuild; before = set(sys.modules);"
        "exc = rebuild(Failure(type='sqlite3.OperationalError', message='m'));"
        "assert type(exc).__name__ == 'StepError', exc; assert set(sys.modules) == before, set(sys.modules) - before"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_module_that_imports_on_access_is_not_asked() -> None:
    asked: list[str] = []

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return super().__getattribute__(name)

    sys.modules["lazy_for_failures"] = module = Lazy("lazy_for_failures")
    asked.clear()
    try:
        assert type(rebuild(Failure(type="lazy_for_failures.Error", message="m"))) is StepError
        assert [name for name in asked if name != "__class__"] == []
    finally:
        del sys.modules[module.__name__]


def test_a_class_made_inside_a_function_is_rebuilt_when_it_is_known() -> None:
    class Local(Exception):
        pass

    original = Local("x")
    assert type(through_the_journal(original)) is StepError
    back = through_the_journal(original, known={type_name(Local): Local})
    assert type(back) is Local
    assert str(back) == "x"


def test_a_known_class_that_would_stop_the_process_is_not_rebuilt() -> None:
    assert type(through_the_journal(Stop(), known={type_name(Stop): Stop})) is StepError


def test_the_new_of_a_class_is_not_called_again_whatever_it_wants() -> None:
    lie = msgspec.structs.replace(describe(RuntimeError("lie"), CODEC), type=type_name(Liar))
    assert type(rebuild(describe(Fussy("x", secret="s"), CODEC), CODEC)) is Fussy
    assert type(rebuild(lie, CODEC)) is Liar


def test_arguments_that_cannot_be_stored_are_replaced_by_the_message() -> None:
    original = ValueError("bad", object())
    back = through_the_journal(original)
    assert type(back) is ValueError
    assert str(back) == str(original)
    assert back.args == (str(original),)


def test_attributes_that_cannot_be_stored_are_left_out_alone() -> None:
    original = ValueError("x")
    original.good, original.bad, original.none = 1, object(), None  # type: ignore[attr-defined]
    original.nan = math.nan  # type: ignore[attr-defined]
    assert vars(through_the_journal(original)) == {"good": 1, "none": None}


@pytest.mark.parametrize(
    "args", ["5", '"x"', "{", "null", "[" * 5000, '["a", 5]', '["utf-8", "?", 0, 1, "r"]', "[[]]"], ids=range(8)
)
@pytest.mark.parametrize(
    "name", ["builtins.ValueError", "builtins.UnicodeDecodeError", "builtins.ExceptionGroup", "builtins.OSError"]
)
def test_a_damaged_failure_still_gives_an_exception(name: str, args: str) -> None:
    raw = msgspec.Raw(args.encode())
    for failure in (Failure(type=name, message="m", args=raw), Failure(type=name, message="m", data=raw)):
        assert isinstance(rebuild(failure, CODEC), Exception)


# --- describing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exc", [Rude("x"), Evil("x"), Falsy("x"), ValueError("\ud800"), ValueError(Rude())], ids=type)
def test_no_exception_is_too_rude_to_describe(exc: Exception) -> None:
    outer = RuntimeError("outer")
    outer.__cause__ = exc
    failure = describe(outer, CODEC)
    assert failure.cause is not None
    assert failure.cause.type == type_name(type(exc))
    assert isinstance(rebuild(msgspec.json.decode(msgspec.json.encode(failure), type=Failure)), RuntimeError)


@given(st.lists(st.text() | st.integers() | st.floats() | st.binary() | st.none() | st.tuples(st.text())))
def test_any_arguments_can_be_described_and_the_text_is_kept(args: list[Any]) -> None:
    back = through_the_journal(ValueError(*args))
    assert type(back) is ValueError
    assert str(back) == str(ValueError(*args)).encode("utf-8", "backslashreplace").decode()


# --- classes made to be awkward -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", AWKWARD.values(), ids=AWKWARD)
def test_any_exception_is_described_and_rebuilt_and_then_behaves(make: Callable[[], BaseException]) -> None:
    original = raised(make())
    failure = describe(original, CODEC)
    assert failure.type == type_name(type(original))
    assert "test_failures.py" in failure.traceback
    for _ in range(2):  # as it comes back from a step, and again from the run that it fails
        stored = msgspec.json.encode(failure)
        assert len(stored) < 2 * BYTES
        back = rebuild(msgspec.json.decode(stored, type=Failure), CODEC)
        assert isinstance(back, Exception)
        hasattr(back, "anything")
        hasattr(back, "__notes__")
        add_note(back, "noted")
        assert back.__notes__[-1] == "noted"
        back.with_traceback(None)
        "".join(traceback.format_exception(back))
        failure = describe(raised(back), CODEC)


def test_an_http_error_keeps_what_can_be_kept() -> None:
    back = through_the_journal(http_error())
    assert isinstance(back, urllib.error.HTTPError)
    assert (back.code, back.msg, back.reason, str(back)) == (404, "Not Found", "Not Found", "HTTP Error 404: Not Found")
    assert through_the_journal(Delegating("d", object())).code == 404  # type: ignore[attr-defined]


def test_what_is_in_slots_comes_back() -> None:
    back = through_the_journal(Slotted(7))
    assert isinstance(back, Slotted)
    assert (back.code, back.hidden, str(back)) == (7, "h", "slot 7")
    assert not hasattr(back, "lock")


def test_attributes_that_are_not_constructor_arguments_come_back() -> None:
    back = through_the_journal(Required(1, b=2))
    assert isinstance(back, Required)
    assert (back.a, back.b, str(back)) == (1, 2, "1 and 2")


def test_a_message_that_can_no_longer_be_made_is_kept_as_a_note() -> None:
    back = through_the_journal(Shy(SimpleNamespace(status=503)))
    assert isinstance(back, Shy)
    assert back.status == 503
    assert "answered 503" in back.__notes__[0]


def test_an_unknown_class_keeps_its_attributes_traceback_and_builtin_base() -> None:
    class Hidden(ConnectionError):
        def __init__(self, code: int) -> None:
            super().__init__("hidden")
            self.code, self.socket = code, object()

    back = through_the_journal(raised(Hidden(5)))
    assert isinstance(back, StepError)
    assert isinstance(back, ConnectionError)
    assert back.type.endswith("Hidden")
    assert (back.message, back.attributes) == ("hidden", {"code": 5})
    assert "test_failures.py" in back.traceback
    again = through_the_journal(raised(back))
    assert isinstance(again, StepError)
    assert isinstance(again, ConnectionError)
    assert (again.type, again.message, again.attributes) == (back.type, back.message, back.attributes)


@pytest.mark.parametrize("base", [cls for cls in vars(builtins).values() if isinstance(cls, type)], ids=str)
def test_a_class_that_is_not_known_can_be_derived_from_any_builtin(base: type) -> None:
    if issubclass(base, BaseException):
        failure = Failure(type="gone.Error", message="m", base=base.__name__)
        back = rebuild(failure)
        assert isinstance(back, StepError)
        assert isinstance(raised(back), StepError)


def test_a_tree_of_groups_is_bounded() -> None:
    group: Exception = with_attributes(text="x" * 50_000)
    for _ in range(4):
        group = ExceptionGroup("x" * 10_000, [group] * 100)
    failure = describe(group, CODEC)
    assert len(msgspec.json.encode(failure)) < 4 * BYTES
    assert isinstance(rebuild(failure, CODEC), ExceptionGroup)


def test_one_large_attribute_does_not_crowd_out_the_others() -> None:
    back = through_the_journal(with_attributes(large="x" * 60_000, larger="y" * 60_000, code=5))
    assert back.code == 5  # type: ignore[attr-defined]


def test_a_huge_message_is_cut() -> None:
    failure = describe(ValueError("x" * 10**6), CODEC)
    assert len(failure.message) == TEXT
    assert not failure.args
    assert str(rebuild(failure)) == failure.message


def test_the_traceback_holds_the_frames_of_the_user_and_no_others() -> None:
    async def body() -> None:
        await asyncio.wait_for(fails(), 5)

    async def fails() -> None:
        CODEC.encode(object(), "x")

    with pytest.raises(PerdureError) as caught:
        asyncio.run(body())
    lines = describe(caught.value, CODEC).traceback.splitlines()
    assert lines[-1].endswith(".fails")
    assert all("asyncio" not in line and "codec.py" not in line.replace("test_", "") for line in lines)


def test_a_long_traceback_keeps_its_innermost_frames() -> None:
    def dive(depth: int) -> None:
        if depth == 0:
            raise ValueError("deep")
        dive(depth - 1)

    with pytest.raises(ValueError) as caught:
        dive(200)
    text = describe(caught.value, CODEC).traceback
    assert len(text.encode()) <= TRACEBACK
    assert len(text) > TRACEBACK // 2
    assert all(line.startswith("File ") for line in text.splitlines())


# --- causes and groups ----------------------------------------------------------------------------------------------


def _chain(explicit: bool) -> BaseException:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            if explicit:
                raise Declined(1, reason="r") from inner
            raise Declined(1, reason="r")  # noqa: B904
    except Declined as outer:
        return outer


@pytest.mark.parametrize("explicit", [True, False])
def test_the_cause_or_the_context_comes_back_as_the_cause(explicit: bool) -> None:
    back = through_the_journal(_chain(explicit))
    assert type(back.__cause__) is KeyError
    assert back.__cause__.args == ("inner",)


def test_a_suppressed_context_is_left_out() -> None:
    exc = _chain(False)
    exc.__suppress_context__ = True
    assert through_the_journal(exc).__cause__ is None


def test_a_chain_without_end_is_cut() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    depth, failure = 0, describe(first, CODEC)
    while failure is not None:
        depth, failure = depth + 1, failure.cause  # type: ignore[assignment]
    assert depth == DEPTH


class MyGroup(ExceptionGroup[Exception]):
    pass


@pytest.mark.parametrize("group", [ExceptionGroup, MyGroup])
def test_an_exception_group_comes_back_with_its_exceptions(group: type[ExceptionGroup[Exception]]) -> None:
    original = group("several", [ValueError("v"), group("inner", [Declined(1, reason="r"), KeyError("k")])])
    back = through_the_journal(original)
    assert type(back) is group
    assert str(back) == str(original)
    declined = back.subgroup(Declined)
    assert declined is not None
    assert back.split(Declined)[1] is not None


def test_a_group_with_a_system_exit_comes_back_with_step_errors() -> None:
    back = through_the_journal(BaseExceptionGroup("both", [KeyboardInterrupt(), ValueError("v")]))
    assert isinstance(back, ExceptionGroup)
    assert [type(exc) for exc in back.exceptions] == [StepError, ValueError]


def test_groups_in_groups_are_cut_at_the_depth_of_causes() -> None:
    group: Exception = ValueError("v")
    for _ in range(50):
        group = ExceptionGroup("g", [group])
    assert isinstance(through_the_journal(group), ExceptionGroup)


def test_a_failure_is_small_json_that_can_be_read_with_sql() -> None:
    stored = msgspec.json.decode(msgspec.json.encode(describe(Declined(5, reason="funds"), CODEC)))
    assert stored == {
        "type": f"{__name__}.Declined",
        "message": "declined with 5: funds",
        "args": ["declined with 5: funds"],
        "data": {"code": 5, "reason": "funds", "amount": "0"},
    }


class Refused(Exception):
    __slots__ = ("body",)

    def __init__(self, body: bytes, code: int) -> None:
        super().__init__(body, code)
        self.body = body


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: subprocess.CalledProcessError(2, ["ls"], b"\xff out", b""), ("output", "stderr", "returncode")),
        (lambda: subprocess.TimeoutExpired("ls", 3.0, "text", b"\x00"), ("output", "stderr", "timeout")),
        (lambda: Refused(b"no\xfe", 403), ("body", "args")),
        (lambda: FileNotFoundError(2, "no such file", b"/tmp/\xff"), ("filename", "errno")),
        (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd"), ("object", "args")),
        (
            lambda: with_attributes(raw=b"abcd", text="abcd"),
            ("args", "raw", "text"),
        ),
    ],
)
def test_bytes_of_an_exception_come_back_as_bytes(make: Callable[[], BaseException], names: tuple[str, ...]) -> None:
    raised = make()
    failure = describe(raised, CODEC)
    # As a journal keeps it, and once more, as a parent that lets it through does.
    for _ in range(2):
        failure = msgspec.json.decode(msgspec.json.encode(failure), type=Failure)
        again = rebuild(failure, CODEC)
        assert [getattr(again, name) for name in names] == [getattr(raised, name) for name in names]
        assert str(again) == str(raised)
        failure = describe(again, CODEC)


def test_bytes_that_a_journal_does_not_mark_stay_what_they_were() -> None:
    old = Failure(
        "subprocess.CalledProcessError",
        "x",
        data=msgspec.Raw(b'{"returncode":2,"cmd":"ls","output":null,"stderr":"QQ=="}'),
    )
    assert getattr(rebuild(old, CODEC), "stderr", None) == "QQ=="
    decoding = Failure("builtins.UnicodeDecodeError", "x", args=msgspec.Raw(b'["utf-8","/w==",0,1,"odd"]'))
    assert getattr(rebuild(decoding, CODEC), "object", None) == b"\xff"


@pytest.mark.parametrize("size", [10, 70_000, 100_000, 3_000_000])
@pytest.mark.parametrize("again", [1, 2, 3])
def test_a_step_error_with_a_long_message_keeps_its_fields(size: int, again: int) -> None:
    error: Exception = StepError("app.Big", "y" * size, "a line", {"code": 3})
    for _ in range(again):
        error = rebuild(describe(error, Codec()))
    assert isinstance(error, StepError)
    assert error.type == "app.Big"
    assert error.message.startswith("y" * 10)
    assert error.attributes == {"code": 3}


@pytest.mark.parametrize("cls", [StepError, perdure.errors.RunFailed, perdure.errors.NoSuchResource])
def test_an_error_of_perdure_that_was_made_by_hand_can_be_read(cls: type[Exception]) -> None:
    made = cls.__new__(cls)
    Exception.__init__(made, "made by hand")
    back = rebuild(describe(made, Codec()))
    assert type(back) is cls
    assert str(back) == "made by hand"
    if isinstance(back, StepError | perdure.errors.RunFailed):
        assert (back.message, back.traceback, back.attributes) == ("made by hand", "", {})
        assert back.type.endswith(cls.__name__)


def test_a_class_of_a_script_has_the_same_name_in_a_spawned_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = type("Declined", (Exception,), {"__module__": "__mp_main__", "__qualname__": "Declined"})
    nested = type("Declined", (Exception,), {"__module__": "__mp_main__", "__qualname__": "Shop.Declined"})
    failure = describe(ExceptionGroup("both", [there("a"), nested("b")]), Codec())
    assert [child.type for child in failure.errors] == ["__main__.Declined", "__main__.Shop.Declined"]
    main = ModuleType("__main__")
    here = type("Declined", (Exception,), {"__module__": "__main__", "__qualname__": "Declined"})
    main.Declined = here  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert type(rebuild(failure.errors[0])) is here
    # As older journals have it.
    assert type(rebuild(Failure("__mp_main__.Declined", "a"))) is here
    # And an engine that is itself in such a process.
    main.Declined = there  # type: ignore[attr-defined]
    assert type(rebuild(failure.errors[0])) is there


@pytest.mark.parametrize(
    ("type_", "shown"),
    [
        ("builtins.ValueError", "ValueError: no"),
        ("__main__.Shop.Declined", "Shop.Declined: no"),
        ("shop.errors.Declined", "shop.errors.Declined: no"),
        ("perdure.errors.NotDecodable", "NotDecodable: no"),
        ("perdure.authoring.flow.shell.CommandFailed", "CommandFailed: no"),
        ("perdure_shop.Declined", "perdure_shop.Declined: no"),
    ],
)
def test_an_error_is_shown_by_the_name_that_people_know(type_: str, shown: str) -> None:
    assert str(Failure(type_, "no")) == shown
