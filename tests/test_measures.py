"""Measures agree with closed forms and with their definitions; surveys; paired comparisons."""

import gc
import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.functional import jacobian

from conftest import double_randn, random_tokens, tiny_attention, tiny_model
from coupledqk import CoupledQKError
from coupledqk.analysis import measure_maps, measure_motion, record, singular_values, survey, windows
from coupledqk.analysis.measures import (
    OF_MAPS,
    OF_SPECTRUM,
    distance,
    effective_rank,
    entropy,
    redundancy,
    sink_mass,
    spectral_gap,
    spectral_ratio,
    top1_ratio,
)
from coupledqk.analysis.motion import energy, q_turned
from coupledqk.analysis.paired import differences, paired
from coupledqk.analysis.surveys import MEASURES, Survey

T = 7


def causal_uniform(n=T):
    return torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1)[:, None]


def banded(width, n=T):
    """A map in which every query attends uniformly to the last `width` tokens, itself included."""
    band = torch.ones(n, n, dtype=torch.float64).tril().triu(1 - width)
    return band / band.sum(-1, keepdim=True)


def one_hot(column, n=T):
    return torch.nn.functional.one_hot(torch.full((n,), column), n).double()


def of(measure, one_map):
    maps = one_map[None, None]
    return float(measure(maps if measure in OF_MAPS.values() else singular_values(maps)))


ROWS = np.arange(T)
CLOSED_FORMS = [
    (entropy, causal_uniform(), math.lgamma(T + 1) / T),
    (entropy, torch.full((T, T), 1 / T), math.log(T)),
    (entropy, one_hot(0), 0),
    (entropy, banded(3), np.log(np.minimum(ROWS + 1, 3)).mean()),
    (sink_mass, causal_uniform(), (1 / (ROWS[1:] + 1)).mean()),
    (sink_mass, one_hot(0), 1),
    (sink_mass, torch.eye(T), 0),
    (sink_mass, banded(2), 1 / 2 / (T - 1)),
    (distance, causal_uniform(), (T - 1) / 4),
    (distance, one_hot(0), (T - 1) / 2),
    (distance, torch.eye(T), 0),
    (distance, banded(3), ((np.minimum(ROWS + 1, 3) - 1) / 2).mean()),
    (effective_rank, torch.eye(T), T),
    (effective_rank, torch.full((T, T), 1 / T), 1),
    (effective_rank, one_hot(2), 1),
    (effective_rank, torch.diag(torch.tensor([3.0, 1.0])), 16 / 10),
    (top1_ratio, torch.eye(T), 1 / T),
    (top1_ratio, torch.full((T, T), 1 / T), 1),
    (spectral_gap, torch.eye(T), 0),
    (spectral_gap, one_hot(0), math.sqrt(T)),
    (spectral_gap, torch.diag(torch.tensor([0.5, 2.0, 0.25])), 1.5),
    (spectral_ratio, torch.eye(T), 1),
    (spectral_ratio, one_hot(0), 0),
    (spectral_ratio, torch.diag(torch.tensor([0.5, 2.0, 0.25])), 0.25),
]


@pytest.mark.parametrize(("measure", "one_map", "expected"), CLOSED_FORMS, ids=lambda x: getattr(x, "__name__", None))
def test_measures_agree_with_closed_forms(measure, one_map, expected):
    assert of(measure, one_map.double()) == pytest.approx(expected, abs=1e-6)


def test_the_last_query_is_aligned_with_the_last_key_if_there_are_fewer_queries():
    latest = causal_uniform()[-2:]  # as after decoding two tokens with a cache
    assert of(distance, latest) == pytest.approx(np.mean([(T - 2) / 2, (T - 1) / 2]))


def test_redundancy_is_the_mean_cosine_with_the_other_heads():
    same, other = torch.eye(T), torch.roll(torch.eye(T), 1, dims=1)  # no entry in common
    assert redundancy(torch.stack([same, same])[None])[0].tolist() == pytest.approx([1, 1])
    assert redundancy(torch.stack([same, same, other])[None])[0].tolist() == pytest.approx([0.5, 0.5, 0])
    assert redundancy(torch.stack([same, -2 * same])[None])[0].tolist() == pytest.approx([-1, -1])
    assert redundancy(same[None, None]).isnan().all(), "a single head has no other"


