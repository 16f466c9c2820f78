"""Translate flows of Stepflow: built-in components become those of perdure; others are left to the user."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from perdure.authoring.flow.expressions import Expression, Path, Wrong
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
    todo_name,
)
from perdure.authoring.flow.tree import Item, Mark, Problems, elements, fields, made, text
from perdure.authoring.flow.values import stepflow_path

# The input of a flow that does not name parts of its input.
WHOLE = "value"
_FLOW_KEYS = (
    "schema",
    "name",
    "description",
    "version",
    "schemas",
    "steps",
    "output",
    "test",
    "inputSchema",
    "outputSchema",
)
_STEP_KEYS = ("id", "component", "input", "onError", "mustExecute", "skipIf", "inputSchema", "outputSchema")
# The parts of a Python expression that have the same meaning in an expression of perdure.
_SAME = (
    *(ast.Expression, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Subscript, ast.List),
    *(ast.Constant, ast.Name, ast.Load, ast.And, ast.Or, ast.Not, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.Div),
    *(ast.FloorDiv, ast.Mod, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
)


class Translation:
    """One flow of Stepflow. `within`: the flow that contains it, and calls it with a single value as its input."""

    def __init__(self, root: Item, problems: Problems, within: Translation | None = None) -> None:
        self._root, self._problems, self._within = root, problems, within
        self._file: dict[str, Item] = root.value
        self._steps = [one for one in elements(self._file.get("steps")) if isinstance(one.value, dict)]
        self._names = Names(problems, "step")
        self._names.add(one.value.get("id") for one in self._steps)
        self._by_id = {one.value["id"].value: one for one in self._steps if _is_text(one.value.get("id"))}
        schemas = fields(self._file.get("schemas"))
        properties = fields(schemas.get("properties"))
        self._definitions = fields(schemas.get("$defs"))
        self._input = properties.get("input") or _get(self._file, "inputSchema")
        self._variables = fields(fields(properties.get("variables")).get("properties"))
        if within is not None:
            self._variables = {**within._variables, **self._variables}
        self._references = list(self._all_references())
        self._taken = Counter(str(path[0]) for form, path in self._references if form == "$step")
        self._whole = within is not None or self._has_whole_input()
        # Variables that nested flows use, which must be declared here as well.
        self._inner_variables: dict[str, Any] = {}
        self._variable_names = Names(problems, "variable")
        # Steps that put code or a flow into a blob, and how many references to them are no longer needed.
        self._read: dict[str, int] = {}

    def flow(self) -> Item:
        """The flow in perdure's format."""
        value = self._file
        found = head(program_name(value.get("name"), self._problems), self._root)
        for key in ("version", "description"):
            if _is_text(value.get(key)):
                found[key] = value[key]
        for key, one in value.items():
            if not _is_known(key, _FLOW_KEYS) and one.value is not None:
                self._left_out(self._root.keys.get(key, one.mark), f"{key!r} of a flow")
        inputs, variables = self._inputs(), self._declared_variables()
        translated = [(self._id(one), self._step(one)) for one in self._steps]
        variables = {**self._inner_variables, **variables}
        if inputs:
            found["inputs"] = made(inputs, self._root.mark)
        if variables:
            found["variables"] = made(variables, self._root.mark)
        if self._within is not None:
            self._within._inner_variables.update(variables)
        if self._definitions:
            found["schemas"] = made(
                {name: self._schema(one) for name, one in self._definitions.items()}, self._root.mark
            )
        # Stepflow runs the steps that the output needs.
        found["execution"] = text("lazy", self._root.mark)
        kept = [step for id, steps in translated if not self._is_needless(id) for step in steps]
        listed = value.get("steps")
        found["steps"] = Item(kept, self._root.mark if listed is None else listed.mark)
        output = value.get("output")
        found["output"] = Item(None, self._root.mark) if output is None else self._value(output)
        tests = self._tests()
        if tests:
            found["tests"] = made(tests, value["test"].mark)
        return made(found, self._root.mark)

    def _left_out(self, mark: Mark, what: str) -> None:
        self._problems.warn(mark, LEFT_OUT, f"{what} has no counterpart here, and is left out")

    # --- inputs and variables ---------------------------------------------------------------------------------------

    def _all_references(self) -> Iterator[tuple[str, Path]]:
        """All references in the flow: `$step`, `$input` or `$variable`, each with a path."""
        work = [one.value["input"] for one in self._steps if "input" in one.value]
        work += [skip for one in self._steps if (skip := _get(one.value, "skipIf")) is not None]
        work += [self._file["output"]] if "output" in self._file else []
        while work:
            item = work.pop()
            reference = _reference(item)
            if reference is not None:
                yield reference[0], reference[1]
                item = fields(item).get("default", Item(None, item.mark))
            if isinstance(item.value, dict) and "$literal" not in item.value:
                work += item.value.values()
            elif isinstance(item.value, list):
                work += item.value

    def _has_whole_input(self) -> bool:
        """Whether steps take the input as one value, and no parts of it are declared."""
        kind = fields(self._input).get("type")
        if kind is not None and kind.value != "object":
            return True
        return not fields(fields(self._input).get("properties")) and ("$input", ()) in self._references

    def _inputs(self) -> dict[str, Any]:
        used = list(dict.fromkeys(path[0] for form, path in self._references if form == "$input" and path))
        if self._whole:
            if self._input is None:
                return {WHOLE: made({"required": bool(used) or ("$input", ()) in self._references}, self._root.mark)}
            return {WHOLE: made({"schema": self._schema(self._input)}, self._input.mark)}
        properties = fields(fields(self._input).get("properties"))
        required = {one.value for one in elements(fields(self._input).get("required")) if isinstance(one.value, str)}
        found: dict[str, Any] = {}
        for name, one in properties.items():
            given = self._schema(one) if isinstance(one.value, dict) else Item({}, one.mark)
            optional = {} if name in required or "default" in given.value else {"required": made(False, one.mark)}
            if optional and "required" in given.value:
                found[name] = {"schema": given, **optional}
            else:
                found[name] = made({**given.value, **optional}, one.mark)
        for key in used:
            if key not in found and isinstance(key, str):
                found[key] = made({"required": False}, self._root.mark)
        return found

    def _schema(self, item: Item) -> Item:
        """A schema with its references in the form of perdure's format."""
        if isinstance(item.value, list):
            return Item([self._schema(one) for one in item.value], item.mark)
        if not isinstance(item.value, dict):
            return item
        changed = {key: self._schema(one) for key, one in item.value.items()}
        reference = changed.get("$ref")
        if reference is not None and _is_text(reference):
            name = re.sub(r"^#(?:/schemas)?/\$defs/", "#/schemas/", reference.value)
            changed["$ref"] = text(name, reference.mark)
        found = Item(changed, item.mark)
        found.keys = item.keys
        return found

    def _declared_variables(self) -> dict[str, Any]:
        used = dict.fromkeys(str(path[0]) for form, path in self._references if form == "$variable" and path)
        self._variable_names.add(text(name, one.mark) for name, one in self._variables.items())
        self._variable_names.add(text(name, self._root.mark) for name in used)
        found: dict[str, Any] = {}
        for name, one in self._variables.items():
            if self._within is None or name in used:
                found[self._variable_names[name]] = self._variable(name, one)
        for name in used:
            if name not in self._variables:
                found[self._variable_names[name]] = self._variable(name, Item({}, self._root.mark))
        return found

    def _variable(self, name: str, item: Item) -> dict[str, Item]:
        given = fields(item)
        env = given.get("env_var")
        upper = re.sub(r"\W", "_", name).upper()
        variable = env if env is not None and _is_text(env) else text(upper, item.mark)
        secret = given.get("is_secret")
        if secret is not None and secret.value is True:
            if "default" in given:
                self._left_out(given["default"].mark, "the default of a secret")
            return {"secret": variable}
        found = {"env": variable} if env is not None or "default" not in given else {}
        if "default" in given:
            found["default"] = given["default"]
        if _is_text(given.get("description")):
            found["description"] = given["description"]
        if env is None and "default" not in given:
            self._problems.warn(
                item.mark, LEFT_OUT, f"the variable {name!r} is read from the environment variable {upper} here"
            )
        return found

    # --- values -----------------------------------------------------------------------------------------------------

    def _value(self, item: Item, forms: bool = False) -> Item:
        """A value. References in `$if` and `$coalesce` keep Stepflow's form, in which every part of null is null."""
        if isinstance(item.value, str):
            return text(escaped(item.value), item.mark) if "${{" in item.value else item
        if isinstance(item.value, list):
            return Item([self._value(one, forms) for one in item.value], item.mark)
        if not isinstance(item.value, dict) or "$literal" in item.value:
            return item
        reference = _reference(item)
        if reference is not None:
            return self._referred(item, *reference, forms)
        forms = "$if" in item.value or "$coalesce" in item.value
        found = Item({key: self._value(one, forms) for key, one in item.value.items()}, item.mark)
        found.keys = item.keys
        return found

    def _referred(self, item: Item, form: str, path: Path, forms: bool) -> Item:
        mark = item.mark
        if form == "$step":
            id = str(path[0])
            name = self._names[id]
            if len(path) > 1 and (forms or self._may_be_null(id)):
                return made({"$step": name, "path": _stepflow_text(path[1:])}, mark)
            return text(lone(f"steps{path_text((name, *path[1:]))}"), mark)
        if form == "$input":
            path = (WHOLE, *path) if self._whole else path
            return text(lone(f"input{path_text(path)}"), mark)
        name = self._variable_names[str(path[0])] if path else ""
        if "default" in item.value:
            default = self._value(item.value["default"], True)
            return made({"$variable": _stepflow_text((name, *path[1:])), "default": default}, mark)
        return text(lone(f"vars{path_text((name, *path[1:]))}"), mark)

    def _may_be_null(self, id: str) -> bool:
        """Whether null can replace the result of a step."""
        step = self._by_id.get(id)
        error = fields(None if step is None else _get(step.value, "onError"))
        action, default = error.get("action"), _get(error, "defaultValue")
        return action is not None and action.value == "useDefault" and (default is None or default.value is None)

    # --- steps ------------------------------------------------------------------------------------------------------

    def _id(self, step: Item) -> str:
        id = step.value.get("id")
        return str(id.value) if id is not None else ""

    def _step(self, step: Item) -> list[Item]:
        """The steps that do the same as a step of Stepflow."""
        value: dict[str, Item] = step.value
        component = value.get("component")
        if component is None or not _is_text(component):
            mark = step.mark if component is None else component.mark
            self._problems.add(mark, "F006", "a step of Stepflow needs a component")
            return []
        for key, one in value.items():
            if not _is_known(key, _STEP_KEYS) and one.value is not None:
                self._left_out(step.keys.get(key, one.mark), f"{key!r} of a step")
        given = value.get("input", Item({}, step.mark))
        path = _component(component.value)
        kind, _, name = path.strip("/").partition("/")
        makers: dict[str, Callable[[Item, Item], list[dict[str, Any]] | None]] = {
            "noop": self._noop,
            "create_messages": self._messages,
            "sleep": self._sleep,
            "put_blob": self._put_blob,
            "get_blob": self._get_blob,
            "eval": self._eval,
            "map": self._map,
            "iterate": self._iterate,
        }
        found = None
        if kind == "builtin" and name in makers:
            found = makers[name](step, given)
        elif path == "/python/udf":
            found = self._udf(given)
        elif path == "/python/iterate":  # its name before it became a built-in component
            found = self._iterate(step, given)
        if found is None:
            found = [self._unknown(step, path, component.mark, given)]
        common = self._common(step, found)
        id = self._names[self._id(step)]
        made_steps = [made({"id": text(id, step.mark), **found[-1], **common}, step.mark)]
        return [made(one, step.mark) for one in found[:-1]] + made_steps

    def _unknown(self, step: Item, path: str, mark: Mark, given: Item) -> dict[str, Any]:
        """A step whose component the user has to write."""
        name = todo_name(path, self._id(step)) if path == "/python/udf" else todo_name(path.removeprefix("/builtin"))
        what = "code that is no expression" if path == "/python/udf" else f"the component {path}"
        self._problems.warn(mark, TODO, f"{what} is not translated; write a component of the name {name}")
        arguments = given
        if path == "/python/udf":
            arguments = fields(given).get("input", given)
        found = self._value(arguments)
        if not isinstance(found.value, dict) or _reference(arguments) is not None:
            found = made({"input": found}, given.mark)
        return {"use": text(name, mark), "with": found}

    def _common(self, step: Item, found: list[dict[str, Any]]) -> dict[str, Any]:
        """The keys of a step that do not depend on its component. A nested flow sets its own."""
        value: dict[str, Item] = step.value
        keys: dict[str, Any] = {}
        must = _get(value, "mustExecute")
        if must is not None and must.value is True:
            keys["must_run"] = must
        skip = _get(value, "skipIf")
        if skip is not None and skip.value is not None:
            keys["when"] = made({"$if": self._value(skip, True), "then": False, "else": True}, skip.mark)
        error = _get(value, "onError")
        if error is None or error.value is None:
            return keys
        given = fields(error)
        action = given["action"].value if "action" in given else None
        default = _get(given, "defaultValue") or Item(None, error.mark)
        retries = _get(given, "maxRetries") or Item(3, error.mark)
        flow = next((one for one in found[:-1] if one["use"].value == "flow"), None)
        if flow is not None and action == "useDefault":
            flow["on_error"] = text("skip", error.mark)
            chosen = {"$if": {"$step": flow["id"]}, "then": found[-1]["with"], "else": literal(default)}
            found[-1]["with"] = made(chosen, error.mark)
        elif flow is not None and action == "retry":
            self._left_out(error.mark, "a retry of a whole flow")
        elif action == "useDefault":
            keys["on_error"] = made({"value": literal(default)}, error.mark)
        elif action == "skip":
            keys["on_error"] = text("skip", error.mark)
        elif action == "retry" and isinstance(retries.value, int):
            keys["retry"] = made({"attempts": retries.value + 1}, retries.mark)
        elif action != "fail":
            self._problems.add(error.mark, TODO, f"onError with the action {action!r:.40} is not translated")
        return keys

    def _noop(self, step: Item, given: Item) -> list[dict[str, Any]]:
        return [{"use": text("value", given.mark), "with": self._value(given)}]

    def _messages(self, step: Item, given: Item) -> list[dict[str, Any]]:
        roles = {"system_instructions": "system", "user_prompt": "user"}
        messages = [
            {"role": role, "content": self._value(fields(given)[key])}
            for key, role in roles.items()
            if key in fields(given) and fields(given)[key].value is not None
        ]
        return [{"use": text("value", given.mark), "with": made({"messages": messages}, given.mark)}]

    def _sleep(self, step: Item, given: Item) -> list[dict[str, Any]] | None:
        duration = fields(given).get("duration_ms")
        if duration is None:
            return None
        milliseconds = inside(self._value(duration))
        if milliseconds is None:
            return None
        id = self._names.more(f"{self._names[self._id(step)]}_sleep")
        length = f"{milliseconds}ms" if isinstance(duration.value, int | float) else lone(f"{milliseconds} / 1000")
        wait = {"id": text(id, step.mark), "use": text("sleep", given.mark), "with": made({"for": length}, given.mark)}
        # The result of Stepflow's component after the wait.
        return [wait, {"needs": made([id], step.mark), "use": text("value", given.mark), "with": self._value(given)}]

    def _put_blob(self, step: Item, given: Item) -> list[dict[str, Any]] | None:
        if "data" not in fields(given):
            return None
        blob = self._blob(step, given, {"put": self._value(fields(given)["data"])})
        result = {"blob_id": lone(f"steps.{blob['id'].value}.id")}
        return [blob, {"use": text("value", given.mark), "with": made(result, given.mark)}]

    def _get_blob(self, step: Item, given: Item) -> list[dict[str, Any]] | None:
        if "blob_id" not in fields(given):
            return None
        blob = self._blob(step, given, {"get": self._value(fields(given)["blob_id"])})
        result = {"data": lone(f"steps.{blob['id'].value}")}
        return [blob, {"use": text("value", given.mark), "with": made(result, given.mark)}]

    def _blob(self, step: Item, given: Item, arguments: dict[str, Item]) -> dict[str, Any]:
        id = self._names.more(f"{self._names[self._id(step)]}_blob")
        return {"id": text(id, step.mark), "use": text("blob", given.mark), "with": made(arguments, given.mark)}

    # --- code and flows in blobs ------------------------------------------------------------------------------------

    def _in_blob(self, item: Item | None) -> tuple[str, Item] | None:
        """The content of a blob that a reference names, and the step that stored it."""
        reference = None if item is None else _reference(item)
        if reference is None or reference[0] != "$step" or reference[1][1:] != ("blob_id",):
            return None
        id = str(reference[1][0])
        step = self._by_id.get(id)
        component = step.value.get("component") if step is not None else None
        if step is None or component is None or _component(component.value) != "/builtin/put_blob":
            return None
        data = fields(step.value.get("input")).get("data")
        if data is None:
            return None
        return id, fields(data).get("$literal", data)

    def _is_needless(self, id: str) -> bool:
        """Whether a step only stores what this translation has read."""
        return id in self._read and self._read[id] == self._taken[id]

    def _udf(self, given: Item) -> list[dict[str, Any]] | None:
        found = self._in_blob(fields(given).get("blob_id"))
        if found is None:
            return None
        id, blob = found
        code = fields(blob).get("code")
        arguments = fields(given).get("input", Item({}, given.mark))
        expression = _expression(code.value, self._value(arguments)) if code is not None and _is_text(code) else None
        # The blob is not needed, whether or not the code could be translated.
        self._read[id] = self._read.get(id, 0) + 1
        if expression is None or code is None:
            return None
        return [{"use": text("value", code.mark), "with": text(expression, code.mark)}]

    def _flow_in(self, given: Item, wrapped: dict[str, Any] | None = None) -> Item | None:
        """The flow that a component gets, as the argument of `use: flow`; None if it is not in the file.

        `wrapped`: the value that its output becomes; "" stands for the output itself.
        """
        value = fields(given)
        flow = value.get("flow") or value.get("workflow")
        blob = self._in_blob(value.get("flow_id"))
        if flow is not None:
            flow = fields(flow).get("$literal", flow)
        elif blob is not None:
            self._read[blob[0]] = self._read.get(blob[0], 0) + 1
            flow = blob[1]
        if flow is None or "steps" not in fields(flow):
            return None
        inner = Translation(flow, self._problems, self).flow()
        if wrapped is not None:
            output = {key: inner.value["output"] if one == "" else one for key, one in wrapped.items()}
            inner.value["output"] = made(output, flow.mark)
        if "round" in (wrapped or {}):
            inner.value["inputs"] = made({**fields(inner.value.get("inputs")), "round": "integer"}, flow.mark)
        return made({"$literal": inner}, flow.mark)

    def _called(self, step: Item, name: str, given: Item, definition: Item, input: dict[str, Any]) -> dict[str, Any]:
        """A step that runs a flow."""
        id = self._names.more(f"{self._names[self._id(step)]}_{name}")
        arguments = made({"definition": definition, "input": input}, given.mark)
        return {"id": text(id, step.mark), "use": text("flow", given.mark), "with": arguments}

    def _eval(self, step: Item, given: Item) -> list[dict[str, Any]] | None:
        definition = self._flow_in(given, {"outcome": "success", "result": ""})
        if definition is None:
            return None
        input = self._value(fields(given).get("input", Item({}, given.mark)))
        flow = self._called(step, "flow", given, definition, {WHOLE: input})
        result = {"result": lone(f"steps.{flow['id'].value}"), "run_id": lone("run.id")}
        return [flow, {"use": text("value", given.mark), "with": made(result, given.mark)}]

    def _map(self, step: Item, given: Item) -> list[dict[str, Any]] | None:
        items = fields(given).get("items")
        definition = None if items is None else self._flow_in(given, {"outcome": "success", "result": ""})
        if items is None or definition is None:
            return None
        flow = self._called(step, "items", given, definition, {WHOLE: lone("item")})
        mapped: dict[str, Any] = {"over": self._value(items), "on_error": "none"}
        limit = _get(fields(given), "maxConcurrency")
        if limit is not None and isinstance(limit.value, int):
            mapped["limit"] = limit
        elif limit is not None:
            self._left_out(limit.mark, "a limit that is computed")
        flow["map"] = made(mapped, given.mark)
        results = f"steps.{flow['id'].value}"
        counted = {"successful": f"{results} | select | list | length", "failed": f"{results} | reject | list | length"}
        result = {"results": lone(results), **{key: lone(one) for key, one in counted.items()}}
        return [flow, {"use": text("value", given.mark), "with": made(result, given.mark)}]

    def _iterate(self, step: Item, given: Item) -> list[dict[str, Any]] | None:
        definition = self._flow_in(given, {"out": "", "round": lone("input.round")})
        if definition is None:
            return None
        most = _get(fields(given), "maxIterations")
        rounds = most.value if most is not None and isinstance(most.value, int) else 1000
        first = self._value(_get(fields(given), "initialInput") or Item({}, given.mark))
        before: list[dict[str, Any]] = []
        initial = inside(first)
        if initial is None:
            id = self._names.more(f"{self._names[self._id(step)]}_initial")
            before = [{"id": text(id, step.mark), "use": text("value", given.mark), "with": first}]
            initial = f"steps.{id}"
        input = {WHOLE: lone(f"last.out.next | default({initial})"), "round": lone("(last.round | default(0)) + 1")}
        flow = self._called(step, "rounds", given, definition, input)
        until = lone(f"last.out.result is defined or last.round >= {rounds}")
        flow["repeat"] = made({"until": until, "max": rounds}, given.mark)
        last = f"steps.{flow['id'].value}"
        result = {
            "result": lone(f"{last}.out.result if {last}.out.result is defined else {last}.out.next"),
            "iterations": lone(f"{last}.round"),
            "terminated": lone(f"{last}.out.result is not defined"),
        }
        return [*before, flow, {"use": text("value", given.mark), "with": made(result, given.mark)}]

    # --- tests ------------------------------------------------------------------------------------------------------

    def _tests(self) -> list[dict[str, Any]]:
        given = fields(self._file.get("test"))
        for key, one in given.items():
            if key != "cases":
                self._left_out(one.mark, f"{key!r} of a test")
        return [test for case in elements(given.get("cases")) if (test := self._test(case)) is not None]

    def _test(self, case: Item) -> dict[str, Any] | None:
        value = fields(case)
        expected = fields(value.get("output"))
        outcome = expected["outcome"].value if "outcome" in expected else None
        name = value.get("name", text("a case", case.mark))
        if outcome not in ("success", "failed"):
            self._problems.warn(case.mark, LEFT_OUT, "a test without an outcome is left out")
            return None
        status: dict[str, Any] = {"status": "succeeded" if outcome == "success" else "failed"}
        if outcome == "success" and "result" in expected:
            status["output"] = expected["result"]
        given = value.get("input", Item({}, case.mark))
        return {"name": name, "input": made({WHOLE: given}, given.mark) if self._whole else given, "expect": status}


