"""Runs move to another version of their flow when they are told to: what they have done stays done."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure import Engine, RunStatus, UsageError, connect, step_context, workflow
from perdure.client.upgrade import upgrade_check
from perdure.errors import CannotMigrate
from perdure.flow import Flow
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.policies.versions import Programs
from perdure.testing.simulation import Simulation
from tests.flow.writing import flow_of


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        f"sqlite:///{tmp_path}/flows.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    )


ASKS = """
inputs: {n: {type: integer, default: 1}}
steps:
  - {id: a, use: value, with: "${{ input.n }}"}
  - {id: b, use: value, with: "${{ steps.a + 1 }}"}
  - {id: ask, use: approval, after: [b], timeout: 3d}
  - {id: c, use: value, with: "old ${{ steps.b }} ${{ steps.ask }}"}
output: ${{ steps.c }}
"""
A = '  - {id: a, use: value, with: "${{ input.n }}"}\n'
FITS = {
    "a later step changed": (ASKS.replace("old", "new"), "new 2 yes"),
    "a leaf was added": (ASKS.replace("output:", "  - {id: d, use: value, with: x}\noutput:"), "old 2 yes"),
    "a value comes from elsewhere, and is the same": (ASKS.replace("steps.a + 1", "input.n + 1"), "old 2 yes"),
    "a condition of what has run": (ASKS.replace("{id: a,", "{id: a, when: '${{ false }}',"), "old 2 yes"),
    "options of a step": (ASKS.replace("{id: b,", "{id: b, retry: 5, timeout: 1m,"), "old 2 yes"),
}
MISFITS = {
    "a step was put before": (
        ASKS.replace("  - {id: b", "  - {id: x, use: value, with: 1}\n  - {id: b").replace("a + 1", "a + steps.x"),
        "now comes after 'x'",
    ),
    "a step was removed": (ASKS.replace(A, "").replace("steps.a +", "input.n +"), "'a' has run"),
    "a step was renamed": (ASKS.replace("id: a,", "id: z,").replace("steps.a +", "steps.z +"), "'a' has run"),
    "other arguments": (ASKS.replace("steps.a + 1", "steps.a + 2"), "value: was 2, now 3"),
    "another kind": (ASKS.replace("use: approval", "use: signal, with: {name: ask}"), "is something else now"),
    "an input more": (ASKS.replace("default: 1}}", "default: 1}, m: integer}"), "lacks 'm'"),
    "an input less": (ASKS.replace("n:", "m:").replace("input.n", "input.m"), "there is no input 'n'"),
}


@pytest.mark.parametrize(("text", "output"), FITS.values(), ids=FITS)
async def test_a_run_goes_on_with_another_version_that_fits(tmp_path: Path, text: str, output: str) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    old, new = flow_of(tmp_path, ASKS), flow_of(tmp_path, text, "new.yaml")
    async with Engine(url, [old]) as engine, connect(url) as client:
        before = await engine.start(old(n=1), id="r")
        assert (await engine.run(old(n=1), id="r")).interrupts
        tried = [(run.id, run.reason) for run in await client.try_runs(new)]
        assert tried == [("r", "")]
        assert await client.migrate_flow("r", new, dry_run=True) == []
        handle = await client.migrate_flow("r", new, by="ann")
        await engine.approve("r", "ask", "yes")
        assert await handle.result() == await before.result() == output
        view = await client.get("r")
        assert view is not None
        assert (view.version, view.run_id, view.run_id != before.run_id) == (new.version, handle.run_id, True)
        assert [run.version for run in await client.try_runs(old)] == []


@pytest.mark.parametrize(("text", "said"), MISFITS.values(), ids=MISFITS)
async def test_a_run_that_does_not_fit_stays_as_it_is(tmp_path: Path, text: str, said: str) -> None:
    old, new = flow_of(tmp_path, ASKS), flow_of(tmp_path, text, "new.yaml")
    async with Engine("memory://", [old]) as engine:
        await engine.run(old(n=1), id="r")
        (tried,) = await engine.try_runs(new)
        assert said in tried.reason
        for dry_run in (True, False):
            with pytest.raises(CannotMigrate) as caught:
                _ = await engine.migrate_flow("r", new, dry_run=dry_run)
            assert said in str(caught.value)
            assert "put the old code back" not in str(caught.value).lower()
        await engine.approve("r", "ask", "yes")
        assert await engine.handle("r").result() == "old 2 yes"


async def test_before_an_op_it_and_what_follows_run_again(tmp_path: Path) -> None:
    old, new = flow_of(tmp_path, ASKS), flow_of(tmp_path, ASKS.replace("a + 1", "a + 2"), "new.yaml")
    async with Engine("memory://", [old]) as engine:
        await engine.run(old(n=1), id="r")
        assert await engine.migrate_flow("r", new, before="b:0", dry_run=True) == ["b:0"]
        handle = await engine.migrate_flow("r", new, before="b:0")
        result = await engine.run(old(), id="r", answers={"ask": "yes"})
        assert result.output == await handle.result() == "old 3 yes"


JOBS = """
jobs:
  - id: one
    lock: {key: warehouse, ttl: 1d}
    steps:
      - {id: first, use: work, with: {name: first}}
      - {id: hang, use: work, with: {name: hang}}
      - {id: last, use: value, with: VERSION}
