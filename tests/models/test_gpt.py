"""GPT: its equations written out, the published models with the same weights, and the laws of what a token
sees."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.explaining.studies.attention_maps import attention_maps
from seqloom.layers.transformer.feed_forward import ACTIVATIONS
from seqloom.layers.transformer.key_value_cache import KeyValueCache
from seqloom.layers.transformer.positions import apply_rotary, rotary_angles, sinusoids
from seqloom.models.gpt import ABOUT, GPT, SIZES, GPTConfig
from seqloom.protocols import NeuralDecodable, fork, select_rows
from seqloom.shapes import IGNORE
from seqloom.text.special_tokens import BOS, EOS, PAD

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = GPTConfig(
    vocabulary_size=9, context=12, width=8, layers=2, heads=2, dropout=0.0, embedding_dropout=0.0
)
KINDS: dict[str, dict[str, Any]] = {
    "learned": {},
    "norm after": {"norm": "after"},
    "sinusoidal, no biases": {"positions": "sinusoidal", "biases": False, "activation": "relu"},
    "rotary, untied": {
        "positions": "rotary",
        "tie_output": False,
        "activation": "silu",
        "feed_forward_width": 5,
    },
    "no positions, gelu-tanh": {"positions": "none", "activation": "gelu-tanh", "layers": 1},
}
DOCUMENTS = [[BOS, 3, 5, 3, 7], [BOS, 4], [BOS, 8, 8, 2, 4, 3]]


def drawn(config: GPTConfig = TINY, **changes: Any) -> GPT:
    """With every weight and bias drawn at random, in float64."""
    model = GPT(replace(config, **changes)).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7, generator=generator)
    return model


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> GPT:
    return drawn(**KINDS[request.param])


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def tokens_of(rows: int, steps: int, seed: int = 0) -> Tensor:
    """`<s>`, then anything but `<pad>` and `<s>`."""
    tokens = torch.randint(
        2, TINY.vocabulary_size, (rows, steps), generator=torch.Generator().manual_seed(seed)
    )
    tokens[:, :1] = BOS
    return tokens


def alone(model: GPT, document: list[int]) -> Tensor:
    """Hidden states `(steps, width)`."""
    return model.read(torch.tensor([document]), None)[0][0]


# The equations


def norm(layer: Any, x: Tensor) -> Tensor:
    if isinstance(layer, nn.Identity):
        return x
    y: Tensor = (
        (x - x.mean(-1, keepdim=True))
        / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        * layer.weight
    )
    return y if layer.bias is None else y + layer.bias


def written_attention(model: GPT, layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    c = model.config
    query, keys, values = layer.query_key_value(x).chunk(3, -1)
    d, heads, looks = c.width // c.heads, [], []
    for h in range(c.heads):
        q, k, v = (part[:, h * d : (h + 1) * d] for part in (query, keys, values))
        if c.positions == "rotary":
            by = rotary_angles(torch.arange(len(x)), d, x.dtype)
            q, k = (apply_rotary(part[None, None], by)[0, 0] for part in (q, k))
        scores = q @ k.T / math.sqrt(d) + torch.full(
            (len(x), len(x)), -math.inf, dtype=x.dtype
        ).triu(1)
        looks.append(scores.softmax(-1))
        heads.append(looks[-1] @ v)
    return layer.output(torch.cat(heads, -1)), torch.stack(looks)


def written_out(model: GPT, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """Logits `(steps, vocabulary)` and weights `(layers, heads, steps, steps)`."""
    c = model.config
    x = model.embedding.weight[tokens]
    if c.positions == "learned":
        assert model.positions is not None
        x = x + model.positions.embedding.weight[: len(tokens)]
    if c.positions == "sinusoidal":
        x = x * math.sqrt(c.width) + sinusoids(torch.arange(len(tokens)), c.width, x.dtype)
    looks = []
    for block in model.stack.blocks:
        b: Any = block

        def feed_forward(z: Tensor, b: Any = b) -> Tensor:
            output: Tensor = b.feed_forward.output(
                ACTIVATIONS[c.activation]()(b.feed_forward.hidden(z))
            )
            return output

        if c.norm == "before":
            attended, weights = written_attention(model, b.attention, norm(b.attention_norm, x))
            z = x + attended
            x = z + feed_forward(norm(b.feed_forward_norm, z))
        else:
            attended, weights = written_attention(model, b.attention, x)
            z = norm(b.attention_norm, x + attended)
            x = norm(b.feed_forward_norm, z + feed_forward(z))
        looks.append(weights)
    matrix: Any = model.embedding.weight if c.tie_output else model.output.weight
    return norm(model.stack.norm, x) @ matrix.T, torch.stack(looks)


def looks_of(model: GPT, tokens: Tensor) -> Tensor:
    """`(rows, layers, heads, steps, steps)`"""
    return attention_maps(model, lambda: model(tokens, None))["self"]


@torch.no_grad()
def test_logits_and_weights_are_the_equations(model: GPT) -> None:
    tokens = tokens_of(3, 7)
    logits, state = model(tokens, None)
    looks = looks_of(model, tokens)
    assert looks.shape == (3, model.config.layers, model.config.heads, 7, 7)
    assert state.length == 7
    for row in range(3):
        expected, weights = written_out(model, tokens[row].tolist())
        close(logits[row], expected)
        close(looks[row], weights)


def test_it_is_a_neural_decodable_that_reads_windows(model: GPT) -> None:
    contract: object = model
    assert isinstance(contract, NeuralDecodable)
    assert model.context == 12
    assert not model.carries
    hidden, state = model.read(tokens_of(2, 0), None)
    assert hidden.shape == (2, 0, 8)
    assert state is None


# The published models, with the same weights


def published(kind: str, dtype: torch.dtype) -> tuple[GPT, Any, dict[str, str]]:
    """Ours, theirs, and the names of ours -> of theirs."""
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {
        "vocab_size": 9,
        "n_positions": 12,
        "n_embd": 8,
        "n_layer": 2,
        "n_head": 2,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    sizes |= {
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    after = kind == "gpt1"
    config, theirs = (
        (transformers.OpenAIGPTConfig, transformers.OpenAIGPTLMHeadModel)
        if after
        else (transformers.GPT2Config, transformers.GPT2LMHeadModel)
    )
    model = drawn(replace(TINY, norm="after" if after else "before", activation="gelu-tanh")).to(
        dtype
    )
    token, position = ("tokens_embed", "positions_embed") if after else ("wte", "wpe")
    parts = {
        "attention_norm": "ln_1",
        "attention.query_key_value": "attn.c_attn",
        "attention.output": "attn.c_proj",
        "feed_forward_norm": "ln_2",
        "feed_forward.hidden": "mlp.c_fc",
        "feed_forward.output": "mlp.c_proj",
    }
    names = {
        "embedding.weight": f"transformer.{token}.weight",
        "positions.embedding.weight": f"transformer.{position}.weight",
    }
    for (ours, its), layer, part in itertools.product(parts.items(), range(2), ("weight", "bias")):
        names[f"stack.blocks.{layer}.{ours}.{part}"] = f"transformer.h.{layer}.{its}.{part}"
    names |= (
        {}
        if after
        else {f"stack.norm.{part}": f"transformer.ln_f.{part}" for part in ("weight", "bias")}
    )
    return model, theirs(config(**sizes)).to(dtype).eval(), names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
@pytest.mark.parametrize("kind", ["gpt1", "gpt2"])
def test_logits_and_gradients_are_those_of_transformers(
    kind: str, dtype: torch.dtype, tolerance: float
) -> None:
    ours, theirs, names = published(kind, dtype)
    assert names.keys() == dict(ours.named_parameters()).keys()
    assert set(names.values()) == dict(theirs.named_parameters()).keys()

    def oriented(name: str, value: Tensor) -> Tensor:
        """Their Conv1D holds a matrix the other way round."""
        return (
            value.T
            if name.endswith(("query_key_value.weight", "output.weight", "hidden.weight"))
            else value
        )

    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.mul_(0.5)  # so that logits are of the size of 1
            theirs.get_parameter(names[name]).copy_(oriented(name, parameter))
    tokens = tokens_of(3, 12)
    logits, expected = ours(tokens, None)[0], theirs(tokens).logits
    assert float((logits - expected).detach().abs().max()) <= tolerance
    wanted = torch.randn(
        logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    ).to(dtype)
    (logits * wanted).sum().backward()
    (expected * wanted).sum().backward()
    for name, parameter in ours.named_parameters():
        gradient = oriented(name, theirs.get_parameter(names[name]).grad)
        assert parameter.grad is not None
        assert float((parameter.grad - gradient).norm() / gradient.norm()) <= tolerance, name


# What a token sees


@torch.no_grad()
def test_an_output_depends_on_what_stands_before_it_only(model: GPT) -> None:
    tokens = tokens_of(1, 8)
    hidden, _ = model.read(tokens, None)
    for changed in range(1, 8):
        other = tokens.clone()
        other[0, changed] = 2 + (tokens[0, changed] - 1) % 7
        found, _ = model.read(other, None)
        close(found[:, :changed], hidden[:, :changed])
        assert bool(((found - hidden)[0, changed:].abs().amax(-1) > 1e-6).all())


@pytest.mark.parametrize("gradients", [True, False])
def test_in_pieces_with_rows_permuted_and_repeated_is_at_once(model: GPT, gradients: bool) -> None:
    chance = random.Random(0)
    tokens = tokens_of(3, 12)
    with torch.set_grad_enabled(gradients):
        whole, _ = model(tokens, None)
        for cuts in ([*range(1, 12)], [5], [1, 8], [2, 3, 4, 9]):
            state, rows = None, torch.arange(3)
            for piece, part in zip(
                tokens.tensor_split(cuts, 1), whole.tensor_split(cuts, 1), strict=True
            ):
                logits, state = model(piece[rows], state)
                close(logits, part[rows])
                choice = torch.tensor(
                    [chance.randrange(len(rows)) for _ in range(chance.randint(2, 4))]
                )
                state, rows = select_rows(state, choice), rows[choice]


@torch.no_grad()
@pytest.mark.parametrize("documents", ["separate", "joined"])
def test_padding_is_a_step_that_does_not_happen(
    model: GPT, documents: Literal["separate", "joined"]
) -> None:
    model = drawn(replace(model.config, documents=documents))
    rows = [[BOS, 3, 5, 3], [BOS, 4], [BOS, 8, BOS, 2, 4, 3]]
    layouts = {
        "right": [row + [PAD] * (6 - len(row)) for row in rows],
        "left": [[PAD] * (6 - len(row)) + row for row in rows],
        "between": [
            [token for pair in zip(row, [PAD] * 6, strict=False) for token in pair]
            + [PAD] * 2 * (6 - len(row))
            for row in rows
        ],
    }
    more = torch.tensor([[3, 6], [5, 5], [4, 3]])
    for padded in layouts.values():
        tokens = torch.tensor(padded)
        for cuts in ([], [1, 2, 3, 4, 5], [3]):
            state, found = None, []
            for piece in tokens.tensor_split(cuts, 1):
                logits, state = model(piece, state)
                found.append(logits)
            together = torch.cat(found, 1)
            assert bool(together.isfinite().all())
            after, _ = model(more, state)
            for row, document in enumerate(rows):
                expected, of_row = model(torch.tensor([document]), None)
                close(together[row][tokens[row] != PAD], expected[0])
                close(after[row], model(more[row : row + 1], of_row)[0][0])


def packed(documents: list[list[int]]) -> Tensor:
    return torch.tensor([list(itertools.chain(*documents))])


def targets_of(tokens: Tensor) -> Tensor:
    """Each next token; `<s>` is never predicted, and at the end stands `</s>`."""
    following = F.pad(tokens[:, 1:], (0, 1), value=EOS)
    return following.masked_fill(following == BOS, EOS)


def test_packed_documents_are_the_documents_one_by_one(model: GPT) -> None:
    """Hidden states, loss, and gradients; the row may be longer than the context."""
    tokens = packed(DOCUMENTS)
    assert tokens.shape[1] > model.context
    parameters = list(model.parameters())
    hidden, state = model.read(tokens, None)
    loss = model.output.loss(hidden, targets_of(tokens))
    separate = [
        model.output.loss(alone(model, one), targets_of(torch.tensor([one]))[0])
        for one in DOCUMENTS
    ]
    close(hidden[0], torch.cat([alone(model, one) for one in DOCUMENTS]))
    close(loss.total, sum(one.total for one in separate))  # type: ignore[arg-type]
    assert loss.count == sum(one.count for one in separate)
    gradients = torch.autograd.grad(loss.total, parameters)
    for found, expected in zip(
        gradients,
        torch.autograd.grad(sum(one.total for one in separate), parameters),  # type: ignore[arg-type]
        strict=True,
    ):
        close(found, expected)
    with torch.no_grad():  # in pieces too, one of which begins with <s>; and on with the last one
        stepped, pieces = None, []
        for piece in tokens.tensor_split([4, 5, 7, 12], 1):
            part, stepped = model.read(piece, stepped)
            pieces.append(part)
        close(torch.cat(pieces, 1), hidden)
        for after in (state, stepped):
            assert isinstance(after, KeyValueCache)
            close(
                model.read(torch.tensor([[6, 5]]), after)[0][0],
                alone(model, [*DOCUMENTS[-1], 6, 5])[-2:],
            )


@torch.no_grad()
def test_joined_documents_are_one_text(model: GPT) -> None:
    model = drawn(replace(model.config, documents="joined"))
    tokens = torch.tensor([[BOS, 3, 5, BOS, 4, 4]])
    close(model(tokens, None)[0][0], written_out(model, tokens[0].tolist())[0])
    _, state = model(tokens[:, :2], None)
    close(model(tokens[:, 2:], state)[0], model(tokens, None)[0][:, 2:])


@torch.no_grad()
def test_a_batch_is_its_rows_alone(model: GPT) -> None:
    tokens = tokens_of(4, 6)
    tokens[2, 3], tokens[3, 4:] = BOS, PAD
    hidden, _ = model.read(tokens, None)
    looks = looks_of(model, tokens)
    for row in range(4):
        true = tokens[row : row + 1] != PAD
        close(hidden[row][true[0]], model.read(tokens[row : row + 1], None)[0][0][true[0]])
        close(looks[row], looks_of(model, tokens[row : row + 1])[0])
    assert torch.equal(looks[2, :, :, 3:, :3], torch.zeros_like(looks[2, :, :, 3:, :3]))
    assert torch.equal(looks[3, :, :, :, 4:], torch.zeros_like(looks[3, :, :, :, 4:]))


@torch.no_grad()
def test_a_fork_goes_on_by_itself(model: GPT) -> None:
    _, state = model.read(tokens_of(2, 5), None)
    _, state = model.read(torch.tensor([[3], [4]]), state)  # now in a buffer
    twin = fork(state)
    expected, _ = model.read(torch.tensor([[5], [6]]), fork(state))
    model.read(torch.tensor([[7], [7]]), state)
    close(model.read(torch.tensor([[5], [6]]), twin)[0], expected)


# Positions


@torch.no_grad()
def test_learned_positions_say_their_limit() -> None:
    model = drawn()
    _, state = model.read(tokens_of(2, 12), None)
    for tokens, before in ((tokens_of(2, 13), None), (torch.tensor([[3], [3]]), state)):
        with pytest.raises(UsageError, match=r"at most 12 tokens .* one has 13; .*model\.context"):
            model.read(tokens, before)
    padded = F.pad(tokens_of(2, 12), (5, 0), value=PAD)
    close(model.read(padded, None)[0][:, 5:], model.read(tokens_of(2, 12), None)[0])
    with pytest.raises(UsageError, match="one has 13"):
        model.read(F.pad(tokens_of(2, 13), (5, 0), value=PAD), None)
    for positions in ("sinusoidal", "rotary", "none"):
        hidden, _ = drawn(positions=positions).read(tokens_of(2, 40), None)
        assert bool(hidden.isfinite().all())


@torch.no_grad()
def test_rotary_positions_tell_distances_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """All positions moved by the same number: the same outputs. Sinusoidal ones tell the difference."""
    tokens = tokens_of(2, 5)
    for positions, formula in (("rotary", rotary_angles), ("sinusoidal", sinusoids)):
        model = drawn(positions=positions)
        expected, _ = model.read(tokens, None)
        with monkeypatch.context() as patched:
            moved = partial(lambda formula, at, *more: formula(at + 50, *more), formula)
            patched.setattr(f"seqloom.models.gpt.{formula.__name__}", moved)
            found, _ = model.read(tokens, None)
        assert torch.allclose(found, expected, rtol=1e-10, atol=1e-10) == (positions == "rotary")


@torch.no_grad()
def test_without_positions_the_order_of_earlier_tokens_is_nothing_to_one_layer() -> None:
    tokens, swapped = torch.tensor([[BOS, 3, 4, 5, 6]]), torch.tensor([[BOS, 5, 3, 4, 6]])
    for positions in ("none", "learned", "sinusoidal", "rotary"):
        model = drawn(positions=positions, layers=1)
        last, other = (model.read(row, None)[0][:, -1] for row in (tokens, swapped))
        assert torch.allclose(last, other, rtol=1e-10, atol=1e-10) == (positions == "none")


# How it runs


class Calls(list[tuple[bool, bool]]):
    """(whether there was a mask, whether it was causal) of each attention."""

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        attend = F.scaled_dot_product_attention

        def watched(*parts: Any, **options: Any) -> Tensor:
            self.append((options["attn_mask"] is not None, options["is_causal"]))
            return attend(*parts, **options)

        monkeypatch.setattr(F, "scaled_dot_product_attention", watched)


@torch.no_grad()
def test_a_mask_is_formed_only_where_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    calls.watch(monkeypatch)
    model = drawn(layers=1)
    _, state = model.read(tokens_of(2, 5), None)
    assert calls.pop() == (False, True)
    _, state = model.read(torch.tensor([[3], [4]]), state)
    assert calls.pop() == (False, False)
    model.read(torch.tensor([[3, 4], [4, 5]]), state)
    assert calls.pop() == (True, False)
    for tokens in (packed(DOCUMENTS), torch.tensor([[BOS, 3, PAD]])):
        model.read(tokens, None)
        assert calls.pop() == (True, False)
    drawn(layers=1, documents="joined").read(torch.tensor([[BOS, 3, BOS]]), None)
    assert calls.pop() == (False, True)


@torch.no_grad()
def test_a_long_text_is_read_into_few_buffers() -> None:
    model = drawn(positions="rotary", layers=1)
    state, buffers = None, set()
    for token in tokens_of(1, 300).T[:, None]:
        _, state = model.read(token, state)
        assert state is not None
        buffers.add(state.layers[0].keys.data_ptr())
    assert len(buffers) <= 5


def test_dropout_is_in_training_only() -> None:
    tokens = tokens_of(2, 6)
    for name in ("dropout", "embedding_dropout", "attention_dropout"):
        changes: dict[str, Any] = {name: 0.5}
        model = drawn(**changes)
        close(model(tokens, None)[0], drawn()(tokens, None)[0])
        model.train()
        assert not torch.allclose(model(tokens, None)[0], model(tokens, None)[0])


# Beginning and sizes


def test_weights_begin_as_published() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary_size=500, width=128, layers=8, heads=4, tie_output=False))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert bool((parameter == (0.0 if name.endswith("bias") else 1.0)).all())
            continue
        expected = (
            0.02 / 4
            if name.endswith(("attention.output.weight", "feed_forward.output.weight"))
            else 0.02
        )
        assert float(parameter.detach().std()) == pytest.approx(expected, rel=0.05), name


@pytest.mark.parametrize(
    ("size", "vocabulary", "parameters"),
    [
        ("gpt1", 40478, 116_534_784),
        ("gpt2", 50257, 124_439_808),
        ("gpt2-medium", 50257, 354_823_168),
        ("gpt2-large", 50257, 774_030_080),
        ("gpt2-xl", 50257, 1_557_611_200),
    ],
)
def test_published_sizes_have_the_published_parameters(
    size: str, vocabulary: int, parameters: int
) -> None:
    """As counted by transformers for openai-gpt, gpt2, gpt2-medium, gpt2-large and gpt2-xl."""
    with torch.device("meta"):
        model = GPT(GPTConfig(vocabulary_size=vocabulary, **SIZES[size]))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_every_size_is_described_and_valid() -> None:
    assert SIZES.keys() == ABOUT.keys()
    for size in SIZES.values():
        GPTConfig(vocabulary_size=99, **size)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, r"model\.heads must divide model\.width, but 8 is not a multiple of 3"),
        ({"heads": 8, "positions": "rotary"}, "rotary needs heads of an even width, .* is 1"),
        (
            {"width": 0, "heads": 0},
            r"model\.width must be at least 1, but is 0; model\.heads must be at least 1, but is 0",
        ),
        ({"feed_forward_width": 0}, r"model\.feed_forward_width must be at least 1"),
        (
            {"activation": "swich"},
            r"model\.activation must be one of gelu, gelu-tanh, relu, silu, swish, tanh, but is 'swich'",
        ),
        ({"attention_dropout": 1.0}, r"model\.attention_dropout must be in \[0, 1\), but is 1.0"),
        ({"bos_id": 0}, "must differ, but both are 0"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(TINY, **changes)


def test_ignored_targets_and_padding_train_nothing() -> None:
    model = drawn()
    tokens = torch.tensor([[BOS, 3, 5, PAD], [BOS, 4, PAD, PAD]])
    targets = torch.tensor([[3, 5, EOS, IGNORE], [4, EOS, IGNORE, IGNORE]])
    loss = model.output.loss(model.read(tokens, None)[0], targets)
    logits, _ = model(tokens, None)
    close(loss.total, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))
    gradients = torch.autograd.grad(loss.total, list(model.parameters()))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
