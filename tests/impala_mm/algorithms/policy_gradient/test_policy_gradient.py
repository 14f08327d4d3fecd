"""The update that PPO, A2C and VPG share, against float64 computations in NumPy."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms import registry
from impala_mm.algorithms.feature import NO_FEATURES
from impala_mm.algorithms.interface import Context, Role
from impala_mm.algorithms.parts import value_units
from impala_mm.algorithms.parts.actor_critic import Outputs
from impala_mm.algorithms.policy_gradient import samples
from impala_mm.algorithms.policy_gradient.algorithm import Goals, _fit
from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed import minibatches
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec
from tests.helpers import in_threads
from tests.helpers.double_network import Double
from tests.helpers.in_process import by_xla

T, B, ACTIONS = 6, 4, 2
GAMMA, LAMBDA = 0.9, 0.8
PROGRESS = Context(tf.constant(0.0), tf.constant(1.0), tf.constant(0.0))
PLAIN = {
    "normalize_observations": False,
    "normalize_rewards": False,
    "value_normalization": "none",
}


def _config(algorithm="ppo", level="CartPole-v1", **settings):
    return Config.of_algorithm(algorithm)(
        algorithm=algorithm, level_name=level, batch_size=B, unroll_length=T, discounting=GAMMA,
        reward_clipping="none", **{"minibatches": 1, "gae_lambda": LAMBDA} | PLAIN | settings,
    )  # fmt: skip


def _made(*args, group=None, **settings):
    config = _config(*args, **settings)
    tf.random.set_seed(1)
    algorithm = registry.make_algorithm(config, level_spec(config.level_name))
    return algorithm, GradientReducer(group or SingleLearner(), config)


def _batch(algorithm, seed=0, columns=B):
    """Return a batch with a termination, a truncation, resets, and a last column of padding."""
    random = np.random.default_rng(seed)

    def draw(spec):
        shape = [T + 1, columns, *spec.shape]
        if spec.dtype.is_integer:
            return random.integers(0, ACTIONS, shape).astype(spec.dtype.as_numpy_dtype)
        return random.uniform(-0.9, 0.9, shape).astype(spec.dtype.as_numpy_dtype)

    entries = tf.nest.map_structure(draw, algorithm.unroll.step)
    terminated, truncated, first = (np.zeros([T + 1, columns], bool) for _ in range(3))
    terminated[2, 0], first[3, 0], truncated[4, 1], first[5, 1], first[0, 2] = (True,) * 5
    entries = entries._replace(terminated=terminated, truncated=truncated, first=first)
    entries.reward[first] = 0
    start = tf.nest.map_structure(lambda x: x.numpy(), algorithm.initial_state(columns))
    weight, numbers = np.ones(columns, np.float32), np.arange(columns)
    weight[2], weight[-1] = 0.5, 0
    return Batch(entries, start, numbers, weight, numbers, weight > 0)


def _tensors(batch):
    return tf.nest.map_structure(tf.constant, batch)


def _live(batch):
    return ~batch.unrolls.first[1:] & (batch.weight > 0)


def _advantages(batch, values):
    """Return the generalised advantages, as the weighted sum of all n-step advantages."""
    entries, found = batch.unrolls, np.zeros([T, B])
    for b in range(B):
        for t in range(T):
            if not _live(batch)[t, b]:
                continue
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


def _log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


class Table:
    """Outputs that are variables, one for each entry, which an observation numbers."""

    def __init__(self, algorithm, batch):
        random = np.random.default_rng(5)
        self.logits = tf.Variable(random.normal(size=[(T + 1) * B, ACTIONS]).astype(np.float32))
        self.values = tf.Variable(random.normal(size=[(T + 1) * B]).astype(np.float32))
        batch.unrolls.observation[..., 0] = np.arange((T + 1) * B).reshape(T + 1, B)
        algorithm._unroll = self._read

    def _read(self, entries, start):
        rows = tf.cast(entries.observation[..., 0], tf.int32)
        logits = tf.gather(self.logits, rows)
        return Outputs(logits, tf.gather(self.values, rows), logits)

    def outputs(self):
        """Return (log-probabilities [T, B, A], values [T+1, B]) in float64."""
        logits = self.logits.numpy().astype(float).reshape(T + 1, B, ACTIONS)
        return _log_softmax(logits)[:-1], self.values.numpy().astype(float).reshape(T + 1, B)


def _surrogate(name, ratios, advantages):
    """Return an algorithm's losses of steps [T, B], and their derivatives by the log-ratios."""
    if name == "ppo":
        clipped = np.clip(ratios, 0.8, 1.2) * advantages
        active = ratios * advantages <= clipped
        return -np.minimum(ratios * advantages, clipped), -np.where(active, ratios * advantages, 0)
    weights = np.minimum(ratios, 1.2) if name == "a2c" else 1
    return -weights * advantages * np.log(ratios), -weights * advantages


