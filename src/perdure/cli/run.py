"""`perdure run`: run a workflow to its end, or resume it."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from perdure.assembly import Engine
from perdure.cli.exits import ENDS, Exit, Problem
from perdure.cli.inputs import invocation
from perdure.cli.options import (
    DEFAULT_STORE,
    AsJson,
    BatchOptions,
    Inputs,
    Limit,
    Out,
    StoreUrl,
    Tolerate,
    engine_options,
)
from perdure.cli.output import failure_text, note, write_json
from perdure.cli.targets import Target, resolve
from perdure.client.views import RunResult, RunView, StepView
from perdure.config import Recovery
from perdure.errors import NotDecodable
from perdure.kernel.events import RunStatus
from perdure.kernel.invocation import Invocation
from perdure.kernel.program import Program
from perdure.ports.journal import Append
from perdure.progress import Line, Observer, progress_line
from perdure.termination import Termination


def run(
    target: str,
    /,
    *,
    id: Annotated[
        str | None, Parameter(help="The id of the run. If a run with this id exists, it is continued.")
    ] = None,
    input: Annotated[str | None, Parameter(help="Arguments, as JSON.", allow_leading_hyphen=True)] = None,
    queue: Annotated[str | None, Parameter(help="The queue in which it waits.")] = None,
    key: Annotated[str | None, Parameter(help="Its key in the queue; keys take turns.")] = None,
    priority: Annotated[int, Parameter(help="Its priority in the queue; higher ones go first.")] = 0,
    inputs: Inputs = None,
    limit: Limit = None,
    tolerate: Tolerate = None,
    out: Out = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Run a workflow to its end and print its result as JSON.

    After a crash, the same command with the same --id continues the run from
    the last step that it finished.

    --input: an object passes arguments by name, a list by position, anything
    else is the only argument. @file.json reads it from a file, - from stdin.
    With --inputs, it runs once for each line of a file: a batch.

    Parameters
    ----------
    target
        file.py:workflow or module:workflow; the name can be left out if there is only one.
    """
    program, module = resolve(target)
    options: dict[str, Any] = {"queue": queue, "key": key, "priority": priority}
    batch = BatchOptions(inputs, limit, tolerate, out)
    return perform(program, module, f"run {shlex.quote(target)}", id, input, store, json, options, batch)


def perform(
    program: Program,
    module: Target,
    command: str,
    id: str | None,
    input: str | None,
    store: str,
    json: bool,
    options: dict[str, Any],
    batch: BatchOptions,
) -> int:
    """Run a program to its end, or a batch of it, and return the exit code. `command` is what continues the run."""
    if batch.inputs is not None:
        from perdure.cli.batches import Batch

        if input is not None:
            raise Problem("--input is for one run, and --inputs for a batch; give one of them")
        again = f"{command} --inputs {shlex.quote(batch.inputs)}"
        return _performed(Batch(program, module, id, batch, store, json, options), again)
    given = [f"--{name}" for name in ("limit", "tolerate", "out") if getattr(batch, name) is not None]
    if given:
        raise Problem(f"{' and '.join(given)} can only be used for a batch, with --inputs")
    # Without an input, the id may belong to an existing run that has one.
    wanted = invocation(program, input) if input is not None or id is None else None
    return _performed(Task(program, wanted, module, id, store, json, options), command)


def _performed(task: Task, command: str) -> int:
    """Perform a task, and return its exit code, also if the process is asked to stop before it ends."""
    try:
        return asyncio.run(task.perform())
    except (KeyboardInterrupt, asyncio.CancelledError) as error:
        if task.termination.came:
            task.explain_stop("terminated", command)
            return Exit.TERMINATED
        if not isinstance(error, KeyboardInterrupt):
            raise
        task.explain_stop("interrupted", command)
        return Exit.INTERRUPTED


