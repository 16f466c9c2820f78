"""What every command has in common: how it is asked, where it looks, how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import perdure
from perdure import assembly
from perdure.cli import options
from perdure.cli.exits import ENDS, EPILOGUE, Exit
from perdure.cli.output import clean, cut, value_text
from perdure.client.reader import Reader
from perdure.kernel.policies.durations import span
from tests.cli.conftest import Cli

COMMANDS = ["demo", "run", "runs", "runs ls", "runs show", "runs steps", "runs journal", "runs watch", "doctor"]


def test_the_version_is_told(cli: Cli) -> None:
    assert cli("--version").out == f"perdure {perdure.__version__}\n"


def test_help_lists_the_commands_and_the_exit_codes(cli: Cli) -> None:
    ended = cli("--help")
    assert ended.code == 0
    for word in ("demo", "run", "runs", "doctor", "Exit codes"):
        assert word in ended.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli: Cli, command: str) -> None:
    ended = cli(*command.split(), "--help")
    assert (ended.code, ended.err) == (0, "")
    assert f"Usage: perdure {command}" in ended.out


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "runs"])
def test_every_command_speaks_json_and_takes_a_store(cli: Cli, command: str) -> None:
    out = cli(*command.split(), "--help").out
    assert "--json" in out
    assert command == "demo" or "--store" in out
    assert command == "demo" or "PERDURE_STORE" in out


def test_the_documented_exit_codes_do_not_change() -> None:
    assert {code.name: int(code) for code in Exit} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "NO_SUCH_RUN": 3,
        "STORE": 4,
        "STOPPED": 5,
        "BUG": 70,
        "INTERRUPTED": 130,
        "PIPE_CLOSED": 141,
        "TERMINATED": 143,
    }
    for code in (0, 1, 2, 3, 4, 5, 130, 143):
        assert f"{code} " in EPILOGUE


def test_every_end_of_a_run_has_an_exit_code() -> None:
    ends = {status for status in perdure.RunStatus if status.finished} | {perdure.RunStatus.PARKED}
    assert ENDS.keys() == ends


def test_an_unknown_command_names_those_there_are(cli: Cli) -> None:
    ended = cli("nope")
    assert ended.code == 2
    assert "demo, run, runs, signal" in ended.err


# --- the store ------------------------------------------------------------------------------------------------------


def test_the_default_store_is_that_of_the_engine() -> None:
    assert options.DEFAULT_STORE == assembly.DEFAULT_STORE


def test_the_environment_names_the_store_and_an_option_comes_before_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_STORE", "sqlite:///of-environment.db")
    cli("run", "flows.py:early", "--input", "1")
    cli("run", "flows.py:early", "--input", "1", "--store", "sqlite:///of-option.db")
    files = {path.name for path in cli.folder.glob("*.db")}
    assert files == {"of-environment.db", "of-option.db"}


# --- how it ends ----------------------------------------------------------------------------------------------------


def test_a_mistake_of_ours_is_told_in_one_line_and_without_a_traceback(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("run", "flows.py:early", "--input", "1")

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a wire came loose")

    monkeypatch.setattr(Reader, "list", broken)
    ended = cli("runs", "ls")
    assert ended.code == Exit.BUG
    assert "please report it: RuntimeError: a wire came loose" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_an_interrupted_command_ends_with_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    cli("run", "flows.py:early", "--input", "1")
    monkeypatch.setattr(Reader, "list", interrupted)
    ended = cli("runs", "ls")
    assert (ended.code, ended.err) == (130, "perdure: interrupted\n")


def test_a_reader_that_goes_away_is_no_error(cli: Cli) -> None:
    cli("run", "flows.py:early", "--input", "1", "--id", "x")
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.cli", "runs", "journal", "x"],
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=cli.folder,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_json_is_still_json_where_the_output_is_not_unicode(cli: Cli) -> None:
    cli.write("snow.py", "from perdure import workflow\n@workflow\nasync def snow(): return '\\u2603\\U0001f600'\n")
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.cli", "run", "snow.py"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        cwd=cli.folder,
    )
    assert (ended.returncode, ended.stdout) == (0, b'"\\u2603\\ud83d\\ude00"\n')


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("signal", "signal needs ID\nTry: perdure signal --help"),
        ("runs diff a", "runs diff needs B\nTry: perdure runs diff --help"),
        ("schedules backfill nightly", "schedules backfill needs START"),
        ("signal w go 1", "too many arguments: 1; a value is given with --input 1\nTry: perdure signal --help"),
        ("approve w ok true", "too many arguments: true; a value is given with --input true"),
        ("queues ls now", "too many arguments: now\nTry: perdure queues ls --help"),
        ("schedules add s report", "either --every 15m or --cron '30 2 * * *', and neither was given"),
    ],
)
def test_arguments_that_are_missing_or_too_many_are_named(cli: Cli, command: str, says: str) -> None:
    ended = cli(*command.split())
    assert ended.code == Exit.USAGE
    assert says in ended.err


# --- quick to start -------------------------------------------------------------------------------------------------

LOADED = """
import sys
from perdure.cli.main import main
main(sys.argv[1:])
print("rich" in sys.modules, "perdure.cli.run" in sys.modules, "perdure.cli.demo" in sys.modules, file=sys.stderr)
"""


def test_a_small_question_loads_neither_rich_nor_other_commands(cli: Cli) -> None:
    cli("run", "flows.py:early", "--input", "1")
    ended = subprocess.run([sys.executable, "-c", LOADED, "runs", "ls"], capture_output=True, text=True, cwd=cli.folder)
    assert ended.stderr == "False False False\n"


def test_help_loads_no_command(cli: Cli) -> None:
    ended = subprocess.run([sys.executable, "-c", LOADED, "--help"], capture_output=True, text=True, cwd=cli.folder)
    assert ended.stderr == "True False False\n"


def test_a_list_of_runs_loads_nothing_that_goes_on_with_them(cli: Cli) -> None:
    cli("run", "flows.py:early", "--input", "1")
    code = LOADED.rpartition("print(")[0] + "print(*sys.modules, file=sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", code, "runs", "ls"], capture_output=True, text=True, cwd=cli.folder)
    unwanted = (
        "authoring",
        "orchestrator",
        "client.client",
        "kernel.history.fork",
        "kernel.history.capsule",
        "kernel.history.diff",
        "kernel.divergence.explain",
        "kernel.policies.rules",
    )
    heavy = tuple(f"perdure.{name}" for name in unwanted)
    assert "perdure.client.queries" in ended.stderr
    assert [name for name in ended.stderr.split() if name.startswith(heavy)] == []


def test_a_check_of_a_flow_loads_nothing_that_runs_it(cli: Cli) -> None:
    flow = cli.write(
        "flow.yaml",
        """\
        perdure: 1
        name: small
        inputs: {n: integer}
        steps:
          - {id: a, use: value, with: "${{ input.n }}"}
          - {id: b, use: value, with: {all: ["${{ steps.a }}", 1]}, retry: 2}
        """,
    )
    code = LOADED.rpartition("print(")[0] + "print(*sys.modules, file=sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", code, "flow", "check", flow], capture_output=True, text=True)
    # The module of the component `blob` is in the engine, and imports the engine when it is called.
    unwanted = (
        "client",
        "engine.",
        "orchestrator",
        "ports",
        "server",
        "stores",
        "telemetry",
        "testing",
        "kernel.plan",
        "kernel.replay",
        "kernel.divergence.explain",
        "authoring.flow.http",
        "authoring.flow.shell",
        "authoring.flow.importing_",
    )
    heavy = (
        *(f"perdure.{name}" for name in unwanted),
        "importlib.metadata",
        "minijinja",
        "jsonschema",
        "httpx",
        "rich",
    )
    found = ended.stderr.split()
    assert "perdure.authoring.flow.compile" in found
    assert [name for name in found if name.startswith(heavy)] == ["perdure.engine.blob_step"]


# --- text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0123, "12 ms"),
        (1.5, "1.5 s"),
        (59, "59 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7200, "2 h"),
        (200_000, "2 d"),
        (-1, "0 ms"),
    ],
)
def test_a_duration_is_told_in_its_largest_fitting_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain ünï ☃", "plain ünï ☃"),
        ("\x1b[2J", "\\u001b[2J"),
        ("\x9b2J", "\\u009b2J"),
        ("a\u202eb", "a\\u202eb"),
        ("a\nb", "a\\u000ab"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_text_can_do_nothing_to_a_terminal(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_long_values_are_cut_visibly() -> None:
    assert value_text(list(range(100)), 10) == "[0,1,2,3,…"
    assert cut("short", 10) == "short"


@pytest.mark.parametrize("module", ["perdure", "perdure.cli"])
def test_the_package_can_be_run_as_a_module(tmp_path: Path, module: str) -> None:
    def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    assert (ended("--version").returncode, ended("--version").stdout) == (0, f"perdure {perdure.__version__}\n")
    assert ended("runs", "show").returncode == Exit.USAGE
