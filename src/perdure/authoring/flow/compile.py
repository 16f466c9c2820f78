"""Compile a definition to a plan, whose edges are the references of steps. Finds every problem before it gives up."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from copy import copy
from datetime import UTC, datetime
from functools import wraps
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw

from perdure.authoring.code.step import Step
from perdure.authoring.dataflow.build import Built, Draft, Made, Options, Wanted, build
from perdure.authoring.dataflow.plan import STATUS, Absent, Gate, Mapped, Node, Question
from perdure.authoring.dataflow.values import Value
from perdure.authoring.flow.components import PROVIDED, Component, Components, NoComponent, made_of
from perdure.authoring.flow.definition import (
    FINALLY,
    FlowDef,
    JobDef,
    LockDef,
    MapDef,
    OtherDef,
    RepeatDef,
    StepDef,
    Stubs,
    VariableDef,
    WorkspaceDef,
)
from perdure.authoring.flow.expressions import Path, Reference, Wrong
from perdure.authoring.flow.format import kind_of
from perdure.authoring.flow.job import Job
from perdure.authoring.flow.lazy import Need, Needs, causes_of, gates_of
from perdure.authoring.flow.schemas import check_schema, whole_schema
from perdure.authoring.flow.tree import Item, Mark, Problems, elements
from perdure.authoring.flow.values import Given, Missing, Template, is_form, template
from perdure.authoring.flow.workspace import MAKE, REMOVE, WORKSPACE, make, place_of, remove
from perdure.errors import ExpressionFailed, GraphInvalid, InvalidName, SignalTimeout, UsageError
from perdure.kernel.commands import StepSpec
from perdure.kernel.hints import did_you_mean
from perdure.kernel.ids import check_name
from perdure.kernel.policies.durations import duration, parse_duration
from perdure.kernel.policies.retry import Retry

# Values that no step makes: the inputs one by one and as a whole, fixed variables, and the run itself. Ids of steps
# have no dot.
INPUT, INPUTS, CONSTANTS, RUN = "input.", ".input", ".vars", ".run"
# The step that reads environment variables, its value, and the step that reads the clock.
VARIABLES = "vars"
STARTED, READ_CLOCK = ".started_at", "run.started_at"
# A suffix of step ids: names the gate that leads back to a repeated step.
UNTIL = ".until"
# A suffix of step ids: names the node that runs if the step fails.
ON_ERROR = ".on_error"
ROOTS = ("input", "steps", "jobs", "vars", "resources", "env", "run", "secrets")
# Fields of a run that are not part of RUN.
_RUN = {"started_at": STARTED, "workspace": WORKSPACE, "status": STATUS}
# Items of a map never run in chunks: expressions take the list of results, not a reference to it.
NO_CHUNKS = 1 << 62


class Known:
    """What all expressions of a flow, or of a job in it, can refer to."""

    def __init__(self, flow: FlowDef) -> None:
        self.flow = flow
        self.job: JobDef | None = None
        self.jobs = {job.id: job for job in flow.jobs}
        self.variables = all_variables(flow)
        # By the name of an environment variable: its name as a variable.
        self.environment = {one.env: name for name, one in self.variables.items() if one.env}
        self.secrets = frozenset(one.secret for one in self.variables.values() if one.secret)
        self.steps: Mapping[str, Mark] = {} if flow.jobs else flow.ids
        self.run = ["id", "started_at", *(["workspace"] if flow.workspace is not None else ())]

    def inside(self, job: JobDef) -> Known:
        """What the expressions of a job can refer to. The steps of `finally` see those of the flow too."""
        found = copy(self)
        found.job, found.steps = job, job.ids
        if job.id == FINALLY:
            found.steps, found.run = {**self.steps, **job.ids}, [*self.run, "status"]
        return found


class Scope:
    """What expressions can refer to at one place, and the names of the values that they have referred to."""

    def __init__(self, known: Known, mapped: MapDef | None = None, secrets: bool = False, last: str = "") -> None:
        self._known, self._flow, self._job, self._secrets = known, known.flow, known.job, secrets
        # The repeated step, whose result in the last round is `last`.
        self.last = last
        # In a map, the first two values are the item and its position.
        self._items = {} if mapped is None else {"item": 0, mapped.name: 0, "index": 1}
        self.names: list[str] = [] if mapped is None else ["", ""]
        self._places: dict[str, int] = {}
        self.takes_item = False

    def slot(self, reference: Reference) -> tuple[int, Path]:
        """The position of the referenced value among the given ones, and the path inside it. Raises Wrong."""
        root, path = reference.root, reference.path
        if root in self._items:
            self.takes_item = True
            return self._items[root], path
        if root == "last" and self.last:
            return self._at(self.last), path
        if root == "input" and not path:
            return self._at(INPUTS), ()
        if root not in ROOTS:
            known = (*self._items, "last") if self.last else self._items
            raise Wrong("F011", reference.at, f"there is no {root!r} to refer to here; {_roots(root, known)}")
        if not path or not isinstance(path[0], str):
            raise Wrong("F011", reference.at, f"name what of {root} is meant, as in {root}.name")
        name = path[0]
        if root == "jobs":
            return self._step_of_job(reference, name)
        if root == "steps":
            return self._step(reference, name)
        if root == "input":
            self._check(reference, name, self._flow.inputs, "F013", "input")
            return self._at(INPUT + name), path[1:]
        if root == "run":
            self._check(reference, name, self._known.run, "F013", "value of a run")
            return (self._at(_RUN[name]), path[1:]) if name in _RUN else (self._at(RUN), path)
        if root == "resources":
            name = self._of_resource(reference, name)
            one = self._known.variables[name]
            return self._at(VARIABLES if one.env else CONSTANTS), (name, *path[2:])
        if root == "env":
            named = self._known.environment
            self._check(reference, name, named, "F013", "variable of the environment")
            return self._at(VARIABLES), (named[name], *path[1:])
        self._check(reference, name, self._flow.variables, "F013", "variable")
        return self._at(VARIABLES if self._flow.variables[name].env else CONSTANTS), path

    def _of_resource(self, reference: Reference, name: str) -> str:
        """The name that a value of a resource has among all variables."""
        self._check(reference, name, self._flow.resources, "F013", "resource")
        known, key = self._flow.resources[name], reference.path[1] if len(reference.path) > 1 else ""
        if not isinstance(key, str) or not key:
            listed = ", ".join(known)
            raise Wrong("F011", reference.at, f"name what of resources.{name} is meant: {listed}")
        self._check(reference, key, known, "F013", f"value of resources.{name}")
        return f"{name}.{key}"

    def parts(self, reference: Reference) -> list[str] | None:
        """The values of a resource that a reference names as a whole. Some may be secrets."""
        if reference.root != "resources" or len(reference.path) != 1 or reference.path[0] not in self._flow.resources:
            return None
        return list(self._flow.resources[str(reference.path[0])])

    def _step(self, reference: Reference, name: str) -> tuple[int, Path]:
        known = self._known.steps
        owner = None if name in known else next((one.id for one in self._flow.jobs if name in one.ids), None)
        if owner is not None:
            raise Wrong("F012", reference.at, f"{name!r} is a step of another job: write jobs.{owner}.{name}")
        self._check(reference, name, known, "F012", "step")
        if name == self.last:
            raise Wrong("F012", reference.at, f"{name!r} is this step: its result in the last round is `last`")
        return self._at(name), reference.path[1:]

    def _step_of_job(self, reference: Reference, name: str) -> tuple[int, Path]:
        jobs = self._known.jobs
        self._check(reference, name, jobs, "F012", "job")
        if len(reference.path) < 2 or not isinstance(reference.path[1], str):
            raise Wrong("F011", reference.at, f"name the step that is meant, as in jobs.{name}.step")
        step = reference.path[1]
        self._check(reference, step, jobs[name].ids, "F012", f"step of the job {name}")
        if self._job is not None and name == self._job.id:
            raise Wrong("F012", reference.at, f"{name!r} is this job: write steps.{step}")
        return self._at(f"{name}.{step}"), reference.path[2:]

    def secret(self, reference: Reference) -> str | None:
        """The name of the secret that a reference names; None if it names no secret. Raises Wrong."""
        if reference.root not in ("vars", "resources", "secrets"):
            return None
        variables = self._known.variables
        name = str(reference.path[0]) if reference.path else ""
        length = 1
        if reference.root == "resources" and len(reference.path) > 1:
            name, length = f"{name}.{reference.path[1]}", 2
        if reference.root != "secrets" and name in variables and variables[name].secret:
            name = variables[name].secret
        elif reference.root != "secrets":
            return None
        self._check(reference, name, self._known.secrets, "F013", "secret")
        if len(reference.path) > length:
            raise Wrong("F014", reference.at, "a secret is text, and has no parts")
        if not self._secrets:
            raise Wrong("F014", reference.at, "secrets are used in `with` of steps alone, and not in what runs keep")
        return name

    def _at(self, name: str) -> int:
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = len(self.names)
            self.names.append(name)
        return place

    def _check(self, reference: Reference, name: str, known: Any, code: str, what: str) -> None:
        if name not in known:
            shown = f"unknown {what} {name!r} in ${{{{ {reference.text} }}}}"
            raise Wrong(code, reference.at, f"{shown}; {did_you_mean(name, known)}")


def all_variables(flow: FlowDef) -> dict[str, VariableDef]:
    """The variables of a flow, and the values of its resources, each as `resource.key`."""
    inside = {f"{name}.{key}": one for name, values in flow.resources.items() for key, one in values.items()}
    return {**flow.variables, **inside}


def _roots(root: str, more: Iterable[str]) -> str:
    return did_you_mean(root, (*ROOTS, *more))


class Compiler:
    """Compiles one definition.

    `stubs`: for a test, replacements of steps and variables.
    """

    def __init__(
        self,
        flow: FlowDef,
        components: Components,
        problems: Problems,
        stubs: Stubs | None = None,
        known: Known | None = None,
    ) -> None:
        self._flow, self._components, self._problems, self.stubs = flow, components, problems, stubs
        self._known = known or Known(flow)
        self._job = self._known.job
        self._ids = flow.ids if self._job is None else self._job.ids
        # By step or job: what it comes after, for whatever reason.
        self._before: dict[str, list[str]] = {}

    def build(self) -> Built:
        """The plan. Raises FlowInvalid with all problems."""
        flow = self._flow
        drafts = self._drafts(flow.steps)
        jobs = {job.id: self._of_job(job) for job in flow.jobs}
        found = [self._job_draft(job, jobs[job.id]) for job in flow.jobs]
        final = None if flow.final is None else self._of_job(flow.final)
        made = self._output()
        if flow.workspace is not None:
            self._check_workspace(flow.workspace)
        self._check_cycles()
        self._problems.stop()
        if flow.lazy and flow.output is not None:
            drafts = self._needed(drafts, () if final is None else final[1], flow.output)
        inside = [*(part for _, part in jobs.values()), *(() if final is None else (final[1],))]
        used = _values((*drafts, *found, *(draft for part in inside for draft in part)), made or ())
        drafts += [
            self._with_program(draft, job, *jobs[job.id], used) for draft, job in zip(found, flow.jobs, strict=True)
        ]
        if VARIABLES in used:
            drafts.append(_variables(all_variables(flow), {} if self.stubs is None else self.stubs.vars))
        if STARTED in used:
            drafts.insert(0, _clock())
        if WORKSPACE in used:
            drafts.append(self._workspace())
        if made is None and flow.jobs:
            # Of the jobs that no other one needs or refers to.
            taken = {id for before in self._before.values() for id in before}
            made = tuple(Wanted(job.id, (job.id,)) for job in flow.jobs if job.id not in taken)
        single = made is not None and len(made) == 1 and made[0].name == ""
        options = Options(
            made=made,
            single=single,
            on_failure=flow.on_failure,
            jobs=bool(flow.jobs),
            last=self._last(final, WORKSPACE in used),
            loops=_loops(drafts),
            selected=tuple(id for id in _loops(drafts) if id not in used),
        )
        return self._built(drafts, options)

    def _needed(self, drafts: Sequence[Draft], final: Iterable[Draft], output: Item) -> list[Draft]:
        """The steps that the result may need, with the gates that choose among them, and the steps that always run."""
        finder = Needs(self._problems.file, self._compiled)
        steps = {step.id: step for step in self._flow.steps}
        needs: dict[str, Need] = {}
        for draft in drafts:
            owner = _owner(draft)
            found = self._needs_of(finder, steps[owner], draft)
            needs[owner] = (
                found if owner not in needs else Need([*needs[owner].names, *found.names], needs[owner].forms)
            )
        wanted = finder.of(output, "output")
        always = [*_values(final, ()), *(step.id for step in self._flow.steps if step.must_run)]
        why = causes_of(needs, finder.forms, wanted, always, self._before)
        kept = [
            msgspec.structs.replace(draft, after=tuple(one for one in draft.after if one in why))
            for draft in drafts
            if _owner(draft) in why
        ]
        return [*kept, *gates_of(finder.forms, why)]

    def _needs_of(self, finder: Needs, step: StepDef, draft: Draft) -> Need:
        """What a node of a step needs. Forms inside an item or a round count as a whole."""
        arguments = step.arguments
        if draft.node.name != step.id or arguments is None or step.map is not None or step.repeat is not None:
            return Need([*_values((draft,), ())])
        others = msgspec.structs.replace(draft, wants=())
        inside = finder.of(arguments, step.id)
        return Need([*inside.names, *_values((others,), ())], inside.forms)

    def _compiled(self, item: Item, problems: Problems) -> tuple[Template, Sequence[str]]:
        scope = Scope(self._known, secrets=True)
        return template(item, scope, problems), scope.names

    def _built(self, drafts: Sequence[Draft], options: Options) -> Built:
        try:
            return build(drafts, options)
        except GraphInvalid as error:
            for problem in error.problems:
                line, _, column = problem.where.removeprefix(f"{self._problems.file}:").partition(":")
                mark = Mark(int(line), int(column)) if line.isdecimal() and column.isdecimal() else self._flow.mark
                self._problems.add(mark, "F002", problem.message)
            self._problems.stop()
            raise

    # --- jobs -------------------------------------------------------------------------------------------------------

    def _of_job(self, job: JobDef) -> tuple[Compiler, list[Draft]]:
        """The steps of a job, and their compiler."""
        stubs = self.stubs
        if stubs is not None and job.id != FINALLY:
            stubs = Stubs(_inside(stubs.mock, job.id), _inside(stubs.fail, job.id), stubs.vars)
        part = Compiler(self._flow, self._components, self._problems, stubs, self._known.inside(job))
        drafts = part._drafts(job.steps)
        part._check_cycles()
        return part, drafts

    def _job_draft(self, job: JobDef, inside: tuple[Compiler, list[Draft]]) -> Draft:
        """A job without its program, which depends on the values that other jobs take."""
        before = self._before[job.id] = self._known_before(job.id, job.needs, job.after, "job")
        condition = self._condition(job)
        lock = self._lock(job.lock)
        for name in _values((*inside[1], Draft(Node("", "child"), condition=_held(condition), lock=lock)), ()):
            before += [name.partition(".")[0]] if name.partition(".")[0] in self._ids else []
        where = self._at(job.mark)
        return Draft(
            Node(job.id, "child", outputs=(job.id,), where=where),
            after=tuple(name for name, _ in job.after),
            condition=_held(condition),
            lock=lock,
        )

    def _with_program(self, draft: Draft, job: JobDef, part: Compiler, drafts: list[Draft], used: set[str]) -> Draft:
        own, taken = _values(drafts, ()), [id for id in job.ids if f"{job.id}.{id}" in used]
        results = taken if self._flow.output is not None else [id for id in job.ids if id in taken or id not in own]
        made = tuple(Wanted(id, (id,)) for id in results)
        built = part._built(drafts, Options(made=made, in_order=job.in_order, loops=_loops(drafts)))
        node = self._with_job(draft.node, job, built)
        node = self._stubbed(node, job.id) or node
        makes = (Made(job.id), *(Made(f"{job.id}.{id}", (id,)) for id in taken))
        return msgspec.structs.replace(draft, node=node, wants=_taken(built), makes=makes)

    def _with_job(self, node: Node, job: JobDef, built: Built) -> Node:
        inner = {one.name: one.program.version for one in built.plan.nodes if one.program is not None}
        version = sha256(msgspec.json.encode([job.canonical, inner], order="sorted")).hexdigest()[:16]
        program = Job(f"{self._flow.name}.{job.id}", version, built.plan, tuple(built.inputs))
        return msgspec.structs.replace(node, returns=program.returns, program=program)

    def _last(self, final: tuple[Compiler, list[Draft]] | None, workspace: bool) -> Draft | None:
        """The last node: the steps of `finally`, and the removal of the workspace."""
        flow = self._flow
        drafts = [] if final is None else final[1]
        if workspace and flow.workspace is not None and flow.workspace.cleanup != "never":
            only_success = flow.workspace.cleanup == "on_success"
            drafts = [*drafts, _removal(drafts, only_success, self._components.workspaces())]
        if not drafts:
            return None
        job = flow.final or JobDef(FINALLY, flow.mark, (), {})
        built = self._built(drafts, Options(made=(), on_failure="continue", in_order=True, loops=_loops(drafts)))
        node = self._with_job(Node(FINALLY, "child", where=self._at(job.mark)), job, built)
        return Draft(node, _taken(built))

    def _check_workspace(self, workspace: WorkspaceDef) -> None:
        try:
            place_of(os.path.join(self._components.folder, workspace.root), self._components.workspaces())
        except UsageError as error:
            self._problems.add(workspace.mark, "F023", str(error))

    def _workspace(self) -> Draft:
        assert self._flow.workspace is not None
        root, folders = os.path.join(self._components.folder, self._flow.workspace.root), self._components.workspaces()

        def make_workspace(run: dict[str, str]) -> str:
            return make(root, run["id"], folders)

        spec = _spec(make_workspace, MAKE)
        where = self._at(self._flow.workspace.mark)
        node = Node(MAKE, "step", outputs=(WORKSPACE,), where=where, spec=spec)
        return Draft(node, (Wanted("run", (RUN,), keyword=True),), (Made(WORKSPACE),))

    # --- steps ------------------------------------------------------------------------------------------------------

    def _drafts(self, steps: Sequence[StepDef]) -> list[Draft]:
        found: list[Draft] = []
        in_order = self._job is not None and self._job.in_order
        for number, step in enumerate(steps):
            draft = self._draft(step)
            previous = (steps[number - 1].id,) if in_order and number and steps[number - 1].id != step.id else ()
            self._before[step.id] += previous
            if draft is not None:
                found.append(msgspec.structs.replace(draft, after=tuple(dict.fromkeys((*draft.after, *previous)))))
            if draft is not None and draft.node.max_rounds and step.repeat is not None:
                found.append(self._until(step, step.repeat))
            if draft is not None and isinstance(step.on_error, OtherDef) and (other := self._instead(step)) is not None:
                found.append(other)
        # What comes after a step also comes after its replacement.
        others = {draft.instead: draft.node.name for draft in found if draft.instead}
        for number, draft in enumerate(found if others else ()):
            behind = () if draft.instead else tuple(others[id] for id in draft.after if id in others)
            found[number] = msgspec.structs.replace(draft, after=(*draft.after, *behind))
        return found

    def _known_before(
        self, id: str, needs: Sequence[tuple[str, Mark]], after: Sequence[tuple[str, Mark]], kind: str
    ) -> list[str]:
        """The `after` of a step or a job."""
        before, add = list[str](), self._problems.add
        for what, names in (("needs", needs), ("after", after)):
            for name, mark in names:
                if name not in self._ids:
                    add(mark, "F012", f"unknown {kind} {name!r} in {what}; {did_you_mean(name, self._ids)}")
                elif name == id:
                    add(mark, "F016", f"{name!r} cannot come after itself")
                else:
                    before.append(name)
        return before

    def _draft(self, step: StepDef) -> Draft | None:
        add, where = self._problems.add, self._at(step.mark)
        before = self._before[step.id] = self._known_before(step.id, step.needs, step.after, "step")
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
        lock = self._lock(step.lock)
        others = (otherwise, None if lock is None else lock[0])
        for wanted in (*wants, *(condition or ()), *(one for one in others if one is not None)):
            before += [name for name in wanted.values if name in self._ids and (name != step.id or not step.repeat)]
        node = self._node(step, component, where, secrets)
        if node is None:
            return None
        stubbed = self._stubbed(node, step.id)
        if stubbed is not None:
            node = stubbed
        elif step.map is not None:
            node = msgspec.structs.replace(
                node, mapped=Mapped(columns, step.map.limit, step.map.on_error, step.map.tolerate, NO_CHUNKS)
            )
        if step.on_error == "skip" or isinstance(step.on_error, OtherDef):
            node = msgspec.structs.replace(node, on_error="skip" if step.on_error == "skip" else "instead")
        if step.repeat is not None and stubbed is None:
            node = msgspec.structs.replace(node, max_rounds=step.repeat.most or self._flow.max_rounds)
        if step.skips_job:
            node = msgspec.structs.replace(node, skips_rest=True)
        return Draft(
            node,
            wants,
            (Made(step.id),),
            tuple(name for name, _ in step.after),
            condition=_held(condition),
            otherwise=otherwise,
            lock=lock,
        )

    def _stubbed(self, node: Node, id: str) -> Node | None:
        """In a test, the replacement of a node; None if it is not replaced."""
        stubs = self.stubs
        if stubs is not None and id in stubs.fail:
            return _failing(node, stubs.fail[id])
        return None if stubs is None or id not in stubs.mock else _mocked(node, stubs.mock[id])

    def _instead(self, step: StepDef) -> Draft | None:
        """The node that runs if a step fails, and makes its value."""
        assert isinstance(step.on_error, OtherDef)
        keys = ("when", "retry", "timeout", "on_timeout", "map", "lock", "repeat", "queue")
        nothing: dict[str, Any] = dict.fromkeys(keys)
        id = step.id + ON_ERROR
        other = msgspec.structs.replace(
            step,
            id=id,
            use=step.on_error.use,
            arguments=step.on_error.arguments,
            needs=(),
            after=(),
            on_error="fail",
            skips_job=False,
            must_run=False,
            **nothing,
        )
        draft = self._draft(other)
        # For the order, both are one node.
        self._before[step.id] += self._before.pop(id)
        if draft is None:
            return None
        return msgspec.structs.replace(draft, makes=(Made(step.id),), after=(step.id,), instead=step.id)

    def _until(self, step: StepDef, repeat: RepeatDef) -> Draft:
        """The gate that leads back to a step until its condition holds."""
        scope, where = Scope(self._known, last=step.id), self._where(repeat.until)
        before = len(self._problems.found)
        made = template(repeat.until, scope, self._problems)
        if step.id not in scope.names and len(self._problems.found) == before:
            self._problems.add(
                repeat.until.mark,
                "F010",
                "until is an expression with `last`, the result of the last round, as in ${{ last.done }}",
            )
        # A step that was skipped has no value, so there is no further round.
        wanted = Wanted("until", tuple(scope.names), compute=_Filled(made, scope.names, where))
        self._before[step.id] += [name for name in wanted.values if name in self._ids and name != step.id]
        gate = Gate({}, lambda again: [step.id] if again else [])
        where = self._where(repeat.until)
        return Draft(
            Node(step.id + UNTIL, "gate", where=where, function=_again, gate=gate), (wanted,), targets=(step.id,)
        )

    def _lock(self, lock: LockDef | None) -> tuple[Wanted, float, float | None] | None:
        if lock is None:
            return None
        return self._wanted("key", lock.key, self._where(lock.key)), lock.ttl, lock.wait

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
        if step.map is not None and step.repeat is not None:
            add(step.mark, "F002", "a step is mapped or repeated, and not both; map a flow that repeats a step")
        if spec is None and step.retry is not None:
            add(step.mark, "F002", f"{step.use.value} is not tried again: it has no `retry`")
        if component.kind in ("sleep", "child") and step.timeout is not None:
            add(step.mark, "F002", f"{step.use.value} has no `timeout`; give it to steps")
        if step.queue is not None and (spec is None or step.use.value in PROVIDED):
            add(step.queue.mark, "F002", f"queue is for functions, which its workers have; {step.use.value} is none")
        if spec is not None:
            spec = self._with_options(spec, step)
            if self.stubs is not None:
                spec = _aside(spec)
            if secrets:
                spec = dataclasses.replace(spec, secrets=tuple(secrets.items()))
            return Node(step.id, "step", outputs=(step.id,), where=where, returns=spec.returns, spec=spec)
        if component.program is not None:
            program = component.program
            return Node(step.id, "child", outputs=(step.id,), where=where, returns=program.returns, program=program)
        if component.kind == "sleep":
            return Node(step.id, "timer", where=where)
        question = self._question(step, component)
        return None if question is None else Node(step.id, "wait", where=where, question=question, function=_nothing)

    def _with_options(self, spec: StepSpec, step: StepDef) -> StepSpec:
        if step.queue is None and not spec.queue:
            policy: dict[str, Any] = {"retry": step.retry, "timeout": step.timeout}
            given = {key: value for key, value in policy.items() if value is not None}
            return dataclasses.replace(spec, name=step.id, **given)
        # A step that workers of a queue run keeps the name by which they know it.
        queue = step.queue.value if step.queue is not None else None
        try:
            return Step[..., Any](spec).options(retry=step.retry, timeout=step.timeout, queue=queue).spec
        except UsageError as error:
            self._problems.add(step.mark if step.queue is None else step.queue.mark, "F002", str(error))
            return spec

    def _question(self, step: StepDef, component: Component) -> Question | None:
        """The question of a signal or an approval. Its name and who may answer are fixed."""
        given: dict[str, Item] = step.arguments.value if step.arguments is not None else {}
        if not isinstance(given, dict):
            return None
        plain = {key: item.plain() for key, item in given.items() if key != "request"}
        name, schema, people = plain.get("name", step.id), plain.get("schema"), plain.get("approvers", ())
        add, right = self._problems.add, True
        if not isinstance(name, str) or "${{" in name:
            add(given["name"].mark, "F002", f"the name of a signal is text, without expressions; this is {name!r:.40}")
            right = False
        else:
            try:
                check_name(name, "the name of a signal")
            except InvalidName as error:
                add(given["name"].mark, "F002", str(error))
                right = False
        named = isinstance(people, list) and people and all(_is_person(person) for person in people)
        if "approvers" in plain and not named:
            add(given["approvers"].mark, "F002", "approvers is a list of names")
            right = False
        stored = None
        if schema is not None:
            try:
                if not isinstance(schema, dict):
                    raise UsageError(f"a schema is an object; this is {kind_of(given['schema'])}")
                check_schema(schema, self._flow.schemas)
                stored = Raw(msgspec.json.encode(whole_schema(schema, self._flow.schemas)))
            except UsageError as error:
                add(given["schema"].mark, "F030", str(error))
                right = False
        if not right:
            return None
        on_timeout = None
        if step.on_timeout is not None:
            made = template(step.on_timeout, Scope(self._known), self._problems)
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
        """The arguments of a step, which of them a map has once per item, and the places of secrets."""
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
        self._check_shell(step, items)
        if component.kind in ("signal", "approval"):
            items = {name: item for name, item in items.items() if name == "request"}
        wants, columns = [], []
        secrets: dict[str, tuple[Path, ...]] = {}
        allowed = component.kind == "step"
        for name, item in items.items():
            where = self._where(item)
            scope = Scope(self._known, step.map, allowed, step.id if step.repeat is not None else "")
            before = len(self._problems.found)
            made = template(item, scope, self._problems)
            right = all(one.level == "warning" for one in self._problems.found[before:])
            if made.secrets:
                secrets[name] = made.secrets
            elif made.constant is not None and right and component.kind == "sleep":
                self._check_length(item, msgspec.json.decode(made.constant))
            elif made.constant is not None and right:
                self._check_constant(step, component, name, item, made.constant)
            if step.map is None:
                wants.append(_wanted(name, made, scope, where, self._is_optional))
                continue
            over_scope = Scope(self._known)
            over = template(step.map.over, over_scope, self._problems)
            if scope.takes_item:
                columns.append(name)
                wants.append(_column(name, made, scope, over, over_scope, where, self._where(step.map.over)))
            else:
                values = tuple(scope.names[2:])
                wants.append(
                    Wanted(name, values, keyword=True, compute=_Filled(made, scope.names, where, (None, None)))
                )
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

    def _check_constant(self, step: StepDef, component: Component, name: str, item: Item, value: bytes) -> None:
        for parameter in component.parameters or ():
            if parameter.name == name and (wrong := parameter.misfit(value)) is not None:
                self._problems.add(item.mark, "F022", f"the argument {name} of {step.use.value}: {wrong}")

    def _check_length(self, item: Item, given: Any) -> None:
        length = parse_duration(given, bare=False) if isinstance(given, str) else duration(given)
        if length is None or length < 0:
            self._problems.add(item.mark, "F022", f"{given!r:.80} is no length of time; write seconds, or 90m")

    def _check_shell(self, step: StepDef, given: Mapping[str, Item]) -> None:
        """Note an invalid command, and warn of values that a shell would read as part of the command."""
        argv, shell = given.get("argv"), given.get("shell")
        if step.use.value != "shell" or argv is None:
            return
        said = False if shell is None else shell.value
        written = isinstance(argv.value, str) and "${{" in argv.value
        if isinstance(said, bool) and isinstance(argv.value, list | str) and not (written and not said):
            from perdure.authoring.flow.shell import misused

            # The value of a form is known when it is evaluated.
            listed = [1 if is_form(one) else one.plain() for one in elements(argv)]
            plain = listed if isinstance(argv.value, list) else argv.value
            wrong = misused(plain, said)
            if wrong is not None:
                self._problems.add(argv.mark, "F022", wrong)
        if shell is None or shell.value is False:
            return
        if isinstance(argv.value, str) and "${{" in argv.value:
            self._problems.warn(
                argv.mark,
                "F024",
                'the shell reads this value as a part of the command; give it as `env`, and write "$NAME"',
            )

    def _condition(self, step: StepDef | JobDef) -> tuple[Wanted, ...] | None:
        needed = tuple(
            Wanted(f"needs_{name}", (name,), type=Raw) for name, _ in dict(step.needs).items() if name in self._ids
        )
        if step.when is None:
            return needed or None
        # A form or an expression that is not constant.
        if not is_form(step.when) and not isinstance(step.when.value, bool) and "${{" not in str(step.when.value):
            self._problems.add(step.when.mark, "F010", "when is an expression: write when: ${{ ... }}")
        return (*needed, self._wanted("holds", step.when, self._where(step.when)))

    def _wanted(self, name: str, item: Item, where: str) -> Wanted:
        scope = Scope(self._known)
        return _wanted(name, template(item, scope, self._problems), scope, where, self._is_optional)

    def _output(self) -> tuple[Wanted, ...] | None:
        """The parts of the result, or one without a name that is the result; None: the values that no step takes."""
        output = self._flow.output
        if output is None:
            return None
        if isinstance(output.value, dict) and not any(key.startswith("$") for key in output.value):
            return tuple(self._wanted(key, item, self._where(item)) for key, item in output.value.items())
        return (self._wanted("", output, self._where(output)),)

    def _is_optional(self, name: str) -> bool:
        """Whether a value that no step makes may be missing."""
        if name.startswith(INPUT):
            known = self._flow.inputs.get(name.removeprefix(INPUT))
            return known is not None and not known.required and not known.has_default
        return self._job is not None and name not in self._ids and not name.startswith(".")

    def _where(self, item: Item) -> str:
        return self._at(item.mark)

    def _at(self, mark: Mark) -> str:
        return f"{self._problems.file}:{mark.line}:{mark.column}"

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
        what = "jobs" if self._job is None and self._flow.jobs else "steps"
        self._problems.add(mark, "F016", f"these {what} wait for each other: {' → '.join(way)}")


def _variables(variables: Mapping[str, VariableDef], given: Mapping[str, Any]) -> Draft:
    """The step that reads the environment variables that are not given: once, and recorded."""
    named = {name: one for name, one in variables.items() if one.env}

    def vars() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, one in named.items():
            value = given[name] if name in given else os.environ.get(one.env, one.default)
            if value is None and not one.has_default:
                raise UsageError(f"the variable {name} has no value: set the environment variable {one.env}")
            found[name] = value
        return found

    spec = _spec(vars, VARIABLES)
    return Draft(Node(VARIABLES, "step", outputs=(VARIABLES,), spec=spec), (), (Made(VARIABLES),))


def _clock() -> Draft:
    """The step that reads the clock, once in a run."""

    def started_at() -> str:
        return datetime.now(UTC).isoformat(timespec="milliseconds")

    spec = _spec(started_at, READ_CLOCK)
    return Draft(Node(READ_CLOCK, "step", outputs=(STARTED,), spec=spec), (), (Made(STARTED),))


def _spec(function: Callable[..., Any], name: str, **options: Any) -> StepSpec:
    """A step that the flow adds by itself."""
    spec = made_of(function, name).spec
    assert spec is not None
    return dataclasses.replace(spec, name=name, **options)


def _removal(drafts: Sequence[Draft], only_success: bool, folders: Sequence[str]) -> Draft:
    """The step that removes the workspace, after all others: if everything succeeded, or always."""
    ids = tuple(draft.node.name for draft in drafts)

    def remove_workspace(path: str, run: dict[str, str]) -> bool:
        return remove(path, run["id"], folders)

    condition: tuple[Wanted, ...] | None = None
    if only_success:
        ended = tuple(Wanted(f"ended_{id}", (id,), compute=lambda given: b"true") for id in ids)
        condition = (*ended, Wanted("holds", (STATUS,), compute=_is_success))
    # A command that is being killed may still write to it.
    spec = _spec(remove_workspace, REMOVE, retry=Retry(attempts=5, initial=0.2))
    path = Wanted("path", (WORKSPACE,), keyword=True, compute=_path)
    return Draft(
        Node(REMOVE, "step", spec=spec),
        (path, Wanted("run", (RUN,), keyword=True)),
        after=ids,
        condition=_held(condition),
    )


def _is_success(given: Given) -> bytes:
    return b"true" if given[0] is not None and given[0].data == b'"succeeded"' else b"false"


def _path(given: Given) -> bytes | Absent:
    return Absent("the run has no workspace") if given[0] is None else given[0].data


def _values(drafts: Iterable[Draft], made: Iterable[Wanted]) -> set[str]:
    """The names of the values that nodes and results take, except for what a repeated step takes from itself."""
    found = {name for draft in drafts for wanted in draft.reads for name in wanted.values if name != _owner(draft)}
    return found.union(name for wanted in made for name in wanted.values)


def _owner(draft: Draft) -> str:
    """The step that a node belongs to."""
    return draft.node.name.removesuffix(UNTIL).removesuffix(ON_ERROR)


def _loops(drafts: Iterable[Draft]) -> tuple[str, ...]:
    """The repeated steps."""
    return tuple(draft.node.name for draft in drafts if draft.node.max_rounds)


def _again(until: Any) -> bool:
    """Whether there is another round."""
    if not isinstance(until, bool):
        raise UsageError(f"`until` gave {until!r:.80}; it must give true or false")
    return not until


def _taken(built: Built) -> tuple[Wanted, ...]:
    """What a job takes: values for which its steps may have a default are optional."""
    return tuple(Wanted(name, (name,), required=False, keyword=True) for name in built.inputs)


def _held(condition: tuple[Wanted, ...] | None) -> tuple[Callable[..., Any], tuple[Wanted, ...]] | None:
    return None if condition is None else (_holds, condition)


def _mocked(node: Node, result: Any) -> Node:
    """A node with a fixed result; its arguments are still computed."""

    def mock(**given: Any) -> Any:
        return result

    return Node(node.name, "step", outputs=node.outputs, where=node.where, spec=_spec(mock, node.name))


def _failing(node: Node, message: str) -> Node:
    """A node that fails; a wait times out."""
    question = node.question

    def fail(**given: Any) -> Any:
        if question is None:
            raise RuntimeError(message)
        if question.has_default:
            return question.on_timeout
        raise SignalTimeout(question.kind, question.name)

    return Node(node.name, "step", outputs=node.outputs, where=node.where, spec=_spec(fail, node.name))


def _aside(spec: StepSpec) -> StepSpec:
    """In a test, time is virtual: code that waits for the real world does so in its own event loop."""
    if not spec.asynchronous or spec.generator:
        return spec
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    function = spec.fn

    @wraps(function)
    def call(*args: Any, **given: Any) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(copy_context().run, asyncio.run, function(*args, **given)).result()

    return dataclasses.replace(spec, fn=call, asynchronous=False)


def _inside(stubs: Mapping[str, Any], job: str) -> dict[str, Any]:
    """The replacements of steps of a job, by their ids in the job."""
    return {id.removeprefix(f"{job}."): one for id, one in stubs.items() if id.startswith(f"{job}.")}


def _is_person(name: object) -> bool:
    return isinstance(name, str) and name.strip() != "" and "\0" not in name


def _nothing() -> None:
    """The request of a wait without one."""


def _holds(**given: Any) -> Any:
    """A condition without `when` holds if all values that it needs exist."""
    return given.get("holds", True)


def _wanted(name: str, made: Template, scope: Scope, where: str, is_optional: Callable[[str], bool]) -> Wanted:
    if made.whole is not None and scope.names[made.whole] != scope.last and not is_optional(scope.names[made.whole]):
        return Wanted(name, (scope.names[made.whole],), keyword=True)
    names = tuple(scope.names)
    return Wanted(name, names, keyword=True, compute=_Filled(made, names, where, last=scope.last))


# A flow has thousands of these, and none leads back to itself: the garbage collector need not visit them.
class _Filled(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A template as a function of its values, without those `before` them."""

    made: Template
    names: Sequence[str]
    where: str
    before: Sequence[None] = ()
    last: str = ""

    def __call__(self, given: Given) -> bytes | Absent:
        try:
            return self.made.evaluate([*self.before, *given] if self.before else given)
        except Missing as missing:
            name = self.names[missing.slot]
            if self.last and name == self.last:
                why = "`last` has no value in the first round; write | default(...)"
                raise ExpressionFailed(self.where, why) from None
            return _absent(name, self.where)


