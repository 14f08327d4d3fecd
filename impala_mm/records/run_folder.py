"""The folder of a run: one process writes to it at a time, and no run erases another."""

import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from impala_mm.config import flags
from impala_mm.config.settings import Config
from impala_mm.runtime import provenance

_README = """\
A run of impala_mm. Whoever gives its folder with --logdir, and the same flags, goes on with it.

settings.json       every flag, as at the last start
starts.jsonl        a line for each start: when, by which command, on what machine, with which
                    versions of packages and of the code
code-*.diff         where the code was changed since its git revision: how
metrics.jsonl       a row every few seconds: frames, returns, losses, speed, what binds (verdict)
events/             the same for TensorBoard: tensorboard --logdir=THIS_FOLDER
checkpoints/        by the updates made: the newest, the best, and one for each tenth of the run
learner.log         what the learner said; actor-N.log: the actors of this machine
on_event.log        what the command of --on_event printed
evaluations.jsonl   what --mode=test and evaluators measured; videos/, export/, report.html: theirs
lock                held while a process writes here
"""


class RunFolder:
    """Made, or found where --logdir names one, and this process's alone while it lives."""

    def __init__(self, config: Config):
        self._config = config
        try:
            self.path = make_folder(config)
            self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            flags.refuse(f"--logdir={config.logdir or 'runs'}: {error.strerror}")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 20, 0).decode() or "another"
            flags.refuse(f"--logdir={self.path}: process {holder} is writing to it")
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def leave_to_others(self) -> None:
        """A process that this one starts is to write to it instead."""
        os.close(self._lock)

    def write_start(self, learners: list[str], frames: float) -> None:
        """What is started here, once it is known to fit what the folder holds.

        `learners`: addresses of all; `frames`: from which it goes on.
        """
        # Each learner's own --num_learners is 1, whoever started them.
        settings = dataclasses.asdict(self._config) | {"num_learners": len(learners)}
        (self.path / "settings.json").write_text(json.dumps(settings, indent=1))
        (self.path / "README.txt").write_text(_README)
        start: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": provenance.command(),
            "host": socket.gethostname(),
            "machine": provenance.machine(),
            "learners": learners,
            "frames": frames,
            "revision": provenance.revision(),
            "versions": provenance.versions(),
            "settings": settings,
        }
        if changes := provenance.changes():
            name = f"code-{hashlib.sha256(changes.encode()).hexdigest()[:8]}.diff"
            (self.path / name).write_text(changes)
            start["diff"] = name
        with (self.path / "starts.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(start) + "\n")


def make_folder(config: Config) -> Path:
    """That of --logdir, or a new one."""
    if config.logdir:
        path = Path(config.logdir)
        path.mkdir(parents=True, exist_ok=True)
        return path
    level = re.sub(r"[^\w.-]+", "-", config.level_name)
    name = f"{level}-{config.algorithm}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in itertools.count(2):
        path = Path("runs") / name
        path.parent.mkdir(exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:  # another began in the same second
            name = f"{name.split('+', maxsplit=1)[0]}+{number}"
            continue
        return path
    raise AssertionError
