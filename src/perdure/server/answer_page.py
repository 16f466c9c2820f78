"""The page on which a person answers a question by a link: works without JavaScript, and without an account.

A GET shows the question and changes nothing; only the form's POST answers it, and a link answers once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from perdure.client.credentials import LINK_SECONDS, Credential
from perdure.client.views import ApprovalView, approval_views
from perdure.errors import AnswerRejected, NoSuchRun, UsageError
from perdure.kernel.inbound import Accepted, Duplicate
from perdure.server import shapes
from perdure.server.bodies import read_body
from perdure.server.guards import check_site
from perdure.server.messages import audit, target_run, write_audit
from perdure.server.pages import SECURITY
from perdure.server.problems import Problem
from perdure.server.routing import KIB, Call, Reply, Route
from perdure.server.service import Service

# Where the pages are, below the mount.
PATH = "answer/"
STYLE = f"{PATH}style.css"
FORM = "application/x-www-form-urlencoded"
LIMIT = 256 * KIB
NOTHING: Mapping[str, str] = MappingProxyType({})


async def make_link(call: Call[shapes.RunQuery, shapes.LinkBody]) -> Reply:
    """Create a link with which one person can answer an open approval, once, without an account."""
    run, body, op = await target_run(call), call.body, call.path["path"]
    asked = await _asked(call.service, run.row.run_id, op)
    if asked is None:
        raise Problem(409, "not_asked", f"the run asks no question {op[:100]!r} now")
    if not asked.answerable_by(body.person):
        raise AnswerRejected(asked.name, "", f"{body.person} is not among {', '.join(sorted(asked.approvers))}")
    issued = await call.service.client._credentials.issue(
        "link",
        f"{run.row.id}: {op}"[:200],
        ttl=min(body.ttl, LINK_SECONDS),
        run=run.row.run_id,
        op=op,
        person=body.person,
    )
    write_audit(call, f"created a link for {body.person} to answer {op} of", run.row.run_id)
    expires = issued.credential.expires_at
    assert expires is not None
    return Reply(shapes.Link(PATH + issued.text, expires), 201)


async def _asked(service: Service, run_id: str, op: str) -> ApprovalView | None:
    """An open approval of a run, at its path."""
    client = service.client
    found = await client._base.find(run_id)
    if found is None:
        return None
    row, head = found
    state = (await client._base.folded_states.read(row.root or row.run_id, head)).state
    asked = next((one for one in approval_views(row, state, client.clock.now()) if one.path == op), None)
    if asked is None and state.finished is None and "[" in op:
        # An item of a long map has its approvals in the run of its chunk.
        asked = next((one for one in await client.approvals() if (one.run_id, one.path) == (run_id, op)), None)
    return asked


# --- the page --------------------------------------------------------------------------------------------------------


async def page(service: Service, request: Request, path: str) -> Response:
    """Show the question of a link (GET), or record the answer (POST)."""
    if path == STYLE:
        return Response(_CSS, headers={**SECURITY, "Cache-Control": "no-cache"}, media_type="text/css")
    text = path.removeprefix(PATH)
    credentials = service.client._credentials
    link = await credentials.check("link", text)
    if link is None:
        before = await credentials.expired("link", text)
        if before is None:
            return _page(404, "There is no such link", "It may have been cut off when it was copied.")
        what = "This link was used" if before.revoked else "This link has expired"
        return _page(410, what, "A link answers one question, once, and for a limited time.")
    if request.method in ("GET", "HEAD"):
        return await _show(service, link)
    if request.method != "POST":
        raise Problem(405, "method_not_allowed", "this takes GET, HEAD, POST", headers={"Allow": "GET, HEAD, POST"})
    # The page sends no referrer, so browsers that do not name the site hide the origin of its form as well. Its secret
    # is in its address: no cookie answers for a person.
    check_site(request, anonymous=True)
    return await _answer(service, link, await _form(request))


async def _show(service: Service, link: Credential, problem: str = "", given: Mapping[str, str] = NOTHING) -> Response:
    asked = await _asked(service, link.run, link.op)
    if asked is None:
        return _page(410, "This question is closed", "It was answered, has expired, or is not asked any more.")
    request = service.client._base.redaction.plain(asked.request, asked.path, asked.name)
    shown = "" if request is None else f"<pre>{escape(_pretty(request))}</pre>"
    wrong = f'<p class="problem" role="alert">{escape(problem)}</p>' if problem else ""
    until = "" if asked.deadline is None else f"<p>Answer before {asked.deadline:%Y-%m-%d %H:%M} UTC.</p>"
    fields = "".join(_fields(asked.schema, given))
    body = f"""{wrong}{shown}{until}
