"""The n-gram model: beside a plain implementation of the paper, and the laws of a language model."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seqloom.errors import DataError, UsageError
from seqloom.models.ngrams.ngram import ABOUT, SIZES, Ngram, NgramConfig
from seqloom.models.ngrams.ngram_counts import FALLBACK, PLAIN_FALLBACK
from seqloom.protocols import TargetScorer, select_rows
from seqloom.shapes import IGNORE

pytestmark = pytest.mark.usefixtures("one_thread")

PAD, BOS, EOS, UNK, FIRST = 0, 1, 2, 3, 16
VOCABULARY = FIRST + 9
"""The last word never occurs."""
PRUNE: list[tuple[int, ...]] = [(), (0, 0, 1), (0, 1, 1, 2)]
KINDS = ("modified_kneser_ney", "kneser_ney")
Documents = list[list[int]]


def documents(seed: int, count: int = 60) -> Documents:
    """Short ones with frequent and rare words, an empty one and <unk> among them."""
    draw = np.random.default_rng(seed)
    words = np.array([UNK, *range(FIRST, VOCABULARY - 1)])
    share = 1 / np.arange(1, len(words) + 1)
    return [
        [],
        *(
            draw.choice(words, draw.integers(0, 9), p=share / share.sum()).tolist()
            for _ in range(count)
        ),
    ]


def stream(texts: Documents) -> np.ndarray[Any, Any]:
    return np.array([i for text in texts for i in [*text, EOS]], np.uint16)


def fitted(
    order: int,
    prune: tuple[int, ...] = (),
    seed: int = 0,
    smoothing: str = "modified_kneser_ney",
) -> Ngram:
    config = NgramConfig(
        vocabulary_size=VOCABULARY, order=order, prune=prune[:order], smoothing=smoothing
    )
    return Ngram.fit(config, stream(documents(seed))).to(torch.float64)


class Reference:
    """Kneser and Ney 1995, Chen and Goodman 1999, with dictionaries, in float64."""

    def __init__(
        self,
        texts: Documents,
        order: int,
        prune: tuple[int, ...],
        smoothing: str = "modified_kneser_ney",
    ) -> None:
        self.order = order
        raw: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order + 1)]
        for text in texts:
            tokens = (BOS, *text, EOS)
            for n in range(1, order + 1):
                raw[n].update(tokens[i : i + n] for i in range(len(tokens) - n + 1))
        self.adjusted = [Counter[tuple[int, ...]]() for _ in range(order + 1)]
        for n in range(1, order + 1):
            before: dict[tuple[int, ...], set[int]] = defaultdict(set)
            for gram in raw[n + 1] if n < order else ():
                before[gram[1:]].add(gram[0])
            for gram, times in raw[n].items():
                if gram != (BOS,):
                    self.adjusted[n][gram] = (
                        times if n == order or gram[0] == BOS else len(before[gram])
                    )
        limits = [prune[min(n, len(prune)) - 1] if prune and n > 1 else 0 for n in range(order + 1)]
        self.kept = [
            {gram for gram in self.adjusted[n] if raw[n][gram] > limits[n]}
            for n in range(order + 1)
        ]
        discounts_of = self.one_discount if smoothing == "kneser_ney" else self.discounts_of
        self.discounts = [discounts_of(self.adjusted[n]) for n in range(order + 1)]

    @staticmethod
    def one_discount(adjusted: Counter[tuple[int, ...]]) -> tuple[float, ...]:
        n = Counter(adjusted.values())
        one = n[1] / (n[1] + 2 * n[2]) if n[1] and n[2] else PLAIN_FALLBACK
        return (0, one, one, one)

    @staticmethod
    def discounts_of(adjusted: Counter[tuple[int, ...]]) -> tuple[float, ...]:
        n = Counter(adjusted.values())
        if not (n[1] and n[2] and n[3]):
            return (0, *FALLBACK)
        y = n[1] / (n[1] + 2 * n[2])
        found = (1 - 2 * y * n[2] / n[1], 2 - 3 * y * n[3] / n[2], 3 - 4 * y * n[4] / n[3])
        return (0, *found) if min(found) > 0 else (0, *FALLBACK)

    def probability(self, word: int, history: tuple[int, ...]) -> float:
        """p(word | history), the history without what is before <s> and at most order-1 words."""
        n = len(history) + 1
        following = {gram: a for gram, a in self.adjusted[n].items() if gram[:-1] == history}
        total = sum(following.values())
        lower = self.probability(word, history[1:]) if history else 1 / (VOCABULARY - FIRST + 2)
        if not total:
            return lower
        gram = (*history, word)
        a = following[gram] if gram in self.kept[n] else 0
        given = sum(
            self.discounts[n][min(a, 3)] if gram in self.kept[n] else a
            for gram, a in following.items()
        )
        return (a - self.discounts[n][min(a, 3)]) / total + given / total * lower


PREDICTED = [EOS, UNK, *range(FIRST, VOCABULARY)]
NEVER = [i for i in range(VOCABULARY) if i not in PREDICTED]
HISTORIES = [
    (BOS,),
    (BOS, FIRST),
    (FIRST, FIRST + 1),
    (UNK,),
    (VOCABULARY - 1,),
    (BOS, UNK, FIRST, FIRST + 1),
    (FIRST,) * 4,
]


def histories(seed: int, count: int = 20) -> list[tuple[int, ...]]:
    """Some chosen, some drawn at random, some that occur."""
    draw = np.random.default_rng(seed)
    drawn = [
        tuple(draw.integers(FIRST, VOCABULARY, draw.integers(1, 6)).tolist()) for _ in range(count)
    ]
    seen = [(BOS, *text[: draw.integers(0, 6)]) for text in documents(seed, count)]
    return [*HISTORIES, *drawn, *seen]


def packed(seed: int, rows: int = 3, steps: int = 12) -> tuple[Tensor, Tensor]:
    """Tokens and targets `(rows, steps)`; <s> anywhere, words that do not occur, targets that are IGNORE or
    never predicted."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(FIRST, VOCABULARY, (rows, steps), generator=draw)
    tokens[torch.rand(rows, steps, generator=draw) < 0.2] = BOS
    tokens[torch.rand(rows, steps, generator=draw) < 0.1] = UNK
    targets = tokens.roll(-1, dims=1)
    targets[targets == BOS] = EOS
    # not what the row goes on with
    targets[torch.rand(rows, steps, generator=draw) < 0.2] = FIRST + 2
    targets[0, 1], targets[1, 2], targets[2, 3] = IGNORE, PAD, BOS
    return tokens, targets


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("prune", PRUNE, ids=str)
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("smoothing", KINDS)
def test_it_is_the_model_of_the_papers(smoothing: str, order: int, prune: tuple[int, ...]) -> None:
    model = fitted(order, prune, smoothing=smoothing)
    reference = Reference(documents(0), order, prune[:order], smoothing)
    for history in histories(0):
        cut = history[len(history) - min(len(history), order - 1) :]
        expected = torch.tensor(
            [reference.probability(word, cut) for word in PREDICTED], dtype=torch.float64
        )
        logits, _ = model(torch.tensor([history]), None)
        torch.testing.assert_close(logits[0, -1, PREDICTED].exp(), expected, rtol=1e-5, atol=0)


