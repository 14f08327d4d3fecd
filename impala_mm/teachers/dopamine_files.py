"""The checkpoints of Dopamine, and the weights in them; `dopamine` makes teachers of these.

    checkpoints/                           the folder of a run has it
        ckpt.199                           a pickle: all that JAX's agents are (`pickles` reads it)
        tf_ckpt-199.index, .data-...       the weights of TensorFlow's agents
        sentinel_checkpoint_complete.199   empty; written last

Nothing in these files is executed.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.teachers import pickles
from impala_mm.teachers.kinds import NoTeacher

_SENTINEL = "sentinel_checkpoint_complete."
# By the beginning of its name, how the name of each file ends by which a checkpoint is found.
_ENDS = {"ckpt.": None, "tf_ckpt-": ".index", _SENTINEL: None}
_FILE = re.compile(rf"({'|'.join(map(re.escape, _ENDS))})(\d+)(\..*)?")
LAYERS = ("Conv_0", "Conv_1", "Conv_2", "Dense_0", "Dense_1")
# TensorFlow's names of these layers, and of their weights: those of tf.slim, then those of Keras.
_TF_LAYERS = ("Conv", "Conv_1", "Conv_2", "fully_connected", "fully_connected_1")
_TF_WEIGHTS = (("weights", "biases"), ("kernel", "bias"))
_NETWORK = "the Nature network of DQN and Rainbow, three convolutions and two other layers"


class Layer(NamedTuple):
    """The weights of one layer."""

    kernel: np.ndarray  # float32 [height, width, in, out], or [in, out]
    bias: np.ndarray  # float32 [out]


def find(path: Path) -> Path | None:
    """Return the checkpoint that a path means; None if it is none of Dopamine's.

    It may be one of its files, the folder that contains them, or the folder of a run. In a folder
    it is the newest complete one. Raises NoTeacher if there is none that is complete.
    """
    if (named := _FILE.fullmatch(path.name)) and not path.is_dir():
        found, _ = _contents(path.parent)
        if not found:
            return None
        if (number := int(named[2])) not in found:
            raise NoTeacher(f"{path} does not exist: {path.parent} has {_listed(found)}")
        return found[number]
    for folder in (path / "checkpoints", path):
        if folder.is_dir() and not any(folder.iterdir()):
            raise NoTeacher(
                f"{folder} is empty: give the folder of a run, or one of its checkpoints"
            )
        found, sentinels = _contents(folder)
        if not (found or sentinels):
            continue
        complete = [number for number in found if number in sentinels or not sentinels]
        if not complete:
            raise NoTeacher(
                f"{folder} has {_listed(found)} and the sentinels of {_listed(sentinels)}: a "
                f"checkpoint is complete once it has both, so copy its other file too, or give the "
                f"checkpoint itself"
            )
        return found[max(complete)]
    return None


def _contents(folder: Path) -> tuple[dict[int, Path], set[int]]:
    """Return a folder's checkpoints by number, and the numbers of its sentinels."""
    found: dict[str, dict[int, Path]] = {kind: {} for kind in _ENDS}
    for path in folder.iterdir() if folder.is_dir() else ():
        named = _FILE.fullmatch(path.name)
        if named and _ENDS[named[1]] == named[3] and path.is_file():
            found[named[1]][int(named[2])] = path.with_suffix("") if named[3] else path
    # TensorFlow's agents write a pickle, too, which has no weights.
    return found["ckpt."] | found["tf_ckpt-"], set(found[_SENTINEL])


def _listed(numbers: Any) -> str:
    """Return numbers of checkpoints in words."""
    shown = ", ".join(map(str, sorted(numbers)[-5:]))
    return f"checkpoint {shown}" if numbers else "no checkpoint"


def read_layers(path: Path) -> list[Layer]:
    """Return the layers of a checkpoint's network; raise NoTeacher."""
    layers = _read_tensorflow(path) if path.name.startswith("tf_") else _read_jax(path)
    for name, (kernel, bias) in zip(LAYERS, layers, strict=True):
        if kernel.dtype != np.float32 or bias.dtype != np.float32:
            raise NoTeacher(f"{path} has {name} as {kernel.dtype.name}: float32 is read")
        if kernel.ndim != (4 if name.startswith("Conv") else 2) or bias.shape != kernel.shape[-1:]:
            raise NoTeacher(
                f"{path} has {name} with shapes {list(kernel.shape)} and {list(bias.shape)}: only "
                f"{_NETWORK}, can be read"
            )
        if not (np.isfinite(kernel).all() and np.isfinite(bias).all()):
            raise NoTeacher(
                f"{path} has {name} with weights that are not finite: the training that wrote it "
                f"has diverged, so give an earlier checkpoint"
            )
    return layers


def _read_jax(path: Path) -> list[Layer]:
    """Return the layers of a pickle's online network."""
    content = pickles.read(path)
    if not isinstance(content, dict) or "online_params" not in content:
        has = ", ".join(map(str, content))[:100] if isinstance(content, dict) else "no dictionary"
        raise NoTeacher(
            f"{path} has no online_params, but {has or 'nothing'}: give a checkpoint of Dopamine's "
            f"JAX agents of version 3.2 or later; TensorFlow's have their weights in tf_ckpt-*, "
            f"which must stand beside it"
        )
    match content["online_params"]:
        case {"params": dict(params)} if set(params) == set(LAYERS):
            layers = [_as_layer(params[name]) for name in LAYERS]
            if all(layers):
                return [layer for layer in layers if layer]
        case {"params": dict(params)}:
            raise NoTeacher(
                f"{path} has the layers {', '.join(map(str, params))[:100]}: only {_NETWORK}, can "
                f"be read"
            )
    raise NoTeacher(f"{path} has online_params that are no weights of layers: it may be damaged")


def _as_layer(params: Any) -> Layer | None:
    """Return the layer of a dictionary of arrays; None if it is none."""
    match params:
        case {"kernel": np.ndarray() as kernel, "bias": np.ndarray() as bias}:
            return Layer(kernel, bias)
    return None


def _read_tensorflow(prefix: Path) -> list[Layer]:
    """Return the layers of the online network in a checkpoint of tf.train.Saver."""
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        names = set(reader.get_variable_to_shape_map())
        for kernel, bias in _TF_WEIGHTS:
            pairs = [(f"Online/{each}/{kernel}", f"Online/{each}/{bias}") for each in _TF_LAYERS]
            if names.issuperset(name for pair in pairs for name in pair):
                return [Layer(*map(reader.get_tensor, pair)) for pair in pairs]
    except (OSError, ValueError, IndexError, RuntimeError, tf.errors.OpError) as error:
        raise NoTeacher(
            f"{prefix} is damaged or cut short ({' '.join(str(error).split())[:200]}): copy its "
            f"files again, of which .index and .data are needed"
        ) from None
    online = sorted({name.split("/")[1] for name in names if name.startswith("Online/")})
    raise NoTeacher(
        f"{prefix} has the layers {', '.join(online)[:100] or 'of no network named Online'}: only "
        f"{_NETWORK}, can be read"
    )