<form method="post">{fields}
<p><button name="decision" value="approve">Approve</button></p>
<details><summary>Reject</summary>
<p><label for="reason">Reason</label><input id="reason" name="reason" value="{escape(given.get("reason", ""))}"></p>
<p><button name="decision" value="reject">Reject</button></p></details></form>
<p class="who">You answer as {escape(link.person)}.</p>"""
    return _page(422 if problem else 200, asked.name, body, raw=True)


async def _answer(service: Service, link: Credential, form: Mapping[str, str]) -> Response:
    client, key = service.client, f"link:{link.id}"
    try:
        if form.get("decision") == "reject":
            verdict: object = await client.reject(link.run, link.op, form.get("reason") or None, key, link.person)
        elif form.get("decision") == "approve":
            asked = await _asked(service, link.run, link.op)
            payload = _payload(None if asked is None else asked.schema, form)
            verdict = await client.approve(link.run, link.op, payload, key, link.person)
        else:
            return await _show(service, link, "Choose to approve or to reject.", form)
    except (AnswerRejected, UsageError, NoSuchRun) as error:
        return await _show(service, link, str(error), form)
    if not isinstance(verdict, Accepted | Duplicate):
        return await _show(service, link)
    _ = await client._credentials.revoke("link", link.id)
    audit.info("%s: answered %s of %s by a link", link.person, link.op, link.run)
    return _page(200, "Thank you", "Your answer was received. You can close this page.")


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form, the last of each name."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != FORM:
        raise Problem(415, "no_form", f"the body is {media[:60] or 'of no type'}; send a form")
    data = await read_body(request, LIMIT)
    try:
        found = parse_qs(data.decode(), keep_blank_values=True, max_num_fields=1000)
    except ValueError as error:
        raise Problem(400, "malformed_form", f"the form cannot be read: {error}") from None
    return {name: values[-1] for name, values in found.items()}


# --- the form of a schema --------------------------------------------------------------------------------------------

# The form field for an answer as a whole, as JSON or as plain text.
WHOLE = "answer"
# The key in a resolved schema that says that null is an answer, too: an empty field.
NULLABLE = "x-nullable"
_INPUTS = {"boolean": "checkbox", "integer": "number", "number": "number", "string": "text"}


def _fields(schema: Any, given: Mapping[str, str]) -> Iterator[str]:
    """HTML inputs: one for each property of an object; one for any other type."""
    properties = _properties(schema)
    if properties is None:
        whole = _resolved(schema, schema)
        yield _field(WHOLE, "Answer", whole if isinstance(whole, dict) else {}, given.get(WHOLE), required=False)
        return
    required = _resolved(schema, schema).get("required", ())
    for name, one in properties.items():
        yield _field(f"field:{name}", name, one, given.get(f"field:{name}"), required=name in required)


def _properties(schema: Any) -> dict[str, Any] | None:
    """The properties of an object, if each of them can be a form field; otherwise none."""
    schema = _resolved(schema, schema)
    if not isinstance(schema, dict) or schema.get("type") != "object" or not schema.get("properties"):
        return None
    found = {name: _resolved(one, schema) for name, one in schema["properties"].items()}
    return found if all(isinstance(one, dict) for one in found.values()) else None


def _resolved(schema: Any, root: Any) -> Any:
    """A schema with what it refers to in place; of one that is something or null, what it is, and NULLABLE."""
    if not isinstance(schema, dict):
        return schema
    if isinstance(options := schema.get("anyOf"), list):
        others = [one for one in options if one != {"type": "null"}]
        if len(others) == 1 < len(options):
            own = {key: one for key, one in schema.items() if key != "anyOf"}
            found = {**_resolved(others[0], root), **own, NULLABLE: True}
            # A box is ticked or not: it has no third answer.
            return found if found.get("type") != "boolean" else {**found, "type": "", "enum": [True, False]}
    pointer = schema.get("$ref")
    if not isinstance(pointer, str):
        return schema
    defined = root.get("$defs", {}) if isinstance(root, dict) else {}
    found = defined.get(pointer.rpartition("/")[2], {})
    return {**found, "$defs": defined} if isinstance(found, dict) else {}


def _field(name: str, label: str, schema: dict[str, Any], given: str | None, *, required: bool) -> str:
    id, title = escape(name), escape(str(schema.get("title", label)))
    about = f'<span class="about">{escape(str(schema["description"]))}</span>' if "description" in schema else ""
    required = required and NULLABLE not in schema
    must = " required" if required else ""
    head = f'<p><label for="{id}">{title}</label>{about}'
    default = schema.get("default")
    value = given if given is not None else "" if default is None else _as_text(default)
    if "enum" in schema and isinstance(schema["enum"], list):
        empty = "" if required else "<option></option>"
        options = "".join(
            f"<option{' selected' if _as_text(one) == value else ''}>{escape(_as_text(one))}</option>"
            for one in schema["enum"]
        )
        return f'{head}<select id="{id}" name="{id}"{must}>{empty}{options}</select></p>'
    kind = schema.get("type")
    if kind == "boolean":
        checked = " checked" if value == "true" or (given is None and schema.get("default") is True) else ""
        return f'{head}<input type="checkbox" id="{id}" name="{id}" value="true"{checked}></p>'
    if isinstance(kind, str) and kind in _INPUTS:
        step = ' step="any"' if kind == "number" else ""
        return f'{head}<input type="{_INPUTS[kind]}" id="{id}" name="{id}" value="{escape(value)}"{step}{must}></p>'
    return f'{head}<textarea id="{id}" name="{id}" rows="4" placeholder="JSON or text">{escape(value)}</textarea></p>'


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _payload(schema: Any, form: Mapping[str, str]) -> Any:
    """The answer in a submitted form, typed by its schema."""
    properties = _properties(schema)
    if properties is None:
        whole = _resolved(schema, schema)
        return _value(whole if isinstance(whole, dict) else {}, form.get(WHOLE, ""))
    found: dict[str, Any] = {}
    for name, one in properties.items():
        text = form.get(f"field:{name}")
        if one.get("type") == "boolean":
            found[name] = text == "true"
        elif text or (text is not None and NULLABLE in one and one.get("default", "") is not None):
            found[name] = _value(one, text)
    return found


def _value(schema: dict[str, Any], text: str) -> Any:
    if not text and NULLABLE in schema:
        return None
    if schema.get("type") == "boolean":
        return text == "true"
    if schema.get("type") == "string":
        return text
    for one in schema["enum"] if isinstance(schema.get("enum"), list) else ():
        if _as_text(one) == text:
            return one
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return text


def _pretty(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value)).decode()


# --- as HTML ---------------------------------------------------------------------------------------------------------


def _page(status: int, title: str, body: str, *, raw: bool = False) -> Response:
    content = body if raw else f"<p>{escape(body)}</p>"
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta name="robots" content="noindex"><title>{escape(title)}</title><link rel="stylesheet" href="style.css"></head>
<body><main><h1>{escape(title)}</h1>{content}</main></body></html>
"""
    return Response(text, status, headers={**SECURITY, "Cache-Control": "no-store"}, media_type="text/html")


_CSS = """:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0; padding: 1rem; }
main { max-width: 40rem; margin: 0 auto; }
h1 { font-size: 1.4rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: 0.75rem; border: 1px solid; border-radius: 0.25rem; }
label { display: block; font-weight: 600; }
summary { cursor: pointer; font-weight: 600; }
details { margin: 1.5rem 0; }
.about, .who { font-size: 0.875rem; }
input:not([type=checkbox]), select, textarea { width: 100%; box-sizing: border-box; font: inherit; padding: 0.4rem; }
button { font: inherit; padding: 0.5rem 1.4rem; border: 1px solid; border-radius: 0.25rem; cursor: pointer; }
button[value=approve] { color: light-dark(#fff, #10131c); background: light-dark(#2f55c8, #93aefc); }
.problem { border-left: 0.3rem solid #c92a2a; padding-left: 0.75rem; }
"""

ROUTES = (
    Route(
        method="POST",
        path="runs/{run}/approvals/{path:path}/links",
        role="admin",
        handler=make_link,
        query=shapes.RunQuery,
        body=shapes.LinkBody,
        result=shapes.Link,
        status=201,
    ),
)
