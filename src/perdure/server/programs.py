"""The known programs: those of this process, and those that live orchestrators have registered."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter
from typing import Any

import msgspec

from perdure.client.client import Client
from perdure.client.why import alive
from perdure.kernel.ids import BUILT_IN
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Program
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.redaction import Redaction, Removed
from perdure.kernel.values.signatures import Signature
from perdure.ports.leases import ORCHESTRATOR, REGISTRATION, Registration, registrations
from perdure.server import shapes


class KnownPrograms:
    """Programs by name, of this process and of live orchestrators."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def here(self) -> Programs | None:
        """The programs of this process; None if it executes nothing."""
        found: Programs | None = getattr(self._client._gateway, "programs", None)
        return found

    def find(self, name: str, version: str = "") -> Program | None:
        """A program of this process."""
        return self._client._gateway.find_program(name, version)

    async def all(self) -> list[shapes.ProgramItem]:
        """All programs, including those of open runs that no orchestrator has."""
        registered = await self._registered()
        names = {name for one in registered.values() for name in one.programs or ()} | set(self.here or ())
        names |= set(await self._client.store.runs.programs())
        return [self._item(name, registered) for name in sorted(names) if not name.startswith(BUILT_IN)]

    async def one(self, name: str) -> shapes.ProgramDetail | None:
        """A program with its parameters; None if it is unknown."""
        registered = await self._registered()
        item, program = self._item(name, registered), self.find(name)
        if program is None and not item.orchestrators:
            return None
        parameters = None if program is None else described(program, self._client.codec)
        if program is None:
            signature = await self._client._base.signatures.of(name)
            parameters = None if signature is None else parameters_of(signature)
        source = [] if program is None else [msgspec.structs.asdict(part) for part in program.source().parts]
        return shapes.ProgramDetail(
            **msgspec.structs.asdict(item),
            parameters=parameters,
            signature="" if program is None else program.signature,
            source=[shapes.SourcePart(**part) for part in source],
            graph=program is not None and program.dataflow is not None,
        )

    def _item(self, name: str, registered: Mapping[str, Registration]) -> shapes.ProgramItem:
        versions = set() if self.here is None else set(self.here.versions(name))
        having = sorted(owner for owner, one in registered.items() if name in (one.programs or ()))
        for owner in having:
            versions |= set(registered[owner].versions_of(name))
        return shapes.ProgramItem(name, sorted(versions), having, self.here is not None and name in self.here)

    async def _registered(self) -> Mapping[str, Registration]:
        leases, now = self._client._base.leases, self._client.clock.now()
        live = alive(await leases.live(ORCHESTRATOR, now))
        said = registrations(await leases.live(REGISTRATION, now)) if live else {}
        return {name: said[name] for name in live if name in said}


def described(program: Program, codec: Codec) -> dict[str, Any]:
    """The JSON Schema of the arguments of a program, with titles, formats and defaults."""
    properties: dict[str, Any] = {}
    required: list[str] = []
    definitions: dict[str, Any] = {}
    more: Any = False
    for marked, annotation in program.types:
        name = marked.lstrip("*=")
        schema = _merged(msgspec.json.decode(codec.schema(annotation, described=True)), name, definitions)
        if marked.startswith("**"):
            more = schema or True
        elif marked.startswith("*"):
            properties[name] = {"type": "array", "items": schema}
        else:
            properties[name] = schema
            if name not in program.defaults:
                required.append(name)
            else:
                properties[name] = {**schema, **_default(program.defaults[name], codec)}
    return _object(properties, required, definitions, more)


def _default(value: Any, codec: Codec) -> dict[str, Any]:
    try:
        return {"default": msgspec.json.decode(codec.encode(value, "a default"))}
    except Exception:  # a default that cannot be stored has no place in a form
        return {}


def parameters_of(signature: Signature) -> dict[str, Any]:
    """The JSON Schema of the arguments of a program of another process."""
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    required, more = [], False
    for taken in signature.parameters:
        schema = _merged(msgspec.json.decode(taken.schema), taken.name, definitions)
        if taken.kind == Parameter.VAR_KEYWORD:
            more = True
        elif taken.kind == Parameter.VAR_POSITIONAL:
            properties[taken.name] = {"type": "array", "items": schema}
        else:
            properties[taken.name] = {"title": f"{taken.name}: {taken.type}", **schema}
            if taken.required:
                required.append(taken.name)
    return _object(properties, required, definitions, more)


def _object(properties: Any, required: list[str], definitions: Any, more: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": more}
    if required:
        schema["required"] = required
    return {**schema, "$defs": definitions} if definitions else schema


def redacted(program: shapes.ProgramDetail, redaction: Redaction) -> shapes.ProgramDetail:
    """A program without the defaults of parameters and fields that are redacted."""
    removed = Removed()
    parameters = _without_defaults(program.parameters, redaction, removed)
    return msgspec.structs.replace(program, parameters=parameters, signature=redaction.text(program.signature, removed))


def _without_defaults(schema: Any, redaction: Redaction, removed: Removed) -> Any:
    if isinstance(schema, list):
        return [_without_defaults(one, redaction, removed) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _without_defaults(one, redaction, removed) for key, one in schema.items()}
    if isinstance(properties := found.get("properties"), dict):
        for name, one in properties.items():
            given = {name: one["default"]} if isinstance(one, dict) and "default" in one else {}
            if redaction.plain(given, "input", removed=removed) is not given:
                properties[name] = {key: item for key, item in one.items() if key != "default"}
    return found


def _merged(schema: Any, name: str, definitions: dict[str, Any]) -> Any:
    """The schema of a parameter; its definitions are merged into those of all parameters."""
    own = schema.pop("$defs", {}) if isinstance(schema, dict) else {}
    renamed = {key: key if definitions.get(key, one) == one else f"{name}_{key}" for key, one in own.items()}
    for key, one in own.items():
        definitions[renamed[key]] = _pointed(one, renamed)
    return _pointed(schema, renamed)


def _pointed(schema: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_pointed(one, renamed) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _pointed(one, renamed) for key, one in schema.items()}
    if isinstance(pointer := found.get("$ref"), str):
        key = pointer.rpartition("/")[2]
        found["$ref"] = f"#/$defs/{renamed.get(key, key)}"
    return found
