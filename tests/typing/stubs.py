"""Write the stubs of `perdure` and `perdure.blocking`: what type checkers and editors see of names made at run time.

`make stubs`, or `python -m tests.typing.stubs`, writes them; a test compares them with the source.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import perdure
from perdure import assembly
from perdure.blocking import mirror
from perdure.client import base, client, handle, locks, reader, schedules

PACKAGE = Path(perdure.__file__).parent
HEAD = "# Written by `make stubs` from the source; edit that.\n\n"

# The classes of perdure.blocking: their bases, the async classes they mirror, and what they have of their own.
CLASSES: dict[str, tuple[str, tuple[type, ...], str]] = {
    "Blobs": ("", (base.KeptBlobs,), ""),
    "Locks": ("", (locks.Locks,), ""),
    "RunHandle": ("(Generic[R])", (handle.RunHandle,), "id: str"),
    "ScheduleHandle": ("", (schedules.ScheduleHandle,), "id: str"),
    "Client": (
        "",
        (reader.Reader, client.Client),
        '''
def __init__(self, client: AsyncClient) -> None: ...
def open(self) -> Self:
    """Connect. `with` does this too."""
def close(self) -> None:
    """Disconnect, and end the thread."""
def __enter__(self) -> Self: ...
def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> None: ...
''',
    ),
    "Engine": ("(Client)", (assembly.Engine,), "name: str\nresources: Mapping[str, Any]"),
}
OWN = {"open", "close", *mirror.LEFT_OUT}
EXTRA = """
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar
from perdure.assembly import run as run
from perdure.client.client import Client as AsyncClient
"""


def public_names() -> str:
    """The stub of `perdure`."""
    homes: dict[str, list[str]] = {}
    for name in perdure.__all__:
        homes.setdefault(perdure._HOMES[name], []).append(name)
    lines = [f"from {home} import {', '.join(f'{n} as {n}' for n in names)}" for home, names in sorted(homes.items())]
    return HEAD + "\n".join(
        [*lines, "", "__version__: str", "_HOMES: dict[str, str]", f"__all__ = {sorted(perdure.__all__)!r}", ""]
    )


def blocking() -> str:
    """The stub of `perdure.blocking`."""
    text = ['R = TypeVar("R")']
    known = _imports(EXTRA)
    for name, (bases, sources, own) in CLASSES.items():
        lines = [f"class {name}{bases}:", *_indented(own.strip())]
        for source in sources:
            known |= _imports(_source(source), source.__module__)
            for part in {inspect.unwrap(one).__module__ for one in vars(source).values() if inspect.isfunction(one)}:
                known |= _imports(inspect.getsource(sys.modules[part]), part)
            for member in _members(source):
                lines += _indented(member)
        text.append("\n".join(lines))
    connect = ast.parse(inspect.getsource(assembly.connect)).body[0]
    assert isinstance(connect, ast.FunctionDef)
    text.append(_stub(connect))
    body = "\n\n".join(text)
    used = (node for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name))
    names = {node.id for node in used if isinstance(node.ctx, ast.Load)}
    needed = names - set(CLASSES) - {"R"} - set(dir(builtins))
    imports = [known[name] for name in sorted(needed)] + ["from perdure.assembly import run as run"]
    exported = sorted([*CLASSES, "connect", "run"])
    return HEAD + "\n".join([*imports, f"__all__ = {exported!r}", body, ""])


def _members(source: type) -> Iterator[str]:
    (tree,) = (n for n in ast.parse(_source(source)).body if isinstance(n, ast.ClassDef) and n.name == source.__name__)
    overloaded: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(("delegated(", "_sent(")):
            yield _stub(_delegated(source, ast.unparse(node.targets[0])))
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name in OWN:
            continue
        if node.name in overloaded and not node.decorator_list:
            continue  # a stub has no implementation of an overloaded function
        if node.decorator_list and ast.unparse(node.decorator_list[0]) == "overload":
            overloaded.add(node.name)
        if not node.name.startswith("_") or (node.name == "__init__" and source is assembly.Engine):
            yield _stub(node)


def _delegated(source: type, name: str) -> ast.AsyncFunctionDef:
    """A method of a client, as the part has it that does the work; or of a handle, which knows the id of its run."""
    text = textwrap.dedent(inspect.getsource(inspect.unwrap(vars(source)[name])))
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.AsyncFunctionDef)
    node.name = name
    node.args.args[: 2 if source is handle.RunHandle else 1] = [ast.arg("self")]
    return node


def _stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A function without its body, and without anything to await."""
    arguments = node.args
    arguments.defaults = [_default(one) for one in arguments.defaults]
    arguments.kw_defaults = [None if one is None else _default(one) for one in arguments.kw_defaults]
    decorators = {ast.unparse(one) for one in node.decorator_list}
    returns = ast.unparse(node.returns).replace("AsyncIterator[", "Iterator[") if node.returns else "None"
    if "asynccontextmanager" in decorators:
        decorators.discard("asynccontextmanager")
        returns = returns.replace("Iterator[", "AbstractContextManager[")
    text = ast.get_docstring(node)
    body = "..." if text is None else f'\n    """{text.splitlines()[0].replace("`async with ", "`with ")}"""'
    marks = "".join(f"@{one}\n" for one in sorted(decorators))
    return f"{marks}def {node.name}({ast.unparse(arguments)}) -> {returns}: {body}"


def _default(node: ast.expr) -> ast.expr:
    """A default that a stub can have: a literal, or none to be seen."""
    return node if isinstance(node, ast.Constant) else ast.Constant(...)


def _imports(source: str, module: str = "") -> dict[str, str]:
    """How to import each name that a module uses: from where it imports it, or from itself."""
    found = {}
    for node in ast.parse(source).body:
        for name in [node.name] if isinstance(node, ast.ClassDef) else []:
            found[name] = f"from {module} import {name}"
        for target in node.targets if isinstance(node, ast.Assign) else []:
            if isinstance(target, ast.Name):
                found[target.id] = f"from {module} import {target.id}"
    for statement in ast.walk(ast.parse(source)):
        for one in statement.names if isinstance(statement, ast.ImportFrom | ast.Import) else []:
            start = f"from {statement.module} import" if isinstance(statement, ast.ImportFrom) else "import"
            found[one.asname or one.name] = f"{start} {ast.unparse(one)}"
    return found


def _source(source: type) -> str:
    return inspect.getsource(sys.modules[source.__module__])


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


def formatted(text: str, path: Path) -> str:
    """As `make format` leaves it."""
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = done.stdout
    return text


def stubs() -> dict[Path, str]:
    """Every stub, by its path."""
    found = {PACKAGE / "__init__.pyi": public_names(), PACKAGE / "blocking" / "__init__.pyi": blocking()}
    return {path: formatted(text, path) for path, text in found.items()}


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(PACKAGE.parent)} written\n")
