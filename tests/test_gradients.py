"""Analytic gradients against finite differences, with respect to the inputs and to every parameter."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.func import functional_call

from conftest import double_randn, stir
from coupledqk import registry
from coupledqk.config import DynamicsConfig, ScoringConfig
from coupledqk.dynamics import FORCES, METHODS, build_dynamics
from coupledqk.scoring import SCORINGS as RECORDS
from coupledqk.scoring import build_scoring


def check(module, *inputs, **options):
    """Perturbs all inputs and all parameters of the module, each of which must have an effect."""
    module, names = stir(module), [name for name, _ in module.named_parameters()]
    inputs = [x.requires_grad_() for x in inputs]
    parameters = [p.detach().requires_grad_() for p in module.parameters()]

    def function(*values):
        state = dict(zip(names, values[len(inputs) :], strict=True))
        return functional_call(module, state, values[: len(inputs)], options)

    assert gradcheck(function, (*inputs, *parameters))
    outputs = function(*inputs, *parameters)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    cotangents = [double_randn(*y.shape) for y in outputs]
    for gradient in torch.autograd.grad(outputs, [*inputs, *parameters], cotangents):
        assert gradient.abs().max() > 1e-6


# without a force, only the integrators change q and k
DYNAMICS = [(name, f) for name, m in METHODS.items() if m.run for f in FORCES if f != "zero" or m.moves]


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize(("method", "force"), DYNAMICS)
def test_gradients_of_the_dynamics_agree_with_finite_differences(method, force, group_size):
    config = DynamicsConfig(method=method, force=force, n_steps=2, step_size=0.5, gate=True)
    module = build_dynamics(config, width=2, n_kv_heads=2)
    check(module, double_randn(1, 2, 2 * group_size, 2), double_randn(1, 2, 2, 2))


@pytest.mark.parametrize("group_size", [1, 2])
def test_gradients_of_affine_coupling_agree_with_finite_differences(group_size):
    module = build_dynamics(DynamicsConfig(method="affine"), width=2, n_kv_heads=2)
    check(module, double_randn(1, 2, 2 * group_size, 2), double_randn(1, 2, 2, 2))


SCORINGS = {
    "softmax": ScoringConfig(),
    "differential": ScoringConfig(kind="differential"),
    "official": ScoringConfig(kind="differential", flavour="official"),
    "differential_v2": ScoringConfig(kind="differential_v2"),
    "gated": ScoringConfig(kind="gated"),
    "sink": ScoringConfig(kind="sink"),
}
SOME_MASK = torch.tensor([[True, False, True], [False, True, True], [True, True, True]])


@pytest.mark.parametrize("visible", [{}, {"causal": True}, {"mask": SOME_MASK}], ids=["all", "causal", "mask"])
@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("scoring", SCORINGS)
def test_gradients_of_scoring_agree_with_finite_differences(scoring, group_size, visible):
    module = build_scoring(SCORINGS[scoring], n_heads=2 * group_size, width=2, layer=1, eps=1e-6)
    entry = registry.SCORINGS[SCORINGS[scoring].kind]
    key_heads = 2 * entry.sub_heads
    q = double_randn(1, 3, entry.queries * key_heads * group_size, 2)
    k, v = double_randn(2, 1, 3, key_heads, 2).unbind()
    x = {"x": double_randn(1, 3, 4 * group_size)} if RECORDS[SCORINGS[scoring].kind].gates else {}
    check(module, q, k, v, **visible, **x)
