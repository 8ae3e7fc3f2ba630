"""word2vec's pass against autograd, against its plain twin, and against what its draws should be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.layers.compiled_word2vec import padded_rows, train_sentences
from seqloom.layers.word2vec import (
    PlainPass,
    Random,
    SentencePieces,
    SentenceWords,
    Window,
    WindowSampling,
    WordPieces,
    kept_probabilities,
    noise_table,
)
from seqloom.native.library import library

WORDS, BUCKETS = 30, 50
compiled = pytest.mark.skipif(library() is None, reason="the compiled pass needs a C++ compiler")


def options(**changes: object) -> WindowSampling:
    counts = 1000 // np.arange(1, WORDS + 1)
    default = WindowSampling(
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


def vectors(tied: bool, width: int = 20, buckets: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    v, u = (
        torch.randn(rows, width, dtype=torch.float64, generator=generator)
        for rows in (WORDS + buckets, WORDS)
    )
    return (v, v) if tied else (v, u)


def word_pieces(seed: int = 0) -> WordPieces:
    """Of each word its own row and up to five of those after the vocabulary, some more than once."""
    random = np.random.default_rng(seed)
    rows = [
        [word, *(WORDS + random.integers(0, BUCKETS, random.integers(0, 6))).tolist()]
        for word in range(WORDS)
    ]
    firsts = np.cumsum([0, *map(len, rows)])
    return WordPieces(firsts, np.concatenate(rows).astype(np.int32))


def straight_through(rows: Tensor) -> Tensor:
    """The mean of some rows, whose gradient goes to each of them undivided."""
    total = rows.sum(dim=0)
    return rows.detach().mean(dim=0) + total - total.detach()


def losses(x: Tensor, own: Sequence[int], drawn: list[int], u: Tensor, softmax: bool) -> Tensor:
    if softmax:
        return F.cross_entropy(x @ u.T, torch.tensor(own), reduction="sum")
    total = -F.logsigmoid((x * u[list(own)]).sum(dim=1)).sum()
    for vector, true in zip(x, own, strict=True):
        for word in drawn:
            if word != true:
                total = total - F.logsigmoid(-(vector @ u[word]))
    return total


@pytest.mark.parametrize("kind", ["two", "tied", "pieces"])
@pytest.mark.parametrize("cbow", [False, True])
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("drawn", [[7, 9], [7, 7], [3, 9], []])
def test_a_step_is_the_gradient_of_its_loss(
    kind: str, cbow: bool, softmax: bool, drawn: list[int]
) -> None:
    """Also where a word is drawn twice, where a true word is drawn, and where a word is around itself."""
    words, rate = [4, 5, 3, 4, 3, 8], 0.1
    windows, targets = [[0, 1, 3, 4]], [3]
    if cbow:
        windows, targets = [*windows, [3, 4]], [3, 8]
    pieces = word_pieces() if kind == "pieces" else None
    v, u = vectors(kind == "tied", buckets=BUCKETS if pieces else 0)
    x_of, y_of = v.clone().requires_grad_(), u.clone().requires_grad_()
    y = x_of if kind == "tied" else y_of

    def rows(place: int) -> list[int]:
        return [words[place]] if pieces is None else pieces.of(words[place])

    read = windows if cbow else [[place] for place in windows[0]]
    x = torch.stack(
        [straight_through(x_of[[row for place in one for row in rows(place)]]) for one in read]
    )
    own = targets if cbow else targets * 4
    loss = losses(x, own, drawn, y, softmax)
    loss.backward()  # type: ignore[no-untyped-call]
    run = PlainPass(v, u, options(cbow=cbow, softmax=softmax, pieces=pieces), rate)
    sentence = SentencePieces(v, run.options, words)
    sentence.arrive(len(words))
    around = zip(windows, targets, strict=True)
    pairs = run.step([Window(sentence, places, word) for places, word in around], drawn)
    sentence.leave(len(words))
    assert pairs.loss == pytest.approx(loss.item())
    assert pairs.count == (2 if cbow else 4)
    for now, leaf in ((v, x_of), (u, y)):
        assert leaf.grad is not None
        torch.testing.assert_close(now, leaf.detach() - rate * leaf.grad, rtol=0, atol=1e-12)


@compiled
@pytest.mark.parametrize("kind", ["two", "tied", "pieces"])
@pytest.mark.parametrize("cbow", [False, True])
@pytest.mark.parametrize("drawn_window", [False, True])
@pytest.mark.parametrize("negatives", [1, 5, 7, 13])
@pytest.mark.parametrize("width", [1, 20, 33])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)], ids=str
)
def test_the_compiled_pass_is_the_plain_one(
    kind: str,
    cbow: bool,
    drawn_window: bool,
    negatives: int,
    width: int,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    kept = np.linspace(0.2, 1.5, WORDS, dtype=np.float32)
    chosen = options(cbow=cbow, drawn_window=drawn_window, negatives=negatives, kept=kept)
    tied, buckets = kind == "tied", BUCKETS if kind == "pieces" else 0
    if buckets:
        chosen = replace(chosen, pieces=word_pieces())
    start = [one.to(dtype) / width**0.5 for one in vectors(tied, width, buckets)]
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


def test_draws_follow_the_weights() -> None:
    """By a chi-square test of 40,000 draws with 29 degrees of freedom: 58.3 is passed once in a thousand."""
    weights = np.asarray((1000 // np.arange(1, WORDS + 1)) ** 0.75, np.float64)
    run, random = PlainPass(*vectors(False), options(), 0.0), Random(7)
    draws = np.array([run.draw(random) for _ in range(8000)]).ravel()
    expected = len(draws) * weights / weights.sum()
    counts = np.bincount(draws, minlength=WORDS)
    assert ((counts - expected) ** 2 / expected).sum() < 58.3
    even = len(draws) / WORDS
    assert ((counts - even) ** 2 / even).sum() > 1000


def test_the_full_softmax_is_minus_log_p_of_each_target() -> None:
    chosen = options(drawn_window=False, softmax=True)
    v, u = vectors(False)
    sentences, total = text(4), 0.0
    log_p = (v @ u.T).log_softmax(dim=1)
    for first, after in zip(sentences.starts, sentences.starts[1:], strict=False):
        words = sentences.words[first:after].tolist()
        for o, target in enumerate(words):
            for i, word in enumerate(words):
                if i != o and abs(i - o) <= chosen.window:
                    total -= float(log_p[word, target])
    assert train_sentences(v, u, sentences, chosen, rate=0.0, seed=0).loss == pytest.approx(total)


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
@pytest.mark.parametrize("cbow", [False, True])
def test_several_threads_read_the_same_pairs(cbow: bool) -> None:
    """Whichever thread has a sentence has the same windows; what it draws from the noise differs."""
    v, u = vectors(False)
    one, three = (
        train_sentences(v, u, text(200), options(cbow=cbow), rate=0.0, seed=3, threads=threads)
        for threads in (1, 3)
    )
    assert one.count == three.count
    assert one.loss == pytest.approx(three.loss, rel=0.05)


def shares(sentences: SentenceWords, threads: int) -> Iterator[tuple[int, SentenceWords]]:
    """The first sentence of each thread, and its sentences."""
    count = len(sentences.starts) - 1
    for rank in range(threads):
        first, end = count * rank // threads, count * (rank + 1) // threads
        starts = sentences.starts[first : end + 1]
        words = sentences.words[starts[0] : starts[-1]]
        yield first, SentenceWords(words, starts - starts[0])


@compiled
@pytest.mark.parametrize("kind", ["two tables", "tied", "pieces"])
@pytest.mark.parametrize("cbow", [False, True])
@pytest.mark.parametrize("threads", [2, 3])
def test_ordered_updates_add_up_what_each_thread_has_added(
    kind: str, cbow: bool, threads: int
) -> None:
    """In a round that has all of the text: v + Σ (v of each thread's share - v)."""
    buckets = BUCKETS if kind == "pieces" else 0
    chosen = options(cbow=cbow, pieces=word_pieces() if buckets else None)
    matrices = vectors(kind == "tied", buckets=buckets)
    expected = [matrix.clone() for matrix in matrices]
    for first, share in shares(text(40), threads):
        alone = [matrix.clone() for matrix in matrices]
        if kind == "tied":
            alone[1] = alone[0]
        PlainPass(alone[0], alone[1], chosen, 0.1).over(share, 5 + first)
        for whole, own, before in zip(expected, alone, matrices, strict=True):
            whole += own - before
    train_sentences(*matrices, text(40), chosen, rate=0.1, seed=5, threads=threads, ordered=True)
    for found, whole in zip(matrices, expected, strict=True):
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)


