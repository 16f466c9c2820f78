"""What runs in the end, whatever has happened; the workspace of a run, and the locks of its steps."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from perdure import Engine, Recovery, RunStatus, UsageError, connect
from perdure.authoring.flow import workspace
from perdure.cli.main import main
from perdure.flow import Flow
from tests.flow.writing import flow_of, problems_of, run


class Told:
    """What the components of a flow were called with."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.begun = asyncio.Event()

    def note(self, text: str) -> str:
        self.texts.append(text)
        if text.startswith("break"):
            raise ValueError(text)
        return text

    async def hang(self) -> None:
        self.begun.set()
        await asyncio.Event().wait()

    def flow(self, folder: Path, text: str) -> Flow:
        return flow_of(folder, text, components={"note": self.note, "hang": self.hang})


STEPS = """
inputs: {text: string}
on_failure: ON_FAILURE
steps:
  - {id: work, use: note, with: {text: "${{ input.text }}"}}
  - {id: skipped, use: value, with: 1, when: "${{ false }}"}
  - {id: asks, use: approval, after: [skipped], when: "${{ input.text != 'fine' }}"}
finally:
  - {id: tell, use: note, with: {text: "${{ run.status }} ${{ steps.work | default('nothing') }}"}}
  - {id: lacks, use: note, with: {text: "${{ steps.skipped }}"}}
  - {id: bye, use: note, with: {text: "bye ${{ steps.tell }}"}, when: "${{ run.status == 'failed' }}"}
output: ${{ steps.work }}
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [("fine", ["fine", "succeeded fine"]), ("break", ["break", "failed nothing", "bye failed nothing"])],
)
async def test_steps_of_finally_run_after_success_and_after_failure(tmp_path: Path, text: str, told: list[str]) -> None:
    seen = Told()
    ran = await run(seen.flow(tmp_path, STEPS.replace("ON_FAILURE", "stop")), text=text)
    assert seen.texts == told
    assert ran.result.status is (RunStatus.COMPLETED if text == "fine" else RunStatus.FAILED)
    assert ran.result.output == ("fine" if text == "fine" else None)
    assert {op: by for op, by in ran.skipped().items() if op.startswith("finally")} == {
        "finally:0/lacks:0": "input",
        **({"finally:0/bye:0": "when"} if text == "fine" else {}),
    }


@pytest.mark.parametrize("jobs", [False, True])
async def test_a_cancelled_run_still_does_what_comes_in_the_end(tmp_path: Path, jobs: bool) -> None:
    steps = "[{id: wait, use: hang}]"
    text = f"""
{"jobs: [{id: a, steps: " + steps + "}, {id: b, needs: [a], steps: " + steps + "}]" if jobs else "steps: " + steps}
finally: [{{id: tell, use: note, with: {{text: "${{{{ run.status }}}}"}}}}]
"""
    seen = Told()
    flow = seen.flow(tmp_path, text)
    async with Engine("memory://", [flow]) as engine:
        handle = await engine.start(flow(), id="r")
        await seen.begun.wait()
        await handle.cancel("enough")
        result = await engine.run(flow(), id="r")
        assert (result.status, seen.texts) == (RunStatus.CANCELLED, ["cancelled"])
        assert [run.reason for run in await engine.list(program="test")] == ["enough"]


async def test_a_failure_in_the_end_fails_the_run_and_lets_the_others_end(tmp_path: Path) -> None:
    text = """
inputs: {text: string}
steps: [{id: work, use: note, with: {text: "${{ input.text }}"}}]
finally:
  - {id: a, use: note, with: {text: "break in the end"}}
  - {id: b, use: note, with: {text: b}}
"""
    for given, error in (("fine", "break in the end"), ("break first", "break first")):
        seen = Told()
        ran = await run(seen.flow(tmp_path, text), text=given)
        assert ran.result.status is RunStatus.FAILED
        assert str(ran.result.error) == error
        assert seen.texts == [given, "break in the end", "b"]


def test_ids_in_finally_are_those_of_no_other_step(tmp_path: Path) -> None:
    text = "steps: [{id: a, use: value}, {id: finally, use: value}]\nfinally: [{id: a, use: value}]"
    assert problems_of(tmp_path, text) == [
        "3:35 error F003 'finally' is the name of what runs in the end",
        f"4:16 error F003 duplicate id 'a'; first at {tmp_path / 'flow.yaml'}:3:14",
    ]


# --- workspace --------------------------------------------------------------------------------------------------------

WORK = """
inputs: {text: string}
workspace: {root: work, cleanup: CLEANUP}
jobs:
  - id: extract
    steps:
      - {id: pull, use: pull, with: {folder: "${{ run.workspace }}"}}
  - id: load
    steps:
      - {id: copy, use: copy, with: {path: "${{ jobs.extract.pull }}", text: "${{ input.text }}"}}
