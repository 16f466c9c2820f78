"""`perdure token`: the tokens of the HTTP API."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from perdure.cli.clients import with_client
from perdure.cli.exits import Exit, Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl, opened_itself, seconds
from perdure.cli.output import note, table, when, write_json
from perdure.client.credentials import Credential

if TYPE_CHECKING:
    from perdure.client.client import Client

# As in perdure.server.access, which needs Starlette.
PERMISSIONS = ("read", "run", "approve", "debug", "admin", "metrics")

app = App(name="token", help="Make, list and revoke tokens of the HTTP API.")


@app.command
def new(
    *,
    name: Annotated[str, Parameter(help="What it is for; its effects are logged under this name.")],
    may: Annotated[str, Parameter(help=f"What it allows, with commas: {', '.join(PERMISSIONS)}.")] = "read",
    programs: Annotated[str | None, Parameter(help="Only runs of these programs, with commas.")] = None,
    redact: Annotated[
        list[str] | None,
        Parameter(negative="", help="What is taken out of the values it sees, as $.card; may be repeated."),
    ] = None,
    expires: Annotated[str | None, Parameter(help="When it expires, such as 90d; by default never.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Make a token, and show it once: only its hash is stored."""
    allowed = _listed(may)
    if wrong := sorted(set(allowed) - set(PERMISSIONS)):
        raise Problem(f"--may {wrong[0]!r} is not a permission; there are {', '.join(PERMISSIONS)}")
    ttl = None if expires is None else seconds(expires, "--expires")
    made = with_client(
        opened_itself(store),
        lambda client: client._credentials.issue(
            "token",
            name,
            may=allowed,
            programs=None if programs is None else _listed(programs),
            redact=redact or (),
            ttl=ttl,
        ),
    )
    if json:
        write_json({"token": made.text, **_document(made.credential)})
    else:
        print(made.text)
        until = (
            "it does not expire" if made.credential.expires_at is None else f"until {when(made.credential.expires_at)}"
        )
        allows = f"token {made.credential.id} ({name}) allows {', '.join(made.credential.may)}, {until}"
        note(f"{allows}; it is not shown again")


@app.command
def ls(*, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """List the tokens that are in force. `used` is when one last signed in, or had an effect."""
    found, used = with_client(opened_itself(store), _listed_with_use)
    if json:
        write_json([{**_document(one), "used_at": used.get(one.id)} for one in found])
        return
    headings = ("id", "name", "may", "programs", "expires", "used")
    rows = [
        (
            one.id,
            one.name,
            ",".join(one.may),
            ",".join(one.programs or ()),
            when(one.expires_at),
            when(used.get(one.id)),
        )
        for one in found
    ]
    table(headings, rows)


async def _listed_with_use(client: Client) -> tuple[list[Credential], dict[str, datetime]]:
    credentials = client._credentials
    return await credentials.list("token"), await credentials.last_used()


@app.command
def revoke(
    token: Annotated[str, Parameter(help="The id or the name of the token.")],
    /,
    *,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """End a token, and every session that came from it, at once."""
    revoked = with_client(opened_itself(store), lambda client: client._credentials.revoke("token", token))
    if json:
        write_json({"revoked": revoked})
    else:
        note(f"token {token} is revoked" if revoked else f"there is no token {token} in force")
    return Exit.OK if revoked else Exit.NO_SUCH_RUN


def _listed(given: str) -> list[str]:
    return [part.strip() for part in given.split(",") if part.strip()]


def _document(one: Credential) -> dict[str, object]:
    return {
        "id": one.id,
        "name": one.name,
        "may": one.may,
        "programs": one.programs,
        "redact": one.redact,
        "expires_at": one.expires_at,
    }
