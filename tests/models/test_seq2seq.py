"""The recurrent encoder-decoder: its equations written out, its choices, its sizes, and what its state
shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqloom.decoding.generate import GenerationOptions, generate
from seqloom.decoding.logits_processors import forbid
from seqloom.decoding.strategies import BeamSearch
from seqloom.errors import UsageError
from seqloom.explaining.studies.attention_maps import attention_maps
from seqloom.layers.attention import AdditiveScores, BilinearScores
from seqloom.layers.recurrent.cells import CELLS
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.models import MODELS, model_family
from seqloom.models.seq2seq import SIZES, Seq2Seq, Seq2SeqConfig, Seq2SeqState
from seqloom.protocols import State, fork, select_rows
from seqloom.text.special_tokens import BOS, EOS, PAD

TINY = Seq2SeqConfig(
    vocabulary_size=7,
    embedding_width=4,
    encoder_width=3,
    width=6,
    attention_width=5,
    readout_width=4,
    cell="gru",
    dropout=0.0,
)
SOURCE, TOKENS = [5, 3, 4, 6, EOS], [BOS, 4, 4, 6, 3]


def drawn(config: Seq2SeqConfig = TINY, **changes: Any) -> Seq2Seq:
    """With every weight and bias drawn at random."""
    model = Seq2Seq(replace(config, **changes)).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.7, generator=generator)
    return model


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def ids(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


# The equations, one row and one step at a time


def gru(layer: RecurrentLayer, x: Tensor, h: Tensor) -> Tensor:
    x_r, x_z, x_h = (layer.weight_x @ x + layer.bias).chunk(3)
    h_r, h_z, w_h = layer.weight_h.chunk(3)
    r, z = torch.sigmoid(x_r + h_r @ h), torch.sigmoid(x_z + h_z @ h)
    return z * h + (1 - z) * torch.tanh(x_h + w_h @ (r * h))


def energy(model: Seq2Seq, s: Tensor, h: Tensor) -> Tensor:
    scores = model.attention
    if isinstance(scores, AdditiveScores):
        w, u, v = scores.query, scores.memory, scores.score
        return v.weight[0] @ torch.tanh(w.weight @ s + w.bias + u.weight @ h)
    return s @ (scores.memory.weight @ h) if isinstance(scores, BilinearScores) else s @ h


def written_out(model: Seq2Seq, source: list[int], tokens: list[int]) -> Tensor:
    """Logits `(steps, vocabulary)` of a model of published GRUs."""
    c = model.config
    memory, ends = encoded(model, source)
    layers = first_states(model, ends)
    one_vector = torch.cat(ends[-1])
    logits = []
    for token in tokens:
        y = model.target_embedding.weight[token]
        context = one_vector
        if model.attention is not None and c.attend_from == "previous":
            context = looked_up(model, layers[-1], memory)
        enters = (
            c.attend_from == "previous" if model.attention is not None else c.context != "initial"
        )
        below = torch.cat([y, context]) if enters else y
        for k, layer in enumerate(model.decoder.stack):
            below = layers[k] = gru(layer, below, layers[k])
        if model.attention is not None and c.attend_from == "current":
            context = looked_up(model, layers[-1], memory)
        assert model.output.bias is not None
        logits.append(
            model.output.weight @ deep_output(model, layers[-1], y, context) + model.output.bias
        )
    return torch.stack(logits)


def encoded(model: Seq2Seq, source: list[int]) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """h_i of the top layer, and (→h_n, ←h_1) of each layer."""
    states = [
        model.source_embedding.weight[i]
        for i in (source[::-1] if model.config.reverse_source else source)
    ]
    ends = []
    for ahead, back in zip(model.encoder.stack, model.encoder.backward_layers, strict=True):
        assert isinstance(back, RecurrentLayer)
        right, left = all_states(ahead, states), all_states(back, states[::-1])[::-1]
        ends.append((right[-1], left[0]))
        states = [torch.cat(pair) for pair in zip(right, left, strict=True)]
    return states, ends


def all_states(layer: RecurrentLayer, inputs: list[Tensor]) -> list[Tensor]:
    states = [torch.zeros(layer.width).double()]
    for x in inputs:
        states.append(gru(layer, x, states[-1]))
    return states[1:]


def first_states(model: Seq2Seq, ends: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """s_0 of each decoder layer, where there are as many layers as in the encoder."""
    c = model.config
    if c.attention == "none" and c.context == "every_step":
        return [torch.zeros(c.width).double() for _ in ends]
    given = [back if c.bridge == "backward" else torch.cat([ahead, back]) for ahead, back in ends]
    if c.bridge == "final" and len(given[0]) == c.width:
        return given
    maps = [linear for linear in model.bridge.maps if isinstance(linear, nn.Linear)]
    return [
        torch.tanh(linear.weight @ h + linear.bias) for linear, h in zip(maps, given, strict=True)
    ]


def looked_up(model: Seq2Seq, s: Tensor, memory: list[Tensor]) -> Tensor:
    weights = torch.stack([energy(model, s, h) for h in memory]).exp()
    return sum(
        (a * h for a, h in zip(weights / weights.sum(), memory, strict=True)),
        torch.zeros_like(memory[0]),
    )


def deep_output(model: Seq2Seq, s: Tensor, y: Tensor, context: Tensor) -> Tensor:
    c = model.config
    if c.readout == "none":
        return s
    parts = [s, y] if c.attention == "none" and c.context == "initial" else [s, y, context]
    mixed = model.readout.linear.weight @ torch.cat(parts) + model.readout.linear.bias
    if c.readout == "linear":
        return mixed
    return torch.stack(
        [torch.maximum(mixed[k], mixed[k + c.readout_width]) for k in range(c.readout_width)]
    )


KINDS: dict[str, dict[str, Any]] = {
    **{
        f"{attention} from {query}": {"attention": attention, "attend_from": query}
        for attention in ("additive", "dot", "bilinear")
        for query in ("previous", "current")
    },
    **{
        f"context {context}": {"attention": "none", "context": context}
        for context in ("initial", "every_step", "both")
    },
    **{
        f"2 layers, {attention} from {query}": {
            "attention": attention,
            "attend_from": query,
            "encoder_layers": 2,
            "decoder_layers": 2,
        }
        for attention, query in (
            ("additive", "previous"),
            ("additive", "current"),
            ("none", "previous"),
        )
    },
    "2 layers, bridge by maps": {"width": 5, "encoder_layers": 2, "decoder_layers": 2},
    "bridge by a map": {"width": 5},
    "backward bridge": {"bridge": "backward"},
    "backward bridge of equal widths": {"bridge": "backward", "width": 3},
    "linear readout": {"readout": "linear"},
    "no readout": {"readout": "none", "readout_width": 6},
    "two embeddings, tied output": {"share_embeddings": False, "tie_output": True},
    "reversed source": {"reverse_source": True},
    "reversed source, one vector": {"reverse_source": True, "attention": "none"},
}


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_model_is_its_equations(kind: str) -> None:
    model = drawn(**KINDS[kind])
    logits, _ = model(ids(TOKENS), model.encode(ids(SOURCE)))
    close(logits[0], written_out(model, SOURCE, TOKENS))


@torch.no_grad()
@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [(3, 2), (1, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("bridge", ["final", "backward"])
def test_bridge_starts_each_layer_from_that_of_the_encoder(
    bridge: str, layers: tuple[int, int], cell: str
) -> None:
    """The stacks are aligned at the top, so the encoder's top layer is never left out; c_0 likewise."""
    for width in (6, 5):
        model = drawn(
            cell=cell,
            encoder_layers=layers[0],
            decoder_layers=layers[1],
            bridge=bridge,
            width=width,
        )
        source = ids(SOURCE)
        _, final = model.encoder(model.source_embedding(source))
        state = model.encode(source).hidden
        assert len(state) == len(final)
        maps = iter(model.bridge.maps)
        for part, ends in zip(state, final, strict=True):
            for k in range(layers[1]):
                at = 2 * min(k + max(layers[0] - layers[1], 0), layers[0] - 1)
                given = (
                    ends[0, at + 1]
                    if bridge == "backward"
                    else torch.cat([ends[0, at], ends[0, at + 1]])
                )
                identity = bridge == "final" and width == 6
                close(part[0, k], given if identity else torch.tanh(next(maps)(given)))
        assert next(maps, None) is None


