"""The log of perdure. A handler that raises costs its line and nothing else: no run depends on where lines go."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from perdure.kernel.values.raised import brief, contained
from perdure.kernel.values.redaction import Redaction


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


# The loggers that perdure has: a filter of one is not asked about the lines of another.
NAMES = ("perdure", "perdure.server", "perdure.audit")


class RedactingFilter(logging.Filter):
    """Takes out of log lines what is redacted. For the handlers of an application: `handler.addFilter(...)`."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every line pass, without what is redacted."""
        record.msg, record.args = self._redaction.text(record.getMessage()), None
        if record.exc_info and record.exc_info[1] is not None:
            # The handler would write the traceback with the message of the exception.
            text = logging.Formatter().formatException(record.exc_info)
            record.exc_info, record.exc_text = None, self._redaction.text(text)
        return True


def redact_lines(redaction: Redaction) -> Callable[[], None]:
    """Take out of perdure's own lines what is redacted, until the function that is returned is called."""
    if not redaction:
        return lambda: None
    filter = RedactingFilter(redaction)
    loggers = [logging.getLogger(name) for name in NAMES]
    for logger in loggers:
        logger.addFilter(filter)

    def end() -> None:
        for logger in loggers:
            logger.removeFilter(filter)

    return end


log = Log("perdure")
