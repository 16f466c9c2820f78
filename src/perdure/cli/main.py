"""The `perdure` command: which commands there are, and how every one of them ends.

Commands are named by their import path and loaded when they are called, so that help and small commands are quick.
"""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Sequence

from cyclopts import App, ArgumentCollection, CycloptsError, MissingArgumentError, Token, UnusedCliTokensError

from perdure import __version__
from perdure.cli.exits import EPILOGUE, Exit, Problem
from perdure.cli.options import given, settings
from perdure.errors import InvalidStoreUrl, NoSuchRun, NoSuchSchedule, PerdureError, StoreError

# The module and the summary of each command.
COMMANDS = {
    "demo": ("perdure.cli.demo:demo", "Watch a run survive the death of its process."),
    "run": ("perdure.cli.run:run", "Run a workflow to its end, or continue it."),
    "runs": (
        "perdure.cli.runs:app",
        "List, inspect, fork and retry runs, or change all that match: ls, show, steps, journal, watch, diff, inspect, "
        "fork, travel, retry, cancel, pause, resume, signal.",
    ),
    "signal": ("perdure.cli.messages:signal", "Send a signal to a run."),
    "approve": ("perdure.cli.messages:approve", "Answer an approval of a run."),
    "reject": ("perdure.cli.messages:reject", "Reject an approval of a run."),
    "approvals": ("perdure.cli.approvals:app", "List open approvals: ls."),
    "cancel": ("perdure.cli.messages:cancel", "Cancel a run; it may clean up first."),
    "pause": ("perdure.cli.messages:pause", "Pause a run: no new step starts."),
    "resume": ("perdure.cli.messages:resume", "Continue a paused run."),
    "resolve": ("perdure.cli.messages:resolve", "Continue a parked run, or end it."),
    "stream": ("perdure.cli.stream:stream", "Follow what the steps of a run emit."),
    "queues": ("perdure.cli.queues:app", "Show the queues: ls."),
    "worker": ("perdure.cli.worker:worker", "Execute the runs of a module or of flows until it is stopped."),
    "dev": ("perdure.cli.dev:dev", "Develop: a worker and the dashboard in one, and every edit taken at once."),
    "serve": ("perdure.cli.serve:serve", "Serve the dashboard and the HTTP API of a store."),
    "token": ("perdure.cli.tokens:app", "Make, list and revoke tokens of the HTTP API: new, ls, revoke."),
    "orchestrators": ("perdure.cli.orchestrators:app", "Show which orchestrators are alive, and what they own: ls."),
    "schedules": (
        "perdure.cli.schedules:app",
        "Start runs on a schedule: ls, add, pause, resume, trigger, backfill, next, delete.",
    ),
    "locks": ("perdure.cli.locks:app", "Show and release locks: ls, release."),
    "sweep": ("perdure.cli.sweep:sweep", "Execute what is due, and exit: for cron jobs and serverless hosts."),
    "export": ("perdure.cli.capsules:export", "Write a run to a file, a capsule."),
    "import": ("perdure.cli.capsules:import_", "Import a run from a file, for reading and replaying."),
    "compact": ("perdure.cli.capsules:compact", "Remove chunks and progress from the journal of a finished run."),
    "upgrade-check": ("perdure.cli.upgrade:upgrade_check", "Check whether open runs fit the code of a module."),
    "check": ("perdure.cli.check:check", "Find what a workflow body must not do."),
    "graph": ("perdure.cli.graph:app", "Draw graphs: show."),
    "flow": (
        "perdure.cli.flow:app",
        "Check, run, test, draw and deploy flows: check, run, test, graph, schema, fmt, import, deploy, ls, show, "
        "diff, migrate.",
    ),
    "components": ("perdure.cli.components:app", "Show what the steps of flows can use: ls, show."),
    "prune": ("perdure.cli.upkeep:prune", "Remove runs that ended long ago, and what only they needed."),
    "rebuild": ("perdure.cli.upkeep:rebuild", "Recompute the rows of runs from their journals."),
    "backup": ("perdure.cli.backup:backup", "Copy an SQLite store while engines work on it."),
    "migrate": ("perdure.cli.migrate:migrate", "Update the schema of a store."),
    "doctor": ("perdure.cli.doctor:doctor", "Check the store and its environment."),
}

# Commands whose last argument is easily mistaken for a value.
_WITH_VALUE = (["signal"], ["approve"])


