"""The update that DQN and R2D2 share."""

import re

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms import registry
from impala_mm.algorithms.interface import Context, EnvironmentNumber, Role
from impala_mm.algorithms.q_learning import algorithm as q_learning
from impala_mm.algorithms.q_learning import draws as q_draws
from impala_mm.algorithms.q_learning.network import QNetwork
from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.distributed.group import SingleLearner
from impala_mm.environments.make import level_spec
from tests.helpers import in_threads
from tests.helpers.double_network import Double, DoubleOfImages, DoubleRecurrent

T, B, ACTIONS = 6, 8, 2
KINDS = {
    "none": {"huber_delta": 0.3},
    "categorical": {
        "value_distribution": "categorical", "num_atoms": 11, "v_min": -2.0, "v_max": 2.0,
    },
    "quantiles": {
        "value_distribution": "quantiles", "num_quantiles": 5, "num_target_quantiles": 4,
        "num_policy_quantiles": 6,
    },
}  # fmt: skip
PROGRESS = Context(tf.constant(300.0), tf.constant(1000.0), tf.constant(0.0))


def _made(group=None, role=Role.LEARNER, algorithm="dqn", masks=(), observation=None, **settings):
    config = Config.of_algorithm(algorithm)(
        algorithm=algorithm, level_name="CartPole-v1", unroll_length=T, **settings
    )
    tf.random.set_seed(1)
    environment = level_spec(config.level_name)._replace(masks=masks)
    if observation is not None:
        environment = environment._replace(observation=observation)
    made = registry.make_algorithm(config, environment, role)
    return made, GradientReducer(group or SingleLearner(), config)


def _batch(algorithm, seed=0):
    """Return a batch with a termination, a truncation, resets, and a column of padding."""
    random = np.random.default_rng(seed)
    steps = T + algorithm.unroll.overlap

    def draw(spec):
        shape = [steps, B, *spec.shape]
        if spec.dtype == tf.bool:
            return random.random(shape) < 0.6
        if spec.dtype == tf.uint8:
            return random.integers(0, 256, shape).astype(np.uint8)
        if spec.dtype.is_integer:
            return random.integers(0, ACTIONS, shape).astype(spec.dtype.as_numpy_dtype)
        return random.uniform(-0.9, 0.9, shape).astype(spec.dtype.as_numpy_dtype)

    entries = tf.nest.map_structure(draw, algorithm.unroll.step)
    terminated, truncated, first = (np.zeros([steps, B], bool) for _ in range(3))
    terminated[2, 0], first[3, 0], truncated[4, 1], first[5, 1], first[0, 2] = (True,) * 5
    entries = entries._replace(terminated=terminated, truncated=truncated, first=first)
    start = tf.nest.map_structure(
        lambda x: random.uniform(-0.9, 0.9, x.shape).astype(x.dtype.as_numpy_dtype),
        algorithm.initial_state(B),
    )
    weight = random.uniform(0.2, 1.0, B).astype(np.float32)
    weight[-1] = 0
    return Batch(entries, start, np.arange(B), weight, np.arange(B), np.arange(B) < 2)


def _columns(batch, chosen):
    """Return these columns of a batch as tensors."""
    entries = tf.nest.map_structure(lambda x: x[:, chosen], batch.unrolls)
    others = tf.nest.map_structure(lambda x: x[chosen], batch._replace(unrolls=()))
    return tf.nest.map_structure(tf.constant, others._replace(unrolls=entries))


def _outputs(network, batch, use, count=1):
    """Return what the first update reads of a network, in float64."""
    draws = q_draws.Trained(SingleLearner(), 1, tf.constant(0, tf.int64), use, B, 1)
    found = network.unroll(batch.unrolls, batch.start, draws, count)
    levels = () if isinstance(found.levels, tuple) else found.levels.numpy()
    return *(x.numpy().astype(np.float64) for x in found[:2]), levels