@compiled
@pytest.mark.parametrize("kind", ["two tables", "tied", "pieces"])
@pytest.mark.parametrize("cbow", [False, True])
def test_ordered_updates_of_threads_end_in_the_same_bits(kind: str, cbow: bool) -> None:
    """Over many rounds; without the order they end in others, mostly."""
    buckets = BUCKETS if kind == "pieces" else 0
    chosen = options(cbow=cbow, pieces=word_pieces() if buckets else None)
    results = []
    for _ in range(4):
        v, u = vectors(kind == "tied", buckets=buckets)
        train_sentences(v, u, text(3000), chosen, rate=0.01, seed=5, threads=3, ordered=True)
        results.append((v, u))
    for v, u in results[1:]:
        assert torch.equal(v, results[0][0])
        assert torch.equal(u, results[0][1])


@pytest.mark.parametrize("sentences", [0, 1, 3, 20])
def test_every_word_of_every_stream_is_a_target_once(sentences: int) -> None:
    """In CBOW, also where there are fewer sentences than streams."""
    v, u = vectors(False)
    words = (
        text(sentences)
        if sentences
        else SentenceWords(np.zeros(0, np.int32), np.zeros(1, np.int64))
    )
    lengths = np.diff(words.starts)
    pairs = train_sentences(v, u, words, options(cbow=True), rate=0.0, seed=0)
    assert pairs.count == lengths[lengths > 1].sum()
