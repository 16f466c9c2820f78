"""`--inputs` of `perdure run` and `perdure flow run`: a batch, whose rows and results are lines of files."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from perdure.assembly import Engine
from perdure.cli.exits import ENDS, Exit, Problem
from perdure.cli.inputs import parse
from perdure.cli.options import BatchOptions
from perdure.cli.output import note, write_json
from perdure.cli.run import Task
from perdure.cli.targets import Target
from perdure.client.handle import RunHandle
from perdure.client.views import BatchView, RunResult
from perdure.kernel.events import RunStatus, StepStatus
from perdure.kernel.ids import BATCH
from perdure.kernel.program import Program
from perdure.progress import Line, Observer

# How many results are read at a time where the batch has not completed.
PAGE = 500
NOT_RUN = {"error": {"type": "perdure.NotRun", "message": "the batch ended before this row did"}}


class Batch(Task):
    """One batch, from its start to its exit code."""

    shows = False

    def __init__(
        self,
        program: Program,
        module: Target,
        id: str | None,
        batch: BatchOptions,
        store: str,
        json: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__(program, None, module, id, store, json, options)
        self._batch = batch

    async def conclude(self, engine: Engine, line: Line | None) -> Callable[[], int]:
        """Start the batch, or go on with it; wait for its end, and write the results."""
        handle = await self._handle(engine)
        self._started = handle.id
        result = await handle.outcome()
        view = await engine.batch(result.run_id)
        out = self._batch.out
        if out is not None or not self._json:
            with _written(out) as file:
                async for one in _results(engine, result, view):
                    file.write(engine.codec.encode(one, "a result") + b"\n")
        return lambda: self._ends(view, result)

    async def _handle(self, engine: Engine) -> RunHandle[Any]:
        existing = await engine.get(self._id) if self._id is not None else None
        if existing is None:
            options, rows = self._batch, _rows(self._batch.inputs or "-")
            return await engine.start_batch(
                self._program, rows, limit=options.limit, tolerate=options.tolerate, id=self._id, **self._options
            )
        if existing.program != self._program.name + BATCH:
            raise Problem(f"the id {existing.id!r} belongs to a run of {existing.program!r}; choose another --id")
        return engine.handle(existing.id)

    def _observer(self, line: Line | None) -> Observer:
        return lambda id, append: None  # it is known by its id before its first row begins

    def _ends(self, view: BatchView, result: RunResult[Any]) -> int:
        if self._json:
            write_json(view)
        names = ("completed", "failed", "unstarted")
        counts = "".join(f", {getattr(view, name)} {name}" for name in names if getattr(view, name))
        said = [f"batch {view.id!r} of {view.program} {view.status}: {view.rows} rows{counts}"]
        if result.error is not None:
            said.append(f"{type(result.error).__name__}: {result.error}")
        if view.failed or view.unstarted:
            again = self.command_for("retry", view.id)
            said.append(f"Run what failed or never ran: {again}, and this command again with --id {view.id}")
        note("\n".join(said))
        if view.status is RunStatus.COMPLETED and view.failed and self._batch.tolerate is None:
            return Exit.FAILED
        return ENDS[view.status]


def _rows(path: str) -> Iterator[Any]:
    """The rows in a file, one at a time; empty lines are none."""
    try:
        with open(sys.stdin.fileno() if path == "-" else path, encoding="utf-8", closefd=path != "-") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield parse(text, f"{'stdin' if path == '-' else path}:{number}")
    except OSError as error:
        raise Problem(f"--inputs {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Problem(f"--inputs {path}: it is not text in UTF-8 (byte {error.start})") from error


async def _results(engine: Engine, result: RunResult[Any], view: BatchView) -> AsyncIterator[Any]:
    """What each row gave, in order."""
    if result.output is not None:
        async for one in result.output:
            yield one
        return
    number = 0
    while number < view.rows:
        page = {one.index: one for one in await engine.items(result.run_id, start=number, limit=PAGE)}
        for index in range(number, min(number + PAGE, view.rows)):
            item = page.get(index)
            if item is not None and item.error is not None:
                yield {"error": {"type": item.error.type, "message": item.error.message}}
            elif item is not None and item.status in (StepStatus.SUCCEEDED, StepStatus.SKIPPED):
                yield item.output
            else:
                yield NOT_RUN
        number += PAGE


@contextmanager
def _written(path: str | None) -> Iterator[IO[bytes]]:
    """A file for the results, which is there when it is complete; or stdout."""
    if path is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with open(f"{path}.part", "wb") as file:
            yield file
        os.replace(f"{path}.part", path)
    except OSError as error:
        raise Problem(f"--out {path}: {error.strerror}") from error
