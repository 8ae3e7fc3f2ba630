"""BERT, RoBERTa and ELECTRA: equations and heads written out, torch's own encoder, and what each choice
changes."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from tests.layers.transformer.test_blocks import PHI
from tests.models.equations import (
    attention,
    close,
    different,
    drawn,
    every,
    feed_forward,
    layer_norm,
    linear,
)
from torch import Tensor, nn

from seqloom.errors import UsageError
from seqloom.explaining.studies.attention_maps import attention_maps
from seqloom.models.bert import ABOUT, SIZES, Bert, BertConfig

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = BertConfig(vocabulary_size=9, context=12, width=6, layers=2, heads=2, feed_forward_width=5)
KINDS: dict[str, dict[str, Any]] = {
    "bert": {"pooler": True, "next_sentence": True, "norm_epsilon": 0.01},
    "roberta": {"segments": 1, "position_offset": 2, "norm_epsilon": 1e-5},
    "electra, generator": {"embedding_width": 4, "head_activation": "gelu-tanh"},
    "electra, discriminator": {
        "embedding_width": 3,
        "head": "replaced-token",
        "activation": "silu",
    },
    "norm before, no segments, untied": {
        "norm": "before",
        "segments": 0,
        "tie_output": False,
        "heads": 3,
        "head": "masked-lm",
    },
    "no head": {"head": "none", "segments": 3, "activation": "relu", "pooler": True},
}
TEXT, SEGMENTS = [5, 3, 8, 4, 1], [0, 0, 1, 1, 1]


def made(**changes: Any) -> Bert:
    model: Bert = drawn(Bert(replace(TINY, **changes)))
    return model


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Bert:
    return made(**KINDS[request.param])


# The equations


def written_out(model: Bert, text: list[int], segments: list[int]) -> Tensor:
    """Hidden states `(steps, width)`."""
    c = model.config
    places = model.positions.embedding.weight[c.position_offset :]
    rows = []
    for place, (token, segment) in enumerate(zip(text, segments, strict=True)):
        row = model.embedding.weight[token] + places[place]
        rows.append(row if model.segments is None else row + model.segments.weight[segment])
    x = layer_norm(model.embedding_norm, torch.stack(rows), c.norm_epsilon)
    if c.embedding_width is not None:
        x = linear(model.projection, x)
    scale = 1 / math.sqrt(c.width / c.heads)
    for b in model.stack.blocks:
        block: Any = b
        if c.norm == "before":
            x = x + attention(
                block.attention,
                layer_norm(block.attention_norm, x, c.norm_epsilon),
                c.heads,
                scale,
                every,
            )
            x = x + feed_forward(
                block.feed_forward,
                layer_norm(block.feed_forward_norm, x, c.norm_epsilon),
                c.activation,
            )
        else:
            x = layer_norm(
                block.attention_norm,
                x + attention(block.attention, x, c.heads, scale, every),
                c.norm_epsilon,
            )
            x = layer_norm(
                block.feed_forward_norm,
                x + feed_forward(block.feed_forward, x, c.activation),
                c.norm_epsilon,
            )
    return layer_norm(model.stack.norm, x, c.norm_epsilon)


@torch.no_grad()
def test_hidden_states_are_the_equations(model: Bert) -> None:
    texts = [TEXT, TEXT[1:4]]
    segments = [SEGMENTS if model.config.segments > 1 else [0] * 5, [0, 0, 0]]
    for left in (False, True):
        inputs, kinds = torch.full((2, 5), 7), torch.zeros(2, 5, dtype=torch.long)
        mask = torch.tensor(
            [
                [True] * 5,
                [False, False, True, True, True] if left else [True, True, True, False, False],
            ]
        )
        inputs[mask], kinds[mask] = (
            torch.tensor(texts[0] + texts[1]),
            torch.tensor(segments[0] + segments[1]),
        )
        found = model(inputs, mask, kinds)
        for row in range(2):
            close(found[row][mask[row]], written_out(model, texts[row], segments[row]))
        assert not found[~mask].any()
    # segment 0 unless said
    close(
        model(torch.tensor([TEXT]), torch.ones(1, 5, dtype=torch.bool))[0],
        written_out(model, TEXT, [0] * 5),
    )


def written_logits(model: Bert, state: Tensor) -> Tensor:
    """Of one token's state `(width,)`: of each word, or one number."""
    c, head = model.config, model.head
    assert head is not None
    phi = PHI[c.head_activation or c.activation]
    hidden = torch.tensor(
        [phi(v) for v in (head.hidden.weight @ state + head.hidden.bias).tolist()],
        dtype=state.dtype,
    )
    if c.head == "replaced-token":
        return (model.replaced.weight @ hidden + model.replaced.bias)[0]
    y = layer_norm(head.norm, hidden[None], c.norm_epsilon)[0]
    matrix = model.embedding.weight if c.tie_output else model.output.weight
    assert model.output.bias is not None
    return matrix @ y + model.output.bias


