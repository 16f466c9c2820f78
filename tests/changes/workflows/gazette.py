"""A gazette: a graph of nodes with a route and a person in it."""

from perdure.graph import END, Graph, interrupt, node, route
from tests.changes.ledger import effect


@node
async def headline(topic: str) -> str:
    effect("headline", topic)
    return f"all about {topic}"


@node
async def photo(topic: str, size: int = 2) -> str:
    effect("photo", topic, size)
    return f"{topic}.png"


@node
async def layout(headline: str, photo: str) -> str:
    effect("layout", headline, photo)
    return f"{headline} with {photo}"


@interrupt(answer=bool)
def approved(layout: str) -> str:
    return f"print {layout}?"


@route(targets=["press", END])
def go(approved: bool) -> object:
    return "press" if approved else END


@node
async def press(layout: str) -> str:
    effect("press", layout)
    return f"printed {layout}"


gazette = Graph([headline, photo, layout, approved, go, press], name="gazette")
