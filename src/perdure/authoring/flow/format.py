"""Read the tree of a file as a definition, and collect all problems. Wires nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from perdure.authoring.flow.definition import (
    CLEANUPS,
    EXPECT_KEYS,
    FINALLY,
    FLOW_KEYS,
    JOB_KEYS,
    LEFT_OUT,
    LOCK_KEYS,
    LOCK_TTL,
    MAP_KEYS,
    MOST_ROUNDS,
    NAME,
    PROFILE_KEYS,
    PROGRAM,
    REPEAT_KEYS,
    RESERVED,
    RETRY_KEYS,
    SCHEDULE_KEYS,
    SHARE,
    STATUSES,
    STEP_KEYS,
    TAKEN,
    TEST_KEYS,
    TYPES,
    VARIABLE_KEYS,
    VERSION,
    WORKSPACE_KEYS,
    CaseDef,
    FlowDef,
    InputDef,
    JobDef,
    LockDef,
    MapDef,
    OtherDef,
    RepeatDef,
    ScheduleDef,
    StepDef,
    Stubs,
    VariableDef,
    WorkspaceDef,
)
from perdure.authoring.flow.scheduled import tried
from perdure.authoring.flow.schemas import check_schema, flaw
from perdure.authoring.flow.tree import Item, Mark, Problems, fields, places
from perdure.authoring.flow.values import is_form
from perdure.errors import UsageError
from perdure.kernel.hints import did_you_mean
from perdure.kernel.policies.durations import ENDLESS, UNITS, duration, parse_duration
from perdure.kernel.policies.lock_keys import check_key
from perdure.kernel.policies.retry import Retry
from perdure.kernel.policies.start_options import placed
from perdure.kernel.schedules.schedule import schedule_spec

T = TypeVar("T")


def read_flow(root: Item, problems: Problems) -> FlowDef:
    """The definition in a tree, without its invalid parts. Raises FlowInvalid if the tree is no flow at all."""
    found = _Reader(problems).flow(root)
    if found is None:
        problems.stop()
    assert found is not None
    return found


class _Reader:
    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        # The ids of the list that is being read, and the ids that tests may name.
        self._ids: dict[str, Mark] = {}
        self._known: set[str] = set()
        self._variables: set[str] = set()
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
        elif next(iter(root.value)) != "perdure":
            self._problems.warn(
                root.keys["perdure"], "F006", "`perdure: 1` comes first, so that a reader knows the rest"
            )
        self._keys(root, FLOW_KEYS, "a flow", ("name",))
        self._get(root, "profiles", lambda item: self._profiles(item, root))
        jobs = "jobs" in root.value
        if jobs and "steps" in root.value:
            add(root.keys["jobs"], "F005", "a flow has steps or jobs, and not both")
        elif not jobs and "steps" not in root.value:
            add(root.mark, "F006", "a flow needs the key 'steps', or 'jobs'")
        name = self._get(root, "name", self._program_name) or "?"
        for key in ("version", "description"):
            self._get(root, key, self._text)
        schemas = self._get(root, "schemas", self._schemas) or {}
        inputs = self._named(root, "inputs", lambda item: self._input(item, schemas))
        found = self._get(root, "jobs", self._jobs) or () if jobs else ()
        steps = () if jobs else self._steps(root)
        ids, self._ids = self._ids, {}
        final = self._final(root, ids, jobs)
        self._known = {*ids, *(f"{job.id}.{id}" for job in found for id in job.ids), *self._ids}
        variables, resources = self._named(root, "variables", self._variable), self._resources(root)
        self._variables = {*variables, *(f"{name}.{key}" for name, values in resources.items() for key in values)}
        canonical = _canonical(root.plain())
        return FlowDef(
            name,
            root.mark,
            inputs,
            variables,
            resources,
            schemas,
            steps,
            found,
            ids,
            final,
            self._get(root, "workspace", self._workspace),
            root.value.get("output"),
            self._schedules(root, name, inputs, schemas),
            self._get(root, "tests", self._tests) or (),
            self._get(root, "on_failure", lambda item: self._one_of(item, ("stop", "continue"))) or "stop",
            self._get(root, "execution", lambda item: self._execution(item, jobs)) or False,
            self._get(root, "max_rounds", lambda item: self._count(item, 1)) or MOST_ROUNDS,
            canonical,
            places(root, canonical),
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
        before = len(self._problems.found)
        if "schema" in given:
            schema = given["schema"] if isinstance(given["schema"], dict) else {}
            self._check_schema(item.value["schema"])
        elif "type" in item.value and isinstance(item.value["type"].value, str):
            self._one_of(item.value["type"], TYPES)
        self._check_schema(item)
        if len(self._problems.found) == before:
            self._check_default(item, schema, schemas)
        if len(self._problems.found) > before:
            schema = {}  # no value is checked against a schema that was refused
        return InputDef(schema, bool(required) and not has_default, has_default, default, item.mark)

    def _check_default(self, item: Item, schema: dict[str, Any], schemas: Mapping[str, Any]) -> None:
        try:
            check_schema(schema, schemas)
            wrong = flaw(schema, schemas, item.value["default"].plain()) if "default" in item.value else None
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
        elif not item.value.keys() & {"secret", "env", "default"}:
            self._problems.add(item.mark, "F006", "a variable needs a default, an env, or a secret")
        default = item.value.get("default")
        return VariableDef(default is not None, default and default.plain(), env, secret, item.mark)

    def _resources(self, root: Item) -> dict[str, dict[str, VariableDef]]:
        names = fields(root.value.get("resources"))
        found = self._named(root, "resources", lambda item: item if self._is_object(item, "a resource") else None)
        return {name: self._named(root.value["resources"], name, self._of_resource) for name in found if name in names}

    def _of_resource(self, item: Item) -> VariableDef | None:
        """A value of a resource. An object with neither `env` nor `secret` is a plain value."""
        if isinstance(item.value, dict) and not item.value.keys() & {"env", "secret"}:
            return VariableDef(True, item.plain(), "", "", item.mark)
        return self._variable(item)

    def _profiles(self, item: Item, root: Item) -> None:
        """Note the problems of all profiles, chosen or not."""
        for name in self._named(root, "profiles", lambda one: one if self._is_object(one, "a profile") else None):
            profile = item.value[name]
            self._keys(profile, PROFILE_KEYS, "a profile")
            known = fields(root.value.get("variables"))
            self._check_known(fields(profile.value.get("variables")), profile, "variables", known)
            self._named(profile, "variables", self._variable)
            resources = fields(root.value.get("resources"))
            for key, one in self._check_known(
                fields(profile.value.get("resources")), profile, "resources", resources
            ).items():
                self._check_known(fields(one), profile.value["resources"], key, fields(resources[key]))
            self._resources(profile)

    def _check_known(
        self, given: dict[str, Item], holder: Item, key: str, known: Mapping[str, Item]
    ) -> dict[str, Item]:
        """The known keys with their values. Unknown keys are noted."""
        keys = holder.value[key].keys if given else {}
        for name in given.keys() - known.keys():
            hint = did_you_mean(name, known)
            self._problems.add(keys.get(name, holder.mark), "F013", f"the flow itself has no {name!r} here; {hint}")
        return {name: one for name, one in given.items() if name in known}

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
        if FINALLY in ids and ("finally" in root.value or "workspace" in root.value):
            self._problems.add(ids[FINALLY], "F003", f"{FINALLY!r} is the name of what runs in the end")
        item = root.value.get("finally")
        if item is None:
            return None
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
            self._check_key(item)
            return LockDef(item, LOCK_TTL, None)
        if not self._is_object(item, "a lock") or not self._keys(item, LOCK_KEYS, "a lock", ("key",)):
            return None
        self._check_key(item.value["key"])
        ttl = self._get(item, "ttl", self._duration)
        if ttl == 0:
            self._problems.add(item.value["ttl"].mark, "F002", "ttl is how long the lock of a dead run stays: not 0")
        return LockDef(item.value["key"], ttl or LOCK_TTL, self._get(item, "wait", self._duration))

    def _check_key(self, item: Item) -> None:
        """Note an invalid key of a lock, if it is constant."""
        if is_form(item) or (isinstance(item.value, str) and "${{" in item.value):
            return
        try:
            check_key(item.plain())
        except UsageError as error:
            self._problems.add(item.mark, "F002", str(error))

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
        if name in TAKEN:
            self._problems.add(
                item.value["as"].mark, "F002", f"{name!r} has a meaning in expressions; call items otherwise"
            )
        over = item.value["over"]
        if not isinstance(over.value, list | str) and not is_form(over):
            self._problems.add(
                over.mark, "F002", f"over is a list, or an expression that gives one; this is {kind_of(over)}"
            )
        return MapDef(item.value["over"], name, limit, tolerate, on_error or default)

    def _repeat(self, item: Item) -> RepeatDef | None:
        if not self._is_object(item, "repeat") or not self._keys(item, REPEAT_KEYS, "repeat", ("until",)):
            return None
        return RepeatDef(item.value["until"], self._get(item, "max", lambda one: self._count(one, 1)))

    def _tolerate(self, item: Item) -> float | None:
        if isinstance(item.value, str) and (found := SHARE.fullmatch(item.value)) and float(found[1]) <= 100:
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

    def _schedules(
        self, root: Item, flow: str, inputs: Mapping[str, InputDef], schemas: Mapping[str, Any]
    ) -> tuple[ScheduleDef, ...]:
        item = root.value.get("schedules")
        if item is None or not self._is_list(item, "schedules"):
            return ()
        found: dict[str, ScheduleDef] = {}
        ids: dict[str, Mark] = {}
        for one in item.value:
            if not self._is_object(one, "a schedule"):
                continue
            self._keys(one, SCHEDULE_KEYS, "a schedule")
            id = self._get(one, "id", self._name)
            if id is None and "id" not in one.value and len(item.value) > 1:
                self._problems.add(one.mark, "F006", "several schedules of a flow need an id each")
            whole = flow if id is None else f"{flow}.{id}"
            input = one.value.get("input", Item({}, one.mark))
            if self._is_object(input, "the input of a schedule"):
                given = tried(input, self._problems, whole)
                if given is not None:
                    self._check_given(given, input, inputs, schemas)
            if id is not None and (first := ids.setdefault(id, one.value["id"].mark)) is not one.value["id"].mark:
                self._duplicate(id, one.value["id"].mark, first)
            if (schedule := self._schedule(one, whole, input)) is not None:
                found[whole] = schedule
        return tuple(found.values())

    def _schedule(self, item: Item, id: str, input: Item) -> ScheduleDef | None:
        value = item.value
        queue = self._get(item, "queue", self._text) or ""
        given: dict[str, Any] = {
            key: self._get(item, key, read)
            for key, read in (
                ("cron", self._text),
                ("every", self._duration),
                ("timezone", self._text),
                ("overlap", self._text),
                ("catch_up", self._text),
                ("jitter", self._duration),
                ("pause", self._flag),
            )
            if key in value
        }
        self._get(item, "description", self._text)
        if None in given.values():
            return None
        try:
            return ScheduleDef(id, item.mark, schedule_spec(**given), input, placed(queue or None, None, 0).queue)
        except UsageError as error:
            self._problems.add(item.mark, "F002", str(error))
            return None

    def _check_given(
        self, given: Mapping[str, Any], item: Item, inputs: Mapping[str, InputDef], schemas: Mapping[str, Any]
    ) -> None:
        """Note values that the inputs of a flow do not accept."""
        for name, one in given.items():
            known = inputs.get(name)
            if known is None:
                hint = did_you_mean(name, inputs)
                self._problems.add(item.keys.get(name, item.mark), "F013", f"there is no input {name!r}; {hint}")
            elif (wrong := flaw(known.schema, schemas, one)) is not None:
                self._problems.add(item.value[name].mark, "F030", f"it does not fit the input {name}: {wrong}")
        missing = [name for name, one in inputs.items() if one.required and name not in given]
        if missing:
            self._problems.add(item.mark, "F006", f"the input lacks {', '.join(map(repr, missing))}")

    def _tests(self, item: Item) -> tuple[CaseDef, ...]:
        if not isinstance(item.value, list):
            self._problems.add(item.mark, "F002", f"tests is a list, each with a name; this is {kind_of(item)}")
            return ()
        return tuple(test for one in item.value if (test := self._test(one)) is not None)

    def _test(self, item: Item) -> CaseDef | None:
        if not self._is_object(item, "a test") or not self._keys(item, TEST_KEYS, "a test", ("name", "expect")):
            return None
        name = self._get(item, "name", self._text)
        given = {key: item.value.get(key, Item({}, item.mark)) for key in ("input", "mock", "fail", "vars", "expect")}
        wrong = [key for key, one in given.items() if not self._is_object(one, f"{key} of a test")]
        if wrong:
            return None
        for key in ("mock", "fail"):
            for id in given[key].value.keys() - self._known:
                hint = did_you_mean(id, self._known)
                self._problems.add(given[key].keys[id], "F012", f"unknown step {id!r} in {key}; {hint}")
        for message in given["fail"].value.values():
            self._text(message)
        for name in given["vars"].value.keys() - self._variables:
            hint = did_you_mean(name, self._variables)
            self._problems.add(given["vars"].keys[name], "F013", f"unknown variable {name!r} in vars; {hint}")
        expect = given["expect"]
        self._keys(expect, EXPECT_KEYS, "expect")
        self._get(expect, "status", lambda one: self._one_of(one, STATUSES))
        self._get(expect, "error", self._text)
        for id, mark in self._get(expect, "skipped", self._names) or ():
            if id not in self._known:
                self._problems.add(mark, "F012", f"unknown step {id!r} in skipped; {did_you_mean(id, self._known)}")
        where = f"{self._problems.file}:{item.mark.line}:{item.mark.column}"
        plain = {key: one.plain() for key, one in given.items()}
        stubs = Stubs(plain["mock"], plain["fail"], plain["vars"])
        return None if name is None else CaseDef(name, where, plain["input"], stubs, plain["expect"])

    # --- kinds of values --------------------------------------------------------------------------------------------

    def _get(self, item: Item, key: str, read: Callable[[Item], T | None]) -> T | None:
        """The value of a key; None if it is missing or invalid."""
        inner = item.value.get(key)
        return None if inner is None else read(inner)

    def _named(self, root: Item, key: str, read: Callable[[Item], T | None]) -> dict[str, T]:
        item = root.value.get(key)
        found: dict[str, T] = {}
        if item is None or not self._is_object(item, key):
            return found
        for name, one in item.value.items():
            if not NAME.fullmatch(name):
                self._problems.add(item.keys.get(name, one.mark), "F002", _no_name(name))
            value = read(one)
            if value is not None:
                found[name] = value
        return found

    def _keys(self, item: Item, known: Any, what: str, needed: tuple[str, ...] = ()) -> bool:
        """Whether an object has only known keys, and all required ones."""
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
        if text is not None and not NAME.fullmatch(text):
            self._problems.add(item.mark, "F002", _no_name(text))
            return None
        return text

    def _program_name(self, item: Item) -> str | None:
        text = self._text(item)
        if text is not None and (not PROGRAM.fullmatch(text) or len(text) > 100 or text.startswith("perdure.")):
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
    """The kind of an item, in words."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return kinds.get(type(item.value), "empty")


def _no_name(text: str) -> str:
    return f"{text!r:.80} is no name; use letters, digits and _, and begin with no digit"


def _canonical(value: Any) -> Any:
    """The tree in canonical form: without parts that make no difference to a run, and with the steps in order."""
    found = {key: inner for key, inner in value.items() if key not in LEFT_OUT}
    for key in ("steps", "jobs", FINALLY):
        if isinstance(found.get(key), list):
            found[key] = [_canonical(one) if isinstance(one, dict) else one for one in found[key]]
    return found