@torch.no_grad()
def test_heads_are_the_equations(model: Bert) -> None:
    hidden = model(torch.tensor([TEXT, TEXT[::-1]]), torch.ones(2, 5, dtype=torch.bool))
    if model.head is None:
        assert not hasattr(model, "output")
    else:
        logits = model.logits(hidden)
        assert logits.shape == (2, 5) if model.config.head == "replaced-token" else (2, 5, 9)
        for row in range(2):
            for step in range(5):
                close(logits[row, step], written_logits(model, hidden[row, step]))
    if model.pooler is not None:
        pooled = model.pooled(hidden)
        for row in range(2):
            close(
                pooled[row],
                torch.tensor(
                    [math.tanh(v) for v in linear(model.pooler, hidden[row, 0]).tolist()],
                    dtype=torch.float64,
                ),
            )
    if model.next_sentence is not None:
        assert model.next_sentence(model.pooled(hidden)).shape == (2, 2)


@torch.no_grad()
def test_looks_are_those_of_the_equations(model: Bert) -> None:
    """Values that are the identity show the weights: here by the sum of each, and by the first layer's
    scores."""
    c = model.config
    text = torch.tensor([TEXT])
    mask = torch.ones(1, 5, dtype=torch.bool)
    looks = attention_maps(model, lambda: model(text, mask))["self"]
    assert looks.shape == (1, c.layers, c.heads, 5, 5)
    first: Any = model.stack.blocks[0]
    x = model._embed(text, torch.arange(5), None)[0]
    x = layer_norm(first.attention_norm, x, c.norm_epsilon) if c.norm == "before" else x
    query, keys, _ = linear(first.attention.query_key_value, x).chunk(3, 1)
    d = c.width // c.heads
    for head in range(c.heads):
        part = slice(head * d, (head + 1) * d)
        close(looks[0, 0, head], (query[:, part] @ keys[:, part].T / math.sqrt(d)).softmax(-1))


@pytest.mark.parametrize("norm", ["before", "after"])
def test_torchs_encoder_is_the_same(norm: Any) -> None:
    """nn.TransformerEncoder with the same weights, padded rows: values and gradients."""
    model = made(norm=norm, layers=3, activation="gelu", norm_epsilon=1e-5)
    layer = nn.TransformerEncoderLayer(
        6, 2, 5, 0.0, "gelu", norm_first=norm == "before", batch_first=True
    )
    theirs = nn.TransformerEncoder(
        layer, 3, nn.LayerNorm(6) if norm == "before" else None, enable_nested_tensor=False
    ).double()
    table = {
        "attention.query_key_value.": "self_attn.in_proj_",
        "attention.output.": "self_attn.out_proj.",
    }
    table |= {"feed_forward.hidden.": "linear1.", "feed_forward.output.": "linear2."}
    table |= {"attention_norm.": "norm1.", "feed_forward_norm.": "norm2."}
    kinds = ("weight", "bias")
    names = {
        f"blocks.{i}.{mine}{kind}": f"layers.{i}.{its}{kind}"
        for i in range(3)
        for mine, its in table.items()
        for kind in kinds
    }
    names |= {f"norm.{kind}": f"norm.{kind}" for kind in kinds if norm == "before"}
    ours = dict(model.stack.named_parameters())
    assert names.keys() == ours.keys()
    theirs.load_state_dict({names[name]: value.detach() for name, value in ours.items()})
    inputs, mask = (
        torch.tensor([TEXT, [1, 2, 6, 7, 7]]),
        torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).bool(),
    )
    x = model._embed(inputs, torch.arange(5), None)
    expected = theirs(x, src_key_padding_mask=~mask)[mask]
    found = model(inputs, mask)[mask]
    close(found, expected)
    weights = torch.randn(found.shape, dtype=torch.float64)
    gradients = torch.autograd.grad(
        (expected * weights).sum(),
        [theirs.get_parameter(names[name]) for name in ours],
        retain_graph=True,
    )
    for mine, its in zip(
        torch.autograd.grad((found * weights).sum(), list(ours.values())), gradients, strict=True
    ):
        close(mine, its, 1e-9)


# Each choice


CHANGED: dict[str, Any] = {
    "vocabulary_size": 11,
    "width": 8,
    "layers": 3,
    "heads": 3,
    "feed_forward_width": 7,
    "embedding_width": 4,
    "segments": 0,
    "position_offset": 1,
    "activation": "relu",
    "norm": "before",
    "norm_epsilon": 0.1,
    "head": "replaced-token",
    "head_activation": "relu",
    "tie_output": False,
}
TRAINED = ("dropout", "attention_dropout")
OTHERS = ("context", "pooler", "next_sentence")
"""Their tests are by themselves: a limit, and heads."""


def answer(model: Bert) -> Tensor:
    hidden = model(
        torch.tensor([TEXT]), torch.ones(1, 5, dtype=torch.bool), torch.tensor([SEGMENTS])
    )
    return model.logits(hidden).detach()


