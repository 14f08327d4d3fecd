"""A teacher that is a checkpoint of Dopamine's DQN or Rainbow for Atari, of JAX or TensorFlow.

    checkpoints/                           the folder of a run has it
        ckpt.199                           a pickle: all that JAX's agents are (`pickles` reads it)
        tf_ckpt-199.index, .data-...       the weights of TensorFlow's agents
        sentinel_checkpoint_complete.199   empty; written last

Nothing in these files is executed.

Its Nature network reads the last frames, uint8 [84, 84, 4] with the oldest first, as our levels
stack them, and pads images as TensorFlow's SAME does. DQN's last layer has a value for each action;
Rainbow's has 51 logits for each, of the probabilities of returns from -10 to 10.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from impala_mm.environments.types import EnvironmentSpec
from impala_mm.teachers import pickles
from impala_mm.teachers.teacher import NoTeacher, ObservingTeacher, Request

_KERNELS = (8, 4, 3)  # height and width of the convolutions, in pixels
_STRIDES = (4, 2, 1)
_ATOMS = 51  # returns for each of which Rainbow computes a probability
_LARGEST = 10.0  # the largest of them; it is no part of a checkpoint

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


class DopamineTeacher(ObservingTeacher):
    """Values of actions by a network of Dopamine's; the policy is softmax(values / temperature)."""

    in_words = "a checkpoint of Dopamine"
    greedy = True

    @staticmethod
    def recognises(name: str, path: Path) -> bool:
        """Return whether a path is one of Dopamine's checkpoints; raise NoTeacher as `find`."""
        return find(path) is not None

    def __init__(self, request: Request):
        """Read the checkpoint; raise NoTeacher if it does not fit the student's level."""
        path = find(request.path)
        assert path
        layers = read_layers(path)
        outputs = len(layers[-1].bias)
        self._is_rainbow = outputs % _ATOMS == 0
        self.num_actions = outputs // _ATOMS if self._is_rainbow else outputs
        spec = request.fit(self.num_actions)
        super().__init__(request, spec)
        self._temperature = request.config.teacher_temperature
        # As Dopamine trains; its checkpoints do not have the discount.
        self.trained_with = {
            "reward_clipping": "abs_one",
            "normalize_rewards": False,
            "reward_scaling": 1.0,
            "life_loss_ends": False,
        }
        _check(path, layers, spec)
        if spec.actions.discrete != self.num_actions:
            raise NoTeacher(
                f"{path} was trained with {self.num_actions} actions, and {spec.level_name} takes "
                f"{spec.actions.describe()}: give a checkpoint of this game, or say by "
                f"--teacher_actions which of the teacher's actions are those of the student"
            )
        self._layers = [
            [tf.Variable(weights, trainable=False) for weights in layer] for layer in layers
        ]
        self.notes = [
            f"{path} does not say on which game it was trained: its {self.num_actions} actions are "
            f"taken as those of {spec.level_name}, in the emulator's order"
        ]
        if spec.emulator and request.config.life_loss_ends:
            self.notes.append(
                f"{path} does not say how lives counted: Dopamine's agents play whole games with "
                f"sticky actions, as --preset=atari-sticky does"
            )
        if self._is_rainbow:
            self.notes.append(
                f"{path} is Rainbow's, and does not say which returns its {_ATOMS} probabilities "
                f"are of: they are taken as -{_LARGEST:g} to {_LARGEST:g}, as published"
            )

    def answer(self, observations: tf.Tensor) -> tf.Tensor:
        """Return the parameters [N, A] for stacks uint8 [N, height, width, C]."""
        x = tf.cast(observations, tf.float32) / 255.0
        *convolutions, (hidden, hidden_bias), (output, output_bias) = self._layers
        for (kernel, bias), stride in zip(convolutions, _STRIDES, strict=True):
            x = tf.nn.relu(tf.nn.conv2d(x, kernel, stride, "SAME") + bias)
        x = tf.reshape(x, [-1, hidden.shape[0]])
        x = tf.nn.relu(x @ hidden + hidden_bias) @ output + output_bias
        if self._is_rainbow:
            probabilities = tf.nn.softmax(tf.reshape(x, [-1, self.num_actions, _ATOMS]))
            x = tf.linalg.matvec(probabilities, tf.linspace(-_LARGEST, _LARGEST, _ATOMS))
        return x / self._temperature


