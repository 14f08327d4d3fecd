"""Prints what happens in a run, for `follow`: the learners' log, and each process's failures."""

import collections
import re
from pathlib import Path
from typing import Any

from impala_mm.config.messages import log_line
from launcher.supervise.callbacks import Say
from launcher.supervise.log_tail import LogTail, for_terminal
from launcher.supervise.run_registry import Run
from launcher.supervise.task import LEARNERS

_REMEMBERED_LINES = 400  # lines of the learners' log; a supervisor remembers as many
# The beginning of a line that differs where two actors print the same.
_OWN_PREFIX = re.compile(r"^(\[actor \d+\] |\d\d:\d\d:\d\d )")
# Lines of the learners' supervisor about their end.
_END_OF_LEARNERS = re.compile(r"\d\d:\d\d:\d\d (it .*; the run ends|-- learners: failed.* --)")


class RunNews:
    """The news of one run."""

    def __init__(self, run: Run, logdir: Path, say: Say, shows_log: bool):
        """Remember the end of the learners' log; `shows_log`: whether to print this log."""
        self._run, self._say, self._shows_log = run, say, shows_log
        self._learners_log = LogTail(logdir / f"{LEARNERS}.log", max_bytes=0)
        # By process: the time of its last failure that was printed, and the number of failures.
        self._reported_failures: dict[str, tuple[float, int]] = {}
        self._reasons: dict[tuple[str, ...], str] = {}  # the first process that failed with lines
        self._printed: collections.deque[str] = collections.deque(maxlen=_REMEMBERED_LINES)

    def print_all(self) -> None:
        """Print what has happened since the last call."""
        for line in self._learners_log.lines():
            # `failure_message` contains the line about the end.
            if self._shows_log and not _END_OF_LEARNERS.fullmatch(line):
                print(for_terminal(line), flush=True)
            if self._shows_log:
                self._printed.append(line)
        for name, state in self._run.states().items():
            failure = state.get("failure")
            reported, times = self._reported_failures.get(name, (0.0, 0))
            if failure and failure["time"] != reported:
                self._reported_failures[name] = failure["time"], times + 1
                self._say(failure_message(state, times + 1, self._same_lines(name, failure)))

    def _same_lines(self, name: str, failure: dict[str, Any]) -> str:
        """Return which lines on the screen are those of a failure; empty if none are."""
        if not failure["lines"]:
            return ""
        if name == LEARNERS and set(failure["lines"]) <= set(self._printed):
            return "its lines are above"
        first = self._reasons.setdefault(
            tuple(_OWN_PREFIX.sub("", line) for line in failure["lines"]), name
        )
        return "" if first == name else f"its lines are the same as those of {first}"


def failure_message(state: dict[str, Any], times: int, same_lines: str = "") -> str:
    """Return the message about a process that failed for the given number of times.

    `same_lines`, which says where its lines are shown already, takes the place of the lines.
    """
    failure = state["failure"]
    repeated = f" {times} times" if times > 1 else ""
    lines = [f"{state['name']} on {state['host']} failed{repeated}: {failure['why']}"]
    shown = [same_lines] if same_lines else failure["lines"]
    lines += [f"    {log_line(line)}" for line in shown]
    return "\n".join([*lines, f"  {failure['next']}; log: {state['log']}"])
