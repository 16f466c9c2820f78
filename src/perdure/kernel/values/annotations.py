"""Check the annotations that values are decoded by, and apply registered codecs to them.

msgspec encodes dataclasses, Enums and other types natively, without calling a hook. If a codec is registered for such a
type, the annotation is rewritten: a stand-in type replaces it, for which msgspec calls the hook. Never decodes itself.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal, Never, NoReturn, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from msgspec import inspect as msgspec_inspect

from perdure.kernel.values.items import KEY, Items, Part, PartReader, Stored
from perdure.kernel.values.models import is_model, model_from
from perdure.kernel.values.types import PlainForm, Shapes, name_of, record_fields
from perdure.kernel.values.value_versions import Versions, versions_of

# Annotations without information: the value comes back as plain JSON.
PLAIN: tuple[object, ...] = (Any, object, None, type(None), inspect.Signature.empty, NoReturn, Never)

CURE = "register a codec with Engine(codecs=[TypeCodec(...)])"


def is_plain(annotation: object) -> bool:
    return any(annotation is plain for plain in PLAIN)


_JSON = (str, int, float, bool, type(None), Any, msgspec.Raw)


def is_json(annotation: Any) -> bool:
    """Whether an annotation holds nothing but JSON's own types, so that every codec decodes it in the same way."""
    if any(annotation is one for one in _JSON):
        return True
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is dict:
        return len(arguments) == 2 and arguments[0] is str and is_json(arguments[1])
    return origin in (list, tuple, Union, types.UnionType) and all(one is ... or is_json(one) for one in arguments)


