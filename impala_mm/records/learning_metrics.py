"""Descriptions of the metrics of learning: losses, regularisers, policies, optimisation.

`metric_descriptions` puts them between those of a run's progress and of its processes.
"""

from typing import NamedTuple


class MetricDescription(NamedTuple):
    """One metric."""

    unit: str
    meaning: str
    good: str = ""  # which values are desirable, or what to do about others
    # "learner", "level": its key also occurs with "/learnerN" or "/LEVEL". "kind": it only occurs
    # with "/KIND", a kind of replay.
    parts: str = ""


class MetricGroup(NamedTuple):
    """Metrics that belong together, under a heading of the page."""

    heading: str
    metrics: dict[str, MetricDescription]  # by key


_M = MetricDescription
_LOSS = "per step"
_BATCH_LOSS = "per batch"
_NATS = "nats per step"

LEARNING_GROUPS = (
    MetricGroup(
        "Losses",
        {
            "loss_per_step/total": _M(
                _LOSS,
                "The loss that is minimised, per step of the batch: policy loss + "
                "`--baseline_cost` x baseline loss (divided by the square of the unit that "
                "`--value_normalization` names) + `--entropy_cost` x entropy loss + other "
                "regularisers. Of DQN and R2D2 it is the loss of the values and what imitation "
                "adds, of SAC that of both Q-networks. The progress line's `loss`.",
                "no target; a jump to many times its usual size is a warning",
            ),
            "loss_per_step/policy": _M(
                _LOSS,
                "Policy-gradient loss, of IMPALA by V-trace. Of SAC: temperature x (-entropy) - "
                "value of the policy's actions.",
                "near 0, of either sign; of SAC falling as returns rise",
            ),
            "loss_per_step/baseline": _M(
                _LOSS,
                "Half the squared error of the value estimates, in units of (clipped) reward.",
                "falling, though it grows with the returns",
            ),
            "loss_per_step/entropy": _M(
                "nats, negative",
                "Negative entropy of the policy: minus the logarithm of the number of actions for "
                "a uniform policy, 0 for a deterministic one.",
                "rising slowly; at 0 the agent has stopped exploring: raise `--entropy_cost`",
            ),
            "off_policyness": _M(
                "nats per action",
                "How much less likely the current policy makes the actions of the batch than the "
                "behaviour policy that chose them, as a mean difference of log-probabilities.",
                "below about 0.1; else lower `--learning_rate` or the policy lag",
            ),
            "loss/total": _M(
                _BATCH_LOSS,
                "The loss as it is minimised: the sum over the steps of a learner's batch, or "
                "with `--loss_reduction=mean` the mean, which equals `loss_per_step/total`. "
                "Likewise the parts below.",
            ),
            "loss/policy": _M(_BATCH_LOSS, "See `loss_per_step/policy`."),
            "loss/baseline": _M(_BATCH_LOSS, "See `loss_per_step/baseline`."),
            "loss/entropy": _M(_BATCH_LOSS, "See `loss_per_step/entropy`."),
            "loss/shift": _M(
                _BATCH_LOSS, "See `off_policyness`; a measure only, it is in no total."
            ),
        },
    ),
    MetricGroup(
        "Regularisers",
        {
            "kl_pi_mu": _M(
                _NATS,
                "Mean divergence from the policy in training to the one that played, KL(pi || mu). "
                "Only with `--kl_pi_mu_cost` or `--target_kl_pi_mu`.",
                "at its target, or below",
            ),
            "kl_mu_pi": _M(
                _NATS,
                "Mean divergence from the policy that played to the one in training, KL(mu || pi). "
                "Only with `--kl_mu_pi_cost` or `--target_kl_mu_pi`.",
                "at its target, or below",
            ),
            "kl_ref_pi": _M(
                _NATS,
                "Mean divergence from the reference policy to the one in training. Only with "
                "`--kl_ref_pi_cost` or `--target_kl_ref_pi`.",
                "at its target, or below",
            ),
            "entropy_cost": _M(
                "per nat",
                "Cost of the entropy, a Lagrange multiplier. Only with `--target_entropy`.",
                "steady; at 1e-6 the entropy stays above its target without help, at 1e6 it does "
                "not come up to it",
            ),
            "kl_pi_mu_cost": _M(
                "per nat",
                "Cost of `kl_pi_mu`, a Lagrange multiplier. Only with `--target_kl_pi_mu`.",
                "steady; at 1e-6 the divergence stays below its target without help",
            ),
            "kl_mu_pi_cost": _M("per nat", "The same for `kl_mu_pi`."),
            "kl_ref_pi_cost": _M("per nat", "The same for `kl_ref_pi`."),
        },
    ),
    MetricGroup(
        "Teachers",
        {
            "kl_teacher_pi": _M(
                _NATS,
                "Mean divergence from the teachers' policies to the one in training, while "
                "`teacher_cost` is above 0. Only with `--teacher`, and `--distill=policy`.",
                "falling; it may rise once `teacher_cost` is small",
            ),
            "loss/teacher": _M(
                "per step",
                "Mean of what else `--distill` names, while `teacher_cost` is above 0.",
                "falling",
            ),
            "loss/cql": _M(
                "nats per step",
                "Mean of logsumexp(Q / t) - Q(a) / t for the actions a that were played, by "
                "`--cql_temperature`. Only with `--cql_cost`.",
                "falling; 0 if the network would choose nothing else",
            ),
            "loss/margin": _M(
                "the network's unit of values",
                "How far values of other actions, plus `--teacher_margin`, are above that of the "
                "action that was played, in recorded games. Only with `--margin_cost`.",
                "falling to 0",
            ),
            "cloning_loss": _M(
                _NATS,
                "Mean of -log pi(a) for the actions in recorded games, while the student learns "
                "from these without `--teacher`.",
                "falling",
            ),
            "teacher_cost": _M(
                "per nat",
                "Weight of `kl_teacher_pi`, or of `loss/teacher`, in the loss, which falls from "
                "`--teacher_cost` to 0.",
            ),
            "guidance": _M(
                "share",
                "The share of `--guide_steps` and `--guide_share` that remains, by which the "
                "teacher acts in place of the student. Returns are those of both until it is 0. "
                "Only with these flags.",
                "falling from 1 to 0",
            ),
            "student_score": _M(
                "share",
                "The mean return of the last 100 games, on a scale from 0 for a random policy to 1 "
                "for the teacher; at 1 it no longer needs the teacher. Only with "
                "`--teacher_method=qdagger` and `dqfd`.",
                "rising",
            ),
            "teacher_return": _M(
                "reward",
                "Mean return of the teacher, in the run's first row. Only with "
                "`--teacher_method=qdagger` and `dqfd` or `--mode=reincarnate`, unless both "
                "returns are given.",
            ),
            "random_return": _M("reward", "The same for random actions."),
        },
    ),
    MetricGroup(
        "Policies",
        {
            "entropy": _M(
                "nats",
                "Entropy of the policy, on average over the steps of the batch, of PPO and its "
                "kin, and over those of the minibatches, of SAC. For actions that are numbers it "
                "is that of a density, which may be negative.",
                "falling slowly; of SAC near its target, `--target_entropy` for each number or "
                "`--target_entropy_share` of the largest one",
            ),
            "value_mean": _M(
                "reward", "PopArt (`--value_normalization=popart`): the mean of the value targets."
            ),
            "value_deviation": _M(
                "reward",
                "PopArt: the standard deviation of the value targets, the unit in which the "
                "baseline learns and in which advantages count.",
                "steady; it grows with the returns",
            ),
            "approx_kl": _M(
                "nats per action",
                "Divergence of the policy from the one that played: the mean of r - 1 - log r, for "
                "the ratio r of both probabilities of an action; the average over the optimizer "
                "steps of an update.",
                "below about 0.02; above `--target_kl` an update ends early",
            ),
            "clip_fraction": _M(
                "share of steps, 0 to 1",
                "PPO: steps whose ratio is beyond `--clip`, the average over the optimizer steps "
                "of an update.",
                "about 0.05 to 0.3; at 0 the policy hardly changes",
            ),
            "capped_weights": _M(
                "share of steps, 0 to 1",
                "AWR: steps whose weight is `--largest_weight`.",
                "below about 0.05; else raise `--temperature`",
            ),
            "temperature": _M(
                "reward per nat (SAC), deviations of the advantage (V-MPO)",
                "SAC: weight of the entropy beside rewards, trained until the policy has its "
                "target entropy (not with `--fixed_temperature`). V-MPO: the temperature of the "
                "weights of the better half, a Lagrange multiplier.",
                "steady; of SAC it falls as long as the entropy is above its target",
            ),
            "explained_variance": _M(
                "share",
                "Share of the variance of the value targets that the values explain, before the "
                "update.",
                "near 1; at 0 or below the values are of no use yet",
            ),
            "optimizer_steps": _M(
                "steps",
                "Optimizer steps of an update. PPO and its kin: epochs x minibatches, fewer if "
                "`--target_kl` ended it early. SAC: `--updates_per_step` x new steps of an update.",
            ),
        },
    ),
    MetricGroup(
        "Optimisation",
        {
            "learning_rate": _M(
                "per update",
                "The learning rate, by `--learning_rate_schedule`.",
            ),
            "grad_norm": _M(
                "norm",
                "Global norm of the gradient (the learners' average), before clipping. Of several "
                "steps in one update, the largest norm.",
                "finite and steady; training stops at a value that is not finite",
            ),
            "clipped_share": _M(
                "share of updates, 0 to 1",
                "Share of updates whose gradient was clipped (`--gradients_clipping`).",
                "below 1; at 1 every step is smaller than the learning rate asks for",
            ),
            "policy_lag": _M(
                "updates",
                "Policy lag: how many updates older than the trained policy the behaviour policy "
                "of the batch was, on average over its new unrolls (replayed ones do not count).",
                "low; about 20 is common, V-trace corrects for it",
                parts="learner",
            ),
        },
    ),
    MetricGroup(
        "Replay",
        {
            "replay_share": _M(
                "share of unrolls, 0 to 1",
                "Replayed unrolls among those of the batch; only if any are replayed. They do not "
                "count as frames.",
            ),
            "recorded_share": _M(
                "share of unrolls, 0 to 1",
                "Unrolls (or steps, of SAC) of recorded games among those of the batch "
                "(`--offline_updates`, `--teacher_data_share`).",
            ),
            "replay_age": _M(
                "updates",
                "How many updates older than the trained policy the behaviour policy of the "
                "replayed unrolls was, on average.",
                parts="learner",
            ),
            "replay_uses": _M(
                "draws",
                "How often the replayed unrolls of a batch had been drawn before, on average.",
                parts="learner",
            ),
            "loss/policy_cloning": _M(
                _BATCH_LOSS,
                "Divergence of the policy from the one that played (`--policy_cloning_cost`).",
            ),
            "loss/value_cloning": _M(
                _BATCH_LOSS,
                "Distance of values from those of the policy that played (`--value_cloning_cost`).",
            ),
            "trusted_share": _M(
                "share of steps, 0 to 1",
                "Steps within `--trust_region`.",
                "near 1 for new unrolls; at 0 replay teaches nothing",
            ),
            "replay_unrolls": _M(
                "unrolls",
                "Unrolls that a learner's replay of a kind holds (`--replay`); the mean over "
                "updates and learners.",
                parts="kind",
            ),
            "replay_priority_largest": _M(
                "the algorithm's",
                "The largest priority of an unroll so far.",
                parts="kind",
            ),
            "replay_priority_spread": _M(
                "share",
                "Standard deviation of the drawn unrolls' probabilities, in units of their mean.",
                "above 0; at 0 draws are uniform",
                parts="kind",
            ),
            "replay_distance": _M(
                "of the features",
                "Mean distance of the unrolls that elite or attentive replay has drawn.",
                parts="kind",
            ),
            "replay_distance_of_candidates": _M(
                "of the features",
                "The same of all candidates for this draw.",
                "well above `replay_distance`; else the choice makes no difference",
                parts="kind",
            ),
            "replay_cached_share": _M(
                "share, 0 to 1",
                "Distances that were known and not computed again, since the start.",
                "high; a larger `max_age` raises it",
                parts="kind",
            ),
            "replay_discarded": _M(
                "unrolls", "Unrolls that a learner has discarded (`--replay_overflow`)."
            ),
            "replay_nan": _M(
                "unrolls", "Unrolls that were left out since they contain NaN or infinity.", "0"
            ),
        },
    ),
)


VALUES = MetricGroup(
    "Values of actions",
    {
        "q/error": _M(
            "reward, or rescaled reward",
            "Mean absolute error of the values of the actions that were played (after "
            "`--value_rescaling`, if that is given).",
            "falling, though it grows with the returns",
        ),
        "q/value": _M(
            "reward",
            "Mean value of the best action (DQN, R2D2), or of the action that was played (SAC).",
            "near the discounted returns; far above them, values are overestimated",
        ),
        "epsilon": _M(
            "share of actions, 0 to 1",
            "Share of random actions, with `--epsilon_schedule=decay`.",
        ),
    },
)
