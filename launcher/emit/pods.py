"""The pods of a run on Kubernetes: which there are, and what of the request they leave out.

A pod runs one process of the plan. Learners need neither sshd nor Gloo: mpirun runs in the pod of
the first learner, and in the pods of the other ones `mpi_host` waits for it. `pod_template` says
how a pod is started.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from impala_mm.config.flags import infos
from launcher.plan import process_plan
from launcher.plan.host_environment import Installation
from launcher.plan.process_plan import PlanError, Process
from launcher.plan.request import Request
from launcher.plan.workers_csv import JOBS, Worker
from launcher.supervise.mpi_agent import FIRST_PORT as MPI_PORT
from launcher.supervise.task import FIRST_PORT

STATE = "/dev/shm"  # the folder in each pod for its token and its heartbeat
_ROOT = "/opt/impala_mm"  # the project in the images of docker/
_WITHOUT_HOST: dict[str, Any] = {"ip": "", "ssh_port": 0, "ssh_username": "", "ssh_key_path": ""}
# Of the flags that a Slurm job has no use for, those that a pod has a use for.
_USED = ("max_restarts", "stall_secs", "stop_secs")
SECRETS = "/run/secrets/impala_mm"  # the folder in each pod of the run's Secret
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-_.A-Za-z0-9]{,61}[A-Za-z0-9])?)?")
NODE_KEY = re.compile(r"([-.a-z0-9]{1,253}/)?[A-Za-z0-9]([-_.A-Za-z0-9]{,61}[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{,251}[a-z0-9])?")  # of an object
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z]([-a-z0-9]{,61}[a-z0-9])?")  # of a pod in DNS
_DIGEST = "@sha256:[0-9a-f]{64}"
_IMAGE = re.compile(
    r"[a-z0-9][^\sA-Z:@]*(:\d+/[^\sA-Z:@]+)?" rf"(:\w[\w.-]{{,127}}({_DIGEST})?|{_DIGEST})"
)


class Pods(NamedTuple):
    """Pods that differ only in their numbers, which begin with 0."""

    name: str  # learners or launcher, learners-hosts, actors, actors-2, evaluators
    row: Worker
    size: int
    process: Process  # without what differs
    last_word: str = ""  # of the command: what differs, for a shell in which `n` is the number


def make_pods(
    name: str,
    workers: Sequence[Worker],
    request: Request,
    host_of: Callable[[int], str],
    launcher: str = "",
) -> list[Pods]:
    """Return the pods of the run `name`; equal rows have pods of one name. Raises PlanError.

    `host_of`: the host name of a learner's pod, by the learner's number; `launcher`: that of a pod
    for mpirun alone, if the first learner's is not to run it.
    """
    learners, others = _join_rows(workers)
    hosts = {row.line: host_of(i) for i, row in enumerate(learners)}
    own = image_installation(learners[0], launcher) if launcher else None
    made = process_plan.make_processes(
        [*learners, *others],
        request.launcher,
        request.flags | {"logdir": str(logdir(name, request))},
        lambda row: image_installation(row, hosts.get(row.line, "")),
        launcher=own,
    )
    processes = {process.name: process for process in made}
    alone = dataclasses.replace(learners[0], cores=1, memory="", gpus=0)
    first = ("launcher", alone) if own else ("learners", learners[0])
    found = [Pods(*first, 1, processes["learners"])]
    if host := processes.get("learners-1"):
        count = len(learners) if own else len(learners) - 1
        host = dataclasses.replace(host, command=host.command[:-1])
        found.append(Pods("learners-hosts", learners[0], count, host, f"$(({MPI_PORT} + n))"))
    evaluators = [process for process in made if process.job == "evaluator"]
    task, numbers = 0, Counter[str]()
    for row in others:
        numbers[row.job] += 1
        of_job = f"{row.job}s" + (f"-{numbers[row.job]}" if numbers[row.job] > 1 else "")
        if row.job == "evaluator":
            found.append(Pods(of_job, row, row.count, evaluators.pop(0)))
            continue
        process = processes[f"actor-{task}"]
        words = [word for word in process.command if not word.startswith("--task=")]
        process = dataclasses.replace(process, command=words)
        found.append(Pods(of_job, row, row.count, process, f"--task=$(({task} + n))"))
        task += row.count
    return found


def logdir(name: str, request: Request) -> PurePosixPath:
    """Return the run's folder in the pods; the volume is mounted at the folder above it.

    Raises PlanError if it cannot be mounted there.
    """
    given = request.flags.get("logdir") or name
    found = PurePosixPath("/" if "/" in given else "/runs", given)
    volume = found.parent
    hidden = any(PurePosixPath(own).is_relative_to(volume) for own in (STATE, SECRETS, _ROOT))
    if hidden or volume.is_relative_to(STATE) or ".." in found.parts or re.search("[:~]", given):
        raise PlanError(
            f"--logdir={given}: the volume cannot be mounted at {volume} in the pods; write a "
            f"folder such as /runs/{name}"
        )
    return found


def list_notes(request: Request) -> list[str]:
    """Return a note on each flag of the user that has no effect in pods."""
    notes = [
        f"--{name} is not used: Kubernetes starts and restarts the processes"
        for name, known in infos(request.launcher).items()
        if known.no_slurm and name in request.given and name not in _USED
    ]
    if not request.launcher.volume_claim and "mirror" not in request.given:
        notes.append(
            "without --volume_claim, or --mirror, the run's folder is lost with the first "
            "learner's pod"
        )
    return notes


def choose(flag: str, values: Sequence[str], job: str) -> list[str]:
    """Return the values of a flag for a job: its own, after those for all. Raises PlanError."""
    found: dict[str, list[str]] = {}
    for value in values:
        of_job = next((each for each in JOBS if value.startswith(f"{each}=")), "")
        found.setdefault(of_job, []).append(value.removeprefix(f"{of_job}=" if of_job else ""))
    chosen = found.get("", []) + found.get(job, [])
    if flag == "container_image":
        if not chosen:
            raise PlanError(f"--container_image: name the image of {job}s, such as team/rl:1.0")
        if not _IMAGE.fullmatch(chosen[-1]):
            raise PlanError(
                f"--container_image={chosen[-1]}: write the image in small letters, and with its "
                f"tag or digest, so that restarted pods have the same one: such as team/rl:1.0"
            )
    return chosen


def check_name(flag: str, name: str) -> None:
    """Refuse the name of an object that no cluster can have. Raises PlanError."""
    pattern, most, dots = {
        "namespace": (_NAMESPACE, 63, ""),
        "queue": (_NAME, 63, " and dots"),  # its name is also a label's value
    }.get(flag, (_NAME, 253, " and dots"))
    if name and (len(name) > most or not pattern.fullmatch(name)):
        raise PlanError(
            f"--{flag}={name}: such names in Kubernetes are at most {most} small letters, digits, "
            f"hyphens{dots}"
        )


def check_run(name: str, longest: str) -> None:
    """Refuse a run's name that Kubernetes refuses; `longest`: the longest name of its pods."""
    if not _LABEL.fullmatch(longest):
        why = f", and {longest} is too long" if len(longest) > 63 else ""
        raise PlanError(
            f"--tmux_sess={name}: Kubernetes takes at most 63 small letters, digits and hyphens, "
            f"the first a letter{why}"
        )