def _step_loss(kind, played, levels, target, probabilities):
    """Return (loss, error) of a step by its numbers [N] and its target's outcomes [M]."""
    if kind == "none":
        error = (target * probabilities).sum() - played[0]
        inside = min(abs(error), 0.3)
        return inside * (abs(error) - inside / 2), abs(error)
    if kind == "categorical":
        atoms = np.linspace(-2, 2, 11)
        goal = np.zeros(11)
        for value, probability in zip(target, probabilities, strict=True):
            goal += probability * np.maximum(0, 1 - np.abs(np.clip(value, -2, 2) - atoms) / 0.4)
        probs = np.exp(played) / np.exp(played).sum()
        loss = sum(g * np.log(g / p) for g, p in zip(goal, probs, strict=True) if g > 0)
        return loss, abs((target * probabilities).sum() - probs @ atoms)
    loss = 0.0
    for value, level in zip(played, levels, strict=True):
        for outcome, probability in zip(target, probabilities, strict=True):
            error = outcome - value
            size = error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5
            loss += probability * abs(level - (error < 0)) * size
    return loss, abs(target.mean() - played.mean())


def _expected_losses(kind, batch, online, future, n_steps, double):
    """Return (losses, errors) [T, B], going on from each step for itself."""
    (means, numbers, levels), (target_means, following, _) = online, future
    e = tf.nest.map_structure(lambda x: x.numpy(), batch.unrolls)
    losses, errors = np.zeros([2, T, B])
    for b in range(B):
        for t in range(T):
            if e.first[t + 1, b] or not batch.weight[b]:
                continue
            total, factor, now = 0.0, 1.0, t
            while now < t + n_steps and not e.first[now + 1, b]:
                now += 1
                total += factor * e.reward[now, b]
                factor *= 0.0 if e.terminated[now, b] else 0.99
            allowed = np.ones(ACTIONS, bool)
            if not isinstance(e.mask, tuple) and e.mask[now, b].any():
                allowed = e.mask[now, b]
            judged = means if double else target_means
            best = max(np.flatnonzero(allowed), key=lambda a: judged[now, b, a])
            after = following[now, b, best]
            probabilities = np.full(len(after), 1 / len(after))
            if kind == "categorical":
                probabilities = np.exp(after) / np.exp(after).sum()
                after = np.linspace(-2, 2, 11)
            losses[t, b], errors[t, b] = _step_loss(
                kind,
                numbers[t, b, e.action[t + 1, b]],
                levels[t, b] if kind == "quantiles" else (),
                total + factor * after,
                probabilities,
            )
    return losses, errors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("n_steps", "double", "masked"), [(1, True, False), (3, False, False), (3, True, True)]
)
def test_each_step_has_a_whole_target_and_its_unroll_a_priority(kind, n_steps, double, masked):
    masks = tf.TensorSpec([ACTIONS], tf.bool) if masked else ()
    algorithm, exchange = _made(
        masks=masks, n_steps=n_steps, double_q=double, duelling=True, noisy=masked,
        learning_rate=0.0, **KINDS[kind],
    )  # fmt: skip
    random = np.random.default_rng(5)
    for variable in (*algorithm.variables.trained, *algorithm._target.trainable_variables):
        variable.assign_add(random.normal(size=variable.shape) * 0.1)
    batch = _columns(_batch(algorithm), slice(None))
    assert batch.unrolls.reward.shape == (T + n_steps, B), "as many entries as a target needs"
    online = _outputs(algorithm._online, batch, 0, 5)
    future = _outputs(algorithm._target, batch, 1, 4)
    losses, errors = _expected_losses(kind, batch, online, future, n_steps, double)
    metrics, priorities = algorithm.update(batch, PROGRESS, exchange)
    weight = batch.weight.numpy()
    assert float(metrics["loss/total"]) == pytest.approx((losses * weight).mean(), rel=1e-4)
    assert float(metrics["q/error"]) == pytest.approx((errors * weight).mean(), rel=1e-4)
    sizes, live = errors if kind == "none" else losses, losses > 0
    expected = 0.9 * sizes.max(0) + 0.1 * sizes.sum(0) / np.maximum(live.sum(0), 1)
    np.testing.assert_allclose(priorities, expected, rtol=1e-4, atol=1e-6)
    trained = ~batch.unrolls.first.numpy()[1 : T + 1] & (weight > 0)
    values = online[0]
    if masked:
        masks = batch.unrolls.mask.numpy()
        values = np.where(masks | ~masks.any(-1, keepdims=True), values, -np.inf)
    largest = values.max(-1)[:T][trained]
    assert float(metrics["q/value"]) == pytest.approx(largest.mean(), rel=1e-4)