class Task:
    """One `perdure run`, from its start to its exit code."""

    # Whether a line shows how far it is; None: on a terminal.
    shows: bool | None = None

    def __init__(
        self,
        program: Program,
        wanted: Invocation[Any] | None,
        module: Target,
        id: str | None,
        store: str,
        json: bool,
        options: dict[str, Any],
    ) -> None:
        self._program, self._wanted, self._module = program, wanted, module
        self._id, self._store, self._json, self._options = id, store, json, options
        self._started: str | None = None
        # The run_id of a run under this id that ended before this command.
        self._ended: str | None = None
        self.termination = Termination()

    async def perform(self) -> int:
        options = engine_options(self._store, self._module.queues)
        recovery: Recovery = options.get("recovery", Recovery())
        with self.termination.heeded(recovery.grace), progress_line(self._program.name, self.shows) as line:
            programs, observer = list(self._module.programs.values()), self._observer(line)
            made = Engine(self._store, programs, on_commit=observer, **options)
            made.module = self._module.file
            async with made as engine:
                report = await self.conclude(engine, line)
        return report()

    async def conclude(self, engine: Engine, line: Line | None) -> Callable[[], int]:
        """Start the run, or go on with it, and wait for its end; gives what reports it, and the exit code."""
        result = await self._result(engine, line)
        view, steps = await engine.get(result.run_id), await engine.steps(result.run_id, inputs=False)
        output = engine.codec.encode(result.output, "the result")

        def report() -> int:
            assert view is not None
            self._report(result, view, steps, output)
            return ENDS[result.status]

        return report

    def _observer(self, line: Line | None) -> Observer:
        def observe(id: str, append: Append) -> None:
            if append.expected_next == 0:
                self._started = id  # set before its first step begins: Ctrl-C may come at any time
            if line is not None:
                line(id, append)

        return observe

    async def _result(self, engine: Engine, line: Line | None) -> RunResult[Any]:
        existing = await engine.get(self._id) if self._id is not None else None
        wanted = self._wanted or self._again(existing)
        if existing is not None:
            self._compare(existing, wanted, engine)
            self._ended = existing.run_id if existing.status.finished else None
        try:
            handle = await engine.start(wanted, id=self._id, **self._options)
        except NotDecodable as error:
            raise Problem(f"the input does not fit: {error}") from error
        self._started = handle.id
        if self._id is None and sys.stderr.isatty():
            note(f"run {handle.id} of {self._program.name}")
        if line is not None and existing is not None:
            await line.recall(engine, existing.id)
        return await handle.outcome()

    def _again(self, existing: RunView | None) -> Invocation[Any]:
        """The invocation of a run that exists, or of a new one without arguments."""
        if existing is None or existing.program != self._program.name:
            return invocation(self._program, None)
        if isinstance(existing.input, dict):
            return Invocation(self._program.name, self._program, (), existing.input)
        return Invocation(self._program.name, self._program, tuple(existing.input), {})

    def _compare(self, existing: RunView, wanted: Invocation[Any], engine: Engine) -> None:
        """Refuse an id whose run has another program or input."""
        if existing.program != wanted.name:
            raise Problem(
                f"the id {existing.id!r} belongs to a run of {existing.program!r}, not of {wanted.name!r}; "
                "choose another --id, or name that workflow"
            )
        if msgspec.json.decode(wanted.encode(wanted.program, engine.codec)) != existing.input:
            note(f"run {existing.id!r} exists already, with another input; it keeps that, and --input is ignored")
        if self._program.definition and existing.version != self._program.version:
            note(f"run {existing.id!r} was started with another version of the flow, and keeps that")

    def _report(self, result: RunResult[Any], view: RunView, steps: Sequence[StepView], output: bytes) -> None:
        if self._json:
            write_json(view)
            return
        match result.status:
            case RunStatus.COMPLETED:
                write_json(output)
            case RunStatus.BAILED:
                write_json(output)
                note(f"run {view.id!r} ended early: {view.reason}")
            case RunStatus.FAILED if view.error is not None:
                why = failure_text(view.error, steps)
                note(f"run {view.id!r} of {view.program} failed\n{why}\n{self._describe(view)}")
            case _:
                note(f"{result.error}\n{self._describe(view)}")

    def _describe(self, view: RunView) -> str:
        look = f"To see its steps: {self.command_for('steps', view.id)}"
        if self._ended != view.run_id or view.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
            return look
        return (
            f"It had already ended; this command executed nothing.\n{look}\n"
            f"To retry it: {self.command_for('retry', view.id)}, and then this command again"
        )

    def command_for(self, verb: str, id: str) -> str:
        """A command of `perdure runs` for a run."""
        store = "" if self._store == DEFAULT_STORE else f" --store {shlex.quote(self._store)}"
        return f"perdure runs {verb} {shlex.quote(id)}{store}"

    def explain_stop(self, how: str, command: str) -> None:
        """Report what happens to the run of a process that was asked to stop."""
        if self._started is None:
            note(how)
        elif self._started == self._id:
            note(f"{how}; the same command continues run {self._started!r}")
        else:
            store = "" if self._store == DEFAULT_STORE else f" --store {shlex.quote(self._store)}"
            again = f"perdure {command} --id {self._started}{store}"
            note(f"{how}; to continue run {self._started!r}: {again}")
