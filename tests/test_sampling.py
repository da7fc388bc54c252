"""From logits to tokens: the distribution sampled from, and generation with the cache."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from conftest import random_tokens, tiny_model
from coupledqk import VARIANTS, CoupledQKError
from coupledqk.sampling import Sampler

rows = st.lists(st.integers(-40, 40), min_size=2, max_size=12, unique=True).map(lambda xs: torch.tensor([xs]) / 10)


@given(logits=rows, temperature=st.floats(0.1, 5))
def test_temperature_divides_the_logits(logits, temperature):
    torch.testing.assert_close(Sampler(temperature).probabilities(logits), (logits / temperature).softmax(-1))


@given(logits=rows, top_k=st.integers(1, 14))
def test_top_k_keeps_the_most_likely_tokens_in_proportion(logits, top_k):
    p = Sampler(top_k=top_k).probabilities(logits)[0]
    kept = logits[0].argsort(descending=True)[:top_k]
    assert set(p.nonzero().flatten().tolist()) == set(kept.tolist())
    torch.testing.assert_close(p[kept], logits[0][kept].softmax(-1))


@given(
    logits=st.lists(st.integers(-2, 2), min_size=2, max_size=12).map(lambda xs: torch.tensor([xs]) / 1), data=st.data()
)
def test_top_k_keeps_no_more_than_k_among_equal_logits(logits, data):
    top_k = data.draw(st.integers(1, logits.shape[-1]))
    p = Sampler(top_k=top_k).probabilities(logits)[0]
    assert int((p > 0).sum()) == top_k
    assert logits[0][p > 0].min() >= logits[0][p == 0].max() if top_k < len(p) else True
    torch.testing.assert_close(p[p > 0], logits[0][p > 0].softmax(-1))


@given(logits=rows, top_p=st.floats(0.01, 0.999))
def test_top_p_keeps_the_smallest_set_that_reaches_p(logits, top_p):
    full = logits[0].double().softmax(-1)
    order = full.argsort(descending=True).tolist()
    sums = [float(full[order[: n + 1]].sum()) for n in range(len(order))]
    assume(all(abs(s - top_p) > 1e-5 for s in sums))  # near equality the result depends on rounding
    kept = order[: 1 + sum(s < top_p for s in sums)]
    p = Sampler(top_p=top_p).probabilities(logits)[0]
    assert set(p.nonzero().flatten().tolist()) == set(kept)
    torch.testing.assert_close(p[kept].double(), full[kept] / full[kept].sum(), rtol=1e-5, atol=1e-7)


def test_top_p_keeps_no_further_token_if_p_is_reached_exactly():
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    assert Sampler(top_p=0.5).probabilities(logits).tolist() == [[1, 0, 0, 0]]
    assert (Sampler(top_p=0.51).probabilities(logits) > 0).tolist() == [[True, True, False, False]]


@given(logits=rows)
def test_top_p_of_one_keeps_the_whole_distribution(logits):
    torch.testing.assert_close(Sampler(top_p=1.0).probabilities(logits), logits.softmax(-1))


def test_top_p_applies_within_top_k():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # among the best three, the first two have 0.7 / 0.9
    p = Sampler(top_k=3, top_p=0.75).probabilities(logits)
    torch.testing.assert_close(p, torch.tensor([[4 / 7, 3 / 7, 0, 0]]))


def test_each_row_is_restricted_independently():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    p = Sampler(top_k=2, top_p=0.9).probabilities(logits)
    torch.testing.assert_close(p[0], p[1].flip(0))
    assert (p > 0).tolist() == [[True, True, False, False], [False, False, True, True]]


def test_draws_follow_the_probabilities():
    sampler, logits = Sampler(temperature=0.7, top_k=4), torch.tensor([[1.0, 0.5, 0.0, -0.5, -1.0]])
    n = 20_000
    tokens = sampler(logits.expand(n, -1), torch.Generator().manual_seed(0))
    observed = tokens.bincount(minlength=5)
    expected = n * sampler.probabilities(logits)[0]
    assert observed[4] == 0
    chi_squared = ((observed - expected)[:4] ** 2 / expected[:4]).sum()
    assert chi_squared < 16.3  # 3 degrees of freedom, p = 0.001


def test_temperature_zero_and_top_k_one_choose_the_most_likely_token():
    logits = torch.randn(50, 11)
    assert torch.equal(Sampler(temperature=0)(logits), logits.argmax(-1))
    assert torch.equal(Sampler(top_k=1)(logits), logits.argmax(-1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature=-1: expected 0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"top_k": 0}, "top_k=0: expected at least 1"),
        ({"top_p": 0.0}, "top_p=0.0: expected a probability"),
        ({"top_p": 1.1}, "top_p=1.1: expected a probability"),
    ],
)
def test_invalid_sampling_options_are_refused(options, message):
    with pytest.raises(CoupledQKError, match=message):
        Sampler(**options)
    with pytest.raises(CoupledQKError, match=message):
        tiny_model().generate(random_tokens(1, 3), 2, **options)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("positions", ["learned", "rope"])
@pytest.mark.usefixtures("poisoned_memory")
def test_greedy_generation_takes_the_most_likely_token_of_the_full_forward_pass(name, positions):
    model, prompt = tiny_model(name, positions=positions), random_tokens(3, 6)
    expected = prompt
    for _ in range(5):
        expected = torch.cat([expected, model(expected)[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(model.generate(prompt, 5, temperature=0), expected)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["standard", "hamiltonian", "hamiltonian_gqa", "euler_diff"])
@pytest.mark.parametrize("positions", ["learned", "rope"])
@torch.no_grad()
def test_decoding_single_tokens_in_float32_gives_the_same_logits(name, positions, rows):
    model, tokens = tiny_model(name, positions=positions, qk_norm=True).float(), random_tokens(rows, 9)
    cache = model.new_cache(9)
    one_by_one = torch.cat([model(token, cache=cache) for token in tokens.split(1, dim=1)], dim=1)
    torch.testing.assert_close(one_by_one, model(tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", VARIANTS)
def test_left_padded_prompts_continue_as_if_alone(name):
    model, prompt = tiny_model(name), random_tokens(3, 6)
    padding = torch.tensor([6, 4, 1])[:, None] > torch.arange(6).flip(0)
    together = model.generate(prompt, 5, temperature=0, padding=padding)
    for row, real, out in zip(prompt, padding, together, strict=True):
        assert torch.equal(out[6:], model.generate(row[real][None], 5, temperature=0)[0, int(real.sum()) :])


def test_generation_depends_on_the_seed_and_does_not_change_the_global_generator():
    model, prompt = tiny_model(), random_tokens(2, 4)
    before = torch.get_rng_state()
    first = model.generate(prompt, 20, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(model.generate(prompt, 20, seed=1), first)
    assert not torch.equal(model.generate(prompt, 20, seed=2), first)


def test_a_model_can_be_trained_on_its_generated_tokens():
    model = tiny_model("euler")
    text = model.generate(random_tokens(2, 3), 4)
    model(text[:, :-1], text[:, 1:]).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_streaming_yields_what_generate_returns():
    model, prompt = tiny_model(), random_tokens(2, 4)
    streamed = torch.stack(list(model.stream(prompt, 6, seed=1)), dim=1)
    assert torch.equal(torch.cat([prompt, streamed], dim=1), model.generate(prompt, 6, seed=1))
    assert not streamed.requires_grad
    assert torch.is_grad_enabled()


def test_a_stopped_row_repeats_the_stop_token_and_generation_ends_when_all_rows_have_stopped():
    model, prompt = tiny_model(), random_tokens(2, 4)
    free = model.generate(prompt, 12, temperature=0)[:, 4:]
    stop = int(free[0, 2])
    expected = [row[: row.index(stop) + 1] if stop in row else row for row in free.tolist()]
    length = max(map(len, expected))
    stopped = model.generate(prompt, 12, temperature=0, stop_token=stop)[:, 4:]
    assert stopped.tolist() == [row + [stop] * (length - len(row)) for row in expected]
    alone = model.generate(prompt[:1], 12, temperature=0, stop_token=stop)[0, 4:]
    assert alone.tolist() == expected[0]
    assert len(alone) < 12


def test_generation_may_fill_the_positions_but_not_exceed_them():
    model = tiny_model(n_positions=8)
    # the last new token is never fed back, so it needs no position
    assert model.generate(random_tokens(1, 5), 4, seed=0).shape == (1, 9)
    with pytest.raises(CoupledQKError, match="9 tokens is longer than the model's 8 learned positions"):
        model.generate(random_tokens(1, 5), 5, seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": torch.tensor([[1, 37]])}, "token ids from 1 to 37 in the prompt: the vocabulary has 0 to 36"),
        ({"prompt": torch.tensor([[-1, 3]])}, "token ids from -1 to 3"),
        ({"prompt": torch.tensor([1, 2])}, r"prompt of shape \(2,\): expected \(batch, tokens\)"),
        ({"prompt": torch.zeros(1, 0, dtype=torch.int64)}, r"prompt of shape \(1, 0\)"),
        ({"prompt": torch.zeros(0, 3, dtype=torch.int64)}, r"prompt of shape \(0, 3\)"),
        ({"seed": 2**64}, "seed=18446744073709551616: expected a signed 64-bit integer"),
        ({"max_new_tokens": 0}, "max_new_tokens=0: expected at least 1"),
        ({"padding": torch.tensor([[True, True, False]])}, "pad prompts on the left"),
        ({"padding": torch.tensor([[True, True]])}, r"padding of shape \(1, 2\).*booleans of shape \(1, 3\)"),
        ({"padding": torch.tensor([True, True, True])}, r"padding of shape \(3,\).*booleans of shape \(1, 3\)"),
    ],
)
def test_bad_prompts_are_refused(arguments, message):
    with pytest.raises(CoupledQKError, match=message):
        tiny_model().generate(**{"prompt": random_tokens(1, 3), "max_new_tokens": 2, **arguments})
