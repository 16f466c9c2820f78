"""Events of a journal as lines."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import msgspec

from perdure.cli.output import clean, cut, first_line, value_text, when, write_json
from perdure.client.views import RunView
from perdure.kernel.events import Entry, moment
from perdure.kernel.policies.durations import span
from perdure.kernel.values.failures import Failure

# Events that end something, which are highlighted.
STYLES = {"Succeeded": "32", "Failed": "31", "Skipped": "33", "Parked": "33", "Finished": "1"}
MOMENTS = {"retry_at", "deadline", "not_before"}


class Journal:
    """Writes the entries of one journal: JSON lines, or lines for people under a heading."""

    def __init__(self, view: RunView, as_json: bool) -> None:
        self._view, self._json = view, as_json
        self._terminal = sys.stdout.isatty()
        self._width = shutil.get_terminal_size().columns if self._terminal else 0
        if not as_json:
            print(clean(f"run {view.id} of {view.program}, started {when(view.created_at)}"), flush=True)

    def write(self, entry: Entry) -> None:
        """Write one entry and flush."""
        if self._json:
            write_json(entry, line=True)
            return
        kind = type(entry.event).__name__
        offset = (entry.at - self._view.created_at).total_seconds()
        what = " ".join(clean(part) for part in (getattr(entry.event, "op", ""), *_details(entry.event)) if part)
        start = f"{entry.seq:>4}  {entry.at.astimezone():%H:%M:%S}  {'+' + span(offset):>8}  "
        line = f"{start}{kind:<15} {what}".rstrip()
        if self._terminal:
            line = cut(line, self._width)
            style = next((code for end, code in STYLES.items() if kind.endswith(end)), None)
            if style is not None:
                end = len(start) + len(kind)
                line = f"{line[: len(start)]}\x1b[{style}m{line[len(start) : end]}\x1b[0m{line[end:]}"
        print(line, flush=True)


def _details(event: Any) -> list[str]:
    """The fields of an event besides its op, without defaults."""
    details = []
    for field in msgspec.structs.fields(event):
        value = getattr(event, field.name)
        if field.name in ("op", "divergence") or (field.default is not msgspec.NODEFAULT and value == field.default):
            continue
        details.append(f"{field.name}={_text(field.name, value)}")
    return details


def _text(name: str, value: Any) -> str:
    if isinstance(value, Failure):
        return cut(str(value), 60)
    if name in MOMENTS:
        return when(moment(value))
    if name == "source":
        return str(value).rpartition("/")[2]
    if name == "chunks":
        return cut("[" + ",".join(bytes(chunk).decode() for chunk in value[:20]) + "]", 60)
    return cut(first_line(value), 60) if isinstance(value, str) else value_text(value)
