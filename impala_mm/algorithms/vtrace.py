"""V-trace: what a policy's values should have been, told from what another policy lived through.

Actors play with parameters that are a few updates old. V-trace (Espeholt et al. 2018, arXiv
1802.01561, section 4.1) corrects for that with truncated importance weights. `impala.impala_loss`
calls it with what the learner's network said about a batch of unrolls; the masked transitions
between two episodes are made neutral there, before they come here.

With rho_t = pi(a_t | o_t) / mu(a_t | o_t), pi the target policy and mu the behaviour policy:

    vs_t  = V_t + sum over k >= t of (prod of discount_i c_i for t <= i < k) delta_k
    delta_k = min(rho_bar, rho_k) (r_k + discount_k V_{k+1} - V_k)
    c_i   = lambda min(c_bar, rho_i)
    pg_advantage_t = min(pg_rho_bar, rho_t) (r_t + discount_t vs_{t+1} - V_t)

V_T and vs_T are the bootstrap value. Index t is the transition from observation t to t+1: r_t and
discount_t are what followed the action at t. Tensors are float32 [T, B, ...], time first.
"""

from typing import NamedTuple

import tensorflow as tf

from impala_mm.algorithms.distributions import Categorical


class VTraceReturns(NamedTuple):
    """Constants to the gradient: nothing flows back through either."""

    vs: tf.Tensor  # float32 [T, B, ...]: regress the baseline towards it
    pg_advantages: tf.Tensor  # float32 [T, B, ...]: weights of the policy gradient


class VTraceFromLogitsReturns(NamedTuple):
    """The targets, which are constants, and the log-probabilities that led to them."""

    vs: tf.Tensor  # float32 [T, B]
    pg_advantages: tf.Tensor  # float32 [T, B]
    log_rhos: tf.Tensor  # float32 [T, B]: log pi(a) - log mu(a)
    behaviour_action_log_probs: tf.Tensor  # float32 [T, B]: log mu(a)
    target_action_log_probs: tf.Tensor  # float32 [T, B]: log pi(a); carries a gradient


def from_logits(
    behaviour_policy_logits: tf.Tensor,
    target_policy_logits: tf.Tensor,
    actions: tf.Tensor,
    discounts: tf.Tensor,
    rewards: tf.Tensor,
    values: tf.Tensor,
    bootstrap_value: tf.Tensor,
    clip_rho_threshold: float | None = 1.0,
    clip_pg_rho_threshold: float | None = 1.0,
    name: str = "vtrace_from_logits",
    lambda_: float = 1.0,
    clip_c_threshold: float | None = 1.0,
) -> VTraceFromLogitsReturns:
    """V-trace of softmax policies: logits [T, B, A], actions int [T, B], bootstrap_value [B]."""
    with tf.name_scope(name):
        behaviour = tf.convert_to_tensor(behaviour_policy_logits, tf.float32)
        target = tf.convert_to_tensor(target_policy_logits, tf.float32)
        actions = tf.convert_to_tensor(actions)
        _check_rank("behaviour_policy_logits", behaviour, 3)
        _check_rank("target_policy_logits", target, 3)
        _check_rank("actions", actions, 2)
        behaviour_log_probs = Categorical(behaviour).log_prob(actions)
        target_log_probs = Categorical(target).log_prob(actions)
        log_rhos = target_log_probs - behaviour_log_probs
        returns = from_importance_weights(
            log_rhos,
            discounts,
            rewards,
            values,
            bootstrap_value,
            clip_rho_threshold=clip_rho_threshold,
            clip_pg_rho_threshold=clip_pg_rho_threshold,
            lambda_=lambda_,
            clip_c_threshold=clip_c_threshold,
        )
        return VTraceFromLogitsReturns(*returns, log_rhos, behaviour_log_probs, target_log_probs)


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
    """V-trace of any policies, from their log-ratios.

    Inputs are [T, B, ...] and bootstrap_value [B, ...], all of the same further axes, or of 1
    there. A threshold of None clips nothing; a ratio beyond float32 is then infinite. With
    thresholds, any log-ratio but NaN gives finite results, infinite ones included.
    """
    with tf.name_scope(name):
        # The results are constants, so nothing in here needs to be remembered for a gradient.
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
        # Where the last axes of the inputs differ, vs has the widest; the bootstrap follows it.
        bootstrap = tf.broadcast_to(bootstrap_value, tf.shape(vs)[1:])
        next_vs = tf.concat([vs[1:], bootstrap[tf.newaxis]], axis=0)
        pg_rhos = clipped_exp(log_rhos, clip_pg_rho_threshold)
        return VTraceReturns(vs, pg_rhos * (rewards + discounts * next_vs - values))


def clipped_exp(logs: tf.Tensor, threshold: float | None) -> tf.Tensor:
    """min(exp(logs), threshold), for logs of any size: clipped before exp() could overflow."""
    if threshold is None:
        return tf.exp(logs)
    return tf.exp(tf.minimum(logs, tf.math.log(tf.convert_to_tensor(threshold, logs.dtype))))


# Up to this many steps the recursion is written out in the graph, step by step. As measured for
# T = 20 and 100 at B = 32 on 2 busy cores, inside a larger graph: written out 0.15 and 0.63 ms,
# tf.while_loop 0.5 and 2.8 ms, tf.scan 0.7 and 4.1 ms. Halving the depth by pairing neighbours
# takes 0.15 and 0.24 ms, but it multiplies factors that without a threshold overflow.
_LONGEST_WRITTEN_OUT = 256


def discounted_suffix_sums(terms: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """[T, B, ...] of s_t = terms_t + factors_t s_{t+1}, from s_T = 0; both of one rank."""
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
    """One rank; equal T and B; further axes that broadcast; a bootstrap value like one value."""
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
