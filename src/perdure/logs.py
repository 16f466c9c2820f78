"""The log of perdure. A handler that raises costs its line and nothing else: no run depends on where lines go."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from typing import Any

from perdure.kernel.values.raised import brief, contained


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger that never raises. A line that a handler or a filter does not take goes to stderr."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line."""
        if not self.isEnabledFor(level):
            return
        try:
            # The line of the caller: of frames outside of `logging` it is the second one.
            self.logger.log(level, msg, *args, **{"stacklevel": 2, **kwargs})
        except BaseException as error:
            contained(error)
            with suppress(Exception):
                text = str(msg) % args if args else str(msg)
                sys.stderr.write(f"{text} (a log handler raised {brief(error)})\n")


log = Log("perdure")
