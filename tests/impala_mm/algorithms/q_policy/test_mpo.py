"""MPO: its updates against float64 computations, alone and on several learners."""

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.q_policy import algorithm as q_policy
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.action_parts import Box
from impala_mm.environments.actions import ActionSpec, UnsuitableActions
from tests.helpers import in_process, in_threads
from tests.helpers.double_network import DoubleCritic, DoublePolicy
from tests.helpers.in_process import tensors
from tests.helpers.in_threads import arrays

PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))
SMALL = {
    "batch_size": 2, "unroll_length": 2, "minibatch_steps": 8, "updates_per_step": 0.5,
    "mlp_sizes": "8,8", "precision": "float32", "reward_clipping": "none", "compile_updates": False,
    "discounting": 0.9, "action_samples": 5,
}  # fmt: skip
B, K, D = 16, 5, 3
# Three numbers, in two parts.
LIMBS = ActionSpec({"arm": Box((1,), (-2.0,), (2.0,)), "leg": Box((1, 2), (-1.0, 0.0), (1.0, 9.0))})


def _made(group=None, level="Pendulum-v1", actions=LIMBS, **settings):
    spec = lambda spec: spec._replace(actions=actions or spec.actions)  # noqa: E731
    return in_process.made("mpo", level, spec, group=group, **SMALL | settings)


@pytest.fixture(autouse=True)
def double(monkeypatch):
    monkeypatch.setattr(q_policy, "PolicyNetwork", DoublePolicy)
    monkeypatch.setattr(q_policy, "CriticNetwork", DoubleCritic)


def _fill(algorithm):
    in_process.fill(algorithm.variables.trained, algorithm._followers)


def _policy(network, observation):
    """Return means and deviations, [B, D] each, of the network's policy in float64."""
    arm_mean, arm_raw, leg_mean, leg_raw = np.split(observation @ network.layer.w, [1, 2, 4], -1)
    raw = np.concatenate([arm_raw, leg_raw], -1)
    deviation = 0.02 + np.log1p(np.exp(raw + np.log(np.expm1(0.58))))
    return np.concatenate([arm_mean, leg_mean], -1), deviation


def _values(observation, action, weights):
    """Return what `DoubleCritic` does with actions [K, B, D]: [K, B]."""
    observation = np.broadcast_to(observation, (K, *observation.shape))
    inputs = [observation, action, action**2]
    return np.tanh(np.concatenate(inputs, -1) @ weights)[..., 0]


def _log_density(x, mean, deviation):
    return (-0.5 * ((x - mean) / deviation) ** 2 - np.log(deviation * np.sqrt(2 * np.pi))).sum(-1)


def _softplus(x):
    return np.logaddexp(0, x)


class _Applied:
    """An exchange that keeps the gradients that it is given."""

    def apply(self, optimizer, gradients, variables, name, clipping):
        self.gradients = [g.numpy() for g in gradients]


