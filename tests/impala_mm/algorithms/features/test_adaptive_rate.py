"""The learning rate that follows the divergence, against NumPy in float64."""

import in_threads
import numpy as np
import tensorflow as tf
from scipy import special, stats

from impala_mm.algorithms.feature import Student
from impala_mm.algorithms.features.adaptive_rate import AdaptiveRate
from impala_mm.algorithms.parts.action_policies import categorical
from impala_mm.algorithms.policy_gradient.settings import PPOSettings
from impala_mm.config.settings import Config
from impala_mm.distributed.gradients import GradientReducer

# How far policies move in an update of three steps, on learners of two columns and of one.
SPREADS = (0.01, 0.3, 0.3, 1.5, 1.5, 0.0, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01)
WANTED = 0.02


def test_the_rate_of_an_update_follows_the_mean_over_the_steps_of_all_learners_in_the_last_one():
    random = np.random.default_rng(0)
    played = random.normal(size=[5, 3, 4])
    moved = [[played + s * random.normal(size=played.shape) for _ in range(3)] for s in SPREADS]
    live = random.random([5, 3]) < 0.7

    def follow(group):
        mine = slice(0, 3) if group.size == 1 else [slice(0, 2), slice(2, 3)][group.rank]
        feature = AdaptiveRate(PPOSettings(learning_rate=0.002, learning_rate_kl=WANTED))
        exchange, rates = GradientReducer(group, Config()), []
        for update in moved:
            exchange.begin(0)
            feature.begin_update(None)
            rates.append(float(feature.learning_rate(tf.constant(7.0))))
            for step in update:
                student = Student(
                    live=tf.constant(live[:, mine]), weight=tf.ones([1]), reduction="mean",
                    actions=(), make=categorical, policy=categorical(tf.constant(step[:, mine])),
                    behaviour=tf.constant(played[:, mine]),
                )  # fmt: skip
                added = feature.loss(student, ())
                assert added.loss == 0
                feature.after(added.measured, exchange)
        return np.array(rates)

    rate, expected = 0.002, []
    for update in moved:
        expected.append(rate)
        mean = np.mean(
            [stats.entropy(*special.softmax([played, step], -1), axis=-1)[live] for step in update]
        )
        rate = rate / 1.5 if mean > 2 * WANTED else rate * 1.5 if mean < WANTED / 2 else rate
        rate = np.clip(rate, 1e-6, 1e-2)
    assert len({float(rate) for rate in expected}) > 4
    assert expected[-1] == 1e-2, "it stays within limits"
    in_threads.assert_several_are_one(follow, sizes=(1, 2), one=np.array(expected), tolerance=1e-6)
