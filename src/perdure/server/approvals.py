"""Routes of the inbox: open questions of all runs, and their answers."""

from __future__ import annotations

from msgspec import Raw, json

from perdure.client.views import ApprovalView
from perdure.kernel.inbound import NotFound
from perdure.kernel.values.redaction import Redaction
from perdure.server import shapes
from perdure.server.access import Access
from perdure.server.messages import message_key, reply_to, target_run, write_audit
from perdure.server.paging import cursor, key_of
from perdure.server.problems import Problem
from perdure.server.requested_run import INLINE
from perdure.server.routing import Call, Reply, Route


async def list_approvals(call: Call[shapes.ApprovalsQuery, None]) -> shapes.Approvals:
    """The open approvals of all runs, the oldest first."""
    query, who = call.query, call.access
    after = key_of(query.cursor, query)
    views = await call.service.client.approvals(name=query.name, program=query.program)
    seen = [one for one in views if who.sees(one.program) and (not query.mine or one.answerable_by(who.name))]
    keys = [f"{one.asked_at.timestamp():.6f} {one.run_id} {one.path}" for one in seen]
    begin = next((n for n, key in enumerate(keys) if after is None or key > after), len(seen))
    page = seen[begin : begin + query.limit]
    more = begin + query.limit < len(seen)
    return shapes.Approvals(
        approvals=[_item(who, call.service.redaction(who), one) for one in page],
        next=cursor(keys[begin + query.limit - 1], query) if more else None,
    )


def _item(who: Access, redaction: Redaction, view: ApprovalView) -> shapes.ApprovalItem:
    root, _, child = view.run_id.partition("/")
    data = Raw(redaction.value(json.encode(view.request), view.path, view.name))
    url = f"runs/{root}/values/run/request:{view.path}"
    return shapes.ApprovalItem(
        id=view.id,
        run_id=view.run_id,
        child=child,
        program=view.program,
        name=view.name,
        path=view.path,
        request=data if len(data) <= INLINE else {"$value": url, "bytes": len(data)},
        schema=view.schema,
        approvers=list(view.approvers),
        answerable=view.answerable_by(who.name),
        asked_at=view.asked_at,
        deadline=view.deadline,
        escalates_at=view.escalates_at,
    )


async def approve(call: Call[shapes.RunQuery, shapes.AnswerBody]) -> Reply:
    """Answer an open approval, as the caller of the request."""
    row = (await target_run(call)).row
    body, key = call.body, message_key(call, call.body.approval_id)
    verdict = await call.service.client.approve(row.run_id, call.path["path"], body.payload, key, call.access.name)
    write_audit(call, f"answered {call.path['path']} of", row.run_id)
    return _of(verdict, call.path["path"])


async def reject(call: Call[shapes.RunQuery, shapes.RejectBody]) -> Reply:
    """Reject an open approval, as the caller of the request."""
    row = (await target_run(call)).row
    body, key = call.body, message_key(call, call.body.approval_id)
    verdict = await call.service.client.reject(row.run_id, call.path["path"], body.reason, key, call.access.name)
    write_audit(call, f"rejected {call.path['path']} of", row.run_id)
    return _of(verdict, call.path["path"])


def _of(verdict: object, path: str) -> Reply:
    if isinstance(verdict, NotFound):
        detail = f"the run asks no question {path[:100]!r} now"
        raise Problem(409, "not_asked", f"{detail}: {verdict.reason}" if verdict.reason else detail)
    return reply_to(verdict)


ROUTES = (
    Route(
        method="GET",
        path="approvals",
        role="read",
        handler=list_approvals,
        query=shapes.ApprovalsQuery,
        result=shapes.Approvals,
    ),
    Route(
        method="POST",
        path="runs/{run}/approvals/{path:path}/approve",
        role="approve",
        handler=approve,
        query=shapes.RunQuery,
        body=shapes.AnswerBody,
        result=shapes.Done,
        optional=True,
    ),
    Route(
        method="POST",
        path="runs/{run}/approvals/{path:path}/reject",
        role="approve",
        handler=reject,
        query=shapes.RunQuery,
        body=shapes.RejectBody,
        result=shapes.Done,
        optional=True,
    ),
)
