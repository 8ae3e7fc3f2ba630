"""ViT: its equations written out, transformers' model with the same weights, and the laws of patches and
positions."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from seqloom.errors import UsageError
from seqloom.explaining.studies.attention_maps import attention_maps
from seqloom.layers.transformer.feed_forward import ACTIVATIONS
from seqloom.models.vit import ABOUT, SIZES, ViT, ViTConfig

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = ViTConfig(
    labels=("a", "b", "c"),
    image_size=8,
    patch_size=2,
    channels=3,
    width=12,
    layers=2,
    heads=3,
    dropout=0.0,
)
KINDS: dict[str, dict[str, Any]] = {
    "tiny": {},
    "no biases in queries, keys, values": {
        "query_key_value_biases": False,
        "feed_forward_width": 7,
    },
    "grey, one patch, one head": {
        "channels": 1,
        "patch_size": 8,
        "heads": 1,
        "activation": "gelu-tanh",
    },
    "odd width": {
        "width": 15,
        "heads": 5,
        "layers": 3,
        "norm_epsilon": 1e-12,
        "activation": "relu",
    },
    "no head": {"labels": ()},
    "head on patches": {"labels": (), "head": "patches", "channels": 1},
}


def drawn(dtype: torch.dtype = torch.float64, **changes: Any) -> ViT:
    """With every weight and bias drawn at random."""
    model = ViT(replace(TINY, **changes)).to(dtype).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4, generator=generator)
    return model


def images_for(model: ViT, rows: int = 3, size: int | None = None) -> Tensor:
    side = size or model.config.image_size
    drawn = torch.randn(
        rows,
        model.config.channels,
        side,
        side,
        generator=torch.Generator().manual_seed(1),
        dtype=torch.float64,
    )
    return drawn.to(model.cls.dtype)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> ViT:
    return drawn(**KINDS[request.param])


# The equations


def norm(layer: Any, x: Tensor, epsilon: float) -> Tensor:
    y: Tensor = (x - x.mean(-1, keepdim=True)) / (
        x.var(-1, correction=0, keepdim=True) + epsilon
    ).sqrt() * layer.weight + layer.bias
    return y


def written_out(model: ViT, image: Tensor) -> tuple[Tensor, list[Tensor]]:
    """One image `(channels, height, width)` -> y of equation 4 with the head, and the weights of each layer
    `(heads, steps, steps)`."""
    c, p = model.config, model.config.patch_size
    side = c.image_size // p
    cut = [
        image[:, i * p : (i + 1) * p, j * p : (j + 1) * p].flatten()
        for i in range(side)
        for j in range(side)
    ]
    embedded = F.linear(torch.stack(cut), model.patches.weight.flatten(1), model.patches.bias)
    z = torch.cat([model.cls[0], embedded]) + model.positions[0]
    looks = []
    activation = ACTIVATIONS[c.activation]()
    for block in model.stack.blocks:
        layer: Any = block
        x = norm(layer.attention_norm, z, c.norm_epsilon)
        weight, bias = layer.attention.query_key_value.weight, layer.attention.query_key_value.bias
        three = x @ weight.T + (torch.zeros(()) if bias is None else bias)
        query, key, value = (
            part.view(len(x), c.heads, -1).transpose(0, 1) for part in three.chunk(3, dim=-1)
        )
        looks.append((query @ key.transpose(1, 2) / (c.width // c.heads) ** 0.5).softmax(-1))
        z = (
            (looks[-1] @ value).transpose(0, 1).flatten(1) @ layer.attention.output.weight.T
            + layer.attention.output.bias
            + z
        )
        x = norm(layer.feed_forward_norm, z, c.norm_epsilon)
        hidden = activation(x @ layer.feed_forward.hidden.weight.T + layer.feed_forward.hidden.bias)
        z = hidden @ layer.feed_forward.output.weight.T + layer.feed_forward.output.bias + z
    y = norm(model.stack.norm, z, c.norm_epsilon)
    y = y[1:] if c.head == "patches" else y[0]
    return y if model.head is None else model.head(y), looks


def looks_of(model: ViT, images: Tensor) -> Tensor:
    """`(rows, layers, heads, 1 + patches, 1 + patches)`"""
    return attention_maps(model, lambda: model(images))["self"]


def test_equations(model: ViT) -> None:
    images = images_for(model)
    expected = [written_out(model, image) for image in images]
    close(model(images), torch.stack([logits for logits, _ in expected]))
    close(looks_of(model, images), torch.stack([torch.stack(looks) for _, looks in expected]))


# transformers


def transformers_model(model: ViT) -> Any:
    """`ViTForImageClassification` (without a head `ViTModel`) with the weights of ours."""
    transformers: Any = pytest.importorskip("transformers")
    c = model.config
    config = transformers.ViTConfig(
        hidden_size=c.width,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        intermediate_size=c.feed_forward_width or 4 * c.width,
        hidden_act={"gelu-tanh": "gelu_new"}.get(c.activation, c.activation),
        layer_norm_eps=c.norm_epsilon,
        image_size=c.image_size,
        patch_size=c.patch_size,
        num_channels=c.channels,
        qkv_bias=c.query_key_value_biases,
        num_labels=max(len(c.labels), 1),
    )
    without = partial(
        transformers.ViTModel, add_pooling_layer=False, use_mask_token=c.head == "patches"
    )
    kind = transformers.ViTForImageClassification if c.labels else without
    theirs = kind(config)
    theirs = theirs.to(model.cls.dtype).eval()
    inner, tensors = getattr(theirs, "vit", theirs), model.state_dict()
    names = {
        "embeddings.cls_token": "cls",
        "embeddings.mask_token": "mask",
        "embeddings.position_embeddings": "positions",
        "embeddings.patch_embeddings.projection": "patches",
        "layernorm": "stack.norm",
    }
    for i in range(c.layers):
        theirs_at, ours_at = f"layers.{i}", f"stack.blocks.{i}"
        names |= {
            f"{theirs_at}.layernorm_before": f"{ours_at}.attention_norm",
            f"{theirs_at}.layernorm_after": f"{ours_at}.feed_forward_norm",
            f"{theirs_at}.attention.o_proj": f"{ours_at}.attention.output",
            f"{theirs_at}.mlp.fc1": f"{ours_at}.feed_forward.hidden",
            f"{theirs_at}.mlp.fc2": f"{ours_at}.feed_forward.output",
        }
        for kind in ("weight", "bias") if c.query_key_value_biases else ("weight",):
            parts = tensors.pop(f"{ours_at}.attention.query_key_value.{kind}").chunk(3)
            tensors |= {
                f"{theirs_at}.attention.{one}_proj.{kind}": part
                for one, part in zip("qkv", parts, strict=True)
            }
    renamed = {ours: theirs for theirs, ours in names.items()}

    def their_name(name: str) -> str:
        stem, _, kind = name.rpartition(".")
        return renamed.get(name) or (f"{renamed[stem]}.{kind}" if stem in renamed else name)

    heads = {name: tensors.pop(f"head.{name}") for name in ("weight", "bias") if c.outputs}
    inner.load_state_dict({their_name(name): tensor for name, tensor in tensors.items()})
    if c.labels:
        theirs.classifier.load_state_dict(heads)
    return theirs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_equals_transformers(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    model = drawn(dtype, **KINDS[kind])
    theirs = transformers_model(model)
    for size in (model.config.image_size, 2 * model.config.image_size):
        images = images_for(model, size=size)
        given = theirs(images, interpolate_pos_encoding=True, output_hidden_states=True)
        if not model.config.labels:
            close(model.read(images), given.last_hidden_state, tolerance)
        else:
            close(
                model(images),
                given.logits,
                tolerance * max(1.0, float(given.logits.detach().abs().max())),
            )


def test_masked_patches_are_those_of_transformers() -> None:
    model = drawn(**KINDS["head on patches"])
    images, hidden = (
        images_for(model),
        torch.rand(3, 16, generator=torch.Generator().manual_seed(3)) < 0.5,
    )
    given = transformers_model(model)(images, bool_masked_pos=hidden)
    close(model.read(images, torch.arange(16).where(~hidden, -1)), given.last_hidden_state)


@pytest.mark.parametrize(
    ("size", "parameters"),
    [("vit-b16", 86567656), ("vit-b32", 88224232), ("vit-l16", 304326632), ("vit-h14", 632045800)],
)
def test_published_sizes_have_as_many_parameters(size: str, parameters: int) -> None:
    transformers: Any = pytest.importorskip("transformers")
    labels = tuple(str(label) for label in range(1000))
    with torch.device("meta"):
        model = ViT(ViTConfig(labels=labels, **SIZES[size]))
        c = model.config
        theirs = transformers.ViTForImageClassification(
            transformers.ViTConfig(
                hidden_size=c.width,
                num_hidden_layers=c.layers,
                num_attention_heads=c.heads,
                intermediate_size=4 * c.width,
                patch_size=c.patch_size,
                num_labels=1000,
            )
        )
    assert sum(p.numel() for p in model.parameters()) == parameters == theirs.num_parameters()


def test_every_size_says_what_it_is_for() -> None:
    assert list(SIZES) == list(ABOUT)
    for fields in SIZES.values():
        ViTConfig(**fields)


# Laws


def test_permuting_patches_with_their_positions_changes_nothing(model: ViT) -> None:
    c = model.config
    images = images_for(model)
    order = torch.randperm(c.patches, generator=torch.Generator().manual_seed(2))
    cut = F.unfold(images, c.patch_size, stride=c.patch_size)
    moved = F.fold(cut[:, :, order], c.image_size, c.patch_size, stride=c.patch_size)
    other = ViT(c).double().eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        other.positions[:, 1:] = model.positions[:, 1:][:, order]
    logits = model(images)
    close(other(moved), logits[:, order] if c.head == "patches" else logits)
    hidden, theirs = model.read(images), other.read(moved)
    close(theirs[:, 1:], hidden[:, 1:][:, order])
    if c.patches > 1:  # the positions do count
        assert not torch.allclose(model(moved), model(images))


def test_batched_equals_alone(model: ViT) -> None:
    images = images_for(model, rows=5)
    close(model(images), torch.cat([model(image[None]) for image in images]))


def test_a_source_is_the_patch_that_is_read_at_a_place() -> None:
    """As if the image had that patch there; each its own is the image as it is; alone as in a batch."""
    model = drawn(**KINDS["head on patches"])
    images, size = images_for(model, rows=4), model.config.patch_size
    own = torch.arange(16).expand(4, 16)
    assert torch.equal(model(images, own), model(images))
    sources = torch.randint(16, (4, 16), generator=torch.Generator().manual_seed(4))
    cut = F.unfold(images, size, stride=size)
    moved = F.fold(cut.gather(2, sources[:, None].expand_as(cut)), 8, size, stride=size)
    close(model(images, sources), model(moved))
    sources = sources.where(sources % 3 > 0, -1)
    together = model(images, sources)
    assert together.shape == (4, 16, 8)
    close(together, torch.cat([model(images[i : i + 1], sources[i : i + 1]) for i in range(4)]))


def test_what_is_masked_is_not_seen() -> None:
    model = drawn(**KINDS["head on patches"])
    images, sources = images_for(model), torch.arange(16).repeat(3, 1)
    sources[:, 5] = -1
    other = images.clone()
    other[:, :, 2:4, 2:4] += 1  # patch 5 of four by four
    close(model(other, sources), model(images, sources))
    assert not torch.allclose(model(other), model(images))
    with pytest.raises(
        UsageError, match=r"must have model.head=patches, but this one has no \[mask\]"
    ):
        drawn(channels=1)(images, sources)


def test_every_weight_learns_from_masked_patches() -> None:
    model = drawn(**KINDS["head on patches"])
    sources = torch.arange(16).where(torch.arange(16) % 2 > 0, -1).expand(3, 16)
    (model(images_for(model), sources) ** 2).sum().backward()
    assert [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not bool(parameter.grad.any())
    ] == []


def test_positions_at_other_sizes() -> None:
    """At the trained size as they are; interpolated so that a linear slope stays one inside, and each axis is
    its own."""
    model = drawn()
    assert model.positions_of(8, 8) is model.positions
    across = torch.arange(4.0, dtype=torch.float64).repeat(4)
    with torch.no_grad():
        model.positions[:, 1:] = across[None, :, None]
    wide = model.positions_of(8, 16)
    assert wide.shape == (1, 1 + 4 * 8, 12)
    close(wide[:, :1], model.positions[:, :1])
    grid = wide[0, 1:, 0].view(4, 8)
    close(grid, grid[:1].expand(4, 8))
    assert bool((grid[0].diff() > 0).all())
    assert model.read(images_for(model, size=16)).shape == (3, 65, 12)


def test_attention_sums_to_one_and_dropout_is_only_for_training(model: ViT) -> None:
    images = images_for(model)
    looks = looks_of(model, images)
    steps = 1 + model.config.patches
    assert looks.shape == (3, model.config.layers, model.config.heads, steps, steps)
    close(looks.sum(-1), torch.ones(looks.shape[:-1], dtype=torch.float64))
    wet = ViT(replace(model.config, dropout=0.5)).double()
    wet.load_state_dict(model.state_dict())
    assert not torch.equal(wet.read(images), wet.read(images))
    close(wet.eval().read(images), model.read(images))


def test_a_new_model_says_nothing_and_learns_at_once() -> None:
    """The head begins at 0, as in the paper's code: all labels are equally likely; the first gradient reaches
    it."""
    torch.manual_seed(0)
    model = ViT(TINY)
    logits = model(images_for(model).float())
    assert not logits.any()
    assert model.head is not None
    (gradient,) = torch.autograd.grad(
        F.cross_entropy(logits, torch.tensor([0, 1, 2])), [model.head.weight]
    )
    assert bool(gradient.any())
    scales = {
        name: float(p.detach().std())
        for name, p in model.named_parameters()
        if p.dim() == 2 and "stack" in name
    }
    assert all(0.1 < scale < 0.5 for scale in scales.values()), scales


@pytest.mark.parametrize("shape", [(1, 1, 8, 8), (1, 3, 8, 7), (1, 3, 9, 8), (1, 3, 0, 8)])
def test_an_image_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        UsageError, match=r"must have 3 channels .* model.patch_size=2 divides, but has"
    ):
        ViT(TINY)(torch.zeros(shape))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"patch_size": 3},
            "model.patch_size must divide model.image_size, but 8 is not a multiple of 3",
        ),
        ({"heads": 5}, "model.heads must divide model.width"),
        ({"patch_size": 0}, "model.patch_size must be at least 1, but is 0"),
        ({"activation": "sine"}, "model.activation must be one of gelu, "),
        ({"dropout": 1.0}, "model.dropout must be in [0, 1), but is 1.0"),
        ({"norm_epsilon": -1e-6}, "model.norm_epsilon must be at least 0"),
        ({"head": "pixels"}, "model.head must be one of labels, patches, but is 'pixels'"),
        (
            {"head": "patches"},
            "model.head=patches tells colours and has no labels, but model.labels names 3",
        ),
        (
            {"head": "patches", "labels": (), "patch_size": 8},
            "model.patch_size must be below model.image_size=8 with model.head=patches, but is as large",
        ),
    ],
)
def test_sizes_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        replace(TINY, **changes)
