"""Optimizers: the RMSProp of TensorFlow 1, Adam and RAdam.

An algorithm makes its optimizer with `make`. It calls `initialize`, so that the optimizer's
variables can be broadcast and checkpointed before the first step. It sets `learning_rate`, by
`scheduled_rate`, before each step, and passes the optimizer to `exchange.apply`. All optimizers
run TensorFlow's fused kernels, one per parameter.
"""

from collections.abc import Sequence

import sonnet as snt
import tensorflow as tf

from impala_mm.config.settings import Config
from impala_mm.data import variable_names

_EPSILON = {"adam": 1e-5, "radam": 1e-5, "rmsprop": 0.01}
OPTIMIZERS = tuple(_EPSILON)


def make(
    name: str, learning_rate: float, decay: float, momentum: float, epsilon: float
) -> "RMSProp | Adam":
    """Return the optimizer of this name; `decay` and `momentum` are RMSProp's.

    A negative `epsilon` stands for 1e-5 with Adam and RAdam, and 0.01 with RMSProp.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer {name!r} is none of {', '.join(OPTIMIZERS)}")
    if epsilon < 0:
        epsilon = _EPSILON[name]
    if name == "rmsprop":
        return RMSProp(learning_rate, decay, momentum, epsilon)
    return (RAdam if name == "radam" else Adam)(learning_rate, epsilon=epsilon)


def scheduled_rate(
    config: Config, frames: tf.Tensor, total: tf.Tensor, initial: float | None = None
) -> tf.Tensor:
    """Return the learning rate after `frames` of `total`, by --learning_rate_schedule; float32 [].

    `initial` is the rate at the start of an optimizer that has a rate of its own; its rate at the
    end is the same share of it as --learning_rate_end is of --learning_rate. None: the rates are
    these flags.
    """
    end = config.learning_rate_end
    if initial is None:
        initial = config.learning_rate
    elif config.learning_rate:
        end *= initial / config.learning_rate
    if config.learning_rate_schedule == "constant":
        return tf.constant(initial, tf.float32)
    left = 1.0 - tf.cast(frames, tf.float64) / tf.cast(total, tf.float64)
    left = tf.maximum(left, 0.0)
    if config.learning_rate_schedule == "polynomial":
        left **= config.learning_rate_power
    return tf.cast(end + (initial - end) * left, tf.float32)


def linear_decay(initial: float, frames: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
    """Return `initial` x (1 - `frames` / `total`), at least 0, as float32 []."""
    left = 1.0 - tf.cast(frames, tf.float64) / tf.cast(total, tf.float64)
    return tf.cast(tf.maximum(initial * left, 0.0), tf.float32)


class RMSProp(snt.Optimizer):
    """RMSProp as in TensorFlow 1, which IMPALA's published settings assume.

        ms  <- decay x ms + (1 - decay) x g^2                    from ms = 1
        mom <- momentum x mom + learning_rate x g / sqrt(ms + epsilon)
        parameter <- parameter - mom

    Other implementations start ms at 0, which makes the first steps large, or add epsilon outside
    the root, where the same value of epsilon has another effect.
    """

    def __init__(
        self,
        learning_rate: float,
        decay: float = 0.99,
        momentum: float = 0.0,
        epsilon: float = 0.1,
        name: str | None = None,
    ):
        super().__init__(name)
        self.learning_rate = _scalar(learning_rate)
        self.decay, self.momentum, self.epsilon = decay, momentum, epsilon
        self.ms: list[tf.Variable] = []
        self.mom: list[tf.Variable] = []

    def initialize(self, parameters: Sequence[tf.Variable]) -> None:
        """Create ms and mom for these parameters; later calls do nothing."""
        if not self.ms:
            self.ms = _slots("ms", parameters, 1.0)
            self.mom = _slots("mom", parameters, 0.0)

    def apply(self, updates: Sequence[tf.Tensor | None], parameters: Sequence[tf.Variable]) -> None:
        """Make one step with the gradients `updates`; None leaves its parameter unchanged."""
        self.initialize(parameters)
        for update, parameter, ms, mom in zip(updates, parameters, self.ms, self.mom, strict=True):
            if update is None:
                continue
            dtype = parameter.dtype
            tf.raw_ops.ResourceApplyRMSProp(
                var=parameter.handle,
                ms=ms.handle,
                mom=mom.handle,
                lr=tf.cast(self.learning_rate, dtype),
                rho=tf.cast(self.decay, dtype),
                momentum=tf.cast(self.momentum, dtype),
                epsilon=tf.cast(self.epsilon, dtype),
                grad=tf.convert_to_tensor(update, dtype),
            )


class Adam(snt.Optimizer):
    """Adam (Kingma and Ba 2014, arXiv 1412.6980, algorithm 1).

        m <- beta1 x m + (1 - beta1) x g                         from m = 0
        v <- beta2 x v + (1 - beta2) x g^2                       from v = 0
        parameter <- parameter - learning_rate x m' / (sqrt(v') + epsilon)

    with m' = m / (1 - beta1^t) and v' = v / (1 - beta2^t) at step t = 1, 2, ...
    """

    def __init__(
        self,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        name: str | None = None,
    ):
        super().__init__(name)
        self.learning_rate = _scalar(learning_rate)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.step = tf.Variable(0, trainable=False, dtype=tf.int64, name="step")
        self.m: list[tf.Variable] = []
        self.v: list[tf.Variable] = []

    def initialize(self, parameters: Sequence[tf.Variable]) -> None:
        """Create m and v for these parameters; later calls do nothing."""
        if not self.m:
            self.m = _slots("m", parameters, 0.0)
            self.v = _slots("v", parameters, 0.0)

    def apply(self, updates: Sequence[tf.Tensor | None], parameters: Sequence[tf.Variable]) -> None:
        """Make one step with the gradients `updates`; None leaves its parameter unchanged."""
        self.initialize(parameters)
        step = tf.cast(self.step.assign_add(1), tf.float32)
        beta1_power, beta2_power = tf.pow(self.beta1, step), tf.pow(self.beta2, step)
        rate, epsilon = self._scales(step)
        # The kernel adds its epsilon to sqrt(v), the algorithm to sqrt(v'): scaled, they are equal.
        epsilon *= tf.sqrt(1.0 - beta2_power)
        for update, parameter, m, v in zip(updates, parameters, self.m, self.v, strict=True):
            if update is None:
                continue
            dtype = parameter.dtype
            tf.raw_ops.ResourceApplyAdam(
                var=parameter.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=tf.cast(beta1_power, dtype),
                beta2_power=tf.cast(beta2_power, dtype),
                lr=tf.cast(rate, dtype),
                beta1=tf.cast(self.beta1, dtype),
                beta2=tf.cast(self.beta2, dtype),
                epsilon=tf.cast(epsilon, dtype),
                grad=tf.convert_to_tensor(update, dtype),
            )

    def _scales(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the learning rate and epsilon of step t, float32 []."""
        return self.learning_rate.read_value(), tf.constant(self.epsilon)


