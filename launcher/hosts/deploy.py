"""The deployment of this project to the hosts of a run: copies what changed and sets it up.

Hosts are served at the same time, except those that share a folder, which take turns. The CSV's
rows say which folders need the project (`Destination`). Each host reports which files it lacks
(`deployed_files`), and receives these. Then a Python of the host runs the project's own
`docker/install.py`.
"""

import contextlib
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.hosts import agent_bundle, project_files
from launcher.hosts.hosts import Hosts, host_id_of
from launcher.hosts.progress import HostsProgress
from launcher.hosts.project_files import FileSet
from launcher.hosts.remote_files import RemoteFiles
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.plan import host_environment, process_plan, project
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.supervise.callbacks import Say
from launcher.supervise.deployed_files import Comparison, arrival_path, arrivals, file_identity
from launcher.supervise.file_service import LocalFiles
from launcher.supervise.json_files import from_json

WHEELHOUSE_FOLDER = "~/.cache/impala_mm/wheelhouse"  # on each host
_SET_UP_SECONDS = 3600.0
_LINE_PREFIX = "[set-up] "
# The frontend's version of Python is tried first: the same version everywhere is safer.
_PYTHONS = (f"python{sys.version_info[0]}.{sys.version_info[1]}", *agent_bundle.SYSTEM_PYTHONS)
# Runs the project's own set-up, in the project's folder, with the first Python that suits it.
_SET_UP = f"""
for python in {" ".join(_PYTHONS)}; do
  if "$python" docker/install.py --fits >/dev/null 2>&1; then
    exec "$python" docker/install.py "$@"
  fi
done
for python in {" ".join(_PYTHONS)}; do
  if command -v "$python" >/dev/null 2>&1; then exec "$python" docker/install.py "$@"; fi
done
echo "[set-up] this host has no Python: apt-get install python3 python3-venv"
exit 1
"""
_FULL = re.compile("no space left|quota", re.IGNORECASE)
# Remedies by a pattern in the output of set-up.
_REMEDIES = (
    (
        "reach the package index|resolv|timed out",
        f"--wheelhouse=FOLDER copies the packages to the host, and `{project.FILL_WHEELHOUSE}` "
        "makes that folder here",
    ),
    (
        "no space left|disk",
        "free space on that host, or name a workdir on a larger disk in the CSV",
    ),
)


class Destination(NamedTuple):
    """A folder on a host where the project is deployed."""

    host_id: str
    folder: str
    role: str  # learner if one of its rows is one, else actor
    gpus: bool  # whether its learners use GPUs
    needs_setup: bool  # False: all of its rows name a Python of their own
    row: Worker  # one of them
    name: str  # its host id, with its folder if some hosts have two

    @property
    def device(self) -> str:
        """The device that its environment is installed for."""
        return "gpu" if self.gpus else "cpu"


def find_destinations(workers: Sequence[Worker]) -> list[Destination]:
    """Return the destinations of all rows on other hosts."""
    rows: dict[tuple[str, str], list[Worker]] = {}
    for row in workers:
        if host_id_of(row):
            rows.setdefault(
                (host_id_of(row), row.workdir or host_environment.DEPLOY_FOLDER), []
            ).append(row)
    is_one_each = len({host_id for host_id, _ in rows}) == len(rows)
    found = []
    for (host_id, folder), some in rows.items():
        learners = [row for row in some if row.job == "learner"]
        found.append(
            Destination(
                host_id=host_id,
                folder=folder,
                role="learner" if learners else "actor",
                gpus=any(row.num_gpus for row in learners),
                # A relative path is a Python within the project's own environment.
                needs_setup=any(not row.python or row.python.startswith(".") for row in some),
                row=next((row for row in some if not row.python), some[0]),
                name=host_id if is_one_each else f"{host_id}:{folder}",
            )
        )
    return found


def deploy_project(
    hosts: Hosts,
    workers: Sequence[Worker],
    config: LauncherConfig,
    say: Say,
    sources: Mapping[str, Path],
) -> dict[str, str]:
    """Deploy the project; return the reason by host id for each host that failed.

    `sources` are files of the user's modules, which are copied into the project's folder, by name.
    Hosts that cannot be reached are skipped. Raise LauncherError if --wheelhouse is no folder or
    lacks packages, or if the user's files cannot be copied.
    """
    wheels = FileSet({}, {}, {})
    if config.wheelhouse:
        if not Path(config.wheelhouse).is_dir():
            raise OperationFailed(f"--wheelhouse={config.wheelhouse}: there is no such folder")
        wheels = FileSet.of(project_files.list_all_files(Path(config.wheelhouse)))
    wanted = [
        s
        for s in find_destinations(workers)
        if s.host_id in hosts.remote_nodes and not hosts.remote_nodes[s.host_id].error
    ]
    if not wanted:
        return {}
    started = time.monotonic()
    with HostsProgress([destination.name for destination in wanted]) as progress:
        deployment = Deployment(hosts, config, wheels, progress, sources)
        failed = deployment.run(wanted)
    ready = len({destination.host_id for destination in wanted} - failed.keys())
    say(
        f"code and environment: {ready} of {ready + len(failed)} hosts ready; {deployment.sent} "
        f"files sent ({time.monotonic() - started:.1f} s)"
    )
    return failed


