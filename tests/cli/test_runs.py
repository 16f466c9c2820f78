"""`perdure runs`: what is in a store, for people and for programs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Engine,
    Recovery,
    Retry,
    StoreUnavailable,
    approval,
    blocking,
    call,
    lock,
    rule,
    set_state,
    step,
    wait_signal,
    workflow,
)
from perdure.cli import clients
from perdure.client.reader import Reader
from perdure.kernel.events import AttemptFailed, Entry, WaitOpened
from tests.cli.conftest import Cli
from tests.engine.harness import Recorded


@workflow
async def greet(name: str) -> str:
    return f"hello {name}"


@step
def refuse() -> None:
    raise ValueError("no \x1b[31mred\x1b[0m")


@workflow
async def refused() -> None:
    await refuse()


class Ticking:
    """A clock that no two runs find at the same moment, so that their order is certain."""

    def __init__(self) -> None:
        self._ticks = 0

    def now(self) -> float:
        self._ticks += 1
        return time.time() + self._ticks / 100


async def fill(url: str) -> None:
    async with Engine(url, [greet, refused], clock=Ticking(), name="w1") as engine:
        await engine.run(greet("ada"), id="one", tags={"team": "a"})
        await engine.run(greet("bob"), id="two", tags={"team": "b"})
        await engine.run(refused(), id="three")


@pytest.fixture
def filled(cli: Cli) -> Cli:
    asyncio.run(fill(cli.url))
    return cli


# --- ls -------------------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first_in_aligned_columns(filled: Cli) -> None:
    ended = filled("runs", "ls")
    heading, *rows = ended.out.splitlines()
    assert heading.split() == ["ID", "STATUS", "PROGRAM", "STARTED", "TOOK", "WHY"]
    assert rows[0].endswith("ValueError: no \\u001b[31mred\\u001b[0m")
    assert [row.split()[:3] for row in rows] == [
        ["three", "failed", "refused"],
        ["two", "completed", "greet"],
        ["one", "completed", "greet"],
    ]
    assert {row.index("20") for row in rows} == {heading.index("STARTED")}
    assert ended.err == ""


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["--status", "failed"], ["three"]),
        (["--status", "failed,completed"], ["three", "two", "one"]),
        (["--status", "failed", "--status", "running"], ["three"]),
        (["--program", "greet"], ["two", "one"]),
        (["--tag", "team=a"], ["one"]),
        (["--tag", "team=a", "--program", "refused"], []),
        (["--owner", "w1", "--program", "greet"], ["two", "one"]),
        (["--owner", "w2"], []),
        (["--id-prefix", "t"], ["three", "two"]),
        (["--id-prefix", "t%"], []),
        (["--root", "two"], ["two"]),
        (["--roots", "--search", "error=valueerror"], ["three"]),
        (["--search", "output=nothing"], []),
        (["--parent", "two"], []),
        (["--queue", "mail"], []),
        (["--since", "1h"], ["three", "two", "one"]),
        (["--since", "1h", "--until", "30m"], []),
        (["--until", "2020-01-01"], []),
        (["--since", "2020-01-01T10:00+02:00"], ["three", "two", "one"]),
    ],
)
def test_a_list_can_be_narrowed(filled: Cli, words: list[str], ids: list[str]) -> None:
    assert [run["id"] for run in filled("runs", "ls", "--json", *words).json["runs"]] == ids


async def standing_still(url: str) -> None:
    recorded = Recorded()
    async with Engine(url, [greet, asks, fickle], on_commit=recorded, name="w1") as engine:
        _ = await engine.start(asks(), id="question")
        _ = await engine.start(fickle(), id="retrying")
        await recorded.until(lambda e: isinstance(e, WaitOpened) and e.kind == "approval")
        await recorded.until(lambda e: isinstance(e, AttemptFailed))
        await engine.run(greet("ada"), id="done")


@workflow
async def asks() -> Any:
    set_state("phase", "review")
    async with lock("stock"):
        return await approval("ship", approvers=["group:legal"])


@step(retry=Retry(attempts=5, initial=50, jitter=False))
async def unsure() -> None:
    raise ConnectionError("the line is dead")


@workflow
async def fickle() -> None:
    await unsure()


def test_a_list_says_why_runs_do_not_go_on(cli: Cli) -> None:
    asyncio.run(standing_still(cli.url))
    lines = {line.split()[0]: line for line in cli("runs", "ls").out.splitlines()}
    assert re.search(r"retry 2 of 5 in \d+ s after ConnectionError$", lines["retrying"])
    # It holds a lock, which somebody has to renew.
    assert lines["question"].endswith("no worker has `asks`: none is alive")
    assert lines["done"].endswith(" ms") or lines["done"].endswith(" s")
    by_id = {run["id"]: run["why"] for run in cli("runs", "ls", "--json").json["runs"]}
    assert by_id["retrying"]["kind"] == "retry"
    assert by_id["retrying"]["until"] is not None
    assert by_id["done"] is None
    plain = cli("runs", "ls", "--status", "completed").out
    assert "WHY" not in plain


def test_a_run_is_shown_with_its_last_error_its_locks_and_its_state(cli: Cli) -> None:
    asyncio.run(standing_still(cli.url))
    shown = cli("runs", "show", "retrying").out
    assert re.search(r"^why +retry 2 of 5 in", shown, re.MULTILINE)
    assert re.search(r"^last error +ConnectionError: the line is dead \(unsure:0, attempt 1, ", shown, re.MULTILINE)
    shown = cli("runs", "show", "question").out
    assert re.search(r"^locks +stock$", shown, re.MULTILINE)
    assert re.search(r'^state +phase = "review"$', shown, re.MULTILINE)
    assert re.search(r"^waits for +approval `ship` from group:legal +\(ship:0 ", shown, re.MULTILINE)
    found = cli("runs", "show", "retrying", "--json").json
    assert found["last_error"]["error"] == "ConnectionError: the line is dead"
    assert found["why"]["kind"] == "retry"
    assert cli("runs", "show", "question", "--json").json["locks"] == ["stock"]


def test_running_steps_are_shown_up_to_ten(cli: Cli, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/wide.db"
    asyncio.run(_left_in_the_middle(url))
    shown = cli("runs", "show", "wide", "--store", url).out
    assert "12 started, 12 unknown" in shown
    assert shown.count("outcome unknown: its owner is gone") == 10
    assert "and 2 more" in shown


async def _left_in_the_middle(url: str) -> None:
    """A run of twelve steps whose process is gone."""
    begun: list[int] = []

    @step
    async def endless(n: int) -> None:
        begun.append(n)
        await asyncio.Event().wait()

    @workflow
    async def wide() -> None:
        await asyncio.gather(*[endless(n) for n in range(12)])

    async with Engine(url, [wide], recovery=Recovery(grace=0)) as engine:
        _ = await engine.start(wide(), id="wide")
        while len(begun) < 12:
            await asyncio.sleep(0)


def test_steps_can_be_narrowed_by_status(filled: Cli) -> None:
    assert [step["path"] for step in filled("runs", "steps", "three", "--status", "failed", "--json").json] == [
        "refuse:0"
    ]
    assert filled("runs", "steps", "three", "--status", "succeeded,running", "--json").json == []
    assert (
        "no step of run 'three' has the status succeeded"
        in filled("runs", "steps", "three", "--status", "succeeded").err
    )
    wrong = filled("runs", "steps", "three", "--status", "broken")
    assert (wrong.code, "choose from running, waiting, succeeded, failed" in wrong.err) == (2, True)


def test_steps_show_their_inputs_where_the_code_is_at_hand(cli: Cli) -> None:
    order = '{"order": {"id": "o1", "total": 5}}'
    assert cli("run", "flows.py:checkout", "--id", "it", "--input", order).code == 0
    shown = cli("runs", "steps", "it", "--inputs")
    assert 'order={"id":"o1","total":5.0}' in shown.out
    [step] = cli("runs", "steps", "it", "--inputs", "--module", "flows.py", "--json").json
    assert step["inputs"] == {"order": {"id": "o1", "total": 5}}
    assert cli("runs", "steps", "it", "--json").json[0]["inputs"] is None
    cli.write("other.py", "from perdure import workflow\n\n\n@workflow\nasync def x() -> None: ...\n")
    wrong = cli("runs", "steps", "it", "--inputs", "--module", "other.py")
    assert (wrong.code, "checkout" in wrong.err) == (2, True)
    (cli.folder / "flows.py").unlink()
    without = cli("runs", "steps", "it", "--inputs")
    assert (without.code, "only recorded inputs are shown" in without.err) == (0, True)


def test_a_long_list_comes_in_pages(filled: Cli) -> None:
    first = filled("runs", "ls", "--json", "--limit", "2").json
    second = filled("runs", "ls", "--json", "--limit", "2", "--cursor", first["cursor"]).json
    assert [run["id"] for run in first["runs"] + second["runs"]] == ["three", "two", "one"]
    assert second["cursor"] is None
    assert f"--cursor {first['cursor']}" in filled("runs", "ls", "--limit", "2").err


def test_an_empty_list_says_so_apart_from_the_output(filled: Cli) -> None:
    ended = filled("runs", "ls", "--status", "parked")
    assert (ended.code, ended.out, ended.err) == (0, "", "perdure: no runs match\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ls", "--status", "nope"], "there are queued, running"),
        (["ls", "--tag", "x"], "key=value"),
        (["ls", "--limit", "0"], "at least one"),
        (["ls", "--since", "yesterday"], "write 2h, 7d"),
        (["ls", "--until", "99999999999999w"], "is not a time"),
        (["ls", "--limit", "x"], "--limit"),
        (["journal", "one", "--start", "-1"], "numbered from 0"),
        (["nope"], "ls, show, steps, journal, watch"),
        (["show"], "Try: perdure runs show --help"),
    ],
)
def test_a_wrong_command_is_explained(filled: Cli, words: list[str], said: str) -> None:
    ended = filled("runs", *words)
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


# --- one run --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["show", "steps", "journal", "watch"])
def test_an_unknown_run_ends_with_3(filled: Cli, command: str) -> None:
    ended = filled("runs", command, "nobody")
    assert (ended.code, ended.out) == (3, "")
    assert "no run with id 'nobody'" in ended.err


@pytest.mark.parametrize("command", ["ls", "show x", "steps x", "journal x", "watch x"])
def test_a_missing_store_ends_with_4_and_is_not_created(cli: Cli, command: str) -> None:
    ended = cli("runs", *command.split())
    assert ended.code == 4
    assert "there is no such file" in ended.err
    assert not (cli.folder / "perdure.db").exists()


def test_errors_are_json_too_where_json_was_asked_for(filled: Cli) -> None:
    ended = filled("runs", "show", "nobody", "--json")
    error = json.loads(ended.err)["error"]
    assert (error["type"], error["exit_code"], ended.out) == ("NoSuchRun", 3, "")


def test_a_run_is_shown_with_everything_that_matters(filled: Cli) -> None:
    out = filled("runs", "show", "three").out
    shown = {line.split()[0]: line for line in out.partition("\n\n")[0].splitlines() if line[0] != " "}
    assert shown["status"].split()[1] == "failed"
    assert "1 started, 1 failed" in shown["steps"]
    assert "ValueError: no" in shown["error"]
    assert "in step refuse:0, attempt 1" in out


def test_a_run_is_found_by_its_run_id_too(filled: Cli) -> None:
    run = filled("runs", "show", "one", "--json").json
    assert filled("runs", "show", run["run_id"], "--json").json == run


def test_values_cannot_write_to_the_terminal(filled: Cli) -> None:
    for command in ("show", "steps", "journal"):
        out = filled("runs", command, "three").out
        assert "\x1b" not in out
        assert "\\u001b[31mred" in out


def test_steps_are_listed_with_their_outcome(filled: Cli) -> None:
    heading, row = filled("runs", "steps", "three").out.splitlines()
    assert heading.split() == ["OP", "STATUS", "ATTEMPT", "TOOK", "OUTPUT", "SOURCE"]
    assert row.split()[:3] == ["refuse:0", "failed", "1"]
    assert "test_runs.py:" in row
    assert [found["path"] for found in filled("runs", "steps", "three", "--json").json] == ["refuse:0"]


def test_a_step_that_was_skipped_or_saved_by_its_fallback_shows_it(cli: Cli) -> None:
    async def run() -> None:
        for id, policy in (("skipped", rule("refuse", on_failure="skip")), ("saved", rule("refuse", fallback=repr))):
            async with Engine(cli.url, [refused], rules=[policy]) as engine:
                await engine.run(refused(), id=id)

    asyncio.run(run())
    row = cli("runs", "steps", "skipped").out.splitlines()[1]
    assert row.split()[:3] == ["refuse:0", "skipped", "1"]
    assert "ValueError" in row
    assert "StepSkipped" in cli("runs", "journal", "skipped").out
    assert cli("runs", "steps", "skipped", "--json").json[0]["status"] == "skipped"
    assert cli("runs", "show", "skipped").code == 0
    assert cli("runs", "steps", "saved").out.splitlines()[1].split()[:3] == ["refuse:0", "succeeded", "2"]
    assert "(by its fallback)" in cli("runs", "steps", "saved").out
    journal = cli("runs", "journal", "saved").out
    assert "fallback=true" in journal
    assert [a["fallback"] for a in cli("runs", "steps", "saved", "--json").json[0]["attempts"]] == [False, True]


def test_a_journal_is_json_lines_numbered_without_gaps(filled: Cli) -> None:
    lines = filled("runs", "journal", "three", "--json").lines
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    assert (lines[0]["event"]["type"], lines[-1]["event"]["type"]) == ("RunStarted", "RunFinished")
    assert filled("runs", "journal", "three", "--json", "--start", "2").lines == lines[2:]


def test_a_journal_for_people_has_one_line_an_event(filled: Cli) -> None:
    heading, *rows = filled("runs", "journal", "one").out.splitlines()
    assert heading.startswith("run one of greet, started ")
    assert [row.split()[0] for row in rows] == [str(n) for n in range(len(rows))]
    assert 'value="hello ada"' in rows[-1]


# --- watch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("id", "code"), [("one", 0), ("three", 1)])
def test_watching_a_finished_run_shows_it_and_exits_as_it_did(filled: Cli, id: str, code: int) -> None:
    ended = filled("runs", "watch", id, "--json")
    assert ended.code == code
    assert ended.lines == filled("runs", "journal", id, "--json").lines


def test_watching_a_cancelled_run_exits_with_5(cli: Cli) -> None:
    async def cancel() -> str:
        async with Engine(cli.url, [greet]) as engine:
            old = await engine.start(greet("ada"), id="x", delay=1000)
            await engine.run(greet("bob"), id="x", reuse="terminate_running")
            return old.run_id

    ended = cli("runs", "watch", asyncio.run(cancel()))
    assert ended.code == 5
    assert "cancelled" in ended.err


async def test_a_run_is_followed_from_another_process_until_it_ends(tmp_path: Path) -> None:
    go = asyncio.Event()

    @step
    async def wait() -> str:
        await go.wait()
        return "went"

    @workflow
    async def waits() -> str:
        return await wait()

    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [waits]) as engine:
        run = await engine.start(waits(), id="w")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "perdure.cli", "runs", "watch", "w", "--json", "--store", url, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        seen: list[Any] = []
        async for line in process.stdout:
            seen.append(json.loads(line))
            if seen[-1]["event"]["type"] == "StepStarted":
                go.set()
        assert await process.wait() == 0
        assert await run.result() == "went"
        assert [line["seq"] for line in seen] == [entry.seq for entry in await engine.journal("w")]


def test_watching_goes_on_by_number_when_the_store_went_away(filled: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Reader.follow

    async def breaks(self: Reader, id: str, start: int = 0) -> AsyncIterator[Entry]:
        async for entry in whole(self, id, start):
            yield entry
            raise StoreUnavailable("sqlite:///x", "it went away")

    monkeypatch.setattr(Reader, "follow", breaks)
    monkeypatch.setattr(clients, "RECONNECT_SECONDS", 0)
    ended = filled("runs", "watch", "one", "--start", "1", "--json")
    count = len(ended.lines)
    # Each event once, though the connection broke after every one; the last try finds nothing left.
    assert [line["seq"] for line in ended.lines] == list(range(1, count + 1))
    assert ended.lines[-1]["event"]["type"] == "RunFinished"
    assert ended.code == 0
    assert "trying again, from event 2" in ended.err


# --- on a terminal --------------------------------------------------------------------------------------------------


def on_terminal(*words: str) -> str:
    """What the command writes to a terminal of 80 columns."""
    ours, theirs = os.openpty()
    env = {**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-m", "perdure.cli", *words], stdout=theirs, stdin=theirs, env=env):
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 65536):
                written += part
        except OSError:  # Linux says that nobody writes any more
            pass
    os.close(ours)
    return written.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("command", ["steps", "journal"])
def test_a_terminal_gets_lines_that_fit_it(filled: Cli, command: str) -> None:
    written = on_terminal("runs", command, "three", "--store", filled.url)
    assert "\x1b[31mred" not in written
    plain = re.sub(r"\x1b\[[0-9;]*m", "", written)
    assert max(len(line) for line in plain.splitlines()) <= 80
    assert "refuse:0" in plain


def test_long_facts_wrap_in_their_column_on_a_terminal(filled: Cli) -> None:
    with blocking.connect(filled.url) as client:
        _ = client.start(call("audit"), id="audit")
        client.pause("audit", "finance asked for a stop until the audit of the third quarter is over and signed")
    written = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal("runs", "show", "audit", "--store", filled.url))
    assert max(len(line) for line in written.splitlines()) <= 80
    assert (
        "reason   finance asked for a stop until the audit of the third quarter is over\n         and signed\n"
        in written
    )


# --- parked ---------------------------------------------------------------------------------------------------------


@step
async def pay(n: int) -> int:
    return n


@step
async def settle(n: int) -> int:
    return n


@workflow(name="checkout")
async def checkout_before(n: int) -> Any:
    await pay(n)
    return await wait_signal("go")


@workflow(name="checkout")
async def checkout_after(n: int) -> Any:
    await settle(n)
    return await wait_signal("go")


@pytest.fixture
def diverged(cli: Cli) -> Cli:
    async def deploy() -> None:
        async with Engine(cli.url, [checkout_before]) as engine:
            _ = await engine.start(checkout_before(7), id="it")
            while not (view := await engine.get("it")) or not view.waits:
                await asyncio.sleep(0.005)
        async with Engine(cli.url, [checkout_after]) as engine:
            await engine.signal("it", "go")
            while (view := await engine.get("it")) is not None and view.status != "parked":
                await asyncio.sleep(0.005)

    asyncio.run(deploy())
    return cli


def test_show_explains_why_a_run_is_parked_within_100_columns(diverged: Cli) -> None:
    out = diverged("runs", "show", "it").out
    assert re.search(r"^status +parked \(diverged\)$", out, re.M)
    title = "The step pay was renamed, or replaced: the code asks for the step settle."
    assert re.search(rf"^reason +{re.escape(title)}$", out, re.M)
    before, after = checkout_before.fn.__code__.co_firstlineno + 2, checkout_after.fn.__code__.co_firstlineno + 2
    explanation = out[out.index("\n\n") :]
    assert re.search(rf"^  recorded  step pay:0     \S+test_runs.py:{before}$", explanation, re.M)
    assert re.search(rf"^  now       step settle:0  \S+test_runs.py:{after}$", explanation, re.M)
    assert "\n    -    await pay(n)\n" in explanation
    assert re.search(r'    \+    if patched\(".+"\):\n    \+        await settle\(n\)\n    \+    else:', explanation)
    assert "Traceback" not in out
    assert all(len(line) <= 100 for line in out.splitlines() if "test_runs.py" not in line)


def test_show_gives_the_divergence_as_json(diverged: Cli) -> None:
    shown = json.loads(diverged("runs", "show", "it", "--json").out)
    assert shown["parked"] == "diverged"
    found = shown["divergence"]
    assert (found["change"], found["op"]) == ("renamed", "pay:0")
    assert (found["recorded"]["name"], found["current"]["name"]) == ("pay", "settle")
    assert found["recorded"]["source"].rpartition("/")[2].startswith("test_runs.py:")
    assert found["current"]["code"] == "await settle(n)"
    assert found["patch"].count("\n@@ ") == 2


def test_a_journal_and_the_doctor_show_the_first_line_of_the_reason(diverged: Cli) -> None:
    line = next(line for line in diverged("runs", "journal", "it").out.splitlines() if "RunParked" in line)
    assert "The step pay was renamed" in line
    assert "divergence" not in line
    said = diverged("doctor").out
    assert "it: The step pay was renamed, or replaced: the code asks for the step settle." in said
    assert "patched" not in said
