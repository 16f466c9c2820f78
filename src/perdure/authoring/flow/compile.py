"""From a definition to a plan: what steps refer to are the edges. Finds every problem before it gives up."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from perdure.authoring.dataflow.build import Built, Draft, Made, Options, Wanted, build
from perdure.authoring.dataflow.plan import Mapped, Node, Question
from perdure.authoring.dataflow.values import Value
from perdure.authoring.flow.components import Component, Components, NoComponent, made_of
from perdure.authoring.flow.expressions import Path, Reference, Wrong
from perdure.authoring.flow.format import FlowDef, MapDef, StepDef, VariableDef, kind_of, validator, whole_schema
from perdure.authoring.flow.secrets import with_secrets
from perdure.authoring.flow.tree import Item, Mark, Problems
from perdure.authoring.flow.values import Given, Missing, Template, template
from perdure.errors import ExpressionFailed, GraphInvalid, InvalidName, UsageError
from perdure.kernel.hints import did_you_mean
from perdure.kernel.ids import check_name

# Values of a run that no step makes: its inputs one by one and as a whole, fixed variables, and the run itself. No step
# has a dot in its id.
INPUT, INPUTS, CONSTANTS, RUN = "input.", ".input", ".vars", ".run"
# The step that reads variables of the environment, and its value.
VARIABLES = "vars"
ROOTS = ("input", "steps", "vars", "run", "secrets")
RUN_KEYS = ("id",)
# Items of a map are never run in chunks: expressions take the list of results, and not a reference to it.
NO_CHUNKS = 1 << 62


class Scope:
    """What expressions can refer to at one place, and the names of the values that they did."""

    def __init__(
        self, flow: FlowDef, ids: Mapping[str, Mark], mapped: MapDef | None = None, secrets: bool = False
    ) -> None:
        self._flow, self._ids, self._secrets = flow, ids, secrets
        # Of a map, the first two values are the item and its position.
        self._items = {} if mapped is None else {"item": 0, mapped.name: 0, "index": 1}
        self.names: list[str] = [] if mapped is None else ["", ""]
        self.takes_item = False

    def slot(self, reference: Reference) -> tuple[int, Path]:
        """The position of what it refers to among the given values, and the path in that. Raises Wrong."""
        root, path = reference.root, reference.path
        if root in self._items:
            self.takes_item = True
            return self._items[root], path
        if root == "input" and not path:
            return self._at(INPUTS), ()
        if root not in ROOTS:
            raise Wrong("F011", reference.at, f"there is no {root!r} to refer to here; {_roots(root, self._items)}")
        if not path or not isinstance(path[0], str):
            raise Wrong("F011", reference.at, f"name what of {root} is meant, as in {root}.name")
        name = path[0]
        if root == "steps":
            self._check(reference, name, self._ids, "F012", "step")
            return self._at(name), path[1:]
        if root == "input":
            self._check(reference, name, self._flow.inputs, "F013", "input")
            return self._at(INPUT + name), path[1:]
        if root == "run":
            self._check(reference, name, RUN_KEYS, "F013", "value of a run")
            return self._at(RUN), path
        self._check(reference, name, self._flow.variables, "F013", "variable")
        return self._at(VARIABLES if self._flow.variables[name].env else CONSTANTS), path

    def secret(self, reference: Reference) -> str | None:
        """The name of the secret that it refers to; None if it is none. Raises Wrong."""
        variables = self._flow.variables
        name = str(reference.path[0]) if reference.path else ""
        if reference.root == "vars" and name in variables and variables[name].secret:
            name = variables[name].secret
        elif reference.root != "secrets":
            return None
        self._check(reference, name, [one.secret for one in variables.values() if one.secret], "F013", "secret")
        if len(reference.path) > 1:
            raise Wrong("F014", reference.at, "a secret is text, and has no parts")
        if not self._secrets:
            raise Wrong("F014", reference.at, "secrets are used in `with` of steps alone, and not in what runs keep")
        return name

    def _at(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def _check(self, reference: Reference, name: str, known: Any, code: str, what: str) -> None:
        if name not in known:
            shown = f"unknown {what} {name!r} in ${{{{ {reference.text} }}}}"
            raise Wrong(code, reference.at, f"{shown}; {did_you_mean(name, known)}")


def _roots(root: str, more: Mapping[str, int]) -> str:
    return did_you_mean(root, (*ROOTS, *more))


class Compiler:
    """Compiles one definition.

    `mocks`: for a test, the results of steps that are not executed; there, a sleep takes no time.
    """

    def __init__(
        self, flow: FlowDef, components: Components, problems: Problems, mocks: Mapping[str, Any] | None = None
    ) -> None:
        self._flow, self._components, self._problems, self._mocks = flow, components, problems, mocks
        self._ids = flow.ids
        # By step: what it comes after, in any way.
        self._before: dict[str, list[str]] = {}

    def build(self) -> Built:
        """The plan. Raises FlowInvalid with all problems."""
        drafts = [draft for step in self._flow.steps if (draft := self._draft(step)) is not None]
        made = self._output()
        self._check_cycles()
        self._problems.stop()
        used = {name for draft in drafts for wanted in draft.reads for name in wanted.values}
        if VARIABLES in used or any(VARIABLES in wanted.values for wanted in made or ()):
            drafts.append(_variables(self._flow.variables))
        single = made is not None and len(made) == 1 and made[0].name == ""
        options = Options(made=made, single=single, on_failure=self._flow.on_failure)
        try:
            return build(drafts, options)
        except GraphInvalid as error:
            for problem in error.problems:
                line, _, column = problem.where.removeprefix(f"{self._problems.file}:").partition(":")
                mark = Mark(int(line), int(column)) if line.isdecimal() and column.isdecimal() else self._flow.mark
                self._problems.add(mark, "F002", problem.message)
            self._problems.stop()
            raise

    # --- steps ------------------------------------------------------------------------------------------------------

    def _draft(self, step: StepDef) -> Draft | None:
        add, file = self._problems.add, self._problems.file
        where = f"{file}:{step.mark.line}:{step.mark.column}"
        before = self._before[step.id] = []
        for what, names in (("needs", step.needs), ("after", step.after)):
            for name, mark in names:
                if name not in self._ids:
                    add(mark, "F012", f"unknown step {name!r} in {what}; {did_you_mean(name, self._ids)}")
                elif name == step.id:
                    add(mark, "F016", f"{name!r} cannot come after itself")
                else:
                    before.append(name)
        if "${{" in step.use.value:
            add(step.use.mark, "F014", "use is no place for an expression: which steps there are is known beforehand")
            return None
        try:
            component = self._components.find(step.use.value)
        except NoComponent as error:
            add(step.use.mark, error.code, str(error))
            return None
        wants, columns, secrets = self._arguments(step, component)
        condition = self._condition(step)
        otherwise = None
        if isinstance(step.on_error, Item):
            otherwise = self._wanted("value", step.on_error, where)
        for wanted in (*wants, *(condition or ()), *((otherwise,) if otherwise is not None else ())):
            before += [name for name in wanted.values if name in self._ids]
        node = self._node(step, component, where, secrets)
        if node is None:
            return None
        mocked = self._mocks is not None and (step.id in self._mocks or component.kind == "sleep")
        if mocked and self._mocks is not None:
            node = _mocked(node, self._mocks.get(step.id))
        elif step.map is not None:
            node = msgspec.structs.replace(
                node, mapped=Mapped(columns, step.map.limit, step.map.on_error, step.map.tolerate, NO_CHUNKS)
            )
        if step.on_error == "skip":
            node = msgspec.structs.replace(node, on_error="skip")
        return Draft(
            node,
            wants,
            (Made(step.id),),
            tuple(name for name, _ in step.after),
            condition=None if condition is None else (_holds, condition),
            otherwise=otherwise,
        )

    def _node(
        self, step: StepDef, component: Component, where: str, secrets: Mapping[str, tuple[Path, ...]]
    ) -> Node | None:
        spec, add = component.spec, self._problems.add
        try:
            check_name(step.id, "the id of a step")
        except InvalidName as error:
            add(step.mark, "F002", str(error))
        waits = component.kind in ("signal", "approval")
        if step.on_timeout is not None and not waits:
            add(step.on_timeout.mark, "F002", "on_timeout is for signal and approval; use on_error")
        if step.map is not None and component.kind in ("sleep", "signal", "approval"):
            add(step.use.mark, "F002", f"{component.kind} is not mapped; map a flow that has it as a step")
        if spec is None and step.retry is not None:
            add(step.mark, "F002", f"{step.use.value} is not tried again: it has no `retry`")
        if component.kind in ("sleep", "child") and step.timeout is not None:
            add(step.mark, "F002", f"{step.use.value} has no `timeout`; give it to steps")
        if spec is not None:
            changes: dict[str, Any] = {"name": step.id}
            if step.retry is not None:
                changes["retry"] = step.retry
            if step.timeout is not None:
                changes["timeout"] = step.timeout
            spec = dataclasses.replace(spec, **changes)
            try:
                spec = with_secrets(spec, secrets) if secrets else spec
            except UsageError as error:
                add(step.use.mark, "F014", str(error))
            return Node(step.id, "step", outputs=(step.id,), where=where, returns=spec.returns, spec=spec)
        if component.program is not None:
            program = component.program
            return Node(step.id, "child", outputs=(step.id,), where=where, returns=program.returns, program=program)
        if component.kind == "sleep":
            return Node(step.id, "timer", where=where)
        question = self._question(step, component)
        return None if question is None else Node(step.id, "wait", where=where, question=question, function=_nothing)

    def _question(self, step: StepDef, component: Component) -> Question | None:
        """What a signal or an approval waits for; what it is called, and who answers, is known beforehand."""
        given: dict[str, Item] = step.arguments.value if step.arguments is not None else {}
        if not isinstance(given, dict):
            return None
        plain = {key: item.plain() for key, item in given.items() if key != "request"}
        name, schema, people = plain.get("name", step.id), plain.get("schema"), plain.get("approvers", ())
        add, right = self._problems.add, True
        if not isinstance(name, str) or "${{" in name:
            add(given["name"].mark, "F002", f"the name of a signal is text, without expressions; this is {name!r:.40}")
            right = False
        named = isinstance(people, list) and people and all(isinstance(person, str) for person in people)
        if "approvers" in plain and not named:
            add(given["approvers"].mark, "F002", "approvers is a list of names")
            right = False
        stored = None
        if schema is not None:
            try:
                if not isinstance(schema, dict):
                    raise UsageError(f"a schema is an object; this is {kind_of(given['schema'])}")
                validator(schema, self._flow.schemas)
                stored = Raw(msgspec.json.encode(whole_schema(schema, self._flow.schemas)))
            except UsageError as error:
                add(given["schema"].mark, "F030", str(error))
                right = False
        if not right:
            return None
        on_timeout = None
        if step.on_timeout is not None:
            made = template(step.on_timeout, Scope(self._flow, self._ids), self._problems)
            if made.constant is None:
                add(step.on_timeout.mark, "F014", "the value of on_timeout is fixed; it has no expressions")
            else:
                on_timeout = msgspec.json.decode(made.constant)
        return Question(
            name,
            shows="request" if "request" in given else None,
            timeout=step.timeout,
            approvers=tuple(people),
            has_default=step.on_timeout is not None,
            on_timeout=on_timeout,
            kind="signal" if component.kind == "signal" else "approval",
            schema=stored,
        )

    # --- arguments --------------------------------------------------------------------------------------------------

    def _arguments(
        self, step: StepDef, component: Component
    ) -> tuple[tuple[Wanted, ...], tuple[str, ...], dict[str, tuple[Path, ...]]]:
        """The arguments of a step, those of them that a map has one of for each item, and the places of secrets."""
        given = step.arguments
        if component.kind == "value":
            items = {"value": given} if given is not None else {"value": Item(None, step.mark)}
        elif given is None:
            items = {}
        elif not isinstance(given.value, dict):
            self._problems.add(given.mark, "F002", f"with gives arguments by name; this is {kind_of(given)}")
            return (), (), {}
        else:
            items = given.value
        self._check_parameters(step, component, items)
        if component.kind in ("signal", "approval"):
            items = {name: item for name, item in items.items() if name == "request"}
        wants, columns = [], []
        secrets: dict[str, tuple[Path, ...]] = {}
        allowed = component.kind == "step"
        for name, item in items.items():
            where = self._where(item)
            scope = Scope(self._flow, self._ids, step.map, allowed)
            made = template(item, scope, self._problems)
            if made.secrets:
                secrets[name] = made.secrets
            if step.map is None:
                wants.append(_wanted(name, made, scope, where, self._is_optional))
                continue
            over_scope = Scope(self._flow, self._ids)
            over = template(step.map.over, over_scope, self._problems)
            if scope.takes_item:
                columns.append(name)
                wants.append(_column(name, made, scope, over, over_scope, where, self._where(step.map.over)))
            else:
                shared = [None, None]
                values = tuple(scope.names[2:])
                wants.append(Wanted(name, values, keyword=True, compute=_filled(made, scope.names, shared, where)))
        if step.map is not None and not columns:
            name = step.map.name
            self._problems.add(step.map.over.mark, "F002", f"a map takes ${{{{ {name} }}}} somewhere in `with`")
        return tuple(wants), tuple(columns), secrets

    def _check_parameters(self, step: StepDef, component: Component, given: Mapping[str, Item]) -> None:
        if component.parameters is None:
            return
        names = [one.name for one in component.parameters]
        keys = {} if step.arguments is None else step.arguments.keys
        for name, item in given.items():
            if name not in names:
                hint = did_you_mean(name, names)
                self._problems.add(
                    keys.get(name, item.mark), "F022", f"{step.use.value} takes no argument {name!r}; {hint}"
                )
        missing = [one.name for one in component.parameters if one.required and one.name not in given]
        if missing:
            listed = ", ".join(map(repr, missing))
            mark = step.use.mark if step.arguments is None else step.arguments.mark
            self._problems.add(mark, "F022", f"{step.use.value} needs {listed}")

    def _condition(self, step: StepDef) -> tuple[Wanted, ...] | None:
        needed = tuple(
            Wanted(f"needs_{name}", (name,), type=Raw) for name, _ in dict(step.needs).items() if name in self._ids
        )
        if step.when is None:
            return needed or None
        if isinstance(step.when.value, str) and "${{" not in step.when.value:
            self._problems.add(step.when.mark, "F010", "when is an expression: write when: ${{ ... }}")
        return (*needed, self._wanted("holds", step.when, self._where(step.when)))

    def _wanted(self, name: str, item: Item, where: str) -> Wanted:
        scope = Scope(self._flow, self._ids)
        return _wanted(name, template(item, scope, self._problems), scope, where, self._is_optional)

    def _output(self) -> tuple[Wanted, ...] | None:
        """The parts of the result, or one without a name that is the result; None: what no other step takes."""
        output = self._flow.output
        if output is None:
            return None
        if isinstance(output.value, dict) and not any(key.startswith("$") for key in output.value):
            return tuple(self._wanted(key, item, self._where(item)) for key, item in output.value.items())
        return (self._wanted("", output, self._where(output)),)

    def _is_optional(self, name: str) -> bool:
        """Whether a value that no step makes may not be there."""
        known = self._flow.inputs.get(name.removeprefix(INPUT)) if name.startswith(INPUT) else None
        return known is not None and not known.required and not known.has_default

    def _where(self, item: Item) -> str:
        return f"{self._problems.file}:{item.mark.line}:{item.mark.column}"

    # --- order ------------------------------------------------------------------------------------------------------

    def _check_cycles(self) -> None:
        left = {id: {one for one in before if one in self._before} for id, before in self._before.items()}
        behind: dict[str, list[str]] = {}
        for id, before in left.items():
            for one in before:
                behind.setdefault(one, []).append(id)
        ready = [id for id, before in left.items() if not before]
        while ready:
            done = ready.pop()
            del left[done]
            for other in behind.get(done, ()):
                left[other].discard(done)
                if not left[other]:
                    ready.append(other)
        if not left:
            return
        way = [next(iter(left))]
        while (following := min(left[way[-1]] & left.keys())) not in way:
            way.append(following)
        way = [*way[way.index(following) :], following][::-1]
        mark = self._ids[way[0]]
        self._problems.add(mark, "F016", f"these steps wait for each other: {' → '.join(way)}")


def _variables(variables: Mapping[str, VariableDef]) -> Draft:
    """The step that reads variables of the environment: once, and what it found is recorded."""
    named = {name: one for name, one in variables.items() if one.env}

    def vars() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, one in named.items():
            value = os.environ.get(one.env, one.default)
            if value is None and not one.has_default:
                raise UsageError(f"the variable {name} has no value: set the environment variable {one.env}")
            found[name] = value
        return found

    spec = made_of(vars, VARIABLES).spec
    return Draft(Node(VARIABLES, "step", outputs=(VARIABLES,), spec=spec), (), (Made(VARIABLES),))


def _mocked(node: Node, result: Any) -> Node:
    """A node with a fixed result; its arguments are made as ever."""

    def mock(**given: Any) -> Any:
        return result

    made = made_of(mock, node.name).spec
    assert made is not None
    spec = dataclasses.replace(made, name=node.name)
    return Node(node.name, "step", outputs=node.outputs, where=node.where, spec=spec)


def _nothing() -> None:
    """What a wait shows that says nothing."""


def _holds(**given: Any) -> Any:
    """A condition without `when` holds if all is there that it needs."""
    return given.get("holds", True)


def _wanted(name: str, made: Template, scope: Scope, where: str, is_optional: Callable[[str], bool]) -> Wanted:
    if made.whole is not None and not is_optional(scope.names[made.whole]):
        return Wanted(name, (scope.names[made.whole],), keyword=True)
    return Wanted(name, tuple(scope.names), keyword=True, compute=_filled(made, scope.names, (), where))


def _filled(
    made: Template, names: Sequence[str], before: Sequence[None], where: str
) -> Callable[[Given], bytes | None]:
    """A template as a function of the values that it takes."""

    def compute(given: Given) -> bytes | None:
        try:
            return made.evaluate([*before, *given] if before else given)
        except Missing as missing:
            _check_step(names[missing.slot], where)
            return None

    return compute


def _column(
    name: str, made: Template, scope: Scope, over: Template, over_scope: Scope, where: str, over_where: str
) -> Wanted:
    """An argument of which there is one for each item of a list."""
    count = len(over_scope.names)

    def compute(given: Given) -> bytes | None:
        names = over_scope.names
        try:
            items = _items(over.evaluate(given[:count]), over_where)
            names, rest = scope.names, given[count:]
            parts = [made.evaluate([Value(item), Value(b"%d" % index), *rest]) for index, item in enumerate(items)]
        except Missing as missing:
            _check_step(names[missing.slot], where)
            return None
        return b"[%b]" % b",".join(parts)

    return Wanted(name, (*over_scope.names, *scope.names[2:]), keyword=True, compute=compute)


def _items(data: bytes, where: str) -> list[Raw]:
    try:
        return Value(data).elements()
    except msgspec.MsgspecError:
        raise ExpressionFailed(where, f"map.over gives no list: {data[:80].decode(errors='replace')}") from None


def _check_step(name: str, where: str) -> None:
    """Raise ExpressionFailed for a value that does not exist, unless the step that makes it was skipped."""
    if name.startswith(INPUT):
        raise ExpressionFailed(where, f"the input {name.removeprefix(INPUT)!r} is not given; write | default(...)")
