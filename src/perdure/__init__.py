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

__version__ = "0.1.0"

# Where each public name is defined. It is imported when it is first used, so that help and small commands need not wait
# for the whole engine. Type checkers read `__init__.pyi`, which `make stubs` writes from this table.
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
        "perdure.client.checkpoints": ("GraphCheckpoint StepRecord"),
        "perdure.client.client": ("Client"),
        "perdure.client.compacting": ("CompactReport"),
        "perdure.client.handle": ("RunHandle"),
        "perdure.client.locks": ("LockView Locks"),
        "perdure.client.pruning": ("KeptRun PruneReport"),
        "perdure.client.rebuilding": ("DamagedJournal Difference RebuildReport"),
        "perdure.client.schedules": ("Deployment Schedule ScheduleHandle ScheduleView"),
        "perdure.client.views": (
            "ApprovalView AttemptView BatchView Chunk HistogramBucket Interrupt ItemView "
            "OrchestratorView QueueView RunCount RunPage RunResult RunSummary RunView StepView StreamView WaitView"
        ),
        "perdure.client.why": ("Why"),
        "perdure.config": ("Flows Limits Queue Rate Recovery Retention Telemetry"),
        "perdure.context": ("patched resource run_context"),
        "perdure.engine.resources": ("per_process"),
        "perdure.engine.step_context": ("StepContext step_context"),
        "perdure.errors": (
            "AlreadyExists AnswerRejected ApprovalRejected BrokenProgram CannotMigrate CannotRetry CompensationFailed "
            "Corrupt "
            "DeadlineExceeded "
            "Diverged ExecutorBroken ExpressionFailed FailedByHand FlowInvalid FlowProblem ForkRefused GraphInvalid "
            "GraphProblem "
            "HeartbeatTimeout HistoryTooLarge InvalidCapsule "
            "InvalidId InvalidLock InvalidName InvalidRule InvalidSettings InvalidStoreUrl LockLost LockTimeout "
            "LoopLimit NoSuchFlow NoSuchOp NoSuchResource NoSuchRun "
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
        "perdure.kernel.values.failures": ("Failure"),
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
        "perdure.kernel.policies.rules": ("Rule Rules StepInfo default kind prepend replace rule"),
    }.items()
    for name in names.split()
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'perdure' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