@pytest.mark.parametrize("of_bounds", [0.0, 0.002], ids=["values alone", "values and bounds"])
def test_goals_losses_and_dual_gradients_are_the_published_ones(of_bounds):
    limits = {"target_weight_kl": 0.2, "target_mean_kl": 0.003, "target_deviation_kl": 0.0004}
    algorithm, _ = _made(target_bounds_kl=of_bounds, temperature=0.3, **limits)
    _fill(algorithm)
    batch = tensors(in_process.batch_with_ends(algorithm, B))
    e, live = batch.unrolls, (~batch.unrolls.first[1] & (batch.weight > 0)).numpy()
    noise = algorithm._draw_noise(batch, SingleLearner())
    part = q_policy.Part(e, q_policy.States((), ()), live[None], batch.weight, noise)
    mean = lambda terms: np.where(live, terms, 0).mean()  # noqa: E731
    q_weights = algorithm._targets.layer.w.numpy()

    after = e.observation[1].numpy().astype(np.float64)
    centre, spread = _policy(algorithm._target_policy, after)
    values = _values(after, centre + spread * noise[:K, 0].numpy(), q_weights)
    following = np.where(e.terminated[1], 0.0, values.mean(0))
    expected = np.where(live, e.reward[1].numpy() + 0.9 * following, 0)
    np.testing.assert_allclose(algorithm._goals(part)[0], expected, rtol=1e-6, atol=1e-6)

    seen = e.observation[0].numpy().astype(np.float64)
    centre, spread = _policy(algorithm._target_policy, seen)
    drawn = centre + spread * noise[K:, 0].numpy()
    objectives = [_values(seen, drawn, q_weights)]
    if of_bounds:
        beyond = np.maximum(np.abs(drawn) - 1, 0)
        assert 0 < np.mean(beyond > 0) < 1
        objectives.append(-np.sqrt((beyond**2).sum(-1)))
    n = len(objectives)
    scaled = [values / 0.3 for values in objectives]
    weights = sum(np.exp(x) / np.exp(x).sum(0) for x in scaled)
    new_centre, new_spread = _policy(algorithm._policy, seen)
    likely = _log_density(drawn, new_centre, spread) + _log_density(drawn, centre, new_spread)
    of_means = (new_centre - centre) ** 2 / (2 * spread**2)
    of_spreads = np.log(new_spread / spread) + spread**2 / (2 * new_spread**2) - 0.5
    costs = 10.0 * of_means.sum(-1) + 1000.0 * of_spreads.sum(-1)
    policy = algorithm._policy.unroll(part.before, part.states.policy)
    loss, metrics = algorithm._policy_loss(part, policy)
    assert float(loss) == pytest.approx(mean(costs - (weights * likely).sum(0)), rel=1e-6)

    def dual_loss(duals):
        """Return the function that the dual variables make least."""
        etas, alphas = _softplus(duals[:n]), _softplus(duals[n:])
        total = 0
        for q, eta, limit in zip(objectives, etas, [0.2, of_bounds], strict=False):
            total += mean(eta * limit + eta * np.log(np.exp(q / eta).mean(0)))
        for i in range(D):
            total += mean(alphas[i] * (0.003 - of_means[:, i]))
            total += mean(alphas[D + i] * (0.0004 - of_spreads[:, i]))
        return total

    duals = algorithm._duals.numpy()
    steps = 1e-5 * np.eye(len(duals))
    slopes = [(dual_loss(duals + d) - dual_loss(duals - d)) / 2e-5 for d in steps]
    exchange = _Applied()
    algorithm._after_policy(part, metrics, exchange)
    all_limits = np.array([0.2, of_bounds][:n] + [0.003] * D + [0.0004] * D)
    np.testing.assert_allclose(exchange.gradients[0] * all_limits, slopes, rtol=1e-4, atol=1e-8)


def test_copies_are_made_every_few_steps_of_the_policy():
    algorithm, exchange = _made(target_period=4, learning_rate=0.01)
    _fill(algorithm)
    before = arrays(algorithm._followers)
    for made in (False, True):
        metrics, _ = algorithm.update(
            tensors(in_process.batch_with_ends(algorithm, B)), PROGRESS, exchange
        )
        assert int(metrics["optimizer_steps"]) == 2
        assert np.isfinite(list(map(float, metrics.values()))).all()
        now, originals = arrays(algorithm._followers), arrays(algorithm._copied)
        for copy, old, new in zip(now, before, originals, strict=True):
            np.testing.assert_array_equal(copy, new if made else old)
            assert np.abs(new - old).max() > 0


def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(monkeypatch):
    rates = {"learning_rate": 0.01, "critic_rate": 0.01, "dual_rate": 0.01, "target_period": 2}

    def learn(group):
        algorithm, exchange = _made(group, **rates)
        _fill(algorithm)
        start = arrays(algorithm.variables.trained, [algorithm._duals])
        mine = np.arange(B)[in_threads.share_of(group, B)]
        batch = tensors(
            in_process.batch_with_ends(algorithm, B)._replace(weight=np.ones(B, np.float32)), mine
        )
        for _ in range(2):
            algorithm.update(batch, PROGRESS, exchange)
        end = arrays(algorithm.variables.trained, [algorithm._duals])
        assert min(np.abs(a - b).max() for a, b in zip(start, end, strict=True)) > 1e-4
        return [*end, *arrays(algorithm._followers)]

    in_threads.assert_several_are_one_by_minibatches(monkeypatch, learn)


def test_other_policies_and_actions_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="--box_policy=tanh: the policy of MPO is a normal"):
        _made(box_policy="tanh")
    with pytest.raises(
        UnsuitableActions, match=r"MPO chooses numbers between two bounds .*one of 2"
    ):
        _made(level="CartPole-v1", actions=None)
