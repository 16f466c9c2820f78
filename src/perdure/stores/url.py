"""URLs without passwords, for messages."""

from __future__ import annotations

import re

_SECRET = re.compile(r"([?&](?:password|sslpassword|passfile)=)[^&]*", re.IGNORECASE)


def masked(url: str) -> str:
    """The URL with its password masked, also if the URL is malformed."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    head, query, options = rest.partition("?")
    if "@" not in head and ":" in head and "@" in options:
        head, query, options = rest, "", ""  # an unescaped question mark in the password
    user, at, place = head.rpartition("@")
    if at and ":" in user:
        head = user.partition(":")[0] + ":***@" + place
    return _SECRET.sub(r"\1***", scheme + separator + head + query + options)
