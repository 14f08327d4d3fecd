"""The checks of one machine: whether it has what the processes planned for it need."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.checks.finding import Finding
from launcher.plan import process_plan, project
from launcher.plan.host_environment import Installation
from launcher.plan.process_plan import Process
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import Hosts
from launcher.remote.remote_node import HostUnavailable, OperationFailed

_MIN_DISK_GIB = 1.0  # GiB that must be free where the run's folder is
_PROGRAM_SECONDS = 120.0  # timeout of a program that a check runs
_MAX_CLOCK_SECONDS = 5.0  # difference of two hosts' clocks above which a note is printed
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
    """The checks of one machine, given the processes that it will run."""

    def __init__(
        self,
        hosts: Hosts,
        host_id: str,
        processes: Sequence[Process],
        learners: Sequence[Worker],
        config: LauncherConfig,
        bind_address: str = "",
    ):
        """Check what runs on one machine; `bind_address` is that of --bind_address, if given."""
        self._hosts, self._host_id = hosts, host_id
        self._bind_host = bind_address.rpartition(":")[0]
        self._processes, self._learners, self._config = processes, learners, config

    def check_ports(self, check_free: Callable[[str], None]) -> list[Finding]:
        """Check that the ports are free that the rows of this machine's learners name."""
        taken = []
        named = [worker for worker in self._learners if worker.tf_port]
        for worker in named:
            try:
                self._check_port(worker, check_free)
            except OSError as error:
                remedy = "stop the process that uses it, or set another tf_port in the CSV, or none"
                taken.append(self._failed("ports", f"row {worker.line}: {error}", remedy))
        ports = ", ".join(str(worker.tf_port) for worker in named)
        free = f"{ports} free" if named else "free ones are chosen at the start"
        return taken or [self._passed("ports", free)]

    def _check_port(self, worker: Worker, check_free: Callable[[str], None]) -> None:
        if not self._host_id:
            check_free(f"{self._bind_host or worker.ip}:{worker.tf_port}")
            return
        installation = next(
            p.installation for p in self._processes if p.installation.host_id == self._host_id
        )
        if installation.missing:
            return
        address = f"{self._bind_host or installation.address}:{worker.tf_port}"
        code, output = self._hosts[self._host_id].run_program(
            [installation.python, "-c", _PORT_PROGRAM, address],
            installation.root,
        )
        if code:
            raise OSError((output.strip().splitlines() or ["?"])[-1].removeprefix("OSError: "))

    def check_versions(self) -> list[Finding]:
        """Find the versions of Python and of packages, by running Python as the processes will.

        A Python runs once for each set-up and working directory that the rows combine with it.
        """
        found: dict[str, str] = {}
        findings = []
        for process in _different_starts(self._processes):
            installation = process.installation
            if installation.missing:
                remedy = "--deploy copies it to the host; or set workdir or python in the CSV"
                findings.append(self._failed("versions", installation.missing, remedy))
                continue
            code, printed = self._run_as_process(
                process, installation.python, "-c", _VERSIONS_PROGRAM
            )
            if code == 0 and "tensorflow" in printed:
                found[installation.python] = ", ".join(printed.split("\n")[:-1])
            else:
                findings.append(self._describe_failed_start(process, code, printed))
        if not findings and len(set(found.values())) > 1:
            return [
                self._finding(
                    "versions",
                    None,
                    f"{python}: {versions}",
                    "use the same versions for all processes",
                )
                for python, versions in found.items()
            ]
        return list(dict.fromkeys(findings)) or [
            self._passed("versions", next(iter(found.values())))
        ]

    def _describe_failed_start(self, process: Process, code: int, printed: str) -> Finding:
        """Return why the Python of a process does not run: its folder, its set-up, or itself."""
        python, workdir = process.installation.python, process.workdir
        why = _last_line(printed)
        if printed.startswith(f"{workdir}: "):
            remedy = "create the folder, or correct workdir in the CSV"
            return self._failed("workdir", why, remedy)
        if not printed.startswith("python "):
            setup_code, setup_printed = self._run_as_process(process, "true")
            if setup_code:
                last = _last_line(setup_printed)
                message = f"the set-up commands failed (exit code {setup_code}): {last}"
                remedy = "correct setup in the CSV, or --setup"
                return self._failed("setup", message, remedy)
        if code == 0:
            why = "TensorFlow is not installed"
        remedy = "run `make setup` in the host's clone, or correct python in the CSV"
        return self._failed("versions", f"{python}: {why.removeprefix(f'{python}: ')}", remedy)

    def check_disk(self, logdir: Path) -> list[Finding]:
        """Check that the run's folder can be written and that its disk has space."""
        try:
            folder, free, writable = self._hosts.call(self._host_id, "disk_space", path=str(logdir))
        except (HostUnavailable, OperationFailed) as error:
            return [self._failed("disk", str(error), "fix it, or set another --logdir")]
        if not writable:
            remedy = "change its permissions, or set another --logdir"
            return [self._failed("disk", f"{folder} is not writable", remedy)]
        free /= 2**30
        if free < _MIN_DISK_GIB:
            message = f"{free:.1f} GiB free in {folder}, {_MIN_DISK_GIB:g} GiB needed"
            return [self._failed("disk", message, "free some space, or set another --logdir")]
        if self._host_id:  # hosts with equal messages share a line, which exact sizes would prevent
            return [self._passed("disk", "over 1 GiB free")]
        return [self._passed("disk", f"{free:,.0f} GiB free for {logdir}")]

    def check_gpus(self) -> list[Finding]:
        """Check that the GPUs in the column cuda_visible_devices exist."""
        named = {
            gpu
            for worker in (*[process.worker for process in self._processes], *self._learners)
            for gpu in worker.gpus
        }
        code, printed = self._hosts[self._host_id].run_program(
            ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
        )
        if code == 127:
            if named:
                gpus = ", ".join(sorted(named))
                message = f"the CSV names GPU {gpus}, but nvidia-smi is not installed"
                return [
                    self._failed(
                        "GPUs", message, "install the driver, or leave cuda_visible_devices empty"
                    )
                ]
            return [self._passed("GPUs", "no GPU found, and none in the CSV")]
        present = [line.split(", ") for line in printed.splitlines()]
        if absent := [gpu for gpu in named if not _is_present(gpu, present)]:
            missing = ", ".join(sorted(absent))
            message = f"the CSV names GPU {missing}, which does not exist"
            return [self._failed("GPUs", message, "correct cuda_visible_devices in the CSV")]
        if code:
            message = f"nvidia-smi failed: {printed.strip()[-200:]}"
            return [self._failed("GPUs", message, "repair or remove the GPU driver")]
        return [self._passed("GPUs", f"{len(present)} found")]

    def check_tmux(self) -> list[Finding]:
        """Check that tmux is installed; a run works without it, but has no windows."""
        if self._facts()["tmux"]:
            return [self._passed("tmux", "installed; each process gets its own window")]
        message = (
            "not installed, or its folder belongs to others: processes run in the background, "
            "without windows"
        )
        return [self._finding("tmux", None, message, "apt-get install tmux")]

    def check_logout(self) -> list[Finding]:
        """Check that systemd lets the processes continue when the user's login ends."""
        if self._facts()["stays"]:
            return []
        message = "systemd ends all processes of the user at the logout (KillUserProcesses=yes)"
        remedy = "run `loginctl enable-linger` on the host, or set KillUserProcesses=no"
        return [self._finding("logout", None, message, remedy)]

    def check_clock(self) -> list[Finding]:
        """Compare the host's clock with this machine's: times in files and logs depend on it."""
        started = time.time()
        remote_time = self._facts()["time"]
        offset = remote_time - (started + time.time()) / 2
        if abs(offset) > _MAX_CLOCK_SECONDS:
            relation = "ahead of" if offset > 0 else "behind"
            message = f"its clock is {abs(offset):.0f} s {relation} this machine's"
            return [self._finding("clock", None, message, "synchronise it with NTP")]
        return [self._passed("clock", f"within {_MAX_CLOCK_SECONDS:g} s of this machine's")]

    def check_cores(self) -> list[Finding]:
        """Check that the host has enough cores: each actor can keep one busy."""
        actors = sum(process.job == "actor" for process in self._processes)
        cores = self._facts()["cores"]
        if actors > 2 * cores:
            message = f"{actors} actors share {cores} core{'s' * (cores != 1)}"
            remedy = "fewer actors with a larger --num_envs have the same throughput"
            return [self._finding("CPU", None, message, remedy)]
        return [self._passed("CPU", "enough cores for its actors")]

    def check_mpi(self, installation: Installation, count: int) -> list[Finding]:
        """Check that Horovod and mpirun are installed, which several learners need."""
        learners = Process(
            "", "", self._learners[0], installation, [], {}, installation.workdir, ""
        )
        code, _ = self._run_as_process(learners, installation.python, "-c", _HOROVOD_PROGRAM)
        if code or "/" not in installation.mpirun:
            what = "Horovod" if code else "mpirun"
            message = f"{count} learners need {what}, which is not installed"
            builds = "make horovod" if installation.host_id else project.BUILD_HOROVOD
            remedy = f"`{builds}` builds it" if code else "install Open MPI"
            remedy += "; or leave only one learner in the CSV"
            return [self._failed("MPI", message, remedy)]
        return [self._passed("MPI", installation.mpirun)]

    def _run_as_process(self, process: Process, *command: str) -> tuple[int, str]:
        """Run a command as the process would run: after its set-up commands, in its folder."""
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


def _different_starts(processes: Sequence[Process]) -> list[Process]:
    """Return the first of all processes with the same Python, set-up and working directory."""
    found: dict[tuple[str, ...], Process] = {}
    for process in processes:
        installation = process.installation
        key = installation.python, process.worker.setup, process.workdir, installation.missing
        found.setdefault(key, process)
    return list(found.values())


def _last_line(printed: str) -> str:
    return (printed.strip().splitlines() or ["no output"])[-1][-200:]


def _is_present(gpu: str, present: Sequence[Sequence[str]]) -> bool:
    """Return whether a GPU, by number or by the beginning of its UUID, is among [number, UUID].

    nvidia-smi lists no parts of GPUs (MIG) in this way, so these count as present.
    """
    return gpu.startswith("MIG-") or any(
        each[0] == gpu or (not gpu.isdigit() and each[-1].startswith(gpu)) for each in present
    )
