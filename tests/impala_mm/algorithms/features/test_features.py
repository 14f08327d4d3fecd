"""Features: algorithms do without the package of them, and with one of a user's own."""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms import contract
from impala_mm.algorithms.feature import Feature, Features
from impala_mm.algorithms.interface import Algorithm, Context, Setup
from impala_mm.algorithms.make import make_algorithm
from impala_mm.config import auto
from impala_mm.config.algorithm_settings import place_of
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec
from tests.helpers import in_process
from tests.helpers.processes import ROOT

_OTHERS = {
    "ppo": {"epochs": 1, "minibatches": 1},
    "sac": {
        "compile_updates": False,
        "updates_per_step": 0.25,
        "random_steps": 0,
        "minibatch_steps": 32,
    },
}


def _updates(name, features, updates=20, method="update"):
    """Return the algorithm and the metrics of updates on one batch in which nothing is rewarded."""
    level = "Pendulum-v1" if name == "sac" else "CartPole-v1"
    config = Config.of_algorithm(name)(
        algorithm=name, level_name=level, batch_size=8, unroll_length=4, learning_rate=0.01,
        precision="float32", normalize_rewards=False, normalize_observations=False,
        **_OTHERS.get(name, {}),
    )  # fmt: skip
    config, place = auto.for_task(config, level_spec(level)), place_of(name)
    make = getattr(importlib.import_module(place.module), place.name)
    algorithm = make(config, level_spec(level), Setup(features=features))
    length, columns = algorithm.unroll.length + algorithm.unroll.overlap, 8
    if name == "sac":  # which learns from single steps
        length, columns = 2, algorithm.minibatch_columns * config.optimizer_steps
    batch = in_process.random_batch(algorithm, length, columns)
    for leaf in tf.nest.flatten(batch.unrolls):
        leaf[...] = 0
    observation = batch.unrolls.observation
    observation[...] = np.random.default_rng(0).random(observation.shape)
    batch = in_process.tensors(batch._replace(weight=np.ones(columns, np.float32)))
    exchange = GradientReducer(SingleLearner(), config)
    context = Context(*map(tf.constant, (0.0, 1e6, float("nan"))))

    @tf.function(autograph=False)
    def update():
        exchange.begin(tf.constant(0, tf.int64))
        return getattr(algorithm, method)(batch, context, exchange)[0]

    rows = [{key: float(x) for key, x in update().items()} for _ in range(updates)]
    return algorithm, rows


def _example():
    """Return the module of the example on the page about algorithms."""
    path = ROOT / "sandbox" / "own_feature.py"
    spec = importlib.util.spec_from_file_location("own_feature", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["impala", "ppo", "dqn", "sac"])
def test_a_feature_adds_a_loss_a_network_and_rewards_that_the_policys_network_does_not_read(name):
    curious = _example().Curiosity(3 if name == "sac" else 4)
    scaled = curious.bonus
    curious.bonus = lambda batch, prepared: 200.0 * scaled(batch, prepared)
    algorithm, rows = _updates(name, Features([curious]))
    assert rows[-1]["novelty"] < 0.5 * rows[0]["novelty"], "its network learns"
    variables = algorithm.variables
    trained, carried, acting = ({id(v) for v in getattr(variables, n)} for n in _GROUPS)
    assert trained.issuperset(map(id, curious.trained)), "saved, and equal on all learners"
    assert carried.issuperset(map(id, curious.carried))
    assert not acting & set(map(id, [*curious.trained, *curious.carried])), "not sent to actors"
    _, plain = _updates(name, Features())
    assert "novelty" not in plain[0]
    key = "q/error" if name in ("dqn", "sac") else "loss/baseline"
    assert plain[0][key] < 0.5 * rows[0][key], "nothing else is rewarded"


_GROUPS = ("trained", "carried", "acting")


def test_rewards_that_a_feature_adds_are_learnt_from_in_updates_from_recorded_games_too():
    class Generous(Feature):
        offline = True

        def bonus(self, batch, prepared):
            return 9.0

    errors = [
        _updates("impala", Features(given), 1, "offline_update")[1][0]["loss/baseline"]
        for given in ([Generous()], [])
    ]
    assert errors[0] > 100 * errors[1]


def test_features_that_the_flags_ask_for_and_an_algorithm_does_not_take_are_refused(
    tmp_path, monkeypatch, capsys
):
    """A user's algorithm that wraps a built-in one would learn without its teacher, silently."""
    (tmp_path / "wraps_ppo.py").write_text(
        "from impala_mm.algorithms.policy_gradient.variants import PPO\n"
        "def make(config, environment):\n"
        "    return PPO(config, environment)\n"
    )
    (tmp_path / "wraps_ppo_settings.py").write_text(
        "from impala_mm.algorithms.policy_gradient.settings import PPOSettings as Settings\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    kind = Config.of_algorithm("wraps_ppo")
    given = {"algorithm": "wraps_ppo", "level_name": "catch"}
    make_algorithm(kind(**given), level_spec("catch"))
    with pytest.raises(SystemExit):
        make_algorithm(kind(**given, kl_mu_pi_cost=0.1), level_spec("catch"))
    said = capsys.readouterr().err
    assert "ToBehaviour" in said
    assert "features" in said


class _Recording(Feature):
    """A feature that actors record a number for."""

    def __init__(self, offline, online):
        self.offline, self.online = offline, online

    def extras_spec(self):
        return tf.TensorSpec([], tf.float32)


def test_features_of_some_updates_find_their_extras_where_actors_record_those_of_all():
    first, second = _Recording(offline=True, online=False), _Recording(offline=False, online=True)
    features = Features([first, second])
    assert features.extras_spec("own")[0] == "own"
    for some in (features.of_offline_updates(), features.of_online_updates()):
        assert (first.place, second.place) == (1, 2)
        assert some.own_extras(("own", 1.0, 2.0)) == "own"
    assert list(features.of_offline_updates()) == [first]
    assert list(features.of_online_updates()) == [second]


class _Weighing(Feature):
    """A feature that changes advantages."""

    def advantages(self, judged, prepared):
        return 2 * judged.advantages, prepared


class _Forgetful(Algorithm):
    """An algorithm whose update leaves out the calls of its features that are not named."""

    def __init__(self, *calls, feature=_Weighing):
        self.features, self._calls = Features([feature()]), calls

    def update(self, batch, context, exchange):
        self.features.called.update(self._calls)
        return {}, batch.weight


def test_an_update_that_leaves_out_a_call_of_its_features_is_refused():
    batch = Batch((), (), (), tf.ones([3]), (), ())
    contract.update(_Forgetful("begin", "loss", "after", feature=Feature), batch, None, None)
    contract.update(_Forgetful("begin", "advantages", "loss", "after"), batch, None, None)
    with pytest.raises(contract.AlgorithmMistake, match=r"does not call features\.advantages"):
        contract.update(_Forgetful("begin", "loss", "after"), batch, None, None)
    with pytest.raises(contract.AlgorithmMistake, match=r"does not call features\.loss"):
        contract.update(_Forgetful("begin", "after"), batch, None, None)
