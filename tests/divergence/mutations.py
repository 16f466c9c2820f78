"""Changes of workflows of many shapes, made by rule: what was changed is known, and so is what must be said of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

# Each shape is the body of a workflow. Steps are called alone on their line.
SHAPES = {
    "in sequence": """
await charge(1)
await ship(2)
await mail(3)
await check(4)
""",
    "with values": """
a = await charge(n)
b = await ship(a + 1)
await mail(a + b)
await check(b)
""",
    "a loop": """
await charge(1)
for i in range(3):
    await resize(i)
    await mail(i)
await ship(2)
await check(4)
""",
    "a while loop": """
count = 0
await charge(1)
while count < 3:
    await resize(count)
    await sleep(1)
    count += 1
await ship(2)
""",
    "two loops of one step": """
for i in range(3):
    await resize(i)
await mail(1)
for i in range(2):
    await resize(i + 10)
await ship(2)
""",
    "nested loops": """
await charge(1)
for i in range(2):
    for j in range(2):
        await resize(i * 10 + j)
    await mail(i)
await ship(2)
""",
    "locks": """
await charge(1)
async with lock("stock"):
    await ship(2)
    await pack(3)
async with lock("post"):
    await mail(4)
await check(5)
""",
    "a gather": """
await charge(1)
await asyncio.gather(
    ship(2),
    mail(3),
    pack(4),
)
await check(5)
""",
    "tasks": """
async def delivering(n):
    await ship(n)
    await mail(n)
async def billing(n):
    await charge(n)
    await check(n)
await asyncio.gather(delivering(1), billing(2))
await pack(5)
""",
    "a loop of tasks": """
async def working(i):
    await resize(i)
    await mail(i)
await charge(1)
await asyncio.gather(*[working(i) for i in range(3)])
await pack(5)
""",
    "rounds of tasks": """
async def working(i):
    await resize(i)
    await mail(i)
await charge(1)
for i in range(3):
    await asyncio.create_task(working(i))
await pack(5)
""",
    "signals": """
await charge(1)
await wait_signal("paid")
await ship(2)
await approval("shipping")
await mail(3)
""",
    "a race": """
await charge(1)
paid = asyncio.create_task(wait_signal("paid"))
late = asyncio.create_task(sleep(600))
await asyncio.wait([paid, late], return_when=asyncio.FIRST_COMPLETED)
late.cancel()
await ship(2)
await mail(3)
""",
    "children": """
await charge(1)
await settle(2)
await ship(3)
await invoice(4)
await mail(5)
""",
    "a condition": """
a = await charge(7)
if a > 5:
    await ship(1)
    await mail(2)
else:
    await refund(3)
    await audit(4)
await check(5)
""",
    "a condition without else": """
a = await charge(7)
if a > 5:
    await ship(1)
await check(5)
await mail(6)
""",
    "a conditional expression": """
a = await charge(7)
b = await (ship(1) if a > 5 else refund(1))
await check(5)
""",
    "a conditional expression of arguments": """
a = await charge(7)
await ship(1 if a > 5 else 2)
await check(5)
""",
    "a match": """
a = await charge(7)
match a > 5:
    case True:
        await ship(1)
    case _:
        await refund(2)
await check(5)
""",
    "a conjunction": """
a = await charge(7)
a > 5 and await ship(1)
await check(5)
await mail(6)
""",
    "helpers": """
async def deliver(n):
    await pack(n)
    await ship(n)
async def bill(n):
    await charge(n)
await bill(1)
await deliver(2)
await mail(3)
""",
    "a saga": """
from perdure import saga
async with saga() as undo:
    await charge(1)
    undo.compensate(refund, 1)
    await ship(2)
    await mail(3)
await check(4)
""",
    "try and finally": """
try:
    await charge(1)
    await ship(2)
except ValueError:
    await refund(3)
finally:
    await mail(4)
await check(5)
""",
    "one step again and again": """
await charge(1)
await mail(1)
await ship(2)
await mail(2)
await mail(3)
await check(4)
""",
    "sleeps": """
await charge(1)
await sleep(5)
await ship(2)
await asyncio.sleep(5)
await mail(3)
""",
    "draws": """
