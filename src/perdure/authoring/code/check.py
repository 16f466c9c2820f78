"""Lint workflow bodies: clocks, randomness, I/O, threads, changed globals, ops that are not awaited. Runs nothing.

A lint, not a proof: it sees the names that a module uses in its workflows and in the functions of the module that they
call, and nothing beyond. A line that ends in `# noqa: perdure` is skipped.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

import msgspec

from perdure.authoring.code.source_map import parse

_STEP = "do it in a @step, whose result is recorded"
_NOW = "use now() of perdure, which is the same on every replay"
_CHANCE = "use random() or uuid4() of perdure, or draw in a @step"
_SLEEP = "use `await sleep(...)` of perdure, which is durable"
_THREADS = "put the work in a @step: a `def` step runs in a thread, `cpu=True` in a process"
_GLOBAL = "pass it as an argument, keep it in a local variable, or publish it with set_state()"
_LOG = "put it in a @step: a replay would write it again"
# Functions of perdure and asyncio that must be awaited.
_AWAITED = frozenset(
    {
        *("perdure.sleep", "perdure.sleep_until", "perdure.wait_signal", "perdure.approval", "perdure.child"),
        *("perdure.checkpoint", "perdure.step_inline", "perdure.call", "perdure.lock"),
        *("asyncio.sleep", "asyncio.gather", "asyncio.wait", "asyncio.wait_for"),
    }
)

# The kind of a finding and what to do instead, by the full name of what is called. A name that ends in a dot stands for
# everything in it; the longest match wins.
RULES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter"),
            *("time.perf_counter_ns", "time.process_time", "time.localtime", "time.gmtime", "time.ctime"),
            *("time.strftime", "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today"),
            "datetime.date.today",
        ),
        ("clock", _NOW),
    ),
    "time.sleep": ("clock", _SLEEP),
    **dict.fromkeys(
        ("random.", "secrets.", "uuid.uuid1", "uuid.uuid4", "os.urandom", "os.getrandom", "numpy.random."),
        ("randomness", _CHANCE),
    ),
    "random.Random": ("randomness", "give it a seed that comes from random() of perdure, and say so: # noqa: perdure"),
    **dict.fromkeys(
        (
            *("open", "input", "io.open", "os.", "shutil.", "socket.", "ssl.", "select.", "tempfile.", "glob."),
            *("requests.", "httpx.", "aiohttp.", "urllib.request.", "urllib3.", "http.client.", "smtplib.", "ftplib."),
            *("sqlite3.", "psycopg.", "psycopg2.", "asyncpg.", "redis.", "boto3.", "botocore.", "pymongo."),
            *("asyncio.open_connection", "asyncio.start_server", "asyncio.open_unix_connection"),
            *("pathlib.Path.cwd", "pathlib.Path.home"),
        ),
        ("I/O", _STEP),
    ),
    "print": ("I/O", _LOG),
    **dict.fromkeys(
        (
            *("threading.", "_thread.", "multiprocessing.", "concurrent.futures.", "subprocess.", "asyncio.to_thread"),
            *("asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell", "os.system", "os.popen", "os.fork"),
        ),
        ("threads", _THREADS),
    ),
}
# Exceptions: pure functions in modules that are not.
_PURE = (
    *("os.path.join", "os.path.basename", "os.path.dirname", "os.path.splitext", "os.path.split", "os.path.normpath"),
    *("os.fspath", "os.PathLike", "os.sep", "os.linesep"),
)
# Methods that do I/O or leave the event loop, on any object.
METHODS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("run_in_executor", "call_soon_threadsafe"), ("threads", _THREADS)),
    **dict.fromkeys(
        ("read_text", "write_text", "read_bytes", "write_bytes", "unlink", "mkdir", "rmdir"), ("I/O", _STEP)
    ),
    **dict.fromkeys(("iterdir", "touch"), ("I/O", _STEP)),
}
_CHANGES = frozenset(
    {
        *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "appendleft", "popleft"),
        *("add", "discard", "update", "setdefault", "popitem"),
    }
)
# What makes steps and programs beside the decorators.
_MAKES_AWAITED = frozenset({"perdure.step", "perdure.workflow", "perdure.graph.Graph", "perdure.flow.load_flow"})
_SILENT = re.compile(r"#\s*noqa:\s*[^#]*\bperdure\b")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(msgspec.Struct, frozen=True):
    """Something that a body must not do: where, what, and what to do instead."""

    file: str
    line: int
    workflow: str
    kind: str
    what: str
    instead: str


def check_source(source: str, file: str) -> list[Finding]:
    """The findings in the workflows of a module, in the order of lines. Raises SyntaxError."""
    tree = parse(source, file)
    module = _Module(tree)
    silent = {number for number, line in enumerate(source.splitlines(), 1) if _SILENT.search(line)}
    found: dict[tuple[int, str], Finding] = {}
    for workflow in module.workflows:
        for node, kind, what, instead in module.check(workflow):
            last = getattr(node, "end_lineno", None) or node.lineno
            if silent.isdisjoint((node.lineno, last)):
                finding = Finding(file, node.lineno, workflow.name, kind, what, instead)
                found.setdefault((node.lineno, what), finding)
    return sorted(found.values(), key=lambda finding: (finding.line, finding.what))


_Seen = tuple[ast.expr | ast.stmt, str, str, str]


class _Module:
    """The names of a module: its imports, its functions, and its mutable globals."""

    def __init__(self, tree: ast.Module) -> None:
        self._imports: dict[str, str] = {}
        self._mutable: set[str] = set()
        self._functions: dict[str, _Function] = {}
        # The names of its functions whose calls must be awaited: steps, workflows and coroutine functions.
        self._awaited: set[str] = set()
        self.workflows: list[_Function] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    # `import os.path` binds `os`.
                    name = alias.asname or alias.name.partition(".")[0]
                    self._imports[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    for name in _names_in(node.module) if alias.name == "*" else (alias.name,):
                        self._imports[alias.asname or name] = f"{node.module}.{name}"
        for node in ast.walk(tree):
            if isinstance(node, _Function) and self._is(node, "workflow"):
                self.workflows.append(node)
        for node in ast.walk(tree):
            if isinstance(node, _Function) and (
                self._is(node, "step", "workflow") or (isinstance(node, ast.AsyncFunctionDef) and not _yields(node))
            ):
                self._awaited.add(node.name)
        for statement in tree.body:
            if isinstance(statement, _Function) and not self._is(statement, "step", "workflow"):
                self._functions[statement.name] = statement
            elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                if _is_mutable(statement.value):
                    self._mutable.update(names)
                if self._makes_awaited(statement.value):
                    self._awaited.update(names)

    def _makes_awaited(self, value: ast.expr) -> bool:
        """Whether an expression makes a step or a program: `step(f)`, `step(retry=...)(f)`, `Graph([...])`."""
        while isinstance(value, ast.Call):
            value = value.func
            if self._full_name(value, frozenset()) in _MAKES_AWAITED:
                return True
        return False

    def _is(self, function: _Function, *names: str) -> bool:
        """Whether a function has one of these decorators of perdure."""
        for decorator in function.decorator_list:
            found = decorator.func if isinstance(decorator, ast.Call) else decorator
            full = self._full_name(found, frozenset())
            if any(full in (f"perdure.{name}", name) or full.endswith(f".{name}") for name in names):
                return True
        return False

    def check(self, workflow: _Function) -> Iterator[_Seen]:
        """The findings in a body, and in the functions of the module that it calls."""
        yield from self._check_function(workflow)
        for name in sorted(_called(workflow)):
            helper = self._functions.get(name)
            if helper is not None and helper is not workflow:
                yield from self._check_function(helper)

    def _check_function(self, function: _Function) -> Iterator[_Seen]:
        local = _bound(function)
        yield from self._missing_awaits(function, local)
        for node in self._nodes(function):
            if isinstance(node, ast.Call):
                yield from self._call(node, local)
            elif isinstance(node, ast.Global):
                for name in node.names:
                    yield node, "global", f"it changes the global {name}", _GLOBAL
            elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
                yield from self._assignment(node, local)

    def _nodes(self, function: _Function) -> Iterator[ast.AST]:
        """Every node in a function, except for nested steps and its own decorators."""
        todo: list[ast.AST] = list(function.body)
        while todo:
            node = todo.pop()
            if isinstance(node, _Function) and self._is(node, "step", "workflow"):
                continue
            yield node
            if isinstance(node, ast.Call) and self._full_name(node.func, frozenset()).endswith("step_inline"):
                continue  # its argument runs as a step
            todo.extend(ast.iter_child_nodes(node))

    def _missing_awaits(self, function: _Function, local: frozenset[str]) -> Iterator[_Seen]:
        """Calls whose value is used or dropped without the await that they need."""
        read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and not _is_store(node)}
        is_body = self._is(function, "workflow")
        for node in self._nodes(function):
            for value in _values(node, read, is_body):
                name = self._awaitable(value, local)
                if name and value is not None:
                    is_lock = isinstance(value, ast.Call) and self._full_name(value.func, local) == "perdure.lock"
                    write = f"async with {name}(...):" if is_lock else f"await {name}(...)"
                    yield value, "await", f"it does not await {name}()", f"write `{write}`"

    def _awaitable(self, node: ast.expr | None, local: frozenset[str]) -> str:
        """The name of the called function, if its calls must be awaited."""
        if not isinstance(node, ast.Call):
            return ""
        called = node.func
        if isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and called.func.attr == "options":
            called = called.func.value  # charge.options(timeout=5)(order)
        if isinstance(called, ast.Name) and called.id in self._awaited:
            return called.id
        name = self._full_name(called, local)
        return ast.unparse(called) if name in _AWAITED else ""

    def _call(self, call: ast.Call, local: frozenset[str]) -> Iterator[_Seen]:
        name = self._full_name(call.func, local)
        rule = _rule(name) if name else None
        if rule is not None:
            yield call, rule[0], f"it calls {name}()", rule[1]
        elif isinstance(call.func, ast.Attribute):
            method, owner = call.func.attr, call.func.value
            if method in METHODS:
                yield call, METHODS[method][0], f"it calls .{method}()", METHODS[method][1]
            elif method in _CHANGES and isinstance(owner, ast.Name) and self._is_global(owner.id, local):
                yield call, "global", f"it changes the global {owner.id}", _GLOBAL

    def _assignment(
        self, node: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete, local: frozenset[str]
    ) -> Iterator[_Seen]:
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
        for target in targets:
            owner = target.value if isinstance(target, ast.Subscript | ast.Attribute) else None
            if isinstance(owner, ast.Name) and self._is_global(owner.id, local):
                yield node, "global", f"it changes the global {owner.id}", _GLOBAL

    def _is_global(self, name: str, local: frozenset[str]) -> bool:
        return name in self._mutable and name not in local

    def _full_name(self, node: ast.expr, local: frozenset[str]) -> str:
        """The full name that an expression refers to through the imports; empty if unknown."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in local:
            return ""
        known = self._imports.get(node.id)
        if known is None and (parts or node.id in self._functions):
            return "" if parts or node.id in RULES else node.id
        return ".".join([known or node.id, *reversed(parts)])


