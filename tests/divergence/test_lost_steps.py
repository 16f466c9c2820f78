"""A recorded step that is a plain function now: the run does not fit, and no replay performs the function."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure import Engine, RunStatus, connect
from perdure.authoring.code.program import CodeProgram
from perdure.authoring.code.source_map import Code, read_code
from perdure.client.upgrade import upgrade_check
from perdure.errors import Diverged
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.policies.versions import Programs
from perdure.testing import replay
from tests.divergence import shop
from tests.divergence.harness import Change
from tests.engine.harness import AT_ONCE, FakeClock, eventually

BEFORE = """
@step
async def pay(n: int) -> int:
    executed.append("pay")
    return n

@workflow(name="order")
async def order(n: int = 7) -> int:
    a = await pay(n)
    await ship(a)
    await sleep(60)
    return a
"""
PLAIN = """
{definition}

@workflow(name="order")
async def order(n: int = 7) -> int:
    a = {call}  #!
    await ship(a)
    await sleep(60)
    return a
"""
ASYNC = 'async def pay(n):\n    executed.append("pay")\n    return n\n'
FORMS = {
    "an async function": (ASYNC, "await pay(n)"),
    "a function": ('def pay(n):\n    executed.append("pay")\n    return n\n', "pay(n)"),
    "a lambda": ('pay = lambda n: executed.append("pay") or n\n', "pay(n)"),
    "a class": ('class pay(int):\n    def __init__(self, n):\n        executed.append("pay")\n', "int(pay(n))"),
    "a partial": (
        "import functools\n"
        'def _pay(how, n):\n    executed.append("pay")\n    return n\npay = functools.partial(_pay, 1)\n',
        "pay(n)",
    ),
    "an import": ("from lost_payments import pay\n", "await pay(n)"),
    "an import under another name": ("from lost_payments import pay as settle_now\n", "await settle_now(n)"),
    "an attribute of a module": ("import lost_payments\n", "await lost_payments.pay(n)"),
    "a method of an object": (
        'class Bank:\n    def pay(self, n):\n        executed.append("pay")\n        return n\nbank = Bank()\n',
        "bank.pay(n)",
    ),
    "a method of a local object": (
        'class Bank:\n    def pay(self, n):\n        executed.append("pay")\n        return n\n',
        "Bank().pay(n)",
    ),
    "a static method": (
        'class Bank:\n    @staticmethod\n    def pay(n):\n        executed.append("pay")\n        return n\n',
        "Bank.pay(n)",
    ),
    "a callable object": (
        'class Pay:\n    def __call__(self, n):\n        executed.append("pay")\n        return n\npay = Pay()\n',
        "pay(n)",
    ),
    "an attribute of an object": (
        f"{ASYNC}class Tool:\n    def __init__(self, call):\n        self.call = call\nTOOL = Tool(pay)\n",
        "await TOOL.call(n)",
    ),
    "the function of the step": (f"@step\n{ASYNC}", "await pay.fn(n)"),
}
# The call stands elsewhere than in the body itself.
ELSEWHERE = {
    "in a helper": ASYNC
    + """
async def paying(n):
    return await pay(n)  #!

@workflow(name="order")
async def order(n: int = 7) -> int:
    a = await paying(n)
    await ship(a)
    await sleep(60)
    return a
""",
    "in a task": ASYNC
    + """
@workflow(name="order")
async def order(n: int = 7) -> int:
    a = await asyncio.create_task(pay(n))  #!
    await ship(a)
    await sleep(60)
    return a
""",
    "inside of the body": """
@workflow(name="order")
async def order(n: int = 7) -> int:
    async def pay(n):
        executed.append("pay")
        return n
    a = await pay(n)  #!
    await ship(a)
    await sleep(60)
    return a
""",
    "a lambda inside of the body": """
@workflow(name="order")
async def order(n: int = 7) -> int:
    pay = lambda n: executed.append("pay") or n
    a = pay(n)  #!
    await ship(a)
    await sleep(60)
    return a
""",
    "imported inside of the body": """
@workflow(name="order")
async def order(n: int = 7) -> int:
    from lost_payments import pay  #!
    a = await pay(n)
    await ship(a)
    await sleep(60)
    return a
""",
    "beside code that cannot be followed": ASYNC
    + """
@workflow(name="order")
async def order(n: int = 7) -> int:
    a = await pay(n)  #!
    await getattr(shop, "ship")(a)
    await sleep(60)
    return a
""",
}
# Other steps are inline, and their names are texts.
INLINE = """
{definition}

@workflow(name="order")
async def order(n: int = 7) -> int:
    a = await pay(n)  #!
    await {inline}("ship", _ship, a)
    await sleep(60)
    return a
