"""The explanation of a divergence, as plain data. Imports nothing of perdure."""

from __future__ import annotations

import msgspec

# How many lines of a change of the code are shown.
_SHOWN = 24


class OpView(msgspec.Struct, frozen=True, omit_defaults=True):
    """An op as a journal has it, or as the code asks for it. `code` is the source line, if it can be read."""

    kind: str
    path: str
    name: str
    inputs: str = ""
    source: str = ""
    code: str = ""
    # The queue of a remote step.
    queue: str = ""
    # Of a node whose sources have changed: where it takes them from, as in `order = input.order`.
    takes: str = ""
    # The function of a recorded step or child, if that had another name.
    function: str = ""

    def __str__(self) -> str:
        """`step charge:0`."""
        return f"{self.kind} {self.path}"


class Raised(msgspec.Struct, frozen=True):
    """An exception that the code raised during replay, with the innermost line of the user's code.

    `skipped` are the lines that it led past, `handlers` those that handle it, as `file:line`; `names` what the skipped
    lines mention. `caught`: the code caught it. `mistake`: no code raises it on purpose. `number` tells those of an
    execution apart: one that the code raises again, after it has waited, has the same.
    """

    type: str
    message: str
    source: str
    code: str = ""
    skipped: set[str] = set()
    handlers: set[str] = set()
    names: set[str] = set()
    caught: bool = False
    mistake: bool = False
    number: int = 0

    def __str__(self) -> str:
        """`KeyError: 'total'`."""
        name = self.type.rpartition(".")[2]
        return f"{name}: {self.message}" if self.message else name


class Divergence(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the code departs from a journal, what has changed, and the fix.

    `change` is `inserted`, `removed`, `renamed`, `reordered`, `inputs`, `type`, `fewer`, `more`, `branch`, `rewired`
    for a node that takes a value from elsewhere, or `raised` for code that raises an exception where the run went on.
    """

    change: str
    op: str
    title: str
    recorded: OpView
    current: OpView | None
    fix: str
    # The fix as a unified diff that `perdure resolve --apply` writes; empty if the fix is not a change of one file.
    patch: str = ""
    # How the source that the run was executed with differs from that of now, as far as both are known.
    changed: str = ""
    # The last op that the code asked for, if it asks for none in place of the recorded one.
    last: OpView | None = None
    # The arguments that have changed, as in `urls: was ["u1"], now ["u1", "u2"]`.
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The change, both sides with their lines, and the fix."""
        now, last = self.current, self.last
        if now is not None and (self.recorded.takes or now.takes):
            width = max(len(self.recorded.takes), len(now.takes))
            sides = [("recorded", self.recorded), ("now", now)]
            lines = [f"  {side:<8}  {op.path}  {op.takes:<{width}}  ({op.source})" for side, op in sides]
            return "\n".join([self.title, "", *lines, "", self.fix])
        shown = "nothing of the kind" if now is None else now.code or "the end" if now.kind == "end" else str(now)
        where = now.source if now is not None else ""
        if last is not None and not where:
            shown, where = f"{shown}, after {last}", last.source
        texts = [("recorded", str(self.recorded), self.recorded.source), ("now", shown, where)]
        width = max(len(what) for _, what, _ in texts)
        lines = [f"  {side:<8}  {what:<{width}}  {where}".rstrip() for side, what, where in texts]
        code = now.code if now is not None and now.kind != "end" else last.code if last is not None else ""
        if code:
            lines.append(f"            {code[:88]}")
        lines += [f"  {argument}" for argument in self.arguments]
        if changed := [f"    {line}".rstrip() for line in self.changed.splitlines()]:
            more = [f"    ... {len(changed) - _SHOWN} more lines"] if len(changed) > _SHOWN else []
            lines += ["", "What has changed in the code since:", "", *changed[:_SHOWN], *more]
        return "\n".join([self.title, "", *lines, "", self.fix])


class LostField(msgspec.Struct, frozen=True):
    """A stored field that is not read, the field beside it that takes its default, their type, and where it is."""

    stored: str
    default: str
    type: str
    path: str
    # The version of the type; empty if it cannot have one.
    version: str

    def __str__(self) -> str:
        """`its field `cents` is no longer read, and `amount` takes its default - at `$.items[0]``."""
        where = "" if self.path == "$" else f" - at `{self.path}`"
        return f"the stored field `{self.stored}` is no longer read, and `{self.default}` takes its default{where}"