def test_the_first_priority_of_an_unroll_is_that_of_its_own_steps():
    """Later steps, which only complete its targets, belong to the next unroll."""
    algorithm, _ = _made(n_steps=3)
    batch = _batch(algorithm)
    played, entries = batch.unrolls.extras.copy(), batch.unrolls
    found = algorithm.first_priorities(tf.nest.map_structure(tf.constant, entries), ())
    played[T + 1 :, :, 0] += 100
    changed = tf.nest.map_structure(tf.constant, entries._replace(extras=played))
    np.testing.assert_array_equal(algorithm.first_priorities(changed, ()), found)
    played[T, :, 0] += 100
    changed = tf.nest.map_structure(tf.constant, entries._replace(extras=played))
    assert (algorithm.first_priorities(changed, ()).numpy() > found.numpy() + 50).all()


@pytest.mark.parametrize("algorithm", ["dqn", "r2d2"])
def test_the_loss_per_step_is_the_same_however_losses_are_combined(algorithm):
    flags = {"burn_in": 2} if algorithm == "r2d2" else {"n_steps": 2}
    found = []
    for how in ("mean", "sum"):
        made, exchange = _made(algorithm=algorithm, loss_reduction=how, **flags)
        metrics, _ = made.update(_columns(_batch(made), slice(None)), PROGRESS, exchange)
        found.append((float(metrics["loss/total"]), float(metrics["loss_per_step/total"])))
    (mean, per_step), (total, of_total) = found
    assert mean == per_step == pytest.approx(of_total, rel=1e-5)
    assert total == pytest.approx(T * B * mean, rel=1e-5)


IMAGE = tf.TensorSpec([9, 8, 1], tf.uint8)


def test_losses_are_averaged_over_shifts_of_values_and_of_targets():
    shifts = {"random_shift": 2, "value_shifts": 2, "target_shifts": 3}
    algorithm, exchange = _made(
        observation=IMAGE, n_steps=2, learning_rate=0.0, precision="float32", **shifts,
        **KINDS["none"],
    )  # fmt: skip
    random = np.random.default_rng(5)
    for variable in (*algorithm.variables.trained, *algorithm._target.trainable_variables):
        variable.assign_add(random.normal(size=variable.shape) * 0.02)
    batch = _columns(_batch(algorithm), slice(None))

    def read(network, use, copies):
        """Return (means, numbers) of each copy, whose images are shifted here."""
        draws = q_draws.Trained(SingleLearner(), 1, tf.constant(0, tf.int64), use, B, copies)
        offsets = draws.offsets(2).numpy().reshape(copies, B, 2)
        found = []
        for of_copy in offsets:
            moved = batch.unrolls.observation.numpy().copy()
            for b, (down, right) in enumerate(of_copy):
                padded = np.pad(moved[:, b], [(0, 0), (2, 2), (2, 2), (0, 0)], "edge")
                moved[:, b] = padded[:, 2 - down :, 2 - right :][:, :9, :8]
            shifted = batch._replace(unrolls=batch.unrolls._replace(observation=moved))
            found.append(_outputs(network, shifted, use)[:2])
        assert len(np.unique(offsets.reshape(-1, 2), axis=0)) > 3
        return [np.array(x) for x in zip(*found, strict=True)]

    means, numbers = read(algorithm._online, 0, 2)
    target_means, following = read(algorithm._target, 1, 3)
    future = (target_means.mean(0), following.mean(0), ())
    each = [
        _expected_losses("none", batch, (means.mean(0), one, ()), future, 2, True)
        for one in numbers
    ]
    losses, errors = np.mean(each, 0)
    metrics, priorities = algorithm.update(batch, PROGRESS, exchange)
    weight = batch.weight.numpy()
    assert float(metrics["loss/total"]) == pytest.approx((losses * weight).mean(), rel=1e-3)
    live = errors > 0
    expected = 0.9 * errors.max(0) + 0.1 * errors.sum(0) / np.maximum(live.sum(0), 1)
    np.testing.assert_allclose(priorities, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (None, r"--random_shift=9 shifts images .* of CartPole-v1 have the shape \[4\]: leave it"),
        (IMAGE, "--random_shift=9 shifts images of CartPole-v1 out of sight, .* has 8 pixels"),
    ],
)
def test_shifts_without_images_or_beyond_them_are_refused(capsys, observation, said):
    with pytest.raises(SystemExit) as ended:
        _made(observation=observation, random_shift=9)
    assert ended.value.code == 2
    assert re.search(said, capsys.readouterr().err)


