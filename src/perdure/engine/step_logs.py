"""Log records of steps as chunks of their streams, for steps with `logs=`. Bounded, as a journal is not a log store."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import msgspec

from perdure.engine.step_context import StepContext, current
from perdure.kernel.values.raised import contained

if TYPE_CHECKING:
    from perdure.engine.steps import StepRunner

# How much an attempt may log into its stream.
MOST_BYTES = 100 * 1024


class StepLogs(logging.Handler):
    """A handler on the root logger, once an engine has run such a step. It ignores other records, and never raises."""

    def __init__(self, runner: StepRunner) -> None:
        super().__init__()
        self._runner = runner
        self._formatter = logging.Formatter()
        # Emitting a chunk may itself log.
        self._inside = threading.local()

    def open(self) -> None:
        """Attach to the root logger."""
        logging.getLogger().addHandler(self)

    def close(self) -> None:
        """Detach from the root logger."""
        logging.getLogger().removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Emit a record of a step as a chunk of its stream."""
        step = current.get(None)
        if step is None or not 0 < step.logs <= record.levelno or getattr(self._inside, "emitting", False):
            return
        if step.owner is None or step.owner.services.runner is not self._runner:
            return  # a step of another engine in this process
        self._inside.emitting = True
        try:
            self._emit(step, record)
        except BaseException as error:
            contained(error)  # the attempt has ended, or its room is used up: the record is only in the log
        finally:
            self._inside.emitting = False

    def _emit(self, step: StepContext, record: logging.LogRecord) -> None:
        if step.logged > MOST_BYTES:
            return
        text = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            text = f"{text}\n{self._formatter.formatException(record.exc_info)}"
        step.logged += len(text.encode("utf-8", "replace")) + len(record.name) + 50
        if step.logged > MOST_BYTES:
            text = f"more than {MOST_BYTES // 1024} KiB: what this attempt logs from here on is only in the log"
        chunk = msgspec.json.encode({"log": record.levelname, "logger": record.name, "text": text})
        step.emit(msgspec.json.decode(self._runner.secrets.mask(chunk)))
