"""The limits that end a run: frames, a mean return, or seconds."""

import math

from impala_mm.config.settings import Config


class RunLimits:
    """The limits of a run, which ends at the first one that it reaches."""

    def __init__(self, config: Config, reward_threshold: float | None):
        self.frames = config.total_environment_frames or 50e6
        self.episode_return = config.stop_at_return
        if not config.total_environment_frames and math.isinf(config.stop_at_return):
            self.episode_return = math.inf if reward_threshold is None else reward_threshold
        self.seconds = config.max_seconds  # counted from the first unroll of each start
