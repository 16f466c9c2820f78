"""Parse the URL of etcd: the servers, and how to connect to them. Connects to nothing.

`etcd://user:password@h1:2379,h2:2379/prefix?ca=ca.pem&cert=client.pem&key=client-key.pem&timeout=3`. TLS is spoken when
the scheme is `etcds` or one of the three files is named.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from perdure.errors import InvalidStoreUrl
from perdure.kernel.policies.durations import parse_duration
from perdure.kernel.policies.policy import suggest
from perdure.stores.url import masked

SCHEMES = ("etcd", "etcds")
PORT = 2379
PARAMETERS = ("ca", "cert", "key", "timeout")
EXAMPLE = "etcd://host:2379/prefix"


@dataclass(frozen=True, slots=True)
class Address:
    """One etcd cluster: its members, the prefix of the keys, and the credentials."""

    endpoints: tuple[str, ...]
    """Each as `host:port`, in the order in which they are tried."""
    prefix: str = "perdure"
    """The prefix of all keys, so that several systems can share a cluster."""
    user: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    timeout: float = 3.0
    """How many seconds one member may take to answer before the next is asked."""

    @property
    def url(self) -> str:
        """The address as it may be shown: without the password."""
        user = f"{quote(self.user, safe='')}:***@" if self.user else ""
        return f"{'etcds' if self.tls else 'etcd'}://{user}{','.join(self.endpoints)}/{quote(self.prefix)}"

    def context(self) -> ssl.SSLContext | None:
        """The TLS context; None without TLS. Raises InvalidStoreUrl when a file cannot be used."""
        if not self.tls:
            return None
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path and not os.path.isfile(path):
                raise _wrong(self.url, f"{name}={path!r} does not exist; give the path of a PEM file")
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except (ssl.SSLError, OSError) as error:
            raise _wrong(self.url, f"ca={self.ca!r} has no certificate in PEM ({error})") from error
        if self.cert:
            try:
                context.load_cert_chain(self.cert, self.key or None, password=_no_password)
            except (ssl.SSLError, OSError, ValueError) as error:
                raise _wrong(
                    self.url,
                    f"cert={self.cert!r} and key={self.key!r} are not a certificate and its key in PEM, without a "
                    f"password ({error})",
                ) from error
        return context


def _wrong(url: str, reason: str) -> InvalidStoreUrl:
    return InvalidStoreUrl(url, reason, "leases")


def _no_password() -> str:
    raise ValueError("the key has a password")


def read_address(url: str) -> Address:
    """Parse a URL; raises InvalidStoreUrl, without the password."""
    shown = masked(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _wrong(shown, f"{error}; write {EXAMPLE}") from error
    if parts.scheme not in SCHEMES:
        raise _wrong(shown, f"leases live at an address such as {EXAMPLE}")
    if parts.fragment or "#" in url:
        raise _wrong(shown, "a '#' has no meaning here; in a password write it as %23")
    access, _, hosts = parts.netloc.rpartition("@")
    user, _, password = access.partition(":")
    if password and not user:
        raise _wrong(shown, "there is a password and no user; write etcd://user:password@host:2379")
    endpoints = tuple(_endpoint(host, shown) for host in hosts.split(","))
    given: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in PARAMETERS:
            raise _wrong(shown, f"it has the unknown parameter {name!r}; {suggest(name, PARAMETERS)}")
        if name in given or not value:
            raise _wrong(shown, f"give {name!r} once, with a value")
        given[name] = value
    if ("key" in given) and ("cert" not in given):
        raise _wrong(shown, "key= belongs to a certificate: give cert= too")
    return Address(
        endpoints,
        prefix=unquote(parts.path).strip("/") or "perdure",
        user=unquote(user),
        password=unquote(password),
        tls=parts.scheme == "etcds" or bool({"ca", "cert", "key"} & given.keys()),
        ca=given.get("ca", ""),
        cert=given.get("cert", ""),
        key=given.get("key", ""),
        timeout=_seconds(given["timeout"], shown) if "timeout" in given else 3.0,
    )


def _endpoint(host: str, shown: str) -> str:
    try:
        parsed = urlsplit(f"//{host}")
        name, port = parsed.hostname, parsed.port
    except ValueError as error:
        raise _wrong(shown, f"{host!r} is not a host and port ({error}); write {EXAMPLE}") from error
    if not name or any(c.isspace() for c in host):
        raise _wrong(shown, f"it names no host; write {EXAMPLE}, or several as h1:2379,h2:2379")
    return f"[{name}]:{port or PORT}" if ":" in name else f"{name}:{port or PORT}"


def _seconds(text: str, shown: str) -> float:
    seconds = parse_duration(text, bare=True)
    if seconds is None or seconds <= 0:
        raise _wrong(shown, f"timeout={text!r} must be a number of seconds above 0")
    return seconds
