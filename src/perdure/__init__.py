"""perdure: durable workflows for Python. Kill it, run the same command again, it goes on.

from perdure import Engine, step, workflow

@step
async def charge(order): ...

@workflow
async def fulfil(order):
    return await charge(order)

async with Engine("sqlite:///flows.db", [fulfil]) as engine:
    run = await engine.start(fulfil(order), id="order-123")
    receipt = await run.result()
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.assembly import Engine, connect, run
    from perdure.authoring.code.child import call, child, continue_as
    from perdure.authoring.code.ops import (
        bail,
        checkpoint,
        deprecate_patch,
        now,
        random,
        sleep,
        sleep_until,
        uuid4,
    )
    from perdure.authoring.code.saga import Saga, saga
    from perdure.authoring.code.step import Step, step, step_inline
    from perdure.authoring.code.waits import Inputs, approval, inputs, set_state, wait_signal
    from perdure.authoring.code.workflow import Workflow, workflow
    from perdure.client.bulk import BulkItem, BulkReport
    from perdure.client.client import Client
    from perdure.client.compacting import CompactReport
    from perdure.client.handle import RunHandle
    from perdure.client.locks import Locks, LockView
    from perdure.client.pruning import KeptRun, PruneReport
    from perdure.client.queries import RunFilters
    from perdure.client.rebuilding import DamagedJournal, Difference, RebuildReport
    from perdure.client.schedules import Schedule, ScheduleHandle, ScheduleView
    from perdure.client.starts import Start
    from perdure.client.views import (
        ApprovalView,
        Chunk,
        Interrupt,
        OrchestratorView,
        QueueView,
        RunPage,
        RunResult,
        RunSummary,
        RunView,
        StepView,
        StreamView,
    )
    from perdure.client.why import Why
    from perdure.config import Limits, Queue, Rate, Recovery, Retention
    from perdure.context import patched, resource, run_context
    from perdure.engine.resources import per_process
    from perdure.engine.step_context import StepContext, step_context
    from perdure.errors import (
        AlreadyExists,
        AnswerRejected,
        ApprovalRejected,
        BrokenProgram,
        CannotRetry,
        CompensationFailed,
        Corrupt,
        DeadlineExceeded,
        Diverged,
        ExecutorBroken,
        FailedByHand,
        ForkRefused,
        HeartbeatTimeout,
        HistoryTooLarge,
        InvalidCapsule,
        InvalidId,
        InvalidLock,
        InvalidName,
        InvalidRule,
        InvalidStoreUrl,
        LockLost,
        LockTimeout,
        NoSuchOp,
        NoSuchResource,
        NoSuchRun,
        NoSuchSchedule,
        NotAStore,
        NotDecodable,
        NotDurable,
        NotOwner,
        NotParked,
        NotSerializable,
        OutcomeUnknown,
        PayloadTooLarge,
        PerdureError,
        ProcessDied,
        RunCancelled,
        RunFailed,
        RunParked,
        SchemaMismatch,
        SignalRejected,
        SignalTimeout,
        StepBailed,
        StepCancelled,
        StepError,
        StepTimeout,
        StoreUnavailable,
        UnknownProgram,
        UnknownVersion,
        UsageError,
    )
    from perdure.kernel.context import RunContext
    from perdure.kernel.events import Entry, RunStatus, StepStatus
    from perdure.kernel.history.rewind import Truncated
    from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate, Finished, NotFound
    from perdure.kernel.invocation import Invocation
    from perdure.kernel.policies.durability import Durability, every
    from perdure.kernel.policies.fallback import FailedStep, instead, retry_with
    from perdure.kernel.policies.policy import Policy, fast_fail, io, llm
    from perdure.kernel.policies.retry import Retry
    from perdure.kernel.policies.rules import Rule, Rules, StepInfo, default, kind, prepend, replace, rule
    from perdure.kernel.program import Program
    from perdure.kernel.schedules.schedule import CatchUp, all_ticks
    from perdure.kernel.streams import StreamMode, batched
    from perdure.kernel.values.codec import TypeCodec
    from perdure.kernel.values.value_versions import migrates, versioned
    from perdure.locks import Lock, lock
    from perdure.orchestrator.sweep import SweepReport
    from perdure.policy_driver import PolicyDriver, StepRun
    from perdure.ports.leases import HeldBy
    from perdure.settings.load import Settings, load_settings
    from perdure.settings.problems import InvalidSettings

__version__ = "0.1.0"

__all__ = [
    "Accepted",
    "AlreadyExists",
    "AlreadyFinished",
    "AnswerRejected",
    "ApprovalRejected",
    "ApprovalView",
    "BrokenProgram",
    "BulkItem",
    "BulkReport",
    "Cancelled",
    "CannotRetry",
    "CatchUp",
    "Chunk",
    "Client",
    "CompactReport",
    "CompensationFailed",
    "Corrupt",
    "DamagedJournal",
    "DeadlineExceeded",
    "Difference",
    "Diverged",
    "Duplicate",
    "Durability",
    "Engine",
    "Entry",
    "ExecutorBroken",
    "FailedByHand",
    "FailedStep",
    "Finished",
    "ForkRefused",
    "HeartbeatTimeout",
    "HeldBy",
    "HistoryTooLarge",
    "Inputs",
    "Interrupt",
    "InvalidCapsule",
    "InvalidId",
    "InvalidLock",
    "InvalidName",
    "InvalidRule",
    "InvalidSettings",
    "InvalidStoreUrl",
    "Invocation",
    "KeptRun",
    "Limits",
    "Lock",
    "LockLost",
    "LockTimeout",
    "LockView",
    "Locks",
    "NoSuchOp",
    "NoSuchResource",
    "NoSuchRun",
    "NoSuchSchedule",
    "NotAStore",
    "NotDecodable",
    "NotDurable",
    "NotFound",
    "NotOwner",
    "NotParked",
    "NotSerializable",
    "OrchestratorView",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PerdureError",
    "Policy",
    "PolicyDriver",
    "ProcessDied",
    "Program",
    "PruneReport",
    "Queue",
    "QueueView",
    "Rate",
    "RebuildReport",
    "Recovery",
    "Retention",
    "Retry",
    "Rule",
    "Rules",
    "RunCancelled",
    "RunContext",
    "RunFailed",
    "RunFilters",
    "RunHandle",
    "RunPage",
    "RunParked",
    "RunResult",
    "RunStatus",
    "RunSummary",
    "RunView",
    "Saga",
    "Schedule",
    "ScheduleHandle",
    "ScheduleView",
    "SchemaMismatch",
    "Settings",
    "SignalRejected",
    "SignalTimeout",
    "Start",
    "Step",
    "StepBailed",
    "StepCancelled",
    "StepContext",
    "StepError",
    "StepInfo",
    "StepRun",
    "StepStatus",
    "StepTimeout",
    "StepView",
    "StoreUnavailable",
    "StreamMode",
    "StreamView",
    "SweepReport",
    "Truncated",
    "TypeCodec",
    "UnknownProgram",
    "UnknownVersion",
    "UsageError",
    "Why",
    "Workflow",
    "all_ticks",
    "approval",
    "bail",
    "batched",
    "call",
    "checkpoint",
    "child",
    "connect",
    "continue_as",
    "default",
    "deprecate_patch",
    "every",
    "fast_fail",
    "inputs",
    "instead",
    "io",
    "kind",
    "llm",
    "load_settings",
    "lock",
    "migrates",
    "now",
    "patched",
    "per_process",
    "prepend",
    "random",
    "replace",
    "resource",
    "retry_with",
    "rule",
    "run",
    "run_context",
    "saga",
    "set_state",
    "sleep",
    "sleep_until",
    "step",
    "step_context",
    "step_inline",
    "uuid4",
    "versioned",
    "wait_signal",
    "workflow",
]

# Where each public name lives. It is loaded when it is first asked for, so that help, type checks and small commands
# need not wait for the whole engine.
_HOMES = {
    name: home
    for home, names in {
        "perdure.assembly": ("Engine connect run"),
        "perdure.authoring.code.ops": ("bail checkpoint deprecate_patch now random sleep sleep_until uuid4"),
        "perdure.authoring.code.saga": ("Saga saga"),
        "perdure.authoring.code.step": ("Step step step_inline"),
        "perdure.authoring.code.child": ("call child continue_as"),
        "perdure.authoring.code.waits": ("Inputs approval inputs set_state wait_signal"),
        "perdure.authoring.code.workflow": ("Workflow workflow"),
        "perdure.client.bulk": ("BulkItem BulkReport"),
        "perdure.client.queries": ("RunFilters"),
        "perdure.client.starts": ("Start"),
        "perdure.client.client": ("Client"),
        "perdure.client.compacting": ("CompactReport"),
        "perdure.client.handle": ("RunHandle"),
        "perdure.client.locks": ("LockView Locks"),
        "perdure.client.pruning": ("KeptRun PruneReport"),
        "perdure.client.rebuilding": ("DamagedJournal Difference RebuildReport"),
        "perdure.client.schedules": ("Schedule ScheduleHandle ScheduleView"),
        "perdure.client.views": (
            "ApprovalView Chunk Interrupt OrchestratorView QueueView RunPage RunResult RunSummary RunView StepView "
            "StreamView"
        ),
        "perdure.client.why": ("Why"),
        "perdure.config": ("Limits Queue Rate Recovery Retention"),
        "perdure.context": ("patched resource run_context"),
        "perdure.engine.resources": ("per_process"),
        "perdure.engine.step_context": ("StepContext step_context"),
        "perdure.errors": (
            "AlreadyExists AnswerRejected ApprovalRejected BrokenProgram CannotRetry CompensationFailed Corrupt "
            "DeadlineExceeded "
            "Diverged ExecutorBroken FailedByHand ForkRefused HeartbeatTimeout HistoryTooLarge InvalidCapsule "
            "InvalidId InvalidLock InvalidName InvalidRule InvalidStoreUrl LockLost LockTimeout NoSuchOp "
            "NoSuchResource NoSuchRun "
            "NoSuchSchedule NotAStore NotDecodable NotDurable NotOwner NotParked NotSerializable OutcomeUnknown "
            "PayloadTooLarge PerdureError ProcessDied RunCancelled RunFailed RunParked "
            "SchemaMismatch SignalRejected SignalTimeout StepBailed StepCancelled StepError StepTimeout "
            "StoreUnavailable "
            "UnknownProgram UnknownVersion UsageError "
        ),
        "perdure.kernel.values.codec": ("TypeCodec"),
        "perdure.kernel.program": ("Program"),
        "perdure.kernel.context": ("RunContext"),
        "perdure.kernel.policies.durability": ("Durability every"),
        "perdure.kernel.events": ("Entry RunStatus StepStatus"),
        "perdure.kernel.policies.fallback": ("FailedStep instead retry_with"),
        "perdure.kernel.inbound": ("Accepted AlreadyFinished Cancelled Duplicate Finished NotFound"),
        "perdure.kernel.invocation": ("Invocation"),
        "perdure.kernel.values.value_versions": ("migrates versioned"),
        "perdure.kernel.policies.policy": ("Policy fast_fail io llm"),
        "perdure.kernel.policies.retry": ("Retry"),
        "perdure.kernel.schedules.schedule": ("CatchUp all_ticks"),
        "perdure.kernel.streams": ("StreamMode batched"),
        "perdure.kernel.history.rewind": ("Truncated"),
        "perdure.locks": ("Lock lock"),
        "perdure.orchestrator.sweep": ("SweepReport"),
        "perdure.policy_driver": ("PolicyDriver StepRun"),
        "perdure.ports.leases": ("HeldBy"),
        "perdure.settings.load": ("Settings load_settings"),
        "perdure.settings.problems": ("InvalidSettings"),
        "perdure.kernel.policies.rules": ("Rule Rules StepInfo default kind prepend replace rule"),
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