def test_shifts_of_images_from_which_a_mean_is_subtracted_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        _made(observation=IMAGE, random_shift=2, subtract_mean_image=True)
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(
        "--random_shift=2 shifts images, but not the mean that --subtract_mean_image subtracts "
        "from them: leave one of them out\n"
    )


def test_noise_replaces_random_actions_unless_a_schedule_is_given():
    n = 1000
    for schedule, share in (("auto", 0.0), ("decay", 1.0)):
        actor, _ = _made(role=Role.ACTOR, noisy=True, noisy_scale=1e-6, epsilon_schedule=schedule)
        entry = tf.nest.map_structure(
            lambda spec: tf.zeros([n, *spec.shape], spec.dtype), actor.unroll.step
        )
        number = EnvironmentNumber(tf.range(n), tf.constant(n))
        found, _, _ = actor.act_by_number(entry, actor.initial_state(n), tf.ones([n]), number)
        best = _best(actor, entry, n)
        assert (found.numpy() != best).mean() == pytest.approx(share / 2, abs=0.06)


@pytest.mark.parametrize("settings", [{}, {"noisy": True}, {"epsilon_schedule": "ladder"}])
def test_evaluation_has_its_own_share_of_random_actions_and_no_noise(settings):
    evaluator, _ = _made(role=Role.EVALUATOR, eval_epsilon=0.3, **settings)
    n = 4000
    entry = tf.nest.map_structure(
        lambda spec: tf.zeros([n, *spec.shape], spec.dtype), evaluator.unroll.step
    )
    best = _best(evaluator, entry, n)
    number = EnvironmentNumber(tf.zeros([n], tf.int32), tf.constant(1))
    for exploration, share in ((1.0, 0.15), (0.0, 0.0)):
        found, _, extras = evaluator.act_by_number(
            entry, evaluator.initial_state(n), tf.fill([n], exploration), number
        )
        assert (found.numpy() != best).mean() == pytest.approx(share, abs=0.03)
        assert np.ptp(extras[:, 1]) == 0, "the values have no noise"


def _best(algorithm, entry, n):
    values, _ = algorithm._online.step(entry, algorithm.initial_state(n), q_draws.Calm())
    return int(tf.argmax(values[0]))


def test_the_target_network_follows_by_a_share_every_few_updates():
    algorithm, exchange = _made(target_period=3, target_share=0.25, learning_rate=0.01)
    target = algorithm._target.trainable_variables
    batch = _columns(_batch(algorithm), slice(None))
    begin = [v.numpy() for v in target]
    for number in range(1, 7):
        before = [v.numpy() for v in target]
        algorithm.update(batch, PROGRESS, exchange)
        for now, was, online in zip(target, before, algorithm.variables.trained, strict=True):
            expected = was + (0.25 * (online.numpy() - was) if number % 3 == 0 else 0)
            np.testing.assert_allclose(now, expected, atol=1e-7)
    assert any(np.abs(a - b.numpy()).max() > 1e-4 for a, b in zip(begin, target, strict=True))


