"""Execute one step under its policy, outside of a run: retries, timeout, fallback. Stores nothing."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from perdure.assembly import Engine
from perdure.authoring.code.step import Step
from perdure.authoring.code.workflow import workflow
from perdure.client.views import AttemptView
from perdure.config import Limits
from perdure.errors import UsageError
from perdure.kernel.events import Entry, StepStatus
from perdure.kernel.policies.policy import Policy, check_policy
from perdure.kernel.policies.rules import Rule, RulesLike, default, rules_of
from perdure.kernel.values.codec import Codec, TypeCodec
from perdure.kernel.values.failures import rebuild

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StepRun(Generic[R]):
    """The outcome of one step that a PolicyDriver ran."""

    status: StepStatus
    output: R | None
    """The result of the step or its fallback; None when it failed or was skipped."""
    error: BaseException | None
    """The error of the last attempt, if the step failed or was skipped."""
    attempts: Sequence[AttemptView]
    events: Sequence[Entry]
    """The events that a journal would hold for the step, in order."""


class PolicyDriver:
    """Runs single steps under their policies, without a store and without a workflow.

    `policy` is merged over the step's own, as a rule for it would be; `rules` come after it.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        rules: RulesLike = (),
        limits: Limits = Limits(),  # noqa: B008 - frozen
        codecs: Iterable[TypeCodec[Any]] = (),
    ) -> None:
        self._policy = None if policy is None else check_policy(policy, "PolicyDriver(...)")
        self._rules = rules_of(rules, "PolicyDriver(rules=...)")
        self._limits, self._codecs = limits, tuple(codecs)

    async def run(self, step: Step[P, R], /, *args: P.args, **kwargs: P.kwargs) -> StepRun[R]:
        """Execute a step under its policy; a failed step is returned, not raised."""
        if not isinstance(step, Step):
            raise UsageError(f"run() takes a step and its arguments, as in run(charge, order), not {step!r}")
        inspect.signature(step.fn).bind(*args, **kwargs)  # a wrong call raises here
        # A remote step runs here too: there is no queue to send it to.
        here: Step[P, R] = type(step)(dataclasses.replace(step.spec, queue=""))

        @workflow(name=step.name)
        async def single() -> Any:
            return await here(*args, **kwargs)

        async with Engine(
            "memory://", [single], rules=self._rules_for(step.name), limits=self._limits, codecs=self._codecs
        ) as engine:
            handle = await engine.start(single())
            result = await handle.outcome()
            taken = await engine.steps(handle.run_id, inputs=False)
            journal = await engine.journal(handle.run_id)
        if not taken:  # its arguments cannot be stored
            assert result.error is not None
            raise result.error
        (view,) = taken
        error = result.error
        if error is None and view.error is not None:  # it was skipped
            error = rebuild(view.error, Codec(self._codecs), step.spec.errors)
        entries = [entry for entry in journal if getattr(entry.event, "op", "") == view.path]
        output = result.output if view.status is StepStatus.SUCCEEDED else None
        return StepRun(view.status, output, error, view.attempts, entries)

    def _rules_for(self, name: str) -> Sequence[Rule]:
        """The rules without those for other steps; a rule for this one is for all, since no other is called."""
        if self._policy:
            return [Rule(default, self._policy)]
        found: list[Rule] = []
        for one in self._rules.rules:
            if not isinstance(one.matcher, str):
                found.append(one)
            elif one.matcher == name:
                return [*found, Rule(default, one.policy)]
        return found
