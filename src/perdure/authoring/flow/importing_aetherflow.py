"""Translate flows of Aetherflow: jobs stay jobs, processes become commands, locks become keys of steps."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from perdure.authoring.flow.expressions import Expression, Wrong
from perdure.authoring.flow.importing import (
    LEFT_OUT,
    TODO,
    Names,
    escaped,
    head,
    inside,
    literal,
    lone,
    path_text,
    program_name,
    quoted,
    todo_name,
)
from perdure.authoring.flow.tree import Item, Mark, Problems, elements, fields, made, text

_TOKEN = re.compile(r"\{\{\s*([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\s*(?::([^{}]*))?\}\}")
# Variables that look secret, and must not be in a journal.
_SECRET = re.compile(r"(?i)passw|secret|token|api_?key|private_?key|credential")
# Bounds the expansion of outputs that refer to outputs.
MOST_EXPANSIONS = 10_000
_PROCESS_KEYS = (
    *("command", "cmd", "args", "shell", "cwd", "env", "inherit_env", "timeout_seconds", "kill_grace_seconds"),
    *("log", "retry", "success", "idempotency"),
)


class Scope(NamedTuple):
    """The place of a template: its job, the names of steps and of the result there, and whether it is in `with`."""

    job: str
    steps: str = "steps"
    result: str = ""
    arguments: bool = False


class Piece(NamedTuple):
    """A text or an expression in a template."""

    text: str
    is_expression: bool = False


class Translation:
    """One flow of Aetherflow."""

    def __init__(self, root: Item, problems: Problems) -> None:
        self._root, self._problems = root, problems
        self._flow = fields(root.value.get("flow"))
        self._resources = fields(root.value.get("resources"))
        self._jobs = {
            one.value["id"].value: one
            for one in elements(root.value.get("jobs"))
            if isinstance(one.value, dict) and "id" in one.value and isinstance(one.value["id"].value, str)
        }
        self._names = Names(problems, "job")
        self._names.add(one.value["id"] for one in self._jobs.values())
        self._steps: dict[str, Names] = {}
        # By job and output: the step that promotes it, and its template.
        self._outputs: dict[tuple[str, str], tuple[str, Item]] = {}
        for id, job in self._jobs.items():
            names = self._steps[id] = Names(problems, "step")
            for step in elements(job.value.get("steps")):
                names.add([fields(step).get("id")])
                for key, template in fields(fields(step).get("outputs")).items():
                    self._outputs[id, key] = (str(fields(step)["id"].value) if "id" in fields(step) else "", template)
        # By environment variable and default: the variable of the flow.
        self._variables: dict[tuple[str, str | None, bool], str] = {}
        self._variable_names = Names(problems, "variable")
        self._warned_of_environment = False
        self._needs_workspace = False
        # Outputs that are being translated, to detect one that refers to itself.
        self._expanding: set[tuple[str, str]] = set()
        self._expansions = 0
        # The place of the template that is being translated.
        self._mark = root.mark

    def flow(self) -> Item:
        """The flow in perdure's format."""
        root, value = self._root, self._root.value
        found = head(program_name(self._flow.get("id"), self._problems), root)
        if "description" in self._flow:
            found["description"] = self._flow["description"]
        self._report_flow()
        for key, one in value.items():
            if key not in ("version", "flow", "resources", "jobs"):
                self._left_out(root.keys.get(key, one.mark), f"{key!r} of a file")
        for one in self._resources.values():
            if "profile" in fields(one):
                mark = fields(one)["profile"].mark
                self._problems.warn(mark, LEFT_OUT, "a profile is in another file; write what it says under variables")
        jobs = [made(self._job(id, job), job.mark) for id, job in self._jobs.items()]
        for former, job in itertools.pairwise(jobs):  # Aetherflow runs one after another
            name = former.value["id"].value
            if name not in [one.value for one in elements(job.value.get("needs"))]:
                job.value["after"] = made([name], job.mark)
        if self._variables:
            found["variables"] = made(
                {
                    name: {"secret": env}
                    if secret
                    else {"env": env, **({} if default is None else {"default": default})}
                    for (env, default, secret), name in self._variables.items()
                },
                root.mark,
            )
        listed = value.get("jobs")
        found["jobs"] = Item(jobs, root.mark if listed is None else listed.mark)
        if not jobs:
            self._problems.add(found["jobs"].mark, "F006", "a flow of Aetherflow needs jobs")
        workspace = self._workspace()
        if workspace:
            found["workspace"] = made(workspace, root.mark)
        return made(found, root.mark)

    def _left_out(self, mark: Mark, what: str) -> None:
        self._problems.warn(mark, LEFT_OUT, f"{what} has no counterpart here, and is left out")

    def _report_flow(self) -> None:
        for key, one in self._flow.items():
            if key == "state":
                path = fields(one).get("path")
                store = "" if path is None else f", as in --store sqlite:///{path.value}"
                self._problems.warn(one.mark, LEFT_OUT, f"where runs are kept is said by the engine{store}")
            elif key == "locks":
                self._problems.warn(
                    one.mark, LEFT_OUT, "locks of a whole flow are left out, as Aetherflow does; give steps a `lock`"
                )
            elif key not in ("id", "description", "workspace"):
                self._left_out(one.mark, f"{key!r} of a flow")

    def _workspace(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, one in fields(self._flow.get("workspace")).items():
            if key == "cleanup_policy":
                found["cleanup"] = one
            elif key != "root":
                self._left_out(one.mark, f"{key!r} of a workspace")
            elif "{{" not in str(one.value):
                found["root"] = one
            else:
                default = _TOKEN.sub(lambda token: (token[2] or "").strip(), str(one.value))
                self._problems.warn(
                    one.mark, LEFT_OUT, f"the root of a workspace is a fixed path here: {default or '.'}"
                )
                found["root"] = text(default or ".", one.mark)
        return {"root": "./work", **found} if found or self._needs_workspace else {}

    # --- jobs and steps ---------------------------------------------------------------------------------------------

    def _job(self, id: str, job: Item) -> dict[str, Any]:
        value: dict[str, Item] = job.value
        found: dict[str, Any] = {"id": text(self._names[id], value["id"].mark)}
        for key, one in value.items():
            if key == "description":
                found["description"] = one
            elif key not in ("id", "depends_on", "when", "steps"):
                self._left_out(job.keys.get(key, one.mark), f"{key!r} of a job")
        needs = value.get("depends_on")
        if needs is not None and needs.value:
            listed = elements(needs) or [needs]
            found["needs"] = Item([text(self._names[str(one.value)], one.mark) for one in listed], needs.mark)
        if "when" in value and value["when"].value is not None:
            found["when"] = self._when(value["when"], id)
        steps = [self._step(id, one) for one in elements(value.get("steps")) if isinstance(one.value, dict)]
        found["steps"] = Item([one for one in steps if one is not None], value.get("steps", job).mark)
        return found

    def _when(self, item: Item, job: str) -> Item:
        if isinstance(item.value, bool):
            return text(lone(str(item.value).lower()), item.mark)
        try:
            expression = Expression(str(item.value))
            found, end = "", 0
            for one in expression.references:
                value = self._expanded([one.root, *map(str, one.path)], Scope(job))
                if value is None:
                    raise Wrong("", one.at, f"{one.text} is nothing that a condition refers to")
                found += expression.text[end : one.at] + _within(_joined(value))
                end = one.at + len(one.text)
            return text(lone(found + expression.text[end:]), item.mark)
        except Wrong as wrong:
            self._problems.add(item.at(wrong.at), TODO, f"this condition is not translated: {wrong}")
            return text(lone("true"), item.mark)

    def _step(self, job: str, step: Item) -> Item | None:
        value: dict[str, Item] = step.value
        if "id" not in value or "type" not in value or not isinstance(value["type"].value, str):
            self._problems.add(step.mark, "F006", "a step of Aetherflow needs an id and a type")
            return None
        id = str(value["id"].value)
        for key, one in value.items():
            if key not in ("id", "type", "inputs", "outputs", "on_no_data", "description"):
                self._left_out(step.keys.get(key, one.mark), f"{key!r} of a step")
        scope = Scope(job, arguments=True)
        found = self._by_type(step, value.get("inputs", Item({}, step.mark)), scope)
        common = {key: value[key] for key in ("on_no_data", "description") if key in value}
        return made({"id": text(self._steps[job][id], value["id"].mark), **found, **common}, step.mark)

    def _by_type(self, step: Item, inputs: Item, scope: Scope) -> dict[str, Any]:
        kind = step.value["type"]
        if kind.value == "external.process":
            return self._process(kind, inputs, scope)
        if kind.value == "check_items" and "items" in fields(inputs):
            return self._check_items(kind, fields(inputs)["items"], scope)
        inner = fields(inputs).get("step")
        if kind.value == "with_lock" and inner is not None and "type" in fields(inner):
            return self._locked(inputs, inner, scope)
        name = todo_name(kind.value)
        self._problems.warn(
            kind.mark, TODO, f"the step type {kind.value} is not translated; write a component of the name {name}"
        )
        given = self._value(inputs, scope)
        resource = fields(given).get("resource")
        if resource is not None and str(resource.value) in self._resources:
            given.value["resource"] = self._resource(self._resources[str(resource.value)], scope)
        return {"use": text(name, kind.mark), "with": given}

    def _locked(self, inputs: Item, inner: Item, scope: Scope) -> dict[str, Any]:
        given = fields(inputs)
        found = self._by_type(inner, fields(inner).get("inputs", Item({}, inner.mark)), scope)
        key = given.get("lock_key") or given.get("key")
        if key is None:
            self._problems.add(inputs.mark, "F006", "with_lock needs a lock_key")
            return found
        lock: dict[str, Any] = {"key": self._value(key, scope._replace(arguments=False))}
        if "ttl_seconds" in given:
            lock["ttl"] = given["ttl_seconds"]
        # Aetherflow fails at once if a lock is held; perdure needs up to a second to find out.
        return {**found, "lock": {**lock, "wait": 1}}

    def _check_items(self, kind: Item, items: Item, scope: Scope) -> dict[str, Any]:
        given = self._value(items, scope)
        if isinstance(given.value, list):
            count: Any = len(given.value)
            status: Any = "ok" if given.value else "no_data"
            has: Any = bool(given.value)
        else:
            listed = f"({inside(given)} | length)"
            count, has = lone(listed), lone(f"{listed} > 0")
            status = lone(f"'ok' if {listed} > 0 else 'no_data'")
        result = {"status": status, "has_data": has, "count": count}
        return {"use": text("value", kind.mark), "with": made(result, items.mark)}

    def _resource(self, item: Item, scope: Scope) -> Item:
        """The values of a resource, with variables in place of the environment. Encoded values become secrets."""
        value = fields(item)
        decoded = {
            (part, key)
            for part, one in fields(value.get("decode")).items()
            for key, two in fields(one).items()
            if two.value
        }
        found: dict[str, Any] = {key: value[key] for key in ("kind", "driver") if key in value}
        for part in ("config", "options"):
            if part in value:
                found[part] = {
                    key: self._value(one, scope, (part, key) in decoded) for key, one in fields(value[part]).items()
                }
        return made(found, item.mark)

    def _process(self, kind: Item, inputs: Item, scope: Scope) -> dict[str, Any]:
        given = fields(inputs)
        warn = self._problems.warn
        for key, one in given.items():
            if key not in _PROCESS_KEYS:
                self._problems.add(inputs.keys.get(key, one.mark), TODO, f"{key!r} of a process is not translated")
        command = given.get("command") or given.get("cmd")
        if command is None:
            self._problems.add(inputs.mark, "F006", "external.process needs a command")
            return {"use": text("shell", kind.mark)}
        words = [self._value(one, scope) for one in elements(command) or [command]]
        words += [self._value(one, scope) for one in elements(given.get("args"))]
        arguments: dict[str, Any] = {"argv": Item(words, command.mark)}
        if "shell" in given and given["shell"].value is True:
            line = " ".join(str(one.value) for one in words)
            arguments = {"argv": text(line, command.mark), "shell": given["shell"]}
        if "cwd" in given:
            cwd = self._value(given["cwd"], scope)
            inner = not str(cwd.value).startswith(("/", "${{"))
            arguments["cwd"] = text(f"{lone('run.workspace')}/{cwd.value}", cwd.mark) if inner else cwd
            self._needs_workspace |= inner
        if "env" in given:
            arguments["env"] = made(
                {
                    key: text("", one.mark) if one.value is None else self._value(one, scope)
                    for key, one in fields(given["env"]).items()
                },
                given["env"].mark,
            )
        if "kill_grace_seconds" in given:
            arguments["grace"] = given["kill_grace_seconds"]
        log = fields(given.get("log"))
        if "max_capture_bytes" in log:
            arguments["max_output"] = log["max_capture_bytes"]
        for key in ("stdout", "stderr"):
            if key in log and log[key].value == "file":
                warn(log[key].mark, LEFT_OUT, f"{key} is kept in the result of the step, and not in a file")
        if not ("inherit_env" in given and given["inherit_env"].value is False) and not self._warned_of_environment:
            self._warned_of_environment = True
            warn(
                kind.mark,
                LEFT_OUT,
                "commands get PATH, HOME and the like of the environment; name all else under `env`",
            )
        success = self._success(fields(given.get("success")), scope)
        if success:
            arguments["success"] = success
        strategy = fields(given.get("idempotency")).get("strategy")
        if strategy is not None and strategy.value == "marker":
            warn(
                strategy.mark, LEFT_OUT, "a step that has succeeded is not executed again; the marker is not looked at"
            )
        elif strategy is not None and strategy.value != "none":
            self._problems.add(strategy.mark, TODO, f"the strategy {strategy.value!r:.40} is not translated")
        found: dict[str, Any] = {"use": text("shell", kind.mark), "with": arguments}
        if "timeout_seconds" in given:
            found["timeout"] = self._number(given["timeout_seconds"])
        retry = self._retry(fields(given.get("retry")))
        return {**found, "retry": retry} if retry else found

    def _success(self, given: dict[str, Item], scope: Scope) -> dict[str, Any]:
        found: dict[str, Any] = {
            key: self._value(given[key], scope)
            for key in ("exit_codes", "required_files", "required_globs", "forbidden_files")
            if key in given
        }
        if "marker_file" in given:
            marker = self._value(given["marker_file"], scope)
            found["required_files"] = [*elements(found.get("required_files")), marker]
        return found

    def _retry(self, given: dict[str, Item]) -> dict[str, Any]:
        if "max_attempts" not in given or given["max_attempts"].value == 1:
            return {}
        wait = given.get("sleep_seconds")
        for key in ("retry_on_exit_codes", "retry_on_timeout"):
            if key in given:
                self._problems.warn(given[key].mark, LEFT_OUT, f"{key} is left out: every failure is tried again")
        return {
            "attempts": given["max_attempts"],
            "initial": 5 if wait is None else self._number(wait),
            "factor": 1,
            "jitter": False,
        }

    def _number(self, item: Item) -> Item:
        if isinstance(item.value, str):
            self._problems.add(item.mark, TODO, "this is a fixed number here, without a template")
            return Item(1, item.mark)
        return item

    # --- templates --------------------------------------------------------------------------------------------------

    def _value(self, item: Item, scope: Scope, secret: bool = False) -> Item:
        if isinstance(item.value, dict):
            found = Item({key: self._value(one, scope, secret) for key, one in item.value.items()}, item.mark)
            found.keys = item.keys
            return literal(found) if any(key.startswith("$") for key in item.value) else found
        if isinstance(item.value, list):
            return Item([self._value(one, scope, secret) for one in item.value], item.mark)
        if not isinstance(item.value, str) or not ("{{" in item.value or "${{" in item.value):
            return item
        pieces = self._pieces(item, scope, secret)
        return text("".join(lone(one.text) if one.is_expression else escaped(one.text) for one in pieces), item.mark)

    def _pieces(self, item: Item, scope: Scope, secret: bool = False) -> Iterator[Piece]:
        """The pieces of a template: expressions, and the texts between them."""
        whole: str = item.value
        is_lone = _TOKEN.fullmatch(whole.strip()) is not None
        end = 0
        for token in _TOKEN.finditer(whole):
            if not is_lone and token.start() > end:
                yield Piece(whole[end : token.start()])
            end = token.end()
            default = None if token[2] is None else token[2].strip()
            self._mark = item.at(token.start())
            found = self._expanded(token[1].split("."), scope, default, secret)
            if found is None:
                self._problems.add(self._mark, TODO, f"{token[0]} refers to nothing that is known here")
            elif default is None or token[1].startswith("env."):
                yield from found
            else:
                yield Piece(f"{_joined(found)} | default({_default(default, is_lone)})", True)
        if "{{" in _TOKEN.sub("", whole):
            self._problems.add(
                item.mark, TODO, "this template is not translated; Aetherflow has {{PATH}} and {{PATH:DEFAULT}}"
            )
        if whole[end:] and not is_lone:
            yield Piece(whole[end:])

    def _expanded(
        self, path: list[str], scope: Scope, default: str | None = None, secret: bool = False
    ) -> list[Piece] | None:
        """The reference of a path of Aetherflow; None if it refers to nothing."""
        match path:
            case ["env", name]:
                secret = secret or (scope.arguments and _SECRET.search(name) is not None)
                return [Piece(self._variable(name, default, secret), True)]
            case ["run_id"]:
                return [Piece("run.id", True)]
            case ["flow_id"]:
                return [Piece(program_name(self._flow.get("id"), self._problems))]
            case ["job", "id"]:
                return [Piece(scope.job)]
            case ["job", "outputs", key, *rest] | ["job", key, *rest]:
                return self._output(scope.job, key, rest, scope)
            case ["jobs", job, "outputs", key, *rest] if job in self._jobs:
                return self._output(job, key, rest, scope)
            case ["steps", id, *rest]:
                return [Piece(scope.steps + path_text((self._steps[scope.job][id], *rest)), True)]
            case ["result", *rest] if scope.result:
                return [Piece(scope.result + path_text(tuple(rest)), True)]
        return None

    def _output(self, job: str, key: str, rest: list[str], scope: Scope) -> list[Piece] | None:
        """An output of a job: the value that its step has promoted."""
        self._expansions += 1
        if (job, key) not in self._outputs or (job, key) in self._expanding or self._expansions > MOST_EXPANSIONS:
            return None
        id, template = self._outputs[job, key]
        steps = scope.steps if job == scope.job else f"jobs{path_text((self._names[job],))}"
        if isinstance(template.value, str):
            inner = Scope(job, steps, steps + path_text((self._steps[job][id],)))
            self._expanding.add((job, key))
            found = list(self._pieces(template, inner))
            self._expanding.discard((job, key))
        else:
            found = [Piece(inside(template) or "none", True)]
        return [Piece(f"({_joined(found)}){path_text(tuple(rest))}", True)] if rest else found

    def _variable(self, env: str, default: str | None, secret: bool) -> str:
        key = (env, None if secret else default, secret)
        if key not in self._variables:
            self._variables[key] = self._variable_names.more(env)
            if secret:
                self._problems.warn(self._mark, LEFT_OUT, f"{env} is taken for a secret: no journal ever holds it")
        return f"vars.{self._variables[key]}"


def _joined(pieces: list[Piece]) -> str:
    """Pieces as one expression."""
    if len(pieces) == 1 and pieces[0].is_expression:
        return pieces[0].text
    return " ~ ".join(_within(one.text) if one.is_expression else quoted(one.text) for one in pieces) or "''"


def _within(expression: str) -> str:
    return f"({expression})" if " " in expression else expression


def _default(value: str, is_lone: bool) -> str:
    """A default. If the template is a single token, the default has the type that it looks like."""
    if is_lone:
        try:
            json.loads(value)
            return value
        except ValueError:
            pass
    return quoted(value)
