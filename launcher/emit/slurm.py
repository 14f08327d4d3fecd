"""--emit=slurm: the script of a Slurm job with the processes of the CSV.

It is a heterogeneous job with a component for each kind of process: learners, actors, evaluators.
If all rows have the same host, it is a job on one node, whose processes share what the job has; an
experiment becomes an array of such jobs, one for each trial. sbatch runs the script without
arguments; srun or mpirun runs it again for each process, which finds its row by its number and
continues with `slurm_job.sh`. This module connects to no host and starts nothing.
"""

import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from impala_mm.config.flags import infos
from launcher.emit import pods
from launcher.plan import host_environment, process_plan
from launcher.plan.request import Request
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.supervise import mpirun
from launcher.supervise.task import FIRST_PORT

# Each gets the project's folder, and: the kind of security and the file's path; the experiment's
# folder and the trial's number.
_MAKE_TOKEN = (
    "import sys; sys.path.insert(0, sys.argv[1]); from impala_mm.runtime import run_token; "
    "run_token.make_file(sys.argv[3], sys.argv[2])"
)
_RECORD_END = (
    "import sys; sys.path.insert(0, sys.argv[1]); from launcher.experiments import journal; "
    "journal.record_end(sys.argv[2], int(sys.argv[3]))"
)
_JOB_SCRIPT = Path(__file__).with_name("slurm_job.sh")
_JOBS = ("learner", "actor", "evaluator")  # in the order of their components
_HEADER = """\
#!/bin/bash
# {what}: written by run_experiment_mm_raw.py --emit=slurm.
# Options on sbatch's command line take precedence{colons}:
#   sbatch --time=8:00:00 --partition=gpu --cpus-per-task=8{other} THIS_FILE
#SBATCH --job-name={name}
#SBATCH --time=1-00:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
"""


class Trials(NamedTuple):
    """The trials of an experiment that are jobs of one array."""

    folder: str  # the experiment's
    numbers: Sequence[int]
    at_once: int = 0  # at most; 0: as many as Slurm has room for
    cores: int = 1  # of a trial; 1: those of its processes
    gpus: int = 0  # of each learner


def emit(
    name: str, workers: Sequence[Worker], request: Request, trials: Trials | None = None
) -> tuple[str, list[str]]:
    """Return the script, and notes on what it ignores. Raises PlanError."""
    notes = list_notes(workers, request.launcher, request.given)
    return make_script(name, workers, request.launcher, request.flags, trials), notes


def list_notes(
    workers: Sequence[Worker], config: LauncherConfig, given: Sequence[str]
) -> list[str]:
    """Return a note on each request of the user that the script ignores."""
    found = [
        f"--{name} is not used under Slurm: {known.no_slurm}"
        for name, known in infos(config).items()
        if known.no_slurm and name in given
    ]
    found += [
        f"--env={name} is not in the script, since it may be secret or is to come from the shell: "
        f"export it before you call sbatch"
        for name in process_plan.hidden_environment(config)
    ]
    gpu_counts = {worker.num_gpus for worker in workers if worker.job == "learner"}
    if len(gpu_counts) > 1:
        found.append(
            f"every learner gets {max(gpu_counts)} GPUs: Slurm gives all learners the same number"
        )
    if len({bool(worker.memory) for worker in workers}) > 1:
        found.append("a job on one node asks for memory only if every row has some")
    if config.mpirun_args:
        found.append("--mpirun_args is used only if mpirun starts the learners, not srun")
    return found


