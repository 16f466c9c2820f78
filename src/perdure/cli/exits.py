"""How the command ends: its exit codes, and the problems that lead to them. Scripts may rely on the numbers."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The exit codes of `perdure`."""

    OK = 0
    FAILED = 1
    """The run failed, the doctor found a failure, or a message was sent to a run that had ended."""
    USAGE = 2
    """The command was wrong; nothing was done."""
    NO_SUCH_RUN = 3
    STORE = 4
    """The store cannot be used: missing, something else, damaged, busy, of another schema."""
    STOPPED = 5
    """The run was cancelled, or is parked."""
    BUG = 70
    """Something in perdure itself went wrong."""
    INTERRUPTED = 130
    """Ctrl-C."""
    PIPE_CLOSED = 141
    """The reader of the output closed its pipe."""
    TERMINATED = 143
    """SIGTERM."""


# How a command ends that waited for a run which ended so.
ENDS = {
    "completed": Exit.OK,
    "bailed": Exit.OK,
    "failed": Exit.FAILED,
    "cancelled": Exit.STOPPED,
    "parked": Exit.STOPPED,
}

EPILOGUE = (
    "--config FILE names a settings file to use instead of perdure.yaml; every command takes it.\n\n"
    "Exit codes: 0 success; 1 the run failed or had already ended, or a check found something; 2 wrong usage; "
    "3 no such run; 4 the store cannot be used; 5 the run was cancelled or is parked; 130 interrupted; 143 terminated."
)


class Problem(Exception):
    """Something to tell the user: what is wrong, where, and what to do. Ends the command with `code`."""

    def __init__(self, message: str, code: Exit = Exit.USAGE) -> None:
        self.code = code
        super().__init__(message)
