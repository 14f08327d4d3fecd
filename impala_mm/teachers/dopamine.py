"""A teacher that is a checkpoint of one of Dopamine's agents for Atari, of JAX or TensorFlow.

    checkpoints/                           the folder of a run has it
        ckpt.199                           a pickle: all that JAX's agents are (`pickles` reads it)
        tf_ckpt-199.index, .data-...       the weights of TensorFlow's agents
        sentinel_checkpoint_complete.199   empty; written last

The public checkpoints lie in GAME/RUN/checkpoints, with runs from 1 on. Nothing in these files is
executed. `dopamine_networks` computes the values. A network reads the last frames, uint8
[84, 84, 4] with the oldest first, as our levels stack them.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.environments.types import EnvironmentSpec
from impala_mm.teachers import pickles
from impala_mm.teachers.dopamine_networks import IN_WORDS, BadLayers, Layer, Network
from impala_mm.teachers.teacher import NoTeacher, ObservingTeacher, Request

_DEEPEST = 3  # modules within modules

_SENTINEL = "sentinel_checkpoint_complete."
# By the beginning of its name, how the name of each file ends by which a checkpoint is found.
_ENDS = {"ckpt.": None, "tf_ckpt-": ".index", _SENTINEL: None}
_FILE = re.compile(rf"({'|'.join(map(re.escape, _ENDS))})(\d+)(\..*)?")
# The layers of flax, by their names in TensorFlow: those of tf.slim and of Keras. Keras names the
# one that embeds IQN's fractions differently.
_TF_LAYER = re.compile(r"Online/(Conv|fully_connected|dense)(?:_(\d{1,9}))?/(?:weights|kernel)")
_TF_BIASES = {"weights": "biases", "kernel": "bias"}


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
        network = self.network = _make(path, read_layers(path))
        self.num_actions = network.num_actions
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
        _check(path, network, spec)
        if spec.actions.discrete != self.num_actions:
            raise NoTeacher(
                f"{path} was trained with {self.num_actions} actions, and {spec.level_name} takes "
                f"{spec.actions.describe()}: give a checkpoint of this game, or say by "
                f"--teacher_actions which of the teacher's actions are those of the student"
            )
        self.notes = [
            f"{path} does not say on which game it was trained: its {self.num_actions} actions are "
            f"taken as those of {spec.level_name}, in the emulator's order"
        ]
        if spec.emulator and request.config.life_loss_ends:
            self.notes.append(
                f"{path} does not say how lives counted: Dopamine's agents play whole games with "
                f"sticky actions, as --preset=atari-sticky does"
            )
        self.notes += [f"{path} {note}" for note in network.notes]

    def answer(self, observations: tf.Tensor) -> tf.Tensor:
        """Return the parameters [N, A] for stacks uint8 [N, height, width, C]."""
        return self.network.values(observations) / self._temperature


def _make(path: Path, layers: dict[str, Layer]) -> Network:
    """Return the network of these layers; raise NoTeacher."""
    try:
        return Network(layers)
    except BadLayers as error:
        raise NoTeacher(f"{path} {error}: only {IN_WORDS} can be read") from None


def _check(path: Path, network: Network, spec: EnvironmentSpec) -> None:
    """Raise NoTeacher unless the network reads the observations of a level."""
    seen = spec.observation
    if not isinstance(seen, tf.TensorSpec) or seen.dtype != tf.uint8 or seen.shape.rank != 3:
        raise NoTeacher(
            f"{path} reads images of bytes, such as those of Atari's games, and observations of "
            f"{spec.level_name} are no such images"
        )
    height, width, channels = seen.shape
    stacked, first = channels * spec.frame_stack, network.frames
    if stacked != first:
        other = f"give a checkpoint that was trained with {stacked}"
        raise NoTeacher(
            f"{path} reads stacks of {first} frames, and {spec.level_name} has {stacked} of them: "
            f"{'leave out --frame_stack and --grayscale' if spec.emulator else other}"
        )
    if network.features != network.count_features(height, width):
        raise NoTeacher(
            f"{path} reads images of another size than {seen.shape[0]}x{seen.shape[1]}, which "
            f"{spec.level_name} has: Dopamine's are 84x84, so leave out --width and --height"
        )


def find(path: Path) -> Path | None:
    """Return the checkpoint that a path means; None if it is none of Dopamine's.

    It may be one of its files, the folder that contains them, the folder of a run, or that of a
    game with one run. In a folder it is the newest complete one. Raises NoTeacher if there is
    none that is complete.
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
    run = numbered_run(path)
    return find(run) if run else None


def numbered_run(path: Path) -> Path | None:
    """Return the folder of the run in the folder of a game, as the public checkpoints lie in it.

    Raises NoTeacher if there are several.
    """
    folders = [run for run in path.glob("[0-9]*") if run.name.isdecimal() and run.is_dir()]
    runs = [run for run in folders if any(_contents(run / "checkpoints"))]
    runs.sort(key=lambda run: int(run.name))
    if len(runs) > 1:
        raise NoTeacher(
            f"{path} has the runs {', '.join(run.name for run in runs)}: give one of them, such as "
            f"{runs[0]}"
        )
    return runs[0] if runs else None


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


