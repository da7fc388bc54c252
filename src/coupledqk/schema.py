"""Type checks, access to settings by name, and strict decoding for frozen dataclasses (configurations, records). Torch-free.

Each setting of a configuration has a dotted path (`attention.dynamics.n_steps`). `change` also accepts any unambiguous ending
of the path (`n_steps`).
"""

import dataclasses
import functools
import json
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from .errors import CoupledQKError, unknown


def require(condition: bool, name: str, given: object, expected: str) -> None:
    if not condition:
        raise CoupledQKError(f"{name}={given!r}: expected {expected}")


def require_range(config: object, least: int, most: int, *names: str) -> None:
    """Raises if a whole number is out of range; None is accepted. Absurd numbers are rejected here, before they are used."""
    for name in names:
        value = getattr(config, name)
        require(value is None or value >= least, name, value, f"at least {least}")
        require(value is None or value <= most, name, value, f"at most {most:,}")


def require_finite(config: object, least: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(least <= value < math.inf, name, value, f"a finite number of at least {least:g}")


Record = TypeVar("Record")


def change(config: Record, settings: Mapping[str, Any]) -> Record:
    """A copy of a configuration with some settings changed; keys are dotted paths or unambiguous endings of them.

    Settings that depend on one another are checked together, after all of them have been changed.
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


def type_of(config: object, key: str) -> Any:
    """The annotated type of a setting; `key` is a dotted path or an unambiguous ending of one."""
    *parents, name = _resolve(config, key).split(".")
    table = functools.reduce(getattr, parents, config)
    return typing.get_type_hints(type(table))[name]


def _resolve(config: object, key: str) -> str:
    paths = list(leaves(config))
    found = [path for path in paths if path == key] or [path for path in paths if path.endswith("." + key)]
    if not found:
        raise unknown("setting", key, paths if "." in key else [path.rsplit(".")[-1] for path in paths])
    if len(found) > 1:
        raise CoupledQKError(f"setting {key!r} is ambiguous: write one of {', '.join(found)}")
    return found[0]


def to_dict(config: object) -> dict[str, Any]:
    """A configuration as nested plain values.

    A setting is omitted if it is None, since TOML has no null, or if it equals the "absent" value in the field's metadata,
    which is the behaviour of versions in which the setting did not exist.
    """
    fields = ((f, getattr(config, f.name)) for f in dataclasses.fields(config))  # pyright: ignore[reportArgumentType]
    return {f.name: _plain(value) for f, value in fields if value is not None and value != f.metadata.get("absent")}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables flattened into one table with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return out


def to_toml(config: object) -> str:
    import tomli_w

    return tomli_w.dumps(to_dict(config))


def from_toml(kind: type[Record], text: str) -> Record:
    return from_dict(kind, parse_toml(text))


def parse_toml(text: str) -> dict[str, Any]:
    """Parses a TOML document into a table. A byte-order mark, which some editors write, is ignored."""
    try:
        return _shallow(tomllib.loads(text.removeprefix("\ufeff")))
    except (ValueError, RecursionError) as error:
        raise CoupledQKError(f"not a TOML configuration: {_reason(error)}") from None


def parse_json(text: str) -> Any:
    """Parses a JSON document into a value."""
    try:
        return _shallow(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise CoupledQKError(f"not JSON: {_reason(error)}") from None


DEEPEST = 50
"""Maximum depth of nested tables and lists in a file."""


def _shallow(value: Any) -> Any:
    """Returns the value unchanged. Raises if it is nested so deeply that recursive functions would exceed Python's recursion
    limit, or if it contains an integer of more than 64 bits."""
    level = [value]
    for _ in range(DEEPEST):
        if any(type(each) is int and each.bit_length() > 64 for each in level):
            raise ValueError("an integer has more than 64 bits")
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [item for items in inner for item in items]
        if not level:
            return value
    raise RecursionError


def _reason(error: Exception) -> str:
    return f"nested more than {DEEPEST} levels deep" if isinstance(error, RecursionError) else str(error)


def from_dict(kind: type[Record], data: Any, where: str = "", null_is_nan: bool = False) -> Record:
    """Decodes a table into a dataclass. An unknown key, a missing key or a value of the wrong type raises an error that names
    its location.

    JSON has no NaN: with `null_is_nan`, null is decoded as a NaN float.
    """
    if not isinstance(data, Mapping):
        raise _wrong(where.removesuffix("."), data, "a table")
    hints = typing.get_type_hints(kind)
    for key in data:
        if key not in hints:
            raise unknown("key", where + key, [where + name for name in hints])
    for f in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
        if f.name not in data and f.default is f.default_factory is dataclasses.MISSING:
            raise CoupledQKError(f"{where}{f.name} is missing")
    given = {key: decode(hints[key], value, f"{where}{key}", null_is_nan) for key, value in data.items()}
    try:
        return kind(**_absent(kind, data), **given)
    except CoupledQKError as error:
        if not where.endswith("]."):
            raise
        raise CoupledQKError(f"{where.removesuffix('.')}: {error}") from None  # which item of the list


def _absent(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """The "absent" values of settings that a table written by `to_dict` omits.

    It is empty for a table written by a user, which lists only some of the settings; the others have their defaults.
    """
    fields = dataclasses.fields(kind)
    absent = {f.name: f.metadata["absent"] for f in fields if "absent" in f.metadata and f.name not in data}
    complete = all(f.name in data for f in fields if f.default is not None and "absent" not in f.metadata)
    return absent if complete else {}


def decode(hint: Any, value: Any, where: str, null_is_nan: bool = False) -> Any:
    """Decodes a plain value into the type of the annotation `hint`. Only ints to floats, lists to tuples and tables to
    dataclasses are converted."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, value, where, null_is_nan)
    if origin is Literal:
        if value not in arguments:
            raise unknown(where, value, map(str, arguments))
        return value
    if origin is tuple and isinstance(value, list | tuple):
        items = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        if len(items) != len(value):
            raise _wrong(where, value, f"{len(items)} values")
        pairs = enumerate(zip(items, value, strict=True))
        return tuple(decode(item, part, f"{where}[{place}]", null_is_nan) for place, (item, part) in pairs)
    if origin is dict and isinstance(value, Mapping):
        keys, items = arguments
        return {
            _key(keys, key, where): decode(items, part, f"{where}.{key}", null_is_nan) for key, part in value.items()
        }
    if dataclasses.is_dataclass(hint):
        kind = typing.cast(type, hint)
        return value if isinstance(value, kind) else from_dict(kind, value, f"{where}.", null_is_nan)
    if hint is float and (type(value) is int or (value is None and null_is_nan)):
        return math.nan if value is None else _float(value, where)
    if hint is Any or type(value) is hint:
        return value
    raise _wrong(where, value, {tuple: "a list", dict: "a table"}.get(origin, getattr(hint, "__name__", str(hint))))


def _decode_union(options: tuple[Any, ...], value: Any, where: str, null_is_nan: bool) -> Any:
    """Decodes `X | None`, or one of several dataclasses selected by the table's `kind`; the first one if it has no `kind`."""
    if value is None and type(None) in options:
        return None
    options = tuple(option for option in options if option is not type(None))
    if len(options) == 1:
        return decode(options[0], value, where, null_is_nan)
    if not isinstance(value, Mapping) or "kind" not in value:
        return value if isinstance(value, options) else decode(options[0], value, where, null_is_nan)
    named = {option.kind: option for option in options}
    if not isinstance(value["kind"], str) or value["kind"] not in named:
        raise unknown(f"{where}.kind", value["kind"], named)
    return decode(named[value["kind"]], value, where, null_is_nan)


def _float(value: int, where: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise _wrong(where, value, "a number that a float can hold") from None


def _key(hint: Any, key: Any, where: str) -> Any:
    """Converts a key to the type `hint`: keys in JSON are always strings, those of a dictionary may be numbers."""
    try:
        return hint(key)
    except ValueError:
        raise _wrong(where, key, f"keys of type {hint.__name__}") from None


def parse(hint: Any, text: str, name: str) -> Any:
    """Parses a value given on the command line into the type of the annotation `hint`. Errors mention the setting's `name`."""
    options = [option for option in typing.get_args(hint) or (hint,) if option is not type(None)]
    wanted = hint if typing.get_origin(hint) is Literal else options[0]
    if wanted is bool and text in ("true", "false"):
        return text == "true"
    if wanted in (int, float):
        try:
            return wanted(text)
        except ValueError:
            pass
    return decode(wanted, text, name)


def parse_flags(config: object, flags: Sequence[str]) -> dict[str, Any]:
    """Parses ["--lr", "3e-4", "--compile"] into {"lr": 0.0003, "compile": True}, for `change`; `--lr=3e-4` works too.

    Each value is parsed as the type of the corresponding setting in `config`.
    """
    settings: dict[str, Any] = {}
    words = [part for flag in flags for part in (flag.split("=", 1) if flag.startswith("--") else [flag])]
    while words:
        flag = words.pop(0)
        if not flag.startswith("--"):
            raise CoupledQKError(f"unexpected {flag!r}: settings are given as --name value, such as --lr 3e-4")
        name = flag.removeprefix("--").replace("-", "_")
        if name in settings:
            raise CoupledQKError(f"{flag} is given twice: give it once")
        kind = type_of(config, name)
        has_value = bool(words) and not words[0].startswith("--")
        if not has_value and bool not in (kind, *typing.get_args(kind)):
            raise CoupledQKError(f"{flag} has no value: write {flag} VALUE")
        settings[name] = parse(kind, words.pop(0), name) if has_value else True
    return settings


def check_fields(config: object) -> None:
    """Checks every field against its annotation, as `decode` does."""
    for name, hint in typing.get_type_hints(type(config)).items():
        object.__setattr__(config, name, decode(hint, getattr(config, name), name))


def _wrong(where: str, value: Any, expected: str) -> CoupledQKError:
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}…"
    return CoupledQKError(f"{where or 'the file'}={shown}: expected {expected}")


MOST_SEEDS = 10_000


def parse_seeds(words: Sequence[str]) -> tuple[int, ...]:
    """Parses numbers and ranges of seeds: ("0-3", "7") gives (0, 1, 2, 3, 7)."""
    seeds: dict[int, None] = {}
    for word in words:
        first, dash, last = word.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise CoupledQKError(f"--seeds {word}: expected numbers such as 0 1 2, or a range such as 0-7")
        if len(first) > 18 or len(last) > 18 or int(last or first) - int(first) >= MOST_SEEDS:
            raise CoupledQKError(f"--seeds {word[:40]}: expected at most {MOST_SEEDS:,} seeds of at most 18 digits")
        if dash and int(last) < int(first):
            raise CoupledQKError(f"--seeds {word}: expected the smaller number first, as in {last}-{first}")
        seeds |= dict.fromkeys(range(int(first), int(last or first) + 1))
    return tuple(seeds)


def seeds_text(seeds: Iterable[int]) -> str:
    """Seeds in order, with ranges: {0, 1, 2, 7} gives "0-2, 7"."""
    ranges: list[list[int]] = []
    for seed in sorted(seeds):
        if ranges and seed == ranges[-1][-1] + 1:
            ranges[-1].append(seed)
        else:
            ranges.append([seed])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ranges)
