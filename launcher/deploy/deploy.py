"""Brings this project to the hosts of a run, what changed of it, and sets it up there.

All hosts at the same time, one after another where they share a folder. What is to be where follows
from the CSV's rows (`sites`), what has to be sent from what is there (`host/copies`), and the rest
is the project's own `docker/install.py`, run by a Python of the host.
"""

import concurrent.futures
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launcher.deploy import project_files
from launcher.deploy.destinations import Site, sites
from launcher.deploy.install_command import SAYS, command, reason, remedy
from launcher.deploy.progress import Progress
from launcher.node.deployed_files import identity
from launcher.plan import host_environment, process_plan
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import Hosts
from launcher.remote.remote_node import Failed, Lost

WHEELHOUSE = "~/.cache/impala_mm/wheelhouse"  # of a host
_AT_ONCE = 48
_COMPARE_SECONDS = 600.0  # for gigabytes to be read there
_SLOWEST = 20_000  # bytes per second, of a link that is any use
_SET_UP_SECONDS = 3600.0
_BATCH = 32 << 20  # bytes after which what came of a wheelhouse is safe


def deploy(
    hosts: Hosts, workers: Sequence[Worker], config: LauncherConfig, say: Callable[[str], None]
) -> dict[str, str]:
    """Why not, by place, of those that failed; hosts that cannot be reached are passed over."""
    wheels: dict[str, str] = {}
    if config.wheelhouse:
        if not Path(config.wheelhouse).is_dir():
            raise Failed(f"--wheelhouse={config.wheelhouse}: there is no such folder")
        wheels = project_files.everything(Path(config.wheelhouse))
    wanted = [s for s in sites(workers) if s.place in hosts.there and not hosts.there[s.place].why]
    if not wanted:
        return {}
    begin = time.monotonic()
    names = {site.key: site.place for site in wanted}
    if len(set(names.values())) < len(names):  # some have two folders
        names = {site.key: f"{site.place}:{site.folder}" for site in wanted}
    with Progress(list(names.values())) as progress:
        deployment = Deployment(hosts, config, wheels, names, progress)
        failed = deployment.run(wanted)
    ready = len({site.place for site in wanted} - failed.keys())
    say(
        f"code and environment: {ready} of {ready + len(failed)} hosts ready; {deployment.sent} "
        f"files sent ({time.monotonic() - begin:.1f} s)"
    )
    return failed