def test_the_corpus_estimates_discounts_and_falls_back() -> None:
    """Else the test above would see one way only."""
    plain = [Reference(documents(0), 5, (), "kneser_ney").discounts[n][1] for n in range(1, 6)]
    assert len(set(plain)) > 2
    assert PLAIN_FALLBACK in plain
    own = Reference(documents(0), 3, ()).discounts[1:]
    assert any(found != (0, *FALLBACK) for found in own)
    assert any(
        found == (0, *FALLBACK)
        for order in (4, 5)
        for found in Reference(documents(0), order, ()).discounts[1:]
    )


@pytest.mark.parametrize("prune", PRUNE, ids=str)
@pytest.mark.parametrize(
    ("order", "smoothing"),
    [(1, KINDS[0]), (2, KINDS[0]), (3, KINDS[1]), (5, KINDS[0]), (5, KINDS[1])],
)
def test_every_history_has_a_distribution(
    order: int, smoothing: str, prune: tuple[int, ...]
) -> None:
    model = fitted(order, prune, smoothing=smoothing)
    for history in histories(1):
        log_p = model(torch.tensor([history]), None)[0][0, -1]
        assert bool(torch.isfinite(log_p[PREDICTED]).all())
        assert bool((log_p[NEVER] == -torch.inf).all())
        assert float(log_p.exp().sum()) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("prune", PRUNE, ids=str)
