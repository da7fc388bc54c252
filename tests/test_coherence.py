"""The coherence of a corpus, measured by compression."""

import math
import random

import pytest

from coupledqk import CoupledQKError
from coupledqk.lab import coherence as module
from coupledqk.lab.coherence import EXCERPT, PART, coherence

SMALL = {"n_documents": 15, "context_bytes": 40_000}


def word(draw: random.Random) -> str:
    return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9)))


def corpus(own_phrases: int, n: int = 30, words: int = 400) -> list[str]:
    """Documents of 20 phrases each: `own_phrases` of them are unique to a document, the others are shared."""
    draw = random.Random(0)

    def phrases(count: int) -> list[str]:
        return [" ".join(word(draw) for _ in range(4)) for _ in range(count)]

    shared = phrases(20)
    documents = []
    for _ in range(n):
        vocabulary = phrases(own_phrases) + shared[own_phrases:]
        documents.append(" ".join(draw.choice(vocabulary) for _ in range(words // 4)))
    return documents


def test_coherence_increases_with_shared_phrases():
    unrelated, mixed, related = (coherence(corpus(own), **SMALL) for own in (20, 10, 0))
    assert unrelated.interval[1] < mixed.interval[0]
    assert mixed.interval[1] < related.interval[0]


def test_noise_has_almost_no_coherence():
    draw = random.Random(0)
    noise = ["".join(chr(draw.randrange(128)) for _ in range(3000)) for _ in range(30)]
    measured = coherence(noise, **SMALL)
    assert abs(measured.gain) < 0.05 * measured.alone


def test_a_context_of_one_byte_saves_nothing():
    assert coherence(corpus(0), n_documents=15, context_bytes=1).gain == pytest.approx(0, abs=0.02)


def test_the_gain_is_the_cost_alone_minus_the_cost_given_the_others():
    measured = coherence(corpus(10), **SMALL)
    assert measured.gain == pytest.approx(measured.alone - measured.given)
    assert 0 < measured.given < measured.alone < 8
    assert measured.interval[0] < measured.gain < measured.interval[1]
    assert (measured.n_documents, measured.context_bytes, measured.excerpt_bytes) == (15, 40_000, EXCERPT)
    assert "LZMA" in measured.compressor


def test_the_seed_determines_the_result():
    documents = corpus(10)
    once = coherence(iter(documents), **SMALL, seed=1)
    assert once == coherence(documents, **SMALL, seed=1)
    assert once != coherence(documents, **SMALL, seed=2)


def test_short_documents_are_used_only_as_context():
    """Short documents are used as context only, since their excerpts compress badly alone and would appear more coherent."""
    long, short = corpus(10), ["tiny"] * 50
    assert coherence(long + short, n_documents=80, context_bytes=40_000).n_documents == len(long)


def test_one_long_document_counts_as_several():
    text = " ".join(corpus(10, n=400, words=600))
    parts = math.ceil(len(text) / PART)
    assert coherence([text], context_bytes=100_000).n_documents == parts


def test_a_held_out_document_is_never_in_its_context(monkeypatch):
    contexts = []

    def remember(parts, left_out, first, size):
        context = real(parts, left_out, first, size)
        contexts.append((context, [parts[number] for number in left_out]))
        return context

    real = module._context
    monkeypatch.setattr(module, "_context", remember)
    coherence(corpus(20), **SMALL)
    held_out = [part for _, parts in contexts for part in parts]
    assert len(set(held_out)) == 15
    assert not any(part[:200] in context for context, parts in contexts for part in parts)


def test_a_large_corpus_is_sampled_at_random(monkeypatch):
    monkeypatch.setattr(module, "POOL", 60_000)
    documents = corpus(20, n=200)
    seen = []
    monkeypatch.setattr(module, "_context", lambda parts, *_: seen.append(parts) or b"".join(parts)[:40_000])
    coherence(documents, **SMALL)
    numbers = {documents.index(part.decode()) for part in seen[0]}
    assert 60_000 <= sum(map(len, seen[0])) < 60_000 + max(map(len, documents))
    assert min(numbers) < 50
    assert max(numbers) > 150


@pytest.mark.parametrize(
    ("documents", "settings", "message"),
    [
        ([], {}, "0 documents of 1024 bytes or more: coherence needs 10"),
        (["short"] * 50, {}, "0 documents of 1024 bytes or more"),
        (corpus(10)[:9], {}, "9 documents of 1024 bytes or more"),
        (corpus(10), {}, r"bytes beside the documents held out: coherence needs 1,000,000; use more text"),
        ("one text", {}, "documents='one text': expected several"),
        (corpus(10), {"n_documents": 3}, "n_documents=3: expected at least 10"),
        (corpus(10), {"context_bytes": 0}, "context_bytes=0: expected 1 up to"),
        (corpus(10), {"seed": -1}, "seed=-1: expected 0 up to"),
        (corpus(10), {"context_bytes": 10**8}, "context_bytes=100000000: expected 1 up to"),
    ],
)
def test_unsuitable_documents_and_settings_are_refused(documents, settings, message):
    with pytest.raises(CoupledQKError, match=message):
        coherence(documents, **settings)
