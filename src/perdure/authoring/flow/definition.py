"""What a flow says: its parts as records, and the keys that each may have. Reads nothing."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from perdure.authoring.flow.tree import Item, Mark
from perdure.kernel.policies.retry import Retry
from perdure.kernel.schedules.schedule import ScheduleSpec

VERSION = 1
# What names steps, inputs and variables: expressions can refer to it without quotes.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")
TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
# Names that mean something else in expressions, or are ops of perdure's own.
RESERVED = frozenset({"vars", "END"})
# What else expressions begin with: an item of a map has another name.
TAKEN = frozenset({"input", "steps", "jobs", "vars", "resources", "env", "run", "secrets", "index", "last", "schedule"})
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
    """Until when a step is repeated, and how often at most; None: as the flow says."""

    until: Item
    most: int | None


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


class ScheduleDef(msgspec.Struct, frozen=True):
    """A schedule, as it is written: when it fires, and what its runs are started with. `id` is that of the schedule."""

    id: str
    mark: Mark
    spec: ScheduleSpec
    input: Item
    queue: str


class Stubs(msgspec.Struct, frozen=True):
    """What stands in for the world in a test: results of steps that are not executed, errors of steps, variables."""

    mock: dict[str, Any] = {}
    fail: dict[str, str] = {}
    vars: dict[str, Any] = {}


class CaseDef(msgspec.Struct, frozen=True):
    """A case: the inputs, what stands in for steps and variables, and what is expected of the run."""

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
    # The ids of all steps, or of all jobs, also of those that are wrong.
    ids: dict[str, Mark]
    # What runs in the end, whatever has happened.
    final: JobDef | None
    workspace: WorkspaceDef | None
    output: Item | None
    schedules: tuple[ScheduleDef, ...]
    tests: tuple[CaseDef, ...]
    on_failure: Literal["stop", "continue"]
    # Whether only those steps run that the output needs.
    lazy: bool
    # How often a step is repeated at most, unless it says so.
    max_rounds: int
    # The tree without places, descriptions and what does not matter for a run; and the places of what is left.
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
# How often a step is repeated at most, unless the flow says so.
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
# What makes no difference to a run.
LEFT_OUT = frozenset({"description", "tests", "schedules", "profiles"})