def _record_another_policy(batch, log_probs):
    """Let another policy have chosen the actions; return the log-ratios [T, B]."""
    chosen = batch.unrolls.action[1:, :, None]
    log_ratios = np.random.default_rng(1).uniform(-0.5, 0.5, [T, B])
    picked = np.take_along_axis(log_probs, chosen, 2)[..., 0]
    played = np.minimum(picked - log_ratios, -0.01)  # the log-probability when it was chosen
    batch.unrolls.extras[1:] = np.where(
        np.arange(ACTIONS) == chosen, played[..., None], np.log(-np.expm1(played))[..., None]
    )
    return picked - played


# The quick tests have each name, each kind of minibatch and each reduction once.
OTHERS = [
    *(("unrolls", name, "mean") for name in ("ppo", "a2c", "vpg")),
    *(("steps", name, "sum") for name in ("ppo", "a2c", "vpg")),
    *(("unrolls", name, "sum") for name in ("a2c", "vpg")),
]


@pytest.mark.parametrize(
    ("minibatch_of", "name", "reduction"),
    [
        *(("steps", name, "mean") for name in ("ppo", "a2c", "vpg")),
        ("unrolls", "ppo", "sum"),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS),
    ],
)
def test_loss_and_gradient_are_those_of_the_definition(name, minibatch_of, reduction):
    algorithm, exchange = _made(
        name, entropy_cost=0.02, baseline_cost=0.7, value_clip=0.3, gradients_clipping=-1.0,
        huber_delta=0.5, minibatch_of=minibatch_of, loss_reduction=reduction,
        **{"largest_ratio": 1.2} if name == "a2c" else {},
    )  # fmt: skip
    batch = _batch(algorithm)
    table = Table(algorithm, batch)
    log_probs, values = table.outputs()
    chosen = batch.unrolls.action[1:, :, None]
    log_ratios = _record_another_policy(batch, log_probs)
    live, weight = _live(batch), batch.weight
    advantages = _advantages(batch, values)
    scaled = (advantages - advantages[live].mean()) / (advantages[live].std() + 1e-6)
    terms, slopes = _surrogate(name, np.exp(log_ratios), scaled)
    entropies = -(np.exp(log_probs) * log_probs).sum(-1)
    size = T * B if reduction == "mean" else 1

    def reduced(each):
        return np.where(live, each * weight, 0).sum() / size

    found = {}
    # A gradient has no slot in this optimizer, so it is kept instead of applied.
    exchange.apply = lambda optimizer, gradients, variables: found.update(gradients=gradients)
    algorithm.variables = algorithm.variables._replace(trained=[table.logits, table.values])
    metrics, _ = algorithm.update(_tensors(batch), PROGRESS, exchange)
    inside = np.clip(advantages, -0.5, 0.5)
    assert 0 < (inside == advantages)[live].mean() < 1
    huber = inside * (advantages - inside / 2)
    expected = [reduced(terms), reduced(huber), reduced(-entropies)]
    total = np.dot([1, 0.7, 0.02], expected)
    keys = ("total", "policy", "baseline", "entropy")
    for key, value in zip(keys, [total, *expected], strict=True):
        np.testing.assert_allclose(metrics[f"loss/{key}"], value, rtol=2e-4, atol=1e-6)
        steps = T * B if reduction == "sum" else 1
        np.testing.assert_allclose(
            metrics[f"loss_per_step/{key}"], value / steps, rtol=2e-4, atol=1e-6
        )
    ratios = np.exp(log_ratios)
    kl = (ratios - 1 - log_ratios)[live].mean()
    np.testing.assert_allclose(metrics["approx_kl"], kl, rtol=2e-4)
    np.testing.assert_allclose(metrics["entropy"], entropies[live].mean(), rtol=2e-5)
    targets = (advantages + values[:-1])[live]
    explained = 1 - advantages[live].var() / targets.var()
    np.testing.assert_allclose(metrics["explained_variance"], explained, rtol=1e-4)
    if name == "ppo":
        outside = (np.abs(ratios - 1) > 0.2)[live].mean()
        np.testing.assert_allclose(metrics["clip_fraction"], outside, rtol=1e-5)
        assert 0 < outside < 1

    probs = np.exp(log_probs)
    one_hot = np.arange(ACTIONS) == chosen
    of_logits = slopes[..., None] * (one_hot - probs)
    of_logits += 0.02 * probs * (log_probs + entropies[..., None])
    factors = np.where(live, weight, 0) / size
    of_logits, of_values = factors[..., None] * of_logits, factors * 0.7 * -inside
    dense = [tf.convert_to_tensor(g).numpy() for g in found["gradients"]]
    ours = dense[0].reshape(T + 1, B, ACTIONS), dense[1].reshape(T + 1, B)
    np.testing.assert_allclose(ours[0][:-1], of_logits, rtol=1e-3, atol=2e-5)
    np.testing.assert_allclose(ours[1][:-1], of_values, rtol=1e-3, atol=2e-5)
    assert not ours[0][-1].any()
    assert not ours[1][-1].any()


