"""--mode=rehearsal, from its flags to its exit code: checks the all-reduce of all learners."""

import sys
from typing import NoReturn

from impala_mm.config.settings import Config
from impala_mm.runtime import tensorflow_import


def run(config: Config) -> NoReturn:
    """Trains on generated data, all learners together."""
    print("[learner] loading TensorFlow", flush=True)
    tensorflow_import.load()
    from impala_mm.distributed import group  # noqa: PLC0415
    from impala_mm.learner import rehearsal  # noqa: PLC0415

    rehearsal.rehearse(config, group.join_group(config))
    sys.exit(0)
