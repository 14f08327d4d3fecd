"""The curves that are drawn of a run: by `plot.py`, on the report page and on the dashboard."""

from typing import NamedTuple


class Panel(NamedTuple):
    """A quantity that is drawn."""

    name: str  # its name in `plot.py --only`
    key: str  # its key in metrics.jsonl
    title: str
    unit: str
    share: bool = False  # whether it ranges from 0 to 1


PANELS = (
    Panel("return", "episode_return", "Mean return", "last 100 games"),
    Panel("speed", "frames_per_second", "Throughput", "frames/s"),
    Panel("lag", "policy_lag", "Policy lag", "updates"),
    Panel("queue", "queue_fill", "Queue fill level", "share", share=True),
    Panel("wait", "wait_share", "Learners' waiting time", "share of time", share=True),
    Panel("loss", "loss_per_step/total", "Loss, total", "per step"),
    Panel("policy", "loss_per_step/policy", "Loss, policy", "per step"),
    Panel("baseline", "loss_per_step/baseline", "Loss, baseline", "per step"),
    Panel("entropy", "loss_per_step/entropy", "Loss, entropy", "nats per step"),
    Panel("offpolicy", "off_policyness", "Off-policyness", "nats per action"),
    Panel("policyentropy", "entropy", "Entropy of the policy", "nats"),
    Panel("temperature", "temperature", "Temperature", ""),
    Panel("value", "q/value", "Value of actions", "reward"),
    Panel("error", "q/error", "Error of actions' values", ""),
    Panel("random", "epsilon", "Random actions", "share", share=True),
    Panel("norm", "grad_norm", "Gradient norm", ""),
    Panel("rate", "learning_rate", "Learning rate", ""),
)
