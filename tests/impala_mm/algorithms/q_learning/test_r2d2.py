"""R2D2: its burn-in, its networks, and the first priorities of unrolls."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms import registry
from impala_mm.algorithms.interface import Context, EnvironmentNumber
from impala_mm.algorithms.q_learning import draws as q_draws
from impala_mm.algorithms.q_learning import values as q_values
from impala_mm.algorithms.q_learning.value_distributions import Outcomes
from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.data import batches
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec

T, BURN_IN, B = 6, 3, 5
PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))


def _made(level="memory", **settings):
    config = Config.of_algorithm("r2d2")(
        algorithm="r2d2", level_name=level,
        **{"unroll_length": T, "n_steps": 2, "burn_in": BURN_IN} | settings,
    )  # fmt: skip
    tf.random.set_seed(1)
    made = registry.make_algorithm(config, level_spec(config.level_name))
    return made, GradientReducer(SingleLearner(), config)


def _played(algorithm, steps, guide=lambda action: action):
    """Return [steps, B] entries as an actor with the present network writes them, and a start."""
    random, state = np.random.default_rng(0), algorithm.initial_state(B)
    spec = algorithm.unroll.step
    entry = tf.nest.map_structure(lambda s: tf.zeros([B, *s.shape], s.dtype), spec)
    entry, written = entry._replace(first=tf.fill([B], True)), []
    written.append(entry)
    for _ in range(1, steps):
        number = EnvironmentNumber(tf.range(B), tf.constant(B))
        action, state, extras = algorithm.act_by_number(entry, state, tf.ones([B]), number)
        ends = written[-1].terminated
        entry = entry._replace(
            action=guide(action),
            reward=tf.constant(random.normal(size=B), tf.float32),
            terminated=tf.constant(random.random(B) < 0.2) & ~ends,
            observation=tf.constant(random.random([B, *spec.observation.shape]), tf.float32),
            first=ends,
            extras=extras,
        )
        written.append(entry)
    return tf.nest.map_structure(lambda *x: tf.stack(x), *written), algorithm.initial_state(B)


def _read(network, entries, start):
    """Return the values of entries after the burn-in."""
    return network.unroll(entries, start, q_draws.Calm(), 1, BURN_IN).mean


def _sizes(algorithm, values, future, entries):
    """Return the sizes of the errors [T, B], and which are of steps."""
    best = tf.argmax(values, -1, tf.int32)
    after = q_values.chosen(future, best)[..., None]
    goals, live = q_values.find_targets(
        Outcomes(after, tf.ones_like(after)), entries, tf.ones([B]), algorithm._rule
    )
    played = q_values.chosen(values[:-1], entries.action[1:])
    return tf.where(live, tf.abs(goals.mean() - played), 0.0), live


@pytest.mark.parametrize(
    ("level", "name"), [("memory", "MLPLSTMAgent"), ("PongNoFrameskip-v4", "ShallowConvLSTMAgent")]
)
def test_the_default_network_is_the_recurrent_one_for_the_observations(level, name):
    algorithm, _ = _made(level)
    assert algorithm.network_name == name
    assert algorithm.note == ""


def test_rewards_are_rescaled_in_values_and_not_clipped_and_the_network_is_a_duelling_one():
    config = Config.of_algorithm("r2d2")(algorithm="r2d2", level_name="PongNoFrameskip-v4")
    assert (config.reward_clipping, config.max_abs_reward) == ("none", float("inf"))
    assert config.duelling
    assert config.value_rescaling == 1e-3


def test_a_network_without_memory_is_allowed_and_said():
    algorithm, _ = _made(agent_name="MLPAgent")
    assert "MLPAgent, which remembers nothing: --burn_in=3 entries" in algorithm.note
    assert "give --burn_in=0, or leave --agent_name out" in algorithm.note
    algorithm, _ = _made(agent_name="MLPAgent", burn_in=0)
    assert algorithm.note == "R2D2 with MLPAgent, which remembers nothing"
    algorithm, _ = _made("PongNoFrameskip-v4", agent_name="ShallowConvAgent")
    assert "ShallowConvAgent, which remembers nothing but stacked frames: --burn" in algorithm.note


@pytest.mark.parametrize("guided", [False, True])
def test_the_first_priorities_are_those_of_the_update_without_its_last_step(guided):
    """Those of the actions that were taken, also where a teacher chose them."""
    flags = {"teacher": "x", "guide_steps": 9, "teacher_cost": 0.0} if guided else {}
    algorithm, _ = _made(value_rescaling=0.01, **flags)
    other = (lambda action: 1 - action) if guided else (lambda action: action)
    entries, start = _played(algorithm, T + 1 + BURN_IN, other)
    found = algorithm.first_priorities(entries, start).numpy()
    values = _read(algorithm._online, entries, start)[:-1]
    used = tf.nest.map_structure(lambda x: x[BURN_IN:-1], entries)
    expected = q_values.priorities(*_sizes(algorithm, values, values, used), 0.9)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(found) > 0.01


def test_new_unrolls_have_the_largest_priority_where_losses_of_distributions_decide():
    algorithm, _ = _made(
        value_distribution="categorical", value_rescaling=0.0, num_atoms=5, v_min=-1.0, v_max=1.0
    )
    assert np.isnan(algorithm.first_priorities(*_played(algorithm, T + 1 + BURN_IN))).all()


def test_unrolls_without_a_whole_step_have_the_largest_priority():
    algorithm, _ = _made(unroll_length=1, n_steps=1, burn_in=0)
    assert np.isnan(algorithm.first_priorities(*_played(algorithm, 2))).all()


def test_the_steps_after_the_burn_in_are_trained_on_from_the_recorded_state():
    algorithm, exchange = _made(learning_rate=0.01)
    entries, start = _played(algorithm, T + 1 + BURN_IN)
    batch = batches.zeros(algorithm.unroll, B)._replace(weight=np.ones(B, np.float32))
    batch = tf.nest.map_structure(tf.constant, batch._replace(unrolls=entries, start=start))
    values, future = (_read(n, entries, start) for n in (algorithm._online, algorithm._target))
    used = tf.nest.map_structure(lambda x: x[BURN_IN:], entries)
    sizes, live = _sizes(algorithm, values, future, used)
    assert sizes.shape == (T, B)
    before = [v.numpy() for v in algorithm.variables.trained]
    metrics, priorities = algorithm.update(batch, PROGRESS, exchange)
    half_squares = 0.5 * np.square(sizes)
    assert float(metrics["loss/total"]) == pytest.approx(half_squares.mean(), rel=1e-4)
    np.testing.assert_allclose(priorities, q_values.priorities(sizes, live, 0.9), rtol=1e-4)
    after = [v.numpy() for v in algorithm.variables.trained]
    assert any(np.abs(a - b).max() > 0 for a, b in zip(before, after, strict=True))
    other = tf.nest.map_structure(lambda x: x + 1.0, start)
    endless = entries._replace(first=tf.zeros_like(entries.first))
    read, again = (_read(algorithm._online, endless, x) for x in (start, other))
    assert np.abs(read - again).max() > 1e-3, "the state before the burn-in matters"


def test_quantiles_of_a_recurrent_network_are_learnt():
    """While it is traced, the length of the network's outputs is not known."""
    algorithm, exchange = _made(value_distribution="quantiles", huber_delta=1.0, learning_rate=0.01)
    entries, start = _played(algorithm, T + 1 + BURN_IN)
    batch = batches.zeros(algorithm.unroll, B)._replace(weight=np.ones(B, np.float32))
    batch = tf.nest.map_structure(tf.constant, batch._replace(unrolls=entries, start=start))

    @tf.function(autograph=False)
    def update():
        exchange.begin(tf.constant(0, tf.int64))
        return algorithm.update(batch, PROGRESS, exchange)[0]["loss/total"]

    losses = [float(update()) for _ in range(10)]
    assert losses[-1] < losses[0]


