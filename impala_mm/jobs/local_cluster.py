"""Several learners on this machine: what `experiment.py --num_learners=N` starts and watches.

The learners run under an mpirun of their own, the actors as children of this process; none of them
outlives it. Ctrl-C becomes SIGUSR1 to mpirun, which forwards it as the order to save and stop: of
SIGINT it would make a SIGTERM and, a quarter of a second later, a SIGKILL.
"""

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from impala_mm.config import auto, flags
from impala_mm.config.settings import Config
from impala_mm.jobs import child_actors
from impala_mm.records import wandb_tracking
from impala_mm.records.run_folder import RunFolder
from impala_mm.runtime import lifecycle, log, ports


def run(config: Config, argv: list[str]) -> NoReturn:
    """To the end of the learners."""
    say = log.ProcessLogger("cluster")
    mpirun = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not mpirun or not importlib.util.find_spec("horovod"):
        flags.refuse(
            f"--num_learners={config.num_learners} needs mpirun and Horovod: `make horovod` "
            f"installs them; one learner needs neither"
        )
    learner_hosts = local_learner_addresses(config)
    if config.track:
        wandb_tracking.refuse_without_wandb()
    for address in learner_hosts:
        try:
            ports.check_free(address)
        except OSError as error:
            flags.refuse(f"a learner cannot listen: {error}")
    ending: list[int] = []
    lifecycle.handle_end_signals(lambda number, _: ending.append(number))
    num_actors = auto.num_actors(config)
    if num_actors < config.num_learners and config.inference == "learner":
        flags.refuse(
            f"--inference=learner: {num_actors} actors cannot feed {config.num_learners} learners, "
            f"since each stays with its own: --num_actors={config.num_learners} or more"
        )
    if num_actors < config.num_learners:
        say(
            f"{config.num_learners} learners and {num_actors} actors: a learner without one "
            f"waits for one to move to it, every 5 s; --num_actors={config.num_learners} feeds all"
        )
    folder = RunFolder(config)
    folder.leave_to_others()
    common = [*argv, f"--learner_hosts={','.join(learner_hosts)}", f"--logdir={folder.path}"]
    actors = child_actors.ChildActors(common, num_actors, folder.path, config.log_max_mb)
    learners = subprocess.Popen(
        [
            *(mpirun, "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
            *("-np", str(config.num_learners), sys.executable, *common, "--job_name=learner"),
            "--num_learners=1",  # each is one
        ],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
        start_new_session=True,
        # No thread was started here. 1: PR_SET_PDEATHSIG.
        preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM),  # noqa: PLW1509
    )
    rows = folder.path / "metrics.jsonl"
    size = rows.stat().st_size if rows.exists() else 0
    told, trains = 0, False
    try:
        while learners.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                learners.wait(0.2)
            actors.watch(say)
            trains = trains or (rows.exists() and rows.stat().st_size > size)
            if len(ending) > told:
                first, told = told == 0, len(ending)
                order = signal.SIGUSR1 if trains and first else signal.SIGTERM
                learners.send_signal(order)
                say("the learners save and stop" if order == signal.SIGUSR1 else "all end now")
    finally:
        actors.end()
    code = learners.returncode
    if ending and (code == 0 or not trains):  # saved, or there was nothing to save
        code = lifecycle.exit_code(ending)
    lifecycle.exit_now(code if code >= 0 else 128 - code)


def local_learner_addresses(config: Config) -> list[str]:
    """As many as learners: those given, or from the one given on."""
    if config.bind_address:
        flags.refuse("--bind_address is of one learner: --num_learners starts several")
    given = ports.parse_learner_hosts(config)
    if len(given) == 1:
        host, port = ports.split_address(given[0])
        given = [f"{host}:{port + rank}" for rank in range(config.num_learners)]
    if len(given) != config.num_learners:
        flags.refuse(
            f"--num_learners={config.num_learners}, and --learner_hosts names {len(given)}: give "
            f"the first alone, or all"
        )
    return given
