"""Errors as RFC 9457 problems: every exception has one, and none shows a traceback."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from perdure import errors
from perdure.logs import Log

log = Log("perdure.server")

MEDIA_TYPE = "application/problem+json"
# The prefix of a problem's type; docs/http-api.md explains each code.
TYPE = "urn:perdure:problem:"
# How many characters of the path of a request are repeated.
INSTANCE = 500
# The Retry-After of a resource that is briefly unavailable.
RETRY_AFTER = 2


class FieldError(msgspec.Struct, frozen=True):
    """One thing that is wrong with what was sent, and where: a JSON pointer, or the name of a query parameter."""

    pointer: str
    detail: str


class ProblemBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong, as RFC 9457 writes it: `code` is stable, `detail` is for people, `hint` says what to do."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    hint: str = ""
    errors: tuple[FieldError, ...] = ()
    divergence: Any = None


class Problem(Exception):
    """An error response."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        hint: str = "",
        fields: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        divergence: Any = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.hint = status, code, detail, hint
        self.fields, self.headers, self.divergence = tuple(fields), dict(headers or {}), divergence

    def body(self, instance: str) -> bytes:
        """The response body for a request to this path."""
        return msgspec.json.encode(
            ProblemBody(
                type=TYPE + self.code,
                title=self.code.replace("_", " ").capitalize(),
                status=self.status,
                detail=self.detail,
                instance=instance[:INSTANCE],
                code=self.code,
                hint=self.hint,
                errors=self.fields,
                divergence=self.divergence,
            )
        )


# The status and code of each class of errors. Subclasses come before their base.
_OF: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.NoSuchRun, 404, "no_such_run"),
    (errors.NoSuchOp, 404, "no_such_op"),
    (errors.NoSuchSchedule, 404, "no_such_schedule"),
    (errors.NoSuchFlow, 404, "no_such_flow"),
    (errors.AlreadyExists, 409, "already_exists"),
    (errors.ForkRefused, 409, "fork_refused"),
    (errors.CannotRetry, 409, "cannot_retry"),
    (errors.CannotMigrate, 409, "cannot_migrate"),
    (errors.NotParked, 409, "not_parked"),
    (errors.NotOwner, 409, "not_owner"),
    (errors.PayloadTooLarge, 413, "payload_too_large"),
    (errors.HistoryTooLarge, 413, "history_too_large"),
    (errors.BrokenProgram, 503, "broken_program"),
    (errors.UnknownProgram, 422, "unknown_program"),
    (errors.UnknownVersion, 422, "unknown_version"),
    (errors.AnswerRejected, 422, "answer_rejected"),
    (errors.SignalRejected, 422, "signal_rejected"),
    (errors.InvalidCapsule, 422, "invalid_capsule"),
    (errors.InvalidId, 422, "invalid_id"),
    (errors.InvalidName, 422, "invalid_name"),
    (errors.InvalidLock, 422, "invalid_lock"),
    (errors.FlowInvalid, 422, "flow_invalid"),
    (errors.UsageError, 422, "invalid_request"),
    (errors.ValueProblem, 422, "invalid_value"),
    (errors.Diverged, 409, "diverged"),
    (errors.StoreUnavailable, 503, "store_unavailable"),
    (errors.Corrupt, 503, "corrupt"),
    (errors.StoreError, 503, "store_error"),
)


def problem_of(error: Exception, where: str) -> Problem:
    """The problem for an exception. An unknown exception is a bug: it is logged under an id that the problem names."""
    if isinstance(error, Problem):
        return error
    for cls, status, code in _OF:
        if isinstance(error, cls):
            return Problem(
                status,
                code,
                _plain(str(error)),
                fields=_fields(error),
                headers={"Retry-After": str(RETRY_AFTER)} if status == 503 else {},
            )
    if isinstance(error, asyncio.TimeoutError):
        return Problem(503, "too_slow", "the store did not answer in time", headers={"Retry-After": str(RETRY_AFTER)})
    bug = secrets.token_hex(6)
    log.error("%s: this should not have happened, please report it (bug %s)", where, bug, exc_info=error)
    return Problem(
        500,
        "bug",
        f"this should not have happened; the server's log says more under {bug}",
        hint="report it, with what the log says",
    )


def _fields(error: Exception) -> tuple[FieldError, ...]:
    if isinstance(error, errors.AnswerRejected | errors.SignalRejected) and error.path.startswith("$"):
        return (FieldError(pointer(error.path), error.reason),)
    return ()


def _plain(text: str) -> str:
    """A text that UTF-8 can encode: surrogates are replaced."""
    return text.encode("utf-8", "backslashreplace").decode()


def pointer(path: str) -> str:
    """A path of msgspec, `$.items[3].price`, as a JSON pointer, `/items/3/price`."""
    return path.removeprefix("$").replace("[", "/").replace("]", "").replace(".", "/")


def of_validation(error: msgspec.ValidationError, what: str) -> Problem:
    """The problem for what msgspec found wrong with a body or a query."""
    message, _, path = str(error).partition(" - at `")
    path = path.rstrip("`")
    detail = f"{what}: {message}" + (f", at {path}" if path else "")
    return Problem(422, "invalid_request", _plain(detail), fields=[FieldError(pointer(path), _plain(message))])
