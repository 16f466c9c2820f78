"""An exception of the new code, where the run went on, is the divergence: not what follows from it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from perdure.kernel.divergence.explain import Evidence, explain
from perdure.kernel.divergence.model import OpView
from tests.divergence.harness import Change

HELPER = "helping.py"
SAGA = """
from perdure import saga
async with saga() as s:
    a = await charge(n)
    s.compensate(refund, a)
    {}
    await ship(a)
await mail(a)
"""
FINALLY = """
try:
    a = await charge(n)
    {}
    await ship(a)
finally:
    await mail(n)
"""
SWALLOWED = """
try:
    a = await charge(n)
    {}
    await ship(a)
except Exception:
    pass
await mail(n)
"""
HANDLED = """
try:
    a = await charge(n)
    {}
    await ship(a)
except Exception:
    await refund(n)
await mail(n)
"""
RETURNED = """
try:
    a = await charge(n)
    {}
    await ship(a)
except Exception:
    return 0
await mail(n)
"""
GATHER = """
async def paying(n):
    a = await charge(n)
    {}
    await ship(a)
await asyncio.gather(paying(n), mail(n))
"""
TOGETHER = """
async def paying(n):
    a = await charge(n)
    {}
    await ship(a)
await asyncio.gather(paying(n), mail(n), return_exceptions=True)
await audit(n)
"""
TASKS = """
async def paying(n):
    a = await charge(n)
    {}
    await ship(a)
async with asyncio.TaskGroup() as group:
    group.create_task(paying(n))
    group.create_task(asyncio.sleep(1))
await audit(n)
"""
CHILD = """
@workflow(name="paying")
async def paying(n: int) -> int:
    a = await charge(n)
    {}
    await ship(a)
    return a

@workflow(name="order")
async def order(n: int = 7) -> int:
    try:
        a = await paying(n)
    finally:
        await mail(n)
    await sleep(60)
    return a
"""
MANAGER = """
n = 7

class Watch:
    async def __aenter__(self): return self
    async def __aexit__(self, *error):
        pass
        {}

@workflow(name="order")
async def order(n: int = 7) -> int:
    try:
        async with Watch():
            a = await charge(n)
        await ship(a)
    finally:
        await mail(n)
    await sleep(60)
    return a
"""
NESTED = """
from perdure import saga
try:
    async with saga() as s:
        async with lock("stock"):
            a = await charge(n)
            s.compensate(refund, a)
            {}
            await ship(a)
finally:
    await audit(n)
await mail(a)
"""
LOOP = """
for i in range(3):
    try:
        await resize(i)
        {}
        await mail(i)
    except Exception:
        continue
"""
SHAPES = {
    "a saga": SAGA,
    "a finally": FINALLY,
    "an except that goes on": SWALLOWED,
    "an except that does something else": HANDLED,
    "an except that returns": RETURNED,
    "a gather": GATHER,
    "a gather that returns exceptions": TOGETHER,
    "a task group": TASKS,
    "a child": CHILD,
    "a context manager": MANAGER,
    "a saga under a lock in a finally": NESTED,
    "a loop": LOOP,
}
ERRORS = {
    "KeyError": '{}["total"]  #!',
    "AttributeError": "n.amount  #!",
    "TypeError": "len(n)  #!",
    "NameError": "undefined(n)  #!",
    "ZeroDivisionError": "n / 0  #!",
    "RuntimeError": 'raise RuntimeError("not yet")  #!',
    "ImportError": "from tests.divergence.shop import unheard_of  #!",
    "SystemExit": "sys.exit(3)  #!",
    "AssertionError": "assert n is None  #!",
    "NotSerializable": "await audit(object())  #!",
}


# Each shape and each error two or three times; `make soak` has every pair.
PAIRS = [
    pytest.param(shape, error, id=f"{error}-{shape}", marks=() if (m + n) % 5 == 0 else pytest.mark.soak)
    for m, error in enumerate(ERRORS)
    for n, shape in enumerate(SHAPES)
]


@pytest.mark.parametrize(("shape", "error"), PAIRS)
def test_the_exception_is_named_with_its_type_and_line(shape: str, error: str, tmp_path: Path) -> None:
    text, header = SHAPES[shape], "import sys\n"
    if "def order(" in text:
        header, text = "", "import sys\n" + text
    made = Change(tmp_path, header + text.format("pass"), header + text.format(ERRORS[error]))
    why = made.first()
    assert why.change == "raised"
    assert why.current is not None
    assert why.current.source == made.after.source
    assert error in why.title
    assert f"{made.after.file}:{made.after.line}" in str(why)
    assert "/perdure/" not in str(why)


@pytest.fixture
def helper() -> Iterator[ModuleType]:
    module = ModuleType("helping")
    sys.modules["helping"] = module
    yield module
    del sys.modules["helping"]


def test_an_exception_in_a_helper_module_is_named_with_the_line_there(tmp_path: Path, helper: ModuleType) -> None:
    file = tmp_path / HELPER
    file.write_text("def total(order):\n    return order['total']\n")
    before = "from helping import total\n" + SAGA.format("total({})")
    vars(helper)["total"] = lambda order: 1
    made = Change(tmp_path, before, before)
    assert set(made.verdicts()) == {None}
    SourceFileLoader("helping", str(file)).exec_module(helper)
    why = made.first()
    assert why.change == "raised"
    assert why.current is not None
    assert why.current.source == f"{file}:2"
    assert "KeyError: 'total'" in why.title


def test_an_exception_that_the_code_handles_as_ever_is_not_to_blame(tmp_path: Path) -> None:
    usual = "try:\n    {}['cached']\nexcept KeyError:\n    pass\n"
    made = Change(
        tmp_path,
        f"a = await charge(n)\n{usual}await ship(a)\nawait mail(a)",
        f"a = await charge(n)\n{usual}await audit(a)  #!\nawait ship(a)\nawait mail(a)",
    )
    why = made.first()
    assert why.change == "inserted"
    assert why.current is not None
    assert why.current.source == made.after.source


def test_an_exception_of_a_recorded_step_is_not_to_blame(tmp_path: Path) -> None:
    before = """
    @step
    async def fails(n: int) -> int:
        raise ValueError("no")

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        try:
            await fails(n)
        except ValueError:
            {}await refund(n)
        await mail(n)
        await sleep(60)
        return n
    """
    made = Change(tmp_path, before.format(""), before.format("await audit(n)  #!\n            "))
    why = made.first()
    assert why.change == "inserted"
    assert why.current is not None
    assert why.current.source == made.after.source


RAISED_AGAIN = """
@step
async def fails(n: int) -> int:
    raise ValueError("no")

