"""PPO, A2C, VPG, AWR, behaviour cloning and V-MPO, against float64 computations in NumPy."""

import math

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
from scipy import special

from impala_mm.algorithms.feature import NO_FEATURES, Begun
from impala_mm.algorithms.features.regularisers import Divergence
from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.parts import samples, value_units
from impala_mm.algorithms.parts.actor_critic import Outputs
from impala_mm.algorithms.policy_gradient.algorithm import Goals, _fit
from impala_mm.algorithms.policy_gradient.variants import better_half
from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.distributed import minibatches
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from tests.helpers import in_process, in_threads
from tests.helpers.double_network import Double
from tests.helpers.in_process import by_xla, tensors
from tests.helpers.in_threads import arrays

T, B, ACTIONS = 6, 4, 2
GAMMA, LAMBDA = 0.9, 0.8
PROGRESS = Context(tf.constant(0.0), tf.constant(1.0), tf.constant(0.0))
ALONE = GradientReducer(SingleLearner(), Config())
PLAIN = {
    "batch_size": B, "unroll_length": T, "discounting": GAMMA, "gae_lambda": LAMBDA,
    "minibatches": 1, "normalize_observations": False, "normalize_rewards": False,
    "reward_clipping": "none", "value_normalization": "none",
}  # fmt: skip


def _made(algorithm="ppo", level="CartPole-v1", group=None, **settings):
    return in_process.made(algorithm, level, group=group, **PLAIN | settings)


def _batch(algorithm, columns=B):
    """Return a batch with a termination, a truncation, resets, and a last column of padding."""
    batch = in_process.random_batch(algorithm, T + 1, columns)
    e = batch.unrolls
    e.terminated[2, 0] = e.first[3, 0] = e.truncated[4, 1] = e.first[5, 1] = e.first[0, 2] = True
    e.reward[e.first] = 0
    batch.weight[2] = 0.5
    return batch


def _live(batch):
    return ~batch.unrolls.first[1:] & (batch.weight > 0)


def _advantages(batch, values):
    """Return the generalised advantages, as the weighted sum of all n-step advantages."""
    entries, found = batch.unrolls, np.zeros([T, B])
    for t, b in np.argwhere(_live(batch)):
        steps, total, discount = [], 0.0, 1.0
        for k in range(t + 1, T + 1):
            total += discount * entries.reward[k, b]
            discount *= GAMMA
            over = entries.terminated[k, b]
            steps.append(total + (0 if over else discount * values[k, b]) - values[t, b])
            if over or entries.truncated[k, b]:
                break
        shares = [(1 - LAMBDA) * LAMBDA**i for i in range(len(steps))]
        shares[-1] = LAMBDA ** (len(steps) - 1)
        found[t, b] = np.dot(shares, steps)
    return found


class Table:
    """Outputs that are variables, one for each entry, which an observation numbers.

    The values of padding are no numbers, which must reach nothing.
    """

    def __init__(self, algorithm, batch):
        random = np.random.default_rng(5)
        self.logits = tf.Variable(random.normal(size=[(T + 1) * B, ACTIONS]).astype(np.float32))
        values = np.where(batch.weight > 0, random.normal(size=[T + 1, B]), np.nan)
        self.values = tf.Variable(values.astype(np.float32).ravel())
        batch.unrolls.observation[..., 0] = np.arange((T + 1) * B).reshape(T + 1, B)
        algorithm._unroll = self._read

    def _read(self, entries, start, level):
        rows = tf.cast(entries.observation[..., 0], tf.int32)
        logits = tf.gather(self.logits, rows)
        return Outputs(logits, tf.gather(self.values, rows), logits)

    def outputs(self):
        """Return (log-probabilities [T, B, A], values [T+1, B]) in float64."""
        logits = self.logits.numpy().astype(float).reshape(T + 1, B, ACTIONS)
        values = self.values.numpy().astype(float).reshape(T + 1, B)
        return special.log_softmax(logits, -1)[:-1], values