def _get(value: dict[str, Item], key: str) -> Item | None:
    """A field, under its name or that of older files: `on_error` for `onError`."""
    return value.get(key) or value.get(re.sub(r"([A-Z])", lambda one: f"_{one[1].lower()}", key))


def _is_known(key: str, known: tuple[str, ...]) -> bool:
    return re.sub(r"_([a-z])", lambda one: one[1].upper(), key) in known


def _is_text(item: Item | None) -> bool:
    return item is not None and isinstance(item.value, str)


def _component(name: str) -> str:
    """The path of a component, in the present form or that of older files."""
    found = re.fullmatch(r"(\w+)://(.*)", name)
    if found is None:
        return f"/{name.strip('/')}"
    plugin = "builtin" if found[1] == "builtins" else found[1]
    return f"/{plugin}/{found[2].strip('/')}"


def _reference(item: Item) -> tuple[str, Path] | None:
    """The reference in a value: `$step`, `$input` or `$variable`, and the whole path; None if it is no reference."""
    value = fields(item)
    for form in ("$step", "$input", "$variable"):
        if form in value and _is_text(value[form]):
            given = value[form] if form != "$step" else value.get("path", text("$", item.mark))
            path = stepflow_path(given.value)
            if path is None:
                return None
            return form, ((value[form].value, *path) if form == "$step" else tuple(path))
    older = fields(value.get("$from"))  # in files from before 2026
    path = stepflow_path(value["path"].value) if "path" in value else []
    if path is None:
        return None
    if "step" in older:
        return "$step", (str(older["step"].value), *path)
    if "workflow" in older:
        return "$input", tuple(path)
    if "variable" in older:
        return "$variable", (str(older["variable"].value), *path)
    return None


