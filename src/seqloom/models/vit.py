"""The Vision Transformer: an image as a sequence of patches, read by an encoder, classified at [CLS].

Without labels it learns to predict the colours of masked patches (section 4.6 and appendix B.1.2).

    Dosovitskiy, Beyer, Kolesnikov, Weissenborn, Zhai, Unterthiner et al.: An Image is Worth 16x16 Words, 2021

    z_0 = [x_class; x_p^1 E; ...; x_p^N E] + E_pos  equation 1
    z'_l = MSA(LN z_{l-1}) + z_{l-1}                equation 2
    z_l = MLP(LN z'_l) + z'_l                       equation 3
    y = LN z_L^0,  logits = W y + b                 equation 4
    logits^p = W LN z_L^p + b                       masked patch prediction: the mean colour of patch p,
                                                    one of 8^channels

For an image of another size than in training, positions are interpolated (section 3.2, fine-tuning).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seqloom.config import STRICT
from seqloom.errors import UsageError
from seqloom.layers.linear import Linear
from seqloom.layers.transformer.block_config import BlockConfig
from seqloom.layers.transformer.blocks import Block, Stack
from seqloom.layers.transformer.native_encoder import encode
from seqloom.models.config_checks import (
    ActivationName,
    Epsilon,
    Fraction,
    Size,
    field_problems,
    not_divisible,
    one_of,
    raise_problems,
)
from seqloom.models.sizes import named_sizes

STD = 0.02
"""Of patches, positions and [CLS] at the start: positions must not outweigh patches."""
LEVELS = 8
"""Of each channel in the mean colour of a patch: 3 bits."""
HEADS = ("labels", "patches")


@final
@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """The sizes and choices of a Vision Transformer."""

    __pydantic_config__ = STRICT
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the logits; none: an encoder without a head."""
    head: Annotated[str, one_of(HEADS)] = "labels"
    """labels: the class of an image, at [CLS]; patches: the mean colour of each patch (masked patch
    prediction)."""
    image_size: Size = 224
    """Height and width of an image in pixels."""
    patch_size: Size = 16
    """Height and width of a patch in pixels."""
    channels: Size = 3
    """3 for colour, 1 for grey."""
    width: Size = 768
    """Width of a hidden state."""
    layers: Size = 12
    """Stacked blocks."""
    heads: Size = 12
    """Heads of attention; they share the width."""
    feed_forward_width: Size | None = None
    """Width of the feed-forward layer's hidden state; by default four times the width."""
    activation: ActivationName = "gelu"
    """gelu (exact), gelu-tanh, relu, silu, swish or tanh."""
    query_key_value_biases: bool = True
    """Whether the products that make queries, keys and values have a bias."""
    dropout: Fraction = 0.1
    """Share dropped in training of the embedded patches' features, of hidden features and of what each
    sub-block adds."""
    attention_dropout: Fraction = 0.0
    """Share of the weights of attention dropped in training (slow on a CPU)."""
    norm_epsilon: Epsilon = 1e-6
    """What a norm adds to the variance."""

    def __post_init__(self) -> None:
        problems = field_problems(self)
        problems += not_divisible("image_size", self.image_size, "patch_size", self.patch_size)
        problems += not_divisible("width", self.width, "heads", self.heads)
        if self.head == "patches" and self.labels:
            problems.append(
                "model.head=patches tells colours and has no labels, but model.labels names"
                f" {len(self.labels)}"
            )
        if self.head == "patches" and self.patch_size == self.image_size:
            problems.append(
                f"model.patch_size must be below model.image_size={self.image_size} with model.head=patches,"
                " but is as large"
            )
        raise_problems(problems)

    @property
    def patches(self) -> int:
        """Of an image of `image_size`."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def outputs(self) -> int:
        """Logits of the head: labels, or colours; 0 without a head."""
        return LEVELS**self.channels if self.head == "patches" else len(self.labels)

    @property
    def block(self) -> BlockConfig:
        return BlockConfig.of(self, hidden_dropout=self.dropout)


SIZES, ABOUT = named_sizes("vit")


@final
class ViT(nn.Module):
    """Patches, [CLS] and positions, blocks, a head on [CLS] or on each patch."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = c = config
        self.patches = nn.Conv2d(c.channels, c.width, c.patch_size, stride=c.patch_size)
        """E: the same linear projection of each patch."""
        self.cls = nn.Parameter(torch.zeros(1, 1, c.width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + c.patches, c.width))
        """E_pos: of [CLS], then of the patches line by line."""
        self.dropout = nn.Dropout(c.dropout)
        self.stack = Stack(c.block, c.layers)
        if not c.query_key_value_biases:
            for block in cast(Iterable[Block], self.stack.blocks):
                block.attention.query_key_value = Linear(c.width, 3 * c.width, bias=False)
        self.mask = nn.Parameter(torch.zeros(1, 1, c.width)) if c.head == "patches" else None
        """[mask]: it replaces the embedding of a masked patch."""
        self.head = Linear(c.width, c.outputs) if c.outputs else None
        self._initialise()

    def _initialise(self) -> None:
        """Glorot and Bengio 2010 in the blocks, query, key and value each by itself; a head of 0, as the
        paper's code has it."""
        for name, parameter in self.named_parameters():
            if name in ("cls", "mask", "positions", "patches.weight"):
                nn.init.trunc_normal_(parameter, std=STD)
            elif name.endswith("bias") or name == "head.weight":
                nn.init.zeros_(parameter)
            elif name.endswith("query_key_value.weight"):
                for part in parameter.chunk(3):
                    nn.init.xavier_uniform_(part)
            elif parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)

    def read(self, images: Tensor, sources: Tensor | None = None) -> Tensor:
        """images `(rows, channels, height, width of the image)` -> `(rows, 1 + patches, width)`, [CLS] first.

        sources `(rows, patches)`: which patch's embedding is used at each place, -1 for [mask]; by default
        its own. Raises UsageError if an image is not made of whole patches, or has other channels.
        """
        return encode(self.stack, self._embed(images, sources), None)

    def forward(self, images: Tensor, sources: Tensor | None = None) -> Tensor:
        """images and sources as in `read` -> logits `(rows, labels)`; without a head [CLS] `(rows, width)`;
        of a head on patches `(rows, patches, colours)`."""
        hidden = self.read(images, sources)
        state = hidden[:, 1:] if self.config.head == "patches" else hidden[:, 0]
        return state if self.head is None else self.head(state)

    def _embed(self, images: Tensor, sources: Tensor | None = None) -> Tensor:
        """`z_0`."""
        c = self.config
        channels, height, width = images.shape[1:]
        if (
            channels != c.channels
            or height % c.patch_size
            or width % c.patch_size
            or not height
            or not width
        ):
            raise UsageError(
                f"an image must have {c.channels} channels and a height and width that"
                f" model.patch_size={c.patch_size} divides, but has {channels} of {height} x {width};"
                " resize it"
            )
        patches = self.patches(images.to(self.patches.weight.dtype)).flatten(2).transpose(1, 2)
        if sources is not None:
            patches = self._corrupted(patches, sources)
        x = torch.cat([self.cls.expand(images.shape[0], -1, -1), patches], dim=1)
        embedded: Tensor = self.dropout(x + self.positions_of(height, width))
        return embedded

    def _corrupted(self, patches: Tensor, sources: Tensor) -> Tensor:
        """patches `(rows, patches, width)`, replaced as `sources` says."""
        if self.mask is None:
            raise UsageError(
                "a model that reads corrupted patches must have model.head=patches, but this one has no"
                " [mask]"
            )
        chosen = patches.gather(1, sources.clamp(min=0)[..., None].expand_as(patches))
        return torch.where(sources[..., None] < 0, self.mask, chosen)

    def positions_of(self, height: int, width: int) -> Tensor:
        """`(1, 1 + patches, width of a hidden state)` for an image of this size in pixels: the patches' are
        interpolated (bicubic) unless it is `image_size`."""
        c = self.config
        if height == width == c.image_size:
            return self.positions
        side = c.image_size // c.patch_size
        grid = self.positions[:, 1:].view(1, side, side, -1).permute(0, 3, 1, 2)
        size = (height // c.patch_size, width // c.patch_size)
        other = F.interpolate(grid, size=size, mode="bicubic", align_corners=False)
        return torch.cat([self.positions[:, :1], other.flatten(2).transpose(1, 2)], dim=1)
