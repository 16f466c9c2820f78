"""Writing for people and for programs. Results go to stdout, everything else to stderr.

On a terminal tables are drawn by rich; elsewhere they are plain aligned text, and rich is never loaded.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from perdure.cli.exits import Exit
from perdure.kernel.policies.durations import span

if TYPE_CHECKING:
    from perdure.client.views import StepView
    from perdure.kernel.values.failures import Failure

# The width of a value in a table without a terminal.
VALUE_WIDTH = 60

STYLES = {
    "completed": "green",
    "succeeded": "green",
    "ok": "green",
    "running": "cyan",
    "waiting": "blue",
    "queued": "blue",
    "failed": "bold red",
    "fail": "bold red",
    "skipped": "yellow",
    "unknown": "yellow",
    "parked": "bold yellow",
    "warn": "bold yellow",
    "paused": "yellow",
    "cancelled": "magenta",
    "bailed": "magenta",
}


# --- to programs ----------------------------------------------------------------------------------------------------


def write_json(value: Any, *, line: bool = False) -> None:
    """One JSON document; indented on a terminal unless it is a `line` of many."""
    import msgspec

    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    if sys.stdout.isatty():
        text = (data if line else msgspec.json.format(data, indent=2)).decode()
        text = _escaped(text, lambda c: c.isprintable() or c == "\n")
    else:
        text = data.decode()
    if sys.stdout.encoding.lower().replace("-", "") != "utf8":
        text = _escaped(text, str.isascii)
    print(text, flush=line)


def as_dict(record: Any) -> dict[str, Any]:
    """The fields of a dataclass as a dict, to be extended."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _escaped(text: str, passes: Callable[[str], bool]) -> str:
    """The same JSON with characters that cannot be encoded as escapes."""
    import json

    return "".join(c if passes(c) else json.dumps(c)[1:-1] for c in text)


# --- to people ------------------------------------------------------------------------------------------------------


def complain(error: Exception, code: Exit, as_json: bool) -> None:
    """Write an error to stderr; as one line of JSON with --json."""
    sys.stdout.flush()
    message = "\n".join([str(error), *getattr(error, "__notes__", ())])
    if as_json:
        import json

        kind = type(error).__name__
        document = {"error": {"type": kind, "message": message, "exit_code": int(code)}}
        print(json.dumps(document), file=sys.stderr)
    else:
        note(message)


def note(text: str) -> None:
    """A message on stderr."""
    print(f"perdure: {clean(text, chr(10))}", file=sys.stderr, flush=True)


def log_to_stderr(level: str) -> None:
    """Log to stderr from this level on, unless the user's module has configured logging."""
    import logging

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("perdure").setLevel(level.upper())


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, cut: Sequence[str] = (), fold: Sequence[str] = ()
) -> None:
    """A table on stdout. On a terminal too narrow for it, columns in `cut` lose their ends, those in `fold` wrap."""
    cleaned = [[clean(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _rich_table(headings, cleaned, cut, fold)
    else:
        _plain_table(headings, cleaned)


def _plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [[heading.upper() for heading in headings], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _rich_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], cut: Sequence[str], fold: Sequence[str]
) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    widths = {h: max(len(h), *(cell_len(row[i]) for row in rows)) for i, h in enumerate(headings)}
    # rich prefers to wrap columns, so the widths to cut to are computed here.
    over = sum(widths.values()) + 2 * len(headings) - console.width
    while over > 0 and cut and max(widths[h] for h in cut) > 10:
        widest = max(cut, key=lambda h: widths[h])
        widths[widest] -= 1
        over -= 1
    drawn = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        drawn.add_column(heading.upper(), overflow="fold", no_wrap=heading not in fold)
    for row in rows:
        cells = [Text(cell, style=STYLES.get(cell, "")) for cell in row]
        for heading, cell in zip(headings, cells, strict=True):
            if heading in cut:
                cell.truncate(widths[heading], overflow="ellipsis")
        drawn.add_row(*cells)
    console.print(drawn)


def pairs(items: Sequence[tuple[str, str]], *, whole: Collection[str] = ()) -> None:
    """Names and values, one per line; multi-line values stay in their column.

    On a terminal, long lines wrap in their column, unless they are to be copied: the `whole` ones.
    """
    width = max(len(name) for name, _ in items)
    terminal = sys.stdout.isatty()
    room = shutil.get_terminal_size().columns - width - 2
    bold, plain = ("\x1b[1m", "\x1b[0m") if terminal else ("", "")
    for name, value in items:
        lines = clean(value, "\n").split("\n")
        if terminal and name not in whole and room > 20:
            lines = [part for line in lines for part in _wrapped(line, room)]
        print(f"{bold}{name.ljust(width)}{plain}  " + ("\n" + " " * (width + 2)).join(lines))


def _wrapped(line: str, width: int) -> list[str]:
    """A line in parts of at most `width` characters, each with its indentation."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False) or [""]


# --- values, times and errors as text -------------------------------------------------------------------------------


def clean(text: str, keep: str = "") -> str:
    """Text that is safe for a terminal: unprintable characters are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def first_line(text: str) -> str:
    """The first paragraph of an explanation."""
    return text.partition("\n")[0]


def value_text(value: Any, width: int = VALUE_WIDTH) -> str:
    """A value as one line of JSON, cut to `width`."""
    import msgspec

    return cut((bytes(value) if isinstance(value, msgspec.Raw) else msgspec.json.encode(value)).decode(), width)


def cut(text: str, width: int) -> str:
    """Text of at most `width` characters."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def when(at: datetime | None, now: datetime | None = None) -> str:
    """A time in the local zone with its distance: `2025-11-15 08:37:34 (3 min ago)`."""
    if at is None:
        return ""
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S} ({distance(at, now)})"


def distance(at: datetime, now: datetime | None = None) -> str:
    """The distance of a time from now."""
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    return f"in {span(-seconds)}" if seconds < -0.5 else f"{span(seconds)} ago"


def error_text(error: Failure, indent: str = "  ") -> str:
    """An error with the lines of the user's code, and its causes."""
    lines = [indent + str(error).replace("\n", "\n" + indent)]
    lines += [f"{indent}  {line}" for line in error.traceback.splitlines()]
    for number, inner in enumerate(error.errors, 1):
        lines += [f"{indent}  {number}:", error_text(inner, indent + "    ")]
    if error.cause is not None:
        lines += [f"{indent}raised from", error_text(error.cause, indent)]
    return "\n".join(lines)


def failure_text(error: Failure, steps: Sequence[StepView], indent: str = "  ") -> str:
    """Why a run failed; if a step failed it, with the lines of that step."""
    text = error_text(error, indent)
    for step in reversed(steps):
        if step.error is not None and (step.error.type, step.error.message) == (error.type, error.message):
            text += f"\n{indent}in step {step.path}, attempt {step.attempt}"
            return "\n".join([text, *(f"{indent}  {line}" for line in step.error.traceback.splitlines())])
    return text
