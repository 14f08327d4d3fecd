"""One process of an experiment: today a learner, alone or one of several under mpirun.

python experiment.py                            one learner
mpirun -np 2 python experiment.py               two, joined by Horovod
"""

import os
import sys

from impala_mm import flags
from impala_mm.config import Config


def main(argv: list[str]) -> None:
    """Parses the flags and calls the library."""
    (config,), _ = flags.parse(argv, __doc__ or "", Config)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's start-up notes
    print("[learner] loading TensorFlow", flush=True)
    # Below the flags, so that --help and a misspelt flag answer at once.
    from impala_mm import exchange, rehearsal  # noqa: PLC0415

    rehearsal.rehearse(config, exchange.join())


if __name__ == "__main__":
    main(sys.argv)
