"""The committed dashboard: no larger than it may be, and made of the source beside it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / "src/perdure/server/ui"
# In bytes, compressed: all that a browser loads, and what it loads before the first run is shown.
ALL, FIRST = 90_000, 45_000
BEFORE = {"index.html", "app.js", "style.css"}
# No browser loads these.
UNREAD = {"LICENSES.txt", "source.sha256"}
SETTINGS = ["index.html", "package-lock.json", "svelte.config.js", "vite.config.ts", "scripts/bundle.ts"]
MADE_OF = ["src", "public", *SETTINGS]


def test_the_bundle_is_small() -> None:
    sizes = {file.name: len(gzip.compress(file.read_bytes(), 9, mtime=0)) for file in BUNDLE.iterdir()}
    assert sum(size for name, size in sizes.items() if name not in UNREAD) <= ALL
    assert sum(sizes[name] for name in BEFORE) <= FIRST


def test_the_bundle_is_made_of_the_source() -> None:
    found = sha256()
    for name in sorted(source()):
        found.update(f"{name}\0".encode() + (ROOT / "ui" / name).read_bytes() + b"\0")
    made_of = (BUNDLE / "source.sha256").read_text().strip()
    assert made_of == found.hexdigest(), "ui/ was changed: run make ui, and commit what it makes"


def source() -> Iterator[str]:
    """The files that the bundle is made of, below ui/."""
    for name in MADE_OF:
        place = ROOT / "ui" / name
        below = [file for file in place.rglob("*") if file.is_file()] if place.is_dir() else [place]
        yield from (file.relative_to(ROOT / "ui").as_posix() for file in below)
