"""`perdure run`: a workflow from the shell, again and again."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import Cli

ORDER = '{"order": {"id": "7", "total": 5}}'


# --- results --------------------------------------------------------------------------------------------------------


def test_the_result_is_printed_as_json_and_nothing_else(cli: Cli) -> None:
    ended = cli("run", "flows.py:checkout", "--input", ORDER)
    assert (ended.code, ended.json, ended.err) == (0, {"payment": "payment-7", "note": ""}, "")


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ('{"order": {"id": "7", "total": 5}, "note": "gift"}', "gift"),
        ('[{"id": "7", "total": 5}, "gift"]', "gift"),
        ('[{"id": "7", "total": 5}]', ""),
    ],
)
def test_an_object_gives_keywords_and_a_list_positions(cli: Cli, given: str, note: str) -> None:
    assert cli("run", "flows.py:checkout", "--input", given).json == {"payment": "payment-7", "note": note}


@pytest.mark.parametrize("given", ["7", "-0"])
def test_any_other_value_is_the_only_argument(cli: Cli, given: str) -> None:
    assert cli("run", "flows.py:early", "--input", given).json == int(given)


def test_the_input_may_be_in_a_file(cli: Cli) -> None:
    cli.write("order.json", ORDER)
    assert cli("run", "flows.py:checkout", "--input", "@order.json").code == 0


def test_the_input_may_come_from_stdin(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("12"))
    assert cli("run", "flows.py:early", "--input", "-").json == 12


@pytest.mark.parametrize("target", ["flows:early", "flows.py:early", "./flows.py:early"])
def test_a_target_is_a_module_or_a_file(cli: Cli, target: str) -> None:
    assert cli("run", target, "--input", "1").code == 0


@pytest.mark.parametrize("target", ["single.py", "single", "single:renamed", "single:only"])
def test_the_name_may_be_left_out_where_there_is_just_one(cli: Cli, target: str) -> None:
    code = (
        "from perdure import workflow\nfrom flows import nap\n@workflow(name='renamed')\nasync def only(): return 1\n"
    )
    cli.write("single.py", code)
    assert cli("run", target).json == 1


def test_a_file_may_bear_the_name_of_a_module_of_python(cli: Cli) -> None:
    cli.write("queue.py", "from perdure import workflow\n@workflow\nasync def only(): return 1\n")
    assert cli("run", "queue.py").json == 1


def test_json_gives_the_whole_run(cli: Cli) -> None:
    ended = cli("run", "flows.py:early", "--id", "mine", "--input", "3", "--json")
    run = ended.json
    assert (run["id"], run["program"], run["status"], run["output"]) == ("mine", "early", "completed", 3)
    assert ended.err == ""


def test_a_run_that_bails_has_its_output_and_its_reason(cli: Cli) -> None:
    ended = cli("run", "flows.py:early", "--input", "-1")
    assert (ended.code, ended.json) == (0, 7)
    assert "ended early: nothing to do" in ended.err


# --- the same id again ----------------------------------------------------------------------------------------------


def test_a_finished_run_gives_its_result_again_without_its_input(cli: Cli) -> None:
    first = cli("run", "flows.py:checkout", "--id", "o", "--input", ORDER)
    again = cli("run", "flows.py:checkout", "--id", "o")
    assert (again.code, again.out, again.err) == (0, first.out, "")


def test_another_input_under_the_same_id_is_not_used_and_that_is_said(cli: Cli) -> None:
    cli("run", "flows.py:early", "--id", "n", "--input", "1")
    ended = cli("run", "flows.py:early", "--id", "n", "--input", "2")
    assert ended.json == 1
    assert "another input" in ended.err


def test_an_id_of_another_program_is_refused(cli: Cli) -> None:
    cli("run", "flows.py:early", "--id", "n", "--input", "1")
    ended = cli("run", "flows.py:nap", "--id", "n", "--input", "1")
    assert ended.code == 2
    assert "belongs to a run of 'early'" in ended.err


DYING = """
import os
from pathlib import Path
from perdure import step, workflow

def tell(text):
    with open("told.txt", "a") as file:
        file.write(text + "\\n")

@step
def first():
    tell("first")

@step
def second():
    tell("second")
    if not Path("marker").exists():
        Path("marker").touch()
        os.kill(os.getpid(), 9)
    return "done"

@workflow
async def dying():
    await first()
    return await second()
"""


def command(cli: Cli, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "perdure.cli", *words], capture_output=True, text=True, cwd=cli.folder)


def test_a_killed_run_goes_on_when_the_command_is_run_again(cli: Cli) -> None:
    cli.write("dying.py", DYING)
    words = ("run", "dying.py", "--id", "d")
    assert command(cli, *words).returncode == -signal.SIGKILL
    again = command(cli, *words)
    assert (again.returncode, again.stdout, again.stderr) == (0, '"done"\n', "")
    assert (cli.folder / "told.txt").read_text().split() == ["first", "second", "second"]


def test_a_run_that_no_longer_fits_its_code_is_parked_and_the_reason_shown(cli: Cli) -> None:
    cli.write("dying.py", DYING)
    assert command(cli, "run", "dying.py", "--id", "d").returncode == -signal.SIGKILL
    cli.write("dying.py", DYING.replace("await first()", "await second()"))
    again = command(cli, "run", "dying.py", "--id", "d")
    assert again.returncode == 5
    assert again.stdout == ""
    assert "run 'd' is parked" in again.stderr
    assert "dying.py" in again.stderr
    assert "Traceback" not in again.stderr


WAITING = """
import asyncio
from perdure import step, workflow

