"""What a schedule starts at every tick: collect, wait for the editor, send to everybody."""

from perdure import run_context, step, wait_signal, workflow
from tests.changes.ledger import effect


@step
async def collect(topic: str, limit: int) -> list[str]:
    effect("collect", topic, limit)
    return [f"{topic} {number}" for number in range(limit)]


@step
async def layout(lines: list[str], columns: int = 2) -> str:
    effect("layout", len(lines), columns)
    return "|".join(lines)


@step
async def send(to: str, text: str) -> None:
    effect("send", to, text)


@step
async def archive(schedule: str, text: str) -> None:
    effect("archive", schedule, text)


@workflow
async def digest(topic: str, limit: int = 2, readers: tuple[str, ...] = ("ann", "bob")) -> int:
    lines = await collect(topic, limit)
    text = await layout(lines)
    await wait_signal("edited")
    for reader in readers:
        await send(reader, text)
    await archive(run_context().schedule or "by hand", text)
    return len(readers)
