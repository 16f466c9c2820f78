"""Parse the URL of a Redis store. Connects to nothing."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from perdure.errors import InvalidStoreUrl
from perdure.stores.options import flag, read_options
from perdure.stores.url import masked

DEFAULT_PREFIX = "perdure:"
# What keys may begin with. One pair of braces may mark what a cluster hashes, so that all keys share a slot.
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]*(\{[A-Za-z0-9_.:-]+\})?[A-Za-z0-9_.:-]*")
MAX_PREFIX = 100
TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
CERT_REQS = ("none", "optional", "required")
HINTS = {
    "db": "its number follows the slash: redis://host:6379/3",
    "password": "write it as redis://user:password@host:6379/0",
    "username": "write it as redis://user:password@host:6379/0",
    "max_connections": "use pool=NUMBER",
    "socket_timeout": "use timeout=SECONDS",
    "migrate": "this store has no schema; leave it out",
}
TLS_OPTIONS = (*TLS_FILES, "ssl_cert_reqs", "ssl_check_hostname")


@dataclass(frozen=True, slots=True)
class Address:
    """A server, the user, and the prefix of the keys."""

    host: str
    port: int
    db: int
    prefix: str
    username: str | None
    password: str | None = field(repr=False)
    tls: bool
    pool: int
    timeout: float
    tls_options: dict[str, Any]

    @property
    def place(self) -> str:
        """The server, for people."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL without what must not be shown."""
        user = f"{self.username or ''}:***@" if self.password is not None else f"{self.username}@" * bool(self.username)
        query = f"?prefix={self.prefix}" if self.prefix != DEFAULT_PREFIX else ""
        return f"redis{'s' * self.tls}://{user}{self.place}/{self.db}{query}"


def parse(url: str) -> Address:
    """Read a URL, or raise InvalidStoreUrl; what it says of the URL never has the password."""
    shown = masked(url)
    parts = urlsplit(url)
    if not parts.hostname:
        raise InvalidStoreUrl(shown, "it names no server; write 'redis://localhost:6379/0'")
    try:
        port = parts.port or 6379
    except ValueError:
        raise InvalidStoreUrl(shown, "its port is not a number between 1 and 65535") from None
    path = parts.path.strip("/")
    if path and not re.fullmatch(r"[0-9]{1,6}", path):
        raise InvalidStoreUrl(shown, f"{path!r} is not the number of a database; write 'redis://{parts.hostname}/0'")
    if "#" in url:
        raise InvalidStoreUrl(shown.partition("#")[0], "a '#' has no meaning in it; in a password write it as %23")
    tls = parts.scheme == "rediss"
    known = ["prefix", "pool", "timeout", *(TLS_OPTIONS if tls else ())]
    hints = HINTS if tls else HINTS | dict.fromkeys(TLS_OPTIONS, "TLS is spoken with 'rediss://'")
    options = read_options(shown, parts.query, known, hints)
    for name in TLS_FILES:
        if name in options and not os.path.isfile(options[name]):
            raise InvalidStoreUrl(shown, f"its option {name}={options[name]!r} is not the path of a file")
    return Address(
        host=parts.hostname,
        port=port,
        db=int(path or 0),
        prefix=_prefix(shown, options.get("prefix", DEFAULT_PREFIX)),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password is not None else None,
        tls=tls,
        pool=int(_number(shown, options, "pool", 4, 1, 1000)),
        timeout=_number(shown, options, "timeout", 10, 0.1, 3600),
        tls_options=_tls(shown, options),
    )


def _prefix(shown: str, prefix: str) -> str:
    if not 1 <= len(prefix) <= MAX_PREFIX or not _PREFIX.fullmatch(prefix):
        reason = (
            f"the prefix {prefix[:60]!r} is not one; take 1 to {MAX_PREFIX} letters, digits and '_', '.', ':', '-', "
            "with at most one part in braces, such as '{perdure}:'"
        )
        raise InvalidStoreUrl(shown, reason)
    return prefix


def _number(shown: str, options: dict[str, str], name: str, default: float, least: float, most: float) -> float:
    if name not in options:
        return default
    try:
        value = float(options[name])
    except ValueError:
        value = float("nan")
    if not least <= value <= most or (isinstance(least, int) and value != int(value)):
        kind = "an integer" if isinstance(least, int) else "a number"
        raise InvalidStoreUrl(shown, f"its option {name}={options[name]!r} must be {kind} from {least} to {most}")
    return value


def _tls(shown: str, options: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {name: options[name] for name in TLS_FILES if name in options}
    check = flag(shown, options, "ssl_check_hostname")
    if check is not None:
        found["ssl_check_hostname"] = check
    if "ssl_cert_reqs" in options:
        if options["ssl_cert_reqs"] not in CERT_REQS:
            raise InvalidStoreUrl(shown, f"its option ssl_cert_reqs must be {' or '.join(CERT_REQS)}")
        found["ssl_cert_reqs"] = options["ssl_cert_reqs"]
    return found
