"""One line that shows how far a run is, on a terminal and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from perdure.kernel.events import AttemptFailed, StepFailed, StepSkipped, StepStarted, StepSucceeded, WaitOpened, moment
from perdure.ports.journal import Append

Observer = Callable[[str, Append], None]


class Progress:
    """What to say of the runs of one process, told from what they commit."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._done: dict[str, int] = {}
        self.text = f"{program}: starting"

    def observe(self, id: str, append: Append) -> None:
        """Take in what a run has just committed."""
        now = None
        for batch in append.batches:
            for event in batch.events:
                match event:
                    case StepSucceeded() | StepFailed() | StepSkipped():
                        self._done[id] = self._done.get(id, 0) + 1
                    case StepStarted(op=op, attempt=1):
                        now = f"now {op}"
                    case StepStarted(op=op, attempt=attempt):
                        now = f"now {op}, attempt {attempt}"
                    case AttemptFailed(op=op, retry_at=at):
                        now = f"{op} failed, next attempt at {_clock(at)}"
                    case WaitOpened(op=op, deadline=float(at)):
                        now = f"{op} until {_clock(at)}"
                    case WaitOpened(op=op):
                        now = f"waiting for {op}"
        if now is not None:
            done = self._done.get(id, 0)
            self.text = f"{self._program} {id}: {done} {'step' if done == 1 else 'steps'} done, {now}"


@contextmanager
def progress_line(name: str, wanted: bool | None) -> Iterator[Observer | None]:
    """Yield an observer of commits that keeps the line up to date, or None when nobody would see it."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.text import Text

    progress = Progress(name)
    with Console(stderr=True).status(Text(progress.text)) as status:

        def show(id: str, append: Append) -> None:
            before = progress.text
            progress.observe(id, append)
            if progress.text != before:
                # As Text: an id is not markup, whatever is in it.
                status.update(Text(progress.text, overflow="ellipsis", no_wrap=True))

        yield show


def _clock(at: float) -> str:
    return f"{moment(at).astimezone():%H:%M:%S}"
