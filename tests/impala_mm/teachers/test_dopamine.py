"""Checkpoints of Dopamine as teachers: by the real Dopamine, by TensorFlow, and bad ones."""

import pickle
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from dopamine_stacks import WRITTEN, stacks, unpack

from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.algorithms.q_learning import settings as dqn_settings
from impala_mm.data.trajectory import Entry
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.make import level_spec
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.teachers.load import load_teachers
from impala_mm.teachers.playing import TeacherPlayer
from impala_mm.teachers.teacher import NoTeacher

_TF_NAMES = ("Conv", "Conv_1", "Conv_2", "fully_connected", "fully_connected_1")
_JAX_NAMES = ("Conv_0", "Conv_1", "Conv_2", "Dense_0", "Dense_1")


def _load(path, level="BreakoutNoFrameskip-v4", spec=None, **settings):
    config = TeacherSettings(teacher=str(path), level_name=level, **settings)
    (teacher,) = load_teachers(config, spec or level_spec(level))
    return teacher


def _small_spec(size=9, actions=3, stack=4):
    observation = tf.TensorSpec([size, size, 1], tf.uint8)
    return EnvironmentSpec("small", observation, ActionSpec(Discrete(actions)), 1, None, stack)


def _small_layers(actions=3, seed=0, stack=4):
    """Return the weights of a narrow network for images of 9x9, which become 3x3, 2x2, 2x2."""
    draw = np.random.default_rng(seed)
    shapes = [(8, 8, stack, 2), (4, 4, 2, 3), (3, 3, 3, 3), (2 * 2 * 3, 5), (5, actions)]
    return [
        (draw.normal(0, 0.5, shape).astype("f4"), draw.normal(0, 0.5, shape[-1]).astype("f4"))
        for shape in shapes
    ]


def _write_jax(folder, layers, number=3, sentinel=True, **further):
    folder.mkdir(parents=True, exist_ok=True)
    params = {
        name: {"kernel": kernel, "bias": bias}
        for name, (kernel, bias) in zip(_JAX_NAMES, layers, strict=True)
    }
    content = {"online_params": {"params": params}, "training_steps": 5} | further
    (folder / f"ckpt.{number}").write_bytes(pickle.dumps(content))
    if sentinel:
        (folder / f"sentinel_checkpoint_complete.{number}").write_text("done")
    return folder / f"ckpt.{number}"


