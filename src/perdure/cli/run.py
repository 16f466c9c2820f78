"""`perdure run`: run a workflow to its end, or go on with it."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from typing import Annotated, Any

from cyclopts import Parameter

from perdure.assembly import Engine
from perdure.cli.exits import ENDS, Exit, Problem
from perdure.cli.inputs import invocation
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl
from perdure.cli.output import error_text, note, write_json
from perdure.cli.targets import resolve
from perdure.client.views import RunResult, RunView
from perdure.errors import NotDecodable
from perdure.kernel.commands import Program
from perdure.kernel.events import RunStatus
from perdure.kernel.invocation import Invocation
from perdure.progress import progress_line


def run(
    target: str,
    /,
    *,
    id: Annotated[str | None, Parameter(help="The run's id. With the id of an earlier run, go on with that.")] = None,
    input: Annotated[str | None, Parameter(help="Arguments, as JSON.", allow_leading_hyphen=True)] = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Run a workflow to its end and print its result as JSON.

    Run the same command again after a crash, with the same --id, and it goes on from the last thing it finished.

    --input: an object gives keyword arguments, a list positional ones, anything else is the only argument.
    @file.json reads it from a file, - from stdin.

    Parameters
    ----------
    target
        file.py:workflow or module:workflow; the name may be left out where there is just one.
    """
    program, module = resolve(target)
    task = _Task(invocation(program, input), list(module.programs.values()), id, store, json)
    try:
        return asyncio.run(task.perform())
    except KeyboardInterrupt:
        task.explain_stop("interrupted", target)
        return Exit.INTERRUPTED
    except _Terminated:
        task.explain_stop("terminated", target)
        return Exit.TERMINATED


class _Terminated(Exception):
    """SIGTERM came."""


class _Task:
    """One `perdure run`, from its start to its exit code."""

    def __init__(
        self, invocation: Invocation[Any], programs: list[Program], id: str | None, store: str, json: bool
    ) -> None:
        self._invocation, self._programs, self._id, self._store, self._json = invocation, programs, id, store, json
        self._started: str | None = None
        self._terminated = False

    async def perform(self) -> int:
        self._heed_sigterm()
        try:
            with progress_line(self._invocation.name, None) as line:
                async with Engine(self._store, self._programs, on_commit=line) as engine:
                    result = await self._result(engine)
                    view = await engine.get(result.run_id)
                    output = engine.codec.encode(result.output, "the result")
        except asyncio.CancelledError:
            if self._terminated:
                raise _Terminated from None
            raise
        assert view is not None
        self._report(result, view, output)
        return ENDS[result.status]

    async def _result(self, engine: Engine) -> RunResult[Any]:
        if self._id is not None:
            await self._check_existing(engine, self._id)
        try:
            handle = await engine.start(self._invocation, id=self._id)
        except NotDecodable as error:
            raise Problem(f"the input does not fit: {error}") from error
        self._started = handle.id
        if self._id is None and sys.stderr.isatty():
            note(f"run {handle.id}")
        return await handle.outcome()

    async def _check_existing(self, engine: Engine, id: str) -> None:
        """An id stands for one run: say so when this command asks for something else under it."""
        view = await engine.get(id)
        if view is None:
            return
        if view.program != self._invocation.name:
            raise Problem(
                f"the id {id!r} belongs to a run of {view.program!r}, not of {self._invocation.name!r}; "
                "choose another --id, or name that workflow"
            )
        import msgspec

        if msgspec.json.decode(self._invocation.encode(self._invocation.program, engine.codec)) != view.input:
            note(f"run {id!r} exists already, with another input; it keeps its own, and this one is not used")

    def _report(self, result: RunResult[Any], view: RunView, output: bytes) -> None:
        if self._json:
            write_json(view)
        elif result.status is RunStatus.COMPLETED or result.status is RunStatus.BAILED:
            write_json(output)
        if result.status is RunStatus.BAILED:
            note(f"run {view.id!r} ended early: {view.reason}")
        elif result.status is RunStatus.FAILED and view.error is not None:
            note(f"run {view.id!r} of {view.program} failed\n{error_text(view.error)}\n{self._look(view)}")
        elif result.error is not None:
            note(f"{result.error}\n{self._look(view)}")

    def _look(self, view: RunView) -> str:
        store = "" if self._store == DEFAULT_STORE else f" --store {shlex.quote(self._store)}"
        return f"Look at it: perdure runs steps {shlex.quote(view.id)}{store}"

    def _heed_sigterm(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def terminate() -> None:
            self._terminated = True
            task.cancel()

        try:
            loop.add_signal_handler(signal.SIGTERM, terminate)
        except NotImplementedError:  # Windows
            pass

    def explain_stop(self, how: str, target: str) -> None:
        """Say what becomes of a run whose process was asked to stop."""
        if self._started is None:
            note(how)
        elif self._started == self._id:
            note(f"{how}; run {self._started!r} goes on when you run the same command again")
        else:
            store = "" if self._store == DEFAULT_STORE else f" --store {shlex.quote(self._store)}"
            again = f"perdure run {shlex.quote(target)} --id {self._started}{store}"
            note(f"{how}; run {self._started!r} goes on with: {again}")