def _join_rows(workers: Sequence[Worker]) -> tuple[list[Worker], list[Worker]]:
    """Return the learners' rows, and the others' with equal ones joined; without their hosts."""
    learners: list[Worker] = []
    counts: dict[Worker, int] = {}
    for row in workers:
        # A pod sees the GPUs that it has been given, whatever their numbers.
        own = dataclasses.replace(
            row, gpus=row.num_gpus, cuda_visible_devices="", count=1, **_WITHOUT_HOST
        )
        if row.job == "learner":
            own = dataclasses.replace(own, tf_port=FIRST_PORT)
            if learners and dataclasses.replace(own, line=learners[0].line) != learners[0]:
                raise PlanError(
                    f"row {row.line}: it differs from the first learner's, and learners' pods are "
                    f"alike: give all learners the same cores, memory, gpus, workdir and setup"
                )
            learners.append(own)
        else:
            own = dataclasses.replace(own, line=0)
            counts[own] = counts.get(own, 0) + row.count
    return learners, [dataclasses.replace(row, count=count) for row, count in counts.items()]


def image_installation(row: Worker, address: str) -> Installation:
    """Return the installation in a container, which is that of the image."""
    root = row.workdir or _ROOT
    if not root.startswith("/"):
        raise PlanError(
            f"workdir {root}: a container has no folder of yours to start from; write the "
            f"project's absolute path in the image, such as {_ROOT}"
        )
    python = row.python or f"{root}/.venv/bin/python"
    return Installation(
        host_id=address,
        address=address,
        root=root,
        workdir=root,
        python=python,
        mpirun=str(PurePosixPath(python).with_name("mpirun")),
        folder=STATE,
        as_root=True,  # an image may run as root, without which these variables do nothing
    )
