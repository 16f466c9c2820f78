"""`perdure flow`: check flows, run them, test them, draw them."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import replace
from typing import Annotated, Any

from cyclopts import App, Parameter

from perdure.authoring.graph.diagram import Format
from perdure.cli.exits import Exit
from perdure.cli.options import DEFAULT_STORE, AsJson, BatchOptions, Inputs, Limit, Out, StoreUrl, Tolerate, settings
from perdure.cli.output import clean, note, write_json
from perdure.cli.overriding import overridden
from perdure.cli.targets import load_flow_file, resolve, search_here
from perdure.config import Flows
from perdure.errors import FlowInvalid, FlowProblem
from perdure.flow import flow_schema

app = App(name="flow", help="Check flows, run them, test them and draw them.")
app.command("perdure.cli.flow_files:fmt", name="fmt", sort_key=8, help="Print flows in canonical form.")
app.command("perdure.cli.flow_stored:deploy", name="deploy", sort_key=10, help="Store flows, with their schedules.")
app.command("perdure.cli.flow_files:import_", name="import", sort_key=9, help="Translate a flow of another engine.")

File = Annotated[str, Parameter(help="A flow: a file that ends with .yaml, .yml or .json.")]
Profile = Annotated[str | None, Parameter(help="The profile of the flow; otherwise the settings say.")]


@app.command(sort_key=1)
def check(
    files: Annotated[list[str], Parameter(help="Flows: files that end with .yaml, .yml or .json.")],
    /,
    *,
    profile: Profile = None,
    json: AsJson = False,
) -> int:
    """Tell everything that is wrong with flows, each problem with its file, line and column. It runs nothing.

    Ends with 0 when there is nothing but warnings, and with 2 otherwise.
    """
    found = [problem for file in files for problem in _problems(file, profile)]
    if json:
        write_json({"files": len(files), "problems": [_plain(problem) for problem in found]})
    else:
        for problem in found:
            print(clean(str(problem), "\n"))
        many = "1 file" if len(files) == 1 else f"{len(files)} files"
        note(f"{many}: {len(found) or 'nothing'} found")
    return Exit.USAGE if any(problem.level == "error" for problem in found) else Exit.OK


@app.command(sort_key=2)
def run(
    file: File,
    /,
    *,
    id: Annotated[str | None, Parameter(help="The run's id. With the id of an earlier run, go on with that.")] = None,
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

    Run the same command again after a crash, with the same --id, and it goes on from the last thing it finished.
    --input: an object with the inputs by name; @file.json reads it from a file, - from stdin. With --inputs, it runs
    once for each line of a file: a batch. --set book.timeout=5s, or extract.pull.timeout=5s in a flow with jobs: JSON,
    or else text.
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
    files: Annotated[list[str], Parameter(help="Flows: files that end with .yaml, .yml or .json.")],
    /,
    *,
    profile: Profile = None,
    json: AsJson = False,
) -> int:
    """Run the tests in flows, with the results that they give to steps, and without waiting for sleeps.

    Ends with 0 when all are as expected, and with 1 otherwise.
    """
    from perdure.testing.flows import run_tests

    allowed = settings().flows or Flows()
    if profile is not None:
        allowed = replace(allowed, profile=profile)
    search_here()
    outcomes = [outcome for file in files for outcome in asyncio.run(run_tests(file, allowed))]
    failed = sum(1 for outcome in outcomes if outcome.flaws)
    if json:
        write_json({"tests": outcomes, "failed": failed})
    else:
        for outcome in outcomes:
            print(clean(f"{'FAILED' if outcome.flaws else 'ok'}  {outcome.where} {outcome.name}"))
            for flaw in outcome.flaws:
                print(clean(f"  {flaw}"))
        note(f"{len(outcomes)} tests, {failed or 'none'} failed")
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


def _problems(file: str, profile: str | None) -> tuple[FlowProblem, ...]:
    try:
        return load_flow_file(file, profile).warnings
    except FlowInvalid as error:
        return error.problems


def _plain(problem: FlowProblem) -> dict[str, Any]:
    return {name: getattr(problem, name) for name in ("file", "line", "column", "level", "code", "message")}
