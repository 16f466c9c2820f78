"""Whether a value of one annotation fits a parameter of another. Pairs that cannot be decided pass."""

from __future__ import annotations

import itertools
import types
from enum import Enum
from typing import Annotated, Any, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from perdure.kernel.values.items import Items
from perdure.kernel.values.types import PlainForm


def fits(made: Any, wanted: Any) -> bool:
    """Whether a type checker would let a value of type `made` be an argument of type `wanted`."""
    made, wanted = _plain(made), _plain(wanted)
    if made is wanted or made in (Any, object) or wanted in (Any, object):
        return True
    if _is_union(made):
        return all(fits(one, wanted) for one in get_args(made))
    if _is_union(wanted):
        return any(fits(made, one) for one in get_args(wanted))
    if get_origin(made) is Literal:
        if get_origin(wanted) is Literal:
            return set(get_args(made)) <= set(get_args(wanted))
        return all(fits(type(value), wanted) for value in get_args(made))
    if get_origin(wanted) is Literal:
        return _values_of(made) <= set(get_args(wanted))
    one, other = get_origin(made) or made, get_origin(wanted) or wanted
    if other is Items and one in (list, Items):
        return fits(element_of(made), element_of(wanted))
    if one is Items:
        return fits(list[element_of(made)], wanted)  # type: ignore[misc]
    if not isinstance(one, type) or not isinstance(other, type) or getattr(other, "_is_protocol", False):
        return True
    if is_typeddict(one) and is_typeddict(other):
        has, needs = get_type_hints(one), get_type_hints(other)
        return all(name in has and fits(has[name], type) for name, type in needs.items())
    if is_typeddict(one) or is_typeddict(other):
        return issubclass(dict, one if is_typeddict(other) else other)
    if issubclass(one, PlainForm):
        # The value is stored as an object, which the parameter may decode as it likes.
        return not issubclass(other, (str, int, float, bytes, list, tuple, set, frozenset, type(None)))
    if (one, other) in ((int, float), (bool, float), (int, complex), (float, complex)):
        return True
    try:
        if not issubclass(one, other):
            return False
    except TypeError:
        return True
    of_made, of_wanted = get_args(made), get_args(wanted)
    if one is tuple:
        return _fits_tuple(of_made, of_wanted, fixed=other is tuple)
    if len(of_made) != len(of_wanted):
        return True
    return all(fits(a, b) for a, b in zip(of_made, of_wanted, strict=True))


def _fits_tuple(made: tuple[Any, ...], wanted: tuple[Any, ...], *, fixed: bool) -> bool:
    """Whether the elements of a tuple fit those of another tuple, of a `fixed` length or not, or of a sequence."""
    if not made or not wanted:
        return True
    if fixed and Ellipsis not in wanted:
        of = itertools.repeat(made[0], len(wanted)) if Ellipsis in made else made
        return (Ellipsis in made or len(made) == len(wanted)) and all(map(fits, of, wanted))
    return all(fits(one, wanted[0]) for one in made if one is not Ellipsis)


def _values_of(annotation: Any) -> set[Any]:
    """The values of a type that has few; for any other type, a value that is in no Literal."""
    if annotation is bool:
        return {True, False}
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return set(annotation)
    return {None if annotation is type(None) else annotation}


def _plain(annotation: Any) -> Any:
    while True:
        if annotation is None:
            return type(None)
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, TypeVar):
            return Any
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def element_of(annotation: Any) -> Any:
    """The type of the elements of a list; Any if unknown."""
    annotation = _plain(annotation)
    arguments = get_args(annotation)
    return arguments[0] if len(arguments) == 1 else Any
