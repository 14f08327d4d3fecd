"""R2D2: its burn-in, its networks, and the first priorities of unrolls."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.interface import Context, EnvironmentNumber
from impala_mm.algorithms.q_learning import draws as q_draws
from impala_mm.algorithms.q_learning import values as q_values
from impala_mm.algorithms.q_learning.value_distributions import Outcomes
from impala_mm.data import batches
from tests.helpers import in_process, in_threads

T, BURN_IN, B = 6, 3, 5
PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))


def _made(level="memory", **settings):
    sizes = {"unroll_length": T, "n_steps": 2, "burn_in": BURN_IN}
    return in_process.made("r2d2", level, **sizes | settings)


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
    ("level", "flags", "name", "note"),
    [
        ("memory", {}, "MLPLSTMAgent", ""),
        ("PongNoFrameskip-v4", {}, "ShallowConvLSTMAgent", ""),
        ("memory", {"agent_name": "MLPAgent"}, "MLPAgent", "remembers nothing: --burn_in=3"),
        ("memory", {"agent_name": "MLPAgent", "burn_in": 0}, "MLPAgent", "remembers nothing"),
        (
            "PongNoFrameskip-v4", {"agent_name": "ShallowConvAgent"}, "ShallowConvAgent",
            "remembers nothing but stacked frames: --burn_in=3",
        ),
    ],
)  # fmt: skip
def test_a_recurrent_network_is_the_default_and_another_one_is_allowed_and_said(
    level, flags, name, note
):
    algorithm, _ = _made(level, **flags)
    assert algorithm.network_name == name
    assert (note in algorithm.note) if note else not algorithm.note
    assert ("--burn_in=" in algorithm.note) == ("--burn_in=" in note)
    config = algorithm._config
    assert (config.reward_clipping, config.max_abs_reward) == ("none", float("inf"))
    assert (config.duelling, config.value_rescaling) == (True, 1e-3)


GUIDED = {"teacher": "x", "guide_steps": 9, "teacher_cost": 0.0}
OF_A_TRANSFORMER = {"agent_name": "MLPGTrXLAgent", "gtrxl_memory": 2}


@pytest.mark.parametrize(
    "flags", [{}, GUIDED, pytest.param(OF_A_TRANSFORMER, marks=pytest.mark.slow)]
)
def test_the_first_priorities_are_those_of_the_update_without_its_last_step(flags):
    """Those of the actions that were taken, also where a teacher chose them."""
    algorithm, _ = _made(value_rescaling=0.01, **flags)
    guided = flags is GUIDED
    other = (lambda action: 1 - action) if guided else (lambda action: action)
    entries, start = _played(algorithm, T + 1 + BURN_IN, other)
    found = algorithm.first_priorities(entries, start).numpy()
    values = _read(algorithm._online, entries, start)[:-1]
    used = tf.nest.map_structure(lambda x: x[BURN_IN:-1], entries)
    expected = q_values.priorities(*_sizes(algorithm, values, values, used), 0.9)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(found) > 0.01


@pytest.mark.parametrize(
    "flags",
    [
        {
            "value_distribution": "categorical", "value_rescaling": 0.0, "num_atoms": 5,
            "v_min": -1.0, "v_max": 1.0,
        },
        {"unroll_length": 1, "n_steps": 1, "burn_in": 0},  # no unroll has a whole step
    ],
)  # fmt: skip
def test_new_unrolls_whose_losses_are_not_known_have_the_largest_priority(flags):
    algorithm, _ = _made(**flags)
    steps = algorithm.unroll.length + algorithm.unroll.overlap
    assert np.isnan(algorithm.first_priorities(*_played(algorithm, steps))).all()


def _batch(algorithm):
    entries, start = _played(algorithm, T + 1 + BURN_IN)
    batch = batches.zeros(algorithm.unroll, B)._replace(weight=np.ones(B, np.float32))
    return in_process.tensors(batch._replace(unrolls=entries, start=start))


def test_the_steps_after_the_burn_in_are_trained_on_from_the_recorded_state():
    algorithm, exchange = _made(learning_rate=0.01)
    batch = _batch(algorithm)
    entries, start = batch[:2]
    values, future = (_read(n, entries, start) for n in (algorithm._online, algorithm._target))
    used = tf.nest.map_structure(lambda x: x[BURN_IN:], entries)
    sizes, live = _sizes(algorithm, values, future, used)
    assert sizes.shape == (T, B)
    before = in_threads.arrays(algorithm.variables.trained)
    metrics, priorities = algorithm.update(batch, PROGRESS, exchange)
    half_squares = 0.5 * np.square(sizes)
    assert float(metrics["loss/total"]) == pytest.approx(half_squares.mean(), rel=1e-4)
    np.testing.assert_allclose(priorities, q_values.priorities(sizes, live, 0.9), rtol=1e-4)
    # Adam's first step is the learning rate for each weight whose gradient is far above epsilon.
    pairs = zip(algorithm.variables.trained, before, strict=True)
    moved = np.concatenate([np.abs(v.numpy() - was).ravel() for v, was in pairs]) / 0.01
    assert np.median(moved[moved > 1e-3]) > 0.5, "with an epsilon of 0.001 it is 0.03"
    other = tf.nest.map_structure(lambda x: x + 1.0, start)
    endless = entries._replace(first=tf.zeros_like(entries.first))
    read, again = (_read(algorithm._online, endless, x) for x in (start, other))
    assert np.abs(read - again).max() > 1e-3, "the state before the burn-in matters"


@pytest.mark.slow  # test_q_learning has quantiles, and test_updates R2D2
def test_quantiles_of_a_recurrent_network_are_learnt():
    """While it is traced, the length of the network's outputs is not known."""
    algorithm, exchange = _made(value_distribution="quantiles", huber_delta=1.0, learning_rate=0.01)
    batch = _batch(algorithm)

    @tf.function(autograph=False)
    def update():
        exchange.begin(tf.constant(0, tf.int64))
        return algorithm.update(batch, PROGRESS, exchange)[0]["loss/total"]

    losses = [float(update()) for _ in range(10)]
    assert losses[-1] < losses[0]
