"""Resources: what steps look up by name and nothing stores; and what `@step` says of a method."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import (
    Engine,
    NoSuchResource,
    PerdureError,
    UsageError,
    blocking,
    connect,
    per_process,
    resource,
    run_context,
    step,
    step_context,
    step_inline,
    workflow,
)
from perdure.graph import node
from tests.engine.cpu_steps import load_model, use_db, use_model
from tests.engine.harness import PATIENCE


class Pool:
    """What a database hands out: it can be neither stored nor copied."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.Lock()

    def fetch(self, n: int) -> str:
        return f"{self.name}:{n}"


@step
async def in_loop(n: int) -> str:
    return resource("db", Pool).fetch(n)


@step
def in_thread(n: int) -> str:
    pool: Pool = step_context().resources["db"]
    return pool.fetch(n)


@step(queue="elsewhere")
async def remote(n: int) -> str:
    return resource("db", Pool).fetch(n)


@workflow
async def everywhere() -> list[str]:
    inline = await step_inline("inline", lambda: resource("db").fetch(3))
    return [await in_loop(1), await in_thread(2), inline]


@workflow
async def far() -> str:
    return await remote(4)


async def test_a_step_finds_what_its_engine_was_given() -> None:
    pool = Pool("main")
    async with Engine("memory://", [everywhere], resources={"db": pool}) as engine:
        assert (await engine.run(everywhere(), id="r")).output == ["main:1", "main:2", "main:3"]
        assert engine.resources["db"] is pool
        assert list(engine.resources) == ["db"]
        for entry in await engine.journal("r"):
            assert "Pool" not in repr(entry.event)


async def test_a_remote_step_finds_what_the_engine_that_runs_it_was_given(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with (
        Engine(url, [far], name="a", serves=("none",), resources={"db": Pool("a")}),
        Engine(url, [far], name="b", steps=[remote], resources={"db": Pool("b")}),
        connect(url) as client,
    ):
        run = await client.start(far())
        assert await run.result(PATIENCE) == "b:4"


async def test_what_is_not_there_is_named_with_what_is() -> None:
    @workflow
    async def misses() -> str:
        try:
            return await in_loop(1)
        except NoSuchResource as error:
            return str(error)

    @workflow
    async def wrong() -> str:
        return await in_thread(1)

    async with Engine("memory://", [misses], resources={"cache": 1, "api": 2}) as engine:
        said = (await engine.run(misses())).output
        assert said == (
            "the resource 'db' is none of this engine's (it has api, cache); add it: Engine(resources={'db': ...})"
        )
        assert engine.resources.get("db") is None
        assert "db" not in engine.resources
    async with Engine("memory://", [misses], resources={"db": "no pool"}) as engine:
        error = (await engine.run(misses())).error
        assert isinstance(error, UsageError)
        assert "the resource 'db' is a str, not a Pool" in str(error)


async def test_a_body_has_no_resources_and_neither_has_code_outside() -> None:
    @workflow
    async def body() -> str:
        return str(resource("db"))

    async with Engine("memory://", [body], resources={"db": Pool("x")}) as engine:
        error = (await engine.run(body())).error
        assert "works in a step, and this is a workflow body" in str(error)
    with pytest.raises(PerdureError, match=r"resource\('db'\) works only inside a step"):
        resource("db")


async def test_each_process_makes_for_itself_what_a_factory_makes() -> None:
    @step
    def here() -> list[int]:
        model: list[int] = resource("model")
        model[1] += 1
        return model

    @workflow
    async def models() -> list[list[int]]:
        return [await here(), await here(), *[await use_model() for _ in range(6)]]

    async with Engine("memory://", [models], resources={"model": per_process(load_model)}) as engine:
        found = (await engine.run(models())).output
        assert found is not None
        assert found[:2] == [[os.getpid(), 1], [os.getpid(), 2]]
        assert all(pid != os.getpid() for pid, _ in found[2:])
        # However many processes there are, each has made it once and counts on.
        by_process: dict[int, list[int]] = {}
        for pid, count in found[2:]:
            by_process.setdefault(pid, []).append(count)
        assert all(counts == list(range(1, len(counts) + 1)) for counts in by_process.values())


async def test_a_cpu_step_is_told_what_to_do_for_a_resource_of_the_engines_process() -> None:
    @workflow
    async def uses() -> str:
        return await use_db()

    for given in (Pool("x"), per_process(lambda: Pool("x"))):
        async with Engine("memory://", [uses], resources={"db": given}) as engine:
            error = (await engine.run(uses())).error
            assert "is in the engine's process, and this step runs in another one" in str(error)
            assert "per_process(make)" in str(error)


def test_scripts_and_blocking_code_have_resources_too() -> None:
    pool = Pool("script")
    assert perdure.run(everywhere(), store="memory://", resources={"db": pool})[0] == "script:1"
    with blocking.Engine("memory://", [everywhere], resources={"db": pool}) as engine:
        assert engine.run(everywhere()).output == ["script:1", "script:2", "script:3"]
        assert engine.resources["db"] is pool


@pytest.mark.parametrize("given", [[1], {1: 2}, {"": 2}, "db"])
def test_resources_that_make_no_sense_are_refused(given: Any) -> None:
    with pytest.raises(UsageError, match="resources"):
        _ = Engine("memory://", resources=given)
    with pytest.raises(UsageError, match="takes a function that creates the resource"):
        per_process(3)  # type: ignore[arg-type]


# --- methods --------------------------------------------------------------------------------------------------------


def test_a_step_or_workflow_on_a_method_says_what_to_write_instead() -> None:
    with pytest.raises(
        TypeError, match=r'@step on the method .*Shop\.charge.*there is no Shop.*resource\("shop"\)\.charge'
    ):

        class Shop:
            @step
            def charge(self, n: int) -> int:
                return n

    with pytest.raises(TypeError, match="@step on the method"):

        class Second:
            @step(timeout=5)
            async def charge(self, n: int) -> int:
                return n

    with pytest.raises(TypeError, match="@step on the method"):

        class Third:
            @classmethod
            @step
            def charge(cls, n: int) -> int:
                return n

    with pytest.raises(TypeError, match="@step on the method"):

        class Fourth:
            @step
            @classmethod
            def charge(cls, n: int) -> int:
                return n

    with pytest.raises(TypeError, match="@workflow on the method"):

        class Fifth:
            @workflow
            async def fulfil(self, n: int) -> int:
                return n

    with pytest.raises(TypeError, match=r'@node on the method .*Sixth\.price.*`@node def price.*resource\("sixth"\)'):

        class Sixth:
            @node
            def price(self, n: int) -> int:
                return n


class Static:
    """Functions in a class that need no instance are functions."""

    @staticmethod
    @step
    def inner(n: int) -> int:
        return n + 1

    @step
    @staticmethod
    def outer(n: int) -> int:
        return n + 2


class Shop:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def charge(self, n: int) -> str:
        return self._pool.fetch(n) + run_context().id


async def test_static_methods_and_methods_of_an_object_can_be_steps() -> None:
    charge = step(name="charge", timeout=5)(Shop(Pool("shop")).charge)

    @workflow
    async def shops() -> list[Any]:
        return [await Static.inner(1), await Static.outer(1), await charge(7)]

    async with Engine("memory://", [shops]) as engine:
        assert (await engine.run(shops(), id="r")).output == [2, 3, "shop:7r"]
    with pytest.raises(TypeError, match="is a method of an object"):
        step(cpu=True)(Shop(Pool("x")).charge)
