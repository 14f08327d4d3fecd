"""The check of levels in a process of its own, so that nothing they do harms the calling process.

`jobs` calls it. An environment may crash its process, end it, or never return; the finding then
names the call in which that happened.
"""

import contextlib
import faulthandler
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from impala_mm.config import user_modules
from impala_mm.environments import BUILT_IN
from impala_mm.environments.faults import describe_end, frames_of_stack, text_of

_STUCK_SECONDS = 5.0  # seconds from which on a call counts as stuck
_LATE_SECONDS = 0.5  # seconds that the process has to end by itself
_LINES = 5  # of what a process printed before it crashed
_START = (
    "import json, sys; given = json.load(sys.stdin); sys.path[:] = given['path']; "
    "from impala_mm.environments import check_process; check_process.run_in_child(given)"
)
# Variables by which libraries of a rank of mpirun would take this process for the rank.
_MPI = re.compile("OMPI_|PMIX_|PRTE_|PMI_")


class Result(NamedTuple):
    """The result of the check of some levels."""

    errors: list[tuple[str, str]]  # (sentence, traceback in the user's code or "")
    warnings: list[str]


class CheckProcess:
    """The check of some levels in a process, from its start to its result."""

    def __init__(
        self,
        level_names: Sequence[str],
        options: Mapping[str, Any],
        seconds: float,
        hides_gpus: bool,
    ):
        """Start the check, which may take `seconds`; `options` are fields of `Options`.

        Our own levels are not checked, unless they are made with arguments or wrapped.
        """
        self._options, self._seconds, self._hides_gpus = dict(options), seconds, hides_gpus
        changed = options.get("env_kwargs") or options.get("env_wrappers")
        self._left = [name for name in level_names if changed or name.lower() not in BUILT_IN]
        self._until = time.monotonic() + seconds
        self._result = Result([], [])
        self._process: subprocess.Popen | None = None
        if self._left:
            self._start()

    def result(self) -> Result:
        """Wait for the end of the check and return what it found."""
        try:
            while self._process:
                crashed = self._wait(self._process)
                self.stop()
                if crashed in self._left[:-1]:  # check those after it
                    self._left = self._left[self._left.index(crashed) + 1 :]
                    self._start()
        finally:
            self.stop()
        return self._result

    def stop(self) -> None:
        """End the process and everything that it has started.

        If it still runs, it is interrupted first: it may be making an environment that starts a
        simulator or downloads files, and can close or remove these.
        """
        if self._process:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LATE_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for file in (self._records, self._printed, self._stacks):
                file.close()
        self._process = None

    def _start(self) -> None:
        self._records, self._printed, self._stacks = (
            tempfile.TemporaryFile()  # noqa: SIM115 - `stop` closes it
            for _ in range(3)
        )
        variables = {k: v for k, v in os.environ.items() if not _MPI.match(k)}
        if self._hides_gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ""
        passed = self._records.fileno(), self._stacks.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=self._printed,
            env=variables | {"OPENBLAS_NUM_THREADS": "1"},
            pass_fds=passed,
            start_new_session=True,
        )
        given = {
            "path": sys.path,
            "imports": user_modules.imported(),
            "levels": self._left,
            "options": self._options,
            "until": self._until,
            "files": passed,
        }
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(given).encode())
            self._process.stdin.close()

    def _wait(self, process: subprocess.Popen) -> str:
        """Wait for the end of the process and add its findings to the result.

        Return the level that made it crash, or an empty string.
        """
        try:
            code = process.wait(max(self._until - time.monotonic(), 0) + _LATE_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
            process.send_signal(signal.SIGUSR2)  # prints where it is
            time.sleep(0.1)
        records = [json.loads(line) for line in text_of(self._records).splitlines()]
        for record in records:
            if "sentence" in record:
                self._add(record["is_error"], record["sentence"], record["traceback"])
        last: dict[str, Any] = {"level": "", "call": "its start", "since": time.monotonic()}
        last |= next((record for record in reversed(records) if "call" in record), {})
        if records and "end" in records[-1]:
            if records[-1]["end"] == "late":
                self._add_late(f"{last['level']}: {last['steps']} steps were made")
            return ""
        stack = frames_of_stack(text_of(self._stacks))
        if code is None:
            self._add_stuck(last, stack)
            return ""
        printed = text_of(self._printed).strip().splitlines()[-_LINES:]
        level = last["level"] or "the check"
        sentence = f"{level}: its process {describe_end(code)} in {last['call']}"
        self._add(True, sentence, "\n".join([*stack, *printed]))
        return last["level"]

    def _add(self, is_error: bool, sentence: str, traceback: str = "") -> None:
        if is_error:
            self._result.errors.append((sentence, traceback))
        else:
            self._result.warnings.append(sentence)

    def _add_stuck(self, last: dict[str, Any], stack: list[str]) -> None:
        """Add the call that was running at the end of the time."""
        lasted = self._until - last["since"]  # not until now: the caller may have been busy
        if lasted < _STUCK_SECONDS:
            self._add_late(f"{last['level'] or 'no level'}: it was in {last['call']}")
            return
        sentence = (
            f"{last['level']}: {last['call']} did not return within {lasted:.0f} s; if it takes "
            f"that long, set --check_env_secs to more than {self._seconds:g}"
        )
        self._add(True, sentence, "\n".join(stack))

    def _add_late(self, reached: str) -> None:
        """Add a warning that the check is incomplete, unless its time was meant to be short."""
        if self._seconds >= _STUCK_SECONDS:
            self._add(
                False,
                f"{reached} when the check ended after {self._seconds:g} s, which is too short for "
                f"a complete one: set --check_env_secs to more",
            )


def run_in_child(given: Mapping[str, Any]) -> None:
    """Check levels in this process; write records of calls and findings into a file.

    `given` is what `CheckProcess` sends. The process is killed after its time, even if the one that
    started it is gone.
    """
    records = os.fdopen(given["files"][0], "w", buffering=1)
    stacks = os.fdopen(given["files"][1], "w")
    faulthandler.enable(stacks)
    faulthandler.register(signal.SIGUSR2, stacks, all_threads=False)
    # Shells let the programs that they start in the background ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(int(max(given["until"] - time.monotonic(), 0) + 10))
    user_modules.import_all(given["imports"])
    from impala_mm.environments import check_vectors, types  # noqa: PLC0415

    def write(record: dict[str, Any]) -> None:
        records.write(f"{json.dumps(record)}\n")

    def starts(level: str, call: str, steps: int) -> None:
        write({"level": level, "call": call, "since": time.monotonic(), "steps": steps})

    for level in given["levels"]:
        checked = check_vectors.AnyLevelCheck(
            level,
            types.Options(**given["options"]),
            functools.partial(starts, level),
            lambda finding: write(finding._asdict()),
        )
        if not checked.run(given["until"]):
            write({"end": "late"})
            break
    else:
        write({"end": "complete"})
    records.flush()
    os._exit(0)  # threads and exit handlers of an environment cannot hold it up