# Choices


@torch.no_grad()
def test_contexts_enter_where_they_say() -> None:
    for context, starts, repeats in (
        ("initial", True, False),
        ("every_step", False, True),
        ("both", True, True),
    ):
        model = drawn(attention="none", context=context)
        state = model.encode(ids(SOURCE))
        assert bool(state.hidden[0].any()) == starts
        before, _ = model(ids(TOKENS), state)
        state = model.encode(ids(SOURCE))
        state.memory.value.values.zero_()
        after, _ = model(ids(TOKENS), state)
        assert torch.allclose(before, after) != repeats


def looks_of(model: Seq2Seq, tokens: Tensor, sources: Tensor) -> Tensor:
    """`(rows, steps, source)`"""
    maps = attention_maps(model, lambda: model(tokens, model.encode(sources)))
    return maps["cross"][:, 0, 0]


@torch.no_grad()
def test_a_reversed_source_is_the_true_tokens_reversed_and_attention_still_points_at_them() -> None:
    for attention in ("additive", "none"):
        plain = drawn(attention=attention)
        turned = drawn(attention=attention, reverse_source=True)
        turned.load_state_dict(plain.state_dict())
        sources, flipped = (
            ids(SOURCE, [4, 6, EOS, PAD, PAD]),
            ids(SOURCE[::-1], [EOS, 6, 4, PAD, PAD]),
        )
        tokens = ids(TOKENS, TOKENS)
        close(turned(tokens, turned.encode(sources))[0], plain(tokens, plain.encode(flipped))[0])
        assert not torch.allclose(
            turned(tokens, turned.encode(sources))[0], plain(tokens, plain.encode(sources))[0]
        )
        if attention != "none":
            looks, expected = looks_of(turned, tokens, sources), looks_of(plain, tokens, flipped)
            close(looks[0], expected[0].flip(-1))
            close(looks[1, :, :3], expected[1, :, :3].flip(-1))


