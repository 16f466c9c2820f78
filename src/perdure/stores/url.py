"""URLs as they may be shown: every message that names a store goes through here."""

from __future__ import annotations

import re

_SECRET = re.compile(r"([?&](?:password|sslpassword|passfile)=)[^&]*", re.IGNORECASE)


def masked(url: str) -> str:
    """The URL with stars in the place of its password. One that is wrong is taken apart as well as it can be."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    head, query, options = rest.partition("?")
    if "@" not in head and ":" in head and "@" in options:
        head, query, options = rest, "", ""  # a password with a question mark in it, not written as %3F
    user, at, place = head.rpartition("@")
    if at and ":" in user:
        head = user.partition(":")[0] + ":***@" + place
    return _SECRET.sub(r"\1***", scheme + separator + head + query + options)
