"""V-trace: value targets for one policy from the experience of another policy.

Actors choose actions with parameters that are a few updates old. V-trace (Espeholt et al. 2018,
arXiv 1802.01561, section 4.1) corrects for that with truncated importance weights.
`advantages.VTrace` calls it with the outputs of the learner's network for a batch of unrolls.
`losses.transitions` first masks the transitions between two episodes.

With rho_t = pi(a_t | o_t) / mu(a_t | o_t), pi the target policy and mu the behaviour policy:

    vs_t  = V_t + sum over k >= t of (prod of discount_i c_i for t <= i < k) delta_k
    delta_k = min(rho_bar, rho_k) (r_k + discount_k V_{k+1} - V_k)
    c_i   = lambda min(c_bar, rho_i)
    pg_advantage_t = min(pg_rho_bar, rho_t) (r_t + discount_t vs_{t+1} - V_t)

V_T and vs_T are the bootstrap value. Index t is the transition from observation t to observation
t+1: r_t and discount_t follow from the action chosen at t, so they are those of entry t+1 in
`data/trajectory.py`. Tensors are float32 [T, B, ...], with time first.
"""

from typing import NamedTuple

import tensorflow as tf


class VTraceReturns(NamedTuple):
    """V-trace's targets; no gradient flows back through them."""

    vs: tf.Tensor  # float32 [T, B, ...]: targets of the baseline
    pg_advantages: tf.Tensor  # float32 [T, B, ...]: weights of the policy gradient


def from_importance_weights(
    log_rhos: tf.Tensor,
    discounts: tf.Tensor,
    rewards: tf.Tensor,
    values: tf.Tensor,
    bootstrap_value: tf.Tensor,
    clip_rho_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
    name: str = "vtrace_from_importance_weights",
    lambda_: float = 1.0,
    clip_c_threshold: float | None = 1.0,
) -> VTraceReturns:
    """Return the V-trace targets of any policies from `log_rhos`, the logarithms of their ratios.

    Inputs are [T, B, ...] and `bootstrap_value` is [B, ...]; their further axes have equal sizes or
    size 1. A threshold of None means no clipping, and a ratio too large for float32 is then
    infinite. With thresholds, results are finite for all log-ratios but NaN, even infinite ones.
    """
    with tf.name_scope(name):
        # The results have no gradient, so nothing needs to be stored for one.
        log_rhos, discounts, rewards, values, bootstrap_value = (
            tf.stop_gradient(tf.convert_to_tensor(x, tf.float32))
            for x in (log_rhos, discounts, rewards, values, bootstrap_value)
        )
        _check_shapes(log_rhos, discounts, rewards, values, bootstrap_value)
        next_values = tf.concat([values[1:], bootstrap_value[tf.newaxis]], axis=0)
        rhos = clipped_exp(log_rhos, clip_rho_threshold)
        cs = lambda_ * clipped_exp(log_rhos, clip_c_threshold)
        deltas = rhos * (rewards + discounts * next_values - values)
        vs = values + discounted_suffix_sums(deltas, discounts * cs)
        # Where the last axes of the inputs differ, vs has the largest; the bootstrap is broadcast.
        bootstrap = tf.broadcast_to(bootstrap_value, tf.shape(vs)[1:])
        next_vs = tf.concat([vs[1:], bootstrap[tf.newaxis]], axis=0)
        pg_rhos = clipped_exp(log_rhos, clip_pg_rho_threshold)
        return VTraceReturns(vs, pg_rhos * (rewards + discounts * next_vs - values))


def clipped_exp(logs: tf.Tensor, threshold: float | None) -> tf.Tensor:
    """Return min(exp(logs), threshold); clipped before exp(), so that it cannot overflow."""
    if threshold is None:
        return tf.exp(logs)
    return tf.exp(tf.minimum(logs, tf.math.log(tf.convert_to_tensor(threshold, logs.dtype))))


# Up to this number of steps, the recursion is unrolled in the graph. Measured for T = 20 and 100 at
# B = 32 on 2 busy cores inside a larger graph, unrolling takes 0.15 and 0.63 ms, tf.while_loop 0.5
# and 2.8 ms, tf.scan 0.7 and 4.1 ms. Halving the depth by pairing neighbours takes 0.15 and 0.24
# ms, but it multiplies factors with each other, which overflow if there is no threshold.
_LONGEST_WRITTEN_OUT = 256


def discounted_suffix_sums(terms: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """Return s_t = terms_t + factors_t s_{t+1}, with s_T = 0, as [T, B, ...].

    `terms` and `factors` have the same rank.
    """
    steps = terms.shape[0]
    if steps is not None and steps <= _LONGEST_WRITTEN_OUT:
        return _written_out(terms, factors)
    return _looped(terms, factors)


def _written_out(terms: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    total = tf.zeros_like(terms[0])
    totals = []
    for term, factor in zip(tf.unstack(terms)[::-1], tf.unstack(factors)[::-1], strict=True):
        total = term + factor * total
        totals.append(total)
    return tf.stack(totals[::-1])


def _looped(terms: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    steps = tf.shape(terms)[0]

    def step(t: tf.Tensor, total: tf.Tensor, totals: tf.TensorArray) -> tuple:
        total = terms[t] + factors[t] * total
        return t - 1, total, totals.write(t, total)

    totals = tf.TensorArray(terms.dtype, size=steps, element_shape=terms.shape[1:])
    start = (steps - 1, tf.zeros(tf.shape(terms)[1:], terms.dtype), totals)
    _, _, totals = tf.while_loop(
        lambda t, *_: t >= 0,
        step,
        start,
        shape_invariants=(tf.TensorShape([]), terms.shape[1:], None),
        parallel_iterations=1,
    )
    return totals.stack()


def _check_rank(name: str, tensor: tf.Tensor, rank: int) -> None:
    if tensor.shape.rank != rank:
        raise ValueError(f"{name} must have rank {rank}, and has shape {tensor.shape}")


def _check_shapes(
    log_rhos: tf.Tensor,
    discounts: tf.Tensor,
    rewards: tf.Tensor,
    values: tf.Tensor,
    bootstrap_value: tf.Tensor,
) -> None:
    """Raise ValueError unless the shapes fit together.

    The inputs need the same rank, the same T and B, and further axes that broadcast; the bootstrap
    value needs the shape of one step's values.
    """
    rank = log_rhos.shape.rank
    if rank is None or rank < 2:
        raise ValueError(f"log_rhos must be [T, B, ...], and has shape {log_rhos.shape}")
    shape = log_rhos.shape
    for name, tensor in (("discounts", discounts), ("rewards", rewards), ("values", values)):
        _check_rank(name, tensor, rank)
        if not tensor.shape[:2].is_compatible_with(log_rhos.shape[:2]):
            raise ValueError(
                f"{name} must begin with log_rhos' [T, B], {log_rhos.shape[:2]}, and has shape "
                f"{tensor.shape}"
            )
        shape = tf.broadcast_static_shape(shape, tensor.shape)  # a ValueError where it cannot be
    _check_rank("bootstrap_value", bootstrap_value, rank - 1)
    if not bootstrap_value.shape.is_compatible_with(values.shape[1:]):
        raise ValueError(
            f"bootstrap_value must have the shape of one step's values, {values.shape[1:]}, and "
            f"has shape {bootstrap_value.shape}"
        )