@torch.no_grad()
@pytest.mark.parametrize("query", ["previous", "current"])
@pytest.mark.parametrize("attention", ["additive", "dot", "bilinear"])
def test_attended_rows_sum_to_1_over_true_tokens_only(attention: str, query: str) -> None:
    model = drawn(attention=attention, attend_from=query)
    short = [4, 3, EOS]
    alone = looks_of(model, ids(TOKENS), ids(short))
    assert alone.shape == (1, len(TOKENS), len(short))
    for pads, places in (([PAD, PAD], slice(0, 3)), ([], slice(2, 5))):
        sources = ids(SOURCE, [*short, *pads] if pads else [PAD, PAD, *short])
        looks = looks_of(model, ids(TOKENS, TOKENS), sources)
        close(looks.sum(-1), torch.ones(2, len(TOKENS)).double())
        close(looks[1, :, places], alone[0])
        assert looks[1][:, sources[1] == PAD].eq(0).all()
        assert looks[0].gt(0).all()


def test_without_attention_there_is_nothing_to_look_at() -> None:
    model = drawn(attention="none")
    assert attention_maps(model, lambda: model(ids(TOKENS), model.encode(ids(SOURCE)))) == {}


def test_embeddings_are_shared_and_tied_as_asked() -> None:
    shared, apart, tied = drawn(), drawn(share_embeddings=False), drawn(tie_output=True)
    assert shared.source_embedding is shared.target_embedding
    assert apart.source_embedding is not apart.target_embedding
    assert tied.output.weight is tied.target_embedding.weight
    assert shared.output.weight is not shared.target_embedding.weight
    assert parameters(apart) == parameters(shared) + 7 * 4 == parameters(tied) + 2 * 7 * 4