@step
async def wait():
    print("waiting", flush=True)
    await asyncio.Event().wait()

@workflow
async def waiting():
    await wait()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_asked_to_stop_says_how_it_goes_on(cli: Cli, number: signal.Signals, code: int) -> None:
    cli.write("waiting.py", WAITING)
    with subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", "run", "waiting.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cli.folder,
        env={**os.environ, "PERDURE_RECOVERY__GRACE": "0"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        os.kill(process.pid, number)
        _, err = process.communicate()
    assert process.returncode == code
    assert "perdure run waiting.py --id " in err
    assert "Traceback" not in err


# --- failures -------------------------------------------------------------------------------------------------------


def test_a_failed_run_shows_the_error_and_the_lines_it_came_through(cli: Cli) -> None:
    ended = cli("run", "flows.py:checkout", "--id", "bad", "--input", '[{"id": "7", "total": -5}]')
    assert (ended.code, ended.out) == (1, "")
    flows = cli.folder / "flows.py"
    assert ended.err.splitlines() == [
        "perdure: run 'bad' of checkout failed",
        "  ValueError: -5.0 is negative",
        f'    File "{flows}", line 22, in checkout',
        "  in step charge:0, attempt 1",
        f'    File "{flows}", line 16, in charge',
        "To see its steps: perdure runs steps bad",
    ]


def test_a_failed_run_is_one_document_in_json(cli: Cli) -> None:
    ended = cli("run", "flows.py:checkout", "--json", "--input", '[{"id": "7", "total": -5}]')
    assert (ended.code, ended.err) == (1, "")
    assert (ended.json["status"], ended.json["error"]["message"]) == ("failed", "-5.0 is negative")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["flows.py"], "it has checkout, early, nap"),
        (["flows.py:foo"], "no workflow named 'foo'; it has checkout, early, nap"),
        (["flows.py:Order"], "no workflow named 'Order'"),
        ([":x"], "nothing before its ':'"),
        (["nothing.py:x"], "nothing.py does not exist"),
        (["nothing:x"], "no module named nothing"),
        (["flows.nothing:x"], "no module named flows.nothing"),
        (["pkg.sub"], "no module named pkg"),
        (["./folder/"], "is a directory"),
        (["folder/inner"], "does not exist"),
        (["empty.py"], "decorate an `async def` with @workflow"),
        (["wrong.py"], 'File "{folder}/wrong.py", line 2, in <module>\n    1 / 0'),
        (["syntax.py"], 'File "{folder}/syntax.py", line 1, column 5'),
        (["needs.py"], "No module named 'absent_package'"),
        (["exits.py"], "if __name__ == "),
        (["flows.py:checkout"], "missing a required argument: 'order'; pass it with --input"),
        (["flows.py:early", "--input", "[1, 2]"], "too many positional arguments"),
        (["flows.py:early", "--input", '{"wrong": 1}'], "an object passes arguments by name"),
        (["flows.py:checkout", "--input", "{}"], "an object passes arguments by name"),
        (["flows.py:early", "--input", '"text"'], "Expected `int`, got `str`"),
        (["flows.py:early", "--input", "hello"], "line 1, column 1"),
        (["flows.py:early", "--input", "{\n 'a': 1}"], "line 2, column 2"),
        (["flows.py:early", "--input", ""], "is empty"),
        (["flows.py:early", "--input", "NaN"], "NaN"),
        (["flows.py:early", "--input", "[" * 100_000], "nested too deeply"),
        (["flows.py:early", "--input", "@nothing.json"], "@nothing.json: there is no such file"),
        (["flows.py:early", "--input", "@binary"], "not text in UTF-8"),
        (["flows.py:early", "--input", "@folder"], "directory"),
        (["flows.py:early", "--input", "1", "--id", ""], "is empty"),
        (["flows.py:early", "--input", "1", "--bogus"], "--bogus"),
        ([], "TARGET"),
    ],
)
def test_a_wrong_command_is_explained(cli: Cli, words: list[str], said: str) -> None:
    (cli.folder / "folder").mkdir()
    cli.write("empty.py", "")
    cli.write("wrong.py", "x = 0\n1 / 0")
    cli.write("syntax.py", "def (")
    cli.write("needs.py", "import absent_package")
    cli.write("exits.py", "raise SystemExit(3)")
    (cli.folder / "binary").write_bytes(b"\xff\xfe")
    ended = cli("run", *words)
    assert (ended.code, ended.out) == (2, "")
    assert said.replace("{folder}", str(cli.folder)) in ended.err


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("perdure.db", "write 'sqlite:///perdure.db'"),
        ("sqlite:///missing/x.db", "does not exist"),
        ("sqlite:///flows.py", "not a perdure store"),
        ("carrier-pigeon://x", "not a known backend"),
    ],
)
def test_a_store_that_cannot_be_used_ends_with_4(cli: Cli, store: str, said: str) -> None:
    ended = cli("run", "flows.py:early", "--input", "1", "--store", store)
    assert ended.code == 4
    assert said in ended.err
