"""Random network distillation against NumPy in float64, and in PPO."""

import in_threads
import numpy as np
import pytest
import tensorflow as tf

from impala_mm.algorithms.feature import Host, Judged, Reading, Student
from impala_mm.algorithms.features.rnd import Novelty, RandomDistillation
from impala_mm.algorithms.interface import Context
from impala_mm.algorithms.policy_gradient.settings import PPOSettings
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch, Entry
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.records import saved_variables
from tests.helpers import in_process

T, B, SIZE, FEATURES = 7, 4, 3, 5
GAMMA, LAMBDA, SHARE = 0.9, 0.8, 0.25
SETTINGS = PPOSettings(
    batch_size=B, unroll_length=T, rnd_weight=0.5, rnd_task_weight=3.0, rnd_discounting=GAMMA,
    gae_lambda=LAMBDA, rnd_share=SHARE, baseline_cost=0.7, seed=3,
)  # fmt: skip


def _feature():
    feature = RandomDistillation(SETTINGS, tf.TensorSpec([SIZE]))
    feature.attach(Host(None, remembers=False, num_features=FEATURES))
    in_process.fill(feature.trained, spread=0.2)
    in_process.fill(feature._target.variables, spread=0.3)
    return feature


def _batch(seed):
    """Return a batch with resets after a termination and a truncation, and a column of padding."""
    random = np.random.default_rng(seed)
    entries = Entry(
        *[np.zeros([T + 1, B], kind) for kind in ("i4", "f4", bool, bool)],
        observation=random.normal(5, [0.1, 1, 30], [T + 1, B, SIZE]).astype("f4"),
        first=np.zeros([T + 1, B], bool), extras=(),
    )  # fmt: skip
    entries.terminated[2, 0] = entries.first[3, 0] = True
    entries.truncated[T - 1, 1] = entries.first[T, 1] = entries.first[0, 2] = True
    entries.observation[2, 0, 1] = 1e3  # beyond what is read
    weight = np.array([1, 1, 1, 0], "f4")
    return Batch(entries, (), np.arange(B), weight, np.arange(B), weight > 0)


class Reference:
    """What RND computes of each batch, with one episode after the other as one long game."""

    def __init__(self, feature):
        self._feature, self._seen, self._returns, self._reached = feature, [], [], 0.0

    def novelty(self, observation):
        """Return the squared errors of the two networks for observations that are normalised."""
        parts = [tf.constant(observation.astype("f4"))]
        found, wanted = self._feature._predictor(parts), self._feature._target(parts)
        return np.mean((found.numpy().astype(float) - wanted) ** 2, -1)

    def judge(self, batch, own, values):
        """Return the rewards, the advantages and the value targets, [T, B]."""
        entries, played = batch.unrolls, batch.weight > 0
        live = ~entries.first[1:] & played
        self._seen.append(entries.observation[1:, played].reshape(-1, SIZE).astype(float))
        seen = np.concatenate(self._seen)
        read = (entries.observation[1:] - seen.mean(0)) / seen.std(0)
        errors = self.novelty(np.clip(read, -5, 5).reshape(-1, SIZE)).reshape(T, B)
        lasts = []
        for b in np.flatnonzero(played):
            total = self._reached
            for t in np.flatnonzero(live[:, b]):
                total = GAMMA * total + errors[t, b]
                self._returns.append(total)
            lasts.append(total)
        self._reached = np.mean(lasts)
        rewards = np.where(live, errors, 0) / np.std(self._returns)
        advantages, targets = np.zeros([T, B]), np.zeros([T, B])
        for b in range(B):
            following = 0.0
            for t in np.flatnonzero(live[:, b])[::-1]:
                after = t + 2 if t + 1 < T and not live[t + 1, b] else t + 1
                error = rewards[t, b] + GAMMA * values[after, b] - values[t, b]
                following = error + GAMMA * LAMBDA * following
                advantages[t, b], targets[t, b] = following, following + values[t, b]
        return rewards, 3.0 * own + 0.5 * advantages, targets, live


