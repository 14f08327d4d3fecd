"""--emit=slurm: the same processes as one heterogeneous job of Slurm, as the text of its script.

A component for each kind of process: learners, actors, evaluators. sbatch runs the script without
arguments; srun or mpirun run it once more for each process, which finds its row by its number. What
it does then is in `slurm_job.sh`. Nothing is asked or started here.
"""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from launcher.node import mpirun
from launcher.plan import host_environment, process_plan
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker

_JOB_SCRIPT = Path(__file__).with_name("slurm_job.sh")
_JOBS = ("learner", "actor", "evaluator")  # in the order of their components
_CPUS = {"learner": 4, "actor": 1, "evaluator": 1}  # of a process, until the user says otherwise
_HEADER = """\
#!/bin/bash
# {what}: written by run_experiment_mm_raw.py --emit=slurm.
# sbatch's own options go before what stands here; of each component, between colons:
#   sbatch --time=8:00:00 --partition=gpu --cpus-per-task=8 : --partition=cpu THIS_FILE
#SBATCH --job-name={name}
#SBATCH --time=1-00:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
"""
_UNUSED_FLAGS = {  # flags that are of the frontend's own supervisors
    "restart_learners": "`scontrol requeue JOB` starts learners again",
    "max_restarts": "an actor that dies is always started again",
    "stall_secs": "nobody watches for processes that hang",
    "stop_secs": "the script's --signal and Slurm's KillWait say how long saving may take",
    "skip_check": "nothing is checked",
    "detach": "sbatch returns at once",
}


def list_notes(
    workers: Sequence[Worker], config: LauncherConfig, given: Sequence[str]
) -> list[str]:
    """What was asked for and is not in the script."""
    found = [
        f"--{name} is not used under Slurm: {_UNUSED_FLAGS[name]}"
        for name in _UNUSED_FLAGS
        if name in given
    ]
    found += [
        f"--env={name} may be secret and is not in the script: export it where you call sbatch"
        for name in _secrets(config)
    ]
    gpu_counts = {_gpu_count(worker) for worker in workers if worker.job == "learner"}
    if len(gpu_counts) > 1:
        found.append(f"every learner gets {max(gpu_counts)} GPUs: Slurm gives all of them as many")
    if config.mpirun_args:
        found.append("--mpirun_args are used where the learners are started by mpirun, not srun")
    return found


def make_script(
    name: str, workers: Sequence[Worker], config: LauncherConfig, flags: dict[str, str]
) -> str:
    """The whole of it. `name`: the run's; `flags`: that were given. Raises PlanError."""
    rows = {job: [w for w in workers if w.job == job] for job in _JOBS}
    rows = {job: of_job for job, of_job in rows.items() if of_job}
    counts = {job: sum(worker.count for worker in of_job) for job, of_job in rows.items()}
    what = ", ".join(f"{count} {job}{'s' * (count > 1)}" for job, count in counts.items())
    components = "#SBATCH hetjob\n".join(_component(job, rows[job]) for job in rows)
    return "\n".join(
        [
            _HEADER.format(what=what, name=name) + components,
            _logdir(name, flags),
            _environment(config),
            _bash_array(
                "flags",
                process_plan.flag_arguments({n: v for n, v in flags.items() if n != "logdir"}),
            ),
            *(_bash_function(job, rows.get(job, []), config) for job in _JOBS),
            _settings(rows["learner"], counts, config),
            _JOB_SCRIPT.read_text(),
        ]
    )


def choose_ports(learners: Sequence[Worker]) -> list[int]:
    """Those of the rows, but no two the same: Slurm may put any two learners on one node."""
    taken: list[int] = []
    for worker in learners:
        port = worker.tf_port
        while port in taken:
            port += 1
        taken.append(port)
    return taken


def _component(job: str, rows: Sequence[Worker]) -> str:
    gpus = max(map(_gpu_count, rows))
    tasks = f"#SBATCH --ntasks={sum(worker.count for worker in rows)} --cpus-per-task={_CPUS[job]}"
    lines = [tasks + (f" --gpus-per-task={gpus}" if gpus else "")]
    if job != "learner":
        lines.append("#SBATCH --no-kill")  # a node that is lost takes only its own along
    return "".join(f"{line}\n" for line in lines)


def _gpu_count(worker: Worker) -> int:
    """How many it names; which ones is Slurm's to say."""
    return sum(bool(gpu.strip()) for gpu in worker.cuda_visible_devices.split(","))


def _logdir(name: str, flags: dict[str, str]) -> str:
    """The same at each start of the job: so it goes on after a requeue."""
    if given := flags.get("logdir"):
        found = _quoted_path(given)
    else:
        found = f'{_quoted_path(f"runs/{name}")}-"${{SLURM_JOB_ID:-}}"'
    return f"new_logdir={found}\n"


def _environment(config: LauncherConfig) -> str:
    variables = process_plan.common_environment(config)
    secrets = _secrets(config)
    lines = [f"{n}={shlex.quote(v)}" for n, v in variables.items() if n not in secrets]
    return "".join(f"export {line}\n" for line in ["PYTHONUNBUFFERED=1", *lines])


def _secrets(config: LauncherConfig) -> list[str]:
    variables = process_plan.common_environment(config)
    return [name for name, value in variables.items() if process_plan.is_secret(name, value)]


def _bash_function(job: str, rows: Sequence[Worker], config: LauncherConfig) -> str:
    """Of bash: goes to the folder of process number $1 and sets `command`, as its row says."""
    lines, end = [f"{job}() {{"], 0
    for worker in rows:
        end += worker.count
        own = process_plan.flag_arguments(
            {"job_name": job} | (process_plan.row_flags(worker) if job == "actor" else {})
        )
        found = host_environment.local_installation(worker, "")  # every node has the same folders
        command = process_plan.with_setup(worker, config, [found.python, found.experiment])
        lines += [
            f'  if [ "$1" -lt {end} ]; then',
            f"    cd -- {_quoted_path(worker.workdir)} || exit 2",
            f'    command=({shlex.join(command)} "${{flags[@]}}" {shlex.join(own)})',
            "    return",
            "  fi",
        ]
    return "\n".join([*lines, "  exit 2", "}\n"])


def _settings(learners: Sequence[Worker], counts: dict[str, int], config: LauncherConfig) -> str:
    words = [
        host_environment.local_installation(learners[0], "").mpirun,
        *mpirun.OPTIONS,
        *process_plan.split_arguments(config.mpirun_args),
    ]
    words += [part for name in _secrets(config) for part in ("-x", name)]
    return "\n".join(
        [
            "set -o pipefail",
            f"jobs=({' '.join(counts)})",
            f"ports=({' '.join(map(str, choose_ports(learners)))})",
            _bash_array("mpirun", words),
        ]
    )


def _quoted_path(path: str) -> str:
    """As every node knows it."""
    return shlex.quote(os.path.abspath(path))


def _bash_array(name: str, words: Sequence[str]) -> str:
    """Of bash, a word a line."""
    return "\n".join([f"{name}=(", *(f"  {shlex.quote(word)}" for word in words), ")\n"])
