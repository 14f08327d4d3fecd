"""The descriptions of all metrics, by their keys in metrics.jsonl.

`metrics_writer` shows the descriptions in TensorBoard, and `sandbox/metrics.md` is this table as a
page. After a change here, write the page again:

    python -m impala_mm.records.metric_descriptions > sandbox/metrics.md
"""

from typing import NamedTuple


class MetricDescription(NamedTuple):
    """One metric."""

    unit: str
    meaning: str
    good: str = ""  # which values are desirable, or what to do about others
    parts: str = ""  # "learner", "level": its key also occurs with "/learnerN" or "/LEVEL"


class MetricGroup(NamedTuple):
    """Metrics that belong together, under a heading of the page."""

    heading: str
    metrics: dict[str, MetricDescription]  # by key


_M = MetricDescription
_SHARE = "share of time, 0 to 1"
_LOSS = "per step"
_BATCH_LOSS = "per batch"
_NATS = "nats per step"

GROUPS = (
    MetricGroup(
        "Progress",
        {
            "frames": _M(
                "environment frames",
                "Frames that all learners have trained on since the run began, resumes included: "
                "steps times the action repeats. TensorBoard's step.",
            ),
            "steps": _M(
                "environment steps",
                "Steps that all learners have trained on. A learner's own count begins at 0 with "
                "each start of the process.",
                parts="learner",
            ),
            "updates": _M("updates", "Updates of the parameters; all learners make the same ones."),
            "seconds": _M("s", "Training time, including the time before a resume."),
            "frames_per_second": _M(
                "frames/s",
                "Throughput of all learners together since the previous row.",
                "high; `verdict` says what limits it",
            ),
            "steps_per_second": _M("steps/s", "The same in environment steps.", "high"),
            "updates_per_second": _M("updates/s", "The same in updates.", "high"),
        },
    ),
    MetricGroup(
        "Episodes",
        {
            "episode_return": _M(
                "raw reward",
                "Mean return of the last 100 complete games (fewer at the start, see `games`), "
                "with rewards as the environment gives them. With several levels there is also one "
                "for each.",
                "high",
                parts="level",
            ),
            "episode_length": _M("steps", "Mean length of the same games."),
            "games": _M("games", "How many games these means are over.", "100 is the most"),
            "shaped_return": _M(
                "raw reward",
                "Mean return of the last 100 training episodes. They differ from games where a "
                "lost life ends an episode (Atari).",
                "high",
            ),
            "human_normalised": _M(
                "share, 0 to 1 and above",
                "The return on a scale where 0 is a random policy and 1 a human; of several games "
                "the median, and the value of each. Only for games whose scores are known.",
                "high",
                parts="level",
            ),
        },
    ),
    MetricGroup(
        "Losses",
        {
            "loss_per_step/total": _M(
                _LOSS,
                "The loss that is minimised, per step of the batch: policy loss + "
                "`--baseline_cost` x baseline loss (divided by the square of the unit that "
                "`--value_normalization` names) + `--entropy_cost` x entropy loss + other "
                "regularisers. The progress line's `loss`.",
                "no target; a jump to many times its usual size is a warning",
            ),
            "loss_per_step/policy": _M(
                _LOSS, "V-trace policy-gradient loss.", "near 0, of either sign"
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
        "Policy gradients",
        {
            "entropy": _M(
                "nats",
                "Entropy of the policy, on average over the steps of the batch, of PPO and its "
                "kin. For actions that are numbers it is that of a density, which may be negative.",
                "falling slowly",
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
                "deviations of the advantage",
                "V-MPO: the temperature of the weights of the better half, a Lagrange multiplier.",
                "steady",
            ),
            "explained_variance": _M(
                "share",
                "Share of the variance of the value targets that the values explain, before the "
                "update.",
                "near 1; at 0 or below the values are of no use yet",
            ),
            "optimizer_steps": _M(
                "steps",
                "Optimizer steps of an update: epochs x minibatches, fewer if `--target_kl` ended "
                "it early.",
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
            "replay_share": _M(
                "share of unrolls, 0 to 1",
                "Replayed unrolls among those of the batch; only if the algorithm's source replays "
                "any. Replayed unrolls do not count as frames.",
            ),
        },
    ),
    MetricGroup(
        "Where time goes",
        {
            "wait_share": _M(
                _SHARE,
                "Time in which the learners wait for unrolls from their actors.",
                "below 0.1, else add actors",
                parts="learner",
            ),
            "exchange_share": _M(
                _SHARE,
                "Time in which the learners wait for each other: for the slowest one's batch, and "
                "for the all-reduce of gradients.",
                "below 0.3",
                parts="learner",
            ),
            "train_share": _M(_SHARE, "Time in which the learners train.", "high", parts="learner"),
            "rest_share": _M(
                _SHARE, "The rest of the learners' time: bookkeeping.", "near 0", parts="learner"
            ),
            "queue_fill": _M(
                "share, 0 to 1",
                "How full the queue of unrolls is when an update has been made.",
                "near 1 if learners are to be busy; near 0 means that they wait for actors",
                parts="learner",
            ),
            "actor/acting_share": _M(
                _SHARE,
                "Time in which the actors compute actions, or wait for the actions that the "
                "learner computes.",
            ),
            "actor/stepping_share": _M(
                _SHARE, "Time in which the actors step their environments.", "high"
            ),
            "actor/waiting_share": _M(
                _SHARE,
                "Time in which the actors wait until the learner has taken their previous unrolls.",
                "below 0.3, else the learner or the network is too slow for this number of actors",
            ),
            "actor/policy_wait_share": _M(
                _SHARE,
                "Time in which the actors of an algorithm with rounds wait for the next policy.",
                "as small as the updates allow",
            ),
            "inference_batch": _M(
                "environments",
                "With `--inference=learner`: environments per forward pass, on average.",
                "high",
            ),
            "actors": _M("actors", "Actors that are connected to the learners."),
            "actors_elsewhere": _M(
                "actors", "Connected actors that run on another host than their learner."
            ),
            "idle_cores": _M(
                "cores",
                "Idle CPU cores of the learners' host; with several hosts, the largest number "
                "among them.",
                "near 0 if the actors run on the same host",
            ),
            "verdict": _M(
                "text",
                "The bottleneck, the evidence for it, and advice, as in the progress line. Only in "
                "metrics.jsonl.",
            ),
        },
    ),
    MetricGroup(
        "Health",
        {
            "unrolls_dropped": _M(
                "unrolls", "Unrolls that were lost since the learners started.", "0 without crashes"
            ),
            "unrolls_padded": _M(
                "unrolls",
                "Columns of rounds that were filled with unrolls of weight 0 since the learners "
                "started, because an actor did not send its unrolls in time; only in an algorithm "
                "with rounds.",
                "0 without crashes",
            ),
            "environment_faults": _M(
                "faults",
                "Errors of environments since the learners started: each was replaced by a new "
                "one, and its unroll was lost. The actors' logs have the tracebacks.",
                "0",
            ),
            "sync_checks": _M(
                "checks",
                "With several learners and `--check_sync_every`: how often their parameters were "
                "compared.",
            ),
            "sync_repairs": _M(
                "variables", "Variables that differed and were set to learner 0's.", "0"
            ),
        },
    ),
)
METRICS = {key: found for group in GROUPS for key, found in group.metrics.items()}
_INTRODUCTION = """\
# Metrics

Learner 0 writes a row of metrics every 2 s: to `metrics.jsonl` in the run's folder, as one JSON
object per line, and to TensorBoard's event files, with `frames` as the step. A value that is not
known yet is absent. Values are averages over all updates and all learners since the previous row,
unless the table says otherwise. `/learnerN` after a key is learner N's own value, in runs of
several learners; `/LEVEL` is that of one level, in runs of several levels. An algorithm of your own
adds the metrics that its `update` returns; name its losses as here and they appear in the plots.
Updates that did not measure a metric, and return NaN for it, are left out of its average.
Evaluators write their results to `evaluations.jsonl` and, as `evaluation/...`, to TensorBoard.

This page is generated: `python -m impala_mm.records.metric_descriptions > sandbox/metrics.md`.
"""


def find_description(key: str) -> MetricDescription | None:
    """Return the description of a key as it stands in a row, or None where there is none."""
    if key in METRICS:
        return METRICS[key]
    name, _, part = key.partition("/")
    found = METRICS.get(name)
    if found and part and found.parts == "learner":
        return found if part.removeprefix("learner").isdecimal() else None
    return found if found and part and found.parts == "level" else None


def format_description(key: str) -> str:
    """Return a key's description as a line of text, or nothing where there is none."""
    found = find_description(key)
    if not found:
        return ""
    return f"{found.meaning} Unit: {found.unit}." + (f" Good: {found.good}." if found.good else "")


def render_page() -> str:
    """Return the table as a page of Markdown."""
    lines = [_INTRODUCTION]
    for group in GROUPS:
        lines += [f"## {group.heading}", "", "| key | unit | meaning | good |", "|---|---|---|---|"]
        for key, found in group.metrics.items():
            suffix = {"learner": ", also `/learnerN`", "level": ", also `/LEVEL`"}
            name = f"`{key}`{suffix.get(found.parts, '')}"
            lines.append(f"| {name} | {found.unit} | {found.meaning} | {found.good} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(render_page(), end="")