def test_every_field_changes_the_result() -> None:
    assert CHANGED.keys() | {*TRAINED, *OTHERS} == {field.name for field in fields(BertConfig)}
    before = answer(made())
    for name, value in CHANGED.items():
        assert different(answer(made(**{name: value})), before), name
    assert made().pooler is None
    assert made(head="none").head is None
    assert made(pooler=True).next_sentence is None


@pytest.mark.parametrize("name", TRAINED)
def test_dropout_is_in_training_only(name: str) -> None:
    still: dict[str, Any] = dict.fromkeys(TRAINED, 0.0)
    plain, model = made(**still), made(**{**still, name: 0.5})
    close(answer(model), answer(plain))
    close(answer(plain.train()), answer(plain.eval()))
    model.train()
    torch.manual_seed(0)
    assert different(answer(model), answer(model))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({name: 0}, rf"model\.{name} must be at least 1, but is 0")
            for name in (
                "vocabulary_size",
                "context",
                "width",
                "layers",
                "heads",
                "feed_forward_width",
                "embedding_width",
            )
        ),
        *(
            ({name: -1}, rf"model\.{name} must be at least 0, but is -1")
            for name in ("segments", "position_offset")
        ),
        ({"heads": 4}, r"model\.heads must divide model\.width, but 6 is not a multiple of 4"),
        ({"activation": "swich"}, r"model\.activation must be one of gelu, .*, but is 'swich'"),
        (
            {"head_activation": "swich"},
            r"model\.head_activation must be one of gelu, .*, but is 'swich'",
        ),
        *(({name: 1.0}, rf"model\.{name} must be in \[0, 1\), but is 1\.0") for name in TRAINED),
        ({"next_sentence": True}, r"model\.next_sentence needs model\.pooler=true"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(TINY, **changes)


# Beginning and sizes


def test_weights_but_positions_begin_as_published() -> None:
    torch.manual_seed(0)
    model = Bert(
        BertConfig(
            vocabulary_size=500,
            width=128,
            embedding_width=64,
            pooler=True,
            next_sentence=True,
            tie_output=False,
        )
    )
    for name, parameter in model.named_parameters():
        if name.startswith("positions"):
            continue
        if parameter.dim() == 1:
            assert bool((parameter == (0.0 if name.endswith("bias") else 1.0)).all())
        else:
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.1), name


def counted(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


PUBLISHED = [
    ("bert-tiny", {"head": "none", "next_sentence": False}, "BertModel", 30522, 4_385_920),
    ("bert-base", {"head": "none", "next_sentence": False}, "BertModel", 30522, 109_482_240),
    ("bert-large", {"head": "none", "next_sentence": False}, "BertModel", 30522, 335_141_888),
    ("bert-base", {}, "BertForPreTraining", 30522, 110_106_428),
    ("roberta-base", {"head": "none", "pooler": True}, "RobertaModel", 50265, 124_645_632),
    ("roberta-base", {}, "RobertaForMaskedLM", 50265, 124_697_433),
    ("roberta-large", {}, "RobertaForMaskedLM", 50265, 355_412_057),
    ("electra-small", {"head": "none"}, "ElectraModel", 30522, 13_483_008),
    ("electra-small", {}, "ElectraForPreTraining", 30522, 13_549_057),
    ("electra-small-generator", {}, "ElectraForMaskedLM", 30522, 13_546_682),
    ("electra-base", {}, "ElectraForPreTraining", 30522, 109_483_009),
    ("electra-large", {}, "ElectraForPreTraining", 30522, 335_142_913),
]
"""Size, what is left out or added, the class there, its vocabulary, parameters."""


@pytest.mark.parametrize(("size", "changes", "kind", "vocabulary", "parameters"), PUBLISHED)
def test_published_sizes_have_the_published_parameters(
    size: str, changes: dict[str, Any], kind: str, vocabulary: int, parameters: int
) -> None:
    """As counted by transformers."""
    hf = pytest.importorskip("transformers")
    figures = SIZES[size]
    family = kind.removesuffix("Model").partition("For")[0]
    options: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": figures["width"],
        "num_hidden_layers": figures["layers"],
        "num_attention_heads": figures["heads"],
        "intermediate_size": 4 * figures["width"],
        "type_vocab_size": figures.get("segments", 2),
        "max_position_embeddings": 512 + figures.get("position_offset", 0),
    }
    if family == "Electra":
        options["embedding_size"] = figures["embedding_width"]
    with torch.device("meta"):
        ours = Bert(BertConfig(vocabulary_size=vocabulary, **{**figures, **changes}))
        theirs = getattr(hf, kind)(getattr(hf, f"{family}Config")(**options))
    assert counted(ours) == counted(theirs) == parameters


def test_every_size_is_described_and_valid() -> None:
    assert SIZES.keys() == ABOUT.keys()
    for size in SIZES.values():
        BertConfig(vocabulary_size=99, **size)
