"""A store behind the HTTP API, for reading: runs, journals, queues and leases. Writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Any, NoReturn

import msgspec
from msgspec import Raw

from perdure.cli.exits import Exit, Problem
from perdure.cli.remote.http import Api, as_raw, part
from perdure.errors import Corrupt, NoSuchRun
from perdure.kernel.events import AnyEvent, Batch, RunStatus, moment
from perdure.kernel.policies.durability import Durability
from perdure.kernel.projection import RunRow
from perdure.kernel.values.failures import ABSENT, Failure
from perdure.ports.journal import Append, Head, Outcome
from perdure.ports.leases import ORCHESTRATOR, REGISTRATION, Acquired, HeldBy, Lease, Registration, Renewal, holder
from perdure.ports.queues import QueueStats
from perdure.ports.runs import RunFilter, Span, Tally
from perdure.ports.store import Survives
from perdure.ports.upkeep import Load

# How many events and runs are asked for at a time.
PAGE = 1000
LOCK = "lock:"
_event = msgspec.json.Decoder(AnyEvent).decode


class HttpStore:
    """The ports of a store that a server has. What they cannot do over HTTP says so."""

    survives: Survives = "nothing"

    def __init__(self, address: str) -> None:
        self.api = Api(address)
        self.url = self.api.address
        self.runs = HttpRuns(self.api)
        self.journal = HttpJournal(self.api, self.runs)
        self.queues, self.leases = HttpQueues(self.api), HttpLeases(self.api)
        self.blobs, self.timers, self.upkeep = HttpBlobs(), HttpTimers(), HttpUpkeep(self.api)

    async def open(self, *, migrate: bool) -> None:
        """Nothing is kept open."""

    async def close(self) -> None:
        """Nothing is kept open."""

    def check_durability(self, durability: Durability) -> None:
        """The server's store decides."""

    def version(self) -> object:
        """It is not known whether anything has changed: what waits for that asks now and then."""
        return None

    def trace(self, callback: Callable[[str], None] | None) -> None:
        """Requests are not reported."""


def not_here(what: str) -> NoReturn:
    """Say that a command needs the store itself."""
    raise Problem(f"{what} needs the store itself: give its URL, such as --store postgresql://...", Exit.USAGE)


class HttpRuns:
    """The rows of runs."""

    def __init__(self, api: Api) -> None:
        self._api = api
        # Why the runs that were listed last make no progress, by run_id.
        self.why: dict[str, Any] = {}

    async def get(self, run_id: str) -> RunRow | None:
        """One run, or None."""
        found = await self.detail(run_id)
        return None if found is None else await self._row(found)

    async def detail(self, run_id: str) -> Any:
        """What the server says of a run without reading its journal; None if there is no such run."""
        root, _, child = run_id.partition("/")
        try:
            return await self._api.get(f"runs/{part(root)}", child=child, journal="false")
        except NoSuchRun:
            return None

    async def find(self, id: str) -> tuple[RunRow, Head] | None:
        """The latest incarnation under a caller's id, or None."""
        try:
            found = await self._api.get("runs/by-id", id=id, journal="false")
        except NoSuchRun:
            return None
        return await self._row(found), head_of(found)

    async def list(self, filter: RunFilter) -> Sequence[tuple[RunRow, Head]]:
        """The runs that match, newest first; without their values."""
        search = filter.match
        text = None if search is None else f"{'.'.join((search.field, *search.path))}={search.value}"
        found: list[tuple[RunRow, Head]] = []
        before = filter.cursor
        self.why = {}
        while len(found) < filter.limit:
            page = await self._api.get(
                "runs",
                status=[one.value for one in filter.status],
                program=filter.program,
                tag=[f"{key}:{value}" for key, value in (filter.tags or {}).items()],
                queue=filter.queue,
                owner=filter.owner,
                parent=filter.parent,
                root="true" if filter.roots else filter.root,
                q=text or filter.id_prefix,
                since=_time(filter.since),
                until=_time(filter.until),
                before=before,
                why=True,
                limit=min(PAGE, filter.limit - len(found)),
            )
            found += [(row_of(one), head_of(one)) for one in page["runs"]]
            self.why |= page["why"]
            if page["next"] is None or not page["runs"]:
                break
            before = page["runs"][-1]["run_id"]
        return found

    async def nth(self, count: int, cursor: str | None = None) -> str | None:
        """The server bounds what it searches."""
        return None

    async def counts(self, bound: int) -> Sequence[Tally]:
        """How many runs there are, by program and status."""
        found = (await self._api.get("runs/counts", by="status,program"))["counts"]
        return [Tally(one["program"], RunStatus(one["status"]), one["count"], 0, one["bounded"]) for one in found]

    async def count_ended(self, span: Span, program: str | None, bound: int) -> Sequence[Tally]:
        """No command asks for this."""
        not_here("a histogram")

    async def owned(self, *_: Any) -> Sequence[str]:
        """No command asks for this."""
        not_here("this")

    async def owners(self) -> Sequence[str]:
        """Every orchestrator that owns a run which is not finished."""
        return [one["name"] for one in (await self._api.get("orchestrators"))["orchestrators"]]

    async def programs(self) -> Sequence[str]:
        """The names of the programs that are known."""
        return [one["name"] for one in (await self._api.get("programs"))["programs"]]

    async def finished(self, run_ids: Sequence[str]) -> Sequence[RunRow | Corrupt]:
        """The rows of those runs that have ended or are parked."""
        rows = [await self.get(run_id) for run_id in run_ids]
        return [row for row in rows if row is not None and (row.status.finished or row.status is RunStatus.PARKED)]

    async def _row(self, found: Any) -> RunRow:
        for name in ("input", "output"):
            value = found[name]
            if isinstance(value, dict) and "$value" in value and value.keys() == {"$value", "bytes"}:
                found[name] = Raw(await self._api.raw("GET", value["$value"], {}))
        return row_of(found)


