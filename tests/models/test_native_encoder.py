"""The compiled call of encoders is the blocks: the states of a float64 forward, whatever rows it reads."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.test_native_gpt import threads
from torch import Tensor, nn

import seqloom
from seqloom.config import HeadConfig
from seqloom.layers.attention import watched_attention
from seqloom.layers.linear import Linear
from seqloom.layers.transformer import native_encoder
from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.blocks import Block, Stack
from seqloom.layers.transformer.feed_forward import ACTIVATIONS
from seqloom.layers.transformer.native_encoder import encode, encode_packed
from seqloom.models.bert import Bert, BertConfig
from seqloom.models.encoder_with_head import EncoderWithHead, EncoderWithHeadConfig
from seqloom.models.t5 import T5, T5Config
from seqloom.models.transformer import Transformer, TransformerConfig
from seqloom.models.vit import ViT, ViTConfig
from seqloom.native.library import library
from seqloom.packed_weights import KeptWeights, PackedWeights, Storage
from seqloom.protocols import EncodedBatch, modules_of
from seqloom.runs.compiled_reading import why_not_read
from seqloom.stored_weight import QuantisedWeight
from seqloom.testing.tensors import draw_parameters
from seqloom.workflows.evaluate import evaluate, evaluate_each
from seqloom.workflows.models import model_of_run
from seqloom.workflows.train import train

__all__ = ["threads"]

pytestmark = pytest.mark.skipif(
    library() is None, reason="the compiled call needs a C++ compiler when the project is installed"
)

SMALL = BlockConfig(width=20, heads=2, norm="after", feed_forward_width=37)
"""Neither a head nor a hidden state fills whole vectors."""
BLOCKS: dict[str, dict[str, Any]] = {
    **{activation: {"activation": activation} for activation in ACTIVATIONS},
    "norm before": {"norm": "before"},
    "no biases": {"biases": False, "norm": "before", "norm_epsilon": 1e-3},
    "gated, rms": {"gated": True, "norm_kind": "rms", "norm": "before", "scaled": False},
    "wide heads": {"head_width": 17, "heads": 3},
    "whole vectors": {"width": 64, "feed_forward_width": None},
}
MASKS: dict[str, list[str]] = {
    "even": ["111111", "111111"],
    "padded": ["1111111", "1000000", "0000000", "1111000"],
    "left": ["0011111", "0000001", "1111111"],
    "holes": ["1011001", "1111111"],
    "long": ["1" * 130 + "0" * 3, "0" * 50 + "1" * 83, "1" * 133],
    "many": ["1" * length + "0" * (20 - length) for length in range(1, 21)],
}
TOLERANCE = 2e-5
"""Of the largest number."""
STD = 0.2
"""Of weights: attention shall not look at one key alone."""


def drawn(seed: int = 0, **changes: Any) -> Stack:
    stack = Stack(replace(SMALL, **changes), 2).eval()
    draw_parameters(stack, seed, STD)
    return stack


def masked(name: str) -> Tensor:
    return torch.tensor([[sign == "1" for sign in row] for row in MASKS[name]])


def inputs_of(stack: Stack, mask: Tensor) -> Tensor:
    width = next(stack.parameters()).shape[0]
    return torch.randn(*mask.shape, width, generator=torch.Generator().manual_seed(1))


def largest_difference(found: Tensor, expected: Tensor) -> float:
    """Relative to the largest number."""
    return float((found.double() - expected).abs().max() / expected.abs().max())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What each compiled call answered."""
    answered: list[Tensor] = []

    def counted(*inputs: Any) -> Tensor | None:
        found = encode_packed(*inputs)
        answered.extend([] if found is None else [found])
        return found

    monkeypatch.setattr(native_encoder, "encode_packed", counted)
    return answered


@pytest.mark.usefixtures("threads")
@torch.no_grad()
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("blocks", BLOCKS)
def test_states_are_those_of_the_blocks(blocks: str, mask: str, calls: list[Tensor]) -> None:
    stack, is_token = drawn(**BLOCKS[blocks]), masked(mask)
    x = inputs_of(stack, is_token)
    given = None if bool(is_token.all()) else is_token
    with PackedWeights():
        found = encode(stack, x, given)
    assert calls
    expected = copy.deepcopy(stack).double().encode(x.double(), given)
    assert largest_difference(found, expected) < TOLERANCE
    assert not found[~is_token].any()


