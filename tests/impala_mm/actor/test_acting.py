"""What an actor's `Act` returns: the same by NumPy as by TensorFlow, whichever computes it."""

import in_process
import numpy as np
import pytest
import tensorflow as tf

from impala_mm.actor.acting import Act
from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms.make import make_algorithm
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.environments.action_parts import Box, Discrete, MultiBinary, MultiDiscrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.choices import ChoiceSpec
from impala_mm.environments.make import make_environments
from impala_mm.environments.types import EnvironmentSpec

SIZE = 3
NUMBER = [tf.range(SIZE), tf.constant(SIZE)]  # of the environments
BOX = Box((2,), (-1.0, 0.0), (1.0, 5.0))
NESTED_ACTIONS = {"a": Discrete(3), "b": (BOX, MultiBinary((2,)))}
VECTOR = tf.TensorSpec([5], tf.float32)
NESTED = {"a": VECTOR, "b": ChoiceSpec((70, 30)), "c": tf.TensorSpec([3, 2], tf.float32)}
EVERYTHING = {
    "normalize_observations": True,
    "normalize_rewards": True,
    "layer_norm": True,
    "separate_networks": True,
    "box_deviation": "learnt",
    "box_policy": "tanh",
}


def _algorithm(observation, actions, masked=False, agent_name="MLPAgent", **settings):
    tf.random.set_seed(1)
    actions = ActionSpec(actions)
    masks = actions.mask_specs if masked else ()
    spec = EnvironmentSpec("level", observation, actions, 1, None, masks=masks)
    kind = Config.of_algorithm(settings.get("algorithm", "impala"))
    config = kind(level_name="catch", agent_name=agent_name, precision="float32", **settings)
    return make_algorithm(config, spec)


def _entries(algorithm, random):
    """Return random entries of SIZE environments."""

    def draw(spec):
        shape = [SIZE, *spec.shape]
        if spec.dtype == tf.bool:
            return random.random(shape) < 0.7
        if spec.dtype.is_integer:
            return random.integers(2, size=shape).astype(spec.dtype.as_numpy_dtype)
        return random.standard_normal(shape, np.float32)

    entry = tf.nest.map_structure(draw, algorithm.unroll.step._replace(extras=()))
    for mask in tf.nest.flatten(entry.mask):
        mask[:, ::2] = True  # at least one choice of each element
    return entry


def _both(algorithm, monkeypatch):
    """Return the algorithm's `Act` by NumPy and by TensorFlow."""
    by_numpy = Act(algorithm, SIZE)
    assert by_numpy.by_numpy
    threads = tf.config.threading
    monkeypatch.setattr(threads, "get_intra_op_parallelism_threads", lambda: 2)
    by_tensorflow = Act(algorithm, SIZE)
    assert not by_tensorflow.by_numpy
    return by_numpy, by_tensorflow