def test_dropout_is_off_in_evaluation_and_on_in_training() -> None:
    model = drawn(dropout=0.5)
    evaluated = [model(ids(TOKENS), model.encode(ids(SOURCE)))[0] for _ in range(2)]
    assert torch.equal(*evaluated)
    model.train()
    trained = [model(ids(TOKENS), model.encode(ids(SOURCE)))[0] for _ in range(2)]
    assert not torch.allclose(*trained)


# The state


class Watched:
    """A model that notes, at each call, how many rows there were and which memory they read."""

    def __init__(self, model: Seq2Seq) -> None:
        self.model, self.rows, self.memories = model, list[int](), list[Any]()

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        self.rows.append(len(tokens))
        self.memories.append(state.memory)
        logits, after = self.model(tokens, state)
        return logits, after


@pytest.mark.parametrize("attention", ["additive", "none"])
def test_a_beam_reads_the_one_memory_of_its_input(attention: str) -> None:
    watched = Watched(drawn(attention=attention))
    state = watched.model.encode(ids(SOURCE))
    (found,) = generate(
        watched,
        state,
        [[BOS]],
        [6],
        GenerationOptions(
            strategy=BeamSearch(width=5, n_best=5),
            eos=EOS,
            pad=PAD,
            processors=[forbid([PAD, BOS])],
        ),
    )
    assert len(found) == 5
    assert max(watched.rows) > 3
    assert all(memory is state.memory for memory in watched.memories)
    assert all(len(part) == 1 for part in state.memory.value)


@torch.no_grad()
def test_choosing_or_forking_rows_leaves_the_memory_where_it_is() -> None:
    model = drawn()
    state = model.encode(ids(SOURCE, [4, 3, EOS, PAD, PAD]))
    few: Seq2SeqState = select_rows(state, torch.tensor([1, 1, 0]))
    assert few.memory is state.memory
    assert few.source.tolist() == [1, 1, 0]
    twin: Seq2SeqState = fork(state)
    assert twin.memory is state.memory
    assert isinstance(few, Seq2SeqState)
    close(model(ids(TOKENS, TOKENS), twin)[0], model(ids(TOKENS, TOKENS), state)[0])


# Configuration and sizes


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        Seq2SeqConfig(
            vocabulary_size=0,
            width=-1,
            attention_width=0,
            cell="gur",
            dropout=1.0,
            attention="dot",
            bidirectional=False,
            bridge="backward",
            tie_output=True,
            readout_width=3,
            readout="none",
        )
    message = str(caught.value)
    for part in (
        "model.vocabulary_size must be at least 1, but is 0",
        "model.width must be at least 1, but is -1",
        "model.attention_width must be at least 1, but is 0",
        f"model.cell must be one of {', '.join(CELLS)}, but is 'gur'",
        "model.dropout must be in [0, 1), but is 1.0",
        "dot attention needs model.width equal to the encoder's output width, but -1 is not 256",
        "model.tie_output needs readout_width = embedding_width, but 3 is not 256",
        "model.readout=none needs model.readout_width = model.width, but 3 is not -1",
        "model.bridge can be 'backward' only where model.bidirectional is true",
    ):
        assert part in message
    assert "\n" not in message
    assert message.count(";") == 8


def test_a_wrong_choice_lists_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match=r"attention must be one of additive, dot, bilinear, none, but is 'cosine'"
    ):
        replace(TINY, attention="cosine")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"but is -0\.1"):
        replace(TINY, dropout=-0.1)
    with pytest.raises(UsageError, match=r"model must be one of ngram, .*seq2seq.*, but is 'rnn'"):
        model_family("rnn")
    assert model_family("seq2seq") == (Seq2SeqConfig, Seq2Seq, SIZES)
    assert "seq2seq" in MODELS


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def on_meta(size: str, vocabulary: int) -> Seq2Seq:
    with torch.device("meta"):
        return Seq2Seq(Seq2SeqConfig(vocabulary_size=vocabulary, **SIZES[size]))


