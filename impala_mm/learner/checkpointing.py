"""Rank 0's checkpoints: what a run goes on from, and what it leaves while it trains.

`monitor` says when; `checkpoint` writes and reads; `resume` says what may go on from what.
"""

import math
import time

from impala_mm.config.settings import Config
from impala_mm.data.variables import Variables
from impala_mm.learner import resume
from impala_mm.learner.learner import Learner, between_updates
from impala_mm.learner.limits import RunLimits
from impala_mm.records import checkpoint
from impala_mm.records.checkpoint import CheckpointInfo, Checkpoints, Unwritable
from impala_mm.records.hooks import EventHook
from impala_mm.runtime.log import Say


class Checkpointing:
    """Of one run."""

    def __init__(
        self,
        config: Config,
        checkpoints: Checkpoints,
        variables: Variables,
        about: CheckpointInfo,
        limits: RunLimits,
        event_hook: EventHook,
        say: Say,
    ):
        """`about`: what all checkpoints of this process have in common."""
        self._config, self._checkpoints, self._variables = config, checkpoints, variables
        self._newest = about  # of this process or of those before
        self._tenth = limits.frames / checkpoint.MILESTONES
        self._event_hook, self._say = event_hook, say
        self.saved = True  # whether the last could be written

    def restore(self) -> CheckpointInfo | None:
        """Into the variables, what this run goes on from; None where it begins.

        Then, with --mode=train_from, it begins with another's weights. Raises Damaged, Mismatch or
        Missing.
        """
        config, ours = self._config, self._newest
        found = self._checkpoints.restore(
            self._say, lambda about: resume.check_resumable(about, ours.made_of, config.logdir)
        )
        if found:
            for sentence in resume.resume_messages(found, config, ours.learners):
                self._say(sentence)
            if config.mode == "train_from":
                self._say("it has begun already: --checkpoint is not read again")
            self._newest = found
        elif config.mode == "train_from":
            path, source = checkpoint.find(config.checkpoint)
            resume.check_weights(source, ours.made_of, config.checkpoint)
            checkpoint.load(path, checkpoint.named(self._variables, weights=True))
            self._say(f"starts with the weights of {path} ({source.frames:,.0f} frames)")
        self._newest = ours._replace(
            **{name: getattr(self._newest, name) for name in ("updates", "frames")}
        )
        return found

    def save(
        self, learner: Learner, seconds: float, mean_return: float, last: bool = False
    ) -> bool:
        """What was learnt, if anything was since the last, or this is the run's last.

        `mean_return`: of the last games, or NaN. False: an update is being made, and takes
        long (another learner may hang): it is to be tried again.
        """
        if learner.updates <= self._newest.updates and not last:
            return True
        begin = time.monotonic()
        with between_updates(learner) as still:
            if not still:
                return False
            self._checkpoints.snapshot()
            updates, steps, frames = learner.updates, learner.steps, learner.frames
        held = time.monotonic() - begin
        about = self._newest._replace(
            updates=updates,
            steps=steps,
            frames=frames,
            seconds=seconds,
            episode_return=None if math.isnan(mean_return) else mean_return,
            milestone=frames // self._tenth > self._newest.frames // self._tenth,
        )
        try:
            self._checkpoints.save(about)
        except Unwritable as error:
            if self.saved:
                self._say(f"checkpoints cannot be written ({error}); those before are kept")
            self.saved = False
            return True
        self.saved, self._newest = True, about
        took = time.monotonic() - begin
        said = f"checkpoint at update {updates} ({took:.1f} s, training held up {held:.2f} s)"
        self._say(said)
        self._event_hook.call("save", said)
        return True
