"""Gradient flow: as written out by hand, whatever the padding, and known where the answer is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from seqloom.data.batching.pair_batches import pair_batch
from seqloom.errors import UsageError
from seqloom.explaining import gradient_flow as module
from seqloom.explaining.gradient_flow import GradientFlow, NormCurve, gradient_flow
from seqloom.layers.recurrent.cells import CELLS, CellState
from seqloom.layers.recurrent.layer import RecurrentLayer
from seqloom.layers.recurrent.stack import RecurrentStack, RecurrentStackConfig
from seqloom.models.seq2seq import Seq2Seq, Seq2SeqConfig
from seqloom.protocols import Loss, detach
from seqloom.training.objectives import Translation

LENGTHS = (6, 3, 1)


def layers(cell: str, width: int = 4, **options: Any) -> RecurrentStack:
    torch.manual_seed(1)
    made = RecurrentStack(RecurrentStackConfig(cell, 3, width, **options)).double()
    with torch.no_grad():
        for layer in made.modules():
            if isinstance(layer, RecurrentLayer):
                layer.weight_h.add_(0.3 * torch.randn_like(layer.weight_h))
                layer.bias.add_(torch.randn_like(layer.bias))
    return made


def rows_of(lengths: Sequence[int], width: int = 3) -> list[Tensor]:
    torch.manual_seed(2)
    return [torch.randn(length, width, dtype=torch.float64) for length in lengths]


def placed(
    rows: list[Tensor], steps: int, place: Callable[[int], list[int]]
) -> tuple[Tensor, Tensor]:
    """Rows in one batch, each at the steps `place(length)`; what is between is noise."""
    inputs = torch.full((len(rows), steps, rows[0].shape[1]), 7.0, dtype=torch.float64)
    mask = torch.zeros(len(rows), steps, dtype=torch.bool)
    for i, row in enumerate(rows):
        inputs[i, place(len(row))] = row
        mask[i, place(len(row))] = True
    return inputs, mask


def flow_of(
    model: RecurrentStack, inputs: Tensor, mask: Tensor, wishes: list[Tensor]
) -> GradientFlow:
    """Of the loss `Σ wish · output` over the true steps."""
    return gradient_flow(model, lambda: (model(inputs, mask)[0][mask] * torch.cat(wishes)).sum())


def curves(flow: GradientFlow) -> dict[str, NormCurve]:
    return {
        f"{layer.name} {state} {kind}": getattr(flowing, kind)
        for layer in flow.layers
        for state, flowing in layer.states.items()
        for kind in ("gradient_from_start", "gradient_from_end", "jacobian")
    }


def assert_same(one: dict[str, NormCurve], other: dict[str, NormCurve]) -> None:
    assert one.keys() == other.keys()
    for name, curve in one.items():
        assert curve.rows == other[name].rows, name
        assert curve.mean == pytest.approx(other[name].mean, rel=1e-9), name
        assert curve.median == pytest.approx(other[name].median, rel=1e-9), name


def pooled(flows: list[GradientFlow]) -> dict[str, NormCurve]:
    """What rows alone give, put together."""
    by_name: dict[str, list[list[float]]] = {}
    for flow in flows:
        for name, curve in curves(flow).items():
            assert curve.mean == curve.median
            by_name.setdefault(name, []).append(curve.mean)
    together = {}
    for name, several in by_name.items():
        found = [
            [values[at] for values in several if at < len(values)]
            for at in range(max(map(len, several)))
        ]
        together[name] = NormCurve(
            mean=[mean(some) for some in found],
            median=[median(some) for some in found],
            rows=[*map(len, found)],
        )
    return together


# By hand


def test_elman_is_a_product_of_slopes_and_weights() -> None:
    """∂h_k/∂h_{k-1} = diag(1 - h_k²) W_h (Pascanu et al. 2013, equation 5), summed and multiplied here in
    numpy."""
    model = layers("elman")
    (row,), (wish,) = rows_of([6]), rows_of([6], 4)
    flow = flow_of(model, row[None], torch.ones(1, 6, dtype=torch.bool), [wish])
    w_x, w_h, b = (
        part.detach().numpy()
        for part in (model.stack[0].weight_x, model.stack[0].weight_h, model.stack[0].bias)
    )
    h, slopes = numpy.zeros(4), []
    for x in row.numpy():
        h = numpy.tanh(w_x @ x + w_h @ h + b)
        slopes.append(numpy.diag(1 - h**2) @ w_h)
    gradient, path = wish[-1].numpy(), numpy.eye(4)
    gradients, jacobians = [float(numpy.linalg.norm(gradient))], [1.0]
    for t in range(4, -1, -1):
        gradient = wish[t].numpy() + slopes[t + 1].T @ gradient
        path = path @ slopes[t + 1]
        gradients.append(float(numpy.linalg.norm(gradient)))
        jacobians.append(float(numpy.linalg.norm(path)) / 2)  # √4
    (layer,) = flow.layers
    assert layer.states["h"].gradient_from_end.mean == pytest.approx(gradients)
    assert layer.states["h"].gradient_from_start.mean == pytest.approx(gradients[::-1])
    assert layer.states["h"].jacobian.mean == pytest.approx(jacobians)
    slope, _ = numpy.polyfit(range(6), numpy.log(gradients), 1)
    assert layer.states["h"].gradient_per_step == pytest.approx(numpy.exp(slope))
    assert layer.spectra["h"].singular_values == pytest.approx(numpy.linalg.svd(w_h)[1])
    assert layer.spectra["h"].eigenvalue_moduli == pytest.approx(
        sorted(abs(numpy.linalg.eigvals(w_h)), reverse=True)
    )
    assert (layer.name, layer.direction, layer.cell, layer.width, layer.steps) == (
        "layer 1",
        "forward",
        "elman",
        4,
        6,
    )


@pytest.mark.parametrize("cell", CELLS)
def test_jacobians_and_gradients_are_those_of_the_steps(cell: str) -> None:
    """Against torch's Jacobian of the chain of steps, for every cell; c takes its way through h as well."""
    model = layers(cell)
    layer = model.stack[0]
    (row,) = rows_of([5])
    (wish,) = rows_of([5], 4)
    flow = flow_of(model, row[None], torch.ones(1, 5, dtype=torch.bool), [wish])
    products = layer.input_gates(layer.input_product(row)).detach()[:, None]
    states = [layer.start(1)]
    for product in products:
        states.append(tuple(part.detach() for part in layer.step(product, states[-1])))
    for part, name in enumerate(("h", "c")[: layer.cell.state_count]):
        jacobians, gradients = [], []
        for t in range(5, 0, -1):

            def onward(value: Tensor, t: int = t, part: int = part) -> tuple[Tensor, Tensor]:
                state: CellState = (
                    (value,) if layer.cell.state_count == 1 else (value, states[t][1])
                )
                if part == 1:
                    state = (
                        layer.gate_values(products[t - 1], states[t - 1])["o"] * torch.tanh(value),
                        value,
                    )
                loss = (state[0] * wish[t - 1]).sum()
                for product, own in zip(products[t:], wish[t:], strict=True):
                    state = layer.step(product, state)
                    loss = loss + (state[0] * own).sum()
                return state[part], loss

            jacobian, gradient = torch.autograd.functional.jacobian(onward, states[t][part])  # type: ignore[no-untyped-call]
            jacobians.append(float(jacobian.norm()) / 2)  # √4
            gradients.append(float(gradient.norm()))
        assert flow.layers[0].states[name].jacobian.mean == pytest.approx(jacobians)
        assert flow.layers[0].states[name].gradient_from_end.mean == pytest.approx(gradients)