def make_script(
    name: str,
    workers: Sequence[Worker],
    config: LauncherConfig,
    flags: dict[str, str],
    trials: Trials | None = None,
) -> str:
    """Return the script. `name`: the run's; `flags`: the user's flags. Raises PlanError."""
    rows = {job: [w for w in workers if w.job == job] for job in _JOBS}
    rows = {job: of_job for job, of_job in rows.items() if of_job}
    counts = {job: sum(worker.count for worker in of_job) for job, of_job in rows.items()}
    what = ", ".join(f"{count} {job}{'s' * (count > 1)}" for job, count in counts.items())
    hosts = {worker.ip for worker in workers}
    on_one_node = trials is not None or (len(hosts) == 1 and hosts != {""})
    if on_one_node:
        parts = _one_node(rows, trials)
        given = {"colons": "", "other": ""}
    else:
        parts = "#SBATCH hetjob\n".join(_component(job, rows[job]) for job in rows)
        given = {"colons": "; those of each component go between colons"}
        given["other"] = " : --partition=cpu"
    if trials:
        what = f"trials of {what} each"
    own = process_plan.flag_arguments({n: v for n, v in flags.items() if n != "logdir"})
    learner, security = rows["learner"][0], flags.get("transport_security", "auto")
    folder = [os.path.abspath(trials.folder)] if trials else []
    return "\n".join(
        [
            _HEADER.format(what=what, name=name, **given) + parts,
            _trial(trials) if trials else _logdir(name, flags) + "\n" + _bash_array("flags", own),
            _environment(config),
            *(_bash_function(job, rows.get(job, []), config) for job in _JOBS),
            _settings(rows["learner"], counts, config),
            _ports(rows["learner"], trials),
            f"on_one_node={'yes' * on_one_node}",
            _containers(rows, config, trials),
            _bash_array("make_token", _run(_MAKE_TOKEN, learner, config, security)),
            _bash_array(
                "record_end", _run(_RECORD_END, learner, config, *folder) if folder else []
            ),
            _JOB_SCRIPT.read_text(),
        ]
    )


def choose_ports(learners: Sequence[Worker]) -> list[int]:
    """Return a different port for each learner: Slurm may place any two on the same node.

    No supervisor could report the ports that learners choose themselves.
    """
    taken: list[int] = []
    for worker in learners:
        port = worker.tf_port or FIRST_PORT
        while port in taken:
            port += 1
        taken.append(port)
    return taken


def _ports(learners: Sequence[Worker], trials: Trials | None) -> str:
    """Return the line that sets the learners' ports; two trials on one node have different ones."""
    ports = list(map(str, choose_ports(learners)))
    if trials:
        job = f"${{SLURM_JOB_ID:-0}} * {len(ports)}"
        ports = [f"$((20000 + ({job} + {i}) % 10000))" for i in range(len(ports))]
    return f"ports=({' '.join(ports)})"


def _component(job: str, rows: Sequence[Worker]) -> str:
    gpus = max(worker.num_gpus for worker in rows)  # Slurm chooses which ones
    tasks, cores = sum(worker.count for worker in rows), max(worker.num_cores for worker in rows)
    size = max(map(_mebibytes, rows))
    lines = [
        f"#SBATCH --ntasks={tasks} --cpus-per-task={cores}"
        + (f" --gpus-per-task={gpus}" if gpus else "")
        + (f" --mem-per-cpu={math.ceil(size / cores)}M" if size else "")
    ]
    if job != "learner":
        lines.append("#SBATCH --no-kill")  # a lost node ends only its own processes
    return "".join(f"{line}\n" for line in lines)


def _one_node(rows: Mapping[str, Sequence[Worker]], trials: Trials | None) -> str:
    """Return the lines of a job on one node, which asks for what all processes need together."""
    workers = [worker for of_job in rows.values() for worker in of_job]
    learners, gpus = len(rows["learner"]), sum(worker.num_gpus for worker in rows["learner"])
    # Others may name GPUs of learners in `cuda_visible_devices`; `gpus` asks for more.
    gpus += sum(worker.gpus * worker.count for worker in workers if worker.job != "learner")
    cores = sum(worker.count * worker.num_cores for worker in workers)
    if trials:
        cores = trials.cores if trials.cores > 1 else cores
        gpus = max(gpus, trials.gpus * learners)
    # mpirun starts as many learners as the job has tasks.
    tasks = f"--nodes=1 --ntasks={learners} --cpus-per-task={math.ceil(cores / learners)}"
    lines = [tasks + (f" --gpus={gpus}" if gpus else "")]
    if all(map(_mebibytes, workers)):
        lines[-1] += f" --mem={sum(math.ceil(_mebibytes(w) * w.count) for w in workers)}M"
    if trials:
        lines.append(f"--array={','.join(map(str, trials.numbers))}")
        lines[-1] += f"%{trials.at_once}" * bool(trials.at_once)
    return "".join(f"#SBATCH {line}\n" for line in lines)