@workflow(name="order")
async def order(n: int = 7) -> int:
    good = 0
    try:
        try:
            good = await charge(n)
            await fails(n)
        finally:
            await audit(n)
    except ValueError:
        await {}  #!
    await sleep(60)
    return n
"""


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("(refund(n) if good > 1 else mail(n))", "(refund(n) if good > 9 else mail(n))", "branch"),
        ("refund(good)", "refund(good + 1)", "inputs"),
    ],
)
def test_an_exception_of_a_recorded_step_that_is_raised_again_later_is_not_to_blame(
    before: str, after: str, change: str, tmp_path: Path
) -> None:
    why = Change(tmp_path, RAISED_AGAIN.format(before), RAISED_AGAIN.format(after)).first()
    assert (why.change, why.op) == (change, "refund:0"), why


def test_a_body_that_ends_the_run_on_purpose_takes_another_branch(tmp_path: Path) -> None:
    text = "from perdure import bail\na = await charge(n)\nif a {} 5:\n    bail('too little')\nawait mail(n)"
    why = Change(tmp_path, text.format("<"), text.format(">")).first()
    assert (why.change, why.op) == ("branch", "mail:0"), why
    assert "ends" in why.title or "bailed" in why.title


def test_an_exception_that_goes_on_after_a_recorded_op_is_named_with_its_own_line(tmp_path: Path) -> None:
    text = "try:\n    a = await charge(n)\n    {}\nfinally:\n    await mail(n)\nawait ship(n)"
    made = Change(tmp_path, text.format("pass"), text.format('raise RuntimeError("not yet")  #!'))
    why = made.first()
    assert why.change == "raised"
    assert why.current is not None
    assert (why.current.source, why.op) == (made.after.source, "ship:0")


@pytest.mark.parametrize("first", ['set_state("at", "start")', "asyncio.create_task(ship(n))"])
def test_an_exception_before_the_first_op_of_a_round_is_named(first: str, tmp_path: Path) -> None:
    text = f"{{}}\n{first}\nawait charge(n)\nawait mail(n)"
    made = Change(tmp_path, text.format("pass"), text.format('raise RuntimeError("not yet")  #!'))
    why = made.first()
    assert why.change == "raised"
    assert why.current is not None
    assert why.current.source == made.after.source


def test_a_run_that_would_fail_is_shown_with_the_line_as_other_lines_are_named(tmp_path: Path) -> None:
    text = """
    from perdure import saga
    async with saga() as s:
        a = await charge(n)
        {}
        raise ValueError("no")
    """
    made = Change(
        tmp_path,
        "try:\n" + text.format("s.compensate(refund, a)").replace("\n", "\n    ") + "\nexcept ValueError:\n    pass",
        text.format("pass"),
    )
    why = made.first()
    assert why.current is not None
    assert why.current.source == f"{made.after.file}:{why.current.source.rpartition(':')[2]}"


def test_a_compensation_is_recorded_with_a_line_of_the_workflow(tmp_path: Path) -> None:
    text = """
    from perdure import saga
    try:
        async with saga() as s:
            a = await charge(n)
            s.compensate(refund, a)
            raise ValueError("no")
    except ValueError:
        pass
    await mail(n)
    """
    made = Change(tmp_path, text, text.replace("refund, a)", "refund, 1)"))
    why = made.first()
    assert why.recorded.path == "compensate:0/refund:0"
    assert why.change == "inputs"
    assert why.current is not None
    assert why.recorded.source == f"{made.before.file}:8"
    assert why.current.source == f"{made.after.file}:8"


def test_a_line_of_perdure_in_an_older_journal_is_not_shown() -> None:
    recorded = OpView("step", "compensate:0/refund:0", "refund", source="lib/perdure/authoring/code/saga.py:97")
    assert "saga.py" not in str(explain(Evidence(recorded)))
