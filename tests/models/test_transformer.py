"""The encoder-decoder of Vaswani, Marian and BART: equations written out, torch's own, and what each choice
changes."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from tests.models.equations import (
    attention,
    causal,
    close,
    cross_attention,
    different,
    drawn,
    every,
    feed_forward,
    layer_norm,
    sinusoid,
)
from torch import Tensor, nn

from seqloom.errors import UsageError
from seqloom.explaining.studies.attention_maps import attention_maps
from seqloom.layers.transformer.positions import sinusoids
from seqloom.models.transformer import ABOUT, SIZES, Transformer, TransformerConfig
from seqloom.protocols import NeuralDecodable

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = TransformerConfig(
    vocabulary_size=9, width=6, encoder_layers=2, decoder_layers=2, heads=2, feed_forward_width=5
)
BART = {
    "norm": "after",
    "positions": "learned",
    "position_offset": 2,
    "embedding_norm": True,
    "scale_embeddings": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "norm before": {},
    "vaswani": {"norm": "after"},
    "marian": {
        "norm": "after",
        "positions": "sinusoidal-halves",
        "activation": "silu",
        "output_bias": True,
    },
    "odd width": {"width": 7, "heads": 7, "positions": "sinusoidal-halves", "decoder_layers": 1},
    "bart": {**BART, "context": 9, "activation": "gelu"},
    "two embeddings, untied": {
        "share_embeddings": False,
        "tie_output": False,
        "encoder_layers": 1,
        "decoder_layers": 3,
    },
    "no biases": {
        "biases": False,
        "activation": "gelu-tanh",
        "decoder_heads": 3,
        "decoder_feed_forward_width": 4,
        "norm_epsilon": 0.3,
    },
    "norm before, normalised embeddings": {**BART, "norm": "before", "context": 9},
}
SOURCE, TARGET = [5, 3, 8, 4, 1], [2, 6, 6, 7]


def made(**changes: Any) -> Transformer:
    model: Transformer = drawn(Transformer(replace(TINY, **changes)))
    return model


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return made(**KINDS[request.param])


# The equations


def placed(model: Transformer, ids: list[int], side: str) -> Tensor:
    """`x_0`, or `y_0`: `(steps, width)`."""
    c, source = model.config, side == "source"
    x = (model.source_embedding if source else model.embedding).weight[ids]
    if c.scale_embeddings:
        x = x * math.sqrt(c.width)
    if c.positions == "learned":
        table: Any = model.source_positions if source else model.positions
        x = x + torch.stack(
            [table.embedding.weight[p + c.position_offset] for p in range(len(ids))]
        )
    else:
        halves = c.positions == "sinusoidal-halves"
        x = x + torch.tensor(
            [sinusoid(p, c.width, halves=halves) for p in range(len(ids))], dtype=x.dtype
        )
    return layer_norm(model.source_norm if source else model.norm, x, c.norm_epsilon)


def add(x: Tensor, norm: Any, layer: Any, model: Transformer) -> Tensor:
    """What a sub-block adds, with the norm before or after."""
    c = model.config
    if c.norm == "before":
        y: Tensor = x + layer(layer_norm(norm, x, c.norm_epsilon))
        return y
    return layer_norm(norm, x + layer(x), c.norm_epsilon)


def written_out(model: Transformer, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
    """Logits `(steps, vocabulary)`, and where each head looks at the source `(layers, heads, steps,
    source)`."""
    c, looks = model.config, []
    x = placed(model, source, "source")
    for b in model.encoder.blocks:
        block: Any = b
        x = add(
            x,
            block.attention_norm,
            lambda z, b=block: attention(
                b.attention, z, c.heads, (c.width // c.heads) ** -0.5, every
            ),
            model,
        )
        x = add(
            x,
            block.feed_forward_norm,
            lambda z, b=block: feed_forward(b.feed_forward, z, c.activation),
            model,
        )
    memory = layer_norm(model.encoder.norm, x, c.norm_epsilon)
    heads = c.decoder_heads or c.heads
    scale = (c.width // heads) ** -0.5
    y = placed(model, target, "target")
    for b in model.decoder.blocks:
        block = b

        def looking(z: Tensor, block: Any = block) -> Tensor:
            found, weights = cross_attention(block.cross_attention, z, memory, heads, scale)
            looks.append(weights)
            return found

        y = add(
            y,
            block.attention_norm,
            lambda z, b=block: attention(b.attention, z, heads, scale, causal),
            model,
        )
        y = add(y, block.cross_attention_norm, looking, model)
        y = add(
            y,
            block.feed_forward_norm,
            lambda z, b=block: feed_forward(b.feed_forward, z, c.activation),
            model,
        )
    hidden = layer_norm(model.decoder.norm, y, c.norm_epsilon)
    matrix = model.embedding.weight if c.tie_output else model.output.weight
    logits = hidden @ matrix.T
    return (logits if model.output.bias is None else logits + model.output.bias), torch.stack(looks)


@torch.no_grad()
def test_logits_and_looks_are_the_equations(model: Transformer) -> None:
    other = [4, 4, 7]
    source, target = torch.tensor([SOURCE, [*other, 0, 0]]), torch.tensor([TARGET, TARGET[::-1]])
    logits, _ = model(target, model.encode(source))
    looks = attention_maps(model, lambda: model(target, model.encode(source)))["cross"]
    for row, text in enumerate((SOURCE, other)):
        expected, weights = written_out(model, text, target[row].tolist())
        close(logits[row], expected)
        close(looks[row, ..., : len(text)], weights)
        assert not looks[row, ..., len(text) :].any()


def test_it_is_a_neural_decodable(model: Transformer) -> None:
    contract: object = model
    assert isinstance(contract, NeuralDecodable)
    assert model.context == (9 if model.config.positions == "learned" else None)
    state = model.encode(torch.tensor([SOURCE]))
    hidden, after = model.read(torch.zeros(1, 0, dtype=torch.long), state)
    assert hidden.shape == (1, 0, model.config.width)
    assert after is state


# torch's own


def torchs(model: Transformer, norm_first: bool) -> tuple[nn.Transformer, dict[str, list[str]]]:
    """nn.Transformer with the weights of the blocks of ours, and the names of theirs -> of ours, side by
    side."""
    c = model.config
    options: dict[str, Any] = {
        "dropout": 0.0,
        "activation": c.activation,
        "batch_first": True,
        "norm_first": norm_first,
    }
    norms = [nn.LayerNorm(c.width) if norm_first else None for _ in range(2)]
    assert c.feed_forward_width is not None
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(c.width, c.heads, c.feed_forward_width, **options),
        c.encoder_layers,
        norms[0],
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(c.width, c.heads, c.feed_forward_width, **options),
        c.decoder_layers,
        norms[1],
    )
    theirs = nn.Transformer(
        c.width, c.heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    ).double()
    both = {
        "self_attn.in_proj_": ["attention.query_key_value."],
        "self_attn.out_proj.": ["attention.output."],
    }
    both |= {
        "linear1.": ["feed_forward.hidden."],
        "linear2.": ["feed_forward.output."],
        "norm1.": ["attention_norm."],
    }
    of_encoder = both | {"norm2.": ["feed_forward_norm."]}
    of_decoder = both | {"norm2.": ["cross_attention_norm."], "norm3.": ["feed_forward_norm."]}
    of_decoder |= {
        "multihead_attn.in_proj_": ["cross_attention.query.", "cross_attention.key_value."]
    }
    of_decoder |= {"multihead_attn.out_proj.": ["cross_attention.output."]}
    names = {}
    for side, table, layers in (
        ("encoder", of_encoder, c.encoder_layers),
        ("decoder", of_decoder, c.decoder_layers),
    ):
        for kind in ("weight", "bias"):
            for layer in range(layers):
                for its, mine in table.items():
                    names[f"{side}.layers.{layer}.{its}{kind}"] = [
                        f"{side}.blocks.{layer}.{part}{kind}" for part in mine
                    ]
            if norm_first:
                names[f"{side}.norm.{kind}"] = [f"{side}.norm.{kind}"]
    theirs.load_state_dict(
        {
            its: torch.cat([model.get_parameter(part).detach() for part in mine])
            for its, mine in names.items()
        }
    )
    return theirs, names


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["before", "after"])
def test_torchs_transformer_is_the_same(norm: Any, activation: str) -> None:
    """Hidden states and gradients, with a padded source."""
    model = made(norm=norm, activation=activation, encoder_layers=3)
    theirs, names = torchs(model, norm == "before")
    source, target = torch.tensor([SOURCE, [4, 4, 7, 0, 0]]), torch.tensor([TARGET, TARGET[::-1]])
    pad = source == 0
    x, y = (
        model.embedding(ids) * math.sqrt(6)
        + sinusoids(torch.arange(ids.shape[1]), 6, torch.float64)
        for ids in (source, target)
    )
    mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
    expected = theirs(x, y, tgt_mask=mask, src_key_padding_mask=pad, memory_key_padding_mask=pad)
    found, _ = model.read(target, model.encode(source))
    close(found, expected)
    weights = torch.randn(found.shape, dtype=torch.float64)
    mine = [part for parts in names.values() for part in parts]
    blocks = {
        name for name, _ in model.named_parameters() if name.startswith(("encoder", "decoder"))
    }
    assert set(mine) == blocks
    ours = torch.autograd.grad(
        (found * weights).sum(), [model.get_parameter(part) for part in mine]
    )
    gradients = dict(zip(mine, ours, strict=True))
    for name, its in zip(
        names,
        torch.autograd.grad((expected * weights).sum(), [theirs.get_parameter(n) for n in names]),
        strict=True,
    ):
        close(torch.cat([gradients[part] for part in names[name]]), its, 1e-9)


# Each choice


CHANGED: dict[str, Any] = {
    "suppressed_ids": (5,),
    "vocabulary_size": 11,
    "width": 8,
    "encoder_layers": 3,
    "decoder_layers": 1,
    "heads": 3,
    "decoder_heads": 3,
    "feed_forward_width": 7,
    "decoder_feed_forward_width": 7,
    "activation": "gelu",
    "norm": "after",
    "positions": "sinusoidal-halves",
    "scale_embeddings": False,
    "embedding_norm": True,
    "share_embeddings": False,
    "tie_output": False,
    "output_bias": True,
    "biases": False,
    "norm_epsilon": 0.1,
    "pad_id": 3,
}
TRAINED = ("dropout", "attention_dropout", "hidden_dropout")
OF_A_TABLE = ("context", "position_offset")


def answer(model: Transformer) -> Tensor:
    logits: Tensor = model(torch.tensor([TARGET]), model.encode(torch.tensor([SOURCE])))[0]
    return logits.detach()


def test_every_field_changes_the_result() -> None:
    assert CHANGED.keys() | {*TRAINED, *OF_A_TABLE} == {
        field.name for field in fields(TransformerConfig)
    }
    before = answer(made())
    for name, value in CHANGED.items():
        assert different(answer(made(**{name: value})), before), name
    learned = {"positions": "learned", "context": 8}
    assert different(answer(made(**learned)), before)
    assert different(answer(made(**learned, position_offset=1)), answer(made(**learned)))


@pytest.mark.parametrize("name", TRAINED)
def test_dropout_is_in_training_only(name: str) -> None:
    still: dict[str, Any] = dict.fromkeys(TRAINED, 0.0)
    plain, model = made(**still), made(**{**still, name: 0.5})
    close(answer(model), answer(plain))
    close(answer(plain.train()), answer(plain.eval()))
    model.train()
    torch.manual_seed(0)
    assert different(answer(model), answer(model))
    state = model.encode(torch.tensor([SOURCE]))  # in the encoder too, where its name says so
    other = model.encode(torch.tensor([SOURCE]))
    assert different(state.memory.value.layers[0].keys, other.memory.value.layers[0].keys)


def test_learned_positions_say_their_limit() -> None:
    model = made(**BART, context=4)
    state = model.encode(torch.tensor([SOURCE[:4]]))
    _, state = model.read(torch.tensor([TARGET]), state)
    with pytest.raises(UsageError, match=r"at most 4 tokens .* one has 5"):
        model.encode(torch.tensor([SOURCE]))
    with pytest.raises(UsageError, match=r"at most 4 tokens .* one has 5"):
        model.read(torch.tensor([[1]]), state)
    padded = torch.tensor([[0, 0, 0, *SOURCE[:4], 0]])
    close(
        model(torch.tensor([TARGET]), model.encode(padded))[0],
        model(torch.tensor([TARGET]), model.encode(padded[:, 3:7]))[0],
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({name: 0}, rf"model\.{name} must be at least 1, but is 0")
            for name in ("vocabulary_size", "context", "encoder_layers")
        ),
        (
            {"width": 0, "heads": 0},
            r"model\.width must be at least 1, but is 0; model\.heads must be at least 1, but is 0",
        ),
        ({"decoder_layers": -1}, r"model\.decoder_layers must be at least 1, but is -1"),
        ({"decoder_heads": 0}, r"model\.decoder_heads must be at least 1"),
        ({"feed_forward_width": 0}, r"model\.feed_forward_width must be at least 1"),
        (
            {"decoder_feed_forward_width": 0},
            r"model\.decoder_feed_forward_width must be at least 1",
        ),
        ({"heads": 4}, r"model\.heads must divide model\.width, but 6 is not a multiple of 4"),
        (
            {"decoder_heads": 4},
            r"model\.decoder_heads must divide model\.width, but 6 is not a multiple of 4",
        ),
        (
            {"activation": "swich"},
            r"model\.activation must be one of gelu, gelu-tanh, relu, silu, swish, tanh, but is 'swich'",
        ),
        *(({name: 1.0}, rf"model\.{name} must be in \[0, 1\), but is 1\.0") for name in TRAINED),
        ({"dropout": -0.1}, r"model\.dropout must be in \[0, 1\), but is -0\.1"),
        ({"position_offset": -1}, r"model\.position_offset must be at least 0, but is -1"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(TINY, **changes)


# Beginning and sizes


def test_weights_begin_as_published() -> None:
    """Embeddings N(0, 1/d); every map as Glorot and Bengio, ±√(6 / (inputs + outputs)), query, key and value
    each by itself."""
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig(
            vocabulary_size=500, width=64, heads=4, share_embeddings=False, tie_output=False
        )
    )
    for name, parameter in model.named_parameters():
        spread = float(parameter.detach().std())
        if parameter.dim() == 1:
            assert bool((parameter == (0.0 if name.endswith("bias") else 1.0)).all())
        elif "embedding" in name or name == "output.weight":
            assert spread == pytest.approx(1 / 8, rel=0.05), name
        else:
            outputs = 64 if "key_value" in name else parameter.shape[0]
            bound = math.sqrt(6 / (outputs + parameter.shape[1]))
            assert float(parameter.detach().abs().max()) == pytest.approx(bound, rel=0.02), name
            assert spread == pytest.approx(bound / math.sqrt(3), rel=0.05), name


def counted(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def sized(size: str, vocabulary: int) -> int:
    with torch.device("meta"):
        return counted(Transformer(TransformerConfig(vocabulary_size=vocabulary, **SIZES[size])))


@pytest.mark.parametrize(
    ("size", "width", "published", "exact"),
    [("transformer-base", 512, 65e6, 63_082_496), ("transformer-big", 1024, 213e6, 214_245_376)],
)
def test_vaswanis_sizes(size: str, width: int, published: float, exact: int) -> None:
    """Table 3 of the paper; d_ff = 4 d, 6 layers each, 37,000 words in one matrix."""
    d, hidden, norm = width, 4 * width, 2 * width
    attends, feeds = 4 * (d * d + d), 2 * d * hidden + hidden + d
    written = 37_000 * d + 6 * (attends + feeds + 2 * norm) + 6 * (2 * attends + feeds + 3 * norm)
    assert sized(size, 37_000) == written == exact
    assert exact == pytest.approx(published, rel=0.03)


@pytest.mark.parametrize(
    ("size", "layers", "width", "heads", "parameters"),
    [("bart-base", 6, 768, 12, 139_420_416), ("bart-large", 12, 1024, 16, 406_291_456)],
)
def test_barts_sizes_have_the_published_parameters(
    size: str, layers: int, width: int, heads: int, parameters: int
) -> None:
    hf = pytest.importorskip("transformers")
    figures: dict[str, Any] = {"encoder_layers": layers, "decoder_layers": layers, "d_model": width}
    figures |= {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in zip(("attention_heads", "ffn_dim"), (heads, 4 * width), strict=True)
    }
    with torch.device("meta"):
        theirs = hf.BartForConditionalGeneration(hf.BartConfig(vocab_size=50265, **figures))
    assert sized(size, 50265) == counted(theirs) == parameters


def test_marians_size_is_that_of_transformers() -> None:
    """There the bias of the output is a buffer, and the sinusoids, 512 rows for each side, are parameters."""
    hf = pytest.importorskip("transformers")
    figures: dict[str, Any] = {
        "encoder_layers": 6,
        "decoder_layers": 6,
        "d_model": 512,
        "max_position_embeddings": 512,
    }
    figures |= {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("attention_heads", 8), ("ffn_dim", 2048))
    }
    with torch.device("meta"):
        theirs = hf.MarianMTModel(hf.MarianConfig(vocab_size=58101, pad_token_id=58100, **figures))
    assert sized("marian", 58101) == counted(theirs) - 2 * 512 * 512 + 58101


def test_every_size_is_described_and_valid() -> None:
    assert SIZES.keys() == ABOUT.keys()
    for size in SIZES.values():
        TransformerConfig(vocabulary_size=99, **size)
