"""word2vec, fastText and GloVe beside gensim: words a second, and how well the vectors agree with people.

    python -m benchmarks.word_vectors TEXT [--similarity FOLDER] [--threads 2] [--rounds 3] [--epochs 5]
        [--seeds 3] [--model skip-gram cbow fasttext glove]

TEXT has a sentence on each line, its words between spaces. Both read the same words, with the same settings:
100 numbers, windows of 1 to 5 words, 5 words from the noise, every occurrence read (no subsampling), one
epoch for the speed; fastText is skip-gram with n-grams of 3 to 6 characters in 200,000 rows. gensim reads the
text from its fastest input, a list of lists of words in memory, with as many workers as we have threads; its
own time for counting words is left out, as ours is. gensim has no GloVe: ours (windows of 10 words, x_max 10)
is shown by itself, the counting of near words and an epoch of --epochs x 5 over them.

With --similarity all train for --epochs with each seed. Shown is the mean over the seeds of Spearman's
correlation for each file of the folder that has pairs, and of the share of right answers (3CosAdd) for each
that has analogies, with the interval over the pairs or analogies of one training of gensim (for glove: of
skip-gram). Needs `pip install gensim`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import report
from benchmarks.measuring import interleaved, machine
from seqloom.config import DataConfig
from seqloom.data.batching.cooccurrences import CellArray, build_cells
from seqloom.data.batching.corpus_store import CorpusStore, Totals
from seqloom.errors import DataError
from seqloom.evaluation.correlation import correlations
from seqloom.evaluation.intervals import wilson_interval
from seqloom.layers.compiled_word2vec import padded_rows, train_sentences
from seqloom.layers.glove import Cells, CountWeights, Factors, train_cells
from seqloom.layers.word2vec import (
    SentenceWords,
    WindowSampling,
    WordPieces,
    kept_probabilities,
    noise_table,
)
from seqloom.models.word_vectors.word2vec import Word2VecConfig
from seqloom.tasks.word_vectors.pieces import word_pieces
from seqloom.tasks.word_vectors.similarity_files import (
    AnalogyQuestion,
    ScoredPair,
    read_word_tests,
)
from seqloom.tasks.word_vectors.vector_space import Analogy, VectorSpace
from seqloom.text.special_tokens import SPECIAL_TOKENS

WIDTH, WINDOW, NEGATIVES = 100, 5, 5
PIECE = 100_000
BUCKETS = 200_000
RATES = {"skip-gram": 0.025, "cbow": 0.05, "fasttext": 0.025}
GLOVE_WINDOW, GLOVE_WEIGHTS = 10, CountWeights(10.0, 0.75)


class Text(NamedTuple):
    """The same words for both."""

    sentences: list[list[str]]
    words: list[str]
    """The vocabulary, the most frequent first."""
    ids: SentenceWords
    counts: NDArray[np.int64]


def read_text(path: str) -> Text:
    sentences = [line.split() for line in Path(path).read_text("utf-8").splitlines()]
    counts = Counter(word for one in sentences for word in one)
    words = [word for word, _ in counts.most_common()]
    rows = {word: row for row, word in enumerate(words)}
    ids = np.array([rows[word] for one in sentences for word in one], np.int32)
    starts = np.cumsum([0, *map(len, sentences)])
    return Text(
        sentences, words, SentenceWords(ids, starts), np.array([counts[one] for one in words])
    )


def pieces_of(text: Text, model: str) -> WordPieces | None:
    config = Word2VecConfig(
        vocabulary_size=len(text.words), buckets=BUCKETS if model == "fasttext" else 0
    )
    return word_pieces([word.encode() for word in text.words], config)


def ours(
    text: Text, model: str, pieces: WordPieces | None, epochs: int, seed: int, threads: int
) -> VectorSpace:
    torch.manual_seed(seed)
    buckets = 0 if pieces is None else BUCKETS
    v, u = padded_rows(len(text.words) + buckets, WIDTH), padded_rows(len(text.words), WIDTH)
    v.uniform_(-0.5 / WIDTH, 0.5 / WIDTH)
    options = WindowSampling(
        window=WINDOW,
        drawn_window=True,
        negatives=NEGATIVES,
        cbow=model == "cbow",
        kept=kept_probabilities(text.counts, 0, "program"),
        noise=noise_table(np.asarray(text.counts**0.75, np.float64)),
        pieces=pieces,
    )
    starts = text.ids.starts
    cuts = np.unique(np.searchsorted(starts, np.arange(0, starts[-1] + PIECE, PIECE)))
    cuts = np.append(cuts[cuts < len(starts) - 1], len(starts) - 1)
    steps = epochs * (len(cuts) - 1)
    for step in range(steps):
        first, after = cuts[step % (len(cuts) - 1) :][:2]
        piece = SentenceWords(
            text.ids.words[starts[first] : starts[after]], starts[first : after + 1] - starts[first]
        )
        rate = RATES[model] * (1 - step / steps)
        train_sentences(v, u, piece, options, rate=rate, seed=seed + (step << 32), threads=threads)
    if pieces is not None:
        rows, firsts = torch.from_numpy(pieces.rows).long(), torch.from_numpy(pieces.firsts[:-1])
        v = torch.nn.functional.embedding_bag(rows, v.contiguous(), firsts, mode="mean")
    return VectorSpace(text.words, v.numpy())


def glove_cells(text: Text, folder: str) -> CellArray:
    """Near words, counted anew."""
    marks = len(SPECIAL_TOKENS)
    corpus = CorpusStore(
        (text.ids.words + marks).astype(np.uint32),
        text.ids.starts,
        text.ids.starts[:-1],
        Totals(),
        Path(tempfile.mkdtemp(dir=folder)) / "corpus",
        ended=False,
    )
    return build_cells(corpus, len(text.words) + marks, GLOVE_WINDOW, lambda done: None)


def glove(
    text: Text, cells: CellArray, epochs: int, seed: int, threads: int
) -> tuple[VectorSpace, float]:
    """The vectors, and the mean seconds of an epoch."""
    torch.manual_seed(seed)
    marks = len(SPECIAL_TOKENS)
    shapes = ((len(text.words) + marks, WIDTH),) * 2 + ((len(text.words) + marks,),) * 2
    factors = Factors(*((torch.rand(shape) - 0.5) / WIDTH for shape in shapes))
    squares = Factors(*(torch.ones(shape) for shape in shapes))
    began = time.perf_counter()
    for epoch in range(epochs):
        for first in range(0, len(cells), PIECE):
            some = cells[first : first + PIECE]
            some = some[np.random.default_rng([seed, epoch, first]).permutation(len(some))]
            piece = Cells(
                *(np.ascontiguousarray(some[name]) for name in ("row", "column", "count"))
            )
            train_cells(factors, squares, piece, GLOVE_WEIGHTS, 0.05, threads)
    seconds = (time.perf_counter() - began) / epochs
    vectors = (factors.rows + factors.columns)[marks:].numpy()
    return VectorSpace(text.words, vectors), seconds


def glove_speed(text: Text, threads: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        cells = glove_cells(text, folder)
        counting = time.perf_counter() - began
        parts = [
            f"{len(text.ids.words) / counting:,.0f} words a second counted, {len(cells):,} cells"
        ]
        for number in (threads, 1):
            seconds = glove(text, cells, 2, 0, number)[1]
            parts.append(f"{len(cells) / seconds:,.0f} cells a second with {number} threads")
    return "glove: " + "; ".join(parts)


def gensim_model(text: Text, model: str, seed: int, threads: int) -> Any:
    from gensim.models import FastText, Word2Vec

    kind = partial(FastText, bucket=BUCKETS) if model == "fasttext" else Word2Vec
    made = kind(
        vector_size=WIDTH,
        window=WINDOW,
        negative=NEGATIVES,
        sg=int(model != "cbow"),
        min_count=1,
        sample=0,
        alpha=RATES[model],
        workers=threads,
        seed=seed,
    )
    made.build_vocab(corpus_iterable=text.sentences)
    return made


def gensims(text: Text, made: Any, epochs: int) -> VectorSpace:
    made.train(
        corpus_iterable=text.sentences,
        total_words=len(text.ids.words),
        total_examples=len(text.sentences),
        epochs=epochs,
    )
    return VectorSpace(made.wv.index_to_key, made.wv.vectors)


def speed(text: Text, model: str, rounds: int, threads: int) -> list[str]:
    peer, pieces = gensim_model(text, model, 0, threads), pieces_of(text, model)
    ways: dict[str, Callable[[], object]] = {
        "seqloom": partial(ours, text, model, pieces, 1, 0, threads),
        "seqloom, one thread": partial(ours, text, model, pieces, 1, 0, 1),
        "gensim": partial(gensims, text, peer, 1),
    }
    timing = interleaved(ways, rounds=rounds)
    words = len(text.ids.words)
    cells = [model]
    for way in ways:
        rate = f"{words / timing.median(way):,.0f}"
        ratio = timing.ratio(way, "gensim")
        cells.append(
            rate if way == "gensim" else f"{rate} ({ratio.median:.2f} ± {ratio.half_range:.2f})"
        )
    return cells


def agreement(space: VectorSpace, path: Path, resamples: int = 0) -> dict[str, float]:
    """The score of a file of pairs or of analogies; with `resamples` its 95 % interval too. Empty for other
    files, and where fewer than ten of its pairs have vectors."""
    try:
        pairs, questions = read_word_tests(str(path), DataConfig())
    except DataError:
        return {}
    return analogies(space, questions) if questions else spearman(space, pairs, resamples)


def spearman(space: VectorSpace, pairs: Sequence[ScoredPair], resamples: int) -> dict[str, float]:
    known = [one for one in pairs if {one.first.lower(), one.second.lower()} <= space.rows.keys()]
    if len(known) < 10:
        return {}
    cosines = [space.similarity(one.first.lower(), one.second.lower()) for one in known]
    found = correlations(np.array(cosines), np.array([one.score for one in known]), resamples)
    interval = {side: found.get(f"spearman_{side}", 0.0) for side in ("low", "high")}
    return {"score": found["spearman"], "known": len(known), **interval}


def analogies(space: VectorSpace, questions: Sequence[AnalogyQuestion]) -> dict[str, float]:
    asked, truth = [], []
    for question in questions:
        words = [word.lower() for word in (*question.words, question.answer)]
        if set(words) <= space.rows.keys():
            asked.append(Analogy(*words[:3]))
            truth.append(words[3])
    answers = space.answers(asked, "add")
    right = sum(answer == one for answer, one in zip(answers, truth, strict=True))
    low, high = wilson_interval(right, len(asked))
    share = right / max(len(asked), 1)
    return {"score": 100 * share, "known": len(asked), "low": 100 * low, "high": 100 * high}


def quality(
    text: Text, model: str, folder: str, epochs: int, seeds: int, threads: int
) -> list[list[str]]:
    if model == "glove":
        with tempfile.TemporaryDirectory() as place:
            cells = glove_cells(text, place)
            mine = [glove(text, cells, 5 * epochs, seed, threads)[0] for seed in range(seeds)]
    else:
        pieces = pieces_of(text, model)
        mine = [ours(text, model, pieces, epochs, seed, threads) for seed in range(seeds)]
    peers = [
        gensim_model(text, "skip-gram" if model == "glove" else model, seed, threads)
        for seed in range(seeds)
    ]
    theirs = [gensims(text, peer, epochs) for peer in peers]
    rows = []
    for path in sorted(Path(folder).glob("*.txt")):
        peer = agreement(theirs[0], path, 1000)
        if not peer:
            continue
        means = [
            statistics.fmean(agreement(space, path)["score"] for space in spaces)
            for spaces in (mine, theirs)
        ]
        interval = f"{peer['low']:.1f} to {peer['high']:.1f}"
        rows.append(
            [model, path.stem, f"{peer['known']}", *(f"{one:.1f}" for one in means), interval]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    parser.add_argument("--similarity")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--model", nargs="+", default=["skip-gram", "cbow"], choices=[*RATES, "glove"]
    )
    given = parser.parse_args()
    text = read_text(given.text)
    print(f"{machine()['cpu']}; {len(text.ids.words):,} words, {len(text.words):,} different ones")
    rows = [
        speed(text, model, given.rounds, given.threads) for model in given.model if model in RATES
    ]
    print(report.table(["words a second", "seqloom", "seqloom, one thread", "gensim"], rows))
    if "glove" in given.model:
        print(glove_speed(text, given.threads))
    if given.similarity:
        parts = [
            quality(text, model, given.similarity, given.epochs, given.seeds, given.threads)
            for model in given.model
        ]
        header = ["model", "file", "known", "seqloom", "gensim", "gensim's 95 %"]
        print(report.table(header, [row for part in parts for row in part]))


if __name__ == "__main__":
    main()
