"""Observations: their conversion from what an environment returns to what a network reads.

    Box             uint8 stays uint8, and other numbers become float32; images may be converted to
                    bytes [height, width, channels] and resized
    Discrete        a one-hot vector, float32; the number of a choice, int32 [1], if there are many
    MultiDiscrete   the one-hot vectors of its elements, joined; or their numbers, int32 [K]
    MultiBinary     zeros and ones, float32
    Text            the numbers of its words, int32 [K] (see `texts`); also of other packages
    Dict, Tuple     a dict or tuple of these

Convolutions read images of bytes with the channels last. An image with the channels first, of a
single channel without an axis, or of numbers from 0 to 1 is converted to that.

`spaces.read_spaces` calls `read_observations`, and `GymVector` converts by its result.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from impala_mm.config.messages import join_lines
from impala_mm.environments import nests, texts
from impala_mm.environments.types import BadLevel

_LARGE = 36  # pixels of height and width, from which on convolutions for large images apply
_SMALL = 5  # pixels, from which on convolutions for small images do
_MOST_CHANNELS = 16  # of a large image whose channels are first
_COLOURS = (1, 3, 4)  # numbers of channels of a small image whose channels are first
_MANY = 64  # choices of a part, above which its numbers are sent, and embedded by the network
_REMEDIES = {
    spaces.Graph: "a graph: make a Box of its nodes and edges, of a fixed number, in a wrapper",
    spaces.Sequence: "a sequence of any length: fill it up to a fixed length in a wrapper",
}


@dataclasses.dataclass(frozen=True)
class PartConversion:
    """The conversion of one part of an observation."""

    raw_shape: tuple[int, ...]  # as the environment returns it
    shape: tuple[int, ...]  # converted
    dtype: np.dtype  # converted: uint8, float32 or int32
    # From [N, *raw_shape] to [N, *shape].
    convert: Callable[[np.ndarray], np.ndarray] | None = None
    note: str = ""  # what was recognised, such as "images [3, 84, 84] as [84, 84, 3]"
    choices: tuple[int, ...] = ()  # numbers of choices, of numbers that the network embeds
    of_bytes: bool = False  # whether the environment's space is of uint8

    def read(self, raw: Any, name: str) -> np.ndarray:
        """Return the part, converted; raise ValueError if its shape or a number is wrong."""
        if raw.__class__ is not np.ndarray:
            raw = np.asarray(raw)
        if raw.shape != self.raw_shape:
            raise ValueError(
                f"observation{name} of shape {list(raw.shape)}, and its space has the shape "
                f"{list(self.raw_shape)}"
            )
        if self.of_bytes and raw.dtype != np.uint8:
            self._refuse_no_bytes(raw, name)
        return self.convert(raw[None])[0] if self.convert else raw

    def read_all(self, raw: np.ndarray, count: int, name: str) -> np.ndarray:
        """Return the part of `count` observations [count, ...], converted; raise the same errors.

        Where nothing is converted, this is `raw` itself, of any type of numbers.
        """
        if raw.shape != (count, *self.raw_shape):
            raise ValueError(
                f"observations{name} of shape {list(raw.shape)}, and its space has the shape "
                f"{list(self.raw_shape)} in each of {count} environments"
            )
        if self.of_bytes and raw.dtype != np.uint8:
            self._refuse_no_bytes(raw, name)
        return self.convert(raw) if self.convert else raw

    def _refuse_no_bytes(self, raw: np.ndarray, name: str) -> None:
        """Raise ValueError if numbers of another type would become other ones as bytes."""
        if not (fits := (raw >= 0) & (raw < 256)).all():
            raise ValueError(
                f"observation{name} of {raw.dtype} with {raw[~fits][0]:g}, which no byte holds: "
                f"return bytes, from 0 to 255, or give the space the type of the observations"
            )


class ObservationConversion:
    """The conversion of an environment's observations."""

    def __init__(self, parts: Any):
        """Convert by `parts`, a nest of PartConversions."""
        self.parts = parts
        self.leaves: list[PartConversion] = nests.flatten(parts)
        self.note = "; ".join(dict.fromkeys(leaf.note for leaf in self.leaves if leaf.note))
        self._single = parts if isinstance(parts, PartConversion) else None

    def read(self, raw: Any) -> list[np.ndarray]:
        """Return the converted parts of an observation, in the order of `nests.flatten`.

        ValueError is raised if a part is missing, or its shape is wrong.
        """
        if self._single:
            return [self._single.read(raw, "")]
        return list(_read(self.parts, raw, "", PartConversion.read))

    def read_all(self, raw: Any, count: int) -> list[np.ndarray]:
        """Return the converted parts of a vector's observations, a nest of arrays [count, ...].

        Parts that are not converted are returned as they are. The errors are those of `read`.
        """
        if self._single:
            return [self._single.read_all(raw, count, "")]
        read = lambda part, array, name: part.read_all(array, count, name)  # noqa: E731
        return list(_read(self.parts, raw, "", read))

    def write(self, raw: Any, arrays: list[np.ndarray], row: int) -> None:
        """Write the result of `read` to one row of arrays; raise the same errors."""
        if self._single:
            arrays[0][row] = self._single.read(raw, "")
            return
        for array, part in zip(arrays, self.read(raw), strict=True):
            array[row] = part

    def zeros(self, count: int) -> Any:
        """Return `count` observations of zeros: a nest of new arrays [count, ...]."""
        arrays = [np.zeros((count, *part.shape), part.dtype) for part in self.leaves]
        return nests.pack(self.parts, arrays)