def test_a_decaying_share_of_random_actions_reaches_the_actors():
    algorithm, exchange = _made(epsilon_frames=600.0, epsilon_start=0.9, epsilon_end=0.1)
    metrics, _ = algorithm.update(_columns(_batch(algorithm), slice(None)), PROGRESS, exchange)
    assert float(metrics["epsilon"]) == pytest.approx(0.5)
    actor, _ = _made(role=Role.ACTOR, epsilon_start=0.9)
    assert [v.shape for v in actor.variables.acting] == [
        v.shape for v in algorithm.variables.acting
    ]
    for own, given in zip(actor.variables.acting, algorithm.variables.acting, strict=True):
        own.assign(given)
    n = 4000
    entry = tf.nest.map_structure(
        lambda spec: tf.zeros([n, *spec.shape], spec.dtype), actor.unroll.step
    )
    number = EnvironmentNumber(tf.range(n), tf.constant(n))
    best = _best(actor, entry, n)
    for exploration, share in ((1.0, 0.25), (0.0, 0.0)):  # half of two random actions is the best
        found, _, _ = actor.act_by_number(
            entry, actor.initial_state(n), tf.fill([n], exploration), number
        )
        assert (found.numpy() != best).mean() == pytest.approx(share, abs=0.03)


def test_the_ladder_gives_each_environment_its_share():
    actor, _ = _made(role=Role.ACTOR, epsilon_schedule="ladder", epsilon_base=0.9)
    n = 4000
    entry = tf.nest.map_structure(
        lambda spec: tf.zeros([n, *spec.shape], spec.dtype), actor.unroll.step
    )
    best = _best(actor, entry, n)
    for number, power in ((0, 1), (6, 8)):
        environment = EnvironmentNumber(tf.fill([n], number), tf.constant(7))
        found, _, _ = actor.act_by_number(entry, actor.initial_state(n), tf.ones([n]), environment)
        assert (found.numpy() != best).mean() == pytest.approx(0.9**power / 2, abs=0.03)


def test_values_are_judged_in_the_unit_of_rewards():
    algorithm, _ = _made(value_rescaling=0.001, duelling=True)
    entry = tf.nest.map_structure(
        lambda spec: tf.ones([3, *spec.shape], spec.dtype), algorithm.unroll.step
    )
    values, _ = algorithm._online.step(entry, algorithm.initial_state(3), q_draws.Calm())
    values = values.numpy()
    output = algorithm.judge(entry, algorithm.initial_state(3))
    found = output.value.numpy().astype(np.float64)
    rescaled = np.sign(found) * (np.sqrt(np.abs(found) + 1) - 1) + 0.001 * found
    np.testing.assert_allclose(rescaled, values.max(-1), rtol=1e-5)
    np.testing.assert_array_equal(output.policy, np.eye(2)[values.argmax(-1)])
    np.testing.assert_array_equal(tf.reduce_max(output.values, -1), output.value)


class DoubleQ(QNetwork):
    """A Q-network in float64."""

    short_memory = ""

    def __init__(self, config, environment, mean=None, network=""):
        snt.Module.__init__(self, name="q_network")
        self._config, self.num_actions = config, ACTIONS
        shape = environment.observation.shape
        make = DoubleRecurrent if config.algorithm == "r2d2" else Double
        self._body = DoubleOfImages(shape) if shape.rank == 3 else make()
        self._make_head(8, tf.float64)