class Deployment:
    """A deployment to all hosts.

    `wheels`: the wheelhouse's files. `sources`: files of the user's modules, by name.
    """

    def __init__(
        self,
        hosts: Hosts,
        config: LauncherConfig,
        wheels: FileSet,
        progress: HostsProgress,
        sources: Mapping[str, Path],
    ):
        self._hosts, self._config = hosts, config
        files = project_files.list_project_files()
        added = project_files.choose_added(files, sources)
        self._project, self._wheels = FileSet.of(files | added), wheels
        if tops := sorted({name.partition("/")[0] for name in added}):
            progress.note(f"your modules are copied into the project's folder: {', '.join(tops)}")
        self._progress = progress
        self._finished: dict[str, threading.Event] = {}  # by name
        self.sent = 0

    def run(self, destinations: Sequence[Destination]) -> dict[str, str]:
        """Deploy to all destinations; return the reason by host id for each that failed."""
        comparisons = self._for_each(self._compare_all, destinations)
        comparable = [
            destination
            for destination in destinations
            if isinstance(comparisons[destination.name], dict)
        ]
        joined = [
            self._with_shared_role(destination, comparable, comparisons)
            for destination in comparable
        ]
        for role, device in {(s.role, s.device) for s in joined if s.needs_setup}:
            if self._wheels.paths:
                self._check_wheelhouse(role, device)
        self._finished = {destination.name: threading.Event() for destination in joined}
        first: dict[str, Destination] = {}
        waits_for: dict[str, list[Destination]] = {}
        # Destinations that share a folder, or a host, wait for the first of them.
        for destination in joined:
            marks = [
                destination.host_id,
                *(look.mark for look in comparisons[destination.name].values()),
            ]
            waits_for[destination.name] = [first[mark] for mark in marks if mark in first]
            for mark in marks:
                first.setdefault(mark, destination)
        results = self._for_each(
            lambda s: self._deploy_to(s, waits_for[s.name], comparisons[s.name]), joined
        )
        ends = comparisons | results
        return {
            destination.host_id: str(end).removeprefix(f"{destination.host_id}: ")
            for destination in destinations
            if isinstance(end := ends[destination.name], Exception)
        }

    def _for_each(
        self, step: Callable[[Destination], Any], destinations: Sequence[Destination]
    ) -> dict[str, Any]:
        """Call `step` for all; return its result, OperationFailed or HostUnavailable by name."""
        by_name = {destination.name: destination for destination in destinations}

        def one(name: str) -> Any:
            try:
                return step(by_name[name])
            except (OperationFailed, HostUnavailable) as error:
                why = str(error).removeprefix(f"{by_name[name].host_id}: ")
                self._progress.finish(name, why)
                raise

        return self._hosts.for_each(one, list(by_name))

    def _compare_all(self, destination: Destination) -> dict[str, Comparison]:
        """Return the comparison of the host's files with ours, by "project" and "wheels"."""
        look = self._compare_folder(destination, destination.folder, self._project)
        comparisons = {"project": look}
        if self._wheels.paths:
            look = self._compare_folder(destination, WHEELHOUSE_FOLDER, self._wheels)
            comparisons["wheels"] = look
        return comparisons

    def _compare_folder(self, destination: Destination, folder: str, files: FileSet) -> Comparison:
        clone = file_identity(next(iter(files.paths.values())))
        node = self._hosts.remote_nodes[destination.host_id]
        with contextlib.closing(RemoteFiles(node)) as store:
            comparison = store.compare_deployed(folder, files.digests, clone)
        found = from_json(Comparison, comparison) if isinstance(comparison, dict) else None
        if not found or not found.missing.keys() <= files.paths.keys():  # it may lie
            raise OperationFailed("its answer about the project's files has another form")
        if found.why:
            raise OperationFailed(found.why)
        return found

    def _with_shared_role(
        self,
        destination: Destination,
        destinations: Sequence[Destination],
        comparisons: dict[str, Any],
    ) -> Destination:
        """Return the destination with the role and device of all that share its folder.

        They share one environment, which must suit all of them.
        """
        mark = comparisons[destination.name]["project"].mark
        same = [other for other in destinations if comparisons[other.name]["project"].mark == mark]
        learners = any(other.role == "learner" for other in same)
        nvidia = any(o.gpus and comparisons[o.name]["project"].nvidia for o in same)
        return destination._replace(role="learner" if learners else "actor", gpus=nvidia)

    def _check_wheelhouse(self, role: str, device: str) -> None:
        """Raise OperationFailed if the wheelhouse lacks packages, before gigabytes are sent."""
        program = [
            sys.executable,
            str(project.path_of("docker/wheelhouse.py")),
            "--check",
        ]
        options = [f"--role={role}", f"--device={device}", self._config.wheelhouse]
        ran = subprocess.run(
            [*program, *options], capture_output=True, text=True, check=False, timeout=60
        )
        if ran.returncode:
            lines = (ran.stdout + ran.stderr).strip().splitlines()
            raise OperationFailed(lines[-1].removeprefix(_LINE_PREFIX))

    # -- one destination

    def _deploy_to(
        self,
        destination: Destination,
        waits_for: Sequence[Destination],
        comparisons: dict[str, Any],
    ) -> None:
        try:
            for other in waits_for:
                news = f"waiting for {other.host_id}, which shares a folder with it"
                self._progress.update(destination.name, news)
                self._finished[other.name].wait(_SET_UP_SECONDS)
            if waits_for:
                comparisons = self._compare_all(destination)
            options = [f"--role={destination.role}", f"--device={destination.device}"]
            if self._wheels.paths:
                self._copy_files(destination, comparisons["wheels"], self._wheels, "packages")
                options.append(f"--wheelhouse={comparisons['wheels'].folder}")
            self._copy_files(destination, comparisons["project"], self._project, "the project")
            if destination.needs_setup:
                self._set_up(destination, comparisons["project"].folder, options)
        finally:
            self._finished[destination.name].set()
        self._progress.finish(destination.name, "")

    def _copy_files(
        self,
        destination: Destination,
        comparison: Comparison,
        files: FileSet,
        what: str,
    ) -> None:
        if comparison.settled and not comparison.missing:
            return
        folder, modes = comparison.folder, {}
        reads, writes, size = [], [], 0
        for name, arrived in comparison.missing.items():
            path, state, digest = files.paths[name], files.states[name], files.digests[name]
            modes[name] = state.st_mode & 0o777
            if stat.S_ISREG(state.st_mode):
                offset = max(0, min(arrived, state.st_size))
                size += state.st_size - offset
                reads.append([str(path), state.st_ino, offset, state.st_size - offset])
                writes.append([arrival_path(folder, name, digest), offset])
        total, sent = _megabytes(size), 0

        def chunks() -> Iterator[bytes]:
            nonlocal sent
            for chunk in LocalFiles().read(reads):
                sent += len(chunk)
                news = f"copying {what}: {_megabytes(sent)} of {total}"
                self._progress.update(destination.name, news, is_count=True)
                yield chunk

        node = self._hosts.remote_nodes[destination.host_id]
        try:
            with contextlib.closing(RemoteFiles(node)) as store:
                try:
                    store.write(writes, chunks(), durable=False)  # digests are compared each time
                except OperationFailed as error:
                    if _FULL.search(str(error)):  # others need the disk
                        store.remove(arrivals(folder))
                    raise
                store.install_deployed(folder, files.digests, modes)
        except OperationFailed as error:
            raise OperationFailed(f"{error}{_find_remedy(str(error))}") from None
        self.sent += len(modes)

    def _set_up(self, destination: Destination, folder: str, options: list[str]) -> None:
        notes: list[str] = []

        def on_line(line: str) -> None:
            if not line.startswith(_LINE_PREFIX):
                return
            news = line.removeprefix(_LINE_PREFIX).strip()
            if news.startswith(("WARNING", "because")):
                notes.append(news)
            self._progress.update(destination.name, news)

        self._progress.update(destination.name, "setting up")
        command = ["sh", "-c", _SET_UP, "set-up", *options]
        code, output = self._hosts.remote_nodes[destination.host_id].run_program(
            process_plan.with_setup(destination.row, self._config, command),
            workdir=folder,
            environment=process_plan.common_environment(self._config),
            seconds=_SET_UP_SECONDS,
            on_line=on_line,
        )
        if code:
            raise OperationFailed(failure_reason(output))
        if notes:
            self._progress.note(f"{destination.name}: {' '.join(notes)}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def failure_reason(output: str) -> str:
    """Return the reason and the remedy, in a sentence, from the output of a set-up that failed."""
    lines = output.strip().splitlines() or ["its set-up printed nothing"]
    starts = [i for i, line in enumerate(lines) if line.startswith(_LINE_PREFIX)]
    last = lines[starts[-1] :] if starts else lines[-1:]
    sentence = last[0].removeprefix(_LINE_PREFIX)
    tail = [line.strip() for line in last[1:] if line.startswith(" ") and line.strip()]
    if sentence.endswith(":") and tail:
        sentence = f"{sentence} {tail[-1]}"
    return f"{sentence}{_find_remedy(chr(10).join(last))}"


def _find_remedy(output: str) -> str:
    """Return the remedy for an error, to be appended to it; empty if none is known."""
    for pattern, what in _REMEDIES:
        if re.search(pattern, output, re.IGNORECASE):
            return f"; {what}"
    return ""
