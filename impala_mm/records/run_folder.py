"""The folder of a run: only one process writes to it at a time, and no run overwrites another."""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from impala_mm.config import flags, setting_files, user_sources
from impala_mm.config.settings import Config
from impala_mm.runtime import provenance, safe_files, starter
from impala_mm.runtime.safe_files import from_json, to_json

_STARTS = "starts.jsonl"
SAVE_REQUEST = "save-now"  # a file in the run's folder
README = """\
This folder holds a run of impala_mm. To resume the run, give the same flags and this folder as
--logdir.

settings.json       all flags, with their values at the last start; origins says where those came
                    from that are no defaults
starts.jsonl        a line for each start: time, command, machine, versions of packages and code
code-*.diff         changes of the code since its git revision, if there were any
source/             files of your own modules (--algorithm, --import, --level_name); starts.jsonl
                    names the copy of each start
metrics.jsonl       a row every 2 s: frames, returns, losses, speed, the bottleneck (verdict);
                    sandbox/metrics.md explains each key
hosts.jsonl         a row every 10 s: the cores and memory that learners and actors use on each
                    host, and the GPUs of learners' hosts; sandbox/dashboard.md explains the keys
games.jsonl         a line for each complete game, with --log_games: its return, length and level,
                    the actor, the environment (its number in the run) and the oldest policy
                    version in its last unroll; frames and seconds are those of the row of metrics
events/             the same as metrics.jsonl for TensorBoard: tensorboard --logdir=THIS_FOLDER
checkpoints/        named by update number: the newest ones, the best one, and one for each tenth
                    of the run; taken-TIME: another member of a population had the first of them;
                    former-*: saved here, but not in the mirror when the run went on elsewhere
own/                what each learner saved of its own with the newest checkpoints, if the
                    algorithm has a source or local variables
learner.log         the learner's log
actor-N.log         the logs of the actors on this machine
save-now            created by somebody, it lets learner 0 save a checkpoint; removed at once
on_event.log        the output of the command of --on_event
evaluations.jsonl   results of --mode=test and of evaluators
videos/, export/, report.html
                    made from this run by --video_dir, --mode=export and
                    `impala-mm results report THIS_FOLDER`
lock                locked while a process writes to this folder
"""


