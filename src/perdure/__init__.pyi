# Written by `make stubs` from the source; edit that.

from perdure.assembly import Engine as Engine
from perdure.assembly import connect as connect
from perdure.assembly import run as run
from perdure.authoring.code.child import call as call
from perdure.authoring.code.child import child as child
from perdure.authoring.code.child import continue_as as continue_as
from perdure.authoring.code.ops import bail as bail
from perdure.authoring.code.ops import checkpoint as checkpoint
from perdure.authoring.code.ops import deprecate_patch as deprecate_patch
from perdure.authoring.code.ops import now as now
from perdure.authoring.code.ops import random as random
from perdure.authoring.code.ops import sleep as sleep
from perdure.authoring.code.ops import sleep_until as sleep_until
from perdure.authoring.code.ops import uuid4 as uuid4
from perdure.authoring.code.saga import Saga as Saga
from perdure.authoring.code.saga import saga as saga
from perdure.authoring.code.step import Step as Step
from perdure.authoring.code.step import step as step
from perdure.authoring.code.step import step_inline as step_inline
from perdure.authoring.code.waits import Inputs as Inputs
from perdure.authoring.code.waits import approval as approval
from perdure.authoring.code.waits import inputs as inputs
from perdure.authoring.code.waits import set_state as set_state
from perdure.authoring.code.waits import wait_signal as wait_signal
from perdure.authoring.code.workflow import Workflow as Workflow
from perdure.authoring.code.workflow import workflow as workflow
from perdure.client.bulk import BulkItem as BulkItem
from perdure.client.bulk import BulkReport as BulkReport
from perdure.client.checkpoints import GraphCheckpoint as GraphCheckpoint
from perdure.client.checkpoints import StepRecord as StepRecord
from perdure.client.client import Client as Client
from perdure.client.compacting import CompactReport as CompactReport
from perdure.client.handle import RunHandle as RunHandle
from perdure.client.locks import Locks as Locks
from perdure.client.locks import LockView as LockView
from perdure.client.pruning import KeptRun as KeptRun
from perdure.client.pruning import PruneReport as PruneReport
from perdure.client.queries import RunFilters as RunFilters
from perdure.client.rebuilding import DamagedJournal as DamagedJournal
from perdure.client.rebuilding import Difference as Difference
from perdure.client.rebuilding import RebuildReport as RebuildReport
from perdure.client.schedules import Deployment as Deployment
from perdure.client.schedules import Schedule as Schedule
from perdure.client.schedules import ScheduleHandle as ScheduleHandle
from perdure.client.schedules import ScheduleView as ScheduleView
from perdure.client.starts import Start as Start
from perdure.client.views import ApprovalView as ApprovalView
from perdure.client.views import AttemptView as AttemptView
from perdure.client.views import BatchView as BatchView
from perdure.client.views import Chunk as Chunk
from perdure.client.views import HistogramBucket as HistogramBucket
from perdure.client.views import Interrupt as Interrupt
from perdure.client.views import ItemView as ItemView
from perdure.client.views import OrchestratorView as OrchestratorView
from perdure.client.views import QueueView as QueueView
from perdure.client.views import RunCount as RunCount
from perdure.client.views import RunPage as RunPage
from perdure.client.views import RunResult as RunResult
from perdure.client.views import RunSummary as RunSummary
from perdure.client.views import RunView as RunView
from perdure.client.views import StepView as StepView
from perdure.client.views import StreamView as StreamView
from perdure.client.views import WaitView as WaitView
from perdure.client.why import Why as Why
from perdure.config import Flows as Flows
from perdure.config import Limits as Limits
from perdure.config import Queue as Queue
from perdure.config import Rate as Rate
from perdure.config import Recovery as Recovery
from perdure.config import Retention as Retention
from perdure.config import Telemetry as Telemetry
from perdure.context import patched as patched
from perdure.context import resource as resource
from perdure.context import run_context as run_context
from perdure.engine.resources import per_process as per_process
from perdure.engine.step_context import StepContext as StepContext
from perdure.engine.step_context import step_context as step_context
from perdure.errors import AlreadyExists as AlreadyExists
from perdure.errors import AnswerRejected as AnswerRejected
from perdure.errors import ApprovalRejected as ApprovalRejected
from perdure.errors import BrokenProgram as BrokenProgram
from perdure.errors import CannotMigrate as CannotMigrate
from perdure.errors import CannotRetry as CannotRetry
from perdure.errors import CompensationFailed as CompensationFailed
from perdure.errors import Corrupt as Corrupt
from perdure.errors import DeadlineExceeded as DeadlineExceeded
from perdure.errors import Diverged as Diverged
from perdure.errors import ExecutorBroken as ExecutorBroken
from perdure.errors import ExpressionFailed as ExpressionFailed
from perdure.errors import FailedByHand as FailedByHand
from perdure.errors import FlowInvalid as FlowInvalid
from perdure.errors import FlowProblem as FlowProblem
from perdure.errors import ForkRefused as ForkRefused
from perdure.errors import GraphInvalid as GraphInvalid
from perdure.errors import GraphProblem as GraphProblem
from perdure.errors import HeartbeatTimeout as HeartbeatTimeout
from perdure.errors import HistoryTooLarge as HistoryTooLarge
from perdure.errors import InvalidCapsule as InvalidCapsule
from perdure.errors import InvalidId as InvalidId
from perdure.errors import InvalidLock as InvalidLock
from perdure.errors import InvalidName as InvalidName
from perdure.errors import InvalidRule as InvalidRule
from perdure.errors import InvalidSettings as InvalidSettings
from perdure.errors import InvalidStoreUrl as InvalidStoreUrl
from perdure.errors import LockLost as LockLost
from perdure.errors import LockTimeout as LockTimeout
from perdure.errors import LoopLimit as LoopLimit
from perdure.errors import NoSuchFlow as NoSuchFlow
from perdure.errors import NoSuchOp as NoSuchOp
from perdure.errors import NoSuchResource as NoSuchResource
from perdure.errors import NoSuchRun as NoSuchRun
from perdure.errors import NoSuchSchedule as NoSuchSchedule
from perdure.errors import NotAStore as NotAStore
from perdure.errors import NotDecodable as NotDecodable
from perdure.errors import NotDurable as NotDurable
from perdure.errors import NotOwner as NotOwner
from perdure.errors import NotParked as NotParked
from perdure.errors import NotSerializable as NotSerializable
from perdure.errors import OutcomeUnknown as OutcomeUnknown
from perdure.errors import PayloadTooLarge as PayloadTooLarge
from perdure.errors import PerdureError as PerdureError
from perdure.errors import ProcessDied as ProcessDied
from perdure.errors import RunCancelled as RunCancelled
from perdure.errors import RunFailed as RunFailed
from perdure.errors import RunParked as RunParked
from perdure.errors import SchemaMismatch as SchemaMismatch
from perdure.errors import SignalRejected as SignalRejected
from perdure.errors import SignalTimeout as SignalTimeout
from perdure.errors import StepBailed as StepBailed
from perdure.errors import StepCancelled as StepCancelled
from perdure.errors import StepError as StepError
from perdure.errors import StepTimeout as StepTimeout
from perdure.errors import StoreUnavailable as StoreUnavailable
from perdure.errors import UnknownProgram as UnknownProgram
from perdure.errors import UnknownVersion as UnknownVersion
from perdure.errors import UsageError as UsageError
from perdure.kernel.context import RunContext as RunContext
from perdure.kernel.events import Entry as Entry
from perdure.kernel.events import RunStatus as RunStatus
from perdure.kernel.events import StepStatus as StepStatus
from perdure.kernel.history.rewind import Truncated as Truncated
from perdure.kernel.inbound import Accepted as Accepted
from perdure.kernel.inbound import AlreadyFinished as AlreadyFinished
from perdure.kernel.inbound import Cancelled as Cancelled
from perdure.kernel.inbound import Duplicate as Duplicate
from perdure.kernel.inbound import Finished as Finished
from perdure.kernel.inbound import NotFound as NotFound
from perdure.kernel.invocation import Invocation as Invocation
from perdure.kernel.policies.durability import Durability as Durability
from perdure.kernel.policies.durability import every as every
from perdure.kernel.policies.fallback import FailedStep as FailedStep
from perdure.kernel.policies.fallback import instead as instead
from perdure.kernel.policies.fallback import retry_with as retry_with
from perdure.kernel.policies.policy import Policy as Policy
from perdure.kernel.policies.policy import fast_fail as fast_fail
from perdure.kernel.policies.policy import io as io
from perdure.kernel.policies.policy import llm as llm
from perdure.kernel.policies.retry import Retry as Retry
from perdure.kernel.policies.rules import Rule as Rule
from perdure.kernel.policies.rules import Rules as Rules
from perdure.kernel.policies.rules import StepInfo as StepInfo
from perdure.kernel.policies.rules import default as default
from perdure.kernel.policies.rules import kind as kind
from perdure.kernel.policies.rules import prepend as prepend
from perdure.kernel.policies.rules import replace as replace
from perdure.kernel.policies.rules import rule as rule
from perdure.kernel.program import Program as Program
from perdure.kernel.schedules.schedule import CatchUp as CatchUp
from perdure.kernel.schedules.schedule import all_ticks as all_ticks
from perdure.kernel.streams import StreamMode as StreamMode
from perdure.kernel.streams import batched as batched
from perdure.kernel.values.codec import TypeCodec as TypeCodec
from perdure.kernel.values.failures import Failure as Failure
from perdure.kernel.values.value_versions import migrates as migrates
from perdure.kernel.values.value_versions import versioned as versioned
from perdure.locks import Lock as Lock
from perdure.locks import lock as lock
from perdure.orchestrator.sweep import SweepReport as SweepReport
from perdure.policy_driver import PolicyDriver as PolicyDriver
from perdure.policy_driver import StepRun as StepRun
from perdure.ports.leases import HeldBy as HeldBy
from perdure.settings.load import Settings as Settings
from perdure.settings.load import load_settings as load_settings