a = random()
await charge(int(a * 1000))
b = uuid4()
c = now()
await ship(c.year)
await mail(3)
""",
    "an inline step": """
await charge(1)
await step_inline("pack", len, "abc")
await ship(2)
await mail(3)
""",
}
STEP = re.compile(r"^(?P<indent> *)(?P<left>(\w+ = )?await )(?P<name>\w+)\((?P<arguments>[^()]*)\)$")
STEPS = ("charge", "ship", "mail", "audit", "refund", "resize", "check", "pack")


@dataclass(frozen=True)
class Mutation:
    """A change of a shape. `recorded` and `now` are the numbers of lines that the explanation must name, or 0."""

    shape: str
    what: str
    kind: str
    before: str
    after: str
    recorded: int
    now: int

    @property
    def name(self) -> str:
        return f"{self.shape}: {self.what}"


def mutations() -> Iterator[Mutation]:
    for shape, text in SHAPES.items():
        lines = text.strip("\n").splitlines()
        yield from _of_lines(shape, lines)
        yield from _of_pairs(shape, lines)
        yield from _of_numbers(shape, lines)
        yield from _of_words(shape, lines)


def _of_lines(shape: str, lines: list[str]) -> Iterator[Mutation]:
    """Each line with a step: something before it, nothing or something else in its place."""
    for n, line in enumerate(lines):
        found = STEP.match(line)
        if found is None or found["name"] not in STEPS or _dead(lines, n):
            continue
        indent, name, given = found["indent"], found["name"], found["arguments"]

        def made(what: str, kind: str, new: list[str], now: int, n: int = n, name: str = name) -> Mutation:
            after = [*lines[:n], *new, *lines[n + 1 :]]
            return Mutation(shape, f"{what} {name} ({n})", kind, _text(lines), _text(after), n + 1, now)

        for extra in ("await audit(77)", "await sleep(9)", 'await wait_signal("settled")', "await settle(77)"):
            if f"await {extra.split('await ')[1].partition('(')[0]}(" not in "\n".join(lines):
                yield made(f"{extra} before", "inserted", [f"{indent}{extra}", line], n + 1)
        yield made("a lock around", "inserted", [f'{indent}async with lock("new"):', f"    {line}"], n + 1)
        if not found["left"].startswith("await") or (lines[n - 1].endswith(":") and _alone(lines, n)):
            pass
        else:
            yield made("without", "removed", [], 0)
        yield made("a step for", "renamed", [line.replace(f"{name}(", "renamed_step(")], n + 1)
        yield made("other arguments for", "inputs", [line.replace(f"({given})", f"(({given}) + 500)")], n + 1)
        yield made("a sleep for", "type", [f"{indent}await sleep(9)"], n + 1)
        yield made("a child for", "type", [line.replace(f"{name}(", "settle(")], n + 1)


def _of_pairs(shape: str, lines: list[str]) -> Iterator[Mutation]:
    """Two steps in a row, the other way round."""
    for n, (one, two) in enumerate(pairwise(lines)):
        first, second = STEP.match(one), STEP.match(two)
        if first is None or second is None or _dead(lines, n) or "=" in one or "=" in two:
            continue
        if first["indent"] == second["indent"] and {first["name"], second["name"]} <= {*STEPS, "settle", "invoice"}:
            after = [*lines[:n], two, one, *lines[n + 2 :]]
            yield Mutation(shape, f"swapped ({n})", "reordered", _text(lines), _text(after), n + 1, n + 1)


def _of_numbers(shape: str, lines: list[str]) -> Iterator[Mutation]:
    """More rounds, and fewer."""
    for n, line in enumerate(lines):
        for old, number in re.findall(r"((?:range\(|count < )(\d+))", line):
            for kind, count in (("more", int(number) + 1), ("fewer", int(number) - 1), ("fewer", 0)):
                after = [*lines]
                after[n] = line.replace(old, old.replace(number, str(count)))
                yield Mutation(shape, f"{count} rounds ({n})", kind, _text(lines), _text(after), 0, 0)


# What is replaced, what by, and the kind of that.
WORDS = {
    "a condition": [("a > 5", "a > 50", "branch")],
    "a condition without else": [("a > 5", "a > 50", "branch")],
    "a conditional expression": [("a > 5", "a > 50", "branch")],
    "a conditional expression of arguments": [("a > 5", "a > 50", "inputs")],
    "a match": [("a > 5", "a > 50", "branch")],
    "a conjunction": [("a > 5", "a > 50", "branch")],
    "signals": [
        ('wait_signal("paid")', 'wait_signal("settled")', "renamed"),
        ('approval("shipping")', 'approval("sending")', "renamed"),
        ('wait_signal("paid")', "sleep(5)", "type"),
        ('wait_signal("paid")', 'approval("paid")', "type"),
        ('await wait_signal("paid")\n', "", "removed"),
    ],
    "a race": [
        ('wait_signal("paid")', 'wait_signal("settled")', "renamed"),
        ("sleep(600)", "asyncio.sleep(600)", "renamed"),
    ],
    "children": [
        ("settle(2)", "settle(3)", "inputs"),
        ("settle(2)", "invoice(2)", "renamed"),
        ("await settle(2)\n", "", "removed"),
        ("settle(2)", "child(settle(2), detached=True)", "type"),
        ("settle(2)", 'child(settle(2), id="x")', "inputs"),
    ],
    "locks": [
        ('lock("stock")', 'lock("shelf")', "inputs"),
        ('async with lock("stock"):', "if True:", "removed"),
        ('async with lock("post"):', "if True:", "removed"),
    ],
    "a gather": [
        ("    mail(3),\n", "", "removed"),
        ("    ship(2),\n", "", "removed"),
        ("    mail(3),", "    mail(33),", "inputs"),
        ("    mail(3),", "    audit(3),", "renamed"),
    ],
    "tasks": [("billing", "invoicing", "renamed")],
    "sleeps": [
        ("await sleep(5)\n", "", "removed"),
        ("await asyncio.sleep(5)\n", "", "removed"),
        ("await sleep(5)", "await audit(5)", "type"),
        ("await sleep(5)", 'await wait_signal("paid")', "type"),
    ],
    "draws": [
        ("b = uuid4()\n", "", "removed"),
        ("c = now()\n", "c = now()\nd = random()\n", "inserted"),
        ("a = random()\n", "z = random()\na = random()\n", "inserted"),
    ],
    "an inline step": [
        ('step_inline("pack", len, "abc")', 'step_inline("wrap", len, "abc")', "renamed"),
        ('step_inline("pack", len, "abc")', 'step_inline("pack", len, "abcd")', "inputs"),
        ('await step_inline("pack", len, "abc")\n', "", "removed"),
    ],
    "a loop of tasks": [("await mail(i)\n", "await mail(i)\n    await check(i)\n", "inserted")],
}


def _of_words(shape: str, lines: list[str]) -> Iterator[Mutation]:
    text = _text(lines)
    for old, new, kind in WORDS.get(shape, ()):
        at = text[: text.index(old)].count("\n") + 1
        if kind == "inserted":
            recorded, now = 0, at + (1 if new.startswith(old) else 0)
        elif kind == "branch":
            recorded, now = 0, 0
        else:
            recorded, now = at, 0 if kind == "removed" or shape == "tasks" else at
        recorded = 0 if shape == "tasks" else recorded
        yield Mutation(shape, f"{new!r} for {old!r}", kind, text, text.replace(old, new), recorded, now)


def _dead(lines: list[str], n: int) -> bool:
    """Whether the run does not come to a line."""
    indent = len(lines[n]) - len(lines[n].lstrip())
    for line in reversed(lines[:n]):
        outer = len(line) - len(line.lstrip())
        if outer < indent:
            if line.strip().startswith(("else", "except", "case _")):
                return True
            indent = outer
    return False


def _alone(lines: list[str], n: int) -> bool:
    """Whether a block has no other line."""
    indent = len(lines[n]) - len(lines[n].lstrip())
    return n + 1 >= len(lines) or len(lines[n + 1]) - len(lines[n + 1].lstrip()) < indent


def _text(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


MUTATIONS = list(mutations())
