"""Every setting, once, as frozen dataclasses; TOML in and out. Torch-free.

A configuration is checked when it is made, so one that exists is valid. Each leaf has a dotted path
(`attention.dynamics.n_steps`), and any suffix of it that names one leaf only (`n_steps`) will do in `change`.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from .errors import CoupledQKError, unknown

Method = Literal[
    "none", "euler", "leapfrog", "semi_implicit", "kick", "query_residual", "key_residual", "shared_mlp", "affine"
]
Force = Literal["mlp", "linear", "potential", "zero"]


@dataclass(frozen=True)
class DynamicsConfig:
    """The token-local map (q, k) -> (q, k) before scoring."""

    method: Method = "none"
    """How q and k move: an integrator of q' = k, k' = f(q), a control in which only one of them moves, or affine coupling."""
    force: Force = "mlp"
    """The function f; one per layer, shared by its heads."""
    n_steps: int = 3
    """Integration steps n."""
    step_size: float = 0.1
    """Initial step size dt."""
    learn_step_size: bool = True
    """Learn dt = exp(tau), one tau per key head; otherwise dt stays as it is."""
    force_std: float = 0.02
    """Standard deviation of the force's initial weights."""
    gate: bool = False
    """Multiply dt by a learned gate per key head that starts at 0, so that the map starts as the exact identity."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.n_steps >= 1, "n_steps", self.n_steps, "at least 1")
        require(self.step_size > 0, "step_size", self.step_size, "greater than 0")
        require(self.force_std >= 0, "force_std", self.force_std, "at least 0")
        self._refuse_settings_without_effect()

    def _refuse_settings_without_effect(self) -> None:
        used = {"none": {"method"}, "affine": {"method", "force_std"}}.get(self.method)
        if used is None:
            return
        for f in dataclasses.fields(self):
            if f.name not in used and getattr(self, f.name) != f.default:
                raise CoupledQKError(
                    f"{f.name}={getattr(self, f.name)!r} has no effect with method {self.method!r}: "
                    f"leave it at {f.default!r} or choose another method"
                )


@dataclass(frozen=True)
class ScoringConfig:
    """From evolved q, k and v to the output."""

    kind: Literal["softmax", "differential"] = "softmax"
    """One softmax map, or the difference of two."""
    flavour: Literal["paper", "official"] = "paper"
    """Of differential scoring: one learned scalar per head, or the four vectors of the published Differential Transformer."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kind == "softmax" and self.flavour != "paper":
            raise CoupledQKError(
                f"flavour={self.flavour!r} has no effect with kind 'softmax': leave it out, or set kind to 'differential'"
            )


@dataclass(frozen=True)
class AttentionConfig:
    """One attention variant: dynamics, scoring and the geometry they share."""

    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    group_size: int = 1
    """Queries per key and value head (grouped-query attention); 1 gives each query head its own."""
    qk_norm: bool = False
    """RMSNorm on every query and key before the dynamics."""
    causal: bool = True
    """No token sees a later one. False serves encoders."""

    def __post_init__(self) -> None:
        check_fields(self)
        require(self.group_size >= 1, "group_size", self.group_size, "at least 1")


@dataclass(frozen=True)
class ModelConfig:
    """The transformer language model."""

    d_model: int = 512
    n_heads: int = 8
    n_layers: int = 8
    d_ff: int = 2048
    vocab_size: int = 50_257
    n_positions: int = 2048
    """Rows of the learned position table; without effect under RoPE, which has no table."""
    positions: Literal["learned", "rope"] = "learned"
    attention: AttentionConfig = field(default_factory=AttentionConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("d_model", "n_heads", "n_layers", "d_ff", "vocab_size", "n_positions"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        head_width(self.d_model, self.n_heads, self.attention)
        if self.positions == "rope":
            check_rope_width(head_width(self.d_model, self.n_heads, self.attention))


def head_width(d_model: int, n_heads: int, attention: AttentionConfig) -> int:
    """The width of a query: d_model / n_heads, or half of that for the two sub-heads of differential scoring."""
    if d_model % n_heads:
        raise CoupledQKError(
            f"d_model={d_model} is not divisible by n_heads={n_heads}: choose n_heads among the divisors of d_model"
        )
    if n_heads % attention.group_size:
        raise CoupledQKError(
            f"n_heads={n_heads} is not divisible by group_size={attention.group_size}: each key head serves group_size query "
            "heads, so choose group_size among the divisors of n_heads"
        )
    width = d_model // n_heads
    if attention.scoring.kind == "softmax":
        return width
    if width % 2:
        raise CoupledQKError(
            f"differential scoring halves each head, but d_model={d_model} over n_heads={n_heads} gives an odd width of "
            f"{width}: choose an even one"
        )
    return width // 2


def check_rope_width(width: int) -> None:
    if width % 2:
        raise CoupledQKError(
            f"RoPE rotates pairs of coordinates, but each (sub-)head is {width} wide: choose d_model and n_heads for an "
            "even width"
        )


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


def from_dict(kind: type[Config], data: Mapping[str, Any], where: str = "") -> Config:
    """Strict: an unknown key, a value of the wrong type or an impossible value is an error that names its place."""
    hints = typing.get_type_hints(kind)
    for key in data:
        if key not in hints:
            raise unknown("setting", where + key, [where + name for name in hints])
    values = {}
    for key, value in data.items():
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise CoupledQKError(f"{where}{key}={value!r}: expected a table [{where}{key}]")
            values[key] = from_dict(typing.cast(type, hints[key]), value, f"{where}{key}.")
        else:
            values[key] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


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
