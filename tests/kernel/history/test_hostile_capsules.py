"""Hostile files that would cost much memory and time, read by a process with little of both."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

from perdure.kernel.history.capsule import FORMAT, MAGIC, MOST
from tests.patience import PATIENCE

# What the reader may have beyond what it has when it begins, and how long it may compute.
MEGABYTES, SECONDS = 600, 20

READER = """
import resource, sys
from pathlib import Path
from perdure.errors import InvalidCapsule
from perdure.kernel.history.capsule import decode_capsule

data = Path(sys.argv[1]).read_bytes()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
limit = used + int(sys.argv[2]) * 1024 * 1024
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]), int(sys.argv[3])))
try:
    decode_capsule(data)
except InvalidCapsule as error:
    print(error)
"""


def sealed(body: bytes, declared: int, size: int | None = None) -> bytes:
    head = struct.pack(">8sHQQ", MAGIC, FORMAT, len(body) if size is None else size, declared)
    return head + sha256(head + body).digest() + body


def squeezed(part: bytes, times: int, before: bytes = b"", after: bytes = b"") -> tuple[bytes, int]:
    """Repeated data as a zlib stream, made without holding it in memory; and its length."""
    check = zlib.adler32(before)
    for _ in range(times):
        check = zlib.adler32(part, check)
    check = zlib.adler32(after, check)
    # Flushed in full, a part is squeezed to the same bytes wherever it stands.
    raw = zlib.compressobj(9, wbits=-zlib.MAX_WBITS)
    first = raw.compress(before) + raw.flush(zlib.Z_FULL_FLUSH)
    again = raw.compress(part) + raw.flush(zlib.Z_FULL_FLUSH)
    body = b"\x78\xda" + first + again * times + raw.compress(after) + raw.flush() + struct.pack(">I", check)
    return body, len(before) + len(part) * times + len(after)


MEGABYTE = 1024 * 1024


@cache
def zeros() -> bytes:
    return squeezed(bytes(MEGABYTE), 1024)[0]


# Built lazily, because collecting tests should not wait for them.
FILES: dict[str, Callable[[], bytes]] = {
    "says that a gigabyte is inside": lambda: sealed(zeros(), 1024**3),
    "says that a gigabyte follows": lambda: sealed(b"x", 100, size=1024**3),
    "says that more follows than any machine has": lambda: sealed(b"x", 2**63, size=2**63),
    "inflates to a gigabyte and says less": lambda: sealed(zeros(), 1000),
    "inflates to a gigabyte and says the most there may be": lambda: sealed(zeros(), MOST),
    "brackets, 60 million deep": lambda: sealed(*squeezed(b"[" * MEGABYTE, 60, b'{"run_id":')),
    "twelve million events": lambda: sealed(
        *squeezed(b'{"type":"RunPaused"},' * 50_000, 240, b'{"run_id":"r","id":"i","batches":[{"events":[')
    ),
    "one text of 200 MB in the place of an id": lambda: sealed(*squeezed(b"x" * MEGABYTE, 200, b'{"run_id":"', b'"}')),
    "a gigabyte is declared and nothing is there": lambda: sealed(b"", 1024**3),
    "cut off in the middle": lambda: sealed(zeros(), 1024**3)[:5000],
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_refused_with_little_memory_and_in_little_time(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.capsule"
    data = FILES[name]()
    path.write_bytes(data)
    assert len(data) < 2_000_000, "it is small, and asks for much"
    command = [sys.executable, "-c", READER, str(path), str(MEGABYTES), str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("this is not a capsule that can be used: ")
    assert done.stdout.rstrip().endswith("Nothing was imported")
