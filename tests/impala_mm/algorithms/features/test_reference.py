"""The reference policy: even, or that of another run, for IMPALA and for PPO."""

import numpy as np
import pytest
import tensorflow as tf
from processes import ROOT
from saved_run import save
from scipy import special, stats

import impala_mm
from impala_mm.actor.actor import UnrollPlayer
from impala_mm.algorithms import agent
from impala_mm.algorithms.impala.algorithm import Impala
from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.parts import action_policies
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import make_environments
from tests.helpers import in_process

OLDER = ROOT / "tests" / "older_runs" / "catch-6b03459"
PROGRESS = Context(tf.constant(0.0), tf.constant(1.0), tf.constant(0.0))


def _made(algorithm, load=impala_mm.load_policy, **settings):
    config = Config.of_algorithm(algorithm)(
        algorithm=algorithm, batch_size=4, unroll_length=12, num_envs=4, **settings
    )
    return agent.make_agent(config, 0, load_policy=load), config


def _update(made, config):
    """Return the batch of an update, and its metrics."""
    level = config.level_name
    played = UnrollPlayer(made.algorithm, [(make_environments(level, 4, seed=0), 4)]).play()
    batch = in_process.decoded(UnrollCodec(made.algorithm.unroll), tf.constant(played))
    metrics, _ = made.algorithm.update(batch, PROGRESS, GradientReducer(SingleLearner(), config))
    return batch, metrics


def _probabilities(parameters):
    return special.softmax(np.asarray(parameters, float), -1)


@pytest.mark.parametrize(("algorithm", "reference"), [("impala", str(OLDER)), ("ppo", "")])
def test_the_divergence_is_that_from_the_policy_that_the_flag_names(algorithm, reference):
    """PPO makes one step here, so that both policies are known."""
    shape = {"separate_networks": False, "normalize_observations": False}
    if algorithm == "ppo":
        shape |= {"epochs": 1, "minibatches": 1}
    made, config = _made(
        algorithm, level_name="catch", kl_ref_pi_cost=0.5, reference=reference, **shape
    )
    for variable in made.algorithm.variables.trained:  # so that the policy is not even
        variable.assign_add(tf.random.normal(variable.shape, stddev=0.3))
    batch, metrics = _update(made, config)
    live = ~batch.unrolls.first[1:].numpy()
    mine = _probabilities(batch.unrolls.extras[1:])  # nobody has trained since they were played
    theirs = np.full(mine.shape, 1 / 3)
    if reference:
        policy = impala_mm.load_policy(reference)
        outputs = policy.judge_unroll(batch.unrolls, policy.initial_state(4))
        theirs = _probabilities(outputs.parameters[:-1])
    expected = stats.entropy(theirs, mine, axis=-1)[live].mean()
    assert expected > 0.01
    assert float(metrics["kl_ref_pi"]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("agent_name", "remembers"), [("MLPLSTMAgent", True), ("MLPAgent", False)])
def test_a_reference_that_begins_unrolls_without_its_memory_is_announced(
    tmp_path, capsys, agent_name, remembers
):
    save(tmp_path, level_name="catch", agent_name=agent_name, normalize_rewards=True)
    _made("impala", level_name="catch", kl_ref_pi_cost=1.0, reference=str(tmp_path))
    said = f"the policy of --reference={tmp_path} remembers earlier observations"
    assert (said in capsys.readouterr().err) == remembers


@pytest.mark.parametrize("box", action_policies.BOX_POLICIES)
def test_the_even_reference_of_a_box_is_in_its_middle(box):
    made, config = _made("impala", level_name="Pendulum-v1", box_policy=box, kl_ref_pi_cost=1.0)
    head = made.algorithm._policy_head
    for variable in head.trainable_variables:
        variable.assign(tf.zeros_like(variable))
    _, metrics = _update(made, config)
    assert float(metrics["kl_ref_pi"]) == pytest.approx(0, abs=1e-6)


def test_actors_and_evaluators_load_none():
    made, _ = _made("impala", load=None, level_name="catch", target_kl_ref_pi=0.1, reference="gone")
    assert made.algorithm.variables.trained


@pytest.mark.parametrize(
    ("level", "settings", "said"),
    [
        ("catch", {"reference": "gone"}, "--reference=gone: gone does not exist"),
        ("CartPole-v1", {"reference": str(OLDER)}, "but the network was made for 3 actions"),
        ("CartPole-v1", {"target_entropy": 0.8}, "--target_entropy=0.8: no policy of Discrete(2)"),
        ("Pendulum-v1", {"target_entropy": -2.6}, "has less than -2.493 nats of entropy"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(capsys, level, settings, said):
    with pytest.raises(SystemExit) as ended:
        _made("impala", level_name=level, kl_ref_pi_cost=1.0, **settings)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_reference_of_values_alone_is_refused(tmp_path, capsys):
    save(tmp_path, level_name="catch", algorithm="dqn")
    with pytest.raises(SystemExit):
        _made("impala", level_name="catch", kl_ref_pi_cost=1.0, reference=str(tmp_path))
    said = f"--reference={tmp_path}: its --algorithm=dqn has no distribution of actions"
    assert said in capsys.readouterr().err


def test_a_reference_without_parameters_or_with_another_distribution_is_refused(
    tmp_path, capsys, monkeypatch
):
    """A flag that its algorithm never reads refuses nothing."""
    flags = {"level_name": "Pendulum-v1", "kl_ref_pi_cost": 1.0}
    save(tmp_path / "tanh", level_name="Pendulum-v1", box_policy="tanh")
    save(tmp_path / "other", level_name="Pendulum-v1", algorithm="tests.helpers.td3_like")
    assert _made("impala", reference=str(tmp_path / "other"), box_policy="tanh", **flags)
    for said in ("--box_policy=tanh", "its --algorithm=impala has no method"):
        with pytest.raises(SystemExit):
            _made("impala", reference=str(tmp_path / "tanh"), **flags)
        assert said in capsys.readouterr().err
        monkeypatch.setattr(Impala, "judge_unroll", None)