def _names_in(module: str) -> Iterator[str]:
    """The names that `from module import *` imports, limited to perdure's and those in the rules."""
    if module == "perdure":
        yield from sys.modules["perdure"].__all__
    for full in (*RULES, *_AWAITED):
        within, _, name = full.rpartition(".")
        if within == module and name:
            yield name


def _values(node: ast.AST, read: set[str], is_body: bool) -> Iterator[ast.expr | None]:
    """The expressions whose value a node uses or drops."""
    match node:
        case ast.Expr(value=value):
            yield from _parts(value)
        case ast.FormattedValue(value=value) | ast.Subscript(value=value):
            yield value
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
            yield test
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.BoolOp(values=values):
            yield from values
        case ast.Compare(left=left, comparators=others):
            yield from (left, *others)
        case ast.BinOp(left=left, right=right):
            yield from (left, right)
        case ast.Return(value=value) if is_body:
            yield from _parts(value)
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value)
        ):
            if name not in read and not name.startswith("_"):
                yield from _parts(value)


def _parts(value: ast.expr | None) -> Iterator[ast.expr | None]:
    """The elements of a collection display; anything else is one part."""
    match value:
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements) | ast.Dict(values=elements):
            for element in elements:
                yield from _parts(element)
        case ast.ListComp(elt=element) | ast.SetComp(elt=element) | ast.DictComp(value=element):
            yield from _parts(element)
        case _:
            yield value


def _is_store(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _yields(function: ast.AsyncFunctionDef) -> bool:
    """Whether an async function is a generator, which is iterated over and not awaited."""
    return any(isinstance(node, ast.Yield) for statement in function.body for node in ast.walk(statement))


def _rule(name: str) -> tuple[str, str] | None:
    if name.startswith(_PURE):
        return None
    while name:
        if name in RULES:
            return RULES[name]
        name = name[:-1].rpartition(".")[0]
        name = f"{name}." if name else ""
    return None


def _called(function: _Function) -> set[str]:
    """The names that a function calls or passes on."""
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _bound(function: _Function) -> frozenset[str]:
    """The local names of a function: its parameters and assignments, unless declared `global`."""
    arguments = function.args
    names = {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    names |= {argument.arg for argument in (arguments.vararg, arguments.kwarg) if argument is not None}
    declared: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Global):
            declared.update(node.names)
    return frozenset(names - declared)


def _is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    name = value.func if isinstance(value, ast.Call) else None
    called = name.id if isinstance(name, ast.Name) else name.attr if isinstance(name, ast.Attribute) else ""
    return called in {"list", "dict", "set", "defaultdict", "deque", "Counter", "OrderedDict", "bytearray", "count"}
