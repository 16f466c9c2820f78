"""What the code does not wait for is matched in order too: a timeout or a draw that was added is an insertion."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from perdure import Engine, RunStatus
from perdure.kernel.events import AnyEvent, Batch, RunClaimed, StepsHeld, ValueRecorded
from tests.divergence import shop
from tests.divergence.harness import Change, Code, cuts, events, journal, recorded, replay
from tests.engine.harness import AT_ONCE, FakeClock, eventually

# By name: the code before and after. The marked line was inserted.
INSERTED = {
    "a timeout around a step": (
        "a = await charge(n)\nawait ship(a)\nawait mail(a)",
        "a = await charge(n)\nasync with asyncio.timeout(0.2):  #!\n    await ship(a)\nawait mail(a)",
    ),
    "a timeout around the first step": (
        "await charge(n)\nawait ship(n)",
        "async with asyncio.timeout(0.2):  #!\n    await charge(n)\nawait ship(n)",
    ),
    "a timeout at a time around a step": (
        "await charge(n)\nawait ship(n)",
        "async with asyncio.timeout_at(asyncio.get_running_loop().time() + 1):  #!\n    await charge(n)\nawait ship(n)",
    ),
    "a wait_for around a step": (
        "a = await charge(n)\nawait ship(a)\nawait mail(a)",
        "a = await charge(n)\nawait asyncio.wait_for(ship(a), 0.2)  #!\nawait mail(a)",
    ),
    "a timeout around a gather": (
        "await asyncio.gather(charge(n), ship(n))\nawait mail(n)",
        "async with asyncio.timeout(0.2):  #!\n    await asyncio.gather(charge(n), ship(n))\nawait mail(n)",
    ),
    "a timeout around a wait for a signal": (
        'await charge(n)\nawait wait_signal("paid")\nawait ship(n)',
        'await charge(n)\nasync with asyncio.timeout(0.2):  #!\n    await wait_signal("paid")\nawait ship(n)',
    ),
    "a timeout around a child": (
        "await charge(n)\nawait settle(n)\nawait ship(n)",
        "await charge(n)\nasync with asyncio.timeout(0.2):  #!\n    await settle(n)\nawait ship(n)",
    ),
    "a timeout under a lock": (
        'async with lock("stock"):\n    await charge(n)\nawait ship(n)',
        'async with lock("stock"):\n    async with asyncio.timeout(0.2):  #!\n        await charge(n)\nawait ship(n)',
    ),
    "a draw before another": (
        "a = random()\nawait charge(int(a > 2))\nawait ship(n)",
        "b = random()  #!\na = random()\nawait charge(int(a > 2))\nawait ship(n)",
    ),
    "a draw whose successor decides": (
        "a = random()\nawait charge(int(a * 1000))\nawait ship(n)",
        "b = random()  #!\na = random()\nawait charge(int(a * 1000))\nawait ship(n)",
    ),
    "a draw between two": (
        "a = random()\nawait charge(n)\nb = random()\nawait ship(int(b * 1000))\nawait mail(n)",
        "a = random()\nawait charge(n)\nc = random()  #!\nb = random()\nawait ship(int(b * 1000))\nawait mail(n)",
    ),
    "a draw in a loop": (
        "for i in range(3):\n    a = random()\n    await resize(int(a * 1000))",
        "for i in range(3):\n    b = random()  #!\n    a = random()\n    await resize(int(a * 1000))",
    ),
    "a draw in a task": (
        "async def paying(n):\n    a = uuid4()\n    await charge(n)\n    await ship(n)\n"
        "await asyncio.gather(paying(n), mail(n))",
        "async def paying(n):\n    a = uuid4()\n    await charge(n)\n    b = uuid4()  #!\n    await ship(n)\n"
        "await asyncio.gather(paying(n), mail(n))",
    ),
    "a draw before another, and a child": (
        "a = random()\nawait asyncio.gather(settle(n), settle(2))",
        "b = random()  #!\na = random()\nawait asyncio.gather(settle(n), settle(2))",
    ),
    "a step in the middle of a gather": (
        "await asyncio.gather(charge(n), ship(n))\nawait mail(n)",
        "await asyncio.gather(charge(n), audit(n), ship(n))  #!\nawait mail(n)",
    ),
    "a step beside the rest": (
        "await charge(n)\nawait ship(n)",
        "_ = audit(n)  #!\nawait charge(n)\nawait ship(n)",
    ),
    "a child beside the rest": (
        "await charge(n)\nawait ship(n)",
        "t = asyncio.create_task(settle(n))  #!\nawait charge(n)\nawait ship(n)\nawait t",
    ),
    "a task with a step before others": (
        "async def one(n):\n    await charge(n)\nawait asyncio.gather(one(1), mail(n))\nawait ship(n)",
        "async def one(n):\n    await charge(n)\nasync def two(n):\n    await audit(n)  #!\n"
        "await asyncio.gather(two(1), one(1), mail(n))\nawait ship(n)",
    ),
    "a wait beside a race": (
        'a = asyncio.ensure_future(wait_signal("paid"))\nawait charge(n)\nawait a\nawait ship(n)',
        'a = asyncio.ensure_future(wait_signal("paid"))\nasyncio.ensure_future(wait_signal("lost"))  #!\n'
        "await charge(n)\nawait a\nawait ship(n)",
    ),
    "a wait in a task of its own": (
        "await charge(n)\nawait ship(n)\nawait mail(n)",
        'async def waiting():\n    await wait_signal("lost")  #!\nt = asyncio.create_task(waiting())\n'
        "await charge(n)\nawait ship(n)\nawait mail(n)",
    ),
    "a child in a task of its own": (
        "await charge(n)\nawait ship(n)\nawait mail(n)",
        "async def settling():\n    await settle(n)  #!\nt = asyncio.create_task(settling())\n"
        "await charge(n)\nawait ship(n)\nawait mail(n)",
    ),
    "a lock in a task of its own": (
        "await charge(n)\nawait ship(n)\nawait mail(n)",
        'async def locked():\n    async with lock("stock"):  #!\n        pass\nt = asyncio.create_task(locked())\n'
        "await charge(n)\nawait ship(n)\nawait mail(n)",
    ),
}
# What the code does not wait for, and the run does not depend on.
SAFE = {
    "a state that is published": (
        "await charge(n)\nawait ship(n)",
        'set_state("a", 1)\nawait charge(n)\nawait ship(n)',
    ),
    "a state that is no longer published": (
        'set_state("a", 1)\nawait charge(n)\nset_state("a", 2)\nawait ship(n)',
        'await charge(n)\nset_state("a", 2)\nawait ship(n)',
    ),
    "a state under another key": (
        'set_state("a", 1)\nawait charge(n)\nawait ship(n)',
        'set_state("b", 1)\nawait charge(n)\nawait ship(n)',
    ),
    "states in another order": (
        'set_state("a", 1)\nset_state("b", 1)\nawait charge(n)',
        'set_state("b", 1)\nawait charge(n)\nset_state("a", 1)',
    ),
    "a state in a task": (
        "async def paying(n):\n    await charge(n)\nawait asyncio.gather(paying(n), ship(n))",
        'async def paying(n):\n    set_state("a", 1)\n    await charge(n)\n    set_state("a", 2)\n'
        "await asyncio.gather(paying(n), ship(n))",
    ),
    "a state in a loop": (
        "for i in range(3):\n    await resize(i)",
        'for i in range(3):\n    set_state("round", i)\n    await resize(i)',
    ),
    "the value of a state": (
        'set_state("a", 1)\nawait charge(n)\nawait ship(n)',
        'set_state("a", "one")\nawait charge(n)\nawait ship(n)',
    ),
    "steps side by side that came one after the other": (
        "await charge(n)\nawait ship(n)\nawait mail(n)",
        "await asyncio.gather(charge(n), ship(n))\nawait mail(n)",
    ),
    "steps of tasks side by side": (
        "async def one(n):\n    await charge(n)\n    await ship(n)\n"
        "await asyncio.gather(one(1), one(2))\nawait mail(n)",
        "async def one(n):\n    await asyncio.gather(charge(n), ship(n))\n"
        "await asyncio.gather(one(1), one(2))\nawait mail(n)",
    ),
    "all steps side by side, with the time and a timeout": (
        "now()\nasync with asyncio.timeout(500):\n    await charge(n)\n    await ship(n)\n    await mail(n)",
        "now()\nasync with asyncio.timeout(500):\n    await asyncio.gather(charge(n), ship(n), mail(n))",
    ),
    "a draw of another kind": (
        "a = random()\nawait charge(n)\nawait ship(n)",
        "a = random()\nb = uuid4()\nawait charge(n)\nawait ship(n)",
    ),
    "the time": ("await charge(n)\nawait ship(n)", "await charge(n)\nnow()\nawait ship(n)"),
    "a draw in a loop": (
        "for i in range(3):\n    a = random()\n    await resize(int(a * 1000))",
        "for i in range(3):\n    a = random()\n    b = uuid4()\n    await resize(int(a * 1000))",
    ),
    "a draw in a task": (
        "async def paying(n):\n    await charge(n)\n    await ship(n)\nawait asyncio.gather(paying(n), mail(n))",
        "async def paying(n):\n    await charge(n)\n    random()\n    await ship(n)\n"
        "await asyncio.gather(paying(n), mail(n))",
    ),
    "a draw after everything": ("await charge(n)", "await charge(n)\nawait sleep(60)\nrandom()"),
    "a timeout after everything": (
        "await charge(n)",
        "await charge(n)\nawait sleep(60)\nasync with asyncio.timeout(0.2):\n    await ship(n)",
    ),
}


@pytest.mark.parametrize("case", INSERTED)
def test_what_is_inserted_beside_recorded_work_is_found(case: str, tmp_path: Path) -> None:
    made = Change(tmp_path, *INSERTED[case])
    why = made.first()
    assert why.change == "inserted"
    assert why.current is not None
    assert why.current.source == made.after.source
    assert str(made.before.file) in why.recorded.source
    # Nothing recorded comes after it at the first points only; from then on it is always seen.
    verdicts = made.verdicts()
    assert None not in verdicts[next(n for n, found in enumerate(verdicts) if found is not None) :]


@pytest.mark.parametrize("one", ["settle(n)", "paying(n)"])
def test_a_draw_is_found_from_the_first_op_of_other_scopes_on(one: str, tmp_path: Path) -> None:
    text = f"async def paying(n):\n    await charge(n)\n{{}}a = random()\nawait asyncio.gather({one}, {one})"
    assert None not in Change(tmp_path, text.format(""), text.format("random()\n")).verdicts()
    assert set(Change(tmp_path, text.format(""), text.format("uuid4()\n")).verdicts()) == {None}


@pytest.mark.parametrize("case", INSERTED)
def test_code_that_did_not_change_fits_at_every_point(case: str, tmp_path: Path) -> None:
    for text in INSERTED[case]:
        if "timeout" not in case and "wait_for" not in case:  # these fail the run, which is why they are inserted
            assert set(Change(tmp_path, text, text).verdicts()) == {None}


def test_lines_of_the_parent_do_not_count_as_lines_of_the_child(tmp_path: Path) -> None:
    text = """
    @workflow
    async def sub(n: int) -> int:
        await mail(n)
        {}await audit(n)
        return n

    @workflow(name="order")
    async def order(n: int = 7) -> int:
        await audit(n)
        await sub(n)
        await audit(n + 1)
        await sleep(60)
        return n
    """
    made = Change(tmp_path, text.format(""), text.format("await sleep(0.01)  #!\n        "))
    why = made.first()
    assert (why.change, why.op) == ("inserted", "sub:0/audit:0")
    assert why.current is not None
    assert why.current.source == made.after.source


# By name: the code before and after. The branch was added beside others, at the end.
BRANCHES = {
    "a task of a group": (
        "async def one(n):\n    await charge(n)\n    await ship(n)\n"
        "async with asyncio.TaskGroup() as group:\n    for i in range(2):\n        group.create_task(one(i))",
        "async def one(n):\n    await charge(n)  #!\n    await ship(n)\n"
        "async with asyncio.TaskGroup() as group:\n    for i in range(3):\n        group.create_task(one(i))",
    ),
    "a step of a gather": (
        "await asyncio.gather(charge(n), ship(n))\nawait mail(n)",
        "await asyncio.gather(charge(n), ship(n), audit(n))  #!\nawait mail(n)",
    ),
    "a step of as_completed": (
        "for done in asyncio.as_completed([charge(i) for i in range(2)]):\n    await ship(await done)",
        "for done in asyncio.as_completed([charge(i) for i in range(3)]):  #!\n    await ship(await done)",
    ),
    "a step of a race": (
        "race = [asyncio.ensure_future(one) for one in (charge(n), ship(n))]\n"
        "await asyncio.wait(race, return_when=asyncio.FIRST_COMPLETED)\nawait mail(n)",
        "race = [asyncio.ensure_future(one) for one in (charge(n), ship(n), audit(n))]  #!\n"
        "await asyncio.wait(race, return_when=asyncio.FIRST_COMPLETED)\nawait mail(n)",
    ),
    "a step that loses a race": (
        "race = [asyncio.ensure_future(one) for one in (charge(n), sleep(500))]\n"
        "await asyncio.wait(race, return_when=asyncio.FIRST_COMPLETED)\nrace[1].cancel()\nawait sleep(5)",
        "race = [asyncio.ensure_future(one) for one in (charge(n), sleep(500), audit(n))]  #!\n"
        "await asyncio.wait(race, return_when=asyncio.FIRST_COMPLETED)\nrace[1].cancel()\nrace[2].cancel()\n"
        "await sleep(5)",
    ),
    "a step beside a child": (
        "await asyncio.gather(settle(n), charge(n))",
        "await asyncio.gather(settle(n), charge(n), audit(n))  #!",
    ),
    "a branch with a child": (
        "async def one(n):\n    await settle(n)\nawait asyncio.gather(one(0), charge(n))",
        "async def one(n):\n    await settle(n)  #!\nawait asyncio.gather(one(0), charge(n), one(1))",
    ),
    "a branch inside a child": (
        "@workflow\nasync def pair(n: int) -> None:\n    await asyncio.gather(charge(n), ship(n))\n\n"
        "@workflow\nasync def order(n: int = 7) -> int:\n    await asyncio.gather(pair(n), mail(n))\n    return n",
        "@workflow\nasync def pair(n: int) -> None:\n    await asyncio.gather(charge(n), ship(n), audit(n))  #!\n\n"
        "@workflow\nasync def order(n: int = 7) -> int:\n    await asyncio.gather(pair(n), mail(n))\n    return n",
    ),
    "a step beside a wait": (
        'await asyncio.gather(charge(n), wait_signal("late"))',
        'await asyncio.gather(charge(n), wait_signal("late"), audit(n))  #!',
    ),
}


@pytest.mark.parametrize("limit", [None, 1, 2])
@pytest.mark.parametrize("case", BRANCHES)
def test_one_more_branch_is_found_from_the_first_round_on(case: str, limit: int | None, tmp_path: Path) -> None:
    made = Change(tmp_path, *BRANCHES[case], limit=limit)
    for why in made.verdicts():
        assert why is not None
        assert why.current is not None
        assert why.change in ("inserted", "more")
        # Of steps that wait for a limit the journal has only the number, which does not say which one is new.
        assert why.current.source == made.after.source or (case, limit) == ("a step beside a child", 1)


def test_a_run_with_one_more_branch_is_parked_before_the_branch_begins(tmp_path: Path) -> None:
    made = Change(tmp_path, *BRANCHES["a task of a group"])
    left, clock = made.left(0), FakeClock(made.cuts[0][-1].at + 3600)

    async def deploy() -> None:
        async with Engine(left, made.after.programs.values(), recovery=AT_ONCE, clock=clock):
            await eventually(lambda: left.journal.rows[made.run_id].status is RunStatus.PARKED)

    asyncio.run(deploy())
    assert shop.executed == []


# A lock that ends earlier than it did.
UNLOCKED = {
    "the end of a lock": (
        'async with lock("stock"):\n    await charge(n)\n    await ship(n)\n    await mail(n)',
        'async with lock("stock"):  #!\n    await charge(n)\nawait ship(n)\nawait mail(n)',
    ),
    "the end of a lock before another": (
        'async with lock("stock"):\n    await charge(n)\n    async with lock("bank"):\n        await ship(n)',
        'async with lock("stock"):  #!\n    await charge(n)\nasync with lock("bank"):\n    await ship(n)',
    ),
    "the end of a lock of a task": (
        'async def paying(n):\n    async with lock("stock"):\n        await charge(n)\n        await ship(n)\n'
        "await asyncio.gather(paying(n), mail(n))",
        'async def paying(n):\n    async with lock("stock"):  #!\n        await charge(n)\n    await ship(n)\n'
        "await asyncio.gather(paying(n), mail(n))",
    ),
}


@pytest.mark.parametrize("case", UNLOCKED)
def test_a_lock_that_ends_before_recorded_work_is_found_until_its_end_is_recorded(case: str, tmp_path: Path) -> None:
    made = Change(tmp_path, *UNLOCKED[case])
    first = next(n for n, why in enumerate(made.verdicts()) if why is not None)
    for why, batches in list(zip(made.verdicts(), made.cuts, strict=True))[first:]:
        if any(isinstance(event, ValueRecorded) and event.kind == "unlock" for event in events(batches)):
            continue
        assert why is not None
        assert why.current is not None
        assert (why.change, why.current.source) == ("inserted", made.after.source)
    assert set(Change(tmp_path, UNLOCKED[case][0], UNLOCKED[case][0]).verdicts()) == {None}


@pytest.mark.parametrize("case", SAFE)
def test_a_change_that_no_recorded_op_depends_on_is_no_divergence(case: str, tmp_path: Path) -> None:
    assert set(Change(tmp_path, *SAFE[case]).verdicts()) == {None}


def test_a_run_under_a_new_timeout_is_parked_and_not_failed(tmp_path: Path) -> None:
    made = Change(tmp_path, *INSERTED["a timeout around a step"])
    left, clock = made.left(1), FakeClock(made.cuts[1][-1].at + 3600)

    async def deploy() -> None:
        async with Engine(left, made.after.programs.values(), recovery=AT_ONCE, clock=clock) as engine:
            await eventually(lambda: left.journal.rows[made.run_id].status is RunStatus.PARKED)
            view = await engine.get("it")
        assert view is not None
        assert "The timer of asyncio was inserted before the step ship" in view.reason

    asyncio.run(deploy())
    assert shop.executed == []


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        ("set_state('a', 1)\nawait charge(n)", "await charge(n)", {"a": 1}),
        ("await charge(n)", "set_state('a', 1)\nawait charge(n)", {"a": 1}),
        ("set_state('a', 1)\nawait charge(n)", "set_state('b', 2)\nawait charge(n)", {"a": 1, "b": 2}),
        ("await charge(n)\nset_state('a', 2)", "set_state('a', 1)\nawait charge(n)\nset_state('a', 2)", {"a": 2}),
        (
            "await charge(n)\nset_state('a', 3)",
            "async def first(n):\n    set_state('a', 1)\n"
            "await asyncio.gather(first(n))\nawait charge(n)\nset_state('a', 3)",
            {"a": 3},
        ),
    ],
)
def test_published_states_are_those_of_the_code_of_now(
    before: str, after: str, state: dict[str, int], tmp_path: Path
) -> None:
    made = Change(tmp_path, before, after)
    left, clock = made.left(), FakeClock(made.cuts[-1][-1].at)

    async def deploy() -> None:
        async with Engine(left, made.after.programs.values(), recovery=AT_ONCE, clock=clock) as engine:
            clock.advance(3600)
            await engine.handle("it").result()
            view = await engine.get("it")
        assert view is not None
        assert view.state == state

    asyncio.run(deploy())


@pytest.mark.parametrize(
    "text",
    [
        "steps = [charge(i) for i in range(4)]\nawait sleep(5)\nawait asyncio.gather(*steps)\nawait ship(n)",
        "steps = [charge(i) for i in range(3)]\nrandom()\nawait ship(n)\nawait asyncio.gather(*steps)",
        "await asyncio.gather(*[charge(i) for i in range(3)], sleep(5), settle(n))\nawait ship(n)",
        "async with asyncio.timeout(500):\n    await asyncio.gather(*[charge(i) for i in range(4)])\nawait ship(n)",
        "race = [asyncio.ensure_future(charge(i)) for i in range(4)]\n"
        "await asyncio.wait(race, return_when=asyncio.FIRST_COMPLETED)\nfor one in race:\n    one.cancel()\n"
        "await ship(n)\nawait mail(n)",
        "async def one(i):\n    await charge(i)\n    await ship(i)\n    await settle(i)\n"
        "await asyncio.gather(*[one(i) for i in range(4)])\nawait mail(n)",
    ],
)
@pytest.mark.parametrize("limit", [1, 2])
def test_steps_that_wait_for_a_limit_are_no_insertions(text: str, limit: int, tmp_path: Path) -> None:
    code = Code(tmp_path / "code", text)
    store, run_id = recorded(code, max_concurrency=limit)
    for batches in cuts(asyncio.run(journal(store, run_id))):
        assert replay(code, batches, run_id) is None
        # Owners of before did not say that steps wait while others run.
        assert replay(code, [_as_before(batch) for batch in batches], run_id) is None


def _as_before(batch: Batch) -> Batch:
    """The same events, of an owner that does not count what it holds back. Their numbers stay."""
    return Batch(batch.seq, batch.at, [_uncounted(event) for event in batch.events])


def _uncounted(event: AnyEvent) -> AnyEvent:
    if isinstance(event, RunClaimed):
        return msgspec.structs.replace(event, counts=False)
    return StepsHeld() if isinstance(event, StepsHeld) else event