def _check(path: Path, layers: list[Layer], spec: EnvironmentSpec) -> None:
    """Raise NoTeacher unless the network reads the observations of a level."""
    seen = spec.observation
    if not isinstance(seen, tf.TensorSpec) or seen.dtype != tf.uint8 or seen.shape.rank != 3:
        raise NoTeacher(
            f"{path} reads images of bytes, such as those of Atari's games, and observations of "
            f"{spec.level_name} are no such images"
        )
    height, width, channels = seen.shape
    stacked, first = channels * spec.frame_stack, layers[0].kernel.shape[2]
    if stacked != first:
        other = f"give a checkpoint that was trained with {stacked}"
        raise NoTeacher(
            f"{path} reads stacks of {first} frames, and {spec.level_name} has {stacked} of them: "
            f"{'leave out --frame_stack and --grayscale' if spec.emulator else other}"
        )
    for stride in _STRIDES:
        height, width = -(-height // stride), -(-width // stride)
    *convolutions, hidden, output = (layer.kernel.shape for layer in layers)
    expected = [
        (kernel, kernel, inputs)
        for kernel, inputs in zip(
            _KERNELS, [stacked, *(shape[3] for shape in convolutions)], strict=False
        )
    ]
    kernels = [shape[:3] for shape in convolutions]
    if kernels != expected or output[0] != hidden[1]:
        raise NoTeacher(
            f"{path} has layers of other shapes than Dopamine's network, whose kernels are of "
            f"{', '.join(f'{k}x{k}' for k in _KERNELS)} pixels: give a checkpoint of DQN or Rainbow"
        )
    if hidden[0] != height * width * convolutions[-1][3]:
        raise NoTeacher(
            f"{path} reads images of another size than {seen.shape[0]}x{seen.shape[1]}, which "
            f"{spec.level_name} has: Dopamine's are 84x84, so leave out --width and --height"
        )


def find(path: Path) -> Path | None:
    """Return the checkpoint that a path means; None if it is none of Dopamine's.

    It may be one of its files, the folder that contains them, or the folder of a run. In a folder
    it is the newest complete one. Raises NoTeacher if there is none that is complete.
    """
    if (named := _FILE.fullmatch(path.name)) and not path.is_dir():
        checkpoints, _ = _contents(path.parent)
        if not checkpoints:
            return None
        if (number := int(named[2])) not in checkpoints:
            raise NoTeacher(f"{path} does not exist: {path.parent} has {_listed(checkpoints)}")
        return checkpoints[number]
    for folder in (path / "checkpoints", path):
        if folder.is_dir() and not any(folder.iterdir()):
            raise NoTeacher(
                f"{folder} is empty: give the folder of a run, or one of its checkpoints"
            )
        checkpoints, sentinels = _contents(folder)
        if not (checkpoints or sentinels):
            continue
        complete = [number for number in checkpoints if number in sentinels or not sentinels]
        if not complete:
            raise NoTeacher(
                f"{folder} has {_listed(checkpoints)} and the sentinels of {_listed(sentinels)}: a "
                f"checkpoint is complete once it has both, so copy its other file too, or give the "
                f"checkpoint itself"
            )
        return checkpoints[max(complete)]
    return None


def _contents(folder: Path) -> tuple[dict[int, Path], set[int]]:
    """Return a folder's checkpoints by number, and the numbers of its sentinels."""
    files: dict[str, dict[int, Path]] = {kind: {} for kind in _ENDS}
    for path in folder.iterdir() if folder.is_dir() else ():
        named = _FILE.fullmatch(path.name)
        if named and _ENDS[named[1]] == named[3] and path.is_file():
            files[named[1]][int(named[2])] = path.with_suffix("") if named[3] else path
    # TensorFlow's agents write a pickle, too, which has no weights.
    return files["ckpt."] | files["tf_ckpt-"], set(files[_SENTINEL])


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
            pairs = [(f"Online/{layer}/{kernel}", f"Online/{layer}/{bias}") for layer in _TF_LAYERS]
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