def test_a_value_that_has_moved_further_than_value_clip_is_taught_no_more():
    """The larger of both errors counts, so a value that moved away from its target still learns."""
    algorithm, exchange = _made(value_clip=0.1)
    batch = _batch(algorithm)
    table = Table(algorithm, batch)
    goals, steps = algorithm._goals(_tensors(batch), exchange)
    behaviour = algorithm._recorded(_tensors(batch).unrolls)[1:]
    part = samples.of_batch(_tensors(batch), steps, behaviour)
    moves = np.random.default_rng(2).uniform(-0.3, 0.3, (T + 1) * B)
    table.values.assign_add(moves.astype(np.float32))
    with tf.GradientTape() as tape:
        _, loss, *_ = algorithm._loss(part, goals, NO_FEATURES)
    slopes = tf.convert_to_tensor(tape.gradient(loss.baseline, table.values)).numpy()
    slopes = slopes.reshape(T + 1, B)[:-1]
    targets, old = goals.targets.numpy().astype(float), goals.values.numpy().astype(float)
    values = table.values.numpy().astype(float).reshape(T + 1, B)[:-1]
    clipped = old + np.clip(values - old, -0.1, 0.1)
    free = (values - targets) ** 2 >= (clipped - targets) ** 2
    expected = np.where(free | (np.abs(values - old) < 0.1), values - targets, 0)
    live = _live(batch)
    expected = np.where(live, expected * batch.weight, 0) / (T * B)
    np.testing.assert_allclose(slopes, expected, rtol=1e-4, atol=1e-6)
    assert (expected[live] == 0).any()


def test_positive_advantages_are_all_that_is_left_of_scaled_ones():
    algorithm, exchange = _made(positive_advantages=True)
    plain, _ = _made()
    batch = _tensors(_batch(algorithm))
    scaled = plain._goals(batch, exchange)[0].advantages.numpy()
    found = algorithm._goals(batch, exchange)[0].advantages.numpy()
    np.testing.assert_allclose(found, np.maximum(scaled, 0))
    assert (scaled < 0).any()


@pytest.mark.parametrize(
    "level", ["Pendulum-v1", pytest.param("CartPole-v1", marks=pytest.mark.slow)]
)
def test_padding_changes_nothing_whatever_it_contains(level):
    trained = []
    for content in (0.5, 9.0):
        algorithm, exchange = _made(
            level=level, minibatches=2, epochs=2, normalize_observations=True,
            recompute_advantages=True,
        )  # fmt: skip
        batch = _batch(algorithm)
        for leaf in tf.nest.flatten(batch.unrolls):
            leaf[:, -1] = content if leaf.dtype == np.float32 else content > 1
        batch.unrolls.extras[:, -1] = np.nan
        metrics, _ = algorithm.update(_tensors(batch), PROGRESS, exchange)
        assert all(np.isfinite(value) for value in metrics.values()), metrics
        trained.append([v.numpy() for v in algorithm.variables.trained])
    for one, other in zip(*trained, strict=True):
        np.testing.assert_array_equal(one, other)


