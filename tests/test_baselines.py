"""Baselines of language models: n-gram models compared with their definition, and the loss by length of context."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coupledqk import CoupledQKError
from coupledqk.baselines import (
    Baseline,
    PositionLoss,
    context_gain,
    objection,
    read_baselines,
    read_position_losses,
)
from coupledqk.config import DataConfig
from coupledqk.data import ngram, prepare
from coupledqk.data.ngram import KneserNey, ngram_baselines
from small_runs import run_to, tiny

D = ngram.DISCOUNT


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COUPLEDQK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.md").write_text("the cat sat on the mat, and the dog sat on the cat. " * 60)
    return tmp_path / "text.md"


def probability(model: KneserNey, order: int, context: tuple[int, ...], token: int) -> float:
    return dict(model.probabilities(np.array([*context, token])))[order][-1]


# n-grams


@pytest.mark.parametrize(
    ("order", "context", "expected"),
    [
        # 0 1 0 1 0 2: three times 0, twice 1, once 2; each has one predecessor
        (1, (), [2.25 / 6 + 0.125, 1.25 / 6 + 0.125, 0.25 / 6 + 0.125]),
        (2, (0,), [0.5 / 3, 1.25 / 3 + 0.5 / 3, 0.25 / 3 + 0.5 / 3]),
        (2, (1,), [1.25 / 2 + 0.375 / 3, 0.375 / 3, 0.375 / 3]),
        (2, (2,), [1 / 3, 1 / 3, 1 / 3]),  # nothing follows a 2
        # after 1 0 came 1 and 2, once each; after 0 by distinct predecessors: 1 and 2, each after 1 0 only
        (3, (1, 0), [0.75 * (0.75 / 3), *[0.25 / 2 + 0.75 * (0.25 / 2 + 0.75 / 3)] * 2]),
        (3, (0, 2), [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_probabilities_agree_with_small_counts_by_hand(order, context, expected):
    model = KneserNey(np.array([0, 1, 0, 1, 0, 2]), 3, 3)
    assert [probability(model, order, context, token) for token in range(3)] == pytest.approx(expected)


def defined(tokens: list[int], size: int, order: int, context: tuple[int, ...], token: int, top: bool = True) -> float:
    """The definition, computed literally."""
    if order == 0:
        return 1 / size
    ngrams = [tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1)]
    if not top:
        longer = {tuple(tokens[i : i + order + 1]) for i in range(len(tokens) - order)}
        ngrams = [ngram[1:] for ngram in longer]
    counts = [ngrams.count((*context, other)) for other in range(size)]
    shorter = defined(tokens, size, order - 1, context[1:], token, top=False)
    if sum(counts) == 0:
        return shorter
    kinds = sum(count > 0 for count in counts)
    return (max(counts[token] - D, 0) + D * kinds * shorter) / sum(counts)


@given(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_probabilities_of_every_order_follow_the_definition_and_sum_to_one(tokens):
    model = KneserNey(np.array(tokens, np.uint16), 3, 4)
    for order in range(1, 5):
        for context in itertools.product(range(3), repeat=order - 1):
            found = [probability(model, order, context, token) for token in range(3)]
            assert found == pytest.approx([defined(tokens, 3, order, context, token) for token in range(3)])
            assert sum(found) == pytest.approx(1)
            assert min(found) > 0


def test_tokens_with_short_context_are_predicted_by_lower_orders():
    model = KneserNey(np.array([0, 1, 2, 0, 1, 2, 2]), 3, 3)
    orders = dict(model.probabilities(np.array([0, 1, 2])))
    assert orders[3][0] == pytest.approx(defined([0, 1, 2, 0, 1, 2, 2], 3, 1, (), 0, top=False))
    assert orders[3][1] == pytest.approx(defined([0, 1, 2, 0, 1, 2, 2], 3, 2, (0,), 1, top=False))


def test_keys_of_a_large_vocabulary_do_not_collide():
    tokens = np.array([50_256, 0, 50_256, 1, 50_255, 50_256] * 3)
    model = KneserNey(tokens, 50_257, 5)
    assert probability(model, 5, (0, 50_256, 1, 50_255), 50_256) > 0.5
    assert probability(model, 5, (0, 50_256, 1, 50_255), 0) < 0.05


def test_baselines_have_perplexity_and_bits_per_byte(text):
    corpus = prepare(DataConfig(corpus=str(text), tokenizer="bytes"))
    found = ngram_baselines(corpus)
    assert [baseline.order for baseline in found] == [1, 2, 3, 5]
    assert [baseline.name for baseline in found] == ["unigram", "bigram", "trigram", "5-gram"]
    perplexities = [baseline.perplexity for baseline in found]
    assert perplexities == sorted(perplexities, reverse=True)
    n_targets, n_bytes = len(corpus.valid) - 1, corpus.info.splits["valid"].bytes
    for baseline in found:
        assert baseline.bits_per_byte == pytest.approx(math.log2(baseline.perplexity) * n_targets / n_bytes)
        assert baseline.train_tokens == len(corpus.train)


def test_baselines_of_a_sample_are_computed_once(text):
    config = DataConfig(corpus=str(text), tokenizer="bytes")
    first = ngram_baselines(prepare(config))
    with mock.patch.object(ngram, "KneserNey", side_effect=AssertionError("computed again")):
        assert ngram_baselines(prepare(config)) == first
        with pytest.raises(AssertionError, match="computed again"):
            ngram_baselines(prepare(replace(config, max_tokens=500)))


def test_damaged_cached_baselines_are_recomputed(text, cache):
    corpus = prepare(DataConfig(corpus=str(text), tokenizer="bytes"))
    first = ngram_baselines(corpus)
    (file,) = (cache / "baselines").iterdir()
    for content in ("", '{"baselines": [{"order": 1}]}'):
        file.write_text(content)
        assert ngram_baselines(corpus) == first


def test_counting_is_limited_to_a_maximum_number_of_tokens(text, monkeypatch):
    monkeypatch.setattr(ngram, "MAX_TOKENS", 100)
    assert ngram_baselines(prepare(DataConfig(corpus=str(text), tokenizer="bytes")))[0].train_tokens == 100


def test_too_little_text_is_refused(tmp_path):
    (tmp_path / "short.md").write_text("a")
    corpus = prepare(DataConfig(corpus=str(tmp_path / "short.md"), tokenizer="bytes"))
    with pytest.raises(CoupledQKError, match=r"short.md has 0 training and 2 validation tokens: .* use more text"):
        ngram_baselines(corpus)


# verdicts

BASELINES = [
    Baseline(1, 300.0, 4.0, 10),
    Baseline(2, 90.0, 3.0, 10),
    Baseline(3, 60.0, 2.5, 10),
    Baseline(5, 50, 2.4, 10),
]


def test_a_model_no_better_than_bigrams_allows_no_conclusion():
    assert objection(2.99, BASELINES) is None
    assert objection(3.0, BASELINES) == (
        "3.000 bits per byte is not below the 3.000 of a bigram model of the same text: no conclusion about attention is "
        "possible"
    )
    assert objection(9.9, []) is None


# context


def test_the_gain_from_context_is_the_late_loss_minus_the_early_loss():
    losses = [
        PositionLoss(1, 1, 10, 9.0),
        PositionLoss(2, 2, 10, 5.0),
        PositionLoss(3, 4, 20, 4.0),
        PositionLoss(5, 8, 40, 3.0),
        PositionLoss(9, 16, 80, 2.0),
    ]
    assert context_gain(losses) == pytest.approx(2.0 - (5 * 10 + 4 * 20 + 3 * 40) / 70)
    assert context_gain(losses[:4]) is None
    assert context_gain([]) is None


def test_a_finished_run_stores_its_baselines_and_the_loss_by_context(tmp_path, text):
    run = run_to(tiny(text, max_tokens=1_500, max_valid_tokens=200), tmp_path / "run")
    losses = read_position_losses(run.result)
    assert [(part.first, part.last) for part in losses] == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16)]
    assert sum(part.tokens for part in losses) == 199
    mean = sum(part.loss * part.tokens for part in losses) / 199
    assert mean == pytest.approx(run.result["final"]["loss"], rel=1e-5)
    assert run.result["context_gain"] == pytest.approx(context_gain(losses))
    assert [baseline.order for baseline in read_baselines(run.result)] == [1, 2, 3, 5]
    assert run.result["sample_hash"] == run.info["corpus"]["sample_hash"]
    assert "a sample of 200 tokens" in run.result["definition"]


def test_results_of_older_versions_have_no_baselines():
    assert read_baselines({"best": {}}) == ()
    assert read_position_losses({"best": {}}) == ()