__version__: str
_HOMES: dict[str, str]
__all__ = [
    "Accepted",
    "AlreadyExists",
    "AlreadyFinished",
    "AnswerRejected",
    "ApprovalRejected",
    "ApprovalView",
    "AttemptView",
    "BatchView",
    "BrokenProgram",
    "BulkItem",
    "BulkReport",
    "Cancelled",
    "CannotMigrate",
    "CannotRetry",
    "CatchUp",
    "Chunk",
    "Client",
    "CompactReport",
    "CompensationFailed",
    "Corrupt",
    "DamagedJournal",
    "DeadlineExceeded",
    "Deployment",
    "Difference",
    "Diverged",
    "Duplicate",
    "Durability",
    "Engine",
    "Entry",
    "ExecutorBroken",
    "ExpressionFailed",
    "FailedByHand",
    "FailedStep",
    "Failure",
    "Finished",
    "FlowInvalid",
    "FlowProblem",
    "Flows",
    "ForkRefused",
    "GraphCheckpoint",
    "GraphInvalid",
    "GraphProblem",
    "HeartbeatTimeout",
    "HeldBy",
    "HistogramBucket",
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
    "ItemView",
    "KeptRun",
    "Limits",
    "Lock",
    "LockLost",
    "LockTimeout",
    "LockView",
    "Locks",
    "LoopLimit",
    "NoSuchFlow",
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
    "RunCount",
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
    "StepRecord",
    "StepRun",
    "StepStatus",
    "StepTimeout",
    "StepView",
    "StoreUnavailable",
    "StreamMode",
    "StreamView",
    "SweepReport",
    "Telemetry",
    "Truncated",
    "TypeCodec",
    "UnknownProgram",
    "UnknownVersion",
    "UsageError",
    "WaitView",
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
