"""Associative-recall data: Zoology's rows are reproduced exactly, and the paper's rows have their stated properties."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coupledqk import CoupledQKError
from coupledqk.data.mqar import LEVELS, paper_mqar, paper_test_set, zoology_mqar
from coupledqk.loss import IGNORED

seeds = st.integers(0, 2**32 - 1)


@st.composite
def sizes(draw, small_vocabulary: bool):
    """Compatible numbers of pairs, lengths and vocabulary sizes, including the limits."""
    pairs = draw(st.integers(1, 9))
    length = 4 * pairs + 2 * draw(st.integers(0, 12))
    fewest = 2 * (pairs + 1) if small_vocabulary else length + 1
    return pairs, length, fewest + draw(st.integers(0, 30))


def assert_recall(inputs, labels, pairs, length, vocab_size):
    """Each row shows every key once with its value and then queries every key once; the label is the key's value."""
    assert inputs.shape == labels.shape == (len(inputs), length)
    assert inputs.dtype == labels.dtype == torch.int64
    half = vocab_size // 2
    for row, answers in zip(inputs.tolist(), labels.tolist(), strict=True):
        keys, values = row[0 : 2 * pairs : 2], row[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert all(0 < key < half <= value < vocab_size for key, value in zip(keys, values, strict=True))
        queries = [place for place, answer in enumerate(answers) if answer != IGNORED]
        assert sorted(row[place] for place in queries) == sorted(keys)
        assert all(place >= 2 * pairs and place % 2 == 0 for place in queries)
        value_of = dict(zip(keys, values, strict=True))
        assert all(answers[place] == value_of[row[place]] for place in queries)
        assert all(row[place] == 0 for place in range(2 * pairs, length) if place not in queries)


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# Zoology


def test_zoology_golden_example():
    inputs, labels = zoology_mqar(20, 3, 16, 2, seed=0, random_non_queries=False)
    assert inputs.tolist() == [
        [8, 15, 3, 11, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [4, 15, 2, 12, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0],
        [6, 11, 3, 18, 0, 0, 6, 0, 3, 0, 0, 0, 0, 0, 0, 0],
    ]
    labelled = {(row, place): int(labels[row, place]) for row, place in (labels != IGNORED).nonzero().tolist()}
    assert labelled == {(0, 4): 15, (0, 6): 11, (1, 4): 15, (1, 14): 12, (2, 6): 11, (2, 8): 18}


@given(size=sizes(small_vocabulary=False), rows=st.integers(1, 5), seed=seeds, power_a=st.floats(0.01, 2))
def test_zoology_rows_query_the_keys_they_showed(size, rows, seed, power_a):
    pairs, length, vocab_size = size
    batch = zoology_mqar(vocab_size, rows, length, pairs, seed, power_a, random_non_queries=False)
    assert_recall(*batch, pairs, length, vocab_size)


@given(size=sizes(small_vocabulary=False), seed=seeds)
def test_fillers_replace_only_zeros_and_depend_only_on_the_seed(size, seed):
    pairs, length, vocab_size = size
    plain, labels = zoology_mqar(vocab_size, 3, length, pairs, seed, random_non_queries=False)
    filled = zoology_mqar(vocab_size, 3, length, pairs, seed)
    assert torch.equal(filled[0][plain != 0], plain[plain != 0])
    assert torch.equal(filled[1], labels)
    torch.rand(3)  # other draws from the global generators
    np.random.rand(3)
    assert same(filled, zoology_mqar(vocab_size, 3, length, pairs, seed))


def test_drawing_does_not_change_the_global_generators():
    torch_state, numpy_state = torch.get_rng_state(), str(np.random.get_state())
    zoology_mqar(20, 3, 16, 2, seed=0)
    paper_mqar(2, 16, seed=0, step=0)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert numpy_state == str(np.random.get_state())


# the paper


@given(size=sizes(small_vocabulary=True), rows=st.integers(1, 5), seed=st.integers(), step=st.integers(0, 10**6))
def test_paper_rows_query_the_keys_they_showed(size, rows, seed, step):
    pairs, length, vocab_size = size
    batch = paper_mqar(pairs, length, seed, step, rows, vocab_size)
    assert_recall(*batch, pairs, length, vocab_size)
    assert same(batch, paper_mqar(pairs, length, seed, step, rows, vocab_size))


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_has_a_test_set_of_3000_rows_of_64_tokens(level):
    inputs, labels = paper_test_set(*LEVELS[level])
    assert len(inputs) == 3000
    assert_recall(inputs[:100], labels[:100], *LEVELS[level], vocab_size=64)
    assert same((inputs, labels), paper_test_set(*LEVELS[level]))


def test_no_row_is_repeated_within_or_across_steps_seeds_and_the_test_set():
    batches = [paper_mqar(4, 64, seed, step) for seed in range(3) for step in range(20)]
    rows = torch.cat([inputs for inputs, _ in [*batches, paper_test_set(4, 64)]])
    assert len(rows.unique(dim=0)) == len(rows) == 3 * 20 * 64 + 3000


def test_paper_rows_have_the_same_distribution_as_zoologys():
    """In 20,000 rows, the frequencies of keys, values and query positions differ only by chance."""
    pairs, length, vocab_size, rows = 3, 18, 20, 20_000
    ours = frequencies(*paper_test_set(pairs, length, rows, vocab_size), pairs)
    theirs = frequencies(*zoology_mqar(vocab_size, rows, length, pairs, 0, random_non_queries=False), pairs)
    five_sigma = 5 * (2 * 0.25 / rows) ** 0.5
    assert (ours - theirs).abs().max() < five_sigma


def frequencies(inputs, labels, pairs) -> torch.Tensor:
    """Frequencies of each token at each position of the context, and of each pair's query at each later position."""
    context = torch.nn.functional.one_hot(inputs[:, : 2 * pairs], 20).double().mean(0)
    keys = inputs[:, 0 : 2 * pairs : 2]
    asked = (inputs[:, None, 2 * pairs :] == keys[:, :, None]).double().mean(0)
    return torch.cat([context.flatten(), asked.flatten()])


# bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_kv_pairs": 5}, "num_kv_pairs=5: expected at most 4 at input_seq_len=16"),
        ({"num_kv_pairs": 4, "vocab_size": 8}, "num_kv_pairs=4: expected at most the 3 keys of vocab_size=8"),
        ({"input_seq_len": 17}, "input_seq_len=17: expected an even number"),
        ({"num_kv_pairs": 0}, "num_kv_pairs=0: expected a whole number above 0"),
        ({"num_kv_pairs": 2.5}, "num_kv_pairs=2.5: expected a whole number above 0"),
        ({"num_examples": -1}, "num_examples=-1: expected a whole number above 0"),
    ],
)
def test_rows_that_cannot_be_made_are_refused(settings, message):
    sizes = {"vocab_size": 20, "num_examples": 3, "input_seq_len": 16, "num_kv_pairs": 2, **settings}
    with pytest.raises(CoupledQKError, match=message):
        paper_test_set(**sizes)
    with pytest.raises(CoupledQKError, match=message):
        zoology_mqar(**sizes, seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 16}, "vocab_size=16: expected more than input_seq_len=16"),
        ({"seed": -1}, "seed=-1: expected a whole number from 0"),
        ({"power_a": 0}, "power_a=0: expected a number above 0"),
    ],
)
def test_settings_that_zoology_refuses_are_refused(settings, message):
    sizes = {"vocab_size": 20, "num_examples": 3, "input_seq_len": 16, "num_kv_pairs": 2, "seed": 0, **settings}
    with pytest.raises(CoupledQKError, match=message):
        zoology_mqar(**sizes)
