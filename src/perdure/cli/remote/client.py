"""A client of a store behind the HTTP API: what it sends goes through the routes of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec

from perdure.cli.exits import Problem
from perdure.cli.remote.http import Api, part
from perdure.cli.remote.store import HttpStore
from perdure.client.client import Client
from perdure.client.handle import RunHandle
from perdure.client.queries import RunFilters
from perdure.client.schedules import ScheduleHandle, ScheduleView
from perdure.client.views import ApprovalView, RunPage, RunSummary, RunView
from perdure.client.why import Why
from perdure.errors import NoSuchRun, UsageError
from perdure.kernel.events import RunStatus
from perdure.kernel.history.rewind import Truncated
from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate, Finished, NotFound
from perdure.kernel.invocation import Invocation
from perdure.stored import StoredPrograms

BYTES = "application/octet-stream"


class RemoteClient(Client):
    """As a Client, over HTTP. Who does what is the owner of the token."""

    def __init__(self, store: HttpStore) -> None:
        super().__init__(store, structures=StoredPrograms())
        self._remote, self._api = store, store.api

    # --- reading --------------------------------------------------------------------------------------------------

    async def list(self, *, limit: int = 100, cursor: str | None = None, **filters: Any) -> RunPage:
        """Runs, newest first, a page at a time, without their values."""
        return await self._queries.list(cast("RunFilters", filters), limit, cursor, values=False)

    async def reasons(self, runs: Sequence[RunSummary]) -> dict[str, Why]:
        """Why the runs of the last page make no progress, by run_id: the server says so with the page."""
        said = self._remote.runs.why
        return {run.run_id: _why(said[run.run_id]) for run in runs if run.run_id in said}

    async def why(self, id: str) -> Why | None:
        """Why a run makes no progress."""
        why = (await self._detail((await self._base.require(id))[0].run_id))["why"]
        return None if why is None else _why(why)

    async def _detail(self, run_id: str) -> Any:
        root, _, child = run_id.partition("/")
        return await self._api.get(f"runs/{part(root)}", child=child)

    async def approvals(
        self, *, name: str | None = None, approver: str | None = None, program: str | None = None
    ) -> Sequence[ApprovalView]:
        """Open approvals of all runs, the oldest first."""
        found: list[ApprovalView] = []
        cursor: str | None = None
        while True:
            page = await self._api.get("approvals", name=name, program=program, cursor=cursor, limit=1000)
            found += [await self._approval(one) for one in page["approvals"]]
            cursor = page["next"]
            if cursor is None:
                return [one for one in found if approver is None or one.answerable_by(approver)]

    async def _approval(self, one: Any) -> ApprovalView:
        request = one["request"]
        if isinstance(request, dict) and request.keys() == {"$value", "bytes"}:
            request = msgspec.json.decode(await self._api.raw("GET", request["$value"], {}))
        return ApprovalView(
            one["id"],
            one["run_id"],
            one["program"],
            one["name"],
            one["path"],
            request,
            one["schema"],
            tuple(one["approvers"]),
            datetime.fromisoformat(one["asked_at"]),
            _time(one["deadline"]),
            _time(one["escalates_at"]),
        )

    # --- messages -------------------------------------------------------------------------------------------------

    async def _told(self, id: str, action: str, body: Any) -> Any:
        """What a run answers, or None if there is no such run."""
        row, _ = await self._base.require(id)
        root, _, child = row.run_id.partition("/")
        return await self._api.post(f"runs/{part(root)}/{action}", body, query={"child": child})

    async def signal(
        self, id: str, name: str, payload: Any = None, signal_id: str | None = None, *, trace: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run a signal."""
        said = await self._told(id, f"signals/{part(name)}", {"payload": payload, "signal_id": signal_id})
        return _verdict(said)

    async def approve(
        self, id: str, name: str, payload: Any, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Answer an open approval, as the owner of the token."""
        _not_for_others(by)
        return await self._answer(id, name, "approve", {"payload": payload, "approval_id": approval_id})

    async def reject(
        self, id: str, name: str, reason: str | None = None, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Reject an open approval, as the owner of the token."""
        _not_for_others(by)
        return await self._answer(id, name, "reject", {"reason": reason, "approval_id": approval_id})

    async def _answer(self, id: str, name: str, what: str, body: Any) -> Accepted | Duplicate | NotFound | Finished:
        try:
            return _verdict(await self._told(id, f"approvals/{part(name)}/{what}", body))
        except UsageError as error:
            if "asks no question" in str(error):
                return NotFound(str(error).partition(" now: ")[2])
            raise

    async def cancel(self, id: str, reason: str | None = None, *, by: str | None = None) -> Cancelled | AlreadyFinished:
        """Ask a run to end."""
        verdict = _verdict(await self._told(id, "cancel", {"reason": reason}))
        return AlreadyFinished(verdict.status) if isinstance(verdict, Finished) else Cancelled()

    async def pause(self, id: str, reason: str | None = None, *, by: str | None = None) -> Accepted | Finished:
        """Begin no new step of a run."""
        return _undoubted(await self._told(id, "pause", {"reason": reason}))

    async def resume(self, id: str, *, by: str | None = None) -> Accepted | Finished:
        """Let a paused run continue."""
        return _undoubted(await self._told(id, "resume", {}))

    async def resolve(
        self,
        id: str,
        *,
        version: str | None = None,
        fail: str | None = None,
        before: str | None = None,
        by: str | None = None,
    ) -> Accepted | Finished:
        """Let a parked run continue, or end it."""
        said = await self._told(id, "resolve", {"version": version, "fail": fail, "before": before})
        if before is not None and said["answer"] == "accepted":
            return Truncated("", tuple(said["again"]))
        return _undoubted(said)

    # --- forks and retries ----------------------------------------------------------------------------------------

    async def fork(
        self,
        id: str,
        at: str | int | None = None,
        values: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        new_id: str | None = None,
        *,
        state: Mapping[str, Any] | None = None,
        set: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> RunHandle[Any]:
        """Start a run that has the past of another up to a point."""
        body = {"at": at, "values": values or set, "inputs": inputs, "state": state, "new_id": new_id}
        return self._begun(await self._told(id, "fork", {name: one for name, one in body.items() if one is not None}))

    async def time_travel(
        self,
        id: str,
        step: str,
        inputs: Mapping[str, Any] | None = None,
        new_id: str | None = None,
        *,
        by: str | None = None,
    ) -> RunHandle[Any]:
        """Start a run that continues right before a step of another."""
        return self._begun(await self._told(id, "travel", {"step": step, "inputs": inputs, "new_id": new_id}))

    async def retry(self, id: str, *, max_rounds: int | None = None, by: str | None = None) -> RunHandle[Any]:
        """Continue a failed or cancelled run."""
        return self._begun(await self._told(id, "retry", {} if max_rounds is None else {"max_rounds": max_rounds}))

    def _begun(self, said: Any) -> RunHandle[Any]:
        return self._handles.of(said["id"], said["run_id"], None)

    # --- schedules ------------------------------------------------------------------------------------------------

    async def schedules(self) -> Sequence[ScheduleView]:
        """All schedules, by id."""
        return [_schedule(one) for one in (await self._api.get("schedules"))["schedules"]]

    async def schedule(self, id: str, invocation: Invocation[Any] | None = None, **options: Any) -> ScheduleHandle:
        """A handle of a schedule; with an invocation, it is made what it says."""
        handle = RemoteSchedule(self._api, id)
        if invocation is None:
            await handle.view()
            return handle
        plain = {name: value for name, value in options.items() if value is not None}
        body = {name: one.total_seconds() if isinstance(one, timedelta) else one for name, one in plain.items()}
        body |= {"program": invocation.name, "args": list(invocation.args), "kwargs": invocation.kwargs}
        await self._api.raw("PUT", f"schedules/{part(id)}", {}, msgspec.json.encode(body))
        return handle

    # --- capsules -------------------------------------------------------------------------------------------------

    async def export(self, id: str, *, redact: Sequence[str] = (), always: Sequence[str] = ()) -> bytes:
        """A run as one file."""
        row, _ = await self._base.require(id)
        return await self._api.raw(
            "GET", f"runs/{part(row.root or row.run_id)}/capsule", {"redact": [*redact, *always]}
        )

    async def import_run(self, data: bytes) -> RunView:
        """Import a run from a capsule."""
        said = msgspec.json.decode(await self._api.raw("POST", "capsules", {}, data, BYTES))
        view = await self.get(said["run_id"])
        if view is None:
            raise NoSuchRun(said["run_id"])
        return view


class RemoteSchedule(ScheduleHandle):
    """One schedule behind the HTTP API."""

    def __init__(self, api: Api, id: str) -> None:
        self._api, self.id = api, id

    async def _post(self, action: str, body: Any = None) -> Any:
        return await self._api.post(f"schedules/{part(self.id)}/{action}", body)

    async def view(self) -> ScheduleView:
        """The schedule as it is now."""
        return _schedule(await self._api.get(f"schedules/{part(self.id)}"))

    async def pause(self, reason: str | None = None, *, by: str | None = None) -> None:
        """Fire no tick until it is resumed."""
        _not_for_others(by)
        await self._post("pause", {"reason": reason})

    async def resume(self, *, by: str | None = None) -> None:
        """Fire again, from the next tick."""
        _not_for_others(by)
        await self._post("resume")

    async def trigger(self, trigger_id: str | None = None, *, by: str | None = None) -> str:
        """Start a run now."""
        _not_for_others(by)
        return str((await self._post("trigger"))["id"])

    async def next(self, count: int = 10) -> Sequence[datetime]:
        """When it fires next."""
        found = await self._api.get(f"schedules/{part(self.id)}/next", count=count)
        return [datetime.fromisoformat(one) for one in found["next"]]

    async def backfill(
        self, start: datetime, end: datetime, backfill_id: str | None = None, *, by: str | None = None
    ) -> Sequence[str]:
        """Fire the ticks of a time that has passed."""
        _not_for_others(by)
        return list((await self._post("backfill", {"start": start.isoformat(), "end": end.isoformat()}))["ids"])

    async def delete(self, *, by: str | None = None) -> None:
        """End the schedule."""
        _not_for_others(by)
        await self._api.raw("DELETE", f"schedules/{part(self.id)}", {})


def _verdict(said: Any) -> Accepted | Duplicate | Finished:
    if said["answer"] == "finished":
        return Finished(RunStatus(said["status"]))
    return Duplicate() if said["duplicate"] else Accepted()


def _undoubted(said: Any) -> Accepted | Finished:
    """As `_verdict`, for what has no duplicates."""
    verdict = _verdict(said)
    return verdict if isinstance(verdict, Finished) else Accepted()


def _why(why: Any) -> Why:
    return Why(why["kind"], why["text"], _time(why["until"]))


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _schedule(one: Any) -> ScheduleView:
    lengths = {
        name: None if one[name] is None else timedelta(seconds=one[name]) for name in ("every", "jitter", "deadline")
    }
    times = {name: _time(one[name]) for name in ("last_tick", "next_tick", "created_at")}
    return ScheduleView(**{**one, **lengths, **times})


def _not_for_others(by: str | None) -> None:
    if by is not None:
        raise Problem("--by: over HTTP, who answers is the owner of the token")