finally: [{id: end, use: work, with: {name: end}}]
workspace: {root: work}
output: ["${{ jobs.one.hang }}", "${{ jobs.one.last }}"]
"""


async def test_what_is_under_way_begins_again_with_its_key_and_its_lock(tmp_path: Path, url: str) -> None:
    calls, begun = list[tuple[str, str]](), asyncio.Event()

    async def work(name: str) -> str:
        calls.append((name, step_context().id))
        if name == "hang" and not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return name

    old, new = (
        flow_of(tmp_path, JOBS.replace("VERSION", version), f"{version}.yaml", components={"work": work})
        for version in ("old", "new")
    )
    async with Engine(url, [old]) as engine, connect(url) as client:
        _ = await engine.start(old(), id="r")
        await begun.wait()
        assert await client.migrate_flow("r", new, dry_run=True) == ["one:0/hang:0"]
        handle = await engine.migrate_flow("r", new)
        assert await handle.result() == ["hang", "new"]
        async with engine.locks.hold("warehouse", timeout=10):
            pass
    assert [name for name, _ in calls] == ["first", "hang", "hang", "end"]
    assert calls[1][1] == calls[2][1], "the same idempotency key"


def test_waits_and_deadlines_end_when_they_would_have(tmp_path: Path) -> None:
    text = "steps: [{id: nap, use: sleep, with: {for: 3d}}, {id: a, use: value, with: VERSION, after: [nap]}]"
    old, new = (flow_of(tmp_path, text.replace("VERSION", version), f"{version}.yaml") for version in ("old", "new"))
    sim = Simulation(3)

    async def scenario() -> None:
        async with sim.engine([old, new]) as engine:
            began = sim.now()
            _ = await engine.start(old(), id="r")
            _ = await engine.start(old(), id="late", deadline=2 * 86400)
            await sim.advance(days=1)
            for id in ("r", "late"):
                _ = await engine.migrate_flow(id, new)
            late = await engine.handle("late").outcome()
            assert (late.status, (sim.now() - began).total_seconds() // 86400) == (RunStatus.FAILED, 2)
            assert await engine.handle("r").result() == {"nap": None, "a": "new"}
            assert (sim.now() - began).total_seconds() // 86400 == 3

    sim.play(scenario())


async def test_runs_that_are_paused_or_queued_stay_so(tmp_path: Path) -> None:
    old, new = flow_of(tmp_path, ASKS), flow_of(tmp_path, ASKS.replace("old", "new"), "new.yaml")
    async with Engine("memory://", [old]) as engine:
        await engine.run(old(n=1), id="paused")
        await engine.pause("paused", "stop")
        _ = await engine.migrate_flow("paused", new)
        assert await engine.handle("paused").status() is RunStatus.PAUSED
        await engine.resume("paused")
        assert (await engine.run(old(), id="paused", answers={"ask": 1})).output == "new 2 1"
        _ = await engine.start(old(n=1), id="queued", delay=3600, tags={"a": "b"})
        _ = await engine.migrate_flow("queued", new)
        view = await engine.get("queued")
        assert view is not None
        assert (view.status, view.version, view.tags) == (RunStatus.QUEUED, new.version, {"a": "b"})


async def test_a_run_that_failed_is_tried_again_with_another_version(tmp_path: Path) -> None:
    calls = list[str]()

    def work(name: str) -> str:
        calls.append(name)
        if name == "bad":
            raise ValueError(name)
        return name

    text = "steps: [{id: a, use: work, with: {name: one}}, {id: b, use: work, with: {name: NAME}, after: [a]}]"
    old, new = (
        flow_of(tmp_path, text.replace("NAME", n), f"{n}.yaml", components={"work": work}) for n in ("bad", "x")
    )
    other = flow_of(tmp_path, text.replace("one", "two"), "other.yaml", components={"work": work})
    async with Engine("memory://", [old]) as engine:
        assert (await engine.run(old(), id="r")).status is RunStatus.FAILED
        with pytest.raises(CannotMigrate, match="a:0 has run, and now has other arguments"):
            _ = await engine.migrate_flow("r", other)
        assert await engine.migrate_flow("r", new, dry_run=True) == ["b:0"]
        assert await (await engine.migrate_flow("r", new)).result() == {"a": "one", "b": "x"}
    assert calls == ["one", "bad", "x"]


async def test_what_cannot_be_moved_at_all_is_refused(tmp_path: Path) -> None:
    @workflow
    async def code() -> None: ...

    old, new = flow_of(tmp_path, ASKS), flow_of(tmp_path, ASKS.replace("old", "new"), "new.yaml")
    other = flow_of(tmp_path, "perdure: 1\nname: other\nsteps: [{id: a, use: value}]", "other.yaml")
    hangs = flow_of(tmp_path, "steps: [{id: a, use: approval}]\nfinally: [{id: b, use: approval}]", "hangs.yaml")

    async def refused(id: str, flow: Flow, said: str) -> None:
        with pytest.raises(UsageError, match=said):
            _ = await engine.migrate_flow(id, flow)

    async with Engine("memory://", [old, code]) as engine:
        await engine.run(old(n=1), id="done", answers={"ask": 1})
        await refused("done", new, "it has completed")
        await engine.run(old(n=1), id="r")
        await refused("r", old, f"it has version {old.version} already")
        await refused("r", other, "it is a run of 'test', and this is 'other'")
        await refused("r", code, "takes a flow")  # type: ignore[arg-type]
        await (await engine.start_batch(old, [{"n": 1}], id="batch")).cancel()
        await refused("batch", new, "it is a batch")
        await engine.run(hangs(), id="ending")
        await engine.cancel("ending")
        while not any("finally" in wait.path for wait in (await engine.get("ending")).waits):  # type: ignore[union-attr]
            await asyncio.sleep(0)
        await refused("ending", new, "it is being cancelled")


async def test_a_version_for_one_run_is_not_what_the_name_stands_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    flow = flow_of(tmp_path, "steps: [{id: a, use: mine}]", components={"mine": lambda: 1})
    async with Engine(url, [flow]) as engine:
        second = flow.override({"a": {"timeout": 5}})
        await engine.run(second())
        assert [(view.name, view.version) for view in await engine.flows()] == [("test", flow.version)]
        await engine.store_flow(second)
        assert [(view.name, view.version) for view in await engine.flows()] == [("test", second.version)]
    async with Engine(url) as engine:
        with pytest.raises(UsageError, match="there is no component 'mine'"):
            await engine.get_flow("test")


ASKED = """
inputs: {t: {type: string, default: abc}}
steps:
  - {id: a, use: value, with: {title: "${{ input.t }}", n: 1}}
  - {id: ask, use: approval, after: [a], timeout: 3d}
  - {id: told, use: tell, with: {x: "${{ steps.ask }}"}}
  - {id: c, use: pay, after: [told], with: {n: "${{ steps.a.n }}"}}
