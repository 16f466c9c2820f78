"""The component `shell`: run a command, and let it leave nothing behind. Never a shell, unless the flow says so."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from perdure.errors import PerdureError, UsageError

# How much of what a command prints is kept, of each stream; and how long it may take to end when it is told to.
MOST_KEPT, GRACE = 64 * 1024, 15.0
# Without these, commands do not work as people expect; everything else of the environment is left out.
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "SYSTEMROOT")
_CHECKS = frozenset({"exit_codes", "required_files", "forbidden_files", "required_globs"})


class CommandFailed(PerdureError):
    """A command did not end as it was to. `exit_code` is negative for the signal that ended it."""

    def __init__(self, command: str, exit_code: int, reason: str, stderr: str) -> None:
        self.command, self.exit_code, self.reason, self.stderr = command, exit_code, reason, stderr
        said = f"; it said: {stderr.strip()[-500:]}" if stderr.strip() else ""
        super().__init__(f"{command} ended with {exit_code}: {reason}{said}")


async def shell(
    argv: Sequence[Any] | str,
    shell: bool = False,
    cwd: str | None = None,
    env: Mapping[str, Any] | None = None,
    input: str = "",
    success: Mapping[str, Any] | None = None,
    grace: float = GRACE,
    max_output: int = MOST_KEPT,
) -> dict[str, Any]:
    """Run a command, and return its exit code and what it printed.

    `argv` is a list: no argument of it is read by a shell. With `shell: true` it is one text for /bin/sh. `success`:
    `exit_codes` (0), `required_files`, `required_globs`, `forbidden_files`. What ends the step ends the command and all
    that it started: by SIGTERM, and after `grace` seconds by SIGKILL.
    """
    command = _command(argv, shell)
    checks = _checked(success or {})
    folder = cwd or os.getcwd()
    out, err = _Capture(max_output), _Capture(max_output)
    try:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=out.end,
                stderr=err.end,
                cwd=folder,
                env=_environment(env or {}),
                start_new_session=True,
            )
        )
        process = await _begun(starting, grace)
        out.begin()
        err.begin()
        assert process.stdin is not None
        try:
            await _fed(process.stdin, input)
            code = await process.wait()
        finally:
            await _end(process, grace)
        await asyncio.gather(out.ended(), err.ended())
    finally:
        out.close()
        err.close()
    name = str(command[0]) if not shell else "the shell"
    reason = _flaw(code, checks, folder)
    if reason is not None:
        raise CommandFailed(name, code, reason, err.text)
    return {"exit_code": code, "stdout": out.text, "stderr": err.text, "truncated": out.more or err.more}


def _command(argv: Sequence[Any] | str, shell: bool) -> list[str]:
    if shell:
        if not isinstance(argv, str):
            raise UsageError("with shell: true, argv is one text")
        return ["/bin/sh", "-c", argv]
    if isinstance(argv, str) or not argv:
        raise UsageError("argv is a list, such as [ls, -l]; a text is for shell: true")
    found = []
    for one in argv:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            raise UsageError(f"an argument of a command is text or a number, not {one!r:.80}")
        if "\0" in str(one):
            raise UsageError("an argument of a command has a zero byte in it")
        found.append(str(one))
    return found


def _environment(given: Mapping[str, Any]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {name: _text_of(value, f"the variable {name}") for name, value in given.items()}


def _text_of(value: Any, what: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise UsageError(f"{what} of a command is text, a number, true or false, not {value!r:.80}")
    return str(value)


def _checked(success: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = sorted(set(success) - _CHECKS)
    if unknown:
        raise UsageError(f"success has no {unknown[0]!r}; it has {', '.join(sorted(_CHECKS))}")
    return success


class _Capture:
    """What a command prints to one stream, up to a limit; the rest is read and forgotten.

    A pipe of our own: asyncio waits for the end of its pipes, and what a command left running may keep them open.
    """

    def __init__(self, most: int) -> None:
        self._most, self._data, self.more = most, bytearray(), False
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
        room = self._most - len(self._data)
        self._data += data[:room]
        self.more |= len(data) > room
        if not data:
            asyncio.get_running_loop().remove_reader(self._reading)
            self._at_end.set()

    async def ended(self) -> None:
        """Everything is read; a process that has left the group may keep its end open, and is not waited for."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._at_end.wait(), 1.0)

    def close(self) -> None:
        """Read no more."""
        asyncio.get_running_loop().remove_reader(self._reading)
        os.close(self._reading)
        if self.end >= 0:
            os.close(self.end)

    @property
    def text(self) -> str:
        """What it has read."""
        return self._data.decode(errors="replace")


async def _fed(stream: asyncio.StreamWriter, text: str) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(text.encode())
        await stream.drain()
    stream.close()


async def _begun(starting: asyncio.Future[asyncio.subprocess.Process], grace: float) -> asyncio.subprocess.Process:
    """A command that begins. Where that is cancelled, asyncio would end it alone, and not what it has started."""
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            await _end(await starting, grace)
        raise


async def _end(process: asyncio.subprocess.Process, grace: float) -> None:
    """End a command and all that it started, which are one group of processes."""
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
        _signal(process.pid, signal.SIGKILL)  # what it left running


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _flaw(code: int, success: Mapping[str, Any], folder: str) -> str | None:
    """Why a command did not succeed; None if it did."""
    codes = success.get("exit_codes", [0])
    if code not in codes:
        return f"it ends with one of {codes} if it succeeds"
    for path in success.get("required_files", ()):
        if not os.path.exists(os.path.join(folder, path)):
            return f"there is no file {path}"
    for pattern in success.get("required_globs", ()):
        if not glob.glob(pattern, root_dir=folder, recursive=True):
            return f"no file fits {pattern}"
    for path in success.get("forbidden_files", ()):
        if os.path.exists(os.path.join(folder, path)):
            return f"there is a file {path}"
    return None
