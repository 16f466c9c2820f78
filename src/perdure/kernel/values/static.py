"""Look at the user's objects by their types. Runs none of their code, and loads nothing.

A module may hold objects that do something when an attribute of them is read, `isinstance` included: proxies outside of
their request, settings that are loaded late, modules that import on access, classes whose metaclass raises.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from perdure.kernel.values.raised import is_a

_OF_CLASSES: Mapping[str, Any] = type.__dict__
_MRO, _NAMES, _MODULE, _NAME = (_OF_CLASSES[name] for name in ("__mro__", "__dict__", "__module__", "__name__"))
_OF_MODULES: Any = vars(ModuleType)["__dict__"]
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset)
_NONE: Mapping[str, Any] = MappingProxyType({})


class _Plain:
    pass


# What the interpreter gives to classes written in Python. A type written in C may have code of its own there.
_GENERAL = _Plain.__dict__["__dict__"].__doc__


def mro(cls: type) -> tuple[type, ...]:
    """A class and its bases."""
    found: tuple[type, ...] = _MRO.__get__(cls)
    return found


def module_of(cls: type) -> str:
    """The name of the module of a class; empty if that is no text."""
    found = _MODULE.__get__(cls)
    return found if type(found) is str else ""


def attributes_of(found: object) -> Mapping[str, Any]:
    """The attributes that an object has itself: those of a class, of a module, of an instance."""
    if is_a(found, type):
        names: Mapping[str, Any] = _NAMES.__get__(found)
        return names
    if is_a(found, ModuleType):
        return _OF_MODULES.__get__(found) or _NONE
    for base in mro(type(found)):
        names = _NAMES.__get__(base)
        if "__dict__" in names:
            descriptor = names["__dict__"]
            is_general = type(descriptor) is GetSetDescriptorType and descriptor.__doc__ == _GENERAL
            if is_general or (
                type(descriptor) in (GetSetDescriptorType, MemberDescriptorType)
                and module_of(base) in sys.stdlib_module_names
            ):
                return descriptor.__get__(found) or _NONE
            return _NONE
    return _NONE


def own(found: Any, name: str) -> Any:
    """An attribute that an object has itself; None if there is none."""
    return attributes_of(found).get(name)


def attribute(found: Any, name: str) -> Any:
    """An attribute that an object, its class or its bases have, as it is kept there; None if there is none."""
    if name in (names := attributes_of(found)):
        return names[name]
    if is_a(found, ModuleType):
        return None
    for base in mro(found if is_a(found, type) else type(found)):
        if name in (names := attributes_of(base)):
            return names[name]
    return None


def name_of(found: Any) -> str:
    """The name of a function, a class, or an object that was given one; empty if it has none."""
    if is_a(found, type):
        name = _NAME.__get__(found)
    elif is_a(found, MethodType):
        return name_of(found.__func__)
    elif is_a(found, FunctionType) or is_a(found, BuiltinFunctionType):
        name = found.__name__
    else:
        name = own(found, "__name__")
    return name if type(name) is str else ""


def defined_in(found: Any) -> str:
    """The name of the module of a function, a class, or an object that was given one; empty if it has none."""
    if is_a(found, type):
        return module_of(found)
    is_function = is_a(found, (FunctionType, BuiltinFunctionType))
    module = found.__module__ if is_function else own(found, "__module__")
    return module if type(module) is str else ""


def text_of(found: Any) -> str | None:
    """A text as a plain one; None if it is no text."""
    return str.__str__(found) if is_a(found, str) else None


def items_of(found: Any) -> Iterable[Any]:
    """The items of a list, a tuple or a set, and the values of a dict; none of anything else."""
    if is_a(found, dict):
        return list(dict.values(found))
    kind = next((kind for kind in _CONTAINERS if is_a(found, kind)), None)
    return () if kind is None else list(kind.__iter__(found))


def file_of(module: object) -> str | None:
    """The file of a loaded module, and of nothing that only stands for one."""
    file = own(module, "__file__") if is_a(module, ModuleType) else None
    return file if type(file) is str else None
