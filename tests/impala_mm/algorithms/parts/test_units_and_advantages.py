"""IMPALA and PPO with every unit of values and every estimate of advantages, in single updates."""

import threading

import in_process
import in_threads
import numpy as np
import pytest
import tensorflow as tf

from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms.interface import Context, Role, Setup
from impala_mm.algorithms.make import make_algorithm
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.data.variables import ParameterLayout
from impala_mm.distributed import gradients
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec, make_environments

COLUMNS, MAKING = 4, threading.Lock()  # held while a learner seeds its initial weights


def _config(algorithm, **settings):
    """Return settings under which N learners with a share each are one with all columns."""
    shared = {
        "algorithm": algorithm, "level_name": "CartPole-v1", "unroll_length": 6,
        "batch_size": COLUMNS, "normalize_observations": False, "normalize_rewards": False,
        "loss_reduction": "mean", "optimizer": "rmsprop", "learning_rate": 0.01,
        "gradients_clipping": -1.0,
    }  # fmt: skip
    if algorithm != "impala":
        shared |= {"minibatches": 1, "epochs": 2}
    return Config.of_algorithm(algorithm)(**shared | settings)


def _made(config):
    """Return the algorithm; its network reads no rewards, and all values are 0 at first."""
    with MAKING:
        algorithm = in_process.make(config)
    algorithm._unit.for_network = tf.zeros_like
    for variable in algorithm._baseline_head.trainable_variables:
        variable.assign(tf.zeros_like(variable))
    return algorithm


def _trained(config, learners=1, updates=3):
    """Return each learner's algorithm after updates on its share of the same unrolls."""
    vector = make_environments(config.level_name, COLUMNS, seed=0)
    player = UnrollPlayer(_made(config), [(vector, COLUMNS)])
    played = [tf.constant(player.play()) for _ in range(updates)]

    def learn(joined):
        algorithm = _made(config)
        exchange = gradients.GradientReducer(joined, config)
        mine = np.arange(COLUMNS)[in_threads.share_of(joined, COLUMNS)]
        for contents in played:
            batch = in_process.decoded(UnrollCodec(algorithm.unroll), contents)
            context = Context(*tf.constant([0.0, 1e9, 0.0]))
            algorithm.update(batches.columns(batch, mine), context, exchange)
        return algorithm

    made = in_threads.together(learners, learn)
    for each in made:
        if isinstance(each, Exception):
            raise each
    return made


def _numbers(algorithm, group="trained"):
    return [v.numpy() for v in getattr(algorithm.variables, group)]


def test_with_popart_the_unit_of_the_rewards_does_not_matter():
    """Rewards a million times larger have the same policy, and values a million times larger."""
    plain, large = (
        _trained(_config("impala", value_normalization="popart", reward_scaling=scale))[0]
        for scale in (1.0, 1e6)
    )
    for one, other in zip(_numbers(plain), _numbers(large), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-5)
    for one, other in zip(plain._unit.acting, large._unit.acting, strict=True):
        np.testing.assert_allclose(other, one * 1e6, rtol=1e-3)
        assert float(one) > 0.1


