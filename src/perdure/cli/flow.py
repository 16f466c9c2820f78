"""`perdure flow`: check flows, run them, test them, draw them."""

from __future__ import annotations

import inspect
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from perdure.authoring.graph.diagram import Format
from perdure.cli.exits import Exit
from perdure.cli.options import (
    DEFAULT_STORE,
    AsJson,
    BatchOptions,
    Inputs,
    Limit,
    Out,
    StoreUrl,
    Tolerate,
    opened,
    settings,
)
from perdure.cli.output import clean, note, write_json
from perdure.cli.overriding import overridden
from perdure.cli.targets import listed_flows, load_flow_file, resolve, search_here
from perdure.config import Flows
from perdure.errors import FlowInvalid, FlowProblem
from perdure.flow import Flow, flow_schema

if TYPE_CHECKING:
    from perdure.client.client import Client
    from perdure.client.migrating import TriedRun

app = App(name="flow", help="Check flows, run them, test them and draw them.")
# These modules are imported when a command of theirs is called, so that `check` begins at once. The texts are for the
# list of commands, and for the help of each.
_LAZY = {
    "flow_files:fmt": """Print flows in canonical form.

    There is one order of keys and one way to quote; comments stay where they
    were. With --check, it ends with 1 when a file is not in that form.""",
    "flow_files:import": """Translate a flow of another engine.

    What could not be translated is reported with line and column. It ends with
    0 when all of it was translated, and with 2 when something is left to do.""",
    "flow_stored:deploy": """Store flows, with their schedules.

    Each is the latest of its name then, and its schedules are those in the
    file. Runs in progress keep the definition that they were started with.
    Nothing is stored when any of the files is wrong.""",
    "flow_stored:ls": "List the flows in a store, each with its latest version.",
    "flow_stored:show": "Print what a flow says; of a run, with the overrides that it was started with.",
    "flow_stored:diff": """Show where two flows differ.

    Descriptions, tests and schedules are left out. It ends with 0 when they say
    the same, and with 1 otherwise.""",
    "flow_stored:migrate": """Continue a run with another version of its flow.

    What it has done stays done, or it is told what does not fit. A run that
    failed is tried again. Steps that are under way begin again.""",
}
for number, (place, about) in enumerate(_LAZY.items()):
    name = place.partition(":")[2]
    path = f"perdure.cli.{place}{'_' * (name == 'import')}"
    app.command(path, name=name, sort_key=8 + number, help=inspect.cleandoc(about))

File = Annotated[str, Parameter(help="A flow: a file that ends with .yaml, .yml or .json.")]
Profile = Annotated[str | None, Parameter(help="The profile of the flow; by default from the settings.")]


@app.command(sort_key=1)
def check(
    files: Annotated[list[str], Parameter(help="Flows: files that end with .yaml, .yml or .json, or folders of them.")],
    /,
    *,
    profile: Profile = None,
    store: Annotated[
        str | None, Parameter(help="A store: also report which of its open runs fit these versions.")
    ] = None,
    json: AsJson = False,
) -> int:
    """Report every problem in flows, with its file, line and column. It runs nothing.

    Exits with 0 when there are only warnings, and with 2 otherwise. With
    --store, open runs are replayed with the flows; it exits with 1 when one of
    them does not fit. The runs keep their own version in any case.
    """
    paths, found = listed_flows(files)
    flows = list[Flow]()
    for path in paths:
        try:
            flow = load_flow_file(path, profile)
        except FlowInvalid as error:
            found += error.problems
        else:
            found += flow.warnings
            flows.append(flow)
    wrong = any(problem.level == "error" for problem in found)
    runs = None if store is None or wrong else _tried(flows, store)
    if json:
        told = {"files": len(paths), "problems": [_plain(problem) for problem in found]}
        write_json(told if runs is None else {**told, "runs": runs})
    else:
        for problem in found:
            print(clean(str(problem), "\n"))
        many = "1 file" if len(paths) == 1 else f"{len(paths)} files"
        note(f"{many}: {len(found) or 'nothing'} found")
        if runs is not None:
            _show_runs(runs)
    return Exit.USAGE if wrong else Exit.FAILED if any(run.reason for run in runs or ()) else Exit.OK