def _mebibytes(worker: Worker) -> float:
    """Return a process's memory in Slurm's M; 0: it asks for none."""
    return worker.num_bytes / 2**20


def _trial(trials: Trials) -> str:
    """Return the lines that set the folder of the array's trial, and its flags."""
    folder = _quoted_path(f"{trials.folder}/trials")
    return (
        f'new_logdir={folder}/"$(printf %03d "${{SLURM_ARRAY_TASK_ID:-0}}")"\n'
        f'flags=("--config=${{2:-$new_logdir}}/trial.toml")\n'
    )


def _containers(jobs: Iterable[str], config: LauncherConfig, trials: Trials | None) -> str:
    """Return the options by which srun starts the processes of each job in containers (pyxis)."""
    folders = f",{config.container_mounts}" if config.container_mounts else ""
    if trials:
        folders += ",{0}:{0}".format(os.path.abspath(trials.folder))
    lines = [f"mounts={shlex.quote(folders)}"]
    images = [_image(job, config) for job in jobs]
    return "\n".join([*lines, _bash_array("images", images)])


def _run(code: str, learner: Worker, config: LauncherConfig, *arguments: str) -> list[str]:
    """Return the command that runs code with the project's folder and these as its arguments."""
    found = _installation(learner, config)
    command = [found.python, "-c", code, found.root, *arguments]
    return process_plan.with_setup(learner, config, command)


def _installation(worker: Worker, config: LauncherConfig) -> host_environment.Installation:
    """Return the installation of a row: its image's, or the one here, which all nodes have."""
    if config.container_image:
        return pods.image_installation(worker, "")
    return host_environment.local_installation(worker, "")


def _image(job: str, config: LauncherConfig) -> str:
    """Return the image of a job's containers; empty if nothing runs in one. Raises PlanError."""
    if not config.container_image:
        return ""
    chosen = pods.choose("", config.container_image, job)
    if not (chosen and re.fullmatch(r"/\S+\.sqsh", chosen[-1])):
        chosen = pods.choose("container_image", config.container_image, job)
    return chosen[-1]


def _logdir(name: str, flags: dict[str, str]) -> str:
    """Return the line that sets the run's folder, which stays the same after a requeue."""
    if given := flags.get("logdir"):
        found = _quoted_path(given)
    else:
        found = f'{_quoted_path(f"runs/{name}")}-"${{SLURM_JOB_ID:-}}"'
    return f"new_logdir={found}\n"


def _environment(config: LauncherConfig) -> str:
    variables = process_plan.common_environment(config)
    hidden = process_plan.hidden_environment(config)  # which sbatch takes from the user's shell
    lines = [f"{n}={shlex.quote(v)}" for n, v in variables.items() if n not in hidden]
    return "".join(f"export {line}\n" for line in ["PYTHONUNBUFFERED=1", *lines])


def _bash_function(job: str, rows: Sequence[Worker], config: LauncherConfig) -> str:
    """Return a bash function: it enters process $1's folder and sets `command` from its row."""
    lines, end = [f"{job}() {{"], 0
    for worker in rows:
        end += worker.count
        own = process_plan.flag_arguments(
            {"job_name": job} | (process_plan.row_flags(worker) if job == "actor" else {})
        )
        found = _installation(worker, config)
        command = process_plan.with_setup(worker, config, [found.python, found.experiment])
        lines += [
            f'  if [ "$1" -lt {end} ]; then',
            f"    cd -- {_quoted_path(found.workdir)} || exit 2",
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
    words += [part for n in process_plan.hidden_environment(config) for part in ("-x", n)]
    return "\n".join(
        [
            "set -o pipefail",
            f"jobs=({' '.join(counts)})",
            f"counts=({' '.join(map(str, counts.values()))})",
            _bash_array("mpirun", words),
        ]
    )


def _quoted_path(path: str) -> str:
    """Return an absolute path, quoted for the shell."""
    return shlex.quote(os.path.abspath(path))


def _bash_array(name: str, words: Sequence[str]) -> str:
    """Return a bash array, one word in each line."""
    return "\n".join([f"{name}=(", *(f"  {shlex.quote(word)}" for word in words), ")\n"])
