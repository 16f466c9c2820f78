"""Requests to the HTTP API of perdure, and its problems as errors. Knows no view."""

from __future__ import annotations

import asyncio
import http.client
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Raw

from perdure.cli.exits import Exit, Problem
from perdure.errors import (
    AlreadyExists,
    CannotRetry,
    ForkRefused,
    NoSuchOp,
    NoSuchRun,
    NoSuchSchedule,
    PerdureError,
    StoreUnavailable,
    UsageError,
)

TOKEN = "PERDURE_TOKEN"
# How long an answer may take, in seconds.
TIMEOUT = 60.0
JSON = "application/json"


class Api:
    """The HTTP API at an address, such as `https://host/flows`. The token is that of PERDURE_TOKEN."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        if not parts.hostname or parts.query or parts.fragment or parts.username or parts.password:
            raise Problem(f"--store {parts.scheme}://...: give the address of a server, such as https://host/flows")
        self.address = address.rstrip("/")
        self._secure, self._host, self._path = parts.scheme == "https", parts.netloc, parts.path.rstrip("/")
        self._token = os.environ.get(TOKEN, "")

    async def get(self, path: str, **query: Any) -> Any:
        """What a route answers, decoded; values as they are."""
        return msgspec.json.decode(await self.raw("GET", path, query))

    async def post(self, path: str, body: Any = None, *, query: Mapping[str, Any] | None = None) -> Any:
        """As `get`, for a request that has an effect."""
        data = msgspec.json.encode({} if body is None else body)
        return msgspec.json.decode(await self.raw("POST", path, query or {}, data))

    async def raw(
        self, method: str, path: str, query: Mapping[str, Any], body: bytes | None = None, media: str = JSON
    ) -> bytes:
        """The body of an answer. Raises the error that a problem is."""
        given = {name: value for name, value in query.items() if value not in (None, [], "", False)}
        shown = {name: "true" if value is True else value for name, value in given.items()}
        address = f"{self._path}/api/v1/{path}" + (f"?{urlencode(shown, doseq=True)}" if shown else "")
        try:
            status, media_type, data = await asyncio.to_thread(self._send, method, address, body, media)
        except (OSError, http.client.HTTPException) as error:
            raise StoreUnavailable(self.address, str(error) or type(error).__name__) from error
        if status < 300:
            return data
        raise self._error(status, data if "json" in media_type else b"{}", path)

    def _send(self, method: str, address: str, body: bytes | None, media: str) -> tuple[int, str, bytes]:
        make = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = make(self._host, timeout=TIMEOUT)
        headers = {"Accept": JSON, **({"Content-Type": media} if body is not None else {})}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request(method, address, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Content-Type", ""), answer.read()
        finally:
            connection.close()

    def _error(self, status: int, data: bytes, path: str) -> Exception:
        try:
            said = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.MsgspecError:
            said = {}
        code, detail, hint = said.get("code", ""), said.get("detail", f"it answers {status}"), said.get("hint", "")
        if status == 401:
            hint = f"set {TOKEN} to a token that `perdure token new` has made"
        text = f"{detail}; {hint}" if hint else str(detail)
        if not code:
            return Problem(f"{self.address} is no server of perdure: {text}", Exit.STORE)
        known = _ERRORS.get(code)
        if known is not None:
            error = PerdureError.__new__(known)
            Exception.__init__(error, text)
            return error
        return StoreUnavailable(self.address, text) if status >= 500 else UsageError(f"{self.address}: {text}")


# Errors that commands tell apart; they are made of the text of the problem alone.
_ERRORS: dict[str, type[PerdureError]] = {
    "no_such_run": NoSuchRun,
    "no_such_op": NoSuchOp,
    "no_such_schedule": NoSuchSchedule,
    "already_exists": AlreadyExists,
    "cannot_retry": CannotRetry,
    "fork_refused": ForkRefused,
}


def part(text: str) -> str:
    """A text as a part of a path."""
    return quote(text, safe="")


def as_raw(value: Any) -> Raw:
    """A decoded value as JSON."""
    return Raw(msgspec.json.encode(value))
