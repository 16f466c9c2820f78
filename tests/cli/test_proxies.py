"""Modules with objects that do something when they are looked at: reading the code of a workflow runs none of them."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure import Engine, RunParked, RunStatus, connect, step, workflow
from perdure.client.upgrade import upgrade_check
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.policies.versions import Programs
from tests.cli.conftest import Cli
from tests.patience import PATIENCE

# Everything in this module notes in `TOUCHED` that its code was called, and most of it raises.
OBJECTS = '''
import functools
import sys
import weakref
from types import ModuleType

from perdure import approval, call, set_state, sleep, step, step_inline, wait_signal, workflow

TOUCHED = []

def touched(what):
    TOUCHED.append(what)
    raise RuntimeError(f"{what} was called")

class Proxy:
    """As werkzeug's LocalProxy: what is read of it, is read of what it stands for."""
    __slots__ = ("__weakref__",)
    def __getattribute__(self, name): touched(f"__getattribute__({name})")
    def __call__(self, *args): touched("__call__")
    def __iter__(self): touched("__iter__")
    def __bool__(self): touched("__bool__")
    def __len__(self): touched("__len__")
    def __eq__(self, other): touched("__eq__")
    def __hash__(self): touched("__hash__")
    def __str__(self): touched("__str__")
    def __repr__(self): touched("__repr__")
    def __getitem__(self, key): touched("__getitem__")
    def __or__(self, other): touched("__or__")

class Described:
    """As a lazy object of Django, whose class and attributes are descriptors."""
    @property
    def __class__(self): touched("__class__")
    @property
    def __dict__(self): touched("__dict__")
    @property
    def __name__(self): touched("__name__")
    @property
    def __module__(self): touched("__module__")
    spec = fn = name = property(lambda self: touched("a property"))
    def __getattr__(self, name): touched(f"__getattr__({name})")
    def __call__(self): touched("__call__")

class Meta(type):
    def __getattribute__(cls, name): touched(f"a metaclass: {name}")
    def __instancecheck__(cls, one): touched("__instancecheck__")
    def __subclasscheck__(cls, one): touched("__subclasscheck__")
    def __eq__(cls, other): touched("a metaclass: __eq__")
    def __hash__(cls): touched("a metaclass: __hash__")
    def __call__(cls, *args): touched("a metaclass: __call__")
    def __getitem__(cls, key): touched("a metaclass: __getitem__")
    def __or__(cls, other): touched("a metaclass: __or__")

class Odd(metaclass=Meta):
    pass

class Items(list):
    def __iter__(self): touched("list.__iter__")
    def __len__(self): touched("list.__len__")

class Table(dict):
    def values(self): touched("dict.values")
    def get(self, *args): touched("dict.get")
    def __iter__(self): touched("dict.__iter__")
    def __getitem__(self, key): touched("dict.__getitem__")

class LazyModule(ModuleType):
    """As modules that are loaded on access."""
    def __getattribute__(self, name): touched(f"a module: {name}")

class Text(str):
    def __getitem__(self, key): touched("str.__getitem__")
    def __str__(self): touched("str.__str__")
    def __eq__(self, other): touched("str.__eq__")
    def __hash__(self): touched("str.__hash__")

PROXY = Proxy()
DESCRIBED = Described()
AN_ODD_ONE = object.__new__(Odd)
ITEMS = list.__new__(Items)
list.append(ITEMS, PROXY)
TABLE = dict.__new__(Table)
dict.__setitem__(TABLE, "a", PROXY)
NESTED = {"a": [PROXY, DESCRIBED, (AN_ODD_ONE, Odd)], "b": {"c": Odd}}
MODULE = LazyModule("late")
PARTIAL = functools.partial(print, PROXY)
DEAD = weakref.proxy(type("Gone", (), {})())
NAME = Text("named")
EVERY = [PROXY, DESCRIBED, Odd, AN_ODD_ONE, ITEMS, TABLE, NESTED, MODULE, PARTIAL, DEAD, NAME]

class Holder:
    """Objects of other kinds as attributes of a class and of what is made of it."""
    proxy = PROXY
    described = DESCRIBED
    odd = Odd
    def __init__(self): self.own = PROXY

HOLDER = Holder()

@functools.cache
def cached(n): return n

def uses_more(given=PROXY, *, other=DESCRIBED):
    from late import anything
    return AN_ODD_ONE.x, ITEMS.x, TABLE["a"].x, PARTIAL(), DEAD.x, NAME.x, anything, EVERY

@step
async def charge(n: int) -> int:
    return n

@step
async def check(n: int) -> int:
    return n
