"""--mode=rehearsal, from its flags to its exit code: check that all learners learn as one."""

from typing import NoReturn

from impala_mm.config.settings import Config
from impala_mm.distributed.agreement import Agreement, SettingsDiffer
from impala_mm.runtime import lifecycle
from impala_mm.runtime.log import ProcessLogger


def run(config: Config) -> NoReturn:
    """Train on generated data, all learners together; exit with code 0 if they learn as one."""
    say = ProcessLogger("learner")
    agreement = Agreement(config)
    agreement.reach_through_mpi(say)
    say("loading TensorFlow")
    lifecycle.import_tensorflow()
    from impala_mm.distributed.group import join_group  # noqa: PLC0415
    from impala_mm.learner import rehearsal  # noqa: PLC0415

    group = join_group(config)
    try:
        agreement.reach(group.gather)
        error, code = rehearsal.rehearse(config, group), 1
    except SettingsDiffer as difference:
        error, code = str(difference), 2
    if error and group.rank == 0:
        say(f"error: {error}")
    group.gather(None, "said")  # the launcher kills all once one has exited with an error
    group.leave()
    lifecycle.exit_now(code if error else 0)