output: ${{ steps.c }}
"""
EACH = ASKED.replace("{id: c, use: pay,", "{id: c, use: pay, map: {over: OVER, as: one},").replace(
    "with: {n:", "with: {one: '${{ one }}', n:"
)
LATER = {
    "a part that the step does not have": (ASKED.replace("steps.a.n", "steps.a.cents"), "has no 'cents'"),
    "a part in a condition": (ASKED.replace("{id: c,", "{id: c, when: '${{ steps.a.m > 1 }}',"), "has no 'm'"),
    "a value of another type": (ASKED.replace("steps.a.n", "steps.a.title"), "cannot be read as int"),
    "a value of another type for all items": (
        EACH.replace("OVER", "[1]").replace("a.n", "a.title"),
        "cannot be read as int",
    ),
    "a list that is none": (
        EACH.replace("OVER", "'${{ steps.a.items }}'"),
        "has no 'items'",
    ),
    "the key of a lock": (
        ASKED.replace("{id: c,", "{id: c, lock: {key: 'k-${{ steps.a.k }}', ttl: 1m},"),
        "has no 'k'",
    ),
    "a default": (ASKED.replace("steps.a.n", "steps.a.m | default(3)"), ""),
    "a failure that is tolerated": (ASKED.replace("{id: c,", "{id: c, on_error: skip,").replace("a.n", "a.m"), ""),
    "a step that will not run": (
        ASKED.replace("{id: c,", "{id: c, when: '${{ steps.ask == 1 }}',").replace("a.n", "a.m"),
        "",
    ),
}


@pytest.mark.parametrize(("text", "said"), LATER.values(), ids=LATER)
async def test_what_a_later_step_would_fail_with_keeps_a_run_from_moving(tmp_path: Path, text: str, said: str) -> None:
    told = list[object]()

    def tell(x: object) -> None:
        told.append(x)

    def pay(n: int, one: object = None) -> int:
        return n

    used = {"tell": tell, "pay": pay}
    old = flow_of(tmp_path, ASKED, components=used)
    new = flow_of(tmp_path, text, "new.yaml", components=used)
    async with Engine("memory://", [old]) as engine:
        assert (await engine.run(old(), id="r")).interrupted
        (tried,) = await engine.try_runs(new)
        assert (said in tried.reason) is bool(said or not tried.reason), tried
        if said:
            with pytest.raises(CannotMigrate, match=said.replace("(", "[(]")):
                _ = await engine.migrate_flow("r", new)
        else:
            _ = await engine.migrate_flow("r", new)
        await engine.approve("r", "ask", "yes")
        assert (await engine.run(old(), id="r")).status is RunStatus.COMPLETED
        assert told == ["yes"]


async def test_a_function_that_takes_another_type_parks_the_run_at_the_deploy(tmp_path: Path) -> None:
    told, url = list[object](), f"sqlite:///{tmp_path}/flows.db"

    def tell(x: object) -> None:
        told.append(x)

    def pay(n: int) -> int:
        return n

    def pay_text(n: str) -> str:
        return n

    for function, status in ((pay, RunStatus.WAITING), (pay_text, RunStatus.PARKED), (pay, RunStatus.COMPLETED)):
        flow = flow_of(tmp_path, ASKED, components={"tell": tell, "pay": function})
        async with Engine(url, [flow]) as engine, connect(url) as client:
            if function is pay_text:
                [checked] = [one async for one in upgrade_check(client, Programs([flow]))]
                assert (checked.fit, checked.kind) == (Fit.BREAKS, "undecodable")
            answers = {} if status is RunStatus.WAITING else {"ask": "yes"}
            assert (await engine.run(flow(), id="r", answers=answers)).status is status
        assert told == (["yes"] if status is RunStatus.COMPLETED else [])
