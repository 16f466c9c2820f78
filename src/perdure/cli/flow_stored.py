"""`perdure flow deploy`: flows in a store, with their schedules."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.clients import with_client
from perdure.cli.exits import Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl, opened
from perdure.cli.output import clean, note, when, write_json
from perdure.cli.targets import flow_files, load_flow_file
from perdure.client.client import Client
from perdure.client.schedules import Deployment
from perdure.errors import FlowInvalid, FlowProblem
from perdure.flow import Flow
from perdure.ports.store import Store


def deploy(
    files: Annotated[list[str], Parameter(help="Flows, or folders of them.")],
    /,
    *,
    profile: Annotated[str | None, Parameter(help="The profile of the flows; otherwise the settings say.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Store flows, each as the latest of its name, and make their schedules those that are in the files.

    Runs in flight keep the definition that they were started with. Nothing is stored when any of the files is wrong.
    """
    paths = [path for file in files for path in _paths(file)]
    flows, problems = list[Flow](), list[FlowProblem]()
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


def _paths(file: str) -> list[str]:
    found = flow_files(file)
    if not found:
        what = "has no flows in it" if os.path.isdir(file) else "is no flow: its name ends with .yaml, .yml or .json"
        raise Problem(f"{file} {what}")
    return found
