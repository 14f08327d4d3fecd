"""The run that a chaos run disturbs: two learners, three actors and a frontend on six hosts."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from deadlines import Deadline
from far_cluster import FarCluster
from hosts import Lan

from tests.chaos.disturbances import ACTORS, LEARNERS, RUN

_TRAINED = "/var/log/trained"  # on each learner's host, outside of the disk that is filled
_ENVIRONMENTS = 2  # of each actor
_TRAINING = (
    *("--level_name=tests.chaos.numbered:Numbered", "--algorithm=tests.chaos.recording"),
    *("--total_environment_frames=1e9", "--save_checkpoint_secs=5", f"--logdir={RUN}"),
    *(f"--num_envs={_ENVIRONMENTS}", "--unroll_length=20", "--batch_size=4"),
)
# What a frontend that attaches must be given, too.
_CLUSTER = (
    *("--restart_learners", "--max_restarts=1000", "--mirror_logdir", "--stall_secs=60"),
    *("--lost_secs=15", "--rejoin_secs=20", f"--env=TRAINED={_TRAINED}"),
)
_ATTACH = "--workers_csv_path=/root/workers.csv", "--attach"
_DISK = "size=64m"  # of the run's folder on a learner's host
_WINDOW = 3.0  # seconds within which each environment must be trained on
_QUEUED = 3.0  # seconds for which unrolls of an actor that was killed may still be in a queue
_STOP_SECONDS = 120.0  # timeout
_LEFT_SECONDS = 30.0  # seconds that processes have to end after the frontend


class Subject:
    """The run, as its user and an observer of its records see it."""

    def __init__(self, lan: Lan):
        """Give the learners' hosts small disks."""
        self._lan, self._far = lan, FarCluster(lan, python=sys.executable)
        self._records = _Records(lan)
        self._frontend: Any = None
        self.outputs: list[str] = []  # of frontends that have ended
        self._disks = [lan.hosts[name].path(RUN) for name in LEARNERS]
        for name, disk in zip(LEARNERS, self._disks, strict=True):
            lan.hosts[name].kill_all()
            disk.mkdir()
            # In this program's own namespace of mounts: the disk outlives the host's processes.
            subprocess.run(["mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", disk], check=True)
            lan.hosts[name].boot()

    def close(self) -> None:
        """Remove the small disks, once all hosts are off."""
        for disk in self._disks:
            subprocess.run(["umount", "-l", disk], check=False)

    def start(self) -> None:
        """Start the run and the frontend that follows it."""
        rows = self._far.of(LEARNERS, ACTORS)
        self._start_frontend(rows, "--skip_check", *_TRAINING)

    def attach_again(self) -> None:
        """Start another frontend if the last one was killed; raise Ended if it has exited."""
        code = self._continued(self._frontend.process)
        if code is None:
            return
        self.outputs.append(self._frontend.printed())
        if code not in (-signal.SIGKILL, 128 + signal.SIGKILL):
            raise Ended(code, self.outputs[-1])
        self._start_frontend(*_ATTACH)

    def _start_frontend(self, *flags: str) -> None:
        self._frontend = self._lan.laptop.start(*self._far.frontend(*flags, *_CLUSTER))

    def _continued(self, process: subprocess.Popen) -> int | None:
        """Return a frontend's exit code, None while it runs.

        nsenter, which waits for it, stops with it, but does not continue with it.
        """
        if process.poll() is None:
            os.kill(process.pid, signal.SIGCONT)
        return process.poll()

    def is_whole(self, since: float) -> bool:
        """Return whether every environment was trained on lately, but after `since`."""
        now = time.time()
        if now - _WINDOW - _QUEUED < since:
            return False
        seen = self._records.environments_since(now - _WINDOW)
        return len(seen) == _ENVIRONMENTS * len(ACTORS)

    def stop(self) -> list[str]:
        """Save and stop the run as a user does; return what is wrong with its end."""
        self._frontend.process.send_signal(signal.SIGINT)
        wrong = []
        try:
            code = self._frontend.wait(_STOP_SECONDS)
            if code != 130:
                wrong = [f"the frontend that stopped the run exited with {code}, not 130"]
        except AssertionError:
            wrong = [f"the run has not stopped within {_STOP_SECONDS:g} s"]
        self.outputs.append(self._frontend.printed())
        deadline = Deadline(_LEFT_SECONDS)
        while (left := self._far.left()) and not deadline.is_over():
            time.sleep(0.5)
        wrong += [f"{name}: {line}" for name, lines in left.items() for line in lines]
        for host in self._lan.hosts.values():
            wrong += [f"{host.name}: {each}" for each in _files_left(host)]
        return wrong

    def keep_files(self, folder: Path) -> None:
        """Copy what the hosts hold of the run to a folder, by host."""
        for name in ("laptop", *LEARNERS, *ACTORS):
            host = self._lan.hosts[name]
            for source, copy in ((RUN, "run"), (_TRAINED, "trained")):
                if host.path(source).exists():
                    shutil.copytree(host.path(source), folder / name / copy, symlinks=True)
        (folder / "frontends.log").write_text("\n-- the next frontend --\n".join(self.outputs))


class Ended(Exception):
    """An error: a frontend exited although nobody has stopped the run."""

    def __init__(self, code: int, printed: str):
        last = " / ".join(printed.splitlines()[-3:])
        super().__init__(f"the frontend exited by itself with code {code}: {last}")


class _Records:
    """The environments that learners train on, by the lines that they write."""

    def __init__(self, lan: Lan):
        self._lan, self._offsets = lan, dict[Path, int]()
        self._seen = dict[int, float]()  # by environment: when it was trained on last

    def environments_since(self, begin: float) -> set[int]:
        """Return the environments that were trained on since this time.time()."""
        for name in LEARNERS:
            for path in self._lan.hosts[name].path(_TRAINED).glob("*.jsonl"):
                self._read(path)
        return {instance for instance, at in self._seen.items() if at >= begin}

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._offsets[path] = self._offsets.get(path, 0) + len(complete)
        for line in complete.splitlines():
            with contextlib.suppress(ValueError):
                update = json.loads(line)
                self._seen |= {c["instance"]: update["time"] for c in update["columns"]}


def _files_left(host: Any) -> list[str]:
    """Return what a run has left in memory and in temporary folders of a host.

    The folder of a user's Unix sockets remains: the next process removes those of killed ones. So
    do the folders of mpiruns that were killed, which `supervise.leftovers` removes only where
    processes have no namespace of their own.
    """
    command = "find /dev/shm -mindepth 1; find /tmp -maxdepth 1 -name 'impala_mm-*'"
    listed = host.run("sh", "-c", command, check=False)
    sockets = re.compile(r"/tmp/impala_mm-\d+")
    return [path for path in listed.stdout.split() if not sockets.fullmatch(path)]
