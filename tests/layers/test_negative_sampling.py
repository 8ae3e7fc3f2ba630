"""word2vec's pass against autograd, against its plain twin, and against what its draws should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.layers import negative_sampling as sampling
from seqloom.layers.negative_sampling import (
    NegativeSampling,
    PlainPass,
    SentenceWords,
    kept_probabilities,
    noise_table,
    padded_rows,
    train_sentences,
)
from seqloom.native.library import library

WORDS = 30
compiled = pytest.mark.skipif(library() is None, reason="the compiled pass needs a C++ compiler")
Pass = Callable[..., sampling.Pairs]


def options(**changes: object) -> NegativeSampling:
    counts = 1000 // np.arange(1, WORDS + 1)
    default = NegativeSampling(
        window=3,
        drawn_window=True,
        negatives=5,
        cbow=False,
        kept=kept_probabilities(counts, 0, "program"),
        noise=noise_table(np.asarray(counts**0.75, np.float64)),
    )
    return replace(default, **changes)  # type: ignore[arg-type]


def text(sentences: int = 20, seed: int = 0) -> SentenceWords:
    random = np.random.default_rng(seed)
    parts = [random.integers(0, WORDS, random.integers(0, 12)) for _ in range(sentences)]
    starts = np.cumsum([0, *map(len, parts)])
    return SentenceWords(np.concatenate(parts).astype(np.int32), starts.astype(np.int64))


def vectors(tied: bool, width: int = 20) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    v, u = (torch.randn(WORDS, width, dtype=torch.float64, generator=generator) for _ in range(2))
    return (v, v) if tied else (v, u)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("cbow", [False, True])
@pytest.mark.parametrize("targets", [[3, 7, 9], [3, 7, 7], [3, 3, 9], [3]])
def test_a_step_is_the_gradient_of_its_loss(tied: bool, cbow: bool, targets: list[int]) -> None:
    """Also where a word is drawn twice, where the true word is drawn, and where a word is around itself."""
    around, rate = [4, 5, 4, 3], 0.1
    v, u = vectors(tied)
    x_of, y_of = v.clone().requires_grad_(), u.clone().requires_grad_()
    y = x_of if tied else y_of
    x = x_of[around]
    if cbow:
        # the gradient of the mean goes to each of the words undivided
        x = x.detach().mean(dim=0, keepdim=True) + (x - x.detach()).sum(dim=0, keepdim=True)
    loss = -F.logsigmoid(x @ y[targets[0]]).sum()
    for word in targets[1:]:
        if word != targets[0]:
            loss = loss - F.logsigmoid(-(x @ y[word])).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    pairs = PlainPass(v, u, options(cbow=cbow), rate).step(around, targets)
    assert pairs.loss == pytest.approx(loss.item())
    assert pairs.count == (1 if cbow else 4)
    for now, leaf in ((v, x_of), (u, y)):
        assert leaf.grad is not None
        torch.testing.assert_close(now, leaf.detach() - rate * leaf.grad, rtol=0, atol=1e-12)


@compiled
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("cbow", [False, True])
@pytest.mark.parametrize("drawn_window", [False, True])
@pytest.mark.parametrize("negatives", [1, 5, 7, 13])
@pytest.mark.parametrize("width", [1, 20, 33])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)], ids=str
)
def test_the_compiled_pass_is_the_plain_one(
    tied: bool,
    cbow: bool,
    drawn_window: bool,
    negatives: int,
    width: int,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    kept = np.linspace(0.2, 1.5, WORDS, dtype=np.float32)
    chosen = options(cbow=cbow, drawn_window=drawn_window, negatives=negatives, kept=kept)
    start = [one.to(dtype) / width**0.5 for one in vectors(tied, width)]
    v, w = start[0].clone(), start[0].clone()
    u, z = (v, w) if tied else (start[1].clone(), start[1].clone())
    fast = train_sentences(v, u, text(), chosen, rate=0.1, seed=2**63 + 5)
    plain = PlainPass(w, z, chosen, 0.1).over(text(), 2**63 + 5)
    assert fast.count == plain.count
    assert fast.loss == pytest.approx(plain.loss, rel=1e-5)
    torch.testing.assert_close(v, w, rtol=0, atol=tolerance)
    torch.testing.assert_close(u, z, rtol=0, atol=tolerance)


@compiled
def test_padding_of_rows_changes_nothing() -> None:
    v, u = vectors(False)
    padded = [padded_rows(WORDS, 20, torch.float64).copy_(one) for one in (v, u)]
    train_sentences(v, u, text(), options(), rate=0.1, seed=1)
    train_sentences(padded[0], padded[1], text(), options(), rate=0.1, seed=1)
    assert torch.equal(v, padded[0])
    assert torch.equal(u, padded[1])


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_the_same_seed_gives_the_same_bits(rate: float) -> None:
    results = []
    for seed in (1, 1, 2):
        v, u = vectors(False)
        pairs = train_sentences(v, u, text(), options(), rate=rate, seed=seed)
        results.append((pairs.loss, v.tolist()))
    assert results[0] == results[1]
    assert results[0][0] != results[2][0]
    assert (results[0][1] == vectors(False)[0].tolist()) == (rate == 0)


def test_windows_end_where_sentences_do() -> None:
    """A pair is counted for each of two neighbours within the window, and for none across an end."""
    words = np.arange(6, dtype=np.int32)
    whole = options(drawn_window=False, window=2)
    v, u = vectors(False)
    counts = []
    for starts in ([0, 6], [0, 3, 6], [0, 1, 6], [0, 1, 2, 3, 4, 5, 6], [0, 0, 6]):
        sentences = SentenceWords(words, np.array(starts, np.int64))
        counts.append(train_sentences(v, u, sentences, whole, rate=0.0, seed=0).count)
    assert counts == [18, 12, 14, 0, 18]


def test_words_are_drawn_in_proportion_to_their_weights() -> None:
    weights = np.asarray((1000 // np.arange(1, WORDS + 1)) ** 0.75, np.float64)
    weights[4] = 0
    table = noise_table(weights)
    own = table[:, 0] / 2.0**32
    probability = own / WORDS
    np.add.at(probability, table[:, 1], (1 - own) / WORDS)
    np.testing.assert_allclose(probability, weights / weights.sum(), atol=1e-9)


def test_the_sampled_loss_is_on_average_the_sum_over_the_noise() -> None:
    """E = Σ_pairs [-log σ(u_o · v_i) - k Σ_j P(j) log σ(-u_j · v_i)], j not o."""
    chosen = options(drawn_window=False)
    v, u = (one * 0.3 for one in vectors(False))
    sentences = text(4)
    weights = np.asarray((1000 // np.arange(1, WORDS + 1)) ** 0.75, np.float64)
    noise = torch.from_numpy(weights / weights.sum())
    expected = 0.0
    for first, after in zip(sentences.starts, sentences.starts[1:], strict=False):
        words = sentences.words[first:after].tolist()
        for o, target in enumerate(words):
            for i, word in enumerate(words):
                if i != o and abs(i - o) <= chosen.window:
                    products = u @ v[word]
                    drawn = noise.clone()
                    drawn[target] = 0
                    expected -= float(F.logsigmoid(products[target]))
                    expected -= chosen.negatives * float(drawn @ F.logsigmoid(-products))
    losses = [
        train_sentences(v, u, sentences, chosen, rate=0.0, seed=1000 * seed).loss
        for seed in range(400)
    ]
    error = np.std(losses) / len(losses) ** 0.5
    assert abs(np.mean(losses) - expected) < 4 * error
    assert error < 0.01 * expected


@pytest.mark.parametrize(("formula", "of_tenth"), [("paper", 0.1), ("program", 0.11)])
def test_frequent_words_are_read_in_part(formula: str, of_tenth: float) -> None:
    kept = kept_probabilities(np.array([100, 900, 0]), 1e-3, formula)  # type: ignore[arg-type]
    assert kept[0] == pytest.approx(of_tenth)
    assert kept[2] == 1
    chosen = options(
        kept=np.full(WORDS, 0.3, np.float32), window=1, drawn_window=False, negatives=1
    )
    words = np.tile(np.arange(WORDS, dtype=np.int32), 40)
    v, u = vectors(False)
    pairs = train_sentences(
        v, u, SentenceWords(words, np.array([0, len(words)])), chosen, rate=0.0, seed=0
    )
    read = pairs.count / 2 + 1
    assert read == pytest.approx(0.3 * len(words), abs=4 * (len(words) * 0.21) ** 0.5)


@compiled
def test_several_threads_read_the_same_pairs() -> None:
    """They draw the same, whichever thread has a sentence; only the order of the updates differs."""
    v, u = vectors(False)
    one, three = (
        train_sentences(v, u, text(), options(), rate=0.0, seed=3, threads=threads)
        for threads in (1, 3)
    )
    assert one.count == three.count
    assert one.loss == pytest.approx(three.loss, rel=1e-12)
