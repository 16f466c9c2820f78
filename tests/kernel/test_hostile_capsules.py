"""Files that ask for more memory and time than they are worth, read by a process that has little of both."""

from __future__ import annotations

import struct
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from perdure.kernel.capsule import FORMAT, MAGIC, MOST
from tests.patience import PATIENCE

# What the reader may have beyond what it has when it begins, and how long it may compute.
MEGABYTES, SECONDS = 600, 20

READER = """
import resource, sys
from pathlib import Path
from perdure.errors import InvalidCapsule
from perdure.kernel.capsule import decode_capsule

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
    """A repetition as zlib, made without having it in memory; and how long it is."""
    import zlib

    made = zlib.compressobj(9)
    body = made.compress(before)
    for _ in range(times):
        body += made.compress(part)
    return body + made.compress(after) + made.flush(), len(before) + len(part) * times + len(after)


MEGABYTE = b"[" * 1024 * 1024


def files() -> dict[str, bytes]:
    zeros = squeezed(bytes(1024 * 1024), 1024)
    deep = squeezed(MEGABYTE, 60, b'{"run_id":')
    events = squeezed(b'{"type":"RunPaused"},' * 50_000, 240, b'{"run_id":"r","id":"i","batches":[{"events":[')
    text = squeezed(b"x" * 1024 * 1024, 200, b'{"run_id":"', b'"}')
    return {
        "says that a gigabyte is inside": sealed(zeros[0], 1024**3),
        "says that a gigabyte follows": sealed(b"x", 100, size=1024**3),
        "says that more follows than any machine has": sealed(b"x", 2**63, size=2**63),
        "inflates to a gigabyte and says less": sealed(zeros[0], 1000),
        "inflates to a gigabyte and says the most there may be": sealed(zeros[0], MOST),
        "brackets, 60 million deep": sealed(*deep),
        "twelve million events": sealed(*events),
        "one text of 200 MB in the place of an id": sealed(*text),
        "a gigabyte is declared and nothing is there": sealed(b"", 1024**3),
        "cut off in the middle": sealed(zeros[0], 1024**3)[:5000],
    }


FILES = files()


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_refused_with_little_memory_and_in_little_time(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.capsule"
    path.write_bytes(FILES[name])
    assert len(FILES[name]) < 2_000_000, "it is small, and asks for much"
    command = [sys.executable, "-c", READER, str(path), str(MEGABYTES), str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("this is not a capsule that can be used: ")
    assert done.stdout.rstrip().endswith("Nothing was imported")
