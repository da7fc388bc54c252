"""The dynamics as numerical methods, also with grouped queries, and `evolve`."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.functional import jacobian
from torchdiffeq import odeint

from conftest import double_randn, mlp_force, potential_force, stir
from coupledqk import CoupledQKError, evolve
from coupledqk.config import DynamicsConfig
from coupledqk.dynamics import METHODS, build_dynamics
from coupledqk.dynamics.leapfrog import leapfrog


def mean_of(force, queries):
    return sum(force(q) for q in queries) / len(queries)


def leapfrog_step(queries, k, dt, force):
    """The paper's three equations, with two force evaluations per step."""
    k = k + dt / 2 * mean_of(force, queries)
    queries = [q + dt * k for q in queries]
    return queries, k + dt / 2 * mean_of(force, queries)


def semi_implicit_step(queries, k, dt, force):
    k = k + dt * mean_of(force, queries)
    return [q + dt * k for q in queries], k


STEPS = {
    "euler": lambda queries, k, dt, force: ([q + dt * k for q in queries], k + dt * mean_of(force, queries)),
    "leapfrog": leapfrog_step,
    "semi_implicit": semi_implicit_step,
    "kick": lambda queries, k, dt, force: (queries, k + dt * mean_of(force, queries)),
    "query_residual": lambda queries, k, dt, force: ([q + dt * force(q) for q in queries], k),
    "key_residual": lambda queries, k, dt, force: (queries, k + dt * force(k)),
    "shared_mlp": lambda queries, k, dt, force: ([q + dt * force(q) for q in queries], k + dt * force(k)),
}


def evolve_by_definition(q, k, dt, force, n_steps, method):
    """Evolves q and k token by token and group by group, in the layout BTHD."""
    q, k = q.clone(), k.clone()
    group_size = q.shape[2] // k.shape[2]
    for b, t, h in np.ndindex(k.shape[:3]):
        group = slice(h * group_size, (h + 1) * group_size)
        queries, key = list(q[b, t, group].unbind()), k[b, t, h].clone()
        for _ in range(n_steps):
            queries, key = STEPS[method](queries, key, dt[h], force)
        q[b, t, group], k[b, t, h] = torch.stack(queries), key
    return q, k


@st.composite
def states(draw):
    """Queries and keys of any small shape in BTHD, a step size per key head, a force and a number of steps."""
    B, T, key_heads, group_size, d = (draw(st.integers(1, n)) for n in (2, 3, 3, 3, 4))
    torch.manual_seed(draw(st.integers(0, 99)))
    q, k = double_randn(B, T, key_heads * group_size, d), double_randn(B, T, key_heads, d)
    return q, k, torch.rand(key_heads, dtype=torch.float64) / 2 + 0.01, mlp_force(d), draw(st.integers(1, 4))


def test_the_equations_of_every_method_are_tested():
    assert {name for name, method in METHODS.items() if method.run} == set(STEPS)


@pytest.mark.parametrize("layout", ["BTHD", "BHTD"])
@pytest.mark.parametrize("method", STEPS)
@given(state=states())
def test_evolve_equals_the_equations_for_any_grouping_and_layout(method, layout, state):
    q, k, dt, force, n_steps = state
    expected = evolve_by_definition(q, k, dt, force, n_steps, method)
    if layout == "BHTD":
        moved = evolve(q.transpose(1, 2), k.transpose(1, 2), dt, force, n_steps, method, layout)
        moved = tuple(x.transpose(1, 2) for x in moved)
    else:
        moved = evolve(q, k, dt, force, n_steps, method)
    torch.testing.assert_close(moved, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("leapfrog", lambda n: (n + 1, 0)),
        ("euler", lambda n: (n, 0)),
        ("semi_implicit", lambda n: (n, 0)),
        ("query_residual", lambda n: (n, 0)),
        ("key_residual", lambda n: (0, n)),
        ("shared_mlp", lambda n: (n, n)),
        ("kick", lambda n: (1, 0)),
    ],
)
@pytest.mark.parametrize("n_steps", [1, 3, 7])
def test_the_number_of_force_evaluations_on_queries_and_on_keys(method, expected, n_steps):
    group_sizes = []

    def counted(x):
        group_sizes.append(x.shape[3])
        return -x

    evolve(double_randn(1, 2, 6, 4), double_randn(1, 2, 3, 4), 0.1, counted, n_steps, method)
    assert (group_sizes.count(2), group_sizes.count(1)) == expected(n_steps) == METHODS[method].evaluations(n_steps)