def test_recurrent_networks_read_whole_unrolls_from_the_state_that_each_began_with():
    """With a rate of 0, minibatches together have the loss of the whole batch."""
    found = []
    for count in (1, 4):
        algorithm, exchange = _made(
            agent_name="MLPLSTMAgent", minibatches=count, learning_rate=0.0, entropy_cost=0.1,
            epochs=1,
        )  # fmt: skip
        batch = _batch(algorithm)
        starts = np.random.default_rng(3)
        for leaf in tf.nest.flatten(batch.start):
            leaf[:] = starts.normal(size=leaf.shape)
        metrics, _ = algorithm.update(_tensors(batch), PROGRESS, exchange)
        assert metrics["optimizer_steps"] == count
        found.append([float(metrics[f"loss/{name}"]) for name in ("total", "baseline", "entropy")])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    zeros = algorithm.initial_state(B)
    of_zeros, _ = algorithm.update(_tensors(batch)._replace(start=zeros), PROGRESS, exchange)
    assert abs(float(of_zeros["loss/total"]) - found[0][0]) > 1e-4


def test_advantages_are_computed_again_before_each_epoch_only_if_asked_for():
    found = []
    for again in (False, True):
        algorithm, exchange = _made(epochs=3, recompute_advantages=again, learning_rate=0.01)
        computed, real = [], algorithm._goals

        def counted(*args, real=real, computed=computed, **given):
            goals, steps = real(*args, **given)
            computed.append(goals.targets.numpy())
            return goals, steps

        algorithm._goals = counted
        algorithm.update(_tensors(_batch(algorithm)), PROGRESS, exchange)
        found.append(computed)
    once, each = found
    assert len(once) == 1
    assert len(each) == 3
    assert np.abs(each[1] - each[0]).max() > 1e-3
    assert np.abs(each[2] - each[1]).max() > 1e-3


def test_values_are_clipped_around_those_before_the_first_step_in_every_epoch():
    algorithm, exchange = _made(
        epochs=3, recompute_advantages=True, value_clip=0.1, learning_rate=0.01
    )
    seen, real = [], algorithm._loss

    def noted(part, goals, features):
        seen.append(tuple(np.sort(x, axis=None) for x in (goals.values, goals.targets)))
        return real(part, goals, features)

    algorithm._loss = noted
    algorithm.update(_tensors(_batch(algorithm)), PROGRESS, exchange)
    assert len(seen) == 3
    for values, targets in seen[1:]:
        np.testing.assert_array_equal(values, seen[0][0])
        assert np.abs(targets - seen[0][1]).max() > 1e-3, "computed again"


def test_how_much_is_explained_of_targets_that_are_all_equal_is_not_known():
    values, live = tf.constant([[1.0, 2.0]]), tf.constant([[True, True]])
    for targets, explained in (([[2.0, 2.0]], np.nan), ([[1.0, 3.0]], 0.75)):
        goals = Goals(values, tf.constant(targets), values)
        found, error = _fit(goals, live, GradientReducer(SingleLearner(), Config()))
        np.testing.assert_allclose(found, explained)
        assert float(error) == 0.5


def _learn(group, columns, double, make=_made, updates=2, **settings):
    """Return the variables of one learner after updates on its columns of a batch of 8.

    Also return the metrics of the last update.
    """
    (algorithm, exchange), metrics = make(group=group, **settings), {}
    if double:
        algorithm._network = Double()
        heads = [snt.Linear(ACTIONS, name="policy_logits"), snt.Linear(1, name="baseline")]
        algorithm._policy_head, algorithm._baseline_head = heads
        for head in heads:
            head(tf.zeros([1, 8], tf.float64))
        algorithm._unit = value_units.make_unit(
            algorithm._config.value_normalization, algorithm._baseline_head
        )
        algorithm.variables = algorithm._group_variables(
            algorithm._prepare_learning(algorithm._config)
        )
    random = np.random.default_rng(7)
    for variable in algorithm.variables.trained:
        variable.assign(random.normal(size=variable.shape) * 0.5)
    batch = _batch(algorithm, columns=8)
    entries = tf.nest.map_structure(lambda x: x[:, columns], batch.unrolls)
    mine = tf.nest.map_structure(lambda x: x[columns], batch._replace(unrolls=()))
    batch = _tensors(mine._replace(unrolls=entries))
    for _ in range(updates):
        metrics, _ = algorithm.update(batch, PROGRESS, exchange)
    return [v.numpy() for v in algorithm.variables.trained], metrics