class HttpJournal:
    """Journals."""

    def __init__(self, api: Api, runs: HttpRuns) -> None:
        self._api, self._runs = api, runs

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Journals are written by what the server does."""
        not_here("this command")

    async def rewrite(self, *_: Any) -> Outcome:
        """Journals are written by what the server does."""
        not_here("this command")

    async def read(self, run_id: str, start: int = 0, limit: int | None = None) -> list[Batch]:
        """At most `limit` events, from number `start` on."""
        found: list[Batch] = []
        left = limit
        at: int | None = start
        while at is not None and (left is None or left > 0):
            page = await self._api.get(
                f"runs/{part(run_id)}/journal", start=at, limit=PAGE if left is None else min(PAGE, left), whole="true"
            )
            for one in page["events"]:
                event = _event(msgspec.json.encode({"type": one["kind"], **one["event"]}))
                moment_of = datetime.fromisoformat(one["at"]).timestamp()
                if found and found[-1].at == moment_of:
                    last = found[-1]
                    found[-1] = Batch(last.seq, last.at, [*last.events, event])
                else:
                    found.append(Batch(one["seq"], moment_of, [event]))
            if left is not None:
                left -= len(page["events"])
            at = page["next"] if page["events"] else None
        return found

    async def read_many(self, run_ids: Sequence[str]) -> dict[str, list[Batch] | Exception]:
        """Whole journals."""
        return {run_id: await self.read(run_id) for run_id in run_ids}

    async def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The next number of each of these journals that exists."""
        found = await asyncio.gather(*(self.head(run_id) for run_id in run_ids))
        return {run_id: head.next_seq for run_id, head in zip(run_ids, found, strict=True) if head is not None}

    async def head(self, run_id: str) -> Head | None:
        """Where the journal ends."""
        found = await self._runs.detail(run_id)
        return None if found is None else head_of(found)


