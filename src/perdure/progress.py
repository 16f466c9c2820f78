"""One line that shows how far a run is, on a terminal and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from perdure.kernel.events import StepStarted, StepSucceeded
from perdure.ports.journal import Append


@contextmanager
def progress_line(name: str, wanted: bool | None) -> Iterator[Callable[[str, Append], None] | None]:
    """Yield an observer of commits that keeps the line up to date, or None when nobody would see it."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console

    console = Console(stderr=True)
    done: dict[str, int] = {}
    with console.status(f"{name}: starting") as status:

        def show(id: str, append: Append) -> None:
            for batch in append.batches:
                for event in batch.events:
                    if isinstance(event, StepSucceeded):
                        done[id] = done.get(id, 0) + 1
                    elif isinstance(event, StepStarted):
                        status.update(f"{name} [dim]{id}[/dim]: {done.get(id, 0)} steps done, now {event.op}")

        yield show
