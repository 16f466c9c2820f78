"""What was a step or a child is called as it is now, under another name or none: nothing of it runs before the parking.

Each change is deployed as it would be: upgrade-check first, then an engine, which explains the run and tries repairs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Engine, RunStatus, call, connect
from perdure.client.upgrade import upgrade_check
from perdure.errors import ForkRefused
from perdure.kernel.divergence.model import Divergence
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.policies.versions import Programs
from perdure.stores.memory.store import MemoryStore
from tests.divergence import shop
from tests.divergence.harness import Change, Code
from tests.engine.harness import AT_ONCE, FakeClock, eventually

HEADER = "from tests.divergence import shop\nfrom tests.divergence.shop import executed\n"
EFFECT = 'def pay(n):\n    executed.append("pay")\n    return n\n'
BANK = "class Bank:\n    @staticmethod\n    async def paid(n):\n        return {}\n"
TABLE = "async def paid(n):\n    return {}\nTABLE = {{'paid': paid}}\n"
BODY = """
@workflow(name="order")
async def order(n: int = 7) -> int:
    await ship(n)
    {call}
    await wait_signal("paid", type=int)
    await sleep(60)
    return n
"""


def code(call: str, more: str = EFFECT) -> str:
    return HEADER + more + BODY.format(call=call)


def child(decorator: str, call: str, more: str = "") -> str:
    plain = f"{more}{decorator}async def sub(n: int) -> int:\n    {{}}\n    return n\n"
    inside = "await ship(n + 1)" if decorator else 'executed.append("sub")'
    return HEADER + plain.format(inside) + BODY.format(call=call)


# The code before, the code after, and the kind of change. The line that is to blame is marked.
CHANGES = {
    "an inline step": (code('await step_inline("charge", pay, 5)'), code("pay(5)  #!"), "type"),
    "an inline lambda": (code('await step_inline("charge", lambda: pay(5))'), code("pay(5)  #!"), "type"),
    "an inline lambda of a variable": (code('await step_inline("charge", lambda: pay(n))'), code("pay(n)  #!"), "type"),
    "an inline partial": (
        code('await step_inline("charge", functools.partial(pay, 5))', "import functools\n" + EFFECT),
        code("pay(5)  #!"),
        "type",
    ),
    "an inline function of the body": (
        code('def inner():\n        return pay(5)\n    await step_inline("charge", inner)'),
        code("def inner():\n        return pay(5)\n    inner()  #!"),
        "type",
    ),
    "an inline step, through the module": (
        code('await perdure.step_inline("charge", pay, 5)', "import perdure\n" + EFFECT),
        code("pay(5)  #!"),
        "type",
    ),
    "one inline step of several": (
        code('await step_inline("note", len, "a")\n    await step_inline("charge", pay, 5)'),
        code('await step_inline("note", len, "a")\n    pay(5)  #!'),
        "type",
    ),
    "beside an inline step of a made name": (
        code('await step_inline("charge", pay, 5)\n    await step_inline(str(n), len, "a")'),
        code('pay(5)  #!\n    await step_inline(str(n), len, "a")'),
        "type",
    ),
    "a call in the name of another inline step": (
        code('await step_inline("charge", pay, 5)\n    await step_inline("note", len, "a")'),
        code('await step_inline(f"{pay(5)}", len, "a")  #!'),
        "type",
    ),
    "beside a call by name": (
        code('await step_inline("charge", pay, 5)\n    if n == 8:\n        await call("other", n)'),
        code('pay(5)  #!\n    if n == 8:\n        await call("other", n)'),
        "type",
    ),
    "a named step, with lines between": (
        code("await charge(5)", f"{EFFECT}charge = step(name='charge')(pay)\n"),
        code("pay(5)  #!", "A = 1\nB = 2\nC = 3\nD = 4\nE = 5\nF = 6\n" + EFFECT),
        "type",
    ),
    "a named step that is defined still": (
        code("await charge(5)", f"{EFFECT}charge = step(name='charge')(pay)\n"),
        code("pay(5)  #!", f"{EFFECT}charge = step(name='charge')(pay)\n"),
        "type",
    ),
    "a step, by a function of another name": (
        code("await charge(5)", "@step\nasync def charge(n):\n    return n\n"),
        code("pay(5)  #!"),
        "removed",
    ),
    "a step, by its statements": (
        code("await charge(5)", '@step\nasync def charge(n):\n    executed.append("pay")\n'),
        code('executed.append("pay")  #!', ""),
        "removed",
    ),
    "a child": (
        child("@workflow\n", "await sub(n)"),
        child("", "await sub(n)  #!"),
        "type",
    ),
    "a named child": (
        child("@workflow(name='below')\n", "await sub(n)"),
        child("", "await sub(n)  #!", "A = 1\nB = 2\nC = 3\nD = 4\nE = 5\n"),
        "type",
    ),
    "the function of a child": (
        child("@workflow\n", "await sub(n)"),
        HEADER
        + '@workflow\nasync def sub(n: int) -> int:\n    executed.append("sub")\n    return n\n'
        + BODY.format(call="await sub.fn(n)  #!"),
        "type",
    ),
    "the function of a step in a table, beside an inline step and texts that are made": (
        code(
            'await step_inline("charge", len, f"{n}")\n    await TABLE["pay"](n)\n    _ = f"{n} paid"',
            f"@step\nasync {EFFECT}TABLE = {{'pay': pay}}\n",
        ),
        code(
            'await step_inline("charge", len, f"{n}")\n    await TABLE["pay"](n)\n    _ = f"{n} paid"',
            f"@step  #!\nasync {EFFECT}TABLE = {{'pay': pay.fn}}\n",
        ),
        "type",
    ),
    "a step that a method calls, in code that may call any": (
        code("_ = getattr(n, 'real')\n    await Bank.paid(n)", "@step\nasync " + EFFECT + BANK.format("await pay(n)")),
        code("_ = getattr(n, 'real')\n    await Bank.paid(n)", "async " + EFFECT + BANK.format("await pay(n)  #!")),
        "type",
    ),
    "a step that a function of a table calls, in code that may call any": (
        code(
            "_ = getattr(n, 'real')\n    await TABLE['paid'](n)",
            "@step\nasync " + EFFECT + TABLE.format("await pay(n)"),
        ),
        code(
            "_ = getattr(n, 'real')\n    await TABLE['paid'](n)", "async " + EFFECT + TABLE.format("await pay(n)  #!")
        ),
        "type",
    ),
    "a step of a name that a child has still": (
        child("@workflow\n", "await sub(n)\n    await step_inline('charge', pay, 5)", EFFECT).replace(
            "await ship(n + 1)", "await step_inline('charge', pay, 5)"
        ),
        child("@workflow\n", "await sub(n)\n    pay(5)  #!", EFFECT).replace(
            "await ship(n + 1)", "await step_inline('charge', pay, 5)"
        ),
        "type",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_no_step_any_more_is_found_before_anything_of_it_runs(name: str, tmp_path: Path) -> None:
    before, after, kind = CHANGES[name]
    made = Change(tmp_path, before, after)
    shop.executed.clear()
    why = deployed(made)
    assert shop.executed == []
    assert why.current is not None
    assert (why.change, why.current.source) == (kind, made.after.source), why


def deployed(made: Change) -> Divergence:
    """Why the run is parked by an engine with the code of after; upgrade-check said the same before."""
    left, programs = made.left(), made.after.programs.values()

    async def deploy() -> Divergence:
        async with connect(left) as client:
            [checked] = [one async for one in upgrade_check(client, Programs(programs))]
            assert checked.fit is Fit.PATCH
        async with Engine(left, programs, recovery=AT_ONCE, clock=FakeClock(made.cuts[-1][-1].at + 1e6)) as engine:
            await eventually(lambda: left.journal.rows[made.run_id].status is RunStatus.PARKED)
            view = await engine.get("it")
            assert view is not None
            assert view.divergence is not None
            assert checked.kind == view.divergence.change
            return view.divergence

    return asyncio.run(deploy())


# Inline steps whose names the code makes, and others that are renamed, are no functions called as they are.
SAFE_OR_SAID = {
    "a made name": (
        code('for i in range(2):\n        await step_inline(f"charge-{i}", pay, i)'),
        code('for i in range(2):\n        await step_inline(f"charge-{i}", pay, i)\n    len("more")'),
        None,
    ),
    "a name of a variable": (
        code('for name in ("charge", "fee"):\n        await step_inline(name, pay, 1)'),
        code('for name in ("charge", "fee"):\n        await step_inline(name, pay, 1)\n    len("more")'),
        None,
    ),
    "an inline step under another name": (
        code('await step_inline("charge", pay, 5)'),
        code('await step_inline("debit", pay, 5)  #!'),
        "renamed",
    ),
    "an inline lambda under another name": (
        code('await step_inline("charge", lambda: pay(5))'),
        code('await step_inline("debit", lambda: pay(5))  #!'),
        "renamed",
    ),
    "a step that is gone": (code('await step_inline("charge", pay, 5)'), code("", ""), "removed"),
    "a lambda in place of a function": (
        code('await step_inline("charge", pay, 5)'),
        code('await step_inline("charge", lambda m: pay(m), 5)'),
        None,
    ),
} | {
    f"a made name: {call}": (code(call, more), code(f"{call}\n    len('more')", more), None)
    for call, more in [
        ('for i in range(2):\n        await step_inline(f"{i}", pay, i)', EFFECT),
        ("for i in range(2):\n        await step_inline(str(i), pay, i)", EFFECT),
        ('for i in range(2):\n        await step_inline("x" + str(i), lambda i=i: pay(i))', EFFECT),
        ('for i in range(2):\n        await step_inline(fn=pay, name=f"{i}:{n}") if n < 7 else n', EFFECT),
        ('await step_inline("a" if n > 7 else "b", pay, n)', EFFECT),
        ("def inner():\n        return pay(5)\n    await step_inline(str(n), inner)", EFFECT),
        ('for k, f in {"a": pay, "b": len}.items():\n        await step_inline(k, f, "1")', EFFECT),
        ("await step_inline(str(n), charge.fn, n)", f"@step\n{EFFECT}charge = pay\n"),
        (
            "await asyncio.gather(*(step_inline(str(i), lambda i=i: pay(i)) for i in range(2)))",
            f"import asyncio\n{EFFECT}",
        ),
        ("await perdure.step_inline(str(n), pay, n)", f"import perdure\n{EFFECT}"),
    ]
}


@pytest.mark.parametrize("name", SAFE_OR_SAID)
def test_what_is_a_step_still_is_none_of_them(name: str, tmp_path: Path) -> None:
    before, after, kind = SAFE_OR_SAID[name]
    made = Change(tmp_path, before, after)
    shop.executed.clear()
    assert {None if why is None else why.change for why in made.verdicts()[-2:]} == {kind}
    assert shop.executed == []


FAILS = "\n    await fail(n)"
FAILING = '@step\nasync def fail(n):\n    raise ValueError("no van")\n'
# A run that failed after it had done what its code calls as it is now.
RETRIED = {name: CHANGES[name][:2] for name in ("an inline step", "a named step, with lines between", "a child")} | {
    "a step": (code("await pay(5)", f"@step\n{EFFECT}"), code("pay(5)")),
    "a step of a child": (
        child("@workflow\n", "await sub(n)", f"@step\n{EFFECT}").replace("await ship(n + 1)", "await pay(5)"),
        child("@workflow\n", "await sub(n)", EFFECT).replace("await ship(n + 1)", "pay(5)"),
    ),
}


@pytest.mark.parametrize("asked", ["retry", "retry without the code", "fork"])
@pytest.mark.parametrize("name", RETRIED)
async def test_a_retry_is_refused_before_anything_runs(name: str, asked: str, tmp_path: Path) -> None:
    before, after = (
        Code(
            tmp_path / part, FAILING + text.replace("\n    await wait_signal", f"{FAILS}\n    await wait_signal")
        ).programs
        for part, text in zip(("before", "after"), RETRIED[name], strict=True)
    )
    store = MemoryStore()
    async with Engine(store, before.values()) as engine:
        started = await engine.start(call("order", 7), id="it")
        assert (await started.outcome()).status is RunStatus.FAILED
    shop.executed.clear()
    if asked == "retry without the code":
        async with connect(store) as client:
            await (await client.retry("it")).status()
    async with Engine(store, after.values()) as engine:
        if asked == "retry without the code":
            await eventually(lambda: any(row.status is RunStatus.PARKED for row in store.journal.rows.values()))
        else:
            with pytest.raises(ForkRefused, match="plain function"):
                retried = engine.retry("it") if asked == "retry" else engine.fork("it", at="fail:0", new_id="other")
                await (await retried).status()
    assert shop.executed == []
