"""Every setting of an experiment. A flag is a field here, and nowhere else."""

import dataclasses

from impala_mm.flags import flag


@dataclasses.dataclass(frozen=True)
class Config:
    """What one process is told; equal on all learners but for what names the process itself."""

    # fmt: off
    mode: str = flag(
        "rehearsal", group="Run", choices=("rehearsal",),
        text="rehearsal: a tiny network learns generated data through the same all-reduce as a "
             "real run, and all learners compare their variables.")
    seed: int = flag(
        1, group="Run", least=0,
        text="Seed of initial weights and generated data; each learner derives its own from it.")
    updates: int = flag(
        200, group="Training", least=1,
        text="Updates of a rehearsal.")
    batch_size: int = flag(
        32, group="Training", least=1,
        text="Examples per learner and update.")
    learning_rate: float = flag(
        0.003, group="Optimizer", least=0,
        text="Step size of Adam.")
    gradients_clipping: float = flag(
        40.0, group="Optimizer",
        text="Largest global norm of the gradient, after it is averaged over learners; a longer "
             "one is scaled down to it. Negative: off.")
    # fmt: on
