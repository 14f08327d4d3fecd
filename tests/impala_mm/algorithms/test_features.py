"""Features: algorithms learn without the package of them, and with one of a user's own."""

import importlib
import subprocess
import sys

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms import registry
from impala_mm.algorithms.feature import Added, Feature, Features
from impala_mm.algorithms.interface import Context, Role
from impala_mm.config import auto
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec

_TRAINS = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("impala_mm.algorithms.features"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
import importlib
import numpy as np, tensorflow as tf
from impala_mm.algorithms.interface import Context
from impala_mm.config import auto
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec

for name, flags in (
    ("impala", {}),
    ("ppo", {"minibatches": 1, "epochs": 1}),
    ("dqn", {}),
    ("sac", {"compile_updates": False, "updates_per_step": 0.25}),
):
    level = "Pendulum-v1" if name == "sac" else "catch"
    config = Config.of_algorithm(name)(
        algorithm=name, level_name=level, batch_size=2, unroll_length=2, box_policy="tanh",
        precision="float32", **flags
    )
    module = importlib.import_module(f"impala_mm.algorithms.{name}")
    config = auto.for_task(config, level_spec(level))
    algorithm = module.make(config, level_spec(level))
    spec = algorithm.unroll
    entries = tf.nest.map_structure(
        lambda s: tf.zeros([spec.length + spec.overlap, 2, *s.shape], s.dtype), spec.step
    )
    keys = tf.range(2, dtype=tf.int64)
    batch = Batch(entries, algorithm.initial_state(2), keys, tf.ones([2]), keys, tf.ones([2], bool))
    context = Context(*map(tf.constant, (0.0, 1e6, float("nan"))))
    before = [v.numpy() for v in algorithm.variables.trained]
    algorithm.update(batch, context, GradientReducer(SingleLearner(), config))
    after = [v.numpy() for v in algorithm.variables.trained]
    assert any((a != b).any() for a, b in zip(before, after)), name
    print(name)
"""


def test_algorithms_learn_where_the_features_cannot_be_imported():
    ran = subprocess.run(
        [sys.executable, "-c", _TRAINS], capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == ["impala", "ppo", "dqn", "sac"], ran.stderr[-2000:]


class Curiosity(Feature):
    """A reward for observations that a network of its own cannot predict yet (RND)."""

    def __init__(self, scale):
        self.scale = scale
        self.predictor, self.target = snt.Linear(4, name="predictor"), snt.Linear(4, name="fixed")
        for module in (self.predictor, self.target):
            module(tf.zeros([1, 50]))
        self.trained = list(self.predictor.trainable_variables)

    def _errors(self, observation):
        flat = tf.reshape(observation, [*observation.shape[:2], -1])
        wanted = snt.BatchApply(self.target)(flat)
        return tf.reduce_sum((snt.BatchApply(self.predictor)(flat) - wanted) ** 2, -1)

    def prepare(self, batch, reading):
        """The observation that follows each step, which minibatches of steps lack."""
        return batch, tf.roll(batch.unrolls.observation, -1, axis=0)

    def bonus(self, batch, prepared):
        return self.scale * tf.stop_gradient(self._errors(batch.unrolls.observation))

    def loss(self, student, prepared):
        errors = self._errors(prepared)
        return Added(student.reduce(errors), {"novelty": student.sums(errors)})


def _updates(name, features, updates=20):
    """Return the algorithm and the metrics of updates on one batch in which nothing is rewarded."""
    config = Config.of_algorithm(name)(
        algorithm=name, level_name="catch", batch_size=8, unroll_length=4, learning_rate=0.01,
        precision="float32", normalize_rewards=False, normalize_observations=False,
    )  # fmt: skip
    config = auto.for_task(config, level_spec("catch"))
    module = importlib.import_module(f"impala_mm.algorithms.{name}")
    algorithm = module.make(config, level_spec("catch"), Role.LEARNER, features)
    random, unroll = np.random.default_rng(0), algorithm.unroll

    def zeros(s):
        return np.zeros([unroll.length + 1, 8, *s.shape], s.dtype.as_numpy_dtype)

    entries = tf.nest.map_structure(zeros, unroll.step)
    entries.observation[...] = random.random(entries.observation.shape)
    entries.action[...] = random.integers(0, 3, entries.action.shape)
    entries = tf.nest.map_structure(tf.constant, entries)
    keys = tf.range(8, dtype=tf.int64)
    batch = Batch(entries, algorithm.initial_state(8), keys, tf.ones([8]), keys, tf.ones([8], bool))
    exchange = GradientReducer(SingleLearner(), config)
    context = Context(*map(tf.constant, (0.0, 1e6, float("nan"))))

    @tf.function(autograph=False)
    def update():
        exchange.begin(tf.constant(0, tf.int64))
        return algorithm.update(batch, context, exchange)[0]

    rows = [{key: float(x) for key, x in update().items()} for _ in range(updates)]
    return algorithm, batch, rows


@pytest.mark.parametrize("name", ["impala", "ppo"])
def test_a_feature_adds_a_loss_a_network_and_rewards_that_the_policys_network_does_not_read(name):
    curious = Curiosity(scale=20.0)
    algorithm, _, rows = _updates(name, Features([curious]))
    assert rows[-1]["novelty"] < 0.5 * rows[0]["novelty"], "its network learns"
    trained = {id(v) for v in algorithm.variables.trained}
    acting = {id(v) for v in algorithm.variables.acting}
    assert trained.issuperset(map(id, curious.trained)), "saved, and equal on all learners"
    assert not acting & set(map(id, curious.trained)), "actors do not receive it"
    _, _, plain = _updates(name, Features())
    assert "novelty" not in plain[0]
    assert plain[0]["loss/baseline"] < 0.2 * rows[0]["loss/baseline"], "nothing else is rewarded"


def test_features_that_the_flags_ask_for_and_an_algorithm_does_not_take_are_refused(
    tmp_path, monkeypatch, capsys
):
    """A user's algorithm that wraps a built-in one would learn without its teacher, silently."""
    (tmp_path / "wraps_ppo.py").write_text(
        "from impala_mm.algorithms import ppo\n"
        "def make(config, environment, role):\n"
        "    return ppo.make(config, environment, role)\n"
    )
    (tmp_path / "wraps_ppo_settings.py").write_text(
        "from impala_mm.algorithms.ppo_settings import Settings\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    kind = Config.of_algorithm("wraps_ppo")
    given = {"algorithm": "wraps_ppo", "level_name": "catch"}
    registry.make_algorithm(kind(**given), level_spec("catch"))
    with pytest.raises(SystemExit):
        registry.make_algorithm(kind(**given, kl_mu_pi_cost=0.1), level_spec("catch"))
    said = capsys.readouterr().err
    assert "ToBehaviour" in said
    assert "features" in said
