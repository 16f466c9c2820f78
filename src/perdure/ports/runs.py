"""Reading the projection of runs. Written only through the journal."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from perdure.errors import Corrupt
from perdure.kernel.events import NULL, RunStatus
from perdure.kernel.ids import BUILT_IN
from perdure.kernel.projection import RunRow
from perdure.kernel.values.failures import Failure
from perdure.ports.journal import Head


class Match(msgspec.Struct, frozen=True):
    """A condition on a value of a run: what is at a path of its `input` or `output`, or the text of its `error`.

    The first part of a path may be left out where the input is a list of arguments: any of them will do. A text is
    equal to `value`, or a number of the same size, or `true`, `false`, `null`. The text of an error is its type, its
    message, those of its causes, and the reason of the run; it contains `value`, in whatever case.
    Values that are large lie elsewhere (see `Limits`), and match nothing.
    """

    field: Literal["input", "output", "error"]
    value: str
    path: tuple[str, ...] = ()

    def needles(self) -> tuple[str, str]:
        """Texts, one of which is in the JSON of every match, so that a store can skip most rows unread."""
        if self.field == "error":
            # The type and the message stand apart in JSON.
            part = _inside(max(self.value.split(": "), key=len))
            return part, part
        key = f'"{_inside(self.path[-1])}":' if self.path and not self.path[-1].isdigit() else ""
        plain = _plain(self.value)
        if isinstance(plain, float):
            # `5` may be written as 5 or 5.0, and a large number with an exponent.
            text = "" if "e" in repr(plain) else repr(plain).removesuffix(".0")
        else:
            text = str(plain) if type(plain) is int else self.value
        as_text = f'{key}"{_inside(self.value)}"'
        return as_text, as_text if isinstance(plain, str) else key + text

    def fits(self, row: RunRow) -> bool:
        """Whether a row matches."""
        if self.field == "error":
            wanted = self.value.lower()
            return any(wanted in text.lower() for text in (row.reason, *_texts(row.error)))
        data = row.input if self.field == "input" else row.output
        if (row.input_blob if self.field == "input" else row.output_blob) or (
            self.field == "output" and row.finished_at is None
        ):
            return False
        try:
            value = msgspec.json.decode(data)
        except msgspec.MsgspecError:
            return False
        starts = [value, *value] if isinstance(value, list) else [value]
        plain = _plain(self.value)
        return any(_same(found, self.value, plain) for start in starts for found in _at(start, self.path))


def _inside(text: str) -> str:
    """A text as it stands between the quotes of JSON."""
    return msgspec.json.encode(text).decode()[1:-1]


def _texts(error: Failure | None) -> Iterator[str]:
    if error is not None:
        yield f"{error.type}: {error.message}"
        for one in (error.cause, *error.errors):
            yield from _texts(one)


def _at(value: Any, path: Sequence[str]) -> Iterator[Any]:
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return
    yield value


def _plain(text: str) -> Any:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return text
    return text if isinstance(found, list | dict) else found


def _same(found: Any, text: str, plain: Any) -> bool:
    if isinstance(found, str):
        return found == text
    if isinstance(found, bool) or isinstance(plain, bool) or found is None or plain is None:
        return found is plain
    return isinstance(found, int | float) and isinstance(plain, int | float) and found == plain


class RunFilter(msgspec.Struct, frozen=True):
    """Which runs to list, newest first. `cursor` is the last run_id of the page before.

    Created from `since` on and before `until`. `parent` and `root` are run_ids; a run without a parent is its own root.
    `id_prefix` is a literal prefix, not a pattern. `built_in`: include runs of perdure's own programs, whose names
    begin with `perdure.`. `roots`: no children. `floor` is the last run_id that is looked at: see `nth`. Without
    `values`, rows come with neither inputs nor outputs, and unchecked, since checksums cover those. `changed_since`:
    with an event of that moment or a later one in their journals.
    """

    status: Sequence[RunStatus] = ()
    program: str | None = None
    tags: dict[str, str] | None = None
    since: float | None = None
    limit: int = 100
    cursor: str | None = None
    # Only root runs with open approvals, those of their children included.
    asking: bool = False
    built_in: bool = True
    owner: str | None = None
    parent: str | None = None
    root: str | None = None
    queue: str | None = None
    until: float | None = None
    id_prefix: str | None = None
    roots: bool = False
    floor: str = ""
    match: Match | None = None
    values: bool = True
    changed_since: float | None = None

    def fits(self, row: RunRow, head: Head | None = None) -> bool:
        """Whether a run matches, for stores that have no query language; without `changed_since` by its row alone."""
        return (
            (self.changed_since is None or (head is not None and head.at >= self.changed_since))
            and (self.cursor is None or row.run_id < self.cursor)
            and row.run_id >= self.floor
            and (not self.status or row.status in self.status)
            and (self.program is None or row.program == self.program)
            and (self.built_in or not row.program.startswith(BUILT_IN))
            and (self.since is None or row.created_at >= self.since)
            and (self.until is None or row.created_at < self.until)
            and (self.owner is None or row.owner == self.owner)
            and (self.parent is None or row.parent == self.parent)
            and (self.root is None or (row.root or row.run_id) == self.root)
            and (self.queue is None or row.queue == self.queue)
            and (self.id_prefix is None or row.id.startswith(self.id_prefix))
            and (not self.asking or (row.approvals > 0 and not row.root))
            and not (self.roots and row.root)
            and (self.match is None or self.match.fits(row))
            and all(row.tags.get(key) == value for key, value in (self.tags or {}).items())
        )


def without_values(row: RunRow) -> RunRow:
    """A row for a list that asks for no values."""
    return msgspec.structs.replace(row, input=NULL, output=NULL)


class Tally(msgspec.Struct, frozen=True, order=True):
    """How many runs of a program are in a status; in a histogram, of those that ended in a bucket.

    `bounded`: at least so many; a store stops to count at a bound.
    """

    program: str
    status: RunStatus
    count: int
    bucket: int = 0
    bounded: bool = False


class Span(msgspec.Struct, frozen=True):
    """A time, from `since` on and before `until`, in `buckets` of one length."""

    since: float
    until: float
    buckets: int

    @property
    def width(self) -> float:
        """The length of a bucket in seconds."""
        return (self.until - self.since) / self.buckets

    def bucket(self, at: float | None) -> int | None:
        """In which bucket a moment is, if it is in one."""
        if at is None or not self.since <= at < self.until:
            return None
        return min(int((at - self.since) / self.width), self.buckets - 1)


def tallies(rows: Iterable[tuple[str, RunStatus, int | None]], bound: int) -> list[Tally]:
    """Counts of rows by program, status and bucket, for stores that have no query language; None is left out."""
    counts: dict[tuple[str, RunStatus, int], int] = {}
    for program, status, bucket in rows:
        if bucket is not None:
            counts[program, status, bucket] = counts.get((program, status, bucket), 0) + 1
    return sorted(
        Tally(program, status, min(count, bound), bucket, count > bound)
        for (program, status, bucket), count in counts.items()
    )


def takes(programs: Container[str], program: str, version: str) -> bool:
    """Whether a caller asked for runs of this program and version.

    It names a program, for runs of any version, or a program and a version: `fulfil:2`, and `fulfil:` for runs that
    were started by name alone and have none yet. No name of a program has a colon.
    """
    return program in programs or f"{program}:{version}" in programs


class Runs(Protocol):
    """The rows of runs. What is said of `programs`: see `takes`."""

    async def get(self, run_id: str) -> RunRow | None:
        """One run, or None."""

    async def find(self, id: str) -> tuple[RunRow, Head] | None:
        """The latest incarnation under a caller's id, or None."""

    async def list(self, filter: RunFilter) -> Sequence[tuple[RunRow, Head]]:
        """The runs that match, newest first."""

    async def nth(self, count: int, cursor: str | None = None) -> str | None:
        """The run_id of the newest run but `count`, before the cursor: the floor of a search. None: there is none."""

    async def counts(self, bound: int) -> Sequence[Tally]:
        """How many runs there are, by program and status; no more than `bound` of each are counted."""

    async def count_ended(self, span: Span, program: str | None, bound: int) -> Sequence[Tally]:
        """How many runs, of one program or of all, ended in each bucket of a time; empty ones are left out."""

    async def owned(
        self,
        owners: Sequence[str],
        status: RunStatus,
        programs: Sequence[str],
        limit: int,
        queues: Sequence[str] | None = None,
    ) -> Sequence[str]:
        """Ids of runs of these owners, programs and, unless it is None, `queues` in this status, oldest first."""

    async def owners(self) -> Sequence[str]:
        """Every orchestrator that owns a run which is not finished."""

    async def programs(self) -> Sequence[str]:
        """The names of the programs of all runs that are not finished."""

    async def finished(self, run_ids: Sequence[str]) -> Sequence[RunRow | Corrupt]:
        """The rows of those `run_ids` that have ended or are parked; a damaged row is returned as its Corrupt error."""