@pytest.mark.parametrize("name", ["impala", "ppo"])
def test_with_popart_a_level_that_pays_a_thousand_times_as_much_is_learnt_alike(name):
    """Both levels have the same games: their outputs of the value head get the same weights."""
    config = _config(name, value_normalization="popart")
    environment = level_spec(config.level_name)
    with MAKING:
        learner = make_algorithm(config, environment, Setup(levels=2))
        actor = make_algorithm(config, environment, Setup(Role.ACTOR, levels=2, level=1))
    batch = in_process.random_batch(learner, 7, 5)  # the last column is padding
    last = tf.nest.map_structure(lambda x: x[-1], in_process.tensors(batch).unrolls)
    _, _, extras = actor.act(last, actor.initial_state(5), tf.ones([5]))
    assert extras.level.numpy().tolist() == [1] * 5
    learner._unit.for_network = tf.zeros_like
    for variable in learner._baseline_head.trainable_variables:
        variable.assign(tf.zeros_like(variable))
    same, level = [0, 1, 0, 1, 4], np.tile(np.int32([0, 0, 1, 1, 0]), [7, 1])
    unrolls, start = (
        tf.nest.map_structure(lambda x: x[:, same], batch.unrolls),
        tf.nest.map_structure(lambda x: x[same], batch.start),
    )
    unrolls = unrolls._replace(
        reward=unrolls.reward * np.float32([1, 1, 1000, 1000, 1]),
        extras=unrolls.extras._replace(level=level),
    )
    batch = in_process.tensors(batch._replace(unrolls=unrolls, start=start))
    exchange = gradients.GradientReducer(SingleLearner(), config)
    context = Context(*tf.constant([0.0, 1e9, 0.0]))
    for _ in range(3):
        learner.update(batch, context, exchange)
    for values in learner._unit.acting:
        np.testing.assert_allclose(values[1], 1000 * values[0], rtol=1e-4)
    weights = learner._baseline_head.w.numpy()
    assert np.abs(weights).max() > 1e-3
    np.testing.assert_allclose(weights[:, 1], weights[:, 0], rtol=1e-2, atol=1e-5)


def test_learners_agree_on_the_unit_and_are_one_with_all_columns():
    config = _config("impala", value_normalization="popart", reward_scaling=30.0)
    (one,), several = _trained(config), _trained(config, 2)
    for group in ("trained", "carried", "acting"):
        alone, *both = (_numbers(each, group) for each in (one, *several))
        for whole, first, second in zip(alone, *both, strict=True):
            np.testing.assert_array_equal(first, second)
            np.testing.assert_allclose(first, whole, rtol=1e-3, atol=1e-5)
    assert all((v.numpy() > 1.0).all() for v in one._unit.learning)


def test_what_reads_a_policy_gets_values_in_the_unit_of_the_rewards():
    """Actors, evaluators and exports have the variables for acting, and judge as the learner."""
    config = _config("impala", value_normalization="popart", reward_scaling=1000.0)
    (learner,) = _trained(config)
    learner._baseline_head.w.assign(tf.zeros_like(learner._baseline_head.w))
    learner._baseline_head.b.assign([0.5])
    reader = make_algorithm(config, level_spec(config.level_name), Setup(Role.EVALUATOR))
    reader._unit.for_network = tf.zeros_like
    assert [v.name for v in reader.variables.carried] == ["value_mean:0", "value_deviation:0"]
    assert reader.variables.weights == reader.variables.carried
    layouts = [
        ParameterLayout(each.variables.acting, each.variables.trained, "float32")
        for each in (learner, reader)
    ]
    layouts[1].assign_bytes(layouts[0].pack(layouts[0].values()))
    player = UnrollPlayer(
        learner, [(make_environments(config.level_name, COLUMNS, seed=1), COLUMNS)]
    )
    batch = in_process.decoded(UnrollCodec(learner.unroll), tf.constant(player.play()))
    judged = [each.judge_unroll(batch.unrolls, batch.start).value for each in (learner, reader)]
    np.testing.assert_array_equal(*judged)
    mean, deviation = (float(v) for v in learner._unit.acting)
    assert deviation > 500, "rewards are 1000"
    np.testing.assert_allclose(judged[0], np.full([7, COLUMNS], mean + deviation / 2), rtol=1e-5)
    last = tf.nest.map_structure(lambda x: x[-1], batch.unrolls)
    np.testing.assert_allclose(reader.judge(last, batch.start).value, judged[0][-1], rtol=1e-5)


def test_a_discount_per_frame_is_one_of_all_the_frames_of_a_step():
    level = level_spec("catch")._replace(action_repeats=4)
    for per_frame, expected in ((False, 0.99), (True, 0.99**4)):
        config = Config(level_name="catch", discount_per_frame=per_frame)
        made = make_algorithm(config, level)
        assert made._config.discounting == pytest.approx(expected, abs=1e-12)
