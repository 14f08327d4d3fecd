"""The checks of one machine: is there what its processes need?"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.checks.finding import Finding
from launcher.plan import process_plan
from launcher.plan.host_environment import Installation
from launcher.plan.process_plan import Process
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import Hosts
from launcher.remote.remote_node import HostUnavailable, OperationFailed

_MIN_DISK_GIB = 1.0  # that a run's folder should have room for
_PROGRAM_SECONDS = 120.0  # for a program that is asked
_MAX_CLOCK_SECONDS = 5.0  # that another clock may be wrong by
_PACKAGES = "tensorflow", "tensorflow-cpu", "dm-sonnet", "numpy", "gymnasium"
_VERSIONS_PROGRAM = (
    "import importlib.metadata as m, platform\n"
    "print('python', platform.python_version())\n"
    f"for name in {_PACKAGES}:\n"
    "    try: print(name, m.version(name))\n"
    "    except m.PackageNotFoundError: pass\n"
)
_HOROVOD_PROGRAM = "import importlib.util as u; u.find_spec('horovod').name"
_PORT_PROGRAM = "import sys; from impala_mm.runtime import ports; ports.check_free(sys.argv[1])"


class MachineChecks:
    """The checks of one machine, with the processes that it is to run."""

    def __init__(
        self,
        hosts: Hosts,
        host_id: str,
        processes: Sequence[Process],
        learners: Sequence[Worker],
        config: LauncherConfig,
    ):
        self._hosts, self._host_id = hosts, host_id
        self._processes, self._learners, self._config = processes, learners, config

    def check_ports(self, check_free: Callable[[str], None]) -> list[Finding]:
        """That its learners are to listen on."""
        taken = []
        for worker in self._learners:
            try:
                self._check_port(worker, check_free)
            except OSError as error:
                remedy = "end what holds it, or name another tf_port in the CSV"
                taken.append(self._failed("ports", f"row {worker.line}: {error}", remedy))
        ports = ", ".join(str(worker.tf_port) for worker in self._learners)
        return taken or [self._passed("ports", f"{ports} free")]

    def _check_port(self, worker: Worker, check_free: Callable[[str], None]) -> None:
        if not self._host_id:
            check_free(f"{worker.ip}:{worker.tf_port}")
            return
        installation = next(
            p.installation for p in self._processes if p.installation.host_id == self._host_id
        )
        if installation.missing:
            return
        code, output = self._hosts[self._host_id].run_program(
            [installation.python, "-c", _PORT_PROGRAM, f"{installation.address}:{worker.tf_port}"],
            installation.root,
        )
        if code:
            raise OSError((output.strip().splitlines() or ["?"])[-1].removeprefix("OSError: "))

    def check_versions(self) -> list[Finding]:
        """Of each Python that its rows name."""
        found: dict[str, str] = {}
        findings = []
        for process in self._processes:
            installation = process.installation
            if installation.missing:
                remedy = "--deploy brings it there; or name its workdir or python in the CSV"
                findings.append(self._failed("versions", installation.missing, remedy))
            elif installation.python not in found:
                code, printed = self._run_as_process(
                    process, installation.python, "-c", _VERSIONS_PROGRAM
                )
                found[installation.python] = ", ".join(printed.split("\n")[:-1])
                if code or "tensorflow" not in printed:
                    message = f"{'no tensorflow' if not code else printed.strip()[-200:]}"
                    remedy = "`make setup` where its clone is, or name another python in the CSV"
                    findings.append(
                        self._failed("versions", f"{installation.python}: {message}", remedy)
                    )
        if not findings and len(set(found.values())) > 1:
            return [
                self._finding("versions", None, f"{python}: {versions}", "the same is safer")
                for python, versions in found.items()
            ]
        return list(dict.fromkeys(findings)) or [
            self._passed("versions", next(iter(found.values())))
        ]

    def check_disk(self, logdir: Path) -> list[Finding]:
        """For the run's folder there."""
        try:
            folder, free, writable = self._hosts.call(self._host_id, "disk_space", path=str(logdir))
        except (HostUnavailable, OperationFailed) as error:
            return [self._failed("disk", str(error), "mend it, or name another --logdir")]
        if not writable:
            return [self._failed("disk", f"{folder} cannot be written", "name another --logdir")]
        free /= 2**30
        if free < _MIN_DISK_GIB:
            remedy = "make room, or name another --logdir"
            return [self._failed("disk", f"{free:.1f} GiB free in {folder}", remedy)]
        if self._host_id:  # each has another figure
            return [self._passed("disk", "over 1 GiB free")]
        return [self._passed("disk", f"{free:,.0f} GiB free for {logdir}")]

    def check_gpus(self) -> list[Finding]:
        """That its rows name."""
        named = {
            gpu.strip()
            for worker in (*[process.worker for process in self._processes], *self._learners)
            for gpu in worker.cuda_visible_devices.split(",")
            if gpu.strip().isdigit()
        }
        code, printed = self._hosts[self._host_id].run_program(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        )
        if code == 127:
            if named:
                gpus = ", ".join(sorted(named))
                message = f"the CSV names GPU {gpus}, and there is no nvidia-smi here"
                return [
                    self._failed("GPUs", message, "install the driver, or leave the column empty")
                ]
            return [self._passed("GPUs", "none here, none asked for")]
        present = set(printed.split())
        if code or named - present:
            missing = ", ".join(sorted(named - present)) or printed.strip()[-200:]
            return [self._failed("GPUs", f"not there: {missing}", "mend cuda_visible_devices")]
        return [self._passed("GPUs", f"{len(present)} here")]

    def check_tmux(self) -> list[Finding]:
        """Without it there are no windows."""
        if self._facts()["tmux"]:
            return [self._passed("tmux", "each process has a window of its own")]
        message = "there is none: processes run in the background, without windows"
        return [self._finding("tmux", None, message, "apt-get install tmux")]

    def check_clock(self) -> list[Finding]:
        """What is compared by time, files and logs, is odd where it is wrong."""
        started = time.time()
        remote_time = self._facts()["time"]
        offset = remote_time - (started + time.time()) / 2
        if abs(offset) > _MAX_CLOCK_SECONDS:
            message = (
                f"its clock is {abs(offset):.0f} s {'ahead of' if offset > 0 else 'behind'} ours"
            )
            return [self._finding("clock", None, message, "let it keep the time by NTP")]
        return [self._passed("clock", f"within {_MAX_CLOCK_SECONDS:g} s of ours")]

    def check_cores(self) -> list[Finding]:
        """An actor needs one."""
        actors = sum(process.job == "actor" for process in self._processes)
        cores = self._facts()["cores"]
        if actors > 2 * cores:
            message = f"{actors} actors share {cores} cores"
            return [self._finding("CPU", None, message, "fewer with more --num_envs play as fast")]
        return [self._passed("CPU", "enough cores for its actors")]

    def check_mpi(self, installation: Installation, count: int) -> list[Finding]:
        """For more learners than one."""
        learners = Process(
            "", "", self._learners[0], installation, [], {}, installation.workdir, ""
        )
        code, _ = self._run_as_process(learners, installation.python, "-c", _HOROVOD_PROGRAM)
        if code or "/" not in installation.mpirun:
            what = "Horovod" if code else "mpirun"
            message = f"{count} learners need {what}, which is not there"
            remedy = "make horovod; or leave one learner in the CSV"
            return [self._failed("MPI", message, remedy)]
        return [self._passed("MPI", installation.mpirun)]

    # -- how it is asked

    def _run_as_process(self, process: Process, *command: str) -> tuple[int, str]:
        """As the process itself would run: after its set-up, in its folder."""
        return self._hosts[self._host_id].run_program(
            process_plan.with_setup(process.worker, self._config, list(command)),
            workdir=process.workdir,
            environment=process.environment,
            seconds=_PROGRAM_SECONDS,
        )

    def _facts(self) -> dict[str, Any]:
        return self._hosts.call(self._host_id, "facts", roots=[], pythons=[])

    def _finding(self, subject: str, ok: bool | None, message: str, remedy: str = "") -> Finding:
        return Finding(subject, ok, message, remedy, self._host_id)

    def _passed(self, subject: str, message: str) -> Finding:
        return self._finding(subject, True, message)

    def _failed(self, subject: str, message: str, remedy: str) -> Finding:
        return self._finding(subject, False, message, remedy)
