"""Random network distillation (RND, arXiv 1810.12894): rewards for observations that are new.

    target       a fixed random network of the next observation
    predictor    learns to predict the target's output; its error is the intrinsic reward of a step,
                 in units of the running deviation of discounted intrinsic returns
    value head   the returns of intrinsic rewards, which go on over the ends of episodes
    advantages   --rnd_task_weight x the algorithm's own + --rnd_weight x the intrinsic ones

Both networks read the newest observation alone, normalised by its running mean and deviation and
cut to 5 deviations. The first batch comes from random actions in the paper, to begin these
statistics; here every batch is counted before it is read, the first one, too.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sonnet as snt
import tensorflow as tf

from impala_mm.algorithms.feature import Added, Feature, Host, Judged, Reading, Student
from impala_mm.algorithms.parts import losses, vtrace
from impala_mm.algorithms.parts.normalisers import Moments, sums_so_far
from impala_mm.algorithms.policy_gradient.settings import PolicyGradientSettings
from impala_mm.algorithms.types import Role
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import Batch
from impala_mm.distributed.gradients import GradientReducer
from impala_mm.environments.types import EnvironmentSpec

LARGEST = 5.0  # deviations to which an observation is cut
_COUNTED = 2**22  # numbers of a batch from which its observations' moments are taken, at most
_LEAST_IMAGE = 36  # pixels: the convolutions need as many; smaller images are read as numbers
_START = snt.initializers.Orthogonal(2**0.5)


def make(config: Config, environment: EnvironmentSpec, role: Role) -> list[Feature]:
    """Return RND if the flags ask for it, in every role: its networks are trained variables."""
    if not isinstance(config, PolicyGradientSettings) or not config.rnd_weight:
        return []
    return [RandomDistillation(config, environment.observation)]


class Novelty(NamedTuple):
    """The part of each step that the loss takes, [T, N, ...]."""

    observation: Any  # nest of [T, N, ...]: the one that followed, as the actor sent it
    reward: tf.Tensor  # [T, N]: intrinsic
    target: tf.Tensor  # [T, N]: of the value head


class RandomDistillation(Feature):
    """The two networks, the value head, and the statistics by which rewards are normalised."""

    def __init__(self, config: PolicyGradientSettings, observation: Any):
        self._config, leaves = config, tf.nest.flatten(observation)
        if any(hasattr(leaf, "choices") for leaf in leaves):
            raise UserMistake(
                f"--rnd_weight={config.rnd_weight:g}: the random network reads numbers and images, "
                f"and observations here have texts or choices among many: leave it out, or turn "
                f"them into numbers in a wrapper (--env_wrappers)"
            )
        self._images = [
            leaf.shape.rank == 3 and min(leaf.shape[:2]) >= _LEAST_IMAGE for leaf in leaves
        ]
        self._shapes = [leaf.shape for leaf in leaves]
        self._sizes = [shape.num_elements() for shape in self._shapes]
        size = sum(self._sizes)
        columns = config.unroll_length * config.batch_size
        self._every = math.ceil(columns * size / _COUNTED)  # time steps from one counted to another
        self._seen, self._returns = Moments(size, "seen"), Moments(1, "intrinsic_return")
        # The mean of the discounted returns with which the last batch's unrolls ended.
        self._reached = tf.Variable(0.0, trainable=False, name="reached")
        self._drawn = tf.Variable(0, trainable=False, dtype=tf.int64, name="drawn")
        self._target = _Network(self._images, extra=0)
        self._predictor = _Network(self._images, extra=2)
        parts = [tf.zeros([1, *shape]) for shape in self._shapes]
        for network in (self._target, self._predictor):  # creates their variables
            network(parts)
        # What the predictor has learnt means nothing without these.
        moments = [*self._seen.variables, *self._returns.variables]
        self.weights = [*self._target.trainable_variables, *moments]
        self.carried = [*self.weights, self._reached, self._drawn]

    def attach(self, host: Host) -> None:
        """Make the value head for what the policy's head reads."""
        self._head = snt.Linear(1, name="intrinsic_baseline")
        self._head(tf.zeros([1, host.num_features]))
        self.trained = [*self._predictor.trainable_variables, *self._head.trainable_variables]

    def prepare(self, batch: Batch, reading: Reading) -> tuple[Batch, Novelty]:
        """Return the batch, and the intrinsic reward of each step; update the statistics first."""
        entries, exchange = batch.unrolls, reading.exchange
        live = ~entries.first[1:] & (batch.weight > 0)
        new = tf.nest.map_structure(lambda x: x[1 :: self._every], entries.observation)
        played = tf.broadcast_to(batch.fresh & (batch.weight > 0), tf.shape(live))
        counted = tf.reshape(played[:: self._every], [-1])
        self._seen.update(self._rows(new), counted, exchange)
        errors = tf.stop_gradient(self._errors(entries.observation))[1:]
        reward = self._in_deviations(losses.mask(live, errors), live, exchange)
        reward = tf.concat([reward, tf.zeros_like(reward[:1])], 0)  # [T+1, B]
        following = tf.nest.map_structure(lambda x: tf.roll(x, -1, axis=0), entries.observation)
        return batch, Novelty(following, reward, tf.zeros_like(reward))

    def advantages(self, judged: Judged, prepared: Novelty) -> tuple[tf.Tensor, Novelty]:
        """Return the weighted sum of both advantages, and the value head's targets.

        A reset is no step: the observation before it has the value of the one after it.
        """
        config, live = self._config, judged.live
        values = tf.stop_gradient(self._values(judged.torso))
        values = tf.concat([tf.where(live, values[:-1], values[1:]), values[-1:]], 0)
        errors = prepared.reward + config.rnd_discounting * values[1:] - values[:-1]
        factors = tf.where(live, config.rnd_discounting * config.gae_lambda, 1.0)
        own = vtrace.discounted_suffix_sums(losses.mask(live, errors), factors)
        total = config.rnd_task_weight * judged.advantages
        total += config.rnd_weight * tf.cast(losses.mask(live, own), total.dtype)
        return total, prepared._replace(target=own + values[:-1])

    def loss(self, student: Student, prepared: Novelty) -> Added:
        """Return the predictor's loss on a share of the steps, and that of the value head."""
        config = self._config
        errors = self._errors(prepared.observation)
        seed = tf.stack([tf.constant(config.seed, tf.int64), self._drawn.read_value()])
        drawn = tf.random.stateless_uniform(tf.shape(errors), seed) < config.rnd_share
        squares = tf.square(self._values(student.torso) - prepared.target)
        total = student.reduce(errors, drawn) / config.rnd_share
        total += 0.5 * config.baseline_cost * student.reduce(squares)
        return Added(
            total,
            {
                "novelty": student.sums(errors),
                "intrinsic_reward": student.sums(prepared.reward),
                "intrinsic_value_error": student.sums(squares),
            },
        )

    def after(
        self, measured: Mapping[str, tf.Tensor], exchange: GradientReducer
    ) -> dict[str, tf.Tensor]:
        """Let the next minibatch draw others of its steps; return the means."""
        self._drawn.assign_add(1)
        return super().after(measured, exchange)

    def _values(self, torso: tf.Tensor) -> tf.Tensor:
        """Return the values [...] of features [..., F]."""
        return tf.squeeze(snt.BatchApply(self._head)(tf.cast(torso, tf.float32)), -1)

    def _rows(self, observation: Any) -> tf.Tensor:
        """Return observations [T, N, ...] as vectors, float32 [T x N, D]."""
        leaves = zip(tf.nest.flatten(observation), self._sizes, strict=True)
        return tf.concat([tf.reshape(tf.cast(x, tf.float32), [-1, size]) for x, size in leaves], 1)

    def _errors(self, observation: Any) -> tf.Tensor:
        """Return the mean squared errors [T, N] of the predictions for observations [T, N, ...]."""
        rows = self._rows(observation)
        rows = (rows - tf.cast(self._seen.mean, tf.float32)) * self._seen.scale()
        rows = tf.clip_by_value(rows, -LARGEST, LARGEST)
        split = zip(tf.split(rows, self._sizes, axis=1), self._shapes, strict=True)
        parts = [tf.reshape(part, [-1, *shape]) for part, shape in split]
        wanted = tf.stop_gradient(self._target(parts))
        errors = tf.reduce_mean(tf.square(self._predictor(parts) - wanted), -1)
        return tf.reshape(errors, tf.shape(tf.nest.flatten(observation)[0])[:2])

    def _in_deviations(
        self, errors: tf.Tensor, live: tf.Tensor, exchange: GradientReducer
    ) -> tf.Tensor:
        """Return the errors [T, B] in running deviations of their discounted sums so far.

        The sums go on over unrolls. Which one precedes a column is not known here, so each begins
        with the mean of those with which the last batch ended.
        """
        factors = tf.where(live, self._config.rnd_discounting, 1.0)
        begin = tf.fill(tf.shape(errors)[1:], self._reached.read_value())
        sums = sums_so_far(errors, factors, begin)
        columns = tf.reduce_any(live, 0)
        of_last = losses.mask(columns, sums[-1]), tf.cast(columns, tf.float32)
        total, count = tf.unstack(
            exchange.mean(tf.stack([tf.reduce_sum(x) for x in of_last]), name="intrinsic_returns")
        )
        self._reached.assign(tf.where(count > 0, total / count, self._reached))
        self._returns.update(tf.reshape(sums, [-1, 1]), tf.reshape(live, [-1]), exchange)
        return errors * self._returns.scale()[0]


