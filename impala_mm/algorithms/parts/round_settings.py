"""The flags of algorithms that learn in rounds: how an update divides a round of unrolls."""

import dataclasses
from typing import ClassVar

from impala_mm.config.flags import AUTO, Condition, OldName, flag
from impala_mm.config.settings import Config, UpdateThreads

GROUP = "Rounds"
WORTH_COMPILING = 32  # optimizer steps of an update, from which compile_updates pays
SEVERAL_PASSES = Condition("several --epochs", lambda c: "" if c.epochs > 1 else "with --epochs=1")
SEVERAL_STEPS = Condition(
    "several --epochs or --minibatches",
    lambda c: "" if c.epochs > 1 or c.minibatches != 1 else "with --epochs=1 and --minibatches=1",
)
_WORTH_COMPILING = Condition(
    f"at least {WORTH_COMPILING} optimizer steps per update",
    lambda c: "" if c.most_steps >= WORTH_COMPILING else f"with {c.most_steps} optimizer steps",
)


@dataclasses.dataclass(frozen=True)
class RoundSettings(Config):
    """The settings of a process of an algorithm that learns in rounds."""

    rounds: ClassVar[bool] = True
    OLD_NAMES: ClassVar = Config.OLD_NAMES | {"compile_epochs": OldName("compile_updates")}

    # fmt: off
    epochs: int = flag(
        1, group=GROUP, learner_only=True, least=1,
        text="Passes over each batch.")
    minibatches: int = flag(
        1, group=GROUP, learner_only=True, least=1, auto=True,
        text="Parts into which each pass divides a learner's batch, with an optimizer step for "
             "each. All learners shuffle alike, by seed. auto: parts of 64 steps, or of 4 whole "
             "unrolls, or the next larger ones that divide the batch.")
    minibatch_of: str = flag(
        "auto", group=GROUP, learner_only=True, choices=("auto", "unrolls", "steps"),
        only_with=SEVERAL_STEPS,
        text="What a minibatch is drawn from. unrolls: whole unrolls, whose steps a recurrent "
             "network reads one after the other. steps: single steps of all unrolls, which suits "
             "networks that remember nothing. auto: steps for such networks, otherwise unrolls.")
    compile_updates: bool = flag(
        True, group=GROUP, learner_only=True, only_with=_WORTH_COMPILING,
        text="Compile all passes over a batch with XLA, at the first update, where it pays: for "
             "one learner on a CPU, networks without convolutions, observations of fewer than "
             "1,000 numbers, minibatches of single steps, and at least 32 optimizer steps per "
             "update. The first update takes some seconds longer, each of the others half the "
             "time.")
    rounds_overlap: bool = flag(
        False, group=GROUP, learner_only=True,
        text="Let actors play the next round while the learner trains on the last one, and while "
             "slower actors still play that one: they hardly wait, but the policy that plays is "
             "one update older (policy_lag 1).")
    # fmt: on

    def __post_init__(self) -> None:
        """Refuse minibatches into which no batch can be divided."""
        super().__post_init__()
        self.count_minibatches(of_steps=self.minibatch_of != "unrolls")

    @property
    def compiles_updates(self) -> bool:
        """Whether XLA may compile all passes over a batch."""
        return self.compile_updates and self.most_steps >= WORTH_COMPILING

    @property
    def update_threads(self) -> UpdateThreads:
        """Two where updates are compiled: nothing else runs in the thread of one."""
        return UpdateThreads(at_once=2) if self.compiles_updates else UpdateThreads()

    @property
    def most_steps(self) -> int:
        """The optimizer steps of an update, unless --target_kl ends it."""
        return self.epochs * self.count_minibatches(of_steps=self.minibatch_of != "unrolls")

    def count_minibatches(self, of_steps: bool) -> int:
        """Return the number of minibatches of each pass; they are of steps, or of whole unrolls.

        Raises ValueError if that number does not divide the batch.
        """
        size, of, each = self.batch_size, "--batch_size", 4
        if of_steps:
            size, of, each = size * self.unroll_length, "--batch_size x --unroll_length", 64
        numbers = [n for n in range(1, size + 1) if size % n == 0]
        count = self.minibatches
        if count == AUTO:
            return max(n for n in numbers if n == 1 or n * each <= size)
        if count > size:
            raise ValueError(
                f"--minibatches={count} is more than {of}={size}: a minibatch needs at least one "
                f"of them; use at most --minibatches={size}"
            )
        if size % count:
            below = max(n for n in numbers if n < count)
            above = min(n for n in numbers if n > count)
            raise ValueError(
                f"--minibatches={count} does not divide {of}={size}: use --minibatches={below} or "
                f"{above}"
            )
        return count
