"""Plain JSON values as dataclasses. Strict: a key that is missing or unknown, or a value of the wrong type, names its place."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from .errors import CoupledQKError, unknown

Kind = TypeVar("Kind")


def decode(kind: type[Kind], data: Any, where: str = "") -> Kind:
    """A table as a dataclass; null stands for a float that is not finite."""
    if not isinstance(data, Mapping):
        raise _wrong(where, data, "a table")
    hints = typing.get_type_hints(kind)
    for key in data:
        if key not in hints:
            raise unknown("key", f"{where}{key}", [f"{where}{name}" for name in hints])
    for f in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
        optional = f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
        if f.name not in data and not optional:
            raise CoupledQKError(f"{where}{f.name} is missing")
    return kind(**{key: _value(hints[key], value, f"{where}{key}") for key, value in data.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return decode(typing.cast(type, hint), value, f"{where}.")
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _value(arguments[0], value, where)
    if origin is Literal:
        if value not in arguments:
            raise unknown(where, value, arguments)
        return value
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_value(arguments[0], item, f"{where}[{place}]") for place, item in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        return {
            _key(arguments[0], key, where): _value(arguments[1], item, f"{where}.{key}") for key, item in value.items()
        }
    if hint is float and type(value) in (int, float, type(None)):
        return math.nan if value is None else float(value)
    if hint is Any or type(value) is hint:
        return value
    raise _wrong(where, value, getattr(hint, "__name__", str(hint)))


def _key(hint: Any, key: Any, where: str) -> Any:
    """JSON's keys are strings, seeds are numbers."""
    try:
        return hint(key)
    except ValueError:
        raise _wrong(where, key, f"keys of type {hint.__name__}") from None


def _wrong(where: str, value: Any, expected: str) -> CoupledQKError:
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}…"
    return CoupledQKError(f"{where.removesuffix('.') or 'the file'} is {shown}, expected {expected}")
