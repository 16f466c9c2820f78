"""Servers that documents name, such as `postgresql://db.example/shop`: each stands for an empty one of the tests.

Any name after the slash is a database of its own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.docs.markdown import blocks
from tests.services.binaries import ServerMissing, binaries
from tests.services.servers import free_port
from tests.services.shared import Shared, empty_etcd, empty_postgres, empty_redis

VARIABLE = "DOCS_SERVERS"
# The port of a web server that a document starts.
PORT = "8000"
# What a document may write, and nothing else: no host under .example exists.
SHOWN = re.compile(
    r"postgresql://(?:shop@)?db\.example/\w+|redis://redis\.example(?:/\d+)?|etcd://etcd\.example:2379"
    rf"|(?<=--port ){PORT}|(?<=127\.0\.0\.1:){PORT}"
)


class Standins:
    """What is shown, and what it stands for."""

    def __init__(self, real: Mapping[str, str]) -> None:
        # The longest first: one may begin with another.
        self._real = dict(sorted(real.items(), reverse=True))

    @classmethod
    def from_environment(cls) -> Standins:
        return cls(json.loads(os.environ.get(VARIABLE, "{}")))

    def put(self, text: str) -> str:
        """A text of the document, as it can be executed."""
        return SHOWN.sub(lambda match: self._real[match[0]], text)

    def back(self, text: str) -> str:
        """A text that was printed, as the document shows it."""
        for shown, real in self._real.items():
            if shown == PORT:
                text = text.replace(f":{real}", f":{PORT}")
                continue
            parts = urlsplit(real)
            for form in (real, parts._replace(netloc=f"{parts.username}:***@{parts.hostname}:{parts.port}").geturl()):
                text = text.replace(form, shown)
        return text


@contextmanager
def servers_of(document: Path, shared: Shared) -> Iterator[dict[str, str]]:
    """The environment in which a document finds the servers that it names."""
    shown = {url for block in blocks(document.read_text(encoding="utf-8")) for url in SHOWN.findall(block.text)}
    with ExitStack() as stack:
        real = {}
        for url in sorted(shown):
            if url.startswith("postgresql"):
                real[url] = stack.enter_context(empty_postgres(shared))
            elif url.startswith("redis"):
                real[url] = stack.enter_context(empty_redis(shared))
            elif url == PORT:
                real[url] = str(free_port())
            else:
                real[url] = empty_etcd(shared)
        environment = dict(os.environ) | {VARIABLE: json.dumps(real)}
        if any(url.startswith("postgresql") for url in shown):
            # Its tools have to be as new as the server is.
            try:
                environment["PATH"] = os.pathsep.join([str(binaries("postgres")), environment.get("PATH", "")])
            except ServerMissing:
                pass  # the server is elsewhere, and so may its tools be
        yield environment
