"""The files of flows, as bytes. Opens only regular files, so that reading never blocks."""

from __future__ import annotations

import errno
import os
import stat

# A flow of a thousand steps has about 150 kB.
MOST_BYTES = 1024 * 1024


def read_file(path: str) -> bytes:
    """The content of a file, up to one byte more than a flow may have. Raises OSError if it cannot be read."""
    # A blocking open() would wait for the writer of a pipe.
    number = os.open(real_path(path), os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(number, "rb") as opened:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", path)
        return opened.read(MOST_BYTES + 1)


def real_path(path: str) -> str:
    """The path without symbolic links. Raises OSError if no system accepts the text as a path."""
    try:
        return os.path.realpath(path)
    except ValueError:  # a zero byte, or half of a surrogate pair
        raise OSError(errno.EINVAL, "no path has such characters") from None