class _Network(snt.Module):
    """The random network, or with `extra` layers the one that predicts its output.

    Images are read by the paper's convolutions. Vectors, which it has none of, by two layers.
    """

    def __init__(self, images: list[bool], extra: int):
        super().__init__(name="predictor" if extra else "target")
        size = 512 if any(images) else 128

        def linear() -> snt.Linear:
            return snt.Linear(size, w_init=_START)

        def convolutions() -> Callable[[tf.Tensor], tf.Tensor]:
            layers: list[Any] = []
            for channels, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
                conv = snt.Conv2D(channels, kernel, stride, padding="VALID", w_init=_START)
                layers += [conv, tf.nn.leaky_relu]
            return snt.Sequential(layers)

        self._read = [convolutions() if image else tf.identity for image in images]
        activations = [tf.nn.leaky_relu] * (0 if any(images) else 2) + [tf.nn.relu] * extra
        hidden = [layer for activation in activations for layer in (linear(), activation)]
        self._join = snt.Sequential([*hidden, linear()])

    def __call__(self, parts: list[tf.Tensor]) -> tf.Tensor:
        """Return the outputs [N, D] for the parts of observations [N, ...]."""
        read = [snt.flatten(f(part)) for f, part in zip(self._read, parts, strict=True)]
        return self._join(tf.concat(read, -1))
