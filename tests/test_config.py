"""A configuration is valid when it exists, survives TOML without loss, and mistakes in it are explained."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coupledqk.config import AttentionConfig, DynamicsConfig, ModelConfig, ScoringConfig
from coupledqk.errors import CoupledQKError
from coupledqk.schema import change, from_toml, leaves, to_toml
from coupledqk.variants import PRESETS, VARIANTS, preset, variant

dynamics = st.one_of(
    st.just(DynamicsConfig()),
    st.builds(
        DynamicsConfig,
        method=st.sampled_from(["euler", "leapfrog", "semi_implicit", "kick", "query_residual"]),
        force=st.sampled_from(["mlp", "linear", "potential", "zero"]),
        n_steps=st.integers(1, 9),
        step_size=st.floats(min_value=1e-300, allow_infinity=False),
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
def test_variants_change_by_keyword(name: str) -> None:
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
        (lambda: preset("tiny", "diff", d_model=36), "odd width of 9"),
        (lambda: preset("tiny", "diff", d_model=24, positions="rope"), "each (sub-)head is 3 wide"),
        (lambda: preset("tiny", n_layers=0), "n_layers=0: expected at least 1"),
        (lambda: from_toml(ModelConfig, "d_modle = 4"), "did you mean 'd_model'"),
        (lambda: from_toml(ModelConfig, "[attention.dynamics]\nmethods = 'euler'"), "attention.dynamics.method"),
        (lambda: from_toml(ModelConfig, "attention = 3"), "expected a table [attention]"),
        (lambda: from_toml(ModelConfig, "d_model = "), "not a TOML configuration"),
    ],
)
def test_a_mistake_is_explained(make, says: str) -> None:
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