output: ${{ jobs.load.copy }}
"""


def pull(folder: str) -> str:
    path = os.path.join(folder, "rows")
    Path(path).write_text("rows", encoding="utf-8")
    return path


def copy(path: str, text: str) -> str:
    if text == "break":
        raise ValueError(text)
    return Path(path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("cleanup", "text", "stays"),
    [
        ("on_success", "fine", False),
        ("on_success", "break", True),
        ("always", "break", False),
        ("never", "fine", True),
    ],
)
async def test_a_workspace_lasts_until_the_end_of_the_run(tmp_path: Path, cleanup: str, text: str, stays: bool) -> None:
    flow = flow_of(tmp_path, WORK.replace("CLEANUP", cleanup), components={"pull": pull, "copy": copy})
    ran = await run(flow, text=text)
    assert ran.result.output == ("rows" if text == "fine" else None)
    assert (tmp_path / "work" / "r" / "rows").exists() is stays
    assert (tmp_path / "work").is_dir()


async def test_what_runs_in_the_end_runs_again_at_the_end_of_a_retry(tmp_path: Path) -> None:
    given, seen = ["break", "break", "fine"], Told()

    def copy_once(path: str, text: str) -> str:
        return copy(path, given.pop(0))

    text = WORK.replace("CLEANUP", "on_success") + 'finally: [{id: tell, use: note, with: {text: "${{ run.status }}"}}]'
    flow = flow_of(tmp_path, text, components={"pull": pull, "copy": copy_once, "note": seen.note})
    async with Engine("memory://", [flow]) as engine:
        assert (await engine.run(flow(text=""), id="r")).status is RunStatus.FAILED
        handle = await engine.retry("r")
        with pytest.raises(ValueError, match="break"):
            await handle.result()
        assert await (await engine.retry("r")).result() == "rows"
    assert seen.texts == ["failed", "failed", "succeeded"]
    assert not (tmp_path / "work" / "r").exists()


async def test_what_ran_in_the_end_of_a_part_that_completed_does_not_run_again(tmp_path: Path) -> None:
    given, seen = ["break", "fine"], Told()
    inner = """
steps: [{id: a, use: value, with: 1}]
finally: [{id: tell, use: note, with: {text: "inner ${{ run.status }}"}}]
"""
    text = """
steps:
  - {id: sub, use: "flow:./inner.yaml"}
  - {id: work, use: work, after: [sub]}
"""
    seen.flow(tmp_path, inner)
    (tmp_path / "flow.yaml").rename(tmp_path / "inner.yaml")
    flow = flow_of(tmp_path, text, components={"note": seen.note, "work": lambda: seen.note(given.pop(0))})
    async with Engine("memory://", [flow]) as engine:
        assert (await engine.run(flow(), id="r")).status is RunStatus.FAILED
        assert await (await engine.retry("r")).result()
    assert seen.texts == ["inner succeeded", "break", "fine"]


async def test_a_flow_in_a_flow_has_a_workspace_of_its_own(tmp_path: Path) -> None:
    inner = """
workspace: {root: work}
steps:
  - {id: pull, use: pull, with: {folder: "${{ run.workspace }}"}}
  - {id: told, use: value, with: "${{ run.id }} ${{ steps.pull }}"}
"""
    outer = """
workspace: {root: work, cleanup: always}
steps:
  - {id: own, use: pull, with: {folder: "${{ run.workspace }}"}}
  - {id: pages, map: {over: [1, 2]}, use: "flow:./inner.yaml", after: [own], with: {}}
  - {id: copy, use: copy, after: [pages], with: {path: "${{ steps.own }}", text: fine}}