"""
_SHIP = 'def _ship(n):\n    executed.append("ship")\n'
_NAMED = 'async def pay(n):\n    log("pay")\n    executed.append("pay")\n    return n\ndef log(text):\n    pass\n'
ELSEWHERE |= {
    "whose name is a text of its own": INLINE.format(definition=_SHIP + _NAMED, inline="step_inline"),
    "whose name is a text of a helper": INLINE.format(
        definition=_SHIP
        + 'def log():\n    return "pay"\nasync def pay(n):\n    executed.append(log())\n    return n\n',
        inline="step_inline",
    ),
    "whose name is a text beside a helper that calls inline steps": INLINE.format(
        definition=_SHIP + _NAMED + "async def by_name(name, fn, n):\n    return await step_inline(name, fn, n)\n",
        inline="by_name",
    ),
    "a generator that became a function": INLINE.format(
        definition=_SHIP + 'async def pay(n):\n    executed.append("pay")\n    return [n]\n', inline="step_inline"
    ),
}
# The call does not name the function: an explanation shows its definition.
_TABLED = 'async def pay(n):  #!\n    executed.append("pay")\n    return n\n'
TABLED = """
{definition}

@workflow(name="order")
async def order(n: int = 7) -> int:
    a = await {call}
    await ship(a)
    await sleep(60)
    return a
"""
TABLES = {
    "a table": ("TABLE = {'pay': pay}\n", "TABLE['pay'](n)"),
    "a list": ("EVERY = [pay]\n", "EVERY[0](n)"),
    "a table in a table": ("TABLES = {'bank': {'pay': pay}}\n", "TABLES['bank']['pay'](n)"),
    "a table of a class": ("class Bank:\n    every = {'pay': pay}\n", "Bank.every['pay'](n)"),
    "a table of an object": (
        "class Bank:\n    def __init__(self):\n        self.every = {'pay': pay}\nBANK = Bank()\n",
        "BANK.every['pay'](n)",
    ),
    "a partial in a table": ("import functools\nTABLE = {'pay': functools.partial(pay)}\n", "TABLE['pay'](n)"),
    "a method in a table": (
        "class Bank:\n    async def pay(self, n):  #!\n        executed.append('pay')\n        return n\n"
        "TABLE = {'pay': Bank().pay}\n",
        "TABLE['pay'](n)",
    ),
    "a default": ("async def with_it(n, call=pay):\n    return await call(n)\n", "with_it(n)"),
    "a name that the code makes": ("", "globals()['p' + 'ay'](n)"),
    "an attribute by a name that the code makes": ("import sys\n", "getattr(sys.modules[__name__], 'p' + 'ay')(n)"),
}
AFTER_TABLED = {
    name: TABLED.format(definition=(_TABLED if "#!" not in more else "") + more, call=call)
    for name, (more, call) in TABLES.items()
}
HEADER = "from tests.divergence import shop\nfrom tests.divergence.shop import executed\n"
AFTER = {
    **{name: PLAIN.format(definition=definition, call=call) for name, (definition, call) in FORMS.items()},
    **ELSEWHERE,
    **AFTER_TABLED,
}
STILL_STEPS = {
    "under another name in code": (
        "@step(name='pay')\nasync def settle_now(n):\n    return n\n",
        "await settle_now(n)",
    ),
    "inline": ("def _pay(n):\n    return n\n", "await step_inline('pay', _pay, n)"),
    "inline, through a helper": (
        "def pay(n):\n    return n\nasync def by_name(name, n):\n    return await step_inline(name, pay, n)\n",
        "await by_name('pay', n)",
    ),
    "inline, through a method": (
        "class Named:\n    async def call(self, name, n):\n        return await step_inline(name, pay, n)\n"
        "def pay(n):\n    return n\nNAMED = Named()\n",
        "await NAMED.call('pay', n)",
    ),
    "inline, by a name of the module": (
        "def pay(n):\n    return n\nPAY = 'pay'\n",
        "await step_inline(PAY, pay, n)",
    ),
    "of a table": ("@step\nasync def pay(n):\n    return n\nSTEPS = {'pay': pay}\n", "await STEPS['pay'](n)"),
    "wrapped": (
        "import functools\n@step\nasync def _inner(n):\n    return n\n_inner = step(name='pay')(_inner.fn)\n"
        "async def pay(n):\n    return await _inner(n)\n",
        "await pay(n)",
    ),
    "with options": ("@step\nasync def pay(n):\n    return n\n", "await pay.options(timeout=5)(n)"),
    "made in the body": ("async def pay(n):\n    return n\n", "await step(pay)(n)"),
    "made in a helper": (
        "async def pay(n):\n    return n\ndef as_step(fn):\n    return step(fn)\n",
        "await as_step(pay)(n)",
    ),
    "of a table of what was made": (
        "async def pay(n):\n    return n\nSTEPS = {fn.__name__: step(fn) for fn in [pay]}\n",
        "await globals()['STEPS']['pay'](n)",
    ),
    "reached by a name that the code makes": (
        "@step(name='pay')\nasync def pay_step(n):\n    return n\ndef pay(n):\n    return pay_step(n)\n",
        "await globals()['p' + 'ay'](n)",
    ),
}


@pytest.fixture(autouse=True)
def payments() -> Iterator[None]:
    module = ModuleType("lost_payments")

    async def pay(n: int) -> int:
        shop.executed.append("pay")
        return n

    pay.__module__ = "lost_payments"
    vars(module)["pay"] = pay
    sys.modules["lost_payments"] = module
    yield
    del sys.modules["lost_payments"]


OTHER_NAME = """
{definition}
async def charge(n: int) -> int:
    executed.append("pay")
    return n