def test_rewards_advantages_and_targets_are_those_of_the_definition_on_one_learner_and_two():
    random = np.random.default_rng(0)
    reference, due = Reference(_feature()), []
    batches = [_batch(seed) for seed in range(3)]
    owns = random.normal(size=[3, T, B]).astype("f4")
    torsos = random.normal(size=[3, T + 1, B, FEATURES]).astype("f4")
    (bias, weights) = sorted(reference._feature._head.variables, key=lambda v: v.shape.rank)
    for batch, own, torso in zip(batches, owns, torsos, strict=True):
        batch.unrolls.observation[:, ~batch.fresh] = np.nan  # padding, which must reach nothing
        live = ~batch.unrolls.first[1:] & (batch.weight > 0)
        own[~live] = 0
        values = torso.astype(float) @ weights.numpy()[:, 0] + bias.numpy()
        due.append(reference.judge(batch, own, values))

    def learn(group):
        mine = in_threads.share_of(group, B)
        feature, exchange, found = _feature(), GradientReducer(group, Config()), []
        for batch, own, torso in zip(batches, owns, torsos, strict=True):
            exchange.begin(0)
            part = in_process.tensors(batch, np.arange(B)[mine])
            same, prepared = feature.prepare(part, Reading(exchange, None, None))
            assert same is part
            assert feature.bonus(part, prepared) == 0
            live = ~part.unrolls.first[1:] & (part.weight > 0)
            cut = tf.nest.map_structure(lambda x: x[:-1], prepared)
            judged = Judged(*map(tf.constant, (own[:, mine], live, torso[:, mine])))
            total, prepared = feature.advantages(judged, cut)
            found.append((prepared.reward, total, prepared.target, live))
        return found

    for size in (1, 2):
        learners = in_threads.together(size, learn)
        for each, expected in zip(zip(*learners, strict=True), due, strict=True):
            rewards, totals, targets, live = (np.concatenate(x, 1) for x in zip(*each, strict=True))
            np.testing.assert_array_equal(live, expected[-1])
            np.testing.assert_allclose(rewards, expected[0], rtol=2e-4)
            np.testing.assert_allclose(totals, expected[1], rtol=2e-4, atol=2e-4)
            np.testing.assert_allclose(targets[live], expected[2][live], rtol=2e-4, atol=2e-4)
    assert 0.1 < due[0][0][due[0][-1]].mean() < 10


def _student(torso, live=None, columns=100):
    live = tf.ones([1, columns], tf.bool) if live is None else live
    return Student(
        live=live, weight=tf.ones([columns]), reduction="mean", actions=(), make=None, policy=None,
        torso=torso,
    )  # fmt: skip


def test_a_share_of_the_steps_trains_the_predictor_others_each_time_and_all_the_value_head():
    feature, columns = _feature(), 100
    random = np.random.default_rng(2)
    feature._seen.variance.assign(np.ones(SIZE))
    torso = tf.constant(random.normal(size=[1, columns, FEATURES]).astype("f4"))
    observation = random.normal(size=[1, columns, SIZE]).astype("f4")
    target = random.normal(size=[1, columns]).astype("f4")
    prepared = Novelty(tf.constant(observation), tf.zeros([1, columns]), tf.constant(target))
    errors = Reference(feature).novelty(observation[0])
    values = feature._values(torso).numpy()
    baseline = 0.5 * 0.7 * np.mean((values.astype(float) - target) ** 2)
    drawn = []
    for _ in range(20):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(torso)
            added = feature.loss(_student(torso), prepared)
        drawn.append((float(added.loss) - baseline) * SHARE * columns)
        metrics = feature.after(added.measured, None)
    assert np.mean(drawn) == pytest.approx(SHARE * errors.sum(), rel=0.1), "in its right weight"
    assert len({round(x, 3) for x in drawn}) > 15
    assert float(metrics["novelty"]) == pytest.approx(errors.mean(), rel=1e-4)
    trained = tape.gradient(added.loss, [*feature.trained, torso])
    assert all(np.abs(gradient).max() > 0 for gradient in trained)
    assert tape.gradient(added.loss, list(feature._target.trainable_variables)) == [None] * 6
    assert not set(map(id, feature.carried)) & set(map(id, feature.trained))


@pytest.mark.parametrize(
    ("level", "settings"),
    [
        (
            "tests.helpers.acting:Signals-v0",
            {
                "agent_name": "MLPLSTMAgent",
                "recompute_advantages": True,
                "learning_rate": 0.01,
            },
        ),
        pytest.param("PongNoFrameskip-v4", {"learning_rate": 0.0003}, marks=pytest.mark.slow),
    ],
)
def test_ppo_learns_the_target_of_any_observation_and_the_target_stays(level, settings):
    algorithm, exchange = in_process.made(
        "ppo", level, batch_size=4, unroll_length=4, minibatches=1, epochs=2, rnd_weight=1.0,
        rnd_share=1.0, **settings,
    )  # fmt: skip
    (feature,) = [f for f in algorithm.features if isinstance(f, RandomDistillation)]
    before = in_threads.arrays(feature._target.variables)
    batch = in_process.tensors(in_process.random_batch(algorithm, 5, 4))
    context = Context(tf.constant(0.0), tf.constant(1.0), tf.constant(0.0))
    rows = [algorithm.update(batch, context, exchange)[0] for _ in range(3)]
    assert float(rows[-1]["novelty"]) < 0.7 * float(rows[0]["novelty"])
    assert float(rows[0]["intrinsic_reward"]) > 0
    in_threads.assert_close(in_threads.arrays(feature._target.variables), before, 0, 0)
    sent = set(map(id, algorithm.variables.acting))
    assert not sent & set(map(id, [*feature.trained, *feature.carried])), "not sent to actors"
    begins = set(map(id, saved_variables.named_weights(algorithm.variables).values()))
    read = [*feature._target.variables, *feature._seen.variables, *feature._returns.variables]
    assert begins.issuperset(map(id, read)), "another run's predictor predicts the same"


def test_texts_are_refused(capsys):
    with pytest.raises(SystemExit):
        in_process.made("ppo", "tests.helpers.acting:Tales-v0", rnd_weight=1.0)
    assert "--rnd_weight=1: the random network reads numbers and images" in capsys.readouterr().err
