"""One line that shows how far a run is, on a terminal and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from perdure.errors import PerdureError
from perdure.kernel.events import (
    AttemptFailed,
    Entry,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    WaitOpened,
    moment,
)
from perdure.ports.journal import Append

Observer = Callable[[str, Append], None]
ENDS = (StepSucceeded, StepFailed, StepSkipped)


class HasJournals(Protocol):
    """The part of a client that is needed here."""

    async def journal(self, id: str, start: int = 0) -> Sequence[Entry]: ...


class Progress:
    """The progress lines of the runs of one process, from their commits."""

    def __init__(self, program: str) -> None:
        self._program = program
        # How many steps are done of each run, and from which event on they are counted as they are committed.
        self._done: dict[tuple[str, str], int] = {}
        self._since: dict[tuple[str, str], int] = {}
        self._unknown: set[tuple[str, str]] = set()
        self._now: dict[str, str] = {}
        self.text = f"{program}: starting"

    def recall(self, id: str, entries: Sequence[Entry]) -> None:
        """Take in what a run had done before this process took it up: its journal from the beginning."""
        if not entries:
            return
        run = id, entries[0].run_id
        since = self._since.setdefault(run, entries[-1].seq + 1)
        before = sum(isinstance(entry.event, ENDS) for entry in entries if entry.seq < since)
        self._done[run] = self._done.get(run, 0) + before
        self._unknown.discard(run)
        if id in self._now:
            self._say(run, self._now[id])

    def observe(self, id: str, append: Append) -> None:
        """Take in what a run has just committed."""
        now, run = None, (id, append.run_id)
        if run not in self._since:
            self._since[run] = append.expected_next
            if append.expected_next:
                self._unknown.add(run)  # it began elsewhere: how far it was, its journal knows
        for batch in append.batches:
            for seq, event in enumerate(batch.events, batch.seq):
                match event:
                    case StepSucceeded() | StepFailed() | StepSkipped():
                        self._done[run] = self._done.get(run, 0) + (seq >= self._since[run])
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
            self._now[id] = now
            self._say(run, now)

    def _say(self, run: tuple[str, str], now: str) -> None:
        done = self._done.get(run, 0)
        steps = "" if run in self._unknown else f"{done} {'step' if done == 1 else 'steps'} done, "
        self.text = f"{self._program} {run[0]}: {steps}{now}"


class Line:
    """The line on the terminal: an observer of commits that keeps it up to date."""

    def __init__(self, progress: Progress, show: Callable[[str], None]) -> None:
        self._progress, self._show = progress, show

    def __call__(self, id: str, append: Append) -> None:
        before = self._progress.text
        self._progress.observe(id, append)
        if self._progress.text != before:
            self._show(self._progress.text)

    async def recall(self, client: HasJournals, id: str) -> None:
        """Count from the beginning of a run that this process resumes, if there is one of that id."""
        with suppress(PerdureError):  # its result says what is wrong
            self._progress.recall(id, await client.journal(id))
            self._show(self._progress.text)


@contextmanager
def progress_line(name: str, wanted: bool | None) -> Iterator[Line | None]:
    """Yield an observer of commits that keeps the line up to date, or None without a terminal."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.text import Text

    progress = Progress(name)
    with Console(stderr=True).status(Text(progress.text)) as status:

        def show(text: str) -> None:
            # As Text: an id may look like markup.
            status.update(Text(text, overflow="ellipsis", no_wrap=True))

        yield Line(progress, show)


def _clock(at: float) -> str:
    return f"{moment(at).astimezone():%H:%M:%S}"
