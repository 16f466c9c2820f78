"""An agent: a model is asked what to do, tools do it, until it is done; expensive tools need a yes."""

from dataclasses import dataclass, field

from perdure import approval, set_state, step, workflow
from tests.changes.ledger import effect

MAX_ROUNDS = 8


@dataclass
class Reply:
    text: str
    tool: str = ""
    argument: str = ""


@dataclass
class Message:
    role: str
    text: str
    tags: list[str] = field(default_factory=list)


SCRIPT = {
    0: Reply("let me look", "search", "durable"),
    1: Reply("let me read", "read", "page-1"),
    2: Reply("let me write it down", "write", "note.txt"),
    3: Reply("it is to last"),
}


@step
async def think(messages: list[Message], model: str = "small") -> Reply:
    effect("think", len(messages), messages[-1].text, model)
    return SCRIPT[len([message for message in messages if message.role == "tool"])]


@step
async def search(query: str) -> str:
    effect("search", query)
    return f"found {query}"


@step
async def read(page: str) -> str:
    effect("read", page)
    return f"read {page}"


@step
async def write(path: str, text: str) -> str:
    effect("write", path, text)
    return f"wrote {path}"


@step
async def remember(question: str, answer: str) -> None:
    effect("remember", question, answer)


@workflow
async def agent(question: str, tools: int = 3) -> str:
    messages = [Message("user", question)]
    for number in range(MAX_ROUNDS):
        reply = await think(messages)
        messages.append(Message("assistant", reply.text))
        set_state("round", number)
        if reply.tool == "search":
            outcome = await search(reply.argument)
        elif reply.tool == "read":
            outcome = await read(reply.argument)
        elif reply.tool == "write":
            if not await approval("write", {"path": reply.argument}, bool):
                return "not allowed"
            outcome = await write(reply.argument, reply.text)
        else:
            await remember(question, reply.text)
            return reply.text
        messages.append(Message("tool", outcome))
    return "no answer"
