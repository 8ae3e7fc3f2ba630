"""Whatever shapes, strides and types compiled calls are given: they answer as torch does, or refuse in Python
before an address is given away. `make check-native` runs this with every array guarded."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.layers.outputs.likeliest import NativeOutput
from seqloom.layers.packed_linear import packed_product
from seqloom.layers.recurrent.compiled_products import gemm
from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.blocks import AttentionInputs, Stack
from seqloom.layers.transformer.cached_rows import reorder_rows
from seqloom.layers.transformer.cross_attention import CrossAttentionInputs, DecoderState
from seqloom.layers.transformer.key_value_cache import KeysValues
from seqloom.layers.transformer.native_step import read_target
from seqloom.layers.transformer.token_embedding import TokenEmbedding
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from seqloom.native.library import library
from seqloom.packed_weights import PackedWeights, Storage
from seqloom.protocols import Shared, WantedTokens

pytestmark = pytest.mark.skipif(
    library() is None, reason="the compiled calls need a C++ compiler when the project is installed"
)

SIZES = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 33, 70])
TYPES = st.sampled_from([torch.float32] * 6 + [torch.float64, torch.bfloat16, torch.long])
LAYOUTS = st.sampled_from(["rows", "columns", "apart", "neither", "one row", "backwards"])


@st.composite
def matrices(draw: st.DrawFn, rows: int, columns: int, exact: bool = False) -> Tensor:
    """Of a size, or nearly; of some type, lying in some way in memory."""
    if not exact:
        rows += draw(st.sampled_from([0] * 9 + [1]))
        columns += draw(st.sampled_from([0] * 9 + [1]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    values = torch.randint(-9, 10, (rows, columns), generator=generator).to(draw(TYPES))
    match draw(LAYOUTS):
        case "columns":
            return values.T.contiguous().T
        case "apart":
            return torch.cat([values, values], dim=1)[:, :columns]
        case "neither":
            return torch.stack([values, values], dim=-1)[..., 0]
        case "one row" if rows:
            return values[:1].expand(rows, columns)
        case "backwards":
            return values.flip(0)
    return values


@st.composite
def orders(draw: st.DrawFn, rows: int) -> Tensor | None:
    """An order of rows: as numbers of 64 bits in a row, or else."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    kind = draw(st.sampled_from(["none", "none", "long", "long", "int", "apart"]))
    if kind == "none":
        return None
    if kind == "apart":
        return torch.stack([order, order + rows], dim=1)[:, 0]
    return order.int() if kind == "int" else order


@settings(max_examples=150, deadline=None)
@given(data=st.data(), rows=SIZES, columns=SIZES, depth=SIZES)
def test_products_of_matrices(data: st.DataObject, rows: int, columns: int, depth: int) -> None:
    a, b = data.draw(matrices(rows, depth)), data.draw(matrices(depth, columns))
    out = torch.zeros(rows, columns)
    bias = data.draw(st.one_of(st.none(), matrices(1, columns).map(lambda one: one[0])))
    order = data.draw(orders(rows))
    expected = None
    # an order may leave rows out
    fits = (len(a) == rows or order is not None) and b.shape == (a.shape[1], columns)
    if fits and (bias is None or bias.shape == (columns,)):
        taken = a if order is None else a[order.long()]
        expected = taken.double() @ b.double() + (0 if bias is None else bias)
    try:
        gemm(a, b, out, bias, a_index=order)
    except ValueError:
        plain = [one.dtype == torch.float32 for one in (a, b) if one is not None]
        by_itself = order is None and a.is_contiguous() and b.is_contiguous()
        assert expected is None or not (all(plain) and by_itself and bias is None)
    else:
        assert expected is not None
        assert torch.equal(out.double(), expected)


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    rows=SIZES,
    inputs=st.integers(1, 70),
    outputs=st.integers(1, 70),
    storage=st.sampled_from(["float32", "bfloat16"]),
)
def test_products_with_packed_weights(
    data: st.DataObject, rows: int, inputs: int, outputs: int, storage: Storage
) -> None:
    x = data.draw(matrices(rows, inputs))
    weight = data.draw(matrices(outputs, inputs, exact=True)).float()
    bias = data.draw(st.one_of(st.none(), matrices(1, outputs).map(lambda one: one[0])))
    biases = [] if bias is None else [bias]
    fits = x.shape[1] == inputs and all(one.shape == (outputs,) for one in biases)
    try:
        found = packed_product(PackedWeights(storage), x, weight, bias)
    except ValueError:
        assert not fits or any(one.dtype != torch.float32 for one in [x, *biases])
    else:
        assert fits
        expected = x.double() @ weight.double().T + (0 if bias is None else bias)
        assert torch.equal(found.double(), expected)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), rows=st.integers(1, 9), outputs=st.integers(1, 300), count=st.integers(1, 9))
