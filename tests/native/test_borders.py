"""Whatever shapes, strides and types compiled calls are given: they answer as torch does, or refuse in Python
before an address is given away. `make check-native` runs this with every array guarded."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqloom.layers.outputs.likeliest import NativeOutput
from seqloom.layers.packed_linear import packed_product
from seqloom.layers.recurrent.compiled_products import gemm
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
        whole = memory._replace(values=memory.values.double(), keys=memory.keys.double())
        state = first._replace(hidden=(h.double(),), source=read, memory=Shared(whole))
        expected, then = exact.read(asked, state)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after.hidden[0].double(), then.hidden[0], rtol=1e-4, atol=1e-5)
