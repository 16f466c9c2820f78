"""The store and the leases as Stepflow's files describe them, as the URLs that perdure has for them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

from perdure.errors import InvalidSettings
from perdure.kernel.policies.policy import suggest
from perdure.settings.files import Source

SCHEMES = {
    "inMemory": "memory",
    "memory": "memory",
    "file": "file",
    "sqlite": "sqlite",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "redis": "redis",
}


def store_url(values: dict[str, Any], source: Source) -> str:
    """The URL of the store in `storageConfig`."""
    kind, url = values.get("type"), values.get("databaseUrl", "")
    if kind not in SCHEMES:
        reason = f"{kind!r} is not a type of store; {suggest(kind, SCHEMES)}" if kind else "it needs a type"
        raise InvalidSettings(source.where(("storageConfig", "type")), reason)
    scheme = SCHEMES[kind]
    place = source.where(("storageConfig", "databaseUrl"))
    if url == "sqlite::memory:":
        scheme, url = "memory", ""
    for name, has in (("autoMigrate", ("sqlite", "postgresql")), ("maxConnections", ("sqlite", "postgresql", "redis"))):
        if name in values and scheme not in has:
            reason = f"{name} has no effect on a {kind} store; leave it out"
            raise InvalidSettings(source.where(("storageConfig", name)), reason)
    if scheme == "memory":
        if url:
            raise InvalidSettings(place, "a store in memory has no databaseUrl; leave it out")
        return "memory://"
    if not url:
        raise InvalidSettings(place, f"a {kind} store needs its databaseUrl")
    if scheme == "sqlite" and not url.startswith("sqlite://"):
        url = f"sqlite:///{url.removeprefix('sqlite:')}"  # sqlite:relative.db or sqlite:/absolute.db
    given = url.partition(":")[0]
    if given not in {scheme, *(name for name, one in SCHEMES.items() if one == scheme), f"{scheme}s"}:
        raise InvalidSettings(place, f"storageConfig.type is {kind}, and this is the URL of something else")
    base, _, query = url.partition("?")
    options = query.split("&") if query else []
    if scheme == "sqlite" and "mode=rwc" in options:
        options.remove("mode=rwc")  # the default
    for name, ours in (("maxConnections", "pool"), ("autoMigrate", "migrate")):
        if name not in values:
            continue
        if any(option.startswith(f"{ours}=") for option in options):
            raise InvalidSettings(
                source.where(("storageConfig", name)), f"databaseUrl has {ours}= too; keep one of the two"
            )
        if name == "maxConnections" and not 1 <= values[name] <= 999:
            raise InvalidSettings(source.where(("storageConfig", name)), "maxConnections must be from 1 to 999")
        if (scheme, values[name]) != ("sqlite", True):  # SQLite is migrated by default
            options.append(f"{ours}={str(values[name]).lower()}")
    return "?".join([base, "&".join(options)] if options else [base])


def leases_url(values: dict[str, Any], source: Source) -> str | None:
    """The URL of the leases in `leaseManager`; None for leases in the store."""
    kind = values.get("type")
    if kind in ("none", "store"):
        for name in values.keys() - {"type"}:
            reason = f"{name} has no effect on leases of the type {kind}; leave it out"
            raise InvalidSettings(source.where(("leaseManager", name)), reason)
        return "none" if kind == "none" else None
    if kind != "etcd":
        known = ("none", "etcd", "store")
        reason = f"{kind!r} is not a type of leases; {suggest(kind, known)}" if kind else "it needs a type"
        raise InvalidSettings(source.where(("leaseManager", "type")), reason)
    place = source.where(("leaseManager", "endpoints"))
    parts = [urlsplit(endpoint) for endpoint in values.get("endpoints", ())]
    schemes = {part.scheme for part in parts}
    if not parts or len(schemes) > 1 or schemes - {"http", "https"} or not all(part.netloc for part in parts):
        raise InvalidSettings(
            place, "endpoints are the members of etcd, such as [http://etcd-1:2379], all http or https"
        )
    if "password" in values and "user" not in values:
        raise InvalidSettings(source.where(("leaseManager", "password")), "a password needs a user; give user too")
    named = [quote(values[name], safe="") for name in ("user", "password") if name in values]
    access = f"{':'.join(named)}@" if named else ""
    files = "&".join(f"{name}={quote(values[name], safe='/')}" for name in ("ca", "cert", "key") if name in values)
    scheme = "etcds" if schemes == {"https"} else "etcd"
    prefix = f"/{quote(values['prefix'])}" if "prefix" in values else ""
    return f"{scheme}://{access}{','.join(part.netloc for part in parts)}{prefix}{'?' + files if files else ''}"
