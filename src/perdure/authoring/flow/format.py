"""The format of a flow: a typed reader of the tree, and the same as JSON Schema for editors. Wires nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from perdure.authoring.flow.tree import Item, Mark, Problems
from perdure.errors import UsageError
from perdure.kernel.hints import did_you_mean
from perdure.kernel.policies.durations import ENDLESS, UNITS, duration, parse_duration
from perdure.kernel.policies.retry import Retry

T = TypeVar("T")

VERSION = 1
# What names steps, inputs and variables: expressions can refer to it without quotes.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")
TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
# Names that mean something else in expressions, or are ops of perdure's own.
RESERVED = frozenset({"vars", "END"})
# The key of what runs in the end, and the name of the node that it is.
FINALLY = "finally"


class InputDef(msgspec.Struct, frozen=True):
    """An input: its JSON Schema, and its default; `required` if there is none."""

    schema: dict[str, Any]
    required: bool
    has_default: bool
    default: Any
    mark: Mark


class VariableDef(msgspec.Struct, frozen=True):
    """A variable: a fixed value, which a variable of the environment may replace, or the name of a secret."""

    has_default: bool
    default: Any
    env: str
    secret: str
    mark: Mark


class MapDef(msgspec.Struct, frozen=True):
    """Over which list a step is mapped, and under which name expressions know an item."""

    over: Item
    name: str
    limit: int | None
    tolerate: float | None
    on_error: Literal["fail", "none", "skip"]


class RepeatDef(msgspec.Struct, frozen=True):
    """Until when a step is repeated, and how often at most."""

    until: Item
    most: int


class OtherDef(msgspec.Struct, frozen=True):
    """What runs in place of a step that failed."""

    use: Item
    arguments: Item | None


class LockDef(msgspec.Struct, frozen=True):
    """The lock that a step or a job holds while it runs; `wait` is how long it waits for it at most."""

    key: Item
    ttl: float
    wait: float | None


class WorkspaceDef(msgspec.Struct, frozen=True):
    """The folder in which each run has one of its own, and when that is removed."""

    root: str
    cleanup: Literal["on_success", "always", "never"]
    mark: Mark


class StepDef(msgspec.Struct, frozen=True):
    """A step, as it is written."""

    id: str
    mark: Mark
    use: Item
    arguments: Item | None
    when: Item | None
    needs: tuple[tuple[str, Mark], ...]
    after: tuple[tuple[str, Mark], ...]
    retry: Retry | None
    timeout: float | None
    # "fail", "skip", the value in place of the result, or what makes that.
    on_error: str | Item | OtherDef
    # The value after a timeout of a wait.
    on_timeout: Item | None
    map: MapDef | None
    lock: LockDef | None
    # Whether the rest of the job is skipped if the result says that there is no data.
    skips_job: bool
    # Whether it runs also where nothing needs it.
    must_run: bool
    repeat: RepeatDef | None
    queue: Item | None


class JobDef(msgspec.Struct, frozen=True):
    """A job, as it is written: steps in their order, or by their data."""

    id: str
    mark: Mark
    steps: tuple[StepDef, ...]
    ids: dict[str, Mark]
    in_order: bool = True
    when: Item | None = None
    needs: tuple[tuple[str, Mark], ...] = ()
    after: tuple[tuple[str, Mark], ...] = ()
    lock: LockDef | None = None
    # What makes a difference to a run.
    canonical: Any = None


class CaseDef(msgspec.Struct, frozen=True):
    """A case: the inputs, the results of steps that are not executed, and what is expected of the run."""

    name: str
    where: str
    input: dict[str, Any]
    mock: dict[str, Any]
    expect: dict[str, Any]


class FlowDef(msgspec.Struct, frozen=True):
    """A flow, as it is written."""

    name: str
    mark: Mark
    inputs: dict[str, InputDef]
    variables: dict[str, VariableDef]
    schemas: dict[str, Any]
    steps: tuple[StepDef, ...]
    jobs: tuple[JobDef, ...]
    # The ids of all steps, or of all jobs, also of those that are wrong.
    ids: dict[str, Mark]
    # What runs in the end, whatever has happened.
    final: JobDef | None
    workspace: WorkspaceDef | None
    output: Item | None
    tests: tuple[CaseDef, ...]
    on_failure: Literal["stop", "continue"]
    # Whether only those steps run that the output needs.
    lazy: bool
    # The tree without places, descriptions and what does not matter for a run.
    canonical: dict[str, Any]


FLOW_KEYS = {
    "perdure": "The version of the format: 1.",
    "name": "The name of the flow: what its runs are runs of.",
    "version": "A label for people; what tells versions apart is the hash of the definition.",
    "description": "What the flow is for.",
    "inputs": "What the flow is started with: a type or a JSON Schema for each name.",
    "variables": "Fixed values, variables of the environment, and secrets.",
    "schemas": "JSON Schemas that others refer to, as {$ref: '#/schemas/NAME'}.",
    "steps": "What is done. A step runs when all that it refers to has ended.",
    "jobs": "In place of steps: groups of steps. A job runs when the jobs have ended that it needs or refers to.",
    "output": "The result of a run.",
    "tests": "Cases for `perdure flow test`: inputs, results that stand in for steps, and what is expected.",
    "on_failure": "After a failure, `stop` begins nothing more; `continue` runs what does not need what failed.",
    "execution": "`all` runs every step; `lazy` runs what the output needs, and steps with must_run.",
    "finally": "Steps that run in the end, in this order, whatever has happened; run.status says what.",
    "workspace": "A folder in which each run has one of its own, run.workspace, and when that is removed.",
}
STEP_KEYS = {
    "id": "The name of the step: steps.ID in expressions, and ID:0 in its runs.",
    "use": "The component: python:module.function, flow:./other.yaml, flow:name, queue:name/step, http, and others.",
    "with": "The arguments of the component.",
    "when": "An expression; the step is skipped where it is false.",
    "needs": "Steps that must have succeeded before; what expressions refer to is needed anyway.",
    "after": "Steps that must have ended before, however they did.",
    "retry": "How often the step is tried, and how long it waits in between.",
    "timeout": "How long an attempt may take, or a wait: 30s, 5m, 3d.",
    "on_error": "What follows the last failure: fail, skip, or in place of the result {value: ...} or {use:, with:}.",
    "on_timeout": "What a wait has for a result if nothing comes in time: {value: ...}.",
    "map": "Runs the step once for each item of a list.",
    "repeat": "Runs the step again until an expression holds, in which `last` is its result.",
    "lock": "A lock that the step holds while it runs, with all of its attempts; no two runs hold it at once.",
    "queue": "The queue whose workers run the step: a function that they have, as in Engine(steps=[function]).",
    "must_run": "With `execution: lazy`, the step runs also if the output does not need it.",
    "on_no_data": "In a job, `skip_job`: after the result {status: no_data} the rest of the job is skipped.",
    "description": "What the step is for.",
}
JOB_KEYS = {
    "id": "The name of the job: jobs.ID.STEP in expressions, and ID:0 in its runs.",
    "steps": "What is done.",
    "in_order": "Whether steps run in the order in which they are written, which is so unless this is false.",
    "needs": "Jobs that must have succeeded before; otherwise the job is blocked.",
    "after": "Jobs that must have ended before, however they did.",
    "when": "An expression; the job is skipped where it is false.",
    "lock": "A lock that the job holds while it runs.",
    "description": "What the job is for.",
}
LOCK_KEYS = ("key", "ttl", "wait")
WORKSPACE_KEYS = ("root", "cleanup")
CLEANUPS = ("on_success", "always", "never")
# How long a lock outlives a run whose process died.
LOCK_TTL = 30.0
RETRY_KEYS = ("attempts", "initial", "factor", "max", "backoff", "jitter")
REPEAT_KEYS = ("until", "max")
# How often a step is repeated at most, unless it says so.
MOST_ROUNDS = 1000
MAP_KEYS = ("over", "as", "limit", "tolerate", "on_error")
VARIABLE_KEYS = ("default", "env", "secret", "description")
TEST_KEYS = ("name", "input", "mock", "expect")
EXPECT_KEYS = ("status", "output", "skipped", "error")
STATUSES = ("succeeded", "failed", "waiting")
# What makes no difference to a run.
_LEFT_OUT = frozenset({"description", "tests"})


def read_flow(root: Item, problems: Problems) -> FlowDef:
    """The definition in a tree, without what is wrong in it. Raises FlowInvalid if it is none at all."""
    found = _Reader(problems).flow(root)
    if found is None:
        problems.stop()
    assert found is not None
    return found


class _Reader:
    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        # The ids of the list that is being read, and those that tests may name.
        self._ids: dict[str, Mark] = {}
        self._known: set[str] = set()
        self._in_job = False

    def flow(self, root: Item) -> FlowDef | None:
        add = self._problems.add
        if not isinstance(root.value, dict):
            add(root.mark, "F002", f"a flow is an object that begins with `perdure: 1`; this is {kind_of(root)}")
            return None
        version = root.value.get("perdure")
        if version is None:
            add(root.mark, "F006", "a flow begins with the version of its format: `perdure: 1`")
        elif version.value != VERSION or isinstance(version.value, bool):
            add(version.mark, "F002", f"the version of the format is {VERSION}; this is {version.plain()!r:.40}")
        self._keys(root, FLOW_KEYS, "a flow", ("name",))
        jobs = "jobs" in root.value
        if jobs and "steps" in root.value:
            add(root.keys["jobs"], "F005", "a flow has steps or jobs, and not both")
        elif not jobs and "steps" not in root.value:
            add(root.mark, "F006", "a flow needs the key 'steps', or 'jobs'")
        name = self._get(root, "name", self._program_name) or "?"
        for key in ("version", "description"):
            self._get(root, key, self._text)
        schemas = self._get(root, "schemas", self._schemas) or {}
        found = self._get(root, "jobs", self._jobs) or () if jobs else ()
        steps = () if jobs else self._steps(root)
        ids, self._ids = self._ids, {}
        final = self._final(root, ids, jobs)
        self._known = {*ids, *(f"{job.id}.{id}" for job in found for id in job.ids), *self._ids}
        return FlowDef(
            name,
            root.mark,
            self._named(root, "inputs", lambda item: self._input(item, schemas)),
            self._named(root, "variables", self._variable),
            schemas,
            steps,
            found,
            ids,
            final,
            self._get(root, "workspace", self._workspace),
            root.value.get("output"),
            self._get(root, "tests", self._tests) or (),
            self._get(root, "on_failure", lambda item: self._one_of(item, ("stop", "continue"))) or "stop",
            self._get(root, "execution", lambda item: self._execution(item, jobs)) or False,
            _canonical(root.plain()),
        )

    # --- parts ------------------------------------------------------------------------------------------------------

    def _schemas(self, item: Item) -> dict[str, Any]:
        if not self._is_object(item, "schemas"):
            return {}
        for one in item.value.values():
            self._check_schema(one)
        return {name: one.plain() for name, one in item.value.items()}

    def _input(self, item: Item, schemas: Mapping[str, Any]) -> InputDef | None:
        if isinstance(item.value, str):
            kind = self._one_of(item, TYPES)
            return InputDef({"type": kind}, True, False, None, item.mark)
        if not self._is_object(item, "an input"):
            return None
        given = item.plain()
        has_default, default = "default" in given, given.get("default")
        required = given.pop("required", not has_default) if isinstance(given.get("required", True), bool) else True
        schema = {key: value for key, value in given.items() if key not in ("default", "description", "schema")}
        if "schema" in given:
            schema = given["schema"] if isinstance(given["schema"], dict) else {}
            self._check_schema(item.value["schema"])
        elif "type" in item.value and isinstance(item.value["type"].value, str):
            self._one_of(item.value["type"], TYPES)
        before = len(self._problems.found)
        self._check_schema(item)
        if len(self._problems.found) == before:
            self._check_default(item, schema, schemas)
        return InputDef(schema, bool(required) and not has_default, has_default, default, item.mark)

    def _check_default(self, item: Item, schema: dict[str, Any], schemas: Mapping[str, Any]) -> None:
        try:
            wrong = flaw(schema, schemas, item.value["default"].plain()) if "default" in item.value else None
            validator(schema, schemas)
        except UsageError as error:
            self._problems.add(item.mark, "F030", str(error))
        else:
            if wrong is not None:
                self._problems.add(item.value["default"].mark, "F030", f"the default does not fit the schema: {wrong}")

    def _check_schema(self, item: Item) -> None:
        """Refuse references to other documents."""
        work = [item]
        while work:
            one = work.pop()
            if isinstance(one.value, dict):
                reference = one.value.get("$ref")
                if reference is not None and not str(reference.value).startswith("#"):
                    self._problems.add(reference.mark, "F030", "a $ref stays in the file, as in '#/schemas/Order'")
                work += one.value.values()
            elif isinstance(one.value, list):
                work += one.value

    def _variable(self, item: Item) -> VariableDef | None:
        if not isinstance(item.value, dict):
            return VariableDef(True, item.plain(), "", "", item.mark)
        self._keys(item, VARIABLE_KEYS, "a variable")
        env, secret = self._get(item, "env", self._name) or "", self._get(item, "secret", self._name) or ""
        if secret and ("default" in item.value or env):
            self._problems.add(item.mark, "F002", "a secret has no default and no env: its name is all there is")
        elif not secret and not env and "default" not in item.value:
            self._problems.add(item.mark, "F006", "a variable needs a default, an env, or a secret")
        default = item.value.get("default")
        return VariableDef(default is not None, default and default.plain(), env, secret, item.mark)

    def _steps(self, root: Item, key: str = "steps", of: str = "a flow") -> tuple[StepDef, ...]:
        item = root.value.get(key)
        if item is None or not self._is_list(item, key):
            return ()
        if not item.value:
            self._problems.add(item.mark, "F002", f"{of} has at least one step")
        return tuple(step for one in item.value if (step := self._step(one)) is not None)

    def _is_list(self, item: Item, what: str) -> bool:
        if not isinstance(item.value, list):
            self._problems.add(item.mark, "F002", f"{what} is a list, each with an id; this is {kind_of(item)}")
        return isinstance(item.value, list)

    def _jobs(self, item: Item) -> tuple[JobDef, ...]:
        if not self._is_list(item, "jobs"):
            return ()
        if not item.value:
            self._problems.add(item.mark, "F002", "a flow has at least one job")
        return tuple(job for one in item.value if (job := self._job(one)) is not None)

    def _job(self, item: Item) -> JobDef | None:
        if not self._is_object(item, "a job"):
            return None
        self._keys(item, JOB_KEYS, "a job", ("id", "steps"))
        id = self._get(item, "id", self._name)
        if id is not None:
            self._take_id(id, item.value["id"].mark, "job")
        self._get(item, "description", self._text)
        in_order = self._get(item, "in_order", self._flag)
        jobs, self._ids, self._in_job = self._ids, {}, True
        steps = self._steps(item, of="a job")
        ids, self._ids, self._in_job = self._ids, jobs, False
        found: dict[str, Any] = {
            "needs": self._get(item, "needs", self._names) or (),
            "after": self._get(item, "after", self._names) or (),
            "lock": self._get(item, "lock", self._lock),
            "canonical": _canonical(item.plain()),
        }
        if id is None:
            return None
        return JobDef(id, item.value["id"].mark, steps, ids, in_order is not False, item.value.get("when"), **found)

    def _final(self, root: Item, ids: Mapping[str, Mark], jobs: bool) -> JobDef | None:
        """The steps of `finally`, as a job."""
        item = root.value.get("finally")
        if item is None:
            return None
        if FINALLY in ids:
            self._problems.add(ids[FINALLY], "F003", f"{FINALLY!r} is the name of what runs in the end")
        steps = self._steps(root, FINALLY, FINALLY)
        for id in () if jobs else ids.keys() & self._ids:
            self._duplicate(id, self._ids[id], ids[id])
        return JobDef(FINALLY, item.mark, steps, self._ids)

    def _workspace(self, item: Item) -> WorkspaceDef | None:
        if not self._is_object(item, "workspace") or not self._keys(item, WORKSPACE_KEYS, "workspace", ("root",)):
            return None
        root = self._get(item, "root", self._text)
        cleanup: Any = self._get(item, "cleanup", lambda one: self._one_of(one, CLEANUPS)) or "on_success"
        if root is not None and (not root or "${{" in root or "\0" in root):
            self._problems.add(item.value["root"].mark, "F014", "root is the name of a folder, without expressions")
            return None
        return None if root is None else WorkspaceDef(root, cleanup, item.mark)

    def _lock(self, item: Item) -> LockDef | None:
        if isinstance(item.value, str):
            return LockDef(item, LOCK_TTL, None)
        if not self._is_object(item, "a lock") or not self._keys(item, LOCK_KEYS, "a lock", ("key",)):
            return None
        ttl = self._get(item, "ttl", self._duration)
        if ttl == 0:
            self._problems.add(item.value["ttl"].mark, "F002", "ttl is how long the lock of a dead run stays: not 0")
        return LockDef(item.value["key"], ttl or LOCK_TTL, self._get(item, "wait", self._duration))

    def _execution(self, item: Item, jobs: bool) -> bool:
        lazy: bool = self._one_of(item, ("all", "lazy")) == "lazy"
        if lazy and jobs:
            self._problems.add(item.mark, "F002", "execution: lazy is for a flow with steps; jobs have needs and when")
        return lazy

    def _no_data(self, item: Item) -> bool:
        if self._one_of(item, ("skip_job",)) and not self._in_job:
            self._problems.add(item.mark, "F002", "on_no_data: skip_job is for the steps of a job")
        return True

    def _step(self, item: Item) -> StepDef | None:
        if not self._is_object(item, "a step"):
            return None
        self._keys(item, STEP_KEYS, "a step", ("id", "use"))
        value = item.value
        id = self._get(item, "id", self._name)
        use = self._get(item, "use", self._component)
        if id is not None:
            self._take_id(id, value["id"].mark)
        self._get(item, "description", self._text)
        found: dict[str, Any] = {
            "needs": self._get(item, "needs", self._names) or (),
            "after": self._get(item, "after", self._names) or (),
            "retry": self._get(item, "retry", self._retry),
            "timeout": self._get(item, "timeout", self._duration),
            "on_error": self._get(item, "on_error", self._on_error) or "fail",
            "on_timeout": self._get(item, "on_timeout", self._on_timeout),
            "map": self._get(item, "map", self._map),
            "lock": self._get(item, "lock", self._lock),
            "skips_job": self._get(item, "on_no_data", self._no_data) or False,
            "must_run": self._get(item, "must_run", self._flag) or False,
            "repeat": self._get(item, "repeat", self._repeat),
            "queue": self._get(item, "queue", lambda one: one if self._text(one) is not None else None),
        }
        if id is None or use is None:
            return None
        return StepDef(
            id=id, mark=value["id"].mark, use=use, arguments=value.get("with"), when=value.get("when"), **found
        )

    def _component(self, item: Item) -> Item | None:
        if isinstance(item.value, str) and item.value:
            return item
        self._problems.add(item.mark, "F002", f"use names a component, as in `use: http`; this is {kind_of(item)}")
        return None

    def _take_id(self, id: str, mark: Mark, what: str = "step") -> None:
        if id in RESERVED:
            self._problems.add(mark, "F002", f"{id!r} is a name of perdure's own; call the {what} otherwise")
        first = self._ids.setdefault(id, mark)
        if first is not mark:
            self._duplicate(id, mark, first)

    def _duplicate(self, id: str, mark: Mark, first: Mark) -> None:
        where = f"{self._problems.file}:{first.line}:{first.column}"
        self._problems.add(mark, "F003", f"duplicate id {id!r}; first at {where}")

    def _retry(self, item: Item) -> Retry | None:
        if isinstance(item.value, int) and not isinstance(item.value, bool):
            item = Item({"attempts": item}, item.mark)
        if not self._is_object(item, "retry") or not self._keys(item, RETRY_KEYS, "retry"):
            return None
        given: dict[str, Any] = {
            key: self._duration(one) if key in ("initial", "max") else one.plain() for key, one in item.value.items()
        }
        try:
            return Retry(**given) if None not in given.values() else None
        except UsageError as error:
            self._problems.add(item.mark, "F002", str(error))
            return None

    def _map(self, item: Item) -> MapDef | None:
        if not self._is_object(item, "map") or not self._keys(item, MAP_KEYS, "map", ("over",)):
            return None
        limit = self._get(item, "limit", lambda one: self._count(one, 1))
        tolerate = self._get(item, "tolerate", self._tolerate)
        on_error = self._get(item, "on_error", lambda one: self._one_of(one, ("fail", "none", "skip")))
        if tolerate is not None and on_error == "fail":
            self._problems.add(item.value["tolerate"].mark, "F002", "with on_error: fail no item may fail")
        default: Literal["fail", "none"] = "fail" if tolerate is None else "none"
        name = self._get(item, "as", self._name) or "item"
        return MapDef(item.value["over"], name, limit, tolerate, on_error or default)

    def _repeat(self, item: Item) -> RepeatDef | None:
        if not self._is_object(item, "repeat") or not self._keys(item, REPEAT_KEYS, "repeat", ("until",)):
            return None
        return RepeatDef(item.value["until"], self._get(item, "max", lambda one: self._count(one, 1)) or MOST_ROUNDS)

    def _tolerate(self, item: Item) -> float | None:
        if isinstance(item.value, str) and (found := _SHARE.fullmatch(item.value)) and float(found[1]) <= 100:
            return float(found[1]) / 100
        if isinstance(item.value, int) and not isinstance(item.value, bool) and item.value >= 0:
            return item.value
        self._problems.add(item.mark, "F002", "tolerate is how many items may fail: a number, or a share such as 1%")
        return None

    def _on_error(self, item: Item) -> str | Item | OtherDef | None:
        if isinstance(item.value, dict) and "use" in item.value:
            right = self._keys(item, ("use", "with"), "on_error with `use`")
            use = self._component(item.value["use"])
            return OtherDef(use, item.value.get("with")) if right and use is not None else None
        if isinstance(item.value, dict):
            return self._value_in(item, "on_error")
        found: str | None = self._one_of(item, ("fail", "skip"), ", {value: ...} or {use: ..., with: ...}")
        return found

    def _on_timeout(self, item: Item) -> Item | None:
        return self._value_in(item, "on_timeout") if self._is_object(item, "on_timeout") else None

    def _value_in(self, item: Item, what: str) -> Item | None:
        found: Item | None = item.value.get("value") if self._keys(item, ("value",), what, ("value",)) else None
        return found

    def _tests(self, item: Item) -> tuple[CaseDef, ...]:
        if not isinstance(item.value, list):
            self._problems.add(item.mark, "F002", f"tests is a list, each with a name; this is {kind_of(item)}")
            return ()
        return tuple(test for one in item.value if (test := self._test(one)) is not None)

    def _test(self, item: Item) -> CaseDef | None:
        if not self._is_object(item, "a test") or not self._keys(item, TEST_KEYS, "a test", ("name", "expect")):
            return None
        name = self._get(item, "name", self._text)
        given = {key: item.value.get(key, Item({}, item.mark)) for key in ("input", "mock", "expect")}
        wrong = [key for key, one in given.items() if not self._is_object(one, f"{key} of a test")]
        if wrong:
            return None
        for id in given["mock"].value:
            if id not in self._known:
                hint = did_you_mean(id, self._known)
                self._problems.add(given["mock"].keys[id], "F012", f"unknown step {id!r} in mock; {hint}")
        expect = given["expect"]
        self._keys(expect, EXPECT_KEYS, "expect")
        self._get(expect, "status", lambda one: self._one_of(one, STATUSES))
        self._get(expect, "error", self._text)
        for id, mark in self._get(expect, "skipped", self._names) or ():
            if id not in self._known:
                self._problems.add(mark, "F012", f"unknown step {id!r} in skipped; {did_you_mean(id, self._known)}")
        where = f"{self._problems.file}:{item.mark.line}:{item.mark.column}"
        plain = {key: one.plain() for key, one in given.items()}
        return None if name is None else CaseDef(name, where, **plain)

    # --- kinds of values --------------------------------------------------------------------------------------------

    def _get(self, item: Item, key: str, read: Callable[[Item], T | None]) -> T | None:
        """What a key holds; None if it is not there, or wrong."""
        inner = item.value.get(key)
        return None if inner is None else read(inner)

    def _named(self, root: Item, key: str, read: Callable[[Item], T | None]) -> dict[str, T]:
        item = root.value.get(key)
        found: dict[str, T] = {}
        if item is None or not self._is_object(item, key):
            return found
        for name, one in item.value.items():
            if not _NAME.fullmatch(name):
                self._problems.add(item.keys.get(name, one.mark), "F002", _no_name(name))
            value = read(one)
            if value is not None:
                found[name] = value
        return found

    def _keys(self, item: Item, known: Any, what: str, needed: tuple[str, ...] = ()) -> bool:
        """Whether an object has known keys alone, and those that are needed."""
        right = True
        for key in item.value:
            if key not in known:
                hint = did_you_mean(key, known)
                self._problems.add(item.keys.get(key, item.mark), "F005", f"{what} has no key {key!r}; {hint}")
                right = False
        for key in needed:
            if key not in item.value:
                self._problems.add(item.mark, "F006", f"{what} needs the key {key!r}")
                right = False
        return right

    def _is_object(self, item: Item, what: str) -> bool:
        if not isinstance(item.value, dict):
            self._problems.add(item.mark, "F002", f"{what} is an object; this is {kind_of(item)}")
        return isinstance(item.value, dict)

    def _text(self, item: Item) -> str | None:
        if isinstance(item.value, str):
            return item.value
        self._problems.add(item.mark, "F002", f"this is to be text, and is {kind_of(item)}; write it in quotes")
        return None

    def _name(self, item: Item) -> str | None:
        text = self._text(item)
        if text is not None and not _NAME.fullmatch(text):
            self._problems.add(item.mark, "F002", _no_name(text))
            return None
        return text

    def _program_name(self, item: Item) -> str | None:
        text = self._text(item)
        if text is not None and (not _PROGRAM.fullmatch(text) or len(text) > 100 or text.startswith("perdure.")):
            self._problems.add(item.mark, "F002", f"{text!r:.80} is no name; use letters, digits, _, - and .")
            return None
        return text

    def _names(self, item: Item) -> tuple[tuple[str, Mark], ...] | None:
        items = item.value if isinstance(item.value, list) else [item]
        if all(isinstance(one.value, str) for one in items):
            return tuple((one.value, one.mark) for one in items)
        self._problems.add(item.mark, "F002", f"this is a list of ids of steps; this is {kind_of(item)}")
        return None

    def _duration(self, item: Item) -> float | None:
        value = item.value
        length = parse_duration(value, bare=False) if isinstance(value, str) else duration(value)
        if length is None or not 0 <= length < ENDLESS:
            units = ", ".join(f"5{unit}" for unit in UNITS)
            self._problems.add(item.mark, "F002", f"{value!r:.40} is no length of time; write seconds, or {units}")
            return None
        return length

    def _flag(self, item: Item) -> bool | None:
        if isinstance(item.value, bool):
            return item.value
        self._problems.add(item.mark, "F002", f"this is true or false; this is {kind_of(item)}")
        return None

    def _count(self, item: Item, least: int) -> int | None:
        value = item.value
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        self._problems.add(item.mark, "F002", f"this is a whole number from {least} on; this is {kind_of(item)}")
        return None

    def _one_of(self, item: Item, known: tuple[str, ...], more: str = "") -> Any:
        if item.value in known:
            return item.value
        listed = ", ".join(known) + more
        hint = f"; {did_you_mean(item.value, known)}" if isinstance(item.value, str) else ""
        self._problems.add(item.mark, "F002", f"this is one of {listed}{hint}")
        return None


def kind_of(item: Item) -> str:
    """What an item is, in words."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return kinds.get(type(item.value), "empty")


