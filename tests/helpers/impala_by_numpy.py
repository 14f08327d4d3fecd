"""A reference of IMPALA in float64, and its loss from a network's outputs without features."""

from typing import NamedTuple

import numpy as np

from impala_mm.algorithms.impala import algorithm as impala
from impala_mm.algorithms.parts import actor_critic
from impala_mm.algorithms.parts.advantages import VTrace
from tests.impala_mm.algorithms.parts.test_vtrace import paper


class Learnt(NamedTuple):
    """The transitions of a batch, [T, B]."""

    live: np.ndarray  # bool
    log_pi: np.ndarray  # of the action: by the policy, and by the one that played
    log_mu: np.ndarray
    values: np.ndarray
    targets: np.ndarray
    advantages: np.ndarray  # weighed by importance


def log_probs(logits, actions):
    """Return the log-probabilities of actions [T, B] by logits [T, B, A]."""
    logits = np.asarray(logits, np.float64)
    logits = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.take_along_axis(logits, np.asarray(actions)[..., None], -1)[..., 0]


def learnt(algorithm, batch, judged=None):
    """Return what the algorithm learns; V-trace judges log-probabilities `judged` or its policy."""
    config, entries = algorithm._config, algorithm._normaliser.read(batch.unrolls)
    parameters, values, _ = algorithm._unroll(entries, batch.start)
    values = np.asarray(values, np.float64)
    live = ~entries.first[1:].numpy() & (batch.weight.numpy() > 0)
    log_pi = log_probs(parameters[:-1], entries.action[1:])
    log_mu = log_probs(actor_critic.policy_parameters(entries.extras)[1:], entries.action[1:])
    log_rhos = np.where(live, (log_pi if judged is None else judged) - log_mu, 0)
    targets, advantages = paper(
        log_rhos,
        np.where(live & ~entries.terminated[1:].numpy(), config.discounting, 0),
        np.where(live, entries.reward[1:], values[:-1]),
        values[:-1],
        values[-1],
        config.clip_rho_threshold,
        config.clip_pg_rho_threshold,
        config.clip_c_threshold,
        config.vtrace_lambda,
    )
    return Learnt(live, log_pi, log_mu, values[:-1], targets, advantages)


def impala_loss(
    *,
    weight,
    baseline_cost,
    entropy_cost,
    reduction="sum",
    scale_advantages=False,
    surrogate=None,
    lambda_=1.0,
    clip_rho_threshold=1.0,
    clip_c_threshold=1.0,
    **of_batch,
):
    """Return the Losses for the arguments of `vtrace_step`, as `Impala.update` computes them."""
    estimate = VTrace(lambda_, clip_rho_threshold, clip_c_threshold)
    step = impala.vtrace_step(weight=weight, estimate=estimate, **of_batch)
    return impala.impala_loss(
        step,
        step.policy.entropy(),
        weight=weight,
        baseline_cost=baseline_cost,
        entropy_cost=entropy_cost,
        reduction=reduction,
        scale_advantages=scale_advantages,
        surrogate=surrogate,
    )
