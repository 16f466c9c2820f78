"""Execute one document as its reader would: `python execute.py guide.md`, in the directory to work in.

- The python blocks of a file share one namespace, in their order, as if typed into one session. A block that awaits is
  a cell of a notebook: all such blocks share one event loop.
- A block fenced with ```python shop.py or ```yaml perdure.yaml is saved under that name, for later blocks to use.
- In a console block every line that begins with `$ ` is run in a shell.
- A text block after a python block, and what follows a command in a console block, is what it prints. `...` stands for
  anything within a line, and as a line of its own for any lines or none. What a block prints must be shown.
- A python block that says `# raises NotDurable` must raise that error; the text block after it ends with its message.
- A command whose output ends with the line `Killed` is killed with SIGKILL as soon as it has printed the lines above.
- A command may end with `&`, when what it prints goes to a file. What still runs when the document ends is killed.
- Port 8000 stands for a free one.
- Hosts under `.example` in URLs of servers stand for servers of the tests: see `servers.py`.

Prints the first thing that is not as the document says, and exits with 1.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import difflib
import inspect
import io
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

HERE = Path(__file__).parent
# As tests.patience has it, which a script cannot import before it has found the root.
SECONDS = 300


class Unlike(Exception):
    """The document says one thing, and another happened."""


def fits(shown: str, printed: str) -> bool:
    """Whether what was printed is what is shown, with `...` for what may differ."""
    lines = []
    for line in _tidy(shown).splitlines():
        if line.strip() == "...":
            lines.append(r"(?:[^\n]*\n)*?")
        else:
            lines.append("[^\\n]*?".join(re.escape(part) for part in line.split("...")) + r"\n")
    return re.fullmatch("".join(lines), f"{_tidy(printed)}\n" if printed.strip() else "") is not None


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def compare(shown: str, printed: str) -> None:
    if not fits(shown, printed):
        diff = difflib.unified_diff(_tidy(shown).splitlines(), _tidy(printed).splitlines(), "shown", "printed", n=99)
        raise Unlike("\n".join(line.rstrip() for line in diff))


class Session:
    """One document on its way from its first block to its last."""

    def __init__(self, name: str, servers: Any, commands: Any) -> None:
        # A module that can be found by its name, as a file of the reader's would be.
        self.module = sys.modules[name] = ModuleType(name)
        self._servers, self._commands = servers, commands
        self._loop: asyncio.AbstractEventLoop | None = None
        # Groups of processes, one per command.
        self._groups: list[int] = []

    def run(self, block: Any, filename: str, following: Any) -> None:
        """Do what a block says."""
        if block.saved_as is not None:
            path = Path(block.saved_as)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            shown = following.text if following is not None and following.language == "text" else ""
            compare(self._servers.back(shown), self._servers.back(self._python(block, filename)))
        elif block.language == "console":
            for command, shown in shown_commands(block.text):
                compare(self._servers.back(shown), self._servers.back(self.shell(command, shown)))

    def _python(self, block: Any, filename: str) -> str:
        out = io.StringIO()
        source = "\n" * (block.line - 1) + block.text
        code = compile(source, filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        try:
            with contextlib.redirect_stdout(out):
                if code.co_flags & inspect.CO_COROUTINE:
                    self._cell(code)
                else:
                    exec(code, self.module.__dict__)  # noqa: S102 - the documentation is ours
        except Exception as error:
            if type(error).__name__ != block.raises:
                raise
            return f"{out.getvalue()}{type(error).__name__}: {error}"
        if block.raises is not None:
            raise Unlike(f"the block says that it raises {block.raises}, and it raises nothing")
        return out.getvalue()

    def _cell(self, code: CodeType) -> None:
        """Execute a block that awaits, in the loop of all of them."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(FunctionType(code, self.module.__dict__)())

    def shell(self, command: str, shown: str) -> str:
        """Run a command and return what it prints, errors included."""
        # A group of its own, so that the kill reaches what the shell started.
        group, out, ended = self._commands.start(command)
        self._groups.append(group)
        # What hangs is killed, and has not printed what is shown.
        limit = threading.Timer(SECONDS, os.killpg, (group, signal.SIGKILL))
        limit.start()
        lines, first = shown.splitlines(), ""
        try:
            with out:
                if killed := bool(lines) and lines[-1] == "Killed":
                    first = "".join(out.readline() for _ in lines[:-1])
                    os.killpg(group, signal.SIGKILL)
                return f"{first}{out.read()}{'Killed' if killed else ''}"
        finally:
            ended()
            limit.cancel()

    def end(self) -> None:
        """End what commands and cells have left running."""
        if self._loop is not None:
            self._loop.close()
        self._commands.end()
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def shown_commands(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with the output that is shown for it."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    if parts[0].strip():
        raise Unlike(f"a console block begins with `$ command`, not with {parts[0].strip()!r}")
    return list(zip(parts[1::2], parts[2::2], strict=True))


def main(document: Path, commands: Any) -> int:
    """Execute a document; 0 when everything is as it says."""
    from tests.docs.markdown import blocks
    from tests.docs.servers import Standins

    servers = Standins.from_environment()
    session = Session(re.sub(r"\W", "_", document.stem), servers, commands)
    found = list(blocks(servers.put(document.read_text(encoding="utf-8"))))
    # As in a fresh directory of the reader: what is saved there can be imported and run.
    sys.path.insert(0, os.getcwd())
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    os.environ["PYTHONUNBUFFERED"] = "1"
    # The process that forked this one has a seed of its own, and no filters.
    os.environ.pop("PYTHONHASHSEED", None)
    warnings.simplefilter("error")
    # An editable install knows the entry points of the day it was made; the reader's knows the plugin.
    if not any(entry.value == "perdure.testing.plugin" for entry in entry_points(group="pytest11")):
        os.environ["PYTEST_PLUGINS"] = "perdure.testing.plugin"
    try:
        for number, block in enumerate(found):
            try:
                session.run(block, document.name, found[number + 1] if number + 1 < len(found) else None)
            except Unlike as unlike:
                sys.stderr.write(f"{document.name}:{block.line}: not as shown\n{unlike}\n")
                return 1
            except Exception:
                sys.stderr.write(f"{document.name}:{block.line}: failed\n{traceback.format_exc()}")
                return 1
        return 0
    finally:
        session.end()


if __name__ == "__main__":
    installed = sys.path[1:]
    sys.path.insert(0, str(HERE.parents[1]))
    from tests.crash.zygote import ended
    from tests.docs.commands import Commands, execute

    commands = Commands()
    if commands.request is None:
        sys.exit(main(Path(sys.argv[1]), commands))
    with ended():
        execute(commands.request, installed)