def _read(parts: Any, raw: Any, name: str, read: Callable[..., np.ndarray]) -> Any:
    """Yield what `read` returns of the parts; `name` is that of one within the observation."""
    if isinstance(parts, dict):
        for key in sorted(parts):
            if key not in raw:
                raise ValueError(f"observation{name} without the key {key!r} of its space")
            yield from _read(parts[key], raw[key], f"{name}[{key!r}]", read)
    elif isinstance(parts, tuple):
        if len(raw) != len(parts):
            how_many = f"{len(raw)} parts, and its space has {len(parts)}"
            raise ValueError(f"observation{name} of {how_many}")
        for i, part in enumerate(parts):
            yield from _read(part, raw[i], f"{name}[{i}]", read)
    else:
        yield read(parts, raw, name)


def read_observations(
    level_name: str, space: spaces.Space, width: int, height: int, converts: bool = True
) -> ObservationConversion:
    """Return the conversion of observations from a space; images are resized to width and height.

    A size of 0 is the image's own. `converts` is `Options.convert_observations`. BadLevel is raised
    for a space that is not supported.
    """

    def read(part: spaces.Space) -> Any:
        if isinstance(part, spaces.Dict) and part.spaces:
            return {key: read(inner) for key, inner in part.spaces.items()}
        if isinstance(part, spaces.Tuple) and part.spaces:
            return tuple(read(inner) for inner in part.spaces)
        if isinstance(part, spaces.Box) and part.dtype.kind in "biuf":
            return read_box(part, width, height, converts)
        if isinstance(part, spaces.Discrete | spaces.MultiDiscrete):
            return _choices(part, converts)
        if isinstance(part, spaces.MultiBinary):
            return PartConversion(tuple(part.shape), tuple(part.shape), np.dtype(np.float32))
        if texts.is_text(part):
            int32, choices = np.dtype(np.int32), texts.CHOICES
            return PartConversion((), (len(choices),), int32, texts.read_texts, choices=choices)
        raise BadLevel(_refusal(level_name, space, part))

    if (width or height) and not any(map(_is_image, _leaves(space))):
        seen = join_lines(space) if _is_nest(space) else list(read(space).shape)
        raise BadLevel(
            f"width and height resize images, and {level_name} observes {seen}: leave them 0"
        )
    return ObservationConversion(read(space))


def _refusal(level_name: str, space: spaces.Space, part: spaces.Space) -> str:
    """Return why a part of a space is not supported, and what to do."""
    remedy = next((text for kind, text in _REMEDIES.items() if isinstance(part, kind)), None)
    inside = "" if part is space else f", with {join_lines(part)} in it"
    advice = f"; {join_lines(part)[:40]} is {remedy}" if remedy else ""
    return (
        f"{level_name} observes {join_lines(space)}{inside}: only Box observations of numbers, "
        f"Discrete, MultiDiscrete, MultiBinary and Text ones, and Dict and Tuple of these are "
        f"supported{advice}, or leave it out by "
        f"--env_wrappers='gymnasium.wrappers:FilterObservation{{\"filter_keys\": [...]}}'"
    )


