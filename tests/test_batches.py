"""Batches are a pure function of (seed, step), independent of ranks and micro-batches."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coupledqk import CoupledQKError
from coupledqk.data import batches
from coupledqk.data.batches import IGNORED, ComputedOrder, train_batch, valid_batches
from coupledqk.loss import IGNORED as IGNORED_BY_THE_LOSS

lengths = st.integers(1, 9)
sizes = st.integers(1, 7)


def text(n: int) -> np.ndarray:
    """Tokens whose values are their positions."""
    return np.arange(n, dtype=np.uint16)


@st.composite
def corpora(draw):
    length = draw(lengths)
    return text(draw(st.integers(length + 1, 120))), length


def epoch_of(tokens, length, seed, epoch):
    """All windows of an epoch, one per step."""
    n_windows = max(1, len(tokens) // length - 1)
    steps = range(epoch * n_windows, (epoch + 1) * n_windows)
    return torch.cat([train_batch(tokens, length, 1, seed, step)[1] for step in steps])


@given(corpus=corpora(), size=sizes, seed=st.integers(0, 2**63), step=st.integers(0, 1000))
def test_targets_are_the_inputs_shifted_by_one(corpus, size, seed, step):
    inputs, targets = train_batch(*corpus, size, seed, step)
    assert inputs.shape == targets.shape == (size, corpus[1])
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)


@given(corpus=corpora(), seed=st.integers(0, 100), epoch=st.integers(0, 5))
def test_an_epoch_repeats_no_target_and_leaves_out_less_than_two_windows(corpus, seed, epoch):
    tokens, length = corpus
    targets = epoch_of(tokens, length, seed, epoch).flatten().tolist()
    assert len(set(targets)) == len(targets)
    assert len(tokens) - len(targets) < 2 * length + 1


def test_epochs_differ_in_the_order_and_offset_of_windows():
    epochs = [epoch_of(text(200), 10, seed=0, epoch=epoch) for epoch in range(4)]
    assert len({tuple(epoch[:, 0].tolist()) for epoch in epochs}) == 4
    assert len({int(epoch[:, 0].min()) % 10 for epoch in epochs}) > 1


@given(
    corpus=corpora(), size=sizes, seed=st.integers(0, 3), step=st.integers(0, 50), others=st.lists(st.integers(0, 50))
)
def test_a_batch_depends_on_seed_and_step_alone(corpus, size, seed, step, others):
    batches._grid.cache_clear()
    alone = train_batch(*corpus, size, seed, step)
    for other in others:
        train_batch(*corpus, size, seed + 1, other)
        train_batch(*corpus, size, seed, other)
    for now, then in zip(train_batch(*corpus, size, seed, step), alone, strict=True):
        assert torch.equal(now, then)


def test_the_order_of_batches_matches_golden_values():
    """Golden values: published results depend on the order of batches for a seed, so it must not change."""
    _, targets = train_batch(text(1000), 10, 4, seed=1, step=30)
    assert targets[:, 0].tolist() == [605, 865, 755, 685]


@given(corpus=corpora(), seed=st.integers(0, 9), size=sizes, step=st.integers(0, 20))
def test_the_stream_of_rows_does_not_depend_on_the_batch_size(corpus, seed, size, step):
    rows = [train_batch(*corpus, 1, seed, row)[0] for row in range(step * size, (step + 1) * size)]
    assert torch.equal(train_batch(*corpus, size, seed, step)[0], torch.cat(rows))


def test_different_seeds_give_different_data():
    first, second = (train_batch(text(1000), 10, 8, seed, 0)[0] for seed in (0, 1))
    assert not torch.equal(first, second)


@given(corpus=corpora(), size=st.integers(1, 12), step=st.integers(0, 20))
@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_read_only_their_rows_of_the_global_batch(world, corpus, size, step):
    batch = train_batch(*corpus, size, 0, step)
    for rank in range(world):
        share = train_batch(*corpus, size, 0, step, rows=slice(rank, None, world))
        assert all(torch.equal(mine, whole[rank::world]) for mine, whole in zip(share, batch, strict=True))


@given(n=st.integers(2, 100), length=lengths, size=sizes)
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_evaluate_each_target_once_in_the_same_number_of_batches(world, n, length, size):
    shares = [list(valid_batches(text(n), length, size, slice(rank, None, world))) for rank in range(world)]
    assert len({len(share) for share in shares}) == 1
    targets = torch.cat([part.flatten() for share in shares for _, part in share])
    assert sorted(targets[targets != IGNORED].tolist()) == list(range(1, n))
    assert all(len(inputs) > 0 for share in shares for inputs, _ in share)


class TenBillionTokens:
    """Tokens whose values are their positions; only slices that are read are created."""

    def __len__(self) -> int:
        return 10**10

    def __getitem__(self, part: slice) -> np.ndarray:
        return np.arange(part.start, min(part.stop, len(self)))


def test_ten_billion_tokens_are_read_window_by_window():
    tokens = TenBillionTokens()
    tracemalloc.start()
    rows = torch.cat([train_batch(tokens, 512, 64, 0, step)[0] for step in (0, 1, 300_000, 600_000)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8e6
    starts = rows[:, 0]
    assert torch.equal(rows, starts[:, None] + torch.arange(512))
    assert len(starts.unique()) == 256
    n_windows = 10**10 // 512 - 1
    assert starts.max() < 10**10
    assert 0.4 < float((starts[:192] < 10**10 / 2).float().mean()) < 0.6  # the first epoch covers both halves
    epochs = torch.div(torch.tensor([0, 600_000 * 64]), n_windows, rounding_mode="floor")
    assert epochs.tolist() == [0, 1]


@given(n=st.integers(1, 300), key=st.binary(min_size=1, max_size=32))
def test_a_computed_order_contains_every_window_once(n, key):
    order = ComputedOrder(n, key)
    assert sorted(order[i] for i in range(n)) == list(range(n))


def test_a_computed_order_is_reproducible_and_differs_between_keys():
    n = 10**10 // 512
    orders = [[ComputedOrder(n, key)[i] for i in range(3)] for key in (b"a", b"b")]
    assert orders[0] == [19_219_788, 19_351_954, 354_837]
    assert orders[0] != orders[1]


def test_the_order_of_a_large_corpus_is_computed_instead_of_stored(monkeypatch):
    tokens = text(1000)
    stored = epoch_of(tokens, 10, 0, 0)
    batches._grid.cache_clear()
    monkeypatch.setattr(batches, "MAX_STORED_ORDER", 98)
    computed = epoch_of(tokens, 10, 0, 0)
    batches._grid.cache_clear()
    assert not torch.equal(stored, computed)
    assert torch.equal(stored.flatten().sort().values, computed.flatten().sort().values)


@given(n=st.integers(2, 100), length=lengths, size=sizes)
def test_evaluation_covers_each_target_once_in_order(n, length, size):
    inputs, targets = (torch.cat(parts) for parts in zip(*valid_batches(text(n), length, size), strict=True))
    counted = targets != IGNORED
    assert targets[counted].tolist() == list(range(1, n))
    assert inputs[counted].tolist() == list(range(n - 1))
    assert (inputs >= 0).all()
    assert counted.flatten().tolist() == sorted(counted.flatten().tolist(), reverse=True)  # padded at the end only


def test_padding_targets_are_ignored_by_the_loss():
    assert IGNORED == IGNORED_BY_THE_LOSS


def test_large_token_ids_keep_their_value():
    tokens = np.full(20, 60_000, np.uint16)
    assert train_batch(tokens, 4, 2, 0, 0)[0].unique().tolist() == [60_000]


def test_a_text_shorter_than_a_window_is_refused_with_both_sizes():
    with pytest.raises(
        CoupledQKError, match="training split has 512 tokens, but a window needs 513: use more text or shorter"
    ):
        train_batch(text(512), 512, 1, 0, 0)
    train_batch(text(513), 512, 1, 0, 0)
    with pytest.raises(CoupledQKError, match="has 1 tokens: expected at least 2"):
        next(valid_batches(text(1), 512, 1))
