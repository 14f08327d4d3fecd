"""The checks of one machine: whether it has what the processes planned for it need."""

from collections.abc import Iterable, Sequence

from impala_mm.runtime import ports
from launcher.checks.check import CheckedHost, Finding, Scope, check, failed, note, passed
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.plan import project
from launcher.plan.process_plan import Process

_MIN_DISK_GIB = 1.0  # GiB that must be free where the run's folder is
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


@check("MPI", Scope.LEARNER_HOSTS)
def check_mpi(host: CheckedHost) -> Iterable[Finding]:
    """Check that Horovod and mpirun are installed, which several learners need."""
    count = len(host.run.learners)
    if count == 1:
        yield passed("not needed for one learner")
        return
    for process in host.learners:
        installation = process.installation
        if installation.missing:
            continue
        code, _ = host.run_as_process(process, installation.python, "-c", _HOROVOD_PROGRAM)
        if not code and "/" in installation.mpirun:
            yield passed(installation.mpirun)
            continue
        builds = "make horovod" if host.host_id else project.BUILD_HOROVOD
        yield failed(
            f"{count} learners need {'Horovod' if code else 'mpirun'}, which is not installed",
            (f"`{builds}` builds it" if code else "install Open MPI")
            + "; or leave only one learner in the CSV",
        )


@check("ports", Scope.LEARNER_HOSTS)
def check_ports(host: CheckedHost) -> Iterable[Finding]:
    """Check that the ports are free that the rows of this machine's learners name."""
    learners = [process for process in host.learners if process.worker.tf_port]
    taken = False
    for process in learners:
        try:
            _check_port(host, process)
        except OSError as error:
            taken = True
            remedy = "stop the process that uses it, or set another tf_port in the CSV, or none"
            yield failed(f"row {process.worker.line}: {error}", remedy)
    if not taken:
        numbers = ", ".join(str(process.worker.tf_port) for process in learners)
        yield passed(f"{numbers} free" if learners else "free ones are chosen at the start")


def _check_port(host: CheckedHost, learner: Process) -> None:
    installation = learner.installation
    address = f"{host.run.bind_host or installation.address}:{learner.worker.tf_port}"
    if not host.host_id:
        ports.check_free(address)
    elif not installation.missing:
        code, output = host.run_program(
            [installation.python, "-c", _PORT_PROGRAM, address], installation.root
        )
        if code:
            raise OSError(_last_line(output).removeprefix("OSError: "))


@check("versions", Scope.HOSTS)
def check_versions(host: CheckedHost) -> Iterable[Finding]:
    """Find the versions of Python and of packages, by running Python as the processes will.

    A Python runs once for each set-up and working directory that the rows combine with it.
    """
    versions: dict[str, str] = {}  # by Python
    failures = []
    for process in _different_starts(host.processes):
        installation = process.installation
        if installation.missing:
            remedy = "--deploy copies it to the host; or set workdir or python in the CSV"
            failures.append(failed(installation.missing, remedy))
            continue
        code, printed = host.run_as_process(process, installation.python, "-c", _VERSIONS_PROGRAM)
        if code == 0 and "tensorflow" in printed:
            versions[installation.python] = ", ".join(printed.split("\n")[:-1])
        else:
            failures.append(_describe_failed_start(host, process, code, printed))
    if failures:
        yield from failures
    elif len(set(versions.values())) > 1:
        remedy = "use the same versions for all processes"
        yield from (note(f"{python}: {each}", remedy) for python, each in versions.items())
    else:
        yield passed(next(iter(versions.values())))


def _describe_failed_start(host: CheckedHost, process: Process, code: int, printed: str) -> Finding:
    """Return why the Python of a process does not run: its folder, its set-up, or itself."""
    python, workdir = process.installation.python, process.workdir
    error = _last_line(printed)
    if printed.startswith(f"{workdir}: "):
        remedy = "create the folder, or correct workdir in the CSV"
        return failed(error, remedy)._replace(subject="workdir")
    if not printed.startswith("python "):
        setup_code, setup_printed = host.run_as_process(process, "true")
        if setup_code:
            last = _last_line(setup_printed)
            message = f"the set-up commands failed (exit code {setup_code}): {last}"
            return failed(message, "correct setup in the CSV, or --setup")._replace(subject="setup")
    if code == 0:
        error = "TensorFlow is not installed"
    remedy = "run `make setup` in the host's clone, or correct python in the CSV"
    return failed(f"{python}: {error.removeprefix(f'{python}: ')}", remedy)


