from collections import defaultdict

from perdure import workflow

seen: list[int] = []
counts: dict[str, int] = defaultdict(int)
total = 0


def note(n: int) -> None:
    seen.append(n)  # expect: global


@workflow
async def forgetful(n: int) -> int:
    global total  # expect: global
    total += n
    counts["n"] += 1  # expect: global
    counts.update(a=1)  # expect: global
    note(n)
    return len(seen)


@workflow
async def careful(seen: list[int]) -> int:
    seen.append(1)
    return len(seen)