output: ["${{ steps.copy }}", "${{ steps.pages }}"]
"""
    outer = outer.replace(", with: {}}", "}").replace(
        '"flow:./inner.yaml"', '"flow:./inner.yaml", with: {n: "${{ item }}"}'
    )
    components = {"pull": pull, "copy": copy}
    flow_of(tmp_path, inner.replace("steps:", "inputs: {n: integer}\nsteps:"), "inner.yaml", components=components)
    flow = flow_of(tmp_path, outer, components=components)
    keep = tmp_path / "work" / "another"
    keep.mkdir(parents=True)
    (copied, pages) = (await run(flow)).output
    assert copied == "rows"
    folders = [f"r%2Fpages:0[{n}]" for n in range(2)]
    assert [page["told"].split(" ")[0] for page in pages] == [f"r/pages:0[{n}]" for n in range(2)]
    assert [Path(page["told"].split(" ")[1]).parent.name for page in pages] == [
        workspace.folder_of(f"r/pages:0[{n}]") for n in range(2)
    ]
    assert len(set(folders)) == 2
    assert list((tmp_path / "work").iterdir()) == [keep]


async def test_a_fork_leaves_the_workspace_to_the_run_it_came_from(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, WORK.replace("CLEANUP", "on_success"), components={"pull": pull, "copy": copy})
    async with Engine("memory://", [flow]) as engine:
        assert (await engine.run(flow(text="break"), id="r")).status is RunStatus.FAILED
        fork = await engine.fork("r", at="load:0", inputs={"text": "fine"}, new_id="other")
        assert await fork.result() == "rows"
        assert (tmp_path / "work" / "r" / "rows").exists()


@pytest.mark.parametrize("id", ["..", ".", "a/../../b", "/etc", "x" * 250, "é/\\~$", ".hidden", "a%2Fb"])
def test_a_workspace_is_one_folder_below_its_root_whatever_the_id(tmp_path: Path, id: str) -> None:
    (tmp_path / "keep").write_text("", encoding="utf-8")
    made = Path(workspace.make(str(tmp_path / "root"), id, [str(tmp_path)]))
    assert made.parent == tmp_path / "root"
    assert made.is_dir()
    assert workspace.make(str(tmp_path / "root"), id, [str(tmp_path)]) == str(made)
    assert workspace.remove(str(made), id, [str(tmp_path)])
    assert not workspace.remove(str(made), id, [str(tmp_path)])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["keep", "root"]
    assert workspace.folder_of("a/b") != workspace.folder_of("a%2Fb")


def test_what_is_removed_is_never_outside_of_the_root(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "r").mkdir(parents=True)
    (outside / "r" / "keep").write_text("", encoding="utf-8")
    made = Path(workspace.make(str(tmp_path / "root"), "r", [str(tmp_path)]))
    (made / "link").symlink_to(outside, target_is_directory=True)
    assert workspace.remove(str(made), "r", [str(tmp_path)])
    # The workspace itself became a link, and then its root did.
    made.symlink_to(outside / "r", target_is_directory=True)
    with pytest.raises(UsageError, match="is a symbolic link"):
        workspace.make(str(tmp_path / "root"), "r", [str(tmp_path)])
    assert workspace.remove(str(made), "r", [str(tmp_path)])
    assert not made.is_symlink()
    (tmp_path / "root").rmdir()
    (tmp_path / "root").symlink_to(outside, target_is_directory=True)
    with pytest.raises(UsageError, match="it is not removed"):
        workspace.remove(str(made), "r", [str(tmp_path)])
    for path, id in ((outside / "r" / "..", ".."), (outside / "r", "other"), (tmp_path, "x"), (f"{tmp_path}/", "x")):
        assert not workspace.remove(str(path), id, [str(tmp_path)])
    with pytest.raises(UsageError, match="without an id"):
        workspace.remove(f"{tmp_path}/", "", [str(tmp_path)])
    assert (outside / "r" / "keep").exists()


@pytest.mark.parametrize(
    "root", ["/etc", "..", "../../../etc", "./a/../../b", "link", "link/inside", "~/../../x/../.."]
)
def test_a_workspace_is_below_the_folder_of_its_flow(tmp_path: Path, root: str) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "link").symlink_to(tmp_path)
    text = f"steps: [{{id: a, use: value, with: '${{{{ run.workspace }}}}'}}]\nworkspace: {{root: '{root}'}}\n"
    found = problems_of(tmp_path / "flows", text)
    assert len(found) == 1
    assert "error F023" in found[0]
    assert "is outside of the folder of this flow" in found[0]


async def test_a_workspace_is_elsewhere_if_the_settings_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flows").mkdir()
    text = (
        f"steps: [{{id: a, use: value, with: '${{{{ run.workspace }}}}'}}]\nworkspace: {{root: {tmp_path}/data/work}}\n"
    )
    flow = flow_of(tmp_path / "flows", text, workspaces=[str(tmp_path / "data")])
    assert (await run(flow)).output == {"a": str(tmp_path / "data" / "work" / "r")}
    monkeypatch.chdir(tmp_path)
    Path("perdure.yaml").write_text("flows: {workspaces: [data]}")
    assert main(["flow", "check", "flows/flow.yaml"]) == 0
    Path("perdure.yaml").write_text("flows: {workspaces: [dat]}")
    assert main(["flow", "check", "flows/flow.yaml"]) == 2


async def test_a_folder_that_has_become_a_link_since_is_no_workspace(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    text = "steps: [{id: a, use: value, with: '${{ run.workspace }}'}]\nworkspace: {root: work/inner}\n"
    flow = flow_of(tmp_path / "flows", text)
    (tmp_path / "outside").mkdir()
    (tmp_path / "flows" / "work").symlink_to(tmp_path / "outside")
    result = (await run(flow)).result
    assert "is outside of the folder of this flow" in str(result.error)
    assert not list((tmp_path / "outside").iterdir())


# --- locks ------------------------------------------------------------------------------------------------------------

LOCKED = """
inputs: {key: string, wait: {type: number, default: 60}}
steps:
  - id: book
    use: inside
    lock: {key: "book-${{ input.key }}", ttl: 10m, wait: WAIT}
    retry: {attempts: 2, initial: 0}
  - {id: behind, use: value, with: "${{ steps.book }}", lock: other}
