"""The component `shell`: run a command, and kill all that it leaves running. It uses a shell only on request."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import msgspec

from perdure.errors import PerdureError, UsageError
from perdure.kernel.values.masking import masking, shortened

# How much of each output stream is kept, and how long a command may take to end after SIGTERM.
MOST_KEPT, GRACE = 64 * 1024, 15.0
# How much of the last output an error message shows. How much more than is kept is read if the output may contain a
# secret, which can only be found as a whole.
_SHOWN, _SLACK = 500, 64 * 1024
# The environment variables that commands get, because they do not work as expected without them.
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "SYSTEMROOT")
Word: TypeAlias = str | int | float
Text: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[^\0]*\Z")]


class Success(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The conditions under which a command has succeeded."""

    exit_codes: tuple[int, ...] = (0,)
    required_files: tuple[Text, ...] = ()
    required_globs: tuple[Text, ...] = ()
    forbidden_files: tuple[Text, ...] = ()


class CommandFailed(PerdureError):
    """A command did not succeed. `exit_code` is negative if a signal ended it."""

    def __init__(self, command: str, exit_code: int, reason: str, stderr: str) -> None:
        self.command, self.exit_code, self.reason, self.stderr = command, exit_code, reason, stderr
        said = f"; it said: {stderr.strip()[-_SHOWN:]}" if stderr.strip() else ""
        super().__init__(f"{command} ended with {exit_code}: {reason}{said}")


async def shell(
    argv: Sequence[Any] | str,
    shell: bool = False,
    cwd: Text | None = None,
    env: Mapping[str, Word | bool] | None = None,
    input: str = "",
    success: Success = Success(),  # noqa: B008 - it is frozen
    grace: Annotated[float, msgspec.Meta(ge=0)] = GRACE,
    max_output: Annotated[int, msgspec.Meta(ge=0)] = MOST_KEPT,
) -> dict[str, Any]:
    """Run a command, and return its exit code and output.

    `argv` is a list, and no shell reads it. With `shell: true` it is one text for /bin/sh. `success`:
    `exit_codes` (0), `required_files`, `required_globs`, `forbidden_files`. When the step ends, the command and all
    processes that it started get SIGTERM, and SIGKILL after `grace` seconds.
    """
    command = _command(argv, shell)
    folder = cwd or os.getcwd()
    given = _Given(input.encode()) if input else None
    out, err = _Capture(max_output), _Capture(max_output)
    try:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL if given is None else given.end,
                stdout=out.end,
                stderr=err.end,
                cwd=folder,
                env=_environment(env or {}),
                start_new_session=True,
            )
        )
        process = await _begun(starting, grace)
        for pipe in (out, err) if given is None else (out, err, given):
            pipe.begin()
        try:
            code = await process.wait()
        finally:
            await _end(process, grace)
        await asyncio.gather(out.ended(), err.ended())
    finally:
        for pipe in (out, err) if given is None else (out, err, given):
            pipe.close()
    name = str(command[0]) if not shell else "the shell"
    reason = _flaw(code, success, folder)
    if reason is not None:
        raise CommandFailed(name, code, reason, err.text)
    return {"exit_code": code, "stdout": out.text, "stderr": err.text, "truncated": out.more or err.more}


def _command(argv: Sequence[Any] | str, shell: bool) -> list[str]:
    wrong = misused(argv, shell)
    if wrong is not None:
        raise UsageError(wrong)
    command = ["/bin/sh", "-c", str(argv)] if shell else [str(one) for one in argv]
    if any("\0" in one for one in command):
        raise UsageError("an argument of a command has a zero byte in it")
    return command


def misused(argv: object, shell: object) -> str | None:
    """Why the arguments give no command; None if they do."""
    if shell is True:
        return None if isinstance(argv, str) else "with shell: true, argv is one text"
    if isinstance(argv, str) or not isinstance(argv, Sequence) or not argv:
        return "argv is a list, such as [ls, -l]; a text is for shell: true"
    for one in argv:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            kind = "null" if one is None else "true or false" if isinstance(one, bool) else "an object or a list"
            return f"an argument of a command is text or a number, and not {kind}"
    return None