def _tried(flows: list[Flow], store: str) -> list[TriedRun]:
    """Which open runs of earlier versions could be moved to these."""
    from perdure.cli.clients import with_client

    async def tried(client: Client) -> list[TriedRun]:
        return [run for flow in flows for run in await client.try_runs(flow)]

    return with_client(opened(store), tried)


def _show_runs(runs: list[TriedRun]) -> None:
    refused = [run for run in runs if run.reason]
    for run in refused:
        print(clean(f"run {run.id} of version {run.version} does not fit: {run.reason}", "\n"))
    note(f"{len(runs)} open runs of other versions: {len(runs) - len(refused)} fit, {len(refused)} do not")


@app.command(sort_key=2)
def run(
    file: File,
    /,
    *,
    id: Annotated[
        str | None, Parameter(help="The id of the run. If a run with this id exists, it is continued.")
    ] = None,
    input: Annotated[str | None, Parameter(help="Inputs, as a JSON object.", allow_leading_hyphen=True)] = None,
    set: Annotated[
        list[str] | None,
        Parameter(negative="", help="STEP.KEY=VALUE: another value in a step of this run; may be repeated."),
    ] = None,
    overrides: Annotated[
        str | None, Parameter(help="Changes of steps of this run, by step: JSON, @file.json, or - for stdin.")
    ] = None,
    profile: Profile = None,
    inputs: Inputs = None,
    limit: Limit = None,
    tolerate: Tolerate = None,
    out: Out = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Run a flow to its end and print its result as JSON.

    After a crash, the same command with the same --id continues the run from
    the last step that it finished.

    --input is an object with the inputs by name; it may be @file.json, or -
    for stdin. With --inputs, the flow runs once for each line of a file, as a
    batch. --set book.timeout=5s changes a step, extract.pull.timeout=5s one of
    a job; the value is JSON, or else text.
    """
    from perdure.cli.run import perform

    batch = BatchOptions(inputs, limit, tolerate, out)
    _, module = resolve(file)
    flow = load_flow_file(file, profile)
    if set or overrides is not None:
        flow = overridden(flow, set or [], overrides)
    module = replace(module, programs={file: flow})
    return perform(flow, module, f"flow run {shlex.quote(file)}", id, input, store, json, {}, batch)


@app.command(name="test", sort_key=3)
def run_cases(
    files: Annotated[list[str], Parameter(help="Flows: files that end with .yaml, .yml or .json, or folders of them.")],
    /,
    *,
    case: Annotated[str | None, Parameter(help="Run only the tests of this name.")] = None,
    profile: Profile = None,
    json: AsJson = False,
) -> int:
    """Run the tests in flows, with the results that they give to steps, and without waiting for sleeps.

    Ends with 0 when all are as expected, and with 1 otherwise.
    """
    from perdure.testing.flows import CaseOutcome, run_tests

    allowed = settings().flows or Flows()
    if profile is not None:
        allowed = replace(allowed, profile=profile)
    search_here()
    paths, problems = listed_flows(files)
    outcomes: list[CaseOutcome] = []
    for path in paths:
        try:
            outcomes += run_tests(path, allowed, case)
        except FlowInvalid as error:
            problems += error.problems
    if problems:
        raise FlowInvalid(problems)
    failed = sum(1 for outcome in outcomes if outcome.flaws)
    if json:
        write_json({"tests": outcomes, "failed": failed})
    else:
        for outcome in outcomes:
            print(clean(f"{'FAILED' if outcome.flaws else 'ok'}  {outcome.where} {outcome.name}"))
            for flaw in outcome.flaws:
                print(clean(f"  {flaw}"))
        note(f"{len(outcomes)} test{'s' * (len(outcomes) != 1)}, {failed or 'none'} failed")
    return Exit.FAILED if failed else Exit.OK


@app.command(sort_key=4)
def graph(
    file: File,
    /,
    *,
    format: Annotated[Format, Parameter(help="The language of the drawing.")] = "mermaid",
    depth: Annotated[int | None, Parameter(help="How many levels of flows in flows are drawn open.")] = None,
) -> None:
    """Print a flow as a diagram, for mermaid or Graphviz to lay out."""
    print(load_flow_file(file).diagram(format=format, depth=depth), end="")


@app.command(sort_key=5)
def schema() -> None:
    """Print the JSON Schema of flows, for editors."""
    write_json(flow_schema())


def _plain(problem: FlowProblem) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in ("file", "line", "column", "level", "code", "message")}
