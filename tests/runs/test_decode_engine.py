"""`decode.engine`: torch never makes a compiled step, and compiled is refused where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.runs.test_quantised_weights import SIZE, compiled, gpt, recurrent, run_of
from torch import Tensor, nn

from seqloom.config import DecodeConfig
from seqloom.errors import UsageError
from seqloom.layers.recurrent.native_step import NativeRecurrentStep
from seqloom.layers.transformer.native_step import NativeStep
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from seqloom.models.t5 import T5, T5Config
from seqloom.models.transformer import Transformer, TransformerConfig
from seqloom.packed_weights import PackedWeights
from seqloom.protocols import next_log_probs, read_source

SMALL: dict[str, Any] = {"vocabulary_size": SIZE, "width": 16}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt": gpt,
    "recurrent_lm": recurrent,
    "seq2seq": lambda: Seq2Seq(Seq2SeqConfig(**SMALL)).eval(),
    "transformer": lambda: Transformer(TransformerConfig(**SMALL, heads=2)).eval(),
    "t5": lambda: T5(T5Config(**SMALL, heads=2, head_width=8)).eval(),
}


def steps(model: Any) -> Tensor:
    """Log-probabilities after each of three tokens, as a search asks for them."""
    found = []
    with torch.inference_mode(), PackedWeights():
        state = read_source(model, torch.tensor([[1, 7, 9]]))
        for token in (4, 5, 6):
            following, state = next_log_probs(model, torch.tensor([[token]]), state)
            found.append(following.log_probs)
    return torch.cat(found)


@compiled
@pytest.mark.parametrize("family", MODELS)
def test_torch_makes_no_compiled_step(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    run = run_of(MODELS[family]())
    expected = steps(run.decoder(run.decode_settings({"engine": "compiled"})))
    made: list[object] = []
    for kind in (NativeStep, NativeRecurrentStep):
        monkeypatch.setattr(kind, "__init__", lambda self, *given: made.append(self))
    torch.testing.assert_close(
        steps(run.decoder(run.decode_settings({"engine": "torch"}))), expected
    )
    assert not made


@compiled
@pytest.mark.parametrize(
    ("model", "changes", "reason"),
    [
        (
            nn.Linear(1, 1),
            {"engine": "compiled"},
            "only gpt, recurrent_lm, seq2seq, transformer, t5 have",
        ),
        (
            nn.Linear(1, 1),
            {"engine": "torch"},
            "only gpt, recurrent_lm, seq2seq, transformer, t5 have",
        ),
        (recurrent(normalisation="layer"), {"engine": "compiled"}, "its layers are normalised"),
        (gpt(), {"engine": "torch", "weights": "int8"}, "decode.weights=int8 needs the compiled"),
    ],
)
def test_what_cannot_be_is_refused(model: nn.Module, changes: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=f"engine cannot be {changes['engine']} here: .*{reason}"):
        run_of(model).decode_settings(changes)


def test_by_default_a_model_decides_by_itself() -> None:
    model = gpt()
    run = run_of(model)
    assert DecodeConfig().engine == "auto"
    assert run.decoder(run.decode_settings({})) is model