@pytest.mark.usefixtures("threads")
@torch.no_grad()
@pytest.mark.parametrize("rows", ["one", "each"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_bias_is_added_to_the_scores(mask: str, rows: str, calls: list[Tensor]) -> None:
    stack, is_token = drawn(), masked(mask)
    x, given = inputs_of(stack, is_token), None if bool(is_token.all()) else is_token
    count, steps = is_token.shape
    bias = torch.randn(1 if rows == "one" else count, 2, steps, steps)
    bias[:, :, 1, 2] = -torch.inf
    with PackedWeights():
        found = encode(stack, x, given, bias)
    # where tokens are apart the blocks do it
    assert bool(calls) == (mask != "holes")
    expected = copy.deepcopy(stack).double().encode(x.double(), given, bias.double())
    assert largest_difference(found, expected) < TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("storage", ["float32", "bfloat16", "int8"])
def test_a_row_has_the_same_states_among_any_others(
    storage: Storage, threads: int, calls: list[Tensor]
) -> None:
    stack, is_token = drawn(width=64, heads=4), masked("many")
    x = inputs_of(stack, is_token)
    with PackedWeights(storage):
        together = encode(stack, x, is_token)
        for row, mask in enumerate(is_token):
            alone = encode(stack, x[row : row + 1, mask], None)
            assert torch.equal(alone[0], together[row, mask])
    assert len(calls) == 1 + len(is_token)


@torch.no_grad()
@pytest.mark.parametrize(("storage", "tolerance"), [("bfloat16", TOLERANCE), ("int8", 0.03)])
def test_weights_in_fewer_bits_are_rounded_weights(
    storage: Storage, tolerance: float, calls: list[Tensor]
) -> None:
    """In int8 inputs are rounded too."""
    stack, is_token = drawn(width=64, heads=4), masked("padded")
    x = inputs_of(stack, is_token)
    with PackedWeights(storage):
        found = encode(stack, x, is_token)
    assert calls
    rounded = copy.deepcopy(stack).double()
    for name, linear in modules_of(stack, Linear).items():
        weight = QuantisedWeight.of(linear.weight, storage).restored()
        linear_of_double = rounded.get_submodule(name)
        assert isinstance(linear_of_double, Linear)
        linear_of_double.weight.copy_(weight)
    assert largest_difference(found, rounded.encode(x.double(), is_token)) < tolerance


def bert() -> tuple[nn.Module, Any]:
    config = BertConfig(
        vocabulary_size=30, width=24, embedding_width=16, heads=2, layers=2, position_offset=2
    )
    tokens, mask = torch.randint(30, (4, 7)), masked("padded")
    return Bert(config), lambda model: model(tokens, mask, (tokens > 9).long())[mask]


def vit() -> tuple[nn.Module, Any]:
    config = ViTConfig(
        labels=("a", "b"),
        image_size=8,
        patch_size=2,
        width=24,
        layers=2,
        heads=2,
        query_key_value_biases=False,
    )
    images = torch.randn(3, 3, 8, 8)
    return ViT(config), lambda model: model(images.to(model.cls.dtype))


def t5() -> tuple[nn.Module, Any]:
    config = T5Config(vocabulary_size=30, width=24, heads=2, encoder_layers=2, decoder_layers=1)
    source = torch.randint(1, 30, (4, 7)).where(masked("padded"), 0)
    source[1] = torch.tensor([0, 0, 5, 6, 7, 0, 0])
    return T5(config), lambda model: model.encoded(source)


def transformer() -> tuple[nn.Module, Any]:
    config = TransformerConfig(vocabulary_size=30, width=24, heads=2)
    source = torch.randint(4, 30, (4, 7)).where(masked("padded"), 0)
    return Transformer(config), lambda model: model.encode(source).memory.value.layers[0].keys


@torch.no_grad()
@pytest.mark.parametrize("make", [bert, vit, t5, transformer])
def test_models_read_with_it(make: Any, calls: list[Tensor]) -> None:
    torch.manual_seed(0)
    model, read = make()
    draw_parameters(model.eval(), 1, STD)
    with PackedWeights():
        found = read(model)
    assert len(calls) == 1
    assert largest_difference(found, read(copy.deepcopy(model).double())) < TOLERANCE
    assert not why_not_read(model)


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["first", "last", "mean", "max", "sum", "attention"])
def test_heads_read_its_states(pooling: Any, calls: list[Tensor]) -> None:
    encoder = {"model_type": "bert", "width": 24, "layers": 1, "heads": 2, "head": "none"}
    config = EncoderWithHeadConfig(
        kind="classification",
        encoder=encoder | {"vocabulary_size": 30},
        head=HeadConfig(pooling=pooling),
        labels=("a", "b", "c"),
        vocabulary_size=30,
    )
    model = EncoderWithHead(config).eval()
    draw_parameters(model, 2, STD)
    mask = masked("padded")[[0, 1, 3]]
    tokens = torch.randint(30, mask.shape).where(mask, -1)
    batch = EncodedBatch(
        tokens,
        (tokens > 9).long(),
        torch.zeros(*tokens.shape, 0),
        torch.arange(3),
        torch.zeros(3, 0, dtype=torch.long),
        torch.zeros(3, dtype=torch.long),
    )
    expected = model.double()(batch)
    with PackedWeights():
        found = model.float()(batch)
    assert calls
    assert largest_difference(found, expected) < TOLERANCE


def with_adapter(stack: Stack) -> Stack:
    block = stack.blocks[0]
    assert isinstance(block, Block)
    block.feed_forward.hidden = nn.Linear(20, 37)  # type: ignore[assignment]
    return stack


def test_the_blocks_read_where_it_cannot(calls: list[Tensor]) -> None:
    stack, mask = drawn(), masked("padded")
    x = inputs_of(stack, mask)
    encode(stack, x, mask)
    with PackedWeights():
        assert encode(stack, x, mask).requires_grad
        with torch.no_grad():
            encode(stack.double(), x.double(), mask)
            stack.float()
            with torch.autocast("cpu", torch.bfloat16):
                encode(stack, x, mask)
            with watched_attention(stack) as seen:
                encode(stack, x, mask)
            assert all(seen.values())
            encode(stack.train(), x, mask)
            encode(with_adapter(drawn()), x, mask)
    assert not calls
    with PackedWeights(), torch.no_grad():
        encode(stack.eval(), x, mask)
    assert calls


@torch.no_grad()
def test_kept_weights_follow_a_change() -> None:
    stack, mask = drawn(), masked("even")
    x, kept = inputs_of(stack, mask), KeptWeights(stack)
    for change in (
        lambda weight: weight.mul_(1.1),
        lambda weight: setattr(weight, "data", weight / 2),
    ):
        before = kept.of()
        assert kept.of() is before
        change(next(stack.parameters()))
        with kept.of():
            found = encode(stack, x, None)
        assert kept.of() is not before
        assert largest_difference(found, stack.encode(x, None).double()) < TOLERANCE


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A classifier that knows some words, and texts that it has not seen."""
    folder, chance = tmp_path_factory.mktemp("reader"), torch.Generator().manual_seed(3)
    for name, count in (("train.tsv", 400), ("test.tsv", 1000)):
        lines = ["text\tlabel"]
        for _ in range(count):
            words = torch.randint(40, (7,), generator=chance).tolist()
            label = "even" if sum(word % 2 for word in words) < 4 else "odd"
            lines.append(" ".join(f"w{word}" for word in words) + f"\t{label}")
        (folder / name).write_text("\n".join(lines) + "\n")
    run = str(folder / "run")
    settings = ["data.tokenizer=whitespace", "train.max_steps=120", "train.learning_rate=0.003"]
    train(
        "text-classification",
        [str(folder / "train.tsv")],
        output_dir=run,
        model="bert:tiny",
        settings=settings,
    )
    return run, str(folder / "test.tsv")


def test_a_reader_is_as_good_in_fewer_bits(reader: tuple[str, str], calls: list[Tensor]) -> None:
    run, test = reader
    result, others = evaluate_each(
        run, [test], seqloom.protocols.Request(), {"decode.weights=int8": {"weights": "int8"}}
    )
    assert calls
    assert result.metrics["accuracy"] > 0.8
    (other,) = others
    assert other.metrics["loss"] != result.metrics["loss"]
    assert abs(other.metrics["accuracy"] - result.metrics["accuracy"]) <= 0.003


def test_a_folder_says_how_it_reads(
    reader: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, test = reader
    assert model_of_run(run)["reading"].startswith("compiled, for ")
    monkeypatch.setenv("SEQLOOM_NATIVE", "0")
    library.cache_clear()
    try:
        assert (
            model_of_run(run)["reading"] == "by torch: SEQLOOM_NATIVE=0 forbids the compiled call"
        )
        with pytest.raises(seqloom.errors.UsageError, match="must be float32 here, but is int8"):
            evaluate(run, [test], {}, {"weights": "int8"})
    finally:
        library.cache_clear()