def test_cho2014_has_the_figures_of_the_paper() -> None:
    """Section 4.1 and appendix: 1,000 hidden units, embeddings of 100, 500 maxout units; the context vector
    is the first state and an input at every step."""
    model = on_meta("cho2014", 15_000)
    (encoder,), (decoder,) = model.encoder.stack, model.decoder.stack
    assert encoder.weight_h.shape == decoder.weight_h.shape == (3000, 1000)
    assert encoder.weight_x.shape == (3000, 100)
    assert decoder.weight_x.shape == (3000, 100 + 1000)
    assert model.readout.linear.out_features == 2 * 500
    assert model.attention is None


def test_luong_is_another_name_of_attention_from_the_current_state() -> None:
    current, luong = drawn(attend_from="current"), drawn(attend_from="luong")
    luong.load_state_dict(current.state_dict())
    before = [model.encode(ids(SOURCE)) for model in (current, luong)]
    assert torch.equal(current(ids(TOKENS), before[0])[0], luong(ids(TOKENS), before[1])[0])


def test_sutskever2014_has_the_figures_of_the_paper() -> None:
    """4 layers of 1000 LSTM cells, embeddings of 1000; "64M are pure recurrent connections (32M for
    each)"."""
    vocabulary = 80_000
    model = on_meta("sutskever2014", vocabulary)
    for stack in (model.encoder, model.decoder):
        assert (
            sum(layer.weight_x.numel() + layer.weight_h.numel() for layer in stack.stack)
            == 32_000_000
        )
        assert not stack.config.bidirectional
    biases = 2 * 4 * 4000 + vocabulary
    assert parameters(model) == 64_000_000 + 3 * vocabulary * 1000 + biases
    assert model.config.reverse_source
    assert model.attention is None
    assert not model.reads_context


def test_bahdanau2015_has_the_figures_of_the_paper() -> None:
    """RNNsearch: n = 1000, m = 620, n' = 1000, l = 500, s_0 from ←h_1; K_x = K_y = 30,000."""
    k, n, m, inner, deep = 30_000, 1000, 620, 1000, 500
    model = on_meta("bahdanau2015", k)
    embeddings = 2 * k * m
    encoder = 2 * 3 * (n * m + n * n + n)
    first_state = n * n + n
    decoder = 3 * (n * m + n * n + 2 * n * n + n)
    attention = inner * n + inner + inner * 2 * n + inner
    readout = 2 * deep * (n + m + 2 * n) + 2 * deep
    output = k * deep + k
    assert (
        parameters(model)
        == embeddings + encoder + first_state + decoder + attention + readout + output
    )
    assert isinstance(model.attention, AdditiveScores)
    assert model.config.attend_from == "previous"
    assert model.config.bidirectional


def test_every_size_is_a_model() -> None:
    counted = {name: parameters(on_meta(name, 8000)) for name in SIZES}
    assert (
        counted["tiny"]
        < counted["small"]
        < counted["medium"]
        < counted["bahdanau2015"]
        < counted["sutskever2014"]
    )


@pytest.mark.parametrize("attention", ["additive", "none"])
@pytest.mark.parametrize("cell", CELLS)
def test_bfloat16_autocast_trains_and_is_close(cell: str, attention: Any) -> None:
    torch.manual_seed(0)
    model = Seq2Seq(replace(TINY, cell=cell, attention=attention, decoder_layers=2, dropout=0.0))
    source, tokens = (
        torch.randint(3, TINY.vocabulary_size, (3, 7)),
        torch.randint(3, TINY.vocabulary_size, (3, 5)),
    )
    source[1, 4:] = TINY.pad_id
    expected, _ = model(tokens, model.encode(source))
    with torch.autocast("cpu", torch.bfloat16):
        logits, _ = model(tokens, model.encode(source))
        torch.autograd.backward(logits.float().logsumexp(-1).sum())
    torch.testing.assert_close(logits.float(), expected, rtol=0.1, atol=0.1)
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all()
        for parameter in model.parameters()
    )
