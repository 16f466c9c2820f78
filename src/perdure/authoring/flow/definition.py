"""The definition of a flow: its parts as records, and the keys that each may have. Reads nothing."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from perdure.authoring.flow.tree import Item, Mark
from perdure.kernel.policies.retry import Retry
from perdure.kernel.schedules.schedule import ScheduleSpec

VERSION = 1
# A name of a step, an input or a variable, which expressions can write without quotes.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")
TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
# Names that mean something else in expressions, or belong to perdure's own ops.
RESERVED = frozenset({"vars", "END"})
# Further roots of expressions, which an item of a map cannot be called.
TAKEN = frozenset({"input", "steps", "jobs", "vars", "resources", "env", "run", "secrets", "index", "last", "schedule"})
# The key of the steps that run at the end, and the name of their node.
FINALLY = "finally"


class InputDef(msgspec.Struct, frozen=True, gc=False):
    """An input: its JSON Schema, and its default; `required` if there is none."""

    schema: dict[str, Any]
    required: bool
    has_default: bool
    default: Any
    mark: Mark


class VariableDef(msgspec.Struct, frozen=True, gc=False):
    """A variable: a fixed value, which an environment variable may replace, or the name of a secret."""

    has_default: bool
    default: Any
    env: str
    secret: str
    mark: Mark


class MapDef(msgspec.Struct, frozen=True, gc=False):
    """The list that a step is mapped over, and the name of an item in expressions."""

    over: Item
    name: str
    limit: int | None
    tolerate: float | None
    on_error: Literal["fail", "none", "skip"]


class RepeatDef(msgspec.Struct, frozen=True, gc=False):
    """The condition that ends the repetitions of a step, and their limit; None: as the flow says."""

    until: Item
    most: int | None


class OtherDef(msgspec.Struct, frozen=True, gc=False):
    """The replacement of a step that failed."""

    use: Item
    arguments: Item | None


class LockDef(msgspec.Struct, frozen=True, gc=False):
    """The lock that a step or a job holds while it runs, after waiting for it for at most `wait`."""

    key: Item
    ttl: float
    wait: float | None


class WorkspaceDef(msgspec.Struct, frozen=True, gc=False):
    """The root of the workspaces, of which each run has one, and when that is removed."""

    root: str
    cleanup: Literal["on_success", "always", "never"]
    mark: Mark


class StepDef(msgspec.Struct, frozen=True, gc=False):
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
    # "fail", "skip", the value that replaces the result, or the step that makes it.
    on_error: str | Item | OtherDef
    # The value of a wait that times out.
    on_timeout: Item | None
    map: MapDef | None
    lock: LockDef | None
    # Whether the rest of the job is skipped if the result says "no data".
    skips_job: bool
    # Whether it runs even if nothing needs it.
    must_run: bool
    repeat: RepeatDef | None
    queue: Item | None


class JobDef(msgspec.Struct, frozen=True):
    """A job, as it is written. Its steps run in order, or when their values are there."""

    id: str
    mark: Mark
    steps: tuple[StepDef, ...]
    ids: dict[str, Mark]
    in_order: bool = True
    when: Item | None = None
    needs: tuple[tuple[str, Mark], ...] = ()
    after: tuple[tuple[str, Mark], ...] = ()
    lock: LockDef | None = None
    # The keys that make a difference to a run.
    canonical: Any = None


class ScheduleDef(msgspec.Struct, frozen=True):
    """A schedule, as it is written: when it fires, and what its runs are started with. `id` is that of the schedule."""

    id: str
    mark: Mark
    spec: ScheduleSpec
    input: Item
    queue: str


class Stubs(msgspec.Struct, frozen=True):
    """Replacements in a test: results of steps that are not executed, errors of steps, variables."""

    mock: dict[str, Any] = {}
    fail: dict[str, str] = {}
    vars: dict[str, Any] = {}


class CaseDef(msgspec.Struct, frozen=True):
    """A test case: inputs, replacements of steps and variables, and the expected outcome."""

    name: str
    where: str
    input: dict[str, Any]
    stubs: Stubs
    expect: dict[str, Any]


class FlowDef(msgspec.Struct, frozen=True):
    """A flow, as it is written."""

    name: str
    mark: Mark
    inputs: dict[str, InputDef]
    variables: dict[str, VariableDef]
    # By resource and key.
    resources: dict[str, dict[str, VariableDef]]
    schemas: dict[str, Any]
    steps: tuple[StepDef, ...]
    jobs: tuple[JobDef, ...]
    # The ids of all steps, or of all jobs, including invalid ones.
    ids: dict[str, Mark]
    # The steps that run at the end, whatever has happened.
    final: JobDef | None
    workspace: WorkspaceDef | None
    output: Item | None
    schedules: tuple[ScheduleDef, ...]
    tests: tuple[CaseDef, ...]
    on_failure: Literal["stop", "continue"]
    # Whether only the steps that the output needs run.
    lazy: bool
    # The limit of repetitions for steps that give none.
    max_rounds: int
    # The tree without places, descriptions and other parts that do not matter for a run; and the places of the rest.
    canonical: dict[str, Any]
    places: list[int]


FLOW_KEYS = {
    "perdure": "The version of the format: 1.",
    "name": "The name of the flow: what its runs are runs of.",
    "version": "A label for people; what tells versions apart is the hash of the definition.",
    "description": "What the flow is for.",
    "inputs": "What the flow is started with: a type or a JSON Schema for each name.",
    "variables": "Fixed values, variables of the environment, and secrets.",
    "resources": "Variables that belong together, such as the host, user and password of a database.",
    "profiles": "Other values of variables and resources, by the name of a profile: --profile NAME chooses one.",
    "schemas": "JSON Schemas that others refer to, as {$ref: '#/schemas/NAME'}.",
    "steps": "What is done. A step runs when all that it refers to has ended.",
    "jobs": "In place of steps: groups of steps. A job runs when the jobs have ended that it needs or refers to.",
    "output": "The result of a run.",
    "schedules": "When runs are started, and with which input; `perdure flow deploy` registers them.",
    "tests": "Cases for `perdure flow test`: inputs, results that stand in for steps, and what is expected.",
    "on_failure": "After a failure, `stop` begins nothing more; `continue` runs what does not need what failed.",
    "execution": "`all` runs every step; `lazy` runs what the output needs, and steps with must_run.",
    "max_rounds": "How often a step with `repeat` is repeated at most, unless it says `max`: 1000.",
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
PROFILE_KEYS = ("variables", "resources")
RETRY_KEYS = ("attempts", "initial", "factor", "max", "backoff", "jitter")
REPEAT_KEYS = ("until", "max")
# The limit of repetitions for flows that give none.
MOST_ROUNDS = 1000
MAP_KEYS = ("over", "as", "limit", "tolerate", "on_error")
VARIABLE_KEYS = ("default", "env", "secret", "description")
SCHEDULE_KEYS = {
    "id": "Tells schedules of a flow apart; with only one it may be left out.",
    "cron": "When it fires, as in `0 3 * * *`.",
    "every": "Or how often: 15m.",
    "timezone": "The zone of cron, such as Europe/Berlin; otherwise UTC.",
    "input": "What its runs are started with; expressions see schedule.date, schedule.at and schedule.id.",
    "overlap": "What becomes of a tick while the run before is open: skip, and others.",
    "catch_up": "Which missed ticks fire: skip, one, all or all(10).",
    "jitter": "Each tick is delayed by up to this much.",
    "pause": "Whether it begins paused.",
    "queue": "The queue in which its runs wait for their turn.",
    "description": "What the schedule is for.",
}
TEST_KEYS = ("name", "input", "mock", "fail", "vars", "expect")
EXPECT_KEYS = ("status", "output", "skipped", "error")
STATUSES = ("succeeded", "failed", "waiting")
# The keys that make no difference to a run.
LEFT_OUT = frozenset({"description", "tests", "schedules", "profiles"})
