"""Tokens of the HTTP API, sessions of browsers, and links that let a person answer a question. Keeps no secret.

Each is the input of a run that has ended when it begins, as definitions are: so every store has them, and backups hold
them. The text that is given out has the id of that run and 256 random bits, of which only the SHA-256 is stored. One
that is revoked has another incarnation, which says so.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Literal, TypeAlias

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from perdure.client.base import StoreClient
from perdure.client.gateway import decided
from perdure.client.queries import pages
from perdure.errors import UsageError
from perdure.kernel.events import NULL, Batch, RunFinished, RunStarted, RunStatus, moment
from perdure.kernel.ids import LINK, SESSION, TOKEN, check_text
from perdure.kernel.inbound import UNDECIDED, Decided, Undecided
from perdure.kernel.projection import RunRow
from perdure.ports.appends import create
from perdure.ports.runs import RunFilter

Kind: TypeAlias = Literal["token", "session", "link"]
_PROGRAMS: dict[Kind, str] = {"token": TOKEN, "session": SESSION, "link": LINK}
# The prefix of every credential's text, which scanners for leaked secrets can search for.
PREFIX = "perdure"
# How long a session lasts, and the longest life of a link.
SESSION_SECONDS, LINK_SECONDS = 12 * 3600.0, 90 * 86_400.0
# The prefix of the leases that record when tokens were last used.
_USED, _USED_SECONDS = "token:", 10 * 365 * 86_400.0
_PAGE = 500
MAX_TEXT = 200


class Credential(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token, a session or a link: its permissions and its expiry. `hash` is the SHA-256 of its secret, in hex.

    `token` is the token of a session. A link is for one `person`, and answers the question `op` of `run`.
    """

    id: str
    name: str
    hash: str
    may: tuple[str, ...] = ()
    programs: tuple[str, ...] | None = None
    redact: tuple[str, ...] = ()
    expires: float | None = None
    revoked: bool = False
    token: str = ""
    run: str = ""
    op: str = ""
    person: str = ""

    @property
    def expires_at(self) -> datetime | None:
        """When it expires; None: never."""
        return None if self.expires is None else moment(self.expires)


@dataclass(frozen=True, slots=True)
class Issued:
    """A new credential, with the text that is shown once."""

    text: str
    credential: Credential


class Credentials:
    """Makes credentials, checks what callers present, and revokes."""

    def __init__(self, base: StoreClient) -> None:
        self._base = base

    async def issue(
        self,
        kind: Kind,
        name: str,
        *,
        may: Collection[str] = (),
        programs: Collection[str] | None = None,
        redact: Sequence[str] = (),
        ttl: float | None = None,
        token: str = "",
        run: str = "",
        op: str = "",
        person: str = "",
    ) -> Issued:
        """Create a credential that expires after `ttl` seconds, or never."""
        self._base.check_open()
        if not check_text(name, "the name of a token"):
            raise UsageError("a token has a name, which says what it is for")
        if ttl is not None and not 0 < ttl < 10**10:
            raise UsageError(f"a token that expires after {ttl!r} seconds: give more than 0")
        secret, id, now = secrets.token_urlsafe(32), secrets.token_hex(6), self._base.clock.now()
        made = Credential(
            id,
            name,
            sha256(secret.encode()).hexdigest(),
            tuple(sorted(may)),
            None if programs is None else tuple(sorted(programs)),
            tuple(redact),
            None if ttl is None else now + ttl,
            token=token,
            run=run,
            op=op,
            person=person,
        )
        _ = await self._write(kind, made, 1)
        return Issued(f"{PREFIX}_{id}_{secret}", made)

    async def check(self, kind: Kind, text: str) -> Credential | None:
        """The credential that a caller presents; None unless it is valid and of this kind."""
        found = await self._find(kind, text)
        if found is None or not self._in_force(found):
            return None
        if found.token:
            # A session ends with its token.
            row = await self._row("token", found.token)
            token = None if row is None else _read(row)
            if token is None or not self._in_force(token):
                return None
            return replace(found, may=token.may, programs=token.programs, redact=token.redact)
        return found

    async def expired(self, kind: Kind, text: str) -> Credential | None:
        """As `check`, for a credential that has expired."""
        return await self._find(kind, text)

    async def _find(self, kind: Kind, text: str) -> Credential | None:
        prefix, id, secret = (*text.split("_", 2), "", "")[:3]
        if prefix != PREFIX or not secret or len(text) > MAX_TEXT or not (id.isascii() and id.isalnum()):
            return None
        row = await self._row(kind, id)
        if row is None:
            return None
        found = _read(row)
        given = sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
        return found if hmac.compare_digest(given, found.hash) else None

    def _in_force(self, credential: Credential) -> bool:
        return not credential.revoked and (credential.expires is None or self._base.clock.now() < credential.expires)

    async def note_use(self, credential: Credential) -> None:
        """Record that a token, or a session of it, was used just now."""
        key = f"{_USED}{credential.token or credential.id}"
        _ = await self._base.leases.acquire(key, _USED, _USED_SECONDS, self._base.clock.now())

    async def last_used(self) -> dict[str, datetime]:
        """When tokens were used last, by id. A lease is a row that changes without growing."""
        live = await self._base.leases.live(_USED, self._base.clock.now())
        return {one.key.removeprefix(_USED): moment(one.expires - _USED_SECONDS) for one in live}

    async def list(self, kind: Kind) -> list[Credential]:
        """The valid credentials, newest first."""
        self._base.check_open()
        found: dict[str, Credential] = {}
        async for one in self._every(kind):
            found.setdefault(one.id, one)  # the last incarnation comes first
        return [one for one in found.values() if self._in_force(one)]

    async def any(self, kind: Kind) -> bool:
        """Whether there is a valid credential."""
        return bool(await self.list(kind))

    async def _every(self, kind: Kind) -> AsyncIterator[Credential]:
        async for page in pages(self._base.store, RunFilter(program=_PROGRAMS[kind], limit=_PAGE)):
            for row in page:
                yield _read(row)

    async def revoke(self, kind: Kind, id: str) -> bool:
        """Revoke a credential by its id, or a token by its name; False if there is no valid one."""
        if kind == "token":
            id = next((one.id for one in await self.list(kind) if one.name == id), id)

        async def attempt() -> Decided[bool] | Undecided:
            row = await self._row(kind, id) if id.isascii() and id.isalnum() else None
            if row is None or not self._in_force(found := _read(row)):
                return Decided(False)
            written = await self._write(kind, replace(found, revoked=True), row.incarnation + 1)
            return Decided(True) if written else UNDECIDED

        return await decided(attempt)

    async def _row(self, kind: Kind, id: str) -> RunRow | None:
        found = await self._base.store.runs.find(f"{_PROGRAMS[kind]}:{id}")
        # Ids are free text: a run of another program is no credential, whatever its id and input.
        return None if found is None or found[0].program != _PROGRAMS[kind] else found[0]

    async def _write(self, kind: Kind, credential: Credential, incarnation: int) -> bool:
        program, now = _PROGRAMS[kind], self._base.clock.now()
        input = Raw(msgspec.json.encode(credential))
        started = RunStarted(f"{program}:{credential.id}", program, "", input, incarnation=incarnation)
        past = [Batch(0, now, [started, RunFinished(RunStatus.COMPLETED, NULL)])]
        return await self._base.append(create(self._base.new_run_id(now), past))


def _read(row: RunRow) -> Credential:
    return msgspec.json.decode(row.input, type=Credential)