def by_definition(maps):
    """Every measure of maps (B, H, T, T), written out with loops."""
    B, H, n, _ = maps.shape
    found = {name: np.zeros((B, H)) for name in (*OF_MAPS, *OF_SPECTRUM)}
    for b, h in np.ndindex(B, H):
        a = maps[b, h]
        rows = [[abs(x) / sum(map(abs, row)) for x in row] for row in a]
        found["entropy"][b, h] = -sum(p * math.log(p) for row in rows for p in row if p > 0) / n
        found["sink_mass"][b, h] = sum(row[0] for row in rows[1:]) / (n - 1)
        found["distance"][b, h] = sum(p * abs(t - s) for t, row in enumerate(rows) for s, p in enumerate(row)) / n
        cosines = [np.vdot(a, c) / np.linalg.norm(a) / np.linalg.norm(c) for i, c in enumerate(maps[b]) if i != h]
        found["redundancy"][b, h] = np.mean(cosines)
        sigma = np.linalg.svd(a, compute_uv=False)
        found["effective_rank"][b, h] = sum(sigma) ** 2 / sum(sigma**2)
        found["top1_ratio"][b, h] = sigma[0] / sum(sigma)
        found["spectral_gap"][b, h] = sigma[0] - sigma[1]
        found["spectral_ratio"][b, h] = sigma[1] / sigma[0]
    return found


@st.composite
def random_maps(draw):
    """Causal maps of softmax, from flat to sharp, or the signed differences of two."""
    torch.manual_seed(draw(st.integers(0, 999)))
    B, H, n = draw(st.integers(1, 2)), draw(st.integers(2, 3)), draw(st.integers(2, 8))
    future = torch.ones(n, n, dtype=torch.bool).triu(1)

    def softmax_maps():
        scores = draw(st.sampled_from([0.1, 1.0, 10.0])) * double_randn(B, H, n, n)
        return scores.masked_fill(future, -math.inf).softmax(-1)

    return softmax_maps() - draw(st.sampled_from([0.0, 0.3])) * softmax_maps()


@given(maps=random_maps())
def test_every_measure_agrees_with_its_definition_on_random_maps(maps):
    expected = by_definition(maps.numpy())
    measured = measure_maps(maps)
    assert measured.keys() == expected.keys()
    for name, values in measured.items():
        np.testing.assert_allclose(values.numpy(), expected[name], rtol=1e-6, atol=1e-7, err_msg=name)


@given(maps=random_maps())
def test_entropy_sink_mass_and_distance_do_not_depend_on_signs_or_row_sums(maps):
    changed = maps * torch.randn(maps.shape[:-1])[..., None] * torch.where(torch.rand(maps.shape) < 0.5, -1.0, 1.0)
    for measure in (entropy, sink_mass, distance):
        torch.testing.assert_close(measure(changed), measure(maps))


