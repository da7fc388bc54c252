"""What makes a frozen dataclass a configuration: checked fields, settings by name, strict TOML. Torch-free.

Each leaf of a configuration has a dotted path (`attention.dynamics.n_steps`), and any ending of it that names one leaf only
(`n_steps`) will do in `change`.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

from .errors import CoupledQKError, unknown


def require(condition: bool, name: str, given: object, expected: str) -> None:
    if not condition:
        raise CoupledQKError(f"{name}={given!r}: expected {expected}")


Config = TypeVar("Config")


def change(config: Config, settings: Mapping[str, Any]) -> Config:
    """A copy with some settings changed; keys are dotted paths or their unambiguous endings.

    Settings that depend on one another are checked together, after all have been changed.
    """
    data = to_dict(config)
    for key, value in settings.items():
        *parents, name = _resolve(config, key).split(".")
        table = data
        for parent in parents:
            table = table[parent]
        table[name] = value
    return from_dict(type(config), data)


def leaves(config: object, prefix: str = "") -> Iterator[str]:
    """The dotted path of every setting."""
    for f in dataclasses.fields(config):  # pyright: ignore[reportArgumentType]
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{f.name}.")
        else:
            yield prefix + f.name


def _resolve(config: object, key: str) -> str:
    paths = list(leaves(config))
    found = [path for path in paths if path == key] or [path for path in paths if path.endswith("." + key)]
    if not found:
        raise unknown("setting", key, paths if "." in key else [path.rsplit(".")[-1] for path in paths])
    if len(found) > 1:
        raise CoupledQKError(f"setting {key!r} is ambiguous: write one of {', '.join(found)}")
    return found[0]


def to_dict(config: object) -> dict[str, Any]:
    """Nested plain values; a setting that is None is left out, since TOML has no null."""
    out = {}
    for f in dataclasses.fields(config):  # pyright: ignore[reportArgumentType]
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            out[f.name] = to_dict(value)
        elif value is not None:
            out[f.name] = list(value) if isinstance(value, tuple) else value
    return out


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return out


def from_dict(kind: type[Config], data: Mapping[str, Any], where: str = "") -> Config:
    """Strict: an unknown key, a value of the wrong type or an impossible value is an error that names its place."""
    hints = typing.get_type_hints(kind)
    for key in data:
        if key not in hints:
            raise unknown("setting", where + key, [where + name for name in hints])
    values = {}
    for key, value in data.items():
        if kinds := _tables(hints[key]):
            if not isinstance(value, Mapping):
                raise CoupledQKError(f"{where}{key}={value!r}: expected a table [{where}{key}]")
            values[key] = from_dict(_of_kind(kinds, value, where + key), value, f"{where}{key}.")
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _tables(hint: Any) -> list[type]:
    """The dataclasses that a field may hold."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return [option for option in options if isinstance(option, type) and dataclasses.is_dataclass(option)]


def _of_kind(kinds: list[type], data: Mapping[str, Any], where: str) -> type:
    """Which of several dataclasses a table is, by its `kind`; the first unless it says."""
    if len(kinds) == 1 or "kind" not in data:
        return kinds[0]
    named = {kind.kind: kind for kind in kinds}
    if data["kind"] not in named:
        raise unknown(f"{where}.kind", data["kind"], named)
    return named[data["kind"]]


def to_toml(config: object) -> str:
    import tomli_w

    return tomli_w.dumps(to_dict(config))


def from_toml(kind: type[Config], text: str) -> Config:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CoupledQKError(f"not a TOML configuration: {error}") from None
    return from_dict(kind, data)


def check_fields(config: object) -> None:
    """Holds every field against its annotation. An int given for a float becomes one; nothing else is converted."""
    for name, hint in typing.get_type_hints(type(config)).items():
        value = getattr(config, name)
        if hint is float and type(value) is int:
            object.__setattr__(config, name, float(value))
        elif typing.get_origin(hint) is Literal:
            if value not in typing.get_args(hint):
                raise unknown(name, value, typing.get_args(hint))
        elif not _fits(value, hint):
            raise CoupledQKError(f"{name}={value!r}: expected {getattr(hint, '__name__', hint)}")


def _fits(value: object, hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(item, typing.get_args(hint)[0]) for item in value)
    return type(value) is hint if hint in (int, float, bool) else isinstance(value, hint)
