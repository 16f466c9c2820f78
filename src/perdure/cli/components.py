"""`perdure components`: what steps of flows can use by name."""

from __future__ import annotations

from typing import Annotated, Any, NoReturn

import msgspec
from cyclopts import App, Parameter

from perdure.authoring.flow.components import Component, Components, NoComponent
from perdure.cli.exits import Problem
from perdure.cli.options import AsJson, settings
from perdure.cli.output import clean, first_line, table, write_json
from perdure.cli.targets import search_here
from perdure.config import Flows
from perdure.kernel.values.codec import Codec
from perdure.stored import access

app = App(name="components", help="See what steps of flows can use.")


@app.command(sort_key=1)
def ls(*, json: AsJson = False) -> None:
    """List the components that have a name of their own."""
    found = _components()
    named = {name: _listed(found, name) for name in found.names()}
    if json:
        write_json([_plain(name, component) for name, component in named.items()])
    else:
        table(("name", "about"), [(name, first_line(one.about)) for name, one in named.items()], fold=("about",))


@app.command(sort_key=2)
def show(name: Annotated[str, Parameter(help="A component, as `use:` names it.")], /, *, json: AsJson = False) -> None:
    """Show what a component does, and the arguments that it takes."""
    component = _find(_components(), name)
    if json:
        write_json(_plain(name, component))
        return
    print(clean(f"{name}: {component.about}", "\n"))
    if component.parameters:
        rows = [
            (one["name"], "yes" if one["required"] else "", msgspec.json.encode(one["schema"]).decode())
            for one in _plain(name, component)["parameters"]
        ]
        print()
        table(("argument", "required", "schema"), rows, fold=("schema",))


def _components() -> Components:
    search_here()
    found = access(settings().flows or Flows())
    return Components(found.allowed, found.components, "", _no_files, _no_definition)


def _no_files(shown: str) -> NoReturn:
    raise Problem(f"{shown} is a flow; look at it with perdure flow check")


def _no_definition(definition: bytes) -> NoReturn:
    raise Problem("a flow that a step makes is not here before that step has run")


def _find(components: Components, name: str) -> Component:
    try:
        return components.find(name)
    except NoComponent as error:
        raise Problem(str(error)) from None


def _listed(components: Components, name: str) -> Component:
    """As `_find`; of one that cannot be used, the reason is told in the list."""
    try:
        return components.find(name)
    except NoComponent as error:
        return Component("step", None, about=str(error))


def _plain(name: str, component: Component) -> dict[str, Any]:
    codec = Codec()
    parameters = [
        {"name": one.name, "required": one.required, "schema": msgspec.json.decode(codec.schema(one.type))}
        for one in component.parameters or ()
    ]
    return {"name": name, "about": component.about, "parameters": parameters}