def _stepflow_text(path: Path) -> str:
    return "$" + "".join(
        f".{key}" if isinstance(key, str) and re.fullmatch(r"[A-Za-z_][\w-]*", key) else f"[{json.dumps(key)}]"
        for key in path
    )


def _expression(code: str, given: Item) -> str | None:
    """Python code as an expression over its arguments; None if the meaning could differ."""
    try:
        body: Any = ast.parse(code.strip(), mode="eval").body
        roots = {"input", "data"}
        if isinstance(body, ast.Lambda):
            roots, body = {one.arg for one in body.args.args}, body.body
        nodes = list(ast.walk(body))
        if not all(isinstance(one, _SAME) for one in nodes):
            return None
        if any(isinstance(one, ast.Compare) and len(one.ops) > 1 for one in nodes):
            return None
        expression = Expression(ast.unparse(body))
    except (SyntaxError, ValueError, RecursionError, MemoryError, Wrong):
        return None
    found, end = "", 0
    for one in expression.references:
        replaced = _given(one.path, given) if one.root in roots else None
        if replaced is None:
            return None
        found += expression.text[end : one.at] + replaced
        end = one.at + len(one.text)
    found += expression.text[end:]
    try:
        Expression(found)
    except Wrong:
        return None
    return lone(found)


def _given(path: Path, given: Item) -> str | None:
    """A reference in Python code, as an expression."""
    for number, key in enumerate(path):
        if not isinstance(given.value, dict) or any(one.startswith("$") for one in given.value):
            whole = inside(given)
            return None if whole is None or not isinstance(given.value, str) else whole + path_text(path[number:])
        if key not in given.value:
            return None
        given = given.value[key]
    return inside(given)