output: ${{ steps.behind | default('not booked') }}
"""


async def free(engine: Engine, *keys: str) -> None:
    """Take locks that are free, or will be as soon as their release is stored."""
    for key in keys:
        async with engine.locks.hold(key, timeout=5):
            pass


async def test_a_step_holds_its_lock_with_all_its_attempts_and_gives_it_back(tmp_path: Path) -> None:
    inside: list[int] = [0]
    calls: list[int] = []

    async def enter() -> int:
        inside[0] += 1
        assert inside[0] == 1
        calls.append(0)
        await asyncio.sleep(0)
        inside[0] -= 1
        if len(calls) % 2:
            raise ValueError("again")
        return len(calls)

    flow = flow_of(tmp_path, LOCKED.replace("WAIT", "1h"), components={"inside": enter})
    async with Engine("memory://", [flow]) as engine:
        handles = [await engine.start(flow(key="a"), id=f"r{n}") for n in range(3)]
        assert sorted([await handle.result() for handle in handles]) == [2, 4, 6]
        await free(engine, "book-a", "other")
        held = [(step.path, step.status) for step in await engine.steps("r0")]
        assert held == [("book:0", "succeeded"), ("behind:0", "succeeded")]


async def test_a_lock_that_does_not_come_in_time_fails_the_step(tmp_path: Path) -> None:
    entered: list[int] = []
    text = LOCKED.replace("WAIT", "0").replace("    retry", "    on_error: skip\n    retry")
    flow = flow_of(tmp_path, text, components={"inside": lambda: entered.append(1)})
    failing = flow_of(tmp_path, LOCKED.replace("WAIT", "0"), "other.yaml", components={"inside": lambda: None})
    async with Engine("memory://", [flow]) as engine, engine.locks.hold("book-a"):
        assert (await engine.run(flow(key="a"), id="r")).output == "not booked"
    assert not entered
    async with Engine("memory://", [failing]) as engine, engine.locks.hold("book-a"):
        result = await engine.run(failing(key="a"), id="r")
        assert "the lock 'book-a' was not released within 0 s" in str(result.error)
        bad = await engine.run(failing(key="x" * 300), id="bad")
        assert "InvalidLock" in repr(bad.error)
        assert [lock.key for lock in await engine.locks.list()] == ["book-a"]


async def test_a_run_takes_the_locks_of_its_steps_and_jobs_again_after_its_owner_has_gone(tmp_path: Path) -> None:
    begun, tries = asyncio.Event(), list[str]()

    async def work(name: str) -> str:
        tries.append(name)
        begun.set()
        if len(tries) == 1:
            await asyncio.Event().wait()
        return name

    text = """
jobs:
  - id: a
    lock: {key: warehouse, ttl: 1d}
    steps: [{id: x, use: work, with: {name: x}, lock: "table"}]
  - {id: b, after: [a], steps: [{id: y, use: work, with: {name: "${{ jobs.a.x }}y"}, lock: warehouse}]}
"""
    flow = flow_of(tmp_path, text, components={"work": work})
    url = f"sqlite:///{tmp_path}/locks.db"
    async with Engine(url, [flow], name="one", recovery=Recovery(grace=0)) as engine:
        handle = await engine.start(flow(), id="r")
        await begun.wait()
        assert not (await handle.status()).finished
    async with connect(url) as client:
        assert sorted(lock.key for lock in await client.locks.list()) == ["table", "warehouse"]
    async with Engine(url, [flow], name="one") as engine:
        assert (await engine.run(flow(), id="r")).output == {"b": {"y": "xy"}}
        await free(engine, "table", "warehouse")
    assert tries == ["x", "x", "xy"]


async def test_a_cancelled_run_gives_its_locks_back_before_what_comes_in_the_end(tmp_path: Path) -> None:
    seen = Told()
    text = """
steps: [{id: a, use: hang, lock: door}, {id: b, use: value, lock: door}]
finally: [{id: c, use: note, with: {text: in}, lock: {key: door, wait: 1d}}]
"""
    flow = seen.flow(tmp_path, text)
    async with Engine("memory://", [flow]) as engine:
        handle = await engine.start(flow(), id="r")
        await seen.begun.wait()
        await handle.cancel()
        assert (await engine.run(flow(), id="r")).status is RunStatus.CANCELLED
        assert seen.texts == ["in"]
        await free(engine, "door")
