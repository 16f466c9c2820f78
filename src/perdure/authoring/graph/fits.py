"""Whether a value of one annotation can be given to a parameter of another. What cannot be decided passes."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from perdure.kernel.values.items import Items


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
    if (one, other) in ((int, float), (bool, float), (int, complex), (float, complex)):
        return True
    try:
        if not issubclass(one, other):
            return False
    except TypeError:
        return True
    of_made, of_wanted = get_args(made), get_args(wanted)
    if one is tuple or other is tuple or len(of_made) != len(of_wanted):
        return not (one is other is tuple) or _fit_tuples(of_made, of_wanted)
    return all(fits(a, b) for a, b in zip(of_made, of_wanted, strict=True))


def _fit_tuples(made: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    if not made or not wanted or Ellipsis in made or Ellipsis in wanted:
        return True
    return len(made) == len(wanted) and all(fits(a, b) for a, b in zip(made, wanted, strict=True))


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
    """The type of the elements of a list; Any if it is not known."""
    annotation = _plain(annotation)
    arguments = get_args(annotation)
    return arguments[0] if len(arguments) == 1 else Any