# Cases that differ from DQN with an observation of four numbers.
CASES = {
    "memory": {"algorithm": "r2d2", "burn_in": 2},
    "images": {
        "observation": IMAGE, "random_shift": 2, "value_shifts": 2, "target_shifts": 3,
        "precision": "float32",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("learners", "kind", "double", "tolerance"),
    [
        *((2, case, True, 1e-9) for case in CASES),
        *((2, kind, True, 1e-9) for kind in KINDS),
        (4, "none", True, 1e-9),
        *(
            pytest.param(4, kind, True, 1e-9, marks=pytest.mark.slow)
            for kind in ("categorical", "quantiles")
        ),
        (4, "none", False, 1e-5),
    ],
)
def test_n_learners_with_an_nth_of_the_columns_are_one_with_all(
    monkeypatch, learners, kind, double, tolerance
):
    if double:
        monkeypatch.setattr(q_learning, "QNetwork", DoubleQ)

    def learn(group, rate=0.01):
        algorithm, exchange = _made(
            group, learning_rate=rate, n_steps=3, duelling=True, noisy=True,
            value_rescaling=0.0 if kind == "categorical" else 0.001,
            target_share=0.3, gradients_clipping=0.01, target_period=2,
            **CASES.get(kind) or KINDS[kind],
        )  # fmt: skip
        random = np.random.default_rng(7)
        for variable in (*algorithm.variables.trained, *algorithm._target.trainable_variables):
            variable.assign(random.normal(size=variable.shape) * 0.5)
        batch = _columns(_batch(algorithm), in_threads.share_of(group, B))
        found = [algorithm.update(batch, PROGRESS, exchange)[1].numpy() for _ in range(4)]
        variables = [*algorithm.variables.trained, *algorithm._target.trainable_variables]
        return [v.numpy() for v in variables], found[-1]

    ((one, priorities),) = in_threads.together(1, learn)
    unmoved, _ = learn(SingleLearner(), 0.0)
    assert max(np.abs(a - b).max() for a, b in zip(one, unmoved, strict=True)) > 1e-3
    several = in_threads.together(learners, learn)
    for variables, _ in several:
        for ours, theirs in zip(variables, one, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    joined = np.concatenate([found for _, found in several])
    np.testing.assert_allclose(joined, priorities, rtol=tolerance, atol=tolerance)


def test_actors_hold_no_targets_and_the_same_trained_variables():
    learner, _ = _made()
    actor, _ = _made(role=Role.ACTOR)
    for group in ("trained", "acting"):
        shapes = [[v.shape for v in getattr(a.variables, group)] for a in (learner, actor)]
        assert shapes[0] == shapes[1]
    assert len(actor.variables.carried) == 1, "epsilon"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--replay=queue:0.5,elite:0.5:100"], "a Q-network records no features"),
        (["--n_steps=0"], "--n_steps=0: it must be at least 1"),
        (["--num_atoms=1"], "--num_atoms=1: it must be at least 2"),
        (["--num_quantiles=0"], "--num_quantiles=0: it must be at least 1"),
        (["--num_policy_quantiles=0"], "--num_policy_quantiles=0: it must be at least 1"),
        (
            ["--value_distribution=categorical", "--v_min=3", "--v_max=3"],
            "--v_min=3 is not below --v_max=3: --value_distribution=categorical learns",
        ),
        (
            ["--value_distribution=categorical", "--value_rescaling=0.001"],
            "which --value_rescaling=0.001 would change: give --value_rescaling=0",
        ),
        (
            ["--value_distribution=quantiles", "--huber_delta=inf"],
            "--value_distribution=quantiles needs a finite --huber_delta, not inf",
        ),
        (["--noisy", "--noisy_scale=0"], "--noisy with --noisy_scale=0 has no noise"),
        (
            ["--noisy", "--mlp_init_scale=1.4"],
            "--noisy with --mlp_init_scale=1.4: noisy layers have initial weights of their own: "
            "leave one of them out",
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_anything_starts(capsys, given, said):
    with pytest.raises(SystemExit) as ended:
        command_line.parse(["experiment.py", "--algorithm=dqn", *given], "", Config)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
