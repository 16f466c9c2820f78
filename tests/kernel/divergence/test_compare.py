"""What two sources show about a change: its kind, and the line that is new."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from perdure.kernel.divergence.compare import compared
from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.divergence.source import Source, SourcePart
from perdure.kernel.ids import op_name


class Case(NamedTuple):
    """A function as it was and is; two ops, each as `kind path` with its line; the kinds told without and with both.

    `helper` is another function, as it was and is, ten lines above; `later` what the journal has after the recorded op.
    """

    before: str
    after: str
    recorded: tuple[str, str, int]
    current: tuple[str, str, int]
    told: str
    kind: str
    line: int = 0
    helper: tuple[str, str] = ("", "")
    later: tuple[str, ...] = ()


POLLING = "for i in range(9):\n    await poll(i)\n    await sleep(1)\nawait done(x)"
GUARDED = "for i in range(9):\n    if i > 1:\n        await order(i)\n    await tell(i)\nawait done(x)"
LOCKED = 'async with lock("a"), lock("b"):\n    await book(x)\nawait mail(x)'


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
    "the same step in a task of another name": Case(
        "await asyncio.gather(*(guarded(one) for one in x))",
        "await asyncio.gather(*(limited(one) for one in x))",
        ("step", "guarded:0/scan:0", -9),
        ("step", "limited:0/scan:0", -9),
        "renamed",
        "renamed",
        helper=("    return await scan(one)", "    return await scan(one)"),
    ),
    "the same step in a task": Case(
        "total = await merge(x)",
        "total = await asyncio.create_task(summed(x))",
        ("step", "merge:0", 1),
        ("step", "summed:0/merge:0", -9),
        "more",
        "more",
        helper=("", "    return await merge(one)"),
    ),
    "one more call of the step before it": Case(
        "a = await fetch(x)\nb = await fetch(x + 2)",
        "a = await fetch(x)\nawait fetch(9)\nb = await fetch(x + 2)",
        ("step", "fetch:1", 2),
        ("step", "fetch:1", 2),
        "inputs",
        "inserted",
    ),
    "a call of the step before it is gone": Case(
        "a = await fetch(x)\nawait fetch(9)\nb = await fetch(x + 2)",
        "a = await fetch(x)\nb = await fetch(x + 2)",
        ("step", "fetch:1", 2),
        ("step", "fetch:1", 2),
        "inputs",
        "removed",
    ),
    "a call with other arguments": Case(
        "a = await fetch(x)\nb = await fetch(x + 2)",
        "a = await fetch(x)\nb = await fetch(x + 3)",
        ("step", "fetch:1", 2),
        ("step", "fetch:1", 2),
        "inputs",
        "inputs",
    ),
    "a call of a helper whose lock comes again later": Case(
        "a = await read(x)\nawait book(a)",
        "await book(5)\na = await read(x)\nawait book(a)",
        ("step", "read:0", 1),
        ("lock", "lock:0", -9),
        "reordered",
        "inserted",
        helper=('    async with lock("a"):', '    async with lock("a"):'),
        later=("lock:0",),
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
    "a sleep in a loop is gone": Case(
        POLLING,
        POLLING.replace("    await sleep(1)\n", ""),
        ("timer", "sleep:0", 3),
        ("step", "poll:1", 2),
        "more",
        "removed",
    ),
    "a sleep leaves its loop": Case(
        POLLING,
        POLLING.replace("    await sleep(1)", "await sleep(1)"),
        ("timer", "sleep:0", 3),
        ("step", "poll:1", 2),
        "more",
        "reordered",
    ),
    "a step enters a lock": Case(
        LOCKED,
        LOCKED.replace("await mail", "    await mail"),
        ("unlock", "lock:0/unlock", 1),
        ("step", "mail:0", 3),
        "type",
        "reordered",
    ),
    "a condition in a loop": Case(
        GUARDED,
        GUARDED.replace("i > 1", "i > 5"),
        ("step", "order:0", 3),
        ("step", "tell:2", 4),
        "more",
        "branch",
    ),
    "a condition that ends a loop": Case(
        GUARDED,
        GUARDED.replace("    if i > 1:", "    if i > 3:\n        break\n    if i > 1:"),
        ("step", "order:3", 3),
        ("step", "done:0", 7),
        "branch",
        "fewer",
    ),
    "a loop that goes on": Case(
        GUARDED, GUARDED.replace("9", "10"), ("step", "done:0", 5), ("step", "order:8", 3), "inserted", "more"
    ),
    "a handler in place of a failure": Case(
        "s.compensate(undo)\nawait ship(x)\nawait mail(x)",
        "s.compensate(undo)\ntry:\n    await ship(x)\nexcept ValueError:\n    pass\nawait mail(x)",
        ("step", "compensate:0/undo:0", 1),
        ("step", "mail:0", 6),
        "fewer",
        "branch",
    ),
    "one lock less in a line": Case(
        LOCKED,
        LOCKED.replace(', lock("b")', ""),
        ("lock", "lock:1", 1),
        ("step", "book:0", 2),
        "reordered",
        "removed",
    ),
    "one more lock in a line": Case(
        LOCKED,
        LOCKED.replace('lock("a"),', 'lock("all"), lock("a"),'),
        ("lock", "lock:0", 1),
        ("lock", "lock:0", 1),
        "inputs",
        "inserted",
    ),
    "another key of a lock": Case(
        LOCKED,
        LOCKED.replace('lock("a")', 'lock("c")'),
        ("lock", "lock:0", 1),
        ("lock", "lock:0", 1),
        "inputs",
        "inputs",
    ),
    "a question whose name is data": Case(
        "for who in chain:\n    await approval(who)",
        "for who in chain:\n    await approval(who)",
        ("approval", "ann:0", 2),
        ("approval", "bob:0", 2),
        "removed",
        "renamed",
    ),
    "questions whose names are data, in another order": Case(
        "for who in chain:\n    await approval(who)",
        "for who in chain:\n    await approval(who)",
        ("approval", "ann:0", 2),
        ("approval", "bob:0", 2),
        "removed",
        "reordered",
        later=("bob:0",),
    ),
    "inputs of another name": Case(
        "async for one in inputs(int, idle=3):\n    await take(one)",
        'async for one in inputs(int, idle=3, name="cents"):\n    await take(one)',
        ("signal", "input:0", 1),
        ("signal", "cents:0", 1),
        "inserted",
        "renamed",
    ),
    "a child in place of a step": Case(
        "await make(x)",
        "await make(x)",
        ("step", "make:0", 1),
        ("child", "make:0", 1),
        "type",
        "type",
        helper=("", "def make(x):\n    return x"),
    ),
    "a timeout of asyncio.wait": Case(
        "await asyncio.wait(tasks)",
        "await asyncio.wait(tasks, timeout=5)",
        ("step", "mirror:1", 0),
        ("timer", "timer:0", 1),
        "inserted",
        "inserted",
    ),
    "one more of a comprehension": Case(
        "tasks = [one(x) for x in some]\nawait now()",
        "tasks = [one(x) for x in (*some, 9)]\nawait now()",
        ("now", "now:0", 2),
        ("step", "one:2", 1),
        "reordered",
        "more",
    ),
    "a step of a helper, before which there is another one": Case(
        "await load(x)",
        "await note(x)\nawait load(x)",
        ("step", "fetch:0", -9),
        ("step", "note:0", 1),
        "removed",
        "inserted",
        helper=("await fetch(x)", "await fetch(x)"),
    ),
    "a step of a helper that is gone": Case(
        "await load(x)\nawait done(x)",
        "await load(x)\nawait done(x)",
        ("step", "fetch:0", -9),
        ("step", "done:0", 2),
        "type",
        "removed",
        helper=("await fetch(x)", "pass"),
    ),
    "a timer around a helper is gone": Case(
        "async with asyncio.timeout(9):\n    await load(x)",
        "await load(x)",
        ("timer", "timer:0", 1),
        ("step", "fetch:0", -9),
        "reordered",
        "removed",
        helper=("await fetch(x)", "await fetch(x)"),
    ),
    "a constant leads elsewhere": Case(
        'async with lock("a"):\n    if x > LIMIT:\n        continue\n    await book(x)',
        'async with lock("a"):\n    if x > LIMIT:\n        continue\n    await book(x)',
        ("unlock", "lock:0/unlock", 1),
        ("step", "book:0", 4),
        "type",
        "branch",
    ),
    "a draw below another": Case(
        "a = uuid4()\nb = now()",
        "a = uuid4()\nc = uuid4()\nb = now()",
        ("now", "now:0", 2),
        ("uuid", "uuid:0", 1),
        "inserted",
        "inserted",
        2,
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
    return OpView(kind, path, op_name(path), source=f"{file}:{line + 10}")


@pytest.mark.parametrize("name", CASES)
def test_both_sources_show_the_kind_and_the_line(name: str) -> None:
    case = CASES[name]
    recorded, current = op(case.recorded, "old.py"), op(case.current, "new.py")
    told = Divergence(case.told, recorded.path, "As it is told.", recorded, current, "")
    before, after = (
        Source((SourcePart(file, 11, "order", text), *([SourcePart(file, 1, "load", helper)] if helper else ())))
        for file, text, helper in (
            ("old.py", case.before, case.helper[0]),
            ("new.py", case.after, case.helper[1]),
        )
    )
    later = [OpView(recorded.kind, path, path.partition(":")[0]) for path in case.later]
    found = compared(told, before, after, later)
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
