"""The folder of a run: one process writes to it at a time, and no run erases another."""

import dataclasses
import fcntl
import itertools
import json
import os
import re
import time
from pathlib import Path

from impala_mm import flags
from impala_mm.config import Config


class RunFolder:
    """Made, or found where --logdir names one, and this process's alone while it lives."""

    def __init__(self, config: Config):
        self._config = config
        try:
            self.path = self._make()
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

    def write_settings(self) -> None:
        """Once it is known that they fit what the folder holds."""
        settings = json.dumps(dataclasses.asdict(self._config), indent=1)
        (self.path / "settings.json").write_text(settings)

    def _make(self) -> Path:
        if self._config.logdir:
            path = Path(self._config.logdir)
            path.mkdir(parents=True, exist_ok=True)
            return path
        level = re.sub(r"[^\w.-]+", "-", self._config.level_name)
        name = f"{level}-{self._config.algorithm}-{time.strftime('%Y%m%d-%H%M%S')}"
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
