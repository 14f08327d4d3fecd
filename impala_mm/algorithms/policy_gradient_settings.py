"""The flags that PPO and its kin share, and their defaults for the flags of all algorithms."""

import dataclasses

from impala_mm.config.flags import default, flag
from impala_mm.config.settings import Config

GROUP = "Policy gradient"


@dataclasses.dataclass(frozen=True)
class Settings(Config):
    """The settings of a process of an algorithm of `policy_gradient`."""

    # fmt: off
    batch_size: int = default(Config, "batch_size", 16)
    num_envs: int = default(Config, "num_envs", 8)
    loss_reduction: str = default(Config, "loss_reduction", "mean")
    gradients_clipping: float = default(Config, "gradients_clipping", 0.5)
    separate_networks: bool = default(Config, "separate_networks", True)
    normalize_observations: bool = default(Config, "normalize_observations", True)
    normalize_rewards: bool = default(Config, "normalize_rewards", True)
    entropy_cost: float = default(Config, "entropy_cost", 0.0)
    advantage_scaling: str = default(Config, "advantage_scaling", "batch")
    box_policy: str = default(Config, "box_policy", "normal")

    epochs: int = flag(
        1, group=GROUP, least=1,
        text="Passes over each batch.")
    minibatches: int = flag(
        1, group=GROUP, least=1,
        text="Parts into which each pass divides a learner's batch, with an optimizer step for "
             "each. All learners shuffle alike, by seed.")
    minibatch_of: str = flag(
        "auto", group=GROUP, choices=("auto", "unrolls", "steps"),
        text="What a minibatch is drawn from. unrolls: whole unrolls, whose steps a recurrent "
             "network reads one after the other. steps: single steps of all unrolls, which suits "
             "networks that remember nothing. auto: steps for such networks, otherwise unrolls.")
    recompute_advantages: bool = flag(
        False, group=GROUP,
        text="Compute values and advantages again before each pass but the first. Unset: the "
             "policy that played is judged once per batch.")
    rounds_overlap: bool = flag(
        False, group=GROUP,
        text="Let actors play the next round while the learner trains on the last one: nobody "
             "waits, but the policy that plays is one update older (policy_lag 1).")
    advantages: str = flag(
        "gae", group=GROUP, choices=("gae", "vtrace", "n_step"),
        text="How advantages and value targets are computed from an unroll. gae: generalised "
             "advantages. vtrace: V-trace, which corrects for the policy's changes since it "
             "played. n_step: returns of --n_steps steps.")
    gae_lambda: float = flag(
        0.95, group=GROUP, least=0, most=1,
        text="Lambda of the generalised advantages, and of V-trace. At 1 they are the returns up "
             "to the end of the unroll, at 0 the errors of single steps.")
    n_steps: int = flag(
        5, group=GROUP, least=1,
        text="Steps of the returns of --advantages=n_step.")
    positive_advantages: bool = flag(
        False, group=GROUP,
        text="Learn only from actions whose scaled advantage is positive.")
    target_kl: float = flag(
        float("inf"), group=GROUP, least=0,
        text="Divergence from the policy that played, in nats (approx_kl, averaged over all "
             "learners), above which the passes over a batch end. inf: they are always completed.")
    value_clip: float = flag(
        float("inf"), group=GROUP, least=0,
        text="Change of a value during the passes over a batch beyond which the value is clipped "
             "in the baseline's loss, in units of normalised rewards. inf: no clipping.")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse minibatches that no batch can be divided into."""
        if self.minibatch_of == "unrolls":
            self.check_minibatches(self.batch_size, "--batch_size")
        else:
            steps = self.batch_size * self.unroll_length
            self.check_minibatches(steps, "--batch_size x --unroll_length")

    def check_minibatches(self, size: int, of: str) -> None:
        """Raise ValueError if `size` items, which these flags determine, are not divisible."""
        count = self.minibatches
        if count > size:
            raise ValueError(
                f"--minibatches={count} is more than {of}={size}: a minibatch needs at least one "
                f"of them; use at most --minibatches={size}"
            )
        if size % count:
            below = max(n for n in range(1, count) if size % n == 0)
            above = min(n for n in range(count, size + 1) if size % n == 0)
            raise ValueError(
                f"--minibatches={count} does not divide {of}={size}: use --minibatches={below} or "
                f"{above}"
            )