@workflow(name="order")
async def order(n: int = 7) -> int:
    a = await charge(n){mark}
    await ship(a)
    await sleep(60)
    return a
"""


@pytest.mark.parametrize("decorator", ['@step(name="pay")', '@step(\n    name="pay",\n)'])
@pytest.mark.parametrize("more", ["", "\nasync def _other(n):\n    return n\n"])
def test_a_step_of_another_name_than_its_function_is_found(decorator: str, more: str, tmp_path: Path) -> None:
    before = OTHER_NAME.format(definition=more + decorator, mark="")
    made = change(tmp_path, before, OTHER_NAME.format(definition=more, mark="  #!"))
    assert None not in made.verdicts()
    why = made.first()
    assert why.current is not None
    assert (why.change, why.op, why.current.source) == ("type", "pay:0", made.after.source), why
    assert '@step(name="pay")' in str(why)
    assert shop.executed == []


def test_a_step_that_is_only_not_called_any_more_is_none_of_them(tmp_path: Path) -> None:
    kept = BEFORE.replace("    a = await pay(n)\n    await ship(a)", "    a = other(n)\n    await ship(a)  #!")
    made = change(tmp_path, BEFORE, kept.replace("@workflow", "def other(n):\n    return n\n\n@workflow"))
    found = [why for why in made.verdicts() if why is not None]
    assert found
    assert not [why for why in found if "plain function" in str(why)]


def change(folder: Path, before: str, after: str) -> Change:
    return Change(folder, HEADER + before, HEADER + after)


@pytest.mark.parametrize("form", AFTER)
def test_a_step_that_became_plain_is_found_before_the_body_runs(form: str, tmp_path: Path) -> None:
    made = change(tmp_path, BEFORE, AFTER[form])
    assert None not in made.verdicts()
    why = made.first()
    assert why.current is not None
    assert (why.change, why.recorded.path, why.current.source) == ("type", "pay:0", made.after.source), why
    assert "@step" in str(why)


@pytest.mark.parametrize("form", STILL_STEPS)
def test_a_step_that_still_is_one_is_none_of_them(form: str, tmp_path: Path) -> None:
    definition, call = STILL_STEPS[form]
    made = change(tmp_path, BEFORE, PLAIN.format(definition=definition, call=call))
    assert set(made.verdicts()) == {None}


def test_an_engine_parks_the_run_and_upgrade_check_says_so_before(tmp_path: Path) -> None:
    made = change(tmp_path, BEFORE, AFTER["an async function"])
    left, programs, said = made.left(), made.after.programs.values(), "The step pay is a plain function now"

    async def deploy() -> bytes:
        async with connect(left) as client:
            [checked] = [one async for one in upgrade_check(client, Programs(programs))]
            assert checked.fit is Fit.PATCH
            assert said in checked.reason
        async with Engine(left, programs, recovery=AT_ONCE, clock=FakeClock(made.cuts[-1][-1].at + 1e6)) as engine:
            await eventually(lambda: left.journal.rows[made.run_id].status is RunStatus.PARKED)
            view = await engine.get("it")
            assert view is not None
            assert view.divergence is not None
            assert (view.divergence.change, view.divergence.op) == ("type", "pay:0")
            return await engine.export("it")

    data = asyncio.run(deploy())
    with pytest.raises(Diverged, match=said):
        replay(data, made.after.order)
    assert shop.executed == []


def test_a_step_of_a_child_that_became_plain_is_found_before_the_parent_runs(tmp_path: Path) -> None:
    child = """
{definition}
@workflow(name="paying")
async def paying(n: int) -> int:
    return await pay(n)  #!

@workflow(name="order")
async def order(n: int = 7) -> int:
    a = await paying(n)
    await sleep(60)
    return a
"""
    made = change(tmp_path, child.format(definition=f"@step\n{ASYNC}"), child.format(definition=ASYNC))
    why = made.first()
    assert why.current is not None
    assert (why.change, why.op, why.current.source) == ("type", "paying:0/pay:0", made.after.source)


def test_the_code_is_read_once_and_only_if_the_body_does_not_call_the_step_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[Callable[..., Any]] = []

    def read(fn: Callable[..., Any]) -> Code:
        reads.append(fn)
        return read_code(fn)

    monkeypatch.setattr("perdure.authoring.code.program.read_code", read)
    fresh = CodeProgram("settle", "1", shop.settle.fn, {})
    assert [fresh.lost("check") for _ in range(3)] == [None] * 3
    assert reads == []
    assert [fresh.lost("gone") for _ in range(3)] == [None] * 3
    assert len(reads) == 1