def test_a_map_of_zeros_has_measures_of_zero():
    assert all(float(values.abs().max()) == 0 for values in measure_maps(torch.zeros(1, 2, T, T)).values())


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 6.0])
def test_the_effective_rank_of_float32_maps_is_exact_to_seven_digits(sharpness):
    scores = sharpness * torch.randn(1, 3, 96, 96)
    maps = scores.masked_fill(torch.ones(96, 96, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
    maps[:, 0] = 0.98 * one_hot(0, 96) + 0.02 * maps[:, 0]  # a sink
    exact = effective_rank(torch.linalg.svdvals(maps.double()))
    torch.testing.assert_close(effective_rank(singular_values(maps)), exact, rtol=2e-7, atol=0)


def test_singular_values_do_not_change_the_number_of_threads():
    before = torch.get_num_threads()
    singular_values(torch.randn(1, 5, 8, 8))
    assert torch.get_num_threads() == before


def test_a_failed_decomposition_does_not_change_the_number_of_threads_of_later_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="failed to converge"):
            singular_values(torch.full((1, 2, 4, 4), torch.nan))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


def test_maps_of_one_token_are_refused():
    with pytest.raises(CoupledQKError, match="at least two queries"):
        measure_maps(torch.ones(1, 1, 1, 1))


# How q and k move


def moving(name, group_size=1, **settings):
    """A layer's tape after a forward pass on fixed random inputs in float64."""
    torch.manual_seed(0)
    attention = tiny_attention(name, d_model=32, n_heads=4, group_size=group_size, **settings)
    with torch.no_grad(), record(attention) as tape:
        attention(double_randn(2, 5, 32))
    return tape.layers[0]


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("name", ["hamiltonian", "semi_implicit", "potential", "kick", "drift", "hamiltonian_diff"])
def test_shears_preserve_volume(name, group_size):
    assert measure_motion(moving(name, group_size))["volume_change"].abs().max() < 1e-12


@pytest.mark.parametrize("group_size", [1, 2])
@pytest.mark.parametrize("name", ["euler", "mlp_only", "shared_mlp", "affine", "euler_diff"])
def test_other_dynamics_change_volume_by_the_determinant_of_their_jacobian(name, group_size):
    layer = moving(name, group_size)
    dynamics, middle, head = layer.attention.dynamics, 5 // 2, 1
    q, k = layer.q[:1, middle : middle + 1].clone(), layer.k[:1, middle : middle + 1].clone()
    group = slice(head * group_size, (head + 1) * group_size)

    def move(state):
        queries, keys = q.clone(), k.clone()
        queries[0, 0, group], keys[0, 0, head] = state[:-1], state[-1]
        moved_q, moved_k = dynamics(queries, keys)
        return torch.cat([moved_q[0, 0, group], moved_k[0, 0, head : head + 1]])

    state = torch.cat([q[0, 0, group], k[0, 0, head : head + 1]])
    expected = torch.det(jacobian(move, state).reshape(state.numel(), -1)).abs() - 1
    measured = measure_motion(layer)["volume_change"]
    assert float(measured[0, head]) == pytest.approx(float(expected), rel=1e-9)
    assert measured.abs().min() > 1e-6


def test_under_drift_alone_queries_move_along_their_keys_and_keys_do_not_move():
    layer = moving("drift", n_steps=3)
    measured = measure_motion(layer)
    dt = layer.attention.dynamics.tau.exp().detach()
    expected = (3 * dt[:, None] * layer.k).norm(dim=-1) / layer.q.norm(dim=-1)
    torch.testing.assert_close(measured["q_moved"], expected.mean(1))
    torch.testing.assert_close(measured["dt"], dt.expand(2, 4))
    assert not measured["k_moved"].any()
    assert not measured["k_turned"].any()
    cosines = torch.cosine_similarity(layer.q, layer.evolved_q, dim=-1)
    torch.testing.assert_close(measured["q_turned"], torch.rad2deg(cosines.acos()).mean(1))


@pytest.mark.parametrize("degrees", [0, 1e-6, 30, 90, 180])
def test_angles_are_exact_from_the_smallest_to_the_largest(degrees):
    layer = moving("euler")
    radians = math.radians(degrees)
    layer.q = torch.tensor([2.0, 0.0], dtype=torch.float64).expand(1, 3, 4, 2)
    layer.evolved_q = 5 * torch.tensor([math.cos(radians), math.sin(radians)], dtype=torch.float64).expand(1, 3, 4, 2)
    torch.testing.assert_close(q_turned(layer), torch.full((1, 4), float(degrees)).double())


def energy_errors(method, dt, group_size, time):
    """H − H₀ along trajectories of duration `time`, of shape (n + 1, trajectories)."""
    settings = {"method": method, "n_steps": round(time / dt), "step_size": dt, "learn_step_size": False}
    along = energy(moving("potential", group_size, **settings))
    return (along - along[0]).flatten(1)


@pytest.mark.parametrize("group_size", [1, 2])
def test_leapfrog_in_a_potential_conserves_energy_to_second_order(group_size):
    steps = [0.1, 0.05, 0.025]
    errors = [float(energy_errors("leapfrog", dt, group_size, time=3).abs().amax(0).mean()) for dt in steps]
    slope, _ = np.polyfit(np.log(steps), np.log(errors), 1)
    assert slope == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("group_size", [1, 2])
def test_the_energy_error_of_leapfrog_in_a_potential_does_not_grow(group_size):
    parts = energy_errors("leapfrog", 0.1, group_size, time=16).abs().chunk(4)
    first, *_, last = (float(part.amax(0).mean()) for part in parts)
    assert last < 1.5 * first


def test_the_energy_of_euler_in_a_potential_keeps_growing():
    first, *_, last = (float(part.mean()) for part in energy_errors("euler", 0.1, 1, time=16).chunk(4))
    assert last > 4 * first > 0


def test_energy_measures_agree_with_the_trajectory():
    layer = moving("potential")
    measured, along = measure_motion(layer), energy(layer)
    torch.testing.assert_close(measured["energy"], along[0].mean(1))
    torch.testing.assert_close(measured["energy_drift"], (along[-1] - along[0]).mean(1))
    assert (measured["energy_error"] >= measured["energy_drift"].abs()).all()


def test_each_variant_has_the_measures_of_its_dynamics():
    every = {"q_moved", "k_moved", "q_turned", "k_turned", "attention_moved", "volume_change"}
    assert measure_motion(moving("standard")) == {}
    assert measure_motion(moving("affine")).keys() == every
    assert measure_motion(moving("euler")).keys() == every | {"dt"}
    assert measure_motion(moving("potential")).keys() == every | {"dt", "energy", "energy_drift", "energy_error"}
    with pytest.raises(CoupledQKError, match="the force 'mlp' has no potential"):
        energy(moving("euler"))


def test_measuring_while_recording_does_not_change_the_tape():
    attention = tiny_attention("euler", d_model=32, n_heads=4)
    with torch.no_grad(), record(attention) as tape:
        attention(double_randn(1, 5, 32))
        q = tape.layers[0].q
        measure_motion(tape.layers[0])
        assert tape.layers[0].q is q


def test_every_measure_is_defined_in_its_docstring_and_in_the_documentation():
    text = (Path(__file__).parent.parent / "docs" / "analysis.md").read_text()
    for name, function in MEASURES.items():
        assert (function.__doc__ or "").strip()
        assert f"`{name}`" in text


def test_the_python_code_of_the_documentation_runs():
    text = (Path(__file__).parent.parent / "docs" / "analysis.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, {})


# Surveys

SURVEYED = ["standard", "diff", "hamiltonian_gqa", "potential", "affine"]


def same(survey, other):
    assert survey.values.keys() == other.values.keys()
    for name, values in survey.values.items():
        torch.testing.assert_close(values, other.values[name], rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("name", SURVEYED)
def test_a_survey_in_batches_equals_the_survey_of_a_single_batch(name):
    model, tokens = tiny_model(name), random_tokens(4, 12)
    whole = survey(model, [tokens])[12]
    same(survey(model, tokens.split(1))[12], whole)
    same(survey(model, tokens.split([3, 1]))[12], whole)
    with torch.no_grad(), record(model) as tape:
        model(tokens)
    expected = torch.stack([measure_maps(layer.pattern())["effective_rank"] for layer in tape.layers], dim=1)
    torch.testing.assert_close(whole.values["effective_rank"], expected)
    assert whole.mean("effective_rank") == pytest.approx(float(expected.mean()))
    assert whole.by_layer("effective_rank") == pytest.approx(expected.mean((0, 2)).tolist())


@pytest.mark.parametrize("name", SURVEYED)
@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_a_survey_at_a_shorter_length_equals_the_survey_of_the_shorter_text(name, positions):
    model, tokens = tiny_model(name, positions=positions), random_tokens(2, 12)
    by_length = survey(model, [tokens], lengths=[5, 12])
    alone = survey(model, [tokens[:, :5]])[5]
    assert by_length[5].values.keys() == {*OF_MAPS, *OF_SPECTRUM}
    assert by_length[12].values.keys() == alone.values.keys(), "how q and k move is in the longest"
    for measure in (*OF_MAPS, *OF_SPECTRUM):
        torch.testing.assert_close(by_length[5].values[measure], alone.values[measure], rtol=1e-5, atol=1e-7)


def test_a_length_given_twice_is_measured_once():
    model, tokens = tiny_model("hamiltonian"), random_tokens(2, 12)
    same(survey(model, [tokens], lengths=[12, 12])[12], survey(model, [tokens])[12])


def test_motion_is_measured_at_the_longest_length():
    model, tokens = tiny_model("hamiltonian"), random_tokens(2, 12)
    same(survey(model, [tokens], lengths=[5])[5], survey(model, [tokens[:, :5]])[5])


@pytest.mark.parametrize("lengths", [[13], [5, 24], [1], [-3, 5]])
def test_a_survey_at_lengths_that_the_sequences_do_not_have_is_refused(lengths):
    with pytest.raises(CoupledQKError, match="at most the 12 tokens"):
        survey(tiny_model(), [random_tokens(2, 12)], lengths)


def test_a_survey_of_a_model_that_is_not_finite_is_refused():
    model = tiny_model("hamiltonian")
    model.blocks[1].attn.qkv.weight.data[0] = torch.nan
    with pytest.raises(CoupledQKError, match="not finite"):
        survey(model, [random_tokens(2, 12)])


def test_memory_does_not_grow_with_the_number_of_batches():
    model, live = tiny_model("hamiltonian"), []

    def batches():
        for _ in range(6):
            tensors = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor)]
            live.append(sum(x.numel() * x.element_size() for x in tensors))
            yield random_tokens(1, 32)

    survey(model, batches())
    one_map = 32 * 32 * 8
    assert max(live[2:]) - live[1] < 6 * one_map, "six sequences leave less behind than six maps"
    assert live[5] - live[4] == live[3] - live[2] < one_map


def test_a_survey_without_sequences_is_refused():
    with pytest.raises(CoupledQKError, match="no batches"):
        survey(tiny_model(), [])


def test_windows_are_spread_over_the_text_and_do_not_overlap():
    tokens = np.arange(100)
    starts = [int(window[0, 0]) for window in windows(tokens, 10, 4)]
    assert starts == [0, 20, 50, 70]
    assert [int(window[0, -1]) for window in windows(tokens, 10, 99)] == list(range(9, 100, 10))
    assert next(windows(tokens, 100, 5)).shape == (1, 100)
    with pytest.raises(CoupledQKError, match="has 100 tokens, but a window takes 101"):
        next(windows(tokens, 101, 1))


# Comparisons


def test_paired_intervals_have_their_nominal_coverage():
    sample = 3 + 2 * np.random.default_rng(0).normal(size=(8, 4000))
    found = paired(sample)
    covered = np.abs(found["difference"] - 3) <= found["margin"]
    assert covered.mean() == pytest.approx(0.95, abs=0.012)


def test_pairing_removes_the_variation_between_texts():
    text = 10 * double_randn(20, 1, 1)
    theirs = Survey({"entropy": text + 0.01 * double_randn(20, 2, 3), "distance": text.expand(20, 2, 3)})
    ours = Survey({"entropy": text + 0.5 + 0.01 * double_randn(20, 2, 3), "dt": text})
    found = differences(ours, theirs)
    assert found.keys() == {"entropy"}, "only what both have is compared"
    for difference, margin in zip(*found["entropy"]["layers"].values(), strict=True):
        assert difference == pytest.approx(0.5, abs=0.01)
        assert margin < 0.01
    assert found["entropy"]["mean"]["difference"] == pytest.approx(0.5, abs=0.01)


def test_one_sequence_has_no_interval():
    found = paired(np.array([[1.0, 2.0]]))
    assert found["difference"].tolist() == [1, 2]
    assert np.isnan(found["margin"]).all()