def test_the_likeliest(data: st.DataObject, rows: int, outputs: int, count: int) -> None:
    weight = torch.randn(outputs, 5, generator=torch.Generator().manual_seed(outputs))
    forbidden = data.draw(st.lists(st.integers(-3, outputs + 3), max_size=4))
    hidden = data.draw(matrices(rows, 5))
    with torch.inference_mode():
        output = NativeOutput(PackedWeights(), weight, None, forbidden)
        try:
            found = output.likeliest(hidden, WantedTokens(count, tuple(forbidden)))
        except ValueError:
            assert hidden.shape[1] != 5 or hidden.dtype != torch.float32
            return
    assert found.ids is not None
    logits = (hidden @ weight.T).double()
    logits[:, [one for one in forbidden if 0 <= one < outputs]] = -torch.inf
    everything = logits.log_softmax(dim=-1).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    possible = found.log_probs > -torch.inf
    best = everything.topk(min(count, outputs)).values
    assert possible.sum().item() == (best > -torch.inf).sum().item()
    there = everything.gather(1, found.ids)[possible].float()
    torch.testing.assert_close(found.log_probs[possible], there, rtol=1e-4, atol=1e-4)


@cache
def decoders(attention: str) -> tuple[Seq2Seq, Seq2Seq]:
    """A small one, and the same in float64."""
    torch.manual_seed(0)
    sizes = {"embedding_width": 5, "encoder_width": 9, "width": 18, "attention_width": 7}
    config = Seq2SeqConfig(vocabulary_size=20, readout_width=3, attention=attention, **sizes)  # type: ignore[arg-type]
    model = Seq2Seq(config).eval()
    return model, copy.deepcopy(model).double()