class RAdam(Adam):
    """Adam whose steps are small while v is the mean of few squares (arXiv 1908.03265).

    With r = 2 / (1 - beta2) - 1 and r_t = r - 2 t beta2^t / (1 - beta2^t), the learning rate is
    multiplied by sqrt((r_t - 4) (r_t - 2) r / ((r - 4) (r - 2) r_t)). While r_t is at most 5, which
    are the first 5 steps, m' is not divided by anything.
    """

    _LARGE = 1e12  # beside it, sqrt(v') is nothing in float32

    def _scales(self, step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        step = tf.cast(step, tf.float64)  # r - ... loses most of its digits
        power = tf.pow(tf.constant(self.beta2, tf.float64), step)
        last = 2.0 / (1.0 - self.beta2) - 1.0
        now = last - 2.0 * step * power / (1.0 - power)
        known = now > 5.0
        now = tf.maximum(now, 5.0)
        shares = (now - 4.0) * (now - 2.0) * last / ((last - 4.0) * (last - 2.0) * now)
        # As in the published programs: rate x large x m' / (sqrt(v') + large) is rate x m'.
        factor = tf.where(known, tf.cast(tf.sqrt(shares), tf.float32), self._LARGE)
        return self.learning_rate * factor, tf.where(known, self.epsilon, self._LARGE)


def _scalar(learning_rate: float) -> tf.Variable:
    return tf.Variable(learning_rate, trainable=False, dtype=tf.float32, name="learning_rate")


def _slots(name: str, parameters: Sequence[tf.Variable], value: float) -> list[tf.Variable]:
    """Create a variable for each parameter, of its shape and dtype, outside any traced graph."""
    with tf.init_scope():
        slots = [
            tf.Variable(tf.fill(p.shape, tf.cast(value, p.dtype)), trainable=False, name=name)
            for p in parameters
        ]
    variable_names.mark_slots(slots, parameters)
    return slots