class RunFolder:
    """The folder of a run, new or given by --logdir, locked until this process ends."""

    def __init__(self, config: Config):
        self._start: tuple[Any, ...] = ()  # the arguments of `write_start`
        try:
            self._open(make_folder(config))
            self._lock = _open_lock(self.path)
        except OSError as error:
            flags.refuse(f"--logdir={config.logdir or 'runs'}: {error.strerror}")
        if not _lock(self._lock, self.path):
            _refuse_locked(self._lock, self.path)

    def _open(self, path: Path) -> None:
        """Use the folder at `path`, and hold it, so that no other one gets its inode."""
        self.path, self._absolute = path, path.absolute()
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._identity = os.fstat(self._folder)

    def leave_to_others(self) -> None:
        """Release the lock, so that a process started by this one can write to the folder."""
        os.close(self._lock)
        os.close(self._folder)

    def why_lost(self) -> str:
        """Return what happened to the folder if `path` no longer leads to it; usually empty.

        It was removed, moved or replaced. If its lock alone was removed, as jobs do that delete
        old files, the lock is made again.
        """
        try:
            if os.path.samestat(os.stat(self.path), self._identity):
                if self._holds_lock():
                    return ""
                return f"another process has locked {self._absolute}"
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:  # the file system does not answer at present
            return ""
        now = Path(os.readlink(f"/proc/self/fd/{self._folder}"))
        with contextlib.suppress(OSError):
            if now != self._absolute and os.path.samestat(now.stat(), self._identity):
                return f"{self._absolute} was moved to {now}"
        return f"{self._absolute} was removed"

    def _holds_lock(self) -> bool:
        """Return whether the folder's lock is the one that this process has locked, or is now."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self.path / "lock"), os.fstat(self._lock)):
                return True
        lock = _open_lock(self.path)
        if not _lock(lock, self.path):
            os.close(lock)
            return False
        os.close(self._lock)
        self._lock = lock
        return True

    def begin_beside(self) -> Path:
        """Make and lock a folder beside the one that is lost, with the record of this start.

        It becomes the run's folder; where none can be made, one for temporary files does.
        """
        for number in itertools.count(2):
            path = self._absolute.with_name(f"{self._absolute.name}+{number}")
            try:
                path.mkdir()
            except FileExistsError:
                continue
            except OSError:
                path = Path(tempfile.mkdtemp(prefix=f"{self._absolute.name}+"))
            break
        self._open(path)
        self._lock = _open_lock(path)
        _lock(self._lock, path)
        if self._start:
            self.write_start(*self._start)
        return path

    def has_started(self) -> bool:
        """Return whether the run was started before."""
        return (self.path / _STARTS).exists()

    def write_start(
        self, config: Config, learners: list[str], frames: float, before: Config | None = None
    ) -> str:
        """Record this start; call it once the flags are known to fit the contents of the folder.

        In `config` it is decided what `auto` stands for wherever a resumed run must keep it.
        `before` is the config before that. `learners` are the addresses of all learners; `frames`
        is the count at which the run starts.
        Return a sentence about the source of users' modules, or an empty string.
        """
        self._start = config, learners, frames, before
        # The flag --num_learners of each learner process is 1, so it is replaced by their number.
        settings = dataclasses.asdict(config) | {"num_learners": len(learners)}
        sources = setting_files.record(config, before or config, Config)
        origins = {"origins": setting_files.by_source(sources)}
        text = to_json(settings | origins, indent=1)
        safe_files.write_whole(self.path / "settings.json", text.encode())
        (self.path / "README.txt").write_text(README)
        start: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": starter.command(),
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
        try:
            files = user_sources.imported(config)
            copy, said = keep(files, self.path / "source")
        except OSError as error:
            copy, said = "", f"the source of your modules is not kept: {error}"
        if copy:
            start["source"] = f"source/{copy}"
        with (self.path / _STARTS).open("a", encoding="utf-8") as file:
            file.write(to_json(start) + "\n")
        return said


def take_save_request(path: Path) -> bool:
    """Return whether somebody asks for a checkpoint of the run in this folder, once for each."""
    try:
        (path / SAVE_REQUEST).unlink()
    except OSError:  # usually there is none
        return False
    return True


def refuse_taken(path: Path) -> None:
    """Refuse a folder to which a process is writing."""
    with contextlib.suppress(FileNotFoundError):
        lock = os.open(path / "lock", os.O_RDWR)
        try:
            if not _lock(lock, path, for_long=False):
                _refuse_locked(lock, path)
        finally:
            os.close(lock)


def _open_lock(path: Path) -> int:
    return os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)


def _refuse_locked(lock: int, path: Path) -> NoReturn:
    """Refuse a folder whose open lock file another process has locked."""
    if number := os.pread(lock, 20, 0).decode():
        flags.refuse(f"--logdir={path}: process {number} is writing to it")
    flags.refuse(f"--logdir={path}: another process is writing to it")


def _lock(lock: int, path: Path, for_long: bool = True) -> bool:
    """Lock the open lock file of a folder; return False if another process has locked it.

    Some file systems of clusters have no locks. `for_long`: the file then contains this process's
    number.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        print(
            f"note: {path} cannot be locked ({error.strerror}): make sure yourself that no other "
            f"run writes to it",
            file=sys.stderr,
        )
    if for_long:
        with contextlib.suppress(OSError):  # a full disk: whoever meets the lock is told no number
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
    return True


def recorded_settings(path: Path) -> dict[str, Any]:
    """Return the flags of the last start in a run's folder; they are empty if there was none."""
    try:
        return dict(from_json((path / "settings.json").read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def make_folder(config: Config) -> Path:
    """Create the folder of --logdir, or a new one under runs/, and return it."""
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
        except FileExistsError:  # another run started in the same second
            name = f"{name.split('+', maxsplit=1)[0]}+{number}"
            continue
        return path
    raise AssertionError


MAX_FILES = 500  # of a copy
MAX_FILE, MAX_TOTAL = 1 << 20, 10 << 20  # bytes of one file, and of a copy


def keep(files: Mapping[str, Path], folder: Path) -> tuple[str, str]:
    """Copy files to a folder in `folder` that is named after their content.

    Return the name of the copy, and a sentence about it; both are empty if there are no files.
    Files of code come first, then small ones, as long as they fit. Raises OSError.
    """
    sizes = {name: path.stat().st_size for name, path in files.items()}
    kept: dict[str, bytes] = {}
    total = 0
    for name in sorted(files, key=lambda name: (not name.endswith(".py"), sizes[name])):
        if len(kept) < MAX_FILES and sizes[name] <= MAX_FILE and total + sizes[name] <= MAX_TOTAL:
            kept[name] = files[name].read_bytes()
            total += len(kept[name])
    if not kept:
        return "", ""
    digest = hashlib.sha256()
    for name in sorted(kept):
        digest.update(f"{name} {len(kept[name])} ".encode() + kept[name])
    copy = folder / digest.hexdigest()[:8]
    if not copy.exists():
        work = folder / "copying"
        shutil.rmtree(work, ignore_errors=True)
        for name, content in kept.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes(content)
        work.rename(copy)
    said = f"the source of your modules is kept in {copy} ({len(kept)} files, {total / 1e6:.2f} MB)"
    if left := sorted(files.keys() - kept.keys(), key=lambda name: -sizes[name]):
        said += f", without {left[0]}"
        said += f" and {len(left) - 1} more" * (len(left) > 1)
        said += f": a copy has at most {MAX_FILES} files of at most 1 MiB, and 10 MiB in all"
    return copy.name, said