class HttpQueues:
    """Queued runs."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def waiting(self, *_: Any) -> Any:
        """Engines ask for this."""
        not_here("this")

    async def pick(self, *_: Any) -> Any:
        """Engines ask for this."""
        not_here("this")

    async def stats(self) -> Sequence[QueueStats]:
        """Every queue that has queued or running runs."""
        found = (await self._api.get("queues"))["queues"]
        now = datetime.now().timestamp()  # noqa: DTZ005 - a number of seconds
        return [
            QueueStats(q["name"], q["queued"], q["running"], None if q["oldest"] is None else now - q["oldest"])
            for q in found
        ]


class HttpLeases:
    """The orchestrators that live, and locks."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def live(self, prefix: str, now: float) -> Sequence[Lease]:
        """The leases in force whose key begins with `prefix`."""
        if prefix == LOCK:
            held = (await self._api.get("locks"))["locks"]
            return [Lease(LOCK + one["key"], one["owner"], one["token"], _seconds(one["expires_at"])) for one in held]
        found = [one for one in (await self._api.get("orchestrators"))["orchestrators"] if one["alive"]]
        if prefix == ORCHESTRATOR:
            return [
                Lease(ORCHESTRATOR + one["name"], holder(one["name"], one["session"]), 1, _seconds(one["expires_at"]))
                for one in found
            ]
        if prefix == REGISTRATION:
            said = {one["name"]: Registration(one["programs"] and tuple(one["programs"])) for one in found}
            return [
                Lease(REGISTRATION + name, msgspec.json.encode(one).decode(), 1, now + 60) for name, one in said.items()
            ]
        return []

    async def get(self, key: str, now: float) -> Lease | None:
        """The lease in force, or None."""
        prefix = LOCK if key.startswith(LOCK) else ORCHESTRATOR
        return next((lease for lease in await self.live(prefix, now) if lease.key == key), None)

    async def release(self, key: str, owner: str) -> None:
        """Take a lock away."""
        await self._api.raw("DELETE", f"locks/{part(key.removeprefix(LOCK))}", {})

    async def acquire(self, *_: Any) -> Acquired | HeldBy:
        """Engines and callers in Python do this."""
        not_here("this command")

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        """Nothing is held here."""
        return [one.key for one in renewals]

    async def release_all(self, owner: str) -> int:
        """Nothing is held here."""
        return 0

    async def watch(self, prefix: str) -> AsyncIterator[str]:
        """Nothing is reported."""
        await asyncio.Event().wait()
        yield ""


class HttpBlobs:
    """Values come with the events."""

    async def put(self, data: bytes) -> str:
        """The server stores blobs."""
        not_here("this command")

    async def get(self, blob_id: str) -> bytes | None:
        """The sources of runs are not read over HTTP."""
        return None


class HttpTimers:
    """Engines read timers."""

    async def due(self, *_: Any) -> Any:
        """Engines ask for this."""
        not_here("this")

    async def ahead(self, *_: Any) -> Any:
        """Engines ask for this."""
        not_here("this")

    async def late(self, *_: Any) -> Any:
        """Engines ask for this."""
        not_here("this")


class HttpUpkeep:
    """What operators do needs the store."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def loads(self) -> Sequence[Load]:
        """How many unfinished root runs each owner has."""
        found = (await self._api.get("orchestrators"))["orchestrators"]
        return [Load(one["name"], one["running"], one["waiting"]) for one in found]

    def __getattr__(self, name: str) -> Any:
        not_here("this command")


def row_of(found: Any) -> RunRow:
    """A row, from what the server says of a run."""
    failure = found.get("failure") or found["error"]
    root = found["root"] if found["root"] != found["run_id"] else ""
    return RunRow(
        run_id=found["run_id"],
        id=found["id"],
        incarnation=found["incarnation"],
        program=found["program"],
        version=found["version"],
        status=RunStatus(found["status"]),
        owner=found["owner"],
        epoch=found["epoch"],
        wake_at=_optional(found["due_at"]),
        created_at=_seconds(found["created_at"]),
        finished_at=_optional(found["finished_at"]),
        tags=found["tags"],
        input=as_raw(found.get("input")),
        input_blob="",
        output=as_raw(found.get("output")),
        output_blob="",
        error=None if failure is None else _failure(failure),
        reason=found["reason"],
        parent=found["parent"] or "",
        root=root,
        queue=found["queue"] or "",
        queue_key=found["key"] or "",
        priority=found["priority"],
        began_at=_optional(found["began_at"]),
        continued_as=found["continued_as"] or "",
        approvals=found["approvals"],
        forked_from=found["forked_from"] or "",
    )


def _failure(found: Any) -> Failure:
    return Failure(
        found["type"],
        found["message"],
        data=as_raw(found["data"]) if found.get("data") is not None else ABSENT,
        traceback=found.get("traceback", ""),
        cause=None if found.get("cause") is None else _failure(found["cause"]),
        errors=tuple(_failure(one) for one in found.get("errors", ())),
    )


def head_of(found: Any) -> Head:
    """The head of a journal, from what the server says of a run."""
    return Head(found["next_seq"], _seconds(found["updated_at"]), found["size"])


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _optional(text: str | None) -> float | None:
    return None if text is None else _seconds(text)


def _time(at: float | None) -> str | None:
    return None if at is None else moment(at).isoformat()
