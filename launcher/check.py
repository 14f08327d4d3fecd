"""What is looked at before anything is started: a line each, and what to do where it is not so."""

import concurrent.futures
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher import plan, windows
from launcher.config import LauncherConfig
from launcher.plan import Process
from launcher.workers import Worker

_GIB = 1.0  # that a run's folder should have room for
_SECONDS = 120.0  # for a program that is asked
_PACKAGES = "tensorflow", "tensorflow-cpu", "dm-sonnet", "numpy", "gymnasium"
_VERSIONS = (
    "import importlib.metadata as m, platform\n"
    "print('python', platform.python_version())\n"
    f"for name in {_PACKAGES}:\n"
    "    try: print(name, m.version(name))\n"
    "    except m.PackageNotFoundError: pass\n"
)

_HOROVOD = "import importlib.util as u; u.find_spec('horovod').name"

Ask = Callable[..., tuple[int, str]]  # (process, *arguments of its Python): exit code, output


class Finding(NamedTuple):
    """One line."""

    what: str
    good: bool | None  # None: it will do, but should be known
    said: str
    remedy: str = ""


def check(
    processes: Sequence[Process],
    learners: Sequence[Worker],
    config: LauncherConfig,
    flags: dict[str, str],
    logdir: Path,
    check_free: Callable[[str], None],
) -> list[Finding]:
    """All of them, at the same time; `check_free` raises OSError where an address is taken."""

    def ask(process: Process, *command: str) -> tuple[int, str]:
        """As the process itself would run: after its set-up, in its folder."""
        python = plan.python(process.worker)
        return _ask(plan.set_up(process.worker, config, [python, *command]), process)

    checks: list[Callable[[], list[Finding]]] = [
        lambda: _flags(ask, processes[0], flags),
        lambda: _ports(learners, check_free),
        lambda: _versions(ask, processes),
        lambda: _disk(logdir),
        lambda: _gpus(processes),
        _tmux,
        lambda: _mpi(ask, processes[0], len(learners)),
    ]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return [finding for found in pool.map(lambda each: each(), checks) for finding in found]


def failed(findings: Sequence[Finding]) -> bool:
    """Whether one of them is in the way of a start."""
    return any(finding.good is False for finding in findings)


def show(findings: Sequence[Finding]) -> None:
    """As a table."""
    table = Table(box=None, pad_edge=False, show_header=False)
    words = {True: ("good", "green"), None: ("note", "yellow"), False: ("BAD", "bold red")}
    for finding in findings:
        word, style = words[finding.good]
        remedy = f"\n-> {finding.remedy}" if finding.remedy else ""
        table.add_row(Text(word, style=style), finding.what, Text(finding.said + remedy))
    console = Console()
    if not console.is_terminal:  # nobody's sentences are to be cut at 80 columns
        console.width = 200
    console.print(table)


def _flags(ask: Ask, learners: Process, flags: dict[str, str]) -> list[Finding]:
    """As experiment.py itself judges them."""
    code, printed = ask(learners, plan.EXPERIMENT, "--validate", *plan.written(flags))
    last = (printed.strip().splitlines() or ["it said nothing"])[-1]
    if code == 0:
        return [Finding("flags", True, last.removeprefix("valid: "))]
    return [Finding("flags", False, last.removeprefix("error: "), "mend the command")]


def _ports(learners: Sequence[Worker], check_free: Callable[[str], None]) -> list[Finding]:
    taken = []
    for worker in learners:
        try:
            check_free(f"{worker.ip}:{worker.tf_port}")
        except OSError as error:
            remedy = "end what holds it, or name another tf_port in the CSV"
            taken.append(Finding("ports", False, f"row {worker.line}: {error}", remedy))
    ports = ", ".join(str(worker.tf_port) for worker in learners)
    return taken or [Finding("ports", True, f"{ports} free")]


def _versions(ask: Ask, processes: Sequence[Process]) -> list[Finding]:
    """Of each Python that is named; they are to agree."""
    found: dict[str, str] = {}
    findings = []
    for process in processes:
        python = plan.python(process.worker)
        if python in found:
            continue
        code, printed = ask(process, "-c", _VERSIONS)
        found[python] = ", ".join(printed.split("\n")[:-1])
        if code or "tensorflow" not in printed:
            said = f"{python}: {'no tensorflow' if not code else printed.strip()[-200:]}"
            remedy = "`make setup` where its clone is, or name another python in the CSV"
            findings.append(Finding("versions", False, said, remedy))
    if not findings and len(set(found.values())) > 1:
        for python, versions in found.items():
            findings.append(
                Finding("versions", None, f"{python}: {versions}", "the same everywhere is safer")
            )
    return findings or [Finding("versions", True, next(iter(found.values())))]


def _disk(logdir: Path) -> list[Finding]:
    there = next(path for path in (logdir, *logdir.parents) if path.exists())
    if not os.access(there, os.W_OK):
        return [Finding("disk", False, f"{there} cannot be written", "name another --logdir")]
    free = shutil.disk_usage(there).free / 2**30
    if free < _GIB:
        said = f"{free:.1f} GiB free in {there}"
        return [Finding("disk", False, said, "make room, or name another --logdir")]
    return [Finding("disk", True, f"{free:,.0f} GiB free for {logdir}")]


def _gpus(processes: Sequence[Process]) -> list[Finding]:
    named = {
        gpu.strip()
        for process in processes
        for gpu in process.worker.cuda_visible_devices.split(",")
        if gpu.strip().isdigit()
    }
    if not shutil.which("nvidia-smi"):
        if named:
            said = f"the CSV names GPU {', '.join(sorted(named))}, and there is no nvidia-smi here"
            return [Finding("GPUs", False, said, "install the driver, or leave the column empty")]
        return [Finding("GPUs", True, "none here, none asked for")]
    code, printed = _ask(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], processes[0])
    there = set(printed.split())
    if code or named - there:
        missing = ", ".join(sorted(named - there)) or printed.strip()[-200:]
        return [Finding("GPUs", False, f"not there: {missing}", "mend cuda_visible_devices")]
    return [Finding("GPUs", True, f"{len(there)} here")]


def _tmux() -> list[Finding]:
    if windows.here():
        return [Finding("tmux", True, "each process has a window of its own")]
    said = "there is none: processes run in the background, without windows"
    return [Finding("tmux", None, said, "apt-get install tmux")]


def _mpi(ask: Ask, learners: Process, count: int) -> list[Finding]:
    if count == 1:
        return [Finding("MPI", True, "not needed: there is one learner")]
    code, _ = ask(learners, "-c", _HOROVOD)
    mpirun = shutil.which(plan.mpirun(learners.worker))
    if code or not mpirun:
        what = "Horovod" if code else "mpirun"
        said = f"{count} learners need {what}, which is not there"
        return [Finding("MPI", False, said, "make horovod; or leave one learner in the CSV")]
    return [Finding("MPI", True, mpirun)]


def _ask(command: list[str], process: Process) -> tuple[int, str]:
    """A program's exit code, and all that it printed."""
    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
            cwd=process.workdir,
            env=os.environ | process.environment,
        )
    except OSError as error:
        return 127, f"{error.filename or command[0]}: {error.strerror}\n"
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]} gave no answer in {_SECONDS:g} s\n"
    return ran.returncode, ran.stdout