'''
BODY = """
@workflow
async def order(n: int) -> int:
    paid = await charge(n)
    if n > 100:
        PROXY.fn(), DESCRIBED.fn(), Odd.fn(), Odd(), HOLDER.proxy(), HOLDER.own.fn(), Holder.odd(), MODULE.anything()
        uses_more(), cached(n), NESTED["a"], getattr(PROXY, "x")
        await step_inline(PROXY, DESCRIBED)
        await call(NAME, PROXY)
        await wait_signal(PROXY, type=Odd[int])
        await wait_signal(NAME, type=PROXY["a"])
        await approval("ship", schema=PROXY | None)
        await approval("ship again", schema=PROXY)
        await PROXY(1), DESCRIBED(), HOLDER.described()
        set_state("a", PROXY)
    await wait_signal("go")
    return paid
"""
INSERTED = BODY.replace("    paid =", "    await check(n)\n    paid =")
GONE = BODY.replace("await charge(n)", "n")


@pytest.fixture
def late(tmp_path: Path) -> Iterator[Path]:
    """A module that the loader of the standard library executes when an attribute of it is read."""
    file = tmp_path / "executed_late.py"
    file.write_text(f"open({str(tmp_path / 'was_executed')!r}, 'w').close()\n")
    spec = importlib.util.spec_from_file_location("executed_late", file)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["executed_late"] = module
    spec.loader.exec_module(module)
    yield tmp_path / "was_executed"
    del sys.modules["executed_late"]


def imported(folder: Path, name: str, body: str) -> ModuleType:
    file = folder / f"{name}.py"
    file.write_text(OBJECTS + body)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # What a function of the module imports.
    sys.modules["late"] = module.MODULE
    return module


@pytest.fixture
def modules(tmp_path: Path, late: Path) -> Iterator[dict[str, ModuleType]]:
    """The module, with three bodies; nothing in it may be called."""
    found = {
        name: imported(tmp_path, f"odd_{name}", body)
        for name, body in (("before", BODY), ("inserted", INSERTED), ("gone", GONE))
    }
    yield found
    sys.modules.pop("late", None)
    assert {name: module.TOUCHED for name, module in found.items()} == {"before": [], "inserted": [], "gone": []}
    assert not late.exists()


async def waiting(url: str, order: Any) -> None:
    async with Engine(url, [order]) as engine:
        run = await engine.start(order(1), id="it")
        async with asyncio.timeout(PATIENCE):
            while (await run.status()) is not RunStatus.WAITING:
                await asyncio.sleep(0)


async def test_a_run_of_such_a_module_starts_and_goes_on_after_a_restart(
    tmp_path: Path, modules: dict[str, ModuleType]
) -> None:
    url, order = f"sqlite:///{tmp_path}/runs.db", modules["before"].order
    await waiting(url, order)
    async with Engine(url, [order]) as engine:
        _ = await engine.signal("it", "go")
        assert await engine.handle("it").result() == 1
        # What is behind such objects is left out, and all else is read.
        assert {"order", "uses_more"} <= {part.name for part in order.source().parts}
        assert order.step_names().steps == {"charge"}


@pytest.mark.parametrize("changed", ["inserted", "gone"])
async def test_a_divergence_of_such_a_module_is_explained(
    tmp_path: Path, modules: dict[str, ModuleType], changed: str
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    await waiting(url, modules["before"].order)
    async with Engine(url, [modules[changed].order]) as engine:
        _ = await engine.signal("it", "go")
        with pytest.raises(RunParked, match="charge"):
            _ = await engine.handle("it").result()


@pytest.mark.parametrize(("changed", "fit"), [("before", Fit.SAFE), ("inserted", Fit.PATCH), ("gone", Fit.PATCH)])
async def test_runs_are_checked_against_such_a_module(
    tmp_path: Path, modules: dict[str, ModuleType], changed: str, fit: Fit
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    await waiting(url, modules["before"].order)
    async with connect(url) as client:
        programs = Programs([modules[changed].order])
        assert [run.fit async for run in upgrade_check(client, programs)] == [fit]


def test_the_commands_read_such_a_module(cli: Cli, modules: dict[str, ModuleType]) -> None:
    asyncio.run(waiting(cli.url, modules["before"].order))
    file = str(modules["before"].__file__)
    assert "getattr" not in cli("check", file).err
    ended = cli("upgrade-check", file, "--store", cli.url)
    assert "1 safe" in ended.err, ended.out + ended.err


async def test_a_workflow_is_declared_beside_such_objects(modules: dict[str, ModuleType]) -> None:
    module = modules["before"]

    async def declared() -> int:
        proxy, described, odd, items = module.PROXY, module.DESCRIBED, module.Odd, module.ITEMS

        class Refused(Exception):
            pass

        @step
        async def refuse() -> None:
            raise Refused("no")

        @workflow
        async def asks(n: int) -> int:
            if n > 100:
                proxy.charge(), described.charge(), odd.charge(), items.charge
            try:
                await refuse()
            except Refused:
                return n
            return 0

        async with Engine("memory://", [asks]) as engine:
            return await (await engine.start(asks(5))).result()

    assert await declared() == 5


async def test_a_default_value_may_be_such_an_object(modules: dict[str, ModuleType]) -> None:
    @workflow
    async def uses(n: int, day: int = 5, given: Any = modules["before"].PROXY) -> int:
        return n + day

    async with Engine("memory://", [uses]) as engine:
        assert uses.signature == "(n: int, day: int = 5, given: Any = ...) -> int"
        assert (await engine.run(uses(1))).output == 6
