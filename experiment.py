"""One process of an experiment: a learner, an actor, or both roles on this machine.

python experiment.py --level_name=CartPole-v1                learner and actors, here
python experiment.py --level_name=CartPole-v1 --num_learners=2 --num_actors=3
python experiment.py --job_name=learner --learner_hosts=localhost:8001 ...
python experiment.py --job_name=actor --task=0 --learner_hosts=localhost:8001 ...
mpirun -np 2 python experiment.py --job_name=learner --learner_hosts=a:8001,b:8001 ...
python experiment.py --validate ...                          would this start? starts nothing
python experiment.py --mode=test --logdir=RUN                plays whole games, says how well
python experiment.py --job_name=evaluator --logdir=RUN       tests each new checkpoint of a run
python experiment.py --mode=export --logdir=RUN              writes what it has learnt, to serve
mpirun -np 2 python experiment.py --mode=rehearsal           checks the all-reduce of two learners
"""

import signal
import sys

from impala_mm.config import flags
from impala_mm.config.settings import Config


def main(argv: list[str]) -> None:
    """Parses the flags and calls the library."""
    # Until TensorFlow is loaded nobody could save: later the learner takes these over.
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    (config,), given = flags.parse(argv, __doc__ or "", Config)
    # Below the flags, so that --help and a misspelt flag answer at once.
    from impala_mm.jobs import (  # noqa: PLC0415
        actor,
        evaluate,
        evaluator,
        export,
        learner,
        local_cluster,
        rehearse,
        validate,
    )
    from impala_mm.runtime import rank  # noqa: PLC0415

    if config.validate:
        validate.run(config, given)
    if config.mode == "rehearsal":
        rehearse.run(config)
    if config.mode == "test":
        evaluate.run(config, given)
    if config.mode == "export":
        export.run(config)
    if config.job_name == "evaluator":
        evaluator.run(config, given)
    if config.job_name == "actor":
        actor.run(config)
    if config.num_learners > 1 and not config.job_name and rank.process_rank().size == 1:
        local_cluster.run(config, argv)
    learner.run(config, argv)


if __name__ == "__main__":
    main(sys.argv)