@check("disk", Scope.HOSTS)
def check_disk(host: CheckedHost) -> Iterable[Finding]:
    """Check that the run's folder can be written and that its disk has space."""
    logdir = host.folder
    try:
        folder, free, writable = host.call("disk_space", path=str(logdir))
    except (HostUnavailable, OperationFailed) as error:
        yield failed(str(error), "fix it, or set another --logdir")
        return
    free /= 2**30
    if not writable:
        remedy = "change its permissions, or set another --logdir"
        yield failed(f"{folder} is not writable", remedy)
    elif free < _MIN_DISK_GIB:
        message = f"{free:.1f} GiB free in {folder}, {_MIN_DISK_GIB:g} GiB needed"
        yield failed(message, "free some space, or set another --logdir")
    elif host.host_id:  # hosts with equal messages share a line, which exact sizes would prevent
        yield passed("over 1 GiB free")
    else:
        yield passed(f"{free:,.0f} GiB free for {logdir}")


@check("GPUs", Scope.HOSTS)
def check_gpus(host: CheckedHost) -> Iterable[Finding]:
    """Check that the GPUs in the column cuda_visible_devices exist."""
    requested = {gpu for process in host.processes for gpu in process.worker.gpu_names}
    code, printed = host.run_program(
        ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
    )
    if code == 127 and not requested:
        yield passed("no GPU found, and none in the CSV")
        return
    if code == 127:
        gpus = ", ".join(sorted(requested))
        message = f"the CSV names GPU {gpus}, but nvidia-smi is not installed"
        yield failed(message, "install the driver, or leave cuda_visible_devices empty")
        return
    present = [line.split(", ") for line in printed.splitlines()]
    if absent := [gpu for gpu in requested if not _is_present(gpu, present)]:
        message = f"the CSV names GPU {', '.join(sorted(absent))}, which does not exist"
        yield failed(message, "correct cuda_visible_devices in the CSV")
    elif code:
        message = f"nvidia-smi failed: {printed.strip()[-200:]}"
        yield failed(message, "repair or remove the GPU driver")
    else:
        yield passed(f"{len(present)} found")


@check("tmux", Scope.HOSTS)
def check_tmux(host: CheckedHost) -> Iterable[Finding]:
    """Check that tmux is installed; a run works without it, but has no windows."""
    if host.facts["tmux"]:
        yield passed("installed; each process gets its own window")
    else:
        yield note(
            "not installed, or its folder belongs to others: processes run in the background, "
            "without windows",
            "apt-get install tmux",
        )


@check("logout", Scope.HOSTS)
def check_logout(host: CheckedHost) -> Iterable[Finding]:
    """Check that systemd lets the processes continue when the user's login ends."""
    if not host.facts["stays"]:
        yield note(
            "systemd ends all processes of the user at the logout (KillUserProcesses=yes)",
            "run `loginctl enable-linger` on the host, or set KillUserProcesses=no",
        )


@check("clock", Scope.REMOTE_HOSTS)
def check_clock(host: CheckedHost) -> Iterable[Finding]:
    """Compare the host's clock with this machine's: times in files and logs depend on it."""
    offset = host.facts["ahead"]
    if abs(offset) > _MAX_CLOCK_SECONDS:
        relation = "ahead of" if offset > 0 else "behind"
        message = f"its clock is {abs(offset):.0f} s {relation} this machine's"
        yield note(message, "synchronise it with NTP")
    else:
        yield passed(f"within {_MAX_CLOCK_SECONDS:g} s of this machine's")


@check("CPU", Scope.REMOTE_HOSTS)
def check_cores(host: CheckedHost) -> Iterable[Finding]:
    """Check that the host has enough cores: each actor can keep one busy."""
    actors = sum(process.job == "actor" for process in host.processes)
    cores = host.facts["cores"]
    if actors > 2 * cores:
        message = f"{actors} actors share {cores} core{'s' * (cores != 1)}"
        yield note(message, "fewer actors with a larger --num_envs have the same throughput")
    else:
        yield passed("enough cores for its actors")


def _different_starts(processes: Sequence[Process]) -> list[Process]:
    """Return the first of all processes with the same Python, set-up and working directory."""
    starts: dict[tuple[str, ...], Process] = {}
    for process in processes:
        installation = process.installation
        key = installation.python, process.worker.setup, process.workdir, installation.missing
        starts.setdefault(key, process)
    return list(starts.values())


def _last_line(printed: str) -> str:
    return (printed.strip().splitlines() or ["no output"])[-1][-200:]


def _is_present(gpu: str, present: Sequence[Sequence[str]]) -> bool:
    """Return whether a GPU, by number or by the beginning of its UUID, is among [number, UUID].

    nvidia-smi lists no parts of GPUs (MIG) in this way, so these count as present.
    """
    return gpu.startswith("MIG-") or any(
        row[0] == gpu or (not gpu.isdigit() and row[-1].startswith(gpu)) for row in present
    )