@lru_cache(maxsize=256)
def json_decoder(annotation: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    """The decoder of such an annotation. Each codec would make the same one again, which takes a while."""
    return msgspec.json.Decoder(annotation).decode


class Annotations:
    """The annotations of one codec: checks them, rewrites them, and makes values of the types msgspec asks about."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        # Types with a registered codec that msgspec would otherwise encode natively.
        self.native = frozenset(cls for cls in shapes.codecs if _is_native(cls))
        self._stand_ins: dict[object, type] = {}
        # Where items are read that are not in the value itself.
        self.reader: PartReader | None = None
        shapes.make_record = self._make_versioned

    def unfit(self, annotation: Any) -> str | None:
        """Say why values cannot be decoded by this annotation, and what to do; None when they can."""
        try:
            info = msgspec_inspect.type_info(self.rewrite(annotation))
            # type_info accepts some unions and Enums that msgspec cannot decode; only a decoder reports them.
            msgspec.json.Decoder(self.rewrite(annotation))
        except NameError as problem:
            return f"a name in it cannot be resolved ({problem}); import it where the annotation can see it"
        except Exception as problem:
            return f"{problem}; {_cure(str(problem))}"
        for reason in filter(None, map(self._unfit_part, _parts(info))):
            return reason
        return None

    def _unfit_part(self, part: msgspec_inspect.Type) -> str | None:
        if isinstance(part, msgspec_inspect.CustomType):
            cls = part.cls
            if Versions.anywhere and is_model(cls) and (inner := _versions_within(cls, set())):
                return (
                    f"{name_of(inner)} has a version and is inside the pydantic model {name_of(cls)}, which writes it "
                    f"without; give {name_of(cls)} a version in its place"
                )
            known = (
                cls is object
                or issubclass(cls, PlainForm)
                or cls in self._stand_ins.values()
                or self._shapes.codec_for(cls) is not None
                or is_model(cls)
                or issubclass(cls, (str, int, float))
            )
            return None if known else f"{name_of(cls)} has no form in JSON; {CURE}"
        if isinstance(part, msgspec_inspect.DataclassType) and hasattr(part.cls, "__attrs_attrs__"):
            private = [field.name for field in part.fields if field.name.startswith("_")]
            if private:
                return f"{name_of(part.cls)} has the private attribute {private[0]}, which is not stored; {CURE}"
        return None

    def make(self, cls: Any, value: Any) -> Any:
        """Make an instance of a type that msgspec does not know from plain data (its `dec_hook`)."""
        if isinstance(cls, _StandIn):
            return cls.make(value)
        if get_origin(cls) is Items or cls is Items:
            (element,) = get_args(cls) or (Any,)
            if isinstance(value, dict) and KEY in value:
                return Stored(msgspec.convert(value[KEY], list[Part]), element, self._list_of(element), self.reader)
            if not isinstance(value, list):
                raise ValueError(f"Expected `array`, got `{type(value).__name__}`")
            return Items(value, None if is_plain(element) else lambda plain: self.convert(plain, element))
        if codec := self._shapes.codec_for(cls):
            return codec.decode(value)
        if issubclass(cls, PlainForm):
            return cls.made(value, self.convert)
        if is_model(cls):
            return model_from(cls, msgspec.json.encode(value))
        for base in (str, int, float):
            if issubclass(cls, base):
                return cls(msgspec.convert(value, base, strict=True))
        return value

    def _list_of(self, element: Any) -> Callable[[bytes], list[Any]]:
        """A function that decodes an encoded list of such elements."""
        of: Any = Any if is_plain(element) else self.rewrite(element)
        return msgspec.json.Decoder(list[of], dec_hook=self.make).decode

    # --- stand-ins --------------------------------------------------------------------------------------------------

    def rewrite(self, annotation: Any) -> Any:
        """Replace native types that have a codec by stand-ins; returns the annotation itself if there are none."""
        if not (self.native or Versions.anywhere) or not self._contains_codec(annotation, set()):
            return annotation
        if isinstance(annotation, type) and not get_args(annotation):
            return self._stand_in(annotation)
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return Annotated[(self.rewrite(args[0]), *annotation.__metadata__)]
        rewritten = tuple(self.rewrite(arg) if arg is not Ellipsis else arg for arg in args)
        if origin in (Union, types.UnionType):
            return Union[rewritten]  # noqa: UP007  # made from a tuple
        return origin[rewritten]

    def _contains_codec(self, annotation: Any, seen: set[Any]) -> bool:
        if isinstance(annotation, type) and not get_args(annotation):
            if annotation in seen:
                return False
            seen.add(annotation)
            if self._shapes.codec_for(annotation) is not None:
                return True
            return any(self._contains_codec(hint, seen) for _, _, hint in _typed_fields(annotation))
        if get_origin(annotation) is Literal:
            return False
        return any(self._contains_codec(arg, seen) for arg in get_args(annotation))

    def _stand_in(self, cls: type) -> type:
        if cls not in self._stand_ins:
            codec = self._shapes.codec_for(cls)
            make = codec.decode if codec is not None else lambda value: self._make_record(cls, value)
            self._stand_ins[cls] = _StandIn(
                cls.__name__,
                (),
                {"make": staticmethod(make), "__module__": cls.__module__, "__qualname__": cls.__qualname__},
            )
        return self._stand_ins[cls]

    def _make_versioned(self, cls: Any, value: Any) -> Any:
        return model_from(cls, msgspec.json.encode(value)) if is_model(cls) else self._make_record(cls, value)

    def _make_record(self, cls: Any, value: Any) -> Any:
        """Make a dataclass, Struct, attrs class, TypedDict or NamedTuple whose fields hold a type with a codec."""
        fields = list(_typed_fields(cls))
        config = getattr(cls, "__struct_config__", None)
        tagged = config is not None and config.tag is not None
        if isinstance(value, list):
            tag, value = (value[0], value[1:]) if tagged and value else (None, value)
            value = dict(zip((stored for stored, _, _ in fields), value, strict=False))
        elif isinstance(value, dict):
            tag = value.get(config.tag_field) if config is not None and tagged else None
        else:
            raise ValueError(f"Expected `object`, got `{type(value).__name__}`")
        if config is not None and tagged and tag != config.tag:
            raise ValueError(f"Invalid value {tag!r} for the tag of {name_of(cls)}")
        made = {attribute: self.convert(value[stored], hint) for stored, attribute, hint in fields if stored in value}
        # Fields with init=False are set afterwards, as msgspec does.
        late = {field.name for field in getattr(cls, "__dataclass_fields__", {}).values() if not field.init}
        record = cls(**{name: item for name, item in made.items() if name not in late})
        for name in late & made.keys():
            object.__setattr__(record, name, made[name])
        return record

    def convert(self, value: Any, annotation: Any) -> Any:
        """Decode plain data by an annotation."""
        return msgspec.convert(value, self.rewrite(annotation), str_keys=True, dec_hook=self.make)


class _StandIn(type):
    """The metaclass of stand-ins. msgspec checks the hook's result, so everything is an instance of a stand-in."""

    make: Callable[[Any], Any]

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def _is_native(cls: type) -> bool:
    """Whether msgspec encodes or decodes a type without calling a hook."""
    if issubclass(cls, (list, tuple, dict, set, frozenset)):
        return True
    try:
        return not isinstance(msgspec_inspect.type_info(cls), msgspec_inspect.CustomType)
    except Exception:  # native, but refused: an Enum with mixed values
        return True


def _typed_fields(cls: Any) -> Iterator[tuple[str, str, Any]]:
    """(stored name, attribute, annotation) of the fields of a record type; empty for other types."""
    names = record_fields(cls)
    if names is None and (is_typeddict(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))):
        names = tuple((name, name) for name in getattr(cls, "_fields", None) or get_type_hints(cls))
    if names:
        # With extras, a TypedDict would have NotRequired[...] around its types.
        hints = get_type_hints(cls, include_extras=not is_typeddict(cls))
        for stored, attribute in names:
            yield stored, attribute, hints.get(attribute, Any)


def _parts(info: msgspec_inspect.Type) -> Iterator[msgspec_inspect.Type]:
    """Every type in a tree of types, each once: types may be recursive."""
    queue: list[Any] = [info]
    seen: set[int] = set()
    for item in queue:
        if isinstance(item, tuple):
            queue.extend(item)
        elif isinstance(item, (msgspec_inspect.Type, msgspec_inspect.Field)) and id(item) not in seen:
            seen.add(id(item))
            if isinstance(item, msgspec_inspect.Type):
                yield item
            queue.extend(getattr(item, name) for name in item.__struct_fields__ if name not in ("cls", "default"))


def _versions_within(model: Any, seen: set[Any]) -> type | None:
    """A type with a version among the fields of a pydantic model, which encodes them without our hooks."""
    seen.add(model)
    hints = [field.annotation for field in getattr(model, "model_fields", {}).values()]
    for hint in hints:
        hints += get_args(hint)
        if isinstance(hint, type) and hint not in seen:
            if versions_of(hint) is not None:
                return hint
            if is_model(hint) and (found := _versions_within(hint, seen)):
                return found
    return None


def _cure(problem: str) -> str:
    if "union" in problem.lower():
        return (
            "the members cannot be told apart in JSON: make them msgspec.Struct classes with tag=True, "
            f"put them in fields of one class, or {CURE}"
        )
    if "Enum" in problem:
        return f"give its members values of one kind, or {CURE}"
    return CURE
