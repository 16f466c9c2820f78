"""`perdure graph`: draw graphs."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from perdure.authoring.graph.diagram import Format
from perdure.authoring.graph.graph import Graph
from perdure.cli.exits import Problem
from perdure.cli.targets import resolve

app = App(name="graph", help="Draw graphs.")


@app.command(sort_key=1)
def show(
    target: Annotated[str, Parameter(help="A graph: file.py:graph or module:graph.")],
    /,
    *,
    format: Annotated[Format, Parameter(help="The language of the diagram.")] = "mermaid",
    depth: Annotated[int | None, Parameter(help="How many levels of nested graphs are expanded.")] = None,
) -> None:
    """Print a graph as a diagram, for mermaid or Graphviz to lay out."""
    program, _ = resolve(target)
    if not isinstance(program, Graph):
        raise Problem(f"{target} is a workflow in code; only graphs and flows have diagrams")
    print(program.diagram(format=format, depth=depth), end="")
