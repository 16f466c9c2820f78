"""What is wrong with settings, and where."""

from __future__ import annotations

from perdure.errors import UsageError


class InvalidSettings(UsageError):
    """A setting makes no sense. `where` is its file and line, as in `perdure.yaml, line 3`, or its variable."""

    def __init__(self, where: str, reason: str) -> None:
        self.where, self.reason = where, reason
        super().__init__(f"{where}: {reason}")
