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

from perdure.assembly import Engine, connect, run
from perdure.authoring.code.ops import bail, checkpoint, now, random, sleep, sleep_until, uuid4
from perdure.authoring.code.step import Step, step, step_inline
from perdure.authoring.code.workflow import Workflow, workflow
from perdure.client.client import Client
from perdure.client.handle import RunHandle
from perdure.client.views import RunPage, RunResult, RunView, StepView
from perdure.config import Limits, Recovery
from perdure.engine.step_context import StepContext, step_context
from perdure.errors import (
    AlreadyExists,
    Corrupt,
    DeadlineExceeded,
    Diverged,
    HistoryTooLarge,
    InvalidId,
    InvalidStoreUrl,
    NoSuchRun,
    NotAStore,
    NotDecodable,
    NotDurable,
    NotOwner,
    NotSerializable,
    OutcomeUnknown,
    PayloadTooLarge,
    PerdureError,
    RunCancelled,
    RunFailed,
    RunParked,
    SchemaMismatch,
    StepCancelled,
    StepError,
    StepTimeout,
    StoreUnavailable,
    UnknownProgram,
    UsageError,
)
from perdure.kernel.codec import TypeCodec
from perdure.kernel.durability import Durability, every
from perdure.kernel.events import Entry, RunStatus, StepStatus
from perdure.kernel.invocation import Invocation, call
from perdure.kernel.retry import Retry

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "Client",
    "Corrupt",
    "DeadlineExceeded",
    "Diverged",
    "Durability",
    "Engine",
    "Entry",
    "HistoryTooLarge",
    "InvalidId",
    "InvalidStoreUrl",
    "Invocation",
    "Limits",
    "NoSuchRun",
    "NotAStore",
    "NotDecodable",
    "NotDurable",
    "NotOwner",
    "NotSerializable",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PerdureError",
    "Recovery",
    "Retry",
    "RunCancelled",
    "RunFailed",
    "RunHandle",
    "RunPage",
    "RunParked",
    "RunResult",
    "RunStatus",
    "RunView",
    "SchemaMismatch",
    "Step",
    "StepCancelled",
    "StepContext",
    "StepError",
    "StepStatus",
    "StepTimeout",
    "StepView",
    "StoreUnavailable",
    "TypeCodec",
    "UnknownProgram",
    "UsageError",
    "Workflow",
    "bail",
    "call",
    "checkpoint",
    "connect",
    "every",
    "now",
    "random",
    "run",
    "sleep",
    "sleep_until",
    "step",
    "step_context",
    "step_inline",
    "uuid4",
    "workflow",
]
