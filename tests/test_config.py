"""Configurations are validated on creation, round-trip through TOML, and give one-line errors."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coupledqk.config import AttentionConfig, DynamicsConfig, ModelConfig, ScoringConfig
from coupledqk.errors import CoupledQKError
from coupledqk.schema import change, from_dict, from_toml, leaves, parse, parse_seeds, seeds_text, to_dict, to_toml
from coupledqk.variants import PRESETS, VARIANTS, preset, variant

dynamics = st.one_of(
    st.just(DynamicsConfig()),
    st.builds(
        DynamicsConfig,
        method=st.sampled_from(["euler", "leapfrog", "semi_implicit", "kick", "query_residual"]),
        force=st.sampled_from(["mlp", "linear", "potential", "zero"]),
        n_steps=st.integers(1, 9),
        step_size=st.floats(min_value=1e-300, max_value=1000.0),
        learn_step_size=st.booleans(),
        force_std=st.floats(0, 1e3),
        gate=st.booleans(),
    ),
)
models = st.builds(
    ModelConfig,
    d_model=st.integers(1, 8).map(lambda n: 24 * n),
    n_heads=st.sampled_from([2, 4, 6]),
    vocab_size=st.integers(1, 10**6),
    positions=st.sampled_from(["learned", "rope"]),
    attention=st.builds(AttentionConfig, dynamics=dynamics, group_size=st.sampled_from([1, 2]), qk_norm=st.booleans()),
)


@given(models)
def test_toml_round_trip_loses_nothing(config: ModelConfig) -> None:
    assert from_toml(ModelConfig, to_toml(config)) == config


@given(models)
def test_every_setting_can_be_changed_by_its_bare_name(config: ModelConfig) -> None:
    names = [path.rsplit(".")[-1] for path in leaves(config)]
    assert len(set(names)) == len(names)
    assert change(config, {"d_ff": 77, "causal": False}).d_ff == 77
    assert change(config, {"attention.causal": False}).attention == dataclasses.replace(config.attention, causal=False)


@pytest.mark.parametrize("name", VARIANTS)
def test_presets_are_changed_by_variant_and_keyword(name: str) -> None:
    assert variant(name) == VARIANTS[name]
    assert preset("tiny", name, n_layers=2) == dataclasses.replace(
        PRESETS["tiny"], attention=VARIANTS[name], n_layers=2
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: variant("hamiltonain"), "did you mean 'hamiltonian'"),
        (lambda: preset("smal"), "did you mean 'small'"),
        (lambda: variant("euler", nsteps=2), "did you mean 'n_steps'"),
        (lambda: DynamicsConfig(method="rk4"), "unknown method 'rk4'"),  # pyright: ignore
        (lambda: variant("euler", n_steps=0), "n_steps=0: expected at least 1"),
        (lambda: variant("euler", step_size=0.0), "step_size=0.0: expected greater than 0"),
        (lambda: variant("euler", step_size=-0.1), "step_size=-0.1"),
        (lambda: variant("euler", step_size=math.nan), "step_size=nan"),
        (lambda: variant("euler", n_steps=2.5), "n_steps=2.5: expected int"),
        (lambda: variant("euler", gate=1), "gate=1: expected bool"),
        (lambda: variant("standard", n_steps=2), "no effect with method 'none'"),
        (lambda: variant("affine", gate=True), "no effect with method 'affine'"),
        (lambda: ScoringConfig(flavour="official"), "no effect with kind 'softmax'"),
        (lambda: preset("tiny", d_model=255), "d_model=255 is not divisible by n_heads=4"),
        (lambda: preset("tiny", "gqa", n_heads=2), "n_heads=2 is not divisible by group_size=4"),
        (lambda: preset("tiny", "diff", d_model=36), "gives a width of 9: choose a width divisible by 2"),
        (lambda: preset("tiny", "diff", d_model=24, positions="rope"), "each (sub-)head is 3 wide"),
        (lambda: preset("tiny", n_layers=0), "n_layers=0: expected at least 1"),
        (lambda: from_toml(ModelConfig, "d_modle = 4"), "did you mean 'd_model'"),
        (lambda: from_toml(ModelConfig, "[attention.dynamics]\nmethods = 'euler'"), "attention.dynamics.method"),
        (lambda: from_toml(ModelConfig, "attention = 3"), "attention=3: expected a table"),
        (lambda: from_toml(ModelConfig, "d_model = "), "not a TOML configuration"),
    ],
)
def test_invalid_configurations_give_one_line_errors(make, says: str) -> None:
    with pytest.raises(CoupledQKError) as error:
        make()
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_an_ambiguous_ending_asks_for_the_full_path() -> None:
    @dataclasses.dataclass(frozen=True)
    class Pair:
        left: DynamicsConfig = dataclasses.field(default_factory=DynamicsConfig)
        right: DynamicsConfig = dataclasses.field(default_factory=DynamicsConfig)

    with pytest.raises(CoupledQKError, match=r"write one of left\.method, right\.method"):
        change(Pair(), {"method": "euler"})


@dataclasses.dataclass(frozen=True)
class Part:
    weight: float
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    pair: tuple[int, float]
    by_seed: dict[int, float]
    spare: Part | None = None


WHOLE = {"parts": [{"weight": 1, "names": ["a"]}], "pair": [1, 2], "by_seed": {"3": 0.5}}


def test_tables_lists_and_keys_are_converted_to_the_annotated_types():
    whole = from_dict(Whole, WHOLE)
    assert whole == Whole((Part(1.0, ("a",)),), (1, 2.0), {3: 0.5})
    assert isinstance(whole.parts[0].weight, float)
    assert from_dict(Whole, to_dict(whole)) == whole


def test_null_is_read_as_nan_only_on_request():
    data = WHOLE | {"by_seed": {"3": None}, "spare": None}
    whole = from_dict(Whole, data, null_is_nan=True)
    assert math.isnan(whole.by_seed[3])
    assert whole.spare is None
    with pytest.raises(CoupledQKError, match=r"by_seed\.3=None: expected float"):
        from_dict(Whole, data)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"parts": [{"names": []}]}, r"parts\[0\].weight is missing"),
        ({"parts": [{"weight": 1, "name": []}]}, r"unknown key 'parts\[0\].name': did you mean 'parts\[0\].names'"),
        ({"parts": [{"weight": 1, "names": [2]}]}, r"parts\[0\].names\[0\]=2: expected str"),
        ({"pair": [1]}, r"pair=\[1\]: expected 2 values"),
        ({"pair": [True, 1]}, r"pair\[0\]=True: expected int"),
        ({"by_seed": {"x": 1}}, "by_seed='x': expected keys of type int"),
        ({"spare": 3}, "spare=3: expected a table"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_key(wrong, message):
    with pytest.raises(CoupledQKError, match=message):
        from_dict(Whole, WHOLE | wrong)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (str, "2024", "2024"),
        (str | None, "true", "true"),
        (int | None, "1_000", 1000),
        (float, "1", 1.0),
        (bool, "true", True),
    ],
)
def test_text_is_parsed_by_the_type_of_its_setting(kind, text, value):
    parsed = parse(kind, text, "name")
    assert parsed == value
    assert type(parsed) is type(value)


@given(st.frozensets(st.integers(0, 20)))
def test_seeds_written_as_text_are_parsed_as_the_same_seeds(seeds):
    text = seeds_text(seeds)
    assert parse_seeds(text.split(", ") if text else []) == tuple(sorted(seeds))
    assert len(text.split(", ")) == max(1, len([seed for seed in seeds if seed - 1 not in seeds]))  # ranges are maximal