def _no_name(text: str) -> str:
    return f"{text!r:.80} is no name; use letters, digits and _, and begin with no digit"


def _canonical(value: Any) -> Any:
    """The tree in one form: what makes no difference to a run is left out, and steps keep their order."""
    found = {key: inner for key, inner in value.items() if key not in _LEFT_OUT}
    for key in ("steps", "jobs", FINALLY):
        if isinstance(found.get(key), list):
            found[key] = [_canonical(one) if isinstance(one, dict) else one for one in found[key]]
    return found


# --- JSON Schema ----------------------------------------------------------------------------------------------------


def whole_schema(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with those that it may refer to."""
    return {**schema, "schemas": dict(schemas)} if schemas else dict(schema)


def validator(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """What validates values of a schema. Raises UsageError for what is no schema. Nothing is fetched."""
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(whole_schema(schema, schemas), retriever=_refuse)
    except ValueError as error:
        raise UsageError(f"this is no JSON Schema: {str(error).partition(chr(10))[0]}") from None


def _refuse(address: str) -> Any:
    raise ValueError(f"{address} is not in the file")


def flaw(schema: Mapping[str, Any], schemas: Mapping[str, Any], value: Any) -> str | None:
    """Why a value does not fit a schema; None if it does."""
    for error in validator(schema, schemas).iter_errors(value):
        at = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path).lstrip(".")
        message: str = error.message
        return f"{at}: {message}" if at else message
    return None


def schema() -> dict[str, Any]:
    """The format as JSON Schema, for editors."""
    text = {"type": "string"}
    spoken = {"type": "string", "pattern": r"^[0-9.]+ *(ms|s|m|min|h|d|w)$"}
    length = {"anyOf": [{"type": "number", "minimum": 0}, spoken]}
    name = {"type": "string", "pattern": f"^{_NAME.pattern}$"}
    ids = {"anyOf": [text, {"type": "array", "items": text}]}
    value = _object({"value": {}}, ("value",))
    retry: dict[str, Any] = {
        "attempts": {"type": "integer", "minimum": 1},
        "initial": length,
        "factor": {"type": "number", "minimum": 1},
        "max": length,
        "backoff": {"enum": ["exponential", "linear", "none"]},
        "jitter": {"type": "boolean"},
    }
    mapped: dict[str, Any] = {
        "over": {},
        "as": name,
        "limit": {"type": "integer", "minimum": 1},
        "tolerate": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^[0-9.]+%$"}]},
        "on_error": {"enum": ["fail", "none", "skip"]},
    }
    held: dict[str, Any] = {"key": text, "ttl": length, "wait": length}
    lock = {"anyOf": [text, _object(held, ("key",))]}
    variable: dict[str, Any] = {"default": {}, "env": name, "secret": name, "description": text}
    used: dict[str, Any] = {"type": "string", "minLength": 1}
    step: dict[str, Any] = {
        "id": {**name, "not": {"enum": sorted(RESERVED)}},
        "use": used,
        "with": {},
        "when": {},
        "needs": ids,
        "after": ids,
        "retry": {"anyOf": [{"type": "integer", "minimum": 1}, _object(retry)]},
        "timeout": length,
        "on_error": {"anyOf": [{"enum": ["fail", "skip"]}, value, _object({"use": used, "with": {}}, ("use",))]},
        "on_timeout": value,
        "map": _object(mapped, ("over",)),
        "lock": lock,
        "on_no_data": {"enum": ["skip_job"]},
        "must_run": {"type": "boolean"},
        "queue": {"type": "string", "minLength": 1},
        "repeat": _object({"until": {}, "max": {"type": "integer", "minimum": 1}}, ("until",)),
        "description": text,
    }
    steps = {"type": "array", "minItems": 1, "items": _object(step, ("id", "use"), STEP_KEYS)}
    job: dict[str, Any] = {
        "id": step["id"],
        "steps": steps,
        "in_order": {"type": "boolean"},
        "needs": ids,
        "after": ids,
        "when": {},
        "lock": lock,
        "description": text,
    }
    workspace: dict[str, Any] = {"root": {"type": "string", "minLength": 1}, "cleanup": {"enum": list(CLEANUPS)}}
    expect: dict[str, Any] = {"status": {"enum": list(STATUSES)}, "output": {}, "skipped": ids, "error": text}
    test: dict[str, Any] = {
        "name": text,
        "input": {"type": "object"},
        "mock": {"type": "object"},
        "expect": _object(expect),
    }
    flow: dict[str, Any] = {
        "perdure": {"const": VERSION},
        "name": {"type": "string", "pattern": f"^{_PROGRAM.pattern}$", "maxLength": 100},
        "version": text,
        "description": text,
        "inputs": {
            "type": "object",
            "propertyNames": name,
            "additionalProperties": {"anyOf": [{"enum": list(TYPES)}, {"type": "object"}]},
        },
        "variables": {
            "type": "object",
            "propertyNames": name,
            "additionalProperties": {"if": {"type": "object"}, "then": _object(variable)},
        },
        "schemas": {"type": "object"},
        "steps": steps,
        "jobs": {"type": "array", "minItems": 1, "items": _object(job, ("id", "steps"), JOB_KEYS)},
        "output": {},
        "tests": {"type": "array", "items": _object(test, ("name", "expect"))},
        "on_failure": {"enum": ["stop", "continue"]},
        "execution": {"enum": ["all", "lazy"]},
        "finally": steps,
        "workspace": _object(workspace, ("root",)),
    }
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A flow of perdure"}
    either = {"oneOf": [{"required": ["steps"]}, {"required": ["jobs"]}]}
    return {**about, **_object(flow, ("perdure", "name"), FLOW_KEYS), **either}


def _object(
    keys: Mapping[str, dict[str, Any]], required: tuple[str, ...] = (), about: Mapping[str, str] | None = None
) -> dict[str, Any]:
    described = {key: {**one, "description": about[key]} if about else one for key, one in keys.items()}
    found = {"type": "object", "properties": described, "additionalProperties": False}
    return {**found, "required": list(required)} if required else found
