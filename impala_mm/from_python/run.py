"""A run that was started from Python: waiting for it, its metrics, its policy, its end."""

import atexit
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from impala_mm.config import flags
from impala_mm.config.environment_flags import FILE_SUFFIX
from impala_mm.config.errors import BadSettings, TrainingFailed
from impala_mm.records import run_folder
from impala_mm.records.run_contents import drop_replaced, read_json_lines
from impala_mm.runtime import lifecycle

if TYPE_CHECKING:
    from impala_mm.policy.policy import Policy

_USER_ERROR = 2  # exit code of a program that refuses its flags
_ENDED = {130, 143, -signal.SIGINT}  # after SIGINT and SIGTERM
# A server in the background ignores interrupts, and so would the programs that it starts.
_START = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
_OF_A_START = {"lock", "learner.log"}  # files of a run that may have been refused
_BETWEEN_SIGNALS = 0.5  # seconds, since two equal signals at once count as one
_RUNNING: "weakref.WeakSet[Run]" = weakref.WeakSet()


class Run:
    """A run and its processes, which end with this Python process at the latest."""

    def __init__(self, program: Path, arguments: Sequence[str], logdir: Path, progress: bool):
        """Start `program` with these arguments; `progress`: print what it prints."""
        self.logdir = logdir
        known = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        paths = dict.fromkeys(os.path.abspath(path) for path in [*_own_paths(), *known])
        variables = {lifecycle.OWNER_VARIABLE: "yes", "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", _START, sys.executable, str(program), *arguments],
            stdin=subprocess.PIPE,  # its end tells the program that this process is gone
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | variables | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C in the terminal is for this process
        )
        self._output = Output(progress)
        self._stops = 0
        assert self._process.stdout
        self._reader = threading.Thread(
            target=self._output.read, args=(self._process.stdout,), daemon=True
        )
        self._reader.start()
        _RUNNING.add(self)

    def __repr__(self) -> str:
        """Return where the run is, and whether it is running."""
        state = "running" if self.is_running else "ended"
        return f"<impala_mm run in {self.logdir}: {state}>"

    def __fspath__(self) -> str:
        """Return the run's folder, so that `load_policy` and `evaluate` take a run."""
        return str(self.logdir)

    @property
    def is_running(self) -> bool:
        """Whether a process of the run is running."""
        return self._process.poll() is None

    @property
    def output(self) -> list[str]:
        """The last lines that the run has printed."""
        return list(self._output.lines)

    def wait(self, timeout: float | None = None) -> Self:
        """Wait for the run's end and return it; Ctrl-C saves and stops the run.

        Raises BadSettings or TrainingFailed with the first error of any process, and TimeoutError
        after `timeout` seconds, after which the run continues.
        """
        try:
            code = self._process.wait(timeout)
            self._reader.join()
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the run has not ended within {timeout:g} s") from None
        except KeyboardInterrupt:
            self.stop()
            raise
        said = self._output.lines
        early = not said or said[-1].startswith("KeyboardInterrupt")  # while it was starting
        if code == 0 or (self._stops and (code in _ENDED or early)):
            return self
        if code == _USER_ERROR:
            remove_unused(self.logdir)
        error = BadSettings if code == _USER_ERROR else TrainingFailed
        raise error(self._output.first_error())

    def stop(self, save: bool = True) -> None:
        """Save and stop the run, and wait for its end; without `save` it ends at once."""
        self._interrupt()
        if not save:
            time.sleep(_BETWEEN_SIGNALS)
            self._interrupt()
        try:
            self._process.wait()
        except KeyboardInterrupt:
            self._interrupt()  # as a second Ctrl-C in a terminal
            raise
        self._reader.join()

    def _interrupt(self) -> None:
        self._stops += 1
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def metrics(self) -> Any:
        """Return the run's metrics so far, a row every two seconds.

        Rows of updates that a crash lost, and the resumed run made again, are left out.
        This is a pandas DataFrame if pandas is installed, and otherwise a dict of lists, one for
        each metric, with None where a row lacks it. sandbox/metrics.md explains each.
        """
        rows = self._rows()
        if importlib.util.find_spec("pandas"):
            import pandas as pd  # noqa: PLC0415

            return pd.DataFrame(rows)
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def history(self) -> list[dict[str, Any]]:
        """Return the rows of `metrics` as dictionaries, one for each number of frames.

        Of several rows with as many frames, such as those of offline updates, this is the newest.
        """
        return list({row["frames"]: row for row in self._rows()}.values())

    def _rows(self) -> list[dict[str, Any]]:
        path = self.logdir / "metrics.jsonl"
        return drop_replaced(read_json_lines(path)) if path.exists() else []

    def policy(self, best: bool = False) -> "Policy":
        """Return the policy of the newest checkpoint, or of the best one.

        Raises BadCheckpoint before there is one; the first is written after a minute.
        """
        from impala_mm.from_python.playing import load_policy  # noqa: PLC0415

        return load_policy(self.logdir, best=best)


