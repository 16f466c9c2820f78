"""Forks, travels and retries for code that does not await."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.blocking.handle import RunHandle
from perdure.blocking.loop import Loop
from perdure.client.client import Client


class Forking:
    """Makes new runs of the past of others."""

    _client: Client
    _loop: Loop

    def fork(
        self,
        id: str,
        at: str | int | None = None,
        set: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        new_id: str | None = None,
        *,
        state: Mapping[str, Any] | None = None,
    ) -> RunHandle[Any]:
        """Start a run that has the past of another up to a point, and goes on by itself from there."""
        handle = self._loop.wait(self._client.fork(id, at, set, inputs, new_id, state=state))
        return RunHandle(handle, self._loop)

    def time_travel(
        self, id: str, step: str, inputs: Mapping[str, Any] | None = None, new_id: str | None = None
    ) -> RunHandle[Any]:
        """Start a run that goes on right before a step of another, with other arguments for that step."""
        return RunHandle(self._loop.wait(self._client.time_travel(id, step, inputs, new_id)), self._loop)

    def retry(self, id: str) -> RunHandle[Any]:
        """Let a run that failed go on from what failed, with all that succeeded."""
        return RunHandle(self._loop.wait(self._client.retry(id)), self._loop)