def test_a_closed_lstm_keeps_its_cell_state() -> None:
    """f = 1, i = 0: ∂c_n/∂c_t = I (the constant error carousel of Hochreiter and Schmidhuber 1997)."""
    model = layers("lstm")
    with torch.no_grad():
        i, f, _, _ = model.stack[0].bias.chunk(4)
        i.fill_(-60)
        f.fill_(60)
    flow = flow_of(
        model, *placed(rows_of(LENGTHS), 6, lambda n: list(range(n))), rows_of(LENGTHS, 4)
    )
    (layer,) = flow.layers
    assert layer.states["c"].jacobian.mean == pytest.approx([1.0] * 6, rel=1e-12)
    assert layer.states["c"].jacobian_per_step == pytest.approx(1.0)
    assert layer.states["h"].jacobian.mean[1:] == pytest.approx([0.0] * 5, abs=1e-12)
    assert [layer.gates[gate].mean[0] for gate in ("i", "f")] == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize("scale", [1.0, 0.5, 1.5])
@pytest.mark.parametrize("width", [4, 40])
def test_orthogonal_weights_keep_the_norm_and_their_scale_is_the_factor(
    scale: float, width: int
) -> None:
    """A ReLU that is open everywhere is linear; with W_h = scale · permutation each step multiplies by
    `scale`. Beyond DIRECTIONS too, for of such a Jacobian every direction says the same."""
    model = RecurrentStack(RecurrentStackConfig("elman-relu", 3, width)).double()
    with torch.no_grad():
        model.stack[0].weight_h.copy_(scale * torch.eye(width, dtype=torch.float64).roll(1, 0))
        model.stack[0].weight_x.zero_()
        model.stack[0].bias.fill_(1.0)
    inputs = torch.zeros(2, 8, 3, dtype=torch.float64)
    flow = gradient_flow(model, lambda: model(inputs)[0][:, -1].sum())
    (layer,) = flow.layers
    powers = [scale**distance for distance in range(8)]
    assert layer.exact is (width == 4)
    assert layer.states["h"].jacobian.mean == pytest.approx(powers)
    assert layer.states["h"].gradient_from_end.mean == pytest.approx(
        [power * width**0.5 for power in powers]
    )
    assert layer.states["h"].jacobian_per_step == pytest.approx(scale)
    assert layer.states["h"].gradient_per_step == pytest.approx(scale)
    assert layer.spectra["h"].singular_values == pytest.approx([scale] * width)
    assert layer.spectra["h"].eigenvalue_moduli == pytest.approx([scale] * width)


