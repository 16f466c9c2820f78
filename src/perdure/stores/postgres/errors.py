"""Translate errors of the driver, the server and the network: for the statement that met them, and for people."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

from perdure.errors import Corrupt, InvalidStoreUrl, PerdureError, SchemaMismatch, StoreError, StoreUnavailable

try:
    import asyncpg  # type: ignore[import-untyped]
except ImportError:
    asyncpg = None


class Lost(Exception):
    """The connection ended, or gave no answer in time: whether the statement took effect is not known."""


def is_driver_error(error: BaseException) -> bool:
    """Whether an error comes from the driver, the server or the network."""
    return isinstance(error, asyncpg.PostgresError) or _is_of_connection(error)


def _is_of_connection(error: BaseException) -> bool:
    # The driver raises an internal error when a session that it is about to use has ended.
    kinds = asyncpg.InterfaceError | asyncpg.InternalClientError | OSError | TimeoutError
    return isinstance(error, kinds)


def is_lost(error: BaseException) -> bool:
    """Whether a statement that met this error may have taken effect all the same."""
    if isinstance(error, asyncpg.PostgresError):
        # A shutdown ends a session between two statements or during one; the crash of one backend ends all sessions.
        return _state(error)[:2] == "08" or _state(error) in ("57P01", "57P02", "57P05", "25P03")
    return _is_of_connection(error)


def is_collision(error: BaseException) -> bool:
    """Whether it is a serialization failure or a deadlock: the statement was rolled back, and a retry may succeed."""
    return isinstance(error, asyncpg.PostgresError) and _state(error) in ("40P01", "40001")


def is_taken(error: BaseException) -> bool:
    """Whether a row with that key exists."""
    return isinstance(error, asyncpg.PostgresError) and _state(error) == "23505"


def is_there_already(error: BaseException) -> bool:
    """Whether a table, index or view that should be created exists."""
    return isinstance(error, asyncpg.PostgresError) and _state(error) in ("42P07", "42710")


def translate(error: BaseException, url: str) -> PerdureError:
    """The error of perdure for an error of the driver: with what to do, and never with a password."""
    if isinstance(error, PerdureError):
        return error
    if isinstance(error, asyncpg.PostgresError):
        return _of_server(error, url)
    if isinstance(error, ValueError):
        return InvalidStoreUrl(url, WRITE_LIKE)  # its text may hold parts of a password
    return StoreUnavailable(url, _of_network(error))


WRITE_LIKE = (
    "it cannot be understood; write postgresql://user:password@host:5432/database, and signs such as @ / : ? # in a "
    "password as %40 %2F %3A %3F %23"
)


def _of_network(error: BaseException) -> str:
    if isinstance(error, Lost) and error.__cause__ is not None:
        return _of_network(error.__cause__)
    if isinstance(error, socket.gaierror):
        return "its host name is not known; check the host in the URL"
    if isinstance(error, ssl.SSLError):
        return f"no encrypted connection came about ({error.reason}); check the certificates, or sslmode in the URL"
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "the server does not answer; check that it runs, and that the network and its firewalls let you through"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there; start the PostgreSQL server, or check host and port in the URL"
    if isinstance(error, OSError):
        return f"the server cannot be reached ({error.strerror or error}); check that it runs, and host and port"
    return f"the connection ended ({type(error).__name__}: {error}); the next try reconnects"


def _of_server(error: Any, url: str) -> PerdureError:
    state, says = _state(error), _says(error)
    if state in _URL:
        return InvalidStoreUrl(url, f"{says}; {_URL[state]}")
    if state in ("42P01", "3F000", "42703"):
        return SchemaMismatch(url, 0, 1, f"{says}; bring it up to date with `perdure migrate --store URL`")
    if state in ("XX001", "XX002"):
        return Corrupt(url, says)
    if state in ("22000", "22003", "22021", "22P05"):
        return StoreError(f"the store {url} cannot keep a value: {says}")
    for start, cure in _CURES.items():
        if state.startswith(start):
            return StoreUnavailable(url, f"{says}; {cure}")
    return StoreUnavailable(url, f"the server says: {says} ({state})")


# By SQLSTATE: https://www.postgresql.org/docs/current/errcodes-appendix.html
_URL = {
    "3D000": "create it with `createdb`, or name another one at the end of the URL",
    "42704": "remove the option from the URL; those of perdure are schema, table_prefix, pool and migrate",
    "22023": "correct the option in the URL",
}
_CURES = {
    "28P01": "check user and password in the URL",
    "28": "check the user in the URL, and what pg_hba.conf of the server allows",
    "42501": "grant the role what it lacks: `grant usage, create on schema ...` to set a store up, and "
    "`grant select, insert, update, delete on all tables in schema ...` to use it",
    "25006": "it is a standby, or the role or database is read-only; name the primary, or all servers and "
    "target_session_attrs=read-write",
    "53100": "the server's disk is full; free some space there, and runs continue by themselves",
    "53200": "the server is out of memory; give it more, and runs continue by themselves",
    "53300": "raise max_connections of the server, or let fewer processes connect; each needs up to pool + 2",
    "57P03": "the server is starting or stopping; try again when it is up",
    "57014": "a time limit of the server ended the statement; raise statement_timeout for this role",
    "55P03": "a time limit of the server ended the statement; raise lock_timeout for this role",
    "58030": "check the server's disk",
}


def _state(error: Any) -> str:
    return str(getattr(error, "sqlstate", None) or "")


def _says(error: Any) -> str:
    return str(getattr(error, "message", None) or error)