def solve(q, k, times, force):
    """An independent solver's solution of q' = k, k' = mean of f over the group, in each key head up to its own time."""
    q, k = q.unflatten(2, (k.shape[2], -1)), k.unsqueeze(3)
    times = times.view(-1, 1, 1)

    def velocity(_, state):
        return times * state[1].expand_as(q), times * force(state[0]).mean(3, keepdim=True)

    q, k = odeint(velocity, (q, k), torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=1e-11, atol=1e-12)
    return q[-1].flatten(2, 3), k[-1].squeeze(3)


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("semi_implicit", 1), ("leapfrog", 2)])
def test_error_at_a_fixed_time_shrinks_with_the_order_of_the_method(method, order, group_size):
    q, k = double_randn(2, 3, 2 * group_size, 3), double_randn(2, 3, 2, 3)
    times, force = torch.tensor([1.0, 1.5], dtype=torch.float64), mlp_force(3)
    exact = torch.cat(solve(q, k, times, force), dim=2)
    counts = [25, 50, 100, 200]
    errors = [float((torch.cat(evolve(q, k, times / n, force, n, method), dim=2) - exact).norm()) for n in counts]
    slope, _ = np.polyfit(np.log(counts), np.log(errors), 1)
    assert -slope == pytest.approx(order, abs=0.1)


def flat_jacobian(move, q, k):
    """The Jacobian of (q, k) -> move(q, k) with all queries first, then all keys."""

    def flat_move(state):
        moved = move(state[: q.numel()].view_as(q), state[q.numel() :].view_as(k))
        return torch.cat([x.flatten() for x in moved])

    return jacobian(flat_move, torch.cat([q.flatten(), k.flatten()]))