def _column(
    name: str, made: Template, scope: Scope, over: Template, over_scope: Scope, where: str, over_where: str
) -> Wanted:
    """An argument with one value per item of a list."""
    count = len(over_scope.names)

    def compute(given: Given) -> bytes | Absent:
        names = over_scope.names
        try:
            items = _items(over.evaluate(given[:count]), over_where)
            names, rest = scope.names, given[count:]
            parts = [
                made.evaluate([Value(bytes(item)), Value(b"%d" % index), *rest]) for index, item in enumerate(items)
            ]
        except Missing as missing:
            return _absent(names[missing.slot], where)
        return b"[%b]" % b",".join(parts)

    return Wanted(name, (*over_scope.names, *scope.names[2:]), keyword=True, compute=compute)


def _items(data: bytes, where: str) -> list[Raw]:
    try:
        return Value(data).elements()
    except msgspec.MsgspecError:
        raise ExpressionFailed(where, f"map.over gives no list: {data[:80].decode(errors='replace')}") from None


def _absent(name: str, where: str) -> Absent:
    """Why the value of a skipped step is missing. Raises ExpressionFailed for an input that was not given."""
    if name.startswith(INPUT):
        raise ExpressionFailed(where, f"the input {name.removeprefix(INPUT)!r} is not given; write | default(...)")
    return Absent(f"{'jobs' if '.' in name else 'steps'}.{name} has no value")
