"""What two sources show about a change: its kind, and the line that is new."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from perdure.kernel.divergence.compare import compared
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.divergence.source import Source, SourcePart


class Case(NamedTuple):
    """A function as it was and is; two ops, each as `kind path` with its line; the kinds told without and with both."""

    before: str
    after: str
    recorded: tuple[str, str, int]
    current: tuple[str, str, int]
    told: str
    kind: str
    line: int = 0


CASES = {
    "an approval before a step of its name": Case(
        "await read(x)",
        'await approval("read")\nawait read(x)',
        ("step", "read:0", 1),
        ("approval", "read:0", 1),
        "type",
        "inserted",
    ),
    "an approval before a step of its name is gone": Case(
        'await approval("write")\nawait write(x)',
        "await write(x)",
        ("approval", "write:0", 1),
        ("step", "write:0", 1),
        "type",
        "removed",
    ),
    "an approval in place of a signal of its name": Case(
        'await wait_signal("paid")',
        'await approval("paid")',
        ("signal", "paid:0", 1),
        ("approval", "paid:0", 1),
        "type",
        "type",
    ),
    "a child that is detached": Case(
        "await settle(2)",
        "await child(settle(2), detached=True)",
        ("child", "settle:0", 1),
        ("detached child", "settle:0", 1),
        "type",
        "type",
    ),
    "a lock whose key is the name of the step": Case(
        "if await balance(payer) < cents:\n    return",
        'async with lock("balance"):\n    pass\nif cents > 5:\n    return',
        ("step", "balance:0", 1),
        ("lock", "lock:0", 1),
        "inserted",
        "type",
    ),
    "two lines that changed places, and were changed": Case(
        "raw = await fetch(x)\nreturn await clean(raw)",
        "await clean(x)\nreturn await fetch(x)",
        ("step", "fetch:0", 1),
        ("step", "clean:0", 1),
        "renamed",
        "reordered",
    ),
    "two names that were changed at once": Case(
        "await a(x)\nawait b(x)",
        "await c(x)\nawait d(x)",
        ("step", "a:0", 1),
        ("step", "c:0", 1),
        "inserted",
        "renamed",
    ),
    "an inline step with another name for the same function": Case(
        'await step_inline("stamp", stamp, x)',
        'await step_inline("seal", stamp, x)',
        ("step", "stamp:0", 1),
        ("step", "seal:0", 1),
        "inserted",
        "renamed",
    ),
    "side by side becomes one by one": Case(
        "a, b = await asyncio.gather(hotel(x), insure(y))",
        "a = await hotel(x)\nb = await insure(y)",
        ("step", "insure:0", 1),
        ("child", "hotel:0", 1),
        "reordered",
        "fewer",
    ),
    "a step inside an arm": Case(
        'if x:\n    await approval("write")\nelse:\n    await read(x)',
        'if x:\n    await keep(x)\n    await approval("write")\nelse:\n    await read(x)',
        ("approval", "write:0", 2),
        ("step", "keep:0", 2),
        "branch",
        "inserted",
    ),
    "a condition the other way round": Case(
        "if x:\n    await a(x)\nelse:\n    await b(x)",
        "if not x:\n    await a(x)\nelse:\n    await b(x)",
        ("step", "a:0", 2),
        ("step", "b:0", 4),
        "branch",
        "branch",
    ),
    "one more timeout in a line": Case(
        "async with asyncio.timeout(9):\n    await rate(x)",
        "async with asyncio.timeout(1), asyncio.timeout(9):\n    await rate(x)",
        ("step", "rate:0", 2),
        ("timer", "timer:1", 1),
        "reordered",
        "inserted",
    ),
    "a timeout above another": Case(
        "await van(x)\nasync with asyncio.timeout(9):\n    await rate(x)",
        "async with asyncio.timeout(1):\n    await van(x)\nasync with asyncio.timeout(9):\n    await rate(x)",
        ("timer", "timer:0", 2),
        ("timer", "timer:1", 3),
        "inserted",
        "inserted",
        1,
    ),
    "a draw above another": Case(
        "a = uuid4()\nb = random()",
        "c = uuid4()\na = uuid4()\nb = random()",
        ("random", "random:0", 2),
        ("uuid", "uuid:1", 2),
        "inserted",
        "inserted",
        1,
    ),
}


def op(at: tuple[str, str, int], file: str) -> OpView:
    kind, path, line = at
    return OpView(kind, path, path.partition(":")[0], source=f"{file}:{line + 10}")


@pytest.mark.parametrize("name", CASES)
def test_both_sources_show_the_kind_and_the_line(name: str) -> None:
    case = CASES[name]
    recorded, current = op(case.recorded, "old.py"), op(case.current, "new.py")
    told = Divergence(case.told, recorded.path, "", recorded, current, "")
    before, after = (
        Source((SourcePart(file, 11, "order", text),))
        for file, text in (("old.py", case.before), ("new.py", case.after))
    )
    found = compared(told, before, after)
    assert found.change == case.kind
    assert found.current is not None
    assert found.current.source == f"new.py:{(case.line or case.current[2]) + 10}"
    assert found.title != ""


def test_a_step_that_is_a_plain_function_now_stays_that() -> None:
    recorded = OpView("step", "charge:0", "charge", source="old.py:11")
    now = OpView("a plain function", "charge", "charge", source="new.py:11")
    told = Divergence("type", "charge:0", "The step charge is a plain function now.", recorded, now, "")
    before = Source((SourcePart("old.py", 11, "order", "await charge(1)"),))
    assert compared(told, before, Source((SourcePart("new.py", 11, "order", "charge(1)"),))) is told
