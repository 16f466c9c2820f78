"""`perdure signal`, `approve`, `reject`, `cancel`, `pause`, `resume`, `resolve`: one event for one run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from msgspec import to_builtins

from perdure.cli.clients import with_client
from perdure.cli.exits import Exit, Problem
from perdure.cli.inputs import read
from perdure.cli.options import DEFAULT_STORE, AsJson, RunId, StoreUrl, opened
from perdure.cli.output import note, write_json
from perdure.client.client import Client
from perdure.errors import NoSuchRun, UsageError
from perdure.kernel.divergence.patching import DoesNotApply, apply_diff
from perdure.kernel.history.rewind import Truncated
from perdure.kernel.inbound import AlreadyFinished, Duplicate, Finished, NotFound

Input = Annotated[str | None, Parameter(name="--input", help="JSON, @file.json, or - for stdin.")]
Reason = Annotated[str | None, Parameter(help="The reason; it is recorded in the journal.")]
Question = Annotated[str, Parameter(help="The name of the approval, or its op path.")]
Person = Annotated[str | None, Parameter(help="Who answers.")]
AnswerId = Annotated[str | None, Parameter(help="An answer with the same id counts once.")]


def signal(
    id: RunId,
    name: Annotated[str, Parameter(help="The name of the signal.")],
    /,
    *,
    input: Input = None,
    signal_id: Annotated[str | None, Parameter(help="A signal with the same id is delivered once.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Send a signal to a run."""
    payload = None if input is None else read(input)
    return _send(store, id, json, "signal sent", lambda client: client.signal(id, name, payload, signal_id))


def approve(
    id: RunId,
    name: Question,
    /,
    *,
    input: Input = None,
    by: Person = None,
    approval_id: AnswerId = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Answer an approval of a run; `perdure approvals ls` lists those that are open."""
    answer = None if input is None else read(input)
    return _answer(store, id, name, json, "accepted", lambda client: client.approve(id, name, answer, approval_id, by))


def reject(
    id: RunId,
    name: Question,
    /,
    *,
    reason: Reason = None,
    by: Person = None,
    approval_id: AnswerId = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Reject an approval of a run; `perdure approvals ls` lists those that are open."""
    return _answer(store, id, name, json, "rejected", lambda client: client.reject(id, name, reason, approval_id, by))


def _answer(store: str, id: str, name: str, json: bool, done: str, tell: Callable[[Client], Awaitable[Any]]) -> int:
    async def give(client: Client) -> Any:
        verdict = await tell(client)
        if isinstance(verdict, NotFound) and await client.get(id) is not None:
            why = f": {verdict.reason}" if verdict.reason else "; `perdure approvals ls` lists those that are open"
            raise Problem(f"run {id!r} has no open approval {name!r}{why}")
        return verdict

    return _send(store, id, json, f"{name} {done}", give)


def cancel(id: RunId, /, *, reason: Reason = None, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> int:
    """Cancel a run; it may clean up first."""
    return _send(store, id, json, "cancel requested", lambda client: client.cancel(id, reason))


def pause(id: RunId, /, *, reason: Reason = None, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> int:
    """Pause a run: no new step starts."""
    return _send(store, id, json, "paused", lambda client: client.pause(id, reason))


def resume(id: RunId, /, *, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> int:
    """Continue a paused run."""
    return _send(store, id, json, "resumed", lambda client: client.resume(id))


def resolve(
    id: RunId,
    /,
    *,
    version: Annotated[str | None, Parameter(help="Pin it to this version of its program.")] = None,
    fail: Annotated[str | None, Parameter(help="End it as failed, with this reason.")] = None,
    before: Annotated[
        str | None, Parameter(help="Continue it from right before this op; later ops are discarded.")
    ] = None,
    apply: Annotated[
        bool, Parameter(negative="", help="Write the fix that its explanation shows into the file; then deploy it.")
    ] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="With --apply: show the change, and write nothing.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Continue a parked run, or end it. Without options, it is tried again."""
    if apply or dry_run:
        if not apply or not (version is fail is before is None):
            raise UsageError("--apply can only be combined with --dry-run: it changes a file, and nothing in the store")
        return _apply(store, id, dry_run, json)
    done = (
        "failed by hand" if fail is not None else "will be tried again" + (f" as version {version}" if version else "")
    )
    if before is not None:
        done = f"continues from before {before}" + (f" as version {version}" if version else "")
    return _send(store, id, json, done, lambda c: c.resolve(id, version=version, fail=fail, before=before))


def _apply(store: str, id: str, dry_run: bool, json: bool) -> int:
    """Write the fix that was tried on the journal of a parked run."""
    view = with_client(opened(store), lambda client: client.get(id))
    if view is None:
        raise NoSuchRun(id)
    patch = "" if view.divergence is None else view.divergence.patch
    if not patch:
        why = (
            "is not parked" if not view.parked else "is parked, and no change of the code was found with which it fits"
        )
        raise Problem(f"there is nothing to apply: run {id!r} {why}")
    file = Path(patch.partition("\n")[0].removeprefix("--- "))
    try:
        made = apply_diff(file.read_text(), patch)
    except FileNotFoundError:
        raise Problem(f"there is no file {file} here; run this command in the folder of the code") from None
    except DoesNotApply as error:
        raise Problem(f"{file} is not the code that the fix was tried with: {error}. Nothing was written") from None
    if not dry_run:
        file.write_text(made)
    if json:
        write_json({"file": str(file), "patch": patch, "written": not dry_run})
    else:
        print(patch, end="")
        note(f"{file} {'would be' if dry_run else 'was'} changed; run {id!r} continues when that code is deployed")
    return Exit.OK


def _send(store: str, id: str, json: bool, done: str, send: Callable[[Client], Awaitable[Any]]) -> int:
    verdict = with_client(opened(store), send)
    if isinstance(verdict, NotFound):
        raise NoSuchRun(id)
    ended = isinstance(verdict, Finished | AlreadyFinished)
    if json:
        write_json({"answer": type(verdict).__name__, **to_builtins(verdict)})
    elif ended:
        note(f"nothing was done: run {id!r} is already {verdict.status.value}")
    else:
        note(f"run {id!r}: {'received before; it counts once' if isinstance(verdict, Duplicate) else done}")
    if isinstance(verdict, Truncated) and not json:
        note(f"executed again if the code asks for it: {', '.join(verdict.again) or 'nothing'}")
    return Exit.FAILED if ended else Exit.OK