@st.composite
def placed(draw: st.DrawFn, tensor: Tensor) -> Tensor:
    """The same numbers in some other place; now and then others."""
    match draw(st.sampled_from(["as it is"] * 9 + ["columns", "apart", "fewer", "type"])):
        case "columns":
            return tensor.transpose(0, -1).contiguous().transpose(0, -1)
        case "apart":
            return torch.stack([tensor, tensor], dim=-1)[..., 0]
        case "fewer":
            return tensor[..., :-1]
        case "type":
            return tensor.double() if tensor.is_floating_point() else tensor.int()
    return tensor


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    attention=st.sampled_from(["additive", "dot", "bilinear", "none"]),
    rows=st.integers(1, 9),
    source=st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=1, max_size=3),
)
def test_steps_of_a_decoder(
    data: st.DataObject, attention: str, rows: int, source: list[list[int]]
) -> None:
    model, exact = decoders(attention)
    inputs = data.draw(st.lists(st.integers(-1, len(source)), min_size=rows, max_size=rows))
    ids = data.draw(st.lists(st.integers(-1, 20), min_size=rows, max_size=rows))
    tokens, read = torch.tensor(ids, dtype=torch.long)[:, None], torch.tensor(inputs).long()
    with torch.inference_mode():
        first = model.encode(torch.tensor(source))
        memory = first.memory.value
        generator = torch.Generator().manual_seed(0)
        h = torch.randn(rows, 1, 18, generator=generator)
        given_ = [*memory[:3], h, read, tokens]
        values, keys, mask, own, reads, asked = (data.draw(placed(part)) for part in given_)
        changed = memory._replace(values=values, keys=keys, mask=mask)
        state = first._replace(hidden=(own,), source=reads, memory=Shared(changed))
        try:
            with PackedWeights():
                found, after = model.read(asked, state)
        except (ValueError, IndexError, RuntimeError):
            alike = zip((values, keys, mask, own, reads, asked), given_, strict=True)
            same = all(a.shape == b.shape and a.dtype == b.dtype for a, b in alike)
            there = all(0 <= one < len(source) for one in inputs)
            assert not (same and there and all(0 <= one < 20 for one in ids))
            return
        # without tokens nothing is read, and all else may be anything
        if not asked.shape[1]:
            return
        whole = memory._replace(values=memory.values.double(), keys=memory.keys.double())
        state = first._replace(hidden=(h.double(),), source=read, memory=Shared(whole))
        expected, then = exact.read(asked, state)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after.hidden[0].double(), then.hidden[0], rtol=1e-4, atol=1e-5)


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(1, 5),
    heads=st.integers(1, 3),
    width=st.integers(1, 5),
    length=st.integers(0, 6),
    kept=st.integers(0, 6),
    kind=st.sampled_from(["float", "double", "bfloat16", "apart", "shorter", "no such row"]),
    seed=st.integers(0, 999),
)
def test_rows_of_caches(
    rows: int, heads: int, width: int, length: int, kept: int, kind: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def drawn(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=generator)

    tokens, inputs, order = drawn(2, rows, 8), drawn(2, rows), drawn(rows, kept)
    # a key is a function of the input and of all tokens so far
    seen = (tokens + 2).cumprod(dim=1) * 100 + tokens.cumsum(dim=1) + inputs[:, None]
    part = (seen[:, None, :, None] + torch.arange(width)).expand(rows, heads, 8, width).float()
    part = {"double": part.double(), "bfloat16": part.bfloat16()}.get(kind, part).contiguous()
    if kind == "apart":
        part = torch.cat([part, part], dim=-1)[..., :width]
    if kind == "no such row" and kept:
        order[-1] = rows
    parts = [part, -part[:, :, :-1] if kind == "shorter" else -part]
    before, ids = [one.clone() for one in parts], tokens.clone()
    possible = kept <= rows and not (kind == "no such row" and kept)
    with torch.inference_mode():
        done = reorder_rows(parts, tokens, length, order, inputs)
    assert done or not possible or kind in ("apart", "shorter")
    for now, old in zip([tokens[:, None], *parts], [ids[:, None], *before], strict=True):
        if done:
            assert torch.equal(now[:kept, :, :length], old[order][:, :, :length])
            old[:kept, :, :length] = now[:kept, :, :length]
        assert torch.equal(now, old)


LAYOUT_OF_MEMORY = st.sampled_from(["whole"] * 5 + ["apart", "double", "no such input"])


@settings(max_examples=80, deadline=None)
@given(data=st.data(), rows=st.integers(1, 5), inputs=st.integers(1, 3), steps=SIZES)
def test_steps_with_an_encoder(data: st.DataObject, rows: int, inputs: int, steps: int) -> None:
    draw, flag = data.draw, st.booleans()
    torch.manual_seed(draw(st.integers(0, 99)))
    config = BlockConfig(
        width=draw(st.sampled_from([1, 7, 16, 20])),
        heads=draw(st.integers(1, 3)),
        head_width=draw(st.sampled_from([1, 5, 16, 17, 64])),
        feed_forward_width=draw(st.integers(1, 40)),
        activation=draw(st.sampled_from(["relu", "gelu"])),
        gated=draw(flag),
        norm=draw(st.sampled_from(["before", "after"])),
        norm_kind=draw(st.sampled_from(["layer", "rms"])),
        biases=draw(flag),
        scaled=draw(flag),
        cross_attention=True,
    )
    stack, exact = Stack(config, 2).eval(), torch.float64
    embedding = torch.nn.Parameter(torch.randn(9, config.width))
    shape = (inputs, config.heads, steps, config.inner_width // config.heads)
    memory = tuple(KeysValues(torch.randn(shape), torch.randn(shape)) for _ in range(2))
    mask = torch.rand(inputs, steps) < 0.7 if draw(flag) else None
    source = torch.randint(0, inputs, (rows,))
    layout = draw(LAYOUT_OF_MEMORY)
    if layout == "no such input":
        source[-1] = inputs
    if layout == "apart":
        memory = tuple(KeysValues(*(one.mT.contiguous().mT for one in layer)) for layer in memory)
    if layout == "double":
        memory = tuple(KeysValues(keys.double(), values.double()) for keys, values in memory)
    state = DecoderState.first(memory, mask)._replace(source=source)
    token_embedding = TokenEmbedding(embedding, 0, 0)
    twin: Any = copy.deepcopy(stack).double()
    past = None
    with torch.inference_mode(), PackedWeights():
        for length in range(3):
            tokens = torch.randint(draw(st.sampled_from([-1, 0, 1, 1, 1, 1])), 9, (rows, 1))
            found = read_target(stack, lambda: token_embedding, tokens, state)
            if found is None:
                even = bool((tokens > 0).all())
                fits = layout == "whole" or (layout == "apart" and min(shape[2:]) < 2)
                assert not even or not fits
                return
            hidden, state = found
            doubled = [KeysValues(one.keys.double(), one.values.double()) for one in memory]
            cross = CrossAttentionInputs.of(
                DecoderState.first(tuple(doubled), mask)._replace(source=source)
            )
            seen = AttentionInputs("all", length)
            expected, past = twin(embedding[tokens].to(exact), seen, past, cross)
            torch.testing.assert_close(hidden.double(), expected, rtol=1e-3, atol=1e-4)
