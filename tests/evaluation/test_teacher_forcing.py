"""Teacher-forced sums: equal to a plain computation, whatever the batches."""

from __future__ import annotations

import math

import pytest
import torch

from seqloom.data.batching.pair_batches import TranslationBatch, pair_batch
from seqloom.evaluation import teacher_forcing
from seqloom.evaluation.teacher_forcing import TeacherForcingScore, teacher_forcing_score
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig

PAIRS = [
    ([16, 17, 18], [19, 16]),
    ([20], [17, 18, 19, 20, 16]),
    ([16, 16], []),
    ([18, 19, 20, 17], [16, 20, 18]),
]


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        vocabulary_size=21,
        embedding_width=6,
        encoder_width=5,
        width=7,
        attention_width=4,
        readout_width=6,
    )
    return Seq2Seq(config).double().eval()


def batch_of(*rows: int) -> TranslationBatch:
    return pair_batch([PAIRS[i][0] for i in rows], [PAIRS[i][1] for i in rows])


def test_sums_equal_a_plain_computation(model: Seq2Seq) -> None:
    total, correct, count = 0.0, 0, 0
    for row in range(len(PAIRS)):
        batch = batch_of(row)
        logits, _ = model(batch.inputs, model.encode(batch.source))
        log_p = logits[0].detach().log_softmax(-1)
        for step, target in enumerate(batch.targets[0].tolist()):
            total -= float(log_p[step, target])
            correct += int(log_p[step].argmax()) == target
            count += 1
    found = teacher_forcing_score(model, [batch_of(0, 1, 2, 3)])
    assert (found.correct, found.count) == (correct, count)
    assert found.total == pytest.approx(total, rel=1e-6)  # log-softmax is in float32 by convention


@pytest.mark.parametrize("parts", [[(0, 1), (2, 3)], [(3,), (1,), (0, 2)], [(2, 1, 0, 3)]])
@pytest.mark.parametrize("chunk", [1, 3, 1024])
def test_batches_and_chunks_change_nothing(
    model: Seq2Seq, parts: list[tuple[int, ...]], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = teacher_forcing_score(model, [batch_of(0, 1, 2, 3)])
    monkeypatch.setattr(teacher_forcing, "CHUNK", chunk)
    found = teacher_forcing_score(model, [batch_of(*rows) for rows in parts])
    assert (found.correct, found.count) == (whole.correct, whole.count)
    assert found.total == pytest.approx(whole.total, rel=1e-6)


def test_perplexity_is_the_exponential_of_the_mean() -> None:
    taught = TeacherForcingScore(total=8 * math.log(5), correct=2, count=8)
    assert taught.perplexity == pytest.approx(5)
    assert taught.token_accuracy == 25
    assert TeacherForcingScore(total=1e6, correct=0, count=1).perplexity == math.inf