class Deployment:
    """One, to all hosts."""

    def __init__(
        self,
        hosts: Hosts,
        config: LauncherConfig,
        wheels: dict[str, str],
        names: dict[str, str],
        progress: Progress,
    ):
        """`names`: of sites, as they are shown."""
        self._hosts, self._config = hosts, config
        self._files, self._wheels = project_files.files(host_environment.ROOT), wheels
        self._names, self._progress = names, progress
        self._done = {key: threading.Event() for key in names}
        self.sent = 0

    def run(self, sites: Sequence[Site]) -> dict[str, str]:
        """Why not, by place, of those that failed."""
        looks = self._each(self._look, sites)
        good = [site for site in sites if isinstance(looks[site.key], dict)]
        joined = [self._joined(site, good, looks) for site in good]
        for role, device in {(s.role, s.device) for s in joined if s.sets_up}:
            if self._wheels:
                self._check_wheelhouse(role, device)
        first: dict[str, Site] = {}
        before: dict[str, list[Site]] = {}
        for site in joined:  # who shares a folder, or a host, lets the first of them go first
            marks = [site.place, *(look["mark"] for look in looks[site.key].values())]
            before[site.key] = [first[mark] for mark in marks if mark in first]
            for mark in marks:
                first.setdefault(mark, site)
        ends = self._each(lambda s: self._bring(s, before[s.key], looks[s.key]), joined)
        found = {site.place: str(end) for site in sites if (end := _failure(site, looks, ends))}
        return {where: why.removeprefix(f"{where}: ") for where, why in found.items()}

    def _each(self, step: Callable[[Site], Any], sites: Sequence[Site]) -> dict[str, Any]:
        """What it returned of each, or a Failed or Lost; they begin in this order."""
        found: dict[str, Any] = {}

        def one(site: Site) -> None:
            try:
                found[site.key] = step(site)
            except (Failed, Lost) as error:
                found[site.key] = error
                why = str(error).removeprefix(f"{site.place}: ")
                self._progress.end(self._names[site.key], why)

        pool = concurrent.futures.ThreadPoolExecutor(_AT_ONCE)
        try:
            for future in [pool.submit(one, site) for site in sites]:
                future.result()
        except BaseException:  # Ctrl-C, above all: what goes on there ends with the connection
            self._hosts.close()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        return found

    def _look(self, site: Site) -> dict[str, dict[str, Any]]:
        """What is there already."""
        looks = {"project": self._compare(site, site.folder, host_environment.ROOT, self._files)}
        if self._wheels:
            wheelhouse = Path(self._config.wheelhouse)
            looks["wheels"] = self._compare(site, WHEELHOUSE, wheelhouse, self._wheels)
        return looks

    def _compare(
        self, site: Site, folder: str, root: Path, files: dict[str, str]
    ) -> dict[str, Any]:
        clone = identity(root / next(iter(files)))
        asked = {"folder": folder, "wanted": files, "clone": clone}
        there = self._hosts.call(site.place, "compare", within=_COMPARE_SECONDS, **asked)
        if there["why"]:
            raise Failed(there["why"])
        return there

    def _joined(self, site: Site, sites: Sequence[Site], looks: dict[str, Any]) -> Site:
        """With the role of all that share its folder: there is one environment in it."""
        mark = looks[site.key]["project"]["mark"]
        same = [other for other in sites if looks[other.key]["project"]["mark"] == mark]
        learners = any(other.role == "learner" for other in same)
        nvidia = any(o.gpus and looks[o.key]["project"]["nvidia"] for o in same)
        return site._replace(role="learner" if learners else "actor", gpus=nvidia)

    def _check_wheelhouse(self, role: str, device: str) -> None:
        """Before gigabytes travel in vain."""
        program = [
            sys.executable,
            str(host_environment.ROOT / "docker" / "wheelhouse.py"),
            "--check",
        ]
        options = [f"--role={role}", f"--device={device}", self._config.wheelhouse]
        ran = subprocess.run(
            [*program, *options], capture_output=True, text=True, check=False, timeout=60
        )
        if ran.returncode:
            lines = (ran.stdout + ran.stderr).strip().splitlines()
            raise Failed(lines[-1].removeprefix(SAYS))

    # -- one site

    def _bring(self, site: Site, before: Sequence[Site], looks: dict[str, Any]) -> None:
        name = self._names[site.key]
        try:
            for other in before:
                self._progress.tell(name, f"waits for {other.place}, which shares a folder with it")
                self._done[other.key].wait(_SET_UP_SECONDS)
            if before:
                looks = self._look(site)
            options = [f"--role={site.role}", f"--device={site.device}"]
            if self._wheels:
                wheelhouse = Path(self._config.wheelhouse)
                self._copy(site, looks["wheels"], wheelhouse, self._wheels, "packages")
                options.append(f"--wheelhouse={looks['wheels']['folder']}")
            self._copy(site, looks["project"], host_environment.ROOT, self._files, "the project")
            if site.sets_up:
                self._set_up(site, looks["project"]["folder"], options)
        finally:
            self._done[site.key].set()
        self._progress.end(name, "")

    def _copy(
        self, site: Site, there: dict[str, Any], root: Path, files: dict[str, str], what: str
    ) -> None:
        if there["settled"] and not there["missing"]:
            return
        whole = sum((root / name).lstat().st_size for name in there["missing"])
        sent = 0
        for names in _batches(root, there["missing"], together=root == host_environment.ROOT):
            packed = project_files.Parcel(root, files, names)

            def read(size: int, packed: project_files.Parcel = packed, before: int = sent) -> bytes:
                news = f"copying {what}: {_megabytes(before + packed.sent)} of {_megabytes(whole)}"
                self._progress.tell(self._names[site.key], news, counts=True)
                return packed.read(size)

            seconds = 60 + packed.size / _SLOWEST
            line = shlex.join(there["receiver"])
            code, said = self._hosts.there[site.place].run_by_hand(line, _Reader(read), seconds)
            if code:
                last = (said.strip().splitlines() or ["it did not take the files"])[-1]
                raise Failed(f"{last}{remedy(last)}")
            sent += packed.size
            self.sent += len(names)

    def _set_up(self, site: Site, folder: str, options: list[str]) -> None:
        name = self._names[site.key]
        notes: list[str] = []

        def heard(line: str) -> None:
            if not line.startswith(SAYS):
                return
            news = line.removeprefix(SAYS).strip()
            if news.startswith(("WARNING", "because")):
                notes.append(news)
            self._progress.tell(name, news)

        self._progress.tell(name, "setting up")
        code, said = self._hosts.there[site.place].ask(
            process_plan.set_up(site.row, self._config, command(options)),
            workdir=folder,
            environment=process_plan.environment_of_all(self._config),
            seconds=_SET_UP_SECONDS,
            heard=heard,
        )
        if code:
            raise Failed(reason(said))
        if notes:
            self._progress.note(f"{name}: {' '.join(notes)}")


class _Reader(NamedTuple):
    """What a file is to who sends it."""

    read: Callable[[int], bytes]


def _failure(site: Site, looks: dict[str, Any], ends: dict[str, Any]) -> Exception | None:
    for found in (looks, ends):
        if isinstance(found.get(site.key), Exception):
            return found[site.key]
    return None


def _batches(root: Path, names: Sequence[str], together: bool) -> list[list[str]]:
    """Of which each arrives whole, or not at all; one at least, for what is to be removed."""
    batches: list[list[str]] = [[]]
    size = 0
    for name in names:
        if not together and size > _BATCH:
            batches.append([])
            size = 0
        batches[-1].append(name)
        size += (root / name).lstat().st_size
    return batches


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
