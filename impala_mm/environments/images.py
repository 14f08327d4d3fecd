"""Images among observations: their recognition, and their conversion to [height, width, channels].

`observations.read_observations` calls this for each Box. Convolutions read images of bytes with
the channels last. An image with the channels first, of a single channel without an axis, or of
numbers from 0 to 1 is converted to that.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from gymnasium.spaces import Box

_LARGE = 36  # pixels of height and width, from which on convolutions for large images apply
_SMALL = 5  # pixels, from which on convolutions for small images do
_MOST_CHANNELS = 16  # of a large image whose channels are first
_COLOURS = (1, 3, 4)  # numbers of channels of a small image whose channels are first


class ImageConversion(NamedTuple):
    """The conversion of one part of an observation that may be an image."""

    shape: tuple[int, ...]  # converted
    dtype: np.dtype  # converted: uint8 or float32
    convert: Callable[[np.ndarray], np.ndarray] | None  # None: there is nothing to do
    note: str = ""  # what was recognised, such as "images [3, 84, 84] as [84, 84, 3]"


def read_box(space: Box, width: int, height: int, recognises: bool) -> ImageConversion:
    """Return the conversion of a Box's arrays.

    Images are resized to `width` and `height`, where these are not 0. `recognises` says whether
    images in another form than [height, width, channels] of bytes are converted to it.
    """
    raw = tuple(space.shape)
    first = recognises and _has_channels_first(space)
    shape = (*raw[1:], raw[0]) if first else raw
    large = len(shape) in {2, 3} and min(shape[:2]) >= _LARGE
    from_unit = recognises and large and _is_unit(space)
    uint8 = space.dtype == np.uint8
    dtype = np.dtype(np.uint8 if uint8 or from_unit else np.float32)
    if recognises and large and len(shape) == 2 and (uint8 or from_unit):
        shape = (*shape, 1)
    noted = [f"images {list(raw)} as {list(shape)}"] * (shape != raw)
    noted += ["numbers from 0 to 1 as bytes"] * from_unit
    resize = None
    if (width or height) and len(shape) in {2, 3}:
        shape = (height or shape[0], width or shape[1], *shape[2:])
        resize = _resize(shape, dtype)
    note = ", ".join(noted)
    if not (noted or resize):
        return ImageConversion(shape, dtype, None)

    def convert(image: np.ndarray) -> np.ndarray:
        image = np.moveaxis(image, 0, -1) if first else image
        image = _as_bytes(image) if from_unit else image
        return resize(image) if resize else image.reshape(shape)

    return ImageConversion(shape, dtype, convert, note)


def _has_channels_first(space: Box) -> bool:
    """Return whether arrays [C, height, width] are images, which is certain if C alone is small."""
    if len(space.shape) != 3:
        return False
    channels, *size = space.shape
    if min(size) >= _LARGE:
        return channels <= _MOST_CHANNELS
    few = channels in _COLOURS and min(size) >= _SMALL
    return few and (space.dtype == np.uint8 or _is_unit(space))


def _is_unit(space: Box) -> bool:
    """Return whether a Box contains numbers from 0 to 1, which are no bytes."""
    return bool(space.dtype != np.uint8 and (space.low == 0).all() and (space.high == 1).all())


def _as_bytes(image: np.ndarray) -> np.ndarray:
    """Return numbers from 0 to 1 as bytes from 0 to 255; raise ValueError for NaN and infinity."""
    if not np.isfinite(image).all():
        raise ValueError("observation with NaN or infinity")
    return np.rint(np.clip(image, 0, 1).astype(np.float32) * 255).astype(np.uint8)


def _resize(shape: tuple[int, ...], dtype: np.dtype) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that resizes images [height, width] or [height, width, C] to `shape`."""
    import cv2  # noqa: PLC0415

    cv2.setNumThreads(1)  # the other cores are for other actors

    def convert(image: np.ndarray) -> np.ndarray:
        image = image.astype(dtype, copy=False).reshape(*image.shape[:2], -1)
        few = [  # OpenCV resizes at most 4 channels at once, and drops the axis of a single one
            cv2.resize(
                np.ascontiguousarray(image[..., c : c + 4]),
                shape[1::-1],
                interpolation=cv2.INTER_AREA,
            ).reshape(*shape[:2], -1)
            for c in range(0, image.shape[2], 4)
        ]
        return np.concatenate(few, axis=2).reshape(shape)

    return convert
