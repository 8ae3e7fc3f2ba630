"""T5: equations written out, buckets by the paper's rule in whole numbers, and what each choice changes."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from tests.layers.transformer.test_positions import buckets_by_rule
from tests.models.equations import (
    Bias,
    attention,
    causal,
    close,
    cross_attention,
    different,
    drawn,
    every,
    feed_forward,
    rms_norm,
)
from torch import Tensor, nn

from seqloom.errors import UsageError
from seqloom.explaining.studies.attention_maps import attention_maps
from seqloom.layers.transformer.positions import distance_buckets
from seqloom.models.t5 import ABOUT, SIZES, T5, T5Config
from seqloom.protocols import NeuralDecodable

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = T5Config(
    vocabulary_size=9,
    width=6,
    encoder_layers=2,
    decoder_layers=2,
    heads=2,
    feed_forward_width=5,
    buckets=4,
    furthest=5,
    dropout=0.0,
)
V11 = {"gated": True, "activation": "gelu-tanh", "tie_output": False, "scale_output": False}
KINDS: dict[str, dict[str, Any]] = {
    "v1.0": {},
    "v1.1": {**V11, "head_width": 4},
    "one head of 5": {
        "heads": 1,
        "head_width": 5,
        "norm_epsilon": 0.3,
        "encoder_layers": 1,
        "decoder_layers": 3,
    },
    "many buckets": {"buckets": 32, "furthest": 128, "gated": True, "activation": "silu"},
    "tied, not scaled": {"scale_output": False, "activation": "gelu"},
}
SOURCE, TARGET = [5, 3, 8, 4, 1, 7, 7, 2], [2, 6, 6, 7, 1, 3]


def made(**changes: Any) -> T5:
    model: T5 = drawn(T5(replace(TINY, **changes)))
    return model


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> T5:
    return made(**KINDS[request.param])


def bias_of(table: Tensor, config: T5Config, *, both_ways: bool) -> Bias:
    """What is added to the score of a head and a distance."""

    def bias(head: int, distance: int) -> float:
        bucket = buckets_by_rule(
            distance, config.buckets, config.furthest, bidirectional=both_ways
        )[-1]
        return float(table[bucket, head])

    return bias


def written_out(model: T5, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
    """Logits `(steps, vocabulary)`, and where each head looks at the source `(layers, heads, steps,
    source)`."""
    c, looks = model.config, []
    x, y = model.embedding.weight[source], model.embedding.weight[target]
    bias = bias_of(model.encoder_bias.table, c, both_ways=True)
    for b in model.encoder.blocks:
        block: Any = b
        x = x + attention(
            block.attention,
            rms_norm(block.attention_norm, x, c.norm_epsilon),
            c.heads,
            1.0,
            every,
            bias,
        )
        x = x + feed_forward(
            block.feed_forward,
            rms_norm(block.feed_forward_norm, x, c.norm_epsilon),
            c.activation,
            gated=c.gated,
        )
    memory = rms_norm(model.encoder.norm, x, c.norm_epsilon)
    bias = bias_of(model.decoder_bias.table, c, both_ways=False)
    for b in model.decoder.blocks:
        block = b
        y = y + attention(
            block.attention,
            rms_norm(block.attention_norm, y, c.norm_epsilon),
            c.heads,
            1.0,
            causal,
            bias,
        )
        looked, weights = cross_attention(
            block.cross_attention,
            rms_norm(block.cross_attention_norm, y, c.norm_epsilon),
            memory,
            c.heads,
            1.0,
        )
        y = y + looked
        y = y + feed_forward(
            block.feed_forward,
            rms_norm(block.feed_forward_norm, y, c.norm_epsilon),
            c.activation,
            gated=c.gated,
        )
        looks.append(weights)
    hidden = rms_norm(model.decoder.norm, y, c.norm_epsilon)
    if c.scale_output:
        hidden = hidden / math.sqrt(c.width)
    return hidden @ (
        model.embedding.weight if c.tie_output else model.output.weight
    ).T, torch.stack(looks)


@torch.no_grad()
def test_logits_and_looks_are_the_equations(model: T5) -> None:
    other = [4, 4, 7]
    source, target = (
        torch.tensor([SOURCE, [0, *other, 0, 0, 0, 0]]),
        torch.tensor([TARGET, TARGET[::-1]]),
    )
    logits, _ = model(target, model.encode(source))
    looks = attention_maps(model, lambda: model(target, model.encode(source)))["cross"]
    for row, (text, where) in enumerate(((SOURCE, slice(0, 8)), (other, slice(1, 4)))):
        expected, weights = written_out(model, text, target[row].tolist())
        close(logits[row], expected)
        close(looks[row, ..., where], weights)
        close(looks[row].sum(-1), torch.ones_like(looks[row, ..., 0]))


@torch.no_grad()
def test_ragged_rows_are_each_alone(model: T5) -> None:
    """Padding anywhere, in one call and in pieces of several tokens."""
    source = torch.tensor([SOURCE, SOURCE[::-1], SOURCE])
    target = torch.tensor([[0, 0, *TARGET], [*TARGET, 0, 0], [2, 0, 6, 6, 0, 7, 1, 3]])
    whole, _ = model(target, model.encode(source))
    state, pieces = model.encode(source), []
    for piece in target.tensor_split([1, 4, 5], dim=1):
        logits, state = model(piece, state)
        pieces.append(logits)
    for row in range(3):
        expected, _ = written_out(model, source[row].tolist(), TARGET)
        close(whole[row][target[row] != 0], expected)
        close(torch.cat(pieces, 1)[row][target[row] != 0], expected)


@torch.no_grad()
def test_only_distances_count(model: T5) -> None:
    """All places moved by the same number change nothing; before and after are not the same."""
    c = model.config
    x = torch.randn(1, 40, c.width, dtype=torch.float64)
    at = torch.arange(40)
    close(
        model.encoder.encode(x, None, model.encoder_bias(at, at)),
        model.encoder.encode(x, None, model.encoder_bias(at + 1000, at + 1000)),
    )
    mirrored = model.encoder.encode(x.flip(1), None, model.encoder_bias(at, at)).flip(1)
    assert different(mirrored, model.encoder.encode(x, None, model.encoder_bias(at, at)))


def test_a_model_that_was_read_under_inference_mode_trains(model: T5) -> None:
    source, target = torch.tensor([SOURCE]), torch.tensor([TARGET])
    distance_buckets.cache_clear()
    with torch.inference_mode():
        model(target, model.encode(source))
    logits, _ = model.train()(target, model.encode(source))
    logits.square().sum().backward()
    for table in (model.encoder_bias.table, model.decoder_bias.table):
        assert table.grad is not None
        assert bool(table.grad.any())


def test_it_is_a_neural_decodable_without_a_limit(model: T5) -> None:
    contract: object = model
    assert isinstance(contract, NeuralDecodable)
    assert getattr(model, "context", None) is None
    state = model.encode(torch.tensor([SOURCE * 30]))
    assert bool(model.read(torch.tensor([TARGET * 30]), state)[0].isfinite().all())
    hidden, after = model.read(torch.zeros(1, 0, dtype=torch.long), state)
    assert hidden.shape == (1, 0, model.config.width)
    assert after is state


# Each choice


CHANGED: dict[str, Any] = {
    "suppressed_ids": (5,),
    "vocabulary_size": 11,
    "width": 8,
    "encoder_layers": 3,
    "decoder_layers": 1,
    "heads": 3,
    "head_width": 5,
    "feed_forward_width": 7,
    "activation": "gelu",
    "gated": True,
    "buckets": 8,
    "furthest": 3,
    "tie_output": False,
    "scale_output": False,
    "norm_epsilon": 0.1,
    "pad_id": 3,
}
TRAINED = ("dropout", "attention_dropout")


def answer(model: T5) -> Tensor:
    logits: Tensor = model(torch.tensor([TARGET]), model.encode(torch.tensor([SOURCE])))[0]
    return logits.detach()


def test_every_field_changes_the_result() -> None:
    assert CHANGED.keys() | {*TRAINED} == {field.name for field in fields(T5Config)}
    before = answer(made())
    for name, value in CHANGED.items():
        assert different(answer(made(**{name: value})), before), name


@pytest.mark.parametrize("name", TRAINED)
def test_dropout_is_in_training_only(name: str) -> None:
    plain, model = made(), made(**{name: 0.5})
    close(answer(model), answer(plain))
    close(answer(plain.train()), answer(plain.eval()))
    model.train()
    torch.manual_seed(0)
    assert different(answer(model), answer(model))
    one, two = (model.encode(torch.tensor([SOURCE])).memory.value.layers[0].keys for _ in range(2))
    assert different(one, two)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({name: 0}, rf"model\.{name} must be at least 1, but is 0")
            for name in (
                "vocabulary_size",
                "width",
                "encoder_layers",
                "heads",
                "head_width",
                "feed_forward_width",
            )
        ),
        ({"decoder_layers": -1}, r"model\.decoder_layers must be at least 0, but is -1"),
        ({"heads": 4}, r"model\.heads must divide model\.width, but 6 is not a multiple of 4"),
        ({"activation": "swich"}, r"model\.activation must be one of gelu, .*, but is 'swich'"),
        ({"buckets": 0}, r"model\.buckets must be a multiple of 4, but is 0"),
        ({"buckets": 6}, r"model\.buckets must be a multiple of 4, but is 6"),
        (
            {"buckets": 8, "furthest": 4},
            r"model\.furthest must be above half of model\.buckets, but is 4",
        ),
        *(({name: 1.0}, rf"model\.{name} must be in \[0, 1\), but is 1\.0") for name in TRAINED),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(TINY, **changes)


def test_heads_need_not_share_the_width() -> None:
    assert made(heads=4, head_width=2).decoder.blocks[0].attention.output.weight.shape == (6, 8)  # type: ignore[union-attr]


# Beginning and sizes


def test_weights_begin_as_in_mesh_tensorflow() -> None:
    """N(0, 1/inputs); queries smaller by √head_width; embeddings N(0, 1); biases of distances N(0, 1/d)."""
    torch.manual_seed(0)
    model = T5(
        T5Config(
            vocabulary_size=500,
            width=64,
            heads=8,
            head_width=16,
            buckets=128,
            furthest=256,
            gated=True,
            feed_forward_width=96,
        )
    )
    d = 64**-0.5
    for name, parameter in model.named_parameters():
        values = parameter.detach()
        if parameter.dim() == 1:
            assert bool((values == 1).all())
            continue
        expected = d
        if name == "embedding.weight":
            expected = 1.0
        elif name.endswith("attention.output.weight"):
            expected = 128**-0.5
        elif name.endswith("feed_forward.output.weight"):
            expected = 96**-0.5
        elif name.endswith("query_key_value.weight"):
            assert float(values[:128].std()) == pytest.approx(d / 4, rel=0.05)
            values = values[128:]
        elif name.endswith("cross_attention.query.weight"):
            expected = d / 4
        assert float(values.std()) == pytest.approx(expected, rel=0.05), name


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("t5-small", 60_506_624),
        ("t5-base", 222_903_552),
        ("t5-large", 737_668_096),
        ("t5-3b", 2_851_598_336),
        ("t5-v1.1-small", 76_961_152),
        ("t5-v1.1-base", 247_577_856),
        ("t5-v1.1-large", 783_150_080),
    ],
)
def test_published_sizes_have_the_published_parameters(size: str, parameters: int) -> None:
    """As counted by transformers, whose 5.24 ties the output of v1.1 too; a vocabulary of 32,128."""
    hf = pytest.importorskip("transformers")
    figures = SIZES[size]
    newer = (
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} if "v1.1" in size else {}
    )
    with torch.device("meta"):
        ours: nn.Module = T5(T5Config(vocabulary_size=32128, **figures))
        theirs = hf.T5ForConditionalGeneration(
            hf.T5Config(
                vocab_size=32128,
                d_model=figures["width"],
                d_kv=figures["head_width"],
                d_ff=figures["feed_forward_width"],
                num_layers=figures["encoder_layers"],
                num_decoder_layers=figures["decoder_layers"],
                num_heads=figures["heads"],
                **newer,
            )
        )
    its, mine = (
        sum(parameter.numel() for parameter in model.parameters()) for model in (theirs, ours)
    )
    assert its + (32128 * figures["width"] if newer else 0) == mine == parameters


def test_every_size_is_described_and_valid() -> None:
    assert SIZES.keys() == ABOUT.keys()
    for size in SIZES.values():
        T5Config(vocabulary_size=99, **size)
