"""Programs that are imported when they are first needed. If an import fails, only its own runs are affected."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence

from perdure.errors import BrokenProgram, UsageError
from perdure.kernel.ids import check_name
from perdure.kernel.program import Program, is_program
from perdure.kernel.values.failures import raised_at
from perdure.logs import log

_PLACE = re.compile(r"(?:([^=]+?) *= *)?([\w.]+):(\w+)")


def lazy_programs(places: Sequence[str], check: Callable[[Program], None]) -> dict[str, Callable[[], Program]]:
    """The loader of each program by name, from `shop.flows:fulfil` or `fulfil=shop.flows:fulfil_order`."""
    found: dict[str, Callable[[], Program]] = {}
    for place in places:
        parts = _PLACE.fullmatch(place.strip())
        if parts is None:
            raise UsageError(
                f"Engine(store, [{place!r}]): write the place of a workflow as 'module:workflow', as in "
                "'shop.flows:fulfil', or 'name=module:workflow' if its name differs"
            )
        name = check_name(parts[1] or parts[3], "the name of a workflow")
        if name in found:
            raise UsageError(f"the program {name!r} is given twice; write 'name=module:workflow' for one of them")
        found[name] = _Loader(name, parts[2], parts[3], check)
    return found


class _Loader:
    """Imports one program. An error is cached: a module that failed half-way is not imported again."""

    def __init__(self, name: str, module: str, attribute: str, check: Callable[[Program], None]) -> None:
        self._name, self._module, self._attribute, self._check = name, module, attribute, check
        self._broken: BrokenProgram | None = None

    def __call__(self) -> Program:
        if self._broken is not None:
            raise BrokenProgram(self._broken.name, self._broken.place, self._broken.reason)
        try:
            return self._load()
        # SystemExit too: a module that exits at its import is broken, but the engine is not.
        except (Exception, SystemExit) as error:
            reason = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}{_place(error)}"
            self._broken = BrokenProgram(self._name, f"{self._module}:{self._attribute}", reason)
            log.error("%s; its runs wait or are parked; other runs are not affected", self._broken)
            raise self._broken from error

    def _load(self) -> Program:
        program: object = getattr(importlib.import_module(self._module), self._attribute)
        if not is_program(program):
            raise UsageError(f"{program!r} is not a workflow; decorate it with @workflow")
        if program.name != self._name:
            raise UsageError(f"its name is {program.name!r}: write '{program.name}={self._module}:{self._attribute}'")
        self._check(program)
        return program


def _place(error: BaseException) -> str:
    """The line of the module that failed, where one of its lines did."""
    where = raised_at(error)
    return f" ({where})" if where and "importlib" not in where else ""