@pytest.mark.parametrize("order", [1, 2, 5])
def test_log_probs_are_what_the_call_gives(order: int, prune: tuple[int, ...]) -> None:
    model = fitted(order, prune)
    assert isinstance(model, TargetScorer)
    tokens, targets = packed(0)
    logits, after = model(tokens, None)
    log_p, after_too = model.log_probs(tokens, targets, None)
    trained = targets != IGNORE
    close(log_p[trained], logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0][trained])
    assert bool((log_p[~trained] == 0).all())
    assert torch.equal(after, after_too)


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("pieces", [(1,) * 12, (5, 7), (2, 9, 1)])
def test_reading_in_pieces_is_reading_at_once(order: int, pieces: tuple[int, ...]) -> None:
    model = fitted(order)
    tokens, targets = packed(1)
    logits, after = model(tokens, None)
    log_p, _ = model.log_probs(tokens, targets, None)
    state, state_too, found, found_too = None, None, [], []
    ends = np.cumsum((0, *pieces)).tolist()
    for begin, end in itertools.pairwise(ends):
        part, state = model(tokens[:, begin:end], state)
        part_too, state_too = model.log_probs(
            tokens[:, begin:end], targets[:, begin:end], state_too
        )
        found.append(part)
        found_too.append(part_too)
    close(torch.cat(found, dim=1), logits)
    close(torch.cat(found_too, dim=1), log_p)
    assert state is not None
    assert torch.equal(state, after)
    assert after.shape == (3, order - 1)


@pytest.mark.parametrize("order", [1, 3, 5])
def test_padding_is_a_step_that_does_not_happen(order: int) -> None:
    model = fitted(order)
    tokens, targets = packed(2)
    # 12 of each row
    real = (
        torch.rand(3, 30, generator=torch.Generator().manual_seed(0)).argsort(dim=1).argsort(dim=1)
        < 12
    )
    # padding anywhere, right, left
    real[1], real[2] = (
        torch.arange(30) < 12,
        torch.arange(30) >= 18,
    )
    padded, padded_targets = torch.full((3, 30), PAD), torch.full((3, 30), IGNORE)
    padded[real], padded_targets[real] = tokens.flatten(), targets.flatten()
    read = model(tokens[:, :4], None)[1]
    for state in (None, read):
        (logits, after), (log_p, _) = model(tokens, state), model.log_probs(tokens, targets, state)
        (found, found_after), (found_too, _) = (
            model(padded, state),
            model.log_probs(padded, padded_targets, state),
        )
        close(found[real].view(3, 12, -1), logits)
        close(found_too[real].view(3, 12), log_p)
        assert torch.equal(found_after, after)
    nothing = torch.full((3, 2), PAD)
    assert torch.equal(model(nothing, read)[1], read)
    assert bool((model.log_probs(nothing, nothing, read)[0] == 0).all())


@pytest.mark.parametrize("order", [1, 3, 5])
def test_a_start_within_a_row_begins_a_document(order: int) -> None:
    model = fitted(order)
    row = torch.tensor([[FIRST, FIRST + 1, BOS, FIRST, FIRST, BOS, BOS, FIRST + 1]])
    logits, state = model(row, None)
    close(
        logits,
        torch.cat(
            [model(part, None)[0] for part in (row[:, :2], row[:, 2:5], row[:, 5:6], row[:, 6:])],
            dim=1,
        ),
    )
    close(
        model(torch.tensor([[BOS, FIRST]]), state)[0], model(torch.tensor([[BOS, FIRST]]), None)[0]
    )


def test_a_row_is_what_it_is_alone() -> None:
    model = fitted(4)
    tokens, targets = packed(3)
    (logits, state), (log_p, _) = model(tokens, None), model.log_probs(tokens, targets, None)
    for row in range(3):
        alone, state_alone = model(tokens[row : row + 1], None)
        close(alone[0], logits[row])
        close(
            model.log_probs(tokens[row : row + 1], targets[row : row + 1], None)[0][0], log_p[row]
        )
        assert torch.equal(state_alone[0], state[row])
    swapped = torch.tensor([2, 0, 0])
    following = torch.tensor([[FIRST]] * 3)
    close(model(following, select_rows(state, swapped))[0], model(following, state)[0][swapped])