def test_gradients_of_the_mean_loss_are_far_above_the_optimizers_epsilon():
    """Adam's first step is the learning rate for each weight, if its gradient is."""
    algorithm, exchange = _made(learning_rate=0.01)
    entries, start = _played(algorithm, T + 1 + BURN_IN)
    batch = batches.zeros(algorithm.unroll, B)._replace(weight=np.ones(B, np.float32))
    batch = tf.nest.map_structure(tf.constant, batch._replace(unrolls=entries, start=start))
    before = [v.numpy() for v in algorithm.variables.trained]
    algorithm.update(batch, PROGRESS, exchange)
    pairs = zip(algorithm.variables.trained, before, strict=True)
    moved = np.concatenate([np.abs(v.numpy() - was).ravel() for v, was in pairs]) / 0.01
    assert np.median(moved[moved > 1e-3]) > 0.5, "with an epsilon of 0.001 it is 0.03"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--burn_in=21"], "--burn_in=21 is longer than --unroll_length=20: lower it"),
        (["--n_steps=21"], "--n_steps=21 is longer than --unroll_length=20, so no target"),
    ],
)
def test_lengths_that_do_not_fit_are_refused_before_anything_starts(capsys, given, said):
    with pytest.raises(SystemExit) as ended:
        command_line.parse(["experiment.py", "--algorithm=r2d2", *given], "", Config)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
