"""Pixels to what a model reads: one size, one number of channels, a fixed scale; and small random shifts in
training.

The settings are those of Hugging Face's `preprocessor_config.json`, and mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from seqloom.data.batching.order import permute
from seqloom.errors import UsageError
from seqloom.json_values import JsonObject, as_list, as_object, as_whole_number, is_number
from seqloom.protocols import Rows

RESAMPLING = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers, which the files have."""
LUMA = (0.299, 0.587, 0.114)
"""Red, green and blue in grey (ITU-R BT.601)."""
SHIFTS = 2**32 - 2
"""The shifts' key beside the seed and the epoch: no pool of rows has this number."""


@final
@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a picture becomes what a model reads."""

    size: int
    """Height and width in pixels."""
    channels: int
    mean: tuple[float, ...]
    """Of each channel, of pixels in 0 to 1; subtracted."""
    deviation: tuple[float, ...]
    """Of each channel; divided by."""
    resampling: str = "bilinear"

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise UsageError(
                "a picture has 1 channel (grey) or 3 (colours), so a model of pictures must have"
                f" model.channels=1 or 3, but has {self.channels}"
            )

    @classmethod
    def published(cls, size: int, channels: int) -> Preprocessing:
        """As the published ViTs have it: pixels in -1 to 1."""
        return cls(
            size=size, channels=channels, mean=(0.5,) * channels, deviation=(0.5,) * channels
        )

    def fitted(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """`(height, width, 1 or 3)` -> `(size, size, channels)`: colours made or taken away, then resized
        (with a filter that sees all pixels, as Pillow's)."""
        if pixels.shape[2] != self.channels:
            pixels = np.repeat(pixels, 3, axis=2) if self.channels == 3 else _grey(pixels)
        if pixels.shape[:2] == (self.size, self.size):
            return pixels
        planes = torch.tensor(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None].float()
        resized = F.interpolate(
            planes,
            size=(self.size, self.size),
            mode=self.resampling,
            align_corners=False,
            antialias=True,
        )
        whole: NDArray[np.uint8] = (
            resized[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy()
        )
        return whole

    def scaled(self, pixels: NDArray[np.uint8]) -> Tensor:
        """`(rows, size, size, channels)` -> what a model reads, `(rows, channels, size, size)` in float32."""
        planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))).float() / 255
        mean, deviation = (
            torch.tensor(values)[:, None, None] for values in (self.mean, self.deviation)
        )
        return (planes - mean) / deviation

    def to_json(self) -> dict[str, object]:
        """The content of `preprocessor_config.json`."""
        return {
            "image_processor_type": "ViTImageProcessor",
            "do_convert_rgb": self.channels == 3,
            "do_resize": True,
            "size": {"height": self.size, "width": self.size},
            "resample": next(
                number for number, name in RESAMPLING.items() if name == self.resampling
            ),
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.deviation),
        }

    @classmethod
    def from_json(cls, given: object, size: int, channels: int) -> Preprocessing:
        """For a model that reads so many channels and, unless the file says otherwise, images of this size.
        Raises UsageError if the file demands what is not done here."""
        content = as_object(given)
        if content is None:
            raise UsageError("must be a JSON object, but is none")
        side = _side(content.get("size", size))
        denied = [name for name in ("do_resize", "do_rescale") if content.get(name) is False]
        if content.get("do_center_crop") or denied:
            raise UsageError(
                "images are resized, not cropped, and pixels divided by 255 here; another preparation is not"
                " done"
            )
        factor = content.get("rescale_factor", 1 / 255)
        if not is_number(factor) or abs(factor * 255 - 1) > 1e-6:
            raise UsageError(f"rescale_factor must be 1/255, but is {factor!r}")
        resampling = content.get("resample", 2)
        if resampling not in RESAMPLING:
            raise UsageError(f"resample must be 2 (bilinear) or 3 (bicubic), but is {resampling!r}")
        mean, deviation = [0.0] * channels, [1.0] * channels
        if content.get("do_normalize") is not False:
            mean = _channel_values(content, "image_mean", channels)
            deviation = _channel_values(content, "image_std", channels)
        if not all(deviation):
            raise UsageError("image_std must not be 0")
        return cls(
            size=side,
            channels=channels,
            mean=tuple(mean),
            deviation=tuple(deviation),
            resampling=RESAMPLING[resampling],
        )


def _side(size: object) -> int:
    """The one size of images: a number, or an equal height and width."""
    side = as_whole_number(size)
    match size:
        case {"height": height, "width": width, **others} if height == width and not others:
            side = as_whole_number(height)
    if side is None or side < 1:
        raise UsageError(f"size must be one number of pixels for height and width, but is {size!r}")
    return side


def _channel_values(content: JsonObject, name: str, channels: int) -> list[float]:
    values = content.get(name, [0.5] * channels)
    items = as_list(values) or []
    numbers = list(filter(is_number, items))
    if not len(items) == len(numbers) == channels:
        raise UsageError(f"{name} must be {channels} numbers, but is {values!r}")
    return numbers


def _grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    grey: NDArray[np.uint8] = (pixels @ np.array(LUMA)).round().astype(np.uint8)[..., None]
    return grey


def shifted(
    pixels: NDArray[np.uint8], by: int, rows: Rows, epochs: Rows, count: int, seed: int
) -> NDArray[np.uint8]:
    """`(n, height, width, channels)`: each picture moved by -by to by pixels in each direction, the edge
    repeated.

    How far is a function of (seed, epoch, row), `rows` of 0..count-1 and `epochs` being those of each
    picture; in an epoch all shifts are equally frequent.
    """
    side = 2 * by + 1
    choice = np.empty_like(rows)
    for epoch in np.unique(epochs):
        choice[epochs == epoch] = (
            permute(rows[epochs == epoch], count, seed, int(epoch), SHIFTS) % side**2
        )
    down, right = choice // side - by, choice % side - by
    height, width = pixels.shape[1:3]
    lines = np.clip(np.arange(height) - down[:, None], 0, height - 1)
    columns = np.clip(np.arange(width) - right[:, None], 0, width - 1)
    every = np.arange(len(pixels))
    moved: NDArray[np.uint8] = pixels[every[:, None, None], lines[:, :, None], columns[:, None, :]]
    return moved
