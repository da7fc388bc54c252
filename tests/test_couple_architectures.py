"""A tiny model of every architecture that can be coupled passes the same checks. Errors are relative to the logits.

Where rounding or an architecture's cache limits the accuracy, the error of the uncoupled model is the limit.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from couplable import (
    ARCHITECTURES,
    TOWERS,
    built,
    coupled,
    every_architecture,
    fresh,
    fresh_tower,
    logits,
    tokens,
    transformers,
)
from coupledqk.coupling.adapters import load_coupling, save_coupling
from coupledqk.coupling.architectures import VERIFIED
from coupledqk.coupling.checkpoints import guard_checkpoints, load_coupled
from coupledqk.coupling.couple import couple, coupled_modules, uncouple

randomly_coupled = functools.cache(coupled)
IDS = tokens(2, 9)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    guard_checkpoints()
    yield
    transformers.utils.logging.set_verbosity_warning()
    transformers.utils.logging.enable_progress_bar()


def difference(one: Tensor, other: Tensor) -> float:
    return ((one - other).abs().max() / other.abs().max()).item()


def assert_kept(error: Callable[[Any], float], architecture: str) -> None:
    """The coupled model's error is rounding, or no larger than the uncoupled model's."""
    assert error(randomly_coupled(architecture)) < max(1e-4, 2 * error(built(architecture)))


def test_the_list_of_verified_classes_equals_the_classes_tested_here() -> None:
    models = [*map(randomly_coupled, ARCHITECTURES), *(couple(fresh_tower(name)) for name in TOWERS)]
    found = {module.uncoupled_class for model in models for module in coupled_modules(model).values()}
    shared = {"MultiHeadAttention"}  # CTRL's, and a different class in XLM and FlauBERT: checked at every call
    assert {kind.__name__ for kind in found} == VERIFIED | shared


@every_architecture
def test_a_new_coupling_changes_no_bit_and_uncoupling_restores_the_model(architecture: str) -> None:
    model, before = fresh(architecture), built(architecture)
    plain = {}
    for implementation in ("eager", "sdpa") if before._supports_sdpa else ("eager",):
        model.set_attn_implementation(implementation)
        plain[implementation] = logits(model, IDS)
    couple(model)
    for implementation, expected in plain.items():
        model.set_attn_implementation(implementation)
        assert torch.equal(logits(model, IDS), expected)
    model.set_attn_implementation(before.config._attn_implementation)
    assert uncouple(model) is model
    assert model.config.to_dict() == before.config.to_dict()
    for new, old in zip(model.modules(), before.modules(), strict=True):
        assert type(new) is type(old)
        assert vars(new).keys() == vars(old).keys()
    assert all(map(torch.equal, model.state_dict().values(), before.state_dict().values()))


@every_architecture
def test_cached_decoding_equals_the_full_forward(architecture: str) -> None:
    assert difference(logits(randomly_coupled(architecture), IDS), logits(built(architecture), IDS)) > 0.005

    @torch.no_grad()
    def error(model: Any) -> float:
        cache, steps = None, []
        for chunk in IDS.split([4] + [1] * 5, dim=1):
            out = model(input_ids=chunk, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
        return difference(torch.cat(steps, dim=1), logits(model, IDS))

    assert_kept(error, architecture)


@every_architecture
def test_padding_on_the_left_does_not_change_the_logits(architecture: str) -> None:
    real = torch.ones(2, 9, dtype=torch.long)
    real[1, :4] = 0
    positions = (real.cumsum(1) - 1).clamp(min=0)

    def error(model: Any) -> float:
        padded = logits(model, IDS.masked_fill(real == 0, 0), attention_mask=real, position_ids=positions)
        return difference(padded[1, 4:], logits(model, IDS[1:, 4:])[0])

    assert_kept(error, architecture)


@every_architecture
def test_dependence_on_relative_positions_only_is_preserved(architecture: str) -> None:
    positions = torch.arange(9)[None]

    def error(model: Any) -> float:
        return difference(logits(model, IDS, position_ids=positions + 20), logits(model, IDS, position_ids=positions))

    assert_kept(error, architecture)


@every_architecture
def test_a_frozen_model_stays_frozen_and_every_coupling_has_a_gradient(architecture: str) -> None:
    model = couple(fresh(architecture).requires_grad_(False))
    gates = [module.coupling.gate for module in coupled_modules(model).values()]
    model(input_ids=IDS, labels=IDS).loss.backward()
    assert all(gate.grad.isfinite().all() and gate.grad.any() for gate in gates)
    assert not [name for name, p in model.named_parameters() if p.requires_grad and ".coupling." not in name]


@every_architecture
def test_couplings_and_whole_models_are_loaded_as_they_were_saved(architecture: str, tmp_path: Path) -> None:
    model = randomly_coupled(architecture)
    expected = logits(model, IDS)
    save_coupling(model, tmp_path / "adapter")
    assert torch.equal(logits(load_coupling(fresh(architecture), tmp_path / "adapter"), IDS), expected)
    model.save_pretrained(tmp_path / "whole")
    with warnings.catch_warnings(action="error"):
        loaded = load_coupled(tmp_path / "whole")
    assert type(loaded) is type(model)
    assert difference(logits(loaded, IDS), expected) < 1e-5  # experts are stored one by one, and the layout may change
    assert not hasattr(loaded.config, "coupledqk")
