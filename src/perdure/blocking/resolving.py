"""Parked runs for code that does not await."""

from __future__ import annotations

from perdure.blocking.loop import Loop
from perdure.client.client import Client
from perdure.kernel.inbound import Accepted, Finished


class Resolving:
    """Lets parked runs go on, or ends them."""

    _client: Client
    _loop: Loop

    def resolve(
        self, id: str, *, version: str | None = None, fail: str | None = None, before: str | None = None
    ) -> Accepted | Finished:
        """Let a parked run go on, pin it to a version, end it as failed, or let it go on from before an op."""
        return self._loop.wait(self._client.resolve(id, version=version, fail=fail, before=before))
