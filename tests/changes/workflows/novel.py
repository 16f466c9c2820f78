"""A novel: chapters are streamed, translated one by one, and printed by runs that wait in a queue."""

from collections.abc import AsyncIterator

from perdure import child, step, wait_signal, workflow
from tests.changes.ledger import effect


@step
async def write(title: str, chapters: int) -> AsyncIterator[str]:
    effect("write", title, chapters)
    for number in range(chapters):
        yield f"{title} {number}"


@step
def translate(text: str, language: str = "de") -> str:
    effect("translate", text, language)
    return text.upper()


@step
async def typeset(text: str) -> int:
    effect("typeset", text)
    return len(text)


@step
async def sell(title: str, pages: int) -> str:
    effect("sell", title, pages)
    return f"{title}: {pages} pages"


@workflow
async def printing(text: str, copies: int = 1) -> None:
    await typeset(text)


def chosen(chapters: list[str]) -> list[str]:
    return [chapter for chapter in chapters if not chapter.endswith("9")]


@workflow
async def novel(title: str, chapters: int) -> str:
    pages = 0
    texts = await write(title, chapters)
    for number, chapter in enumerate(chosen(texts)):
        text = await translate(chapter)
        pages += await typeset(text)
        await child(printing(text), id=f"{title}-{number}", detached=True, queue="press")
    await wait_signal("reviewed")
    return await sell(title, pages)
