"""Runs an experiment on this machine, or one process of it: a learner, an actor or an evaluator.

The command `impala-mm` is the same as `python experiment.py`, and `impala-mm docs` prints the
folder of the documentation, which begins with README.md.

A learner and two actors on this machine, then two learners and three actors:
    python experiment.py --level_name=CartPole-v1
    python experiment.py --level_name=CartPole-v1 --num_learners=2 --num_actors=3

Single processes, on any host:
    python experiment.py --job_name=learner --learner_hosts=localhost:8001 ...
    python experiment.py --job_name=actor --task=0 --learner_hosts=localhost:8001 ...
    mpirun --host a,b -np 2 python experiment.py --job_name=learner --learner_hosts=a:8001,b:8001

Check the flags without starting anything:
    python experiment.py --validate ...

Test the agent of a run, test each of its new checkpoints, record games or export a SavedModel:
    python experiment.py --mode=test --logdir=RUN
    python experiment.py --job_name=evaluator --logdir=RUN
    python experiment.py --mode=record --logdir=RUN --episodes=100
    python experiment.py --mode=export --logdir=RUN

Show runs on a page in the browser:
    python experiment.py --dashboard
    python experiment.py --dashboard --logdir=FOLDER

Check the all-reduce of two learners:
    mpirun -np 2 python experiment.py --mode=rehearsal
"""

import signal
import sys
from typing import NoReturn

from impala_mm.config import command_line, flag_values, messages, user_modules
from impala_mm.config.settings import Config
from impala_mm.runtime import lifecycle, starter


def main(argv: list[str]) -> None:
    """Parse the flags and run the kind of process that they name."""
    # Nothing can be saved before TensorFlow is loaded; later the learner handles these signals.
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    lifecycle.end_with_owner()
    lifecycle.set_tensorflow_defaults()  # a module of --import may import it
    user_modules.refuse_foreign()
    (config,), given = command_line.parse(argv, __doc__ or "", Config)
    if config.dashboard:
        from launcher.dashboard.serve import serve  # noqa: PLC0415

        serve(config)
    # An evaluator may be started beside the training whose flags a frontend lets this check, or
    # beside one without actors.
    started = bool(starter.start_id())
    evaluators = started or config.num_actors == 0
    flag_values.check_effects(config, evaluators=evaluators, notes=not started)
    # Imported after the flags are parsed, so that --help and a misspelt flag answer at once.
    from impala_mm.jobs import (  # noqa: PLC0415
        actor,
        evaluate,
        evaluator,
        export,
        learner,
        record,
        rehearse,
        validate,
    )

    with user_modules.mistakes_refused():
        if config.validate:
            validate.run(config, given)
        if config.mode == "rehearsal":
            rehearse.run(config)
        if config.mode == "test":
            evaluate.run(config, given)
        if config.mode == "record":
            record.run(config, given)
        if config.mode == "export":
            export.run(config, given)
        if config.job_name == "evaluator":
            evaluator.run(config, given)
        if config.job_name == "actor":
            actor.run(config)
    if config.debug:
        learner.run(learner.for_debugging(config))
    if not config.job_name and starter.process_rank().size == 1:
        run_locally(config, argv, given)
    learner.run(config)


def run_locally(config: Config, argv: list[str], given: list[str]) -> NoReturn:
    """Run learners and actors on this machine, each under a supervisor of the launcher."""
    from impala_mm.jobs import local_run  # noqa: PLC0415
    from launcher.supervise import foreground, mpirun  # noqa: PLC0415

    program = mpirun.find(sys.executable)
    processes = local_run.prepare(config, argv, given, has_mpirun=bool(program))
    learners = processes.learner
    if config.num_learners > 1:
        learners = mpirun.local_command(program, config.num_learners, learners)
    signals: list[int] = []
    lifecycle.handle_end_signals(lambda number, _: signals.append(number))
    code = foreground.run(
        foreground.LocalRun(
            learners,
            processes.others,
            environment=processes.environment | mpirun.environment(as_root=True),
            folder=processes.folder,
            log_max_mb=config.log_max_mb,
            printable=messages.log_line,
        ),
        signals,
    )
    sys.exit(lifecycle.exit_code(signals) if code is None else code)


if __name__ == "__main__":
    main(sys.argv)