def is_running(logdir: Path) -> bool:
    """Return whether a run that was started here is writing to a folder."""
    return any(run.is_running and run.logdir == logdir for run in list(_RUNNING))


def _own_paths() -> list[str]:
    """Return the entries of sys.path in which the user's modules are: not Python's own."""
    of_python = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    return [
        path
        for path in sys.path
        if os.path.isdir(path or ".")
        and os.path.realpath(path) not in of_python
        and not path.endswith("lib-dynload")
    ]


def remove_unused(logdir: Path) -> None:
    """Remove the folder of a run that was refused before it started, if nothing else is in it."""
    held = list(logdir.glob("*"))
    if all(path.suffix == FILE_SUFFIX or path.name in _OF_A_START for path in held):
        with contextlib.suppress(OSError, BadSettings), flags.refusals_raised():
            run_folder.refuse_taken(logdir)
            for path in held:
                path.unlink()
            logdir.rmdir()


@atexit.register
def _stop_all() -> None:
    for run in list(_RUNNING):
        if run.is_running:
            print(f"stopping the run in {run.logdir}, which is saved", file=sys.stderr)
            run.stop()


_PROGRESS = re.compile(r"\[learner(?: 0)?\] [\d,]+ frames \|")
_PREFIX = re.compile(r"\[[a-z]+(?: \d+)?\] ")
_KEPT_LINES = 1000


class Output:
    """The lines of a run: kept, and printed if `shows`."""

    def __init__(self, shows: bool):
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._shows, self._width = shows, 0  # the width of the progress line on the screen

    def read(self, stream: IO[str]) -> None:
        """Read and show lines until the stream ends."""
        for line in stream:
            self.lines.append(line.rstrip("\n"))
            self._try(self._show, self.lines[-1])
        self._try(self._end_progress)

    def _try(self, shows: Callable[..., None], *line: str) -> None:
        """Show something, unless the reader of what this process prints is gone."""
        if self._shows:
            try:
                shows(*line)
            except Exception:
                self._shows = False

    def _show(self, line: str) -> None:
        if not (_PROGRESS.match(line) and _overwrites()):
            self._end_progress()
            print(line, flush=True)
            return
        shown = line[: shutil.get_terminal_size().columns - 1]
        print(f"\r{shown.ljust(self._width)}", end="", flush=True)
        self._width = len(shown)

    def _end_progress(self) -> None:
        if self._width:
            print(flush=True)
        self._width = 0

    def first_error(self) -> str:
        """Return the first error among the lines, and below it its traceback if there is one."""
        lines = list(self.lines)
        texts = [_PREFIX.sub("", line) for line in lines]
        for is_error in (_is_final, _is_of_actor):
            for i, text in enumerate(texts):
                if is_error(text) and text.startswith("Traceback "):
                    said = [each for each in texts[i:] if each.startswith("error: ")][:1]
                    return "\n".join([*said, *_traceback(texts[i:])]).removeprefix("error: ")
                if is_error(text):
                    return text.removeprefix("error: ")
        return "\n".join(lines[-5:])


def _is_final(text: str) -> bool:
    """Return whether a line is an error that ends a run."""
    return text.startswith(("error: ", "Traceback "))


def _is_of_actor(text: str) -> bool:
    """Return whether a line is the failure of an actor, which may have been restarted."""
    return " failed: " in text


def _traceback(texts: list[str]) -> list[str]:
    """Return the lines of the traceback that begins with the first one."""
    ends = (n for n, text in enumerate(texts[1:], 2) if not text.startswith(" "))
    return texts[: next(ends, len(texts))]


def _overwrites() -> bool:
    """Return whether a line can be overwritten: in a terminal, and in a notebook."""
    return sys.stdout.isatty() or "ipykernel" in sys.modules
