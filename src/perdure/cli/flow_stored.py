"""`perdure flow deploy`, `ls`, `show`, `diff` and `migrate`: flows in a store, and their versions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from perdure.cli.clients import with_client
from perdure.cli.exits import Exit, Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, RunId, StoreUrl, opened
from perdure.cli.output import clean, note, table, value_text, when, write_json
from perdure.cli.targets import flow_files, listed_flows, load_flow_file
from perdure.client.client import Client
from perdure.client.schedules import Deployment
from perdure.errors import FlowInvalid
from perdure.flow import Flow
from perdure.ports.store import Store, definitions_of
from perdure.stored import LookedAt, shown

if TYPE_CHECKING:
    from perdure.authoring.flow.differences import Difference

Profile = Annotated[str | None, Parameter(help="The profile of the flows; by default from the settings.")]
Which = Annotated[str, Parameter(help="A file, a stored flow as NAME or NAME@VERSION, or the id of a run.")]
# How much of a value is shown in a line.
WIDTH = 60


def deploy(
    files: Annotated[list[str], Parameter(help="Flows, or folders of them.")],
    /,
    *,
    profile: Profile = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Store flows, each as the latest of its name, and make their schedules those that are in the files.

    Runs in flight keep the definition that they were started with. Nothing is
    stored when any of the files is wrong.
    """
    paths, problems = listed_flows(files)
    flows = list[Flow]()
    for path in paths:
        try:
            flows.append(load_flow_file(path, profile))
        except FlowInvalid as error:
            problems += error.problems
    if problems:
        raise FlowInvalid(problems)
    names: dict[str, str] = {}
    for flow in flows:
        if (other := names.setdefault(flow.name, flow.file)) is not flow.file:
            raise Problem(f"{other} and {flow.file} are flows of the same name, {flow.name}; rename one of them")

    async def store_all(client: Client) -> list[Deployment]:
        return [await client.deploy_flow(flow) for flow in flows]

    asyncio.run(_set_up(opened(store)))
    done = with_client(opened(store), store_all)
    if json:
        write_json({"flows": done})
        return
    for one in done:
        print(clean(f"{one.name}@{one.version}"))
        for view in one.schedules:
            fires = "is paused" if view.paused else f"fires next {when(view.next_tick)}"
            print(clean(f"  schedule {view.id} {fires}"))
        for id in one.deleted:
            print(clean(f"  schedule {id} deleted"))
    note(f"{len(done)} flow{'s' * (len(done) != 1)} deployed")


async def _set_up(store: Store) -> None:
    """Create a store that is not there, as an engine does."""
    await store.open(migrate=True)
    await store.close()


def ls(*, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """List the flows in a store, each with its latest version."""
    found = with_client(opened(store), lambda client: client.flows())
    if json:
        write_json({"flows": found})
    elif not found:
        note("no flows yet")
    else:
        table(("name", "version", "since"), [(one.name, one.version, when(one.stored_at)) for one in found])


def show(
    which: Which,
    /,
    *,
    profile: Profile = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Print what a flow says: of a run, with the overrides that it was started with."""
    from perdure.authoring.flow.formatting import as_yaml
    from perdure.authoring.flow.tree import Mark, made

    flow = _flow(which, profile, store)
    if json:
        told = {"name": flow.name, "version": flow.version, "overrides": flow.overrides, "definition": flow.content}
        write_json(told)
        return
    print(as_yaml(made(flow.content, Mark(1, 1))), end="")
    changed = f", with overrides of {', '.join(key for one in flow.overrides for key in one)}" if flow.overrides else ""
    note(f"{flow.name}@{flow.version}{changed}")


def diff(
    before: Which,
    after: Which,
    /,
    *,
    profile: Profile = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Show where two flows, or two versions of one, differ. Descriptions, tests and schedules are left out.

    Ends with 0 when they say the same, and with 1 otherwise.
    """
    one, other = _flow(before, profile, store), _flow(after, profile, store)
    found = list(_compared(one, other))
    if json:
        versions = {"before": one.version, "after": other.version}
        write_json({**versions, "differences": [{"flow": inside, **_plain(part)} for inside, part in found]})
        return Exit.FAILED if found else Exit.OK
    for inside, part in found:
        print(clean(f"{f'{inside} ' if inside else ''}{_line(part)}"))
    note(f"{one.name}@{one.version} and {other.name}@{other.version}: {len(found) or 'nothing'} different")
    return Exit.FAILED if found else Exit.OK


def migrate(
    id: RunId,
    /,
    *,
    to: Annotated[str, Parameter(help="The flow, or a stored one as NAME or NAME@VERSION.")],
    before: Annotated[str | None, Parameter(help="An op path: that op, and all that came after it, run again.")] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Only show what would run again.")] = False,
    profile: Profile = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Continue a run with another version of its flow. Finished steps stay finished; anything that does not fit is
    reported.

    A run that failed is tried again. Steps that are under way begin again.
    """

    async def move(client: Client) -> tuple[list[str], str, str]:
        flow = load_flow_file(to, profile) if flow_files(to) else await client.get_flow(to)
        again = list(await client.migrate_flow(id, flow, before=before, dry_run=True))
        run_id = "" if dry_run else (await client.migrate_flow(id, flow, before=before)).run_id
        return again, flow.version, run_id

    again, version, run_id = with_client(opened(store), move)
    if json:
        write_json({"id": id, "run_id": run_id or None, "version": version, "again": again})
        return
    for path in again:
        print(clean(path))
    told = "would continue" if dry_run else "continues"
    many = "1 step begins" if len(again) == 1 else f"{len(again) or 'no'} steps begin"
    note(f"run {id!r} {told} with version {version}; {many} again")


# --- which flow -----------------------------------------------------------------------------------------------------


def _flow(which: str, profile: str | None, store: str) -> Flow:
    """The flow in a file, or one in the store, for display only."""
    if flow_files(which):
        return load_flow_file(which, profile)
    return with_client(opened(store), lambda client: _stored(client, which), LookedAt())


async def _stored(client: Client, which: str) -> Flow:
    view = await client.get(which)
    if view is not None:
        found = shown(await definitions_of(client.store, await client.store.journal.read(view.root)))
        if not found.serves(view.program, view.version):
            raise Problem(f"{which!r} is a run of {view.program}, whose definition is not stored: it is not a flow")
        program = found.find(view.program, view.version)
        assert isinstance(program, Flow)
        return program
    flow: Flow = await client.get_flow(which)
    return flow


# --- differences ----------------------------------------------------------------------------------------------------


def _compared(before: Flow, after: Flow, inside: str = "") -> Iterator[tuple[str, Difference]]:
    """The differences of two flows, and of the flows in them, each with the flow that it is in."""
    from perdure.authoring.flow.differences import differences

    for part in differences(before.content, after.content):
        yield inside, part
    for use, one in before.inner.items():
        if use in after.inner and one.version != after.inner[use].version:
            yield from _compared(one, after.inner[use], use)


def _plain(part: Difference) -> dict[str, Any]:
    return {name: value for name in part.__struct_fields__ if (value := getattr(part, name)) is not None}


def _line(part: Difference) -> str:
    if part.change == "added":
        return f"{part.path} added: {value_text(part.after, WIDTH)}"
    if part.change == "removed":
        return f"{part.path} removed: {value_text(part.before, WIDTH)}"
    return f"{part.path} {part.change}: {value_text(part.before, WIDTH)} → {value_text(part.after, WIDTH)}"