def read_layers(path: Path) -> dict[str, Layer]:
    """Return the layers of a checkpoint's network by flax's names; raise NoTeacher."""
    layers = _read_tensorflow(path) if path.name.startswith("tf_") else _read_jax(path)
    for name, (kernel, bias) in layers.items():
        if kernel.dtype != np.float32 or bias.dtype != np.float32:
            raise NoTeacher(f"{path} has {name} as {kernel.dtype.name}: float32 is read")
        if kernel.ndim not in (2, 4) or bias.shape != kernel.shape[-1:]:
            raise NoTeacher(
                f"{path} has {name} with shapes {list(kernel.shape)} and {list(bias.shape)}: only "
                f"{IN_WORDS} can be read"
            )
        if not (np.isfinite(kernel).all() and np.isfinite(bias).all()):
            raise NoTeacher(
                f"{path} has {name} with weights that are not finite: the training that wrote it "
                f"has diverged, so give an earlier checkpoint"
            )
    return layers


def _read_jax(path: Path) -> dict[str, Layer]:
    """Return the layers of a pickle's online network."""
    content = pickles.read(path)
    if not isinstance(content, dict) or "online_params" not in content:
        has = ", ".join(map(str, content))[:100] if isinstance(content, dict) else "no dictionary"
        raise NoTeacher(
            f"{path} has no online_params, but {has or 'nothing'}: give a checkpoint of Dopamine's "
            f"JAX agents that learn values; TensorFlow's have their weights in tf_ckpt-*, which "
            f"must stand beside it"
        )
    match content["online_params"]:
        case {"params": dict(params)}:
            layers = _flatten(params)
        case dict(params):  # before version 3.2
            layers = _number_by_kind(_flatten(params))
        case _:
            layers = {}
    if not layers:
        raise NoTeacher(
            f"{path} has online_params that are no weights of layers: it may be damaged"
        )
    return layers


def _flatten(params: dict[Any, Any], prefix: str = "") -> dict[str, Layer]:
    """Return the layers of a tree of modules by their paths; {} if anything in it is none."""
    layers: dict[str, Layer] = {}
    for name, module in params.items():
        match module:
            case {"kernel": np.ndarray() as kernel, "bias": np.ndarray() as bias}:
                found = {f"{prefix}{name}": Layer(kernel, bias)}
            case {"kernel_mu": np.ndarray() as kernel, "bias_mu": np.ndarray() as bias}:
                found = {f"{prefix}{name}": Layer(kernel, bias)}
            case dict() if prefix.count("/") < _DEEPEST:
                found = _flatten(module, f"{prefix}{name}/")
            case _:
                found = {}
        if not found:
            return {}
        layers |= found
    return layers


def _number_by_kind(layers: dict[str, Layer]) -> dict[str, Layer]:
    """Return layers that were numbered together (Conv_2, Dense_3) with numbers for each kind."""
    counts: Counter[str] = Counter()
    numbered: dict[str, Layer] = {}
    for name in sorted(layers, key=lambda name: int((re.findall(r"\d{1,9}$", name) or ["0"])[0])):
        kind = name.rstrip("0123456789")
        numbered[f"{kind}{counts[kind]}"] = layers[name]
        counts[kind] += 1
    return numbered


def _read_tensorflow(prefix: Path) -> dict[str, Layer]:
    """Return the layers of the online network in a checkpoint of tf.train.Saver."""
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        names = set(reader.get_variable_to_shape_map())
        found = {}
        for name in names:
            place, _, kind = name.rpartition("/")
            bias = f"{place}/{_TF_BIASES.get(kind)}"
            if (of := _TF_LAYER.fullmatch(name)) and bias in names:
                order = (of[1] != "dense", int(of[2] or 0))
                found[of[1] == "Conv", order] = Layer(*map(reader.get_tensor, (name, bias)))
    except (OSError, ValueError, IndexError, RuntimeError, tf.errors.OpError) as error:
        raise NoTeacher(
            f"{prefix} is damaged or cut short ({' '.join(str(error).split())[:200]}): copy its "
            f"files again, of which .index and .data are needed"
        ) from None
    if not found:
        online = sorted({name.split("/")[1] for name in names if name.startswith("Online/")})
        raise NoTeacher(
            f"{prefix} has the layers {', '.join(online)[:100] or 'of no network named Online'}: "
            f"only {IN_WORDS} can be read"
        )
    layers: dict[str, Layer] = {}
    for is_convolution in (True, False):
        own = sorted(order for convolution, order in found if convolution == is_convolution)
        name = "Conv" if is_convolution else "Dense"
        layers |= {f"{name}_{n}": found[is_convolution, order] for n, order in enumerate(own)}
    return layers
