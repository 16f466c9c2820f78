"""Graphs: programs of nodes that are wired by the names of the values they take.

from perdure import Engine
from perdure.graph import Graph, node

@node
def embed(query: str) -> list[float]: ...

@node
async def answer(query: str, embed: list[float]) -> str: ...

rag = Graph([embed, answer], name="rag", output=answer)

async with Engine("sqlite:///flows.db", [rag]) as engine:
    result = await engine.run(rag(query="hello"), id="conversation-123")
"""

from perdure.authoring.graph.graph import Graph
from perdure.authoring.graph.nodes import END, InterruptNode, ifelse, interrupt, node, route
from perdure.authoring.graph.outputs import Outputs
from perdure.kernel.values.items import Items

__all__ = ["END", "Graph", "InterruptNode", "Items", "Outputs", "ifelse", "interrupt", "node", "route"]
