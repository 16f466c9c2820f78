"""Shared by the processes of one user on one machine: a folder, and names that one process has at a time.

The operating system drops a process's file locks when it ends, however it ends. Nothing is assumed about processes that
share no such folder: those on another machine, or with another folder for temporary files.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket
import stat
import sys
import tempfile
from collections.abc import Iterable

from perdure.inherited import forget_private, keep_private

try:
    import fcntl
except ImportError:  # Windows: names are not stable, and leases end by time alone
    fcntl = None  # type: ignore[assignment]

# How many processes of one program get distinct names.
SLOTS = 1000


def shared_folder(*parts: str) -> str | None:
    """A folder for the files of this user's processes, made when it is missing; None where there can be none."""
    if fcntl is None:
        return None
    path = os.path.join(tempfile.gettempdir(), f"perdure-{os.getuid()}")
    try:
        os.makedirs(path, 0o700, exist_ok=True)
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return None  # another user's file: what is in it proves nothing
        path = os.path.join(path, *parts)
        os.makedirs(path, 0o700, exist_ok=True)
    except OSError:
        return None
    return path


class Name:
    """The name of an engine that was given none: the same each time, and no other process has it at the same time.

    It is made of the host, the program, and what distinguishes programs that must not share a name: what they can
    execute, the store, and the folder in which the lock on the name lies. So two containers with one host name and a
    folder each have different names, and a program that comes back with other workflows does as well.

    The program is the script of the process, or `module`: the file whose workflows a command executes.
    """

    def __init__(self, store: str, programs: Iterable[str], serves: Iterable[str] | None, module: str = "") -> None:
        self._module = module
        self._what = "\0".join([store, *sorted(programs), "", *sorted(serves or ("*",))])
        self._file: int | None = None

    def take(self) -> str:
        """Take the first name of this program that no living process has."""
        folder = shared_folder("names")
        script = self._module or (sys.argv[0] if sys.argv and sys.argv[0] != "-c" else "")
        script = os.path.abspath(script) if script else "python"
        host = re.sub(r"[^\w.-]+", "-", socket.gethostname()) or "host"
        stem = os.path.splitext(os.path.basename(script))[0]
        if stem == "__main__":
            stem = os.path.basename(os.path.dirname(script))
        program = re.sub(r"[^\w.-]+", "-", stem) or "python"
        if self._module:
            # Files of one name in several folders are several programs.
            program += "-" + hashlib.blake2b(os.path.dirname(script).encode(), digest_size=2).hexdigest()
        if folder is None:
            return f"{host}:{program}:{os.getpid()}-{secrets.token_hex(2)}"
        at = os.stat(folder)
        identity = "\0".join([_boot(), str(at.st_dev), str(at.st_ino), script, self._what])
        base = f"{host}:{program}:{hashlib.blake2b(identity.encode(), digest_size=3).hexdigest()}"
        for number in range(1, SLOTS + 1):
            name = base if number == 1 else f"{base}-{number}"
            if self._lock(os.path.join(folder, hashlib.blake2b(name.encode(), digest_size=12).hexdigest())):
                return name
        return f"{base}-{secrets.token_hex(4)}"

    def _lock(self, path: str) -> bool:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                self._file = file
                keep_private(file)
                return True
        except OSError:
            pass
        os.close(file)
        return False

    def show(self) -> None:
        """Touch the lock file, so that cleaners of temporary folders leave it."""
        if self._file is not None:
            try:
                os.utime(self._file)
            except OSError:
                pass

    def release(self) -> None:
        """Release the name. Its file stays: removing it could take the name from a process that has just locked it."""
        if self._file is not None:
            forget_private(self._file)
            os.close(self._file)
            self._file = None


def _boot() -> str:
    """The id of this boot of this machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
