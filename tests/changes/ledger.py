"""What a workflow did to the world: one line for each effect, in the file that `LEDGER` names."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from perdure import PerdureError, step_context

# The key of an effect that no step has.
NO_STEP = "no step"
# Called before each effect.
WATCHES: list[Callable[[], None]] = []


def effect(*what: object) -> None:
    """Write down an effect, under the idempotency key of the step that has it; die after the one `KILL_AFTER` says."""
    try:
        key = step_context().id
    except PerdureError:
        key = NO_STEP
    for watch in WATCHES:
        watch()
    with open(os.environ["LEDGER"], "a+") as file:
        file.write("\t".join([key, " ".join(str(part) for part in what)]) + "\n")
        file.flush()
        file.seek(0)
        written = len(file.readlines())
    if written == int(os.environ.get("KILL_AFTER", "0")):
        os.kill(os.getpid(), signal.SIGKILL)


def effects(text: str) -> list[str]:
    """The effects in a ledger, sorted; a step that was attempted again under its key has had its effect once."""
    seen = dict.fromkeys(line for line in text.splitlines() if line)
    return sorted(line.partition("\t")[2] for line in seen)


def ledger() -> Path:
    """The file of this process."""
    return Path(os.environ["LEDGER"])