def _shares(advantages, temperature):
    """Return V-MPO's weights of the larger half, which add up to 1, and 0 for the others."""
    half = np.argsort(-advantages)[: len(advantages) // 2]
    shares = np.zeros(len(advantages))
    shares[half] = special.softmax(advantages[half] / temperature)
    return shares


def _terms(name, settings, ratios, advantages, live):
    """Return an algorithm's losses of steps [T, B], and their derivatives by the log-ratios."""
    temperature, of_live = settings.get("temperature", 1.0), advantages[live]
    if settings.get("advantage_scaling") != "none":
        of_live = (of_live - of_live.mean()) / (of_live.std() + 1e-6)
    if name == "vmpo":
        of_live = _shares(of_live, temperature) * live.size
    if name == "awr":
        found = np.minimum(np.exp(of_live / temperature), settings.get("largest_weight", 20.0))
        of_live = np.where(settings.get("positive_advantages", False) & (of_live <= 0), 0, found)
    elif settings.get("positive_advantages"):
        of_live = np.maximum(of_live, 0)
    weights = np.zeros(live.shape)
    weights[live] = of_live
    if name == "ppo":
        clipped = np.clip(ratios, 0.8, 1.2) * weights
        active = ratios * weights <= clipped
        return -np.minimum(ratios * weights, clipped), -np.where(active, ratios * weights, 0)
    if name == "a2c":
        weights = np.minimum(ratios, 1.2) * weights
    return -weights * np.log(ratios), -weights


CASES = {
    "ppo": {},
    "ppo, sums over unrolls": {"minibatch_of": "unrolls", "loss_reduction": "sum"},
    "a2c": {"largest_ratio": 1.2},
    "vpg": {},
    "vpg, positive alone": {"positive_advantages": True},
    "awr": {},
    "awr, cold and capped": {"temperature": 0.4, "largest_weight": 3.0},
    "awr, positive alone": {"positive_advantages": True},
    "awr, plain advantages": {"advantage_scaling": "none"},
    "awr, cloning of positive": {"temperature": math.inf, "positive_advantages": True},
    "vmpo, cold": {"temperature": 0.3},
}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_are_those_of_the_definition(case):
    name, settings = case.partition(",")[0], CASES[case]
    algorithm, exchange = _made(
        name, entropy_cost=0.02, baseline_cost=0.7, value_clip=0.3, gradients_clipping=-1.0,
        huber_delta=0.5, epochs=1, **settings,
    )  # fmt: skip
    batch = _batch(algorithm)
    table = Table(algorithm, batch)
    log_probs, values = table.outputs()
    chosen, live = batch.unrolls.action[1:, :, None], _live(batch)
    picked = np.take_along_axis(log_probs, chosen, 2)[..., 0]
    # Another policy chose the actions.
    played = np.minimum(picked - np.random.default_rng(1).uniform(-0.5, 0.5, [T, B]), -0.01)
    log_ratios, one_hot = picked - played, np.arange(ACTIONS) == chosen
    mu = np.where(one_hot, played[..., None], np.log(-np.expm1(played))[..., None])
    batch.unrolls.extras[1:] = mu
    advantages, ratios = _advantages(batch, values), np.exp(log_ratios)
    terms, slopes = _terms(name, settings, ratios, advantages, live)
    entropies = -(np.exp(log_probs) * log_probs).sum(-1)
    kl = (np.exp(mu) * (mu - log_probs)).sum(-1)
    of_kl = 1.0 if name == "vmpo" else 0.0  # the multiplier of KL(mu || pi) before its step
    steps = T * B
    factors = np.where(live, batch.weight, 0) / (1 if "sums" in case else steps)

    found = {}
    # A gradient has no slot in this optimizer, so it is kept instead of applied.
    exchange.apply = lambda optimizer, gradients, variables: found.update(gradients=gradients)
    algorithm.variables = algorithm.variables._replace(trained=[table.logits, table.values])
    metrics, _ = algorithm.update(tensors(batch), PROGRESS, exchange)
    inside = np.clip(advantages, -0.5, 0.5)
    assert 0 < (inside == advantages)[live].mean() < 1
    parts = [(factors * x).sum() for x in (terms, inside * (advantages - inside / 2), -entropies)]
    total = np.dot([1, 0.7, 0.02], parts) + of_kl * (factors * kl).sum()
    for key, value in zip(("total", "policy", "baseline", "entropy"), [total, *parts], strict=True):
        np.testing.assert_allclose(metrics[f"loss/{key}"], value, rtol=2e-4, atol=1e-6)
        per_step = value / (steps if "sums" in case else 1)
        np.testing.assert_allclose(metrics[f"loss_per_step/{key}"], per_step, rtol=2e-4, atol=1e-6)
    targets = (advantages + values[:-1])[live]
    expected = {
        "approx_kl": (ratios - 1 - log_ratios)[live].mean(),
        "entropy": entropies[live].mean(),
        "explained_variance": 1 - advantages[live].var() / targets.var(),
    }
    if name == "ppo":
        expected["clip_fraction"] = (np.abs(ratios - 1) > 0.2)[live].mean()
        assert 0 < expected["clip_fraction"] < 1
    elif name == "awr":
        limit = settings.get("largest_weight", 20.0)
        expected["capped_weights"] = (-slopes >= limit)[live].mean()
        assert "capped" not in case or 0 < expected["capped_weights"] < 1
    elif name == "vmpo":
        expected |= {"temperature": settings["temperature"], "kl_mu_pi": kl[live].mean()}
    for key, value in expected.items():
        assert float(metrics[key]) == pytest.approx(value, rel=2e-4), key

    probs = np.exp(log_probs)
    of_logits = slopes[..., None] * (one_hot - probs) + of_kl * (probs - np.exp(mu))
    of_logits += 0.02 * probs * (log_probs + entropies[..., None])
    due = factors[..., None] * of_logits, factors * 0.7 * -inside
    for gradient, expected in zip(found["gradients"], due, strict=True):
        dense = tf.convert_to_tensor(gradient).numpy().reshape(T + 1, *expected.shape[1:])
        np.testing.assert_allclose(dense[:-1], expected, rtol=1e-3, atol=2e-5)
        assert not dense[-1].any()


@pytest.mark.parametrize(
    ("ratio", "advantage", "learns"),
    [(0.79, -1.0, False), (0.81, -1.0, True), (1.19, 1.0, True), (1.21, 1.0, False),
     (0.5, 1.0, True), (1.5, -1.0, True)],
)  # fmt: skip
def test_ppos_lower_limit_is_1_minus_clip(ratio, advantage, learns):
    """It is 0.8 for a clip of 0.2, and not 1 / 1.2 = 0.833."""
    log_ratio = tf.Variable([[math.log(ratio)]])
    with tf.GradientTape() as tape:
        terms = _made(clip=0.2)[0]._policy_terms(log_ratio + 0.0, tf.constant([[advantage]]))
    slope = float(tape.gradient(terms.losses, log_ratio)[0, 0])
    assert slope == pytest.approx(-ratio * advantage if learns else 0.0)


def test_a_value_that_has_moved_further_than_value_clip_is_taught_no_more():
    """The larger of both errors counts, so a value that moved away from its target still learns."""
    algorithm, exchange = _made(value_clip=0.1)
    batch = _batch(algorithm)
    table, given = Table(algorithm, batch), tensors(batch)
    goals, steps = algorithm._goals(Begun(given, (), 0.0, {}), exchange, NO_FEATURES)
    behaviour, level = algorithm._recorded(given.unrolls)[1:], algorithm._levels(given.unrolls)
    part = samples.of_batch(given, steps, behaviour, level)
    moves = np.random.default_rng(2).uniform(-0.3, 0.3, (T + 1) * B)
    table.values.assign_add(moves.astype(np.float32))
    with tf.GradientTape() as tape:
        _, parts, *_ = algorithm._loss(part, goals, NO_FEATURES)
    slopes = tf.convert_to_tensor(tape.gradient(parts["baseline"], table.values)).numpy()
    targets, old = goals.targets.numpy().astype(float), goals.values.numpy().astype(float)
    values = table.outputs()[1][:-1]
    clipped = old + np.clip(values - old, -0.1, 0.1)
    free = (values - targets) ** 2 >= (clipped - targets) ** 2
    expected = np.where(free | (np.abs(values - old) < 0.1), values - targets, 0)
    live = _live(batch)
    assert (expected[live] == 0).any()
    expected = np.where(live, expected * batch.weight, 0) / (T * B)
    np.testing.assert_allclose(slopes.reshape(T + 1, B)[:-1], expected, rtol=1e-4, atol=1e-6)


def test_what_a_batch_teaches_is_finite_whatever_the_values_of_padding_are():
    algorithm, exchange = _made(value_clip=0.1, advantage_scaling="none")
    batch = _batch(algorithm)
    table = Table(algorithm, batch)
    assert np.isnan(table.values).sum() == T + 1
    goals, _ = algorithm._goals(Begun(tensors(batch), (), 0.0, {}), exchange, NO_FEATURES)
    assert all(np.isfinite(x).all() for x in goals)


def test_padding_changes_nothing_whatever_it_contains():
    trained = []
    for content in (0.5, 9.0):
        algorithm, exchange = _made(
            level="Pendulum-v1", minibatches=2, epochs=2, normalize_observations=True,
            recompute_advantages=True,
        )  # fmt: skip
        batch = _batch(algorithm)
        for leaf in tf.nest.flatten(batch.unrolls):
            leaf[:, -1] = content if leaf.dtype == np.float32 else content > 1
        batch.unrolls.extras[:, -1] = np.nan
        metrics, _ = algorithm.update(tensors(batch), PROGRESS, exchange)
        assert all(np.isfinite(value) for value in metrics.values()), metrics
        trained.append(arrays(algorithm.variables.trained))
    in_threads.assert_close(*trained, 0, 0)


def test_recurrent_networks_read_whole_unrolls_from_the_state_that_each_began_with():
    """With a rate of 0, minibatches together have the loss of the whole batch."""
    found = []
    for count in (1, 4):
        algorithm, exchange = _made(
            agent_name="MLPLSTMAgent", minibatches=count, learning_rate=0.0, entropy_cost=0.1,
            epochs=1,
        )  # fmt: skip
        batch = tensors(_batch(algorithm))
        metrics, _ = algorithm.update(batch, PROGRESS, exchange)
        assert metrics["optimizer_steps"] == count
        found.append([float(metrics[f"loss/{name}"]) for name in ("total", "baseline", "entropy")])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    zeros = algorithm.initial_state(B)
    of_zeros, _ = algorithm.update(batch._replace(start=zeros), PROGRESS, exchange)
    assert abs(float(of_zeros["loss/total"]) - found[0][0]) > 1e-4


@pytest.mark.parametrize("again", [False, True])
def test_epochs_compute_advantages_again_if_asked_for_and_clip_values_around_the_first(again):
    algorithm, exchange = _made(
        epochs=3, recompute_advantages=again, value_clip=0.1, learning_rate=0.01
    )
    seen, real = [], algorithm._loss

    def noted(part, goals, features):
        seen.append([np.sort(x, axis=None) for x in (goals.values, goals.targets)])
        return real(part, goals, features)

    algorithm._loss = noted
    algorithm.update(tensors(_batch(algorithm)), PROGRESS, exchange)
    for (values, targets), (_, before) in zip(seen[1:], seen[:2], strict=True):
        np.testing.assert_array_equal(values, seen[0][0])
        assert (np.abs(targets - before).max() > 1e-3) == again


def test_how_much_is_explained_of_targets_that_are_all_equal_is_not_known():
    values, live = tf.constant([[1.0, 2.0]]), tf.constant([[True, True]])
    found, error = _fit(Goals(values, tf.constant([[2.0, 2.0]]), values), live, ALONE)
    assert np.isnan(found)
    assert float(error) == 0.5


def test_the_better_half_is_that_of_all_learners():
    rng = np.random.default_rng(0)
    advantages, live = rng.normal(size=(5, 6)), rng.random((5, 6)) < 0.8
    advantages[:, :3] += 1.0  # the first learner's are larger
    advantages[~live] = np.nan
    shares = _shares(advantages[live], 0.7)
    expected = np.zeros((5, 6))
    expected[live] = shares * 30
    divergence = np.sum(special.rel_entr(shares, (shares > 0) / (shares > 0).sum()))

    def act(group):
        mine = in_threads.share_of(group, 6)
        exchange = GradientReducer(group, Config())
        exchange.begin(0)
        temperature = tf.constant(0.7, tf.float64)
        return better_half(*map(tf.constant, (advantages[:, mine], live[:, mine])), temperature,
                           exchange)  # fmt: skip

    for learners in (1, 3):
        weights, divergences = zip(*in_threads.together(learners, act), strict=True)
        np.testing.assert_allclose(np.concatenate(weights, 1), expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(divergences, divergence, rtol=1e-9)
    nothing = tf.zeros([2, 3], tf.bool)
    weights, divergence = better_half(tf.fill([2, 3], np.nan), nothing, tf.constant(1.0), ALONE)
    assert not weights.numpy().any()
    assert not np.isfinite(divergence)


@pytest.mark.parametrize("passes", [{"epochs": 1}, {"epochs": 3, "recompute_advantages": True}])
def test_the_temperature_moves_once_in_an_update_towards_the_target(passes):
    algorithm, exchange = _made("vmpo", temperature_speed=0.07, target_weight_kl=0.2, **passes)
    batch = _batch(algorithm)
    table, live = Table(algorithm, batch), _live(batch)
    _, values = table.outputs()
    algorithm.variables = algorithm.variables._replace(trained=[table.logits, table.values])
    exchange.apply = lambda *args: None
    advantages = _advantages(batch, values)[live]
    shares = _shares((advantages - advantages.mean()) / advantages.std(), 1.0)
    excess = special.rel_entr(shares, (shares > 0) / (shares > 0).sum()).sum() / 0.2 - 1
    assert 0.1 < abs(excess) < 1
    metrics, _ = algorithm.update(tensors(batch), PROGRESS, exchange)
    assert float(metrics["temperature"]) == pytest.approx(1.0)
    found = math.log(algorithm._temperature.cost(tf.float64))
    assert found == pytest.approx(0.07 * excess, rel=1e-3)


def test_the_divergences_of_mean_and_deviation_have_a_multiplier_each():
    """Of a distribution with the other one's mean alone, and with its deviation alone."""
    targets = {"target_kl_mean": 0.02, "target_kl_deviation": 4e-4}
    flags = {"level": "Pendulum-v1", "epochs": 1, "multiplier_speed": 0.1}
    algorithm, exchange = _made("vmpo", decoupled_kl=True, **targets, **flags)
    batch = _batch(algorithm)
    live = _live(batch)
    table, found = Table(algorithm, batch), {}
    algorithm.variables = algorithm.variables._replace(trained=[table.logits, table.values])
    exchange.apply = lambda optimizer, gradients, variables: found.update(gradients=gradients)
    metrics, _ = algorithm.update(tensors(batch), PROGRESS, exchange)
    played = batch.unrolls.extras[1:].astype(float)
    learnt = table.logits.numpy().astype(float).reshape(T + 1, B, 2)[:-1]
    mu, pi = played[..., 0], learnt[..., 0]
    old, new = (  # the policy's head begins with a deviation of 0.6, and has one of at least 0.02
        0.02 + np.logaddexp(0, x[..., 1] + np.log(np.expm1(0.58))) for x in (played, learnt)
    )
    kinds = {
        "kl_mean": ((pi - mu) / old) ** 2 / 2,
        "kl_deviation": np.log(new / old) + (old / new) ** 2 / 2 - 0.5,
    }
    assert "kl_mu_pi" not in metrics
    weights = np.where(live, batch.weight, 0) / live.size
    total = sum((weights * kl).sum() for kl in kinds.values())
    rest = float(metrics["loss/policy"]) + 0.5 * float(metrics["loss/baseline"])
    assert float(metrics["loss/total"]) == pytest.approx(rest + total, rel=1e-4)
    held = [each for each in algorithm.features if isinstance(each, Divergence)]
    costs = [each._cost.read(tf.float64) for each in held]
    for (name, kl), cost, target in zip(kinds.items(), costs, targets.values(), strict=True):
        mean = kl[live].mean()
        assert float(metrics[name]) == pytest.approx(mean, rel=1e-4)
        assert float(metrics[f"{name}_cost"]) == 1.0
        moved = 0.1 * np.clip(mean / target - 1, -1, 1)
        assert math.log(cost) == pytest.approx(moved, rel=1e-4)


def _learn(group, columns, double, updates=1, target_kl=math.inf, **settings):
    """Return the variables of one learner after updates on its columns of a batch of 8.

    Multipliers are among them. Also return the metrics of the last update.
    """
    algorithm, exchange = _made(group=group, target_kl=target_kl, **settings)
    if double:
        algorithm._network = Double()
        heads = [snt.Linear(ACTIONS, name="policy_logits"), snt.Linear(1, name="baseline")]
        algorithm._policy_head, algorithm._baseline_head = heads
        for head in heads:
            head(tf.zeros([1, 8], tf.float64))
        algorithm._unit = value_units.make_unit(
            algorithm._config.value_normalization, algorithm._baseline_head
        )
        algorithm.variables = algorithm._group_variables(algorithm._prepare_updates())
    in_process.fill(algorithm.variables.trained)
    batch, metrics = tensors(_batch(algorithm, 8), np.arange(8)[columns]), {}
    for _ in range(updates):
        metrics, _ = algorithm.update(batch, PROGRESS, exchange)
    costs = [algorithm._entropy_cost, getattr(algorithm, "_temperature", None)]
    costs = [v for cost in costs if cost for v in cost.variables]
    of_features = [v for feature in algorithm.features for v in feature.carried]
    return arrays(algorithm.variables.trained, costs, of_features), metrics


EXACT = {"double": True, "epochs": 2, "minibatches": 2, "recompute_advantages": True}
NORMALISED = {"normalize_observations": True, "normalize_rewards": True}
COSTS = {"multiplier_speed": 0.1, "target_entropy": 0.6, "target_kl_pi_mu": 0.02}


@pytest.mark.parametrize(
    ("learners", "tolerance", "case"),
    [
        (2, 1e-9, EXACT | NORMALISED | {"value_normalization": "popart", "updates": 2}),
        (2, 1e-9, EXACT | {"minibatch_of": "unrolls", "value_clip": 0.1, "huber_delta": 0.5}),
        (2, 1e-9, EXACT | COSTS | {"algorithm": "awr"}),
        (2, 1e-9, EXACT | {"learning_rate_kl": 1e-4, "updates": 3}),
        (2, 1e-9, EXACT | COSTS | {"algorithm": "vmpo", "recompute_advantages": False}),
    ],
)
def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(
    monkeypatch, learners, tolerance, case
):
    """The multipliers are, too: temperatures and costs enter every later step."""
    settings = {
        "learning_rate": 0.01, "gradients_clipping": 0.1, "entropy_cost": 0.01,
    } | case  # fmt: skip

    def learn(group):
        return _learn(group, in_threads.share_of(group, 8), **settings)[0]

    row = 0 if case.get("minibatch_of") == "unrolls" else 8
    one = in_threads.assert_several_are_one_by_minibatches(
        monkeypatch, learn, learners, row, tolerance
    )
    before, _ = _learn(SingleLearner(), slice(8), **settings | {"updates": 0})
    changes = [np.abs(a - b).max() for a, b in zip(one, before, strict=True)]
    assert max(changes) > 1e-3
    assert min(changes) > 0, "multipliers, too"


def test_the_divergence_that_ends_epochs_is_that_of_all_steps_however_many_each_learner_has(
    monkeypatch,
):
    """The last column of the second learner is padding, so it has fewer steps."""
    settings = {"learning_rate": 0.01, "epochs": 2, "minibatches": 2, "minibatch_of": "steps"}

    def learn(learners, target_kl):
        def act(group):
            mine = in_threads.share_of(group, 8)
            return _learn(group, mine, True, target_kl=target_kl, **settings)

        return in_threads.together(learners, act)

    joined = in_threads.joined(minibatches.shuffled_parts, 2, 8)
    with monkeypatch.context() as patch:
        patch.setattr(minibatches, "shuffled_parts", joined)
        ((_, of_all),) = learn(1, 0.0)
    of_each = np.mean([metrics["approx_kl"] for _, metrics in learn(2, 0.0)])
    assert of_all["optimizer_steps"] == 1
    assert abs(of_each - of_all["approx_kl"]) > 1e-3
    between = float(of_each + of_all["approx_kl"]) / 2
    several = learn(2, between)
    monkeypatch.setattr(minibatches, "shuffled_parts", joined)
    ((one, expected),) = learn(1, between)
    for variables, metrics in several:
        assert metrics["optimizer_steps"] == expected["optimizer_steps"]
        in_threads.assert_close(variables, one)


def test_defaults_follow_the_level_and_minibatches_the_batch():
    def parsed(*given):
        (config,), _ = command_line.parse(["experiment.py", "--algorithm=ppo", *given], "", Config)
        return config

    plain, atari = parsed(), parsed("--level_name=PongNoFrameskip-v4", "--clip=0.3")
    assert (plain.separate_networks, plain.normalize_rewards, plain.epochs) == (True, True, 10)
    assert (atari.separate_networks, atari.normalize_rewards, atari.epochs) == (False, False, 4)
    assert (plain.clip, atari.clip, parsed("--level_name=ALE/Pong-v5").clip) == (0.2, 0.3, 0.1)
    assert isinstance(atari, type(plain)), "other processes read it as PPO's settings"
    for given, of_steps, of_unrolls in (
        ((), 32, 4),
        (("--batch_size=6", "--unroll_length=7"), 1, 1),
        (("--batch_size=12", "--unroll_length=33"), 6, 3),
    ):
        chosen = parsed(*given)
        assert chosen.count_minibatches(of_steps=True) == of_steps
        assert chosen.count_minibatches(of_steps=False) == of_unrolls


@pytest.mark.slow  # each compiles for some 4 s
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("ppo", {"target_kl": 1e6, "value_normalization": "popart"}), ("vmpo", {})],
)
def test_compiled_epochs_make_the_same_update(algorithm, settings):
    def train(compiled):
        made, exchange = _made(
            algorithm, compile_updates=compiled, **{"minibatches": 8, "epochs": 4} | settings
        )
        batch = tensors(_batch(made))

        @tf.function(autograph=False)
        def update():
            exchange.begin(tf.constant(1, tf.int64))
            return made.update(batch, PROGRESS, exchange)[0]

        metrics = {name: float(x) for name, x in update().items()}
        assert by_xla(update) == compiled
        assert metrics["optimizer_steps"] == 32
        return metrics, arrays(made.variables.trained)

    (measured, weights), (expected, plain) = train(True), train(False)
    assert measured == pytest.approx(expected, rel=1e-3, abs=1e-5)
    in_threads.assert_close(weights, plain, 1e-3, 1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"compile_updates": False},
        {"epochs": 1},
        {"minibatch_of": "unrolls"},
        {"level": "PongNoFrameskip-v4"},
    ],
)
def test_epochs_are_compiled_only_where_it_pays(settings):
    assert _made(epochs=32)[0]._division.compiled
    assert not _made(**{"epochs": 32} | settings)[0]._division.compiled