def test_what_is_lost_is_0_and_spoils_no_factor() -> None:
    """W_h shifts by one unit and drops the last: after four steps nothing is left."""
    model = RecurrentStack(RecurrentStackConfig("elman-relu", 3, 4)).double()
    with torch.no_grad():
        model.stack[0].weight_h.copy_(torch.diag(torch.ones(3, dtype=torch.float64), -1))
        model.stack[0].weight_x.zero_()
        model.stack[0].bias.fill_(1.0)
    inputs = torch.zeros(1, 7, 3, dtype=torch.float64)
    (layer,) = gradient_flow(model, lambda: model(inputs)[0][:, -1].sum()).layers
    assert layer.states["h"].jacobian.mean == pytest.approx([1, 0.75**0.5, 0.5**0.5, 0.5, 0, 0, 0])
    assert 0.75 < layer.states["h"].jacobian_per_step < 0.85
    assert layer.spectra["h"].eigenvalue_moduli == pytest.approx([0] * 4)


def test_random_directions_come_close(monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers("gru", 24)
    inputs = torch.randn(32, 12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = []
    for directions in (24, 8):
        monkeypatch.setattr(module, "DIRECTIONS", directions)
        (layer,) = gradient_flow(model, lambda: model(inputs)[0].sum()).layers
        assert layer.exact is (directions == 24)
        found.append(numpy.array(layer.states["h"].jacobian.mean))
    assert 0 < abs(found[1] / found[0] - 1).max() < 0.1


def test_gates_are_means_and_percentiles_of_true_steps() -> None:
    model = layers("gru")
    rows = rows_of((3, 1))
    flow = flow_of(model, *placed(rows, 3, lambda n: list(range(3 - n, 3))), rows_of((3, 1), 4))
    values: list[list[Tensor]] = [[], [], []]
    for row in rows:
        state = model.stack[0].start(1)
        for t, product in enumerate(model.stack[0].input_gates(model.stack[0].input_product(row))):
            values[t].append(model.stack[0].gate_values(product[None], state)["z"])
            state = model.stack[0].step(product[None], state)
    together = [torch.cat(some).detach().numpy() for some in values]
    gate = flow.layers[0].gates["z"]
    assert gate.mean == pytest.approx([some.mean() for some in together])
    assert gate.low == pytest.approx([numpy.quantile(some, 0.05) for some in together])
    assert gate.high == pytest.approx([numpy.quantile(some, 0.95) for some in together])


# Laws


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *((cell, {}) for cell in CELLS),
    ("lstm", {"projection": 2}),
    ("gru", {"connection": "highway", "state_dropout": 0.5}),
    ("lstm", {"normalisation": "layer"}),
    ("lstm", {"normalisation": "batch"}),
]


@pytest.mark.parametrize(("cell", "options"), OPTIONS)
def test_padding_changes_nothing(cell: str, options: dict[str, Any]) -> None:
    model = layers(cell, layers=2, **options)
    rows, wishes = rows_of(LENGTHS), rows_of(LENGTHS, options.get("projection", 4))
    pairs = zip(rows, wishes, strict=True)
    alone = pooled(
        [
            flow_of(model, row[None], torch.ones(1, len(row), dtype=torch.bool), [wish])
            for row, wish in pairs
        ]
    )
    assert alone["layer 1 h jacobian"].rows == [3, 2, 2, 1, 1, 1]
    for place in (
        lambda n: list(range(n)),  # right
        lambda n: list(range(8 - n, 8)),  # left
        lambda n: [0, *range(9 - n, 8)],  # between
    ):
        assert_same(curves(flow_of(model, *placed(rows, 8, place), wishes)), alone)


def test_a_backward_direction_is_the_forward_one_of_reversed_rows() -> None:
    both, reversed_ = layers("lstm", bidirectional=True), layers("lstm")
    forward = both.backward_layers[0].state_dict()
    reversed_.stack[0].load_state_dict(forward)
    rows, wishes = rows_of(LENGTHS), rows_of(LENGTHS, 8)
    there = flow_of(both, *placed(rows, 6, lambda n: list(range(n))), wishes)
    back = flow_of(
        reversed_,
        *placed([row.flip(0) for row in rows], 6, lambda n: list(range(n))),
        [w[:, 4:].flip(0) for w in wishes],
    )
    assert [(layer.name, layer.direction) for layer in there.layers] == [
        ("layer 1 →", "forward"),
        ("layer 1 ←", "backward"),
    ]
    one, other = there.layers[1].states, back.layers[0].states
    assert one["c"].gradient_from_end.mean == pytest.approx(other["c"].gradient_from_end.mean)
    assert one["h"].jacobian.mean == pytest.approx(other["h"].jacobian.mean)


@pytest.mark.parametrize(
    ("attention", "cell"), [("additive", "lstm"), ("none", "gru"), ("dot", "elman")]
)
def test_an_encoder_decoder_in_a_batch_is_its_rows_alone(attention: str, cell: str) -> None:
    torch.manual_seed(4)
    sizes = dict.fromkeys(
        ("embedding_width", "encoder_width", "attention_width", "readout_width"), 6
    )
    config = Seq2SeqConfig(
        vocabulary_size=20,
        cell=cell,
        attention=attention,  # type: ignore[arg-type]
        width=12,
        decoder_layers=2,
        **sizes,  # type: ignore[arg-type]
    )
    model = Seq2Seq(config).double().train()
    pairs = [([17, 18, 19, 17], [16, 17]), ([19], [18, 17, 16, 19, 18]), ([16, 18], [17])]

    def of(some: list[tuple[list[int], list[int]]]) -> GradientFlow:
        batch = pair_batch([source for source, _ in some], [target for _, target in some])
        return gradient_flow(model, lambda: Translation()(model, batch))

    whole = of(pairs)
    assert [layer.name for layer in whole.layers] == [
        "encoder 1 →",
        "encoder 1 ←",
        "decoder 1",
        "decoder 2",
    ]
    assert [layer.steps for layer in whole.layers] == [5, 5, 6, 6]
    assert_same(curves(whole), pooled([of([pair]) for pair in pairs]))
    assert model.training


def test_a_loss_may_run_a_layer_several_times() -> None:
    """Other rows are other sequences, from a learned state too; the same rows from the state before go on; a
    detached state is a new beginning."""
    model = layers("lstm")
    learned = tuple(torch.zeros_like(part).requires_grad_() for part in model.start(1))
    inputs, wishes = torch.stack(rows_of((6, 6))), rows_of((6, 6), 4)
    mask = torch.ones(2, 6, dtype=torch.bool)
    whole = curves(flow_of(model, inputs, mask, wishes))

    def one_by_one() -> Tensor:
        return torch.stack(
            [(model(inputs[[i]], None, learned)[0] * wishes[i]).sum() for i in range(2)]
        ).sum()

    def in_two(cut: Callable[[object], object]) -> Callable[[], Tensor]:
        def loss() -> Tensor:
            first, state = model(inputs[:, :2])
            rest, _ = model(inputs[:, 2:], None, cut(state))
            return (torch.cat([first, rest], dim=1) * torch.stack(wishes)).sum()

        return loss

    assert_same(curves(gradient_flow(model, one_by_one)), whole)
    assert_same(curves(gradient_flow(model, in_two(lambda state: state))), whole)
    assert curves(gradient_flow(model, in_two(detach)))["layer 1 h jacobian"].rows == [4, 4, 2, 2]


def test_only_looks() -> None:
    """Neither dropout nor frozen weights change what is seen; nothing of the model is changed, even where the
    loss fails."""
    model = layers("gru", layers=2, dropout=0.5)
    inputs = torch.stack(rows_of((5, 5)))
    expected = curves(gradient_flow(model.eval(), lambda: model(inputs)[0].sum()))
    model.train()
    model.stack[0].requires_grad_(False)
    before = [
        (module_.training, [p.requires_grad for p in module_.parameters()])
        for module_ in model.modules()
    ]
    with torch.no_grad():
        assert_same(curves(gradient_flow(model, lambda: model(inputs)[0].sum())), expected)

    def fails() -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gradient_flow(model, fails)
    assert before == [
        (module_.training, [p.requires_grad for p in module_.parameters()])
        for module_ in model.modules()
    ]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(layer.watch is None for layer in model.stack)


def test_the_loss_is_a_mean_where_it_says_of_how_many() -> None:
    model, inputs = layers("elman"), torch.ones(1, 2, 3, dtype=torch.float64)

    def total() -> Tensor:
        found: Tensor = model(inputs)[0].sum()
        return found

    plain, pair = (
        gradient_flow(model, total),
        gradient_flow(model, lambda: Loss(total(), torch.tensor(4))),
    )
    assert pair.loss == pytest.approx(plain.loss / 4)
    # of the sum
    assert (
        pair.layers[0].states["h"].gradient_from_end
        == plain.layers[0].states["h"].gradient_from_end
    )


def test_no_recurrent_layer_is_one_line() -> None:
    linear, model = nn.Linear(2, 2), layers("elman")
    for network, loss in (
        (linear, lambda: linear(torch.ones(2)).sum()),
        (model, lambda: model.stack[0].bias.sum()),
    ):
        with pytest.raises(
            UsageError,
            match="must have a recurrent layer for gradient to flow through time, but has none",
        ):
            gradient_flow(network, loss)
