"""An expense claim: checked, approved by a manager, above a limit by finance too, and paid."""

from dataclasses import dataclass

from perdure import ApprovalRejected, approval, now, step, workflow
from tests.changes.ledger import effect

LIMIT = 1000


@dataclass
class Claim:
    person: str
    cents: int
    purpose: str = ""


@dataclass
class Decision:
    ok: bool
    note: str = ""


@dataclass
class Verdict:
    risk: int
    flags: list[str]


@step
async def assess(claim: Claim) -> Verdict:
    effect("assess", claim.person, claim.cents)
    return Verdict(claim.cents // 500, ["late"])


@step
async def ask_receipt(person: str) -> str:
    effect("ask receipt", person)
    return f"receipt of {person}"


@step
async def book(person: str, cents: int, account: str) -> int:
    effect("book", person, cents, account)
    return cents


@step
async def transfer(person: str, cents: int) -> str:
    effect("transfer", person, cents)
    return f"transfer of {cents}"


@step
async def tell(person: str, text: str) -> None:
    effect("tell", person, text)


@workflow
async def expense(claim: Claim) -> str:
    verdict = await assess(claim)
    asked = now()
    decision = await approval("manager", {"cents": claim.cents, "risk": verdict.risk}, Decision)
    if not decision.ok:
        await tell(claim.person, f"refused: {decision.note}")
        return "refused"
    if verdict.risk > 1:
        await ask_receipt(claim.person)
    if claim.cents > LIMIT:
        try:
            await approval("finance", {"cents": claim.cents}, Decision, approvers=["fay"])
        except ApprovalRejected:
            await tell(claim.person, "finance said no")
            return "refused"
    booked = await book(claim.person, claim.cents, "travel")
    done = await transfer(claim.person, booked)
    await tell(claim.person, f"{done}, asked in {asked.year > 2000}")
    return done