def _joined(of_part, learners, steps):
    """Return the minibatches of one learner that join those of several, whose shares are equal."""

    def parts(size, *args):
        each = of_part(size // learners, *args).numpy()
        share = 8 // learners
        if steps:
            row, column = np.divmod(each, share)
            each = [row * 8 + rank * share + column for rank in range(learners)]
        else:
            each = [each + rank * share for rank in range(learners)]
        return tf.constant(np.concatenate(each, 1), tf.int32)

    return parts


EXACT = {"tolerance": 1e-9, "double": True, "epochs": 2, "minibatches": 2}
NORMALISED = {"normalize_observations": True, "normalize_rewards": True}


def _slow(**case):
    return pytest.param(case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "case",
    [
        EXACT | {"minibatch_of": "steps"},
        EXACT | {"minibatch_of": "steps", "recompute_advantages": False},
        {"tolerance": 1e-5, "epochs": 1, "minibatches": 1, "minibatch_of": "steps"},
        EXACT | NORMALISED | {"value_normalization": "popart", "gradients_clipping": 0.1},
        _slow(**EXACT, **NORMALISED, value_normalization="error", positive_advantages=True),
        _slow(**EXACT, minibatch_of="unrolls", value_clip=0.1, huber_delta=0.5),
        _slow(tolerance=1e-5, epochs=1, minibatches=1, minibatch_of="unrolls"),
        _slow(**EXACT, algorithm="a2c", advantages="n_step"),
        _slow(**EXACT, algorithm="vpg"),
        _slow(**EXACT, target_kl=0.05),
    ],
)
@pytest.mark.parametrize("learners", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(monkeypatch, case, learners):
    settings = {
        "recompute_advantages": True, "learning_rate": 0.01, "gradients_clipping": -1.0,
        "entropy_cost": 0.01,
    } | case  # fmt: skip
    tolerance, double = settings.pop("tolerance"), settings.pop("double", False)
    steps = settings["epochs"] * settings["minibatches"]

    def learn(group):
        return _learn(group, in_threads.share_of(group, 8), double, **settings)

    several = in_threads.together(learners, learn)
    of_part = minibatches.shuffled_parts
    joined = _joined(of_part, learners, case.get("minibatch_of") != "unrolls")
    monkeypatch.setattr(minibatches, "shuffled_parts", joined)
    ((one, _),) = in_threads.together(1, learn)
    before, _ = _learn(SingleLearner(), slice(8), double, updates=0, **settings)
    assert max(np.abs(a - b).max() for a, b in zip(one, before, strict=True)) > 1e-3
    for variables, metrics in several:
        assert metrics["optimizer_steps"] == steps or "target_kl" in case
        for ours, theirs in zip(variables, one, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def test_actors_hold_no_optimizer_and_the_same_trained_variables():
    learner, _ = _made()
    config = learner._config
    actor = registry.make_algorithm(config, level_spec(config.level_name), Role.ACTOR)
    for group in ("trained", "acting"):
        shapes = [[v.shape for v in getattr(a.variables, group)] for a in (learner, actor)]
        assert shapes[0] == shapes[1]
    assert len(learner.variables.carried) > 0
    assert actor.variables.carried == []


def test_all_learners_end_their_epochs_after_the_same_step():
    settings = {"epochs": 9, "minibatches": 2, "learning_rate": 0.02, "target_kl": 0.02}

    def learn(group):
        return _learn(group, in_threads.share_of(group, 8), False, **settings)

    several = in_threads.together(2, learn)
    steps = {int(metrics["optimizer_steps"]) for _, metrics in several}
    assert len(steps) == 1
    assert 1 <= steps.pop() < 18
    for ours, theirs in zip(*(variables for variables, _ in several), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_divergence_that_ends_epochs_is_that_of_all_steps_however_many_each_learner_has(
    monkeypatch,
):
    """The last column of the second learner is padding, so it has fewer steps."""
    settings = {"learning_rate": 0.01, "epochs": 2, "minibatches": 2, "minibatch_of": "steps"}

    def learn(learners, target_kl):
        def act(group):
            mine = in_threads.share_of(group, 8)
            return _learn(group, mine, True, updates=1, target_kl=target_kl, **settings)

        return in_threads.together(learners, act)

    joined = _joined(minibatches.shuffled_parts, 2, True)
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
        for ours, theirs in zip(variables, one, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--minibatches=5"],
            "--minibatches=5 does not divide --batch_size x --unroll_length=2048",
        ),
        (["--minibatches=5"], ": use --minibatches=4 or 8"),
        (["--minibatches=3000"], "=2048: a minibatch needs at least one of them; use at most"),
        (["--minibatch_of=unrolls", "--minibatches=32"], "=32 is more than --batch_size=16"),
        (["--clip=-0.1"], "--clip=-0.1: it must be at least 0"),
        (["--value_clip=-1"], "--value_clip=-1.0: it must be at least 0"),
        (["--huber_delta=0"], "--huber_delta=0.0: it must be at least 1e-06"),
        (["--max_abs_reward=0"], "--max_abs_reward=0.0: it must be at least 1e-06"),
        (["--kl_ref_pi_cost=inf"], "--kl_ref_pi_cost=inf: it must be at least 0 and at most 1e+06"),
        (
            ["--multiplier_speed=inf"],
            "--multiplier_speed=inf: it must be at least 0 and at most 10",
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_anything_starts(capsys, given, said):
    with pytest.raises(SystemExit) as ended:
        command_line.parse(["experiment.py", "--algorithm=ppo", *given], "", Config)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_minibatches_are_chosen_where_they_are_not_given():
    settings = Config.of_algorithm("ppo")
    for given, of_steps, of_unrolls in (
        ({}, 32, 4),
        ({"batch_size": 6, "unroll_length": 7}, 1, 1),
        ({"batch_size": 12, "unroll_length": 33}, 6, 3),
    ):
        chosen = settings(**given)
        assert chosen.count_minibatches(of_steps=True) == of_steps
        assert chosen.count_minibatches(of_steps=False) == of_unrolls


def test_defaults_follow_the_level():
    def parsed(*given):
        (config,), _ = command_line.parse(["experiment.py", "--algorithm=ppo", *given], "", Config)
        return config

    plain, atari = parsed(), parsed("--level_name=PongNoFrameskip-v4", "--clip=0.3")
    assert (plain.separate_networks, plain.normalize_rewards, plain.epochs) == (True, True, 10)
    assert (atari.separate_networks, atari.normalize_rewards, atari.epochs) == (False, False, 4)
    assert (plain.clip, atari.clip, parsed("--level_name=ALE/Pong-v5").clip) == (0.2, 0.3, 0.1)
    assert isinstance(atari, type(plain)), "other processes read it as PPO's settings"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"minibatches": 3}, "--minibatches=3 does not divide --batch_size=4: use --minibatches=2"),
        ({"minibatches": 8}, "--minibatches=8 is more than --batch_size=4"),
        ({"minibatch_of": "steps"}, "--minibatch_of=steps: MLPLSTMAgent remembers earlier"),
    ],
)
def test_minibatches_of_a_network_that_remembers_are_of_unrolls(capsys, settings, said):
    with pytest.raises(SystemExit):
        _made(agent_name="MLPLSTMAgent", **settings)
    assert said in capsys.readouterr().err


@pytest.mark.slow  # each compiles for some 4 s
@pytest.mark.parametrize(
    ("algorithm", "level", "settings"),
    [
        ("ppo", "CartPole-v1", {"target_kl": 1e6}),
        ("ppo", "Pendulum-v1", {"recompute_advantages": True}),
        ("ppo", "Pendulum-v1", {"target_entropy": 0.5}),
        ("ppo", "CartPole-v1", {"value_normalization": "popart"}),
        ("awr", "CartPole-v1", {}),
        ("vmpo", "CartPole-v1", {"epochs": 4}),
    ],
)
def test_compiled_epochs_make_the_same_update(algorithm, level, settings):
    def train(compiled):
        made, exchange = _made(
            algorithm, level, compile_updates=compiled, **{"minibatches": 8, "epochs": 4} | settings
        )
        batch = _tensors(_batch(made))

        @tf.function(autograph=False)
        def update():
            exchange.begin(tf.constant(1, tf.int64))
            return made.update(batch, PROGRESS, exchange)[0]

        metrics = {name: float(x) for name, x in update().items()}
        assert by_xla(update) == compiled
        assert metrics["optimizer_steps"] == 32
        return metrics, [v.numpy() for v in made.variables.trained]

    (measured, weights), (expected, plain) = train(True), train(False)
    assert measured == pytest.approx(expected, rel=1e-3, abs=1e-5)
    for ours, others in zip(weights, plain, strict=True):
        np.testing.assert_allclose(ours, others, rtol=1e-3, atol=1e-5)


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
    assert _made(epochs=32)[0]._compiled
    assert not _made(**{"epochs": 32} | settings)[0]._compiled