def _app(called: str | None) -> App:
    """The app with all commands. Only the called command is imported; the others have a summary line."""
    app = App(
        name="perdure",
        help="Durable workflows for Python. Kill one, run the same command again, and it continues.",
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        version=f"perdure {__version__}",
        version_flags=["--version"],
        suppress_keyboard_interrupt=False,
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
        config=_configured,
    )
    for number, (name, (path, about)) in enumerate(COMMANDS.items()):
        app.command(path, name=name, help=None if name == called else about, sort_key=number)
    return app


def command() -> int:
    """`perdure` as a process, which ends with the command."""
    code = main()
    # Python collects garbage as it ends. What was imported is none, and need not be visited.
    gc.freeze()
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never lets an exception out."""
    tokens = sys.argv[1:] if argv is None else list(argv)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # Escape characters that the terminal cannot show, instead of failing.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _ended(tokens)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python flushes once more at exit: redirect that to devnull.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.PIPE_CLOSED


def _ended(tokens: list[str]) -> int:
    as_json = "--json" in tokens
    try:
        tokens, config = _taken(tokens)
        with given(config):
            return int(_app(tokens[0] if tokens else None)(tokens) or Exit.OK)
    except Problem as problem:
        return _say(problem, problem.code, as_json)
    except CycloptsError as error:
        return _say(Problem(f"{_sentence(error, tokens)}\nTry: {_help_command(tokens)}"), Exit.USAGE, as_json)
    except PerdureError as error:
        return _say(error, _code(error), as_json)
    except KeyboardInterrupt:
        return _say(Problem("interrupted"), Exit.INTERRUPTED, as_json)
    except BrokenPipeError:
        raise
    except Exception as error:
        return _say(Problem(_bug(error)), Exit.BUG, as_json)


def _taken(tokens: list[str]) -> tuple[list[str], str | None]:
    """The command without its --config FILE option, and the file."""
    end = tokens.index("--") if "--" in tokens else len(tokens)
    for at, token in enumerate(tokens[:end]):
        name, equals, value = token.partition("=")
        if name == "--config":
            rest = tokens[at + 1 :]
            if not equals and not rest:
                raise Problem("--config needs a file, such as --config perdure.yaml")
            return tokens[:at] + (rest if equals else rest[1:]), value if equals else rest[0]
    return tokens, None


def _configured(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """The default store of a command, from the settings."""
    for argument in arguments:
        if argument.name == "--store" and not argument.tokens:
            found = settings()
            if found.store is not None:
                argument.append(Token(keyword="--store", value=found.store, source=found.source or "the environment"))


def _code(error: PerdureError) -> Exit:
    if isinstance(error, NoSuchRun | NoSuchSchedule):
        return Exit.NO_SUCH_RUN
    if isinstance(error, StoreError | InvalidStoreUrl):
        return Exit.STORE
    return Exit.USAGE


def _say(error: Exception, code: Exit, as_json: bool) -> int:
    from perdure.cli.output import complain

    complain(error, code, as_json)
    return code


def _sentence(error: CycloptsError, tokens: list[str]) -> str:
    if isinstance(error, UnusedCliTokensError):
        extra = " ".join(error.unused_tokens or ())
        by_input = f"; a value is given with --input {shlex.quote(extra)}" if tokens[:1] in _WITH_VALUE else ""
        return f"too many arguments: {extra}{by_input}"
    if isinstance(error, MissingArgumentError) and error.argument is not None and error.command_chain:
        name = error.argument.name
        what = name if error.argument.index is None else name.lstrip("-").upper()
        return f"{' '.join(error.command_chain)} needs {what}"
    text = " ".join(str(error).split())
    return text[:1].lower() + text[1:].removesuffix(".")


def _help_command(tokens: list[str]) -> str:
    """The help of the innermost command in the tokens."""
    commands: list[str] = []
    if tokens and tokens[0] in COMMANDS:
        commands.append(tokens[0])
        # A line that ends in a list of commands belongs to a group.
        inner = COMMANDS[tokens[0]][1].rstrip(".").partition(": ")[2].split(", ")
        if tokens[1:2] and tokens[1] in inner:
            commands.append(tokens[1])
    return " ".join(["perdure", *commands, "--help"])


def _bug(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})" if trace is not None else ""
    return f"an internal error of perdure; please report it: {type(error).__name__}: {error}{where}"