def _convolved(images, kernel, stride):
    """Return a convolution with SAME padding in float64, [N, h, w, in] -> [N, h', w', out]."""
    size, side = images.shape[1], kernel.shape[0]
    out = -(-size // stride)
    total = max((out - 1) * stride + side - size, 0)
    padded = np.pad(images, [(0, 0), *[(total // 2, total - total // 2)] * 2, (0, 0)])
    rows = [
        [
            np.tensordot(padded[:, i : i + side, j : j + side], kernel, 3)
            for j in range(0, out * stride, stride)
        ]
        for i in range(0, out * stride, stride)
    ]
    return np.moveaxis(np.array(rows), 2, 0)


def _values(layers, images):
    """Return the network's outputs for stacks uint8 [N, h, w, C], in float64."""
    x = images.astype(float) / 255
    for (kernel, bias), stride in zip(layers[:3], (4, 2, 1), strict=True):
        x = np.maximum(_convolved(x, kernel.astype(float), stride) + bias, 0)
    x = np.maximum(x.reshape(len(x), -1) @ layers[3][0].astype(float) + layers[3][1], 0)
    return x @ layers[4][0].astype(float) + layers[4][1]


def _entries(frames, first):
    """Return entries [T, B, ...] of frames uint8 [T, B, h, w, 1]."""
    shape = tf.constant(first).shape
    zeros = tf.zeros(shape)
    return Entry(tf.zeros(shape, tf.int32), zeros, first, first, tf.constant(frames), first, ())


def _as_entries(stacked):
    """Return entries [4, N, ...], of which the last has the frames of stacks [N, h, w, 4]."""
    frames = np.moveaxis(stacked, -1, 0)[..., np.newaxis]
    return _entries(frames, tf.constant(np.arange(4)[:, np.newaxis] == np.zeros(len(stacked))))


# -- written by the real Dopamine (make_dopamine_fixture.py)


@pytest.fixture(scope="module", params=["dqn", "rainbow"])
def written(request, tmp_path_factory):
    """Return the folder of a run of Dopamine's, and its own values of `stacks`."""
    folder = unpack(tmp_path_factory.mktemp(request.param), request.param)
    return folder, np.load(WRITTEN / f"{request.param}_values.npy")


def test_a_checkpoint_that_dopamine_wrote_has_the_values_that_dopamine_computes(written):
    folder, expected = written
    teacher = _load(folder, teacher_temperature=0.5)
    assert teacher.greedy
    entries = _as_entries(stacks())
    found = tf.function(teacher.parameters)(entries)[-1] * 0.5
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(expected, axis=0).min() > 1e-3  # they tell the stacks apart
    state = teacher.initial_state(len(expected))
    for t in range(4):
        values, state = teacher.step(tf.nest.map_structure(lambda x, t=t: x[t], entries), state)
    np.testing.assert_allclose(values * 0.5, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(NoTeacher, match=r"trained with 4 actions, and PongNoFrameskip-v4 takes"):
        _load(folder / "checkpoints", "PongNoFrameskip-v4")
    mapped = _load(
        folder / "checkpoints" / "ckpt.3", "PongNoFrameskip-v4", teacher_actions="0,1,2,3,-,-"
    )
    np.testing.assert_array_equal(
        mapped.parameters(entries)[..., :4], _load(folder).parameters(entries)
    )


# -- other writers


@pytest.mark.parametrize("names", [("weights", "biases"), ("kernel", "bias")])
def test_a_checkpoint_of_tensorflow_1_teaches(tmp_path, names):
    """tf.slim named the weights so, and Keras later."""
    layers, wrong = _small_layers(), _small_layers(seed=1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for scope, each in (("Online", layers), ("Target", wrong)):
            for name, arrays in zip(_TF_NAMES, each, strict=True):
                for weights, array in zip(names, arrays, strict=True):
                    tf.compat.v1.get_variable(f"{scope}/{name}/{weights}", initializer=array)
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver()
        for number in (1, 3):
            saver.save(session, str(tmp_path / "tf_ckpt"), global_step=number)
            (tmp_path / f"ckpt.{number}").write_bytes(pickle.dumps({"logs": {}}))
            (tmp_path / f"sentinel_checkpoint_complete.{number}").write_text("done")
    images = np.random.default_rng(1).integers(0, 256, (5, 9, 9, 4), np.uint8)
    paths = [tmp_path / name for name in ("", "ckpt.1", "tf_ckpt-1", "tf_ckpt-3.index")]
    for path in paths:
        teacher = _load(path, spec=_small_spec(), teacher_temperature=1.0)
        found = teacher.parameters(_as_entries(images))[-1]
        np.testing.assert_allclose(found, _values(layers, images), rtol=1e-4, atol=1e-5)
    data = next(tmp_path.glob("tf_ckpt-3.data*"))
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(NoTeacher, match=r"tf_ckpt-3 is damaged or cut short \("):
        _load(tmp_path, spec=_small_spec())


class FrozenDict(dict):
    """As flax before 0.7 writes it."""

    def __reduce__(self):
        return FrozenDict, (dict(self),)


class _Array:
    """As jax before 0.4 writes it."""

    def __init__(self, array):
        self._array = array

    def __reduce__(self):
        return _reconstruct_device_array, (*self._array.__reduce__(), {"weak_type": False})


def _reconstruct_device_array():
    pass


def test_frozen_dictionaries_and_arrays_of_earlier_jax_are_read(tmp_path):
    layers = _small_layers()
    path = _write_jax(tmp_path, layers)
    params = {
        name: {"kernel": _Array(kernel), "bias": _Array(bias)}
        for name, (kernel, bias) in zip(_JAX_NAMES, layers, strict=True)
    }
    content = pickle.dumps({"online_params": FrozenDict(params=params)}, 3)
    for ours, theirs in (
        ("FrozenDict", "flax.core.frozen_dict\nFrozenDict"),
        ("_reconstruct_device_array", "jax._src.device_array\nreconstruct_device_array"),
    ):
        assert f"{__name__}\n{ours}\n".encode() in content
        content = content.replace(f"{__name__}\n{ours}\n".encode(), f"{theirs}\n".encode())
    path.write_bytes(content)
    images = np.random.default_rng(1).integers(0, 256, (2, 9, 9, 4), np.uint8)
    found = _load(path, spec=_small_spec(), teacher_temperature=1.0).parameters(_as_entries(images))
    np.testing.assert_allclose(found[-1], _values(layers, images), rtol=1e-4, atol=1e-5)


# -- other networks


class _Params:
    """Makes the parameters of modules, and computes by them in float64."""

    def __init__(self):
        self.params, self._draw = {}, np.random.default_rng(3)

    def layer(self, path, *shape, noisy=False):
        """Return the kernel and bias of a new module."""
        module = self.params
        for name in path.split("/"):
            module = module.setdefault(name, {})
        kernel, bias = (self._draw.normal(0, 0.4, s).astype("f4") for s in (shape, shape[-1:]))
        suffix = "_mu" if noisy else ""
        module |= {f"kernel{suffix}": kernel, f"bias{suffix}": bias}
        if noisy:  # is for training
            module |= {"kernel_sigma": kernel * 9, "bias_sigma": bias * 9}
        return kernel.astype(float), bias.astype(float)

    def convolve(self, path, x, side, stride, channels):
        """Return a convolution of images by a new module."""
        kernel, bias = self.layer(path, side, side, x.shape[-1], channels)
        return _convolved(x, kernel, stride) + bias

    def apply(self, path, x, outputs, noisy=False):
        """Return a new module's outputs for [..., inputs]."""
        kernel, bias = self.layer(path, x.shape[-1], outputs, noisy=noisy)
        return x @ kernel + bias


def _pooled(x):
    """Return the maxima of 3x3 pixels, every second one, padded as SAME."""
    size, out = x.shape[1], -(-x.shape[1] // 2)
    total = max((out - 1) * 2 + 3 - size, 0)
    low = total // 2
    x = np.pad(x, [(0, 0), *[(low, total - low)] * 2, (0, 0)], constant_values=-np.inf)
    rows = [[x[:, i : i + 3, j : j + 3].max((1, 2)) for j in range(0, 2 * out, 2)]
            for i in range(0, 2 * out, 2)]  # fmt: skip
    return np.moveaxis(np.array(rows), 2, 0)


def _relu(x):
    return np.maximum(x, 0)


def _nature(made, x, _):
    for number, (side, stride) in enumerate(((8, 4), (4, 2), (3, 1))):
        x = _relu(made.convolve(f"Conv_{number}", x, side, stride, 2 + number))
    return x.reshape(len(x), -1)


def _impala(made, x, stack):
    """Return the features of two stacks, of one block and of two."""
    for number, blocks in enumerate((2, 2)):
        path = f"encoder/{stack}_{number}"
        x = _pooled(made.convolve(f"{path}/Conv_0", x, 3, 1, 2 + number))
        for block in range(blocks):
            y = made.convolve(f"{path}/Conv_{2 * block + 1}", _relu(x), 3, 1, x.shape[-1])
            x = x + made.convolve(f"{path}/Conv_{2 * block + 2}", _relu(y), 3, 1, x.shape[-1])
    return _relu(x).reshape(len(x), -1)


def _mean_return(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    returns = np.linspace(-10, 10, logits.shape[-1])
    return (weights * returns).sum(-1) / weights.sum(-1)


def _dqn(made, x):
    return made.apply("Dense_1", _relu(made.apply("Dense_0", x, 5)), 3)


def _quantiles(made, x):
    hidden = _relu(made.apply("Dense_0", x, 5))
    return made.apply("Dense_1", hidden, 600).reshape(-1, 3, 200).mean(-1)


def _rainbow(kind):
    """Return a full Rainbow, with layers of this kind."""

    def of_features(made, x):
        noisy = kind == "NoisyNetwork"
        hidden = _relu(made.apply(f"{kind}_0", x, 5, noisy))
        advantage = made.apply(f"{kind}_1", hidden, 3 * 7, noisy).reshape(-1, 3, 7)
        value = made.apply(f"{kind}_2", hidden, 7, noisy).reshape(-1, 1, 7)
        return _mean_return(value + advantage - advantage.mean(1, keepdims=True))

    return of_features


def _iqn(made, x):
    fractions = (np.arange(32)[:, np.newaxis] + 0.5) / 32
    embedded = np.cos(np.pi * np.arange(1, 9) * fractions)
    tiled = x[:, np.newaxis] * _relu(made.apply("Dense_0", embedded, x.shape[-1]))
    return made.apply("Dense_2", _relu(made.apply("Dense_1", tiled, 5)), 3).mean(1)


@pytest.mark.parametrize(
    ("head", "stack"),
    [
        *((_dqn, "Stack"), (_iqn, "_stacks"), (_dqn, ""), (_quantiles, ""), (_iqn, "")),
        *((_rainbow("NoisyNetwork"), ""), (_rainbow("Dense"), "Stack")),
    ],
)
def test_each_network_of_dopamine_computes_its_values(tmp_path, head, stack):
    """Of Impala's encoder, Dopamine and reincarnating_rl name the stacks differently."""
    made = _Params()
    images = np.random.default_rng(1).integers(0, 256, (5, 9, 9, 4), np.uint8)
    expected = head(made, (_impala if stack else _nature)(made, images / 255, stack))
    path = _write_jax(tmp_path, _small_layers(), online_params={"params": made.params})
    teacher = _load(path, spec=_small_spec(), teacher_temperature=1.0)
    found = tf.function(teacher.parameters)(_as_entries(images))[-1]
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
    assert np.ptp(expected, 0).min() > 1e-3


def test_layers_of_earlier_versions_are_numbered_together(tmp_path):
    """Before version 3.2, with flax.nn."""
    layers = _small_layers()
    names = ("Conv_0", "Conv_1", "Conv_2", "Dense_3", "Dense_4")
    params = {
        name: {"kernel": kernel, "bias": bias}
        for name, (kernel, bias) in zip(names, layers, strict=True)
    }
    path = _write_jax(tmp_path, layers, online_params=params)
    images = np.random.default_rng(1).integers(0, 256, (2, 9, 9, 4), np.uint8)
    found = _load(path, spec=_small_spec(), teacher_temperature=1.0).parameters(_as_entries(images))
    np.testing.assert_allclose(found[-1], _values(layers, images), rtol=1e-4, atol=1e-5)


def test_frames_of_an_earlier_episode_are_zeros(tmp_path):
    path = _write_jax(tmp_path, layers := _small_layers())
    frames = np.random.default_rng(1).integers(0, 256, (5, 1, 9, 9, 1), np.uint8)
    first = tf.constant([[False], [False], [False], [True], [False]])
    teacher = _load(path, spec=_small_spec(), teacher_temperature=1.0)
    stacked = np.zeros([1, 9, 9, 4], np.uint8)
    stacked[..., 2:] = np.concatenate(frames[3:, 0], -1)
    found = teacher.parameters(_entries(frames, first))[-1]
    np.testing.assert_allclose(found, _values(layers, stacked), rtol=1e-4, atol=1e-5)


def test_levels_that_stack_frames_themselves(tmp_path):
    path = _write_jax(tmp_path, layers := _small_layers())
    spec = _small_spec(stack=1)._replace(observation=tf.TensorSpec([9, 9, 4], tf.uint8))
    images = np.random.default_rng(1).integers(0, 256, (1, 2, 9, 9, 4), np.uint8)
    teacher = _load(path, spec=spec, teacher_temperature=1.0)
    found = teacher.parameters(_entries(images, tf.constant([[True, False]])))
    np.testing.assert_allclose(found[0], _values(layers, images[0]), rtol=1e-4, atol=1e-5)


# -- which checkpoint of a folder


def test_the_newest_complete_checkpoint_is_found(tmp_path):
    folder = tmp_path / "checkpoints"
    for number, complete in ((9, True), (10, True), (11, False)):
        _write_jax(folder, _small_layers(seed=number), number, complete)
    (folder / "ckpt.12.bak").touch()  # an editor's copies are no checkpoints
    (folder / "sentinel_checkpoint_complete.12.bak").touch()
    images = np.random.default_rng(1).integers(0, 256, (2, 9, 9, 4), np.uint8)
    for each in (tmp_path, folder):
        found = _load(each, spec=_small_spec(), teacher_temperature=1.0)
        answer = _values(_small_layers(seed=10), images)
        np.testing.assert_allclose(found.parameters(_as_entries(images))[-1], answer, 1e-3, 1e-4)
    with pytest.raises(NoTeacher, match=r"ckpt.7 does not exist: .* has checkpoint 9, 10, 11"):
        _load(folder / "ckpt.7", spec=_small_spec())
    for number in ("9", "10", "12.bak"):
        (folder / f"ckpt.{number}").unlink()
    with pytest.raises(NoTeacher, match=r"has checkpoint 11 and the sentinels of checkpoint 9, 10"):
        _load(folder, spec=_small_spec())
    shutil.rmtree(folder)
    folder.mkdir()
    for each in (tmp_path, folder):
        with pytest.raises(NoTeacher, match="checkpoints is empty: give the folder of a run"):
            _load(each, spec=_small_spec())


def test_the_runs_of_a_game_lie_in_numbered_folders(tmp_path):
    """As the public checkpoints of DQN do: DQN_400/Breakout/1/checkpoints/ckpt.399."""
    layers = _small_layers()
    _write_jax(tmp_path / "Breakout" / "1" / "checkpoints", layers, 399)
    (tmp_path / "Breakout" / "1" / "replay_logs").mkdir()
    images = np.random.default_rng(1).integers(0, 256, (2, 9, 9, 4), np.uint8)
    for path in ("Breakout", "Breakout/1", "Breakout/1/checkpoints/ckpt.399"):
        teacher = _load(tmp_path / path, spec=_small_spec(), teacher_temperature=1.0)
        found = teacher.parameters(_as_entries(images))[-1]
        np.testing.assert_allclose(found, _values(layers, images), rtol=1e-4, atol=1e-5)
    _write_jax(tmp_path / "Breakout" / "10" / "checkpoints", layers, 399)
    _write_jax(tmp_path / "Breakout" / "2" / "checkpoints", layers, 399)
    with pytest.raises(NoTeacher, match=r"has the runs 1, 2, 10: give one of them, such as .*t/1$"):
        _load(tmp_path / "Breakout", spec=_small_spec())


# -- what cannot teach


def _of(params):
    """Return a writer of a checkpoint with these parameters."""
    return lambda folder, layers: _write_jax(folder, layers, online_params=params)


def _with(index, kernel, bias=None):
    """Return a writer of a network of which one layer is another."""

    def write(folder, layers):
        changed = list(layers)
        changed[index] = kernel, np.zeros(kernel.shape[-1], kernel.dtype) if bias is None else bias
        return _write_jax(folder, changed)

    return write


def _cut_short(folder, layers):
    path = _write_jax(folder, layers)
    path.write_bytes(path.read_bytes()[:-50])
    return path


def _of_a_tensorflow_agent(folder, layers):
    path = _write_jax(folder, layers)
    path.write_bytes(pickle.dumps({"state": 1, "logs": {}}))
    return path


def _no_tensorflow(folder, layers):
    _write_jax(folder, layers)
    (folder / "tf_ckpt-3.index").write_bytes(b"nothing")
    return folder


def _dense(inputs, outputs):
    """Return the module of a layer of zeros."""
    return {"kernel": np.zeros([inputs, outputs], "f4"), "bias": np.zeros(outputs, "f4")}


_BAD = {
    _of(None): "has online_params that are no weights of layers",
    _of({"params": {name: {} for name in _JAX_NAMES}}): "has online_params that are no weights of",
    _of({"params": {"encoder": {}, 7: {}}}): "has online_params that are no weights of layers",
    _of(
        {"params": {"GRUCell_0": _dense(3, 4)}}
    ): "has the layer GRUCell_0: only the networks of DQN",
    _of({"params": {f"Conv_{'9' * 5000}": _dense(3, 4)}}): "has other convolutions",
    _of({"Conv_0": _dense(3, 4)}): "has other convolutions: only the networks of",
    _with(0, np.zeros([8, 8, 3, 2], "f4")): "reads stacks of 3 frames, and small has 4 of them",
    _with(0, np.zeros([6, 6, 4, 2], "f4")): "has a convolution [6, 6, 4, 2] where one of 8x8",
    _with(1, np.zeros([4, 4, 5, 3], "f4")): "where one of 4x4 pixels of 2 channels would be",
    _with(4, np.zeros([6, 3], "f4")): "has a layer of other inputs than the 5 outputs before it",
    _with(3, np.zeros([99, 5], "f4")): "reads images of another size than 9x9, which small has",
    _with(4, np.zeros([5, 4], "f4")): "was trained with 4 actions, and small takes",
    _with(4, np.zeros([5, 3], "f8")): "has Dense_1 as float64: float32 is read",
    _with(4, np.zeros([5], "f4")): "has Dense_1 with shapes [5] and [5]",
    _with(4, np.zeros([5, 3], "f4"), np.zeros(2, "f4")): "has Dense_1 with shapes [5, 3] and [2]",
    _with(4, np.full([5, 3], np.nan, "f4")): "has Dense_1 with weights that are not finite",
    _cut_short: "is damaged, cut short or not a pickle",
    _of_a_tensorflow_agent: "has no online_params, but state, logs: give a checkpoint of",
    _no_tensorflow: "tf_ckpt-3 is damaged or cut short",
}


@pytest.mark.parametrize("number", range(len(_BAD)))
def test_what_cannot_teach_is_refused_in_a_sentence(tmp_path, number):
    write, said = list(_BAD.items())[number]
    path = write(tmp_path / "checkpoints", _small_layers())
    with pytest.raises(NoTeacher, match=re.escape(said)) as refused:
        _load(path, spec=_small_spec())
    assert str(refused.value).startswith(f"--teacher={path}: {tmp_path}")
    assert "\n" not in str(refused.value)


_BREAKOUT = "BreakoutNoFrameskip-v4"


@pytest.mark.parametrize("options", [{"frame_stack": 3}, {"grayscale": False}])
def test_other_pictures_than_dopamines_are_refused_with_the_flags(tmp_path, options):
    path = _write_jax(tmp_path, _small_layers(actions=4))
    with pytest.raises(NoTeacher, match="leave out --frame_stack and --grayscale"):
        _load(path, spec=level_spec(_BREAKOUT, **options), **options)


def test_a_student_of_whole_games_is_taught_by_dopamines_protocol(tmp_path):
    """What the teacher plays for it has lives as the student's own games have them."""
    teacher = unpack(tmp_path, "dqn")
    for ends in (True, False):
        config = dqn_settings.DQNSettings(
            teacher=str(teacher), level_name=_BREAKOUT, distill="value", life_loss_ends=ends
        )
        (made,) = load_teachers(config, level_spec(_BREAKOUT))
        notes = " ".join(made.notes)
        assert ("as --preset=atari-sticky does" in notes) == ends
        assert ("--life_loss_ends=False, and its student has True" in notes) == ends
        player = TeacherPlayer(None, config, level_spec(_BREAKOUT), _BREAKOUT)
        games = player.make_environments(1, seed=0)
        games.reset()
        for _ in range(90):  # in which lives are lost, but no game ends
            games.step(np.array([1]))
        lives = games.episodes()
        assert bool(lives) == ends
        assert not any(life.whole_game for life in lives)


def test_values_of_actions_that_it_lacks_or_of_other_rewards_are_named(tmp_path):
    path = _write_jax(tmp_path, _small_layers())

    def load(actions, **flags):
        config = dqn_settings.DQNSettings(teacher=str(path), distill="value", **flags)
        return load_teachers(config, _small_spec(actions=actions))

    assert len(load(3)) == len(load(3, teacher_actions="2,0,1")) == 1
    with pytest.raises(NoTeacher, match="--teacher_actions=0,1,2,- has actions that the teacher"):
        load(4, teacher_actions="0,1,2,-")
    said = "was trained with --reward_clipping=abs_one, and its student has none: their values"
    for clipping, notes in (("none", 1), ("abs_one", 0)):
        flags = {"reward_clipping": clipping, "normalize_rewards": False}
        for order in ("", "2,0,1"):
            (teacher,) = load(3, teacher_actions=order, **flags)
            assert len([note for note in teacher.notes if said in note]) == notes
            assert not [note for note in teacher.notes if "and its student has False" in note]


def test_levels_without_images_are_refused(tmp_path):
    path = _write_jax(tmp_path, _small_layers())
    for level in ("catch", "Pendulum-v1"):
        with pytest.raises(NoTeacher, match="reads images of bytes"):
            _load(path, level)