def test_weights_are_all_there_is() -> None:
    model, tokens = fitted(3), packed(4)
    expected = model.log_probs(*tokens, None)[0]
    config = model.config
    with torch.device("meta"):
        assert {name: tensor.shape for name, tensor in Ngram(config).state_dict().items()} == {
            name: tensor.shape for name, tensor in model.state_dict().items()
        }
    assert all(bool(torch.isfinite(tensor).all()) for tensor in model.state_dict().values())
    renamed = np.where(
        stream(documents(0)) == FIRST,
        FIRST + 1,
        np.where(stream(documents(0)) == FIRST + 1, FIRST, stream(documents(0))),
    )
    other = Ngram.fit(NgramConfig(vocabulary_size=VOCABULARY, order=3), renamed).to(torch.float64)
    assert other.config == config
    # the tables of other keys exist now
    assert not torch.equal(other.log_probs(*tokens, None)[0], expected)
    other.load_state_dict(model.state_dict())
    close(other.log_probs(*tokens, None)[0], expected)


def test_an_untrained_model_says_so_little_but_has_its_shapes() -> None:
    model = Ngram(NgramConfig(vocabulary_size=VOCABULARY, order=3))
    logits, state = model(torch.tensor([[BOS, FIRST]]), None)
    assert logits.shape == (1, 2, VOCABULARY)
    assert state.tolist() == [[BOS, FIRST]]


def test_documents_may_be_shorter_than_the_order() -> None:
    model = Ngram.fit(
        NgramConfig(vocabulary_size=VOCABULARY, order=5), np.array([FIRST, EOS, FIRST, EOS])
    )
    assert model.config.sizes == (VOCABULARY, 2, 1, 0, 0)
    assert float(model(torch.tensor([[BOS, FIRST, FIRST]]), None)[0].exp().sum()) == pytest.approx(
        3, abs=1e-5
    )
    # cut off within a document
    cut = Ngram.fit(NgramConfig(vocabulary_size=VOCABULARY, order=2), np.array([FIRST, EOS, FIRST]))
    assert cut.config.sizes == (VOCABULARY, 2)


def test_pruning_keeps_what_occurs_more_often() -> None:
    whole, pruned = (
        Ngram.fit(NgramConfig(vocabulary_size=VOCABULARY, order=4, prune=p), stream(documents(5)))
        for p in ((), (0, 0, 1))
    )
    assert pruned.config.sizes[:2] == whole.config.sizes[:2]
    counts = [Counter[tuple[int, ...]]() for _ in range(5)]
    for text in documents(5):
        tokens = (BOS, *text, EOS)
        for n in (3, 4):
            counts[n].update(tokens[i : i + n] for i in range(len(tokens) - n + 1))
    for n in (3, 4):
        assert whole.config.sizes[n - 1] == len(counts[n])
        assert pruned.config.sizes[n - 1] == sum(times > 1 for times in counts[n].values())


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "not empty"),
        ([[FIRST]], "in a row"),
        ([FIRST, VOCABULARY], "words, <unk> or </s>"),
        ([FIRST, BOS], "words, <unk> or </s>"),
        ([-1], "-1"),
    ],
)
def test_a_corpus_that_is_none_is_refused(ids: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Ngram.fit(NgramConfig(vocabulary_size=VOCABULARY), np.array(ids, np.int64))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"order": 0}, "model.order"),
        ({"vocabulary_size": 3}, "model.vocabulary_size"),
        ({"prune": (1, 1)}, "model.prune must begin with 0"),
        ({"prune": (0, 2, 1)}, "never fall"),
        ({"order": 2, "prune": (0, 0, 1)}, "at most one value"),
        ({"sizes": (VOCABULARY, 3)}, "model.sizes"),
        ({"pad_id": 5}, "model.pad_id"),
        (
            {"smoothing": "laplace"},
            "model.smoothing must be one of modified_kneser_ney, kneser_ney",
        ),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        NgramConfig(**{"vocabulary_size": VOCABULARY, **fields})


def test_every_size_can_be_had() -> None:
    assert SIZES.keys() == ABOUT.keys()
    for size in SIZES.values():
        assert NgramConfig(vocabulary_size=VOCABULARY, **size).order >= 1


def test_a_stored_corpus_is_read_where_it_is(tmp_path: Any) -> None:
    ids = stream(documents(0))
    ids.tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", np.uint16, "r")
    model = Ngram.fit(NgramConfig(vocabulary_size=VOCABULARY, order=3), mapped)
    for name, tensor in fitted(3).float().state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