def _is_nest(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Dict | spaces.Tuple)


def _leaves(space: spaces.Space) -> list[spaces.Space]:
    """Return the parts of a space that are not made of others."""
    if isinstance(space, spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in _leaves(part)]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in _leaves(part)]
    return [space]


def _is_image(space: spaces.Space) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) in {2, 3}


def _choices(space: spaces.Discrete | spaces.MultiDiscrete, converts: bool) -> PartConversion:
    """Return the conversion of one choice, or of several."""
    raw_shape = np.shape(space.start)
    many = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    numbers, starts = many.tolist(), np.ravel(space.start).tolist()
    begins = np.cumsum([0, *numbers[:-1]])
    least, most, total = np.array(starts), np.array(numbers), sum(numbers)

    def count(batch: np.ndarray) -> np.ndarray:
        index = batch.reshape(len(batch), -1).astype(np.int64) - least  # [N, K]
        if not (fits := (index >= 0) & (index < most)).all():
            wrong = batch[np.flatnonzero(~fits.all(1))[0]]
            n, start = (numbers, starts) if raw_shape else (numbers[0], starts[0])
            raise ValueError(f"observation {wrong} is not one of {n} from {start} on")
        return index

    def one_hot(batch: np.ndarray) -> np.ndarray:
        rows = np.zeros((len(batch), total), np.float32)
        rows[np.arange(len(batch))[:, None], begins + count(batch)] = 1
        return rows

    if converts and total > _MANY:
        int32 = np.dtype(np.int32)
        number = lambda batch: count(batch).astype(np.int32)  # noqa: E731
        return PartConversion(raw_shape, (len(numbers),), int32, number, choices=tuple(numbers))
    return PartConversion(raw_shape, (total,), np.dtype(np.float32), one_hot)


def read_box(space: spaces.Box, width: int, height: int, recognises: bool) -> PartConversion:
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

    def convert(images: np.ndarray) -> np.ndarray:
        images = np.moveaxis(images, 1, -1) if first else images
        images = _as_bytes(images) if from_unit else images
        return resize(images) if resize else images.reshape(len(images), *shape)

    return PartConversion(
        raw,
        shape,
        dtype,
        convert if noted or resize else None,
        note=", ".join(noted),
        of_bytes=uint8,
    )


def _has_channels_first(space: spaces.Box) -> bool:
    """Return whether arrays [C, height, width] are images, which is certain if C alone is small."""
    if len(space.shape) != 3:
        return False
    channels, *size = space.shape
    if min(size) >= _LARGE:
        return channels <= _MOST_CHANNELS
    few = channels in _COLOURS and min(size) >= _SMALL
    return few and (space.dtype == np.uint8 or _is_unit(space))


def _is_unit(space: spaces.Box) -> bool:
    """Return whether a Box contains numbers from 0 to 1, which are no bytes."""
    return bool(space.dtype != np.uint8 and (space.low == 0).all() and (space.high == 1).all())


def _as_bytes(images: np.ndarray) -> np.ndarray:
    """Return numbers from 0 to 1 as bytes from 0 to 255; raise ValueError for NaN and infinity."""
    if not np.isfinite(images).all():
        raise ValueError("observation with NaN or infinity")
    return np.rint(np.clip(images, 0, 1).astype(np.float32) * 255).astype(np.uint8)


def _resize(shape: tuple[int, ...], dtype: np.dtype) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that resizes images [N, height, width] or [N, height, width, C].

    `shape` is that of one image.
    """
    import cv2  # noqa: PLC0415

    cv2.setNumThreads(1)  # the other cores are for other actors

    def convert(images: np.ndarray) -> np.ndarray:
        images = images.astype(dtype, copy=False).reshape(*images.shape[:3], -1)
        resized = np.empty((len(images), *shape[:2], images.shape[3]), dtype)
        for image, to in zip(images, resized, strict=True):
            # OpenCV resizes at most 4 channels at once, and drops the axis of a single one.
            for c in range(0, image.shape[2], 4):
                few = np.ascontiguousarray(image[..., c : c + 4])
                smaller = cv2.resize(few, shape[1::-1], interpolation=cv2.INTER_AREA)
                to[..., c : c + 4] = smaller.reshape(*shape[:2], -1)
        return resized.reshape(len(images), *shape)

    return convert
