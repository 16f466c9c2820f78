"""A report that is written while it is read: steps that yield, and one that shows what it does."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from perdure import batched, set_state, step, step_context, step_inline, wait_signal, workflow
from tests.changes.ledger import effect


@dataclass
class Section:
    title: str
    words: int = 0


@step
async def outline(topic: str) -> list[Section]:
    effect("outline", topic)
    return [Section("why", 2), Section("how", 3)]


@step
async def draft(section: Section, style: str = "plain") -> AsyncIterator[str]:
    effect("draft", section.title, section.words, style)
    for number in range(section.words):
        yield f"{section.title}{number}"


@step(stream=batched(10, 0.5))
def figures(count: int) -> Iterator[int]:
    effect("figures", count)
    yield from range(count)


@step
async def typeset(text: str, pages: int) -> int:
    effect("typeset", text, pages)
    step_context().emit({"pages": pages})
    return pages


@step
async def deliver(topic: str, pages: int) -> str:
    effect("deliver", topic, pages)
    return f"{topic} on {pages} pages"


def stamp(topic: str) -> str:
    effect("stamp", topic)
    return topic.upper()


@workflow
async def report(topic: str, copies: int = 1) -> str:
    text: list[str] = []
    for section in await outline(topic):
        words = await draft(section)
        text.append(" ".join(words))
        set_state("sections", len(text))
    title = await step_inline("stamp", stamp, topic)
    await wait_signal("proofread")
    drawn = await figures(3)
    pages = await typeset(f"{title}: " + "; ".join(text), len(drawn))
    return await deliver(topic, pages * copies)