def small_state(group_size):
    q, k = double_randn(1, 1, 2 * group_size, 3), double_randn(1, 1, 2, 3)
    return q, k, torch.tensor([0.2, 0.5], dtype=torch.float64)


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("method", ["leapfrog", "semi_implicit", "kick"])
def test_volume_is_preserved_for_any_force(method, group_size):
    q, k, dt = small_state(group_size)
    force = mlp_force(3)
    J = flat_jacobian(lambda q, k: evolve(q, k, dt, force, 3, method), q, k)
    assert not torch.allclose(J, torch.eye(len(J), dtype=J.dtype), atol=0.1)
    assert float(J.det()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("group_size", [1, 2])
def test_euler_does_not_preserve_volume(group_size):
    q, k, dt = small_state(group_size)
    force = mlp_force(3)
    J = flat_jacobian(lambda q, k: evolve(q, k, dt, force, 3, "euler"), q, k)
    assert abs(float(J.det()) - 1) > 0.01


@pytest.mark.parametrize("method", ["leapfrog", "semi_implicit"])
@pytest.mark.parametrize(("make_force", "symplectic"), [(potential_force, True), (mlp_force, False)])
def test_a_method_is_symplectic_if_and_only_if_the_force_is_a_gradient(method, make_force, symplectic):
    q, k, dt = small_state(group_size=1)
    force = make_force(3)
    J = flat_jacobian(lambda q, k: evolve(q, k, dt, force, 3, method), q, k)
    identity, zero = torch.eye(6, dtype=J.dtype), torch.zeros(6, 6, dtype=J.dtype)
    omega = torch.cat([torch.cat([zero, identity], 1), torch.cat([-identity, zero], 1)])
    defect = float((J.T @ omega @ J - omega).abs().max())
    assert defect < 1e-12 if symplectic else defect > 0.01


def test_the_potential_force_is_minus_the_gradient_of_its_potential():
    force = potential_force(4)
    q = double_randn(5, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(force.potential(q).sum(), q)
    torch.testing.assert_close(force(q), -gradient)
    by_definition = (force.c * (q @ force.w.T).cosh().log()).sum(-1)
    torch.testing.assert_close(force.potential(q), by_definition)


def test_the_potential_of_a_far_query_is_finite():
    force = potential_force(4)
    assert force.potential(1e5 * double_randn(5, 4)).isfinite().all()


@pytest.mark.parametrize("method", [name for name in STEPS if METHODS[name].inverse])
@given(state=states())
def test_the_inverse_undoes_the_dynamics_up_to_rounding(method, state):
    q, k, dt, force, n_steps = state
    moved = evolve(q, k, dt, force, n_steps, method)
    assert not torch.allclose(moved[1], k, atol=1e-6)
    back = evolve(*moved, dt, force, n_steps, method, inverse=True)
    torch.testing.assert_close(back, (q, k), rtol=1e-11, atol=1e-11)


@given(state=states())
def test_leapfrog_with_reversed_keys_retraces_its_path(state):
    q, k, dt, force, n_steps = state
    moved_q, moved_k = evolve(q, k, dt, force, n_steps)
    back_q, back_k = evolve(moved_q, -moved_k, dt, force, n_steps)
    torch.testing.assert_close((back_q, -back_k), (q, k), rtol=1e-11, atol=1e-11)


def test_leapfrog_with_the_negated_step_size_is_the_inverse():
    q, k, force = double_randn(5, 3), double_randn(5, 3), mlp_force(3)
    back = leapfrog(*leapfrog(q, k, 0.3, force, 4), -0.3, force, 4)
    torch.testing.assert_close(back, (q, k), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("group_size", [1, 3])
def test_affine_coupling_is_invertible_up_to_rounding(group_size):
    affine = stir(build_dynamics(DynamicsConfig(method="affine"), width=4, n_kv_heads=2))
    q, k = double_randn(2, 3, 2 * group_size, 4), double_randn(2, 3, 2, 4)
    moved = affine(q, k)
    assert not torch.allclose(moved[0], q, atol=0.1)
    assert not torch.allclose(moved[1], k, atol=0.1)
    torch.testing.assert_close(affine.inverse(*moved), (q, k), rtol=1e-12, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("group_size", [1, 3])
def test_affine_coupling_equals_its_equations_with_means_over_the_group(group_size):
    affine = stir(build_dynamics(DynamicsConfig(method="affine"), width=4, n_kv_heads=2))
    q, k = double_randn(1, 2, 2 * group_size, 4), double_randn(1, 2, 2, 4)
    moved_q, moved_k = affine(q, k)

    def scale_and_shift(net, x):
        s, t = (net.w2 @ torch.nn.functional.silu(net.w1 @ x)).chunk(2)
        return s.tanh(), t

    for t, h in np.ndindex(2, 2):
        queries = range(h * group_size, (h + 1) * group_size)
        scales, shifts = zip(*(scale_and_shift(affine.on_key, q[0, t, i]) for i in queries), strict=True)
        key = k[0, t, h] * (sum(scales) / group_size).exp() + sum(shifts) / group_size
        torch.testing.assert_close(moved_k[0, t, h], key)
        s, shift = scale_and_shift(affine.on_query, key)
        for i in queries:
            torch.testing.assert_close(moved_q[0, t, i], q[0, t, i] * s.exp() + shift)


def test_affine_coupling_changes_volume_by_exp_of_the_sum_of_its_scales():
    affine = stir(build_dynamics(DynamicsConfig(method="affine"), width=3, n_kv_heads=1)).requires_grad_(False)
    q, k = double_randn(1, 1, 1, 3), double_randn(1, 1, 1, 3)
    s_key, t_key = affine.on_key(q)
    s_query, _ = affine.on_query(k * s_key.exp() + t_key)
    assert float(flat_jacobian(affine, q, k).slogdet().logabsdet) == pytest.approx(float(s_key.sum() + s_query.sum()))


def test_affine_coupling_scales_no_coordinate_by_more_than_e():
    affine = stir(build_dynamics(DynamicsConfig(method="affine"), width=4, n_kv_heads=1))
    s, _ = affine.on_key(1e4 * double_randn(50, 4))
    assert s.abs().max() <= 1


@pytest.mark.parametrize("method", ["leapfrog", "semi_implicit", "kick"])
def test_the_inverse_of_a_module_undoes_its_forward_pass(method):
    module = stir(build_dynamics(DynamicsConfig(method=method, gate=True), width=4, n_kv_heads=2))
    q, k = double_randn(2, 3, 4, 4), double_randn(2, 3, 2, 4)
    torch.testing.assert_close(module.inverse(*module(q, k)), (q, k), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", ["euler", "query_residual", "key_residual", "shared_mlp"])
def test_a_module_without_an_inverse_raises_an_error(method):
    module = build_dynamics(DynamicsConfig(method=method), width=4, n_kv_heads=2)
    with pytest.raises(CoupledQKError, match=f"{method}.*no inverse.*leapfrog"):
        module.inverse(double_randn(1, 1, 2, 4), double_randn(1, 1, 2, 4))


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_q_and_k_keep_their_dtype(method, dtype, group_size):
    module = stir(build_dynamics(DynamicsConfig(method=method), width=4, n_kv_heads=2)).to(dtype)
    q, k = module(torch.randn(1, 3, 2 * group_size, 4, dtype=dtype), torch.randn(1, 3, 2, 4, dtype=dtype))
    assert q.dtype == k.dtype == dtype


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.float32, torch.float64)])
def test_q_and_k_of_different_dtypes_each_keep_their_dtype(dtypes):
    q, k = torch.randn(1, 3, 2, 4, dtype=dtypes[0]), torch.randn(1, 3, 2, 4, dtype=dtypes[1])
    assert tuple(x.dtype for x in evolve(q, k, 0.1, torch.neg)) == dtypes


@pytest.mark.parametrize("method", ["euler", "leapfrog", "semi_implicit", "key_residual"])
def test_small_kicks_are_not_lost_in_bfloat16(method):
    q = k = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    # a single kick of 0.001 is lost in rounding: the next bfloat16 after 1 is 1.0078
    _, k = evolve(q, k, 0.1, lambda q: torch.full_like(q, 0.01), n_steps=8, method=method)
    assert float(k) == 1.0078125


def test_one_step_size_for_all_heads_may_be_a_number_or_a_tensor():
    q, k, force = double_randn(1, 2, 4, 3), double_randn(1, 2, 2, 3), mlp_force(3)
    expected = evolve(q, k, 0.3, force)
    assert not torch.allclose(expected[0], q)
    for dt in (torch.tensor(0.3, dtype=torch.float64), torch.full((2,), 0.3, dtype=torch.float64)):
        torch.testing.assert_close(evolve(q, k, dt, force), expected)


def test_evolve_compiles_without_a_graph_break():
    torch.compiler.reset()
    q, k, force = double_randn(1, 2, 4, 3), double_randn(1, 2, 2, 3), mlp_force(3)
    dt = torch.tensor([0.1, 0.2], dtype=torch.float64)
    compiled = torch.compile(evolve, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, dt, force), evolve(q, k, dt, force))


def test_the_error_for_an_unknown_method_suggests_the_nearest_name():
    with pytest.raises(CoupledQKError, match=r"'leapfrgo'.*did you mean 'leapfrog'"):
        evolve(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 2), 0.1, torch.neg, method="leapfrgo")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layout": "THBD"}, "unknown layout 'THBD'"),
        ({"n_steps": 0}, "n_steps=0: expected at least 1"),
        ({"n_steps": 2.5}, "n_steps=2.5: expected at least 1, as a whole number"),
        ({"q": torch.ones(1, 3, 4, 6, dtype=torch.int64)}, "q is torch.int64: expected a tensor of floating-point"),
        ({"k": np.ones((1, 3, 2, 6))}, "k is ndarray: expected a tensor of floating-point"),
        ({"dt": [0.1, 0.1]}, r"dt=\[0.1, 0.1\]: expected a number, or a tensor"),
        ({"force": lambda x: x.sum()}, r"the force returned \(\) for .*: expected the shape of its argument"),
        ({"force": lambda x: x[..., :1]}, "expected the shape of its argument"),
        ({"dt": 0.0}, r"dt=0.0: expected greater than 0"),
        ({"dt": -0.1}, r"dt=-0.1: expected greater than 0; to run backwards set inverse=True"),
        ({"dt": float("nan")}, "dt=nan: expected greater than 0"),
        ({"dt": torch.tensor([0.1, 0.0])}, "expected greater than 0"),
        ({"dt": torch.tensor([0.1, 0.1, 0.1])}, r"dt of shape \(3,\).*each of the 2 key heads"),
        ({"dt": torch.full((4,), 0.1)}, r"dt of shape \(4,\).*each of the 2 key heads"),
        ({"inverse": True, "method": "euler"}, "'euler' has no inverse: choose from leapfrog"),
        ({"q": torch.ones(3, 4, 6)}, r"q of shape \(3, 4, 6\).*four non-empty axes"),
        ({"q": torch.ones(0, 3, 4, 6), "k": torch.ones(0, 3, 2, 6)}, "four non-empty axes"),
        ({"q": torch.ones(1, 3, 5, 6)}, "number of key heads divides"),
        ({"q": torch.ones(1, 3, 1, 6)}, "number of key heads divides"),
        ({"q": torch.ones(1, 2, 4, 6)}, "equal B, T and d"),
        ({"q": torch.ones(1, 3, 4, 5)}, "equal B, T and d"),
        ({"q": torch.ones(2, 3, 4, 6)}, "equal B, T and d"),
        ({"layout": "BHTD"}, r"in layout BHTD: expected equal B, T and d"),
    ],
)
def test_evolve_refuses_invalid_arguments(changed, message):
    arguments = {"q": torch.ones(1, 3, 4, 6), "k": torch.ones(1, 3, 2, 6), "dt": 0.1, "force": torch.neg, **changed}
    with pytest.raises(CoupledQKError, match=message):
        evolve(**arguments)


def test_evolve_supports_vmap_over_step_sizes():
    q, k, dts = double_randn(1, 3, 2, 4), double_randn(1, 3, 2, 4), torch.tensor([0.1, 0.3])
    many = torch.func.vmap(lambda dt: evolve(q, k, dt, torch.tanh))(dts)
    each = [torch.stack(x) for x in zip(*(evolve(q, k, dt, torch.tanh) for dt in dts), strict=True)]
    torch.testing.assert_close(list(many), each)
