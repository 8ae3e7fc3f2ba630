"""The likeliest tokens of the compiled call are those of the log-probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from seqloom.decoding.logits_processors import forbid, most_likely
from seqloom.layers.outputs import likeliest as module
from seqloom.layers.outputs.softmax import FullOutput
from seqloom.native.library import library
from seqloom.packed_weights import PackedWeights
from seqloom.protocols import NextLogProbs, WantedTokens

pytestmark = pytest.mark.skipif(
    library() is None, reason="the compiled call needs a C++ compiler when the project is installed"
)
WIDTH = 20


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "threads_for", lambda _: request.param)
    return int(request.param)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def output_of(vocabulary: int, suppressed: tuple[int, ...] = (), bias: bool = True) -> FullOutput:
    output = FullOutput(WIDTH, vocabulary, bias=bias, suppressed=suppressed)
    with torch.no_grad():
        output.weight.copy_(drawn(vocabulary, WIDTH, seed=1))
        if output.bias is not None:
            output.bias.copy_(drawn(vocabulary, seed=2))
    return output


def found(output: FullOutput, hidden: Tensor, wanted: WantedTokens) -> NextLogProbs:
    with torch.inference_mode(), PackedWeights():
        answer = output.likeliest(hidden, wanted)
    assert answer is not None
    assert answer.ids is not None
    return answer


@pytest.mark.parametrize("vocabulary", [3, 128, 1000])
@pytest.mark.parametrize("count", [1, 4, 50])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_they_are_those_of_the_log_probabilities(
    kind: str, threads: int, vocabulary: int, count: int, rows: int
) -> None:
    output, hidden = output_of(vocabulary, (0, vocabulary - 1), bias=rows > 1), drawn(rows, WIDTH)
    forbidden = (1, 2) if vocabulary > 3 else ()
    log_probs, ids = found(output, hidden, WantedTokens(count, forbidden))
    assert ids is not None
    with torch.no_grad():
        everything = output.logits(hidden).log_softmax(dim=-1)
    everything[:, [*forbidden]] = -math.inf
    best, expected = most_likely(everything, min(count, vocabulary))
    possible = log_probs > -math.inf
    assert torch.equal(possible.sum(dim=1), (best > -math.inf).sum(dim=1))
    for row in range(rows):
        assert ids[row][possible[row]].tolist() == sorted(
            expected[row][best[row] > -math.inf].tolist()
        )
    where = everything.gather(1, ids)
    torch.testing.assert_close(log_probs[possible], where[possible], rtol=1e-5, atol=1e-5)


def test_of_equals_the_first_are_taken(kind: str, threads: int) -> None:
    output = output_of(1000, bias=False)
    with torch.no_grad():
        output.weight[:] = output.weight[500]
    assert found(output, drawn(2, WIDTH), WantedTokens(3, (1,))).ids.tolist() == [[0, 2, 3]] * 2  # type: ignore[union-attr]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_model_is_not_hidden(kind: str, threads: int, broken: float) -> None:
    output = output_of(1000)
    with torch.no_grad():
        output.bias[700] = broken  # type: ignore[index]
    assert found(output, drawn(2, WIDTH), WantedTokens(2)).log_probs.isnan().all()


def test_where_it_cannot_be_logits_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    output, hidden, wanted = output_of(50), drawn(2, WIDTH), WantedTokens(1)
    with torch.no_grad():
        assert output.likeliest(hidden, wanted) is None  # weights may change
        with PackedWeights():
            assert output.likeliest(hidden.double(), wanted) is None
    with PackedWeights():
        assert output.likeliest(hidden, wanted) is None  # with gradients


def test_forbidden_ids_keep_their_share() -> None:
    output, hidden = output_of(50), drawn(2, WIDTH)
    with torch.no_grad():
        everything = output.logits(hidden).log_softmax(dim=-1)
    first = everything.argmax(dim=1)
    log_probs, ids = found(output, hidden, WantedTokens(1, tuple(first.tolist())))
    assert ids is not None
    expected = forbid(first.tolist())(None, everything)  # type: ignore[arg-type]
    torch.testing.assert_close(log_probs[:, 0], expected.amax(dim=1), rtol=1e-5, atol=1e-5)
    assert ids[:, 0].tolist() == expected.argmax(dim=1).tolist()