@pytest.mark.parametrize(
    ("agent_name", "observation", "actions", "masked", "settings"),
    [
        ("MLPGRUAgent", VECTOR, Discrete(4), False, {}),
        ("MLPLSTMAgent", NESTED, NESTED_ACTIONS, True, EVERYTHING),
        ("MLPAgent", VECTOR, MultiDiscrete((2, 2), (2, 3, 4, 2), (0, 0, 0, 0)), True, {}),
        ("MLPAgent", tf.TensorSpec([6, 2], tf.uint8), BOX, False, {"activation": "swish"}),
        ("MLPAgent", ChoiceSpec((70,)), Discrete(4), True, {"activation": "elu"}),
    ],
)
def test_states_and_parameters_are_those_that_tensorflow_computes(
    agent_name, observation, actions, masked, settings, monkeypatch
):
    algorithm = _algorithm(observation, actions, masked, agent_name, **settings)
    for variable in algorithm.variables.acting:  # also those that begin as zeros
        variable.assign_add(0.1 * tf.random.uniform(variable.shape))
    acts = _both(algorithm, monkeypatch)
    random = np.random.default_rng(0)
    states = [tf.nest.flatten(algorithm.initial_state(SIZE))] * 2
    for _ in range(4):
        entry = _entries(algorithm, random)
        (ours, mine, parameters), (theirs, other, expected) = (
            act(entry, state, NUMBER) for act, state in zip(acts, states, strict=True)
        )
        for found, wanted in zip([*mine, *parameters], [*other, *expected], strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
            assert np.asarray(found).dtype == np.asarray(wanted).dtype
        for found, wanted in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
            assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        states = [mine, other]


@pytest.mark.parametrize(
    ("agent_name", "distribution", "tolerance"),
    [
        ("MLPAgent", "none", 1e-5),
        ("MLPAgent", "categorical", 1e-5),
        ("MLPAgent", "quantiles", 5e-3),
    ],
)
def test_values_of_actions_are_those_that_tensorflow_computes(
    agent_name, distribution, tolerance, monkeypatch
):
    """The noise is small here, and levels of quantiles are many, since both are drawn."""
    own = {"value_distribution": distribution, "num_policy_quantiles": 3000, "huber_delta": 1.0}
    algorithm = _algorithm(
        VECTOR, Discrete(4), True, agent_name, algorithm="dqn", duelling=True, noisy=True,
        noisy_scale=1e-7, **own,
    )  # fmt: skip
    acts = _both(algorithm, monkeypatch)
    entry = _entries(algorithm, np.random.default_rng(0))
    state = tf.nest.flatten(algorithm.initial_state(SIZE))
    (_, mine, (ours,)), (_, other, (theirs,)) = (act(entry, state, NUMBER) for act in acts)
    np.testing.assert_allclose(ours, theirs, atol=tolerance)
    for found, wanted in zip(mine, other, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_an_actor_s_noise_differs_between_its_environments_and_steps():
    algorithm = _algorithm(VECTOR, Discrete(4), algorithm="dqn", noisy=True)
    act = Act(algorithm, SIZE)
    entry = tf.nest.map_structure(
        lambda x: np.repeat(x[:1], SIZE, 0), _entries(algorithm, np.random.default_rng(0))
    )
    best = [act(entry, [], NUMBER)[2][0][:, 1] for _ in range(2)]
    assert len(np.unique(best)) == 2 * SIZE


@pytest.mark.parametrize(
    ("observation", "settings"),
    [
        (tf.TensorSpec([36, 36, 1], tf.uint8), {"agent_name": "ShallowConvAgent"}),
        (VECTOR, {"activation": "gelu"}),
    ],
)
def test_tensorflow_computes_what_numpy_does_not(observation, settings):
    algorithm = _algorithm(observation, Discrete(4), **settings)
    act = Act(algorithm, SIZE)
    assert not act.by_numpy
    actions, _, (parameters,) = act(_entries(algorithm, np.random.default_rng(0)), [], NUMBER)
    assert (actions.shape, actions.dtype, parameters.shape) == ((SIZE,), np.int32, (SIZE, 4))


def test_equal_seeds_give_equal_actions_and_others_differ():
    def drawn(seed):
        algorithm = _algorithm(VECTOR, BOX)
        tf.random.set_seed(seed)
        act, entry = Act(algorithm, SIZE), _entries(algorithm, np.random.default_rng(0))
        state = tf.nest.flatten(algorithm.initial_state(SIZE))
        return np.array([act(entry, state, NUMBER)[0] for _ in range(3)])

    np.testing.assert_array_equal(drawn(1), drawn(1))
    assert not np.isclose(drawn(1), drawn(2)).any()


def test_forbidden_choices_are_never_made():
    algorithm = _algorithm(VECTOR, Discrete(4), masked=True)
    act, entry = Act(algorithm, SIZE), _entries(algorithm, np.random.default_rng(0))
    entry.mask[:] = [[True, False, True, False], [False, False, False, True], [True] * 4]
    drawn = np.array([act(entry, [], NUMBER)[0] for _ in range(200)])
    assert [set(column) for column in drawn.T.tolist()] == [{0, 2}, {3}, {0, 1, 2, 3}]


def test_a_player_acts_by_the_policy_that_it_loaded_last():
    algorithm = in_process.make(Config(level_name="catch", unroll_length=3))
    for variable in algorithm.variables.trained:
        variable.assign(tf.zeros_like(variable))
    (bias,) = [v for v in algorithm.variables.trained if v.name == "policy_logits/b:0"]
    player = UnrollPlayer(algorithm, [(make_environments("catch", 2, seed=0), 2)])
    codec = UnrollCodec(algorithm.unroll)

    def load(version):
        bias.assign(tf.fill(bias.shape, float(version)))
        return version

    for version in (1, 2, 3):
        unrolls, _ = codec.decode(tf.constant(player.play(lambda v=version: load(v))))
        assert (unrolls.extras.numpy()[1:] == version).all()