def _environment(given: Mapping[str, Word | bool]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


class _Capture:
    """The output of a command on one stream, up to a limit; the rest is read and dropped.

    Uses its own pipe: asyncio waits for the end of its pipes, and processes that a command left running may keep them
    open.
    """

    def __init__(self, most: int) -> None:
        self._most, self._data, self._seen = most, bytearray(), 0
        self._room = most if masking.get(None) is None else most + _SLACK
        self._reading, self.end = os.pipe()
        os.set_blocking(self._reading, False)
        self._at_end = asyncio.Event()

    def begin(self) -> None:
        """The command has its end of the pipe by now."""
        os.close(self.end)
        self.end = -1
        asyncio.get_running_loop().add_reader(self._reading, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._reading, 65536)
        except BlockingIOError:
            return
        self._data += data[: self._room - len(self._data)]
        self._seen += len(data)
        if not data:
            asyncio.get_running_loop().remove_reader(self._reading)
            self._at_end.set()

    async def ended(self) -> None:
        """Wait until everything is read, but not for a process that has left the group and keeps its end open."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._at_end.wait(), 1.0)

    @property
    def more(self) -> bool:
        """Whether the output was longer than the limit."""
        return self._seen > self._most

    def close(self) -> None:
        """Stop reading."""
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        if self.end >= 0:
            os.close(self.end)

    @property
    def text(self) -> str:
        """The output so far."""
        most = len(self._data[: self._most].decode(errors="replace"))
        return shortened(self._data.decode(errors="replace"), most)


class _Given:
    """The input of a command, as far as it reads it.

    Uses its own pipe, and does not wait for processes that a command left running, which may keep it open and read
    nothing.
    """

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.end, self._writing = os.pipe()
        os.set_blocking(self._writing, False)

    def begin(self) -> None:
        """The command has its end of the pipe by now."""
        os.close(self.end)
        self.end = -1
        asyncio.get_running_loop().add_writer(self._writing, self._write)

    def _write(self) -> None:
        try:
            self._data = self._data[os.write(self._writing, self._data) :]
        except BlockingIOError:
            return
        except OSError:  # no process reads the pipe any more
            self._data = self._data[:0]
        if not self._data:
            self._close()

    def _close(self) -> None:
        if self._writing >= 0:
            asyncio.get_running_loop().remove_writer(self._writing)
            os.close(self._writing)
            self._writing = -1

    def close(self) -> None:
        """Stop writing."""
        self._close()
        if self.end >= 0:
            os.close(self.end)


async def _begun(starting: asyncio.Future[asyncio.subprocess.Process], grace: float) -> asyncio.subprocess.Process:
    """Start a command. A cancelled asyncio would kill the command, but not the processes that it has started."""
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            await _end(await starting, grace)
        raise


async def _end(process: asyncio.subprocess.Process, grace: float) -> None:
    """End a command and all that it started: its process group."""
    if process.returncode is None:
        _signal(process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(process.wait()), grace)
        except TimeoutError:
            pass
        finally:
            _signal(process.pid, signal.SIGKILL)
        await process.wait()
    else:
        _signal(process.pid, signal.SIGKILL)  # processes that it left running


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _flaw(code: int, success: Success, folder: str) -> str | None:
    """Why a command did not succeed; None if it did."""
    if code not in success.exit_codes:
        return f"it ends with one of {list(success.exit_codes)} if it succeeds"
    for path in success.required_files:
        if not os.path.exists(os.path.join(folder, path)):
            return f"there is no file {path}"
    for pattern in success.required_globs:
        if not glob.glob(pattern, root_dir=folder, recursive=True):
            return f"no file fits {pattern}"
    for path in success.forbidden_files:
        if os.path.exists(os.path.join(folder, path)):
            return f"there is a file {path}"
    return None
